"""The gate's last step and the ways of giving a lease back unused: reserve, put_back, exclude, expire."""

from __future__ import annotations

from typing import Final

from amble.adapters.postgres.books import Books, plain
from amble.adapters.postgres.holding import decide_robots, release
from amble.adapters.postgres.rows import END, Origin, UrlRow
from amble.adapters.sql import tally
from amble.adapters.sql.identity import SLOT_BITS
from amble.domain.attempt import UrlKind
from amble.domain.decision import Reason
from amble.domain.frontier import Applied, Exclude, PutBack, ReserveAsk, ReserveOutcome, ReserveReply
from amble.domain.lifecycle import UrlEvent, UrlState, sources, target

_LEASED: Final = int(UrlState.LEASED)
_ROBOTS: Final = int(UrlKind.ROBOTS)
_PUT_BACK_FROM, _PUT_BACK = sources(UrlEvent.PUT_BACK), target(UrlEvent.PUT_BACK)
_EXCLUDE_FROM, _EXCLUDED = sources(UrlEvent.EXCLUDE), target(UrlEvent.EXCLUDE)
_EXPIRED = target(UrlEvent.EXPIRE)


def reserve(books: Books, ask: ReserveAsk) -> ReserveReply:
    """See ports.Frontier.reserve."""
    row = books.held(ask.key, (_LEASED,))
    if row is None:
        return _refuse(books, ReserveOutcome.STALE)
    if not books.is_current(ask.key.partition, ask.epoch):
        return _refuse(books, ReserveOutcome.FENCED)
    origin = books.by_key(ask.origin)
    if origin is None:
        origin = books.open_origin(ask.origin, ask.key.partition)
        books.count(origin.partition, tally.ORIGINS)
    _learn_start(books, ask, row)
    delay_ms, active_max = _bounds(books, ask, origin)
    refused = _refusal(books, ask, row, origin, delay_ms, active_max)
    return refused or _grant(books, ask, row, origin, delay_ms)


def visit(books: Books, partition: int, ask: ReserveAsk) -> ReserveReply:
    """A robots.txt hop that a lease of another store makes to an origin of this one.

    The guest has the whole origin until the longest possible request is over: nothing has to be given back, and
    nothing is left behind when the guest dies. Its lease is not known here; it is judged where it lives.
    """
    origin = books.by_key(ask.origin)
    if origin is None:
        origin = books.open_origin(ask.origin, partition)
        books.count(partition, tally.ORIGINS)
    if origin.paused:
        return _refuse(books, ReserveOutcome.PAUSED, 0, origin)
    if origin.ready_at > books.now:
        return _refuse(books, ReserveOutcome.NOT_YET, origin.ready_at, origin)
    if origin.active:
        return _refuse(books, ReserveOutcome.NO_SLOT, 0, origin)
    asked_for = min(origin.robots_delay_ms, ask.crawl_delay_cap_ms)
    until = books.now + ask.hold_ms
    origin.next_start = until + max(ask.delay_ms, books.spacing_ms(origin), asked_for)
    books.changed(origin)
    return ReserveReply(int(ReserveOutcome.GRANTED), until, books.now, origin.id)


def _bounds(books: Books, ask: ReserveAsk, origin: Origin) -> tuple[int, int]:
    """(delay, active limit) of this start: those of the ask, and for a hop those of the other origin as well."""
    if origin.id == ask.key.url_id >> SLOT_BITS:
        return ask.delay_ms, ask.active_max
    asked_for = min(origin.robots_delay_ms, ask.crawl_delay_cap_ms)
    delay_ms = max(ask.delay_ms, books.spacing_ms(origin), asked_for)
    return delay_ms, min(ask.active_max, books.active_max(origin))


def _learn_start(books: Books, ask: ReserveAsk, row: UrlRow) -> None:
    """A request begins a little after its reservation was committed: the next start counts from the true one."""
    if ask.since_start_ms < 0 or row.slot_origin is None:
        return
    asked = books.origin(row.slot_origin)
    asked.next_start = max(asked.next_start, books.now - ask.since_start_ms + ask.delay_ms)
    books.changed(asked)


def _refuse(
    books: Books, outcome: ReserveOutcome, until_ms: int = 0, origin: Origin | None = None
) -> ReserveReply:
    return ReserveReply(int(outcome), until_ms, books.now, origin.id if origin is not None else 0)


def _refusal(
    books: Books, ask: ReserveAsk, row: UrlRow, origin: Origin, delay_ms: int, active_max: int
) -> ReserveReply | None:
    now = books.now
    if origin.paused:
        return _refuse(books, ReserveOutcome.PAUSED, 0, origin)
    if ask.robots_version >= 0 and not (
        ask.robots_version == origin.robots_version and origin.robots_valid(now)
    ):
        return _refuse(books, ReserveOutcome.ROBOTS_CHANGED, 0, origin)
    ready_at = origin.ready_at
    if origin.robots_delay_ms:
        # A Crawl-delay was not known yet when the robots.txt it stands in was asked for.
        ready_at = max(ready_at, origin.robots_fetched_at + min(origin.robots_delay_ms, delay_ms))
    if ready_at > now:
        return _refuse(books, ReserveOutcome.NOT_YET, ready_at, origin)
    if row.slot_origin != origin.id and origin.active >= active_max:
        return _refuse(books, ReserveOutcome.NO_SLOT, 0, origin)
    return None


