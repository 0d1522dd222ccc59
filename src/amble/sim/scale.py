"""The scale model: scheduler, egress gate and store over many origins and weeks of virtual time, without any bytes.

Leasing, reservation and recording are those of production, on SQLite in memory. Only the network is a model: origins
by a power law, service times and timeouts drawn from one seed, links that are found page by page, pages that come due
again. The clock jumps to whatever happens next, so a quiet night costs nothing. What was started is compared with what
the origins permitted; waiting is counted from the moment at which an origin had something due and its delay was over.
"""

from __future__ import annotations

import hashlib
import heapq
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from math import inf
from pathlib import Path
from typing import Any, Final

from amble.adapters.sql import messages as m
from amble.adapters.sql.identity import KEY_BYTES, Slots
from amble.adapters.sql.inline import InlineStore
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.sqlite import SqliteStore
from amble.domain.attempt import Edge, GiveUp, Lease, RetryAt, RobotsState, UrlKind, after_failure
from amble.domain.decision import Category, Reason
from amble.domain.fetched import BodyRef, Fetched, Timings
from amble.domain.frontier import (
    AdmitBatch,
    Candidate,
    Complete,
    OriginEffect,
    PutBack,
    RecordFailed,
    RecordFetched,
    RecordParsed,
    TakeoverAsk,
)
from amble.domain.policy import Budget, OriginPolicy, Policy
from amble.domain.politeness import backoff, effective_delay_ms
from amble.domain.priority import CLASSES, RETRY_CLASS, REVISIT_CLASS, priority_of
from amble.domain.robots import RobotsOutcome
from amble.ports import NewRecord, Permit, Resolved, StoredRecord
from amble.sim.clock import WALL_START_S, Dice
from amble.stages.gate import EgressGate, Fence
from amble.stages.lease import ASK_EVERY_S, Scheduler
from amble.stages.rules import RobotsBook

DAY_MS: Final = 86_400_000
START_MS: Final = int(WALL_START_S * 1000)
ASK_EVERY_MS: Final = max(1, round(ASK_EVERY_S * 1000))
LEASES_MAX: Final = 256
SEEDS_PER_COMMIT: Final = 500
PARSE_HOLD_MS: Final = 600_000
# An origin that waits longer than that many of its own delays, with something due, is starved.
STARVED_DELAYS: Final = 10
# Ages are counted in classes that double: up to 1 s, 2 s, 4 s and so on.
_AGE_CLASSES: Final = 32
# One address of a private net that is opened for the model: names resolve, nothing is contacted.
_NET, _ADDRESS = "10.0.0.0/8", "10.0.0.1"
_REF = BodyRef(1, 0, 1)
_PAGE_ANSWER = Fetched(200, _REF, None, None, 0, 0, "text/html", _ADDRESS, Timings())
_ROBOTS_ANSWER = Fetched(404, _REF, None, None, 0, 0, "text/plain", _ADDRESS, Timings())
_ALLOW_ALL = RobotsState(int(RobotsOutcome.ALLOW_ALL))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleAsk:
    """A model to run. `largest` is the number of pages of the largest origin; the n-th largest has largest / n^power.

    `revisit_days` 0: pages are visited once. `seconds_max` bounds the real time of the run.
    """

    seed: int = 1
    origins: int = 20_000
    days: float = 14.0
    largest: int = 2_000
    power: float = 1.0
    spacing_s: float = 2.0
    adaptive_factor: float = 5.0
    service_min_s: float = 0.1
    service_max_s: float = 3.0
    timeout_share: float = 0.02
    timeout_s: float = 10.0
    links_new: int = 10
    revisit_days: float = 7.0
    concurrency: int = 4_000
    seconds_max: float = 600.0

    def __post_init__(self) -> None:
        assert self.origins > 0
        assert self.largest > 0
        assert self.concurrency > 0
        assert 0 < self.service_min_s <= self.service_max_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAges:
    """How long started URLs of one priority class had been due, in seconds, and what of the class still waits."""

    queue_class: int
    started: int
    mean_s: float
    p99_s: float
    max_s: float
    waiting: int
    oldest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleReport:
    """What happened. Starts per second are over virtual time; `ceiling_starts` is what the origins permitted.

    `ended`: "days" (all of them), "idle" (nothing is left to do), or "seconds" (the real time was up). `late_*` is
    the wait of an origin after its delay was over and something was due; `starved` counts waits of more than
    STARVED_DELAYS delays. `trace` is a digest of every start: one seed, one trace.
    """

    ended: str
    virtual_days: float
    origins: int
    urls: int
    starts: int
    pages: int
    revisits: int
    robots: int
    timeouts: int
    refused: dict[str, int]
    starts_per_s: float
    ceiling_starts: float
    ceiling_share: float
    late_mean_s: float
    late_max_s: float
    starved: int
    in_flight_mean: float
    in_flight_max: int
    ages: tuple[ClassAges, ...]
    spacing_broken: int
    real_s: float
    starts_per_real_s: float
    rss_bytes_start: int
    rss_bytes_end: int
    database_bytes: int
    trace: str


