"""The header block of a stored answer: fields in order, values as latin-1 text, and the few that are lists.

Lenient where servers are sloppy (bare LF, folded lines, lines without a colon are skipped); never raises.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# A transport bounds the block before it is stored (FetchLimits); these hold for a block from anywhere else.
HEAD_BYTES_MAX = 128 * 1024
FIELDS_MAX = 1024
# Links and directives beyond these are noise or an attack.
LINK_TARGETS_MAX = 64

_FOLD = re.compile("\r?\n[ \t]+")
_LINK_TARGET = re.compile(r"<([^<>]*)>((?:\s*;\s*[^\s;,=\"]+(?:\s*=\s*(?:\"[^\"]*\"|[^\s;,\"]*))?)*)")
_PARAMETER = re.compile(r";\s*([^\s;,=\"]+)(?:\s*=\s*(?:\"([^\"]*)\"|([^\s;,\"]*)))?")


class HeaderLink(NamedTuple):
    """One target of a Link header (RFC 8288): reference as sent, relation types and media type in lower case."""

    href: str
    relations: tuple[str, ...]
    media_type: str


class Head:
    """Header fields of one answer. Names are lower case; order and repetition are kept."""

    __slots__ = ("fields",)

    def __init__(self, block: bytes) -> None:
        """Read a status line and header block, byte-exact as received."""
        text = block[:HEAD_BYTES_MAX].decode("latin-1")
        if "\n " in text or "\n\t" in text:
            text = _FOLD.sub(" ", text)
        self.fields: list[tuple[str, str]] = []
        for line in text.split("\n")[1 : FIELDS_MAX + 1]:
            name, colon, value = line.partition(":")
            if colon:
                self.fields.append((name.strip().lower(), value.strip()))

    def every(self, name: str) -> list[str]:
        """All values of the field `name` (lower case), in order."""
        return [value for key, value in self.fields if key == name]

    def first(self, name: str) -> str:
        """The first value of the field `name`, or ""."""
        for key, value in self.fields:
            if key == name:
                return value
        return ""

    def listed(self, name: str) -> list[str]:
        """All members of a comma-separated list field, lower case, without empty ones (RFC 9110 5.6.1)."""
        members = ",".join(self.every(name)).split(",")
        return [member.strip().lower() for member in members if member.strip()]

    def links(self) -> list[HeaderLink]:
        """Targets of all Link headers. A target with an `anchor` parameter is about another document: left out."""
        found: list[HeaderLink] = []
        for value in self.every("link"):
            for match in _LINK_TARGET.finditer(value):
                parameters: dict[str, str] = {}
                for name, quoted, bare in _PARAMETER.findall(match[2]):
                    parameters.setdefault(name.lower(), quoted or bare)
                if "anchor" in parameters:
                    continue
                relations = tuple(parameters.get("rel", "").lower().split())
                found.append(HeaderLink(_as_sent(match[1]), relations, parameters.get("type", "").lower()))
                if len(found) >= LINK_TARGETS_MAX:
                    return found
        return found

    def location(self) -> str:
        """The Location header as browsers read it: UTF-8 where its bytes are UTF-8, else latin-1; "" without one."""
        return _as_sent(self.first("location"))


def _as_sent(value: str) -> str:
    if value.isascii():
        return value.strip()
    try:
        return value.encode("latin-1").decode("utf-8").strip()
    except UnicodeDecodeError:
        return value.strip()
