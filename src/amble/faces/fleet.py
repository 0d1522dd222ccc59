"""The commands of a fleet: an agent, its set-up and seeds, and who owns what.

An agent writes a line every few seconds to standard error, or JSON lines to standard output; the first SIGTERM or
Ctrl-C hands its partitions over and ends it, the second one ends it where it stands.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from amble.faces.options import JsonOption, SetOption

if TYPE_CHECKING:
    from amble.app.agent import Agent
    from amble.app.config import CrawlConfig
    from amble.app.fleet import Ownerships
    from amble.app.progress import CrawlResult, Progress

T = TypeVar("T")

LINE_EVERY_S = 10.0
LOOK_EVERY_S = 0.25

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The database of the fleet: postgresql://user@host/name; several with blanks between them.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings of the fleet, in the form of amble.toml."),
]


FleetFolderArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR", help="The crawl folder of a fleet; without it and --store, the only one here."
    ),
]
FleetOutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="A crawl folder whose amble.toml names the fleet."),
]
# A killed agent that holds nothing any more is listed for so long.
SILENT_SHOWN_MS = 300_000


def agent(
    urls: Annotated[
        list[str] | None, typer.Argument(metavar="URL", help="Seeds, as with `amble seed`.")
    ] = None,
    out: FleetOutOption = None,
    config: ConfigOption = None,
    store: StoreOption = None,
    archive: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The archive of the fleet: s3://bucket/prefix or file:///folder."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What `amble agents` calls it. Default: host and process."),
    ] = None,
    until_done: Annotated[
        bool,
        typer.Option(
            "--until-done", metavar="", help="End when nothing in the whole fleet is due soon or under way."
        ),
    ] = False,
    scope: Annotated[
        str | None, typer.Option(metavar="host|site|prefix|any", help="How far from the seeds of the fleet.")
    ] = None,
    contact: Annotated[
        str | None,
        typer.Option(metavar="URL|MAIL", help="Sent with every request, so that sites can reach you."),
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar="N", help="Requests of this agent at once.")
    ] = None,
    resolver: Annotated[str | None, typer.Option(metavar="ADDR:PORT", help="Name server to ask.")] = None,
    allow_net: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-net", metavar="CIDR", help="A private network that may be contacted; repeatable."
        ),
    ] = None,
    assignments: SetOption = None,
    health: Annotated[
        str | None, typer.Option(metavar="ADDR:PORT", help="Answer GET /live and /ready there.")
    ] = None,
    log: Annotated[Path | None, typer.Option(metavar="FILE", help="Where events go, as JSON lines.")] = None,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", metavar="", help="Only the end.")] = False,
) -> int:
    """Crawl as one of many agents over one database. It takes its share of the partitions, and gives it back at the end."""
    options = {
        "store.url": ("--store", store),
        "archive.url": ("--archive", archive),
        "agent.name": ("--name", name),
        "scope.kind": ("--scope", scope),
        "crawl.contact": ("--contact", contact),
        "crawl.concurrency": ("--concurrency", concurrency),
        "network.resolver": ("--resolver", resolver),
    }
    settings = _settings(config, options, assignments, nets=allow_net, seeds=urls, folder=out)
    probes = _probes(health)
    told = _Told(as_json=as_json, quiet=quiet)
    return _run(_agent(settings, told, log, probes, until_done=until_done))


def agents(
    folder: FleetFolderArgument = None,
    config: ConfigOption = None,
    store: StoreOption = None,
    everyone: Annotated[
        bool,
        typer.Option(
            "--all", metavar="", help="Also those that were silent for 5 minutes and own nothing any more."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """The agents of a fleet: who is alive, and how many partitions each owns."""
    from amble.faces import output, text

    found = _ownerships(folder, config, store)
    shown = [
        line
        for line in found.agents
        if everyone or line.alive or line.partitions or line.seen_ms_ago <= SILENT_SHOWN_MS
    ]
    if as_json:
        for line in shown:
            output.write_json(line)
        return 0
    if not found.agents:
        output.note(f"no agent has been seen at {text.safe(found.place)}; `amble agent` starts one")
        return 0
    rows: list[tuple[str, ...]] = [("agent", "state", "seen", "partitions")]
    for line in shown:
        state = "silent" if not line.alive else "leaving" if line.leaving else "alive"
        rows.append(
            (
                text.safe(line.agent),
                state,
                f"{line.seen_ms_ago / 1000:.1f} s ago",
                text.count(line.partitions),
            )
        )
    if shown:
        output.write_lines(_table(rows, right=(2, 3)))
    if len(shown) < len(found.agents):
        hidden = text.plural(len(found.agents) - len(shown), "agent")
        output.note(f"{hidden} silent for more than 5 minutes that own nothing: --all shows them")
    return 0


def partitions(
    folder: FleetFolderArgument = None,
    config: ConfigOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """The partitions of a fleet: owner, epoch, what is left of its lease, and the work in each."""
    from amble.faces import output, text

    found = _ownerships(folder, config, store)
    if as_json:
        for facts in found.partitions:
            line = output.plain(facts)
            output.write_json({**line.pop("line"), **line})
        for partition, reason in found.away.items():
            output.write_json({"partition": partition, "away": reason})
        return 0
    rows: list[tuple[str, ...]] = [
        ("partition", "owner", "epoch", "lease left", "queued", "in flight", "inbox", "outbox")
    ]
    for facts in found.partitions:
        line = facts.line
        left = f"{line.lease_left_ms / 1000:.1f} s" if line.owner and line.lease_left_ms > 0 else "-"
        owner = "(moving)" if line.moving else line.owner or "-"
        numbers = (facts.queued, facts.in_flight, facts.inbox, facts.outbox)
        rows.append((str(line.partition), text.safe(owner), str(line.epoch), left, *map(text.count, numbers)))
    output.write_lines(_table(rows, right=(0, 2, 3, 4, 5, 6, 7)))
    for partition, reason in found.away.items():
        output.note(f"partition {partition} is out of service: {text.safe(reason)}")
    return 0


def move(
    partition: Annotated[int, typer.Argument(metavar="N", help="The partition that is to move.")],
    to: Annotated[
        int, typer.Option("--to", metavar="SERVER", help="Its new server: the place in store.url, from 0 on.")
    ],
    out: FleetOutOption = None,
    config: ConfigOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Move a partition to another server of the fleet. Its owner hands it over; stopped anywhere, run it again."""
    from amble.app import fleet
    from amble.faces import output, text

    said: set[str] = set()

    def tell(step: str) -> None:
        word = step.partition(" ")[0]
        if word not in said and word in _MOVING and not as_json:
            output.note(_MOVING[word])
        said.add(word)

    settings = _settings(config, {"store.url": ("--store", store)}, folder=out)
    moved = _run(fleet.move(settings, partition, to, tell))
    if as_json:
        output.write_json(moved)
    elif moved.moved:
        output.note(
            f"partition {partition} lives on server {to} now: {text.count(moved.rows.get('url', 0))} URLs"
        )
    else:
        output.note(f"partition {partition} lives on server {to} already")
    return 0


