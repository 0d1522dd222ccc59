"""Patterns with a star and an end: the definition, and linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.glob import compile_glob


def _matches(pattern: str, text: str) -> bool:
    """The definition, by recursion: exponential, fine for short strings."""
    if pattern == "":
        return True
    if pattern == "$":
        return text == ""
    if pattern[0] == "*":
        return any(_matches(pattern[1:], text[start:]) for start in range(len(text) + 1))
    return text[:1] == pattern[0] and _matches(pattern[1:], text[1:])


@given(pattern=st.text("ab*$", max_size=8), text=st.text("ab$", max_size=8))
def test_a_pattern_matches_as_defined(pattern: str, text: str) -> None:
    assert compile_glob(pattern).matches(text) is _matches(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("", "", True),
        ("", "a", True),
        ("$", "", True),
        ("$", "a", False),
        ("a", "ab", True),
        ("a$", "ab", False),
        ("a*", "a", True),
        ("*b$", "ab", True),
        ("*b$", "ba", False),
        ("a*a$", "a", False),
        ("*?print=", "http://a.example/x?print=1", True),
        ("a.c", "abc", False),
        ("[ab]", "a", False),
    ],
)
def test_only_the_star_and_the_final_dollar_are_special(pattern: str, text: str, expected: bool) -> None:
    assert compile_glob(pattern).matches(text) is expected


def test_many_stars_take_linear_time() -> None:
    glob = compile_glob("*a" * 2_000 + "*b$")
    started = time.process_time()
    assert not glob.matches("a" * 100_000)
    assert time.process_time() - started < 0.25
