"""Which connection carries which request: the pool, its bounds, and the clock that watches all of it.

A connection is reused only for the same approved address, port, name and TLS policy. The total is capped (the oldest
idle one makes room), handshakes in flight are capped (a burst of them would starve the loop), and one tick watches
every deadline, so that a request costs no timer.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from amble.adapters.net.connection import Connection
from amble.adapters.net.exchange import Endpoint, Exchange
from amble.adapters.net.http1 import Fault
from amble.adapters.net.tls import TlsProvider
from amble.domain.decision import Category
from amble.domain.policy import FetchLimits

TICK_S: Final = 0.25

_Origin = tuple[str, int, bool]


class Engine:
    """Carries exchanges out. Use it from one event loop; `close` it before the loop ends.

    `providers` are tried in order: the next one only if the handshake with the one before failed.
    """

    def __init__(
        self,
        limits: FetchLimits,
        providers: tuple[TlsProvider, ...],
        *,
        clock: Callable[[], float] = time.monotonic,
        tick_s: float = TICK_S,
    ) -> None:
        assert providers
        assert limits.handshakes_max >= 1
        assert limits.connections_max >= 1
        self._limits = limits
        self._providers = providers
        self._clock = clock
        self._tick_s = tick_s
        self._tick_due_s = 0.0
        self._ticking: asyncio.TimerHandle | None = None
        self._slots = asyncio.Semaphore(limits.connections_max)
        self._handshakes = asyncio.Semaphore(limits.handshakes_max)
        self._waiting = 0
        self._active: set[Connection] = set()
        self._idle: dict[_Origin, list[Connection]] = {}
        self._expiry: OrderedDict[Connection, float] = OrderedDict()
        self._closed = False

    @property
    def open_connections(self) -> int:
        """Connections that have a socket now, idle ones included."""
        return len(self._active) + len(self._expiry)

    def has_idle(self, host: str, port: int, *, tls: bool) -> bool:
        """Whether an idle connection for that origin is in the pool, to whatever address."""
        return (host, port, tls) in self._idle

    async def run(self, endpoint: Endpoint, exchange: Exchange) -> Fault | Connection:
        """Send the request and read the answer into the exchange's parser.

        Gives the connection that carried it (which may be closed by now), or the fault. Cancellation closes the
        connection. A pooled connection that turns out dead before the first byte of the answer is a stale fault and
        not replaced: the request may have arrived, and a second one needs a start of its own.
        """
        pooled = self._take_idle(endpoint)
        if pooled is not None:
            exchange.started_s = self._clock()
            return await self._perform(pooled, exchange) or pooled
        opened = await self._open(endpoint, exchange)
        if isinstance(opened, Fault):
            return opened
        return await self._perform(opened, exchange) or opened

    async def _perform(self, connection: Connection, exchange: Exchange) -> Fault | None:
        future = connection.send(exchange)
        try:
            fault = await future
        except asyncio.CancelledError:
            connection.close()
            raise
        if connection.is_open:
            self._park(connection)
        return fault

    # -- new connections -------------------------------------------------------------------------------------------

    async def _open(self, endpoint: Endpoint, exchange: Exchange) -> Connection | Fault:
        """A connection that is ready for a request; a fault of TLS is tried again with the next provider."""
        providers: tuple[TlsProvider | None, ...] = self._providers if endpoint.tls else (None,)
        opened: Connection | Fault = Fault(Category.INTERNAL, "no TLS provider")
        for provider in providers:
            opened = await self._connect(endpoint, exchange, provider)
            if not isinstance(opened, Fault) or opened.category not in (
                Category.TLS_CERTIFICATE,
                Category.TLS_FAILED,
            ):
                break
        return opened

    async def _connect(
        self, endpoint: Endpoint, exchange: Exchange, provider: TlsProvider | None
    ) -> Connection | Fault:
        if not await self._slot(exchange):
            return Fault(Category.TIMEOUT_TOTAL, "over time while waiting for a free connection")
        if self._closed:
            self._slots.release()
            return Fault(Category.DISCONNECTED, "the transport is closed")
        # From here on the slot belongs to the connection, which gives it back when it closes.
        connection = Connection(endpoint, self._limits, self._clock, self._forget)
        exchange.started_s = self._clock()
        self._active.add(connection)
        self._watch()
        try:
            fault = await connection.connect(exchange)
            if fault is None and provider is not None:
                fault = await self._secure(connection, exchange, provider)
        except BaseException:
            connection.close()
            raise
        return fault or connection

    async def _secure(
        self, connection: Connection, exchange: Exchange, provider: TlsProvider
    ) -> Fault | None:
        """The TLS handshake. Only these are limited: a connect that nobody answers costs no time of ours."""
        if not await self._acquire(self._handshakes, exchange):
            connection.close()
            return Fault(Category.TIMEOUT_TOTAL, "over time while waiting for other TLS handshakes")
        try:
            return await connection.secure(exchange, provider)
        finally:
            self._handshakes.release()

    async def _slot(self, exchange: Exchange) -> bool:
        """Get the right to one more connection, if need be in place of the oldest idle one."""
        if self._slots.locked():
            self._drop_oldest()
        self._waiting += 1
        try:
            return await self._acquire(self._slots, exchange)
        finally:
            self._waiting -= 1

    async def _acquire(self, slots: asyncio.Semaphore, exchange: Exchange) -> bool:
        """Take one of these slots; False if the deadline of the exchange comes first."""
        if not slots.locked():
            return await slots.acquire()
        try:
            async with asyncio.timeout(max(0.0, exchange.deadline_s - self._clock())):
                return await slots.acquire()
        except TimeoutError:
            return False

    # -- the pool --------------------------------------------------------------------------------------------------

    def _take_idle(self, endpoint: Endpoint) -> Connection | None:
        origin = (endpoint.host, endpoint.port, endpoint.tls)
        for connection in list(self._idle.get(origin, ())):
            # One that is not quiet has just closed, and by that left the pool.
            if connection.endpoint.address == endpoint.address and connection.is_quiet():
                self._unpool(connection)
                self._active.add(connection)
                return connection
        return None

    def _park(self, connection: Connection) -> None:
        """Keep an open connection for the next request, unless somebody waits for its slot."""
        self._active.discard(connection)
        if self._closed or (self._waiting and self._slots.locked()):
            connection.close()
            return
        endpoint = connection.endpoint
        self._expiry[connection] = self._clock() + self._limits.idle_keepalive_s
        self._idle.setdefault((endpoint.host, endpoint.port, endpoint.tls), []).append(connection)

    def _forget(self, connection: Connection) -> None:
        """A connection has closed: take it out of every list and pass its slot on."""
        self._active.discard(connection)
        if connection in self._expiry:
            self._unpool(connection)
        self._slots.release()

    def _unpool(self, connection: Connection) -> None:
        del self._expiry[connection]
        endpoint = connection.endpoint
        origin = (endpoint.host, endpoint.port, endpoint.tls)
        idle = self._idle[origin]
        idle.remove(connection)
        if not idle:
            del self._idle[origin]

    def _drop_oldest(self) -> None:
        if self._expiry:
            next(iter(self._expiry)).close()

    # -- the tick --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._ticking is None and not self._closed:
            self._tick_due_s = self._clock() + self._tick_s
            self._ticking = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        now_s = self._clock()
        lag_s = now_s - self._tick_due_s
        if lag_s > self._tick_s:
            # The loop was busy and has not read what may have arrived: that is not the servers' fault.
            for connection in self._active:
                connection.deadline_s += lag_s
        for connection in list(self._active):
            connection.check(now_s)
        while self._expiry:
            oldest, expires_s = next(iter(self._expiry.items()))
            if expires_s > now_s:
                break
            oldest.close()
        if self._active or self._expiry:
            self._watch()

    def close(self) -> None:
        """Close every connection; exchanges under way end with a fault."""
        self._closed = True
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        for connection in [*self._active, *self._expiry]:
            connection.abort("the transport is closing")
