"""What kind of content a body is: by its Content-Type where that can be believed, by its first bytes where not.

Follows the MIME Sniffing Standard where it matters to a crawler: an HTML type is never second-guessed, an absent or
meaningless type is sniffed, text that holds binary data is binary.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SNIFFED_BYTES = 1445
MEDIA_TYPE_CHARS_MAX = 127

HTML = "html"
TEXT = "text"
XML = "xml"
FEED = "feed"
SITEMAP = "sitemap"
BINARY = "binary"

# RFC 9110 8.3.1; a type that does not look like this says nothing.
_MEDIA_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+/[!#$%&'*+.^_`|~0-9a-z-]+\Z")
_CHARSET = re.compile(r";\s*charset\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s;\"]+))", re.IGNORECASE)
_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml", "application/vnd.wap.xhtml+xml"})
_XML_TYPES = frozenset({"text/xml", "application/xml"})
_FEED_TYPES = frozenset(
    {"application/rss+xml", "application/atom+xml", "application/rdf+xml", "application/x-rss+xml"}
)
# Types that servers send for anything.
_MEANINGLESS = frozenset(
    {"", "unknown/unknown", "application/unknown", "*/*", "application/octet-stream", "binary/octet-stream"}
)
# Texts that are not prose: nothing to read or follow in them.
_NOT_PROSE = frozenset(
    {"text/css", "text/javascript", "text/ecmascript", "text/csv", "text/calendar", "text/vcard"}
)

# MIME Sniffing Standard 7.1: tags that make unlabelled bytes HTML; each must be followed by a space or ">".
_HTML_START = re.compile(
    rb"[\t\n\f\r ]*<(?:!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body|br|p|!--)(?:[ >\t\n\f\r]|(?<=--))",
    re.IGNORECASE,
)
_XML_START = re.compile(rb"[\t\n\f\r ]*<\?xml")
# MIME Sniffing Standard 3: bytes that no text has.
_BINARY_BYTES = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_BOM = re.compile(rb"\xef\xbb\xbf|\xfe\xff|\xff\xfe")
_ROOT = re.compile(rb"<(?:[A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)")
_XML_PROLOG = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*>)*", re.DOTALL | re.IGNORECASE
)
_ROOT_KINDS = {
    b"rss": FEED,
    b"feed": FEED,
    b"RDF": FEED,
    b"urlset": SITEMAP,
    b"sitemapindex": SITEMAP,
    b"html": HTML,
}


class ContentType(NamedTuple):
    """A Content-Type header: lower-case media type ("" if none that can be read), charset label or None."""

    media_type: str
    charset: str | None


def content_type(values: list[str]) -> ContentType:
    """The last readable of all Content-Type headers (Fetch Standard, extract a MIME type)."""
    found = ContentType("", None)
    for value in values:
        media_type = value.partition(";")[0].strip().lower()
        if not _MEDIA_TYPE.match(media_type) or len(media_type) > MEDIA_TYPE_CHARS_MAX:
            continue
        match = _CHARSET.search(value)
        label = (match[1] or match[2] or match[3]) if match else None
        found = ContentType(media_type, label or None)
    return found


def content_kind(media_type: str, body: bytes) -> str:
    """html, text, xml, feed, sitemap or binary."""
    if media_type in _HTML_TYPES:
        return HTML
    if media_type in _XML_TYPES or media_type.endswith("+xml"):
        return _xml_kind(body, FEED if media_type in _FEED_TYPES else XML, media_type)
    if media_type in _MEANINGLESS:
        return _sniffed(body)
    if media_type.startswith("text/") and media_type not in _NOT_PROSE:
        return BINARY if _looks_binary(body) else TEXT
    return BINARY


def _sniffed(body: bytes) -> str:
    start = _BOM.sub(b"", body[:SNIFFED_BYTES], count=1)
    if _HTML_START.match(start):
        return HTML
    if _XML_START.match(start):
        return _xml_kind(body, XML, "")
    if start.startswith(b"%PDF-") or _looks_binary(body):
        return BINARY
    return TEXT


def _xml_kind(body: bytes, otherwise: str, media_type: str) -> str:
    if media_type == "image/svg+xml":
        return BINARY
    start = body[:SNIFFED_BYTES]
    prolog = _XML_PROLOG.match(start)
    root = _ROOT.match(start, prolog.end() if prolog else 0)
    return _ROOT_KINDS.get(root[1], otherwise) if root else otherwise


def _looks_binary(body: bytes) -> bool:
    start = body[:SNIFFED_BYTES]
    return _BOM.match(start) is None and _BINARY_BYTES.search(start) is not None
