"""robots.txt bytes to the rules for one agent (RFC 9309), plus Crawl-delay and Sitemap lines.

Parsing only: which rule wins for a path is `domain/robots.py`. Any bytes give an answer; nothing here raises.
Leniency beyond the RFC's grammar, each where the author's will is plain: a byte order mark or the beginning of one, a
key and value with white space in place of the colon, the usual misspellings of keys, a path without its first "/".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from amble.domain.manifest import RobotsRules

# RFC 9309 2.5: at least 500 KiB must be parsed; more is ignored.
BODY_BYTES_MAX = 500 * 1024
SITEMAPS_MAX = 1_000
SITEMAP_CHARS_MAX = 2_048

_BOM = b"\xef\xbb\xbf"
_KEYS = {
    b"user-agent": "agent", b"useragent": "agent", b"user agent": "agent",
    b"allow": "allow",
    b"disallow": "disallow", b"dissallow": "disallow", b"dissalow": "disallow", b"disalow": "disallow",
    b"diasllow": "disallow", b"disallaw": "disallow",
    b"crawl-delay": "delay", b"crawldelay": "delay", b"crawl delay": "delay",
    b"sitemap": "sitemap", b"site-map": "sitemap",
}  # fmt: skip
# RFC 9309 2.2.1: a product token has letters, "_" and "-" only; what follows it (a version) is not part of the name.
_PRODUCT_TOKEN = re.compile(rb"[A-Za-z_-]+")
_NOT_ASCII = re.compile(rb"[^\x21-\x7e]")


@dataclass(slots=True)
class _Group:
    """All rules of one agent, over every group of the file that names it (RFC 9309 2.2.1: they are combined)."""

    rules: list[tuple[bool, str]] = field(default_factory=list)
    delay_s: float | None = None


def parse(body: bytes, agent_tokens: Sequence[str]) -> RobotsRules:
    """The rules that apply to the first of `agent_tokens` that the file names, else those for "*".

    `agent_tokens` are product tokens in order of preference, compared whole and without regard to case. Patterns are
    ASCII: other octets are percent-encoded (RFC 9309 2.2.2), the rest stands as written. Of several Crawl-delay lines
    the longest counts.
    """
    kept = body[:BODY_BYTES_MAX]
    truncated = len(body) > BODY_BYTES_MAX
    if truncated:
        # Half a line may say the opposite of the whole: "Allow: /a" of "Allow: /about".
        kept = kept[: max(kept.rfind(b"\n"), kept.rfind(b"\r")) + 1]
    wanted = (*(token.lower() for token in agent_tokens), "*")
    groups, sitemaps = _read(_without_bom(kept), frozenset(wanted))
    for token in wanted:
        group = groups.get(token)
        if group is not None:
            return RobotsRules(tuple(group.rules), group.delay_s, tuple(sitemaps), token, truncated)
    return RobotsRules(sitemaps=tuple(sitemaps), truncated=truncated)


def _without_bom(body: bytes) -> bytes:
    length = 0
    while length < len(_BOM) and body[length : length + 1] == _BOM[length : length + 1]:
        length += 1
    return body[length:]


def _read(body: bytes, wanted: frozenset[str]) -> tuple[dict[str, _Group], list[str]]:
    """The groups of the `wanted` agents, and the sitemaps. Others are not kept: a file may name thousands."""
    groups: dict[str, _Group] = {}
    sitemaps: list[str] = []
    current: dict[str, _Group] = {}
    # Only a rule ends a run of user-agent lines; other records must not interfere (RFC 9309 2.2.4).
    in_rules = False
    for line in body.splitlines():
        key, value = _key_and_value(line)
        if key == "agent":
            if in_rules:
                current, in_rules = {}, False
            token = _token_of(value)
            if token in wanted:
                # Named twice above the same rules, an agent has them once.
                current[token] = groups.setdefault(token, _Group())
        elif key in ("allow", "disallow"):
            in_rules = True
            if value:
                rule = (key == "allow", _pattern_of(value))
                for group in current.values():
                    group.rules.append(rule)
        elif key == "delay":
            _note_delay(current.values(), value)
        elif key == "sitemap" and value and len(sitemaps) < SITEMAPS_MAX and len(value) <= SITEMAP_CHARS_MAX:
            sitemaps.append(value.decode("utf-8", "replace"))
    return groups, sitemaps


def _key_and_value(line: bytes) -> tuple[str, bytes]:
    """("", b"") for a line that says nothing we know."""
    line = line.partition(b"#")[0]
    key, colon, value = line.partition(b":")
    if not colon:
        words = line.split()
        if len(words) != 2:
            return "", b""
        key, value = words
    return _KEYS.get(key.strip().lower(), ""), value.strip()


def _token_of(value: bytes) -> str:
    if value[:1] == b"*" and not value[1:2].strip():
        return "*"
    match = _PRODUCT_TOKEN.match(value)
    return match[0].decode("ascii").lower() if match is not None else ""


def _pattern_of(value: bytes) -> str:
    if value[:1] not in (b"/", b"*"):
        value = b"/" + value
    return _NOT_ASCII.sub(lambda match: b"%%%02X" % match[0][0], value).decode("ascii")


def _note_delay(groups: Iterable[_Group], value: bytes) -> None:
    try:
        delay_s = float(value)
    except ValueError:
        return
    if not math.isfinite(delay_s) or delay_s < 0:
        return
    for group in groups:
        group.delay_s = max(delay_s, group.delay_s or 0.0)
