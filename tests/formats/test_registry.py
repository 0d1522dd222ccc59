"""Which reader reads what: by status, URL kind, coding and type; and the generation that names it."""

from __future__ import annotations

import gzip

import pytest

from amble.domain.attempt import Edge, UrlKind
from amble.domain.decision import Reason
from amble.domain.manifest import NOINDEX, Link
from amble.domain.policy import ParseLimits
from amble.domain.url import QueryPolicy
from amble.formats.decode import Undecodable
from amble.formats.registry import (
    EXTRACTION_GENERATION,
    EXTRACTION_VERSION,
    ExtractionSettings,
    extraction_generation,
)
from tests.formats.pages import URL, answer, read, registry

ROBOTS_FILE = "User-agent: *\nDisallow: /private\nCrawl-delay: 3\n\nSitemap: https://www.example.com/s.xml\n"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, "<p>x", "html"),
        (203, "<p>x", "html"),
        (200, "", "empty"),
        (204, "<p>x", "empty"),
        (205, "", "empty"),
        (404, "<a href=/x>x", "error"),
        (410, "", "error"),
        (500, "<a href=/x>x", "error"),
        (304, "", "error"),
        (301, "<a href=/x>x", "error"),
    ],
)
def test_kind_by_status(status: int, body: str, kind: str) -> None:
    reading = read(answer(body, status=status))
    assert reading.manifest.content_kind == kind
    assert reading.manifest.url == URL
    if kind != "html":
        assert reading.manifest.links == []
        assert reading.text == b""


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_a_redirect_is_one_link_whatever_its_body(status: int) -> None:
    question = answer("<a href=/no>x</a>", "Location: ../to?b=1&utm_source=y#f", status=status)
    manifest = read(question).manifest
    assert manifest.content_kind == "redirect"
    assert manifest.links == [Link("https://www.example.com/to?b=1", int(Edge.REDIRECT))]


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/gr\u00fcn", "https://www.example.com/gr%C3%BCn"),  # latin-1 on the wire
        ("/gr\u00fcn".encode().decode("latin-1"), "https://www.example.com/gr%C3%BCn"),  # UTF-8 on the wire
        ("//other.example", "https://other.example/"),
    ],
)
def test_a_location_is_read_as_browsers_read_it(location: str, url: str) -> None:
    assert [link.url for link in read(answer("", f"Location: {location}", status=302)).manifest.links] == [
        url
    ]


def test_a_location_that_is_no_url_is_counted() -> None:
    manifest = read(answer("", "Location: ftp://x/", status=302)).manifest
    assert manifest.links == []
    assert manifest.dropped == {Reason.SCHEME_UNSUPPORTED: 1}


def test_robots_rules_go_into_the_manifest() -> None:
    question = answer(
        ROBOTS_FILE, kind=UrlKind.ROBOTS, url="https://www.example.com/robots.txt", content_type="text/html"
    )
    reading = read(question)
    assert reading.manifest.content_kind == "robots"
    assert reading.manifest.robots is not None
    assert reading.manifest.robots.rules == ((False, "/private"),)
    assert reading.manifest.robots.sitemaps == ("https://www.example.com/s.xml",)
    assert reading.text == b""


def test_an_empty_robots_file_has_no_rules_but_is_one() -> None:
    manifest = read(answer("", kind=UrlKind.ROBOTS)).manifest
    assert manifest.robots is not None
    assert manifest.robots.rules == ()


def test_an_error_in_place_of_robots_is_an_error() -> None:
    manifest = read(answer(ROBOTS_FILE, kind=UrlKind.ROBOTS, status=404)).manifest
    assert manifest.content_kind == "error"
    assert manifest.robots is None


def test_plain_text_has_text_and_no_links() -> None:
    text = "Caf\u00e9 at http://example.com/\r\n" + "many words here " * 20
    reading = read(answer(text.encode("latin-1"), content_type="text/plain; charset=latin1"))
    assert reading.manifest.content_kind == "text"
    assert reading.text.decode() == text.replace("\r\n", "\n").strip()
    assert reading.main is reading.text
    assert reading.manifest.links == []
    assert reading.manifest.fingerprint != 0


