"""How much a crawl takes: from a target and assumptions to rates, bytes, origins and machines, each by a shown formula.

Arithmetic only. What origins that are already known can give is in supply.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from amble.domain.assumptions import INPUTS
from amble.domain.formula import Formula


def _default(name: str) -> float:
    default = INPUTS[name].default
    assert default is not None
    return default


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A target and everything that is assumed. Units, meanings and defaults stand in assumptions.INPUTS."""

    pages: float
    days: float
    peak: float = _default("peak")
    page_bytes: float = _default("page_bytes")
    service_s: float = _default("service_s")
    timeout_share: float = _default("timeout_share")
    timeout_s: float = _default("timeout_s")
    error_share: float = _default("error_share")
    origins: float = _default("origins")
    spacing_s: float = _default("spacing_s")
    adaptive_factor: float = _default("adaptive_factor")
    adaptive_cap_s: float = _default("adaptive_cap_s")
    active_max: float = _default("active_max")
    concurrency: float = _default("concurrency")
    links_per_page: float = _default("links_per_page")
    known_per_page: float = _default("known_per_page")
    url_bytes: float = _default("url_bytes")
    index_bytes: float = _default("index_bytes")
    frontier_replicas: float = _default("frontier_replicas")
    filter_error: float = _default("filter_error")
    near_bytes: float = _default("near_bytes")
    facts_bytes: float = _default("facts_bytes")
    compression: float = _default("compression")
    replicas: float = _default("replicas")
    keep_days: float = _default("keep_days")
    body_reads: float = _default("body_reads")
    duplicate_share: float = _default("duplicate_share")
    pages_per_cpu_s: float = _default("pages_per_cpu_s")
    utilisation: float = _default("utilisation")
    cores: float = _default("cores")
    database_cpu_s: float = _default("database_cpu_s")
    database_log_bytes: float = _default("database_log_bytes")
    urls_per_database: float = _default("urls_per_database")
    sqlite_cycles_per_s: float = _default("sqlite_cycles_per_s")


def problems_of(workload: Workload) -> list[str]:
    """What does not fit together, one line each; single values are judged by their Input."""
    problems = []
    if workload.timeout_share + workload.error_share >= 1.0:
        problems.append("timeout_share and error_share leave no start that brings a page: lower one of them")
    if 0.0 < workload.keep_days < workload.days:
        problems.append(
            f"keep_days {workload.keep_days:g} is shorter than days {workload.days:g}: keep at least as long"
        )
    return problems


@dataclass(frozen=True, slots=True)
class Line:
    """One figure to compute: its group, name, unit, meaning and formula over inputs and earlier figures."""

    group: str
    name: str
    unit: str
    title: str
    formula: Formula


def _lines(group: str, *rows: tuple[str, str, str, str]) -> tuple[Line, ...]:
    return tuple(Line(group, name, unit, title, Formula(text)) for name, unit, title, text in rows)


