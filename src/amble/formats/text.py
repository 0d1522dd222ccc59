"""Plain text in, text out: charset and lines, no links."""

from __future__ import annotations

from typing import NamedTuple

from amble.formats.charset import decode_text


class PlainPage(NamedTuple):
    """A text and the encoding it came in."""

    charset: str
    text: str


def read(body: bytes, charset: str | None) -> PlainPage:
    """Decode `body` by BOM, HTTP label or content; line ends become "\\n", NULs and form feeds become spaces."""
    text, name = decode_text(body, charset)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text or "\f" in text:
        text = text.replace("\0", " ").replace("\f", " ")
    return PlainPage(name, text.strip())
