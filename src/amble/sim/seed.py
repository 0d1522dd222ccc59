"""One seed from its first moment to its verdict: lives of agents, the storm over them, and the calm after it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amble.adapters.sql.settings import StoreSettings
from amble.app.progress import EndReason
from amble.domain.frontier import OriginOrder, RequeueOrder
from amble.domain.lifecycle import UrlState
from amble.domain.partition import PartitionMap
from amble.sim.agent import IN_FLIGHT_S_MAX, POLICY, Agent, Ending, Place
from amble.sim.archive import Disk
from amble.sim.clock import Actor, Deadlock, Dice, OutOfSteps, VirtualClock, VirtualLoop
from amble.sim.faults import Fault, Profile, Weather
from amble.sim.frontier import SimFrontier, StoreHost, Surroundings
from amble.sim.history import History, Violation
from amble.sim.judges import URLS_PER_ORIGIN, Left, Watch
from amble.sim.parsers import Children
from amble.sim.world import FORBIDDEN, Nature, World

# After the storm everything must be over within this much virtual time and this many lives.
CALM_S_MAX = 20_000.0
LIVES_MAX = 80
# A long storm has more lives and more steps; a seed that needs more than these goes round in circles.
LIVES_PER_S = 1 / 300
STEPS_MAX, STEPS_PER_S = 200_000, 50
# From here on a storm is long: a crawl that has finished is begun again and again until it is over.
LONG_STORM_S = 3_600.0
# Calm, and not finished, because what is queued can never be had: so many rounds in a row without progress.
IDLE_ROUNDS = 2
# A short storm queues no more than about so many URLs again.
REQUEUED_MAX = 200
# How often the director looks whether a calm life still has a purpose.
_PATIENCE_S = 60.0
_MEMORY = Path("/dev/shm")

SETTINGS = StoreSettings(
    default_active_max=POLICY.origin.active_max,
    default_spacing_ms=POLICY.origin.spacing_ms,
    urls_per_origin_start=URLS_PER_ORIGIN,
    urls_per_origin_max=URLS_PER_ORIGIN,
    urls_per_fetched_page=0,
    decisions_max=500,
    origins_cached_max=3,
    cache_bytes_max=4 << 20,
    lease_grace_ms=5_000,
    robots_again_ms=60_000,
    resume_hold_ms=600_000,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of one seed."""

    seed: int
    profile: str
    violations: tuple[Violation, ...]
    hash: str
    virtual_s: float
    steps: int
    lives: int
    requests: int
    urls: int
    faults: dict[str, int]
    reached: dict[str, int]
    trace: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no judge complained."""
        return not self.violations


@dataclass(slots=True)
class Seed:
    """The director of one seed."""

    number: int
    profile: Profile
    off: frozenset[Fault] = frozenset()
    keep_trace: bool = False
    # The storm is cut short here; the faults before that are the same.
    storm_s: float | None = None

    loop: VirtualLoop = field(init=False)
    clock: VirtualClock = field(init=False)
    history: History = field(init=False)
    weather: Weather = field(init=False)
    world: World = field(init=False)
    watch: Watch = field(init=False)
    place: Place = field(init=False)
    host: StoreHost = field(init=False)
    _around: Surroundings = field(init=False)
    _dice: Dice = field(init=False)
    _lives: int = 0
    _hosts: int = 0
    _agent: Agent | None = None
    _old: Agent | None = None
    _moments: list[tuple[float, Fault]] = field(default_factory=list)

    def run(self) -> Verdict:
        """Play the seed. Never raises for what goes wrong inside of it."""
        folder = Path(tempfile.mkdtemp(prefix="amble-sim-", dir=_MEMORY if _MEMORY.is_dir() else None))
        try:
            self._set(folder)
            try:
                self.loop.run(self._play())
            except (Deadlock, OutOfSteps) as error:
                self.history.violate("everything ends", f"{type(error).__name__}: {error}")
            for mishap in self.loop.mishaps:
                self.history.violate("no internal error", mishap)
            return self._verdict()
        finally:
            self._put_away()
            shutil.rmtree(folder, ignore_errors=True)

    def _set(self, folder: Path) -> None:
        number = self.number
        self.loop = VirtualLoop(steps_max=int(STEPS_MAX + STEPS_PER_S * self._storm_s))
        asyncio.events._set_running_loop(None)
        self.clock = VirtualClock(self.loop)
        self.history = History(self.loop, keep_trace=self.keep_trace)
        self.weather = Weather(number, self.profile, off=self.off)
        self.world = World(number, self.profile, self.weather, self.history, self.loop)
        disk = Disk()
        self.watch = Watch(self.world, self.history, disk, self.loop.time)
        self.watch.now_ms = self.clock.now_ms
        self.watch.in_flight = self._in_flight
        self.watch.partitions = PartitionMap(self.profile.partitions)
        self.world.on_start = self.watch.started
        self.place = Place(
            loop=self.loop, clock=self.clock, world=self.world, weather=self.weather, history=self.history, disk=disk,
            children=Children(), seed=number, partitions=PartitionMap(self.profile.partitions),
        )  # fmt: skip
        self._dice = Dice(number, "director")
        self._around = Surroundings(
            loop=self.loop, clock=self.clock, weather=self.weather, history=self.history, dice=Dice(number, "store"),
            path=folder / "frontier.db", settings=SETTINGS, on_applied=self.watch.applied,
            partitions=self.profile.partitions,
        )  # fmt: skip
        self._moments = list(self.weather.moments)

    def _in_flight(self) -> dict[int, int]:
        rows = self.host.rows("SELECT id, state FROM url WHERE state IN (1, 2, 3)")
        return {int(url_id): int(state) for url_id, state in rows}

    def _put_away(self) -> None:
        for agent in (self._agent, self._old):
            if agent is not None:
                self.loop.kill(agent.actor)
        if hasattr(self, "host") and self.host.alive:
            self.host.close()
        self.loop.close()

    def _verdict(self) -> Verdict:
        history = self.history
        for fault, times in self.weather.happened.items():
            history.reached[f"fault.{fault}"] += times
        return Verdict(
            seed=self.number,
            profile=self.profile.name,
            violations=tuple(history.violations),
            hash=history.hash,
            virtual_s=self.loop.time(),
            steps=self.loop.steps,
            lives=self._lives,
            requests=len(history.requests),
            urls=len(self.watch._attempts),
            faults={str(fault): times for fault, times in sorted(self.weather.happened.items())},
            reached=dict(sorted(history.reached.items())),
            trace=tuple(history.trace),
        )

    # -- the play ---------------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        self._open_host()
        moments = asyncio.get_running_loop().create_task(self._weather())
        idle = 0
        while not self._overdue():
            ending = await self._life()
            if not self.host.alive:
                self._open_host()
            if ending.reason is EndReason.FINISHED or (
                idle and ending.reason is EndReason.WAITING and self._only_lost()
            ):
                if not self.weather.storming or not await self._go_on():
                    if self.weather.storming:
                        await self._calm(moments)
                        continue
                    idle += 1
                    if idle >= IDLE_ROUNDS:
                        break
                continue
            if ending.reason is EndReason.WAITING:
                idle = max(idle, 1) if not self.weather.storming else 0
                await self._until_due(ending)
            else:
                await asyncio.sleep(self._dice.longtail(0.1, 20.0))
            if self.weather.storming and self.loop.time() > self._storm_s:
                await self._calm(moments)
        moments.cancel()
        await self._judge()

    @property
    def _storm_s(self) -> float:
        return self.profile.storm_s if self.storm_s is None else self.storm_s

    def _open_host(self) -> None:
        self._hosts += 1
        self.host = StoreHost(self._around, self._hosts)

    async def _life(self, *, fence_wait_s: float = 0.0) -> Ending:
        """One agent from its start to its end, and of the one that replaces it if it is replaced."""
        agent = self._new_agent(fence_wait_s)
        while True:
            ending = await self._ended(agent)
            if self._agent is not agent:
                # Another owner has taken over while this one was stopped; it is that one's life now.
                assert self._agent is not None
                agent = self._agent
                continue
            await self.host.drained()
            self._check_tables()
            self._check_order(ending)
            return ending

    async def _ended(self, agent: Agent) -> Ending:
        """How the life ends. In the calm, one that goes on only for what can never be had is stopped."""
        while True:
            await asyncio.wait([agent.ended], timeout=_PATIENCE_S)
            if agent.ended.done():
                return agent.ended.result()
            if not self.weather.storming and self.host.alive and self._only_lost():
                if agent.crawl is not None:
                    agent.crawl.stop()
                ending = await agent.ended
                return Ending(EndReason.FINISHED) if ending.reason is EndReason.STOPPED else ending

    def _new_agent(self, fence_wait_s: float) -> Agent:
        self._lives += 1
        agent = self._agent = Agent(self.place, self.host, self._lives, fence_wait_s)
        agent.start()
        return agent

    async def _go_on(self) -> bool:
        """Whether the storm still has something to say to a finished crawl: then URLs are queued again."""
        if self._storm_s < LONG_STORM_S:
            left = [when for when, fault in self._moments if fault is not Fault.OPERATOR_REQUEUE]
            return bool(left) and self._dice.chance(0.5) and self.watch.requeued < REQUEUED_MAX
        await asyncio.sleep(
            min(self._dice.longtail(60.0, 7_200.0), max(0.0, self._storm_s - self.loop.time()))
        )
        if self.loop.time() >= self._storm_s:
            return False
        await self._operator_requeue(self._dice)
        return True

    def _overdue(self) -> bool:
        """Whether the play has gone on for longer than it may."""
        return (
            self._lives >= LIVES_MAX + self._storm_s * LIVES_PER_S
            or self.loop.time() >= CALM_S_MAX + self._storm_s
        )

    async def _until_due(self, ending: Ending) -> None:
        wait_s = 20.0 if ending.next_due_s is None else min(ending.next_due_s, 600.0)
        if self.weather.storming:
            if self._storm_s >= LONG_STORM_S and self.host.alive and self._only_lost():
                # Nobody looks every minute for what has been out of reach for hours.
                wait_s = self._dice.longtail(600.0, 7_200.0)
            wait_s = min(wait_s, max(0.1, self._storm_s - self.loop.time()))
        await asyncio.sleep(wait_s + 0.01)

    async def _calm(self, moments: asyncio.Task[None]) -> None:
        """The storm is over."""
        moments.cancel()
        self.weather.storming = False
        self.history.tell("world", "calm")
        self.world.calm()
        self.host.busy_until_s = 0.0
        self.place.disk.full = False
        self.place.children.gone = False
        if not self.host.alive:
            self._open_host()
        for origin, watch in list(self.watch.origins.items()):
            if watch.paused:
                operator = self._operator(origin)
                await operator.set_origin(OriginOrder(origin, "operator", "the storm is over", paused=False))

    def _operator(self, origin: str) -> SimFrontier:
        """An operator's way to the store of an origin."""
        partition = self.place.partitions.of(origin)
        return SimFrontier(self.host, Actor("operator"), Weather(0, _NO_WEATHER), self.history, partition)

    def _only_lost(self) -> bool:
        """Whether all that is queued lies at origins that can never be had."""
        rows = self.host.rows(
            "SELECT DISTINCT o.key FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE u.rq < 8 OR u.state IN (1, 2, 3)"
        )
        return all(self.world.is_lost(str(key)) for (key,) in rows) and not self._crossing()

    def _crossing(self) -> int:
        """Links that are on their way between files."""
        rows = self.host.rows("SELECT coalesce(sum(amount), 0) FROM outbox")
        return sum(amount for (amount,) in rows + self.host.rows("SELECT count(*) FROM inbox"))

    # -- the end ----------------------------------------------------------------------------------------------------

    def _check_tables(self) -> None:
        if self.host.alive:
            for problem in self.host.problems():
                self.history.violate("tables agree", problem)

    def _check_order(self, ending: Ending) -> None:
        """A life that ends in good order has given everything back."""
        orderly = (EndReason.STOPPED, EndReason.FINISHED, EndReason.WAITING)
        if (
            ending.reason in orderly
            and self.host.alive
            and self.host.rows("SELECT 1 FROM url WHERE state = 1 LIMIT 1")
        ):
            self.history.violate("an orderly end", f"{ending.reason}, and leases are still out")

    async def _judge(self) -> None:
        if self.weather.storming:
            self.history.violate("everything ends", "the storm never ended")
        if self._overdue():
            stuck = self.host.rows(
                "SELECT o.key || u.path, u.state, u.rq, u.due_at, u.reason FROM url u JOIN origin o ON o.id = u.id >> 36"
                " WHERE u.state IN (0, 1, 2, 3) LIMIT 5"
            )
            self.history.violate("everything ends", f"after {self._lives} lives still open: {stuck}")
            return
        if self._crossing():
            self.history.violate("links are never lost", f"{self._crossing()} still between files")
        Left(self.world, self.history, self.watch, self.place.disk, self.host.rows).judge()

    # -- the weather -------------------------------------------------------------------------------------------------

    async def _weather(self) -> None:
        """Faults that come at a moment, each at its own."""
        loop = asyncio.get_running_loop()
        ends: list[asyncio.Task[None]] = []
        while self._moments:
            when_s, fault = self._moments.pop(0)
            await asyncio.sleep(max(0.0, when_s - self.loop.time()))
            ends.append(loop.create_task(self._strike(fault)))

    async def _strike(self, fault: Fault) -> None:
        dice = self.weather.dice(fault)
        act: Callable[[Dice], Any] = getattr(self, f"_{fault}")
        self.history.tell("weather", fault)
        await act(dice)

    def _victim(self) -> Agent | None:
        agent = self._agent
        return agent if agent is not None and agent.actor.alive and not agent.ended.done() else None

    async def _agent_crash(self, dice: Dice) -> None:
        agent = self._victim()
        if agent is not None:
            self.weather.note(Fault.AGENT_CRASH)
            agent.actor.dies_at = agent.actor.steps + int(dice.longtail(1, 600)) - 1

    async def _store_busy(self, dice: Dice) -> None:
        self.host.busy_until_s = self.loop.time() + dice.longtail(0.5, 60.0)

    async def _archive_full(self, dice: Dice) -> None:
        self.place.disk.full = True
        await asyncio.sleep(dice.longtail(0.5, 60.0))
        self.place.disk.full = False

    async def _parsers_gone(self, dice: Dice) -> None:
        self.place.children.gone = True
        await asyncio.sleep(dice.longtail(0.5, 60.0))
        self.place.children.gone = False

    async def _agent_pause(self, dice: Dice) -> None:
        agent = self._victim()
        if agent is None:
            return
        self.weather.note(Fault.AGENT_PAUSE)
        agent.actor.frozen = True
        await asyncio.sleep(dice.longtail(0.5, 300.0))
        self.history.tell(agent.actor.name, "goes on")
        self.loop.thaw(agent.actor)

    async def _two_owners(self, dice: Dice) -> None:
        """The old owner is stopped, not dead: a new one claims, waits out what may be under way, works."""
        agent = self._victim()
        if agent is None or agent.actor.frozen:
            return
        self.weather.note(Fault.TWO_OWNERS)
        agent.actor.frozen = True
        self._old = agent
        await asyncio.sleep(dice.longtail(0.01, 20.0))
        if not agent.actor.alive or not self.host.alive:
            self.loop.thaw(agent.actor)
            return
        new = self._new_agent(IN_FLIGHT_S_MAX)
        await asyncio.sleep(dice.longtail(0.5, 120.0))
        self.history.tell(agent.actor.name, "goes on", f"beside {new.actor.name}")
        self.loop.thaw(agent.actor)
        # Stopped or not, it must end by itself: it has lost its epoch.

    async def _wall_jump(self, dice: Dice) -> None:
        self.weather.note(Fault.WALL_JUMP)
        self.clock.step_s += dice.one_of((-86_400.0, -3_600.0, -30.0, 30.0, 3_600.0, 86_400.0))

    async def _operator_pause(self, dice: Dice) -> None:
        origin = dice.one_of(tuple(self.world.sites))
        if dice.chance(0.5):
            origin = await self._next_leased(origin)
        if not self.host.alive or not self.weather.storming:
            return
        self.weather.note(Fault.OPERATOR_PAUSE)
        await self._order(OriginOrder(origin, "operator", "complaint", paused=True))
        await asyncio.sleep(dice.longtail(1.0, 120.0))
        await self._order(OriginOrder(origin, "operator", "settled", paused=False))

    async def _next_leased(self, otherwise: str) -> str:
        """The origin of the next lease, in the moment it is given: the pause then meets a lease that is out."""
        caught: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.watch.on_lease = lambda origin: None if caught.done() else caught.set_result(origin)
        try:
            async with asyncio.timeout(30.0):
                return await caught
        except TimeoutError:
            return otherwise

    async def _operator_spacing(self, dice: Dice) -> None:
        origin = dice.one_of(tuple(self.world.sites))
        self.weather.note(Fault.OPERATOR_SPACING)
        spacing_ms, active_max = dice.one_of((500, 3_000, 3_000, -1)), dice.one_of((1, 2, 3, -1))
        await self._order(
            OriginOrder(origin, "operator", "arranged", active_max=active_max, spacing_ms=spacing_ms)
        )

    async def _order(self, order: OriginOrder) -> None:
        while True:
            try:
                await self._operator(order.origin).set_origin(order)
                return
            except Exception:
                await asyncio.sleep(1.0)

    async def _operator_requeue(self, dice: Dice) -> None:
        state = dice.one_of((UrlState.COMPLETE, UrlState.COMPLETE, UrlState.FAILED, UrlState.EXCLUDED))
        origin = dice.one_of(tuple(self.world.sites))
        self.weather.note(Fault.OPERATOR_REQUEUE)
        try:
            await self._operator(origin).requeue(
                RequeueOrder(int(state), "operator", "again", origin=origin, limit=10)
            )
        except Exception:
            return

    async def _operator_stop(self, _: Dice) -> None:
        agent = self._victim()
        if agent is not None and agent.crawl is not None and not agent.actor.frozen:
            self.weather.note(Fault.OPERATOR_STOP)
            agent.crawl.stop()

    async def _dns_silent(self, dice: Dice) -> None:
        self.world.resolver_silent = True
        await asyncio.sleep(dice.longtail(0.5, 60.0))
        self.world.resolver_silent = False

    async def _dns_dies(self, dice: Dice) -> None:
        await self._dns(Fault.DNS_DIES, dice, "missing")

    async def _dns_rebinds(self, dice: Dice) -> None:
        await self._dns(Fault.DNS_REBINDS, dice, dice.one_of(FORBIDDEN))

    async def _dns(self, fault: Fault, dice: Dice, state: str) -> None:
        site = dice.one_of(tuple(self.world.sites.values()))
        if site.nature is Nature.NAMELESS or site.dns:
            return
        self.weather.note(fault)
        site.dns = state
        await asyncio.sleep(dice.longtail(5.0, 120.0))
        site.dns = ""

    async def _dns_flips(self, dice: Dice) -> None:
        site = dice.one_of(tuple(self.world.sites.values()))
        self.weather.note(Fault.DNS_FLIPS)
        site.address = f"46.{dice.whole(1, 250)}.{dice.whole(0, 250)}.9"

    async def _robots_change(self, dice: Dice) -> None:
        site = dice.one_of(tuple(self.world.sites.values()))
        self.weather.note(Fault.ROBOTS_CHANGE)
        self.world.change_robots(site, dice)


_NO_WEATHER = Profile(name="none", origins=(1, 1), pages=(1, 1), storm_s=0.0)