_RATE = _lines(
    "Rate",
    ("pages_per_s", "/s", "pages", "pages / (days * 86400)"),
    ("peak_pages_per_s", "/s", "pages at the peak", "peak * pages_per_s"),
    (
        "starts_per_s",
        "/s",
        "starts, the fruitless ones too",
        "pages_per_s / (1 - timeout_share - error_share)",
    ),
    ("candidates_per_s", "/s", "candidate links", "pages_per_s * links_per_page"),
)
_IN_FLIGHT = _lines(
    "Requests in flight (Little's law: rate times time)",
    ("in_flight_answered", "", "answered", "starts_per_s * (1 - timeout_share) * service_s"),
    ("in_flight_timeouts", "", "waiting for a timeout", "starts_per_s * timeout_share * timeout_s"),
    ("in_flight", "", "together", "in_flight_answered + in_flight_timeouts"),
    ("peak_in_flight", "", "at the peak", "peak * in_flight"),
)
_NETWORK = _lines(
    "Bytes through the line",
    ("ingress_bytes_per_s", "B/s", "received", "pages_per_s * page_bytes"),
    ("peak_ingress_bits_per_s", "bit/s", "received at the peak", "8 * peak * ingress_bytes_per_s"),
    ("ingress_bytes_per_day", "B", "received in a day", "86400 * ingress_bytes_per_s"),
    ("reread_bytes_per_s", "B/s", "read again from the archive", "body_reads * ingress_bytes_per_s"),
    ("parse_bytes_spared_per_s", "B/s", "not parsed again", "duplicate_share * ingress_bytes_per_s"),
)
_ARCHIVE = _lines(
    "Archive",
    ("corpus_bytes", "B", "bodies and their facts", "pages * (page_bytes + facts_bytes)"),
    ("stored_bytes", "B", "compressed", "corpus_bytes / compression"),
    ("replicated_bytes", "B", "compressed, all copies", "replicas * stored_bytes"),
    ("corpus_copies_bytes", "B", "all copies if nothing were compressed", "replicas * corpus_bytes"),
    ("kept_corpus_bytes", "B", "kept in the end, uncompressed", "corpus_bytes * kept_days / days"),
    ("kept_bytes", "B", "kept in the end, compressed, all copies", "replicated_bytes * kept_days / days"),
)
_FRONTIER = _lines(
    "Frontier",
    ("known_urls", "", "URLs known", "pages * known_per_page"),
    ("frontier_bytes", "B", "records", "known_urls * url_bytes"),
    ("frontier_indexed_bytes", "B", "with indexes", "known_urls * (url_bytes + index_bytes)"),
    ("frontier_copies_bytes", "B", "all copies", "frontier_replicas * frontier_indexed_bytes"),
    ("filter_bytes", "B", "a Bloom filter over them", "known_urls * -log(filter_error) / log(2) ** 2 / 8"),
    ("near_index_bytes", "B", "near-duplicates of all pages, at most", "pages * near_bytes"),
)
_INTERVALS = _lines(
    "Origins",
    (
        "interval_answered_s",
        "s",
        "from start to start, answered",
        "max(spacing_s, min(adaptive_cap_s, adaptive_factor * service_s), service_s / active_max)",
    ),
    (
        "interval_timeout_s",
        "s",
        "from start to start, timed out",
        "max(spacing_s, min(adaptive_cap_s, adaptive_factor * timeout_s), timeout_s / active_max)",
    ),
    (
        "interval_s",
        "s",
        "from start to start",
        "(1 - timeout_share) * interval_answered_s + timeout_share * interval_timeout_s",
    ),
    ("origins_needed", "", "eligible origins needed, all the time", "starts_per_s * interval_s"),
    (
        "pages_per_origin",
        "",
        "pages that one origin may give",
        "days * 86400 / interval_s * (1 - timeout_share - error_share)",
    ),
)
_CEILING = _lines(
    "Origins",
    ("ceiling_starts_per_s", "/s", "polite ceiling of the origins given", "origins / interval_s"),
    ("ceiling_pages", "", "pages they may give in the time", "origins * pages_per_origin"),
    ("days_needed", "days", "days that they need", "days * pages / ceiling_pages"),
    ("interval_needed_s", "s", "interval that would do", "interval_s * ceiling_pages / pages"),
)
_MACHINES = _lines(
    "Machines",
    ("crawl_cores", "", "cores that crawl", "peak_pages_per_s / (pages_per_cpu_s * utilisation)"),
    ("crawl_machines", "", "machines that crawl", "ceil(crawl_cores / cores)"),
    ("database_cores", "", "cores of PostgreSQL", "peak_pages_per_s * database_cpu_s / utilisation"),
    ("database_log_bytes_per_s", "B/s", "log of PostgreSQL", "pages_per_s * database_log_bytes"),
    (
        "database_servers",
        "",
        "PostgreSQL servers",
        "max(ceil(known_urls / urls_per_database), ceil(database_cores / cores))",
    ),
    ("database_machines", "", "with their standbys", "database_servers * frontier_replicas"),
    ("sqlite_files", "", "or SQLite files, by rate", "ceil(peak_pages_per_s / sqlite_cycles_per_s)"),
)
LINES: Final = _RATE + _IN_FLIGHT + _NETWORK + _ARCHIVE + _FRONTIER + _INTERVALS + _CEILING + _MACHINES


