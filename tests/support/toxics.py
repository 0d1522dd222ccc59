"""A TCP proxy on loopback that does to connections what networks do: delay, hold, lose, cut, refuse.

    with ToxicProxy.start("127.0.0.1", server.port) as proxy:
        store = connect(port=proxy.port)
        proxy.set(down=Drop())      # requests arrive, answers do not
        proxy.heal()

It runs in a thread of its own, so it serves tests of either colour; every method may be called from any thread and
returns when it has taken effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar

T = TypeVar("T")
CHUNK_BYTES = 1 << 16
CALL_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Pass:
    """Forward at once."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Forward every chunk so much later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Forward nothing for now, and everything when this is lifted: a network that comes back in time."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Take everything and forward nothing, a black hole. A connection that lost bytes is reset when this is lifted."""


@dataclass(frozen=True, slots=True)
class CutAfter:
    """Forward so many bytes more on each connection, then reset it."""

    bytes: int


Toxic: TypeAlias = Pass | Delay | Hold | Drop | CutAfter
Way = Literal["up", "down"]


class _Connection:
    """One client and its server. `left` are the bytes that may still pass each way before a cut."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.server: socket.socket | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.left: dict[Way, int | None] = {"up": None, "down": None}
        self.lossy = False

    def close(self) -> None:
        """Close both sides in peace."""
        self._end(socket.socket.close)

    def reset(self) -> None:
        """RST to both sides."""
        self._end(reset)

    def lose_server(self) -> None:
        """RST to the server; the client's side stays open and silent."""
        self._stop()
        if self.server is not None:
            asyncio.get_running_loop().call_soon(reset, self.server)
            self.server = None

    def _end(self, how: Callable[[socket.socket], None]) -> None:
        self._stop()
        for end in (self.client, self.server):
            if end is not None:
                # Not before the cancelled waits have let go of the descriptor, whose number may be given anew.
                asyncio.get_running_loop().call_soon(how, end)

    def _stop(self) -> None:
        """End the tasks; the one that is calling ends by itself."""
        for task in self.tasks:
            if task is not asyncio.current_task():
                task.cancel()


