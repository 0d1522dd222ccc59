"""One TCP connection, plain or TLS, on a non-blocking socket that the event loop watches.

Owns the socket, the phase it is in, and that phase's deadline. Knows how bytes travel; what they mean is the
parser's affair, and which connection carries which request is the engine's.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from amble.adapters.net.exchange import Endpoint, Exchange, Phase
from amble.adapters.net.http1 import Fault
from amble.adapters.net.tls import TlsChannel, TlsProvider
from amble.domain.decision import Category
from amble.domain.policy import FetchLimits

READ_BYTES_MAX: Final = 128 * 1024
_NEVER: Final = float("inf")

_CONNECT_CATEGORIES: Final = {
    errno.ECONNREFUSED: Category.CONNECT_REFUSED,
    errno.ETIMEDOUT: Category.CONNECT_TIMEOUT,
    errno.ECONNRESET: Category.CONNECT_RESET,
}


class Connection:
    """Connect it, secure it if need be, then send requests over it one after another while it is open.

    Each step gives a future of a fault or None. `on_close` is called exactly once, after the socket is gone.
    """

    __slots__ = (
        "_clock",
        "_closed",
        "_exchange",
        "_fd",
        "_future",
        "_limits",
        "_loop",
        "_on_close",
        "_packed",
        "_socket",
        "_tls",
        "_unsent",
        "_used",
        "_writing",
        "deadline_s",
        "endpoint",
        "phase",
        "provider",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        limits: FetchLimits,
        clock: Callable[[], float],
        on_close: Callable[[Connection], None],
    ) -> None:
        self.endpoint = endpoint
        self.provider: TlsProvider | None = None
        self.phase = Phase.CONNECT
        self.deadline_s = _NEVER
        self._limits = limits
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._on_close = on_close
        self._socket: socket.socket | None = None
        self._fd = -1
        self._packed = b""
        self._tls: TlsChannel | None = None
        self._exchange: Exchange | None = None
        self._future: asyncio.Future[Fault | None] | None = None
        self._unsent = b""
        self._writing = False
        self._closed = False
        self._used = 0

    @property
    def is_open(self) -> bool:
        """Whether there is still a socket."""
        return self._socket is not None

    @property
    def is_fresh(self) -> bool:
        """Whether no request has been sent yet."""
        return self._used == 0

    @property
    def tls_version(self) -> str:
        """Such as "TLSv1.3", empty for plain connections."""
        return "" if self._tls is None else self._tls.version

    # -- opening ---------------------------------------------------------------------------------------------------

    def connect(self, exchange: Exchange) -> asyncio.Future[Fault | None]:
        """Connect, and check that the peer is the one that was approved."""
        assert self._socket is None
        future = self._begin(exchange)
        self.phase = Phase.CONNECT
        self.deadline_s = exchange.started_s + self._limits.connect_s
        if self._is_late(exchange):
            return future
        family = socket.AF_INET6 if ":" in self.endpoint.address else socket.AF_INET
        try:
            # A name in place of an address would be looked up, behind the back of the gate and blocking the loop.
            self._packed = socket.inet_pton(family, self.endpoint.address)
        except OSError as error:
            self._fail(Fault(Category.INTERNAL, f"{self.endpoint.address!r} is no address: {error}"))
            return future
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError as error:
            self._fail(Fault(Category.LOCAL_LIMIT, f"no socket: {error}"))
            return future
        self._socket = sock
        self._fd = sock.fileno()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex((self.endpoint.address, self.endpoint.port))
        if code == 0:
            self._on_connected()
        elif code == errno.EINPROGRESS:
            self._loop.add_writer(self._fd, self._on_connected)
            self._writing = True
        else:
            self._fail(_connect_fault(code, self.endpoint))
        return future

    def _on_connected(self) -> None:
        sock = self._socket
        assert sock is not None
        self._stop_writing()
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(_connect_fault(code, self.endpoint))
            return
        try:
            peer = sock.getpeername()[0]
        except OSError as error:
            self._fail(Fault(Category.CONNECT_RESET, f"gone at once: {error.strerror}"))
            return
        # Before any byte is sent: what the gate approved is what we talk to.
        if socket.inet_pton(sock.family, peer.partition("%")[0]) != self._packed:
            self._fail(
                Fault(Category.PEER_MISMATCH, f"approved {self.endpoint.address}, connected to {peer}")
            )
            return
        assert self._exchange is not None
        self._exchange.connected_s = self._clock()
        self._settle(None)

    def secure(self, exchange: Exchange, provider: TlsProvider) -> asyncio.Future[Fault | None]:
        """Do the TLS handshake over a connected socket."""
        future = self._begin(exchange)
        self.provider = provider
        self.phase = Phase.TLS
        self.deadline_s = self._clock() + self._limits.tls_s
        if self._is_late(exchange):
            return future
        try:
            self._tls = TlsChannel(provider, self.endpoint.host, self.endpoint.port)
        except ValueError as error:
            self._fail(Fault(Category.TLS_FAILED, f"host name cannot be sent: {error}"))
            return future
        self._loop.add_reader(self._fd, self._on_handshake_readable)
        self._handshake(b"")
        return future

    def _on_handshake_readable(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(READ_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(Fault(Category.TLS_FAILED, f"connection lost in the handshake: {error.strerror}"))
            return
        if data:
            self._handshake(data)
        else:
            self._fail(Fault(Category.TLS_FAILED, "closed in the handshake"))

    def _handshake(self, data: bytes) -> None:
        tls = self._tls
        assert tls is not None
        try:
            complete = tls.handshake(data)
        except ssl.SSLCertVerificationError as error:
            self._flush()
            self._fail(Fault(Category.TLS_CERTIFICATE, error.verify_message or str(error)))
            return
        except (ssl.SSLError, ValueError, OSError) as error:
            self._flush()
            self._fail(Fault(Category.TLS_FAILED, getattr(error, "reason", None) or str(error)))
            return
        self._flush()
        if complete and self._socket is not None:
            assert self._exchange is not None
            self._exchange.tls_s = self._clock()
            self._loop.remove_reader(self._fd)
            self._settle(None)

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, exchange: Exchange) -> asyncio.Future[Fault | None]:
        """Send a request on an open connection and read its answer into the exchange's parser."""
        future = self._begin(exchange)
        self.phase = Phase.FIRST_BYTE
        self.deadline_s = self._clock() + self._limits.first_byte_s
        self._used += 1
        # On a used connection bytes without a status line are the tail of something else, not an answer.
        exchange.parser.http09 = exchange.http09 and self._used == 1
        if self._socket is None:
            self._lost("closed before the request")
            return future
        if self._used == 1:
            # Only now: a server that speaks first must find a parser that listens.
            reader = self._on_plain_readable if self._tls is None else self._on_tls_readable
            self._loop.add_reader(self._fd, reader)
        data = exchange.request
        if self._tls is not None:
            try:
                data = self._tls.encrypt(data)
            except ssl.SSLError as error:
                self._lost(str(error))
                return future
        if not self._is_late(exchange):
            self._send(data)
        return future

    def _is_late(self, exchange: Exchange) -> bool:
        """Whether the request may not begin any more, which ends it. Asked at the last moment before bytes leave."""
        if self._clock() < exchange.start_by_s:
            return False
        self._fail(Fault(Category.STALE_EPOCH, "the right to start it had ended"))
        return True

    def _begin(self, exchange: Exchange) -> asyncio.Future[Fault | None]:
        assert self._future is None
        future: asyncio.Future[Fault | None] = self._loop.create_future()
        self._future = future
        self._exchange = exchange
        return future

    def _flush(self) -> None:
        if self._tls is not None:
            data = self._tls.outgoing()
            if data:
                self._send(data)

    def _send(self, data: bytes) -> None:
        sock = self._socket
        if sock is None:
            return
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lost(error.strerror or str(error))
            return
        if sent < len(data):
            self._unsent = data[sent:]
            if not self._writing:
                self._loop.add_writer(self._fd, self._on_writable)
                self._writing = True

    def _on_writable(self) -> None:
        data, self._unsent = self._unsent, b""
        self._send(data)
        if not self._unsent:
            self._stop_writing()

    def _stop_writing(self) -> None:
        if self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False

    # -- receiving -------------------------------------------------------------------------------------------------

    def _on_plain_readable(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(READ_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(error.strerror or str(error))
            return
        if data:
            self._on_data(data)
        else:
            self._on_end(clean=True)

    def _on_tls_readable(self) -> None:
        assert self._socket is not None
        assert self._tls is not None
        try:
            data = self._socket.recv(READ_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(error.strerror or str(error))
            return
        if not data:
            self._on_end(clean=False)
            return
        try:
            plain, closed = self._tls.decrypt(data)
        except ssl.SSLError as error:
            self._lost(str(error))
            return
        self._flush()  # answers to key updates
        # Session tickets carry no payload: they must not close an idle connection.
        if plain:
            self._on_data(plain)
        if closed and self._socket is not None:
            self._on_end(clean=True)

    def _on_data(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.close()  # nothing was asked: whatever this is, it would be taken for the next answer
            return
        now_s = self._clock()
        if self.phase is Phase.FIRST_BYTE:
            exchange.first_byte_s = now_s
            self.phase = Phase.BODY
        self.deadline_s = now_s + self._limits.idle_s
        parser = exchange.parser
        try:
            parser.feed(data)
        except OSError as error:
            self._fail(Fault(Category.LOCAL_LIMIT, f"the body cannot be kept: {error}"))
            return
        if parser.done:
            self._finish()

    def _on_end(self, *, clean: bool) -> None:
        exchange = self._exchange
        if exchange is None:
            self.close()
        elif exchange.parser.wire_bytes == 0 and self._used > 1:
            self._lost("closed by the server while idle")
        else:
            try:
                exchange.parser.end(clean=clean)
            except OSError as error:
                self._fail(Fault(Category.LOCAL_LIMIT, f"the body cannot be kept: {error}"))
                return
            self._finish()

    def is_quiet(self) -> bool:
        """Whether an idle connection is as its last answer left it: open, with nothing unasked for in it.

        The loop tells of a close or of stray bytes, but a busy loop tells too late: a request must not be answered by
        what was sent before it.
        """
        assert self._exchange is None
        if self._tls is None:
            self._on_plain_readable()
        else:
            self._on_tls_readable()
        return self.is_open

    # -- ends ------------------------------------------------------------------------------------------------------

    def check(self, now_s: float) -> None:
        """End the exchange if one of its deadlines has passed, or if it crawls."""
        exchange = self._exchange
        if exchange is None:
            return
        if now_s > exchange.deadline_s:
            self._fail(
                Fault(Category.TIMEOUT_TOTAL, f"over time while waiting for the {self.phase.value}"), "total"
            )
        elif now_s > self.deadline_s:
            self._fail(*self._overdue())
        elif self.phase is Phase.BODY:
            elapsed_s = now_s - exchange.first_byte_s
            received = exchange.parser.wire_bytes
            if elapsed_s > self._limits.rate_grace_s and received < self._limits.rate_min_bytes_s * elapsed_s:
                detail = f"{received} bytes in {elapsed_s:.1f} s"
                self._fail(Fault(Category.TOO_SLOW, detail), "slow")

    def _overdue(self) -> tuple[Fault, str]:
        match self.phase:
            case Phase.CONNECT:
                return Fault(Category.CONNECT_TIMEOUT, f"no connection in {self._limits.connect_s:g} s"), ""
            case Phase.TLS:
                return Fault(Category.TLS_TIMEOUT, f"no handshake in {self._limits.tls_s:g} s"), ""
            case Phase.FIRST_BYTE:
                detail = f"no answer in {self._limits.first_byte_s:g} s"
                return Fault(Category.TIMEOUT_FIRST_BYTE, detail), ""
            case _:
                return Fault(Category.TIMEOUT_IDLE, f"silent for {self._limits.idle_s:g} s"), "idle"

    def _lost(self, detail: str) -> None:
        """The connection broke. Before the first byte of an answer on a used connection that is no one's fault."""
        exchange = self._exchange
        if exchange is None:
            self.close()
            return
        category = Category.TLS_FAILED if self.phase is Phase.TLS else Category.DISCONNECTED
        stale = self._used > 1 and exchange.parser.wire_bytes == 0
        self._fail(Fault(category, detail, stale=stale), "disconnect")

    def _fail(self, fault: Fault, word: str = "") -> None:
        exchange = self._exchange
        outcome: Fault | None = fault
        if exchange is not None:
            exchange.ended_s = self._clock()
            if word and exchange.parser.wire_bytes:
                exchange.parser.cut(word, fault)
                outcome = exchange.parser.fault
        self.close()
        self._settle(outcome)

    def _finish(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.ended_s = self._clock()
        self.phase = Phase.IDLE
        if not (exchange.parser.reusable and exchange.keep_alive):
            self.close()
        self._settle(exchange.parser.fault)

    def _settle(self, outcome: Fault | None) -> None:
        """Tell who waits. From here to the next request whatever arrives closes the connection."""
        future = self._future
        self._future = None
        self._exchange = None
        self.deadline_s = _NEVER
        if future is not None and not future.done():
            future.set_result(outcome)

    def abort(self, detail: str) -> None:
        """Close the connection, and end the exchange on it with a fault if there is one."""
        self._fail(Fault(Category.DISCONNECTED, detail))

    def close(self) -> None:
        """Close the socket now; unread input makes the kernel send a reset, which is what a cut body needs."""
        if self._closed:
            return
        self._closed = True
        sock, self._socket = self._socket, None
        if sock is not None:
            self._loop.remove_reader(self._fd)
            self._stop_writing()
            if self._tls is not None:
                self._tls.keep_session()
            sock.close()
        self._on_close(self)


def _connect_fault(code: int, endpoint: Endpoint) -> Fault:
    category = _CONNECT_CATEGORIES.get(code, Category.CONNECT_UNREACHABLE)
    return Fault(category, f"{endpoint.address} port {endpoint.port}: {os.strerror(code)}")
