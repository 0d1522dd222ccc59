"""The command that parses pages for a fleet: opens a worker, answers signals, says what came of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amble.faces.options import JsonOption, setting_names

if TYPE_CHECKING:
    from amble.app.config import CrawlConfig, Given
    from amble.app.parsing import ParseWishes


def parse(
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The database of the fleet: postgresql://user@host/name."),
    ] = None,
    archive: Annotated[
        str | None, typer.Option(metavar="URL", help="Its archive: s3://bucket/prefix or file:///folder.")
    ] = None,
    children: Annotated[
        str | None, typer.Option(metavar="N", help="Parser processes. Default: one per core but one.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings of the fleet, as its agents read them.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting.", autocompletion=setting_names),
    ] = None,
    until_done: Annotated[
        bool,
        typer.Option(
            "--until-done", metavar="", help="End when there has been nothing to parse for a while."
        ),
    ] = False,
    hold: Annotated[
        float,
        typer.Option(
            metavar="S", min=5.0, max=3600.0, help="Seconds until a page in hand is given to another worker."
        ),
    ] = 120.0,
    log: Annotated[Path | None, typer.Option(metavar="FILE", help="Where events go, as JSON lines.")] = None,
    health: Annotated[
        str | None, typer.Option(metavar="ADDR:PORT", help="Answer GET /live and /ready there.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Parse what a fleet has fetched. As many of these as you like, on machines that reach its database and archive."""
    from amble.app.config import Given
    from amble.app.parsing import ParseWishes, configure

    options = {
        "store.url": ("--store", store),
        "archive.url": ("--archive", archive),
        "parse.children": ("--children", children),
    }
    flags: dict[str, Given] = {
        name: Given(value, option) for name, (option, value) in options.items() if value is not None
    }
    wishes = ParseWishes(
        config_file=config,
        assignments=tuple(assignments or ()),
        flags=flags,
        until_done=until_done,
        hold_s=hold,
        log=log,
        health=_address(health),
    )
    return _run(configure(wishes, os.environ), wishes, as_json=as_json)


def _address(text: str | None) -> tuple[str, int] | None:
    from amble.app.parsing import parse_address
    from amble.domain.errors import ConfigErrors

    if text is None:
        return None
    try:
        return parse_address(text)
    except ValueError as error:
        raise ConfigErrors([f"--health {error}"]) from None


def _run(config: CrawlConfig, wishes: ParseWishes, *, as_json: bool) -> int:
    import asyncio
    import signal

    from amble.app.parsing import open_parsing
    from amble.faces import output, text
    from amble.faces.exits import ExitCode

    async def work() -> int:
        loop, asked = asyncio.get_running_loop(), 0
        opened = asyncio.ensure_future(open_parsing(config, wishes))

        def stop() -> None:
            nonlocal asked
            asked += 1
            if asked > 1:
                os._exit(ExitCode.FORCED)
            if opened.done() and not opened.cancelled():
                opened.result().stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        parsing = await opened
        if asked:
            parsing.stop()
        if not as_json:
            children = text.plural(parsing.children, "parser process", "parser processes")
            output.note(f"parsing for {text.safe(parsing.place)} in {children}")
        count = await parsing.run()
        if as_json:
            output.write_json(count)
        else:
            pages = text.plural(count.parsed, "page")
            output.note(f"{pages} parsed, {count.lost} failed or lost to others, {count.stumbled} stumbled")
        return int(ExitCode.STOPPED if asked else ExitCode.OK)

    return asyncio.run(work())
