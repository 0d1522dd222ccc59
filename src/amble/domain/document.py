"""The document: one published version of a page, as every sink receives it."""

from __future__ import annotations

from msgspec import Struct


class WarcPlace(Struct, frozen=True, kw_only=True):
    """Where the record of the capture lies: segment file name, byte offset and length of its gzip member."""

    file: str
    offset: int
    length: int


class Document(Struct, frozen=True, kw_only=True):
    """One document version, exactly one per (canonical URL, crawl generation, extraction generation).

    `fetched_at` is RFC 3339 in UTC. `digest` is `sha256:` and the hex digest of the payload as received. `fingerprint`
    is the 64-bit near-duplicate fingerprint as 16 hex digits, because JSON readers lose bits of large integers.
    `text` is all visible text, `main_text` the main content; both are empty where the page has none.
    """

    url: str
    canonical: str
    status: int
    fetched_at: str
    title: str
    language: str
    text: str
    main_text: str
    content_type: str
    digest: str
    fingerprint: str
    depth: int
    discovered_from: str | None
    warc: WarcPlace | None
    crawl_generation: int
    extraction_generation: int

    @property
    def key(self) -> tuple[str, int, int]:
        """What makes a repeat recognizable to a sink."""
        return (self.url, self.crawl_generation, self.extraction_generation)
