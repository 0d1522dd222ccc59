"""A server of our own on loopback that runs a script per connection: whatever bytes a test wants, whenever."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

import pytest

from amble.ports import Permit

Script = Callable[["Session"], Awaitable[None]]


def _has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6_loopback(), reason="this machine has no ::1")


@dataclass(slots=True)
class Session:
    """One accepted connection. `number` counts from 1 in order of arrival."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: RawServer

    @property
    def local_address(self) -> str:
        """The address the client connected to."""
        return str(self.writer.get_extra_info("sockname")[0])

    async def request(self) -> bytes:
        """The next request head, recorded; empty when the client closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        self.server.requests.append(head)
        return head

    async def send(self, data: bytes) -> None:
        """Send and flush."""
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Close with a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has closed."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


@dataclass(slots=True)
class RawServer:
    """Runs `script` for every connection between `async with`; the connection closes when the script ends."""

    script: Script
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None
    port: int = 0
    connections: int = 0
    open_now: int = 0
    open_most: int = 0
    requests: list[bytes] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._accept, self.host, 0, ssl=self.tls, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None and self.errors:
            raise self.errors[0]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: the one that asyncio makes logs its cancellation as an error.
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            await self.script(Session(self.connections, reader, writer, self))
        except ConnectionError:
            pass
        except AssertionError as error:
            self.errors.append(error)
        finally:
            self.open_now -= 1
            writer.transport.close() if self.tls is None else writer.transport.abort()

    def permit(
        self,
        target: str = "/",
        *,
        host: str = "h.test",
        address: str = "",
        within_s: float = 10.0,
        begin_within_s: float = math.inf,
    ) -> Permit:
        """Permission for one request to this server."""
        return permit(
            self.port,
            target,
            scheme="https" if self.tls is not None else "http",
            host=host,
            address=address or self.host,
            within_s=within_s,
            begin_within_s=begin_within_s,
        )


def permit(
    port: int,
    target: str = "/",
    *,
    scheme: str = "http",
    host: str = "h.test",
    address: str = "127.0.0.1",
    within_s: float = 10.0,
    begin_within_s: float = math.inf,
) -> Permit:
    """Permission for one request, as the gate would give it."""
    return Permit(
        url=f"{scheme}://{host}:{port}{target}",
        scheme=scheme,
        host=host,
        port=port,
        target=target,
        address=address,
        epoch=1,
        deadline_s=time.monotonic() + within_s,
        origin_id=1,
        start_by_s=time.monotonic() + begin_within_s,
    )


def respond(body: bytes = b"hello", *headers: bytes) -> bytes:
    """A proper answer that keeps the connection."""
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def polite(session: Session) -> None:
    """Answer every request with five bytes, and keep the connection."""
    while await session.request():
        await session.send(respond())
