"""The scale model from the command line: what was asked for, checked, and how its report looks to people."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from amble.app.config import complain
from amble.faces import output, text
from amble.faces.estimates import number, quantity
from amble.faces.exits import ExitCode
from amble.faces.plan import number_of
from amble.sim.scale import STARVED_DELAYS, ClassAges, ScaleAsk, ScaleModel, ScaleReport

_ENDED = {
    "days": "all of its days are over",
    "idle": "nothing is left to do",
    "seconds": "the real time that it may take is up",
}
_CLASSES = {
    0: "robots.txt",
    1: "seeds, redirects",
    2: "one link deep",
    3: "two or three links deep",
    4: "up to seven links deep",
    5: "deeper",
    6: "retries",
    7: "revisits",
}

# option -> (field of ScaleAsk, whether it is a whole number, what it accepts)
OPTIONS = {
    "--seed": ("seed", True, 0.0, "a whole number, 0 or more"),
    "--origins": ("origins", True, 1.0, "a whole number, 1 or more"),
    "--days": ("days", False, 1e-6, "a number, more than 0"),
    "--largest": ("largest", True, 1.0, "a whole number, 1 or more"),
    "--spacing": ("spacing_s", False, 0.0, "seconds, 0 or more"),
    "--revisit-days": ("revisit_days", False, 0.0, "a number, 0 or more"),
    "--concurrency": ("concurrency", True, 1.0, "a whole number, 1 or more"),
    "--seconds": ("seconds_max", False, 0.1, "a number, more than 0"),
}


def scale_ask(given: Mapping[str, str | None]) -> ScaleAsk:
    """The model that a command line asks for: options of OPTIONS and their texts. Raises ConfigErrors with all mistakes."""
    problems: list[str] = []
    chosen: dict[str, float] = {}
    for option, (name, whole, least, accepts) in OPTIONS.items():
        text_ = given.get(option)
        if text_ is None:
            continue
        value = number_of(text_)
        if value is None or value < least or (whole and value != int(value)):
            problems.append(f"{option} {text_!r} is not accepted: give {accepts}")
        else:
            chosen[name] = int(value) if whole else value
    complain(problems)
    return ScaleAsk(**chosen)  # type: ignore[arg-type]


def run_scale(given: Mapping[str, str | None], *, as_json: bool) -> int:
    """Run the model and print its report. FOUND where an origin was asked too early or left waiting for too long."""
    report = asyncio.run(ScaleModel(scale_ask(given)).run())
    if as_json:
        output.write_json(report)
    else:
        output.write_lines(scale_lines(report))
    return int(ExitCode.FOUND if report.spacing_broken or report.starved else ExitCode.OK)


def scale_lines(report: ScaleReport) -> Iterator[str]:
    """A report of the scale model."""
    yield f"{'ended':<14}after {report.virtual_days:.3g} virtual days: {_ENDED[report.ended]}"
    yield f"{'world':<14}{text.plural(report.origins, 'origin')}, {number(report.urls)} URLs found"
    yield (
        f"{'starts':<14}{number(report.starts)}: {number(report.pages)} pages, {number(report.revisits)} of the starts "
        f"for revisits, {number(report.robots)} for robots.txt, {number(report.timeouts)} timed out"
    )
    yield (
        f"{'rate':<14}{number(report.starts_per_s)}/s, {100 * report.ceiling_share:.2f} % of the polite ceiling "
        f"({number(report.ceiling_starts)} starts)"
    )
    yield f"{'late':<14}{report.late_mean_s * 1000:.3g} ms on average, {report.late_max_s:.3g} s at most"
    yield f"{'starved':<14}{number(report.starved)} waits of more than {STARVED_DELAYS} delays of an origin"
    yield f"{'too early':<14}{number(report.spacing_broken)} starts before the delay was over"
    yield f"{'in flight':<14}{number(report.in_flight_mean)} on average, {number(report.in_flight_max)} at most"
    for reason, count in report.refused.items():
        yield f"{'refused':<14}{text.count(count)} {text.words(reason)}"
    yield (
        f"{'memory':<14}{text.size(report.rss_bytes_start)} at the start, {text.size(report.rss_bytes_end)} at the end, "
        f"{text.size(report.database_bytes)} of it the store"
    )
    yield f"{'real time':<14}{text.duration(report.real_s)}, {number(report.starts_per_real_s)} starts per second"
    yield f"{'trace':<14}{report.trace}"
    yield ""
    yield "Age of a URL at its start, since it was due"
    yield f"  {'class':<28}{'started':>10}{'mean':>12}{'99 of 100':>12}{'oldest':>12}{'waiting':>10}{'oldest':>12}"
    yield from map(_ages, report.ages)


def _ages(ages: ClassAges) -> str:
    name = f"{ages.queue_class} {_CLASSES[ages.queue_class]}"
    spans = "".join(f"{_span(seconds):>12}" for seconds in (ages.mean_s, ages.p99_s, ages.max_s))
    oldest = _span(ages.oldest_s) if ages.waiting else ""
    return f"  {name:<28}{text.count(ages.started):>10}{spans}{text.count(ages.waiting):>10}{oldest:>12}".rstrip()


def _span(seconds: float) -> str:
    return text.duration(seconds) if seconds >= 10 else quantity(seconds, "s")
