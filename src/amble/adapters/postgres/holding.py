"""The release of what a holder held, and what a finished request teaches the ledger."""

from __future__ import annotations

from amble.adapters.postgres.books import REFETCH_CLASS, Books
from amble.adapters.postgres.rows import Origin, UrlRow
from amble.adapters.sql import tally
from amble.domain.attempt import RobotsState, UrlKind
from amble.domain.frontier import OriginEffect
from amble.domain.robots import RobotsOutcome

_PAGE = int(UrlKind.PAGE)


def release(books: Books, row: UrlRow, effect: OriginEffect | None, rest_ms: int = 0) -> Origin:
    """LEASED is over: the slot is free, its origin learns what the request taught. Returns the URL's own origin.

    The caller moves the row. The effect belongs to the origin that was asked, which for a robots hop is not the
    URL's own.
    """
    origin = books.origin_of(row.id)
    origin.leased -= 1
    if row.kind == _PAGE:
        books.count(origin.partition, tally.PAGES_LEASED, -1)
    asked = origin
    if row.slot_origin is not None:
        asked = books.origin(row.slot_origin)
        asked.active -= 1
    if effect is not None:
        _learn(books, asked, effect, row.started_at, own=asked is origin)
    if rest_ms:
        asked.rest_until = max(asked.rest_until, books.now + rest_ms)
    row.leave_slot()
    books.changed(origin)
    if asked is not origin:
        books.changed(asked)
    return origin


def _learn(books: Books, origin: Origin, effect: OriginEffect, started_at: int | None, *, own: bool) -> None:
    now = books.now
    # The request began when the grant had been committed and heard, so a little after its reservation. It ended
    # before now: counting back its duration gives a start that is never too early.
    started = max(started_at or 0, now - effect.duration_ms)
    if effect.delay_ms:
        origin.next_start = max(origin.next_start, started + effect.delay_ms)
    if effect.rest_ms:
        origin.rest_until = max(origin.rest_until, now + effect.rest_ms)
    # A hop was judged by the level of the URL's own origin: it may raise the other one's, never lower it.
    origin.backoff_level = effect.backoff_level if own else max(origin.backoff_level, effect.backoff_level)
    origin.last_fetch_ms = effect.duration_ms


def decide_robots(books: Books, row: UrlRow, state: RobotsState | None, ttl_ms: int) -> None:
    """A robots URL has ended, and with it the question what holds at its origin; None: nothing is known for a while."""
    origin = books.origin_of(row.id)
    if state is None:
        state, ttl_ms = RobotsState(int(RobotsOutcome.UNREACHABLE)), books.settings.robots_again_ms
    origin.decide_robots(state, books.now, ttl_ms)
    books.changed(origin)
    row.rq, row.due_at = REFETCH_CLASS, origin.robots_expires_at
