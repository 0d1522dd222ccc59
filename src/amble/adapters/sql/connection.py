"""One thin face over two SQLite drivers: apsw, and the standard library where apsw is missing.

Both hand out one reused cursor whose `execute` is called directly by the hot paths. The only statement that differs
is the membership lookup. A driver's exceptions are translated in one place, `trouble_of`.

Two copies of SQLite in one process share the process's file locks and drop each other's: never open one file with
both drivers in one process.
"""

from __future__ import annotations

import array
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from amble.domain.errors import AmbleError, StoreBroken, StoreUnavailable

try:
    import apsw
except ImportError:  # pragma: no cover - the dependency is declared; a bare machine still works
    apsw = None  # type: ignore[assignment]

Driver = Literal["apsw", "sqlite3"]
DRIVER: Final[Driver] = "sqlite3" if apsw is None else "apsw"

_DRIVER_ERRORS: Final[tuple[type[Exception], ...]] = (
    (sqlite3.Error,) if apsw is None else (sqlite3.Error, apsw.Error)
)

# Longer would keep the agent from hearing that the file is locked; the store process tries again by itself.
_WRITER_BUSY_MS: Final = 1_000
_CHECKPOINT_BUSY_MS: Final = 100
PAGE_BYTES: Final = 4096

# Primary result codes after which the same transaction may simply be tried again later.
_UNAVAILABLE: Final = frozenset(
    {5, 6, 7, 8, 10, 13, 14, 15}
)  # BUSY LOCKED NOMEM READONLY IOERR FULL CANTOPEN PROTOCOL
_BROKEN: Final = frozenset({11, 26})  # CORRUPT NOTADB

# apsw gives each use of a statement the next place in a ring, so what was not used for a whole round is prepared anew.
# This is the longest ring it has.
_STATEMENTS_KEPT: Final = 512

_KNOWN_CARRAY = "SELECT u.id, u.path FROM carray(?1) AS j CROSS JOIN url AS u ON u.id = j.value"
_KNOWN_JSON = "SELECT u.id, u.path FROM json_each(?1) AS j CROSS JOIN url AS u ON u.id = j.value"

Row = tuple[Any, ...]


def trouble_of(error: BaseException) -> AmbleError | None:
    """The broken promise that a driver's exception stands for; None when it is a mistake of one statement."""
    code = getattr(error, "result", None) or getattr(error, "sqlite_errorcode", None) or 0
    primary = int(code) & 0xFF
    if primary in _BROKEN:
        return StoreBroken(f"the frontier file is damaged: {error}")
    if primary in _UNAVAILABLE:
        return StoreUnavailable(f"the frontier file cannot be used now: {error}")
    return None


class Cursor(Protocol):
    """What both drivers' cursors can do and the store uses."""

    def execute(self, sql: str, params: Any = ..., /) -> Any:
        """Run one statement."""
        ...

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Any:
        """Run one statement for each tuple of parameters."""
        ...


class Database:
    """One connection. `execute(sql, params)` returns something with `fetchone` and `fetchall`."""

    driver: Driver
    # Pages in the write-ahead log as of the last commit. None where the driver does not tell; readers do not count.
    log_pages: int | None = None

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        cursor: Cursor = raw.cursor()
        self.execute: Callable[..., Any] = cursor.execute
        self.executemany: Callable[..., Any] = cursor.executemany

    def known(self, ids: list[int]) -> dict[int, str]:
        """Which of these ids exist, and the path of each. Give them sorted: pages are then read once, in order."""
        raise NotImplementedError

    def script(self, sql: str) -> None:
        """Run several statements in the open transaction."""
        raise NotImplementedError

    def total_changes(self) -> int:
        """Rows changed since the connection was opened."""
        raise NotImplementedError

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return bool(self.raw.in_transaction)

    def rollback(self) -> None:
        """End the open transaction, if any, without a trace."""
        if self.in_transaction:
            self.execute("ROLLBACK")

    def count_log(self) -> None:
        """Count the pages of the write-ahead log from now on, if the driver can."""

    def checkpoint(self, *, cut: bool = True) -> None:
        """Fold the write-ahead log into the file, if no reader is in the way for long.

        The log is cut to nothing; without `cut` its file keeps its length, and the next commits write over it, which
        costs the kernel less than to make it grow again.
        """
        mode = "TRUNCATE" if cut else "RESTART"
        self.execute(f"PRAGMA busy_timeout={_CHECKPOINT_BUSY_MS}").fetchall()
        try:
            ((in_the_way, _, _),) = self.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
            if not in_the_way and self.log_pages is not None:
                self.log_pages = 0
        finally:
            self.execute(f"PRAGMA busy_timeout={_WRITER_BUSY_MS}").fetchall()

    def close(self) -> None:
        """Let go of the file."""
        self.raw.close()


