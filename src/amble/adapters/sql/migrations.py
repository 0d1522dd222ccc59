"""Numbered migrations, each in one transaction, each recorded with its checksum; a newer file is refused."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from amble.adapters.sql.connection import Database
from amble.domain.errors import CrawlFolderUnusable

_JOURNAL = "CREATE TABLE IF NOT EXISTS migration(version INTEGER PRIMARY KEY, checksum TEXT NOT NULL, at INTEGER NOT NULL) STRICT"
_IS_OURS = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name IN ('migration', 'url')"
_ANY_TABLE = "SELECT name FROM sqlite_schema WHERE type = 'table' LIMIT 1"
_APPLIED = "SELECT version, checksum FROM migration ORDER BY version"
_RECORD = "INSERT INTO migration(version, checksum, at) VALUES (?1, ?2, ?3)"


class Migration(NamedTuple):
    """One numbered file."""

    version: int
    sql: str

    @property
    def checksum(self) -> str:
        """sha256 of the text, hexadecimal."""
        return sha256(self.sql.encode()).hexdigest()


def available() -> list[Migration]:
    """The migrations that this code knows, in order."""
    folder = Path(__file__).with_name("migrations") / "sqlite"
    found = [
        Migration(int(entry.name.removesuffix(".sql")), entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    ]
    return sorted(found)


def migrate(database: Database, at_ms: int, known: Sequence[Migration] | None = None) -> int:
    """Bring the file up to this code; the number of migrations applied.

    Raises CrawlFolderUnusable when the file is newer than the code, was made by another program, or its record does
    not match the files: then nothing was changed.
    """
    steps = available() if known is None else list(known)
    database.execute("BEGIN IMMEDIATE")
    try:
        applied = _applied(database)
        _check(applied, steps)
        database.execute("COMMIT")
    except BaseException:
        database.rollback()
        raise
    missing = [step for step in steps if step.version not in applied]
    for step in missing:
        _apply(database, step, at_ms)
    return len(missing)


def _applied(database: Database) -> dict[int, str]:
    if database.execute(_ANY_TABLE).fetchone() and not database.execute(_IS_OURS).fetchone():
        raise CrawlFolderUnusable("frontier.db was not made by amble; move it away or use another folder")
    database.execute(_JOURNAL)
    return dict(database.execute(_APPLIED).fetchall())


def _check(applied: dict[int, str], steps: Sequence[Migration]) -> None:
    newest = steps[-1].version if steps else 0
    if applied and max(applied) > newest:
        raise CrawlFolderUnusable(
            f"frontier.db has schema {max(applied)}, this amble knows {newest}: upgrade amble to go on with this crawl"
        )
    for step in steps:
        if applied.get(step.version, step.checksum) != step.checksum:
            raise CrawlFolderUnusable(f"frontier.db was made with a different migration {step.version:04d}")


def _apply(database: Database, step: Migration, at_ms: int) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        database.script(step.sql)
        database.execute(_RECORD, (step.version, step.checksum, at_ms))
        database.execute("COMMIT")
    except BaseException:
        database.rollback()
        raise
