"""The health endpoint of a long-running command: `GET /live` and `GET /ready` over plain HTTP/1.1, and nothing else.

An orchestrator asks, one request per connection, and reads the status: 200 when well, 503 with the reason when not.
Every bound is small and fixed, so that whoever reaches the port can at most spend a handful of sockets for a moment.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

# A probe sends a few hundred bytes; cookies of a browser that strayed here need not fit.
HEAD_BYTES_MAX = 4096
# From the first moment of a connection to the last byte of its answer.
EXCHANGE_S_MAX = 5.0
# How long a client may take to read its answer and close, after which the connection is dropped.
LINGER_S_MAX = 1.0
LINGER_BYTES_MAX = 65_536
CONNECTIONS_MAX = 16
REASON_CHARS_MAX = 500

# RFC 9112 3: method SP request-target SP HTTP-version. Only the origin form can name one of our paths.
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (/[\x21-\x7e]*) HTTP/1\.([01])")
# RFC 9112 5: no blank before the colon and no folded line; RFC 9110 5.5: no control character but the tab.
_FIELD_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t\x20-\x7e\x80-\xff]*")

Check = Callable[[], str | None]
"""None when well, else the reason. Called in the event loop for every probe: it must not block."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """A status and its text."""

    status: HTTPStatus
    text: str
    headless: bool = False


class _Refused(Exception):
    """The request is none that is answered; the status says why."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `ADDR:PORT`, with an IPv6 address in brackets; port 0 lets the system choose one.

    Raises ValueError with a message for whoever wrote it.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: put an IPv6 address in brackets, such as [::1]:8089")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{text!r} is no ADDR:PORT, such as 127.0.0.1:8089")
    return host, int(port)


class HealthServer:
    """Answers probes from `open` to `close`.

    `live`: whether this process should go on running; a reason makes an orchestrator restart it, so it must not depend
    on the database or on anything else that a restart does not mend. `ready`: whether it does its work just now.
    A check that raises counts as not well.
    """

    def __init__(self, live: Check, ready: Check) -> None:
        self._checks = {b"/live": live, b"/ready": ready}
        self._server: asyncio.Server | None = None
        self._exchanges: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address and port that were bound. Raises OSError when they cannot be had."""
        self._server = await asyncio.start_server(
            self._accept, host, port, limit=HEAD_BYTES_MAX, backlog=CONNECTIONS_MAX
        )
        bound = self._server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def close(self) -> None:
        """Stop listening and drop what is under way. Harmless when repeated."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for exchange in self._exchanges:
            exchange.cancel()
        await asyncio.gather(*self._exchanges, return_exceptions=True)
        await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or len(self._exchanges) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        exchange = asyncio.get_running_loop().create_task(self._exchange(reader, writer))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer; the connection is gone when this returns."""
        try:
            async with asyncio.timeout(EXCHANGE_S_MAX):
                answer = await self._answer(reader)
                writer.write(_encoded(answer))
                await writer.drain()
            async with asyncio.timeout(LINGER_S_MAX):
                await _linger(reader, writer)
        except (TimeoutError, OSError):
            pass  # a client that is slow or gone needs no answer
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> _Answer:
        try:
            method, target = _parsed(await _head(reader))
        except _Refused as refusal:
            return _Answer(refusal.status, refusal.status.phrase)
        check = self._checks.get(target.partition(b"?")[0])
        if check is None:
            return _Answer(HTTPStatus.NOT_FOUND, "there are /live and /ready", method == b"HEAD")
        if method not in (b"GET", b"HEAD"):
            return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        reason = _asked(check)
        status = HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE
        return _Answer(status, "ok" if reason is None else reason, method == b"HEAD")


def _asked(check: Check) -> str | None:
    """What a check says, as one bounded line."""
    try:
        reason = check()
    except Exception as error:  # whatever is wrong with the check, the process is not known to be well
        return f"the check failed: {type(error).__name__}"
    return None if reason is None else " ".join(reason.split())[:REASON_CHARS_MAX]


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Request line and fields, without the empty line."""
    try:
        return (await reader.readuntil(b"\r\n\r\n"))[:-4]
    except asyncio.LimitOverrunError:
        raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
    except asyncio.IncompleteReadError:
        raise _Refused(HTTPStatus.BAD_REQUEST) from None


def _parsed(head: bytes) -> tuple[bytes, bytes]:
    """Method and target. Raises _Refused for what is not HTTP/1 to the letter, or brings a body."""
    first, *lines = head.split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(first)
    fields = [_FIELD_LINE.fullmatch(line) for line in lines]
    if request is None or None in fields:
        raise _Refused(HTTPStatus.BAD_REQUEST)
    names = [field[1].lower() for field in fields if field is not None]
    # RFC 9112 3.2: exactly one Host from HTTP/1.1 on, at most one before.
    if names.count(b"host") > 1 or (request[3] == b"1" and b"host" not in names):
        raise _Refused(HTTPStatus.BAD_REQUEST)
    if b"transfer-encoding" in names or b"content-length" in names:
        raise _Refused(HTTPStatus.BAD_REQUEST)
    return request[1], request[2]


def _encoded(answer: _Answer) -> bytes:
    """The answer as bytes; nothing is said about the software, and nobody may keep it."""
    body = (answer.text + "\n").encode("utf-8", "replace")
    head = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        head.append("Allow: GET, HEAD")
    return "\r\n".join([*head, "", ""]).encode("ascii") + (b"" if answer.headless else body)


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the client close first: unread bytes at our close would reset the connection and the answer with it."""
    if writer.can_write_eof():
        writer.write_eof()
    left = LINGER_BYTES_MAX
    while left > 0 and (piece := await reader.read(min(left, HEAD_BYTES_MAX))):
        left -= len(piece)
