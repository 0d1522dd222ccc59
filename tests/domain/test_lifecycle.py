"""The life of a URL: the whole table, every state and event, and what must follow from it."""

from __future__ import annotations

import itertools

import pytest
from tools import lifecycle_doc

from amble.domain.lifecycle import (
    FINAL,
    IN_FLIGHT,
    TRANSITIONS,
    UrlEvent,
    UrlState,
    next_state,
    sources,
    target,
)

S, E = UrlState, UrlEvent

# Written out by hand a second time: a change of the table must be meant.
ALLOWED = {
    (S.PENDING, E.LEASE): S.LEASED,
    (S.COMPLETE, E.LEASE): S.LEASED,
    (S.FAILED, E.LEASE): S.LEASED,
    (S.EXCLUDED, E.LEASE): S.LEASED,
    (S.LEASED, E.PUT_BACK): S.PENDING,
    (S.LEASED, E.EXPIRE): S.PENDING,
    (S.LEASED, E.RETRY): S.PENDING,
    (S.LEASED, E.RECORD_FETCHED): S.FETCHED,
    (S.FETCHED, E.RECORD_PARSED): S.PARSED,
    (S.PARSED, E.COMPLETE): S.COMPLETE,
    (S.LEASED, E.GIVE_UP): S.FAILED,
    (S.FETCHED, E.GIVE_UP): S.FAILED,
    (S.PARSED, E.GIVE_UP): S.FAILED,
    (S.LEASED, E.EXCLUDE): S.EXCLUDED,
    (S.COMPLETE, E.REQUEUE): S.PENDING,
    (S.FAILED, E.REQUEUE): S.PENDING,
    (S.EXCLUDED, E.REQUEUE): S.PENDING,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, E)))
def test_each_event_in_each_state_does_what_the_table_says_or_is_refused(state: S, event: E) -> None:
    assert next_state(state, event) is ALLOWED.get((state, event))


@pytest.mark.parametrize("event", list(E))
def test_guard_and_target_of_a_statement_come_from_the_table(event: E) -> None:
    from_states = [state for (state, named) in ALLOWED if named is event]
    assert sources(event) == tuple(sorted(int(state) for state in from_states))
    assert {target(event)} == {int(ALLOWED[state, event]) for state in from_states}


def test_every_event_has_a_row() -> None:
    assert set(TRANSITIONS) == set(E)


def test_queued_in_flight_and_final_divide_the_states() -> None:
    assert {S.PENDING} | IN_FLIGHT | FINAL == set(S)
    assert not IN_FLIGHT & FINAL
    assert S.PENDING not in IN_FLIGHT | FINAL


def _reachable(start: S) -> set[S]:
    seen, waiting = {start}, [start]
    while waiting:
        state = waiting.pop()
        following = {after for (before, _), after in ALLOWED.items() if before is state} - seen
        seen |= following
        waiting += following
    return seen


@pytest.mark.parametrize("state", list(S))
def test_no_state_is_a_dead_end(state: S) -> None:
    assert _reachable(state) == set(S)


def test_work_that_is_durable_is_never_thrown_away_by_a_deadline() -> None:
    # Bytes before state: what was fetched is parsed from the archive, not fetched again.
    assert next_state(S.FETCHED, E.EXPIRE) is None
    assert next_state(S.PARSED, E.EXPIRE) is None


def test_stored_numbers_never_change_their_meaning() -> None:
    assert [(state.name, int(state)) for state in S] == [
        ("PENDING", 0),
        ("LEASED", 1),
        ("FETCHED", 2),
        ("PARSED", 3),
        ("COMPLETE", 4),
        ("FAILED", 5),
        ("EXCLUDED", 6),
    ]


def test_the_page_about_it_is_up_to_date() -> None:
    assert not lifecycle_doc.stale(), "run `make docs`"
