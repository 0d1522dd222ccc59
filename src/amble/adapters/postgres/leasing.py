"""Leasing: which URL goes next. Fair between origins (longest waiting first), by class within one, robots first.

A round asks for as many due origins as leases are wanted, with the URL whose turn it is at each, and decides here.
A turn either leases one URL or moves the origin's `wake_at`, so the rounds end. An origin that another transaction
holds is passed over until the next call.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from amble.adapters.postgres.books import REFETCH_CLASS, TOKEN_BYTES, Books, Conflict
from amble.adapters.postgres.migrations import BUDGET_LOCK
from amble.adapters.postgres.rows import END, Origin, UrlRow
from amble.adapters.postgres.statements import ORIGIN, URL, WORK
from amble.adapters.sql import tally
from amble.domain.attempt import Lease, LeaseKey, UrlKind
from amble.domain.fetched import BodyRef, Validators
from amble.domain.frontier import LeaseAsk
from amble.domain.lifecycle import UrlState
from amble.domain.priority import AGEING_EVERY
from amble.domain.robots import RobotsOutcome

_PENDING, _LEASED = int(UrlState.PENDING), int(UrlState.LEASED)
_PAGE: Final = int(UrlKind.PAGE)
# Columns of a ledger in the rows of `due`.
_WIDTH: Final = 25
_UNREACHABLE: Final = int(RobotsOutcome.UNREACHABLE)
_BUDGET_COUNTERS: Final = [tally.PAGES, tally.PAGES_LEASED]
# While the budget has room for so many times what is asked for, and for all stores twice, its users need not wait for
# each other.
FAR: Final = 8
TOTALS: Final = [
    tally.QUEUED, tally.MANIFESTS_OPEN, tally.PAGES, *(tally.STATES[state] for state in (1, 2, 3)),
]  # fmt: skip


class NearBudget(Conflict):
    """The page budget has come near while this transaction took it for far: begin again, one after the other."""


class _Turn(NamedTuple):
    """One due origin: the URL whose turn it is with its class, else when one is due; the place of its robots.txt.

    `overtaken`: what it says of URLs is older than the origin.
    """

    origin: Origin
    url_id: int | None
    queue_class: int | None
    soonest: int | None
    robots_id: int | None
    robots_class: int | None
    robots_due: int | None
    overtaken: bool


class _Take(NamedTuple):
    """A URL that is to be leased."""

    origin: Origin
    url_id: int
    queue_class: int


class Leasing:
    """The leases of one transaction, for one partition after the other."""

    def __init__(self, books: Books, *, near: bool) -> None:
        """`near`: the page budget is nearly spent, so whoever leases must wait for whoever else does."""
        self._books = books
        self._near = near
        self._locked = False
        # Whether the page budget was nearly spent when it was last looked at.
        self.was_near: bool | None = None

    async def lease(self, partition: int, ask: LeaseAsk) -> tuple[list[Lease], bool]:
        """(leases, whether only the page budget kept them from being more)."""
        room = await self._room(ask)
        leases: list[Lease] = []
        while len(leases) < ask.count and (room is None or room > 0):
            wanted = ask.count - len(leases)
            turns = await self._due(partition, wanted)
            takes = [take for turn in turns if (take := self._decide(turn, ask)) is not None]
            taken, room = await self._take(partition, takes, ask, room)
            leases += taken
            if len(turns) < wanted and not any(self._still_due(turn.origin) for turn in turns):
                break
        return leases, room is not None and room <= 0

    def _still_due(self, origin: Origin) -> bool:
        return origin.wake_at is not None and origin.wake_at <= self._books.now

    # ---- the page budget

    async def _room(self, ask: LeaseAsk) -> int | None:
        """How many pages may still be leased, on all partitions of this database together."""
        if ask.pages_max is None or ask.pages_max <= 0:
            return ask.pages_max
        database = self._books.database
        if not self._locked:
            self._locked = True
            await database.fetch(WORK["own_budget" if self._near else "share_budget"], BUDGET_LOCK)
        total, stores = await database.one(WORK["total"], _BUDGET_COUNTERS)
        own = sum(amount for (_, name), amount in self._books.tally.items() if name in _BUDGET_COUNTERS)
        room: int = ask.pages_max - total - own
        # Whoever leases at this moment sees the same room.
        self.was_near = room < max(FAR, 2 * stores) * max(1, ask.count)
        if self.was_near and room > 0 and not self._near:
            raise NearBudget("the page budget is nearly spent")
        return room

    # ---- turns

    async def _due(self, partition: int, wanted: int) -> list[_Turn]:
        books = self._books
        rows = await books.database.fetch(ORIGIN["due"], partition, books.now, wanted, AGEING_EVERY)
        turns = []
        for row in rows:
            origin = Origin(*row[1 : _WIDTH + 1])
            origin.seen = row[0]
            books.origins[origin.id] = origin
            turns.append(_Turn(origin, *row[_WIDTH + 1 :]))
        return turns

    def _decide(self, turn: _Turn, ask: LeaseAsk) -> _Take | None:
        """The URL to lease; else the origin waits."""
        origin = turn.origin
        if turn.overtaken:
            return None  # it is locked now: the next round sees it as it is
        chosen = self._choose(turn, ask)
        if isinstance(chosen, _Take):
            return chosen
        self._books.postpone(origin, chosen)
        return None

    def _choose(self, turn: _Turn, ask: LeaseAsk) -> _Take | int | None:
        """The URL to lease, or when to look again (None: when something changes)."""
        books, origin, now = self._books, turn.origin, self._books.now
        if origin.paused or max(origin.leased, origin.active) >= books.active_max(origin):
            return None
        if origin.ready_at > now:
            return origin.ready_at
        if turn.url_id is None or turn.queue_class is None:
            return turn.soonest
        if ask.robots_obey and turn.url_id != origin.robots_url_id:
            if not origin.robots_valid(now):
                return self._robots_first(turn)
            if origin.robots_outcome == _UNREACHABLE:
                return origin.robots_expires_at
        return _Take(origin, turn.url_id, turn.queue_class)

    def _robots_first(self, turn: _Turn) -> _Take | int | None:
        """A page is wanted and there is no valid decision: lease the robots URL, or wait for it."""
        if turn.robots_id is None or turn.robots_class is None:
            return None  # in flight: its result wakes the origin
        # A refetch is due when the decision has expired, whatever rounding did to its own due time.
        if (
            turn.robots_class != REFETCH_CLASS
            and turn.robots_due is not None
            and turn.robots_due > self._books.now
        ):
            return turn.robots_due
        return _Take(turn.origin, turn.robots_id, turn.robots_class)

    # ---- leases

    async def _take(
        self, partition: int, takes: list[_Take], ask: LeaseAsk, room: int | None
    ) -> tuple[list[Lease], int | None]:
        """(the leases, the room that they leave in the page budget)."""
        books = self._books
        leases: list[Lease] = []
        if takes:
            rows = await books.database.fetch(URL["rows"], [take.url_id for take in takes])
            books.urls.update((row[1], UrlRow(*row)) for row in rows)
        tokens = books.token(TOKEN_BYTES * len(takes))
        for number, take in enumerate(takes):
            if room is not None and room <= 0:
                break
            row = books.urls[take.url_id]
            if row.kind == _PAGE and room is not None:
                room -= 1
            token = tokens[number * TOKEN_BYTES : (number + 1) * TOKEN_BYTES]
            leases.append(self._lease(partition, take, row, token, ask))
        await books.flush()
        return leases, room

    def _lease(self, partition: int, take: _Take, row: UrlRow, token: bytes, ask: LeaseAsk) -> Lease:
        books, origin = self._books, take.origin
        expires_at = books.now + ask.ttl_ms
        books.move(partition, row.state, _LEASED)
        if row.kind == _PAGE:
            books.count(partition, tally.PAGES_LEASED)
        self._mark(row, token, ask.worker, expires_at)
        if take.queue_class != REFETCH_CLASS:
            books.queued(origin, -1)
        origin.leased += 1
        origin.turns += 1
        books.changed(origin)
        known = row.etag is not None or row.last_modified is not None
        return Lease(
            LeaseKey(row.id, row.attempt, token, partition),
            origin.id,
            origin.key,
            row.path,
            row.kind,
            row.depth,
            row.hops,
            row.tries,
            row.generation,
            expires_at,
            books.facts(origin),
            Validators(row.etag, row.last_modified) if known else None,
            BodyRef.unpack(row.body_ref) if row.body_ref else None,
            row.digest,
        )

    def _mark(self, row: UrlRow, token: bytes, worker: int, expires_at: int) -> None:
        row.attempt += 1
        if row.state != _PENDING:  # a new visit of a finished URL
            row.generation += 1
            row.tries = row.strikes = 0
        row.state, row.rq, row.due_at = _LEASED, None, None
        row.started_at = None
        row.leave_slot()
        row.hold(token, worker, expires_at)
        if row.ended is not None:
            row.ended = None
            row.changed |= END
