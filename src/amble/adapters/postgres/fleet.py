"""What a fleet has in common beside its frontier: sites with a partition of their own, and the seeds that make its scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
from msgspec import json

from amble.adapters.postgres.connection import connect, describe, trouble_of
from amble.adapters.postgres.setup import init
from amble.domain.errors import ConfigErrors, StoreBroken, StoreUnavailable

SEEDS = "seeds"
decode_seeds = json.Decoder(list[str]).decode


async def set_up(dsn: str, *, partitions: int, apart: Sequence[str] = ()) -> int:
    """Prepare the database for a fleet, or find that it is; how many partitions it has in all.

    `apart`: sites (registrable domains) that get a partition of their own, beyond the `partitions` that all others share.
    Raises ConfigErrors where a site can no longer be set apart, StoreBroken, StoreUnavailable.
    """
    sites = list(dict.fromkeys(apart))
    await init(dsn, partitions=partitions, here=range(partitions))
    if not sites:
        return partitions
    connection = await connect(dsn, name="amble store init")
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE site_apart IN EXCLUSIVE MODE")
            return await _set_apart(connection, partitions, sites)
    except asyncpg.PostgresError as error:
        raise _translated(error) from error
    finally:
        await connection.close()


async def _set_apart(connection: asyncpg.Connection[Any], hashed: int, sites: Sequence[str]) -> int:
    known = {row["site"]: row["partition"] for row in await connection.fetch("SELECT * FROM site_apart")}
    new = [site for site in sites if site not in known]
    # What is queued in a shared partition would stay there, and the site would have two owners.
    if new and await connection.fetchval("SELECT EXISTS (SELECT 1 FROM origin)"):
        raise ConfigErrors(
            [
                f"--apart {site}: the crawl has begun; a site is set apart before its first seed"
                for site in new
            ]
        )
    first: int = max([hashed - 1, *known.values()]) + 1
    for number, site in enumerate(new, first):
        await connection.execute("INSERT INTO partition(partition) VALUES ($1)", number)
        await connection.execute("INSERT INTO site_apart(site, partition) VALUES ($1, $2)", site, number)
    return first + len(new)


async def add_seeds(dsn: str, seeds: Sequence[str]) -> None:
    """Remember canonical URLs as seeds, which make the scope of every agent. Known ones change nothing."""
    connection = await connect(dsn, name="amble seed")
    try:
        async with connection.transaction():
            await connection.execute(
                "INSERT INTO meta(name, value) VALUES ($1, '[]') ON CONFLICT (name) DO NOTHING", SEEDS
            )
            known = decode_seeds(
                await connection.fetchval("SELECT value FROM meta WHERE name = $1 FOR UPDATE", SEEDS)
            )
            merged = list(dict.fromkeys([*known, *seeds]))
            if len(merged) > len(known):
                await connection.execute(
                    "UPDATE meta SET value = $2 WHERE name = $1", SEEDS, json.encode(merged)
                )
    except asyncpg.PostgresError as error:
        raise _translated(error) from error
    finally:
        await connection.close()


def _translated(error: Exception) -> StoreBroken | StoreUnavailable:
    if isinstance(error, asyncpg.UndefinedTableError):
        return StoreBroken("the database has no frontier yet: prepare it with `amble store init`")
    if trouble_of(error).value in ("again", "later", "lost"):
        return StoreUnavailable(describe(error))
    return StoreBroken(describe(error))
