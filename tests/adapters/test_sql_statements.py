"""The SQL loader: statements by name, guards from the table of states."""

from __future__ import annotations

import pytest

from amble.adapters.sql.statements import _expand, load
from amble.domain.lifecycle import UrlEvent, sources, target

TABLES = ["origin", "url", "work", "near", "parcel", "report"]


@pytest.mark.parametrize("table", TABLES)
def test_every_statement_is_one_line_without_an_open_guard(table: str) -> None:
    for name, sql in load(table).items():
        assert sql, name
        assert "\n" not in sql
        assert ";" not in sql
        assert ":sources" not in sql
        assert ":target" not in sql


@pytest.mark.parametrize("event", list(UrlEvent))
def test_a_guard_is_the_integers_of_the_table(event: UrlEvent) -> None:
    expanded = _expand("UPDATE url SET state = :target\n WHERE state IN (:sources); -- why", event.value)
    allowed = ", ".join(str(state) for state in sources(event))
    assert expanded == f"UPDATE url SET state = {target(event)} WHERE state IN ({allowed})"


def test_every_event_that_moves_a_url_has_a_statement() -> None:
    statements = load("url")
    renamed = {UrlEvent.GIVE_UP: "give_up", UrlEvent.LEASE: "lease"}
    for event in UrlEvent:
        sql = statements[
            renamed.get(event, "record_body" if event is UrlEvent.RECORD_FETCHED else event.value)
        ]
        assert f"state = {target(event)}" in sql
        assert f"state IN ({', '.join(map(str, sources(event)))})" in sql


def test_a_guard_without_an_event_is_refused() -> None:
    with pytest.raises(ValueError, match="without an event"):
        _expand("UPDATE url SET state = :target", None)


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(ValueError, match="vanish"):
        _expand("UPDATE url SET state = :target", "vanish")
