"""An operator's questions to a frontier on PostgreSQL, through a connection of their own that can only read.

Each answer is one short read-only transaction with one snapshot, so that nothing stands in the way of vacuum for long.
Blocking: call it from a thread without a running event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from amble.adapters.postgres.connection import NO_ADDRESS, place_of
from amble.adapters.sql.identity import Slots
from amble.adapters.sql.lines import ORIGIN_COLUMNS, URL_COLUMNS
from amble.adapters.sql.reports import StoreReports
from amble.adapters.sql.statements import load
from amble.domain.errors import CrawlFolderUnusable, StoreBroken, StoreUnavailable, StoreUnfit

_SQL: Final = {
    name: sql.replace(":url_columns", URL_COLUMNS).replace(":origin_columns", ORIGIN_COLUMNS)
    for name, sql in load("report", Path(__file__).parent).items()
}
CONNECT_S: Final = 10.0
# An answer that takes longer would hold back vacuum; it is given up with a clear reason.
ANSWER_S: Final = 60.0
OWNERS_SHOWN_MAX: Final = 5


def trouble_of(error: BaseException, where: str) -> StoreUnavailable | StoreBroken | None:
    """What an error of the database means to a reader, None when it is a mistake of ours."""
    match error:
        case asyncpg.UndefinedTableError():
            return StoreUnfit(
                f"{where}: there is no frontier in this database; make one with `amble store init`"
            )
        case asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
            return StoreBroken(f"{where}: {error}")
        case (
            OSError()
            | TimeoutError()
            | asyncpg.PostgresConnectionError()
            | asyncpg.OperatorInterventionError()
            | asyncpg.InvalidAuthorizationSpecificationError()
            | asyncpg.InvalidCatalogNameError()
            | asyncpg.InsufficientResourcesError()
            | asyncpg.InterfaceError()
            | asyncpg.SerializationError()
        ):
            return StoreUnavailable(f"{where}: {str(error) or type(error).__name__}")
        case _:
            return None


class PostgresReports(StoreReports):
    """Read-only answers about one database. Raises StoreUnavailable when it cannot be asked, StoreBroken when damaged."""

    def __init__(
        self, dsn: str, *, now_ms: Callable[[], int] | None = None, slots: Slots | None = None
    ) -> None:
        """Connect. `now_ms` and `slots` replace time and hashing in tests.

        Raises StoreUnavailable, and StoreBroken when there is no frontier in the database.
        """
        self.place = place_of(dsn)
        self._now_ms = now_ms
        self._loop = asyncio.new_event_loop()
        # `status` of a running agent is asked from worker threads, one after the other.
        self._turn = threading.RLock()
        #: Called once the connection has ended.
        self.after_close: Callable[[], object] = lambda: None
        self._nested = False
        try:
            with self._translated():
                self._connection: asyncpg.Connection[Any] = self._run(
                    asyncpg.connect(
                        dsn,
                        timeout=CONNECT_S,
                        command_timeout=ANSWER_S,
                        server_settings={"application_name": "amble reports"},
                    )
                )
        except BaseException as error:
            self._loop.close()
            if isinstance(error, ValueError):
                raise StoreBroken(NO_ADDRESS) from None
            raise
        try:
            with self._reading():
                row = self._one("path_key")
                if row is None:
                    raise CrawlFolderUnusable(f"{self.place}: there is no frontier in this database yet")
                self._partitions = [partition for partition, _, _ in self._all("owners")]
        except BaseException:
            self.close()
            raise
        key = bytes(row[0])
        self._slots = slots or Slots(key)
        self.crawl = hashlib.sha256(b"crawl" + key).hexdigest()[:32]

    @property
    def partitions(self) -> list[int]:
        """The partitions that live in this database."""
        return self._partitions

    def close(self) -> None:
        """Let go of the connection."""
        try:
            self._run(self._connection.close(timeout=CONNECT_S))
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            self._connection.terminate()
        finally:
            self._loop.close()
            self.after_close()

    def forwarded(self) -> tuple[int, int]:
        """Candidates that wait in the inboxes, and in the outboxes, of this database."""
        with self._reading():
            inbox, outbox = self._one("forwarded")
        return inbox, outbox

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            trouble = trouble_of(error, self.place)
            if trouble is None:
                raise
            raise trouble from error

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._turn, self._translated():
            if self._nested:
                yield
                return
            transaction = self._connection.transaction(isolation="repeatable_read", readonly=True)
            self._run(transaction.start())
            self._nested = True
            try:
                yield
            finally:
                self._nested = False
                if not self._connection.is_closed():
                    self._run(transaction.rollback())

    def _all(self, name: str, *parameters: object) -> list[Any]:
        return [tuple(row) for row in self._run(self._connection.fetch(_SQL[name], *parameters))]

    def _now(self) -> int:
        if self._now_ms is not None:
            return self._now_ms()
        now, mark = self._one("now")
        return max(int(now), int(mark or 0))

    def _owner(self) -> tuple[int, str]:
        rows = self._all("owners")
        owners = sorted({owner for _, owner, _ in rows if owner})
        shown = ", ".join(owners[:OWNERS_SHOWN_MAX])
        if len(owners) > OWNERS_SHOWN_MAX:
            shown += f" and {len(owners) - OWNERS_SHOWN_MAX} more"
        return max((epoch for _, _, epoch in rows), default=0), shown
