"""`amble migrate`: a crawl out of its folder into a database, for a fleet to go on with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from amble.faces.options import JsonOption

if TYPE_CHECKING:
    from amble.app.moving import MoveResult


def migrate(
    source: Annotated[
        str, typer.Option("--from", metavar="sqlite:DIR", help="The folder of a crawl that does not run.")
    ],
    target: Annotated[
        str,
        typer.Option(
            "--to", metavar="postgresql://…", help="An empty database, or one that a move was begun in."
        ),
    ],
    archive: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Object storage that takes its segments: s3://BUCKET/PREFIX or file:///DIR. Agents need it.",
        ),
    ] = "",
    partitions: Annotated[
        int | None, typer.Option(metavar="N", help="Partitions of a database that has none yet (default 64).")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Move a crawl from its folder into a database. What was stopped goes on; every row is read back and compared."""
    from amble.app import folder as crawl_folder
    from amble.app import moving
    from amble.faces import output, text

    wishes = moving.parse(source, target, partitions, archive)
    told: dict[str, int] = {}

    def progress(name: str, done: int) -> None:
        # A line for each table when it begins, and then for every doubling.
        if done >= 2 * told.get(name, 0):
            told[name] = done
            if not as_json:
                output.note(f"{name}: {text.count(done)}")

    result = moving.move(wishes, progress)
    if as_json:
        output.write_json(result)
        return 0
    output.note(_frontier(result))
    if archive:
        output.note(f"its segments lie in {text.safe(archive)}")
    else:
        output.note(
            "its segments are still in the folder: the same command with --archive URL moves them as well"
        )
    output.note(
        f"`amble crawl` refuses the folder from now on ({crawl_folder.MOVED_NAME} in it says so): "
        "both would ask the same sites, each at its own pace"
    )
    output.note(
        f"go on with: amble agent --store {text.safe(result.database)} --archive {text.safe(archive) or 'URL'}"
    )
    return 0


def _frontier(result: MoveResult) -> str:
    from amble.faces import text

    if result.before:
        return (
            f"its frontier was moved to {text.safe(result.database)} before; nothing of it was copied again"
        )
    return (
        f"{text.count(result.rows['url'])} URLs of {text.plural(result.rows['origin'], 'origin')} and "
        f"{text.plural(result.rows['fetch'], 'fetch record')} moved to {text.safe(result.database)}, read back and equal"
    )
