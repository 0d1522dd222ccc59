"""The frontier on PostgreSQL. All partitions of one database that a process works on share a store and its connection.

What is called while a transaction is under way collects for the next one. A transaction is carried out exactly once:
it writes its number into a row of the store, so a COMMIT that was not answered is looked up after reconnecting, also
on the standby that took over. Until it is known the callers wait.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import asyncpg

from amble.adapters.postgres.books import Conflict, Membership
from amble.adapters.postgres.connection import (
    SILENCE_S,
    Database,
    Trouble,
    connect,
    describe,
    trouble_of,
)
from amble.adapters.postgres.fingerprints import Fingerprints, concerns, index_link
from amble.adapters.postgres.gather import Asked
from amble.adapters.postgres.leasing import NearBudget
from amble.adapters.postgres.migrations import check
from amble.adapters.postgres.servers_link import Link
from amble.adapters.postgres.setup import PATH_KEY
from amble.adapters.postgres.statements import WORK
from amble.adapters.postgres.tick import Carry, Outcome, Tick
from amble.adapters.sql.client import FrontierCalls
from amble.adapters.sql.identity import Slots
from amble.adapters.sql.messages import (
    Admit,
    Adopt,
    AnyOperation,
    FindNear,
    Finish,
    Refused,
    Requeue,
    TakeLease,
)
from amble.adapters.sql.settings import StoreSettings
from amble.domain.errors import AmbleError, OperationRefused, StoreBroken, StoreUnavailable
from amble.domain.pacing import linger_s as linger_for

# Operations and candidates in one transaction, so that a burst cannot make an endless one, nor hold up the loop of an
# agent for long: the most are worked on for some 50 ms.
OPERATIONS_MAX: Final = 1_024
CANDIDATES_MAX: Final = 4_096
LINGER_S: Final = 0.008
# The least linger when it follows the pages under way (`pace`).
LINGER_S_MIN: Final = 0.005
# The first call after a pause this long goes at once.
IDLE_S: Final = 0.05
BACKOFF_S_MIN: Final = 0.05
BACKOFF_S_MAX: Final = 2.0
# A transaction that others got in the way of so often locks the rows that it reads, so that it cannot happen again.
AGAIN_UNLOCKED: Final = 3
AGAIN_S_MAX: Final = 0.02
# After so many times it is told as trouble, while it is tried on.
AGAIN_QUIETLY: Final = 20
# Places of stores that have not been heard of for so long are forgotten.
FORGOTTEN_AFTER_MS: Final = 7 * 24 * 3_600_000


# What these take would be held by nobody, and held against whoever had asked, when the caller does not wait any more.
_TAKING: Final = (Adopt, TakeLease)


class _Call(NamedTuple):
    partition: int
    operation: AnyOperation
    waiter: asyncio.Future[Any]
    at_s: float


class _Clock:
    """The database's time, which never goes back behind what any store has gone by.

    Where it does, as after a failover to a machine whose clock is behind, it goes on from there at its own pace.
    """

    def __init__(self, now_ms: Callable[[], int] | None) -> None:
        self._source = now_ms
        self._latest = self._ahead = 0
        self._read_s = 0.0

    async def read(self, database: Database) -> tuple[int, int]:
        """Milliseconds of the open transaction: those of the store, and those of the machine, by which terms are held."""
        theirs, mark = await database.one(WORK["clock"])
        self._read_s = asyncio.get_running_loop().time()
        floor = max(self._latest, mark or 0)
        if self._source is not None:
            theirs = self._source()
            self._latest = max(floor, theirs)
            return self._latest, theirs
        self._ahead = max(self._ahead, floor - theirs)
        self._latest = theirs + self._ahead
        return self._latest, theirs

    def late_ms(self, now: int) -> int:
        """How long ago that was."""
        if self._source is not None:
            return max(0, self._source() - now)
        return round((asyncio.get_running_loop().time() - self._read_s) * 1000)


class PostgresStore:
    """One connection and its transactions. `frontier` gives the handle of a partition.

    `trouble` is why the store cannot write now (it keeps trying, calls simply wait), else None; `on_trouble` is
    called with each new value. `retries` counts transactions that others got in the way of.
    """

    def __init__(
        self,
        dsn: str,
        settings: StoreSettings | None = None,
        *,
        linger_s: float = LINGER_S,
        silence_s: float = SILENCE_S,
        now_ms: Callable[[], int] | None = None,
        slots: Slots | None = None,
        token: Callable[[int], bytes] = os.urandom,
        fingerprints: Fingerprints | None = None,
    ) -> None:
        """Use `open`. `now_ms`, `slots` and `token` replace time, hashing and chance in tests.

        `fingerprints`: the index of a fleet over several servers; None for one in this database.
        """
        self.settings = settings or StoreSettings()
        self.trouble: str | None = None
        self.on_trouble: Callable[[str | None], None] = lambda _: None
        self.retries = self.transactions = 0
        self._dsn = dsn
        self._linger_s = linger_s
        self._silence_s = silence_s
        self._name = f"amble {os.urandom(8).hex()}"
        self._clock = _Clock(now_ms)
        self._slots = slots
        self._token = token
        self._loop = asyncio.get_running_loop()
        self._database: Database | None = None
        self._writer = 0
        self._number = 0
        self._carry = Carry()
        self._pending: deque[_Call] = deque()
        self._group: list[_Call] = []
        self._called = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._ended: AmbleError | None = None
        self._last_s = -IDLE_S
        self._server: asyncio.Task[None] | None = None
        self._claims = 0
        self._owns_index = fingerprints is None
        self.fingerprints = fingerprints or Fingerprints({0: index_link(dsn)})

    @classmethod
    async def open(cls, dsn: str, settings: StoreSettings | None = None, **options: Any) -> PostgresStore:
        """Connect and register. Raises StoreUnavailable, or StoreBroken where there is no frontier of this version."""
        store = cls(dsn, settings, **options)
        database = await store._connect()
        try:
            await check(database.connection)
            if store._slots is None:
                store._slots = Slots(
                    await database.connection.fetchval("SELECT value FROM meta WHERE name = $1", PATH_KEY)
                )
            (store._writer,) = await database.one(WORK["come"], FORGOTTEN_AFTER_MS)
        except BaseException as error:
            database.cut()
            if isinstance(error, AmbleError) or not isinstance(error, Exception):
                raise
            raise StoreUnavailable(describe(error)) from error
        store._database = database
        store._server = store._loop.create_task(store._serve(), name="postgres frontier")
        return store

    def frontier(self, partition: int) -> PostgresFrontier:
        """The handle of one partition."""
        return PostgresFrontier(self, partition)

    def use(self, membership: Membership | None) -> None:
        """Let `membership` rule out what is certainly new before the database is asked. What it says is never trusted."""
        self._carry.membership = membership

    def link_of(self, _partition: int) -> Link:
        """A connection beside the store's own, which the caller closes. All partitions are on one server."""
        return Link(self._dsn, "amble side")

    def hear_indexes(self, listener: Callable[[str | None], None]) -> None:
        """Let `listener` hear why completions wait for the index of near-duplicates, and None when they do not."""
        self.fingerprints.on_trouble = listener

    def pace(self, in_flight: int) -> None:
        """Linger in proportion to the pages under way (domain/pacing.py)."""
        self._linger_s = linger_for(in_flight, at_least_s=LINGER_S_MIN)

    async def call(self, partition: int, operation: AnyOperation) -> Any:
        """Apply one operation durably; its reply. Raises StoreUnavailable, StoreBroken."""
        if self._ended is not None:
            raise self._ended
        if isinstance(operation, FindNear):
            return await self.fingerprints.find(operation.value)
        if isinstance(operation, Finish) and concerns(operation.value):
            return await self._claim_and_finish(partition, operation)
        return await self._enqueue(partition, operation).waiter

    async def _claim_and_finish(self, partition: int, operation: Finish) -> Any:
        """The index of near-duplicates comes first, in no transaction of this store; what it says is what is committed."""
        self._claims += 1
        self._settled.clear()
        try:
            settled = Finish(await self.fingerprints.settle(operation.value))
            if self._ended is not None:
                raise self._ended
            call = self._enqueue(partition, settled)
        finally:
            self._claims -= 1
            self._rest()
        return await call.waiter

    def _enqueue(self, partition: int, operation: AnyOperation) -> _Call:
        call = _Call(partition, operation, self._loop.create_future(), self._loop.time())
        self._pending.append(call)
        self._settled.clear()
        self._called.set()
        return call

    def _rest(self) -> None:
        """Tell those who wait for it that every call is answered, if so."""
        if not (self._pending or self._group or self._claims):
            self._settled.set()

    # ---- the loop

    async def _serve(self) -> None:
        try:
            while True:
                await self._called.wait()
                await self._linger()
                self._group = self._next_group()
                if self._group:
                    await self._carry_out(self._group)
                self._group = []
                self._last_s = self._loop.time()
                if not self._pending:
                    self._called.clear()
                self._rest()
        except AmbleError as error:
            self._end(error)
        except Exception as error:
            self._end(StoreBroken(f"{type(error).__name__}: {error}"))
            raise

    async def _linger(self) -> None:
        """Until the oldest call has waited its time; after a pause only until the end of this turn of the loop."""
        wait_s = 0.0
        if self._loop.time() - self._last_s < IDLE_S:
            wait_s = self._pending[0].at_s + self._linger_s - self._loop.time()
        await asyncio.sleep(max(0.0, wait_s))

    def _next_group(self) -> list[_Call]:
        """The oldest calls, as many as the bounds allow, without those that would take something for nobody."""
        group: list[_Call] = []
        candidates = 0
        while self._pending and len(group) < OPERATIONS_MAX:
            operation = self._pending[0].operation
            if isinstance(operation, _TAKING) and self._pending[0].waiter.done():
                self._pending.popleft()
                continue
            if isinstance(operation, Admit):
                candidates += len(operation.value.candidates)
                if candidates > CANDIDATES_MAX and group:
                    break
            group.append(self._pending.popleft())
        return group

    async def _carry_out(self, group: list[_Call]) -> None:
        replies = await self._apply([(call.partition, call.operation) for call in group])
        for call, reply in zip(group, replies, strict=True):
            if call.waiter.done():
                continue  # the caller no longer waits; the operation is applied all the same
            if isinstance(reply, Refused):
                call.waiter.set_exception(OperationRefused(reply.error))
            else:
                call.waiter.set_result(reply)

    async def _apply(self, asked: list[Asked]) -> list[Any]:
        """One reply per operation. One that cannot be carried out is found by halves and answered with `Refused`."""
        try:
            return await self._until_committed(asked)
        except OperationRefused as error:
            if len(asked) == 1:
                return [Refused(str(error))]
        half = len(asked) // 2
        return [*await self._apply(asked[:half]), *await self._apply(asked[half:])]

    async def _until_committed(self, asked: list[Asked]) -> list[Any]:
        number, tries = self._number + 1, 0
        while True:
            outcome: Outcome | None = None
            database = self._database or await self._reconnect()
            assert self._slots is not None
            try:
                lock = tries >= AGAIN_UNLOCKED
                tick = Tick(database, self.settings, self._slots, self._token, self._carry, asked, lock=lock)
                outcome = await tick.run(self._clock.read, self._writer, number)
                await database.execute("COMMIT" if outcome.wrote else "ROLLBACK")
            except Exception as error:
                tries += 1
                if await self._face(error, asked, tries) and outcome is not None and outcome.wrote:
                    await self._reconnect()
                    if self._number == number:  # it was committed
                        return self._keep(outcome)
            else:
                if outcome.wrote:
                    self._number = number
                return self._keep(outcome)

    def _keep(self, outcome: Outcome) -> list[Any]:
        """The transaction is committed."""
        self.transactions += 1
        carry = self._carry
        late_ms = self._clock.late_ms(outcome.now)
        carry.late = dict.fromkeys(outcome.granted, late_ms) if late_ms > 0 else {}
        if outcome.near is not None:
            carry.near = outcome.near
        carry.undecided = 0 if outcome.pruned else carry.undecided + outcome.decided
        carry.doubt = False
        if carry.membership is not None:
            carry.membership.added(outcome.added)
        self._tell(None)
        return outcome.replies

    async def _face(self, error: Exception, asked: list[Asked], tries: int) -> bool:
        """Make the store ready to try again; whether the connection was lost. Raises what trying again cannot help."""
        what = _trouble_of(error)
        if what is not Trouble.LOST:
            await self._roll_back()
        if what is Trouble.REFUSED or _is_too_large(error, asked):
            raise OperationRefused(_told(error, asked)) from error
        if what is Trouble.BROKEN:
            raise StoreBroken(describe(error)) from error
        if what is Trouble.LOST:
            self._tell(describe(error))
            self._drop()
            return True
        if what is Trouble.AGAIN:
            self.retries += 1
            self._carry.near |= isinstance(error, NearBudget)
            self._carry.doubt = True
        if what is Trouble.LATER or tries > AGAIN_QUIETLY:
            self._tell(describe(error))
        await asyncio.sleep(_backoff_s(tries) if what is Trouble.LATER else random.random() * AGAIN_S_MAX)
        return False

    async def _roll_back(self) -> None:
        if self._database is not None:
            try:
                await self._database.execute("ROLLBACK")
            except Exception:
                self._drop()  # whatever it was: a fresh connection has no transaction

    # ---- the connection

    async def _connect(self) -> Database:
        connection = await connect(self._dsn, name=self._name, silence_s=self._silence_s)
        return Database(connection, self._silence_s)

    async def _reconnect(self) -> Database:
        """A connection that knows the number of the last committed transaction. Tries until it has one."""
        tries = 0
        while True:
            tries += 1
            try:
                database = await self._connect()
                try:
                    await database.fetch(WORK["end_idle"], self._name)
                    row = await database.one(WORK["return"], self._writer)
                except BaseException:
                    database.cut()
                    raise
            except StoreBroken:
                raise
            except Exception as error:
                if not isinstance(error, StoreUnavailable) and _trouble_of(error) is Trouble.REFUSED:
                    raise StoreBroken(describe(error)) from error
                self._tell(describe(error))
                await asyncio.sleep(_backoff_s(tries))
                continue
            (self._number,) = row
            self._database = database
            return database

    def _drop(self) -> None:
        if self._database is not None:
            self._database.cut()
            self._database = None

    def _tell(self, trouble: str | None) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            self.on_trouble(trouble)

    # ---- the end

    def _end(self, error: AmbleError) -> None:
        self._ended = self._ended or error
        for call in (*self._group, *self._pending):
            if not call.waiter.done():
                call.waiter.set_exception(error)
        self._group = []
        self._pending.clear()
        self._drop()
        self._settled.set()

    def abandon(self, error: StoreUnavailable) -> None:
        """Wait for the store no longer: every call that waits raises `error`, and so does every later one.

        What waited may have been applied or not, as after a crash; the next owner finds out from the database.
        """
        if self._owns_index:
            self.fingerprints.abandon(error)
        self._end(error)
        if self._server is not None:
            self._server.cancel()

    @property
    def broken(self) -> bool:
        """Whether the store has ended and callers have been told."""
        return self._ended is not None

    async def settle(self) -> None:
        """Until every call made so far is answered."""
        await self._settled.wait()

    async def close(self) -> None:
        """Every call made is answered, then the connection ends."""
        await self._settled.wait()
        self._ended = self._ended or StoreUnavailable("the store is closed")
        if self._server is not None:
            self._server.cancel()
            await asyncio.gather(self._server, return_exceptions=True)
        if self._database is not None:
            try:
                await self._database.execute(WORK["leave"], self._writer)
            except Exception:
                self._drop()  # its place is forgotten in time
            else:
                await self._database.close()
            self._database = None
        if self._owns_index:
            await self.fingerprints.close()


