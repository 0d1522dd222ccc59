"""What operators order: pause and settings of an origin, finished URLs queued again. Each order leaves an audit row."""

from __future__ import annotations

from typing import Final

from amble.adapters.postgres.admission import open_origin
from amble.adapters.postgres.books import REFETCH_CLASS, Books, plain
from amble.adapters.postgres.rows import FLIGHT, Origin, UrlRow
from amble.adapters.sql import tally
from amble.domain.errors import OperationRefused
from amble.domain.frontier import Applied, OriginOrder, RequeueOrder
from amble.domain.lifecycle import UrlEvent, UrlState, sources, target

_DEFAULT: Final = -1
_REQUEUE_FROM, _PENDING = sources(UrlEvent.REQUEUE), target(UrlEvent.REQUEUE)


def set_origin(books: Books, partition: int, order: OriginOrder) -> Applied:
    """Pause, resume, or set the limits of an origin, known or not; STALE when nothing would change."""
    _refuse_leaving(books, partition)
    origin = books.by_key(order.origin) or open_origin(books, order.origin, partition)
    old = _settings(origin)
    if order.paused is not None:
        origin.paused = order.paused
    if order.active_max is not None:
        origin.active_max = None if order.active_max == _DEFAULT else order.active_max
    if order.spacing_ms is not None:
        origin.spacing_ms = None if order.spacing_ms == _DEFAULT else order.spacing_ms
    new = _settings(origin)
    if new == old:
        return Applied.STALE
    origin.policy_version += 1
    books.changed(origin)
    books.audit(origin.partition, order.who, "set_origin", order.origin, old, new, order.why)
    return Applied.APPLIED


def _refuse_leaving(books: Books, partition: int) -> None:
    """An order that only the old server heard of would be lost."""
    row = books.partitions.get(partition)
    if row is not None and row.leaving:
        raise OperationRefused(
            f"partition {partition} is on its way to another server: give the order when it is there"
        )


def check_requeue(order: RequeueOrder) -> None:
    """Raises OperationRefused for a state that is not an end."""
    if order.state not in _REQUEUE_FROM:
        raise OperationRefused(f"URLs in state {order.state} are not finished")


def requeue(books: Books, partition: int, order: RequeueOrder, rows: list[UrlRow]) -> int:
    """Queue finished URLs again; how many. `rows` are the chosen ones."""
    _refuse_leaving(books, partition)
    chosen = [row for row in rows if row.state == order.state]
    for row in chosen:
        origin = books.origin_of(row.id)
        if row.rq is None or row.rq == REFETCH_CLASS:
            books.queued(origin, 1)
        books.changed(origin)
        books.move(origin.partition, order.state, _PENDING)
        books.count(origin.partition, tally.REQUEUED)
        row.state, row.rq, row.due_at, row.ended = _PENDING, row.priority, books.now, None
        row.tries = row.strikes = 0
        row.generation += 1
        row.changed |= FLIGHT
        row.explain(None, plain(order.why), books.now)
    state = UrlState(order.state).name.lower()
    what = (order.who, "requeue", order.origin + order.path, state, f"{len(chosen)} queued", order.why)
    books.audit(partition, *what)
    return len(chosen)


def _settings(origin: Origin) -> str:
    """The settings that an order may change, for the audit."""

    def shown(value: int | None) -> str:
        return "default" if value is None else str(value)

    state = "paused" if origin.paused else "open"
    return f"{state}, active_max {shown(origin.active_max)}, spacing_ms {shown(origin.spacing_ms)}"
