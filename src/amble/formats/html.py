"""HTML in, facts out: one parse, one walk over the elements that matter, text, main text and fingerprint.

The tree and the charset order (BOM, HTTP, <meta>, content) are the WHATWG's, by turbohtml. Links leave resolved
against <base>, canonical and distinct. Content of <template> counts as content; scripts are not run.

A page in UTF-8 whose tags close what they open has only one tree; the C module reads such pages in one pass without
building it, with the same result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import turbohtml
from turbohtml import Document, Element, Namespace, PlainText

from amble.domain.attempt import Edge
from amble.domain.decision import Reason
from amble.domain.manifest import MAIN_IS_TEXT, Link
from amble.domain.policy import ParseLimits
from amble.domain.url import Base, Canonicalizer, base_of
from amble.formats.charset import REPLACEMENT
from amble.formats.directives import meta_bits
from amble.formats.head import HeaderLink
from amble.formats.links import NOTE_TRUNCATED, RawLinks, rel_bits

try:
    from amble._native import collapse, read_plain
except ImportError:
    from amble.formats.space import collapse

    read_plain = None  # type: ignore[assignment]

NOTE_UNDECODABLE = "charset_undecodable"
NOTE_ANCHORS = "anchors_truncated"

# Anchor texts of nested or unclosed elements can repeat a whole page for each link: this many characters per page.
ANCHOR_CHARS_TOTAL_MAX = 2 * 1024 * 1024
# Main text under this share of the visible text has missed the content (measured on articles): visible text serves.
MAIN_SHARE_MIN = 0.25
# BCP 47 tags in use are far shorter.
_LANGUAGE = re.compile(r"[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8}){0,6}\Z")
# HTML Standard, shared declarative refresh steps: a number, a separator, perhaps "url=", perhaps quoted.
_SPACE = r"[\t\n\f\r ]*"
_REFRESH = re.compile(
    rf"{_SPACE}(?:[0-9][0-9.]*|\.[0-9.]*)(?:{_SPACE}[;,]|[\t\n\f\r ]){_SPACE}(?:url{_SPACE}={_SPACE})?"
    r"""(?:"([^"]*)|'([^']*)|(.*))""",
    re.IGNORECASE | re.DOTALL,
)
# A member of an enumeration is looked up by a function call: once, not for each link.
_ANCHOR = int(Edge.ANCHOR)
_FEED_TYPES = frozenset({"application/rss+xml", "application/atom+xml", "application/feed+json"})
# What is looked at, and which attributes of it.
_WALKED: Final = {
    "a": ("href", "rel", None),
    "area": ("href", "rel", None),
    "link": ("href", "rel", "type"),
    "meta": ("name", "http-equiv", "content"),
    "base": ("href", None, None),
    "title": (None, None, None),
    "frame": ("src", None, None),
    "iframe": ("src", None, None),
    "img": ("src", None, None),
    "body": (None, None, None),
}
_UTF8_LABELS = frozenset({"utf-8", "utf8"})
# Where no header names the encoding: a document that names UTF-8 in the first tag that could name any.
_SAYS_UTF8 = re.compile(
    rb"""\s*(?:<!doctype[^>]*>\s*)?(?:<html[^>]*>\s*)?(?:<head>\s*)?<meta\s+(?:charset=["']?utf-8["']?"""
    rb"""|http-equiv="content-type"\s+content="text/html;\s*charset=utf-8")\s*/?>""",
    re.IGNORECASE,
)
# How far the Standard looks for such a tag.
_PRESCANNED_BYTES = 1024
_PLAIN = PlainText(layout="strict", bullet="")


class Page(NamedTuple):
    """What one HTML document says of itself, before limits on text are applied."""

    charset: str
    base: str
    title: str
    language: str
    directives: int
    canonical: str
    links: list[Link]
    dropped: dict[str, int]
    text: bytes
    main: bytes
    notes: list[str]


class _Found(NamedTuple):
    """What a document holds besides its links: encoding, language of its root, texts in UTF-8 and their characters."""

    encoding: str
    language: str | None
    text: bytes
    text_chars: int
    main: bytes
    main_chars: int


class HtmlReader:
    """Reads HTML documents under fixed settings. Holds caches only."""

    def __init__(
        self,
        limits: ParseLimits,
        canonicalizer: Canonicalizer,
        *,
        agent_tokens: tuple[str, ...],
        follow_images: bool,
    ) -> None:
        """`agent_tokens`: names of robots <meta> elements that are for us, lower case, "robots" not among them."""
        self._limits = limits
        self._canonicalizer = canonicalizer
        self._robots_names = frozenset({"robots", *agent_tokens})
        self._follow_images = follow_images
        self._walked = _walked(follow_images=follow_images)

    def read(
        self, body: bytes, url: str, charset: str | None, header_links: list[HeaderLink], language: str
    ) -> Page:
        """All facts of one document at `url`. `charset`: the label of the HTTP header. `language`: of the header."""
        walk = _Walk(self._limits, self._robots_names)
        found = self._find(walk, body, charset)
        walk.take_header_links(header_links)
        base = self._base(url, walk.base_href)
        links, dropped = walk.links.resolve(
            self._canonicalizer, base, None if found.encoding == "UTF-8" else found.encoding
        )
        canonical = self._canonicalizer.canon(walk.canonical, base) if walk.canonical else ""
        main = found.main
        if found.main_chars < MAIN_SHARE_MIN * found.text_chars:
            main = found.text
            walk.notes.append(MAIN_IS_TEXT)
        if found.encoding == REPLACEMENT:
            walk.notes.append(NOTE_UNDECODABLE)
        return Page(
            charset=found.encoding,
            base=base.text if walk.base_href else "",
            title=walk.title,
            language=_language(found.language, walk.language, language),
            directives=walk.directives,
            canonical="" if isinstance(canonical, Reason) else canonical,
            links=links,
            dropped=dropped,
            text=found.text,
            main=main,
            notes=walk.finished_notes(),
        )

    def _find(self, walk: _Walk, body: bytes, charset: str | None) -> _Found:
        """Show the document to `walk` and return what else is in it."""
        if read_plain is not None and _is_utf8(body, charset):
            plain = read_plain(body, self._follow_images)
            if plain is not None:
                rows, language, text, text_chars, main, main_chars = plain
                walk.take(rows)
                return _Found("UTF-8", language, text, text_chars, main, main_chars)
        document = _parsed(body, charset)
        walk.run(document, self._walked)
        visible, main_text = document.to_text(_PLAIN), document.main_text()
        return _Found(
            encoding=document.encoding or "UTF-8",
            language=document.root.attr("lang") if isinstance(document.root, Element) else None,
            text=visible.encode("utf-8", "replace"),
            text_chars=len(visible),
            main=main_text.encode("utf-8", "replace"),
            main_chars=len(main_text),
        )

    def _base(self, url: str, href: str | None) -> Base:
        """The document's base: <base href> where it is http or https, else its own URL (HTML Standard 4.2.3)."""
        own = base_of(url)
        assert not isinstance(own, Reason), f"{url} was fetched, so it is a URL: {own}"
        if not href:
            return own
        # Only what stands before the last slash of a base counts, so its canonical form serves as well.
        joined = self._canonicalizer.canon(href, own)
        declared = joined if isinstance(joined, Reason) else base_of(joined)
        return own if isinstance(declared, Reason) else declared


def _walked(*, follow_images: bool) -> tuple[str, ...]:
    return tuple(tag for tag in _WALKED if follow_images or tag != "img")


def _is_utf8(body: bytes, charset: str | None) -> bool:
    """Whether `body` says that it is in UTF-8, by its header or in the way that most documents do."""
    if charset:
        return charset.strip().lower() in _UTF8_LABELS
    return _SAYS_UTF8.match(body, 0, _PRESCANNED_BYTES) is not None


def _parsed(body: bytes, charset: str | None) -> Document:
    if charset:
        try:
            return turbohtml.parse(body, encoding=charset, positions=False)
        except LookupError:
            pass  # a label nobody knows is no label
    return turbohtml.parse(body, detect_encoding=True, positions=False)


def _language(declared: str | None, meta: str, header: str) -> str:
    for candidate in (declared, meta, header):
        if candidate and _LANGUAGE.match(candidate.strip()):
            return candidate.strip()
    return ""


def _refresh_target(content: str) -> str:
    match = _REFRESH.match(content)
    return "" if match is None else (match[1] or match[2] or match[3] or "").strip()


class _Walk:
    """One pass over a document's elements in order."""

    def __init__(self, limits: ParseLimits, robots_names: frozenset[str]) -> None:
        self.links = RawLinks(limits.links_max)
        self.base_href: str | None = None
        self.title = ""
        self.language = ""
        self.canonical = ""
        self.directives = 0
        self.notes: list[str] = []
        self._in_head = True
        self._titled = False
        self._title_chars_max = limits.title_chars_max
        self._anchor_chars_max = limits.anchor_chars_max
        self._robots_names = robots_names
        self._anchor_chars_left = ANCHOR_CHARS_TOTAL_MAX

    def run(self, document: Document, walked: tuple[str, ...]) -> None:
        """Visit every element whose tag is in `walked`."""
        visits = self._visits()
        for element in document.iter_elements(walked):
            tag, attr = element.tag, element.attr
            one, two, three = _WALKED[tag]
            visits[tag](
                attr(one) if one else None,
                attr(two) if two else None,
                attr(three) if three else None,
                element,
            )

    def take(self, rows: list[tuple[str, str | None, str | None, str | None, str]]) -> None:
        """Visit what stands for such elements: (tag, the attributes of it that _WALKED names, text)."""
        visits = self._visits()
        for tag, one, two, three, text in rows:
            visits[tag](one, two, three, text)

    def _visits(self) -> dict[str, Callable[[str | None, str | None, str | None, str | Element], None]]:
        # Made for each walk, not kept in it: a walk that holds itself would wait for the collector.
        return {
            "a": self._anchor,
            "area": self._anchor,
            "link": self._link,
            "meta": self._meta,
            "base": self._base,
            "title": self._title,
            "frame": self._frame,
            "iframe": self._frame,
            "img": self._image,
            "body": self._body,
        }

    def take_header_links(self, header_links: list[HeaderLink]) -> None:
        """Add what the HTTP Link headers say; the document's own canonical goes first."""
        for link in header_links:
            self._relation(link.href, link.relations, link.media_type, from_head=True)

    def finished_notes(self) -> list[str]:
        """Notes of this walk, bounds that were met included."""
        if self.links.truncated:
            self.notes.append(NOTE_TRUNCATED)
        if self._anchor_chars_left <= 0:
            self.notes.append(NOTE_ANCHORS)
        return self.notes

    def _anchor(self, href: str | None, rel: str | None, _none: str | None, inside: str | Element) -> None:
        if href is None:
            return
        bits = rel_bits(rel) if rel else 0
        known = self.links.found.get(href)
        if known is not None and known.anchor:
            # Menus repeat what was read before; the text of an element is the dearest thing to ask it for.
            known.rel &= bits
            return
        anchor = ""
        if self._anchor_chars_left > 0:
            whole = inside if isinstance(inside, str) else inside.text
            self._anchor_chars_left -= len(whole)
            bound = self._anchor_chars_max
            # Twice the bound leaves room for the white space that collapses.
            anchor = collapse(whole[: 2 * bound], bound)
        if known is None:
            self.links.add_new(href, _ANCHOR, bits, anchor)
        else:
            known.again(bits, anchor)

    def _link(self, href: str | None, rel: str | None, kind: str | None, _inside: str | Element) -> None:
        if href and rel:
            kind = (kind or "").strip().lower()
            self._relation(href, tuple(rel.lower().split()), kind, from_head=self._in_head)

    def _relation(self, href: str, relations: tuple[str, ...], kind: str, *, from_head: bool) -> None:
        if "canonical" in relations:
            # In the body a <link> may be a visitor's: only the head and the server speak for the page.
            if from_head and not self.canonical:
                self.canonical = href
                self.links.add(href, Edge.CANONICAL)
        elif "alternate" in relations and "stylesheet" not in relations:
            self.links.add(href, Edge.FEED if kind in _FEED_TYPES else Edge.ALTERNATE)
        elif "next" in relations or "prev" in relations:
            self.links.add(href, Edge.NEXT)

    def _meta(
        self, name: str | None, pragma: str | None, content: str | None, _inside: str | Element
    ) -> None:
        if name is not None:
            if name.strip().lower() in self._robots_names:
                self.directives |= meta_bits(content or "")
            return
        if not pragma or not content:
            return
        pragma = pragma.strip().lower()
        if pragma == "refresh":
            target = _refresh_target(content)
            if target:
                self.links.add(target, Edge.REFRESH)
        elif pragma == "content-language" and "," not in content:
            self.language = self.language or content.strip()

    def _base(self, href: str | None, _two: str | None, _three: str | None, _inside: str | Element) -> None:
        if self.base_href is None:
            self.base_href = href

    def _title(self, _one: str | None, _two: str | None, _three: str | None, inside: str | Element) -> None:
        # <svg><title> is a tooltip.
        if not self._titled and (isinstance(inside, str) or inside.namespace is Namespace.HTML):
            self._titled = True
            bound = self._title_chars_max
            whole = inside if isinstance(inside, str) else inside.text
            self.title = collapse(whole[: 4 * bound], bound)

    def _frame(
        self, source: str | None, _two: str | None, _three: str | None, _inside: str | Element
    ) -> None:
        if source:
            self.links.add(source, Edge.FRAME)

    def _image(
        self, source: str | None, _two: str | None, _three: str | None, _inside: str | Element
    ) -> None:
        if source:
            self.links.add(source, Edge.IMAGE)

    def _body(self, _one: str | None, _two: str | None, _three: str | None, _inside: str | Element) -> None:
        self._in_head = False
