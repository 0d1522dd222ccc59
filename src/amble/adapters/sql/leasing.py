"""Leasing: which URL goes next. Fair between origins (longest waiting first), by class within one, robots first.

A turn of an origin either leases one URL or moves the origin's `wake_at`, so a scan of due origins always ends.
"""

from __future__ import annotations

from typing import Final

from amble.adapters.sql import tally
from amble.adapters.sql.books import REFETCH_CLASS, TOKEN_BYTES, Books
from amble.adapters.sql.ledger import Origin
from amble.adapters.sql.statements import load
from amble.domain.attempt import Lease, LeaseKey, UrlKind
from amble.domain.fetched import BodyRef, Validators
from amble.domain.frontier import LeaseAsk, LeaseReply
from amble.domain.lifecycle import UrlState
from amble.domain.priority import AGEING_EVERY, CLASSES
from amble.domain.robots import RobotsOutcome

_ORIGIN, _URL = load("origin"), load("url")
_DUE, _NEXT_WAKE = _ORIGIN["due"], _ORIGIN["next_wake"]
_BEST, _LAST_CLASS, _FIRST_OF_CLASS, _PLACE, _LEASABLE, _LEASE = (
    _URL[name] for name in ("best", "last_class", "first_of_class", "queue_place", "leasable", "lease")
)
_PENDING, _LEASED = int(UrlState.PENDING), int(UrlState.LEASED)
_PAGE = int(UrlKind.PAGE)
_UNREACHABLE: Final = int(RobotsOutcome.UNREACHABLE)


class _Turns:
    """One call's bounds: how many leases, how many of them pages."""

    __slots__ = ("ask", "expires_at", "leases", "page_room", "tokens")

    def __init__(self, ask: LeaseAsk, tokens: bytes, expires_at: int, page_room: int | None) -> None:
        self.ask = ask
        self.tokens = tokens
        self.expires_at = expires_at
        self.page_room = page_room
        self.leases: list[Lease] = []

    @property
    def wanted(self) -> int:
        """Leases still to find; none when only pages are left and the page budget binds."""
        return 0 if self.budget_spent else self.ask.count - len(self.leases)

    @property
    def budget_spent(self) -> bool:
        return self.page_room is not None and self.page_room <= 0

    def next_token(self) -> bytes:
        start = len(self.leases) * TOKEN_BYTES
        return self.tokens[start : start + TOKEN_BYTES]


