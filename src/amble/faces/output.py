"""Where commands write: consoles for people, JSON for programs, and the one way in which a command fails."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from amble.faces import text
from amble.faces.exits import ExitCode, lines_for, write_crash_log

if TYPE_CHECKING:
    from rich.console import Console

# No terminal means a file or a pipe: there a table must never be folded.
_PIPE_COLUMNS = 10_000


def speak_any_encoding() -> None:
    """From here on a character that a stream's encoding lacks comes as its escape, never as an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def console(*, stderr: bool = False) -> Console:
    """A console that colours and folds on a terminal only, and never guesses at what looks like a number."""
    # Only a running crawl draws; rich would be a third of what a short command costs.
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_COLUMNS
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width, soft_wrap=False)


def is_live() -> bool:
    """Whether a picture can be drawn in place."""
    return sys.stderr.isatty() and not console(stderr=True).is_dumb_terminal


def write_json(value: Any) -> None:
    """One JSON document on standard output, one line."""
    print(text.json_line(plain(value), sys.stdout.encoding))


def write_lines(lines: Iterable[str]) -> None:
    """Text on standard output."""
    for line in lines:
        print(line)


def note(line: str) -> None:
    """A remark for people on standard error, so that it never mixes with an answer."""
    print(line, file=sys.stderr)


def plain(value: Any) -> Any:
    """Structs and dataclasses as dicts by their field names, whatever their form on the wire."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value.hex() if isinstance(value, bytes) else value


def say_error(lines: Sequence[str], code: ExitCode, *, as_json: bool) -> int:
    """One line per mistake on standard error; with --json also one object on standard output."""
    try:
        for line in lines:
            print(f"amble: {text.safe(line)}", file=sys.stderr)
        if as_json:
            write_json({"event": "error", "problems": list(lines), "exit_code": int(code)})
    except OSError:
        pass  # the terminal or the reader is gone; the exit code still tells
    return int(code)


def fail(exc: BaseException, *, as_json: bool, folder: Path | None = None) -> int:
    """Say what broke in one line and return the exit code. What nobody foresaw goes to a log file."""
    known = lines_for(exc)
    if known is not None:
        code, lines = known
        return say_error(lines, code, as_json=as_json)
    log = write_crash_log(exc, folder)
    where = f"the details are in {log}" if log else "no log could be written"
    problem = f"internal error: {type(exc).__name__}; {where}; please report it with that file"
    return say_error([problem], ExitCode.INTERNAL, as_json=as_json)