def _grant(books: Books, ask: ReserveAsk, row: UrlRow, origin: Origin, delay_ms: int) -> ReserveReply:
    if row.slot_origin != origin.id:
        if row.slot_origin is not None:
            left = books.origin(row.slot_origin)
            left.active -= 1
            books.changed(left)
        origin.active += 1
    origin.next_start = books.now + delay_ms
    books.changed(origin)
    if origin.active < books.active_max(origin):
        books.granted.append(origin.id)
    until = books.now + ask.hold_ms
    row.slot_origin, row.slot_until, row.started_at = origin.id, until, books.now
    row.hold_until(until + books.settings.lease_grace_ms)
    return ReserveReply(int(ReserveOutcome.GRANTED), until, books.now, origin.id)


def put_back(books: Books, item: PutBack) -> Applied:
    """See ports.Frontier.put_back."""
    row = books.held(item.key, _PUT_BACK_FROM)
    if row is None:
        return Applied.STALE
    origin = books.origin_of(row.id)
    books.queued(origin, 1)
    if item.reason == Reason.ROBOTS_MISSING:
        # What the decision refers to is not there any more: only a new one helps.
        origin.robots_expires_at = min(origin.robots_expires_at, books.now)
    release(books, row, item.effect, item.rest_ms)
    books.move(origin.partition, row.state, _PUT_BACK)
    _requeue(row, _PUT_BACK, books.now + item.delay_ms)
    row.explain(item.reason, plain(item.detail), books.now)
    books.count(origin.partition, f"put_back.{item.reason}")
    books.decide(origin.partition, row.id, item.reason, item.detail)
    return Applied.APPLIED


def _requeue(row: UrlRow, state: int, due_at: int) -> None:
    row.state, row.rq, row.due_at = state, row.priority, due_at
    row.let_go()


def exclude(books: Books, item: Exclude) -> Applied:
    """See ports.Frontier.exclude."""
    row = books.held(item.key, _EXCLUDE_FROM)
    if row is None:
        return Applied.STALE
    origin = release(books, row, None)
    books.move(origin.partition, row.state, _EXCLUDED)
    row.state = row.ended = _EXCLUDED
    row.rq = row.due_at = None
    if row.kind == _ROBOTS:
        decide_robots(books, row, None, 0)
    row.let_go()
    row.explain(item.reason, plain(item.detail), books.now)
    row.policy_version = item.policy_version
    row.changed |= END
    books.count(origin.partition, f"excluded.{item.reason}")
    books.decide(origin.partition, row.id, item.reason, item.detail, policy_version=item.policy_version)
    return Applied.APPLIED


def expire(books: Books, rows: list[UrlRow]) -> int:
    """See ports.Frontier.expire; `rows` are the lapsed ones."""
    lapsed = [
        row
        for row in rows
        if row.state == _LEASED and row.expires_at is not None and row.expires_at <= books.now
    ]
    requeue_leased(books, lapsed)
    return len(lapsed)


def requeue_leased(books: Books, rows: list[UrlRow], *, stopped: bool = True) -> None:
    """LEASED rows go back to the queue, due at once; their slots are free.

    `stopped` False: it is not known that the holder is. Its successor has waited as long as a request of its own may
    last; a holder that was told otherwise may take longer, and until its slots end nothing starts at their origins.
    """
    _space_from_latest(books, rows, stopped=stopped)
    for row in rows:
        origin = books.origin_of(row.id)
        books.queued(origin, 1)
        release(books, row, None)
        books.move(origin.partition, _LEASED, _EXPIRED)
        books.count(origin.partition, tally.LAPSED)
        _requeue(row, _EXPIRED, books.now)
        row.explain("lease_lapsed", None, books.now)


def _space_from_latest(books: Books, rows: list[UrlRow], *, stopped: bool) -> None:
    """Nobody can say when the request of a lost holder really began: perhaps just now, long after its grant.

    The delay it must keep is what lies between its grant and the next start as the ledger has it.
    """
    spaced: dict[int, int] = {}
    for row in rows:
        if row.slot_origin is not None and row.started_at is not None and row.slot_until is not None:
            delay_ms = max(0, books.origin(row.slot_origin).next_start - row.started_at)
            soonest = min(books.now, row.slot_until) + delay_ms
            if not stopped:
                soonest = max(soonest, row.slot_until)
            spaced[row.slot_origin] = max(spaced.get(row.slot_origin, 0), soonest)
    for origin_id, soonest in spaced.items():
        origin = books.origin(origin_id)
        origin.next_start = max(origin.next_start, soonest)
        books.changed(origin)


def settle(books: Books, late: dict[int, int]) -> None:
    """The commit that granted these starts took so long (origin -> ms): they began that much later, so must the next.

    Only where another start could come before this one's answer, which tells its true start.
    """
    for origin_id, late_ms in late.items():
        origin = books.origins.get(origin_id)
        if origin is not None and late_ms > 0:
            origin.next_start += late_ms
            books.changed(origin)
