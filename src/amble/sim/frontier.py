"""The store of a seed: the production frontier on a real SQLite file, behind a process that can be late, full and dead.

The only room of the simulator that knows an adapter. A batch is applied at one instant of virtual time; what lies
before and after it (waiting, commit, answer) takes time and can go wrong.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from amble.adapters.sql import messages
from amble.adapters.sql.check import SqliteCheck
from amble.adapters.sql.client import FrontierCalls
from amble.adapters.sql.identity import KEY_BYTES, Slots
from amble.adapters.sql.names import file_of
from amble.adapters.sql.reports import SqliteReports
from amble.adapters.sql.settings import StoreSettings, of_file
from amble.adapters.sql.sqlite import SqliteStore
from amble.domain.errors import StoreBroken, StoreUnavailable
from amble.domain.report import Status
from amble.sim.clock import Actor, Dice, VirtualClock, VirtualLoop
from amble.sim.faults import Fault, Weather
from amble.sim.history import History

_RETRY_S = 0.5
_BATCH_MAX = 64
_FULL, _IOERR_FSYNC = 13, 10 | 4 << 8

Applied = Callable[[Actor, str, Any, Any], None]


@dataclass(slots=True, eq=False)
class _Call:
    actor: Actor
    operation: Any
    future: asyncio.Future[Any]
    unheard: bool
    partition: int


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """What every store process of a seed works in."""

    loop: VirtualLoop
    clock: VirtualClock
    weather: Weather
    history: History
    dice: Dice
    path: Path
    settings: StoreSettings
    on_applied: Applied
    partitions: int = 1


class StoreHost:
    """One store process, serving the agents that are attached to it.

    Where the frontier is divided it stands for the processes of all files, which then die together.
    """

    def __init__(self, around: Surroundings, number: int) -> None:
        self._around = around
        self.actor = Actor(f"store{number}")
        self.busy_until_s = 0.0
        self._fails_once = False
        self._queue: list[_Call] = []
        self._sent: list[_Call] = []
        self._late: list[_Call] = []
        self._wake = asyncio.Event()
        self._listeners: dict[Actor, Callable[[str | None], None]] = {}
        slots = Slots(bytes(KEY_BYTES))
        self.stores = [
            SqliteStore(
                file_of(around.path, partition),
                of_file(around.settings, partition, around.partitions),
                now_ms=around.clock.now_ms,
                slots=slots,
                token=around.dice.token,
            )
            for partition in range(around.partitions)
        ]
        self._execute = [store.database.execute for store in self.stores]
        for store in self.stores:
            store.database.execute = partial(self._guarded, store.database.execute)
        self._reports = SqliteReports(
            ":memory:", now_ms=around.clock.now_ms, slots=slots, database=self.stores[0].database
        )
        around.loop.start(self.actor, self._serve(), self.actor.name)

    @property
    def alive(self) -> bool:
        """Whether it still serves."""
        return self.actor.alive

    def attach(self, actor: Actor, hear: Callable[[str | None], None]) -> None:
        """An agent connects; it hears of troubles."""
        self._listeners[actor] = hear

    def submit(self, call: _Call) -> None:
        """A call is on its way."""
        self._queue.append(call)
        self._wake.set()

    def cut(self, actor: Actor) -> None:
        """The agent is gone: of the calls that still wait, the last few were never sent."""
        self._listeners.pop(actor, None)
        mine = [call for call in self._queue if call.actor is actor]
        kept = set(map(id, mine[: self._around.dice.whole(0, len(mine))]))
        self._queue = [call for call in self._queue if call.actor is not actor or id(call) in kept]

    def release(self, actor: Actor, error: StoreUnavailable) -> None:
        """The calls of an agent that still wait end with `error`; what was received is applied all the same."""
        for call in (*self._late, *self._sent, *self._queue):
            if call.actor is actor and not call.future.done():
                call.future.set_exception(error)

    async def drained(self) -> None:
        """Wait until everything that was received is durable."""
        await self.until(lambda: not (self._queue or self._sent))

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait for something, or for the end of this process."""
        loop = self._around.loop
        while self.alive and not done():
            turn = loop.create_future()
            loop.call_later(0.01, turn.set_result, None)
            await turn

    def status(self) -> Status | None:
        """What `amble status` would say."""
        return self._reports.status() if self.alive else None

    def problems(self) -> list[str]:
        """What `amble verify` would say of the file."""
        checks = [
            SqliteCheck(":memory:", now_ms=self._around.clock.now_ms, database=store.database)
            for store in self.stores
        ]
        return [
            problem
            for check in checks
            for problem in check.problems([other for other in checks if other is not check])
        ]

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """A look at the tables, of all files."""
        return [tuple(row) for execute in self._execute for row in execute(sql, parameters).fetchall()]

    def changes(self) -> int:
        """Rows changed so far."""
        return sum(store.database.total_changes() for store in self.stores)

    def close(self) -> None:
        """The process ends; whoever waits is told that it does not know."""
        self._around.loop.kill(self.actor)
        for store, execute in zip(self.stores, self._execute, strict=True):
            store.database.execute = execute
            store.close()
        for call in (*self._late, *self._sent, *self._queue):
            if call.actor.alive and not call.future.done():
                call.future.set_exception(StoreBroken("simulated: the store process is gone"))
        self._queue, self._sent, self._late = [], [], []

    # -- serving ----------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        around = self._around
        weather, dice = around.weather, around.dice
        while True:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
            await asyncio.sleep(dice.between(0.0002, 0.008))
            count = self._batch_length()
            batch, self._queue = self._queue[:count], self._queue[count:]
            if not batch:
                continue
            self._sent = batch
            if weather.strikes(Fault.STORE_DEATH_BEFORE):
                await self._die("before the commit")
            replies = await self._apply(batch)
            for call, reply in zip(batch, replies, strict=True):
                around.on_applied(call.actor, type(call.operation).__name__, call.operation.value, reply)
            if weather.strikes(Fault.STORE_DEATH_AFTER):
                await self._die("after the commit")
            await asyncio.sleep(dice.between(0.0002, 0.004))
            self._sent = []
            for call, reply in zip(batch, replies, strict=True):
                self._answer(call, reply)

    def _batch_length(self) -> int:
        """A batch ends with an expiry, so that the judges see the tables as the expiry has left them."""
        for number, call in enumerate(self._queue[:_BATCH_MAX]):
            if isinstance(call.operation, messages.Expire):
                return number + 1
        return _BATCH_MAX

    async def _die(self, when: str) -> None:
        self._around.history.tell(self.actor.name, "dies", when)
        self._around.loop.call_soon(self.close)
        await asyncio.get_running_loop().create_future()

    async def _apply(self, batch: list[_Call]) -> list[Any]:
        """One transaction; where the frontier is divided, one for each run of calls of one file."""
        self._fails_once = self._around.weather.strikes(Fault.STORE_COMMIT_ERROR)
        replies: list[Any] = []
        for partition, calls in groupby(batch, key=lambda call: call.partition):
            replies += await self._commit(self.stores[partition], [call.operation for call in calls])
        return replies

    async def _commit(self, store: SqliteStore, operations: list[Any]) -> list[Any]:
        """As the production server does: while the file cannot be written, say so and try again."""
        around = self._around
        replies: list[Any] = []
        while len(replies) < len(operations):
            try:
                replies += store.apply(operations[len(replies) :])
            except StoreUnavailable as error:
                around.history.tell(self.actor.name, "store trouble", str(error)[:60])
                self._tell(str(error))
                await asyncio.sleep(_RETRY_S)
        self._tell(None)
        return replies

    def _tell(self, trouble: str | None) -> None:
        for actor, hear in list(self._listeners.items()):
            if actor.alive:
                hear(trouble)

    def _guarded(self, execute: Callable[..., Any], sql: str, *parameters: Any) -> Any:
        if sql == "COMMIT":
            if self._around.loop.time() < self.busy_until_s:
                self._around.weather.note(Fault.STORE_BUSY)
                raise _sqlite_error(_FULL, "database or disk is full")
            if self._fails_once:
                self._fails_once = False
                raise _sqlite_error(_IOERR_FSYNC, "disk I/O error")
        return execute(sql, *parameters)

    def _answer(self, call: _Call, reply: Any) -> None:
        if not call.actor.alive or call.future.done():
            return
        weather = self._around.weather
        if call.unheard:
            self._around.history.tell(
                call.actor.name, "dies", f"before it hears of {type(call.operation).__name__}"
            )
            self._around.loop.kill(call.actor)
            return
        late_s = 0.0
        if weather.strikes(Fault.STORE_LATE):
            late_s = weather.dice(Fault.STORE_LATE).longtail(0.5, 200.0)
            self._around.history.tell(
                call.actor.name, "hears late", f"{type(call.operation).__name__} by {late_s:.1f} s"
            )
        if not late_s:
            _resolve(call, reply)
            return
        self._late = [*(other for other in self._late if not other.future.done()), call]
        self._around.loop.call_later(late_s, _resolve, call, reply)


