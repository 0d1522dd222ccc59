"""When a URL is due again. A crawl from the command line visits once; robots.txt is refetched as its decision expires."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessClass:
    """Revisit policy: a target age with bounds. `target_ms` None: visit once."""

    name: str = "once"
    target_ms: int | None = None
    interval_min_ms: int = 3_600_000
    interval_max_ms: int = 90 * 86_400_000


ONCE = FreshnessClass()


def next_due_ms(freshness: FreshnessClass, *, checks: int, changes: int) -> int | None:
    """Milliseconds until the next visit, None for never.

    Pages that changed on most visits come back sooner than the target, pages that never changed later (at most four
    times the target), within the bounds of the class.
    """
    if freshness.target_ms is None:
        return None
    if checks <= 1:
        return max(freshness.interval_min_ms, min(freshness.interval_max_ms, freshness.target_ms))
    rate = changes / checks
    factor = 4.0 if rate == 0 else max(0.5, min(4.0, 0.5 / rate))
    return int(max(freshness.interval_min_ms, min(freshness.interval_max_ms, freshness.target_ms * factor)))
