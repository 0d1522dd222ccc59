"""Destinations: the built-in tables against IANA's files, every way to write a private address, and the allow-list."""

from __future__ import annotations

import csv
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.decision import Reason
from amble.domain.destination import (
    IPV4_SPECIAL,
    IPV6_SPECIAL,
    REFUSED_PORTS,
    Judgement,
    Judgements,
    judge,
    judge_all,
)
from amble.domain.url import Canonicalizer, host_of

DATA = Path(__file__).parent.parent / "data" / "iana"


def _published(name: str) -> list[tuple[str, str, bool]]:
    """Rows of a registry file; footnote marks are dropped, blank and N/A count as not reachable."""
    rows = []
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            reachable = row["Globally Reachable"].partition(" ")[0] == "True"
            for block in row["Address Block"].split(","):
                rows.append((block.strip().partition(" ")[0], row["Name"], reachable))
    return rows


def test_the_ipv4_table_is_the_registry() -> None:
    assert list(IPV4_SPECIAL) == _published("iana-ipv4-special-registry-1.csv")


def test_the_ipv6_table_is_the_registry() -> None:
    assert list(IPV6_SPECIAL) == _published("iana-ipv6-special-registry-1.csv")


def _oracle(address: str, table: tuple[tuple[str, str, bool], ...]) -> bool | None:
    """Reachability by the most specific row, computed the slow way; None where no row speaks of it."""
    hits = [
        (ip_network(block).prefixlen, ok)
        for block, _, ok in table
        if ip_address(address) in ip_network(block)
    ]
    return max(hits)[1] if hits else None


@given(number=st.integers(0, 2**32 - 1))
def test_any_ipv4_address_is_judged_by_its_most_specific_row(number: int) -> None:
    address = str(ip_address(number))
    expected = _oracle(address, IPV4_SPECIAL)
    multicast = 0xE0000000 <= number <= 0xEFFFFFFF
    assert judge(address).allowed is (not multicast if expected is None else expected)


@pytest.mark.parametrize(("block", "name", "reachable"), IPV4_SPECIAL + IPV6_SPECIAL)
def test_the_edges_of_every_row_are_judged_by_their_most_specific_row(
    block: str, name: str, reachable: bool
) -> None:
    network = ip_network(block)
    table = IPV4_SPECIAL if network.version == 4 else IPV6_SPECIAL
    for address in (str(network[0]), str(network[-1])):
        if "64:ff9b" not in block:  # judged by the address inside, see below
            assert judge(address).allowed is _oracle(address, table), address


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        ("8.8.8.8", ""),
        ("1.1.1.1", ""),
        ("223.255.255.255", ""),
        ("2606:4700::1111", ""),
        ("2a00:1450::1", ""),
        ("192.0.0.9", ""),
        ("2001:1::1", ""),
        ("127.0.0.1", "127.0.0.1 is in 127.0.0.0/8 (Loopback)"),
        ("10.1.2.3", "10.1.2.3 is in 10.0.0.0/8 (Private-Use)"),
        ("169.254.169.254", "169.254.169.254 is in 169.254.0.0/16 (Link Local)"),
        ("100.64.0.1", "100.64.0.1 is in 100.64.0.0/10 (Shared Address Space)"),
        ("192.0.0.11", "192.0.0.11 is in 192.0.0.0/24 (IETF Protocol Assignments)"),
        ("192.88.99.1", "192.88.99.1 is in 192.88.99.0/24 (Deprecated (6to4 Relay Anycast))"),
        ("224.0.0.1", "224.0.0.1 is in 224.0.0.0/4 (Multicast)"),
        ("255.255.255.255", "255.255.255.255 is in 255.255.255.255/32 (Limited Broadcast)"),
        ("::", ":: is in ::/128 (Unspecified Address)"),
        ("::1", "::1 is in ::1/128 (Loopback Address)"),
        ("fe80::1", "fe80::1 is in fe80::/10 (Link-Local Unicast)"),
        ("fd00::1", "fd00::1 is in fc00::/7 (Unique-Local)"),
        ("fec0::1", "fec0::1 is in fec0::/10 (Deprecated (Site-Local Unicast))"),
        ("ff02::1", "ff02::1 is in ff00::/8 (Multicast)"),
        ("2001:db8::1", "2001:db8::1 is in 2001:db8::/32 (Documentation)"),
        ("4000::1", "4000::1 is in ::/0 (Not allocated)"),
        ("fe80::1%eth0", "fe80::1%eth0 has a zone id"),
        ("2606:4700::1111%1", "2606:4700::1111%1 has a zone id"),
        ("localhost", "'localhost' is not an address"),
        ("", "'' is not an address"),
        ("127.1", "'127.1' is not an address"),
        ("010.0.0.1", "'010.0.0.1' is not an address"),
        ("８.8.8.8", "'８.8.8.8' is not an address"),
    ],
)
def test_a_refusal_names_the_row(address: str, refused: str) -> None:
    assert judge(address) == Judgement(address, refused)


