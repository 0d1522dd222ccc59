"""Options and arguments that several commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from amble.app.config import Given

JsonOption = Annotated[
    bool, typer.Option("--json", metavar="", help="JSON for programs instead of text for people.")
]
FolderArgument = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="The crawl folder; without it, the only one here.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="The same, as `amble crawl` calls it."),
]


def setting_names(begun: str) -> list[str]:
    """For the shell: the settings whose names begin so."""
    from amble.app.settings import SETTINGS

    return [f"{name}=" for name in SETTINGS if name.startswith(begun)]


SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting, such as fetch.total_s=30; repeatable.",
        autocompletion=setting_names,
    ),
]


class ShowByDefault(TyperGroup):
    """A group of commands whose `show` is meant when none is named, so that a folder can stand in its place."""

    default = "show"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Everything but a command of the group, or a wish for help, belongs to `show`."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def one_folder(folder: Path | None, out: Path | None) -> Path | None:
    """The folder that a command means which takes it both ways. Raises ConfigErrors when they differ."""
    from amble.domain.errors import ConfigErrors

    if folder is not None and out is not None and folder != out:
        raise ConfigErrors([f"two folders are named, {folder} and --out {out}: give one"])
    return out if folder is None else folder


def delay_flags(text: str) -> dict[str, Given]:
    """--delay: a bare number is seconds, and the delay is then exactly that."""
    from amble.app.config import Given

    bare = text.strip().replace(".", "", 1).isdigit()
    return {
        "origin.spacing_ms": Given(
            f"{text}s" if bare else text, "--delay", accepts="seconds, or a duration such as 500ms, 2s"
        ),
        "origin.delay_fixed": Given("true", "--delay"),
    }


def listed(source: str | None) -> list[str]:
    """The URLs of --seeds. Raises ConfigErrors."""
    from amble.app import folder as crawl_folder
    from amble.app.config import complain

    if source is None:
        return []
    if source == "-":
        return crawl_folder.seeds_of(sys.stdin.read())
    problems: list[str] = []
    urls = crawl_folder.read_seeds(Path(source), problems)
    if not urls and not problems:
        problems.append(f"{source}: no URL in it; write one a line")
    complain([f"--seeds {problem}" for problem in problems])
    return urls
