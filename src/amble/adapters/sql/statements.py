"""The hand-written SQL: one file per table, each statement under a `-- name: comment` header.

A statement that moves a URL names its event, `-- lease_url [lease]: …`; the loader replaces `:sources` and `:target`
in it by the integers of `domain/lifecycle.py`, so that no SQL repeats the table of states.
"""

from __future__ import annotations

import re
from pathlib import Path

from amble.domain.lifecycle import UrlEvent, sources, target

# Beside this file: importlib.resources would cost a short command more than all its queries.
_FOLDER = Path(__file__).parent
_HEADER = re.compile(r"^-- (\w+)(?: \[(\w+)\])?: .+$", re.MULTILINE)


def load(table: str, folder: Path = _FOLDER) -> dict[str, str]:
    """The statements of `<table>.sql` in `folder` by name, guards expanded, each one line of text."""
    text = (folder / f"{table}.sql").read_text(encoding="utf-8")
    headers = list(_HEADER.finditer(text))
    found: dict[str, str] = {}
    for number, header in enumerate(headers):
        end = headers[number + 1].start() if number + 1 < len(headers) else len(text)
        name, event = header.group(1), header.group(2)
        if name in found:
            raise ValueError(f"{table}.sql names {name} twice")
        found[name] = _expand(text[header.end() : end], event)
    return found


def _expand(body: str, event: str | None) -> str:
    lines = (line.split("--", 1)[0] for line in body.splitlines())
    statement = " ".join(" ".join(lines).split()).rstrip("; ")
    if event is not None:
        moved = UrlEvent(event)
        statement = statement.replace(":sources", ", ".join(map(str, sources(moved))))
        statement = statement.replace(":target", str(target(moved)))
    if ":sources" in statement or ":target" in statement:
        raise ValueError(f"a guard without an event: {statement}")
    return statement
