"""The batch runner: one transaction, replies in order, one bad operation spoils nothing, trouble changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amble.adapters.sql import messages as m
from amble.adapters.sql import sqlite
from amble.adapters.sql.check import SqliteCheck
from amble.adapters.sql.connection import DRIVER, Driver, open_reader, open_writer, trouble_of
from amble.adapters.sql.settings import StoreSettings, of_file
from amble.adapters.sql.sqlite import SqliteStore
from amble.domain.attempt import Edge, LeaseKey, UrlKind
from amble.domain.errors import CrawlFolderUnusable, StoreBroken, StoreUnavailable
from amble.domain.frontier import (
    AdmitBatch,
    Candidate,
    LeaseAsk,
    OriginOrder,
    Parcel,
    ReserveAsk,
    ReserveOutcome,
    TakeoverAsk,
    Verdict,
)
from amble.domain.manifest import CursorAdvance, ManifestKey
from tests.contract.frontier_rig import memory_folder

tmp_path = memory_folder

DRIVERS: list[Driver] = ["apsw", "sqlite3"]
A = "https://a.example"


def admit(*paths: str, origin: str = A) -> m.Admit:
    found = [Candidate(origin, path, int(UrlKind.PAGE), 2, 0, 0, int(Edge.ANCHOR), 0) for path in paths]
    return m.Admit(AdmitBatch(found))


class Bad(m.Operation, frozen=True, array_like=True, tag=99):
    """an operation that nobody knows"""

    value: int = 0


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    chosen: Driver = request.param
    return chosen


@pytest.fixture
def store(tmp_path: Path, driver: Driver) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "frontier.db", driver=driver)
    yield opened
    opened.database.rollback()
    opened.close()


def paths(store: SqliteStore) -> set[str]:
    return {path for (path,) in store.database.execute("SELECT path FROM url").fetchall()}


def test_replies_come_in_the_order_of_the_operations(store: SqliteStore) -> None:
    replies = store.apply(
        [
            m.TakeOver(TakeoverAsk("me")),
            admit("/x"),
            m.FindBody(b"?" * 32),
            m.TakeLease(LeaseAsk(1, 1, 1, 1000)),
        ]
    )
    assert replies[0].epoch == 1
    assert list(replies[1].verdicts) == [1]
    assert replies[2] is None
    assert replies[3].leases[0].path == "/robots.txt"


def test_a_bad_operation_is_refused_alone(store: SqliteStore) -> None:
    replies = store.apply([admit("/x"), Bad(), admit("/y")])  # type: ignore[list-item]
    assert isinstance(replies[1], m.Refused)
    assert list(replies[0].verdicts) == list(replies[2].verdicts) == [1]
    assert paths(store) == {"/x", "/y", "/robots.txt"}


def test_what_a_bad_operation_had_begun_is_undone(store: SqliteStore) -> None:
    worker = object()
    (reply,) = store.apply([m.Admit(AdmitBatch(admit("/x").value.candidates, samples=[("u", worker, "")]))])  # type: ignore[list-item]
    assert isinstance(reply, m.Refused)
    assert paths(store) == set()
    assert list(store.apply([admit("/x")])[0].verdicts) == [1]


def test_a_cursor_beyond_its_links_is_refused(store: SqliteStore) -> None:
    move = CursorAdvance(ManifestKey(5, 1, 1), 0, 3)
    store.database.execute("INSERT INTO manifest VALUES (5, 1, 1, x'00', 2, 0, 1, '', '', NULL, 0)")
    (reply,) = store.apply([m.Admit(AdmitBatch([], move))])
    assert isinstance(reply, m.Refused)


def test_a_full_disk_changes_nothing_and_the_same_batch_works_later(store: SqliteStore) -> None:
    (pages,) = store.database.execute("PRAGMA page_count").fetchone()
    store.database.execute(f"PRAGMA max_page_count={pages}").fetchall()
    batch = [admit(*(f"/{n:0300}" for n in range(200)))]
    with pytest.raises(StoreUnavailable, match="full"):
        store.apply(batch)
    assert paths(store) == set()
    assert not store.database.in_transaction
    store.database.execute("PRAGMA max_page_count=1000000").fetchall()
    assert sum(store.apply(batch)[0].verdicts) == 200
    tallied = store.database.execute("SELECT value FROM tally WHERE name = 'state.pending'").fetchone()
    assert tallied[0] == 201


def test_a_locked_file_is_unavailable_for_now(store: SqliteStore, tmp_path: Path, driver: Driver) -> None:
    store.database.execute("PRAGMA busy_timeout=1").fetchall()
    other = open_writer(tmp_path / "frontier.db", driver=driver)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        store.apply([admit("/x")])
    other.rollback()
    other.close()
    assert list(store.apply([admit("/x")])[0].verdicts) == [1]


def test_a_damaged_file_is_broken(tmp_path: Path, driver: Driver) -> None:
    file = tmp_path / "frontier.db"
    SqliteStore(file, driver=driver).close()
    file.write_bytes(b"this is no database" * 1000)
    with pytest.raises(StoreBroken, match="damaged"):
        SqliteStore(file, driver=driver)


def test_a_folder_that_does_not_exist_is_unavailable(tmp_path: Path, driver: Driver) -> None:
    with pytest.raises(StoreUnavailable):
        SqliteStore(tmp_path / "nowhere" / "frontier.db", driver=driver)


def test_a_reader_cannot_write(store: SqliteStore, tmp_path: Path, driver: Driver) -> None:
    reader = open_reader(tmp_path / "frontier.db", driver=driver)
    with pytest.raises(Exception, match="readonly") as caught:
        reader.execute("DELETE FROM meta")
    assert isinstance(trouble_of(caught.value), StoreUnavailable)
    reader.close()


def test_a_mistake_in_a_statement_is_no_trouble_of_the_file(store: SqliteStore) -> None:
    with pytest.raises(Exception, match="no such table") as caught:
        store.database.execute("SELECT * FROM nowhere")
    assert trouble_of(caught.value) is None


def test_a_batch_that_writes_nothing_commits_nothing(store: SqliteStore) -> None:
    store.apply([m.TakeOver(TakeoverAsk("me"))])
    before = store.wal_bytes(), store.database.total_changes()
    store.apply([m.FindBody(b"?" * 32), m.TakeLease(LeaseAsk(1, 1, 9, 1000)), m.Expire(5)])
    assert (store.wal_bytes(), store.database.total_changes()) == before


@pytest.mark.parametrize("origins_cached_max", [50_000, 0])
def test_a_slow_commit_pushes_the_next_start_back_by_as_much(tmp_path: Path, origins_cached_max: int) -> None:
    times = [0]
    settings = StoreSettings(origins_cached_max=origins_cached_max)
    store = SqliteStore(tmp_path / "f.db", settings, now_ms=lambda: times[0])
    store.apply([m.TakeOver(TakeoverAsk("me")), admit("/x")])
    (reply,) = store.apply([m.TakeLease(LeaseAsk(1, 1, 1, 1000))])
    calls = iter([1_000, 1_700])  # begin of the transaction, after its commit
    store.clock.now = lambda: next(calls)  # type: ignore[method-assign]
    lease = reply.leases[0]
    (granted,) = store.apply([m.Reserve(ReserveAsk(lease.key, 1, A, 2_000, 60_000, -1, 1))])
    assert granted.outcome == ReserveOutcome.GRANTED
    origin = store.books.ledger.by_key(A)
    assert origin is not None
    assert origin.next_start == 1_700 + 2_000
    store.close()


def test_the_path_key_is_made_once_and_differs_between_stores(tmp_path: Path) -> None:
    def key(name: str) -> bytes:
        store = SqliteStore(tmp_path / name)
        value = bytes(store.database.execute("SELECT value FROM meta WHERE name = 'path_key'").fetchone()[0])
        store.close()
        return value

    assert key("one") == key("one") != key("two")


def test_origins_in_memory_are_bounded_and_forgotten_without_harm(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "f.db", StoreSettings(origins_cached_max=3))
    for n in range(10):
        store.apply([admit("/x", origin=f"https://o{n}.example")])
    assert len(store.books.ledger._by_id) <= 4
    assert (
        sum(sum(store.apply([admit("/x", origin=f"https://o{n}.example")])[0].verdicts) for n in range(10))
        == 0
    )
    store.close()


def test_the_log_of_a_quiet_store_is_folded_into_the_file_and_cut(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "f.db")
    store.apply([admit(*(f"/{n}" for n in range(500)))])
    store.checkpoint(quiet=True)
    assert store.wal_bytes() > 0, "too short to be worth it"
    store._quiet_at = 1
    store.checkpoint(quiet=True)
    assert store.wal_bytes() == 0
    store.close()


@pytest.mark.parametrize("driver", ["apsw", "sqlite3"])
def test_the_log_of_a_busy_store_is_folded_in_and_stays_as_long_as_it_was(
    tmp_path: Path, driver: Driver
) -> None:
    store = SqliteStore(tmp_path / "f.db", driver=driver)
    store.apply([admit(*(f"/{n}" for n in range(500)))])
    long, file = store.wal_bytes(), (tmp_path / "f.db").stat().st_size
    store.checkpoint(quiet=False)
    assert (tmp_path / "f.db").stat().st_size == file, "too short to be worth it"
    store._checkpoint_at = 1
    store.checkpoint(quiet=False)
    assert (tmp_path / "f.db").stat().st_size > file
    store.apply([admit("/one-more")])
    # Where the driver counts what is in the log, its file is written over; else it is cut and begins at nothing.
    assert (store.wal_bytes() == long) == (driver == "apsw")
    assert store._log_bytes() < long
    store.close()


def test_the_log_may_become_longer_where_the_file_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_BYTES_MIN", 1)
    store = SqliteStore(tmp_path / "f.db")
    for round_ in range(2):
        store.apply([admit(*(f"/{round_}/{n}" for n in range(2000)))])
        store._checkpoint_at = 1
        store.checkpoint(quiet=False)
        assert store._checkpoint_at == sqlite.CHECKPOINT_FILES * (tmp_path / "f.db").stat().st_size
    monkeypatch.setattr(sqlite, "CHECKPOINT_BYTES", 5)
    assert store._log_bytes_max() == 5
    store.close()


def test_a_log_that_a_reader_made_long_is_cut_when_the_reader_is_gone_though_the_store_stays_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CHECKPOINT_BYTES", "CHECKPOINT_BYTES_MIN", "CHECKPOINT_AGAIN_BYTES"):
        monkeypatch.setattr(sqlite, name, 64 << 10)
    store = SqliteStore(tmp_path / "f.db")
    reader = open_reader(tmp_path / "f.db")
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM url").fetchall()
    for round_ in range(10):
        store.apply([admit(*(f"/{round_}/{n}" for n in range(200)))])
        store.checkpoint(quiet=False)
    long = store.wal_bytes()
    assert long > 5 * sqlite.CHECKPOINT_BYTES, "the reader keeps it from beginning anew"
    reader.rollback()
    reader.close()
    for round_ in range(10, 20):
        store.apply([admit(*(f"/{round_}/{n}" for n in range(200)))])
        store.checkpoint(quiet=False)
    assert store.wal_bytes() < long / 2
    store.close()


def test_a_reader_in_the_way_of_a_checkpoint_is_no_error(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "f.db")
    store.apply([admit("/x")])
    reader = open_reader(tmp_path / "f.db")
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM url").fetchall()
    store.apply([admit("/y")])
    store._quiet_at = 1
    store.checkpoint(quiet=True)
    assert store.wal_bytes() > 0
    assert store._quiet_at > store.wal_bytes(), "it does not try again at once"
    reader.rollback()
    reader.close()
    store.close()
    assert not Path(f"{tmp_path / 'f.db'}-wal").exists()


def test_the_default_driver_carries_a_current_sqlite() -> None:
    assert DRIVER == "apsw"


def test_both_drivers_read_one_file(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "f.db", driver="apsw")
    first.apply([admit("/x")])
    first.close()
    second = SqliteStore(tmp_path / "f.db", driver="sqlite3")
    assert list(second.apply([admit("/x", "/y")])[0].verdicts) == [0, 1]
    second.close()


def test_every_operation_has_a_handler_and_a_reply_type(store: SqliteStore) -> None:
    operations: tuple[type[Any], ...] = m.AnyOperation.__args__
    assert set(store._handlers) == set(operations) == set(m.REPLY_DECODERS)


def test_a_file_stays_with_the_partition_it_was_made_for(tmp_path: Path, driver: Driver) -> None:
    path = tmp_path / "frontier-1.db"
    store = SqliteStore(path, of_file(StoreSettings(), 1, 2), driver=driver)
    (report,) = store.apply([m.Admit(AdmitBatch([Candidate("https://a.example", "/", 0, 2, 0, 0, 1, 0, 1)]))])
    assert list(report.verdicts) == [Verdict.ADMITTED]
    assert store.database.execute("SELECT id FROM origin").fetchall()[0][0] == (1 << 22) + 1
    store.close()
    with pytest.raises(CrawlFolderUnusable, match="holds partition 1, not 0"):
        SqliteStore(path, driver=driver)
    SqliteStore(path, of_file(StoreSettings(), 1, 2), driver=driver).close()


def test_a_guest_of_another_file_has_an_origin_for_itself_until_it_must_have_left(tmp_path: Path) -> None:
    now = [1_700_000_000_000]
    store = SqliteStore(tmp_path / "frontier.db", now_ms=lambda: now[0])
    ask = ReserveAsk(LeaseKey(1 << 60, 1, b"t", 1), 1, A, 2_000, 60_000, -1, 1)

    def visit() -> tuple[int, int]:
        (reply,) = store.apply([m.Visit(ask)])
        return reply.outcome, reply.until_ms

    (taken,) = store.apply([m.TakeOver(TakeoverAsk("me"))])
    assert visit() == (ReserveOutcome.GRANTED, now[0] + 60_000)
    assert visit() == (ReserveOutcome.NOT_YET, now[0] + 62_000)
    store.apply([admit("/x")])
    (reply,) = store.apply([m.TakeLease(LeaseAsk(taken.epoch, 1, 10, 60_000))])
    assert (reply.leases, reply.next_wake_ms) == ([], now[0] + 62_000)
    now[0] += 62_000
    (reply,) = store.apply([m.TakeLease(LeaseAsk(taken.epoch, 1, 10, 60_000))])
    key = reply.leases[0].key
    store.apply([m.Reserve(ReserveAsk(key, taken.epoch, A, 2_000, 60_000, -1, 1))])
    now[0] += 2_000
    assert visit() == (ReserveOutcome.NO_SLOT, 0), "its own request is under way"
    store.apply([m.SetOrigin(OriginOrder(A, "op", "why", paused=True))])
    assert visit()[0] == ReserveOutcome.PAUSED
    store.close()


def test_a_file_whose_ids_are_used_up_opens_no_more_origins(tmp_path: Path, driver: Driver) -> None:
    store = SqliteStore(tmp_path / "frontier.db", StoreSettings(origins_max=2), driver=driver)
    hosts = [f"https://h{number}.example" for number in range(4)]
    batch = AdmitBatch([Candidate(host, "/", 0, 2, 0, 0, 1, 0) for host in hosts])
    (report,) = store.apply([m.Admit(batch)])
    assert list(report.verdicts) == [Verdict.ADMITTED] * 2 + [Verdict.OVER_SITE_BUDGET] * 2
    store.close()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("UPDATE outbox SET destination = 0", "is addressed to the partition that it comes from"),
        ("DELETE FROM outbox", "the counter outbox says 1, there are 0"),
        ("DELETE FROM inbox", "the counter inbox says 2, there are 0"),
        ("UPDATE inbox SET taken = amount", "left over when all of it was taken"),
        ("DELETE FROM parcel_mark", "above the mark of its source"),
    ],
)
def test_verify_knows_what_must_hold_of_parcels(
    store: SqliteStore, tmp_path: Path, damage: str, complaint: str
) -> None:
    away = Candidate("https://b.example", "/", 0, 2, 0, 0, 1, 0, 5)
    here = [Candidate(A, path, 0, 2, 0, 0, 1, 0) for path in ("/x", "/y")]
    store.apply([m.Admit(AdmitBatch([away])), m.Deliver([Parcel(5, 0, 3, here, 1)])])
    path, driver = tmp_path / "frontier.db", store.database.driver
    assert list(SqliteCheck(path, driver=driver).problems()) == []
    store.database.execute(damage)
    problems = list(SqliteCheck(path, driver=driver).problems())
    assert any(complaint in problem for problem in problems), problems


def test_a_store_in_memory_leaves_no_file(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore(":memory:", driver=driver)
    assert list(store.apply([admit("/x")])[0].verdicts) == [1]
    store.checkpoint(quiet=True)
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_the_standard_library_can_count_its_errors() -> None:
    assert trouble_of(sqlite3.OperationalError("no code at all")) is None
