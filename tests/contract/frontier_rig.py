"""A frontier under test with a clock that the test moves, short words for the steps of the line, and an audit."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from amble.adapters.sql import tally
from amble.adapters.sql.connection import Database, Driver, open_reader, open_writer
from amble.adapters.sql.identity import Slots
from amble.adapters.sql.inline import InlineStore
from amble.adapters.sql.messages import FrameKind, encode, frame
from amble.adapters.sql.server import Server
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.sqlite import SqliteStore
from amble.adapters.sql.wire import StoreWire, hear_ready
from amble.domain.attempt import Edge, Lease, RobotsState, UrlKind
from amble.domain.fetched import BodyRef, Fetched, Timings
from amble.domain.frontier import (
    AdmitBatch,
    AdmitReport,
    AdoptAsk,
    Applied,
    Candidate,
    Complete,
    DrainAsk,
    DrainReply,
    DropParcels,
    LeaseAsk,
    LeaseReply,
    OriginEffect,
    Parcel,
    ParcelAsk,
    RecordFailed,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    ReserveOutcome,
    ReserveReply,
    Resumable,
    Takeover,
    TakeoverAsk,
)
from amble.domain.lifecycle import UrlState
from amble.domain.manifest import CursorAdvance, ManifestKey
from amble.domain.robots import RobotsOutcome
from amble.ports import Frontier

A, B = "https://a.example", "https://b.example"
SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
START = 1_700_000_000_000
DELAY = 2 * SECOND
HOLD = 60 * SECOND
ALLOW_ALL = RobotsState(int(RobotsOutcome.ALLOW_ALL))
UNREACHABLE = RobotsState(int(RobotsOutcome.UNREACHABLE))


def page(
    path: str,
    origin: str = A,
    *,
    priority: int = 2,
    depth: int = 0,
    kind: int = UrlKind.PAGE,
    partition: int = 0,
) -> Candidate:
    return Candidate(origin, path, int(kind), priority, depth, 0, int(Edge.ANCHOR), 0, partition)


def answer(status: int = 200, *, digest: bytes | None = None, offset: int = 100, **facts: Any) -> Fetched:
    ref = BodyRef(1, offset, 50)
    return Fetched(
        status,
        ref,
        facts.pop("body_ref", ref),
        digest if digest is not None else bytes([status % 256]) * 32,
        body_bytes=1000,
        wire_bytes=400,
        content_type="text/html",
        address="192.0.2.1",
        timings=Timings(total_ms=120),
        **facts,
    )


EFFECT = OriginEffect(duration_ms=120, delay_ms=DELAY, rest_ms=0, backoff_level=0)


@pytest.fixture
def memory_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory where there is such a place: most tests are about meaning, not about the disk."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        yield tmp_path_factory.mktemp("frontier")
        return
    with TemporaryDirectory(dir=shared, prefix="amble-test-") as made:
        yield Path(made)


class Rig:
    """One store, its clock, and the steps of the line."""

    def __init__(self, folder: Path, way: str, **options: Any) -> None:
        self.path = folder / "frontier.db"
        self.way, _, driver = way.partition("-")
        self.driver: Driver = "sqlite3" if driver == "stdlib" else "apsw"
        self.now = START
        self.epoch = 0
        self.settings: StoreSettings = options.pop("settings", StoreSettings())
        self.slots: Slots | None = options.pop("slots", None)
        self.frontier: Frontier
        self._thread: threading.Thread | None = None
        self._reader: Database | None = None

    async def open(self) -> None:
        if self.way == "inline":
            self.frontier = InlineStore(self._store())
        else:
            self.frontier = await self._wire()

    def _store(self) -> SqliteStore:
        return SqliteStore(
            self.path, self.settings, driver=self.driver, now_ms=lambda: self.now, slots=self.slots
        )

    async def _wire(self) -> StoreWire:
        ours, theirs = socket.socketpair()

        def serve() -> None:
            store = self._store()
            theirs.sendall(frame(FrameKind.READY, encode("")))
            Server(theirs, store).run()
            store.close()
            theirs.close()

        self._thread = threading.Thread(target=serve)
        self._thread.start()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        await hear_ready(reader)
        return StoreWire(reader, writer, linger_s=0.0)

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        await self.frontier.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def crash(self, owner: str = "again") -> Takeover:
        """The agent dies here; the next one opens the same file and takes over."""
        if isinstance(self.frontier, InlineStore):
            self.frontier.store.database.close()  # no checkpoint, no goodbye
        else:
            await self.close()
        await self.open()
        return await self.take_over(owner)

    async def take_over(self, owner: str = "agent") -> Takeover:
        taken = await self.frontier.take_over(TakeoverAsk(owner))
        self.epoch = taken.epoch
        return taken

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._reading().execute(sql, parameters).fetchall()]

    def _reading(self) -> Database:
        """The store's own connection where the test can reach it, else one that only reads."""
        if isinstance(self.frontier, InlineStore):
            return self.frontier.store.database
        if self._reader is None:
            self._reader = open_reader(self.path, driver=self.driver)
        return self._reader

    def spoil(self, table: str, column: str, value: bytes | None, url_id: int) -> None:
        """Damage what is stored of a URL."""
        sql = f'UPDATE "{table}" SET {column} = ? WHERE url_id = ?'
        if isinstance(self.frontier, InlineStore):
            self.frontier.store.database.execute(sql, (value, url_id))
            return
        database = open_writer(self.path, driver=self.driver)
        database.execute(sql, (value, url_id))
        database.close()

    def row(self, url_id: int, *columns: str) -> Any:
        (row,) = self.rows(f"SELECT {', '.join(columns)} FROM url WHERE id = ?", url_id)
        return row[0] if len(columns) == 1 else row

    def state(self, url_id: int) -> UrlState:
        return UrlState(self.row(url_id, "state"))

    # ---- steps

    async def admit(self, *candidates: Candidate, **facts: Any) -> AdmitReport:
        return await self.frontier.admit(AdmitBatch(list(candidates), **facts))

    async def lease(self, count: int = 10, **facts: Any) -> LeaseReply:
        facts = {"epoch": self.epoch, "worker": 1, "count": count, "ttl_ms": 30 * SECOND, **facts}
        return await self.frontier.lease(LeaseAsk(**facts))

    async def lease_one(self, **facts: Any) -> Lease:
        reply = await self.lease(1, **facts)
        assert len(reply.leases) == 1, reply
        return reply.leases[0]

    async def reserve(self, lease: Lease, **facts: Any) -> ReserveReply:
        facts = {
            "key": lease.key,
            "epoch": self.epoch,
            "origin": lease.origin,
            "delay_ms": DELAY,
            "hold_ms": HOLD,
            "robots_version": -1,
            "active_max": 1,
            **facts,
        }
        return await self.frontier.reserve(ReserveAsk(**facts))

    async def start(self, lease: Lease) -> Lease:
        reply = await self.reserve(lease)
        assert reply.outcome == ReserveOutcome.GRANTED, reply
        return lease

    async def fetched(
        self, lease: Lease, fetched: Fetched | None = None, effect: OriginEffect = EFFECT
    ) -> Applied:
        return await self.frontier.record_fetched(
            RecordFetched(lease.key, fetched or answer(), effect, 10 * 60 * SECOND)
        )

    async def failed(self, lease: Lease, retry_ms: int | None = None, **facts: Any) -> Applied:
        facts = {"fetched": None, "effect": EFFECT, **facts}
        return await self.frontier.record_failed(
            RecordFailed(lease.key, "connect_timeout", "no answer", retry_ms, **facts)
        )

    async def offered(self, lease: Lease, fetched: Fetched | None = None) -> Applied:
        """FETCHED, and left to parse workers at once."""
        return await self.frontier.record_fetched(RecordFetched(lease.key, fetched or answer(), EFFECT, 0))

    async def adopt(
        self, state: UrlState = UrlState.FETCHED, count: int = 10, **facts: Any
    ) -> list[Resumable]:
        """As a parse worker, unless `partition` says that it is the owner who asks."""
        facts = {"worker": 77, "hold_ms": HOLD, **facts}
        if "partition" in facts:
            facts.setdefault("epoch", self.epoch)
        return await self.frontier.adopt(AdoptAsk(int(state), count=count, **facts))

    async def parcels(self, limit: int = 100, **facts: Any) -> list[Parcel]:
        facts = {"partition": 0, "epoch": self.epoch, "limit": limit, **facts}
        return await self.frontier.parcels(ParcelAsk(**facts))

    async def drop(self, *taken: tuple[int, int], **facts: Any) -> Applied:
        facts = {"partition": 0, "epoch": self.epoch, **facts}
        return await self.frontier.drop_parcels(DropParcels(taken=list(taken), **facts))

    async def drain(self, limit: int = 100, **facts: Any) -> DrainReply:
        facts = {"partition": 0, "epoch": self.epoch, "limit": limit, **facts}
        return await self.frontier.drain(DrainAsk(**facts))

    async def forwarded(self) -> int:
        """Candidates on their way to or from another partition."""
        return (await self.lease(0)).forwarded

    def paths(self) -> list[str]:
        """The pages that are known."""
        return sorted(path for (path,) in self.rows("SELECT path FROM url WHERE kind = 0"))

    async def parsed(self, lease: Lease, links: int = 0, **facts: Any) -> Applied:
        facts = {"ref": BodyRef(1, 900, 40), "content_kind": "html", **facts}
        return await self.frontier.record_parsed(RecordParsed(lease.key, 1, links=links, **facts))

    async def complete(self, lease: Lease, **facts: Any) -> Applied:
        facts = {"publish": lease.kind == UrlKind.PAGE, **facts}
        if lease.kind == UrlKind.ROBOTS:
            facts.setdefault("robots", ALLOW_ALL)
            facts.setdefault("robots_ttl_ms", DAY)
        return await self.frontier.complete(Complete(lease.key, 1, **facts))

    async def carry(
        self, lease: Lease, *, links: int = 0, fetched: Fetched | None = None, **facts: Any
    ) -> Lease:
        """From a lease to COMPLETE."""
        await self.start(lease)
        assert await self.fetched(lease, fetched) == Applied.APPLIED
        assert await self.parsed(lease, links) == Applied.APPLIED
        assert await self.complete(lease, **facts) == Applied.APPLIED
        return lease

    async def ready(self, *candidates: Candidate) -> None:
        """Admit pages and carry the robots.txt of each of their origins, so that pages are next."""
        await self.admit(*candidates)
        for lease in (await self.lease(100)).leases:
            assert lease.kind == UrlKind.ROBOTS
            await self.carry(lease)
        self.now += DELAY

    async def next_page(self) -> Lease:
        """The next lease, which must be a page, with its start reserved."""
        lease = await self.lease_one()
        assert lease.kind == UrlKind.PAGE
        return await self.start(lease)

    def move(self, lease: Lease, start: int, end: int) -> CursorAdvance:
        return CursorAdvance(ManifestKey(lease.key.url_id, lease.key.attempt, 1), start, end)

    # ---- audit

    def audit(self) -> None:
        """What must hold after any sequence of operations."""
        assert self.counted() == self.tallied()
        for name, real, kept in self._ledgers():
            assert real == kept, f"origin.{name}"
        self._audit_rows()
        self._audit_wake()

    def tallied(self) -> dict[str, int]:
        kept = dict(self.rows("SELECT name, value FROM tally"))
        return {name: kept.get(name, 0) for name in self.counted()}

    def counted(self) -> dict[str, int]:
        states = dict(self.rows("SELECT state, count(*) FROM url GROUP BY state"))
        one = lambda sql: self.rows(sql)[0][0]  # noqa: E731
        return {
            **{name: states.get(number, 0) for number, name in enumerate(tally.STATES)},
            tally.QUEUED: one("SELECT count(*) FROM url WHERE rq < 8"),
            tally.PAGES_LEASED: one("SELECT count(*) FROM url WHERE state = 1 AND kind = 0"),
            tally.PAGES: one(
                "SELECT count(*) FROM fetch f JOIN url u ON u.id = f.url_id WHERE f.answer IS NOT NULL AND u.kind = 0"
            ),
            tally.FETCHES: one("SELECT count(*) FROM fetch"),
            tally.MANIFESTS_OPEN: one("SELECT count(*) FROM manifest WHERE opened AND cursor < links"),
            tally.ORIGINS: one("SELECT count(*) FROM origin"),
            tally.ADMITTED: one("SELECT count(*) FROM url"),
            tally.PUBLICATIONS: one("SELECT count(*) FROM publication"),
            tally.LINKS: one("SELECT coalesce(sum(cursor), 0) FROM manifest"),
            **self.counted_crossing(),
        }

    def counted_crossing(self) -> dict[str, int]:
        one = lambda sql: self.rows(sql)[0][0]  # noqa: E731
        return {
            tally.OUTBOX: one("SELECT coalesce(sum(amount), 0) FROM outbox"),
            tally.INBOX: one("SELECT coalesce(sum(amount - taken), 0) FROM inbox"),
        }

    def _ledgers(self) -> list[tuple[str, Any, Any]]:
        def pair(name: str, sql: str) -> tuple[str, Any, Any]:
            real = dict(self.rows(sql))
            kept = dict(self.rows(f"SELECT id, {name} FROM origin WHERE {name} <> 0"))
            return name, real, kept

        return [
            pair("queued", "SELECT id >> 36, count(*) FROM url WHERE rq < 8 GROUP BY 1"),
            pair("leased", "SELECT id >> 36, count(*) FROM url WHERE state = 1 GROUP BY 1"),
            pair("active", "SELECT slot_origin, count(*) FROM url WHERE slot_origin IS NOT NULL GROUP BY 1"),
            pair("urls", "SELECT id >> 36, count(*) FROM url WHERE kind <> 1 GROUP BY 1"),
        ]

    def _audit_rows(self) -> None:
        held = "state IN (1, 2, 3)"
        assert not self.rows(f"SELECT id FROM url WHERE ({held}) <> (token IS NOT NULL)")
        assert not self.rows(f"SELECT id FROM url WHERE {held} AND (rq IS NOT NULL OR expires_at IS NULL)")
        assert not self.rows("SELECT id FROM url WHERE state = 0 AND (rq IS NULL OR due_at IS NULL)")
        assert not self.rows("SELECT id FROM url WHERE slot_origin IS NOT NULL AND state <> 1")
        assert not self.rows("SELECT id FROM url WHERE (rq IS NULL) <> (due_at IS NULL)")

    def _audit_wake(self) -> None:
        """An origin with something to do now or later is never asleep without a reason to be woken."""
        asleep = self.rows(
            "SELECT key FROM origin o WHERE wake_at IS NULL AND queued > 0 AND NOT paused AND leased = 0 AND active = 0"
            " AND NOT EXISTS (SELECT 1 FROM url u WHERE u.id = o.robots_url_id AND u.state IN (1, 2, 3))"
        )
        assert not asleep, asleep
        assert not self.rows("SELECT key FROM origin WHERE wake_at IS NOT NULL AND (paused OR queued = 0)")


MakeRig = Callable[..., Any]
