"""What a page asks of indexers: robots directives from <meta> elements and X-Robots-Tag headers, as manifest bits.

All sources add up: the most restrictive reading wins. Directives addressed to another agent are not ours.
"""

from __future__ import annotations

from collections.abc import Iterable

from amble.domain.manifest import NOARCHIVE, NOINDEX, NOSNIPPET, PAGE_NOFOLLOW

_BITS = {
    "noindex": NOINDEX,
    "nofollow": PAGE_NOFOLLOW,
    "none": NOINDEX | PAGE_NOFOLLOW,
    "noarchive": NOARCHIVE,
    "nocache": NOARCHIVE,
    "nosnippet": NOSNIPPET,
}
# Directives that are written "name: value", so that their colon does not name an agent.
_VALUED = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})


def meta_bits(content: str) -> int:
    """Bits of the `content` of one robots <meta>: names separated by commas or white space, any case."""
    bits = 0
    for word in content.lower().replace(",", " ").split():
        bits |= _BITS.get(word, 0)
    return bits


def header_bits(values: Iterable[str], agents: Iterable[str]) -> int:
    """Bits of all X-Robots-Tag headers that are for every agent or for one of `agents` (lower-case tokens).

    "agent: directive, directive" scopes the rest of that header, until another "agent:" follows.
    """
    ours = frozenset(agents)
    bits = 0
    for value in values:
        applies = True
        for member in value.lower().split(","):
            name, colon, rest = member.strip().partition(":")
            if colon and name.strip() not in _VALUED:
                applies = name.strip() in ours
                member = rest
            if applies:
                bits |= meta_bits(member)
    return bits
