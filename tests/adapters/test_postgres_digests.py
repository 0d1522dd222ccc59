"""The digest index of a fleet: each digest on its server, first come first kept, and pages wait while it is away."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from amble.adapters.postgres.digests import PostgresDigests, home_of
from amble.adapters.postgres.placement import set_up_servers
from amble.adapters.postgres.servers import PostgresServers
from amble.adapters.postgres.servers_link import Link
from amble.adapters.postgres.servers_partitions import ServersPartitions
from amble.adapters.system import SystemClock
from amble.domain.decision import Reason
from amble.domain.errors import StoreUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.frontier import Applied, TakeoverAsk
from amble.stages.health import Health
from tests.support import servers as s
from tests.support.postgres import FreshDatabase, OwnPostgres


def digest(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def ref(number: int) -> BodyRef:
    return BodyRef(number, 10 * number, 100)


class Silent:
    """Telemetry that nobody reads."""

    def event(self, name: str, **fields: object) -> None: ...

    def count(self, name: str, amount: int = 1) -> None: ...


@pytest_asyncio.fixture
async def dsns(fresh_database: FreshDatabase) -> list[str]:
    return await s.two_servers(fresh_database)


@pytest_asyncio.fixture
async def index(dsns: list[str]) -> AsyncIterator[PostgresDigests]:
    made = PostgresDigests({n: Link(dsn) for n, dsn in enumerate(dsns)})
    yield made
    await made.close()


def test_a_server_more_takes_only_its_own_share() -> None:
    before = [home_of(digest(n), [0, 1, 2]) for n in range(3_000)]
    after = [home_of(digest(n), [0, 1, 2, 3]) for n in range(3_000)]
    moved = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert {b for _, b in moved} == {3}
    assert 600 < len(moved) < 900


async def test_what_was_added_is_found_on_the_server_of_its_digest(
    index: PostgresDigests, dsns: list[str]
) -> None:
    await asyncio.gather(*(index.add(digest(n), ref(n), 5) for n in range(50)))
    found = await asyncio.gather(*(index.find(digest(n)) for n in range(60)))
    assert found == [ref(n) for n in range(50)] + [None] * 10
    for number, dsn in enumerate(dsns):
        stored = {row[0] for row in await s.rows(dsn, "SELECT digest FROM body")}
        assert stored == {digest(n) for n in range(50) if home_of(digest(n), [0, 1]) == number}


async def test_the_first_reference_stays_whoever_adds_another(index: PostgresDigests) -> None:
    assert await index.add(digest(1), ref(1), 5) == ref(1)
    assert await index.add(digest(1), ref(2), 5) == ref(1)
    again = await asyncio.gather(*(index.add(digest(7), ref(n), 5) for n in range(3, 9)))
    assert set(again) == {ref(3)}


async def test_calls_made_together_share_statements(index: PostgresDigests, dsns: list[str]) -> None:
    await index.find(digest(0))
    link = next(iter(index._shares.values()))._link
    calls = 0
    plain = link.call

    async def counted(work):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        return await plain(work)

    link.call = counted  # type: ignore[method-assign]
    await asyncio.gather(*(index.find(digest(n)) for n in range(500)))
    assert calls <= 2


async def test_while_the_index_is_away_pages_wait_with_a_typed_trouble_and_none_is_skipped(
    fresh_database: FreshDatabase, own_postgres: OwnPostgres
) -> None:
    fragile, dsn = own_postgres(), fresh_database()
    await set_up_servers([dsn], partitions=s.PARTITIONS)
    await set_up_servers([fragile.dsn()], partitions=s.PARTITIONS)
    servers = await PostgresServers.open(
        [dsn], digests_at=[fragile.dsn()], partition_of=s.MAP.of, linger_s=0.0
    )
    health = Health(SystemClock(), Silent())
    assert servers.digests is not None
    servers.digests.on_trouble = health.listener(Reason.DIGESTS_UNAVAILABLE)
    frontier = servers.frontier(0)
    epoch = (await frontier.take_over(TakeoverAsk("a", 0))).epoch
    await s.admit(frontier, s.page(s.site_in(0)))
    (robots,) = await s.lease(frontier, 0, epoch)
    await s.reserve(frontier, robots, epoch)
    fragile.kill()
    recorded = asyncio.ensure_future(s.record(frontier, robots, s.answer(digest(1))))
    looked_up = asyncio.ensure_future(frontier.find_body(digest(2)))
    while not health.blocked:
        await asyncio.sleep(0.01)
    assert list(health.troubles) == [Reason.DIGESTS_UNAVAILABLE]
    assert await s.rows(dsn, "SELECT state FROM url ORDER BY state") == [(0,), (1,)], "not FETCHED before"
    assert not recorded.done()
    fragile.start_again()
    assert await recorded == Applied.APPLIED
    assert await looked_up is None
    assert not health.blocked
    assert await frontier.find_body(digest(1)) == BodyRef(1, 100, 50)
    await servers.close()


async def test_a_crash_between_index_and_record_does_no_harm(dsns: list[str]) -> None:
    """The body is in the archive, its digest in the index, and FETCHED was never committed."""
    servers = await PostgresServers.open(dsns, partition_of=s.MAP.of, linger_s=0.0)
    partitions = ServersPartitions(dsns, servers.places)
    await partitions.renew("a", {}, s.TTL, leaving=False)
    await partitions.claim("a", [0], s.TTL, s.HOLD)
    frontier = servers.frontier(0)
    await s.admit(frontier, s.page(s.site_in(0)))
    (robots,) = await s.lease(frontier, 0, 1)
    await s.reserve(frontier, robots, 1)
    assert servers.digests is not None
    await servers.digests.add(digest(1), BodyRef(1, 100, 50), 1_000)
    await servers.close()  # and the lease lapses

    servers = await PostgresServers.open(dsns, partition_of=s.MAP.of, linger_s=0.0)
    frontier = servers.frontier(0)
    await frontier.take_over(TakeoverAsk("a", 0, 1))
    await s.rows(dsns[0], "UPDATE origin SET next_start = 0, wake_at = 0")
    # The next try meets the same bytes: it finds them, and refers to what is in the archive already.
    (again,) = await s.lease(frontier, 0, 1)
    assert await frontier.find_body(digest(1)) == BodyRef(1, 100, 50)
    await s.reserve(frontier, again, 1)
    assert await s.record(frontier, again, s.answer(digest(1), offset=700)) == Applied.APPLIED
    assert await frontier.find_body(digest(1)) == BodyRef(1, 100, 50)
    stored = [row for dsn in dsns for row in await s.rows(dsn, "SELECT digest FROM body")]
    assert stored == [(digest(1),)]
    await partitions.close()
    await servers.close()


async def test_with_one_server_the_index_is_part_of_the_commit(fresh_database: FreshDatabase) -> None:
    dsn = fresh_database()
    await set_up_servers([dsn], partitions=s.PARTITIONS)
    servers = await PostgresServers.open([dsn], partition_of=s.MAP.of, linger_s=0.0)
    assert servers.digests is None
    frontier = servers.frontier(0)
    epoch = (await frontier.take_over(TakeoverAsk("a", 0))).epoch
    await s.admit(frontier, s.page(s.site_in(0)))
    (robots,) = await s.lease(frontier, 0, epoch)
    await s.reserve(frontier, robots, epoch)
    await s.record(frontier, robots, s.answer(digest(3)))
    assert await frontier.find_body(digest(3)) == BodyRef(1, 100, 50)
    assert await s.rows(dsn, "SELECT digest FROM body") == [(digest(3),)]
    await servers.close()


async def test_who_gives_up_waiting_is_told_so(
    fresh_database: FreshDatabase, own_postgres: OwnPostgres
) -> None:
    fragile, dsn = own_postgres(), fresh_database(s.migrated)
    await set_up_servers([dsn, fragile.dsn()], partitions=s.PARTITIONS)
    fragile.kill()
    servers = await PostgresServers.open([dsn, fragile.dsn()], partition_of=s.MAP.of, linger_s=0.0)
    assert servers.digests is not None
    away = next(digest(n) for n in range(100) if home_of(digest(n), [0, 1]) == 1)
    waiting = [
        asyncio.ensure_future(servers.frontier(0).find_body(away)),
        asyncio.ensure_future(s.admit(servers.frontier(1), s.page(s.site_in(1)))),
    ]
    done, _ = await asyncio.wait(waiting, timeout=0.2)
    assert not done
    servers.abandon(StoreUnavailable("the operator has said stop twice"))
    for task in waiting:
        with pytest.raises(StoreUnavailable, match="said stop"):
            await task
    with pytest.raises(StoreUnavailable, match="said stop"):
        await servers.digests.add(away, ref(1), 5)
    await servers.close()
