"""The hot statements must find their rows by the index that was made for them, whatever the size of the tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amble.adapters.sql.connection import Database, Driver
from amble.adapters.sql.reports import _SQL as REPORTS
from amble.adapters.sql.sqlite import SqliteStore
from amble.adapters.sql.statements import load

ORIGIN, URL, WORK, PARCEL, NEAR = load("origin"), load("url"), load("work"), load("parcel"), load("near")

HOT = [
    (
        ORIGIN["due"],
        "SEARCH origin USING COVERING INDEX origin_wake (wake_at>? AND wake_at<?)",
    ),
    (ORIGIN["next_wake"], "USING COVERING INDEX origin_wake"),
    (ORIGIN["by_key"], "SEARCH origin USING INDEX sqlite_autoindex_origin_1 (key=?)"),
    (ORIGIN["by_id"], "SEARCH origin USING INTEGER PRIMARY KEY (rowid=?)"),
    (URL["best"], "SEARCH url USING INDEX url_due (<expr>=? AND rq>? AND rq<?)"),
    (URL["last_class"], "url_due (<expr>=? AND rq>? AND rq<?)"),
    (URL["first_of_class"], "url_due (<expr>=? AND rq=?)"),
    (URL["lapsed"], "SEARCH url USING INDEX url_flight (state=? AND expires_at<?)"),
    (URL["leased"], "SEARCH url USING INDEX url_flight (state=?)"),
    (URL["resumable"], "SEARCH u USING INDEX url_flight (state=?)"),
    (URL["adoptable"], "SEARCH u USING INDEX url_flight (state=? AND expires_at<?)"),
    (URL["offer_parsed"], "SEARCH url USING INDEX url_flight (state=? AND expires_at>?)"),
    (PARCEL["waiting"], "SCAN outbox"),
    (PARCEL["sent"], "SEARCH outbox USING INDEX outbox_destination (destination=? AND number<?)"),
    (PARCEL["drop"], "SEARCH outbox USING COVERING INDEX outbox_destination (destination=? AND number<?)"),
    (PARCEL["next"], "SCAN inbox"),
    (URL["held"], "SEARCH url USING INTEGER PRIMARY KEY (rowid=?)"),
    (URL["lease"], "SEARCH url USING INTEGER PRIMARY KEY (rowid=?)"),
    (URL["complete"], "SEARCH url USING INTEGER PRIMARY KEY (rowid=?)"),
    (URL["ended"], "SEARCH url USING COVERING INDEX url_ended (state=?)"),
    (WORK["open_manifests"], "SEARCH m USING INDEX manifest_open (opened=?)"),
    (WORK["manifest"], "SEARCH manifest USING PRIMARY KEY (url_id=? AND attempt=? AND generation=?)"),
    (WORK["find_body"], "SEARCH body USING PRIMARY KEY (digest=?)"),
    (NEAR["parts"], "SEARCH near USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
    (NEAR["last_part"], "SEARCH near USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
    (NEAR["unentered"], "SEARCH u USING INTEGER PRIMARY KEY (rowid>?)"),
    (REPORTS["urls_of_origin"], "SEARCH u USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
    (REPORTS["urls_ended"], "SEARCH u USING INDEX url_ended (state=?"),
    (REPORTS["urls_in_flight"], "SEARCH u USING INDEX url_flight (state=?)"),
    (REPORTS["decisions"], "SEARCH decision USING INDEX decision_subject (subject=?)"),
    (REPORTS["publications"], "SEARCH p USING INTEGER PRIMARY KEY (rowid>?)"),
    (REPORTS["fetches"], "SEARCH fetch USING PRIMARY KEY (url_id=?)"),
]


@pytest.fixture(params=["apsw", "sqlite3"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    driver: Driver = request.param
    store = SqliteStore(":memory:", driver=driver)
    yield store.database
    store.close()


def plan(database: Database, sql: str) -> str:
    count = max((number for number in range(1, 20) if f"?{number}" in sql), default=0)
    rows = database.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * count).fetchall()
    return "\n".join(row[3] for row in rows)


@pytest.mark.parametrize(("sql", "expected"), HOT, ids=[expected for _, expected in HOT])
def test_a_hot_statement_uses_its_index(database: Database, sql: str, expected: str) -> None:
    found = plan(database, sql)
    # Whether an index also covers the statement differs between versions of SQLite and does not matter here.
    assert expected.replace("COVERING ", "") in found.replace("COVERING ", ""), found
    assert "SCAN url" not in found
    assert "SCAN u" not in found


def test_membership_looks_each_id_up_in_the_primary_key(database: Database) -> None:
    from amble.adapters.sql.connection import _KNOWN_CARRAY, _KNOWN_JSON

    sql = _KNOWN_CARRAY if database.driver == "apsw" else _KNOWN_JSON
    if database.driver == "apsw":
        sql = _KNOWN_JSON.replace("json_each(?1)", "(SELECT 1 AS value UNION SELECT 2)")
    found = plan(database, sql)
    assert "SEARCH u USING INTEGER PRIMARY KEY (rowid=?)" in found


def test_leasing_asks_for_the_best_url_in_order_without_sorting(database: Database) -> None:
    for name in ("best", "last_class", "first_of_class"):
        assert "TEMP B-TREE" not in plan(database, URL[name])
