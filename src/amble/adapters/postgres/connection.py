"""One connection to PostgreSQL: how it is opened, what its errors mean, and a watch over silence.

A server that does not answer a statement for `silence_s` counts as lost, whatever TCP believes: the connection is cut
here, without asking the server to cancel, since a cancelled COMMIT would no longer wait for its standby.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import asyncpg

from amble.adapters.postgres.barrier import wait_for_standby
from amble.domain.errors import StoreBroken, StoreUnavailable, StoreUnfit

SILENCE_S: Final = 15.0
CONNECT_S: Final = 10.0
# A statement that takes this part of the silence allowed is ended by the server, so that a slow one is not a lost one.
_STATEMENT_SHARE: Final = 0.6
STATEMENTS_CACHED: Final = 256
# Without what is wrong with it, which may be a part of a password.
NO_ADDRESS: Final = (
    "the address of the database is not one: it looks like postgresql://user:password@host:5432/name, "
    "where / ? # @ and % of a password are written as %2F %3F %23 %40 and %25"
)
NOT_LET_IN: Final = "mend the user in store.url, or PGPASSWORD, which wins over a passfile"
# Passwords that are given as parameters of an address.
SECRETS: Final = re.compile(r"([?&](?:ssl)?password=)[^&]*")


class Trouble(Enum):
    """What an error asks for."""

    AGAIN = "again"  # another transaction was in the way: run it again
    LATER = "later"  # the server has no means for it now: run it again after a while
    LOST = "lost"  # the connection is of no use any more
    REFUSED = "refused"  # these data, whenever they are sent
    BROKEN = "broken"  # the database is damaged


_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_LATER = (
    asyncpg.InsufficientResourcesError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.PostgresSystemError,
    asyncpg.ObjectInUseError,
)
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # none of the hosts can be written to now
    asyncpg.ConnectionDoesNotExistError,
    OSError,
    asyncio.TimeoutError,
    EOFError,
)
_BROKEN = (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError)


def trouble_of(error: BaseException) -> Trouble:
    """What to do about an error of a transaction."""
    match error:
        case asyncpg.DataError():  # of the server or of the client's own encoding
            return Trouble.REFUSED
        case _ if isinstance(error, _AGAIN):
            return Trouble.AGAIN
        case _ if isinstance(error, _LATER):
            return Trouble.LATER
        case _ if isinstance(error, _LOST):
            return Trouble.LOST
        case _ if isinstance(error, _BROKEN):
            return Trouble.BROKEN
        case _:
            return Trouble.REFUSED


def place_of(dsn: str) -> str:
    """A database URL as it may be shown: without a password, whichever way it was given."""
    scheme, mark, rest = SECRETS.sub(r"\1...", dsn).partition("://")
    # A password may hold what should have been escaped.
    user, at, place = rest.rpartition("@")
    return f"{scheme}{mark}{user.partition(':')[0]}{at}{place}" if mark else dsn


def describe(error: BaseException) -> str:
    """One line for an operator."""
    return (str(error) or type(error).__name__).splitlines()[0]


async def connect(
    dsn: str, *, name: str = "amble", silence_s: float = SILENCE_S, more: Mapping[str, str] | None = None
) -> asyncpg.Connection[Any]:
    """Connect to the writable one of the hosts of `dsn`. `more`: settings of the server beside those that all have.

    Raises StoreUnavailable, StoreUnfit (no such database, or not for us; with the fix), StoreBroken (no address).
    """
    seconds = max(1, round(silence_s))
    settings = {
        "application_name": name,
        "plan_cache_mode": "force_generic_plan",
        "statement_timeout": str(round(silence_s * _STATEMENT_SHARE * 1000)),
        "idle_in_transaction_session_timeout": f"{2 * seconds}s",
        "tcp_keepalives_idle": str(seconds),
        "tcp_keepalives_interval": str(max(1, seconds // 3)),
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": f"{seconds}s",
        "jit": "off",
        # Every statement here finds its rows by keys given in arrays, or in the order of an index. Estimates for arrays
        # and limits of unknown length would now and then prefer to read a whole table.
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        **(more or {}),
    }
    try:
        connection = await asyncpg.connect(
            dsn,
            timeout=min(CONNECT_S, silence_s),
            statement_cache_size=STATEMENTS_CACHED,
            max_cached_statement_lifetime=0,
            server_settings=settings,
            target_session_attrs="read-write",
        )
        return await _believed(connection, silence_s)
    except asyncpg.InvalidCatalogNameError as error:
        raise StoreUnfit(
            f"{place_of(dsn)}: {describe(error)}; make it with `createdb`, then `amble store init`"
        ) from error
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        raise StoreUnfit(f"{place_of(dsn)}: {describe(error)}; {NOT_LET_IN}") from error
    except ValueError:
        raise StoreBroken(NO_ADDRESS) from None
    except (asyncpg.PostgresError, *_LOST) as error:
        raise StoreUnavailable(f"{place_of(dsn)}: {describe(error)}") from error


async def _believed(connection: asyncpg.Connection[Any], patience_s: float) -> asyncpg.Connection[Any]:
    """A connection that shows nothing which a standby lacks. Raises TimeoutError, and what the driver raises."""
    try:
        async with asyncio.timeout(patience_s):
            await wait_for_standby(connection)
    except BaseException:
        connection.terminate()
        raise
    return connection


class Database:
    """The statements of one connection, timed by a watch that costs a statement nothing."""

    def __init__(self, connection: asyncpg.Connection[Any], silence_s: float = SILENCE_S) -> None:
        self.connection = connection
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._timer = self._loop.call_later(silence_s / 4, self._watch)
        self.statements = 0

    def _watch(self) -> None:
        if self._since is not None and self._loop.time() - self._since > self._silence_s:
            self.connection.terminate()
            return
        self._timer = self._loop.call_later(self._silence_s / 4, self._watch)

    async def fetch(self, statement: str, *parameters: Any) -> list[Any]:
        """The rows."""
        self._since = self._loop.time()
        self.statements += 1
        try:
            rows: list[Any] = await self.connection.fetch(statement, *parameters)
            return rows
        finally:
            self._since = None

    async def one(self, statement: str, *parameters: Any) -> Any:
        """The first row, or None."""
        rows = await self.fetch(statement, *parameters)
        return rows[0] if rows else None

    async def execute(self, statement: str, *parameters: Any) -> int:
        """How many rows it changed."""
        self._since = self._loop.time()
        self.statements += 1
        try:
            status = await self.connection.execute(statement, *parameters)
        finally:
            self._since = None
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    def cut(self) -> None:
        """End the connection without a word."""
        self._timer.cancel()
        self.connection.terminate()

    async def close(self) -> None:
        """End the connection."""
        self._timer.cancel()
        if not self.connection.is_closed():
            try:
                await self.connection.close(timeout=self._silence_s)
            except Exception as error:
                if trouble_of(error) is Trouble.REFUSED:
                    raise
