"""How an estimate looks to people and to programs: the verdict first, then figures with formulas, then assumptions.

Pure text. Every figure stands with the formula that it was computed by, in the names of the assumptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from amble.app.capacity import DEFAULT, FolderPlan
from amble.domain.assumptions import INPUTS, Input
from amble.domain.capacity import Change, Estimate, Figure, Lever, Outcome, Verdict
from amble.domain.supply import FolderEstimate, OriginSupply
from amble.faces import text
from amble.faces.exits import ExitCode

_SCALES = ((1e15, " quadrillion"), (1e12, " trillion"), (1e9, " billion"), (1e6, " million"))
_BITS = ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"))
_CAUSES = {
    "spacing": "the spacing of your policy",
    "crawl_delay": "Crawl-delay in its robots.txt",
    "adaptive": "it answers slowly, and a slow origin gets longer delays",
    "duration": "it answers so slowly that its slot is never free",
}


def exit_code(verdict: Verdict) -> int:
    """FOUND where the target is out of reach as things are; an open question is no bad answer."""
    bad = verdict.outcome in (Outcome.NOT_POLITELY, Outcome.NEEDS_CONCURRENCY)
    return int(ExitCode.FOUND if bad else ExitCode.OK)


def number(value: float) -> str:
    """A count with three digits that count: 12.4, 6,200, 1.21 million."""
    for scale, word in _SCALES:
        if abs(value) >= scale * 0.9995:
            return f"{_three(value / scale)}{word}"
    return _three(value) if abs(value) < 999.5 else f"{value:,.0f}"


def _three(value: float) -> str:
    if value == round(value) and abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def quantity(value: float, unit: str) -> str:
    """A value with its unit."""
    match unit:
        case "B":
            return text.size(round(value)) if value >= 1_000 else f"{number(value)} B"
        case "B/s":
            return f"{text.size(round(value))}/s"
        case "bit/s":
            return next(
                (f"{_three(value / scale)} {name}" for scale, name in _BITS if value >= scale),
                f"{value:.0f} bit/s",
            )
        case "/s":
            return f"{number(value)}/s"
        case "s":
            return f"{value:.3g} s"
        case "share":
            return f"{100 * value:.3g} %"
        case _:
            return f"{number(value)} {unit}".strip()


def lines(estimate: Estimate, sources: Mapping[str, str]) -> Iterator[str]:
    """An estimate for origins that are all alike."""
    yield from _head(estimate)
    yield from _changes(estimate.verdict.changes)
    yield from _figures(estimate.figures)
    yield from _assumptions(estimate, sources)


def folder_lines(plan: FolderPlan, folder: Path) -> Iterator[str]:
    """An estimate for the origins of a crawl."""
    found = plan.estimate
    yield f"crawl         {text.safe(str(folder))}, {text.count(plan.pages_done)} pages so far"
    yield from _head(found.estimate)
    yield from _changes(found.estimate.verdict.changes)
    yield ""
    yield "Its origins"
    yield from _origins(found)
    if found.bottlenecks:
        yield ""
        yield f"Origins that hold it up: {_many(found)}"
        yield from _bottlenecks(found.bottlenecks, found.estimate.workload.days * 86_400)
    yield from _figures(found.estimate.figures)
    yield from _assumptions(found.estimate, plan.sources)
    if plan.fetches_sampled:
        yield f"  measured over a sample of {text.plural(plan.fetches_sampled, 'fetch', 'fetches')}"


def _head(estimate: Estimate) -> Iterator[str]:
    workload, verdict = estimate.workload, estimate.verdict
    yield f"target        {number(workload.pages)} pages in {number(workload.days)} days"
    needed, possible = number(verdict.starts_needed), number(verdict.starts_possible)
    match verdict.outcome:
        case Outcome.REACHABLE:
            said = f"reachable politely: {needed} starts are needed, the origins permit {possible}"
        case Outcome.NEEDS_ORIGINS:
            said = (
                f"reachable politely if {number(verdict.changes[0].need)} origins are eligible all the time"
            )
        case Outcome.NEEDS_DISCOVERY:
            said = (
                f"open: {needed} starts are needed, the URLs that are queued now give {possible}; "
                "the origins would permit it if more of their URLs are found"
            )
        case Outcome.NEEDS_CONCURRENCY:
            said = "reachable politely, but not with so few requests at once"
        case Outcome.NOT_POLITELY:
            said = f"NOT reachable politely: {needed} starts are needed, the origins permit {possible}"
    yield f"verdict       {said}"


def _changes(changes: Iterable[Change]) -> Iterator[str]:
    for place, change in enumerate(changes):
        label = "to change" if place == 0 else "or"
        yield f"{label:<14}{_change(change)}"


def _change(change: Change) -> str:
    have, need = number(change.have), number(change.need)
    match change.lever:
        case Lever.ORIGINS:
            return f"origins: {need} instead of {have}" if change.have else f"origins: find {need}"
        case Lever.DAYS:
            return f"days: {need} instead of {have}"
        case Lever.INTERVAL:
            return (
                f"interval between starts: {change.need:.3g} s instead of {change.have:.3g} s; "
                "only the sites can permit that, more machines cannot"
            )
        case Lever.PAGES:
            return f"pages: {need} instead of {have}"
        case Lever.URLS:
            return f"known URLs that may be started in time: {need} instead of {have}; discovery has to find them"
        case Lever.CONCURRENCY:
            return f"crawl.concurrency: {need} instead of {have}"


def _figures(figures: Iterable[Figure]) -> Iterator[str]:
    for group, members in groupby(figures, key=lambda figure: figure.line.group):
        rows = [figure for figure in members if figure.value]
        if rows:
            yield ""
            yield group
        for figure in rows:
            shown = f"{figure.line.title:<40}{quantity(figure.value, figure.line.unit):>16}"
            yield f"  {shown}   {figure.line.name} = {figure.line.formula.text}"


def _assumptions(estimate: Estimate, sources: Mapping[str, str]) -> Iterator[str]:
    yield ""
    yield "Assumptions"
    for name, item in INPUTS.items():
        if name in ("pages", "days") or (name == "origins" and not estimate.workload.origins):
            continue
        value = quantity(getattr(estimate.workload, name), item.unit)
        yield f"  {name:<20}{value:>20}   {sources.get(name, DEFAULT):<14}{_why(item)}"


def _why(item: Input) -> str:
    return item.why.rstrip(".")


def _origins(found: FolderEstimate) -> Iterator[str]:
    yield f"  {'known':<40}{text.count(found.origins):>16}"
    yield f"  {'with queued URLs':<40}{text.count(found.eligible):>16}"
    yield f"  {'queued URLs':<40}{text.count(found.queued):>16}"
    if found.paused_queued:
        yield f"  {'queued at paused origins, not counted':<40}{text.count(found.paused_queued):>16}"
    if not found.eligible:
        return
    yield f"  {'mean interval between starts':<40}{quantity(found.interval_mean_s, 's'):>16}"
    for title, value, formula in (
        ("starts in time from what is queued", found.known_starts, "sum of min(queued, time / interval)"),
        (
            "starts in time if discovery goes on",
            found.ceiling_starts,
            "sum of min(URLs it may hold, time / interval)",
        ),
        ("days until all of the queue is started", found.drain_days, "max of queued * interval"),
    ):
        yield f"  {title:<40}{number(value):>16}   {formula}"


def _many(found: FolderEstimate) -> str:
    return (
        f"{text.plural(found.surplus_origins, 'origin')} with {number(found.surplus)} URLs "
        "more than may be started in time"
    )


def _bottlenecks(supplies: Iterable[OriginSupply], time_s: float) -> Iterator[str]:
    for supply in supplies:
        days = supply.queued * supply.interval_s / 86_400
        yield (
            f"  {text.safe(supply.origin):<40}  {text.count(supply.queued)} queued, one in {supply.interval_s:.3g} s: "
            f"{number(days)} days, {number(supply.surplus(time_s))} too late; {_CAUSES[supply.cause]}"
        )


# --- for programs ------------------------------------------------------------------------------------------------


def facts(estimate: Estimate, sources: Mapping[str, str]) -> dict[str, Any]:
    """An estimate as one JSON object."""
    return {
        "verdict": _verdict_facts(estimate.verdict),
        "figures": {
            figure.line.name: {
                "value": figure.value,
                "unit": figure.line.unit,
                "formula": figure.line.formula.text,
            }
            for figure in estimate.figures
        },
        "assumptions": {
            name: {
                "value": getattr(estimate.workload, name),
                "unit": item.unit,
                "source": sources.get(name, DEFAULT),
            }
            for name, item in INPUTS.items()
        },
    }


def _verdict_facts(verdict: Verdict) -> dict[str, Any]:
    return {
        "outcome": verdict.outcome.value,
        "starts_needed": verdict.starts_needed,
        "starts_possible": verdict.starts_possible,
        "changes": [
            {"change": change.lever.value, "have": change.have, "need": change.need}
            for change in verdict.changes
        ],
    }


def folder_facts(plan: FolderPlan, folder: Path) -> dict[str, Any]:
    """The estimate of a crawl folder as one JSON object."""
    found = plan.estimate
    return {
        "folder": str(folder),
        "pages_done": plan.pages_done,
        "origins": found.origins,
        "origins_eligible": found.eligible,
        "queued": found.queued,
        "queued_paused": found.paused_queued,
        "interval_mean_s": found.interval_mean_s,
        "starts_known": found.known_starts,
        "starts_ceiling": found.ceiling_starts,
        "drain_days": found.drain_days,
        "surplus_urls": found.surplus,
        "surplus_origins": found.surplus_origins,
        "bottlenecks": [
            {
                "origin": supply.origin,
                "queued": supply.queued,
                "interval_s": supply.interval_s,
                "cause": supply.cause,
                "too_late": supply.surplus(found.estimate.workload.days * 86_400),
            }
            for supply in found.bottlenecks
        ],
        **facts(found.estimate, plan.sources),
    }