class Leasing:
    """The operation `lease`."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def lease(self, ask: LeaseAsk) -> LeaseReply:
        """See ports.Frontier.lease."""
        books = self._books
        if not books.is_current(ask.partition, ask.epoch):
            return self._reply([], budget_spent=False, fenced=True)
        room = None
        if ask.pages_max is not None:
            room = ask.pages_max - books.tally.value(tally.PAGES) - books.tally.value(tally.PAGES_LEASED)
        turns = _Turns(ask, books.token(TOKEN_BYTES * max(0, ask.count)), books.now + ask.ttl_ms, room)
        while turns.wanted > 0:
            books.ledger.flush()
            due = books.execute(_DUE, (books.now, turns.wanted)).fetchall()
            if not due:
                break
            for (origin_id,) in due:
                if turns.wanted <= 0:
                    break
                self._turn(books.ledger.by_id(origin_id), turns)
        books.ledger.flush()
        return self._reply(turns.leases, budget_spent=turns.budget_spent, fenced=False)

    def _reply(self, leases: list[Lease], *, budget_spent: bool, fenced: bool) -> LeaseReply:
        value = self._books.tally.value
        leased, fetched, parsed = (value(tally.STATES[state]) for state in (1, 2, 3))
        return LeaseReply(
            leases=leases,
            now_ms=self._books.now,
            next_wake_ms=self._books.execute(_NEXT_WAKE).fetchone()[0],
            queued=value(tally.QUEUED),
            in_flight=leased + fetched + parsed,
            open_manifests=value(tally.MANIFESTS_OPEN),
            pages=value(tally.PAGES),
            budget_spent=budget_spent and value(tally.QUEUED) > 0,
            fenced=fenced,
            unparsed=fetched,
            forwarded=value(tally.OUTBOX) + value(tally.INBOX),
        )

    def _turn(self, origin: Origin, turns: _Turns) -> None:
        ledger, now = self._books.ledger, self._books.now
        if origin.paused or max(origin.leased, origin.active) >= ledger.active_max(origin):
            ledger.postpone(origin, None)
            return
        if origin.ready_at > now:
            ledger.postpone(origin, origin.ready_at)
            return
        found, soonest = self._pick(origin)
        if found is None:
            ledger.postpone(origin, soonest)
            return
        url_id, queue_class = found
        if turns.ask.robots_obey and url_id != origin.robots_url_id:
            if not origin.robots_valid(now):
                self._robots_first(origin, turns)
                return
            if origin.robots_outcome == _UNREACHABLE:
                ledger.postpone(origin, origin.robots_expires_at)
                return
        self._grant(origin, url_id, queue_class, turns)

    def _pick(self, origin: Origin) -> tuple[tuple[int, int] | None, int | None]:
        """((url_id, class) or None, when the first of the classes that were passed over becomes due)."""
        if origin.turns % AGEING_EVERY == AGEING_EVERY - 1:
            return self._pick_last(origin)
        execute, now = self._books.execute, self._books.now
        queue_class, soonest = 0, None
        while queue_class < CLASSES:
            row = execute(_BEST, (origin.id, queue_class)).fetchone()
            if row is None:
                break
            queue_class, due_at, url_id = row
            if due_at <= now:
                return (url_id, queue_class), soonest
            soonest = due_at if soonest is None else min(soonest, due_at)
            queue_class += 1
        return None, soonest

    def _pick_last(self, origin: Origin) -> tuple[tuple[int, int] | None, int | None]:
        """As `_pick`, from the last class upwards: no class starves."""
        execute, now = self._books.execute, self._books.now
        queue_class, soonest = CLASSES - 1, None
        while queue_class >= 0:
            row = execute(_LAST_CLASS, (origin.id, queue_class)).fetchone()
            if row is None:
                break
            queue_class = row[0]
            due_at, url_id = execute(_FIRST_OF_CLASS, (origin.id, queue_class)).fetchone()
            if due_at <= now:
                return (url_id, queue_class), soonest
            soonest = due_at if soonest is None else min(soonest, due_at)
            queue_class -= 1
        return None, soonest

    def _robots_first(self, origin: Origin, turns: _Turns) -> None:
        """A page is wanted and there is no valid decision: lease the robots URL, or wait for it."""
        ledger, now = self._books.ledger, self._books.now
        place = self._books.execute(_PLACE, (origin.robots_url_id,)).fetchone()
        if place is None or place[1] is None:
            ledger.postpone(origin, None)  # in flight: its result wakes the origin
            return
        _, queue_class, due_at = place
        # A refetch is due when the decision has expired, whatever rounding did to its own due time.
        if queue_class != REFETCH_CLASS and due_at > now:
            ledger.postpone(origin, due_at)
            return
        assert origin.robots_url_id is not None
        self._grant(origin, origin.robots_url_id, queue_class, turns)

    def _grant(self, origin: Origin, url_id: int, queue_class: int, turns: _Turns) -> None:
        books = self._books
        token = turns.next_token()
        (
            state,
            attempt,
            path,
            kind,
            depth,
            hops,
            tries,
            generation,
            strikes,
            etag,
            modified,
            body_ref,
            digest,
        ) = books.execute(_LEASABLE, (url_id,)).fetchone()
        attempt += 1
        if state != _PENDING:  # a new visit of a finished URL
            generation, tries, strikes = generation + 1, 0, 0
        worker, expires_at = turns.ask.worker, turns.expires_at
        books.execute(_LEASE, (url_id, attempt, token, worker, expires_at, generation, tries, strikes))
        validators = Validators(etag, modified) if etag is not None or modified is not None else None
        lease = Lease(
            LeaseKey(url_id, attempt, token, books.settings.partition),
            origin.id,
            origin.key,
            path,
            kind,
            depth,
            hops,
            tries,
            generation,
            turns.expires_at,
            books.ledger.facts(origin),
            validators,
            BodyRef.unpack(body_ref) if body_ref else None,
            digest,
        )
        turns.leases.append(lease)
        books.tally.move(state, _LEASED)
        if kind == _PAGE:
            books.tally.add(tally.PAGES_LEASED)
            if turns.page_room is not None:
                turns.page_room -= 1
        if queue_class != REFETCH_CLASS:
            origin.queued -= 1
            books.tally.add(tally.QUEUED, -1)
        origin.leased += 1
        origin.turns += 1
        books.ledger.changed(origin)
