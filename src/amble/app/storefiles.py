"""The frontier of a crawl folder: one store process and its file, or several that share the sites between them.

With several files (`store.files`) each is a partition of its own; `app/filegroup.py` makes one frontier of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence

from msgspec import Struct

from amble.adapters.sql.names import file_of, refuse_other_number
from amble.adapters.sql.process import StoreProcess
from amble.adapters.sql.reports import SqliteReports
from amble.adapters.sql.settings import StoreSettings
from amble.app.crawl import Chore
from amble.app.layout import Folder
from amble.app.seeding import SeedMemory
from amble.domain.errors import StoreUnavailable
from amble.domain.frontier import Takeover, TakeoverAsk
from amble.domain.report import Status
from amble.ports import Frontier
from amble.stages.gate import Fence

# A frontier that cannot be written for this long when a crawl opens is told to the operator instead of waited for.
TAKE_OVER_PATIENCE_S = 6.0


class Stores(Struct, frozen=True, kw_only=True):
    """What a crawl needs of its frontier. `takeover` is what an earlier life has left in all files together."""

    frontier: Frontier
    fence: Fence
    epoch: int
    takeover: Takeover
    read_status: Callable[[], Status]
    partition_of: Callable[[str], int] | None
    abandon: Callable[[StoreUnavailable], None]
    pace: Callable[[int], None]
    # Given the scheduler's `kick`: what carries links between files.
    chores: Callable[[Callable[[], None]], Sequence[Chore]] = lambda _: ()
    # None with several files: what becomes of a seed that is passed on from one to another is not told.
    seeds: SeedMemory | None = None


async def open_one(
    folder: Folder,
    settings: StoreSettings,
    stack: contextlib.AsyncExitStack,
    *,
    lock_fd: int,
    hear: Callable[[str | None], None],
) -> Stores:
    """Start the store process of the only file and take the crawl over; `stack` closes what was opened.

    `hear` is told of each trouble of the store and of its end. Raises CrawlFolderUnusable, StoreUnavailable, StoreBroken.
    """
    refuse_other_number(folder.frontier, 1)
    store = await start_store(folder, settings, 0, stack, lock_fd)
    store.on_trouble = hear
    takeover = await take_over(store, 0)
    reports = SqliteReports(folder.frontier)
    stack.callback(reports.close)
    return Stores(
        frontier=store,
        fence=Fence(takeover.epoch),
        epoch=takeover.epoch,
        takeover=takeover,
        read_status=reports.status,
        partition_of=None,
        abandon=store.abandon,
        pace=store.pace,
        seeds=FileMemory(store, reports),
    )


class FileMemory(Struct, frozen=True):
    """Which seeds were admitted, kept in the only file of a crawl."""

    store: StoreProcess
    reports: SqliteReports

    def read(self) -> bytes | None:
        """See SeedMemory."""
        try:
            return self.reports.seeded()
        except StoreUnavailable:
            return None

    async def keep(self, value: bytes) -> None:
        """See SeedMemory."""
        await self.store.keep_seeded(value)


async def start_store(
    folder: Folder, settings: StoreSettings, number: int, stack: contextlib.AsyncExitStack, lock_fd: int
) -> StoreProcess:
    """The store process of one file; `stack` closes it."""
    store = await StoreProcess.start(file_of(folder.frontier, number), settings, lock_fd=lock_fd)
    stack.push_async_callback(store.close)
    return store


async def take_over(store: StoreProcess, partition: int) -> Takeover:
    """Become the owner. Raises StoreUnavailable when the frontier could not be written for a while."""
    ask = TakeoverAsk(f"{socket.gethostname()}/{os.getpid()}", partition)
    taking = asyncio.ensure_future(store.take_over(ask))
    while not (await asyncio.wait({taking}, timeout=TAKE_OVER_PATIENCE_S))[0]:
        if store.trouble is not None:
            store.abandon(StoreUnavailable(store.trouble))
    return taking.result()
