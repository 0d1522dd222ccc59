"""Which of an origin's URLs goes first: eight classes, 0 before 7, and how a candidate gets its class.

Priority orders within an origin and never overrides spacing. No class starves: every `AGEING_EVERY`th start of an
origin takes the last class that has something due instead of the first.
"""

from __future__ import annotations

from amble.domain.attempt import Edge, UrlKind

CLASSES = 8
ROBOTS_CLASS = 0
REDIRECT_CLASS = 1
RETRY_CLASS = 6
REVISIT_CLASS = 7
AGEING_EVERY = 8

# They lead to many pages at once.
_LISTS = frozenset({int(UrlKind.SITEMAP), int(UrlKind.FEED)})
_ROBOTS = int(UrlKind.ROBOTS)
_REDIRECT = int(Edge.REDIRECT)


def priority_of(kind: int, edge: int, depth: int) -> int:
    """Class of a new URL: robots first, then redirect targets, seeds, sitemaps and feeds, then breadth first by depth."""
    if kind == _ROBOTS:
        return ROBOTS_CLASS
    if depth == 0 or edge == _REDIRECT or kind in _LISTS:
        return REDIRECT_CLASS
    if depth <= 1:
        return 2
    if depth <= 3:
        return 3
    if depth <= 7:
        return 4
    return 5
