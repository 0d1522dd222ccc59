"""The id of a URL: `origin_id << 36 | slot`, where the slot is a keyed hash of the path.

The id only accelerates: the stored path is compared on every hit. Different paths with one slot (65 pairs in 100
million URLs) go to a second slot by a keyed cryptographic hash, then to the slots after it. A site owner who crafts
collisions of the fast hash would have to know the store's random key, and could only ever slow down his own origin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b

import xxhash

SLOT_BITS = 36
SLOT_MASK = (1 << SLOT_BITS) - 1
KEY_BYTES = 32

Slot = Callable[[str], int]


def fast_slot(key: bytes) -> Slot:
    """First slot of a path: xxh3 seeded by the store's key."""
    seed = int.from_bytes(key[:8], "big")
    digest = xxhash.xxh3_64_intdigest
    return lambda path: digest(path.encode("utf-8", "surrogatepass"), seed) & SLOT_MASK


def sure_slot(key: bytes) -> Slot:
    """Second slot of a path, after a true collision: blake2b keyed by the store's key."""

    def slot(path: str) -> int:
        digest = blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest()
        return int.from_bytes(digest, "big") & SLOT_MASK

    return slot


class Slots:
    """The slots to look at for a path, in order. `first` and `second` may be replaced to force collisions."""

    __slots__ = ("first", "second")

    def __init__(self, key: bytes, first: Slot | None = None, second: Slot | None = None) -> None:
        self.first = first or fast_slot(key)
        self.second = second or sure_slot(key)

    def after_first(self, path: str) -> Iterator[int]:
        """The slots that follow the first one, without end: rows are never deleted, so the first empty one ends a search."""
        slot = self.second(path)
        while True:
            yield slot
            slot = (slot + 1) & SLOT_MASK


def subject_of(url: str) -> int:
    """A negative number for a URL that is not remembered, to file its decisions under."""
    return -1 - (xxhash.xxh3_64_intdigest(url.encode("utf-8", "surrogatepass")) >> 1)