# --- an IPv4 address inside an IPv6 one -------------------------------------------------------------------------


def _embedded(form: str, inner: str) -> str:
    number = int(ip_address(inner))
    bits = {
        "mapped": 0xFFFF << 32 | number,
        "compatible": number,
        "nat64": 0x0064_FF9B << 96 | number,
        "nat64 local /96": 0x0064_FF9B_0001 << 80 | number,
        "nat64 local /48": 0x0064_FF9B_0001 << 80 | (number >> 16) << 64 | (number & 0xFFFF) << 40,
        "6to4": 0x2002 << 112 | number << 80 | 1,
        "teredo server": 0x2001_0000 << 96 | number << 64 | (0x0808_0808 ^ 0xFFFF_FFFF),
        "teredo client": 0x2001_0000 << 96 | 0x0808_0808 << 64 | (number ^ 0xFFFF_FFFF),
        "isatap": 0x2A00_1450 << 96 | 0x0000_5EFE << 32 | number,
        "isatap universal": 0x2A00_1450 << 96 | 0x0200_5EFE << 32 | number,
    }[form]
    return str(IPv6Address(bits))


FORMS = [
    "mapped", "compatible", "nat64", "nat64 local /96", "nat64 local /48", "6to4", "teredo server", "teredo client",
    "isatap", "isatap universal",
]  # fmt: skip
PRIVATE = ["127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1"]
EVERYTHING = [ip_network("::/0")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("inner", PRIVATE)
def test_a_private_address_inside_is_refused_even_where_all_of_ipv6_is_open(form: str, inner: str) -> None:
    address = _embedded(form, inner)
    assert not judge(address).allowed
    refused = judge(address, EVERYTHING).refused
    assert "carries an IPv4 address" in refused
    assert inner in refused


@pytest.mark.parametrize("form", FORMS)
def test_a_public_address_inside_leaves_the_outer_one_to_its_own_row(form: str) -> None:
    address = _embedded(form, "8.8.8.8")
    assert judge(address).allowed is (form in {"nat64", "isatap", "isatap universal"})
    assert judge(address, EVERYTHING).allowed


# --- whole names -----------------------------------------------------------------------------------------------


def test_every_address_of_a_public_name_may_be_used_in_order() -> None:
    assert judge_all(["8.8.8.8", "2606:4700:0::1111", "1.1.1.1"]) == Judgements(
        ("8.8.8.8", "2606:4700::1111", "1.1.1.1"), ()
    )


def test_one_refused_address_refuses_the_whole_name() -> None:
    judged = judge_all(["8.8.8.8", "127.0.0.1", "::1"])
    assert judged.allowed == ()
    assert judged.refusals == (
        "127.0.0.1 is in 127.0.0.0/8 (Loopback)",
        "::1 is in ::1/128 (Loopback Address)",
    )


def test_a_name_without_addresses_is_refused() -> None:
    assert judge_all([]) == Judgements((), ("the name has no address",))


def test_the_allow_list_opens_exactly_the_named_ranges() -> None:
    opened = [ip_network("127.0.0.0/16"), ip_network("fd00:1::/32")]
    assert judge("127.0.200.1", opened).allowed
    assert judge("fd00:1::1", opened).allowed
    assert not judge("127.1.0.1", opened).allowed
    assert not judge("fd00:2::1", opened).allowed
    assert not judge("::1", opened).allowed
    assert judge_all(["127.0.0.1", "8.8.8.8"], opened).allowed == ("127.0.0.1", "8.8.8.8")
    assert judge_all(["127.0.0.1", "10.0.0.1"], opened).allowed == ()


def test_an_opened_ipv4_range_does_not_open_its_mapped_spelling() -> None:
    assert not judge("::ffff:127.0.0.1", [ip_network("127.0.0.0/8")]).allowed


# --- from a URL to a judgement ---------------------------------------------------------------------------------

# Each is a way to write a host that leads inside. None may end as an allowed destination.
SPELLINGS = [
    # loopback, IPv4, by number base and length
    "127.0.0.1", "127.1", "127.0.1", "127.0.0.1.", "127.1.", "2130706433", "2130706433.", "0x7f000001", "0X7F000001",
    "017700000001", "0177.0.0.1", "0177.1", "0x7f.0.0.1", "0x7f.1", "0x7f.0x0.0x0.0x1", "0177.0x0.0.01",
    "127.000.000.001", "127.0x1", "127.16777214", "127.255.255.254", "00000000177.1", "0x0000007f.1",
    # the same in other characters
    "１２７.0.0.1", "①②⑦.0.0.1", "127。0。0。1", "127．0．0．1", "127｡0｡0｡1", "%31%32%37.0.0.1", "127%2e0%2e0%2e1",
    "１２７。０。０。１", "0ⅹ7f.1", "1\u00ad27.0.0.1", "127.0.0.1%2e", "𝟏𝟐𝟕.0.0.1", "127.0.0.①",
    # unspecified and broadcast
    "0", "0.0.0.0", "0x0", "00", "0.", "255.255.255.255", "4294967295", "0xffffffff", "037777777777",
    # private, link local, metadata, shared
    "10.0.0.1", "0xa.1", "012.1", "167772161", "172.16.0.1", "0xac100001", "172.1048577", "192.168.0.1", "192.168.1",
    "0xc0a80001", "3232235521", "0300.0250.0.1", "169.254.169.254", "0xa9fea9fe", "2852039166", "169.254.43518",
    "0251.0376.0251.0376", "100.64.0.1", "224.0.0.1", "240.0.0.1", "198.18.0.1", "192.0.2.1",
    # IPv6
    "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[0000:0000:0000:0000:0000:0000:0000:0001]", "[::0.0.0.1]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::FFFF:7F00:0001]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2002:a00:1::1]",
    "[2001:0:808:808::80ff:fffe]", "[fe80::1]", "[fe80::5efe:127.0.0.1]", "[2a00::5efe:10.0.0.1]", "[fd00::1]",
    "[fc00::1]", "[fec0::1]", "[ff02::1]", "[::ffff:0:127.0.0.1]", "[::ffff:10.0.0.1]", "[::ffff:a9fe:a9fe]",
    # what no parser should take for an address, and none does
    "127.0.0.1.1", "256.0.0.1", "127.0.0.256", "0x7f.0.0.0x100", "127..0.1", "[::1%25lo]", "[::1%lo]", "[127.0.0.1]",
    "[::1", "::1", "0x7g.1", "09.1", "127.0.0.1:99999",
]  # fmt: skip
CANON = Canonicalizer()


@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
def test_no_spelling_of_an_inside_host_becomes_an_allowed_destination(spelling: str) -> None:
    url = CANON.canon(f"http://{spelling}/", None)
    if isinstance(url, Reason):
        assert url in {Reason.NOT_A_URL, Reason.HAS_USERINFO}
    else:
        # The parser has made a literal of it: no name is left that a resolver would be asked for.
        assert not judge(host_of(url)).allowed
        ip_address(host_of(url))


def test_every_spelling_is_listed_once() -> None:
    assert len(set(SPELLINGS)) == len(SPELLINGS) > 60


@given(number=st.integers(0, 2**32 - 1), data=st.data())
def test_any_spelling_of_an_ipv4_address_is_judged_as_that_address(number: int, data: st.DataObject) -> None:
    octets = number.to_bytes(4, "big")
    keep = data.draw(st.integers(0, 3))
    parts = [*octets[:keep], int.from_bytes(octets[keep:], "big")]
    spell = st.sampled_from(["{:d}", "0x{:x}", "0{:o}", "0X{:X}"])
    text = ".".join(data.draw(spell).format(part) for part in parts)
    url = CANON.canon(f"http://{text}/", None)
    assert url == f"http://{ip_address(number)}/"


def test_refused_ports_hold_no_port_of_the_web() -> None:
    assert not {80, 443, 8000, 8080, 8443} & REFUSED_PORTS
    assert {22, 25, 53, 110, 143, 6667} <= REFUSED_PORTS
