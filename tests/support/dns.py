"""A small DNS responder on a loopback UDP socket, for tests: it answers from a table that a test may change.

RFC 1035 wire format, one question per query, no name compression, no EDNS in answers. It counts every query.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType

A, CNAME, AAAA = 1, 5, 28
NOERROR, SERVFAIL, NXDOMAIN, REFUSED = 0, 2, 3, 5


@dataclass(slots=True)
class Name:
    """One name: addresses of both families, or an alias, or an error code, or silence (for the types listed)."""

    addresses: tuple[str, ...] = ()
    alias: str = ""
    ttl_s: int = 300
    rcode: int = NOERROR
    silent: tuple[int, ...] = ()


@dataclass(slots=True)
class DnsResponder:
    """Serves `names` on `address` between `async with`. Unknown names do not exist. `alive` False: no answer at all."""

    names: dict[str, Name] = field(default_factory=dict)
    alive: bool = True
    queries: Counter[tuple[str, int]] = field(default_factory=Counter)
    gate: asyncio.Event | None = None
    _socket: socket.socket = field(init=False)
    _held: list[tuple[bytes, tuple[str, int]]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """ADDR:PORT."""
        return "{}:{}".format(*self._socket.getsockname())

    async def __aenter__(self) -> DnsResponder:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(("127.0.0.1", 0))
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._on_readable)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()

    def hold(self) -> None:
        """Keep the answers of all queries from now on until `release`."""
        self.gate = asyncio.Event()

    def release(self) -> None:
        """Send what was held."""
        self.gate = None
        for query, peer in self._held:
            self._answer(query, peer)
        self._held.clear()

    def _on_readable(self) -> None:
        while True:
            try:
                query, peer = self._socket.recvfrom(4096)
            except BlockingIOError:
                return
            name, kind, _ = _question(query)
            self.queries[name, kind] += 1
            if self.gate is not None:
                self._held.append((query, peer))
            else:
                self._answer(query, peer)

    def _answer(self, query: bytes, peer: tuple[str, int]) -> None:
        name, kind, raw = _question(query)
        entry = self.names.get(name, Name(rcode=NXDOMAIN))
        if not self.alive or kind in entry.silent:
            return
        records: list[bytes] = []
        rcode = entry.rcode
        for _ in range(16):
            if not entry.alias:
                break
            records.append(_record(name, CNAME, entry.ttl_s, _labels(entry.alias)))
            name = entry.alias
            entry = self.names.get(name, Name(rcode=NXDOMAIN))
            rcode = entry.rcode
        version = 4 if kind == A else 6
        for text in entry.addresses if kind in (A, AAAA) and rcode == NOERROR else ():
            parsed = ipaddress.ip_address(text)
            if parsed.version == version:
                records.append(_record(name, kind, entry.ttl_s, parsed.packed))
        head = query[:2] + struct.pack(">HHHHH", 0x8180 | rcode, 1, len(records), 0, 0)
        self._socket.sendto(head + raw + b"".join(records), peer)


def _question(query: bytes) -> tuple[str, int, bytes]:
    labels = []
    position = 12
    while query[position]:
        end = position + 1 + query[position]
        labels.append(query[position + 1 : end].decode("ascii").lower())
        position = end
    return ".".join(labels), int.from_bytes(query[position + 1 : position + 3]), query[12 : position + 5]


def _labels(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def _record(name: str, kind: int, ttl_s: int, data: bytes) -> bytes:
    return _labels(name) + struct.pack(">HHIH", kind, 1, ttl_s, len(data)) + data
