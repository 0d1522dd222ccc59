"""The gate's last step and the ways of giving a lease back unused: reserve, put_back, exclude, expire."""

from __future__ import annotations

from typing import Final

from amble.adapters.sql import tally
from amble.adapters.sql.admission import Admission
from amble.adapters.sql.books import REFETCH_CLASS, Books
from amble.adapters.sql.holding import Held, Holding
from amble.adapters.sql.identity import SLOT_BITS
from amble.adapters.sql.ledger import Origin
from amble.adapters.sql.statements import load
from amble.domain.attempt import LeaseKey, RobotsState, UrlKind
from amble.domain.decision import Reason
from amble.domain.frontier import Applied, Exclude, PutBack, ReserveAsk, ReserveOutcome, ReserveReply
from amble.domain.lifecycle import UrlEvent, UrlState, sources, target
from amble.domain.robots import RobotsOutcome

_URL = load("url")
_RESERVE, _PUT_BACK, _EXCLUDE, _LAPSED, _EXPIRE = (
    _URL[name] for name in ("reserve", "put_back", "exclude", "lapsed", "expire")
)
_LEASED: Final = int(UrlState.LEASED)
_PAGE, _ROBOTS = int(UrlKind.PAGE), int(UrlKind.ROBOTS)
# A row of `lapsed` or `leased`: id, kind, and of its slot the origin, the start and the end.
LeasedRow = tuple[int, int, int | None, int | None, int | None]
_PUT_BACK_FROM, _EXCLUDE_FROM = sources(UrlEvent.PUT_BACK), sources(UrlEvent.EXCLUDE)


def robots_without_answer(books: Books, origin: Origin) -> tuple[int, int]:
    """A robots URL ended without a decision: the origin counts as unreachable for a while. (class, due) of its row."""
    ttl_ms = books.settings.robots_again_ms
    origin.decide_robots(RobotsState(int(RobotsOutcome.UNREACHABLE)), books.now, ttl_ms)
    books.ledger.changed(origin)
    return REFETCH_CLASS, books.now + ttl_ms


def _since_robots(origin: Origin, delay_ms: int) -> int:
    """The soonest start by a Crawl-delay that was not known yet when the robots.txt it stands in was asked for."""
    if not origin.robots_delay_ms:
        return 0
    return origin.robots_fetched_at + min(origin.robots_delay_ms, delay_ms)