def reset(end: socket.socket) -> None:
    """Close so that the other side sees RST, not FIN."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


class ToxicProxy:
    """One port in front of one server. Use `start`; works in `with`."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._toxics: dict[Way, Toxic] = {"up": Pass(), "down": Pass()}
        self._connections: set[_Connection] = set()
        self._passed: dict[Way, int] = {"up": 0, "down": 0}
        self._changed = asyncio.Event()
        # Bound but never listening: the port stays ours, and is refused, while nobody listens.
        self._reserved = _bound(0)
        self.port: int = self._reserved.getsockname()[1]
        self._listening: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="toxics", daemon=True)

    @classmethod
    def start(cls, host: str, port: int) -> ToxicProxy:
        """A proxy for the server at this address, which need not be there yet."""
        proxy = cls(host, port)
        proxy._thread.start()
        proxy.accept()
        return proxy

    # -- what a test does -------------------------------------------------------------------------------------

    def set(self, *, up: Toxic | None = None, down: Toxic | None = None) -> None:
        """What happens from now on to bytes from the client (`up`) and to the client (`down`); None: as it is."""

        async def change() -> None:
            if up is not None:
                self._put("up", up)
            if down is not None:
                self._put("down", down)

        self._call(change())

    def heal(self) -> None:
        """Let everything pass, and let clients in."""
        self.set(up=Pass(), down=Pass())
        self.accept()

    def cut(self) -> int:
        """Reset every connection now and return how many there were. New ones are let in."""

        async def reset_all() -> int:
            every = list(self._connections)
            for connection in every:
                self._end(connection, _Connection.reset)
            return len(every)

        return self._call(reset_all())

    def half_open(self) -> int:
        """Reset the server's side of every connection and leave the client's open: it never learns of it."""

        async def lose() -> int:
            for connection in self._connections:
                connection.lose_server()
            return len(self._connections)

        return self._call(lose())

    def refuse(self) -> None:
        """Refuse new connections. Present ones go on."""
        self._call(self._refuse())

    def accept(self) -> None:
        """Let new connections in. Harmless when they are let in already."""
        self._call(self._accept())

    def target(self, host: str, port: int) -> None:
        """Send new connections to another server."""
        self._upstream = (host, port)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def passed(self, way: Way) -> int:
        """Bytes forwarded so far, or just now being so."""
        return self._passed[way]

    def close(self) -> None:
        """End everything. Harmless when done before."""
        if self._loop.is_closed():
            return
        self.refuse()
        self.cut()
        self._call(_settled())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reserved.close()

    def __enter__(self) -> ToxicProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- in the loop ------------------------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        async def done() -> T:
            result = await work
            await asyncio.sleep(0)  # what it left to the loop is done, too
            return result

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(CALL_S_MAX)

    def _put(self, way: Way, toxic: Toxic) -> None:
        if isinstance(self._toxics[way], Drop) and not isinstance(toxic, Drop):
            for connection in [each for each in self._connections if each.lossy]:
                self._end(connection, _Connection.reset)
        self._toxics[way] = toxic
        for connection in self._connections:
            connection.left[way] = toxic.bytes if isinstance(toxic, CutAfter) else None
        self._changed.set()
        self._changed = asyncio.Event()

    def _end(self, connection: _Connection, how: Callable[[_Connection], None]) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            how(connection)

    async def _refuse(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None

    async def _accept(self) -> None:
        if self._listening is None:
            listener = _bound(self.port)
            listener.listen(128)
            self._listening = self._loop.create_task(self._listen(listener))

    async def _listen(self, listener: socket.socket) -> None:
        with listener:
            while True:
                client, _ = await self._loop.sock_accept(listener)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = _Connection(client)
                for way, toxic in self._toxics.items():
                    connection.left[way] = toxic.bytes if isinstance(toxic, CutAfter) else None
                self._connections.add(connection)
                connection.tasks.append(self._loop.create_task(self._serve(connection)))

    async def _serve(self, connection: _Connection) -> None:
        """Reach the server, then carry both ways until both are over."""
        server = socket.socket()
        server.setblocking(False)
        connection.server = server
        try:
            await self._loop.sock_connect(server, self._upstream)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            self._end(connection, _Connection.reset)
            return
        ways: list[Awaitable[None]] = []
        for ends in ((connection.client, server, "up"), (server, connection.client, "down")):
            task = self._loop.create_task(self._carry(connection, *ends))
            connection.tasks.append(task)
            ways.append(task)
        await asyncio.gather(*ways, return_exceptions=True)
        if connection.server is not None:
            self._end(connection, _Connection.close)

    async def _carry(
        self, connection: _Connection, source: socket.socket, sink: socket.socket, way: Way
    ) -> None:
        try:
            while data := await self._loop.sock_recv(source, CHUNK_BYTES):
                await self._treat(connection, sink, way, data)
            await self._no_longer(way, Hold, Drop)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            # The end of one side is no news for the other while the way between them is shut.
            await self._no_longer(way, Hold, Drop)
            self._end(connection, _Connection.reset)

    async def _treat(self, connection: _Connection, sink: socket.socket, way: Way, data: bytes) -> None:
        await self._no_longer(way, Hold)
        match self._toxics[way]:
            case Drop():
                connection.lossy = True
                return
            case Delay(seconds):
                await asyncio.sleep(seconds)
            case _:
                pass
        left = connection.left[way]
        allowed = data if left is None else data[:left]
        self._passed[way] += len(allowed)
        await self._loop.sock_sendall(sink, allowed)
        if left is not None:
            connection.left[way] = left - len(allowed)
            if left <= len(data):
                self._end(connection, _Connection.reset)
                raise asyncio.CancelledError

    async def _no_longer(self, way: Way, *kinds: type[Toxic]) -> None:
        while isinstance(self._toxics[way], kinds):
            await self._changed.wait()


def _bound(port: int) -> socket.socket:
    end = socket.socket()
    end.setblocking(False)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    end.bind(("127.0.0.1", port))
    return end


async def _settled() -> None:
    """Until every task but this one has ended."""
    while others := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
        await asyncio.gather(*others, return_exceptions=True)
