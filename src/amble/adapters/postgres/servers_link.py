"""A small connection to one server beside the traffic of pages: for the map, guests, digests and moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import asyncpg

from amble.adapters.postgres.connection import Trouble, connect, describe, place_of, trouble_of
from amble.domain.errors import AmbleError, StoreBroken, StoreUnavailable, StoreUnfit

T = TypeVar("T")

# A call that takes longer has failed, whatever became of it.
CALL_S_MAX: Final = 15.0
# So often a transaction that others got in the way of is begun again before it is told as trouble.
TRIES_MAX: Final = 20
#: The store's time: that of the database, which never goes back behind what any store has gone by.
NOW: Final = (
    "SELECT greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint, (SELECT now_ms FROM clock),"
    " (SELECT max(now_ms) FROM writer))"
)


class Link:
    """One connection, made when it is first needed and again after it was lost. Calls go one after the other."""

    def __init__(self, dsn: str, name: str = "amble link", settings: Mapping[str, str] | None = None) -> None:
        """`settings`: of the server for this connection, beside those of every other."""
        self.dsn = dsn
        self.place = place_of(dsn)
        self._name = name
        self._settings = dict(settings or {})
        self._connection: asyncpg.Connection[Any] | None = None
        self._turn = asyncio.Lock()

    async def transaction(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Do `work` in one transaction, anew when another got in the way.

        Raises StoreUnavailable when it is not known to have happened, StoreBroken.
        """

        async def within(connection: Any) -> T:
            tries = 0
            while True:
                tries += 1
                try:
                    async with connection.transaction():
                        return await work(connection)
                except Exception as error:
                    if trouble_of(error) is not Trouble.AGAIN or tries >= TRIES_MAX:
                        raise

        return await self.call(within)

    async def snapshot(self, work: Callable[[Any], Awaitable[T]], *, seconds: float = 3_600.0) -> T:
        """Do `work` in one snapshot that only reads, and that may take long. Raises StoreUnavailable, StoreBroken."""

        async def within(connection: Any) -> T:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.execute("SET LOCAL statement_timeout = 0")
                return await work(connection)

        return await self.call(within, seconds=seconds)

    async def call(self, work: Callable[[Any], Awaitable[T]], *, seconds: float = CALL_S_MAX) -> T:
        """Do `work` with the connection. Raises StoreUnavailable, StoreBroken."""
        async with self._turn:
            try:
                async with asyncio.timeout(seconds):
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await connect(self.dsn, name=self._name, more=self._settings)
                    return await work(self._connection)
            except AmbleError:
                raise
            except asyncio.CancelledError:
                self.cut()
                raise
            except asyncpg.UndefinedTableError as error:
                raise StoreUnfit(
                    f"{self.place}: prepare the database with `amble store init` ({error})"
                ) from error
            except Exception as error:
                lost = isinstance(error, TimeoutError | asyncpg.InternalClientError)
                what = Trouble.LOST if lost else trouble_of(error)
                if what is Trouble.LOST:
                    self.cut()
                if what in (Trouble.BROKEN, Trouble.REFUSED):
                    raise StoreBroken(f"{self.place}: {describe(error)}") from error
                raise StoreUnavailable(f"{self.place}: {describe(error)}") from error

    def cut(self) -> None:
        """End the connection without a word; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=CALL_S_MAX)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()
