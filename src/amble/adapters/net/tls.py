"""TLS without sockets: contexts per policy, one channel over two memory buffers, and sessions for resumption.

The provider is replaceable: any object with `wrap_bio` will do (`TlsProvider`). Certificates are checked against the
name in the URL, never against the pinned address.
"""

from __future__ import annotations

import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import certifi

TlsVerify = Literal["strict", "fallback"]
"""strict: a bad certificate ends the attempt. fallback: a second try accepts it, marked with `tls-unverified`."""

RECORD_BYTES_MAX: Final = 64 * 1024
_SESSIONS_MAX: Final = 1000


class WrapsBio(Protocol):
    """What an SSLContext of any maker can do for us."""

    def wrap_bio(self, incoming: Any, outgoing: Any, *, server_hostname: str | None = ...) -> Any:
        """A TLS object over two memory buffers; the interface of `ssl.SSLObject`."""
        ...


@dataclass(slots=True)
class TlsProvider:
    """One TLS policy: a context, the buffers that go with it, the sessions it may resume, what to record for it.

    Sessions are never shared between policies: one that began unverified must not pass for a verified one.
    """

    context: WrapsBio
    buffer: Callable[[], Any] = ssl.MemoryBIO
    quirk: str = ""
    resumes: bool = False
    sessions: OrderedDict[tuple[str, int], Any] = field(default_factory=OrderedDict)

    def remember(self, host: str, port: int, session: object) -> None:
        """Keep a session for the next connection to the same host and port."""
        if session is None or not self.resumes:
            return
        self.sessions[host, port] = session
        self.sessions.move_to_end((host, port))
        if len(self.sessions) > _SESSIONS_MAX:
            self.sessions.popitem(last=False)


def strict_provider(ca_file: Path | None = None) -> TlsProvider:
    """Full verification against `ca_file`, or against the bundled public roots. TLS 1.2 and later.

    The public roots cost about 50 ms when they are first used: make one and share it. Raises OSError when the file
    cannot be read.
    """
    return TlsProvider(PublicRoots() if ca_file is None else _strict_context(str(ca_file)), resumes=True)


class PublicRoots:
    """A context that verifies against the bundled public roots. Loaded for the first handshake: many crawls have none.

    Raises OSError when the file of roots cannot be read.
    """

    __slots__ = ("_context", "_file")

    def __init__(self) -> None:
        self._file = certifi.where()
        self._context: ssl.SSLContext | None = None
        with open(self._file, "rb"):
            pass  # an installation without roots is told of at once

    @property
    def context(self) -> ssl.SSLContext:
        """The context with its roots."""
        if self._context is None:
            self._context = _strict_context(self._file)
        return self._context

    def wrap_bio(self, incoming: Any, outgoing: Any, **more: Any) -> ssl.SSLObject:
        """As `ssl.SSLContext.wrap_bio`."""
        return self.context.wrap_bio(incoming, outgoing, **more)


def _strict_context(roots: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=roots)
    context.set_alpn_protocols(["http/1.1"])
    return context


def lenient_provider() -> TlsProvider:
    """No verification, TLS 1.0 and weak ciphers allowed. No roots are loaded: with roots it costs as much as strict."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("ALL:@SECLEVEL=0")
    # Servers without secure renegotiation (RFC 5746); the constant has a name only since Python 3.12.
    context.options |= getattr(ssl, "OP_LEGACY_SERVER_CONNECT", 0x4)
    context.set_alpn_protocols(["http/1.1"])
    return TlsProvider(context, quirk="tls-unverified", resumes=True)


class TlsChannel:
    """One TLS connection without its socket: encrypted bytes in and out, plain bytes in and out.

    The constructor raises ValueError for a host name that cannot be sent; the methods raise ssl.SSLError.
    """

    __slots__ = ("_host", "_incoming", "_outgoing", "_port", "_provider", "_tls", "version")

    def __init__(self, provider: TlsProvider, host: str, port: int) -> None:
        self._provider = provider
        self._host = host
        self._port = port
        self._incoming = provider.buffer()
        self._outgoing = provider.buffer()
        # A trailing dot belongs to the URL, not to the name in the certificate (RFC 6066 section 3).
        name = host.strip("[]").rstrip(".")
        session = provider.sessions.get((host, port)) if provider.resumes else None
        more = {} if session is None else {"session": session}
        self._tls = provider.context.wrap_bio(self._incoming, self._outgoing, server_hostname=name, **more)
        self.version = ""

    def handshake(self, data: bytes = b"") -> bool:
        """Go on with the handshake after `data`; True when it is complete. Look for `outgoing` either way."""
        if data:
            self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.version = self._tls.version() or ""
        return True

    def outgoing(self) -> bytes:
        """What has to be sent now, possibly nothing."""
        produced: bytes = self._outgoing.read() if self._outgoing.pending else b""
        return produced

    def encrypt(self, data: bytes) -> bytes:
        """`data` as records to be sent."""
        self._tls.write(data)
        produced: bytes = self._outgoing.read()
        return produced

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """Plain bytes in these records, and whether the peer said that there will be no more (close_notify).

        Raises ssl.SSLError only if the records are bad and held nothing before that.
        """
        self._incoming.write(data)
        read = self._tls.read
        plain: list[bytes] = []
        closed = False
        try:
            while True:
                piece = read(RECORD_BYTES_MAX)
                if not piece:
                    closed = True
                    break
                plain.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            closed = True
        except ssl.SSLError:
            if not plain:
                raise
            closed = True
        return plain[0] if len(plain) == 1 else b"".join(plain), closed

    def keep_session(self) -> None:
        """Hand the session to the provider for a later connection. Call when the connection is about to close."""
        if self._provider.resumes and self.version:
            session = self._tls.session
            if session is not None and session.has_ticket:
                self._provider.remember(self._host, self._port, session)
