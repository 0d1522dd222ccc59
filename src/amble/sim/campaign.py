"""Many seeds in several processes, what they reached, and the way from a failing seed to a story a person can read."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from amble.domain.frontier import ReserveOutcome
from amble.domain.lifecycle import UrlEvent, UrlState
from amble.sim.faults import PROFILES, Fault, Profile, smaller
from amble.sim.seed import Seed, Verdict

# States that nothing is in when the storm is over.
_PASSING = {UrlState.LEASED, UrlState.FETCHED, UrlState.PARSED}
# What a campaign of the default profile must reach besides the faults.
REQUIRED = (
    *(f"state.{state.name}" for state in UrlState if state not in _PASSING),
    *(f"transition.{event}" for event in UrlEvent),
    # A lease of an earlier epoch has lost its token too, so a start is refused as stale before its epoch is looked at.
    *(
        f"reserve.{outcome.name.lower()}"
        for outcome in ReserveOutcome
        if outcome is not ReserveOutcome.FENCED
    ),
    "lease.fenced",
    "stale",
    "withheld.near_duplicate",
)
# A campaign shorter than this promises nothing about what it reaches.
COVERAGE_SEEDS_MIN = 200
_TRIALS_MAX = 60
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Job:
    """One seed to play."""

    seed: int
    profile: str
    days: float | None = None
    storm_s: float | None = None
    off: frozenset[Fault] = frozenset()
    origins: int | None = None
    pages: int | None = None

    def profile_value(self) -> Profile:
        """The profile, with the world and the storm of this job's size."""
        profile = smaller(PROFILES[self.profile], origins=self.origins, pages=self.pages)
        return profile if self.days is None else replace(profile, storm_s=self.days * DAY_S)

    def play(self, *, keep_trace: bool = False) -> Verdict:
        """Play it here."""
        return Seed(
            self.seed, self.profile_value(), off=self.off, keep_trace=keep_trace, storm_s=self.storm_s
        ).run()


@dataclass(slots=True)
class Campaign:
    """What many seeds came to."""

    profile: str
    seeds: int = 0
    requests: int = 0
    lives: int = 0
    virtual_s: float = 0.0
    steps: int = 0
    failed: list[Verdict] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict) -> None:
        """One more."""
        self.seeds += 1
        self.requests += verdict.requests
        self.lives += verdict.lives
        self.virtual_s += verdict.virtual_s
        self.steps += verdict.steps
        self.faults.update(verdict.faults)
        self.reached.update(verdict.reached)
        if not verdict.passed:
            self.failed.append(verdict)

    def missing(self) -> list[str]:
        """What had to be reached and was not; a short campaign promises nothing."""
        profile = PROFILES[self.profile]
        if self.seeds < COVERAGE_SEEDS_MIN or not profile.must_reach:
            return []
        wanted = (*REQUIRED, *(f"fault.{fault}" for fault in sorted(profile.must_reach)))
        return [name for name in wanted if not self.reached[name]]


def play_all(jobs: Sequence[Job], *, processes: int | None = None) -> Iterator[Verdict]:
    """The verdicts in the order of the jobs. A single job is played here."""
    count = min(len(jobs), processes or len(os.sched_getaffinity(0)))
    if count <= 1:
        for job in jobs:
            yield job.play()
        return
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        yield from pool.imap(_play, jobs, chunksize=4)


def _play(job: Job) -> Verdict:
    return job.play()


def shrink(job: Job) -> tuple[Job, Verdict]:
    """The smallest job found that still breaks the same promise, and its verdict with the trace."""
    first = job.play()
    judge = first.violations[0].judge if first.violations else ""
    trials = 0

    def still_fails(candidate: Job) -> bool:
        nonlocal trials
        trials += 1
        return any(violation.judge == judge for violation in candidate.play().violations)

    for candidate in _without_faults(job, first):
        if trials >= _TRIALS_MAX:
            break
        merged = replace(job, off=job.off | candidate)
        if still_fails(merged):
            job = merged
    for storm_s in (first.violations[0].at_s + 1.0,) if first.violations else ():
        shorter = replace(job, storm_s=storm_s)
        if still_fails(shorter):
            job = shorter
    for origins, pages in ((1, 4), (2, 6), (2, 12), (3, 20)):
        small = replace(job, origins=origins, pages=pages)
        if trials < _TRIALS_MAX and still_fails(small):
            job = small
            break
    return job, job.play(keep_trace=True)


def _without_faults(job: Job, verdict: Verdict) -> Iterator[frozenset[Fault]]:
    """First all faults that did not happen anyway, then each of the others alone."""
    happened = [Fault(name) for name in verdict.faults]
    yield frozenset(fault for fault in Fault if fault not in happened)
    for fault in happened:
        yield frozenset({fault})


def story(verdict: Verdict, *, around: int = 40) -> list[str]:
    """The trace up to the first complaint: time, actor, what, why. The beginning is left out when it is long."""
    lines = list(verdict.trace)
    end = next((number for number, line in enumerate(lines) if " judge " in line[:24]), len(lines) - 1)
    start = max(0, end - around)
    told = lines[start : end + 1]
    return [f"... {start} lines before", *told] if start else told
