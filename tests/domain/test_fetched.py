"""Body references as they stand in a database column, and fetch records on the wire."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.fetched import BodyRef, Fetched, Timings, Validators

REFS = st.builds(BodyRef, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))


@given(ref=REFS)
def test_a_reference_survives_packing(ref: BodyRef) -> None:
    packed = ref.pack()
    assert len(packed) == 16
    assert BodyRef.unpack(packed) == ref


@given(refs=st.lists(REFS, min_size=2, max_size=2))
def test_packed_references_sort_as_they_lie_in_the_archive(refs: list[BodyRef]) -> None:
    def place(ref: BodyRef) -> tuple[int, int, int]:
        return ref.segment, ref.offset, ref.length

    assert sorted(refs, key=place) == sorted(refs, key=BodyRef.pack)


def test_packed_bytes_never_change_their_meaning() -> None:
    assert BodyRef(1, 2, 3).pack() == bytes.fromhex("00000001 0000000000000002 00000003")


@pytest.mark.parametrize("packed", [b"", b"x" * 15, b"x" * 17])
def test_bytes_of_another_length_are_no_reference(packed: bytes) -> None:
    with pytest.raises(struct.error):
        BodyRef.unpack(packed)


@pytest.mark.parametrize("ref", [BodyRef(-1, 0, 0), BodyRef(2**32, 0, 0), BodyRef(0, 0, 2**32)])
def test_a_reference_that_does_not_fit_is_not_stored_wrongly(ref: BodyRef) -> None:
    with pytest.raises(struct.error):
        ref.pack()


def test_a_reference_is_readable() -> None:
    assert str(BodyRef(3, 1_024, 77)) == "3:1024+77"


def test_a_fetch_record_survives_the_wire() -> None:
    fetched = Fetched(
        status=200,
        ref=BodyRef(1, 2, 3),
        body_ref=None,
        digest=b"d" * 32,
        body_bytes=10,
        wire_bytes=20,
        content_type="text/html",
        address="192.0.2.1",
        timings=Timings(first_byte_ms=5, total_ms=9),
        validators=Validators('W/"x"', "Sun, 01 Mar 2026 12:00:00 GMT"),
        quirks=("bare_lf",),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fetched), type=Fetched) == fetched
