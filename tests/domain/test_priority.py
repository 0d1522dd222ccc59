"""Priority classes: every kind and edge at every depth."""

from __future__ import annotations

import itertools

import pytest

from amble.domain.attempt import Edge, UrlKind
from amble.domain.priority import (
    AGEING_EVERY,
    CLASSES,
    REDIRECT_CLASS,
    RETRY_CLASS,
    REVISIT_CLASS,
    ROBOTS_CLASS,
    priority_of,
)

BY_DEPTH = {0: 1, 1: 2, 2: 3, 3: 3, 4: 4, 7: 4, 8: 5, 20: 5, 1_000: 5}


@pytest.mark.parametrize(("kind", "edge"), list(itertools.product(UrlKind, Edge)))
def test_class_of_each_kind_edge_and_depth(kind: UrlKind, edge: Edge) -> None:
    for depth in BY_DEPTH:
        _check(kind, edge, depth)


def _check(kind: UrlKind, edge: Edge, depth: int) -> None:
    if kind is UrlKind.ROBOTS:
        expected = ROBOTS_CLASS
    elif edge is Edge.REDIRECT or kind in (UrlKind.SITEMAP, UrlKind.FEED):
        expected = REDIRECT_CLASS
    else:
        expected = BY_DEPTH[depth]
    assert priority_of(kind, edge, depth) == expected
    assert priority_of(int(kind), int(edge), depth) == expected


def test_a_deeper_page_never_goes_before_a_shallower_one() -> None:
    classes = [priority_of(UrlKind.PAGE, Edge.ANCHOR, depth) for depth in range(100)]
    assert classes == sorted(classes)


def test_new_pages_go_before_retries_and_revisits_and_all_fit() -> None:
    assert ROBOTS_CLASS < REDIRECT_CLASS < priority_of(0, 1, 10**6) < RETRY_CLASS < REVISIT_CLASS < CLASSES
    assert AGEING_EVERY > 1
