"""HTTP/1.1 of the test web: one port on every loopback address, many sites behind it, every request in a log.

A site may answer with a well-formed `Reply` or take the wire and misbehave. The log says when a request arrived (by
the kernel's stamp, so that a late wake-up of this process does not move it) and when its last bytes were about to be
handed to the kernel: the server's view of an exchange is never longer than the crawler's, so no judge accuses wrongly.
Only an exchange that the peer cut short ends when we notice.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TextIO

from tests.web.message import Reply, Request, not_found

HEAD_BYTES_MAX = 256 * 1024
READ_BYTES = 64 * 1024
# linux/socket.h; the module `socket` does not name it. The answer is a struct timespec of CLOCK_REALTIME.
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("@qq")
FLUSH_S = 0.05


class Answers(Protocol):
    """Whoever decides what is served."""

    def answer(self, request: Request) -> Reply:
        """The answer to one request; never waits."""
        ...


class AccessLog:
    """Tab-separated lines, flushed at most FLUSH_S after they were written, and at the end.

    Fields: start_us end_us mono_start_us mono_end_us scheme host port address connection method target status bytes
    user_agent ending. `host` is the Host header in lower case without port; `ending` is done, cut (the peer hung up
    first) or reset (the site dropped the connection).
    """

    def __init__(self, path: Path | None) -> None:
        self._file: TextIO | None = None if path is None else path.open("a", encoding="utf-8")
        self._lines: list[str] = []
        self._due: asyncio.TimerHandle | None = None
        self.requests = 0

    def write(
        self, request: Request, began: tuple[int, int], mono: int, status: int, sent: int, ending: str
    ) -> None:
        """One finished request; `mono` is the monotonic time of its end in nanoseconds."""
        self.requests += 1
        if self._file is None:
            return
        wall = began[0] + mono - began[1]
        agent = request.headers.get("user-agent", "-").replace("\t", " ")
        target = request.target.replace("\t", "%09")
        self._lines.append(
            f"{began[0] // 1000}\t{wall // 1000}\t{began[1] // 1000}\t{mono // 1000}\t{request.scheme}\t"
            f"{request.host or '-'}\t{request.port}\t{request.address}\t{request.connection}\t{request.method}\t"
            f"{target}\t{status}\t{sent}\t{agent}\t{ending}\n"
        )
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Hand everything to the kernel."""
        self._due = None
        if self._file is not None and self._lines:
            self._file.write("".join(self._lines))
            self._file.flush()
            self._lines.clear()

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        if self._file is not None:
            self._file.close()


