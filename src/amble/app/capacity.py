"""Capacity of a crawl that exists: its origins and what fetching them was like, put into the estimate.

Reads the frontier and the sizes of the archive's files; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from amble.app.config import CrawlConfig
from amble.app.layout import Folder
from amble.app.reading import open_reports
from amble.domain.capacity import Workload
from amble.domain.policy import OriginPolicy
from amble.domain.report import FetchSample, OriginLine, Status
from amble.domain.supply import DAY_S, FolderEstimate, Survey, estimate_folder, supply_of

# Origins are read from the store in pieces of this many.
_PIECE: Final = 1_000

MEASURED, SETTING, GIVEN, DEFAULT = "measured here", "setting", "given", "default"


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """The estimate of a crawl folder, where each assumption comes from, and what was done so far."""

    estimate: FolderEstimate
    sources: Mapping[str, str]
    pages_done: int
    fetches_sampled: int


def plan_folder(root: Path, config: CrawlConfig, given: Mapping[str, float]) -> FolderPlan:
    """Whether the crawl in `root` may reach `given` pages more in `given` days. Raises CrawlFolderUnusable.

    `given` are inputs by name; they count before what is measured or set. pages and days must be among them.
    """
    assumed: dict[str, tuple[float, str]] = {
        name: (value, SETTING) for name, value in _settings(config).items()
    }
    with open_reports(root) as reports:
        status, sample = reports.status(), reports.fetch_sample()
        measured = {**_measured(sample), **_totals(status, _archive_bytes(root))}
        assumed |= {name: (value, MEASURED) for name, value in measured.items()}
        assumed |= {name: (value, GIVEN) for name, value in given.items()}
        workload = Workload(**{name: value for name, (value, _) in assumed.items()})
        policy = _policy(config.policy.origin, given)
        survey = Survey(time_s=workload.days * DAY_S)

        def piece(after: int) -> list[OriginLine]:
            return reports.origins(limit=_PIECE, after=after)

        after, lines = 0, piece(0)
        while lines:
            for line in lines:
                survey.add(supply_of(line, policy, config.policy.urls))
            after = lines[-1].origin_id
            lines = piece(after)
    return FolderPlan(
        estimate=estimate_folder(workload, survey),
        sources={name: source for name, (_, source) in assumed.items()},
        pages_done=status.pages,
        fetches_sampled=sample.fetches,
    )


def _settings(config: CrawlConfig) -> dict[str, float]:
    origin = config.policy.origin
    return {
        "spacing_s": origin.spacing_ms / 1000,
        "adaptive_factor": 0.0 if origin.delay_fixed else origin.adaptive_factor,
        "adaptive_cap_s": origin.adaptive_cap_ms / 1000,
        "active_max": float(origin.active_max),
        "concurrency": float(config.concurrency),
    }


def _policy(origin: OriginPolicy, given: Mapping[str, float]) -> OriginPolicy:
    """The crawl's policy with what the command line supposes instead."""
    factor = given.get("adaptive_factor", 0.0 if origin.delay_fixed else origin.adaptive_factor)
    return replace(
        origin,
        spacing_ms=round(1000 * given.get("spacing_s", origin.spacing_ms / 1000)),
        adaptive_cap_ms=round(1000 * given.get("adaptive_cap_s", origin.adaptive_cap_ms / 1000)),
        active_max=max(1, round(given.get("active_max", origin.active_max))),
        adaptive_factor=factor,
        delay_fixed=factor == 0.0,
    )


def _measured(sample: FetchSample) -> dict[str, float]:
    """What the sample says about fetching; nothing where nothing was fetched."""
    if not sample.fetches:
        return {}
    unanswered = 1.0 - sample.answered_share
    found = {
        "service_s": sample.answered_ms / 1000,
        "timeout_share": unanswered if unanswered > 1e-9 else 0.0,
        "timeout_s": sample.unanswered_ms / 1000,
        "error_share": sample.error_share,
        "page_bytes": sample.body_bytes,
        "links_per_page": sample.links,
    }
    may_be_none = ("timeout_share", "error_share", "links_per_page")
    return {name: value for name, value in found.items() if value > 0 or name in may_be_none}


def _totals(status: Status, archive_bytes: int) -> dict[str, float]:
    found: dict[str, float] = {}
    if status.pages:
        found["known_per_page"] = status.urls / status.pages
    if status.body_bytes and archive_bytes:
        # What the archive's files hold beside the bodies is in this ratio already.
        found |= {"compression": status.body_bytes / archive_bytes, "facts_bytes": 0.0}
    return found


def _archive_bytes(root: Path) -> int:
    return sum(_sizes(Folder(root=root).archive))


def _sizes(archive: Path) -> Iterator[int]:
    if archive.is_dir():
        for path in archive.iterdir():
            try:
                yield path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue  # a segment that was being renamed
