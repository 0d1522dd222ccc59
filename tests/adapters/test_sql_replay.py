"""A batch with a refused call, applied one by one, and a disk that is full for a moment somewhere on the way."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from amble.adapters.sql import messages as m
from amble.adapters.sql import server, sqlite
from amble.adapters.sql.connection import open_writer
from amble.adapters.sql.identity import Slots
from amble.adapters.sql.server import Server
from amble.adapters.sql.sqlite import SqliteStore
from amble.domain.attempt import Lease
from amble.domain.errors import StoreUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.frontier import (
    AdmitBatch,
    Applied,
    Complete,
    Exclude,
    LeaseAsk,
    ParseStrike,
    PutBack,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    TakeoverAsk,
)
from tests.contract.frontier_rig import ALLOW_ALL, DAY, EFFECT, START, answer, memory_folder, page

tmp_path = memory_folder

HOSTS = [f"https://{name}.example" for name in "abcde"]


class Bad(m.Operation, frozen=True, array_like=True, tag=99):
    """an operation that nobody knows"""

    value: int = 0


class Tight:
    """A store, the server in front of it, and a disk that is full at one statement of a transaction, once."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.full_at, self.told, self._tokens = 0, -1, 0, 0
        monkeypatch.setattr(sqlite, "open_writer", self._opened)
        self.store = SqliteStore(
            file,
            now_ms=lambda: START,
            slots=Slots(b"k" * 16),
            token=self._token,
        )
        self._ours, theirs = socket.socketpair()
        self.server = Server(theirs, self.store)
        self._tell = self.server._tell
        self.on_trouble: Callable[[], None] = lambda: None
        monkeypatch.setattr(self.server, "_tell", self._hear)

    def _opened(self, path: Path, **options: Any) -> Any:
        database = open_writer(path, **options)
        execute = database.execute

        def guarded(sql: str, *parameters: Any) -> Any:
            if sql == "BEGIN IMMEDIATE":
                self._tokens = 0
            if database.in_transaction and sql != "ROLLBACK":
                self.count += 1
                if self.count == self.full_at:
                    error = sqlite3.OperationalError("database or disk is full")
                    error.sqlite_errorcode = sqlite3.SQLITE_FULL
                    raise error
            return execute(sql, *parameters)

        database.execute = guarded
        return database

    def _token(self, count: int) -> bytes:
        """The same ones in each transaction, so that one which is tried again gives the same answers."""
        self._tokens += 1
        return self._tokens.to_bytes(count, "big")

    def _hear(self, trouble: str) -> None:
        if trouble:
            self.told += 1
            self.on_trouble()
        self._tell(trouble)

    def apply(self, operations: list[Any]) -> list[Any]:
        return self.server._apply(operations)

    def rows(self) -> list[Any]:
        tables = ("url", "origin", "tally", "fetch", "manifest", "decision")
        return [self.store.database.execute(f"SELECT * FROM {table}").fetchall() for table in tables]

    def close(self) -> None:
        self.store.close()
        self._ours.close()
        self.server._peer.close()


@contextmanager
def tight(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tight]:
    monkeypatch.setattr(server, "_RETRY_S", 0)
    file = folder / "frontier.db"
    made = Tight(file, monkeypatch)
    try:
        yield made
    finally:
        made.close()
        for left in folder.iterdir():
            left.unlink()


def under_way(made: Tight) -> tuple[int, list[Lease]]:
    """One robots.txt of each host is leased and reserved; those of the last two are fetched."""
    (taken,) = made.apply([m.TakeOver(TakeoverAsk("me"))])
    made.apply([m.Admit(AdmitBatch([page("/", host) for host in HOSTS]))])
    (reply,) = made.apply([m.TakeLease(LeaseAsk(taken.epoch, 1, 10, 60_000))])
    leases = sorted(reply.leases, key=lambda lease: lease.origin)
    for lease in leases[1:]:
        made.apply([m.Reserve(ReserveAsk(lease.key, taken.epoch, lease.origin, 0, 60_000, -1, 1))])
    for lease in leases[3:]:
        made.apply([m.KeepFetched(RecordFetched(lease.key, answer(), EFFECT, 60_000))])
    return taken.epoch, leases