def _resolve(call: _Call, reply: Any) -> None:
    if not call.actor.alive or call.future.done():
        return
    if isinstance(reply, messages.Refused):
        call.future.set_exception(StoreBroken(reply.error))
    else:
        call.future.set_result(reply)


def _sqlite_error(code: int, text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(f"simulated: {text}")
    error.sqlite_errorcode = code
    return error


@dataclass(slots=True)
class SimFrontier(FrontierCalls):
    """ports.Frontier of one agent, and of one partition."""

    host: StoreHost
    actor: Actor
    weather: Weather
    history: History
    partition: int = 0
    open_calls: int = field(default=0)

    async def _call(self, operation: Any) -> Any:
        if not self.host.alive:
            raise StoreBroken("simulated: the store process is gone")
        if self.weather.strikes(Fault.STORE_GONE):
            raise StoreUnavailable("simulated: the store does not answer")
        loop = asyncio.get_running_loop()
        if self.weather.strikes(Fault.CRASH_UNSENT):
            self.history.tell(self.actor.name, "dies", f"before it sends {type(operation).__name__}")
            self.actor.dies_at = self.actor.steps
            await asyncio.sleep(0)
        unheard = self.weather.strikes(Fault.CRASH_UNHEARD)
        future: asyncio.Future[Any] = loop.create_future()
        self.host.submit(_Call(self.actor, operation, future, unheard, self.partition))
        self.open_calls += 1
        try:
            return await future
        finally:
            self.open_calls -= 1

    def abandon(self, error: StoreUnavailable) -> None:
        """Everybody who waits for an answer stops waiting."""
        self.host.release(self.actor, error)

    async def close(self) -> None:
        """See ports.Frontier.close."""
        await self.host.until(lambda: not self.open_calls)
