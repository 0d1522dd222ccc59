"""How a command ends: the exit codes, and broken promises as one line with a reason and a fix.

Nothing here prints a traceback. An error that nobody foresaw goes to a log file, and the line says where.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
import traceback
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from amble.app.progress import CrawlResult, EndReason
from amble.domain.errors import (
    ArchiveBroken,
    ArchiveUnavailable,
    ConfigErrors,
    CrawlFolderBusy,
    CrawlFolderUnusable,
    OperationRefused,
    SandboxUnavailable,
    SinkBroken,
    SinkUnavailable,
    StoreBroken,
    StoreUnavailable,
    StoreUnfit,
)


class ExitCode(IntEnum):
    """What the shell gets. The numbers never change meaning."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    FOUND = 3
    STOPPED = 10
    FORCED = 11
    BUSY = 12
    NOTHING = 13
    UNUSABLE = 14


MEANINGS: dict[ExitCode, tuple[str, str]] = {
    ExitCode.OK: (
        "The command did what it was asked. A crawl is complete, or has spent its page or time budget, or has nothing due soon.",
        "Read the summary: it says which of these, and how to go on.",
    ),
    ExitCode.INTERNAL: (
        "A mistake in amble. The line on standard error names a log file.",
        "Report it with that file. The crawl folder is sound: the same command goes on.",
    ),
    ExitCode.USAGE: (
        "The command line, a setting, a file or a folder is wrong. Nothing was started.",
        "Each line on standard error names one mistake and its fix.",
    ),
    ExitCode.FOUND: (
        "The command worked, and its answer is a bad one: `verify` or `doctor` found a problem, `why` does not know the URL, `check` says that the URL would not be fetched, `plan` that the target is out of reach.",
        "Read the answer.",
    ),
    ExitCode.STOPPED: (
        "Stopped by Ctrl-C or SIGTERM; everything in flight was finished or handed back.",
        "The same command goes on.",
    ),
    ExitCode.FORCED: (
        "Stopped at once by a second Ctrl-C or SIGTERM.",
        "The same command goes on; requests that were on the wire are made again.",
    ),
    ExitCode.BUSY: (
        "Another process works in this crawl folder; the line names it.",
        "Wait for it, stop it, or name another folder with --out.",
    ),
    ExitCode.NOTHING: (
        "The crawl ended without a single page: every seed was refused or failed, or no name server answered.",
        "The summary shows the reasons; `amble why URL` explains one.",
    ),
    ExitCode.UNUSABLE: (
        "The frontier, the archive or the parser processes cannot be used (disk full, no permission, a broken or newer file), also where a time budget has ended the wait for them.",
        "Mend what the line names. Nothing that was acknowledged is lost; the same command goes on.",
    ),
}


# Files that are not what was written: nothing mends them, and the same command does not get past them.
MEND_DAMAGE = "bring the folder back from a copy, or begin another with its amble.toml (--config) and seeds.txt (--seeds)"
MEND_UNUSABLE = "free some space or mend the permissions"


def exit_code_of(result: CrawlResult) -> ExitCode:
    """The exit code for the end of a crawl."""
    match result.reason:
        case EndReason.STOPPED:
            return ExitCode.STOPPED
        case EndReason.TROUBLE:
            return ExitCode.UNUSABLE
        case _ if result.unusable:
            return ExitCode.UNUSABLE
        case _ if result.pages == 0:
            return ExitCode.NOTHING
        case _:
            return ExitCode.OK


def lines_for(exc: BaseException) -> tuple[ExitCode, Sequence[str]] | None:
    """(exit code, one line per mistake) of an exception that amble or the system raises on purpose, else None."""
    match exc:
        case BaseExceptionGroup():
            return _lines_for_group(exc)
        case ConfigErrors():
            return ExitCode.USAGE, exc.problems
        case CrawlFolderBusy():
            return ExitCode.BUSY, [str(exc)]
        case CrawlFolderUnusable():
            return ExitCode.UNUSABLE, [str(exc)]
        case StoreUnfit() | OperationRefused():
            return ExitCode.UNUSABLE, [str(exc)]
        case StoreUnavailable() | ArchiveUnavailable():
            # What is not in a folder is away; nothing on this machine needs mending.
            mend = "once it answers," if "://" in str(exc) else f"{MEND_UNUSABLE}, then"
            return ExitCode.UNUSABLE, [f"{exc}; {mend} run the same command again"]
        case StoreBroken() | ArchiveBroken():
            return ExitCode.UNUSABLE, [
                f"{exc}; `amble verify` tells what can be told of the damage: {MEND_DAMAGE}"
            ]
        case SinkUnavailable():
            return ExitCode.UNUSABLE, [f"{exc}; free some space, mend the permissions, or name another file"]
        case SinkBroken():
            return ExitCode.UNUSABLE, [f"{exc}; name another file"]
        case SandboxUnavailable():
            return ExitCode.UNUSABLE, [f"{exc}; `amble doctor` tells what is missing"]
        case ModuleNotFoundError(name="asyncpg" | "obstore"):
            return ExitCode.USAGE, [
                f"a fleet needs {exc.name}, which is not installed: pip install 'amble[fleet]', or '.[fleet]' in the source tree"
            ]
        case OSError() if exc.errno in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT):
            where = f"{exc.filename}: " if exc.filename else ""
            return ExitCode.UNUSABLE, [f"{where}{exc.strerror}; {MEND_UNUSABLE}"]
        case _:
            return None


def _lines_for_group(group: BaseExceptionGroup[BaseException]) -> tuple[ExitCode, Sequence[str]] | None:
    """The lines of every member, when all of them are known; the code of the first."""
    known = [lines_for(member) for member in group.exceptions]
    found = [item for item in known if item is not None]
    if len(found) < len(known) or not found:
        return None
    return found[0][0], list(dict.fromkeys(line for _, lines in found for line in lines))


def write_crash_log(exc: BaseException, folder: Path | None) -> Path | None:
    """The traceback in a file that only its owner reads: in the crawl folder's run/, else where temporary files are."""
    name = f"amble-crash-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.log"
    text = "".join(traceback.format_exception(exc))
    own = folder / "run" if folder is not None and (folder / "run").is_dir() else None
    for place in (own, Path(tempfile.gettempdir())):
        if place is None:
            continue
        try:
            descriptor = os.open(place / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except OSError:
            continue
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return place / name
    return None
