"""Every kind of answer and the parser that reads it: one HTTP answer in, one manifest out.

The kind is decided here, from status, URL kind, Content-Type and first bytes; each kind has one reader. What a reader
returns belongs to an extraction generation, a number that changes with the code below, the HTML parser and the settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import turbohtml
import xxhash

from amble.domain.attempt import Edge, UrlKind
from amble.domain.decision import Reason
from amble.domain.manifest import MAIN_IS_TEXT, Link, ParseManifest, RobotsRules
from amble.domain.policy import ParseLimits
from amble.domain.url import CANONICALIZER_VERSION, Canonicalizer, base_of
from amble.formats import listing, robots_txt, sniff, text
from amble.formats.decode import Decoded, Undecodable, decode
from amble.formats.directives import header_bits
from amble.formats.extraction import ExtractionSettings
from amble.formats.fingerprint import fingerprint
from amble.formats.head import Head
from amble.formats.html import HtmlReader
from amble.formats.links import NOTE_TRUNCATED, RawLinks

# Grows with every change of what any reader returns for the same bytes.
EXTRACTION_VERSION = 1

NOTE_TEXT_TRUNCATED = "text_truncated"
NOTE_BODY_CUT = "body_cut"

REDIRECT = "redirect"
ERROR = "error"
EMPTY = "empty"
ROBOTS = "robots"

_REDIRECT_STATUSES = frozenset({300, 301, 302, 303, 307, 308})
_GZIP_MAGIC = b"\x1f\x8b"


class Answer(NamedTuple):
    """One HTTP answer to read: canonical URL, UrlKind, status, header block, body with its content coding.

    `cut` True: the body was longer than the crawler keeps.
    """

    url: str
    kind: int
    status: int
    head: bytes
    body: bytes
    cut: bool = False


class Reading(NamedTuple):
    """One manifest with its texts in UTF-8. `main` is the same object as `text` where there is no better main text."""

    manifest: ParseManifest
    text: bytes = b""
    main: bytes = b""


def extraction_generation(settings: ExtractionSettings) -> int:
    """The generation of manifests made under `settings`: EXTRACTION_VERSION above 16 bits of everything else."""
    policy = settings.query_policy
    facts = (
        turbohtml.__version__,
        CANONICALIZER_VERSION,
        settings.agent_tokens,
        settings.follow_images,
        sorted(policy.drop),
        policy.drop_prefixes,
        [
            (site, sorted(rule.keep), sorted(rule.drop), sorted(rule.path_parameters))
            for site, rule in sorted(policy.sites.items())
        ],
    )
    return EXTRACTION_VERSION << 16 | xxhash.xxh3_64_intdigest(msgspec.json.encode(facts)) & 0xFFFF


EXTRACTION_GENERATION = extraction_generation(ExtractionSettings())


class _Facts(NamedTuple):
    """What every reader gets: the answer, its head read, its body decoded."""

    answer: Answer
    head: Head
    media: sniff.ContentType
    kind: str
    body: bytes
    notes: list[str]


class Registry:
    """All readers under one set of limits and settings."""

    def __init__(self, limits: ParseLimits, settings: ExtractionSettings) -> None:
        self.generation = extraction_generation(settings)
        self._limits = limits
        self._settings = settings
        self._tokens = tuple(token.lower() for token in settings.agent_tokens)
        self._canonicalizer = Canonicalizer(settings.query_policy)
        self._html = HtmlReader(
            limits, self._canonicalizer, agent_tokens=self._tokens, follow_images=settings.follow_images
        )
        self._readers: dict[str, Callable[[_Facts], Reading]] = {
            ROBOTS: self._read_robots,
            sniff.HTML: self._read_html,
            sniff.TEXT: self._read_text,
            sniff.FEED: self._read_feed,
            sniff.SITEMAP: self._read_sitemap,
        }

    def read(self, answer: Answer) -> Reading | Undecodable:
        """Parse one answer. Undecodable: its content coding hides every byte."""
        head = Head(answer.head)
        media = sniff.content_type(head.every("content-type"))
        early = self._read_by_status(answer, head, media)
        if early is not None:
            return early
        bytes_max = listing.BYTES_MAX if answer.kind == UrlKind.SITEMAP else self._limits.decoded_bytes_max
        decoded = decode(answer.body, head.listed("content-encoding"), bytes_max)
        if answer.kind == UrlKind.SITEMAP and isinstance(decoded, Decoded):
            decoded, media = _without_archive(decoded, media, bytes_max)
        match decoded:
            case Undecodable():
                return decoded
            case Decoded():
                return self._read_decoded(answer, head, media, decoded)

    def _read_by_status(self, answer: Answer, head: Head, media: sniff.ContentType) -> Reading | None:
        """The reading of an answer whose body is of no interest; None for all others."""
        if answer.status in _REDIRECT_STATUSES and answer.kind != UrlKind.ROBOTS:
            target = head.location()
            if target:
                return self._read_redirect(answer, media, target)
        if not 200 <= answer.status < 300:
            return Reading(self._manifest(answer, ERROR, media))
        return None

    def _read_redirect(self, answer: Answer, media: sniff.ContentType, target: str) -> Reading:
        base = base_of(answer.url)
        url = base if isinstance(base, Reason) else self._canonicalizer.canon(target, base)
        if isinstance(url, Reason):
            return Reading(self._manifest(answer, REDIRECT, media, dropped={url.value: 1}))
        return Reading(self._manifest(answer, REDIRECT, media, links=[Link(url, int(Edge.REDIRECT))]))

    def _read_decoded(
        self, answer: Answer, head: Head, media: sniff.ContentType, decoded: Decoded
    ) -> Reading:
        body = decoded.body
        notes = [*decoded.notes, *([NOTE_BODY_CUT] if answer.cut else [])]
        if answer.kind == UrlKind.ROBOTS:
            kind = ROBOTS
        elif not body or answer.status in (204, 205):
            return Reading(self._manifest(answer, EMPTY, media, notes=notes))
        else:
            kind = sniff.content_kind(media.media_type, body)
            if answer.kind == UrlKind.SITEMAP and kind == sniff.TEXT:
                kind = sniff.SITEMAP
        reader = self._readers.get(kind, self._read_facts_only)
        return reader(_Facts(answer, head, media, kind, body, notes))

    def _read_robots(self, facts: _Facts) -> Reading:
        rules = robots_txt.parse(facts.body, self._settings.agent_tokens)
        sitemaps = RawLinks(self._limits.links_max)
        for href in rules.sitemaps:
            sitemaps.add(href, Edge.SITEMAP)
        return self._with_links(facts, sitemaps, robots=rules)

    def _read_sitemap(self, facts: _Facts) -> Reading:
        is_xml = facts.media.media_type != "text/plain" or facts.body.lstrip()[:1] == b"<"
        found = (
            listing.read_sitemap(facts.body)
            if is_xml
            else listing.read_sitemap_text(facts.body, facts.media.charset)
        )
        return self._with_links(facts, found.links, notes=found.notes)

    def _read_feed(self, facts: _Facts) -> Reading:
        found = listing.read_feed(facts.body)
        title = " ".join(found.title.split())[: self._limits.title_chars_max]
        return self._with_links(facts, found.links, notes=found.notes, title=title)

    def _with_links(
        self,
        facts: _Facts,
        raw: RawLinks,
        *,
        notes: tuple[str, ...] = (),
        title: str = "",
        robots: RobotsRules | None = None,
    ) -> Reading:
        """The reading of a body that is a list of URLs."""
        reading = self._read_facts_only(facts)
        base = base_of(facts.answer.url)
        links, dropped = (
            ([], {}) if isinstance(base, Reason) else raw.resolve(self._canonicalizer, base, None)
        )
        truncated = (NOTE_TRUNCATED,) if raw.truncated else ()
        return Reading(
            msgspec.structs.replace(
                reading.manifest,
                links=links,
                dropped=dropped,
                title=title,
                robots=robots,
                notes=[*facts.notes, *notes, *truncated],
            )
        )

    def _read_html(self, facts: _Facts) -> Reading:
        languages = facts.head.listed("content-language")
        page = self._html.read(
            facts.body,
            facts.answer.url,
            facts.media.charset,
            facts.head.links(),
            languages[0] if languages else "",
        )
        text_utf8 = self._bounded(page.text, facts.notes)
        own_main = MAIN_IS_TEXT not in page.notes
        main_utf8 = self._bounded(page.main, facts.notes) if own_main else text_utf8
        manifest = ParseManifest(
            extraction_generation=self.generation,
            url=facts.answer.url,
            content_kind=facts.kind,
            media_type=facts.media.media_type,
            charset=page.charset,
            base=page.base,
            title=page.title,
            language=page.language,
            directives=page.directives | self._header_directives(facts.head),
            canonical=page.canonical,
            fingerprint=fingerprint(text_utf8),
            text_bytes=len(text_utf8),
            main_bytes=len(main_utf8),
            decoded_bytes=len(facts.body),
            links=page.links,
            dropped=page.dropped,
            notes=facts.notes + page.notes,
        )
        return Reading(manifest, text_utf8, main_utf8)

    def _read_text(self, facts: _Facts) -> Reading:
        page = text.read(facts.body, facts.media.charset)
        text_utf8 = self._bounded(page.text.encode("utf-8", "replace"), facts.notes)
        reading = self._read_facts_only(facts)
        manifest = msgspec.structs.replace(
            reading.manifest,
            charset=page.charset,
            fingerprint=fingerprint(text_utf8),
            text_bytes=len(text_utf8),
            main_bytes=len(text_utf8),
        )
        return Reading(manifest, text_utf8, text_utf8)

    def _read_facts_only(self, facts: _Facts) -> Reading:
        """What the headers say, for a body that no reader reads."""
        manifest = self._manifest(
            facts.answer, facts.kind, facts.media, notes=facts.notes, decoded_bytes=len(facts.body)
        )
        canonical = self._header_canonical(facts)
        links = [Link(canonical, int(Edge.CANONICAL))] if canonical else []
        return Reading(
            msgspec.structs.replace(
                manifest, directives=self._header_directives(facts.head), canonical=canonical, links=links
            )
        )

    def _header_canonical(self, facts: _Facts) -> str:
        base = base_of(facts.answer.url)
        for link in facts.head.links():
            if "canonical" in link.relations and not isinstance(base, Reason):
                url = self._canonicalizer.canon(link.href, base)
                return "" if isinstance(url, Reason) else url
        return ""

    def _header_directives(self, head: Head) -> int:
        values = head.every("x-robots-tag")
        return header_bits(values, self._tokens) if values else 0

    def _bounded(self, utf8: bytes, notes: list[str]) -> bytes:
        """A text in UTF-8, cut at a character where it is longer than the limit."""
        if len(utf8) <= self._limits.text_bytes_max:
            return utf8
        if NOTE_TEXT_TRUNCATED not in notes:
            notes.append(NOTE_TEXT_TRUNCATED)
        return utf8[: self._limits.text_bytes_max].decode("utf-8", "ignore").encode("utf-8")

    def _manifest(
        self,
        answer: Answer,
        kind: str,
        media: sniff.ContentType,
        *,
        links: list[Link] | None = None,
        dropped: dict[str, int] | None = None,
        notes: list[str] | None = None,
        decoded_bytes: int = 0,
    ) -> ParseManifest:
        return ParseManifest(
            extraction_generation=self.generation,
            url=answer.url,
            content_kind=kind,
            media_type=media.media_type,
            links=links or [],
            dropped=dropped or {},
            notes=notes or [],
            decoded_bytes=decoded_bytes,
        )


def _without_archive(
    decoded: Decoded, media: sniff.ContentType, bytes_max: int
) -> tuple[Decoded | Undecodable, sniff.ContentType]:
    """A sitemap may be a gzip file besides any content coding (sitemaps.org); what is in it has no type but its own."""
    if decoded.body[:2] != _GZIP_MAGIC:
        return decoded, media
    inner = decode(decoded.body, ["gzip"], bytes_max)
    if isinstance(inner, Decoded):
        inner = Decoded(inner.body, (*decoded.notes, *inner.notes))
    return inner, sniff.ContentType("", media.charset)
