"""`amble verify` over several servers: what each says of the others is held against them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
import pytest_asyncio

from amble.adapters.postgres.relocation import Relocation
from amble.adapters.postgres.servers import PostgresServers
from amble.adapters.postgres.servers_check import ServersCheck
from amble.adapters.postgres.servers_partitions import ServersPartitions
from amble.domain.attempt import Edge
from amble.domain.errors import StoreUnavailable
from tests.support import servers as s
from tests.support.postgres import FreshDatabase

T = TypeVar("T")
GONE = "postgresql://nobody@127.0.0.1:1/none"
TEXT = 0x0123_4567_89AB_CDEF
LINK = "/found/here"


@pytest_asyncio.fixture
async def dsns(fresh_database: FreshDatabase) -> AsyncIterator[list[str]]:
    """Of partitions 0 and 1, on two servers, a page each: the second is nearly the first. A link is on its way."""
    dsns = await s.two_servers(fresh_database)
    servers = await PostgresServers.open(dsns, partition_of=s.MAP.of, linger_s=0.0)
    partitions = ServersPartitions(dsns, servers.places)
    await partitions.renew("a", {}, s.TTL, leaving=False)
    await partitions.claim("a", range(s.PARTITIONS), s.TTL, s.HOLD)
    for partition, text in ((0, TEXT), (1, TEXT ^ 0b101)):
        frontier = servers.frontier(partition)
        await s.admit(frontier, s.page(s.site_in(partition)))
        for _ in range(2):
            (held,) = await s.lease(frontier, partition, 1)
            await s.reserve(frontier, held, 1)
            await s.record(frontier, held)
            await s.finish(frontier, held, text=text)
            await s.rows(dsns[partition], "UPDATE origin SET next_start = 0, wake_at = 0")
    link = s.page(s.site_in(1), LINK, Edge.ANCHOR)
    await s.admit(servers.frontier(0), link, partition=0)
    await partitions.release("a", dict.fromkeys(range(s.PARTITIONS), 1))
    await partitions.close()
    await servers.close()
    yield dsns


async def ask(dsns: list[str], question: Callable[[ServersCheck], T], index_at: tuple[str, ...] = ()) -> T:
    def within() -> T:
        with ServersCheck(dsns, index_at) as check:
            return question(check)

    return await asyncio.to_thread(within)


async def problems(dsns: list[str], index_at: tuple[str, ...] = ()) -> list[str]:
    return await ask(dsns, lambda check: list(check.problems()), index_at)


async def test_a_sound_fleet_has_no_problem(dsns: list[str]) -> None:
    assert await s.rows(dsns[1], "SELECT reason FROM url WHERE reason IS NOT NULL") >= [("near_duplicate",)]
    assert await problems(dsns) == []


DAMAGE = {
    "partition gone": (1, "DELETE FROM partition WHERE partition = 1", "partition 1 is at server 1 by the map, and lives on no server"),
    "partition twice": (
        1,
        "INSERT INTO partition SELECT (jsonb_populate_record(NULL::partition, to_jsonb(p) || jsonb_build_object('partition', 0))).*"
        " FROM partition AS p WHERE p.partition = 1",
        "partition 0 is at server 0 by the map, and lives on server 0 and server 1",
    ),
    "map of another": (0, "UPDATE placement SET server = 0 WHERE partition = 1", "partition 1 is at server 0 by the map"),
    "parcels of nobody": (
        1,
        "INSERT INTO taken VALUES (0, 1, 1000) ON CONFLICT (source, destination) DO UPDATE SET number = 1000",
        "partition 1 has taken parcel 1000 of partition 0",
    ),
    "parcel for nobody": (
        0,
        "UPDATE outbox SET destination = 77",
        "is for partition 77, which nobody has (server 0)",
    ),
    "not in the index": (0, "DELETE FROM near", "is published and not in the index of near-duplicates at server 0"),
    "not in the other index": (1, "DELETE FROM near", "is published and not in the index of near-duplicates at server 1"),
    "no twin": (
        0,
        "DELETE FROM publication",
        "is withheld as a near-duplicate, but no published document is near it",
    ),
    "counter": (1, "UPDATE origin SET urls = urls + 7", "counts the wrong number of URLs"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_between_servers_is_told(dsns: list[str], damage: str) -> None:
    server, statement, complaint = DAMAGE[damage]
    await s.rows(dsns[server], statement)
    told = await problems(dsns)
    assert any(complaint in problem for problem in told), told


async def test_a_link_is_known_before_it_is_sent_and_after_it_has_come(dsns: list[str]) -> None:
    url = s.site_in(1) + LINK
    assert await ask(dsns, lambda check: check.is_known(url))
    assert not await ask(dsns, lambda check: check.is_known(url + "/not"))
    await s.rows(dsns[0], "DELETE FROM outbox")
    assert not await ask(dsns, lambda check: check.is_known(url)), "a link that is lost is missed"


async def test_captures_of_all_servers_come_in_one_order_and_in_pieces(dsns: list[str]) -> None:
    whole = await ask(dsns, lambda check: check.captures(after=(-1, -1), limit=100))
    keys = [(capture.url_id, capture.attempt) for capture in whole]
    assert len(keys) == 4
    assert keys == sorted(keys)

    def one_by_one(check: ServersCheck) -> list[tuple[int, int]]:
        found, after = [], (-1, -1)
        while piece := check.captures(after=after, limit=1):
            after = (piece[0].url_id, piece[0].attempt)
            found.append(after)
        return found

    assert await ask(dsns, one_by_one) == keys


async def test_a_server_that_is_away_is_told_and_the_other_is_checked(dsns: list[str]) -> None:
    await s.rows(dsns[0], "UPDATE origin SET urls = urls + 7")
    told = await problems([dsns[0], GONE])
    assert told[0].startswith("server 1 is away, and what lives there was not checked")
    assert any("counts the wrong number of URLs" in problem for problem in told)
    assert not any("lives on no server" in problem for problem in told)
    assert await ask([dsns[0], GONE], lambda check: check.is_known(s.site_in(1) + "/never/seen"))


async def test_no_scope_can_be_had_while_the_first_server_is_away(dsns: list[str]) -> None:
    with pytest.raises(StoreUnavailable, match="server 0 is away"):
        await ask([GONE, dsns[1]], lambda check: check.seeds())


async def test_a_partition_that_is_being_moved_may_be_anywhere(dsns: list[str]) -> None:
    await s.rows(dsns[0], "INSERT INTO relocation(partition, source, target) VALUES (1, 1, 0)")
    await s.rows(dsns[1], "DELETE FROM partition WHERE partition = 1")
    told = await problems(dsns)
    assert not any("by the map" in problem for problem in told), told


async def test_a_partition_that_has_moved_is_sound_where_it_is(dsns: list[str]) -> None:
    await s.rows(dsns[0], "DELETE FROM outbox")
    move = Relocation(dsns=dsns, partition=1, target=0, hold_ms=0)
    await move.run()
    assert await problems(dsns) == []


async def test_the_index_may_lie_on_servers_of_its_own(dsns: list[str]) -> None:
    assert await problems(dsns, (dsns[1],)) != [], "half of the index is not enough"
    told = await problems(dsns, (GONE,))
    assert [problem for problem in told if problem.startswith("a server of the digest index is away")]
