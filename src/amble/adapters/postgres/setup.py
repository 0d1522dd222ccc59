"""Prepare a database: schema, partitions, the key of the path hash, the origin ids that it may give out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import asyncpg

from amble.adapters.postgres.connection import connect
from amble.adapters.postgres.migrations import migrate
from amble.adapters.sql.identity import KEY_BYTES
from amble.domain.errors import StoreBroken, StoreUnfit

# A URL id has room for that many origins.
ORIGIN_IDS: Final = 1 << 27
HASHED = "hashed"
PATH_KEY = "path_key"


async def init(
    dsn: str,
    *,
    partitions: int,
    here: Iterable[int] | None = None,
    origin_ids: tuple[int, int] = (1, ORIGIN_IDS - 1),
    path_key: bytes | None = None,
) -> None:
    """Make the database ready, or find that it is; safe to run again and from several places at once.

    `partitions`: how many share the sites of the whole fleet. `here`: those that live in this database (all).
    `origin_ids`: first and last id that this database gives out, disjoint from those of other databases of the fleet;
    `path_key`: the one key of all of them. Raises StoreBroken where the database says otherwise, StoreUnavailable.
    """
    if partitions < 1:
        raise StoreBroken("a frontier has at least one partition")
    connection = await connect(dsn)
    try:
        async with connection.transaction():
            await migrate(connection)
            await _agree(
                connection,
                HASHED,
                str(partitions).encode(),
                "another number of partitions, which never changes; `amble partitions` lists them",
            )
            key = path_key or await connection.fetchval("SELECT value FROM meta WHERE name = $1", PATH_KEY)
            await _agree(
                connection,
                PATH_KEY,
                key or os.urandom(KEY_BYTES),
                "another path key: it belongs to another crawl",
            )
            await _place(connection, range(partitions) if here is None else here, origin_ids)
    finally:
        await connection.close()


async def partitions_of(dsn: str) -> int | None:
    """How many partitions share the sites of the fleet, None for a database that was not prepared yet.

    Raises StoreUnavailable, StoreBroken.
    """
    connection = await connect(dsn)
    try:
        if await connection.fetchval("SELECT to_regclass('meta') IS NULL"):
            return None
        told = await connection.fetchval("SELECT value FROM meta WHERE name = $1", HASHED)
        return None if told is None else int(told)
    finally:
        await connection.close()


async def _agree(connection: asyncpg.Connection[Any], name: str, value: bytes, what: str) -> None:
    """Write a value that never changes, or find the same one."""
    await connection.execute(
        "INSERT INTO meta(name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING", name, value
    )
    if await connection.fetchval("SELECT value FROM meta WHERE name = $1", name) != value:
        raise StoreUnfit(f"the database was prepared with {what}")


async def _place(
    connection: asyncpg.Connection[Any], here: Iterable[int], origin_ids: tuple[int, int]
) -> None:
    """Partitions and origin ids are given at the first time; later they move by other means."""
    if await connection.fetchval("SELECT EXISTS (SELECT 1 FROM origin_block)"):
        return
    await connection.execute(
        "INSERT INTO partition(partition) SELECT * FROM unnest($1::integer[])", sorted(here)
    )
    first, last = origin_ids
    await connection.execute("INSERT INTO origin_block(first, last, next) VALUES ($1, $2, $1)", first, last)
