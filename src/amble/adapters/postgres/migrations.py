"""Numbered migrations of a database, each recorded with its checksum; a newer database is refused.

One process migrates at a time; the others wait, and then find nothing left to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg

from amble.adapters.sql.migrations import Migration
from amble.domain.errors import StoreUnfit

# Names of advisory locks, "ambl" and a number: `MAP` is held shared by all who look which partitions live here, and
# alone by who moves one away; `BUDGET` likewise by those who lease under a page budget.
_NAMES: Final = 0x616D_626C << 8
MIGRATION_LOCK: Final = _NAMES | 1
MAP_LOCK: Final = _NAMES | 2
BUDGET_LOCK: Final = _NAMES | 3

_JOURNAL = "CREATE TABLE IF NOT EXISTS migration(version integer PRIMARY KEY, checksum text NOT NULL, at timestamptz NOT NULL DEFAULT now())"
_OURS = "SELECT to_regclass('migration') IS NOT NULL"
_FOREIGN = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() LIMIT 1"


def available() -> list[Migration]:
    """The migrations that this code knows, in order."""
    folder = Path(__file__).with_name("migrations")
    return sorted(
        Migration(int(entry.name.removesuffix(".sql")), entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    )


async def migrate(connection: asyncpg.Connection[Any], known: Sequence[Migration] | None = None) -> int:
    """Bring the database up to this code; the number of migrations applied, all of them or none.

    Raises StoreBroken when it is newer than the code, belongs to another program, or was made by other files: then
    nothing was changed.
    """
    steps = available() if known is None else list(known)
    async with connection.transaction():
        await connection.execute(
            "SET LOCAL statement_timeout = 0"
        )  # another may be at it, and tables may be large
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        if not await connection.fetchval(_OURS):
            foreign = await connection.fetchval(_FOREIGN)
            if foreign is not None:
                raise StoreUnfit(
                    f"the database holds tables of another program ({foreign}); use an empty one"
                )
            await connection.execute(_JOURNAL)
        applied = await _applied(connection)
        _check(applied, steps)
        missing = [step for step in steps if step.version not in applied]
        for step in missing:
            await connection.execute(step.sql)
            await connection.execute(
                "INSERT INTO migration(version, checksum) VALUES ($1, $2)", step.version, step.checksum
            )
    return len(missing)


async def check(connection: asyncpg.Connection[Any]) -> None:
    """Raises StoreBroken unless the database is exactly as this code expects it."""
    if not await connection.fetchval(_OURS):
        raise StoreUnfit("the database has no frontier yet: prepare it with `amble store init`")
    applied, steps = await _applied(connection), available()
    _check(applied, steps)
    if len(applied) < len(steps):
        raise StoreUnfit(
            f"the database has schema {max(applied, default=0)}, this amble needs {steps[-1].version}: "
            "bring it up with `amble store init`"
        )


async def _applied(connection: asyncpg.Connection[Any]) -> dict[int, str]:
    rows = await connection.fetch("SELECT version, checksum FROM migration ORDER BY version")
    return {row["version"]: row["checksum"] for row in rows}


def _check(applied: dict[int, str], steps: Sequence[Migration]) -> None:
    newest = steps[-1].version if steps else 0
    if applied and max(applied) > newest:
        raise StoreUnfit(
            f"the database has schema {max(applied)}, this amble knows {newest}: upgrade amble to go on with this crawl"
        )
    for step in steps:
        if applied.get(step.version, step.checksum) != step.checksum:
            raise StoreUnfit(f"the database was made with a different migration {step.version:04d}")
