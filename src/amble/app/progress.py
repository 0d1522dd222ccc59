"""What a running crawl says about itself, and what it hands back at its end. Values only.

Every face draws from these two: the terminal display, the plain and JSON lines, the summary, the exit code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class EndReason(StrEnum):
    """Why a crawl stopped running."""

    FINISHED = "finished"  # nothing is queued and nothing is in flight
    PAGE_BUDGET = "page_budget"  # the page budget is spent; more may be queued
    TIME_BUDGET = "time_budget"  # the time budget is spent; more may be queued
    STOPPED = "stopped"  # the operator asked it to stop, and everything in flight is recorded
    WAITING = "waiting"  # what is queued becomes due later than the crawl is willing to wait
    TROUBLE = "trouble"  # the store, the archive or the parsers stayed unusable, or pages stumbled


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look at a running crawl. Counts cover the whole crawl folder, rates cover the last few seconds.

    `failed` and `excluded` count URLs that ended so; `origins_waiting` maps a reason (domain/decision.Reason) to how
    many origins with queued work wait for it. `binding_limit` names, in words, what holds the rate down now ("" when
    nothing does). `trouble` is None, or one line saying what is broken and what amble waits for.
    """

    pages: int = 0
    pages_per_s: float = 0.0
    queued: int = 0
    in_flight: int = 0
    active: int = 0
    failed: int = 0
    excluded: int = 0
    bytes: int = 0
    origins_ready: int = 0
    origins_waiting: dict[str, int] = field(default_factory=dict)
    binding_limit: str = ""
    trouble: str | None = None
    elapsed_s: float = 0.0
    parse_backlog: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount:
    """How often one reason (a Reason, Category or Withheld word) ended, refused or withheld a URL."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlResult:
    """The end of one run. `pages`, `failed`, `excluded`, `queued`, `bytes` cover the folder; `pages_run` this run only.

    `next_due_s`: seconds until the next queued URL becomes due (None: nothing is queued, or not known).
    `refused`: why candidate links were not admitted; `failures`: why attempts failed; `exclusions`: why admitted
    URLs may not be fetched; `withheld`: why complete ones are no documents. Each list is the most frequent first. `trouble` says what was broken at the end, "" for
    nothing; `unusable`: it was the frontier, the archive or the parsers; `damaged`: files are not what was written, so
    that the same command does not help.
    """

    reason: EndReason
    pages: int = 0
    pages_run: int = 0
    documents: int = 0
    queued: int = 0
    failed: int = 0
    excluded: int = 0
    bytes: int = 0
    elapsed_s: float = 0.0
    next_due_s: float | None = None
    failures: tuple[ReasonCount, ...] = ()
    exclusions: tuple[ReasonCount, ...] = ()
    refused: tuple[ReasonCount, ...] = ()
    withheld: tuple[ReasonCount, ...] = ()
    trouble: str = ""
    unusable: bool = False
    damaged: bool = False
