"""What both sides of the sandbox must know of extraction. Apart from the readers, which only a parser child loads."""

from __future__ import annotations

import msgspec

from amble.domain.url import QueryPolicy

# A list of URLs (sitemap, feed) may hold so many, which is more than a page may (sitemaps.org).
LISTED_URLS_MAX = 50_000


class ExtractionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may set about extraction. Part of the extraction generation."""

    agent_tokens: tuple[str, ...] = ("amble",)
    follow_images: bool = False
    query_policy: QueryPolicy = msgspec.field(default_factory=QueryPolicy)
