"""The life of a URL: one table of states and events. SQL guards, the docs diagram and the tests all read it.

Nothing else in amble may name which state follows which. A refused event is a missing key.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class UrlState(IntEnum):
    """Where a URL is. Stored as the integer; the integers never change meaning."""

    PENDING = 0
    LEASED = 1
    FETCHED = 2
    PARSED = 3
    COMPLETE = 4
    FAILED = 5
    EXCLUDED = 6


class UrlEvent(StrEnum):
    """What can happen to a known URL."""

    LEASE = "lease"
    PUT_BACK = "put_back"
    EXPIRE = "expire"
    RETRY = "retry"
    RECORD_FETCHED = "record_fetched"
    RECORD_PARSED = "record_parsed"
    COMPLETE = "complete"
    GIVE_UP = "give_up"
    EXCLUDE = "exclude"
    REQUEUE = "requeue"


TRANSITIONS: dict[UrlEvent, dict[UrlState, UrlState]] = {
    # A COMPLETE, FAILED or EXCLUDED URL that is queued again (revisit, robots refetch) is leased for its next
    # crawl generation straight from where it is: being queued is a due time, not a state.
    UrlEvent.LEASE: {
        UrlState.PENDING: UrlState.LEASED,
        UrlState.COMPLETE: UrlState.LEASED,
        UrlState.FAILED: UrlState.LEASED,
        UrlState.EXCLUDED: UrlState.LEASED,
    },
    UrlEvent.PUT_BACK: {UrlState.LEASED: UrlState.PENDING},
    UrlEvent.EXPIRE: {UrlState.LEASED: UrlState.PENDING},
    UrlEvent.RETRY: {UrlState.LEASED: UrlState.PENDING},
    UrlEvent.RECORD_FETCHED: {UrlState.LEASED: UrlState.FETCHED},
    UrlEvent.RECORD_PARSED: {UrlState.FETCHED: UrlState.PARSED},
    UrlEvent.COMPLETE: {UrlState.PARSED: UrlState.COMPLETE},
    UrlEvent.GIVE_UP: {
        UrlState.LEASED: UrlState.FAILED,
        UrlState.FETCHED: UrlState.FAILED,
        # Only when the archive has lost both its manifest and its body.
        UrlState.PARSED: UrlState.FAILED,
    },
    UrlEvent.EXCLUDE: {UrlState.LEASED: UrlState.EXCLUDED},
    # An operator, or upkeep, queues a finished URL again.
    UrlEvent.REQUEUE: {
        UrlState.COMPLETE: UrlState.PENDING,
        UrlState.FAILED: UrlState.PENDING,
        UrlState.EXCLUDED: UrlState.PENDING,
    },
}

# States in which a token is held and something durable will move the URL on without an operator.
IN_FLIGHT = frozenset({UrlState.LEASED, UrlState.FETCHED, UrlState.PARSED})
FINAL = frozenset({UrlState.COMPLETE, UrlState.FAILED, UrlState.EXCLUDED})


def next_state(state: UrlState, event: UrlEvent) -> UrlState | None:
    """The state after `event`, or None where the table refuses it."""
    return TRANSITIONS[event].get(state)


def sources(event: UrlEvent) -> tuple[int, ...]:
    """The states from which `event` is allowed, as integers for an SQL guard."""
    return tuple(sorted(int(state) for state in TRANSITIONS[event]))


def target(event: UrlEvent) -> int:
    """The one state that `event` leads to. Every event of the table has exactly one."""
    targets = set(TRANSITIONS[event].values())
    assert len(targets) == 1, f"{event} leads to {targets}"
    return int(targets.pop())
