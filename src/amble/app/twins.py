"""Near-duplicates over several frontier files, each of which indexes its own documents.

A document is looked for in the other files before its own one commits it. Two that are near to each other would miss each
other there if both were on their way, so the second one waits until the first one's fate is known. Nothing of this is
durable: all files belong to one process, and a new one begins after everything that the old one sent is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from amble.domain.digest import near_duplicates
from amble.domain.frontier import NEAR_DUPLICATE, Applied, Complete, near_detail

Commit = Callable[[Complete], Awaitable[Applied]]


class Index(Protocol):
    """What one file knows of its own documents."""

    async def find_near(self, fingerprint: int) -> str | None:
        """The URL of a published document there that is nearly the same text."""
        ...


@dataclass(slots=True)
class Twins:
    """Use it from one event loop. `indexes`: of each partition."""

    indexes: Mapping[int, Index]
    _under_way: dict[asyncio.Future[Applied], int] = field(default_factory=dict)

    async def complete(self, item: Complete, commit: Commit) -> Applied:
        """`commit` the item, withheld where another file has published nearly the same text."""
        if not (item.publish and item.near and item.fingerprint):
            return await commit(item)
        before = [task for task, other in self._under_way.items() if near_duplicates(other, item.fingerprint)]
        # A task of its own: whoever asks may go away, but what was sent is committed all the same.
        task = asyncio.ensure_future(self._after(before, item, commit))
        self._under_way[task] = item.fingerprint
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    async def settled(self) -> None:
        """Wait until nothing is under way any more, whoever asked for it."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))

    async def _after(self, before: list[asyncio.Future[Applied]], item: Complete, commit: Commit) -> Applied:
        if before:
            await asyncio.wait(before)
        for partition, index in self.indexes.items():
            if partition == item.key.partition:
                continue
            url = await index.find_near(item.fingerprint)
            if url is not None:
                return await commit(
                    replace(item, publish=False, near=False, withheld=NEAR_DUPLICATE, detail=near_detail(url))
                )
        return await commit(item)

    def _over(self, task: asyncio.Future[Applied]) -> None:
        del self._under_way[task]
        if not task.cancelled():
            task.exception()  # whoever asked may be gone: nobody else looks at it