@dataclass(frozen=True, slots=True)
class Figure:
    """One line with its value."""

    line: Line
    value: float


class Outcome(StrEnum):
    """Whether a target can be reached without asking any site for more than it permits."""

    REACHABLE = "reachable"
    # Reachable if enough origins are eligible; how many there are was not said.
    NEEDS_ORIGINS = "needs_origins"
    # The sites permit it, but not enough of their URLs are known yet.
    NEEDS_DISCOVERY = "needs_discovery"
    # The sites permit it, the crawl's own limit on requests at once does not.
    NEEDS_CONCURRENCY = "needs_concurrency"
    NOT_POLITELY = "not_politely"


class Lever(StrEnum):
    """What may be changed about a target, any one of them, so that it becomes reachable."""

    ORIGINS = "origins"
    DAYS = "days"
    INTERVAL = "interval_s"
    PAGES = "pages"
    URLS = "urls"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class Change:
    """`have` would have to be `need`, all else being equal."""

    lever: Lever
    have: float
    need: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer with its reasons: what is asked, what can be given, and what would have to change."""

    outcome: Outcome
    starts_needed: float
    starts_possible: float
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """All figures of a workload in the order of LINES, and the verdict."""

    workload: Workload
    figures: tuple[Figure, ...]
    verdict: Verdict

    def __getitem__(self, name: str) -> float:
        return next(figure.value for figure in self.figures if figure.line.name == name)


def estimate(workload: Workload) -> Estimate:
    """The estimate for origins that are all alike: `workload.origins` of them, or as many as it takes."""
    figures = figures_of(workload)
    return Estimate(workload=workload, figures=figures, verdict=_verdict(workload, figures))


def figures_of(workload: Workload) -> tuple[Figure, ...]:
    """Every figure that can be computed; without origins there is no ceiling."""
    assert not problems_of(workload)
    names: dict[str, float] = asdict(workload)
    names["kept_days"] = workload.keep_days or workload.days
    figures = []
    for line in LINES:
        if line in _CEILING and not workload.origins:
            continue
        names[line.name] = float(line.formula.value(names))
        figures.append(Figure(line, names[line.name]))
    return tuple(figures)


def starts_needed(workload: Workload) -> float:
    """Starts in all, the fruitless ones too."""
    return workload.pages / (1 - workload.timeout_share - workload.error_share)


def _verdict(workload: Workload, figures: tuple[Figure, ...]) -> Verdict:
    value = {figure.line.name: figure.value for figure in figures}
    needed, time_s = starts_needed(workload), workload.days * 86_400
    if not workload.origins:
        change = Change(Lever.ORIGINS, 0, value["origins_needed"])
        return Verdict(
            outcome=Outcome.NEEDS_ORIGINS, starts_needed=needed, starts_possible=0, changes=(change,)
        )
    possible = value["ceiling_starts_per_s"] * time_s
    if possible < needed:
        changes = (
            Change(Lever.ORIGINS, workload.origins, value["origins_needed"]),
            Change(Lever.DAYS, workload.days, value["days_needed"]),
            Change(Lever.INTERVAL, value["interval_s"], value["interval_needed_s"]),
            Change(Lever.PAGES, workload.pages, value["ceiling_pages"]),
        )
        return Verdict(
            outcome=Outcome.NOT_POLITELY, starts_needed=needed, starts_possible=possible, changes=changes
        )
    narrow = concurrency_change(workload, value["peak_in_flight"])
    return Verdict(
        outcome=Outcome.NEEDS_CONCURRENCY if narrow else Outcome.REACHABLE,
        starts_needed=needed,
        starts_possible=possible,
        changes=narrow,
    )


def concurrency_change(workload: Workload, in_flight: float) -> tuple[Change, ...]:
    """The change that the crawl's own limit needs, if any."""
    if not workload.concurrency or in_flight <= workload.concurrency:
        return ()
    return (Change(Lever.CONCURRENCY, workload.concurrency, in_flight),)
