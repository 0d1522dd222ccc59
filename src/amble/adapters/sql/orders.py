"""What operators order: pause and settings of an origin, finished URLs queued again. Each order leaves an audit row."""

from __future__ import annotations

from typing import Final

from amble.adapters.sql import tally
from amble.adapters.sql.admission import Admission
from amble.adapters.sql.books import REFETCH_CLASS, Books
from amble.adapters.sql.identity import SLOT_BITS
from amble.adapters.sql.ledger import Origin
from amble.adapters.sql.statements import load
from amble.domain.frontier import Applied, OriginOrder, RequeueOrder
from amble.domain.lifecycle import UrlEvent, UrlState, sources, target

_URL = load("url")
_REQUEUE, _ENDED, _IN_STATE, _IN_STATE_AT = (
    _URL[name] for name in ("requeue", "ended", "in_state", "in_state_at")
)
_AUDIT = load("work")["audit"]
_DEFAULT: Final = -1


class Orders:
    """The operations `set_origin` and `requeue`."""

    def __init__(self, books: Books, admission: Admission) -> None:
        self._books = books
        self._admission = admission

    def set_origin(self, order: OriginOrder) -> Applied:
        """Pause, resume, or set the limits of an origin, known or not; STALE when nothing would change."""
        ledger = self._books.ledger
        origin = ledger.by_key(order.origin) or self._admission.open_origin(order.origin)
        old = _settings(origin)
        if order.paused is not None:
            origin.paused = int(order.paused)
        if order.active_max is not None:
            origin.active_max = None if order.active_max == _DEFAULT else order.active_max
        if order.spacing_ms is not None:
            origin.spacing_ms = None if order.spacing_ms == _DEFAULT else order.spacing_ms
        new = _settings(origin)
        if new == old:
            return Applied.STALE
        origin.policy_version += 1
        ledger.changed(origin)
        self._audit(order.who, "set_origin", order.origin, old, new, order.why)
        return Applied.APPLIED

    def requeue(self, order: RequeueOrder) -> int:
        """Queue finished URLs again; how many."""
        books = self._books
        if order.state not in sources(UrlEvent.REQUEUE):
            raise ValueError(f"URLs in state {order.state} are not finished")
        rows = self._chosen(order)
        for url_id, queue_class in rows:
            books.execute(_REQUEUE, (url_id, books.now, order.why))
            if queue_class is None or queue_class == REFETCH_CLASS:
                books.queued(url_id >> SLOT_BITS, 1)
            books.ledger.changed(books.ledger.by_id(url_id >> SLOT_BITS))
        if rows:
            books.tally.move(order.state, target(UrlEvent.REQUEUE), len(rows))
            books.tally.add(tally.REQUEUED, len(rows))
        state = UrlState(order.state).name.lower()
        self._audit(order.who, "requeue", order.origin + order.path, state, f"{len(rows)} queued", order.why)
        return len(rows)

    def _chosen(self, order: RequeueOrder) -> list[tuple[int, int | None]]:
        execute = self._books.execute
        if order.origin:
            ids = self._range(order)
            rows = execute(_IN_STATE_AT, (order.state, order.limit, *ids)).fetchall() if ids else []
        elif order.state == UrlState.COMPLETE:
            rows = execute(_IN_STATE, (order.state, order.limit)).fetchall()
        else:
            rows = execute(_ENDED, (order.state, order.limit)).fetchall()
        chosen: list[tuple[int, int | None]] = rows
        return chosen

    def _range(self, order: RequeueOrder) -> tuple[int, int] | None:
        origin = self._books.ledger.by_key(order.origin)
        if origin is None:
            return None
        if not order.path:
            return origin.id << SLOT_BITS, (origin.id + 1) << SLOT_BITS
        url_id = self._admission.find(origin.id, order.path)
        return None if url_id is None else (url_id, url_id + 1)

    def _audit(self, who: str, what: str, subject: str, old: str, new: str, why: str) -> None:
        self._books.execute(_AUDIT, (self._books.now, who, what, subject, old, new, why))


def _settings(origin: Origin) -> str:
    """The settings that an order may change, for the audit."""

    def shown(value: int | None) -> str:
        return "default" if value is None else str(value)

    state = "paused" if origin.paused else "open"
    return f"{state}, active_max {shown(origin.active_max)}, spacing_ms {shown(origin.spacing_ms)}"