def of_all_kinds(epoch: int, leases: list[Lease]) -> list[Any]:
    first, second, third, fourth, fifth = leases
    return [
        m.Admit(AdmitBatch([page(f"/{n}", HOSTS[n % 5]) for n in range(12)])),
        m.Reserve(ReserveAsk(first.key, epoch, first.origin, 0, 60_000, -1, 1)),
        m.GiveBack(PutBack(second.key, "stopping", "", 0)),
        m.KeepFetched(RecordFetched(third.key, answer(digest=b"3" * 32), EFFECT, 60_000)),
        Bad(),
        m.FindBody(b"3" * 32),
        m.KeepParsed(RecordParsed(fourth.key, 1, BodyRef(1, 2, 3), 0, "robots")),
        m.Finish(Complete(fourth.key, 1, False, robots=ALLOW_ALL, robots_ttl_ms=DAY, withheld="not_a_page")),
        m.Strike(ParseStrike(fifth.key, "cpu", False)),
        Bad(),
        m.Leave(Exclude(first.key, "scope", "", 1)),
        m.TakeLease(LeaseAsk(epoch, 1, 10, 60_000)),
        m.Strike(ParseStrike(fifth.key, "cpu", True)),
    ]


def test_wherever_the_disk_is_full_for_a_moment_every_call_has_the_answer_it_has_without_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tight(tmp_path, monkeypatch) as made:
        batch = of_all_kinds(*under_way(made))
        made.count = 0
        wanted, rows, statements = made.apply(batch), made.rows(), made.count
    refused = [number for number, reply in enumerate(wanted) if isinstance(reply, m.Refused)]
    assert refused == [4, 9]
    assert Applied.STALE not in [reply for reply in wanted if isinstance(reply, int)]
    for full_at in range(1, statements + 1):
        with tight(tmp_path, monkeypatch) as made:
            batch = of_all_kinds(*under_way(made))
            made.count, made.full_at = 0, full_at
            assert made.apply(batch) == wanted, f"full at statement {full_at} of {statements}"
            assert made.rows() == rows, f"full at statement {full_at} of {statements}"


def pages_of(made: Tight) -> int:
    (pages,) = made.store.database.execute("PRAGMA page_count").fetchone()
    return int(pages)


def test_a_file_that_may_not_grow_keeps_what_it_has_answered_until_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batch() -> list[Any]:
        parts = [m.Admit(AdmitBatch([page(f"/{part}/{n:0300}") for n in range(30)])) for part in range(4)]
        return [*parts[:2], Bad(), *parts[2:], m.FindBody(b"?" * 32)]

    with tight(tmp_path, monkeypatch) as made:
        before = pages_of(made)
        wanted, grown = made.apply(batch()), pages_of(made) - before
    assert grown > 8
    for room in range(grown):
        with tight(tmp_path, monkeypatch) as made:
            limit = made.store.database.execute
            limit(f"PRAGMA max_page_count={before + room}").fetchall()

            def lift() -> None:
                limit("PRAGMA max_page_count=1000000").fetchall()  # noqa: B023

            made.on_trouble = lift
            assert made.apply(batch()) == wanted, f"room for {room} pages"
            assert made.told


def test_a_batch_of_which_nothing_is_durable_is_unavailable_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tight(tmp_path, monkeypatch) as made:
        made.store.database.execute(f"PRAGMA max_page_count={pages_of(made)}").fetchall()
        with pytest.raises(StoreUnavailable, match="full"):
            made.store.apply([m.Admit(AdmitBatch([page(f"/{n:0300}") for n in range(200)])), Bad()])  # type: ignore[list-item]
