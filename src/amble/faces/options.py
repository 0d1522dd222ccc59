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
    typer.Option("--out", metavar="DIR", help="The crawl folder; without it, the only one here."),
]
