"""Which partition lives on which server: the map of a fleet, how it is made, and how its servers are told apart.

Server 0 holds the map. A partition is on the server whose own table says so; the map decides in the one moment of a move
when both tables are silent, and tells where partitions are whose server does not answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from amble.adapters.postgres.connection import connect, describe, place_of, trouble_of
from amble.adapters.postgres.fingerprints_build import build_index
from amble.adapters.postgres.setup import HASHED, ORIGIN_IDS, PATH_KEY, init
from amble.domain.errors import ConfigErrors, StoreBroken, StoreUnavailable

NUMBER: Final = "server"
SERVERS_MAX: Final = 16
# Origin ids that a server beside the first is given at a time; it gets more when it has few left.
IDS_GIVEN: Final = 1 << 21
IDS_LOW: Final = IDS_GIVEN // 4


def servers_of(url: str) -> list[str]:
    """The addresses in `store.url`: one, or several with blanks between them."""
    return url.split()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a partition lives, and how often it has moved."""

    partition: int
    server: int
    epoch: int


async def read_map(connection: Any) -> list[Placement]:
    """The whole map, from server 0."""
    rows = await connection.fetch("SELECT partition, server, epoch FROM placement ORDER BY partition")
    return [Placement(*row) for row in rows]


async def set_up_servers(
    dsns: Sequence[str], *, partitions: int, apart: Sequence[str] = (), index_at: Sequence[str] = ()
) -> int:
    """Prepare the databases of a fleet, or find that they are; how many partitions it has in all.

    New partitions are spread evenly; those that exist stay where they are, so that a server which is added later has none
    until some are moved there. `apart`: sites that get a partition of their own. `index_at`: prepared databases
    that hold the index of near-duplicates (these), where what was published before it came is entered. Safe to run again at any time, also to
    give more origin ids to servers that have few left. Raises ConfigErrors, StoreBroken, StoreUnavailable.
    """
    if not 1 <= len(dsns) <= SERVERS_MAX:
        raise ConfigErrors([f"store.url: from 1 to {SERVERS_MAX} servers, not {len(dsns)}"])
    try:
        await init(dsns[0], partitions=partitions, here=range(0, partitions, len(dsns)))
        plan = await _plan(dsns, partitions, list(dict.fromkeys(apart)))
        for number, dsn in enumerate(dsns):
            await _prepare(number, dsn, plan)
        for dsn in dsns[1:]:
            await _top_up(dsns[0], dsn)
        await build_index(dsns, index_at or dsns)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        if trouble_of(error).value in ("again", "later", "lost"):
            raise StoreUnavailable(describe(error)) from error
        raise StoreBroken(describe(error)) from error
    return len(plan.places)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What server 0 has decided. `blocks`: origin ids of each other server."""

    hashed: int
    path_key: bytes
    places: list[Placement]
    apart: dict[str, int]
    blocks: dict[int, tuple[int, int]]


async def _plan(dsns: Sequence[str], hashed: int, sites: Sequence[str]) -> _Plan:
    connection = await connect(dsns[0], name="amble store init")
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE placement IN EXCLUSIVE MODE")
            await _name(connection, 0)
            await _set_apart(connection, hashed, sites)
            await _spread(connection, hashed, len(dsns))
            for number, dsn in enumerate(dsns):
                await _give_ids(connection, number, dsn)
            return await _planned(connection, hashed)
    finally:
        await connection.close()


async def _planned(connection: Any, hashed: int) -> _Plan:
    rows = await connection.fetch("SELECT number, first, last FROM server")
    return _Plan(
        hashed,
        await connection.fetchval("SELECT value FROM meta WHERE name = $1", PATH_KEY),
        await read_map(connection),
        {row[0]: row[1] for row in await connection.fetch("SELECT site, partition FROM site_apart")},
        {number: (first, last) for number, first, last in rows},
    )


async def _name(connection: Any, number: int) -> None:
    """A database remembers its number, so that a list in another order is noticed."""
    await connection.execute(
        "INSERT INTO meta(name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING", NUMBER, str(number).encode()
    )
    known = int(await connection.fetchval("SELECT value FROM meta WHERE name = $1", NUMBER))
    if known != number:
        raise StoreBroken(
            f"store.url names server {known} of the fleet in place {number}: keep the order of its servers"
        )


async def _set_apart(connection: Any, hashed: int, sites: Sequence[str]) -> None:
    known = {row[0]: row[1] for row in await connection.fetch("SELECT site, partition FROM site_apart")}
    new = [site for site in sites if site not in known]
    # What is queued in a shared partition would stay there, and the site would have two owners.
    if new and await connection.fetchval("SELECT EXISTS (SELECT 1 FROM origin)"):
        raise ConfigErrors(
            [
                f"--apart {site}: the crawl has begun; a site is set apart before its first seed"
                for site in new
            ]
        )
    for number, site in enumerate(new, max([hashed - 1, *known.values()]) + 1):
        await connection.execute("INSERT INTO site_apart(site, partition) VALUES ($1, $2)", site, number)


async def _spread(connection: Any, hashed: int, servers: int) -> None:
    here = {row[0] for row in await connection.fetch("SELECT partition FROM partition")}
    apart = {row[0] for row in await connection.fetch("SELECT partition FROM site_apart")}
    for partition in sorted({*range(hashed), *apart}):
        await connection.execute(
            "INSERT INTO placement(partition, server) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            partition,
            0 if partition in here else partition % servers,
        )


async def _give_ids(connection: Any, number: int, dsn: str) -> None:
    """Ids are cut from the end of what server 0 has: no two servers ever give out the same one."""
    if await connection.fetchval("SELECT EXISTS (SELECT 1 FROM server WHERE number = $1)", number):
        return
    first, last = (1, ORIGIN_IDS - 1) if number == 0 else await _cut(connection)
    await connection.execute(
        "INSERT INTO server(number, place, first, last) VALUES ($1, $2, $3, $4)",
        number,
        place_of(dsn),
        first,
        last,
    )


async def _cut(connection: Any) -> tuple[int, int]:
    """Take a block of ids from server 0."""
    row = await connection.fetchrow(
        "UPDATE origin_block SET last = last - $1 WHERE first = (SELECT first FROM origin_block"
        " WHERE next + $1 <= last + 1 ORDER BY last DESC LIMIT 1 FOR UPDATE) RETURNING last + 1, last + $1",
        IDS_GIVEN,
    )
    if row is None:
        raise StoreBroken("server 0 has no origin ids left to give to another server")
    return row[0], row[1]


async def _top_up(first_dsn: str, dsn: str) -> None:
    """Another block for a server that has few ids left. A block that is lost between the two is not missed."""
    connection = await connect(dsn, name="amble store init")
    try:
        left = await connection.fetchval("SELECT coalesce(sum(last - next + 1), 0)::bigint FROM origin_block")
        if left >= IDS_LOW:
            return
        giver = await connect(first_dsn, name="amble store init")
        try:
            first, last = await _cut(giver)
        finally:
            await giver.close()
        await connection.execute(
            "INSERT INTO origin_block(first, last, next) VALUES ($1, $2, $1)", first, last
        )
    finally:
        await connection.close()


async def _prepare(number: int, dsn: str, plan: _Plan) -> None:
    here = [place.partition for place in plan.places if place.server == number]
    if number:
        await init(
            dsn,
            partitions=plan.hashed,
            here=here,
            origin_ids=plan.blocks[number],
            path_key=plan.path_key,
        )
    connection = await connect(dsn, name="amble store init")
    try:
        async with connection.transaction():
            await _name(connection, number)
            await connection.executemany(
                "INSERT INTO site_apart(site, partition) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                list(plan.apart.items()),
            )
            await _settle_new(connection, [place for place in plan.places if place.server == number])
    finally:
        await connection.close()


async def _settle_new(connection: Any, places: Iterable[Placement]) -> None:
    """Rows of partitions that were placed here and have never moved. One that has left is not made again."""
    await connection.execute(
        "INSERT INTO partition(partition) SELECT p FROM unnest($1::integer[]) AS p"
        " WHERE NOT EXISTS (SELECT 1 FROM departed AS d WHERE d.partition = p) ON CONFLICT DO NOTHING",
        [place.partition for place in places if place.epoch == 0],
    )


async def check_server(connection: Any, number: int, path_key: bytes | None) -> bytes:
    """The path key of the database. Raises StoreBroken when it is not server `number` of the same fleet."""
    rows = await connection.fetch(
        "SELECT name, value FROM meta WHERE name = ANY($1)", [NUMBER, PATH_KEY, HASHED]
    )
    facts = {row[0]: row[1] for row in rows}
    if int(facts.get(NUMBER, b"0")) != number:
        raise StoreBroken(
            f"store.url names server {int(facts[NUMBER])} of the fleet in place {number}: keep the order of its servers"
        )
    key: bytes = facts[PATH_KEY]
    if path_key is not None and key != path_key:
        raise StoreBroken(f"server {number} of store.url belongs to another fleet")
    return key
