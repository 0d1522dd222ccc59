"""The DNS of the test web: a small authoritative responder for `*.test` over UDP and TCP, with names that misbehave.

RFC 1035 as far as a stub resolver needs it: one question, answers A, AAAA and CNAME, no recursion, no DNSSEC. EDNS in a
query is ignored, which RFC 6891 (7) allows.
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

A, CNAME, AAAA = 1, 5, 28
NOERROR, SERVFAIL, NXDOMAIN, REFUSED = 0, 2, 3, 5
TTL_S = 300


@dataclass(slots=True)
class Name:
    """What the zone says about one name. `turns` are address sets served one after the other, round and round."""

    turns: list[tuple[str, ...]] = field(default_factory=list)
    ttl_s: int = TTL_S
    rcode: int = NOERROR
    alias: str = ""
    silent: bool = False
    delay_s: float = 0.0
    truncate: bool = False
    asked: int = 0


class Zone:
    """All names, what happens to them, and how often they were asked for. `state`: alive, dead (silent), servfail."""

    def __init__(self, names: dict[str, Name] | None = None) -> None:
        self.names: dict[str, Name] = names or {}
        self.wildcards: dict[str, Name] = {}
        self.state = "alive"
        self.asked: Counter[str] = Counter()

    def add(self, name: str, *addresses: str, ttl_s: int = TTL_S) -> None:
        """A plain name with its addresses."""
        self.names[name] = Name([addresses], ttl_s=ttl_s)

    def find(self, name: str) -> Name | None:
        """The entry of a name, or of the wildcard above it."""
        return self.names.get(name) or self.wildcards.get(name.partition(".")[2])


def special_names(zone: Zone, address: str) -> None:
    """Add the names that show one way of DNS going wrong each; `address` is where well-behaved answers point.

    README.md lists them; SPECIAL holds the words.
    """
    ok = (address,)
    table: dict[str, Name] = {
        "nxdomain": Name(rcode=NXDOMAIN),
        "servfail": Name(rcode=SERVFAIL),
        "refused": Name(rcode=REFUSED),
        "drop": Name(silent=True),
        "slow-dns": Name([ok], delay_s=1.5),
        "nodata": Name([()]),
        "truncated": Name([ok], truncate=True),
        "private": Name([("10.0.0.1",)]),
        "metadata": Name([("169.254.169.254",)]),
        "zero": Name([("0.0.0.0",)]),
        "mixed": Name([(address, "10.0.0.1")]),
        "mapped": Name([("::ffff:10.0.0.1",)]),
        "nat64": Name([("64:ff9b::a00:1",)]),
        "loopback6": Name([("::1",)]),
        "rebind": Name([ok, ("10.0.0.1",)], ttl_s=0),
        "chain": Name(alias="chain-1.test"),
        "cname-loop": Name(alias="cname-loop-2.test"),
        "cname-loop-2": Name(alias="cname-loop.test"),
        "cname-private": Name(alias="private.test"),
        "ttl0": Name([ok], ttl_s=0),
        "ttl1": Name([ok], ttl_s=1),
    }
    for step in range(1, 12):
        table[f"chain-{step}"] = Name(alias=f"chain-{step + 1}.test")
    table["chain-12"] = Name([ok])
    for short, entry in table.items():
        zone.names[f"{short}.test"] = entry


SPECIAL = {
    "nxdomain.test": "the name does not exist",
    "servfail.test": "the server fails (SERVFAIL)",
    "refused.test": "the server refuses (REFUSED)",
    "drop.test": "no answer at all",
    "slow-dns.test": "the answer takes 1.5 s",
    "nodata.test": "the name exists and has no address",
    "truncated.test": "truncated over UDP, whole over TCP",
    "private.test": "10.0.0.1",
    "metadata.test": "169.254.169.254",
    "zero.test": "0.0.0.0",
    "mixed.test": "one loopback address and 10.0.0.1",
    "mapped.test": "::ffff:10.0.0.1",
    "nat64.test": "64:ff9b::a00:1, which is 10.0.0.1 behind NAT64",
    "loopback6.test": "::1",
    "rebind.test": "a loopback address and 10.0.0.1 in turns, TTL 0",
    "chain.test": "twelve CNAMEs, then an address",
    "cname-loop.test": "two CNAMEs in a circle",
    "cname-private.test": "a CNAME to private.test",
    "ttl0.test": "TTL 0",
    "ttl1.test": "TTL 1",
}


@dataclass(frozen=True, slots=True)
class Question:
    """The one question of a query, and its bytes for the echo."""

    ident: int
    flags: int
    name: str
    kind: int
    raw: bytes


def parse_question(data: bytes) -> Question | None:
    """The question of a query packet; None if there is none or it is malformed."""
    if len(data) < 17:
        return None
    ident, flags, count = struct.unpack_from("!HHH", data)
    if flags & 0x8000 or count != 1:
        return None
    labels, at = [], 12
    while at < len(data) and data[at]:
        size = data[at]
        if size > 63:
            return None
        labels.append(data[at + 1 : at + 1 + size].decode("latin-1"))
        at += 1 + size
    if at + 5 > len(data):
        return None
    (kind,) = struct.unpack_from("!H", data, at + 1)
    return Question(ident, flags, ".".join(labels).lower(), kind, data[12 : at + 5])


def wire_name(name: str) -> bytes:
    """A name as labels."""
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def _record(name: str, kind: int, ttl_s: int, data: bytes) -> bytes:
    return wire_name(name) + struct.pack("!HHIH", kind, 1, ttl_s, len(data)) + data


def packet(question: Question, rcode: int, records: list[bytes], *, truncated: bool = False) -> bytes:
    """An answer. AA and RA are set; RD is echoed."""
    flags = 0x8480 | (question.flags & 0x0100) | rcode | (0x0200 if truncated else 0)
    counts = struct.pack("!HHHHHH", question.ident, flags, 1, len(records), 0, 0)
    return counts + question.raw + b"".join(records)


def resolve(zone: Zone, question: Question) -> tuple[int, list[bytes], Name | None]:
    """Follow the zone from the question: response code, records and the entry asked for."""
    records: list[bytes] = []
    name, first = question.name, zone.find(question.name)
    entry = first
    for _ in range(20):
        if entry is None:
            return NXDOMAIN, records, first
        if not entry.alias:
            break
        records.append(_record(name, CNAME, entry.ttl_s, wire_name(entry.alias)))
        name, entry = entry.alias, zone.find(entry.alias)
    else:
        return NOERROR, records, first
    if entry.rcode:
        return entry.rcode, records, first
    records += _addresses(name, entry, question.kind)
    return NOERROR, records, first


def _addresses(name: str, entry: Name, kind: int) -> list[bytes]:
    if not entry.turns:
        return []
    turn = entry.turns[entry.asked % len(entry.turns)]
    if kind == A:  # A and AAAA are asked in pairs: one of them turns the wheel
        entry.asked += 1
    chosen = [ipaddress.ip_address(address) for address in turn]
    version = {A: 4, AAAA: 6}.get(kind)
    return [_record(name, kind, entry.ttl_s, a.packed) for a in chosen if a.version == version]


def reply_to(zone: Zone, data: bytes, *, udp: bool) -> tuple[bytes, float] | None:
    """The answer packet and how long to hold it back; None for silence."""
    question = parse_question(data)
    if question is None or zone.state == "dead":
        return None
    zone.asked[question.name] += 1
    if zone.state == "servfail":
        return packet(question, SERVFAIL, []), 0.0
    rcode, records, entry = resolve(zone, question)
    if entry is not None and entry.silent:
        return None
    if udp and entry is not None and entry.truncate:
        return packet(question, NOERROR, [], truncated=True), 0.0
    return packet(question, rcode, records), entry.delay_s if entry is not None else 0.0


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, zone: Zone) -> None:
        self._zone = zone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.DatagramTransport, transport
        )  # 3.11's own class does not inherit from it

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = reply_to(self._zone, data, udp=True)
        if answer is not None:
            _later(answer[1], lambda: self._transport.sendto(answer[0], addr))


class _Tcp(asyncio.Protocol):
    def __init__(self, zone: Zone) -> None:
        self._zone = zone
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 2:
            (size,) = struct.unpack_from("!H", self._buffer)
            if len(self._buffer) < 2 + size:
                return
            query, self._buffer = self._buffer[2 : 2 + size], self._buffer[2 + size :]
            answer = reply_to(self._zone, query, udp=False)
            if answer is not None:
                framed = struct.pack("!H", len(answer[0])) + answer[0]
                _later(answer[1], lambda framed=framed: self._transport.write(framed))  # type: ignore[misc]


def _later(delay_s: float, act: Callable[[], object]) -> None:
    if delay_s:
        asyncio.get_running_loop().call_later(delay_s, act)
    else:
        act()


class DnsServer:
    """The responder: UDP and TCP on one port of one address."""

    def __init__(self, zone: Zone) -> None:
        self.zone = zone
        self.port = 0

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; with port 0, on any port that is free for both protocols."""
        loop = asyncio.get_running_loop()
        for _ in range(20):
            self._udp, _ = await loop.create_datagram_endpoint(
                lambda: _Udp(self.zone), local_addr=(host, port)
            )
            got = int(self._udp.get_extra_info("sockname")[1])
            try:
                self._tcp = await loop.create_server(lambda: _Tcp(self.zone), host, got)
            except OSError:
                self._udp.close()
                if port:
                    raise
                continue
            self.port = got
            return got
        raise OSError("no port is free for both UDP and TCP")

    def close(self) -> None:
        """Stop listening."""
        self._udp.close()
        self._tcp.close()
