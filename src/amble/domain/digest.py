"""How alike two documents are, by the fingerprint of their text, and the keys under which an index finds the alike.

The keys rest on the pigeonhole principle (Manku, Jain, Das Sarma: Detecting Near-Duplicates for Web Crawling, WWW 2007):
three bits that differ leave one of four blocks untouched, so whoever shares no block with a fingerprint is not near it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

# The optional C module; the twin below defines what it says.
_first_near_native: Callable[[bytes, int, int], int | None] | None
try:
    from amble._native import first_near as _first_near_native
except ImportError:
    _first_near_native = None

# Fingerprints of near-duplicates differ in at most this many of 64 bits. The keys below rest on it.
NEAR_DUPLICATE_BITS_MAX = 3

_BLOCKS = 4
_BLOCK_BITS = 16
_PART_BITS = 12
_REST_BITS = 64 - _BLOCK_BITS


_64_BITS = (1 << 64) - 1


def signed(fingerprint: int) -> int:
    """A fingerprint as databases keep 64 bits: with a sign."""
    return fingerprint - (1 << 64) if fingerprint >= 1 << 63 else fingerprint


def unsigned(fingerprint: int) -> int:
    """A fingerprint that a database kept with a sign; others stay as they are."""
    return fingerprint & _64_BITS


def distance(one: int, other: int) -> int:
    """Number of bits, 0 to 64, in which two 64-bit fingerprints differ."""
    return (one ^ other).bit_count()


def near_duplicates(one: int, other: int, bits_max: int = NEAR_DUPLICATE_BITS_MAX) -> bool:
    """Whether two fingerprints belong to nearly the same text. A text too short for a fingerprint (0) has no twin."""
    return one != 0 and other != 0 and distance(one, other) <= bits_max


# A fingerprint and the number of its document, 64 bits each, as they lie in an index: least byte first.
PAIR = struct.Struct("<QQ")


def first_near(pairs: bytes, fingerprint: int, bits_max: int = NEAR_DUPLICATE_BITS_MAX) -> int | None:
    """The number of the first document in `pairs` (many PAIR) whose fingerprint is near; None where none is."""
    if _first_near_native is not None:
        return _first_near_native(pairs, fingerprint, bits_max)
    return first_near_by_python(pairs, fingerprint, bits_max)


def first_near_by_python(pairs: bytes, fingerprint: int, bits_max: int) -> int | None:
    """What `first_near` says, without the optional C module."""
    for other, number in PAIR.iter_unpack(pairs):
        if (other ^ fingerprint).bit_count() <= bits_max:
            return int(number)
    return None


def coarse_keys(fingerprint: int) -> tuple[int, int, int, int]:
    """Four keys of 18 bits: one of them is shared with every near-duplicate.

    Among n unrelated fingerprints each key meets n / 65,536: few rows to write, many to compare once there are tens of
    millions.
    """
    return (
        fingerprint & 0xFFFF,
        0x1_0000 | (fingerprint >> 16 & 0xFFFF),
        0x2_0000 | (fingerprint >> 32 & 0xFFFF),
        0x3_0000 | (fingerprint >> 48 & 0xFFFF),
    )


def fine_keys(fingerprint: int) -> list[int]:
    """Sixteen keys of 32 bits: one of them is shared with every near-duplicate.

    A block of 16 bits, and of the 48 bits that are left one of four parts of 12: among n unrelated fingerprints each
    key meets n / 2^28, 56 of 15 billion.
    """
    keys = []
    for block in range(_BLOCKS):
        shift = block * _BLOCK_BITS
        value = fingerprint >> shift & 0xFFFF
        rest = (fingerprint >> shift + _BLOCK_BITS) << shift | (fingerprint & (1 << shift) - 1)
        for part in range(_REST_BITS // _PART_BITS):
            chunk = rest >> part * _PART_BITS & 0xFFF
            keys.append((block << 2 | part) << 28 | value << _PART_BITS | chunk)
    return keys