class PostgresFrontier(FrontierCalls):
    """ports.Frontier of one partition, over a store that it shares with others."""

    def __init__(self, store: PostgresStore, partition: int) -> None:
        self.store = store
        self.partition = partition

    async def _call(self, operation: AnyOperation) -> Any:
        return await self.store.call(self.partition, operation)

    async def close(self) -> None:
        """Every call made is answered. The store goes on for others; see PostgresStore.close."""
        await self.store.settle()


def _trouble_of(error: Exception) -> Trouble:
    if isinstance(error, Conflict):
        return Trouble.AGAIN
    return trouble_of(error)


def _told(error: Exception, asked: list[Asked]) -> str:
    if isinstance(error, OperationRefused) or len(asked) > 1:
        return describe(error)
    return f"{type(asked[0][1]).__doc__}: {type(error).__name__}: {describe(error)}"


def _is_too_large(error: Exception, asked: list[Asked]) -> bool:
    """An operator's order over a whole partition, which the server gave up: the others need not wait for it again."""
    orders = any(isinstance(operation, Requeue) for _, operation in asked)
    return orders and isinstance(error, asyncpg.QueryCanceledError)


def _backoff_s(tries: int) -> float:
    full: float = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** min(tries, 10))
    return full * (0.5 + random.random() / 2)
