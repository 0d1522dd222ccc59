"""What known origins may give in a time, without asking any of them for more than its delay permits.

Arithmetic only. An origin is a line: one start per interval until its URLs are used up; a crawl is the sum of lines.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf
from typing import Final

from amble.domain.capacity import (
    Change,
    Estimate,
    Lever,
    Outcome,
    Verdict,
    Workload,
    concurrency_change,
    figures_of,
    starts_needed,
)
from amble.domain.policy import OriginPolicy, UrlLimits
from amble.domain.politeness import effective_delay_ms
from amble.domain.report import OriginLine

# How many of the origins that hold a crawl up are named.
BOTTLENECKS_MAX: Final = 10
DAY_S: Final = 86_400.0


class SupplyCurve:
    """Starts that origins permit over time: the sum over origins of min(amount, time / interval)."""

    def __init__(self, loads: Iterable[tuple[float, float]]) -> None:
        """`loads`: (interval in seconds, URLs to start; inf without end) per origin."""
        drained = sorted(
            (interval * amount, amount, 1.0 / interval) for interval, amount in loads if amount > 0
        )
        self._times = array("d", (time for time, _, _ in drained))
        self._amounts = array("d", (amount for _, amount, _ in drained))
        self._rates = array("d", (rate for _, _, rate in drained))
        # The rate of an origin and all that take longer, summed from the end: subtracting would lose the small ones.
        self._rates_from = array("d", accumulate(reversed(self._rates)))
        self._rates_from.reverse()

    def within(self, seconds: float) -> float:
        """Starts in the first `seconds`."""
        rows = zip(self._times, self._amounts, self._rates, strict=True)
        return sum(amount if time <= seconds else seconds * rate for time, amount, rate in rows)

    def seconds_for(self, starts: float) -> float:
        """The soonest time by which that many starts are permitted; inf when the URLs do not suffice."""
        done = 0.0
        for place, rate in enumerate(self._rates_from):
            seconds = (starts - done) / rate
            if seconds <= self._times[place]:
                return max(0.0, seconds)
            done += self._amounts[place]
        if starts > done:
            return inf
        return self._times[-1] if self._times else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginSupply:
    """One origin: its interval between starts, URLs that are queued, and URLs that it may still come to hold."""

    origin: str
    interval_s: float
    queued: int
    may_hold: int
    cause: str  # what sets the interval: "spacing", "crawl_delay", "adaptive", "duration"
    paused: bool = False

    def surplus(self, seconds: float) -> float:
        """Queued URLs that it does not permit to be started in time."""
        return max(0.0, self.queued - seconds / self.interval_s)


def supply_of(line: OriginLine, policy: OriginPolicy, limits: UrlLimits) -> OriginSupply:
    """The supply of an origin by its ledger, under the delay that the gate would keep."""
    spacing_ms = policy.spacing_ms if line.spacing_ms is None else line.spacing_ms
    active_max = policy.active_max if line.active_max is None else line.active_max
    delay_ms = effective_delay_ms(
        policy, spacing_ms=spacing_ms, crawl_delay_ms=line.crawl_delay_ms, last_fetch_ms=line.last_fetch_ms
    )
    duration_ms = line.last_fetch_ms / max(1, active_max)
    interval_ms = max(float(delay_ms), duration_ms, 1.0)
    if interval_ms > delay_ms:
        cause = "duration"
    elif delay_ms == spacing_ms:
        cause = "spacing"
    else:
        cause = (
            "crawl_delay" if delay_ms == min(line.crawl_delay_ms, policy.crawl_delay_cap_ms) else "adaptive"
        )
    room = max(0, limits.urls_per_origin_max - line.urls)
    return OriginSupply(
        origin=line.origin,
        interval_s=interval_ms / 1000,
        queued=line.queued,
        may_hold=line.queued + room if line.queued else 0,
        cause=cause,
        paused=line.paused,
    )


@dataclass(slots=True)
class Survey:
    """Origins added one by one; only three numbers of each are kept, and the worst few by name."""

    time_s: float
    origins: int = 0
    eligible: int = 0
    paused_queued: int = 0
    queued: int = 0
    surplus: float = 0.0
    surplus_origins: int = 0
    interval_sum_s: float = 0.0
    _intervals: array[float] = field(default_factory=lambda: array("d"))
    _queued: array[float] = field(default_factory=lambda: array("d"))
    _may_hold: array[float] = field(default_factory=lambda: array("d"))
    _worst: list[tuple[float, int, OriginSupply]] = field(default_factory=list)

    def add(self, supply: OriginSupply) -> None:
        """Count one origin. A paused one gives nothing."""
        self.origins += 1
        if supply.paused:
            self.paused_queued += supply.queued
            return
        if not supply.queued:
            return
        self.eligible += 1
        self.queued += supply.queued
        self.interval_sum_s += supply.interval_s
        self._intervals.append(supply.interval_s)
        self._queued.append(supply.queued)
        self._may_hold.append(supply.may_hold)
        surplus = supply.surplus(self.time_s)
        if surplus > 0:
            self.surplus += surplus
            self.surplus_origins += 1
            item = (surplus, -self.origins, supply)
            if len(self._worst) < BOTTLENECKS_MAX:
                heapq.heappush(self._worst, item)
            else:
                heapq.heappushpop(self._worst, item)

    @property
    def interval_mean_s(self) -> float:
        """Mean interval of the eligible origins."""
        return self.interval_sum_s / self.eligible if self.eligible else 0.0

    @property
    def bottlenecks(self) -> tuple[OriginSupply, ...]:
        """The origins that hold most URLs that cannot be started in time, the worst first."""
        return tuple(supply for _, _, supply in sorted(self._worst, reverse=True))

    def known(self) -> SupplyCurve:
        """What the URLs that are queued now permit."""
        return SupplyCurve(zip(self._intervals, self._queued, strict=True))

    def open(self) -> SupplyCurve:
        """The same if discovery never runs dry at an origin that still has queued URLs."""
        return SupplyCurve(zip(self._intervals, self._may_hold, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderEstimate:
    """An estimate for the origins of a crawl. Starts, not pages: `known` and `ceiling` compare with starts_needed."""

    estimate: Estimate
    origins: int
    eligible: int
    queued: int
    paused_queued: int
    interval_mean_s: float
    known_starts: float
    ceiling_starts: float
    # Days until every URL that is queued now may have been started.
    drain_days: float
    surplus: float
    surplus_origins: int
    bottlenecks: tuple[OriginSupply, ...]


def estimate_folder(workload: Workload, survey: Survey) -> FolderEstimate:
    """Whether the surveyed origins permit the target, with the figures of the whole."""
    workload = replace(workload, origins=0.0)  # they are not all alike: the survey says what they permit
    figures = figures_of(workload)
    value = {figure.line.name: figure.value for figure in figures}
    known, ceiling = survey.known(), survey.open()
    verdict = _verdict(workload, survey, known, ceiling, value["peak_in_flight"])
    return FolderEstimate(
        estimate=Estimate(workload=workload, figures=figures, verdict=verdict),
        origins=survey.origins,
        eligible=survey.eligible,
        queued=survey.queued,
        paused_queued=survey.paused_queued,
        interval_mean_s=survey.interval_mean_s,
        known_starts=known.within(survey.time_s),
        ceiling_starts=ceiling.within(survey.time_s),
        drain_days=known.seconds_for(survey.queued) / DAY_S,
        surplus=survey.surplus,
        surplus_origins=survey.surplus_origins,
        bottlenecks=survey.bottlenecks,
    )


def _verdict(
    workload: Workload, survey: Survey, known: SupplyCurve, ceiling: SupplyCurve, in_flight: float
) -> Verdict:
    needed, time_s = starts_needed(workload), survey.time_s
    now, most = known.within(time_s), ceiling.within(time_s)
    if most < needed:
        outcome, possible, changes = Outcome.NOT_POLITELY, most, _changes(workload, survey, ceiling, needed)
    elif now < needed:
        outcome, possible = Outcome.NEEDS_DISCOVERY, now
        changes = (Change(Lever.URLS, now, needed),)
    else:
        changes = concurrency_change(workload, in_flight)
        outcome, possible = Outcome.NEEDS_CONCURRENCY if changes else Outcome.REACHABLE, now
    return Verdict(outcome=outcome, starts_needed=needed, starts_possible=possible, changes=changes)


def _changes(workload: Workload, survey: Survey, ceiling: SupplyCurve, needed: float) -> tuple[Change, ...]:
    """What would make a target reachable that is not: more origins like these, more time, shorter intervals, less."""
    most, seconds = ceiling.within(survey.time_s), ceiling.seconds_for(needed)
    changes = []
    if most > 0:
        changes.append(Change(Lever.ORIGINS, survey.eligible, survey.eligible * needed / most))
    if 0 < seconds < inf:
        changes.append(Change(Lever.DAYS, workload.days, seconds / DAY_S))
        shorter = survey.interval_mean_s * survey.time_s / seconds
        changes.append(Change(Lever.INTERVAL, survey.interval_mean_s, shorter))
    changes.append(Change(Lever.PAGES, workload.pages, workload.pages * most / needed))
    return tuple(changes)
