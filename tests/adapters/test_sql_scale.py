"""What status costs where there is much: counters and a bounded number of origins, never a pass over URLs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amble.adapters.sql import reports as reports_module
from amble.adapters.sql.reports import SqliteReports
from amble.adapters.sql.sqlite import SqliteStore
from amble.adapters.sql.statements import load
from tests.support.full_frontier import fill

ORIGINS, PAGES = 300, 4
STATUS_STATEMENTS = ("tallies", "owner", "first_origin", "last_origin", "waiting", "next_wake")


@pytest.fixture(scope="module")
def frontier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scale") / "frontier.db"
    fill(path, (f"https://site{number}.example" for number in range(ORIGINS)), PAGES)
    return path


def test_every_statement_of_status_reads_counters_an_index_or_a_range_of_origins() -> None:
    store = SqliteStore(":memory:")
    try:
        for name in STATUS_STATEMENTS:
            sql = load("report")[name]
            count = max((int(number) for number in re.findall(r"\?(\d)", sql)), default=0)
            plan = " / ".join(
                row[3]
                for row in store.database.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * count).fetchall()
            )
            assert "url" not in plan, (name, plan)
            assert "SCAN origin" not in plan or name == "next_wake", (name, plan)
    finally:
        store.close()


def test_status_asks_those_statements_and_no_other(frontier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    with SqliteReports(frontier) as reports:
        own = reports._all
        monkeypatch.setattr(
            reports, "_all", lambda name, *values: (asked.append(name), own(name, *values))[1]
        )
        one = reports._one
        monkeypatch.setattr(
            reports, "_one", lambda name, *values: (asked.append(name), one(name, *values))[1]
        )
        reports.status()
    assert set(asked) <= set(STATUS_STATEMENTS)


def test_few_origins_are_counted_exactly(frontier: Path) -> None:
    with SqliteReports(frontier) as reports:
        status = reports.status()
    assert (status.urls, status.queued) == (ORIGINS * (PAGES + 1), ORIGINS * PAGES)
    assert (status.origins_ready, status.origins_waiting) == (ORIGINS, {})


def test_many_origins_are_estimated_from_a_bounded_sample(
    frontier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports_module, "ORIGINS_SEEN_MAX", 60)
    looked_at = 0
    with SqliteReports(frontier) as reports:
        own = reports._all

        def counting(name: str, *values: object) -> list[object]:
            nonlocal looked_at
            rows = own(name, *values)
            if name == "waiting":
                looked_at += sum(count for _, count in rows)
            return rows

        monkeypatch.setattr(reports, "_all", counting)
        status = reports.status()
    assert looked_at == 60
    assert status.origins_ready == ORIGINS
