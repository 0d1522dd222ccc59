"""The commands that look at a crawl and change nothing: status, urls, failed, why, check, config show.

All of them work while a crawl runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amble.faces.options import FolderArgument, JsonOption, OutOption, one_folder

if TYPE_CHECKING:
    from amble.domain.report import OriginLine, UrlLine
    from amble.domain.robots import RuleSet

# Lists are read from the store in pieces of this many lines, so that any list fits into memory.
_PIECE = 1_000

StateOption = Annotated[
    str | None,
    typer.Option(
        metavar="STATE",
        help="Only URLs in this state: pending, leased, fetched, parsed, complete, failed, excluded.",
        autocompletion=lambda: list(_states()),
    ),
]
OriginOption = Annotated[
    str | None, typer.Option(metavar="ORIGIN", help="Only URLs of this origin, such as https://example.org.")
]
LimitOption = Annotated[int, typer.Option(metavar="N", min=0, help="At most N; 0 for all.")]
UrlArgument = Annotated[str, typer.Argument(metavar="URL", help="Any spelling of it.")]


def _states() -> dict[str, Any]:
    from amble.domain.lifecycle import UrlState

    return {state.name.lower(): state for state in UrlState}


def status(folder: FolderArgument = None, as_json: JsonOption = False) -> int:
    """How a crawl stands: pages, queue, failures and their reasons, what it waits for."""
    from amble.app import folder as crawl_folder
    from amble.app import reading
    from amble.faces import output, tables

    place = crawl_folder.find(folder)
    with reading.open_reports(place) as reports:
        answer = reports.status()
        database = reports.place
    pid, trouble = crawl_folder.running_pid(place), crawl_folder.running_trouble(place)
    if as_json:
        running = {"folder": str(place), "running": pid is not None, "pid": pid, "trouble": trouble}
        running |= {"database": database} if database else {}
        output.write_json({**running, **output.plain(answer)})
    else:
        output.write_lines(tables.status_lines(answer, place, pid, trouble, database))
    return 0


def urls(
    folder: FolderArgument = None,
    state: StateOption = None,
    origin: OriginOption = None,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> int:
    """The known URLs, by state or origin, with the reason of those that failed or were skipped."""
    from amble.app import folder as crawl_folder
    from amble.app import reading
    from amble.domain.errors import ConfigErrors
    from amble.faces import tables

    if state is not None and state.lower() not in _states():
        raise ConfigErrors([f"--state {state!r} is not accepted: give one of {', '.join(_states())}"])
    wanted = _states()[state.lower()] if state is not None else None
    key = _origin_key(origin) if origin is not None else None
    with reading.open_reports(crawl_folder.find(folder)) as reports:

        def piece(after: int, most: int) -> list[UrlLine]:
            return reports.urls(state=wanted, origin=key, limit=most, after=after)

        _list(piece, limit, tables.url_head(), tables.url_line, as_json=as_json)
    return 0


def failed(folder: FolderArgument = None, limit: LimitOption = 100, as_json: JsonOption = False) -> int:
    """The URLs that failed for good: what went wrong, after how many tries."""
    from amble.app import folder as crawl_folder
    from amble.app import reading
    from amble.faces import tables

    with reading.open_reports(crawl_folder.find(folder)) as reports:

        def piece(after: int, most: int) -> list[UrlLine]:
            return reports.failed(limit=most, after=after)

        _list(piece, limit, tables.failed_head(), tables.failed_line, as_json=as_json)
    return 0


def _origin_key(text: str) -> str:
    from amble.app.config import canonical_seed, seed_problem
    from amble.domain.decision import Reason
    from amble.domain.errors import ConfigErrors
    from amble.domain.url import split

    canonical = canonical_seed(text)
    if isinstance(canonical, Reason):
        raise ConfigErrors([seed_problem(text, canonical).replace("seed", "--origin", 1)])
    return split(canonical)[0]


def _list(
    piece: Callable[[int, int], list[UrlLine]],
    limit: int,
    head: str,
    line: Callable[[UrlLine], str],
    *,
    as_json: bool,
) -> None:
    """Print up to `limit` lines, piece by piece; say so where there is more."""
    from amble.faces import output

    found = _pieces(piece, limit + 1 if limit else 0)
    printed = 0
    for item in found:
        if limit and printed == limit:
            output.note(f"there is more: --limit {limit * 10} shows more, --limit 0 all of it")
            return
        if as_json:
            output.write_json(readable(item))
        else:
            output.write_lines([head, line(item)] if printed == 0 else [line(item)])
        printed += 1
    if not printed:
        output.note("none")


def _pieces(piece: Callable[[int, int], list[UrlLine]], limit: int) -> Iterator[UrlLine]:
    after, left = 0, limit
    while True:
        most = min(_PIECE, left) if limit else _PIECE
        lines = piece(after, most)
        yield from lines
        left -= len(lines)
        if len(lines) < most or (limit and left <= 0):
            return
        after = lines[-1].url_id


def readable(line: UrlLine) -> dict[str, Any]:
    """A URL for programs: names instead of the numbers that are stored."""
    from amble.domain.attempt import Edge, UrlKind
    from amble.domain.lifecycle import UrlState
    from amble.faces import output

    facts: dict[str, Any] = output.plain(line)
    facts["state"] = UrlState(line.state).name.lower()
    facts["kind"] = UrlKind(line.kind).name.lower()
    facts["edge"] = Edge(line.edge).name.lower()
    return facts


def why(
    url: UrlArgument, folder: FolderArgument = None, out: OutOption = None, as_json: JsonOption = False
) -> int:
    """Everything about one URL: where it stands, why, what it waits for until when, and its history."""
    from amble.app import folder as crawl_folder
    from amble.app import reading
    from amble.app.dryrun import dry_run
    from amble.faces import output, tables
    from amble.faces.exits import ExitCode

    canonical = _canonical(url)
    place = crawl_folder.find(one_folder(folder, out))
    with reading.open_reports(place) as reports:
        known = reports.explain(canonical)
    _, config = crawl_folder.settings_of(place, os.environ)
    unknown = known.line is None
    run = dry_run(canonical, config, known, _rules(place, known.origin)) if unknown else None
    if as_json:
        facts = output.plain(known)
        facts["line"] = readable(known.line) if known.line is not None else None
        output.write_json(facts | ({"check": _dry_run_facts(run)} if run is not None else {}))
    else:
        output.write_lines(tables.why_lines(known))
        if run is not None:
            output.write_lines(["", "If it were found now, one link from a seed:"])
            output.write_lines(tables.dry_run_lines(run))
    return int(ExitCode.FOUND) if unknown and not known.decisions else 0


def _canonical(text: str) -> str:
    from amble.app.config import canonical_seed, seed_problem
    from amble.domain.decision import Reason
    from amble.domain.errors import ConfigErrors

    canonical = canonical_seed(text)
    if isinstance(canonical, Reason):
        raise ConfigErrors([seed_problem(text, canonical).replace("seed ", "", 1)])
    return canonical


def check(
    url: UrlArgument, folder: FolderArgument = None, out: OutOption = None, as_json: JsonOption = False
) -> int:
    """Whether a URL would be fetched, as a dry run: canonical form, scope, bounds, destination, robots if at hand."""
    from amble.app import folder as crawl_folder
    from amble.app import reading
    from amble.app.dryrun import canonical_of, dry_run
    from amble.domain.decision import Reason
    from amble.domain.errors import ConfigErrors
    from amble.faces import output, tables
    from amble.faces.exits import ExitCode

    try:
        place: Path | None = crawl_folder.find(one_folder(folder, out))
    except ConfigErrors:
        if (folder or out) is not None:
            raise
        place = None
    _, config = crawl_folder.settings_of(place, os.environ)
    canonical = canonical_of(url)
    known = None
    if place is not None and not isinstance(canonical, Reason):
        with reading.open_reports(place) as reports:
            known = reports.explain(canonical)
    rules = _rules(place, known.origin) if place is not None and known is not None else None
    run = dry_run(url, config, known, rules)
    if as_json:
        output.write_json(_dry_run_facts(run))
    else:
        output.write_lines(tables.dry_run_lines(run))
    return 0 if run.fetched else int(ExitCode.FOUND)


def _dry_run_facts(run: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(run), "fetched": run.fetched}


def _rules(folder: Path, origin: OriginLine | None) -> RuleSet | None:
    """The robots rules that the crawl holds for an origin, None where there are none at hand."""
    from amble.app import keeping

    if origin is None or origin.robots_rules is None:
        return None
    return keeping.read_robots_rules(folder, origin.robots_rules)


def config_show(folder: FolderArgument = None, as_json: JsonOption = False) -> int:
    """Every setting in force: value, unit, where it comes from, and the default. Without a crawl: the defaults."""
    from amble.app import folder as crawl_folder
    from amble.domain.errors import ConfigErrors
    from amble.faces import output, tables

    try:
        place: Path | None = crawl_folder.find(folder)
    except ConfigErrors:
        if folder is not None:
            raise
        place = None
    values, _ = crawl_folder.settings_of(place, os.environ)
    if as_json:
        output.write_json(
            {
                name: {
                    "value": output.plain(item.value),
                    "source": item.source,
                    "default": output.plain(item.setting.default),
                    "unit": item.setting.unit,
                    "env": item.setting.env,
                    "why": item.setting.why,
                }
                for name, item in values.items()
            }
        )
    else:
        output.write_lines(tables.setting_lines(values))
    return 0
