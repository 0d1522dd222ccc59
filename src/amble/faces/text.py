"""Numbers, sizes, durations and words as people read them. Pure."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

_SIZES = ("B", "KB", "MB", "GB", "TB", "PB")
# Control characters, and those that change the direction of text: a URL or a title must not steer a terminal. Lone
# surrogates, which stand for bytes of a file name that are no text, cannot be printed at all.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb]"
)


def count(number: int) -> str:
    """1234567 as 1,234,567."""
    return f"{number:,}"


def size(amount: int) -> str:
    """Bytes with a decimal unit and three digits that count."""
    value = float(amount)
    for unit in _SIZES:
        if value < 999.5 or unit == _SIZES[-1]:
            break
        value /= 1_000
    if unit == "B":
        return f"{int(value)} B"
    return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    """A length of time with the two units that matter: 45s, 3m 20s, 2h 05m, 4d 6h."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3_600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3_600}h {whole % 3_600 // 60:02d}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3_600}h"


def clock(seconds: float) -> str:
    """A running time as HH:MM:SS."""
    whole = max(0, int(seconds))
    return f"{whole // 3_600:02d}:{whole % 3_600 // 60:02d}:{whole % 60:02d}"


def rate(per_s: float) -> str:
    """Pages per second: two digits that count."""
    if per_s >= 100:
        return f"{per_s:,.0f}/s"
    return f"{per_s:.1f}/s" if per_s >= 0.95 or per_s == 0 else f"{per_s:.2f}/s"


def moment(at_ms: int) -> str:
    """A stored time, in UTC, to the second."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def plural(number: int, one: str, many: str = "") -> str:
    """`1 page`, `2 pages`, `1,000 pages`."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def words(reason: str) -> str:
    """A reason word as words: origin_backing_off as "origin backing off"."""
    return reason.replace("_", " ")


def safe(text: str) -> str:
    """Text from the web, harmless to a terminal: control and direction characters become their escapes."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def json_line(value: object, encoding: str | None) -> str:
    """`value` as JSON for a stream of this encoding: no character that it lacks, none that steers a terminal."""
    # Both happen inside of strings only, where an escape means the same.
    is_unicode = (encoding or "utf-8").lower().replace("-", "").replace("_", "") == "utf8"
    return safe(json.dumps(value, ensure_ascii=not is_unicode))


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` columns: the middle goes, since both ends of a URL tell something."""
    if len(text) <= width or width < 8:
        return text
    head = (width - 1) * 2 // 3
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


_WAITS = {
    "not_yet": "for their delay",
    "no_slot": "for a free slot",
    "origin_backing_off": "backing off",
    "address_busy": "for others on their address",
    "origin_paused": "paused",
    "retry_later": "to try again",
    "robots_missing": "for robots.txt",
    "robots_expired": "for a fresh robots.txt",
    "robots_unreachable": "for an unreachable robots.txt",
    "dns_unavailable": "for the name server",
}


def waits(reason: str) -> str:
    """For what origins wait, to stand after their number: `for their delay`."""
    return _WAITS.get(reason, words(reason))
