"""The transport: one HTTP/1.1 exchange under a permit, in the words of `ports.Transport`.

Builds the request, runs it on the engine, and turns what came back into a Reply or a FetchFailure. Follows no
redirect, keeps no cookie, knows no credential.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from amble.adapters.net.connection import Connection
from amble.adapters.net.engine import TICK_S, Engine
from amble.adapters.net.exchange import Endpoint, Exchange
from amble.adapters.net.heads import HeaderFields
from amble.adapters.net.http1 import Fault, ResponseParser
from amble.adapters.net.spool import Spool
from amble.adapters.net.tls import TlsProvider, TlsVerify, lenient_provider, strict_provider
from amble.domain.decision import Category
from amble.domain.fetched import Timings
from amble.domain.policy import FetchLimits
from amble.ports import Ask, FetchFailure, Permit, Reply

ACCEPT: Final = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
ACCEPT_ENCODING: Final = "gzip, deflate, br, zstd"

# DESIGN section 3, invariant 20: no credentials are sent. The rest is the engine's own to say.
_NEVER_SENT: Final = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "host",
        "proxy-authorization",
        "transfer-encoding",
    }
)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_TARGET = re.compile(r"/[\x21-\x7e]*")
_HOST = re.compile(r"[\x21-\x2e\x30-\x7e]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class Http1Transport:
    """HTTP/1.1 on our own engine. Implements `ports.Transport`.

    `spool_dir` holds the temporary files of large bodies. `tls_verify` "fallback" accepts bad certificates on a second
    try, `ca_file` replaces the public roots, `providers` replaces the TLS policy as a whole. An answer without a status
    line (HTTP/0.9) is taken only over plain HTTP and from `http09_ports`: elsewhere any service that speaks would pass
    for a web server.
    """

    def __init__(
        self,
        limits: FetchLimits,
        user_agent: str,
        spool_dir: Path,
        *,
        tls_verify: TlsVerify = "strict",
        ca_file: Path | None = None,
        providers: tuple[TlsProvider, ...] = (),
        http09_ports: Collection[int] = (80,),
        clock: Callable[[], float] = time.monotonic,
        tick_s: float = TICK_S,
    ) -> None:
        if not providers:
            providers = (strict_provider(ca_file),)
            if tls_verify == "fallback":
                providers = (*providers, lenient_provider())
        self._limits = limits
        self._spool_dir = spool_dir
        self._http09_ports = frozenset(http09_ports)
        self._clock = clock
        self._engine = Engine(limits, providers, clock=clock, tick_s=tick_s)
        self._defaults = (
            ("User-Agent", user_agent),
            ("Accept", ACCEPT),
            ("Accept-Encoding", ACCEPT_ENCODING),
        )
        assert _VALUE.fullmatch(user_agent), "user agent cannot be sent"
        self._usual = {keep: self._tail((), keep_alive=keep)[0] for keep in (False, True)}

    async def fetch(self, permit: Permit, ask: Ask) -> Reply | FetchFailure:
        """Do it. Expected failures are values; cancellation closes the connection."""
        started_s = self._clock()
        request, dropped = self._request(permit, ask)
        if not request:
            return FetchFailure(Category.INTERNAL, f"request for {permit.url[:200]!r} cannot be sent")
        if started_s >= permit.deadline_s:
            return FetchFailure(Category.TIMEOUT_TOTAL, "the permit had lapsed before the start")
        tls = permit.scheme == "https"
        spool = Spool(self._spool_dir, self._limits.memory_body_bytes_max)
        exchange = Exchange(
            request,
            ResponseParser(self._limits, ask.body_bytes_max, spool.write),
            min(permit.deadline_s, started_s + self._limits.total_s),
            keep_alive=ask.keep_alive,
            http09=not tls and permit.port in self._http09_ports,
            started_s=started_s,
            start_by_s=permit.start_by_s,
        )
        endpoint = Endpoint(permit.address, permit.port, permit.host, tls)
        try:
            outcome = await self._engine.run(endpoint, exchange)
            if isinstance(outcome, Fault):
                spool.discard()
                timings = _timings(exchange, self._clock())
                return FetchFailure(outcome.category, outcome.detail, timings, stale=outcome.stale)
            return self._reply(exchange, outcome, spool, dropped=dropped)
        except OSError as error:
            spool.discard()
            return FetchFailure(Category.INTERNAL, f"the exchange broke off: {error}")
        except BaseException:
            spool.discard()
            raise

    def has_idle(self, permit_host: str, port: int, scheme: str) -> bool:
        """Whether an idle connection to that origin is pooled."""
        return self._engine.has_idle(permit_host, port, tls=scheme == "https")

    @property
    def open_connections(self) -> int:
        """Connections that have a socket now, idle ones included."""
        return self._engine.open_connections

    async def close(self) -> None:
        """Close every connection. Exchanges under way end as failures."""
        self._engine.close()

    # -- request ---------------------------------------------------------------------------------------------------

    def _request(self, permit: Permit, ask: Ask) -> tuple[bytes, bool]:
        """The request, and whether a header had to be left out. Empty if target or host would break the framing."""
        if not _TARGET.fullmatch(permit.target) or not _HOST.fullmatch(permit.host):
            return b"", False
        host = permit.host
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        if permit.port != _DEFAULT_PORTS.get(permit.scheme):
            host = f"{host}:{permit.port}"
        first = f"GET {permit.target} HTTP/1.1\r\nHost: {host}\r\n".encode("ascii")
        if not ask.headers:
            return first + self._usual[ask.keep_alive], False
        tail, dropped = self._tail(ask.headers, keep_alive=ask.keep_alive)
        return first + tail, dropped

    def _tail(self, extra: tuple[tuple[str, str], ...], *, keep_alive: bool) -> tuple[bytes, bool]:
        """All header lines after Host, with the blank line. A header of the ask replaces the default of its name."""
        named = {name.lower() for name, _ in extra}
        assert not named & _NEVER_SENT, f"never sent: {sorted(named & _NEVER_SENT)}"
        lines = [pair for pair in self._defaults if pair[0].lower() not in named]
        lines.append(("Connection", "keep-alive" if keep_alive else "close"))
        # A validator echoes what a server sent once; a header that could end its line early must not go out.
        sendable = [pair for pair in extra if _VALUE.fullmatch(pair[1])]
        text = "".join(f"{name}: {value}\r\n" for name, value in [*lines, *sendable])
        return text.encode("latin-1") + b"\r\n", len(sendable) < len(extra)

    # -- reply -----------------------------------------------------------------------------------------------------

    def _reply(self, exchange: Exchange, connection: Connection, spool: Spool, *, dropped: bool) -> Reply:
        parser = exchange.parser
        quirks = list(parser.quirks)
        if connection.provider is not None and connection.provider.quirk:
            quirks.append(connection.provider.quirk)
        if dropped:
            quirks.append("request-header-dropped")
        return Reply(
            status=parser.status,
            head=parser.head,
            headers=HeaderFields(parser.head),
            body=spool.finish(),
            request=exchange.request,
            address=connection.endpoint.address,
            timings=_timings(exchange, exchange.ended_s),
            wire_bytes=parser.wire_bytes,
            truncated=parser.truncated,
            quirks=tuple(quirks),
            reused=exchange.connected_s < 0,
            tls=connection.tls_version,
        )


def _timings(exchange: Exchange, ended_s: float) -> Timings:
    start_s = exchange.started_s
    return Timings(
        _milliseconds(exchange.connected_s, start_s),
        _milliseconds(exchange.tls_s, start_s),
        _milliseconds(exchange.first_byte_s, start_s),
        int((ended_s - start_s) * 1000),
    )


def _milliseconds(moment_s: float, start_s: float) -> int:
    return int((moment_s - start_s) * 1000) if moment_s >= 0 else -1
