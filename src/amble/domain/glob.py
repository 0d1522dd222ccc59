"""Text patterns with "*" for any text and a final "$" for the end: the wildcards of RFC 9309, matched in linear time.

A pattern stands at the start of the text and matches a prefix of it unless "$" ends it. There is nothing else to learn
and nothing to backtrack into: each part between stars is searched once, from where the last one ended.
"""

from __future__ import annotations

from msgspec import Struct


class Glob(Struct, frozen=True, gc=False):
    """`first`, then each of `middle` in order, then `last` at the very end (None: the end is free)."""

    first: str
    middle: tuple[str, ...]
    last: str | None

    def matches(self, text: str) -> bool:
        """Whether the pattern matches; time is linear in the text for each part of the pattern, memory constant."""
        if not text.startswith(self.first):
            return False
        at = len(self.first)
        for part in self.middle:
            at = text.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return self.last is None or (len(text) - len(self.last) >= at and text.endswith(self.last))


def compile_glob(pattern: str) -> Glob:
    """The compiled form of `pattern`. Any text is a pattern."""
    anchored = pattern.endswith("$")
    return glob_of((pattern[:-1] if anchored else pattern).split("*"), anchored=anchored)


def glob_of(parts: list[str], *, anchored: bool) -> Glob:
    """A Glob from the texts between its stars."""
    first, *middle = parts
    if not anchored:
        return Glob(first, tuple(filter(None, middle)), None)
    if not middle:
        # Without a star the whole text is meant: what is left after `first` must be empty, and at its end.
        return _Exact(first, (), "")
    last = middle.pop()
    return Glob(first, tuple(filter(None, middle)), last)


class _Exact(Glob, frozen=True):
    def matches(self, text: str) -> bool:
        return text == self.first
