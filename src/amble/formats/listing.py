"""Lists of URLs: sitemaps (sitemaps.org 0.9, XML and text), RSS 0.9x to 2.0, Atom (RFC 4287). Links out, no text.

A page that is listed is found like one that is linked to (Edge.ANCHOR); a sitemap that is listed is Edge.SITEMAP.
"""

from __future__ import annotations

from typing import NamedTuple

from amble.domain.attempt import Edge
from amble.formats.charset import decode_text
from amble.formats.extraction import LISTED_URLS_MAX
from amble.formats.links import RawLinks
from amble.formats.xml_stream import Stop, XmlStream

# sitemaps.org: at most 50,000 URLs (LISTED_URLS_MAX) and 50 MB in one file.
BYTES_MAX = 50 * 1024 * 1024

_SITEMAP_TEXTS = frozenset({"loc"})
_FEED_TEXTS = frozenset({"link", "guid", "title"})
_FEED_ROOTS = frozenset({"channel", "feed"})
_ABSOLUTE = ("http://", "https://")
_ITEMS = frozenset({"item", "entry"})


class Listing(NamedTuple):
    """Hrefs in order, the title of a feed, notes on what could not be read."""

    links: RawLinks
    title: str = ""
    notes: tuple[str, ...] = ()


def read_sitemap(body: bytes) -> Listing:
    """A <urlset> or a <sitemapindex>. Alternates of a page in other languages are links too."""
    links = RawLinks(LISTED_URLS_MAX)

    def on_end(path: tuple[str, ...], attributes: dict[str, str], text: str) -> None:
        inside = path[-2] if len(path) > 1 else ""
        if path[-1] == "loc" and text:
            # Images and videos have a <loc> as well, one level further down.
            if inside == "url":
                links.add(text, Edge.ANCHOR)
            elif inside == "sitemap":
                links.add(text, Edge.SITEMAP)
        elif path[-1] == "link" and inside == "url" and attributes.get("href"):
            links.add(attributes["href"].strip(), Edge.ALTERNATE)
        if links.truncated:
            raise Stop

    notes = XmlStream(on_end, _SITEMAP_TEXTS).read(body)
    return Listing(links, "", tuple(notes))


def read_sitemap_text(body: bytes, charset: str | None) -> Listing:
    """One absolute URL per line; other lines are skipped."""
    links = RawLinks(LISTED_URLS_MAX)
    for line in decode_text(body, charset)[0].splitlines():
        url = line.strip()
        if url.startswith(_ABSOLUTE):
            links.add(url, Edge.ANCHOR)
            if links.truncated:
                break
    return Listing(links)


def read_feed(body: bytes) -> Listing:
    """RSS in all its versions, and Atom. An item without link has its permanent guid."""
    links = RawLinks(LISTED_URLS_MAX)
    title = ""
    item_linked = False

    def on_end(path: tuple[str, ...], attributes: dict[str, str], text: str) -> None:
        nonlocal title, item_linked
        name, inside = path[-1], path[-2] if len(path) > 1 else ""
        if name in _ITEMS:
            item_linked = False
        elif name == "title" and inside in _FEED_ROOTS and not title:
            title = text
        elif name == "link" and (inside in _ITEMS or inside in _FEED_ROOTS):
            item_linked |= _add_link(links, attributes, text) and inside in _ITEMS
        elif name == "guid" and inside == "item" and not item_linked and _is_permanent(attributes, text):
            links.add(text, Edge.ANCHOR)
        if links.truncated:
            raise Stop

    notes = XmlStream(on_end, _FEED_TEXTS).read(body)
    return Listing(links, title, tuple(notes))


def _is_permanent(attributes: dict[str, str], guid: str) -> bool:
    return guid.startswith(_ABSOLUTE) and attributes.get("isPermaLink", "true") == "true"


def _add_link(links: RawLinks, attributes: dict[str, str], text: str) -> bool:
    """One <link> of RSS (text) or Atom (attributes; RFC 5005 pages a feed by rel=next). Whether it leads to a page."""
    relation = attributes.get("rel", "alternate")
    href = (attributes.get("href") or text).strip()
    if not href:
        return False
    if relation in ("alternate", "via", "related"):
        links.add(href, Edge.ANCHOR)
        return True
    if relation in ("next", "next-archive", "prev-archive"):
        links.add(href, Edge.FEED)
    return False
