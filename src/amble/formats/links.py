"""Outlinks of one document on their way into a manifest: resolved, canonical, distinct, bounded, refusals counted."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from amble.domain.decision import Reason
from amble.domain.manifest import NOFOLLOW, SPONSORED, UGC, Link
from amble.domain.url import Base, Canonicalizer

# Refused without looking further: the link leads into the document it stands in.
SAME_DOCUMENT = "same_document"
NOTE_TRUNCATED = "links_truncated"

_REL_BITS = {"nofollow": NOFOLLOW, "ugc": UGC, "sponsored": SPONSORED}


def rel_bits(rel: str) -> int:
    """Link.rel bits of a `rel` attribute."""
    bits = 0
    for word in rel.lower().split():
        bits |= _REL_BITS.get(word, 0)
    return bits


class RawLink(Struct, gc=False):
    """One distinct href of a document: how it was first found, rel bits AND-ed over its occurrences, first anchor."""

    edge: int
    rel: int
    anchor: str

    def again(self, rel: int, anchor: str) -> None:
        """Take in another occurrence."""
        self.rel &= rel
        self.anchor = self.anchor or anchor


class RawLinks:
    """Hrefs as they stand in the document, in order, without repeats; at most `links_max` of them."""

    __slots__ = ("found", "links_max", "truncated")

    def __init__(self, links_max: int) -> None:
        self.found: dict[str, RawLink] = {}
        self.links_max = links_max
        self.truncated = False

    def add(self, href: str, edge: int, rel: int = 0, anchor: str = "") -> None:
        """Remember one occurrence; `edge` is an attempt.Edge."""
        known = self.found.get(href)
        if known is not None:
            known.again(rel, anchor)
        else:
            self.add_new(href, edge, rel, anchor)

    def add_new(self, href: str, edge: int, rel: int, anchor: str) -> None:
        """Remember the first occurrence of an href that is not in `found`."""
        if len(self.found) < self.links_max:
            self.found[href] = RawLink(edge, rel, anchor)
        else:
            self.truncated = True

    def resolve(
        self, canonicalizer: Canonicalizer, base: Base, charset: str | None
    ) -> tuple[list[Link], dict[str, int]]:
        """Distinct canonical links in document order, and how many hrefs were dropped for which reason."""
        found = self.found
        hrefs = [href for href in found if href and href[0] != "#"]
        merged: dict[str, RawLink] = {}
        dropped: Counter[str] = Counter()
        if len(hrefs) < len(found):
            dropped[SAME_DOCUMENT] = len(found) - len(hrefs)
        for href, url in zip(hrefs, canonicalizer.canon_many(hrefs, base, charset), strict=True):
            if isinstance(url, Reason):
                dropped[url.value] += 1
                continue
            raw = found[href]
            twin = merged.get(url)
            if twin is None:
                merged[url] = raw
            else:
                twin.again(raw.rel, raw.anchor)
        links = [Link(url, raw.edge, raw.rel, raw.anchor) for url, raw in merged.items()]
        return links, dict(dropped)