_MOVING = {
    "plan": "looking where it is",
    "wait": "waiting for its owner to hand it over",
    "copy": "copying its rows",
    "compare": "comparing them",
    "flip": "handing it over",
    "remove": "removing the old rows",
}


def seed(
    urls: Annotated[list[str], typer.Argument(metavar="URL", help="Where to begin.")],
    out: FleetOutOption = None,
    config: ConfigOption = None,
    store: StoreOption = None,
    contact: Annotated[
        str | None, typer.Option(metavar="URL|MAIL", help="As the agents send it; public sites need one.")
    ] = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Give a fleet URLs to begin with. They also widen the scope of its agents, within seconds."""
    from amble.app import fleet
    from amble.domain.frontier import Verdict
    from amble.faces import output, text
    from amble.faces.exits import ExitCode

    options = {"store.url": ("--store", store), "crawl.contact": ("--contact", contact)}
    outcomes = _run(fleet.seed(_settings(config, options, assignments, seeds=urls, folder=out)))
    refused = [outcome for outcome in outcomes if outcome.rejected is not None]
    known = sum(outcome.verdict is Verdict.ALREADY_KNOWN for outcome in outcomes)
    if as_json:
        for outcome in outcomes:
            output.write_json(outcome)
    else:
        for outcome in refused:
            assert outcome.rejected is not None
            reason, detail = outcome.rejected.reason.value, outcome.rejected.detail
            output.note(text.safe(f"refused: {outcome.given}: {reason}" + (f" ({detail})" if detail else "")))
        new = len(outcomes) - len(refused) - known
        told = [(new, "taken"), (known, "known before"), (len(refused), "refused")]
        output.note(
            f"{text.plural(len(outcomes), 'seed')}: "
            + ", ".join(f"{text.count(number)} {word}" for number, word in told if number)
        )
        if refused:
            output.note("`amble check URL` says more of a refusal")
        if new:
            output.note("agents that run begin with them within seconds; `amble agent` starts one")
    return int(ExitCode.FOUND) if refused else 0


def init(
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, metavar="N",
            help="Partitions that sites are spread over, for ever: several times the most agents ever. Default: 64, "
            "good for up to 16 agents; of a prepared database, what it has.",
        ),
    ] = None,
    out: FleetOutOption = None,
    config: ConfigOption = None,
    store: StoreOption = None,
    apart: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE", help="A site that gets a partition of its own, such as example.org; repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> int:  # fmt: skip
    """Prepare the database of a fleet, or bring it up to this version. May be run again, also from several places."""
    from amble.app import fleet
    from amble.faces import output, text

    settings = _settings(config, {"store.url": ("--store", store)}, folder=out)
    count = _run(fleet.set_up(settings, partitions, apart or ()))
    if as_json:
        output.write_json({"partitions": count})
    else:
        output.note(
            f"ready: {text.plural(count, 'partition')}; `amble seed URL...` begins, `amble agent` crawls"
        )
    return 0


# --- the agent -------------------------------------------------------------------------------------------------------


async def _agent(
    config: CrawlConfig, told: _Told, log: Path | None, probes: tuple[str, int] | None, *, until_done: bool
) -> int:
    import asyncio
    import signal

    from amble.app.agent import open_agent
    from amble.faces.exits import ExitCode, exit_code_of
    from amble.faces.run import settle_memory

    loop, asked = asyncio.get_running_loop(), 0
    opening = asyncio.ensure_future(open_agent(config, until_done=until_done, log=log, probes=probes))

    def stop() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            # Its partitions lapse by themselves, and whoever takes them waits for what may be under way.
            os._exit(ExitCode.FORCED)
        told.stopping()
        if opening.done() and not opening.cancelled() and opening.exception() is None:
            opening.result().stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    opened = await opening
    if asked:
        opened.stop()
    settle_memory()
    told.start(opened)
    running = asyncio.ensure_future(opened.run())
    while not running.done():
        await asyncio.wait({running}, timeout=LOOK_EVERY_S)
        told.look(opened)
    result = await running
    told.end(opened, result)
    code = exit_code_of(result)
    # An agent that found nothing to do in its share has done what it was asked.
    return int(ExitCode.OK if code is ExitCode.NOTHING else code)


class _Told:
    """What an agent says of itself. Nobody needs to read it."""

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self._as_json, self._quiet = as_json, quiet
        self._next_s = 0.0
        self._trouble: str | None = None

    def start(self, agent: Agent) -> None:
        """It is open."""
        self._say(
            {"event": "start", "agent": agent.name},
            f"agent {agent.name} is ready; SIGTERM hands its partitions over",
        )

    def look(self, agent: Agent) -> None:
        """A line when one is due; trouble at once."""
        progress = agent.progress()
        if progress.trouble != self._trouble:
            self._trouble = progress.trouble
            line = f"trouble: {progress.trouble}" if progress.trouble else "trouble is over"
            self._say({"event": "trouble", "detail": progress.trouble}, line)
        if progress.elapsed_s >= self._next_s:
            self._next_s = progress.elapsed_s + LINE_EVERY_S
            self._say(_facts(agent, progress), _line(agent, progress))

    def stopping(self) -> None:
        """Somebody has said stop."""
        self._say({"event": "stopping"}, "stopping: finishing what is under way, handing partitions over")

    def end(self, agent: Agent, result: CrawlResult) -> None:
        """It has ended."""
        from amble.faces import text

        facts = {
            "event": "end",
            "agent": agent.name,
            "reason": result.reason.value,
            "trouble": result.trouble,
        }
        line = f"agent {agent.name} has ended: {text.words(result.reason.value)}"
        if result.trouble:
            line += f"; {result.trouble}"
        self._say(facts, line, last=True)

    def _say(self, facts: Mapping[str, Any], line: str, *, last: bool = False) -> None:
        from amble.faces import output, text

        try:
            if self._as_json:
                output.write_json(dict(facts))
            elif last or not self._quiet:
                output.note(text.safe(line))
        except OSError:
            pass  # nobody reads; the agent works on


def _facts(agent: Agent, progress: Progress) -> dict[str, Any]:
    from amble.faces import output

    owned = sorted(agent.ownership.held)
    return {"event": "progress", "agent": agent.name, "partitions": owned, **output.plain(progress)}


def _line(agent: Agent, progress: Progress) -> str:
    from amble.faces import text
    from amble.faces.display import plain_line

    waiting = len(agent.ownership.waiting)
    owned = text.plural(len(agent.ownership.held), "partition") + (
        f" ({waiting} not begun)" if waiting else ""
    )
    return f"{plain_line(progress)}  {owned}"


# --- shared ----------------------------------------------------------------------------------------------------------


def _settings(
    config: Path | None,
    options: Mapping[str, tuple[str, str | None]],
    assignments: list[str] | None = None,
    *,
    nets: list[str] | None = None,
    seeds: list[str] | None = None,
    folder: Path | None = None,
) -> CrawlConfig:
    from amble.app import fleet
    from amble.app.config import Given

    flags = {name: Given(value, option) for name, (option, value) in options.items() if value is not None}
    if nets:
        flags["network.allow_nets"] = Given(nets, "--allow-net", text=False)
    wishes = fleet.FleetWishes(
        config_file=config,
        folder=folder,
        assignments=tuple(assignments or ()),
        flags=flags,
        seeds=tuple(seeds or ()),
    )
    return fleet.configure(wishes, os.environ)


def _probes(text: str | None) -> tuple[str, int] | None:
    from amble.app.agent import parse_address
    from amble.domain.errors import ConfigErrors

    if text is None:
        return None
    try:
        return parse_address(text)
    except ValueError as error:
        raise ConfigErrors([f"--health {error}"]) from None


def _ownerships(folder: Path | None, config: Path | None, store: str | None) -> Ownerships:
    from amble.app import fleet

    if folder is None and config is None and store is None:
        folder = fleet.folder_here(os.environ)
    settings = _settings(config, {"store.url": ("--store", store)}, folder=folder)
    return fleet.ownerships_in(folder, settings, _run)


def _run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio

    from amble.faces.run import loop_factory

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


def _table(rows: list[tuple[str, ...]], *, right: tuple[int, ...] = ()) -> list[str]:
    """Columns side by side; those in `right` end at the same place."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def cells(row: tuple[str, ...]) -> list[str]:
        return [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]

    return ["  ".join(cells(row)).rstrip() for row in rows]
