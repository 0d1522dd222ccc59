"""`amble parse` as a process: over a real database and a shared archive, killed, stopped, and probed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amble.adapters.archive.objects_open import open_archive_url
from amble.adapters.postgres.setup import init
from amble.adapters.postgres.store import PostgresStore
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.system import SystemClock, SystemEntropy
from amble.domain.attempt import Edge, Lease, RobotsState, UrlKind
from amble.domain.fetched import BodyRef, Fetched, Timings
from amble.domain.frontier import (
    AdmitBatch,
    AdoptAsk,
    Candidate,
    Complete,
    LeaseAsk,
    OriginEffect,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    TakeoverAsk,
)
from amble.domain.lifecycle import UrlState
from amble.domain.robots import RobotsOutcome
from amble.formats import manifest_json, warc
from amble.ports import Frontier
from amble.stages.journey import StoredBody
from tests.support.amble_process import AmbleProcess, run

PAGES = 30
PARTITIONS = 2
HTML = b"<title>Page</title><p>Some text.</p>" + b"<a href='/%d'>x</a>" * 20
EFFECT = OriginEffect(5, 0, 0, 0)
ALLOW_ALL = RobotsState(int(RobotsOutcome.ALLOW_ALL))


async def _make(dsn: str) -> None:
    await init(dsn, partitions=PARTITIONS)


class Fleet:
    """What agents would have left: pages that are fetched, in two partitions, with their bodies in the archive."""

    def __init__(self, dsn: str, archive: str) -> None:
        self.dsn, self.archive_url = dsn, archive

    async def fetched(self, count: int) -> None:
        clock, entropy = SystemClock(), SystemEntropy()
        archive = open_archive_url(self.archive_url, clock, entropy)
        store = await PostgresStore.open(self.dsn, StoreSettings(default_spacing_ms=0))
        refs = await archive.append([_record(entropy, number) for number in range(count)])
        for partition in range(PARTITIONS):
            mine = [ref for number, ref in enumerate(refs) if number % PARTITIONS == partition]
            await self._fetch(store, partition, mine)
        await store.close()
        await archive.close()

    async def _fetch(self, store: PostgresStore, partition: int, refs: list[BodyRef]) -> None:
        frontier = store.frontier(partition)
        epoch = (await frontier.take_over(TakeoverAsk("test", partition))).epoch
        hosts = [f"https://h{partition}-{number}.example" for number in range(len(refs))]
        found = [Candidate(host, "/", 0, 2, 0, 0, int(Edge.SEED), 0, partition) for host in hosts]
        await frontier.admit(AdmitBatch(found, partition=partition))
        for lease in await self._started(frontier, epoch, len(refs)):
            await frontier.record_fetched(RecordFetched(lease.key, _fetched(refs[0]), EFFECT, 60_000))
            await frontier.record_parsed(RecordParsed(lease.key, 1, refs[0], 0, "robots"))
            await frontier.complete(
                Complete(lease.key, 1, publish=False, robots=ALLOW_ALL, robots_ttl_ms=3_600_000)
            )
        leases = await self._started(frontier, epoch, len(refs))
        for lease, ref in zip(leases, refs, strict=True):
            assert lease.kind == UrlKind.PAGE
            await frontier.record_fetched(RecordFetched(lease.key, _fetched(ref), EFFECT, 0))

    async def _started(self, frontier: Frontier, epoch: int, count: int) -> list[Lease]:
        leases: list[Lease] = []
        while len(leases) < count:
            partition = frontier.partition  # type: ignore[attr-defined]
            asked = LeaseAsk(epoch, 1, count - len(leases), 60_000, partition=partition)
            leases += (await frontier.lease(asked)).leases
        for lease in leases:
            await frontier.reserve(ReserveAsk(lease.key, epoch, lease.origin, 0, 60_000, -1, 1))
        return leases

    async def count(self, state: UrlState) -> int:
        store = await PostgresStore.open(self.dsn)
        try:
            total = 0
            for partition in range(PARTITIONS):
                reply = await store.frontier(partition).lease(LeaseAsk(1, 1, 0, 1, partition=partition))
                total += reply.unparsed if state == UrlState.FETCHED else reply.in_flight - reply.unparsed
            return total
        finally:
            await store.close()

    async def titles(self) -> list[str]:
        """What the owners adopt, read from the archive."""
        archive = open_archive_url(self.archive_url, SystemClock(), SystemEntropy())
        store = await PostgresStore.open(self.dsn)
        titles = []
        for partition in range(PARTITIONS):
            ask = AdoptAsk(int(UrlState.PARSED), 1, PAGES, 60_000, partition=partition, epoch=1)
            for work in await store.frontier(partition).adopt(ask):
                assert work.manifest is not None
                titles.append(manifest_json.decode(await archive.read(work.manifest)).manifest.title)
        await store.close()
        await archive.close()
        return titles

    def arguments(self, *more: str) -> list[str]:
        return [
            "parse", "--store", self.dsn, "--archive", self.archive_url, "--children", "1", "--hold", "5", *more,
        ]  # fmt: skip


def _fetched(ref: BodyRef) -> Fetched:
    digest = hashlib.sha256(HTML).digest()
    size = len(HTML)
    return Fetched(200, ref, ref, digest, size, size, "text/html", "192.0.2.1", Timings(total_ms=5))


def _record(entropy: SystemEntropy, number: int) -> Any:
    body = HTML
    digest = hashlib.sha256(body).digest()
    return warc.response(
        warc.Exchange(url=f"https://x.example/{number}", address="192.0.2.1", date_s=1.7e9),
        record_id=warc.record_id(entropy.token(16)),
        head=b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n",
        body=StoredBody(body, digest),
        body_bytes=len(body),
        sha256=digest,
    )


@pytest.fixture
def fleet(fresh_database: Callable[..., str], tmp_path: Path) -> Fleet:
    return Fleet(fresh_database(_make), f"file://{tmp_path}/archive")


Start = Callable[..., AmbleProcess]


@pytest.fixture
def start(fleet: Fleet, tmp_path: Path) -> Iterator[Start]:
    """Starts workers that are gone after the test."""
    workers: list[AmbleProcess] = []

    def begin(*more: str) -> AmbleProcess:
        workers.append(AmbleProcess(fleet.arguments(*more), tmp_path / f"worker-{len(workers)}.txt"))
        return workers[-1]

    yield begin
    for worker in workers:
        if worker.process.poll() is None:
            worker.kill_tree()


def until(check: Callable[[], bool], seconds: float = 40.0) -> None:
    limit = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < limit, "nothing came of it in time"
        time.sleep(0.1)


@pytest.mark.timeout(120)
def test_workers_share_the_pages_of_all_partitions_and_hand_them_to_their_owners(
    fleet: Fleet, start: Start
) -> None:
    asyncio.run(fleet.fetched(PAGES))
    workers = [start("--until-done", "--json") for _ in range(2)]
    assert [worker.wait(90) for worker in workers] == [0, 0], [worker.text() for worker in workers]
    counts = [json.loads(worker.text().splitlines()[-1]) for worker in workers]
    assert sum(count["parsed"] for count in counts) == PAGES
    assert asyncio.run(fleet.titles()) == ["Page"] * PAGES


@pytest.mark.timeout(120)
def test_what_a_killed_worker_held_is_parsed_by_the_next(fleet: Fleet, start: Start) -> None:
    asyncio.run(fleet.fetched(PAGES))
    first = start()
    until(lambda: asyncio.run(fleet.count(UrlState.FETCHED)) < PAGES)
    first.kill_tree()
    # Longer than the hold: a worker that is told to end by itself waits for what is held by others no longer than so.
    second = start()
    until(lambda: "parsing for" in second.text())
    until(lambda: asyncio.run(fleet.count(UrlState.FETCHED)) == 0)
    second.send(signal.SIGTERM)
    began = time.monotonic()
    assert second.wait(30) == 10, second.text()
    assert time.monotonic() - began < 10
    assert asyncio.run(fleet.titles()) == ["Page"] * PAGES


@pytest.mark.timeout(60)
def test_a_worker_answers_probes_and_ends_when_told(start: Start) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    worker = start("--health", f"127.0.0.1:{port}")

    def is_ready() -> bool:
        assert worker.process.poll() is None, worker.text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    until(is_ready)
    worker.send(signal.SIGTERM)
    assert worker.wait(20) == 10, worker.text()


def test_a_worker_without_a_database_or_an_archive_says_what_it_needs() -> None:
    done = run(["parse"], timeout_s=30)
    assert done.returncode == 2
    assert "--store" in done.stderr
    assert "--archive" in done.stderr
