"""Which addresses a crawler may connect to: globally reachable unicast, as IANA's registries define it, and no other.

The tables are IANA's special-purpose address registries; the most specific row wins, and a row whose "globally
reachable" is blank or N/A counts as no. What the registries leave out is decided here: multicast is refused, and so is
IPv6 outside 2000::/3, the only space that is given out. An address that carries an IPv4 address inside is judged by
that one too. An operator may open named ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from msgspec import Struct

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# (block, name, globally reachable), in the registries' order (state of 2026-10).
IPV4_SPECIAL: tuple[tuple[str, str, bool], ...] = (
    ("0.0.0.0/8", '"This network"', False),
    ("0.0.0.0/32", '"This host on this network"', False),
    ("10.0.0.0/8", "Private-Use", False),
    ("100.64.0.0/10", "Shared Address Space", False),
    ("127.0.0.0/8", "Loopback", False),
    ("169.254.0.0/16", "Link Local", False),
    ("172.16.0.0/12", "Private-Use", False),
    ("192.0.0.0/24", "IETF Protocol Assignments", False),
    ("192.0.0.0/29", "IPv4 Service Continuity Prefix", False),
    ("192.0.0.8/32", "IPv4 dummy address", False),
    ("192.0.0.9/32", "Port Control Protocol Anycast", True),
    ("192.0.0.10/32", "Traversal Using Relays around NAT Anycast", True),
    ("192.0.0.170/32", "NAT64/DNS64 Discovery", False),
    ("192.0.0.171/32", "NAT64/DNS64 Discovery", False),
    ("192.0.2.0/24", "Documentation (TEST-NET-1)", False),
    ("192.31.196.0/24", "AS112-v4", True),
    ("192.52.193.0/24", "AMT", True),
    ("192.88.99.0/24", "Deprecated (6to4 Relay Anycast)", False),
    ("192.88.99.2/32", "6a44-relay anycast address", False),
    ("192.168.0.0/16", "Private-Use", False),
    ("192.175.48.0/24", "Direct Delegation AS112 Service", True),
    ("198.18.0.0/15", "Benchmarking", False),
    ("198.51.100.0/24", "Documentation (TEST-NET-2)", False),
    ("203.0.113.0/24", "Documentation (TEST-NET-3)", False),
    ("240.0.0.0/4", "Reserved", False),
    ("255.255.255.255/32", "Limited Broadcast", False),
)
IPV6_SPECIAL: tuple[tuple[str, str, bool], ...] = (
    ("::1/128", "Loopback Address", False),
    ("::/128", "Unspecified Address", False),
    ("::ffff:0:0/96", "IPv4-mapped Address", False),
    ("64:ff9b::/96", "IPv4-IPv6 Translat.", True),
    ("64:ff9b:1::/48", "IPv4-IPv6 Translat.", False),
    ("100::/64", "Discard-Only Address Block", False),
    ("100:0:0:1::/64", "Dummy IPv6 Prefix", False),
    ("2001::/23", "IETF Protocol Assignments", False),
    ("2001::/32", "TEREDO", False),
    ("2001:1::1/128", "Port Control Protocol Anycast", True),
    ("2001:1::2/128", "Traversal Using Relays around NAT Anycast", True),
    ("2001:1::3/128", "DNS-SD Service Registration Protocol Anycast", True),
    ("2001:2::/48", "Benchmarking", False),
    ("2001:3::/32", "AMT", True),
    ("2001:4:112::/48", "AS112-v6", True),
    ("2001:10::/28", "Deprecated (previously ORCHID)", False),
    ("2001:20::/28", "ORCHIDv2", True),
    ("2001:30::/28", "Drone Remote ID Protocol Entity Tags (DETs) Prefix", True),
    ("2001:db8::/32", "Documentation", False),
    ("2002::/16", "6to4", False),
    ("2620:4f:8000::/48", "Direct Delegation AS112 Service", True),
    ("3fff::/20", "Documentation", False),
    ("5f00::/16", "Segment Routing (SRv6) SIDs", False),
    ("fc00::/7", "Unique-Local", False),
    ("fe80::/10", "Link-Local Unicast", False),
)
# RFC 5771 and RFC 4291 2.7; RFC 3879 and RFC 4291 2.5.5.1 name what has been withdrawn; RFC 4291 2.4 the rest.
_IPV4_MORE = (("224.0.0.0/4", "Multicast", False),)
_IPV6_MORE = (
    ("ff00::/8", "Multicast", False),
    ("fec0::/10", "Deprecated (Site-Local Unicast)", False),
    ("::/96", "Deprecated (IPv4-compatible Address)", False),
    ("2000::/3", "Global Unicast", True),
    ("::/0", "Not allocated", False),
)

_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_MAPPED = IPv6Network("::ffff:0:0/96")
_COMPATIBLE = IPv6Network("::/96")
_6TO4 = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
# RFC 5214 6.1: the interface identifier of ISATAP, with the universal bit unset or set.
_ISATAP_MARKS = frozenset({0x0000_5EFE, 0x0200_5EFE})
_LOW32 = 0xFFFF_FFFF

_Row = tuple[int, int, str, str, bool]  # first, last, block, name, globally reachable


def _rows(table: Sequence[tuple[str, str, bool]], kind: type[IPv4Network] | type[IPv6Network]) -> list[_Row]:
    """Rows with the narrowest block first, so that the first hit is the most specific."""
    networks = sorted(
        ((kind(block), name, reachable) for block, name, reachable in table),
        key=lambda row: -row[0].prefixlen,
    )
    return [
        (int(network.network_address), int(network.broadcast_address), str(network), name, reachable)
        for network, name, reachable in networks
    ]


_IPV4_ROWS = _rows((*IPV4_SPECIAL, *_IPV4_MORE), IPv4Network)
_IPV6_ROWS = _rows((*IPV6_SPECIAL, *_IPV6_MORE), IPv6Network)


class Judgement(Struct, frozen=True):
    """The answer for one address: `refused` is "" when a connection to it is allowed, else why not, for people."""

    address: str
    refused: str = ""

    @property
    def allowed(self) -> bool:
        """Whether a connection may be made."""
        return not self.refused


class Judgements(Struct, frozen=True):
    """The answer for a name: the addresses that may be used, in the resolver's order, and what was refused."""

    allowed: tuple[str, ...]
    refusals: tuple[str, ...]