class ApswDatabase(Database):
    """apsw, which carries a current SQLite of its own."""

    driver: Driver = "apsw"

    def known(self, ids: list[int]) -> dict[int, str]:
        """See Database.known."""
        if not ids:
            return {}
        return dict(self.execute(_KNOWN_CARRAY, (apsw.carray(array.array("q", ids)),)).fetchall())

    def count_log(self) -> None:
        """See Database.count_log."""

        def committed(_connection: Any, _name: str, pages: int) -> int:
            self.log_pages = pages
            return 0

        self.log_pages = 0
        self.raw.set_wal_hook(committed)

    def script(self, sql: str) -> None:
        """See Database.script."""
        self.execute(sql).fetchall()

    def total_changes(self) -> int:
        """See Database.total_changes."""
        return int(self.raw.total_changes())


class StdlibDatabase(Database):
    """The standard library's sqlite3."""

    driver: Driver = "sqlite3"

    def known(self, ids: list[int]) -> dict[int, str]:
        """See Database.known."""
        if not ids:
            return {}
        return dict(self.execute(_KNOWN_JSON, (json.dumps(ids),)).fetchall())

    def script(self, sql: str) -> None:
        """See Database.script. Statement by statement: the module's own `executescript` would commit first."""
        pending = ""
        for line in sql.splitlines():
            pending += line + "\n"
            if sqlite3.complete_statement(pending):
                self.execute(pending)
                pending = ""

    def total_changes(self) -> int:
        """See Database.total_changes."""
        return int(self.raw.total_changes)


_WRITER_PRAGMAS: Final[Sequence[str]] = (
    f"page_size={PAGE_BYTES}",
    "journal_mode=WAL",
    "synchronous=FULL",
    "wal_autocheckpoint=0",  # the writer checkpoints when it is quiet
    "secure_delete=OFF",
    "temp_store=MEMORY",
    f"busy_timeout={_WRITER_BUSY_MS}",
)
_READER_PRAGMAS: Final[Sequence[str]] = (
    "query_only=ON",
    "wal_autocheckpoint=0",
    "busy_timeout=2000",
    "temp_store=MEMORY",
)


def open_writer(path: Path | str, *, driver: Driver = DRIVER, cache_bytes_max: int = 268_435_456) -> Database:
    """The one connection that writes. `path` may be ":memory:". Raises StoreUnavailable, StoreBroken."""
    pragmas = (*_WRITER_PRAGMAS, f"cache_size=-{cache_bytes_max // 1024}")
    database = _open(str(path), driver, pragmas, read_only=False)
    # After the pragma that turns automatic checkpoints off: both are one hook of SQLite's.
    database.count_log()
    return database


def open_reader(path: Path | str, *, driver: Driver = DRIVER) -> Database:
    """A connection that can only read. Raises StoreUnavailable where there is no such file, StoreBroken.

    In a folder that may not be written, such as one on a read-only disk, it needs a file that was closed in order.
    """
    return _open(str(path), driver, (*_READER_PRAGMAS, "cache_size=-16384"), read_only=True)


def _open(path: str, driver: Driver, pragmas: Sequence[str], *, read_only: bool) -> Database:
    try:
        database = _connect(path, driver, read_only=read_only)
        for pragma in pragmas:
            database.execute(f"PRAGMA {pragma}").fetchall()
    except _DRIVER_ERRORS as error:
        raise trouble_of(error) or StoreBroken(f"{path}: {error}") from error
    return database


def _connect(path: str, driver: Driver, *, read_only: bool) -> Database:
    # A reader opens read-write too: it may have to create the shared-memory file of the log. query_only keeps it honest.
    mode = "rw" if read_only else "rwc"
    if read_only and path != ":memory:" and not os.access(Path(path).absolute().parent, os.W_OK):
        # Nobody else can write there either, as far as we can see: without a log, the file is all there is.
        mode = "ro" if Path(f"{path}-wal").exists() else "ro&immutable=1"
    if driver == "apsw":
        flags = (
            apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
        )  # the mode takes away
        connection = apsw.Connection(_uri(path, mode), flags=flags, statementcachesize=_STATEMENTS_KEPT)
        # A plan depends on the text of a statement alone. Else those with a bound LIMIT or class are prepared anew for
        # each new value, which costs more than running them.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        return ApswDatabase(connection)
    return StdlibDatabase(
        sqlite3.connect(
            _uri(path, mode),
            uri=path != ":memory:",
            isolation_level=None,
            cached_statements=256,
            check_same_thread=False,
        )
    )


def _uri(path: str, mode: str) -> str:
    return path if path == ":memory:" else f"{Path(path).absolute().as_uri()}?mode={mode}"
