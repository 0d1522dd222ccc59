"""The frontier on SQLite: a batch of operations is one transaction, applied in order, durable when `apply` returns.

Blocking and single-threaded: it is the only writer of the file. `StoreProcess` runs it in a process of its own,
`InlineStore` in the caller's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from amble.adapters.sql.admission import Admission
from amble.adapters.sql.books import Books
from amble.adapters.sql.clock import StoreClock, wall_ms
from amble.adapters.sql.connection import DRIVER, PAGE_BYTES, Database, Driver, open_writer, trouble_of
from amble.adapters.sql.crossing import Inbox, Outbox
from amble.adapters.sql.gatekeeping import Gatekeeping
from amble.adapters.sql.holding import Holding
from amble.adapters.sql.identity import KEY_BYTES, Slots
from amble.adapters.sql.leasing import Leasing
from amble.adapters.sql.messages import (
    Admit,
    Adopt,
    AnyOperation,
    Deliver,
    Drain,
    DropParcels,
    Expire,
    FindBody,
    FindNear,
    Finish,
    GiveBack,
    KeepFailed,
    KeepFetched,
    KeepParsed,
    KeepSeeded,
    Leave,
    Operation,
    Parcels,
    Refused,
    Requeue,
    Reserve,
    SetOrigin,
    Strike,
    TakeLease,
    TakeOver,
    Visit,
)
from amble.adapters.sql.migrations import migrate
from amble.adapters.sql.near import NearIndex
from amble.adapters.sql.orders import Orders
from amble.adapters.sql.ownership import Ownership
from amble.adapters.sql.recording import Recording
from amble.adapters.sql.settings import StoreSettings
from amble.domain.errors import StoreBroken, StoreUnavailable
from amble.domain.frontier import Applied

_GET_META = "SELECT value FROM meta WHERE name = ?1"
_SET_META = "INSERT INTO meta(name, value) VALUES (?1, ?2)"
_SET_SEEDED = "INSERT OR REPLACE INTO meta(name, value) VALUES ('seeded', ?1)"

# The write-ahead log is folded into the file at this length (64 Ki pages) even if the store is never quiet. Shorter
# logs stall more often and write more, longer ones stall for longer.
CHECKPOINT_BYTES: Final = 65_536 * PAGE_BYTES
# It is folded in earlier where the file is small: there are few pages to write then, and a log that begins anew over
# its own old pages costs the kernel less than one that grows.
CHECKPOINT_BYTES_MIN: Final = 8 << 20
CHECKPOINT_FILES: Final = 4
# A quiet store folds in less than that, so that a later burst finds the log empty.
QUIET_BYTES: Final = 4 << 20
# When a reader was in the way, try again after the log has grown by this much more.
CHECKPOINT_AGAIN_BYTES: Final = 32 << 20


class SqliteStore:
    """One open frontier file. Raises CrawlFolderUnusable, StoreUnavailable or StoreBroken when it cannot be opened."""

    def __init__(
        self,
        path: Path | str,
        settings: StoreSettings | None = None,
        *,
        driver: Driver = DRIVER,
        now_ms: Callable[[], int] | None = None,
        slots: Slots | None = None,
        token: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`path` may be ":memory:". `now_ms`, `slots` and `token` replace time, hashing and chance in tests."""
        self.settings = settings or StoreSettings()
        self._file = None if str(path) == ":memory:" else Path(path)
        self._wal = None if self._file is None else Path(f"{path}-wal")
        self.database: Database = open_writer(
            path, driver=driver, cache_bytes_max=self.settings.cache_bytes_max
        )
        try:
            migrate(self.database, (now_ms or wall_ms)())
            NearIndex(self.database).build()
            self.clock = StoreClock(self.database, now_ms=now_ms)
            self.books = Books(self.database, self.settings, slots or Slots(self._key()), token)
        except BaseException as error:
            self.database.rollback()
            self.database.close()
            trouble = trouble_of(error)
            if trouble is not None:
                raise trouble from error
            raise
        self._checkpoint_at, self._quiet_at = self._log_bytes_max(), QUIET_BYTES
        self._gatekeeping: Gatekeeping
        self._handlers = self._wire()

    def _key(self) -> bytes:
        """The random key of this store's path hash, made once."""
        row = self.database.execute(_GET_META, ("path_key",)).fetchone()
        if row is not None:
            return bytes(row[0])
        key = os.urandom(KEY_BYTES)
        self.database.execute("BEGIN IMMEDIATE")
        self.database.execute(_SET_META, ("path_key", key))
        self.database.execute("COMMIT")
        return key

    def _wire(self) -> dict[type[Operation], Callable[[Any], Any]]:
        books = self.books
        holding = Holding(books)
        admission = Admission(books)
        gatekeeping = Gatekeeping(books, holding, admission)
        recording = Recording(books, holding)
        orders = Orders(books, admission)
        ownership = Ownership(books, gatekeeping, recording)
        outbox, inbox = Outbox(books), Inbox(books, admission.admit_here)
        self._gatekeeping = gatekeeping
        return {
            TakeOver: ownership.take_over,
            Admit: admission.admit,
            TakeLease: Leasing(books).lease,
            Reserve: gatekeeping.reserve,
            GiveBack: gatekeeping.put_back,
            Leave: gatekeeping.exclude,
            KeepFetched: recording.record_fetched,
            KeepFailed: recording.record_failed,
            KeepParsed: recording.record_parsed,
            Finish: recording.complete,
            Strike: recording.parse_strike,
            FindBody: recording.find_body,
            FindNear: recording.find_near,
            Expire: gatekeeping.expire,
            SetOrigin: orders.set_origin,
            Requeue: orders.requeue,
            Adopt: ownership.adopt,
            Drain: inbox.drain,
            Parcels: outbox.parcels,
            Deliver: inbox.deliver,
            DropParcels: outbox.drop_parcels,
            Visit: gatekeeping.visit,
            KeepSeeded: self._keep_seeded,
        }

    def _keep_seeded(self, value: bytes) -> Applied:
        self.database.execute(_SET_SEEDED, (value,))
        return Applied.APPLIED

    def apply(self, operations: Sequence[AnyOperation]) -> list[Any]:
        """Apply in order, in one transaction; one reply per operation, durable.

        An operation that cannot be carried out is answered with `Refused`, and the others are applied without it, each
        in a transaction of its own: if the file cannot be written in the middle of that, there are fewer replies than
        operations, and those without a reply have changed nothing and may be tried again.
        Raises StoreUnavailable when nothing at all was changed and the same batch may be tried again, StoreBroken when
        the file is damaged.
        """
        try:
            return self._transaction(operations)
        except Exception as error:
            self._roll_back()
            trouble = trouble_of(error)
            if trouble is not None:
                raise trouble from error
            if len(operations) == 1:
                return [Refused(f"{type(operations[0]).__doc__}: {type(error).__name__}: {error}")]
        return self._one_by_one(operations)

    def _one_by_one(self, operations: Sequence[AnyOperation]) -> list[Any]:
        replies: list[Any] = []
        for operation in operations:
            try:
                replies += self.apply([operation])
            except StoreUnavailable:
                if not replies:
                    raise
                # To apply what is durable once more would take its token for another holder's.
                break
        return replies

    def _transaction(self, operations: Sequence[AnyOperation]) -> list[Any]:
        execute, books, handlers = self.database.execute, self.books, self._handlers
        books.begin(self.clock.now())
        execute("BEGIN IMMEDIATE")
        changes = self.database.total_changes()
        replies = [handlers[type(operation)](operation.value) for operation in operations]
        books.flush()
        if self.database.total_changes() != changes:
            self.clock.write_mark()
        execute("COMMIT")
        books.keep()
        self._gatekeeping.settle(self.clock.now() - books.now)
        return replies

    def _roll_back(self) -> None:
        self.database.rollback()
        self.books.forget()
        self._gatekeeping.forget()

    def wal_bytes(self) -> int:
        """Length of the write-ahead log."""
        return _length(self._wal)

    def _log_bytes(self) -> int:
        """Length of what is in the log, which may be less than its file's."""
        pages = self.database.log_pages
        return self.wal_bytes() if pages is None else pages * PAGE_BYTES

    def _log_bytes_max(self) -> int:
        """The length at which a busy store folds in its log."""
        return min(CHECKPOINT_BYTES, max(CHECKPOINT_BYTES_MIN, CHECKPOINT_FILES * _length(self._file)))

    def checkpoint(self, *, quiet: bool) -> None:
        """Fold the write-ahead log into the file if that is due; call after a batch, and with `quiet` when idle.

        Only the writer checkpoints (SQLite before 3.51.3 can damage a file that two connections checkpoint at once).
        A reader with an open snapshot keeps the log from being cut; the pages it does not need are folded in anyway.
        """
        length = self._log_bytes()
        if length >= self._checkpoint_at or (quiet and length >= self._quiet_at):
            # What cannot be counted must be cut, or it would seem to stay as long as it is; and so must what only a
            # reader made that long, or a store that is always busy would keep its length for ever.
            uncounted = self.database.log_pages is None
            too_long = self.wal_bytes() > CHECKPOINT_BYTES + CHECKPOINT_AGAIN_BYTES
            self.database.checkpoint(cut=quiet or uncounted or too_long)
            left = self._log_bytes()
            again = left + CHECKPOINT_AGAIN_BYTES if left else 0
            self._checkpoint_at = max(self._log_bytes_max(), again)
            self._quiet_at = max(QUIET_BYTES, again)

    def close(self) -> None:
        """Fold in the log and let go of the file."""
        if self._wal is not None:
            try:
                self.database.checkpoint()
            except Exception as error:
                if trouble_of(error) is None:
                    raise StoreBroken(str(error)) from error
        self.database.close()


def _length(path: Path | None) -> int:
    try:
        return path.stat().st_size if path else 0
    except OSError:
        return 0
