"""Content codings: undone whole, in part, or refused, always within the cap."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from amble.formats.decode import (
    CODINGS_MAX,
    MEMBERS_MAX,
    NOTE_BROKEN,
    NOTE_TRAILING,
    NOTE_TRUNCATED,
    Decoded,
    Undecodable,
    decode,
)

CAP = 1024 * 1024
PLAIN = b"".join(b"<p>paragraph %d of a page</p>\n" % i for i in range(5_000))


def raw_deflate(data: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(data) + deflater.flush()


ENCODERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "raw deflate": raw_deflate,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


def coding_of(encoder: str) -> str:
    return encoder.rpartition(" ")[2]


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("plain", [PLAIN, b"x", PLAIN[:70_000]])
def test_every_coding_is_undone(encoder: str, plain: bytes) -> None:
    assert decode(ENCODERS[encoder](plain), [coding_of(encoder)], CAP) == Decoded(plain)


@given(
    plain=st.binary(min_size=1, max_size=3000),
    chain=st.lists(st.sampled_from([*ENCODERS]), max_size=CODINGS_MAX),
)
def test_codings_are_undone_in_reverse_order(plain: bytes, chain: list[str]) -> None:
    body = plain
    for encoder in chain:
        body = ENCODERS[encoder](body)
    assert decode(body, [coding_of(encoder) for encoder in chain], CAP) == Decoded(plain)


def test_identity_and_its_nicknames_are_no_coding() -> None:
    assert decode(b"plain", ["identity", "none", "utf-8"], CAP) == Decoded(b"plain")


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_cut_stream_keeps_what_came_before_the_cut(encoder: str) -> None:
    whole = ENCODERS[encoder](bytes(range(256)) * 40 + PLAIN)
    outcome = decode(whole[:-40], [coding_of(encoder)], CAP)
    assert isinstance(outcome, Decoded)
    assert outcome.notes == (NOTE_BROKEN,)
    assert outcome.body
    assert (bytes(range(256)) * 40 + PLAIN).startswith(outcome.body)


def test_a_wrong_checksum_costs_nothing_but_a_note() -> None:
    body = bytearray(gzip.compress(PLAIN))
    body[-6] ^= 0xFF
    outcome = decode(bytes(body), ["gzip"], CAP)
    assert isinstance(outcome, Decoded)
    assert outcome.notes == (NOTE_BROKEN,)
    assert len(outcome.body) > len(PLAIN) - 40_000


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_bomb_stops_at_the_cap_and_says_so(encoder: str) -> None:
    bomb = ENCODERS[encoder](b"\0" * (32 * CAP))
    tracemalloc.start()
    try:
        outcome = decode(bomb, [coding_of(encoder)], CAP)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert outcome == Decoded(b"\0" * CAP, (NOTE_TRUNCATED,))
    assert peak < 6 * CAP


def test_a_bomb_in_a_bomb_stops_at_the_cap_of_each_layer() -> None:
    bomb = gzip.compress(gzip.compress(b"\0" * (64 * CAP)))
    outcome = decode(bomb, ["gzip", "gzip"], CAP)
    assert outcome == Decoded(b"\0" * CAP, (NOTE_TRUNCATED,))


def test_a_body_of_exactly_the_cap_is_whole() -> None:
    assert decode(gzip.compress(b"x" * CAP), ["gzip"], CAP) == Decoded(b"x" * CAP)


def test_a_plain_body_is_cut_at_the_cap_too() -> None:
    assert decode(b"x" * 11, [], 10) == Decoded(b"x" * 10, (NOTE_TRUNCATED,))


def test_gzip_members_are_one_body() -> None:
    body = gzip.compress(b"one ") + gzip.compress(PLAIN) + gzip.compress(b" three")
    assert decode(body, ["gzip"], CAP) == Decoded(b"one " + PLAIN + b" three")


@pytest.mark.parametrize("encoder", ["gzip", "deflate"])
def test_bytes_after_the_end_are_noted_and_ignored(encoder: str) -> None:
    outcome = decode(ENCODERS[encoder](PLAIN) + b"<!-- trailing", [coding_of(encoder)], CAP)
    assert isinstance(outcome, Decoded)
    assert outcome.body == PLAIN
    assert outcome.notes in ((NOTE_TRAILING,), (NOTE_BROKEN,))


def test_countless_tiny_members_are_not_all_read() -> None:
    outcome = decode(gzip.compress(b"x") * (MEMBERS_MAX + 50), ["gzip"], CAP)
    assert outcome == Decoded(b"x" * MEMBERS_MAX, (NOTE_TRAILING,))


@pytest.mark.parametrize("coding", ["compress", "x-compress", "bzip2", "gzip;q=1", "\x00"])
def test_an_unknown_coding_is_named(coding: str) -> None:
    outcome = decode(b"body", ["gzip", coding], CAP)
    assert isinstance(outcome, Undecodable)
    assert outcome.reason == "coding_unknown"
    assert coding in outcome.detail


def test_too_many_codings_are_refused() -> None:
    outcome = decode(b"body", ["gzip"] * (CODINGS_MAX + 1), CAP)
    assert isinstance(outcome, Undecodable)
    assert outcome.reason == "codings_too_many"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_stream_that_is_none_is_broken(coding: str) -> None:
    outcome = decode(b"<!doctype html><title>not compressed at all</title>", [coding], CAP)
    assert isinstance(outcome, Undecodable)
    assert outcome.reason == "coding_broken"


def test_a_zstd_window_beyond_the_standard_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=25)
    deflater = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    outcome = decode(deflater.compress(PLAIN) + deflater.flush(), ["zstd"], CAP)
    assert isinstance(outcome, Undecodable)


@given(
    body=st.binary(max_size=400),
    codings=st.lists(st.sampled_from(["gzip", "deflate", "br", "zstd", "identity", "what"]), max_size=4),
)
def test_any_bytes_have_an_outcome(body: bytes, codings: list[str]) -> None:
    outcome = decode(body, codings, 1000)
    assert isinstance(outcome, Undecodable) or len(outcome.body) <= 1000


@given(st.sampled_from([*ENCODERS]), st.integers(0, 400), st.integers(0, 255))
def test_a_flipped_byte_never_raises(encoder: str, position: int, value: int) -> None:
    body = bytearray(ENCODERS[encoder](PLAIN[:3000]))
    body[position % len(body)] = value
    decode(bytes(body), [coding_of(encoder)], CAP)
