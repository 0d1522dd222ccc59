"""The frontier of a crawl folder: one store process and its file, or several that share the sites between them.

With several files each is a partition of its own (`store.files`), and links that cross are carried between them here,
by the same protocol that carries them between machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from amble.adapters.sql.files import FilesReports, file_of, refuse_other_number
from amble.adapters.sql.process import StoreProcess
from amble.adapters.sql.reports import SqliteReports
from amble.adapters.sql.settings import StoreSettings, of_file
from amble.app.crawl import Chore
from amble.app.layout import Folder
from amble.app.shards import Shards
from amble.domain.decision import Reason
from amble.domain.errors import StoreUnavailable
from amble.domain.frontier import ReserveAsk, ReserveOutcome, ReserveReply, Takeover, TakeoverAsk
from amble.domain.partition import PartitionMap
from amble.domain.report import Status
from amble.ports import Clock, Frontier, Telemetry
from amble.stages.gate import Fence
from amble.stages.health import Health
from amble.upkeep.relay import Intake, Relay

# A frontier that cannot be written for this long when a crawl opens is told to the operator instead of waited for.
TAKE_OVER_PATIENCE_S = 6.0
# Links cross from file to file this often, while there are any.
CROSS_EVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
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


class Host(Frontier, Protocol):
    """A store that takes guests."""

    async def visit(self, ask: ReserveAsk) -> ReserveReply:
        """A start at an origin that lives here, for a lease of another store."""
        ...


@dataclass(slots=True, kw_only=True)
class FileShards(Shards):
    """Shards of which each knows its own origins only: a hop to another one's asks that one first."""

    partition_of: Callable[[str], int]
    hosts: Mapping[int, Host]
    shared: bool = False

    async def reserve(self, ask: ReserveAsk) -> ReserveReply:
        """See ports.Frontier."""
        home = self.partition_of(ask.origin)
        if home != ask.key.partition:
            answer = await self.hosts[home].visit(ask)
            if answer.outcome != ReserveOutcome.GRANTED:
                return answer
        # Not super(): a dataclass with slots is another class than the one that was written down.
        return await Shards.reserve(self, ask)


@dataclass(slots=True)
class _Troubles:
    """The troubles of several stores told as one."""

    hear: Callable[[str | None], None]
    _standing: dict[int, str] = field(default_factory=dict)

    def heard(self, partition: int, trouble: str | None) -> None:
        """One store has begun or ended a trouble."""
        self._standing.pop(partition, None)
        if trouble is not None:
            self._standing[partition] = trouble
        self.hear("; ".join(dict.fromkeys(self._standing.values())) or None)


async def open_stores(
    folder: Folder,
    settings: StoreSettings,
    files: int,
    stack: contextlib.AsyncExitStack,
    *,
    lock_fd: int,
    clock: Clock,
    telemetry: Telemetry,
    health: Health,
) -> Stores:
    """Start the store processes and take the crawl over; `stack` closes what was opened.

    Raises CrawlFolderUnusable, StoreUnavailable, StoreBroken.
    """
    refuse_other_number(folder.frontier, files)
    hear = health.listener(Reason.STORE_UNAVAILABLE)
    if files == 1:
        store = await _start(folder, settings, 0, stack, lock_fd)
        store.on_trouble = hear
        return await _single(folder, store, stack)
    troubles = _Troubles(hear)
    # The first file is made last: with it, the crawl exists.
    stores = {
        number: await _start(folder, of_file(settings, number, files), number, stack, lock_fd)
        for number in reversed(range(files))
    }
    for number, store in stores.items():
        store.on_trouble = partial(troubles.heard, number)
    return await _several(folder, stores, stack, clock, telemetry)


async def _start(
    folder: Folder, settings: StoreSettings, number: int, stack: contextlib.AsyncExitStack, lock_fd: int
) -> StoreProcess:
    store = await StoreProcess.start(file_of(folder.frontier, number), settings, lock_fd=lock_fd)
    stack.push_async_callback(store.close)
    return store


async def _single(folder: Folder, store: StoreProcess, stack: contextlib.AsyncExitStack) -> Stores:
    takeover = await _take_over(store, 0)
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
    )


async def _several(
    folder: Folder,
    stores: dict[int, StoreProcess],
    stack: contextlib.AsyncExitStack,
    clock: Clock,
    telemetry: Telemetry,
) -> Stores:
    fence = Fence()
    partition_of = PartitionMap(hashed=len(stores)).of
    shards = FileShards(
        clock=clock, on_fenced=lambda _: fence.lose_all(), partition_of=partition_of, hosts=stores
    )
    found: list[Takeover] = []
    for number in sorted(stores):
        takeover = await _take_over(stores[number], number)
        shards.add(number, stores[number], takeover.epoch)
        fence.trust(number, takeover.epoch)
        found.append(takeover)
    reports = FilesReports([file_of(folder.frontier, number) for number in sorted(stores)])
    stack.callback(reports.close)

    def abandon(error: StoreUnavailable) -> None:
        for store in stores.values():
            store.abandon(error)

    def pace(in_flight: int) -> None:
        for store in stores.values():
            store.pace(in_flight // len(stores))

    return Stores(
        frontier=shards,
        fence=fence,
        epoch=max(takeover.epoch for takeover in found),
        takeover=together(found),
        read_status=reports.status,
        partition_of=partition_of,
        abandon=abandon,
        pace=pace,
        chores=lambda kick: [crossing(shards, telemetry, kick)],
    )


def crossing(shards: Shards, telemetry: Telemetry, kick: Callable[[], None]) -> Chore:
    """What carries links between the partitions of `shards`; `kick` hears that something new is queued."""
    relay = Relay(source=shards, held=lambda: shards.expecting, reach=shards.handle, telemetry=telemetry)
    intake = Intake(frontier=shards, held=lambda: shards.held)

    async def cross() -> None:
        if not shards.expecting:
            return
        await relay.once()
        if await intake.once():
            kick()

    return Chore(name="links between files", every_s=CROSS_EVERY_S, work=cross)


def together(found: Sequence[Takeover]) -> Takeover:
    """What was found in several files, as one."""
    return Takeover(
        epoch=max(takeover.epoch for takeover in found),
        lapsed=sum(takeover.lapsed for takeover in found),
        resumables=[work for takeover in found for work in takeover.resumables],
        open_manifests=[manifest for takeover in found for manifest in takeover.open_manifests],
        now_ms=max(takeover.now_ms for takeover in found),
    )


async def _take_over(store: StoreProcess, partition: int) -> Takeover:
    """Become the owner. Raises StoreUnavailable when the frontier could not be written for a while."""
    ask = TakeoverAsk(f"{socket.gethostname()}/{os.getpid()}", partition)
    taking = asyncio.ensure_future(store.take_over(ask))
    while not (await asyncio.wait({taking}, timeout=TAKE_OVER_PATIENCE_S))[0]:
        if store.trouble is not None:
            store.abandon(StoreUnavailable(store.trouble))
    return taking.result()
