"""What a machine needs for crawling, looked at one by one: `amble doctor`.

Each check is a small function that returns one finding and changes nothing. What only an adapter can tell (the
sandbox, the name server) is handed in by `app/probes.py`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import amble
from amble.app.findings import Finding, Verdict

PYTHON_MIN = (3, 11)
# Below this a crawl of many origins runs out of sockets, files and pipes.
FILES_WANTED = 4_096
FILES_NEEDED = 512
DISK_NEEDED_BYTES = 500 * 1024 * 1024
DISK_WANTED_BYTES = 5 * 1024 * 1024 * 1024
# SQLite releases in which a WAL reset could lose a committed transaction when two connections checkpoint at once.
WAL_RESET_FIXED = (3, 51, 3)
WAL_RESET_BACKPORTS = frozenset({(3, 44, 6), (3, 50, 7)})
# A clock before this program was written is a clock that was never set.
CLOCK_FLOOR_S = 1_735_689_600
_LIBRARIES = (
    "aiodns",
    "apsw",
    "brotli",
    "isal",
    "msgspec",
    "turbohtml",
    "upa-url",
    "uvloop",
    "zstandard",
)

Check = Callable[[], Finding]


def examine(folder: Path, adapter_checks: Sequence[Check] = ()) -> list[Finding]:
    """Every finding, in the order in which a crawl would meet what it looks at."""
    checks: list[Check] = [
        python,
        libraries,
        sqlite,
        loop,
        files,
        lambda: disk(folder),
        clock,
        *adapter_checks,
    ]
    return [_guarded(check) for check in checks]


def _guarded(check: Check) -> Finding:
    """A check that cannot look is a finding too."""
    try:
        return check()
    except Exception as exc:
        name = getattr(check, "__name__", "check").strip("<>_")
        return Finding(
            name=name, verdict=Verdict.NOTE, detail=f"cannot be looked at: {type(exc).__name__}: {exc}"
        )


def python() -> Finding:
    """The interpreter."""
    version = f"{platform.python_implementation()} {platform.python_version()}, amble {amble.__version__}"
    if sys.version_info < PYTHON_MIN:
        return Finding(
            name="python", verdict=Verdict.PROBLEM, detail=version, fix="install Python 3.11 or newer"
        )
    return Finding(name="python", verdict=Verdict.GOOD, detail=version)


def libraries() -> Finding:
    """The compiled libraries that the line cannot do without."""
    found, missing = [], []
    for name in _LIBRARIES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    wanted = [name for name in missing if name not in ("uvloop", "apsw")]
    if wanted:
        return Finding(
            name="libraries",
            verdict=Verdict.PROBLEM,
            detail=f"missing: {', '.join(wanted)}",
            fix="install amble again: make install, or pip install .",
        )
    return Finding(name="libraries", verdict=Verdict.GOOD, detail=", ".join(found))


def sqlite() -> Finding:
    """The SQLite that will hold the frontier, and whether it has the WAL-reset fault."""
    try:
        import apsw

        version, driver = apsw.sqlite_lib_version(), "apsw"
    except ImportError:
        version, driver = sqlite3.sqlite_version, "sqlite3"
    numbers = tuple(int(part) for part in version.split(".")[:3])
    detail = f"{version} by {driver}"
    if numbers >= WAL_RESET_FIXED or numbers in WAL_RESET_BACKPORTS:
        return Finding(name="sqlite", verdict=Verdict.GOOD, detail=detail)
    return Finding(
        name="sqlite",
        verdict=Verdict.NOTE,
        detail=f"{detail}; has the WAL-reset fault, which one writer cannot meet",
        fix="pip install -U apsw brings a current SQLite",
    )


def loop() -> Finding:
    """Which event loop a crawl would run on."""
    try:
        import uvloop  # noqa: F401 - whether it can be loaded is the question
    except ImportError:
        return Finding(
            name="loop",
            verdict=Verdict.NOTE,
            detail="asyncio's own",
            fix="pip install uvloop saves 10 to 23 % of CPU per page",
        )
    return Finding(name="loop", verdict=Verdict.GOOD, detail=f"uvloop {importlib.metadata.version('uvloop')}")


def files() -> Finding:
    """How many files and sockets a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"{soft} open files allowed (at most {hard})"
    if soft < FILES_NEEDED:
        return Finding(name="files", verdict=Verdict.PROBLEM, detail=detail, fix=f"ulimit -n {FILES_WANTED}")
    if soft < FILES_WANTED:
        return Finding(
            name="files",
            verdict=Verdict.NOTE,
            detail=f"{detail}; a crawl of many origins wants more",
            fix=f"ulimit -n {FILES_WANTED}",
        )
    return Finding(name="files", verdict=Verdict.GOOD, detail=detail)


def disk(folder: Path) -> Finding:
    """Room where the crawl folder is or would be, and whether it can be written."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    detail = f"{free / 1e9:.1f} GB free at {place}"
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            name="disk",
            verdict=Verdict.PROBLEM,
            detail=f"{place} cannot be written",
            fix="mend its permissions",
        )
    if free < DISK_NEEDED_BYTES:
        return Finding(
            name="disk", verdict=Verdict.PROBLEM, detail=detail, fix="free some space or use another disk"
        )
    if free < DISK_WANTED_BYTES:
        return Finding(name="disk", verdict=Verdict.NOTE, detail=f"{detail}; enough for a small crawl")
    return Finding(name="disk", verdict=Verdict.GOOD, detail=detail)


def clock() -> Finding:
    """Whether the wall clock is set: due times, WARC dates and certificates hang on it."""
    now_s = time.time()
    detail = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(now_s))
    if now_s < CLOCK_FLOOR_S:
        return Finding(
            name="clock", verdict=Verdict.PROBLEM, detail=f"{detail} is in the past", fix="set the clock"
        )
    return Finding(name="clock", verdict=Verdict.GOOD, detail=detail)
