"""A fleet over several independent servers: set-up, roster, calls by partition, and a server that is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from amble.adapters.postgres.placement import IDS_GIVEN, servers_of, set_up_servers
from amble.adapters.postgres.servers import PostgresServers
from amble.adapters.postgres.servers_partitions import ServersPartitions
from amble.domain.attempt import UrlKind
from amble.domain.decision import Reason
from amble.domain.errors import ConfigErrors, StoreBroken, StoreUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.frontier import (
    AdoptAsk,
    Applied,
    DrainAsk,
    DropParcels,
    Exclude,
    LeaseAsk,
    Parcel,
    ParcelAsk,
    PutBack,
    RecordFetched,
    RecordParsed,
    ReserveOutcome,
    TakeoverAsk,
    Verdict,
)
from amble.domain.lifecycle import UrlState
from tests.support import servers as s
from tests.support.postgres import FreshDatabase, OwnPostgres


@pytest_asyncio.fixture
async def dsns(fresh_database: FreshDatabase) -> list[str]:
    return await s.two_servers(fresh_database)


@pytest_asyncio.fixture
async def servers(dsns: list[str]) -> AsyncIterator[PostgresServers]:
    opened = await PostgresServers.open(dsns, partition_of=s.MAP.of, linger_s=0.0)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def partitions(dsns: list[str], servers: PostgresServers) -> AsyncIterator[ServersPartitions]:
    made = ServersPartitions(dsns, servers.places)
    yield made
    await made.close()


async def own(partitions: ServersPartitions, agent: str = "a") -> dict[int, int]:
    """Everything, claimed."""
    await partitions.renew(agent, {}, s.TTL, leaving=False)
    claimed = await partitions.claim(agent, range(s.PARTITIONS), s.TTL, s.HOLD)
    return {item.partition: item.epoch for item in claimed}


# ---- set-up


def test_one_setting_names_one_server_or_several() -> None:
    assert servers_of("postgresql://a/x") == ["postgresql://a/x"]
    assert servers_of(" postgresql://a/x  postgresql://b/y ") == ["postgresql://a/x", "postgresql://b/y"]


async def test_new_partitions_are_spread_and_each_server_has_its_own_origin_ids(dsns: list[str]) -> None:
    assert await s.rows(dsns[0], "SELECT partition, server, epoch FROM placement ORDER BY 1") == [
        (0, 0, 0), (1, 1, 0), (2, 0, 0), (3, 1, 0),
    ]  # fmt: skip
    for number, dsn in enumerate(dsns):
        here = await s.rows(dsn, "SELECT partition FROM partition ORDER BY 1")
        assert here == [(number,), (number + 2,)]
    ((_, last0),) = await s.rows(dsns[0], "SELECT first, last FROM origin_block")
    ((first1, last1),) = await s.rows(dsns[1], "SELECT first, last FROM origin_block")
    assert last0 == first1 - 1  # type: ignore[operator]
    assert last1 - first1 + 1 == IDS_GIVEN  # type: ignore[operator]
    keys = [await s.rows(dsn, "SELECT value FROM meta WHERE name = 'path_key'") for dsn in dsns]
    assert keys[0] == keys[1]


async def test_a_set_up_that_is_repeated_changes_nothing(dsns: list[str]) -> None:
    tables = ("placement", "server", "partition", "origin_block", "meta")
    before = [await s.rows(dsn, f"SELECT * FROM {table} ORDER BY 1") for dsn in dsns for table in tables]
    assert await set_up_servers(dsns, partitions=s.PARTITIONS) == s.PARTITIONS
    after = [await s.rows(dsn, f"SELECT * FROM {table} ORDER BY 1") for dsn in dsns for table in tables]
    assert before == after


async def test_a_server_that_is_added_gets_no_partition_that_exists(fresh_database: FreshDatabase) -> None:
    first, second = fresh_database(), fresh_database()
    await set_up_servers([first], partitions=s.PARTITIONS)
    await set_up_servers([first, second], partitions=s.PARTITIONS)
    assert len(await s.rows(first, "SELECT 1 FROM partition")) == s.PARTITIONS
    assert await s.rows(second, "SELECT 1 FROM partition") == []
    assert await s.rows(first, "SELECT DISTINCT server FROM placement") == [(0,)]


async def test_a_set_up_that_was_stopped_anywhere_is_completed_by_the_next(
    fresh_database: FreshDatabase,
) -> None:
    first, second = fresh_database(), fresh_database()
    gone = "postgresql://nobody@127.0.0.1:1/none"
    with pytest.raises((StoreUnavailable, StoreBroken)):
        await set_up_servers([first, gone], partitions=s.PARTITIONS)
    await set_up_servers([first, second], partitions=s.PARTITIONS)
    where = [await s.rows(dsn, "SELECT partition FROM partition ORDER BY 1") for dsn in (first, second)]
    assert where == [[(0,), (2,)], [(1,), (3,)]]


async def test_a_server_with_few_ids_left_is_given_more(dsns: list[str]) -> None:
    await s.rows(dsns[1], "UPDATE origin_block SET next = last - 10")
    await set_up_servers(dsns, partitions=s.PARTITIONS)
    blocks = await s.rows(dsns[1], "SELECT first, last FROM origin_block ORDER BY 1")
    ((_, last0),) = await s.rows(dsns[0], "SELECT first, last FROM origin_block")
    assert len(blocks) == 2
    assert all(first > last0 for first, _ in blocks)  # type: ignore[operator]
    assert blocks[0][1] < blocks[1][0]  # type: ignore[operator]


async def test_sites_apart_are_placed_and_known_on_every_server(fresh_database: FreshDatabase) -> None:
    dsns = [fresh_database(), fresh_database()]
    assert await set_up_servers(dsns, partitions=2, apart=["busy.example", "big.example"]) == 4
    for number, dsn in enumerate(dsns):
        assert await s.rows(dsn, "SELECT site, partition FROM site_apart ORDER BY 2") == [
            ("busy.example", 2),
            ("big.example", 3),
        ]
        assert await s.rows(dsn, "SELECT partition FROM partition ORDER BY 1") == [(number,), (number + 2,)]


async def test_servers_in_another_order_or_of_another_fleet_are_refused(
    dsns: list[str], fresh_database: FreshDatabase
) -> None:
    with pytest.raises(StoreBroken, match="order"):
        await PostgresServers.open([dsns[1], dsns[0]])
    other = await s.two_servers(fresh_database)
    with pytest.raises(StoreBroken, match="another fleet"):
        await PostgresServers.open([dsns[0], other[1]])
    with pytest.raises(ConfigErrors):
        await set_up_servers([], partitions=1)


# ---- who owns what


async def test_one_roster_over_all_servers(partitions: ServersPartitions) -> None:
    held = await own(partitions)
    assert held == {0: 1, 1: 1, 2: 1, 3: 1}
    roster = await partitions.renew("a", held, s.TTL, leaving=False)
    assert [(line.partition, line.owner) for line in roster.partitions] == [(p, "a") for p in range(4)]
    assert [(line.agent, line.partitions) for line in roster.agents] == [("a", 4)]
    assert (roster.hashed, roster.lost, roster.away) == (4, [], {})
    assert await partitions.claim("b", [0, 1, 2, 3], s.TTL, s.HOLD) == []


async def test_what_is_lost_on_one_server_is_told(partitions: ServersPartitions, dsns: list[str]) -> None:
    held = await own(partitions)
    await s.rows(dsns[1], "UPDATE partition SET lease_until = 0 WHERE partition = 3")
    assert [c.partition for c in await partitions.claim("b", [3], s.TTL, s.HOLD)] == [3]
    assert (await partitions.renew("a", held, s.TTL, leaving=False)).lost == [3]
    await partitions.release("a", {0: 1, 1: 1, 2: 1})
    assert sorted(c.partition for c in await partitions.claim("b", range(4), s.TTL, s.HOLD)) == [0, 1, 2]


async def test_a_server_that_is_away_takes_its_partitions_out_of_service_with_the_reason(
    fresh_database: FreshDatabase, own_postgres: OwnPostgres
) -> None:
    fragile = own_postgres()
    dsns = [fresh_database(), fragile.dsn()]
    await set_up_servers(dsns, partitions=s.PARTITIONS)
    partitions = ServersPartitions(dsns)
    held = await own(partitions)
    fragile.kill()
    roster = await partitions.renew("a", held, s.TTL, leaving=False)
    assert [line.partition for line in roster.partitions] == [0, 2]
    assert sorted(roster.away) == [1, 3]
    assert all(reason.startswith(Reason.SERVER_AWAY) for reason in roster.away.values())
    assert roster.lost == []
    await partitions.claim("b", [1, 3], s.TTL, s.HOLD)
    await partitions.release("a", held)
    await partitions.leave("a")
    await partitions.close()


async def test_when_no_server_answers_a_renewal_says_so() -> None:
    partitions = ServersPartitions(["postgresql://x@127.0.0.1:1/a", "postgresql://x@127.0.0.1:1/b"])
    with pytest.raises(StoreUnavailable):
        await partitions.renew("a", {}, s.TTL, leaving=False)
    await partitions.close()


# ---- calls


async def test_pages_walk_the_line_each_on_the_server_of_its_partition(
    servers: PostgresServers, partitions: ServersPartitions, dsns: list[str]
) -> None:
    held = await own(partitions)
    for partition, epoch in held.items():
        frontier = servers.frontier(partition)
        await frontier.take_over(TakeoverAsk("a", partition, epoch))
        assert await s.admit(frontier, s.page(s.site_in(partition))) == bytes([Verdict.ADMITTED])
        (robots,) = await s.lease(frontier, partition, epoch)
        assert robots.kind == UrlKind.ROBOTS
        assert (await s.reserve(frontier, robots, epoch)).outcome == ReserveOutcome.GRANTED
        assert await s.record(frontier, robots) == Applied.APPLIED
        await s.finish(frontier, robots)
        assert await frontier.expire(10) == 0
    for number, dsn in enumerate(dsns):
        found = await s.rows(dsn, "SELECT DISTINCT partition FROM origin ORDER BY 1")
        assert found == [(number,), (number + 2,)]
        assert await s.rows(dsn, "SELECT count(*) FROM url WHERE state = 4") == [(2,)]
    ids = [row for dsn in dsns for row in await s.rows(dsn, "SELECT id FROM origin")]
    assert len(set(ids)) == 4


async def test_links_cross_servers_once_however_often_they_are_delivered(
    servers: PostgresServers, partitions: ServersPartitions
) -> None:
    held = await own(partitions)
    here, there = servers.frontier(0), servers.frontier(1)
    found = [s.page(s.site_in(1), f"/{n}") for n in range(3)] + [s.page(s.site_in(3), "/x")]
    assert set(await s.admit(here, *found, partition=0)) == {Verdict.FORWARDED}
    parcels = await here.parcels(ParcelAsk(0, held[0], 10))
    assert sorted(parcel.destination for parcel in parcels) == [1, 3]
    reach = servers.reach(1)
    assert reach is not None
    for _ in range(3):
        assert await reach.deliver(parcels) == Applied.APPLIED
    highest = max(parcel.number for parcel in parcels)
    assert await here.drop_parcels(DropParcels(0, held[0], [(1, highest), (3, highest)])) == Applied.APPLIED
    reply = await there.drain(DrainAsk(1, held[1], 100))
    assert (reply.taken, reply.admitted, reply.left) == (3, 3, 0)
    assert servers.reach(77) is None
    with pytest.raises(StoreUnavailable, match="77"):
        await here.deliver([Parcel(0, 77, 9, [], 1)])


async def test_a_parse_worker_adopts_from_every_server_and_hands_over_by_the_key(
    servers: PostgresServers, partitions: ServersPartitions
) -> None:
    held = await own(partitions)
    for partition in (0, 1):
        frontier = servers.frontier(partition)
        await s.admit(frontier, s.page(s.site_in(partition)))
        (robots,) = await s.lease(frontier, partition, held[partition])
        await s.reserve(frontier, robots, held[partition])
        fetched = RecordFetched(robots.key, s.answer(bytes([partition]) * 32), s.EFFECT, 0)
        assert await frontier.record_fetched(fetched) == Applied.APPLIED
    anywhere = servers.everywhere()
    adopted = await anywhere.adopt(AdoptAsk(int(UrlState.FETCHED), 9, 10, 60_000))
    assert sorted(work.lease.key.partition for work in adopted) == [0, 1]
    for work in adopted:
        parsed = RecordParsed(work.lease.key, 1, BodyRef(1, 5, 5), 0, "html", hand_over=True)
        assert await anywhere.record_parsed(parsed) == Applied.APPLIED
    with pytest.raises(StoreBroken):
        await anywhere.expire(1)


async def test_while_a_server_is_away_the_others_run_and_results_wait(
    fresh_database: FreshDatabase, own_postgres: OwnPostgres
) -> None:
    fragile = own_postgres()
    dsns = [fresh_database(), fragile.dsn()]
    await set_up_servers(dsns, partitions=s.PARTITIONS)
    servers = await PostgresServers.open(dsns, digests_at=[dsns[0]], partition_of=s.MAP.of, linger_s=0.0)
    told: list[tuple[int, bool]] = []
    servers.on_away = lambda number, trouble: told.append((number, trouble is not None))
    partitions = ServersPartitions(dsns, servers.places)
    held = await own(partitions)
    here, there = servers.frontier(0), servers.frontier(1)
    await s.admit(here, s.page(s.site_in(0)))
    await s.admit(there, s.page(s.site_in(1)))
    (away,) = await s.lease(there, 1, held[1])
    await s.reserve(there, away, held[1])
    fragile.kill()
    ask = LeaseAsk(held[1], 1, 10, s.TTL, partition=1)
    reply = await there.lease(ask)
    assert (reply.leases, reply.in_flight, reply.queued) == ([], 1, 1), "the totals of before"
    with pytest.raises(StoreUnavailable, match="server 1 is away"):
        await there.drain(DrainAsk(1, held[1], 1))
    assert await there.expire(5) == 0
    assert await there.adopt(AdoptAsk(2, 1, 1, 1_000, 1, held[1])) == []
    assert servers.trouble is None
    assert list(servers.away) == [1]
    result = asyncio.ensure_future(s.record(there, away))
    (robots,) = await s.lease(here, 0, held[0])
    await s.reserve(here, robots, held[0])
    assert await s.record(here, robots) == Applied.APPLIED
    assert not result.done()
    fragile.start_again()
    assert await result == Applied.APPLIED
    assert (told[0], told[-1]) == ((1, True), (1, False))
    await partitions.close()
    await servers.close()


async def test_a_server_that_is_away_at_the_start_comes_later(
    fresh_database: FreshDatabase, own_postgres: OwnPostgres
) -> None:
    fragile = own_postgres()
    dsns = [fresh_database(), fragile.dsn()]
    await set_up_servers(dsns, partitions=s.PARTITIONS)
    fragile.kill()
    servers = await PostgresServers.open(dsns, partition_of=s.MAP.of, linger_s=0.0)
    assert list(servers.away) == [1]
    admitted = asyncio.ensure_future(s.admit(servers.frontier(1), s.page(s.site_in(1))))
    fragile.start_again()
    assert await admitted == bytes([Verdict.ADMITTED])
    assert servers.away == {}
    await servers.close()


async def test_each_server_has_an_even_part_of_the_page_budget(
    servers: PostgresServers, partitions: ServersPartitions
) -> None:
    held = await own(partitions)
    for partition in (0, 1):
        frontier = servers.frontier(partition)
        for number in range(3):
            await s.admit(frontier, s.page(s.site_in(partition, number)))
        got = await frontier.lease(
            LeaseAsk(held[partition], 1, 10, s.TTL, 3, robots_obey=False, partition=partition)
        )
        pages = [one for one in got.leases if one.kind == UrlKind.PAGE]
        assert len(pages) <= (2, 1)[partition]


# ---- robots.txt hops


@pytest_asyncio.fixture
async def hop(
    servers: PostgresServers, partitions: ServersPartitions
) -> tuple[PostgresServers, dict[int, int], object]:
    """A robots.txt of partition 0 whose request was granted, about to hop to a site of partition 1."""
    held = await own(partitions)
    await s.admit(servers.frontier(0), s.page(s.site_in(0)))
    (robots,) = await s.lease(servers.frontier(0), 0, held[0])
    assert (await s.reserve(servers.frontier(0), robots, held[0])).outcome == ReserveOutcome.GRANTED
    return servers, held, robots


async def ledger(dsn: str, origin: str) -> tuple[object, ...]:
    return (await s.rows(dsn, "SELECT next_start, rest_until, partition FROM origin WHERE key = $1", origin))[
        0
    ]


async def test_a_hop_is_spaced_by_the_ledger_of_the_other_server(hop, dsns: list[str]) -> None:  # type: ignore[no-untyped-def]
    servers, held, robots = hop
    there = s.site_in(1)
    here, other = servers.frontier(0), servers.frontier(1)
    assert await s.admit(other, s.page(there)) == bytes([Verdict.ADMITTED])
    assert (await s.reserve(here, robots, held[0], there)).outcome == ReserveOutcome.GRANTED
    # As long as the guest is there, nobody else starts at that origin, another guest neither.
    assert await s.lease(other, 1, held[1]) == []
    until = (await ledger(dsns[1], there))[0]
    assert await s.record(here, robots) == Applied.APPLIED
    after = (await ledger(dsns[1], there))[0]
    assert after < until  # type: ignore[operator]
    assert await s.lease(other, 1, held[1]) == [], "two seconds between two starts"
    await s.rows(dsns[1], "UPDATE origin SET next_start = next_start - 2000, wake_at = wake_at - 2000")
    assert [one.path for one in await s.lease(other, 1, held[1])] == ["/robots.txt"]


async def test_a_hop_waits_for_spacing_slots_and_pauses_there_and_spends_nothing(  # type: ignore[no-untyped-def]
    hop, dsns: list[str]
) -> None:
    servers, held, robots = hop
    there = s.site_in(1)
    here, other = servers.frontier(0), servers.frontier(1)
    await s.admit(other, s.page(there))
    (busy,) = await s.lease(other, 1, held[1])
    assert (await s.reserve(other, busy, held[1])).outcome == ReserveOutcome.GRANTED
    before = await ledger(dsns[1], there)
    reply = await s.reserve(here, robots, held[0], there)
    assert (reply.outcome, reply.until_ms > reply.now_ms) == (ReserveOutcome.NOT_YET, True)
    await s.rows(dsns[1], "UPDATE origin SET next_start = 0")
    assert (await s.reserve(here, robots, held[0], there)).outcome == ReserveOutcome.NO_SLOT
    await s.rows(dsns[1], "UPDATE origin SET paused = true")
    assert (await s.reserve(here, robots, held[0], there)).outcome == ReserveOutcome.PAUSED
    assert (await ledger(dsns[1], there))[1:] == before[1:]


async def test_a_hop_to_an_origin_that_nobody_knows_opens_its_ledger_where_it_belongs(  # type: ignore[no-untyped-def]
    hop, dsns: list[str]
) -> None:
    servers, held, robots = hop
    there = s.site_in(3)
    assert (await s.reserve(servers.frontier(0), robots, held[0], there)).outcome == ReserveOutcome.GRANTED
    assert (await ledger(dsns[1], there))[2] == 3
    assert await s.rows(dsns[0], "SELECT 1 FROM origin WHERE key = $1", there) == []
    assert await s.admit(servers.frontier(3), s.page(there)) == bytes([Verdict.ADMITTED])


async def test_a_hop_under_a_lost_lease_or_an_old_epoch_is_refused_before_it_costs_anything(  # type: ignore[no-untyped-def]
    hop, partitions: ServersPartitions, dsns: list[str]
) -> None:
    servers, held, robots = hop
    there = s.site_in(1)
    here = servers.frontier(0)
    assert (await s.reserve(here, robots, held[0] - 1, there)).outcome == ReserveOutcome.FENCED
    assert await here.exclude(Exclude(robots.key, "x", "", 1)) == Applied.APPLIED
    assert (await s.reserve(here, robots, held[0], there)).outcome == ReserveOutcome.STALE
    assert await s.rows(dsns[1], "SELECT 1 FROM origin WHERE key = $1", there) == []


async def test_a_guest_that_never_comes_back_blocks_the_origin_for_one_exchange_only(  # type: ignore[no-untyped-def]
    hop, dsns: list[str]
) -> None:
    servers, held, robots = hop
    there = s.site_in(1)
    other = servers.frontier(1)
    await s.admit(other, s.page(there))
    reply = await s.reserve(servers.frontier(0), robots, held[0], there)
    assert reply.until_ms - reply.now_ms == s.HOLD
    assert await s.lease(other, 1, held[1]) == []
    # Time passes: the block is nothing but a next start.
    await s.rows(
        dsns[1],
        "UPDATE origin SET next_start = next_start - $1::bigint, wake_at = wake_at - $1",
        s.HOLD + 2_000,
    )
    assert len(await s.lease(other, 1, held[1])) == 1


async def test_the_lease_of_a_guest_outlives_its_hop(hop, dsns: list[str]) -> None:  # type: ignore[no-untyped-def]
    servers, held, robots = hop
    await s.rows(dsns[0], "UPDATE url SET slot_until = 1, expires_at = 1 WHERE state = 1")
    reply = await s.reserve(servers.frontier(0), robots, held[0], s.site_in(1))
    ((until, lapses),) = await s.rows(dsns[0], "SELECT slot_until, expires_at FROM url WHERE state = 1")
    assert until >= reply.now_ms + s.HOLD - 1_000  # type: ignore[operator]
    assert lapses > until  # type: ignore[operator]
    put_back = PutBack(robots.key, Reason.NOT_YET, "", 0)
    assert await servers.frontier(0).put_back(put_back) == Applied.APPLIED


async def test_a_hop_to_a_server_that_is_away_has_no_turn(
    fresh_database: FreshDatabase, own_postgres: OwnPostgres
) -> None:
    fragile = own_postgres()
    dsns = [fresh_database(), fragile.dsn()]
    await set_up_servers(dsns, partitions=s.PARTITIONS)
    servers = await PostgresServers.open(dsns, digests_at=[dsns[0]], partition_of=s.MAP.of, linger_s=0.0)
    partitions = ServersPartitions(dsns, servers.places)
    held = await own(partitions)
    await s.admit(servers.frontier(0), s.page(s.site_in(0)))
    (robots,) = await s.lease(servers.frontier(0), 0, held[0])
    await s.reserve(servers.frontier(0), robots, held[0])
    fragile.kill()
    reply = await s.reserve(servers.frontier(0), robots, held[0], s.site_in(1))
    assert reply.outcome == ReserveOutcome.NO_SLOT
    await partitions.close()
    await servers.close()


async def test_a_lease_of_a_partition_that_nobody_places_is_refused(servers: PostgresServers) -> None:
    assert (await servers.frontier(9).lease(LeaseAsk(1, 1, 1, 1, partition=9))).leases == []
    with pytest.raises(StoreUnavailable, match="partition 9"):
        await servers.frontier(9).expire(1)
