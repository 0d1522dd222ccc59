"""Serials of segments where no database gives them out: blocks claimed by conditional create in the bucket itself."""

from __future__ import annotations

import asyncio

from amble.adapters.archive import objects_names as names
from amble.adapters.archive.objects_store import Bucket
from amble.domain.errors import ArchiveUnavailable

BLOCK = 64  # serials in a claim; what a process does not use of its last block is never used
_TRIES_MAX = 1000


class ClaimedSerials:
    """Gives out serials that nobody else has or will have, over any number of processes. One request for `BLOCK`."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._lock = asyncio.Lock()
        self._left: list[int] = []
        self._next: int | None = None

    async def __call__(self, count: int) -> list[int]:
        """`count` serials. Raises ArchiveUnavailable."""
        async with self._lock:
            while len(self._left) < count:
                number = await asyncio.to_thread(self._claim)
                self._left.extend(range(number * BLOCK + 1, (number + 1) * BLOCK + 1))
            given, self._left = self._left[:count], self._left[count:]
            return given

    def _claim(self) -> int:
        """The number of a block that is ours. A claim whose answer was lost is left alone: it costs a block."""
        number = self._next if self._next is not None else self._first_free()
        for _ in range(_TRIES_MAX):
            self._next = number + 1
            if self._bucket.create_now(names.claim_key(number), b""):
                return number
            number += 1
        raise ArchiveUnavailable(f"archive {self._bucket.place}: too many others claim serials at once")

    def _first_free(self) -> int:
        numbers = (names.number_of(seen.key) for seen in self._bucket.list_now(names.CLAIMS))
        return max((number for number in numbers if number is not None), default=-1) + 1
