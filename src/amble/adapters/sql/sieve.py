"""Which bodies the file may hold, kept in memory, so that a new one costs no query: a bitmap over their digests.

It may say "perhaps" of one that is not there, never "no" of one that is. That holds because it begins with an empty
table and is told of every body that is sent to the store, which is the only writer; a file that holds bodies already
gets none, and is asked each time.
"""

from __future__ import annotations

from typing import Final

# One bit for each value of a digest's first bits. A million bodies make one new body in nine a needless query.
_BITS: Final = 23


class Sieve:
    """A megabyte, whatever the file holds."""

    __slots__ = ("_bitmap",)

    def __init__(self) -> None:
        self._bitmap = bytearray(1 << _BITS - 3)

    def add(self, digest: bytes) -> None:
        """A body with this sha256 is on its way into the file."""
        place = _place(digest)
        self._bitmap[place >> 3] |= 1 << (place & 7)

    def may_hold(self, digest: bytes) -> bool:
        """False: no body with this sha256 was ever sent."""
        place = _place(digest)
        return bool(self._bitmap[place >> 3] >> (place & 7) & 1)


def _place(digest: bytes) -> int:
    return int.from_bytes(digest[:3]) & (1 << _BITS) - 1
