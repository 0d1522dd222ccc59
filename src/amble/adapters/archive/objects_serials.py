"""Serials of segments where no database gives them out: blocks claimed by conditional create in the bucket itself."""

from __future__ import annotations

import asyncio
import time

from amble.adapters.archive import objects_names as names
from amble.adapters.archive.objects_store import Bucket, ObjectTrouble
from amble.domain.errors import ArchiveUnavailable

BLOCK = 64  # serials in a claim; what a process does not use of its last block is never used
_TRIES_MAX = 1000
_TROUBLES_MAX = 5
_PAUSE_S = 0.05


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
        if self._next is None:
            self._next = self._first_free()
        troubles = 0
        for _ in range(_TRIES_MAX):
            number = self._next
            self._next += 1
            try:
                if self._bucket.create_now(names.claim_key(number), b""):
                    return number
            except ObjectTrouble as error:
                troubles += 1
                if error.refused or troubles == _TROUBLES_MAX:
                    self._next = number  # where nothing is known to lie
                    raise
                time.sleep(_PAUSE_S * 2**troubles)
        raise ArchiveUnavailable(f"archive {self._bucket.place}: too many others claim serials at once")

    def _first_free(self) -> int:
        """The block behind all claims; where there are none yet, behind all segments (they came from a folder)."""
        claims = (names.number_of(seen.key) for seen in self._bucket.list_now(names.CLAIMS))
        last = max((number for number in claims if number is not None), default=-1)
        if last >= 0:
            return last + 1
        serials = (names.serial_of(seen.key) for seen in self._bucket.list_now(names.SEGMENTS))
        return -(-max((serial for serial in serials if serial is not None), default=0) // BLOCK)
