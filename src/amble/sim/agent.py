"""One life of an agent: the production stages, wired to the seeded world as the composition root wires them to the real.

Nothing here decides anything; the policy is the production policy with shorter times, so that much happens in a minute.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from amble.app.crawl import Crawl, Parts
from amble.app.filegroup import FileShards, crossing, together
from amble.app.progress import EndReason
from amble.app.wiring import Rules, Tools, wire_line
from amble.domain.decision import Reason
from amble.domain.errors import AmbleError, StoreUnavailable
from amble.domain.frontier import Takeover, TakeoverAsk
from amble.domain.partition import PartitionMap
from amble.domain.policy import (
    Budget,
    FetchLimits,
    OriginPolicy,
    ParseLimits,
    Policy,
    RetryPolicy,
    RobotsPolicy,
    ScopeKind,
    UrlLimits,
)
from amble.domain.report import Status
from amble.domain.scope import Scope
from amble.sim.archive import Disk, SimArchive
from amble.sim.clock import Actor, Dice, SeededEntropy, VirtualClock, VirtualLoop
from amble.sim.faults import Weather
from amble.sim.frontier import SimFrontier, StoreHost
from amble.sim.history import History
from amble.sim.parsers import Children, SimParsers
from amble.sim.world import SimResolver, SimTransport, World
from amble.stages.gate import HOLD_MARGIN_S, Fence
from amble.stages.health import Health

POLICY = Policy(
    fetch=FetchLimits(connect_s=2.0, first_byte_s=3.0, idle_s=2.0, total_s=6.0),
    urls=UrlLimits(depth_max=30, hops_max=4),
    parse=ParseLimits(wall_s=5.0),
    origin=OriginPolicy(
        spacing_ms=1_000,
        adaptive_cap_ms=4_000,
        backoff_base_ms=1_000,
        backoff_cap_ms=30_000,
        retry_after_cap_ms=60_000,
    ),
    retry=RetryPolicy(tries_max=4, base_ms=1_000, cap_ms=20_000),
    robots=RobotsPolicy(
        fresh_ms_max=600_000,
        fresh_ms_min=60_000,
        unreachable_retry_ms=60_000,
        stale_while_unreachable_ms=240_000,
    ),
    budget=Budget(pages_max=None),
)
# No request of an earlier owner can be under way any more after this.
IN_FLIGHT_S_MAX = POLICY.fetch.longest_s + HOLD_MARGIN_S
CONCURRENCY = 16
# So few that most pages need several commits.
LINKS_PER_BATCH = 2
WAIT_S_MAX = 30.0
EXPIRE_EVERY_S, STATUS_EVERY_S, SLEEP_S_MAX = 2.0, 20.0, 10.0


@dataclass(slots=True, kw_only=True)
class Place:
    """What all agents of a seed share."""

    loop: VirtualLoop
    clock: VirtualClock
    world: World
    weather: Weather
    history: History
    disk: Disk
    children: Children
    seed: int
    partitions: PartitionMap


@dataclass(slots=True)
class Ending:
    """How a life ended. `reason` None: it died."""

    reason: EndReason | None
    next_due_s: float | None = None
    trouble: str = ""


class Telemetry:
    """ports.Telemetry into the history. An internal error is a violation."""

    def __init__(self, history: History, actor: Actor) -> None:
        self._history, self._actor = history, actor
        self.counters: Counter[str] = Counter()

    def event(self, name: str, **fields: object) -> None:
        """See ports.Telemetry."""
        if not self._actor.alive:
            return
        self._history.reached[f"event.{name}"] += 1
        if name == "internal":
            self._history.violate(
                "no internal error", f"{fields.get('url')}: {fields.get('error')} {fields.get('trace')}"
            )

    def count(self, name: str, amount: int = 1) -> None:
        """See ports.Telemetry."""
        self.counters[name] += amount


@dataclass(slots=True)
class Agent:
    """A process that crawls: it lives until its crawl ends or something kills it."""

    place: Place
    host: StoreHost
    number: int
    fence_wait_s: float = 0.0
    actor: Actor = field(init=False)
    ended: asyncio.Future[Ending] = field(init=False)
    archive: SimArchive = field(init=False)
    crawl: Crawl | None = None

    def __post_init__(self) -> None:
        place = self.place
        self.actor = Actor(f"agent{self.number}")
        self.ended = place.loop.create_future()
        self.archive = SimArchive(
            place.disk, self.actor, place.weather, place.history, Dice(place.seed, f"archive{self.number}")
        )
        self.actor.on_death = self._died

    def start(self) -> None:
        """Begin to live."""
        self.place.history.tell(self.actor.name, "starts")
        self.place.loop.start(self.actor, self._live(), self.actor.name)

    def _died(self) -> None:
        self.place.history.tell(self.actor.name, "is dead")
        self.archive.crash()
        self.host.cut(self.actor)
        self._end(Ending(None))

    def _end(self, ending: Ending) -> None:
        if not self.ended.done():
            self.ended.set_result(ending)

    async def _live(self) -> None:
        try:
            self.crawl = await self._open()
            result = await self.crawl.run()
            ending = Ending(result.reason, result.next_due_s, result.trouble)
        except AmbleError as trouble:
            ending = Ending(EndReason.TROUBLE, None, str(trouble))
        except Exception as bug:
            if not self.actor.alive:
                # The coroutine is closed, not run: its process is gone.
                return
            self.place.history.violate("no internal error", f"the run raised {bug!r}")
            ending = Ending(EndReason.TROUBLE, None, repr(bug))
        if not self.actor.alive:
            return
        self.place.history.tell(self.actor.name, "ends", f"{ending.reason} {ending.trouble[:80]}")
        self._end(ending)

    async def _open(self) -> Crawl:
        place, host, name = self.place, self.host, self.actor.name
        log = Telemetry(place.history, self.actor)
        health = Health(place.clock, log)
        host.attach(self.actor, health.listener(Reason.STORE_UNAVAILABLE))
        handles = [
            SimFrontier(host, self.actor, place.weather, place.history, partition)
            for partition in range(place.partitions.hashed)
        ]
        found = [await handle.take_over(TakeoverAsk(name, handle.partition)) for handle in handles]
        if len(handles) == 1:
            return Crawl(self._parts(handles[0], Fence(found[0].epoch), found[0], log, health, handles))
        fence = Fence()
        shards = FileShards(
            clock=place.clock,
            on_fenced=lambda _: fence.lose_all(),
            partition_of=place.partitions.of,
            hosts=dict(enumerate(handles)),
        )
        for handle, takeover in zip(handles, found, strict=True):
            shards.add(handle.partition, handle, takeover.epoch)
            fence.trust(handle.partition, takeover.epoch)
        return Crawl(self._parts(shards, fence, together(found), log, health, handles))

    def _parts(
        self,
        frontier: SimFrontier | FileShards,
        fence: Fence,
        takeover: Takeover,
        log: Telemetry,
        health: Health,
        handles: Sequence[SimFrontier],
    ) -> Parts:
        place, archive = self.place, self.archive
        clock, seed, number = place.clock, place.seed, self.number
        entropy = SeededEntropy(Dice(seed, f"entropy{number}"))
        resolver = SimResolver(place.world, place.loop, Dice(seed, f"resolver{number}"))
        transport = SimTransport(place.world, place.loop, POLICY.fetch)
        pool = SimParsers(place.children, place.weather, Dice(seed, f"parsers{number}"), POLICY.parse)
        line = wire_line(
            Tools(
                frontier=frontier, archive=archive, resolver=resolver, transport=transport, pool=pool, clock=clock,
                entropy=entropy, telemetry=log, health=health,
            ),
            Rules(
                policy=POLICY, scope=Scope(ScopeKind.ANY), fence=fence, epoch=takeover.epoch,
                partition_of=place.partitions.of if len(handles) > 1 else None,
                worker=number, recent_max=64, rule_sets_max=4, batch_links=LINKS_PER_BATCH, sleep_s_max=SLEEP_S_MAX,
            ),
        )  # fmt: skip

        async def seed_it() -> int:
            return len(await line.url_gate.admit_seeds(place.world.seeds))

        def abandon(error: StoreUnavailable) -> None:
            for handle in handles:
                handle.abandon(error)

        async def close() -> None:
            await frontier.close()
            await archive.close()

        return Parts(
            frontier=frontier,
            scheduler=line.scheduler,
            dispatch=line.dispatch,
            extract=line.extract,
            discovery=line.discovery,
            recorder=line.recorder,
            expiry=line.expiry,
            fence=line.fence,
            health=health,
            clock=clock,
            telemetry=log,
            takeover=takeover,
            seed=seed_it,
            read_status=self._status,
            publish=None,
            on_status=lambda _: None,
            close=close,
            budget=POLICY.budget,
            concurrency=CONCURRENCY,
            backlog_max=8,
            wait_s_max=WAIT_S_MAX,
            abandon_store=abandon,
            chores=[crossing(frontier, log, line.scheduler.kick)] if isinstance(frontier, FileShards) else (),
            pace=lambda _: None,
            fence_wait_s=self.fence_wait_s,
            expire_every_s=EXPIRE_EVERY_S,
            status_every_s=STATUS_EVERY_S,
        )  # fmt: skip

    async def _status(self) -> Status | None:
        before = self.host.changes() if self.host.alive else 0
        status = self.host.status()
        if self.host.alive and self.host.changes() != before:
            self.place.history.violate("reads do not mutate", "a status changed rows")
        return status
