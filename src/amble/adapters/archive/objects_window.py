"""Reads neighbours together: the store bills by the request, and records that are read together often lie together.

Objects never change, so what was read stays true; the newest windows are kept, within a bound.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from amble.adapters.archive.objects_store import Bucket


class ReadWindows:
    """Ranges of objects, got in windows of `window_bytes` of which `windows_max` are kept. 0 bytes: no windows.

    Windows overlap by half, so that a record of up to half a window is whole in one; longer ones are read alone.
    """

    def __init__(self, bucket: Bucket, window_bytes: int, windows_max: int) -> None:
        self._bucket = bucket
        self._half = window_bytes // 2
        self._windows_max = windows_max
        self._kept: OrderedDict[tuple[str, int], asyncio.Task[bytes | None]] = OrderedDict()

    async def range(self, key: str, offset: int, length: int) -> bytes | None:
        """As `Bucket.range`."""
        if length > self._half:
            return await self._bucket.range(key, offset, length)
        start = offset // self._half * self._half
        window = await self._window(key, start)
        return None if window is None else window[offset - start : offset - start + length]

    async def _window(self, key: str, start: int) -> bytes | None:
        """One window; those who want the same at once share its request."""
        task = self._kept.get((key, start))
        if task is None:
            task = asyncio.get_running_loop().create_task(self._bucket.range(key, start, 2 * self._half))
            task.add_done_callback(_seen)
            self._kept[key, start] = task
            if len(self._kept) > self._windows_max:
                self._kept.popitem(last=False)
        self._kept.move_to_end((key, start))
        try:
            found = await asyncio.shield(task)
        except Exception:
            self._forget(key, start, task)
            raise
        if found is None:
            self._forget(key, start, task)
        return found

    def _forget(self, key: str, start: int, task: asyncio.Task[bytes | None]) -> None:
        """What was not there, or could not be read, is asked for again next time."""
        if self._kept.get((key, start)) is task:
            del self._kept[key, start]


def _seen(task: asyncio.Task[bytes | None]) -> None:
    """Its error was for those who waited; nobody may be left."""
    if not task.cancelled():
        task.exception()
