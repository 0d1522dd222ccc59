"""Content codings undone within bounds: gzip, deflate of both kinds, br, zstd, and lists of up to three of them.

A bomb stops at the cap and says so; a broken tail keeps what came before it and says so; a coding that is unknown, or a
stream that is broken from its first byte, is an outcome of its own (RFC 9110 8.4, RFC 1950-1952, RFC 7932, RFC 8878).
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import brotli
import zstandard
from isal import isal_zlib

from amble.domain.manifest import CODING_BROKEN

CODINGS_MAX = 3
# RFC 9659: a zstd content coding must not need a window larger than 8 MB.
ZSTD_WINDOW_BYTES_MAX = 8 * 1024 * 1024
# Compressed bytes are fed in steps of this size: what a decoder has not consumed is copied at every step.
STEP_BYTES = 64 * 1024
SALVAGE_STEP_BYTES = 256
# Concatenated gzip members are one body (RFC 1952 2.2); a body of countless tiny ones is an attack.
MEMBERS_MAX = 1024

NOTE_TRUNCATED = "decoded_truncated"
NOTE_BROKEN = CODING_BROKEN
NOTE_TRAILING = "coding_trailing_bytes"

# isal's stub declares its exception class as an instance.
_BROKEN: tuple[type[Exception], ...] = (isal_zlib.error, zlib.error, brotli.error, zstandard.ZstdError)  # type: ignore[assignment]
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_SKIPPABLE = 0x184D2A50
_AUTO_HEADER = 47
_RAW_DEFLATE = -15
_IDENTITY = frozenset({"identity", "none", "utf-8", "binary"})


@dataclass(frozen=True, slots=True)
class Decoded:
    """The bytes without content coding, at most the cap. `notes` say what is missing or odd."""

    body: bytes
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Undecodable:
    """No byte could be recovered. `reason`: coding_unknown, codings_too_many, coding_broken."""

    reason: str
    detail: str


def decode(body: bytes, codings: Sequence[str], bytes_max: int) -> Decoded | Undecodable:
    """Undo `codings` (lower case, in the order in which they were applied), never keeping over `bytes_max` bytes.

    A body without coding is cut at `bytes_max` too.
    """
    wanted = [coding for coding in codings if coding not in _IDENTITY]
    if len(wanted) > CODINGS_MAX:
        return Undecodable("codings_too_many", ", ".join(wanted)[:200])
    unknown = [coding for coding in wanted if coding not in _DECODERS]
    if unknown:
        return Undecodable("coding_unknown", ", ".join(unknown)[:200])
    notes: list[str] = []
    for coding in reversed(wanted):
        outcome = _undo(coding, body, bytes_max)
        if isinstance(outcome, Undecodable):
            return outcome
        body = outcome.body
        notes += outcome.notes
    if len(body) > bytes_max:
        body = body[:bytes_max]
        notes.append(NOTE_TRUNCATED)
    return Decoded(body, tuple(dict.fromkeys(notes)))


def _undo(coding: str, body: bytes, bytes_max: int) -> Decoded | Undecodable:
    """One coding. Decoders yield pieces and end in an exception where the stream is broken."""
    if not body:
        return Decoded(b"")
    pieces: list[bytes] = []
    notes: list[str] = []
    try:
        pieces.extend(_DECODERS[coding](body, bytes_max, notes))
    except _BROKEN as error:
        if coding in _SALVAGERS:
            pieces = _before_the_break(_SALVAGERS[coding](body, bytes_max))
        if not any(pieces):
            return Undecodable("coding_broken", f"{coding}: {error}"[:200])
        notes.append(NOTE_BROKEN)
    plain = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if len(plain) > bytes_max:
        plain = plain[:bytes_max]
        notes.append(NOTE_TRUNCATED)
    return Decoded(plain, tuple(notes))


def _before_the_break(pieces: Iterator[bytes]) -> list[bytes]:
    found: list[bytes] = []
    try:
        found.extend(pieces)
    except _BROKEN:
        pass  # the break itself: what came before it is the answer
    return found


def _gzip(body: bytes, bytes_max: int, notes: list[str]) -> Iterator[bytes]:
    """gzip members, or a zlib stream, or (deflate as many servers send it) a raw one."""
    room = bytes_max + 1
    start = 0
    for _ in range(MEMBERS_MAX):
        inflater = isal_zlib.decompressobj(_window_bits(body[start : start + 2]))
        while start < len(body) and not inflater.eof:
            fed: bytes = body[start : start + STEP_BYTES]
            start += len(fed)
            while fed and not inflater.eof:
                piece = inflater.decompress(fed, room)
                room -= len(piece)
                yield piece
                if room <= 0:
                    return
                fed = inflater.unconsumed_tail
        if not inflater.eof:
            notes.append(NOTE_BROKEN)
            return
        start -= len(inflater.unused_data)
        if start >= len(body):
            return
        if body[start : start + 2] != _GZIP_MAGIC:
            break
    notes.append(NOTE_TRAILING)


def _window_bits(first_two: bytes) -> int:
    if first_two == _GZIP_MAGIC:
        return _AUTO_HEADER
    # RFC 1950 2.2: method 8, and the first two bytes are a multiple of 31.
    if len(first_two) == 2 and first_two[0] & 0x0F == 8 and int.from_bytes(first_two, "big") % 31 == 0:
        return _AUTO_HEADER
    return _RAW_DEFLATE


def _salvaged_deflate(body: bytes, bytes_max: int) -> Iterator[bytes]:
    """What a DEFLATE stream yields before its break; a step that fails gives nothing, so steps are small."""
    inflater = zlib.decompressobj(_window_bits(body[:2]))
    room = bytes_max + 1
    for start in range(0, len(body), SALVAGE_STEP_BYTES):
        piece = inflater.decompress(inflater.unconsumed_tail + body[start : start + SALVAGE_STEP_BYTES], room)
        room -= len(piece)
        yield piece
        if room <= 0 or inflater.eof:
            return


def _brotli(body: bytes, bytes_max: int, notes: list[str]) -> Iterator[bytes]:
    decoder = brotli.Decompressor()
    total = 0
    for start in range(0, len(body), STEP_BYTES):
        piece = decoder.process(body[start : start + STEP_BYTES], output_buffer_limit=STEP_BYTES)
        # It can hold back output after it has taken all input, whatever can_accept_more_data says: ask until it is dry.
        while piece:
            total += len(piece)
            yield piece
            if total > bytes_max:
                return
            piece = decoder.process(b"", output_buffer_limit=STEP_BYTES)
        if decoder.is_finished():
            if start + STEP_BYTES < len(body):
                notes.append(NOTE_TRAILING)
            return
    notes.append(NOTE_BROKEN)


def _salvaged_brotli(body: bytes, bytes_max: int) -> Iterator[bytes]:
    """What a brotli stream yields before its break; a step that fails gives nothing, so steps are small."""
    decoder = brotli.Decompressor()
    room = bytes_max + 1
    for start in range(0, len(body), SALVAGE_STEP_BYTES):
        piece = decoder.process(body[start : start + SALVAGE_STEP_BYTES], output_buffer_limit=STEP_BYTES)
        while piece and room > 0:
            room -= len(piece)
            yield piece
            piece = decoder.process(b"", output_buffer_limit=STEP_BYTES)
        if room <= 0 or decoder.is_finished():
            return


def _zstd(body: bytes, bytes_max: int, notes: list[str]) -> Iterator[bytes]:
    total = 0
    decoder = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    with decoder.stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
        while piece := reader.read(STEP_BYTES):
            total += len(piece)
            yield piece
            if total > bytes_max:
                return
    # The reader ends a cut stream as quietly as a whole one.
    if not _zstd_is_whole(body):
        notes.append(NOTE_BROKEN)


def _zstd_is_whole(body: bytes) -> bool:
    """Whether `body` ends where its last frame ends (RFC 8878 3.1); block headers are walked, nothing is decoded."""
    position = 0
    while position < len(body):
        magic = int.from_bytes(body[position : position + 4], "little")
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
            position += 8 + int.from_bytes(body[position + 4 : position + 8], "little")
            continue
        try:
            frame = zstandard.get_frame_parameters(body[position : position + 18])
            position += zstandard.frame_header_size(body[position : position + 18])
        except zstandard.ZstdError:
            return False
        last = 0
        while not last:
            header = int.from_bytes(body[position : position + 3], "little")
            last = header & 1
            position += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)
            if position > len(body):
                return False
        position += 4 if frame.has_checksum else 0
    return position == len(body)


_DECODERS: dict[str, Callable[[bytes, int, list[str]], Iterator[bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _gzip,
    "br": _brotli,
    "zstd": _zstd,
}
_SALVAGERS: dict[str, Callable[[bytes, int], Iterator[bytes]]] = {
    "gzip": _salvaged_deflate,
    "x-gzip": _salvaged_deflate,
    "deflate": _salvaged_deflate,
    "br": _salvaged_brotli,
}
