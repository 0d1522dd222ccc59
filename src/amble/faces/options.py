"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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


def one_folder(folder: Path | None, out: Path | None) -> Path | None:
    """The folder that a command means which takes it both ways. Raises ConfigErrors when they differ."""
    from amble.domain.errors import ConfigErrors

    if folder is not None and out is not None and folder != out:
        raise ConfigErrors([f"two folders are named, {folder} and --out {out}: give one"])
    return out if folder is None else folder
