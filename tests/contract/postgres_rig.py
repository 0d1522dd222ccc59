"""The rig over PostgreSQL: a database for each test, read through a connection of its own on a thread of its own."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Coroutine, Sequence
from typing import Any

import asyncpg

from amble.adapters.postgres.setup import init
from amble.adapters.postgres.store import PostgresStore
from amble.adapters.sql.messages import AnyOperation, Refused
from amble.adapters.sql.settings import StoreSettings
from amble.domain.errors import OperationRefused, StoreUnavailable
from amble.domain.frontier import Takeover
from tests.contract.frontier_rig import START, Rig


async def make_frontier(dsn: str) -> None:
    """What every database under test has: one partition."""
    await init(dsn, partitions=1)


class SideReader:
    """Rows of a database for code that does not await."""

    def __init__(self, dsn: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._connection = self.run(asyncpg.connect(dsn))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run on the loop of this thread and wait for the result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Question marks become numbered parameters; `fetch` is a reserved word here."""
        numbers = iter(range(1, 100))
        sql = re.sub(r"\?", lambda _: f"${next(numbers)}", sql)
        sql = re.sub(r"\bFROM fetch\b", 'FROM "fetch"', sql)
        return [tuple(row) for row in self.run(self._connection.fetch(sql, *parameters))]

    def close(self) -> None:
        self.run(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingPostgres:
    """A store for code that does not await, on a loop and a thread of its own."""

    def __init__(self, dsn: str, settings: StoreSettings, **options: Any) -> None:
        self._side = SideReader(dsn)
        self._store: PostgresStore = self._side.run(PostgresStore.open(dsn, settings, **options))

    def apply(self, operations: Sequence[AnyOperation]) -> list[Any]:
        """One reply per operation, in order; `Refused` for one that cannot be carried out."""

        async def call() -> list[Any]:
            calls = (self._store.call(0, operation) for operation in operations)
            replies = await asyncio.gather(*calls, return_exceptions=True)
            return [
                Refused(str(reply)) if isinstance(reply, OperationRefused) else reply for reply in replies
            ]

        replies: list[Any] = self._side.run(call())
        return replies

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._side.rows(sql)

    def kill(self) -> None:
        """No goodbye."""

        async def end() -> None:
            kill(self._store)

        self._side.run(end())
        self._side.close()

    def close(self) -> None:
        self._side.run(self._store.close())
        self._side.close()


class PostgresRig(Rig):
    """One store on one database."""

    def __init__(self, dsn: str, **options: Any) -> None:
        self.dsn = dsn
        self.way = "postgres"
        self.now = START
        self.epoch = 0
        self.settings = options.pop("settings", StoreSettings())
        self.slots = options.pop("slots", None)
        self.store: PostgresStore
        self._side: SideReader | None = None

    async def open(self) -> None:
        self.store = await PostgresStore.open(
            self.dsn, self.settings, now_ms=lambda: self.now, slots=self.slots, linger_s=0.0
        )
        self.frontier = self.store.frontier(0)

    async def close(self) -> None:
        if self._side is not None:
            self._side.close()
            self._side = None
        await self.store.close()

    async def crash(self, owner: str = "again") -> Takeover:
        kill(self.store)
        await self.open()
        return await self.take_over(owner)

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        if self._side is None:
            self._side = SideReader(self.dsn)
        return self._side.rows(sql, *parameters)

    def spoil(self, table: str, column: str, value: bytes | None, url_id: int) -> None:
        self.rows(f'UPDATE "{table}" SET {column} = ? WHERE url_id = ? RETURNING 1', value, url_id)

    def counted_crossing(self) -> dict[str, int]:
        return {}  # what waits to cross is counted when it is asked for, not in the tally


def kill(store: PostgresStore) -> None:
    """The process dies: no goodbye."""
    store.abandon(StoreUnavailable("killed"))
