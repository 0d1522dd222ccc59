"""How the scale model's report looks to people. Pure text."""

from __future__ import annotations

from collections.abc import Iterator

from amble.faces import text
from amble.faces.estimates import number, quantity
from amble.sim.scale import STARVED_DELAYS, ClassAges, ScaleReport

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


def scale_lines(report: ScaleReport) -> Iterator[str]:
    """A report of the scale model."""
    yield f"{'ended':<14}after {report.virtual_days:.3g} virtual days: {_ENDED[report.ended]}"
    yield f"{'world':<14}{text.plural(report.origins, 'origin')}, {number(report.urls)} URLs found"
    yield (
        f"{'starts':<14}{number(report.starts)}: {number(report.pages)} pages, {number(report.revisits)} of the starts "
        f"for revisits, {number(report.robots)} for robots.txt, {number(report.timeouts)} timed out"
    )
    yield (
        f"{'rate':<14}{text.rate(report.starts_per_s)}, {100 * report.ceiling_share:.2f} % of the polite ceiling "
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
    yield f"{'real time':<14}{text.duration(report.real_s)}, {text.rate(report.starts_per_real_s)}"
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
