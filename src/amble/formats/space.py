"""White space in short texts: what titles and anchors are stored without."""

from __future__ import annotations


def collapse(text: str, chars_max: int) -> str:
    """`text` with every run of white space as one space, none at its ends, and at most `chars_max` characters of that."""
    return " ".join(text.split())[:chars_max]
