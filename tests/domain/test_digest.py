"""Near-duplicates are found by the keys they share."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.digest import (
    PAIR,
    coarse_keys,
    distance,
    fine_keys,
    first_near,
    first_near_by_python,
    near_duplicates,
)

FINGERPRINTS = st.integers(min_value=1, max_value=(1 << 64) - 1)
FLIPS = [
    sum(1 << bit for bit in bits)
    for count in (0, 1, 2, 3)
    for bits in itertools.combinations(range(64), count)
]


@pytest.mark.parametrize("keys", [coarse_keys, fine_keys])
@pytest.mark.parametrize("fingerprint", [0x0123_4567_89AB_CDEF, (1 << 64) - 1, 1])
def test_every_fingerprint_within_three_bits_shares_a_key(keys, fingerprint: int) -> None:
    own = set(keys(fingerprint))
    assert len(FLIPS) == 1 + 64 + 2016 + 41664
    assert all(own & set(keys(fingerprint ^ flip)) for flip in FLIPS)


@pytest.mark.parametrize(("keys", "count", "bits"), [(coarse_keys, 4, 18), (fine_keys, 16, 32)])
@given(fingerprint=FINGERPRINTS)
def test_keys_of_one_fingerprint_are_distinct_and_bounded(
    keys, count: int, bits: int, fingerprint: int
) -> None:
    found = keys(fingerprint)
    assert len(set(found)) == count
    assert all(0 <= key < 1 << bits for key in found)


@pytest.mark.parametrize("keys", [coarse_keys, fine_keys])
def test_four_bits_in_four_blocks_may_share_nothing(keys) -> None:
    apart = 0x0001_0001_0001_0001
    assert not set(keys(0xAAAA_BBBB_CCCC_DDDD)) & set(keys(0xAAAA_BBBB_CCCC_DDDD ^ apart))


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        (5, 5, True),
        (0b1111, 0b1000, True),
        (0b11111, 0b00001, False),
        (0, 0, False),
        (0, 1, False),
        (1 << 63, 1, True),
    ],
)
def test_near_means_at_most_three_bits_between_two_texts_long_enough(
    one: int, other: int, near: bool
) -> None:
    assert near_duplicates(one, other) is near
    assert near_duplicates(other, one) is near


@given(one=FINGERPRINTS, other=FINGERPRINTS)
def test_distance_counts_the_bits_that_differ(one: int, other: int) -> None:
    assert distance(one, other) == sum(one >> bit & 1 != other >> bit & 1 for bit in range(64))


PAIRS = st.lists(st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1)), max_size=20)


@given(
    pairs=PAIRS, flips=st.lists(st.integers(0, 63), max_size=5), at=st.integers(0, 20), wanted=FINGERPRINTS
)
def test_the_first_near_document_of_a_row_is_found(
    pairs: list[tuple[int, int]], flips: list[int], at: int, wanted: int
) -> None:
    near = wanted
    for bit in flips:
        near ^= 1 << bit
    pairs.insert(at, (near, 7))
    row = b"".join(PAIR.pack(*pair) for pair in pairs)
    found = [number for other, number in pairs if distance(other, wanted) <= 3]
    assert first_near_by_python(row, wanted, 3) == (found[0] if found else None)
    assert first_near(row, wanted) == first_near_by_python(row, wanted, 3)
