"""The `amble` command: options to wishes, wishes to work, and one exit code out of everything.

Commands are thin: what they ask stands in `app`, what they print in the other files of this floor. Heavy modules are
imported by the command that needs them, so that `amble --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import amble
from amble.faces import fleet, inspect, maintain, migrate, parse, simulate, tryout
from amble.faces import plan as planning
from amble.faces.options import SetOption, ShowByDefault, delay_flags, listed

if TYPE_CHECKING:
    from amble.app.config import Given
    from amble.app.folder import Wishes
    from amble.faces.display import Display

app = typer.Typer(
    name="amble",
    help="A polite, durable web crawler. The main job: [bold]amble crawl https://example.org/[/bold]",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# 128 + SIGINT
_INTERRUPTED = 130

_WHERE = "Where and how far"
_POLITE = "Politeness and identity"
_LIMITS = "Limits"
_OUTPUT = "Output"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"amble {amble.__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit()


def _scopes() -> list[str]:
    return ["host", "site", "prefix", "any"]


@app.command()
def crawl(
    urls: Annotated[
        list[str] | None,
        typer.Argument(metavar="URL", help="Where to begin. None: go on with --out DIR."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Crawl folder. Default: ./crawl-HOST.", rich_help_panel=_WHERE),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A list of URLs, one a line; - reads it from standard input.",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="host|site|prefix|any",
            help="How far from the seeds: their hosts with and without www (default), registrable domains, paths, or anywhere.",
            autocompletion=_scopes,
            rich_help_panel=_WHERE,
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Only URLs that match (* any text, $ the end).", rich_help_panel=_WHERE
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="No URLs that match.", rich_help_panel=_WHERE),
    ] = None,
    pages: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="End after N pages (default 10000), or unlimited.", rich_help_panel=_LIMITS
        ),
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(metavar="T", help="End this run after 90s, 15m, 2h.", rich_help_panel=_LIMITS),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="N", help="Requests at once over all origins.", rich_help_panel=_LIMITS),
    ] = None,
    contact: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="How a webmaster reaches you; needed for public sites. Sent in User-Agent.",
            rich_help_panel=_POLITE,
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            help="Seconds between two starts at one origin (default 2, and longer for slow ones).",
            rich_help_panel=_POLITE,
        ),
    ] = None,
    per_origin: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Requests at one origin at once (default 1).", rich_help_panel=_POLITE
        ),
    ] = None,
    user_agent: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Your own User-Agent.", rich_help_panel=_POLITE)
    ] = None,
    allow_net: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CIDR",
            help="Private network that may be contacted, such as 127.0.0.0/8.",
            rich_help_panel=_POLITE,
        ),
    ] = None,
    resolver: Annotated[
        str | None, typer.Option(metavar="ADDR:PORT", help="Name server to ask.", rich_help_panel=_POLITE)
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Settings in the form of amble.toml."),
    ] = None,
    assignments: SetOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="JSON lines for programs.", rich_help_panel=_OUTPUT)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", metavar="", help="Only the summary.", rich_help_panel=_OUTPUT)
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Every reason, not only the first few.", rich_help_panel=_OUTPUT
        ),
    ] = False,
) -> int:
    """Crawl from URLs into a folder, or go on with one. The same command resumes: after Ctrl-C, a crash, a power cut.

    What is given here is kept in the folder: settings in amble.toml, URLs in seeds.txt.
    """
    from amble.app import folder as crawl_folder
    from amble.app.config import Given

    flags: dict[str, Given] = {}
    for name, option, value in (
        ("scope.kind", "--scope", scope),
        ("budget.pages_max", "--pages", pages),
        ("budget.seconds_max", "--max-time", max_time),
        ("crawl.concurrency", "--concurrency", concurrency),
        ("crawl.contact", "--contact", contact),
        ("crawl.user_agent", "--user-agent", user_agent),
        ("origin.active_max", "--per-origin", per_origin),
        ("network.resolver", "--resolver", resolver),
    ):
        if value is not None:
            flags[name] = Given(value, option)
    for name, option, values in (
        ("scope.include", "--include", include),
        ("scope.exclude", "--exclude", exclude),
        ("network.allow_nets", "--allow-net", allow_net),
    ):
        if values:
            flags[name] = Given(values, option, text=False)
    if delay is not None:
        flags |= delay_flags(delay)
    wishes = crawl_folder.Wishes(
        seeds=(*(urls or ()), *listed(seeds)),
        out=out,
        config_file=config,
        assignments=tuple(assignments or ()),
        flags=flags,
    )
    return _crawl(wishes, as_json=as_json, quiet=quiet, verbose=verbose)


def _crawl(wishes: Wishes, *, as_json: bool, quiet: bool, verbose: bool) -> int:
    from amble.app import folder as crawl_folder
    from amble.faces import output
    from amble.faces.run import run_crawl

    plan = crawl_folder.plan(wishes, os.environ)
    crawl_folder.refuse_elsewhere(plan)
    try:
        return int(run_crawl(plan, _display(as_json=as_json, quiet=quiet, verbose=verbose)))
    except Exception as exc:
        return output.fail(exc, as_json=as_json, folder=plan.folder)


app.command()(inspect.status)
app.command()(inspect.urls)
app.command()(inspect.failed)
app.command()(inspect.why)
app.command()(inspect.check)
app.command()(planning.plan)
app.command()(parse.parse)
app.command()(tryout.fleet)
app.command()(fleet.agent)
app.command()(fleet.agents)
_partitions = typer.Typer(
    cls=ShowByDefault, help="The partitions of a fleet; without a command, `show`: amble partitions DIR"
)
_partitions.command("show")(fleet.partitions)
_partitions.command("move")(fleet.move)
app.add_typer(_partitions, name="partitions")
app.command()(fleet.seed)
app.command()(maintain.export)
app.command()(maintain.verify)
app.command()(maintain.gc)
app.command()(maintain.doctor)
app.command()(migrate.migrate)
app.command()(simulate.simulate)
_store = typer.Typer(help="The database of a fleet.")
_store.command("init")(fleet.init)
app.add_typer(_store, name="store")
_config = typer.Typer(help="The settings of a crawl.")
_config.command("show")(inspect.config_show)
app.add_typer(_config, name="config")


def _display(*, as_json: bool, quiet: bool, verbose: bool) -> Display:
    from amble.faces import output
    from amble.faces.display import JsonDisplay, PlainDisplay, Summary

    if as_json:
        return JsonDisplay(sys.stdout, quiet=quiet)
    # What draws is loaded for a terminal only: it takes a tenth of the time that a crawl needs to start.
    summary = Summary(sys.stdout, output.console() if sys.stdout.isatty() else None, verbose=verbose)
    if quiet or not output.is_live():
        return PlainDisplay(sys.stderr, summary, quiet=quiet, verbose=verbose)
    from amble.faces.picture import LiveDisplay

    return LiveDisplay(output.console(stderr=True), summary)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; nothing is raised."""
    from amble.faces import output
    from amble.faces.exits import ExitCode

    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    output.speak_any_encoding()
    if not __debug__:
        return output.say_error(
            ["assertions are part of amble's safety; run Python without -O"], ExitCode.USAGE, as_json=as_json
        )
    try:
        code = int(app(given, prog_name="amble", standalone_mode=False) or 0)
        # The parser of the command line answers Ctrl-C with the shell's number for it.
        return _flushed(int(ExitCode.STOPPED) if code == _INTERRUPTED else code)
    except KeyboardInterrupt:
        return _flushed(int(ExitCode.STOPPED))
    except BrokenPipeError:
        return _flushed(0)
    except SystemExit as exc:
        # The parser of the command line turns a broken pipe into this by itself.
        return _flushed(0 if isinstance(exc.__context__, BrokenPipeError) else int(exc.code or 0))
    except Exception as exc:
        # The parser of the command line is typer's own or click's, by version; both can format their mistakes.
        message = getattr(exc, "format_message", None)
        if message is None:
            return output.fail(exc, as_json=as_json)
        said = message().rstrip(".")
        return output.say_error(
            [f"{said}; {_hint(said, _command_of(given))}"], ExitCode.USAGE, as_json=as_json
        )


def _hint(said: str, command: str) -> str:
    """What to do about a mistake that the parser of the command line tells."""
    if said.endswith("is not readable"):
        return "mend its permissions, or name another"
    if said.startswith(("No such option: --store", "No such option: --archive")) and command:
        return (
            f"say AMBLE_STORE_URL=URL AMBLE_ARCHIVE_URL=URL before `amble {command.strip()}`, "
            "or name a folder whose amble.toml has store.url and archive.url"
        )
    return f"`amble {command}--help` shows what there is"


def _flushed(code: int) -> int:
    """`code`, when everything is written or nobody wants to read it (`amble urls | head`), which is no failure."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain once more while it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _command_of(arguments: Sequence[str]) -> str:
    """The command that a line names first, `store init ` too, with a space behind it; "" where none exists."""
    names = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    names |= {group.name for group in app.registered_groups if group.name}
    first = next((word for word in arguments[:1] if word in names), "")
    group = next((group.typer_instance for group in app.registered_groups if group.name == first), None)
    inner = {command.name for command in group.registered_commands} if group else set()
    return "".join(
        f"{word} " for word in (first, *(word for word in arguments[1:2] if word in inner)) if word
    )


if __name__ == "__main__":
    sys.exit(main())
