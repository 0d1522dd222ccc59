"""A fleet of several databases for tests, and the steps of a page over it."""

from __future__ import annotations

import asyncpg

from amble.adapters.postgres.migrations import migrate
from amble.adapters.postgres.placement import set_up_servers
from amble.domain.attempt import Edge, Lease, RobotsState, UrlKind
from amble.domain.fetched import BodyRef, Fetched, Timings
from amble.domain.frontier import (
    AdmitBatch,
    Applied,
    Candidate,
    Complete,
    LeaseAsk,
    OriginEffect,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    ReserveReply,
)
from amble.domain.partition import PartitionMap
from amble.domain.robots import RobotsOutcome
from amble.ports import Frontier
from tests.support.postgres import FreshDatabase

PARTITIONS = 4
MAP = PartitionMap(hashed=PARTITIONS)
TTL, HOLD = 60_000, 75_000
EFFECT = OriginEffect(duration_ms=100, delay_ms=2_000, rest_ms=0, backoff_level=0)


def site_in(partition: int, number: int = 0, partitions: int = PARTITIONS) -> str:
    """The `number`th origin of a site that lies in `partition`."""
    those = PartitionMap(hashed=partitions)
    found = -1
    for index in range(100_000):
        origin = f"https://s{index}.example"
        if those.of(origin) == partition:
            found += 1
            if found == number:
                return origin
    raise AssertionError("there are sites enough")


async def migrated(dsn: str) -> None:
    """A database with the tables of this version and nothing in them."""
    connection = await asyncpg.connect(dsn)
    try:
        await migrate(connection)
    finally:
        await connection.close()


async def two_servers(fresh: FreshDatabase, servers: int = 2) -> list[str]:
    """Databases that are set up as one fleet."""
    dsns = [fresh(migrated) for _ in range(servers)]
    await set_up_servers(dsns, partitions=PARTITIONS)
    return dsns


async def rows(dsn: str, sql: str, *parameters: object) -> list[tuple[object, ...]]:
    """What a database holds, by a hand of its own; also for statements that change it."""
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *parameters)]
    finally:
        await connection.close()


def page(origin: str, path: str = "/", edge: Edge = Edge.SEED) -> Candidate:
    return Candidate(origin, path, int(UrlKind.PAGE), 1, 0, 0, int(edge), 0, MAP.of(origin))


async def admit(frontier: Frontier, *candidates: Candidate, partition: int | None = None) -> bytes:
    where = candidates[0].partition if partition is None else partition
    return (await frontier.admit(AdmitBatch(list(candidates), partition=where))).verdicts


async def lease(frontier: Frontier, partition: int, epoch: int, count: int = 10) -> list[Lease]:
    reply = await frontier.lease(LeaseAsk(epoch, 1, count, TTL, partition=partition))
    return reply.leases


async def reserve(
    frontier: Frontier, held: Lease, epoch: int, origin: str = "", *, delay_ms: int = 2_000
) -> ReserveReply:
    ask = ReserveAsk(held.key, epoch, origin or held.origin, delay_ms, HOLD, -1, 1)
    return await frontier.reserve(ask)


def answer(digest: bytes = b"d" * 32, offset: int = 100) -> Fetched:
    ref = BodyRef(1, offset, 50)
    return Fetched(200, ref, ref, digest, 1_000, 400, "text/html", "192.0.2.1", Timings(total_ms=100))


async def record(frontier: Frontier, held: Lease, fetched: Fetched | None = None) -> Applied:
    return await frontier.record_fetched(RecordFetched(held.key, fetched or answer(), EFFECT, 600_000))


async def finish(frontier: Frontier, held: Lease, links: int = 0, *, text: int = 0) -> None:
    """From FETCHED to COMPLETE; a robots.txt allows all. `text`: the fingerprint of a page, whose like are withheld."""
    await frontier.record_parsed(RecordParsed(held.key, 1, BodyRef(1, 900, 40), links, "html"))
    robots = RobotsState(int(RobotsOutcome.ALLOW_ALL)) if held.kind == UrlKind.ROBOTS else None
    page = held.kind == UrlKind.PAGE
    near = page and text != 0
    await frontier.complete(
        Complete(
            held.key,
            1,
            page,
            fingerprint=text if near else 0,
            near=near,
            robots=robots,
            robots_ttl_ms=3_600_000,
        )
    )
