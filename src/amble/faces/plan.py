"""The command that says what a crawl takes: amble plan. Options to inputs here, the look of the answer in estimates.py."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from amble.domain.assumptions import INPUTS
from amble.faces.options import JsonOption

_SHORT = {
    "active_max": "per-origin",
    "links_per_page": "links",
    "known_per_page": "known",
    "database_cpu_s": "database-cpu",
    "sqlite_cycles_per_s": "sqlite-rate",
    "pages_per_cpu_s": "cpu-rate",
}
_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_NUMBER = re.compile(
    r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?|\.[0-9]+)\s*([kmgbt]?)", re.IGNORECASE
)

_WEB, _CRAWLER, _MACHINES = "The web", "The crawler", "Stores and machines"


def flag_of(name: str) -> str:
    """The option that sets an input."""
    return "--" + _SHORT.get(name, name.removesuffix("_s").replace("_", "-"))


def _option(name: str, panel: str | None = None) -> Any:
    item = INPUTS[name]
    default = "" if item.default is None else f" Default: {item.default:g}."
    unit = {"s": "S", "B": "BYTES", "days": "DAYS"}.get(item.unit, "N")
    return typer.Option(
        flag_of(name), metavar=unit, help=f"{item.why}{default}", rich_help_panel=panel, show_default=False
    )


def plan(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="A crawl folder: its own origins are asked. None: origins all alike."
        ),
    ] = None,
    pages: Annotated[str | None, _option("pages")] = None,
    days: Annotated[str | None, _option("days")] = None,
    origins: Annotated[str | None, _option("origins", _WEB)] = None,
    page_bytes: Annotated[str | None, _option("page_bytes", _WEB)] = None,
    service_s: Annotated[str | None, _option("service_s", _WEB)] = None,
    timeout_share: Annotated[str | None, _option("timeout_share", _WEB)] = None,
    timeout_s: Annotated[str | None, _option("timeout_s", _WEB)] = None,
    error_share: Annotated[str | None, _option("error_share", _WEB)] = None,
    links_per_page: Annotated[str | None, _option("links_per_page", _WEB)] = None,
    known_per_page: Annotated[str | None, _option("known_per_page", _WEB)] = None,
    duplicate_share: Annotated[str | None, _option("duplicate_share", _WEB)] = None,
    spacing_s: Annotated[str | None, _option("spacing_s", _CRAWLER)] = None,
    adaptive_factor: Annotated[str | None, _option("adaptive_factor", _CRAWLER)] = None,
    adaptive_cap_s: Annotated[str | None, _option("adaptive_cap_s", _CRAWLER)] = None,
    active_max: Annotated[str | None, _option("active_max", _CRAWLER)] = None,
    concurrency: Annotated[str | None, _option("concurrency", _CRAWLER)] = None,
    peak: Annotated[str | None, _option("peak", _CRAWLER)] = None,
    body_reads: Annotated[str | None, _option("body_reads", _CRAWLER)] = None,
    facts_bytes: Annotated[str | None, _option("facts_bytes", _MACHINES)] = None,
    compression: Annotated[str | None, _option("compression", _MACHINES)] = None,
    replicas: Annotated[str | None, _option("replicas", _MACHINES)] = None,
    keep_days: Annotated[str | None, _option("keep_days", _MACHINES)] = None,
    url_bytes: Annotated[str | None, _option("url_bytes", _MACHINES)] = None,
    index_bytes: Annotated[str | None, _option("index_bytes", _MACHINES)] = None,
    near_bytes: Annotated[str | None, _option("near_bytes", _MACHINES)] = None,
    frontier_replicas: Annotated[str | None, _option("frontier_replicas", _MACHINES)] = None,
    filter_error: Annotated[str | None, _option("filter_error", _MACHINES)] = None,
    pages_per_cpu_s: Annotated[str | None, _option("pages_per_cpu_s", _MACHINES)] = None,
    utilisation: Annotated[str | None, _option("utilisation", _MACHINES)] = None,
    cores: Annotated[str | None, _option("cores", _MACHINES)] = None,
    database_cpu_s: Annotated[str | None, _option("database_cpu_s", _MACHINES)] = None,
    database_log_bytes: Annotated[str | None, _option("database_log_bytes", _MACHINES)] = None,
    urls_per_database: Annotated[str | None, _option("urls_per_database", _MACHINES)] = None,
    sqlite_cycles_per_s: Annotated[str | None, _option("sqlite_cycles_per_s", _MACHINES)] = None,
    as_json: JsonOption = False,
) -> int:
    """What a crawl takes, and whether it can be polite: rates, bytes, origins, machines, each with its formula.

    With a crawl folder: whether its own origins permit that many pages more in that time, which of them hold it up,
    and what would have to change. Numbers may end in k, M, G or B, T. --spacing alone is exact, as --delay is for a
    crawl; give --adaptive-factor too to have longer delays for slow origins.
    """
    given = inputs_of(context.params, folder=folder)
    return _alike(given, as_json=as_json) if folder is None else _folder(folder, given, as_json=as_json)


def inputs_of(parameters: Mapping[str, Any], *, folder: Path | None) -> dict[str, float]:
    """The inputs that a command line gives. Raises ConfigErrors with every mistake."""
    from amble.app.config import complain
    from amble.domain.capacity import Workload, problems_of

    problems = [
        f"{flag_of(name)} is missing: {item.why[0].lower()}{item.why[1:-1]}, such as {flag_of(name)} {example}"
        for name, item, example in (("pages", INPUTS["pages"], "10M"), ("days", INPUTS["days"], "30"))
        if parameters.get(name) is None
    ]
    if folder is not None and parameters.get("origins") is not None:
        problems.append("--origins and a folder exclude each other: the folder has origins of its own")
    given: dict[str, float] = {}
    for name, item in INPUTS.items():
        text = parameters.get(name)
        if text is None:
            continue
        value = number_of(text)
        if value is None or not item.accepts(value):
            problems.append(f"{flag_of(name)} {text!r} is not accepted: give {item.wish}")
        else:
            given[name] = value
    if not problems:
        if "spacing_s" in given and "adaptive_factor" not in given:
            given["adaptive_factor"] = 0.0
        problems += [_by_flag(problem) for problem in problems_of(Workload(**given))]
    complain(problems)
    return given


def _by_flag(problem: str) -> str:
    """Inputs by their options."""
    return re.sub(r"\b[a-z]+(?:_[a-z]+)+\b|\bdays\b", lambda match: flag_of(match[0]), problem)


def number_of(text: str) -> float | None:
    """A number as people write it: 15B, 10M, 2.5, 1e9, 15,000,000. None where it is none."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    value = float(match[1].replace(",", "").replace("_", "")) * _SUFFIXES[match[2].lower()]
    return value if math.isfinite(value) else None


def _alike(given: Mapping[str, float], *, as_json: bool) -> int:
    from amble.app.capacity import DEFAULT, GIVEN
    from amble.domain.capacity import Workload, estimate
    from amble.faces import estimates, output

    answer = estimate(Workload(**given))
    sources = {name: GIVEN if name in given else DEFAULT for name in INPUTS}
    if as_json:
        output.write_json(estimates.facts(answer, sources))
    else:
        output.write_lines(estimates.lines(answer, sources))
    return estimates.exit_code(answer.verdict)


def _folder(folder: Path, given: Mapping[str, float], *, as_json: bool) -> int:
    from amble.app import folder as crawl_folder
    from amble.app.capacity import plan_folder
    from amble.faces import estimates, output

    place = crawl_folder.find(folder)
    _, config = crawl_folder.settings_of(place, os.environ)
    answer = plan_folder(place, config, given)
    if as_json:
        output.write_json(estimates.folder_facts(answer, place))
    else:
        output.write_lines(estimates.folder_lines(answer, place))
    return estimates.exit_code(answer.estimate.estimate.verdict)
