"""The kind of a body: by its Content-Type where that says something, by its first bytes where not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.formats.sniff import ContentType, content_kind, content_type


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["text/html"], ContentType("text/html", None)),
        (["Text/HTML ; Charset=UTF-8"], ContentType("text/html", "UTF-8")),
        (['text/html; x=y; charset="windows-1251"'], ContentType("text/html", "windows-1251")),
        (["text/html; charset='koi8-r'"], ContentType("text/html", "koi8-r")),
        (["text/html; charset="], ContentType("text/html", None)),
        (["html"], ContentType("", None)),
        ([], ContentType("", None)),
        (["text/plain", "text/html; charset=a"], ContentType("text/html", "a")),
        (["text/html", "nonsense"], ContentType("text/html", None)),
    ],
)
def test_content_type_headers(values: list[str], expected: ContentType) -> None:
    assert content_type(values) == expected


@pytest.mark.parametrize(
    ("media_type", "body", "kind"),
    [
        ("text/html", b"%PDF-1.4", "html"),
        ("application/xhtml+xml", b"<?xml version='1.0'?><html/>", "html"),
        ("text/plain", b"<html>", "text"),
        ("text/plain", b"GIF89a\x00\x01", "binary"),
        ("text/markdown", b"# title", "text"),
        ("text/css", b"a{}", "binary"),
        ("text/javascript", b"a()", "binary"),
        ("application/pdf", b"<html>", "binary"),
        ("image/png", b"<html>", "binary"),
        ("image/svg+xml", b"<svg/>", "binary"),
        ("application/json", b"{}", "binary"),
        ("", b"  <!DOCTYPE HTML><p>", "html"),
        ("", b"<!--x--><p>", "html"),
        ("", b"\xef\xbb\xbf<html>", "html"),
        ("", b"<htmlx>", "text"),
        ("", b"plain words", "text"),
        ("", b"%PDF-1.7", "binary"),
        ("", b"\x89PNG\r\n\x1a\n", "binary"),
        ("application/octet-stream", b"<html>", "html"),
        ("", b"<?xml version='1.0'?><rss>", "feed"),
        ("text/xml", b"<?xml version='1.0'?>\n<!-- c --><urlset xmlns='x'>", "sitemap"),
        ("application/xml", b"<sitemapindex>", "sitemap"),
        ("application/xml", b"<html xmlns='http://www.w3.org/1999/xhtml'>", "html"),
        ("application/xml", b"<?xml version='1.0'?><!DOCTYPE html><html>", "html"),
        ("application/xml", b"<data/>", "xml"),
        ("application/atom+xml", b"<a:feed>", "feed"),
        ("application/rss+xml", b"", "feed"),
        ("application/rdf+xml", b"<rdf:RDF>", "feed"),
        ("application/mathml+xml", b"<math/>", "xml"),
    ],
)
def test_kinds(media_type: str, body: bytes, kind: str) -> None:
    assert content_kind(media_type, body) == kind


@given(
    st.sampled_from(["", "text/html", "text/plain", "text/xml", "image/png", "a/b"]), st.binary(max_size=200)
)
def test_any_bytes_have_a_kind(media_type: str, body: bytes) -> None:
    assert content_kind(media_type, body) in {"html", "text", "xml", "feed", "sitemap", "binary"}