def judge(address: str, allow: Sequence[Network] = ()) -> Judgement:
    """Whether a connection to `address` (text as inet_ntop writes it) is allowed.

    `allow`: ranges that the operator has opened. An IPv4 address embedded in an IPv6 one must pass by itself, even
    inside an opened range. A zone id is refused: it names a link of this machine.
    """
    return _judge(address, tuple(allow))


def judge_all(addresses: Sequence[str], allow: Sequence[Network] = ()) -> Judgements:
    """Every address of a name judged. One refused address refuses the name: `allowed` is then empty.

    A public name that also points inside is either rebinding or a mistake of its owner; picking the public address
    would make the attack a matter of luck. No address at all is refused too.
    """
    opened = tuple(allow)
    judged = [_judge(address, opened) for address in addresses]
    refusals = tuple(item.refused for item in judged if item.refused)
    if not judged:
        refusals = ("the name has no address",)
    return Judgements(() if refusals else tuple(item.address for item in judged), refusals)


@lru_cache(maxsize=16_384)
def _judge(text: str, allow: tuple[Network, ...]) -> Judgement:
    if "%" in text:
        return Judgement(text, f"{text} has a zone id")
    try:
        address = ip_address(text)
    except ValueError:
        return Judgement(text, f"{text!r} is not an address")
    refused = _refusal(address, allow)
    for form, inner in _embedded(address):
        refused = refused or _embedded_refusal(address, form, inner, allow)
    return Judgement(str(address), refused)


def _refusal(address: Address, allow: tuple[Network, ...]) -> str:
    if any(network.version == address.version and address in network for network in allow):
        return ""
    number = int(address)
    for first, last, block, name, reachable in _IPV4_ROWS if address.version == 4 else _IPV6_ROWS:
        if first <= number <= last:
            return "" if reachable else f"{address} is in {block} ({name})"
    # Every IPv6 address is in ::/0; what is left is IPv4 that no row speaks of.
    return ""


def _embedded_refusal(address: Address, form: str, inner: IPv4Address, allow: tuple[Network, ...]) -> str:
    refused = _refusal(inner, allow)
    return f"{address} carries an IPv4 address ({form}): {refused}" if refused else ""


def _embedded(address: Address) -> list[tuple[str, IPv4Address]]:
    """The IPv4 addresses that an IPv6 address may lead to, with the name of the form."""
    if isinstance(address, IPv4Address) or int(address) <= 1:
        return []
    number = int(address)
    low = IPv4Address(number & _LOW32)
    found = [("ISATAP", low)] if (number >> 32) & _LOW32 in _ISATAP_MARKS else []
    if address in _NAT64:
        found.append(("NAT64", low))
    elif address in _NAT64_LOCAL:
        # RFC 6052 2.2: /48 leaves bits 64-71 empty between the halves; a /96 within the /48 uses the low 32 bits.
        # In either layout the other's bits are zero.
        halves = IPv4Address(((number >> 64) & 0xFFFF) << 16 | (number >> 40) & 0xFFFF)
        found += [("NAT64", inner) for inner in (halves, low) if int(inner)]
    elif address in _MAPPED:
        found.append(("IPv4-mapped", low))
    elif address in _COMPATIBLE:
        found.append(("IPv4-compatible", low))
    elif address in _6TO4:
        found.append(("6to4", IPv4Address((number >> 80) & _LOW32)))
    elif address in _TEREDO:
        found += [
            ("Teredo server", IPv4Address((number >> 64) & _LOW32)),
            ("Teredo client", IPv4Address((number & _LOW32) ^ _LOW32)),
        ]
    return found


# --- ports -----------------------------------------------------------------------------------------------------

# Fetch Standard 2.9, "bad ports": services other than HTTP that a request could be mistaken by or abused against.
REFUSED_PORTS = frozenset(
    {
        0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104,
        109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515,
        526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049,
        3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080,
    }
)  # fmt: skip
