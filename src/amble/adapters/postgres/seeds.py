"""The seeds of a fleet, which make the scope of all its agents. Where there are several servers, the first one has them."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
from msgspec import json

from amble.adapters.postgres.connection import connect, describe, trouble_of
from amble.domain.errors import StoreBroken, StoreUnavailable, StoreUnfit

SEEDS = "seeds"
decode_seeds = json.Decoder(list[str]).decode


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
        return StoreUnfit("the database has no frontier yet: prepare it with `amble store init`")
    if trouble_of(error).value in ("again", "later", "lost"):
        return StoreUnavailable(describe(error))
    return StoreBroken(describe(error))