class HttpConnection(asyncio.BufferedProtocol):
    """One accepted connection: requests in order, one at a time."""

    count = 0
    _incoming = bytearray(READ_BYTES)  # one for all: what is read is taken out before anything else runs

    def __init__(self, answers: Answers, log: AccessLog, scheme: str) -> None:
        HttpConnection.count += 1
        self._answers, self._log, self._scheme = answers, log, scheme
        self._connection = HttpConnection.count
        self._buffer = b""
        self._began: tuple[int, int] | None = None
        self._arrived = (0, 0)
        self._request: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._status = self._sent = self._ended = self._served = 0
        self._hung_up = False
        self._ending = "done"

    # --- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        name = transport.get_extra_info("sockname")
        self._address, self._port = name[0], name[1]
        if not self._address.startswith(("127.", "::1")):
            transport.abort()  # bound everywhere so as to have all of 127.0.0.0/8, but no other machine's business
        sock = transport.get_extra_info("socket")
        self._socket: socket.socket | None = getattr(sock, "_sock", None)  # asyncio's wrapper cannot peek
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> bytearray:
        del sizehint
        if self._began is None:
            self._arrived = self._arrival()
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        if self._began is None:
            self._began = self._arrived
        self._buffer += self._incoming[:nbytes]
        self._next()

    def _arrival(self) -> tuple[int, int]:
        """Wall and monotonic time at which the bytes that wait to be read reached this machine's kernel.

        On a busy machine we are woken late, and two requests would seem closer than they were. The kernel stamps what
        it receives, and a peek tells the stamp. Without one (TLS has read ahead of us) it is the time of now.
        """
        wall, mono = time.time_ns(), time.monotonic_ns()
        late_ns = 0
        if self._socket is not None:
            try:
                _, stamps, _, _ = self._socket.recvmsg(1, 64, socket.MSG_PEEK)
            except OSError:
                stamps = []
            for level, kind, data in stamps:
                if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                    seconds, nanoseconds = TIMESPEC.unpack(data)
                    late_ns = max(0, wall - seconds * 1_000_000_000 - nanoseconds)
        return wall - late_ns, mono - late_ns

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._hung_up = True
        self._room.set()
        if self._task is not None:
            self._task.cancel()
        if self._request is not None:
            self._over("cut" if self._ending == "done" else self._ending)

    # --- requests

    def _next(self) -> None:
        while self._request is None and not self._transport.is_closing():
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > HEAD_BYTES_MAX:
                    self._transport.abort()
                return
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            request = self._parse(head)
            if request is None:
                self._transport.abort()
                return
            if self._began is None:  # pipelined: it was here before its turn came
                self._began = (time.time_ns(), time.monotonic_ns())
            self._request = request
            self._status = self._sent = self._ended = 0
            self._serve(request)

    def _parse(self, head: bytes) -> Request | None:
        first, *rest = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3:
            return None
        headers: dict[str, str] = {}
        for line in rest:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self._served += 1
        return Request(
            words[0],
            words[1],
            headers,
            self._scheme,
            self._address,
            self._port,
            self._connection,
            self._served,
        )

    def _serve(self, request: Request) -> None:
        reply = self._answers.answer(request)
        if reply.raw is None and not reply.delay_s:
            self._write(request, reply)
        else:
            self._task = asyncio.get_running_loop().create_task(self._perform(request, reply))

    def _write(self, request: Request, reply: Reply) -> None:
        keep_alive = not reply.close and request.headers.get("connection", "").lower() != "close"
        body = b"" if request.method == "HEAD" else reply.payload()
        self._status, self._sent, self._ended = reply.status, len(body), time.monotonic_ns()
        head = reply.head(keep_alive=keep_alive)
        if len(body) > 16_384:  # no copy of a large body only to save a system call
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + body)
        self._over("done")
        if not keep_alive:
            self._transport.close()

    async def _perform(self, request: Request, reply: Reply) -> None:
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        if reply.raw is None:
            self._write(request, reply)
        else:
            await reply.raw(self)
            if self._request is request:
                self._over(self._ending)
        self._task = None
        self._next()

    def _over(self, ending: str) -> None:
        request, began = self._request, self._began
        self._request = self._began = None
        if request is not None and began is not None:
            ended = self._ended if ending == "done" and self._ended else time.monotonic_ns()
            self._log.write(request, began, max(began[1], ended), self._status, self._sent, ending)

    # --- Wire, for sites that misbehave

    def send(self, data: bytes) -> None:
        """See Wire."""
        if self._status == 0 and data.startswith(b"HTTP/1.") and data[9:12].isdigit():
            self._status = int(data[9:12])
        self._sent += len(data)
        self._ended = time.monotonic_ns()
        if not self._hung_up:
            self._transport.write(data)

    async def drain(self) -> None:
        """See Wire."""
        await self._room.wait()

    def finish(self) -> None:
        """See Wire."""
        self._transport.close()

    def reset(self) -> None:
        """See Wire."""
        self._ending = "reset"
        sock = self._transport.get_extra_info("socket")
        if sock is not None:  # linger 0 turns the close into a reset
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    @property
    def gone(self) -> bool:
        """See Wire."""
        return self._hung_up


async def listen(
    answers: Answers,
    log: AccessLog,
    *,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    host: str = "0.0.0.0",
) -> tuple[asyncio.Server, int]:
    """Serve on `port` (0: any) of every IPv4 address; the server and the port it got."""
    scheme = "http" if tls is None else "https"
    make: Callable[[], HttpConnection] = lambda: HttpConnection(answers, log, scheme)  # noqa: E731
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # what it accepts inherits this
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    server = await asyncio.get_running_loop().create_server(make, sock=listener, ssl=tls, backlog=4096)
    return server, int(listener.getsockname()[1])


class Nothing:
    """Answers that know no site."""

    def answer(self, request: Request) -> Reply:
        """Always 404."""
        del request
        return not_found()
