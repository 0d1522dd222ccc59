"""The frontier against a plain dictionary: any sequence of operations leaves both in the same state."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amble.adapters.sql import messages as m
from amble.adapters.sql.identity import Slots
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.sqlite import SqliteStore
from amble.domain.attempt import Lease, LeaseKey, UrlKind
from amble.domain.fetched import BodyRef
from amble.domain.frontier import (
    STRIKES_APART,
    AdmitBatch,
    AdoptAsk,
    Applied,
    Complete,
    DrainAsk,
    Exclude,
    LeaseAsk,
    OriginEffect,
    Parcel,
    ParseStrike,
    PutBack,
    RecordFailed,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    ReserveOutcome,
    TakeoverAsk,
)
from amble.domain.lifecycle import UrlState
from tests.contract.frontier_rig import ALLOW_ALL, DAY, HOLD, START, Rig, answer, page
from tests.contract.postgres_rig import BlockingPostgres, PostgresRig, make_frontier
from tests.support.postgres import SharedPostgres

ORIGINS = ["https://a.example", "https://b.example"]
PATHS = ["/", "/1", "/2", "/3"]
DELAY = 1_000
TTL = 5_000
GRACE = StoreSettings().lease_grace_ms
HEALTHY = OriginEffect(50, DELAY, 0, 0)

# One text, some that are near to it, one that is near to those only, others, and one too short for a fingerprint.
TEXT = 0xF123_4567_89AB_CDEF
TEXTS = [TEXT, *(TEXT ^ flip for flip in (0b1, 0b111, 0b1111, 0b11_1111, (1 << 64) - 1)), 0]

P, L, F, R, C, X, E = UrlState  # pending, leased, fetched, parsed, complete, failed, excluded


@dataclass
class Known:
    """What the model knows of one URL."""

    kind: int
    state: UrlState = P
    due: int | None = START
    attempt: int = 0
    generation: int = 1
    tries: int = 0
    key: LeaseKey | None = None
    lease: Lease | None = None
    expires: int = 0
    slot: bool = False
    links: int = 0
    refetch: bool = False
    hold: int = 0  # past LEASED: until when somebody holds it


@dataclass
class Site:
    """What the model knows of one origin."""

    urls: dict[str, Known] = field(default_factory=dict)
    next_start: int = 0
    robots_until: int = 0
    paused: bool = False

    @property
    def leased(self) -> int:
        return sum(known.state == L for known in self.urls.values())


class FrontierMachine(RuleBasedStateMachine):
    """Every rule applies one operation to the store and to the model, and compares the answers."""

    @initialize(collide=st.booleans(), active_max=st.sampled_from([1, 2]), prepared=st.booleans())
    def open(self, collide: bool, active_max: int, prepared: bool) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix="amble-test-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        )
        self.now = START
        self.active_max = active_max
        self.settings = StoreSettings(default_active_max=active_max, strikes_adopted_max=1_000)
        self.mark = 0
        self.inbox: list[tuple[str, str]] = []
        self.slots = Slots(bytes(32), lambda path: len(path), lambda path: 9) if collide else None
        self.model: dict[str, Site] = {}
        self.pages = self.publications = 0
        self.documents: dict[str, int] = {}
        self.stale: list[LeaseKey] = []
        self._open()
        if prepared:  # most of the line is beyond robots.txt
            self.admit([(origin, path) for origin in ORIGINS for path in PATHS])
            self.lease(len(ORIGINS))
            self.carry_robots()
            self.now += DELAY

    def _store(self) -> Any:
        return SqliteStore(
            self.folder / "frontier.db", self.settings, now_ms=lambda: self.now, slots=self.slots
        )

    def _kill(self) -> None:
        self.store.database.close()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.store.database.execute(sql).fetchall()]

    def _open(self) -> None:
        self.store = self._store()
        (taken,) = self.store.apply([m.TakeOver(TakeoverAsk("machine"))])
        self.epoch = taken.epoch
        self.taken = taken

    def one(self, operation: m.AnyOperation) -> Any:
        (reply,) = self.store.apply([operation])
        assert not isinstance(reply, m.Refused), reply
        return reply

    def held(self, *states: UrlState) -> list[tuple[Site, Known]]:
        return [
            (site, known)
            for site in self.model.values()
            for known in site.urls.values()
            if known.state in states
        ]

    # ---- rules

    @rule(found=st.lists(st.tuples(st.sampled_from(ORIGINS), st.sampled_from(PATHS)), min_size=1, max_size=6))
    def admit(self, found: list[tuple[str, str]]) -> None:
        reply = self.one(m.Admit(AdmitBatch([page(path, origin) for origin, path in found])))
        expected = [int(self._know(origin, path)) for origin, path in found]
        assert list(reply.verdicts) == expected

    def _know(self, origin: str, path: str) -> bool:
        """The model learns of a URL; whether it was new."""
        site = self.model.setdefault(origin, Site({"/robots.txt": Known(int(UrlKind.ROBOTS), due=self.now)}))
        if path in site.urls:
            return False
        site.urls[path] = Known(int(UrlKind.PAGE), due=self.now)
        return True

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        self.lease(count)

    def lease(self, count: int) -> None:
        reply = self.one(m.TakeLease(LeaseAsk(self.epoch, 1, count, TTL)))
        possible = sum(self._could_lease(site) for site in self.model.values())
        assert min(1, possible) <= len(reply.leases) <= count
        if self.active_max == 1:
            assert len(reply.leases) == min(count, possible)
        for lease in reply.leases:
            self._leased(lease)

    def _could_lease(self, site: Site) -> bool:
        if site.paused or site.leased >= self.active_max or site.next_start > self.now:
            return False
        robots = site.urls["/robots.txt"]
        wanted = any(self._due(known) for known in site.urls.values() if known.kind == UrlKind.PAGE)
        if self._due(robots) and not robots.refetch:
            return True
        if site.robots_until > self.now:
            return wanted
        return wanted and robots.state not in (L, F, R) and (robots.refetch or self._due(robots))

    def _due(self, known: Known) -> bool:
        return known.due is not None and known.due <= self.now

    def _leased(self, lease: Lease) -> None:
        site = self.model[lease.origin]
        known = site.urls[lease.path]
        assert known.state not in (L, F, R)
        assert not site.paused
        if known.kind == UrlKind.PAGE:
            assert self._due(known)
            assert site.robots_until > self.now, "no policy, no page"
        if known.state != P:
            known.generation, known.tries = known.generation + 1, 0
        known.state, known.due, known.refetch = L, None, False
        known.attempt += 1
        known.key, known.lease, known.expires = lease.key, lease, self.now + TTL
        assert site.leased <= self.active_max
        assert (lease.key.attempt, lease.tries, lease.crawl_generation) == (
            known.attempt,
            known.tries,
            known.generation,
        )

    @precondition(lambda self: self.held(L))
    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        site, known = data.draw(st.sampled_from(self.held(L)))
        assert known.key is not None
        assert known.lease is not None
        ask = ReserveAsk(known.key, self.epoch, known.lease.origin, DELAY, HOLD, -1, self.active_max)
        outcome = self.one(m.Reserve(ask)).outcome
        if site.paused:
            assert outcome == ReserveOutcome.PAUSED
        elif site.next_start > self.now:
            assert outcome == ReserveOutcome.NOT_YET
        else:
            assert outcome == ReserveOutcome.GRANTED
            site.next_start = self.now + DELAY
            known.slot, known.expires = True, self.now + HOLD + GRACE

    @precondition(lambda self: self.held(L))
    @rule(
        data=st.data(),
        ending=st.sampled_from(["fetched", "offered", "retry", "failed", "put back", "excluded"]),
    )
    def end_lease(self, data: st.DataObject, ending: str) -> None:
        site, known = data.draw(st.sampled_from(self.held(L)))
        key = known.key
        assert key is not None
        robots = known.kind == UrlKind.ROBOTS
        operation: m.AnyOperation
        match ending:
            case "fetched" | "offered":
                hold_ms = 1000 if ending == "fetched" else 0
                operation = m.KeepFetched(RecordFetched(key, answer(), HEALTHY, hold_ms))
                self.pages += not robots
                known.state, known.hold = F, self.now + hold_ms
            case "retry":
                operation = m.KeepFailed(RecordFailed(key, "dns_timeout", "", 3_000, None, None))
                known.state, known.due = P, self.now + 3_000
                known.tries += 1
            case "failed":
                decision = (ALLOW_ALL, DAY) if robots else (None, 0)
                operation = m.KeepFailed(RecordFailed(key, "dns_timeout", "", None, None, None, *decision))
                known.state, known.due = X, None
                known.tries += 1
                if robots:
                    self._robots_decided(site, known, DAY)
            case "put back":
                operation = m.GiveBack(PutBack(key, "no_slot", "", 500))
                known.state, known.due = P, self.now + 500
            case _:
                if robots:
                    return
                operation = m.Leave(Exclude(key, "robots_disallowed", "", 1))
                known.state, known.due = E, None
        if known.state == F:
            site.next_start = max(site.next_start, max(0, self.now - 50) + DELAY)
        known.slot = False
        assert self.one(operation) == Applied.APPLIED
        if known.state != F:
            self._forget(known)
            assert self.one(operation) == Applied.STALE

    def _robots_decided(self, site: Site, known: Known, ttl: int) -> None:
        site.robots_until = self.now + ttl
        known.refetch, known.due = True, self.now + ttl

    def _forget(self, known: Known) -> None:
        assert known.key is not None
        self.stale.append(known.key)
        known.key = known.lease = None

    @precondition(lambda self: self.held(F))
    @rule(
        data=st.data(),
        links=st.integers(0, 3),
        ending=st.sampled_from(["parsed", "handed over", "strike", "poisoned"]),
    )
    def end_fetched(self, data: st.DataObject, links: int, ending: str) -> None:
        _, known = data.draw(st.sampled_from(self.held(F)))
        key = known.key
        assert key is not None
        if ending in ("parsed", "handed over") or known.kind == UrlKind.ROBOTS:
            over = ending == "handed over"
            parsed = m.KeepParsed(RecordParsed(key, 1, BodyRef(1, 2, 3), links, "html", hand_over=over))
            known.state, known.links = R, links
            if over:
                known.hold = self.now
            assert self.one(parsed) == Applied.APPLIED
            assert self.one(parsed) == Applied.APPLIED
            return
        assert self.one(m.Strike(ParseStrike(key, "cpu", ending == "poisoned"))) == Applied.APPLIED
        if ending == "poisoned":
            known.state, known.due = X, None
            self._forget(known)

    @precondition(lambda self: self.held(R))
    @rule(data=st.data(), revisit=st.sampled_from([None, 4_000]), text=st.sampled_from(TEXTS))
    def complete(self, data: st.DataObject, revisit: int | None, text: int) -> None:
        site, known = data.draw(st.sampled_from(self.held(R)))
        key = known.key
        assert key is not None
        robots = known.kind == UrlKind.ROBOTS
        decision = {"robots": ALLOW_ALL, "robots_ttl_ms": DAY} if robots else {"revisit_ms": revisit}
        facts = {"fingerprint": text, "near": True, **decision}
        operation = m.Finish(Complete(key, 1, not robots, **facts))  # type: ignore[arg-type]
        assert self.one(operation) == Applied.APPLIED
        assert self.one(operation) == Applied.STALE
        self._published(known, 0 if robots else text)
        known.state, known.tries = C, 0
        known.due = None if revisit is None else self.now + revisit
        if robots:
            self._robots_decided(site, known, DAY)
        self._forget(known)

    def _published(self, known: Known, text: int) -> None:
        """A document is one unless another one, whose last visit was published, is nearly the same text."""
        assert known.lease is not None
        self.documents.pop(known.lease.url, None)
        twin = any((text ^ other).bit_count() <= 3 for other in self.documents.values() if text)
        if text and not twin:
            self.documents[known.lease.url] = text
        self.publications += known.kind == UrlKind.PAGE and not twin
        (row,) = self.rows(f"SELECT reason FROM url WHERE id = {known.lease.key.url_id}")
        assert row == ("near_duplicate" if twin else None,)

    @precondition(lambda self: self.held(F, R))
    @rule(count=st.integers(1, 3), state=st.sampled_from([F, R]), hold_ms=st.sampled_from([1_000, HOLD]))
    def adopt(self, count: int, state: UrlState, hold_ms: int) -> None:
        """Whoever asks gets what nobody holds, and nothing else."""
        free = {
            known.lease.url: known for _, known in self.held(state) if known.lease and known.hold <= self.now
        }
        found = self.one(m.Adopt(AdoptAsk(int(state), 7, count, hold_ms)))
        if state == R:
            assert len(found) == min(count, len(free))
        else:  # some come alone
            assert min(1, len(free)) <= len(found) <= min(count, len(free))
            assert len(found) == 1 or all(work.strikes < STRIKES_APART for work in found)
        for work in found:
            known = free.pop(work.lease.url)
            self._forget(known)
            known.key, known.lease, known.hold = work.lease.key, work.lease, self.now + hold_ms
            assert (work.manifest is not None) == (state == R)

    @rule(
        number=st.integers(1, 6),
        found=st.lists(st.tuples(st.sampled_from(ORIGINS), st.sampled_from(PATHS)), min_size=1, max_size=4),
    )
    def deliver(self, number: int, found: list[tuple[str, str]]) -> None:
        parcel = Parcel(9, 0, number, [page(path, origin) for origin, path in found], 1)
        assert self.one(m.Deliver([parcel])) == Applied.APPLIED
        if number > self.mark:
            self.mark = number
            self.inbox += found

    @precondition(lambda self: self.inbox)
    @rule(limit=st.integers(1, 5))
    def drain(self, limit: int) -> None:
        reply = self.one(m.Drain(DrainAsk(0, self.epoch, limit)))
        some, self.inbox = self.inbox[:limit], self.inbox[limit:]
        new = sum(self._know(origin, path) for origin, path in some)
        assert (reply.taken, reply.admitted, reply.left) == (len(some), new, len(self.inbox))

    @precondition(lambda self: any(known.kind == UrlKind.ROBOTS for _, known in self.held(L, F, R)))
    @rule()
    def carry_robots(self) -> None:
        """A short cut to where pages can go."""
        for site, known in self.held(L, F, R):
            if known.kind != UrlKind.ROBOTS:
                continue
            key = known.key
            assert key is not None
            if known.state == L:
                assert self.one(m.KeepFetched(RecordFetched(key, answer(), HEALTHY, 1000))) == Applied.APPLIED
                site.next_start = max(site.next_start, self.now - 50 + DELAY)
                known.slot = False
            self.one(m.KeepParsed(RecordParsed(key, 1, BodyRef(1, 2, 3), 0, "robots")))
            finish = m.Finish(Complete(key, 1, False, robots=ALLOW_ALL, robots_ttl_ms=DAY))
            assert self.one(finish) == Applied.APPLIED
            known.state, known.tries = C, 0
            self._robots_decided(site, known, DAY)
            self._forget(known)

    @precondition(lambda self: self.held(P, C))
    @rule(pages=st.integers(1, 4))
    def next_turn(self, pages: int) -> None:
        """Time passes until spacing allows a start, and the next URLs are leased."""
        self.now += DELAY
        self.lease(pages)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def late_result(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.stale))
        assert self.one(m.KeepFetched(RecordFetched(key, answer(), HEALTHY, 1))) == Applied.STALE
        assert self.one(m.GiveBack(PutBack(key, "no_slot", "", 0))) == Applied.STALE
        assert self.one(m.Finish(Complete(key, 1, True))) == Applied.STALE

    @rule(ms=st.sampled_from([1, 500, 1_000, 5_000, HOLD, DAY]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule()
    def expire(self) -> None:
        lapsed = [(site, known) for site, known in self.held(L) if known.expires <= self.now]
        assert self.one(m.Expire(100)) == len(lapsed)
        self._lapse(lapsed)

    def _lapse(self, lapsed: list[tuple[Site, Known]]) -> None:
        soonest = [
            # Its request may have begun as late as now, or as the end of its slot.
            (
                site,
                min(self.now, known.expires - GRACE)
                + max(0, site.next_start - (known.expires - GRACE - HOLD)),
            )
            for site, known in lapsed
            if known.slot
        ]
        for site, next_start in soonest:
            site.next_start = max(site.next_start, next_start)
        for _, known in lapsed:
            known.state, known.due, known.slot = P, self.now, False
            self._forget(known)

    @rule()
    def crash_and_take_over(self) -> None:
        self.the_books_balance()
        self._kill()
        self._open()
        leased = self.held(L)
        assert self.taken.lapsed == len(leased)
        self._lapse(leased)
        resumed = {resumable.lease.url: resumable for resumable in self.taken.resumables}
        stored = [
            (origin + path, known)
            for origin, site in self.model.items()
            for path, known in site.urls.items()
            if known.state in (F, R)
        ]
        assert set(resumed) == {url for url, _ in stored}
        for url, known in stored:
            self._forget(known)
            known.key, known.lease = resumed[url].lease.key, resumed[url].lease
            known.hold = self.now + self.settings.resume_hold_ms
            assert (resumed[url].manifest is not None) == (known.state == R)

    # ---- what always holds

    @invariant()
    def same_as_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        rows = self.rows(
            "SELECT o.key, u.path, u.state, u.due_at, u.attempt, u.generation, u.tries, u.slot_origin IS NOT NULL"
            " FROM url u JOIN origin o ON o.id = u.id >> 36"
        )
        found = {(row[0], row[1]): tuple(row[2:]) for row in rows}
        expected = {
            (origin, path): (
                int(known.state),
                known.due,
                known.attempt,
                known.generation,
                known.tries,
                int(known.slot),
            )
            for origin, site in self.model.items()
            for path, known in site.urls.items()
        }
        assert found == expected

    def _audited(self) -> Rig:
        return MachineRig(self.rows)

    def the_books_balance(self) -> None:
        rig = self._audited()
        rig.audit()
        assert rig.tallied()["pages"] == self.pages
        assert rig.tallied()["publications"] == self.publications

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.the_books_balance()
            self.store.close()
            shutil.rmtree(self.folder)


class MachineRig(Rig):
    """The audit of a rig, over the rows of a machine's store."""

    def __init__(self, rows: Callable[[str], list[tuple[Any, ...]]]) -> None:
        self._rows = rows

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        assert not parameters
        return self._rows(sql)


class MachinePostgresRig(MachineRig):
    """The same, but for what this store does not count."""

    counted_crossing = PostgresRig.counted_crossing


class PostgresMachine(FrontierMachine):
    """The same rules over PostgreSQL, a database for each run of them."""

    server: SharedPostgres

    def _store(self) -> Any:
        if not hasattr(self, "dsn"):
            self.dsn = self.server.create(make_frontier)
        return BlockingPostgres(
            self.dsn, self.settings, now_ms=lambda: self.now, slots=self.slots, linger_s=0.0
        )

    def _kill(self) -> None:
        self.store.kill()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.store.rows(sql)
        return rows

    def _audited(self) -> Rig:
        return MachinePostgresRig(self.rows)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "dsn"):
            self.server.drop(self.dsn)


TestFrontierMachine = FrontierMachine.TestCase
TestFrontierMachine.settings = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


class TestPostgresMachine(PostgresMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(
        max_examples=10,
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

    @pytest.fixture(autouse=True)
    def _server(self, postgres: SharedPostgres) -> None:
        PostgresMachine.server = postgres
