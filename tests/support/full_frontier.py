"""A crawl folder with many known URLs, filled by the production store: admission, robots.txt decisions, nothing else.

What is left looks like a crawl that has found much and fetched only the robots.txt of each origin: every page is due.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from amble.adapters.sql import messages as m
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.sqlite import SqliteStore
from amble.domain.attempt import Edge, Lease, RobotsState, UrlKind
from amble.domain.fetched import BodyRef, Fetched, Timings
from amble.domain.frontier import (
    AdmitBatch,
    Candidate,
    Complete,
    LeaseAsk,
    OriginEffect,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    TakeoverAsk,
)
from amble.domain.robots import RobotsOutcome

HOUR = 3_600_000
# Filling happens this long ago, so that by now every origin has rested; robots.txt stay valid for a day after.
AGO_MS = 2 * HOUR
ORIGINS_PER_COMMIT = 20
LEASES_PER_COMMIT = 200
_REF = BodyRef(1, 0, 1)
_ROBOTS_ANSWER = Fetched(404, _REF, _REF, None, 0, 200, "text/plain", "127.0.0.1", Timings(total_ms=5))


def fill(frontier: Path, origins: Iterable[str], pages: int) -> None:
    """Make the file: for each origin "/" and /a/1.html … below `pages`, admitted and due, and its robots.txt decided."""
    settings = StoreSettings(
        urls_per_origin_start=10**9,
        urls_per_origin_max=10**9,
        default_spacing_ms=HOUR,
        origins_cached_max=10**9,
    )
    ago_ms = AGO_MS
    store = SqliteStore(frontier, settings, now_ms=lambda: int(time.time() * 1000) - ago_ms)
    try:
        count = 0
        for group in _groups(origins, ORIGINS_PER_COMMIT):
            count += len(group)
            _apply(store, [m.Admit(AdmitBatch(_candidates(origin, pages))) for origin in group])
            store.checkpoint(quiet=False)
        _decide_robots(store, count)
        # The store's clock continues where the last write left it: bring it to now.
        ago_ms = 0
        _apply(store, [m.Admit(AdmitBatch([], known=1))])
    finally:
        store.close()


def _groups(items: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group


def _candidates(origin: str, pages: int) -> list[Candidate]:
    paths = ["/", *(f"/a/{number}.html" for number in range(1, pages))]
    return [
        Candidate(origin, path, int(UrlKind.PAGE), min(5, depth), depth, 0, int(Edge.ANCHOR), 0)
        for path, depth in zip(paths, [0, *[1 + n % 4 for n in range(pages)]], strict=False)
    ]


def _decide_robots(store: SqliteStore, origins: int) -> None:
    (takeover,) = _apply(store, [m.TakeOver(TakeoverAsk("fill"))])
    left = origins
    while left:
        ask = LeaseAsk(takeover.epoch, 1, LEASES_PER_COMMIT, 10 * HOUR)
        (reply,) = _apply(store, [m.TakeLease(ask)])
        assert reply.leases, f"{left} origins without a robots.txt to fetch"
        assert all(lease.kind == UrlKind.ROBOTS for lease in reply.leases)
        _apply(store, [step for lease in reply.leases for step in _robots(lease, takeover.epoch)])
        left -= len(reply.leases)


def _robots(lease: Lease, epoch: int) -> list[m.AnyOperation]:
    """Fetched, read and decided: there is none."""
    state = RobotsState(int(RobotsOutcome.ALLOW_ALL))
    return [
        m.Reserve(ReserveAsk(lease.key, epoch, lease.origin, 0, 60_000, -1, 1)),
        m.KeepFetched(RecordFetched(lease.key, _ROBOTS_ANSWER, OriginEffect(5, HOUR, 0, 0), 600_000)),
        m.KeepParsed(RecordParsed(lease.key, 1, _REF, 0, "error")),
        m.Finish(Complete(lease.key, 1, False, robots=state, robots_ttl_ms=26 * HOUR, withheld="not_a_page")),
    ]


def _apply(store: SqliteStore, operations: list[m.AnyOperation]) -> list[object]:
    replies = store.apply(operations)
    refused = [reply for reply in replies if isinstance(reply, m.Refused)]
    assert not refused, refused
    return replies