class JumpClock:
    """ports.Clock whose time moves only when it is told to."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def monotonic_s(self) -> float:
        """Virtual seconds."""
        return (self.now_ms - START_MS) / 1000

    def wall_s(self) -> float:
        """Virtual seconds since 1970."""
        return self.now_ms / 1000

    async def sleep(self, seconds: float) -> None:
        """Jump."""
        self.now_ms += max(0, round(seconds * 1000))


class _OneAddress:
    """ports.Resolver: every name exists."""

    async def resolve(self, host: str) -> Resolved:
        return Resolved((_ADDRESS,), 3_600.0)

    async def close(self) -> None:
        return None


class _NoArchive:
    """ports.Archive of a crawl without bytes: nothing in the model may ask for any."""

    async def append(self, records: Sequence[NewRecord]) -> list[BodyRef]:
        raise AssertionError("the scale model stores no bytes")

    async def read(self, ref: BodyRef) -> StoredRecord:
        raise AssertionError("the scale model reads no bytes")

    async def probe(self) -> str | None:
        return None

    async def close(self) -> None:
        return None


class _Silent:
    """ports.Telemetry that nobody reads."""

    def event(self, name: str, **fields: object) -> None:
        return None

    def count(self, name: str, amount: int = 1) -> None:
        return None


@dataclass(slots=True)
class _Site:
    """One origin of the model: how large and how slow it is, what of it is due, and when it may be asked next."""

    key: str
    pages: int
    service_s: float
    admitted: int = 0
    next_ms: int = START_MS
    delay_ms: int = 0
    started_ms: int = -1
    permitted_ms: int = 0
    # path -> (due, class); the heap holds the same dues, and some that are over.
    due: dict[str, tuple[int, int]] = field(default_factory=dict)
    dues: list[tuple[int, str]] = field(default_factory=list)

    def queue(self, path: str, due_ms: int, queue_class: int) -> None:
        self.due[path] = due_ms, queue_class
        heapq.heappush(self.dues, (due_ms, path))

    def first_due_ms(self) -> float:
        while self.dues:
            due_ms, path = self.dues[0]
            if self.due.get(path, (None, 0))[0] == due_ms:
                return due_ms
            heapq.heappop(self.dues)
        return inf


class _Ages:
    """Ages of one class: sum, most, and a count per doubling."""

    __slots__ = ("counts", "most_ms", "started", "sum_ms")

    def __init__(self) -> None:
        self.started = self.sum_ms = self.most_ms = 0
        self.counts = [0] * _AGE_CLASSES

    def add(self, age_ms: int) -> None:
        self.started += 1
        self.sum_ms += age_ms
        self.most_ms = max(self.most_ms, age_ms)
        self.counts[min(_AGE_CLASSES - 1, (age_ms // 1000).bit_length())] += 1

    def p99_s(self) -> float:
        """The bound below which 99 of 100 ages lie; never more than the oldest."""
        seen = 0
        for place, count in enumerate(self.counts):
            seen += count
            if count and seen >= 0.99 * self.started:
                return float(min(2**place, self.most_ms / 1000))
        return 0.0


@dataclass(slots=True)
class _Books:
    """Everything that is counted."""

    starts: int = 0
    pages: int = 0
    revisits: int = 0
    robots: int = 0
    timeouts: int = 0
    starved: int = 0
    spacing_broken: int = 0
    late_sum_ms: int = 0
    late_max_ms: int = 0
    lost_starts: float = 0.0
    busy_ms: int = 0
    in_flight_max: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    ages: list[_Ages] = field(default_factory=lambda: [_Ages() for _ in range(CLASSES)])


@dataclass(frozen=True, slots=True, order=True)
class _Flight:
    """One request on its way, in the order in which they end."""

    end_ms: int
    number: int
    lease: Lease = field(compare=False)
    duration_ms: int = field(compare=False)
    timed_out: bool = field(compare=False)


class ScaleModel:
    """One run. `run` may be called once."""

    def __init__(self, ask: ScaleAsk) -> None:
        self.ask = ask
        self.clock = JumpClock()
        self.policy = Policy(
            budget=Budget(pages_max=None),
            origin=OriginPolicy(
                spacing_ms=round(ask.spacing_s * 1000),
                adaptive_factor=ask.adaptive_factor,
                delay_fixed=ask.adaptive_factor == 0,
            ),
        )
        self._rss_start = _rss_bytes()
        self.store = SqliteStore(
            ":memory:",
            StoreSettings(
                default_spacing_ms=self.policy.origin.spacing_ms,
                urls_per_origin_start=max(20_000, 2 * ask.largest),
            ),
            now_ms=lambda: self.clock.now_ms,
            slots=Slots(bytes(KEY_BYTES)),
        )
        self.frontier = InlineStore(self.store)
        self._dice = Dice(ask.seed, "scale")
        self._sites = self._make_sites()
        self._books = _Books()
        self._flights: list[_Flight] = []
        self._trace = hashlib.sha256()
        self._end_ms = START_MS + round(ask.days * DAY_MS)
        self._ask_at = START_MS

    def _make_sites(self) -> dict[str, _Site]:
        ask, sites = self.ask, {}
        for rank in range(1, ask.origins + 1):
            key = f"https://o{rank}.example"
            pages = max(1, round(ask.largest / rank**ask.power))
            sites[key] = _Site(key, pages, self._dice.longtail(ask.service_min_s, ask.service_max_s))
        return sites

    async def run(self) -> ScaleReport:
        """Play it to the end of its days, of its work, or of its real time."""
        began_s = time.monotonic()
        scheduler, gate = await self._open()
        ended = "days"
        while self.clock.now_ms < self._end_ms:
            if time.monotonic() - began_s > self.ask.seconds_max:
                ended = "seconds"
                break
            if self.clock.now_ms >= self._ask_at and len(self._flights) < self.ask.concurrency:
                await self._lease(scheduler, gate)
            if not self._jump():
                ended = "idle"
                break
            self._land()
        report = self._report(ended, time.monotonic() - began_s)
        await self.frontier.close()
        return report

    async def _open(self) -> tuple[Scheduler, EgressGate]:
        epoch = (await self.frontier.take_over(TakeoverAsk("scale model"))).epoch
        seeds = [self._candidate(site, depth=0) for site in self._sites.values()]
        for start in range(0, len(seeds), SEEDS_PER_COMMIT):
            await self.frontier.admit(AdmitBatch(seeds[start : start + SEEDS_PER_COMMIT]))
        scheduler = Scheduler(frontier=self.frontier, clock=self.clock, policy=self.policy, epoch=epoch)
        gate = EgressGate(
            frontier=self.frontier,
            resolver=_OneAddress(),
            book=RobotsBook(_NoArchive()),
            policy=self.policy,
            allowed_nets=[ip_network(_NET)],
            clock=self.clock,
            telemetry=_Silent(),
            fence=Fence(epoch),
        )
        return scheduler, gate

    def _candidate(self, site: _Site, *, depth: int) -> Candidate:
        """The next page of a site, which is found now."""
        path = f"/{site.admitted}"
        site.admitted += 1
        edge = int(Edge.SEED if depth == 0 else Edge.ANCHOR)
        queue_class = priority_of(int(UrlKind.PAGE), edge, depth)
        site.queue(path, self.clock.now_ms, queue_class)
        return Candidate(site.key, path, int(UrlKind.PAGE), queue_class, depth, 0, edge, 0)

    # ---- starts

    async def _lease(self, scheduler: Scheduler, gate: EgressGate) -> None:
        """Ask for what is due, and start it."""
        count = min(LEASES_MAX, self.ask.concurrency - len(self._flights))
        reply = await scheduler.lease(count)
        for lease in reply.leases:
            answer = await gate.ask(lease)
            if isinstance(answer, Permit):
                self._start(lease)
                gate.finished(answer)
            else:
                await self._refused(lease, answer)
        if len(reply.leases) == count:
            self._ask_at = self.clock.now_ms
        elif reply.next_wake_ms is None:
            self._ask_at = self._end_ms
        else:
            self._ask_at = max(self.clock.now_ms + ASK_EVERY_MS, reply.next_wake_ms)

    async def _refused(self, lease: Lease, answer: Any) -> None:
        reason = str(getattr(answer, "reason", Reason.STALE_EPOCH))
        self._books.refused[reason] = self._books.refused.get(reason, 0) + 1
        delay_ms = getattr(answer, "retry_in_ms", 0) or 0
        await self.frontier.put_back(PutBack(lease.key, reason, "", delay_ms))

    def _start(self, lease: Lease) -> None:
        site, now = self._sites[lease.origin], self.clock.now_ms
        self._judge(site, lease, now)
        timed_out = lease.kind == UrlKind.PAGE and self._dice.chance(self.ask.timeout_share)
        service_s = self.ask.timeout_s if timed_out else site.service_s * self._dice.longtail(0.5, 2.0)
        duration_ms = max(1, round(service_s * 1000))
        # What the gate reserved just now, by the fetch before this one.
        site.permitted_ms = now + self._delay_ms(lease.facts.last_fetch_ms)
        site.delay_ms = max(duration_ms, self._delay_ms(duration_ms))
        site.next_ms = max(site.permitted_ms, now + site.delay_ms)
        site.started_ms = now
        self._books.starts += 1
        self._books.busy_ms += duration_ms
        self._trace.update(f"{now} {lease.url}\n".encode())
        flight = _Flight(now + duration_ms, self._books.starts, lease, duration_ms, timed_out)
        heapq.heappush(self._flights, flight)
        self._books.in_flight_max = max(self._books.in_flight_max, len(self._flights))

    def _delay_ms(self, last_fetch_ms: int) -> int:
        origin = self.policy.origin
        return effective_delay_ms(
            origin, spacing_ms=origin.spacing_ms, crawl_delay_ms=0, last_fetch_ms=last_fetch_ms
        )

    def _judge(self, site: _Site, lease: Lease, now: int) -> None:
        """How late this start is, against the first moment at which the origin permitted one and had one due."""
        books = self._books
        if now < site.permitted_ms:
            books.spacing_broken += 1
        ready_ms = max(site.next_ms, site.first_due_ms())
        late_ms = max(0, now - round(ready_ms)) if ready_ms < inf else 0
        own_ms = max(site.delay_ms, self.policy.origin.spacing_ms, 1)
        books.late_sum_ms += late_ms
        books.late_max_ms = max(books.late_max_ms, late_ms)
        books.lost_starts += late_ms / own_ms
        books.starved += late_ms > STARVED_DELAYS * own_ms
        if lease.kind != UrlKind.PAGE:
            books.robots += 1
            return
        due_ms, queue_class = site.due.pop(lease.path)
        books.ages[queue_class].add(max(0, now - due_ms))
        books.revisits += queue_class == REVISIT_CLASS

    # ---- ends

    def _jump(self) -> bool:
        """To whatever happens next; False when nothing ever will."""
        room = len(self._flights) < self.ask.concurrency
        landing = self._flights[0].end_ms if self._flights else self._end_ms
        asking = self._ask_at if room else self._end_ms
        if not self._flights and self._ask_at >= self._end_ms and self._idle():
            return False
        self.clock.now_ms = max(self.clock.now_ms, min(landing, asking, self._end_ms))
        return True

    def _idle(self) -> bool:
        return not any(site.due for site in self._sites.values())

    def _land(self) -> None:
        """Record every request that is over by now, in one commit."""
        now, operations = self.clock.now_ms, []
        while self._flights and self._flights[0].end_ms <= now:
            operations += self._landed(heapq.heappop(self._flights))
        if operations:
            for reply in self.store.apply(operations):
                assert not isinstance(reply, m.Refused), reply

    def _landed(self, flight: _Flight) -> list[m.AnyOperation]:
        lease, site = flight.lease, self._sites[flight.lease.origin]
        operations = self._failed(flight, site) if flight.timed_out else self._fetched(flight, site)
        # The origin may be asked again from then on, if it has something due.
        wake_ms = max(site.next_ms, round(min(site.first_due_ms(), self._end_ms)))
        if lease.kind == UrlKind.ROBOTS or wake_ms < self._ask_at:
            self._ask_at = min(self._ask_at, max(self.clock.now_ms, wake_ms))
        return operations

    def _effect(self, flight: _Flight, category: Category | None) -> OriginEffect:
        level, rest_ms = backoff(
            self.policy.origin,
            level=flight.lease.facts.backoff_level,
            category=category,
            retry_after_ms=None,
            jitter=self._dice.uniform(),
        )
        return OriginEffect(flight.duration_ms, self._delay_ms(flight.duration_ms), rest_ms, level)

    def _failed(self, flight: _Flight, site: _Site) -> list[m.AnyOperation]:
        lease, now = flight.lease, self.clock.now_ms
        self._books.timeouts += 1
        category = Category.TIMEOUT_FIRST_BYTE
        effect = self._effect(flight, category)
        site.next_ms = max(site.next_ms, now + effect.rest_ms)
        decision = after_failure(category, lease.tries + 1, self.policy.retry, self._dice.uniform())
        retry_ms: int | None
        match decision:
            case RetryAt(delay_ms):
                retry_ms = max(delay_ms, effect.rest_ms)
                site.queue(lease.path, now + retry_ms, RETRY_CLASS)
            case GiveUp():
                retry_ms = None
        return [m.KeepFailed(RecordFailed(lease.key, category.value, "", retry_ms, None, effect))]

    def _fetched(self, flight: _Flight, site: _Site) -> list[m.AnyOperation]:
        lease = flight.lease
        robots = lease.kind == UrlKind.ROBOTS
        answer = _ROBOTS_ANSWER if robots else _PAGE_ANSWER
        revisit_ms = round(self.ask.revisit_days * DAY_MS) or None if not robots else None
        operations: list[m.AnyOperation] = [
            m.KeepFetched(RecordFetched(lease.key, answer, self._effect(flight, None), PARSE_HOLD_MS)),
            m.KeepParsed(RecordParsed(lease.key, 1, _REF, 0, "text")),
            m.Finish(
                Complete(
                    lease.key,
                    1,
                    publish=False,
                    revisit_ms=revisit_ms,
                    robots=_ALLOW_ALL if robots else None,
                    robots_ttl_ms=self.policy.robots.fresh_ms_max if robots else 0,
                )
            ),
        ]
        if robots:
            return operations
        self._books.pages += 1
        if revisit_ms is not None:
            site.queue(lease.path, self.clock.now_ms + revisit_ms, REVISIT_CLASS)
        found = min(self.ask.links_new, site.pages - site.admitted)
        if found > 0:
            links = [self._candidate(site, depth=lease.depth + 1) for _ in range(found)]
            operations.append(m.Admit(AdmitBatch(links)))
        return operations

    # ---- the report

    def _report(self, ended: str, real_s: float) -> ScaleReport:
        books, now = self._books, self.clock.now_ms
        virtual_s = max(1, now - START_MS) / 1000
        ceiling = books.starts + books.lost_starts
        (pages,), (page_bytes,) = (
            self.store.database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
        )
        return ScaleReport(
            ended=ended,
            virtual_days=virtual_s / 86_400,
            origins=self.ask.origins,
            urls=sum(site.admitted for site in self._sites.values()),
            starts=books.starts,
            pages=books.pages,
            revisits=books.revisits,
            robots=books.robots,
            timeouts=books.timeouts,
            refused=dict(sorted(books.refused.items())),
            starts_per_s=books.starts / virtual_s,
            ceiling_starts=ceiling,
            ceiling_share=books.starts / ceiling if ceiling else 1.0,
            late_mean_s=books.late_sum_ms / 1000 / max(1, books.starts),
            late_max_s=books.late_max_ms / 1000,
            starved=books.starved,
            in_flight_mean=books.busy_ms / 1000 / virtual_s,
            in_flight_max=books.in_flight_max,
            ages=tuple(self._ages(now)),
            spacing_broken=books.spacing_broken,
            real_s=real_s,
            starts_per_real_s=books.starts / real_s if real_s else 0.0,
            rss_bytes_start=self._rss_start,
            rss_bytes_end=_rss_bytes(),
            database_bytes=pages * page_bytes,
            trace=self._trace.hexdigest(),
        )

    def _ages(self, now: int) -> list[ClassAges]:
        waiting, oldest = [0] * CLASSES, [0] * CLASSES
        for site in self._sites.values():
            for due_ms, queue_class in site.due.values():
                if due_ms <= now:
                    waiting[queue_class] += 1
                    oldest[queue_class] = max(oldest[queue_class], now - due_ms)
        return [
            ClassAges(
                queue_class=number,
                started=ages.started,
                mean_s=ages.sum_ms / 1000 / max(1, ages.started),
                p99_s=ages.p99_s(),
                max_s=ages.most_ms / 1000,
                waiting=waiting[number],
                oldest_s=oldest[number] / 1000,
            )
            for number, ages in enumerate(self._books.ages)
            if ages.started or waiting[number]
        ]


def _rss_bytes() -> int:
    """Memory of this process that is in use now."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
