"""Pages made to hurt a parser. Sizes are chosen to be past what a careless parser survives and cheap to serve."""

from __future__ import annotations

import functools
from collections.abc import Callable

START = b"<!doctype html><html><head><title>hostile</title></head><body>"
END = b"</body></html>"


def _deep() -> bytes:
    return b"<div>" * 200_000


def _deep_inline() -> bytes:
    return b"<b>" * 100_000


def _deep_svg() -> bytes:
    return b"<svg>" + b"<g>" * 100_000


def _links() -> bytes:
    return b"".join(b'<a href="/l/%d">x</a>' % number for number in range(200_000))


def _attributes() -> bytes:
    return b"<p " + b" ".join(b'a%d="v"' % number for number in range(100_000)) + b">x</p>"


def _formatting() -> bytes:
    return b"".join(b"<p><font size=%d>" % number for number in range(5_000))


def _options() -> bytes:
    return b"<select>" + b"<option>x" * 200_000


def _table() -> bytes:
    return b"<table><tr>" + b"<td>1" * 500_000 + b"</table>"


def _nested_tables() -> bytes:
    return b"<table><tr><td>" * 20_000


def _foster() -> bytes:
    return b"<table>" + b"<a href=/f>x" * 100_000


def _big_attribute() -> bytes:
    return b'<a href="/x" title="' + b"v" * 8_000_000 + b'">x</a>'


def _big_text() -> bytes:
    return b"word " * 1_600_000


def _nuls() -> bytes:
    return b"\0" * 1_000_000 + b'<a href="/after">x</a>'


def _brackets() -> bytes:
    return b"<" * 1_000_000


def _comments() -> bytes:
    return b"<!--" * 500_000


def _end_tags() -> bytes:
    return b"</p>" * 1_000_000


def _entities() -> bytes:
    return b"&amp;&notit;&CounterClockwiseContourIntegra;" * 50_000


def _long_href() -> bytes:
    return b'<a href="/' + b"u" * 1_000_000 + b'">x</a>'


def _broken_charset() -> bytes:
    return b"\xff\xfe\xc3\x28\xed\xa0\x80\xf8\x88\x80\x80\x80" * 20_000


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "deep": (_deep, "200,000 open div elements"),
    "deep-inline": (_deep_inline, "100,000 open b elements"),
    "deep-svg": (_deep_svg, "100,000 nested svg groups"),
    "links": (_links, "200,000 distinct links on one page"),
    "attributes": (_attributes, "100,000 attributes on one element"),
    "formatting": (
        _formatting,
        "5,000 font elements that the standard makes a parser reopen in every paragraph",
    ),
    "options": (_options, "200,000 open option elements"),
    "table": (_table, "one row of 500,000 cells"),
    "nested-tables": (_nested_tables, "20,000 tables inside each other"),
    "foster": (_foster, "100,000 links that a table pushes out in front of itself"),
    "big-attribute": (_big_attribute, "an attribute of 8 MB"),
    "big-text": (_big_text, "8 MB of text in one node"),
    "nuls": (_nuls, "a million NUL bytes"),
    "brackets": (_brackets, "a million less-than signs"),
    "comments": (_comments, "half a million comment openings"),
    "end-tags": (_end_tags, "a million end tags without a start"),
    "entities": (_entities, "50,000 rows of good, odd and unfinished character references"),
    "long-href": (_long_href, "a link of a million characters"),
    "broken-charset": (_broken_charset, "bytes that are no UTF-8, declared as UTF-8"),
}


@functools.lru_cache(maxsize=4)
def hostile_page(name: str) -> bytes:
    """The page of one case."""
    return START + HOSTILE[name][0]() + END
