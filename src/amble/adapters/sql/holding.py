"""Who holds a URL: the comparison that makes stale results harmless, and the release of what a holder held."""

from __future__ import annotations

from typing import NamedTuple

from amble.adapters.sql import tally
from amble.adapters.sql.books import Books
from amble.adapters.sql.identity import SLOT_BITS
from amble.adapters.sql.ledger import Origin
from amble.adapters.sql.statements import load
from amble.domain.attempt import LeaseKey, UrlKind
from amble.domain.frontier import OriginEffect

_HELD = load("url")["held"]
_PAGE = int(UrlKind.PAGE)


class Held(NamedTuple):
    """A row in flight under the caller's own key; fields are those of the statement `held`.

    `indexed`: under which fingerprint, as SQLite keeps it, the URL is in the index of near-duplicates.
    """

    state: int
    token: bytes
    attempt: int
    kind: int
    slot_origin: int | None
    started_at: int | None
    generation: int
    priority: int
    strikes: int
    status: int | None
    indexed: int | None = None


class Holding:
    """Shared by all operations that name a `LeaseKey`."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def held(self, key: LeaseKey, allowed: tuple[int, ...]) -> Held | None:
        """The row of `key` if it is held under exactly that key and in one of the `allowed` states; else it is stale."""
        row = self._books.execute(_HELD, (key.url_id,)).fetchone()
        if row is None or row[1] != key.token or row[2] != key.attempt or row[0] not in allowed:
            return None
        return Held(*row)

    def release(self, key: LeaseKey, held: Held, effect: OriginEffect | None, rest_ms: int = 0) -> Origin:
        """LEASED is over: the slot is free, its origin learns what the request taught. Returns the URL's own origin.

        The caller moves the row. The effect belongs to the origin that was asked, which for a robots hop is not the
        URL's own.
        """
        books = self._books
        origin = books.ledger.by_id(key.url_id >> SLOT_BITS)
        origin.leased -= 1
        if held.kind == _PAGE:
            books.tally.add(tally.PAGES_LEASED, -1)
        asked = origin
        if held.slot_origin is not None:
            asked = books.ledger.by_id(held.slot_origin)
            asked.active -= 1
        if effect is not None:
            self._learn(asked, effect, held.started_at, own=asked is origin)
        if rest_ms:
            asked.rest_until = max(asked.rest_until, books.now + rest_ms)
        books.ledger.changed(origin)
        if asked is not origin:
            books.ledger.changed(asked)
        return origin

    def _learn(self, origin: Origin, effect: OriginEffect, started_at: int | None, *, own: bool) -> None:
        now = self._books.now
        # The request began when the grant had been committed and heard, so a little after its reservation. It ended
        # before now: counting back its duration gives a start that is never too early.
        started = max(started_at or 0, now - effect.duration_ms)
        if effect.delay_ms:
            origin.next_start = max(origin.next_start, started + effect.delay_ms)
        if effect.rest_ms:
            origin.rest_until = max(origin.rest_until, now + effect.rest_ms)
        # A hop was judged by the level of the URL's own origin: it may raise the other one's, never lower it.
        origin.backoff_level = (
            effect.backoff_level if own else max(origin.backoff_level, effect.backoff_level)
        )
        origin.last_fetch_ms = effect.duration_ms
