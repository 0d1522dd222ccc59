"""The durable output of one parse, and how far discovery has consumed it."""

from __future__ import annotations

from msgspec import Struct, field

MANIFEST_FORMAT = 1

# Link.rel bits
NOFOLLOW = 1
UGC = 2
SPONSORED = 4

# ParseManifest.directives bits (meta robots and X-Robots-Tag together)
NOINDEX = 1
PAGE_NOFOLLOW = 2
NOARCHIVE = 4
NOSNIPPET = 8

# ParseManifest.notes: the main text is the visible text, so it is kept once.
MAIN_IS_TEXT = "main_is_text"
# ParseManifest.notes: the content coding was broken, so the end of the body, or all of it, could not be read.
CODING_BROKEN = "coding_broken_tail"


class Link(Struct, frozen=True, array_like=True):
    """One distinct outlink: canonical URL, how it was found (attempt.Edge), rel bits of all its occurrences AND-ed."""

    url: str
    edge: int
    rel: int = 0
    anchor: str = ""


class RobotsRules(Struct, frozen=True, array_like=True):
    """The rules of a robots.txt that apply to our agent, in file order; sitemaps of the whole file."""

    rules: tuple[tuple[bool, str], ...] = ()  # (allow, pattern)
    crawl_delay_s: float | None = None
    sitemaps: tuple[str, ...] = ()
    matched_group: str = ""  # agent token whose group applied, "*" or ""
    truncated: bool = False


class ParseManifest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts of one parse. JSON in the archive (`metadata` record), msgpack between processes."""

    format: int = MANIFEST_FORMAT
    extraction_generation: int
    url: str
    content_kind: str  # html, text, robots, redirect, empty, binary, …
    charset: str = ""
    base: str = ""
    title: str = ""
    language: str = ""
    directives: int = 0
    canonical: str = ""
    fingerprint: int = 0
    text_bytes: int = 0
    main_bytes: int = 0
    decoded_bytes: int = 0
    links: list[Link] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)  # reason -> links that could not become a URL
    notes: list[str] = field(default_factory=list)
    robots: RobotsRules | None = None
    media_type: str = ""


class ManifestKey(Struct, frozen=True, array_like=True):
    """Which parse: URL, attempt whose body was parsed, extraction generation; and the partition where the URL lives."""

    url_id: int
    attempt: int
    extraction_generation: int
    partition: int = 0


class CursorAdvance(Struct, frozen=True, array_like=True):
    """Discovery moves the cursor of a manifest from `start` to `end`, in the commit that admits those links."""

    manifest: ManifestKey
    start: int
    end: int
