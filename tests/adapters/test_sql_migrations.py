"""Migrations: numbered, once, in one transaction each, refused when the file is newer or not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from amble.adapters.sql.connection import Database, Driver, open_writer
from amble.adapters.sql.migrations import Migration, available, migrate
from amble.adapters.sql.sqlite import SqliteStore
from amble.domain.errors import CrawlFolderUnusable


@pytest.fixture(params=["apsw", "sqlite3"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    driver: Driver = request.param
    return open_writer(tmp_path / "frontier.db", driver=driver)


def tables(database: Database) -> set[str]:
    return {
        name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    }


def test_the_files_are_numbered_from_one_without_gaps() -> None:
    assert [step.version for step in available()] == list(range(1, len(available()) + 1))


def test_a_new_file_gets_every_migration_and_its_checksum(database: Database) -> None:
    assert migrate(database, 7) == len(available())
    recorded = database.execute("SELECT version, checksum, at FROM migration").fetchall()
    assert [tuple(row) for row in recorded] == [(step.version, step.checksum, 7) for step in available()]
    assert {"url", "origin", "fetch", "manifest", "body", "publication", "sink", "policy", "audit"} <= tables(
        database
    )
    assert {"meta", "partition", "decision", "tally"} <= tables(database)


def test_a_second_run_does_nothing(database: Database) -> None:
    migrate(database, 7)
    assert migrate(database, 8) == 0


def test_a_later_migration_is_added_to_an_older_file(database: Database) -> None:
    migrate(database, 7)
    more = Migration(len(available()) + 1, "CREATE TABLE extra(x INTEGER) STRICT;")
    assert migrate(database, 8, [*available(), more]) == 1
    assert "extra" in tables(database)


def test_a_migration_that_fails_leaves_no_trace(database: Database) -> None:
    migrate(database, 7)
    bad = Migration(
        len(available()) + 1, "CREATE TABLE extra(x INTEGER) STRICT;\nINSERT INTO nowhere VALUES (1);"
    )
    with pytest.raises(Exception, match="nowhere"):
        migrate(database, 8, [*available(), bad])
    assert "extra" not in tables(database)
    assert not database.in_transaction
    assert migrate(database, 9) == 0


def test_a_file_newer_than_the_code_is_refused(database: Database) -> None:
    more = Migration(len(available()) + 1, "CREATE TABLE extra(x INTEGER) STRICT;")
    migrate(database, 7, [*available(), more])
    with pytest.raises(CrawlFolderUnusable, match="upgrade amble"):
        migrate(database, 8)


def test_a_file_made_with_other_migrations_is_refused(database: Database) -> None:
    migrate(database, 7)
    database.execute("UPDATE migration SET checksum = 'other'")
    with pytest.raises(CrawlFolderUnusable, match="different migration 0001"):
        migrate(database, 8)


def test_a_database_of_another_program_is_refused_and_left_alone(database: Database) -> None:
    database.execute("CREATE TABLE somebody(x)")
    with pytest.raises(CrawlFolderUnusable, match="not made by amble"):
        migrate(database, 8)
    assert tables(database) == {"somebody"}


def test_a_store_says_so_when_it_is_opened_on_a_newer_file(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "frontier.db").close()
    database = open_writer(tmp_path / "frontier.db")
    database.execute("INSERT INTO migration VALUES (99, 'x', 0)")
    database.close()
    with pytest.raises(CrawlFolderUnusable, match="schema 99"):
        SqliteStore(tmp_path / "frontier.db")
