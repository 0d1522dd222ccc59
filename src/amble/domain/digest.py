"""How alike two documents are, by the fingerprint of their text."""

from __future__ import annotations

# Fingerprints of near-duplicates differ in at most this many of 64 bits.
NEAR_DUPLICATE_BITS_MAX = 3


def distance(one: int, other: int) -> int:
    """Number of bits, 0 to 64, in which two 64-bit fingerprints differ."""
    return (one ^ other).bit_count()


def near_duplicates(one: int, other: int, bits_max: int = NEAR_DUPLICATE_BITS_MAX) -> bool:
    """Whether two fingerprints belong to nearly the same text. A text too short for a fingerprint (0) has no twin."""
    return one != 0 and other != 0 and distance(one, other) <= bits_max