@pytest.mark.parametrize(
    ("body", "label", "text"),
    [
        ("\ufeff\u65e5\u672c".encode("utf-16-be"), "latin1", "\u65e5\u672c"),
        ("\u65e5\u672c".encode("cp932"), "shift_jis", "\u65e5\u672c"),
        ("\u65e5\u672c".encode(), "nonsense", "\u65e5\u672c"),
        (b"a\x0cb\rc", "utf-8", "a b\nc"),
        ("\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440, \u043a\u0430\u043a \u0434\u0435\u043b\u0430".encode("cp1251"), "",
         "\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440, \u043a\u0430\u043a \u0434\u0435\u043b\u0430"),
    ],
)  # fmt: skip
def test_plain_text_is_decoded_by_mark_label_and_content(body: bytes, label: str, text: str) -> None:
    content_type = "text/markdown" + (f"; charset={label}" if label else "")
    assert read(answer(body, content_type=content_type)).text.decode() == text


@pytest.mark.parametrize("content_type", ["application/pdf", "image/png", "video/mp4", "application/zip"])
def test_what_no_reader_reads_still_has_a_manifest(content_type: str) -> None:
    headers = ("X-Robots-Tag: noindex", "Link: </doc>; rel=canonical")
    manifest = read(answer(b"%PDF-1.4 <a href=/x>", *headers, content_type=content_type)).manifest
    assert manifest.content_kind == "binary"
    assert manifest.media_type == content_type
    assert manifest.directives == NOINDEX
    assert manifest.canonical == "https://www.example.com/doc"
    assert [(link.url, link.edge) for link in manifest.links] == [
        ("https://www.example.com/doc", Edge.CANONICAL)
    ]


def test_content_codings_are_undone_first() -> None:
    reading = read(answer(gzip.compress(b"<title>zipped</title>"), "Content-Encoding: gzip"))
    assert reading.manifest.title == "zipped"
    assert reading.manifest.decoded_bytes == 21


def test_a_body_whose_coding_hides_it_is_undecodable() -> None:
    outcome = registry().read(answer(b"x", "Content-Encoding: aes128gcm"))
    assert isinstance(outcome, Undecodable)


def test_a_bomb_is_read_up_to_the_cap() -> None:
    limits = ParseLimits(decoded_bytes_max=10_000)
    reading = read(answer(gzip.compress(b"<p>hello " * 100_000), "Content-Encoding: gzip"), limits)
    assert reading.manifest.decoded_bytes == 10_000
    assert "decoded_truncated" in reading.manifest.notes


def test_a_cut_body_says_so() -> None:
    reading = read(answer("<p>x")._replace(cut=True))
    assert "body_cut" in reading.manifest.notes


def test_the_generation_names_code_and_settings() -> None:
    assert EXTRACTION_GENERATION >> 16 == EXTRACTION_VERSION
    assert extraction_generation(ExtractionSettings()) == EXTRACTION_GENERATION
    others = {
        extraction_generation(ExtractionSettings(follow_images=True)),
        extraction_generation(ExtractionSettings(agent_tokens=("mybot", "amble"))),
        extraction_generation(ExtractionSettings(query_policy=QueryPolicy(drop=frozenset({"sid"})))),
        EXTRACTION_GENERATION,
    }
    assert len(others) == 4
    assert read(answer("<p>x")).manifest.extraction_generation == EXTRACTION_GENERATION


@pytest.mark.parametrize(
    "label", ["\0", "utf-8\0", "no-such", "é", "x" * 60_000, "..", "idna", "base64", "undefined"]
)
@pytest.mark.parametrize("media_type", ["text/plain", "text/html"])
def test_a_charset_label_that_is_none_leaves_the_text_readable(media_type: str, label: str) -> None:
    reading = read(answer("Some text to read", content_type=f"{media_type}; charset={label}"))
    assert reading.text == b"Some text to read"
