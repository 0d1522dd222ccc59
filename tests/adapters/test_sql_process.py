"""The store process and the wire to it: grouping, order, trouble, death, durability."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from amble.adapters.sql.connection import open_reader
from amble.adapters.sql.lock import Busy, FolderLock, acquire
from amble.adapters.sql.messages import HEAD, FrameKind, encode, frame
from amble.adapters.sql.process import StoreProcess
from amble.adapters.sql.server import Server
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.sqlite import SqliteStore
from amble.adapters.sql.wire import StoreWire, hear_ready
from amble.domain.attempt import Edge, Lease, LeaseKey, UrlKind
from amble.domain.errors import CrawlFolderUnusable, OperationRefused, StoreBroken, StoreUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.frontier import (
    AdmitBatch,
    AdmitReport,
    Candidate,
    Complete,
    LeaseAsk,
    OriginEffect,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    ReserveOutcome,
    TakeoverAsk,
)
from amble.domain.manifest import CursorAdvance, ManifestKey
from tests.contract.frontier_rig import ALLOW_ALL, DAY, Rig, answer, memory_folder

tmp_path = memory_folder


def batch(*paths: str, origin: str = "https://a.example") -> AdmitBatch:
    return AdmitBatch(
        [Candidate(origin, path, int(UrlKind.PAGE), 2, 0, 0, int(Edge.ANCHOR), 0) for path in paths]
    )


def stored(file: Path) -> set[str]:
    reader = open_reader(file)
    found = {path for (path,) in reader.execute("SELECT path FROM url").fetchall()}
    reader.close()
    return found


# ---- a real process


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "frontier.db"


async def test_a_crawl_s_first_steps_over_a_real_process(file: Path) -> None:
    store = await StoreProcess.start(file, StoreSettings(default_active_max=4, default_spacing_ms=0))
    taken = await store.take_over(TakeoverAsk("agent"))
    report = await store.admit(batch("/x", "/y"))
    reply = await store.lease(LeaseAsk(taken.epoch, 1, 10, 1000))
    assert list(report.verdicts) == [1, 1]
    assert reply.leases[0].facts.active_max == 4
    assert await store.find_body(b"?" * 32) is None
    assert await store.expire(10) == 0
    await store.close()
    assert stored(file) == {"/x", "/y", "/robots.txt"}
    assert not Path(f"{file}-wal").exists(), "closing folds the log in"


async def test_looking_for_a_body_holds_no_snapshot(file: Path) -> None:
    store = await StoreProcess.start(file)
    epoch = (await store.take_over(TakeoverAsk("agent"))).epoch
    await store.admit(batch("/x"))
    (lease,) = (await store.lease(LeaseAsk(epoch, 1, 1, 60_000))).leases
    await store.reserve(ReserveAsk(lease.key, epoch, lease.origin, 0, 60_000, -1, 1))
    await store.record_fetched(RecordFetched(lease.key, answer(), OriginEffect(5, 0, 0, 0), 60_000))
    assert await store.find_body(answer().digest or b"") is not None
    await store.admit(batch("/y"))
    other = open_reader(file)
    ((blocked, _, _),) = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    other.close()
    await store.close()
    assert not blocked


async def test_bodies_of_an_earlier_life_are_found_and_new_ones_too(file: Path) -> None:
    settings = StoreSettings(default_active_max=4, default_spacing_ms=0)
    bodies = [answer(digest=bytes([number]) * 32) for number in (1, 2)]
    for life, body in enumerate(bodies):
        store = await StoreProcess.start(file, settings)
        epoch = (await store.take_over(TakeoverAsk("agent"))).epoch
        await store.admit(batch("/x", origin=f"https://{life}.example"))
        (lease,) = (await store.lease(LeaseAsk(epoch, 1, 1, 60_000))).leases
        await store.reserve(ReserveAsk(lease.key, epoch, lease.origin, 0, 60_000, -1, 1))
        digest = body.digest or b""
        assert await store.find_body(digest) is None
        await store.record_fetched(RecordFetched(lease.key, body, OriginEffect(5, 0, 0, 0), 60_000))
        assert await store.find_body(digest) == body.body_ref
        assert (await store.find_body(bodies[0].digest or b"")) is not None
        await store.close()


async def test_calls_after_close_are_refused_for_now(file: Path) -> None:
    store = await StoreProcess.start(file)
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.expire(1)


async def test_what_was_called_before_close_is_durable(file: Path) -> None:
    store = await StoreProcess.start(file)
    calls = [asyncio.ensure_future(store.admit(batch(f"/{n}"))) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert len(await asyncio.gather(*calls)) == 50
    assert len(stored(file)) == 51


async def test_acknowledged_work_survives_kill_9_of_the_store_process(file: Path) -> None:
    store = await StoreProcess.start(file)
    acknowledged: set[str] = set()
    enough = asyncio.Event()

    async def work(worker: int) -> None:
        for n in range(100_000):
            path = f"/{worker}/{n}"
            await store.admit(batch(path))
            acknowledged.add(path)
            if len(acknowledged) >= 300:
                enough.set()

    workers = [asyncio.create_task(work(n)) for n in range(8)]
    await enough.wait()
    os.kill(store.pid, signal.SIGKILL)
    endings = await asyncio.gather(*workers, return_exceptions=True)
    assert all(isinstance(ending, StoreBroken) for ending in endings)
    with pytest.raises(StoreBroken):
        await store.expire(1)
    await store.close()
    assert acknowledged <= stored(file)
    again = await StoreProcess.start(file)
    assert (await again.admit(batch(*sorted(acknowledged)[:5]))).verdicts == bytes(5)
    await again.close()


async def carry(store: StoreProcess, lease: Lease, epoch: int, done: list[LeaseKey]) -> None:
    """One page, or robots.txt, over the whole line; its links are three pages of its own and one of a new origin."""
    asked = ReserveAsk(lease.key, epoch, lease.origin, 0, 60_000, -1, 1)
    assert (await store.reserve(asked)).outcome == ReserveOutcome.GRANTED
    await store.record_fetched(RecordFetched(lease.key, answer(), OriginEffect(5, 0, 0, 0), 60_000))
    await store.record_parsed(RecordParsed(lease.key, 1, BodyRef(1, 2, 3), 4, "html"))
    robots = {"robots": ALLOW_ALL, "robots_ttl_ms": DAY} if lease.kind == UrlKind.ROBOTS else {}
    await store.complete(Complete(lease.key, 1, True, **robots))
    done.append(lease.key)
    name = f"{lease.origin_id}-{lease.key.url_id % 999}"
    found = batch(*(f"/{name}/{n}" for n in range(3)), origin=lease.origin).candidates
    found += batch("/", origin=f"https://{name}.example").candidates
    move = CursorAdvance(ManifestKey(lease.key.url_id, lease.key.attempt, 1), 0, 4)
    await store.admit(AdmitBatch(found, move))


async def test_after_kill_9_in_the_middle_of_full_cycles_the_books_balance(file: Path) -> None:
    done: list[LeaseKey] = []
    settings = StoreSettings(default_spacing_ms=0)
    for kill_at in (40, 90):
        store = await StoreProcess.start(file, settings)
        epoch = (await store.take_over(TakeoverAsk("agent"))).epoch
        await store.admit(batch("/", "/second"))
        work: set[asyncio.Task[None]] = set()
        while len(done) < kill_at:
            for lease in (await store.lease(LeaseAsk(epoch, 1, 20, 60_000))).leases:
                work.add(asyncio.create_task(carry(store, lease, epoch, done)))
            await asyncio.wait(work, timeout=0.005)
        os.kill(store.pid, signal.SIGKILL)
        for ending in await asyncio.gather(*work, return_exceptions=True):
            assert ending is None or isinstance(ending, StoreBroken)
        await store.close()
        rig = Rig(file.parent, "inline-apsw", settings=settings)
        await rig.open()
        rig.audit()
        complete = set(rig.rows("SELECT id, attempt FROM url WHERE state = 4"))
        assert {(key.url_id, key.attempt) for key in done} <= complete
        await rig.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_terminal_s_signals_do_not_end_the_store(file: Path, number: signal.Signals) -> None:
    store = await StoreProcess.start(file)
    os.kill(store.pid, number)
    assert (await store.admit(batch("/x"))).verdicts == b"\x01"
    await store.close()


async def test_the_process_ends_by_itself_when_the_agent_is_gone(file: Path) -> None:
    store = await StoreProcess.start(file)
    await store.admit(batch("/x"))
    store._writer.transport.abort()  # as the kernel does for a killed agent
    assert await asyncio.wait_for(store._process.wait(), 10) == 0
    await store.close()
    assert "/x" in stored(file)


async def test_the_folder_stays_locked_until_the_store_process_has_ended(file: Path) -> None:
    lock = acquire(file.parent / "run" / "lock")
    assert isinstance(lock, FolderLock)
    store = await StoreProcess.start(file, lock_fd=lock.fd)
    lock.release()
    assert isinstance(acquire(lock.path, wait_s=0.0), Busy)
    await store.close()
    again = acquire(lock.path, wait_s=0.0)
    assert isinstance(again, FolderLock)
    again.release()


async def test_a_newer_file_is_refused_with_its_reason(file: Path) -> None:
    made = SqliteStore(file)
    made.database.execute("INSERT INTO migration VALUES (99, 'x', 0)")
    made.close()
    with pytest.raises(CrawlFolderUnusable, match="schema 99"):
        await StoreProcess.start(file)


async def test_a_folder_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await StoreProcess.start(tmp_path / "nowhere" / "frontier.db")


# ---- the wire, with the server in a thread so that the test can reach its store


class Wired:
    """A server in a thread and the wire to it."""

    def __init__(self, file: Path) -> None:
        self.ticks = 0
        self.store = self._opened(file)
        self.frontier: StoreWire
        self._thread: threading.Thread

    def _opened(self, file: Path) -> SqliteStore:
        def tick() -> int:
            self.ticks += 1
            return self.ticks

        return SqliteStore(file, now_ms=tick)

    async def open(self, linger_s: float = 0.0) -> None:
        ours, theirs = socket.socketpair()

        def serve() -> None:
            theirs.sendall(frame(FrameKind.READY, encode("")))
            try:
                Server(theirs, self.store).run()
            except StoreUnavailable:
                pass
            theirs.close()

        self._thread = threading.Thread(target=serve)
        self._thread.start()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        await hear_ready(reader)
        self.frontier = StoreWire(reader, writer, linger_s=linger_s)

    async def close(self) -> None:
        await self.frontier.close()
        await asyncio.to_thread(self._thread.join)
        self.store.close()


@pytest_asyncio.fixture
async def wired(tmp_path: Path) -> AsyncIterator[Wired]:
    made = Wired(tmp_path / "frontier.db")
    await made.open()
    yield made
    await made.close()


def instants(file: Path) -> dict[str, int]:
    reader = open_reader(file)
    found = dict(reader.execute("SELECT path, admitted_at FROM url WHERE kind = 0").fetchall())
    reader.close()
    return found


async def test_calls_made_together_share_one_transaction(wired: Wired, tmp_path: Path) -> None:
    await asyncio.gather(*(wired.frontier.admit(batch(f"/{n}")) for n in range(40)))
    at = instants(tmp_path / "frontier.db")
    assert len(at) == 40
    assert len(set(at.values())) == 1


async def test_calls_made_apart_are_answered_apart(wired: Wired, tmp_path: Path) -> None:
    for n in range(5):
        await wired.frontier.admit(batch(f"/{n}"))
    assert len(set(instants(tmp_path / "frontier.db").values())) == 5


async def test_calls_within_the_linger_travel_together(tmp_path: Path) -> None:
    wired = Wired(tmp_path / "frontier.db")
    await wired.open(linger_s=0.05)
    await wired.frontier.admit(batch("/first"))
    calls = []
    for n in range(5):
        calls.append(asyncio.ensure_future(wired.frontier.admit(batch(f"/{n}"))))
        await asyncio.sleep(0)
    await asyncio.gather(*calls)
    at = instants(tmp_path / "frontier.db")
    assert len({at[f"/{n}"] for n in range(5)}) == 1
    await wired.close()


async def test_a_burst_is_cut_into_bounded_frames_and_keeps_its_order(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amble.adapters.sql.wire.OPERATIONS_MAX", 7)
    reports = await asyncio.gather(*(wired.frontier.admit(batch(f"/{n // 2}")) for n in range(100)))
    assert [report.verdicts for report in reports] == [b"\x01", b"\x00"] * 50


async def test_a_frame_is_bounded_by_its_candidates_too(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amble.adapters.sql.wire.CANDIDATES_MAX", 10)
    monkeypatch.setattr("amble.adapters.sql.server.FRAME_BYTES_MAX", 3_000)
    paths = [[f"/{n}/{m}/{'x' * 150}" for m in range(4)] for n in range(40)]
    reports = await asyncio.gather(*(wired.frontier.admit(batch(*group)) for group in paths))
    assert [report.verdicts for report in reports] == [b"\x01" * 4] * 40


async def test_one_refused_call_leaves_its_neighbours_alone(wired: Wired) -> None:
    await wired.frontier.admit(batch("/x"))
    wired.store.database.execute("INSERT INTO manifest VALUES (5, 1, 1, x'00', 2, 0, 1, '', '', NULL, 0)")
    bad = AdmitBatch([], CursorAdvance(ManifestKey(5, 1, 1), 0, 3))
    results = await asyncio.gather(
        wired.frontier.admit(batch("/y")),
        wired.frontier.admit(bad),
        wired.frontier.admit(batch("/z")),
        return_exceptions=True,
    )
    assert isinstance(results[1], StoreBroken)
    assert [result.verdicts for result in results if isinstance(result, AdmitReport)] == [b"\x01", b"\x01"]


async def test_a_call_that_cannot_be_put_into_a_frame_is_refused_and_its_neighbours_are_not(
    wired: Wired,
) -> None:
    bad = (batch("/\udcff"), AdmitBatch([], samples=[("x", "y", "\ud800")]), batch("/x", origin="\udfff"))
    for call in bad:
        with pytest.raises(OperationRefused):
            await wired.frontier.admit(call)
    with pytest.raises(OperationRefused):
        await wired.frontier.expire(2**64)
    results = await asyncio.gather(
        wired.frontier.admit(batch("/y")),
        wired.frontier.admit(bad[0]),
        wired.frontier.admit(batch("/y", "/z")),
        return_exceptions=True,
    )
    assert isinstance(results[1], OperationRefused)
    assert [result.verdicts for result in results if isinstance(result, AdmitReport)] == [
        b"\x01",
        b"\x00\x01",
    ]


async def test_a_caller_that_gave_up_does_not_hurt_the_others(wired: Wired, tmp_path: Path) -> None:
    gone = asyncio.ensure_future(wired.frontier.admit(batch("/gone")))
    kept = asyncio.ensure_future(wired.frontier.admit(batch("/kept")))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await kept).verdicts == b"\x01"
    assert set(instants(tmp_path / "frontier.db")) == {"/gone", "/kept"}


async def test_while_the_disk_is_full_calls_wait_and_the_reason_is_told(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amble.adapters.sql.server._RETRY_S", 0.01)
    heard: list[str | None] = []
    troubled, well = asyncio.Event(), asyncio.Event()

    def hear(trouble: str | None) -> None:
        heard.append(trouble)
        (troubled if trouble else well).set()

    wired.frontier.on_trouble = hear
    apply = wired.store.apply
    full = threading.Event()
    full.set()

    def applied(operations: object) -> object:
        if full.is_set():
            raise StoreUnavailable("the disk is full")
        return apply(operations)  # type: ignore[arg-type]

    monkeypatch.setattr(wired.store, "apply", applied)
    call = asyncio.ensure_future(wired.frontier.admit(batch("/x")))
    await asyncio.wait_for(troubled.wait(), 5)
    assert wired.frontier.trouble == "the disk is full"
    assert not call.done()
    later = asyncio.ensure_future(wired.frontier.admit(batch("/y")))
    full.clear()
    assert (await call).verdicts == (await later).verdicts == b"\x01"
    await asyncio.wait_for(well.wait(), 5)
    assert wired.frontier.trouble is None
    assert heard == ["the disk is full", None]


async def test_a_server_that_cannot_write_ends_when_the_agent_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amble.adapters.sql.server._RETRY_S", 0.01)
    wired = Wired(tmp_path / "frontier.db")
    await wired.open()

    def refuse(_: object) -> object:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(wired.store, "apply", refuse)
    call = asyncio.ensure_future(wired.frontier.admit(batch("/x")))
    await asyncio.sleep(0.05)
    wired.frontier._writer.transport.abort()
    with pytest.raises(StoreBroken):
        await call
    await wired.close()


async def test_nonsense_from_the_other_end_breaks_every_call() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    frontier = StoreWire(reader, writer, linger_s=0.0)
    call = asyncio.ensure_future(frontier.expire(1))
    await asyncio.sleep(0)
    theirs.sendall(HEAD.pack(3, FrameKind.REPLIES) + b"\xff\xff\xff")
    with pytest.raises(StoreBroken, match="nonsense"):
        await call
    theirs.close()
    await frontier.close()


@pytest.mark.parametrize("send", [lambda s: None, lambda s: s.sendall(b"\0")])
async def test_a_store_that_ends_before_it_is_ready_is_broken(send: Callable[[socket.socket], None]) -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    send(theirs)
    theirs.close()
    with pytest.raises(StoreBroken, match="before it had opened"):
        await hear_ready(reader)
    writer.close()
