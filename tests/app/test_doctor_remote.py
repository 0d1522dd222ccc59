"""Doctor's checks of a database and a bucket, against real ones that are well, and that are not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from amble.adapters.postgres.placement import set_up_servers
from amble.app.findings import Finding, Verdict
from amble.app.probes_bucket import bucket
from amble.app.probes_database import databases
from tests.support.postgres import FreshDatabase
from tests.support.s3 import S3Server

GONE = "postgresql://nobody@127.0.0.1:1/none"


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    assert all(item.fix or item.verdict is not Verdict.PROBLEM for item in findings)
    return {item.name: item for item in findings}


async def prepared(dsn: str) -> None:
    await set_up_servers([dsn], partitions=2)


async def without_synchronous_commit(dsn: str) -> None:
    await prepared(dsn)
    connection = await asyncpg.connect(dsn)
    try:
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    finally:
        await connection.close()


def test_a_prepared_database_is_fit_but_for_what_the_server_of_the_tests_lacks(
    fresh_database: FreshDatabase,
) -> None:
    told = by_name(databases(fresh_database(prepared)))
    for name in (
        "database",
        "database: schema",
        "database: rights",
        "database: connections",
        "database: clock",
    ):
        assert told[name].verdict is Verdict.GOOD, told[name]
    assert told["database: standby"].verdict is Verdict.NOTE


def test_a_database_that_was_not_prepared_names_the_command_that_does_it(database: str) -> None:
    schema = by_name(databases(database))["database: schema"]
    assert schema.verdict is Verdict.PROBLEM
    assert "amble store init" in schema.fix


def test_commits_that_a_crash_would_lose_are_a_problem(fresh_database: FreshDatabase) -> None:
    commits = by_name(databases(fresh_database(without_synchronous_commit)))["database: commits"]
    assert commits.verdict is Verdict.PROBLEM


def test_of_several_servers_the_one_that_is_away_is_named_and_the_other_looked_at(
    fresh_database: FreshDatabase,
) -> None:
    told = by_name(databases(f"{fresh_database(prepared)} {GONE}"))
    assert told["database 0: schema"].verdict is Verdict.GOOD
    assert told["database 1"].verdict is Verdict.PROBLEM


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with S3Server.running(tmp_path) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


def test_a_bucket_that_does_what_an_archive_needs_is_good_and_left_empty(s3: S3Server) -> None:
    told = by_name(bucket(s3.url("crawl")))
    assert [item for item in told.values() if item.verdict is not Verdict.GOOD] == []
    assert len(told) == 5


def test_a_store_that_ignores_conditions_is_a_problem(s3: S3Server) -> None:
    s3.fail("overwrite", method="PUT", count=-1)
    told = by_name(bucket(s3.url("crawl")))
    assert told["bucket: conditions"].verdict is Verdict.PROBLEM
    assert told["bucket: deleting"].verdict is Verdict.GOOD


@pytest.mark.parametrize(("method", "name"), [("GET", "bucket: reading"), ("DELETE", "bucket: deleting")])
def test_what_the_credentials_may_not_do_is_told(s3: S3Server, method: str, name: str) -> None:
    s3.fail("error", method=method, count=-1, status=403, code="AccessDenied")
    assert by_name(bucket(s3.url("crawl")))[name].verdict is not Verdict.GOOD


def test_wrong_credentials_are_told(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    (only,) = bucket(s3.url("crawl"))
    assert only.verdict is Verdict.PROBLEM
    assert "credentials" in only.fix
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in only.detail