class Gatekeeping:
    """The operations of a lease before anything was answered."""

    def __init__(self, books: Books, holding: Holding, admission: Admission) -> None:
        self._books = books
        self._holding = holding
        self._admission = admission
        # Origins granted a start in the open transaction; see `settle`.
        self._granted: list[int] = []

    def reserve(self, ask: ReserveAsk) -> ReserveReply:
        """See ports.Frontier.reserve."""
        held = self._holding.held(ask.key, (_LEASED,))
        if held is None:
            return self._refuse(ReserveOutcome.STALE)
        if ask.epoch != self._books.epoch:
            return self._refuse(ReserveOutcome.FENCED)
        origin = self._books.ledger.by_key(ask.origin) or self._admission.open_origin(ask.origin)
        self._learn_start(ask, held)
        delay_ms, active_max = self._bounds(ask, origin)
        refused = self._refusal(ask, held, origin, delay_ms, active_max)
        return refused or self._grant(ask, held, origin, delay_ms)

    def visit(self, ask: ReserveAsk) -> ReserveReply:
        """A robots.txt hop that a lease of another file makes to an origin of this one.

        The guest has the whole origin until the longest possible request is over: nothing has to be given back, and
        nothing is left behind when the guest dies. Its lease is not known here; it is judged where it lives.
        """
        origin = self._books.ledger.by_key(ask.origin) or self._admission.open_origin(ask.origin)
        if origin.paused:
            return self._refuse(ReserveOutcome.PAUSED, 0, origin.id)
        if origin.ready_at > self._books.now:
            return self._refuse(ReserveOutcome.NOT_YET, origin.ready_at, origin.id)
        if origin.active:
            return self._refuse(ReserveOutcome.NO_SLOT, 0, origin.id)
        delay_ms = max(
            ask.delay_ms,
            self._books.ledger.spacing_ms(origin),
            min(origin.robots_delay_ms, ask.crawl_delay_cap_ms),
        )
        origin.next_start = self._books.now + ask.hold_ms + delay_ms
        self._books.ledger.changed(origin)
        return ReserveReply(
            int(ReserveOutcome.GRANTED), self._books.now + ask.hold_ms, self._books.now, origin.id
        )

    def _bounds(self, ask: ReserveAsk, origin: Origin) -> tuple[int, int]:
        """(delay, active limit) of this start: those of the ask, and for a hop those of the other origin as well."""
        if origin.id == ask.key.url_id >> SLOT_BITS:
            return ask.delay_ms, ask.active_max
        ledger = self._books.ledger
        asked_for = min(origin.robots_delay_ms, ask.crawl_delay_cap_ms)
        delay_ms = max(ask.delay_ms, ledger.spacing_ms(origin), asked_for)
        return delay_ms, min(ask.active_max, ledger.active_max(origin))

    def _learn_start(self, ask: ReserveAsk, held: Held) -> None:
        """A request begins a little after its reservation was committed: the next start counts from the true one."""
        if ask.since_start_ms < 0 or held.slot_origin is None:
            return
        asked = self._books.ledger.by_id(held.slot_origin)
        asked.next_start = max(asked.next_start, self._books.now - ask.since_start_ms + ask.delay_ms)
        self._books.ledger.changed(asked)

    def _refuse(self, outcome: ReserveOutcome, until_ms: int = 0, origin_id: int = 0) -> ReserveReply:
        return ReserveReply(int(outcome), until_ms, self._books.now, origin_id)

    def _refusal(
        self, ask: ReserveAsk, held: Held, origin: Origin, delay_ms: int, active_max: int
    ) -> ReserveReply | None:
        now = self._books.now
        if origin.paused:
            return self._refuse(ReserveOutcome.PAUSED, 0, origin.id)
        if ask.robots_version >= 0 and not (
            ask.robots_version == origin.robots_version and origin.robots_valid(now)
        ):
            return self._refuse(ReserveOutcome.ROBOTS_CHANGED, 0, origin.id)
        ready_at = max(origin.ready_at, _since_robots(origin, delay_ms))
        if ready_at > now:
            return self._refuse(ReserveOutcome.NOT_YET, ready_at, origin.id)
        if held.slot_origin != origin.id and origin.active >= active_max:
            return self._refuse(ReserveOutcome.NO_SLOT, 0, origin.id)
        return None

    def _grant(self, ask: ReserveAsk, held: Held, origin: Origin, delay_ms: int) -> ReserveReply:
        books = self._books
        if held.slot_origin != origin.id:
            if held.slot_origin is not None:
                left = books.ledger.by_id(held.slot_origin)
                left.active -= 1
                books.ledger.changed(left)
            origin.active += 1
        origin.next_start = books.now + delay_ms
        books.ledger.changed(origin)
        self._granted.append(origin.id)
        until = books.now + ask.hold_ms
        lapse = until + books.settings.lease_grace_ms
        key = ask.key
        books.execute(_RESERVE, (key.url_id, key.token, key.attempt, origin.id, until, books.now, lapse))
        return ReserveReply(int(ReserveOutcome.GRANTED), until, books.now, origin.id)

    def settle(self, late_ms: int) -> None:
        """The commit of the granted starts took `late_ms`: they begin that much later, so must the next ones.

        The correction is in memory and is written with the next commit; a crash before that takes longer than the
        commit did.
        """
        if late_ms > 0:
            ledger = self._books.ledger
            for origin_id in self._granted:
                # Looked up anew: the ledger may have let go of its rows after the commit.
                origin = ledger.by_id(origin_id)
                origin.next_start += late_ms
                ledger.changed(origin)
        self._granted.clear()

    def forget(self) -> None:
        """The transaction was rolled back."""
        self._granted.clear()

    def put_back(self, item: PutBack) -> Applied:
        """See ports.Frontier.put_back."""
        books, key = self._books, item.key
        held = self._holding.held(key, _PUT_BACK_FROM)
        if held is None:
            return Applied.STALE
        due_at = books.now + item.delay_ms
        books.execute(_PUT_BACK, (key.url_id, key.token, due_at, item.reason, item.detail, books.now))
        books.queued(key.url_id >> SLOT_BITS, 1)
        if item.reason == Reason.ROBOTS_MISSING:
            # What the decision refers to is not there any more: only a new one helps.
            origin = books.ledger.by_id(key.url_id >> SLOT_BITS)
            origin.robots_expires_at = min(origin.robots_expires_at, books.now)
        self._holding.release(key, held, item.effect, item.rest_ms)
        books.tally.move(held.state, target(UrlEvent.PUT_BACK))
        books.tally.add(f"put_back.{item.reason}")
        books.decide(key.url_id, item.reason, item.detail)
        return Applied.APPLIED

    def exclude(self, item: Exclude) -> Applied:
        """See ports.Frontier.exclude."""
        books, key = self._books, item.key
        held = self._holding.held(key, _EXCLUDE_FROM)
        if held is None:
            return Applied.STALE
        origin = self._holding.release(key, held, None)
        queue: tuple[int | None, int | None] = (None, None)
        if held.kind == _ROBOTS:
            queue = robots_without_answer(books, origin)
        texts = (item.reason, item.detail, books.now, item.policy_version)
        books.execute(_EXCLUDE, (key.url_id, key.token, *queue, *texts))
        books.tally.move(held.state, target(UrlEvent.EXCLUDE))
        books.tally.add(f"excluded.{item.reason}")
        books.decide(key.url_id, item.reason, item.detail, policy_version=item.policy_version)
        return Applied.APPLIED

    def expire(self, limit: int) -> int:
        """See ports.Frontier.expire."""
        rows = self._books.execute(_LAPSED, (self._books.now, limit)).fetchall()
        self.requeue_leased(rows)
        return len(rows)

    def _space_from_latest(self, rows: list[LeasedRow]) -> None:
        """Nobody can say when the request of a lost holder really began: perhaps just now, long after its grant.

        The delay it must keep is what lies between its grant and the next start as the ledger has it.
        """
        ledger, now = self._books.ledger, self._books.now
        spaced: dict[int, int] = {}
        for _, _, slot_origin, started_at, slot_until in rows:
            if slot_origin is not None and started_at is not None and slot_until is not None:
                delay_ms = max(0, ledger.by_id(slot_origin).next_start - started_at)
                soonest = min(now, slot_until) + delay_ms
                spaced[slot_origin] = max(spaced.get(slot_origin, 0), soonest)
        for origin_id, soonest in spaced.items():
            origin = ledger.by_id(origin_id)
            origin.next_start = max(origin.next_start, soonest)
            ledger.changed(origin)

    def requeue_leased(self, rows: list[LeasedRow]) -> None:
        """LEASED rows go back to the queue, due at once; their slots are free."""
        books = self._books
        self._space_from_latest(rows)
        for url_id, kind, slot_origin, _, _ in rows:
            books.execute(_EXPIRE, (url_id, books.now))
            books.queued(url_id >> SLOT_BITS, 1)
            held = Held(_LEASED, b"", 0, kind, slot_origin, None, 0, 0, 0, None)
            self._holding.release(LeaseKey(url_id, 0, b""), held, None)
        if rows:
            books.tally.move(_LEASED, target(UrlEvent.EXPIRE), len(rows))
            books.tally.add(tally.LAPSED, len(rows))
