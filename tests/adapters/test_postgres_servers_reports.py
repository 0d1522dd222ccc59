"""An operator's questions to a fleet over two servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
import pytest_asyncio

from amble.adapters.postgres.relocation import Relocation
from amble.adapters.postgres.servers import PostgresServers
from amble.adapters.postgres.servers_partitions import ServersPartitions
from amble.adapters.postgres.servers_reports import ServersReports
from amble.domain.decision import Reason
from amble.domain.errors import StoreUnavailable
from amble.domain.frontier import AdmitBatch
from tests.support import servers as s
from tests.support.postgres import FreshDatabase

T = TypeVar("T")
GONE = "postgresql://nobody@127.0.0.1:1/none"


@pytest_asyncio.fixture
async def dsns(fresh_database: FreshDatabase) -> AsyncIterator[list[str]]:
    """One page fetched and published in partition 0, one in 1, one only known in each of the others."""
    dsns = await s.two_servers(fresh_database)
    servers = await PostgresServers.open(dsns, partition_of=s.MAP.of, linger_s=0.0)
    partitions = ServersPartitions(dsns, servers.places)
    await partitions.renew("a", {}, s.TTL, leaving=False)
    await partitions.claim("a", range(s.PARTITIONS), s.TTL, s.HOLD)
    for partition in range(s.PARTITIONS):
        await s.admit(servers.frontier(partition), s.page(s.site_in(partition)))
    for partition in (0, 1):
        frontier = servers.frontier(partition)
        for _ in range(2):
            (held,) = await s.lease(frontier, partition, 1)
            await s.reserve(frontier, held, 1)
            await s.record(frontier, held)
            await s.finish(frontier, held)
            await s.rows(dsns[partition], "UPDATE origin SET next_start = 0, wake_at = 0")
    samples = [("https://refused.example/x", "out_of_scope", "far away")]
    await servers.frontier(1).admit(AdmitBatch([], samples=samples, partition=1))
    await partitions.release("a", dict.fromkeys(range(s.PARTITIONS), 1))
    await partitions.close()
    await servers.close()
    yield dsns


async def ask(dsns: list[str], question: Callable[[ServersReports], T]) -> T:
    def within() -> T:
        with ServersReports(dsns) as reports:
            return question(reports)

    return await asyncio.to_thread(within)


async def test_status_counts_over_all_servers(dsns: list[str]) -> None:
    status = await ask(dsns, lambda reports: reports.status())
    assert (status.urls, status.pages, status.documents, status.origins) == (8, 2, 2, 4)
    assert status.states["complete"] == 4
    assert status.next_wake_ms is not None


async def test_lists_are_merged_in_the_order_of_ids(dsns: list[str]) -> None:
    urls = await ask(dsns, lambda reports: reports.urls(limit=100))
    ids = [line.url_id for line in urls]
    assert ids == sorted(ids)
    assert len(ids) == 8
    first = await ask(dsns, lambda reports: reports.urls(limit=3))
    rest = await ask(dsns, lambda reports: reports.urls(limit=100, after=first[-1].url_id))
    assert [line.url_id for line in first + rest] == ids
    origins = await ask(dsns, lambda reports: reports.origins(limit=100))
    assert {line.origin for line in origins} == {s.site_in(p) for p in range(4)}
    assert await ask(dsns, lambda reports: reports.failed()) == []
    one = await ask(dsns, lambda reports: reports.origin(s.site_in(3)))
    assert one is not None
    assert one.urls == 1


async def test_publications_are_asked_by_partition(dsns: list[str]) -> None:
    def question(reports: ServersReports) -> list[tuple[int, int, list[str]]]:
        return [
            (p, reports.last_publication(p), [line.url for line in reports.publications(partition=p)])
            for p in reports.partitions
        ]

    assert await ask(dsns, question) == [
        (0, 1, [s.site_in(0) + "/"]),
        (1, 1, [s.site_in(1) + "/"]),
        (2, 0, []),
        (3, 0, []),
    ]
    sample = await ask(dsns, lambda reports: reports.fetch_sample())
    assert (sample.fetches, sample.origins) == (2, 2)
    assert await ask(dsns, lambda reports: reports.forwarded()) == (0, 0)


async def test_why_asks_the_server_of_the_url(dsns: list[str]) -> None:
    told = await ask(dsns, lambda reports: reports.explain(s.site_in(1) + "/"))
    assert told.line is not None
    assert len(told.fetches) == 1
    refused = await ask(dsns, lambda reports: reports.explain("https://refused.example/x"))
    assert [line.reason for line in refused.decisions] == ["out_of_scope"]


async def test_why_says_that_a_server_is_away(dsns: list[str]) -> None:
    half = [dsns[0], GONE]
    told = await ask(half, lambda reports: reports.explain(s.site_in(1) + "/"))
    assert (told.waits_for, told.line) == (Reason.SERVER_AWAY, None)
    here = await ask(half, lambda reports: reports.explain(s.site_in(0) + "/"))
    assert here.line is not None
    with pytest.raises(StoreUnavailable, match="server 1 is away"):
        await ask(half, lambda reports: reports.status())
    with pytest.raises(StoreUnavailable):
        await ask([GONE, GONE], lambda reports: reports.status())


async def test_a_partition_that_moves_counts_once(dsns: list[str]) -> None:
    before = await ask(dsns, lambda reports: reports.status())
    asked: list[object] = []

    class Killed(Exception):
        pass

    for step in ("compare tally", "open", "remove", "never"):

        def die(now: str, step: str = step) -> None:
            if now == step:
                raise Killed

        moving = Relocation(dsns=dsns, partition=0, target=1, hold_ms=s.HOLD, on_step=die)
        try:
            await moving.run()
        except Killed:
            pass
        urls = await ask(dsns, lambda reports: reports.urls(limit=100))
        assert len(urls) == 8, step
        status = await ask(dsns, lambda reports: reports.status())
        # Between two commits its counters are at neither server, but never at both.
        assert status.documents == (before.documents if step != "open" else before.documents - 1), step
        asked.append(status)
    assert (await ask(dsns, lambda reports: reports.publications(partition=0)))[0].url == s.site_in(0) + "/"
