"""The header block of an answer, as sloppy as servers send it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.formats.head import FIELDS_MAX, LINK_TARGETS_MAX, Head, HeaderLink


def head(*lines: str) -> Head:
    return Head("\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode("utf-8"))


def test_names_have_no_case_and_order_is_kept() -> None:
    block = head("X-Robots-Tag: noindex", "Server: x", "x-robots-tag:  nofollow ")
    assert block.every("x-robots-tag") == ["noindex", "nofollow"]
    assert block.first("server") == "x"
    assert block.first("absent") == ""


def test_folded_lines_and_bare_line_feeds_are_read() -> None:
    block = Head(b"HTTP/1.1 200 OK\nX-Robots-Tag: noindex,\n  nofollow\nnonsense\nServer: y\n\n")
    assert block.first("x-robots-tag") == "noindex, nofollow"
    assert block.first("server") == "y"


def test_list_members_of_all_fields_join_in_order() -> None:
    assert head("Content-Encoding: GZIP, ", "Content-Encoding: br").listed("content-encoding") == [
        "gzip",
        "br",
    ]


def test_fields_beyond_the_bound_are_left_out() -> None:
    assert len(head(*["A: b"] * (FIELDS_MAX + 100)).fields) == FIELDS_MAX


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/plain", "/plain"),
        ("/gr\u00fc\u00dfe", "/gr\u00fc\u00dfe"),
        (" /padded ", "/padded"),
        ("", ""),
    ],
)
def test_location_is_read_as_utf8(value: str, expected: str) -> None:
    assert head(f"Location: {value}").location() == expected


def test_a_location_that_is_not_utf8_is_read_as_latin1() -> None:
    assert Head(b"HTTP/1.1 302 F\r\nLocation: /caf\xe9\r\n\r\n").location() == "/caf\u00e9"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("<https://a.example/>; rel=canonical", [HeaderLink("https://a.example/", ("canonical",), "")]),
        ('</x,y>; rel="Canonical next"', [HeaderLink("/x,y", ("canonical", "next"), "")]),
        (
            '</f>; rel="alternate"; type="application/rss+xml"; title="a, <b>", </g>; rel=next',
            [HeaderLink("/f", ("alternate",), "application/rss+xml"), HeaderLink("/g", ("next",), "")],
        ),
        ("</x>; rel=canonical; rel=next", [HeaderLink("/x", ("canonical",), "")]),
        ("</x>; rel=canonical; anchor=/other", []),
        ("/x; rel=canonical", []),
        ("</x>", [HeaderLink("/x", (), "")]),
    ],
)
def test_link_headers(value: str, expected: list[HeaderLink]) -> None:
    assert head(f"Link: {value}").links() == expected


def test_link_targets_are_bounded() -> None:
    assert len(head("Link: " + ", ".join(["</x>; rel=next"] * 1000)).links()) == LINK_TARGETS_MAX


@pytest.mark.parametrize(
    "value", ["<" * 60_000, "<a>" + " " * 60_000, "<a>" + ";x" * 30_000, '<a>;x="' * 9_000]
)
def test_a_hostile_header_is_read_in_one_pass(value: str) -> None:
    started_s = time.process_time()
    head(f"Link: {value}").links()
    assert time.process_time() - started_s < 1.0


@given(st.binary(max_size=500))
def test_any_bytes_are_a_head(block: bytes) -> None:
    parsed = Head(b"HTTP/1.1 200 OK\r\nlink: <" + block)
    parsed.links()
    parsed.location()
