"""The commands that look after a crawl: export, verify, gc, doctor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from amble.faces.options import FolderArgument, JsonOption

TARGETS = ("jsonl",)


def export(
    folder: FolderArgument = None,
    to: Annotated[
        str, typer.Option("--to", metavar="jsonl", help="The form: jsonl, one JSON document a line.")
    ] = "jsonl",
    file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Where to; - is standard output. A file is continued. Default: DIR/export/documents.jsonl.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Write the documents of a crawl. Again and again: a file is continued, and each document is in it once."""
    from amble.app import folder as crawl_folder
    from amble.app import keeping
    from amble.domain.errors import ConfigErrors
    from amble.faces import output, text
    from amble.faces.exits import MEND_DAMAGE, ExitCode

    if to not in TARGETS:
        raise ConfigErrors([f"--to {to!r} is not accepted: give one of {', '.join(TARGETS)}"])
    place = crawl_folder.find(folder)
    new_folder: Path | None = None
    if file == "-":
        result = keeping.export_jsonl(place, None)
        sys.stdout.flush()
    else:
        target = Path(file) if file is not None else place / "export" / "documents.jsonl"
        if target.is_dir():
            raise ConfigErrors([f"--file {target}: that is a folder; name a file in it"])
        if file is not None and not target.parent.exists():
            new_folder = target.parent
        result = keeping.export_jsonl(place, target)
    told = (
        f"{text.plural(result.documents, 'document')} written to {text.safe(result.target)}"
        if result.documents or result.skipped or not result.position
        else f"nothing new: {text.safe(result.target)} holds every document that there is"
    )
    if new_folder is not None and result.documents:
        told += f" (in a new folder, {text.safe(str(new_folder))})"
    if as_json and file != "-":
        output.write_json(result)
    elif not as_json:
        output.note(told)
    for damaged in result.skipped:
        output.note(f"left out, damaged: {text.safe(damaged)}")
    if result.skipped:
        output.note(f"`amble verify` tells more; {MEND_DAMAGE}")
    return int(ExitCode.FOUND) if result.skipped else 0


def verify(folder: FolderArgument = None, as_json: JsonOption = False) -> int:
    """Check a crawl from outside: every record, digest and index line of its archive, every state of its frontier."""
    from amble.app import folder as crawl_folder
    from amble.app import keeping
    from amble.domain.errors import OperationRefused, StoreBroken, StoreUnfit
    from amble.faces import output, text
    from amble.faces.exits import MEND_DAMAGE, ExitCode

    place = crawl_folder.find(folder)
    _, config = crawl_folder.settings_of(place, os.environ)
    found = 0

    def problems() -> Iterator[str]:
        try:
            yield from keeping.verify(place, config)
        except StoreBroken as damage:
            if isinstance(damage, StoreUnfit | OperationRefused):
                raise
            yield f"{damage}; to mend it, {MEND_DAMAGE}"

    for problem in problems():
        found += 1
        if as_json:
            output.write_json({"problem": problem})
        else:
            output.write_lines([text.safe(problem)])
    if as_json:
        output.write_json({"problems": found})
    else:
        output.note(text.plural(found, "problem") + " found" if found else "all is as it was written")
    return int(ExitCode.FOUND) if found else 0


def gc(
    folder: FolderArgument = None,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The archive: s3://bucket/prefix or file:///folder. Default: archive.url."
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--everything",
            metavar="",
            help="Join also what is less than a large segment: when a crawl is over.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Join the many small segments of an archive in object storage into large ones. Safe at any time, also killed."""
    import asyncio

    from amble.app import collecting
    from amble.app import folder as crawl_folder
    from amble.faces import output, text
    from amble.faces.exits import ExitCode

    url = archive or crawl_folder.archive_url_of(None, os.environ)
    if not url:
        url = crawl_folder.archive_url_of(crawl_folder.find(folder), os.environ)
    result = asyncio.run(collecting.collect(url, everything=everything))
    if as_json:
        output.write_json(result)
    else:
        for problem in result.problems:
            output.write_lines([text.safe(problem)])
        output.note(
            f"{text.safe(result.place)}: {text.plural(result.moved, 'segment')} ({text.size(result.moved_bytes)}) joined "
            f"into {text.count(result.made)}, {text.count(result.deleted)} deleted that were joined before"
            if result.made or result.deleted
            else f"{text.safe(result.place)}: nothing to join yet"
        )
    return int(ExitCode.FOUND) if result.problems else 0


def doctor(folder: FolderArgument = None, as_json: JsonOption = False) -> int:
    """Whether this machine is fit for crawling: Python, libraries, sandbox, files, disk, clock, name server.

    Of a fleet (store.url, archive.url) also its databases and its bucket.
    """
    from amble.app import folder as crawl_folder
    from amble.app import probes
    from amble.app.findings import Verdict
    from amble.faces import output, tables
    from amble.faces.exits import ExitCode

    place = folder if folder is not None else Path()
    own = place if crawl_folder.is_crawl_folder(place) else None
    _, config = crawl_folder.settings_of(own, os.environ)
    findings = probes.doctor(place, config)
    if as_json:
        output.write_json({"findings": findings})
    else:
        output.write_lines(tables.finding_lines(findings))
    return int(ExitCode.FOUND) if any(item.verdict is Verdict.PROBLEM for item in findings) else 0
