"""Robots directives of pages: all sources add up, and those for other agents are not ours."""

from __future__ import annotations

import pytest

from amble.domain.manifest import NOARCHIVE, NOINDEX, NOSNIPPET, PAGE_NOFOLLOW
from amble.formats.directives import header_bits, meta_bits


@pytest.mark.parametrize(
    ("content", "bits"),
    [
        ("", 0),
        ("index, follow", 0),
        ("noindex", NOINDEX),
        ("NOINDEX,NoFollow", NOINDEX | PAGE_NOFOLLOW),
        ("none", NOINDEX | PAGE_NOFOLLOW),
        ("noarchive nosnippet", NOARCHIVE | NOSNIPPET),
        ("nocache", NOARCHIVE),
        ("max-snippet:0, noindexing", 0),
    ],
)
def test_meta_directives(content: str, bits: int) -> None:
    assert meta_bits(content) == bits


@pytest.mark.parametrize(
    ("values", "bits"),
    [
        (["noindex, nofollow"], NOINDEX | PAGE_NOFOLLOW),
        (["noindex", "noarchive"], NOINDEX | NOARCHIVE),
        (["otherbot: noindex, nofollow"], 0),
        (["amble: noindex"], NOINDEX),
        (["Amble: none"], NOINDEX | PAGE_NOFOLLOW),
        (["otherbot: noindex, amble: nofollow"], PAGE_NOFOLLOW),
        (["otherbot: noindex", "nosnippet"], NOSNIPPET),
        (["unavailable_after: 25 Jun 2010 15:00:00 PST, noindex"], NOINDEX),
        (["max-snippet: 20, noarchive"], NOARCHIVE),
        (["noindex, otherbot: nofollow"], NOINDEX),
    ],
)
def test_header_directives(values: list[str], bits: int) -> None:
    assert header_bits(values, ["amble"]) == bits
