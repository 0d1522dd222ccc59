"""How a whole fleet stands: the counters of all its servers together, and whether anything is left to do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from amble.adapters.postgres.reports import PostgresReports
from amble.adapters.postgres.servers import budget_part
from amble.app.progress import EndReason
from amble.domain.errors import AmbleError
from amble.domain.report import Status

T = TypeVar("T")

_NO_SUMS = frozenset({"now_ms", "epoch", "owner", "next_wake_ms"})


class FleetLook:
    """Questions to all servers of a fleet, from a thread; a connection that is lost is made anew."""

    def __init__(self, dsns: Sequence[str], wait_s_max: float, pages_max: int | None = None) -> None:
        """`wait_s_max`: what becomes due later than that is not waited for. `pages_max`: of all servers together."""
        self._dsns = dsns
        self._wait_s_max = wait_s_max
        self._pages_max = pages_max
        self._reports: dict[str, PostgresReports] = {}

    async def status(self) -> Status | None:
        """Counters of all partitions. Raises StoreUnavailable, StoreBroken."""
        return merged(await self._parts())

    async def ended(self) -> EndReason | None:
        """Why nothing goes on: nothing may be fetched that is due soon, is under way, or is between partitions.

        None: something goes on, or a server does not answer. Nothing new can set out once nothing is under way, and what had set out before has arrived when nothing is
        between partitions; so the second look at the queues is the one that counts.
        """
        try:
            first = await self._parts()
            if any(part.in_flight or part.open_manifests for part in first):
                return None
            if any(map(any, await asyncio.to_thread(self._ask, PostgresReports.forwarded))):
                return None
            second = await self._parts()
        except AmbleError:
            return None
        if [part.pages for part in second] != [part.pages for part in first]:
            return None
        return end_of(second, self._wait_s_max, self._pages_max)

    async def _parts(self) -> Sequence[Status]:
        return await asyncio.to_thread(self._ask, PostgresReports.status)

    def _ask(self, question: Callable[[PostgresReports], T]) -> list[T]:
        return [self._ask_one(dsn, question) for dsn in self._dsns]

    def _ask_one(self, dsn: str, question: Callable[[PostgresReports], T]) -> T:
        if dsn not in self._reports:
            self._reports[dsn] = PostgresReports(dsn)
        try:
            return question(self._reports[dsn])
        except AmbleError:
            self._reports.pop(dsn).close()
            raise

    async def close(self) -> None:
        """Let go of the connections."""
        for reports in self._reports.values():
            await asyncio.to_thread(reports.close)


def end_of(parts: Sequence[Status], wait_s_max: float, pages_max: int | None) -> EndReason | None:
    """Why a fleet whose servers stand like this is done, None while it is not. Each has its part of the page budget."""
    if not parts or any(part.in_flight or part.open_manifests for part in parts):
        return None
    spent = False
    for number, part in enumerate(parts):
        if not part.queued:
            continue
        if pages_max is not None and part.pages >= budget_part(pages_max, number, len(parts)):
            spent = True
        elif part.next_wake_ms is not None and (part.next_wake_ms - part.now_ms) / 1000 <= wait_s_max:
            return None
    return EndReason.PAGE_BUDGET if spent else EndReason.FINISHED


def merged(parts: Sequence[Status]) -> Status | None:
    """One status out of those of several servers: sums, the soonest wake, the latest epoch."""
    if len(parts) < 2:
        return parts[0] if parts else None
    now_ms = max(part.now_ms for part in parts)
    waits = [part.next_wake_ms - part.now_ms for part in parts if part.next_wake_ms is not None]
    facts: dict[str, Any] = {
        name: _sum([getattr(part, name) for part in parts])
        for name in Status.__struct_fields__
        if name not in _NO_SUMS
    }
    facts |= {
        "now_ms": now_ms,
        "epoch": max(part.epoch for part in parts),
        "owner": ", ".join(dict.fromkeys(part.owner for part in parts if part.owner)),
        "next_wake_ms": now_ms + min(waits) if waits else None,
    }
    return Status(**facts)


def _sum(values: Sequence[Any]) -> Any:
    """Of numbers, or of dictionaries of them, the largest first."""
    if not isinstance(values[0], dict):
        return sum(values)
    total: Counter[str] = Counter()
    for counts in values:
        total.update(counts)
    return dict(total.most_common())
