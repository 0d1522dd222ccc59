"""Several frontier files as one frontier: a partition in each, and links carried from file to file.

Apart from `app/storefiles.py`, because a crawl with one file need not load it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from amble.adapters.sql.files import FilesReports
from amble.adapters.sql.names import file_of, refuse_other_number
from amble.adapters.sql.process import StoreProcess
from amble.adapters.sql.settings import StoreSettings, of_file
from amble.app.crawl import Chore
from amble.app.layout import Folder
from amble.app.shards import Shards
from amble.app.storefiles import Stores, start_store, take_over
from amble.app.twins import Twins
from amble.domain.errors import StoreUnavailable
from amble.domain.frontier import Applied, Complete, ReserveAsk, ReserveOutcome, ReserveReply, Takeover
from amble.domain.partition import PartitionMap
from amble.ports import Clock, Frontier, Telemetry
from amble.stages.gate import Fence
from amble.upkeep.relay import Intake, Relay

# Links cross from file to file this often, while there are any.
CROSS_EVERY_S = 0.1


class Host(Frontier, Protocol):
    """A store that takes guests, and tells others of its documents."""

    async def visit(self, ask: ReserveAsk) -> ReserveReply:
        """A start at an origin that lives here, for a lease of another store."""
        ...

    async def find_near(self, fingerprint: int) -> str | None:
        """The URL of a published document that lives here and is nearly the same text."""
        ...


@dataclass(slots=True, kw_only=True)
class FileShards(Shards):
    """Shards of which each knows its own origins and documents only: a hop to another one's asks that one first, and a
    document is looked for in all others before it is published.
    """

    partition_of: Callable[[str], int]
    hosts: Mapping[int, Host]
    shared: bool = False
    twins: Twins = field(init=False)

    def __post_init__(self) -> None:
        """Made of the same hosts."""
        self.twins = Twins(self.hosts)

    async def reserve(self, ask: ReserveAsk) -> ReserveReply:
        """See ports.Frontier."""
        home = self.partition_of(ask.origin)
        if home != ask.key.partition:
            answer = await self.hosts[home].visit(ask)
            if answer.outcome != ReserveOutcome.GRANTED:
                return answer
        # Not super(): a dataclass with slots is another class than the one that was written down.
        return await Shards.reserve(self, ask)

    async def complete(self, item: Complete) -> Applied:
        """See ports.Frontier."""
        return await self.twins.complete(item, partial(Shards.complete, self))

    async def close(self) -> None:
        """See ports.Frontier."""
        await self.twins.settled()
        await Shards.close(self)


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


async def open_several(
    folder: Folder,
    settings: StoreSettings,
    files: int,
    stack: contextlib.AsyncExitStack,
    *,
    lock_fd: int,
    clock: Clock,
    telemetry: Telemetry,
    hear: Callable[[str | None], None],
) -> Stores:
    """Start the store process of each file and take the crawl over. Raises as `storefiles.open_one`."""
    refuse_other_number(folder.frontier, files)
    troubles = _Troubles(hear)
    # The first file is made last: with it, the crawl exists.
    stores = {
        number: await start_store(folder, of_file(settings, number, files), number, stack, lock_fd)
        for number in reversed(range(files))
    }
    for number, store in stores.items():
        store.on_trouble = partial(troubles.heard, number)
    return await _several(folder, stores, stack, clock, telemetry)


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
    stack.push_async_callback(shards.twins.settled)
    found: list[Takeover] = []
    for number in sorted(stores):
        takeover = await take_over(stores[number], number)
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
