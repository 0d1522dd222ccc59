"""What an agent does with partitions that come and go: begins them, rests them, loses them, and adopts their leftovers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from amble.app.crawl import Crawl
from amble.app.shards import Shards
from amble.domain.attempt import UrlKind
from amble.domain.errors import StoreBroken
from amble.domain.frontier import AdoptAsk, Resumable, TakeoverAsk
from amble.domain.lifecycle import UrlState
from amble.ports import Clock, Frontier, Telemetry
from amble.stages.gate import Fence
from amble.stages.store import PARSE_HOLD_MS

# Rows past LEASED that nobody holds, because a page stumbled or its holder is gone, are looked for this often.
LEFTOVERS_EVERY_S = 15.0
ADOPTED_AT_ONCE = 64
# What parse workers take at once. The rest is needed for the crawl to go on, and is parsed by the agent.
PARSED_ELSEWHERE = frozenset({UrlKind.PAGE, UrlKind.FEED})
PARSED_HERE = [int(UrlKind.ROBOTS), int(UrlKind.SITEMAP)]


class Filters(Protocol):
    """What an agent remembers of the URLs of its partitions, to spare the store questions."""

    def take_up(self, partition: int) -> None:
        """The partition is held from now on. Never raises; it is made ready behind."""
        ...

    def let_go(self, partition: int) -> None:
        """It is not held any more."""
        ...


@dataclass(slots=True)
class PartitionGround:
    """upkeep.ownership.Ground: what happens with a partition in this process."""

    shards: Shards
    fence: Fence
    open: Callable[[int], Frontier]
    owner: str
    resume: bool
    telemetry: Telemetry
    filters: Filters | None = None
    crawl: Crawl | None = None
    _epochs: dict[int, int] = field(default_factory=dict)
    _resting: set[int] = field(default_factory=set)
    _beginning: set[int] = field(default_factory=set)

    def begin(self, partition: int, epoch: int) -> None:
        """See Ground."""
        assert self.crawl is not None
        self._epochs[partition] = epoch
        self._beginning.add(partition)
        self._resting.discard(partition)
        self.crawl.begin(self._begin(partition, epoch), f"begin {partition}")

    async def _begin(self, partition: int, epoch: int) -> None:
        crawl = self.crawl
        assert crawl is not None
        frontier = self.open(partition)
        try:
            takeover = await frontier.take_over(TakeoverAsk(self.owner, partition, epoch, self.resume))
            if self._epochs.get(partition) != epoch:
                return
            self.shards.add(partition, frontier, epoch)
            if partition in self._resting:
                self.shards.rest(partition)
            if self.filters is not None:
                self.filters.take_up(partition)
            crawl.parts.scheduler.kick()
            await crawl.take_up(takeover)
        except StoreBroken as refused:
            # Another owner has it under the next epoch; the next renewal tells so too.
            self.telemetry.event("partition.refused", partition=partition, epoch=epoch, detail=str(refused))
        finally:
            self._beginning.discard(partition)

    def trust(self, partition: int, epoch: int, until_s: float) -> None:
        """See Ground."""
        self.fence.trust(partition, epoch, until_s)
        self.shards.renewed(partition, epoch)

    def rest(self, partition: int) -> None:
        """See Ground."""
        self._resting.add(partition)
        self.shards.rest(partition)

    def wake(self, partition: int) -> None:
        """See Ground."""
        self._resting.discard(partition)
        self.shards.wake(partition)
        assert self.crawl is not None
        self.crawl.parts.scheduler.kick()

    def is_idle(self, partition: int) -> bool:
        """See Ground."""
        assert self.crawl is not None
        return partition not in self._beginning and not self.crawl.is_busy(partition)

    def lose(self, partition: int) -> None:
        """See Ground."""
        self.fence.lose(partition)
        self._epochs.pop(partition, None)
        self._resting.discard(partition)
        self.shards.retire(partition)
        if self.filters is not None:
            self.filters.let_go(partition)


@dataclass(slots=True)
class Adoption:
    """Goes on with rows past LEASED that nobody holds: from parse workers, and what stumbled here or elsewhere."""

    shards: Shards
    held: Callable[[], Mapping[int, int]]
    worker: int
    elsewhere: bool
    clock: Clock
    crawl: Crawl | None = None
    _leftovers_s: float = float("-inf")

    async def once(self) -> None:
        """One look at all partitions. Raises StoreUnavailable."""
        now_s = self.clock.monotonic_s()
        everywhere = now_s - self._leftovers_s >= LEFTOVERS_EVERY_S
        asks: list[tuple[UrlState, list[int]]] = []
        if everywhere or self.elsewhere:
            asks.append((UrlState.PARSED, []))
        if everywhere:
            self._leftovers_s = now_s
            asks.append((UrlState.FETCHED, PARSED_HERE if self.elsewhere else []))
        working = self.shards.working
        found = await asyncio.gather(
            *(
                self._adopt(partition, epoch, *ask)
                for partition, epoch in self.held().items()
                if everywhere or partition in working
                for ask in asks
            )
        )
        assert self.crawl is not None
        for work in (work for works in found for work in works):
            await self.crawl.resume(work)

    async def _adopt(self, partition: int, epoch: int, state: UrlState, kinds: list[int]) -> list[Resumable]:
        return await self.shards.adopt(
            AdoptAsk(state, self.worker, ADOPTED_AT_ONCE, PARSE_HOLD_MS, partition, epoch, kinds)
        )
