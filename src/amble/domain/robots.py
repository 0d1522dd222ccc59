"""RFC 9309: which rule wins for a path, and what each outcome of fetching robots.txt means for how long.

Reading the file is `formats/robots_txt.py`. Two promises: matching takes time linear in the path for each rule,
whatever the wildcards; and doubt closes, never opens: only an answer that says there are no rules allows everything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct

from amble.domain.attempt import RobotsState
from amble.domain.glob import Glob, glob_of
from amble.domain.manifest import RobotsRules

if TYPE_CHECKING:
    # The store process needs none of the settings, and making their classes takes 8 ms.
    from amble.domain.policy import RobotsPolicy

ROBOTS_PATH = "/robots.txt"


class RobotsOutcome(IntEnum):
    """What amble knows of an origin's rules. Stored as the integer; the integers never change meaning."""

    MISSING = 0  # never fetched
    RULES = 1  # a file was read; its rules hold
    ALLOW_ALL = 2  # the server said that there is no file
    UNREACHABLE = 3  # no usable answer and no good copy: nothing may be fetched
    STALE_RULES = 4  # no usable answer now; the last good copy serves until it is too old


# --- matching --------------------------------------------------------------------------------------------------

_TRIPLET = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# Characters that URL parsers percent-encode in the path or only in the query: one spelling for both sides. "*" and "$"
# are here because a rule can name them literally only in their encoded form (RFC 9309 2.2.3).
_ENCODED = {ord(char): f"%{ord(char):02X}" for char in "\"'<>\\^`{|} *$"}
_TO_ENCODE = re.compile(r"[\"'<>\\^`{|} *$]")
# Patterns of which no part between stars has anything to decode or to encode.
_PLAIN = re.compile(r"[^%\"'<>\\^`{|} $]*\$?")


def _decoded(match: re.Match[str]) -> str:
    char = chr(int(match[1], 16))
    return char if char in _UNRESERVED else match[0].upper()


def _comparable(text: str) -> str:
    """One spelling for all equivalent percent-encodings (RFC 9309 2.2.2)."""
    if "%" in text:
        text = _TRIPLET.sub(_decoded, text)
    if _TO_ENCODE.search(text) is not None:
        text = text.translate(_ENCODED)
    return text


class _Wild(Struct, frozen=True, gc=False):
    """A rule with a star; `length` counts the octets of its pattern, `text` is the pattern as written."""

    length: int
    allow: bool
    text: str
    glob: Glob


def _escapes_unreserved(pattern: str) -> bool:
    return any(chr(int(match[1], 16)) in _UNRESERVED for match in _TRIPLET.finditer(pattern))


def _literal(pattern: str) -> _Wild:
    """An Allow that opens only what is written as it is."""
    anchored = pattern.endswith("$")
    parts = [_as_written(part) for part in (pattern[:-1] if anchored else pattern).split("*")]
    length = len("*".join(map(_comparable, parts))) + anchored
    return _Wild(length, True, pattern, glob_of(parts, anchored=anchored))


def _as_written(text: str) -> str:
    """Escapes kept, only their hex digits in one case."""
    return _TRIPLET.sub(lambda match: match[0].upper(), text) if "%" in text else text


# Fewer rules than this are looked at one after the other: to find out which of them may match costs more.
_SIFTED_MIN = 48
# Lengths of the texts by which rules are found; each that is used costs one pass over the path. By length of a piece.
_GRAM_OF = (0, 1, 2, 2, 4, 4, 4, 4, 8)
_PREFIX_CHARS_MAX = 32
# Pieces of one pattern that are considered for that; the others are checked when the rule is tried.
_PIECES_MAX = 4


def _grams(glob: Glob) -> list[str]:
    """Texts that whatever `glob` matches contains: the ends of its pieces between stars."""
    found = []
    for piece in (glob.last, *glob.middle[:_PIECES_MAX]):
        if piece:
            size = _GRAM_OF[min(len(piece), 8)]
            found.append(piece[:size])
            if len(piece) > size:
                found.append(piece[-size:])
    return found


class _Sieve:
    """Rules with stars, the one that wins first, and which of them are worth a try for a path.

    Each rule is kept under one text: that by which a match begins, or one that a match contains, whichever the fewest
    rules share. Matching stays the business of Glob.
    """

    __slots__ = ("_beginning", "_containing", "_next", "_rules")

    def __init__(self, rules: list[_Wild]) -> None:
        """`rules` in the order in which they win."""
        self._rules = rules
        # By length, then by text: the first rule that is kept there. `_next` has the one after each, or -1.
        self._beginning: dict[int, dict[str, int]] = {}
        self._containing: dict[int, dict[str, int]] = {}
        self._next = [-1] * len(rules)
        if len(rules) >= _SIFTED_MIN:
            self._sort_in([rule.glob for rule in rules])

    def _sort_in(self, globs: list[Glob]) -> None:
        prefixes = [glob.first[:_PREFIX_CHARS_MAX] for glob in globs]
        grams = [_grams(glob) for glob in globs]
        beginning, containing = Counter(prefixes), Counter(chain.from_iterable(grams))
        for rank in range(len(globs) - 1, -1, -1):
            text, places = prefixes[rank], self._beginning
            fewest = beginning[text]
            for gram in grams[rank]:
                if containing[gram] < fewest:
                    text, places, fewest = gram, self._containing, containing[gram]
            place = places.setdefault(len(text), {})
            self._next[rank] = place.get(text, -1)
            place[text] = rank

    def first(self, path: str, length: int, *, allow: bool) -> _Wild | None:
        """The first rule that matches `path` and wins over another of this length, if there is one."""
        for rule in self._worth_a_try(path):
            if (rule.length, rule.allow) <= (length, allow):
                return None
            if rule.glob.matches(path):
                return rule
        return None

    def _worth_a_try(self, path: str) -> Iterable[_Wild]:
        if len(self._rules) < _SIFTED_MIN:
            return self._rules
        heads = [texts[path[:size]] for size, texts in self._beginning.items() if path[:size] in texts]
        for size, texts in self._containing.items():
            inside = {path[at : at + size] for at in range(len(path) - size + 1)}
            heads += [texts[text] for text in texts.keys() & inside]
        ranks: list[int] = []
        for rank in heads:
            while rank >= 0:
                ranks.append(rank)
                rank = self._next[rank]
        ranks.sort()
        return map(self._rules.__getitem__, ranks)


class RuleSet:
    """Compiled rules of one robots.txt for one agent. Immutable after construction.

    Equivalent escapes count as equal (RFC 9309 2.2.2), with one exception where readers of the RFC differ and doubt
    closes: an Allow that escapes unreserved characters opens only paths that are written the same way.
    """

    __slots__ = ("_exact", "_lengths", "_literal", "_plain", "_wild")

    def __init__(self, rules: RobotsRules) -> None:
        self._plain: dict[str, tuple[bool, str]] = {}
        self._exact: dict[str, tuple[int, bool, str]] = {}
        literal: list[_Wild] = []
        wild: dict[str, _Wild] = {}
        for allow, pattern in rules.rules:
            if allow and _escapes_unreserved(pattern):
                literal.append(_literal(pattern))
            else:
                self._add(allow, pattern, wild)
        self._lengths = sorted({len(prefix) for prefix in self._plain}, reverse=True)
        self._wild = _Sieve(sorted(wild.values(), key=lambda rule: (-rule.length, not rule.allow)))
        self._literal = _Sieve(sorted(literal, key=lambda rule: -rule.length)) if literal else None

    def _add(self, allow: bool, pattern: str, wild: dict[str, _Wild]) -> None:  # noqa: FBT001
        anchored = pattern.endswith("$")
        stars = (pattern[:-1] if anchored else pattern).split("*")
        if _PLAIN.fullmatch(pattern) is None:
            stars = [_comparable(part) for part in stars]
        normal = "*".join(stars)
        length = len(normal) + anchored
        if len(stars) == 1 and not anchored:
            if allow or normal not in self._plain:
                self._plain[normal] = (allow, pattern)
        elif len(stars) == 1:
            if allow or normal not in self._exact:
                self._exact[normal] = (length, allow, pattern)
        else:
            key = f"{normal}$" if anchored else normal
            if allow or key not in wild:
                wild[key] = _Wild(length, allow, pattern, glob_of(stars, anchored=anchored))

    def allows(self, path: str) -> tuple[bool, str]:
        """(allowed, the pattern that decided; "" where none matches) for the path and query of a canonical URL.

        The longest matching pattern wins, Allow wins a tie, no match allows (RFC 9309 2.2.2). /robots.txt itself is
        always allowed.
        """
        if path == ROBOTS_PATH:
            return True, ""
        written, path = path, _comparable(path or "/")
        length, allowed, text = self._longest_plain(path)
        exact = self._exact.get(path)
        if exact is not None and (exact[0], exact[1]) > (length, allowed):
            length, allowed, text = exact
        rule = self._wild.first(path, length, allow=allowed)
        if rule is not None:
            length, allowed, text = rule.length, rule.allow, rule.text
        return self._opened(written, length) or (allowed, text)

    def _opened(self, written: str, length: int) -> tuple[bool, str] | None:
        """The literal Allow that is at least as long as what decided so far, if one matches the path as written."""
        if self._literal is None:
            return None
        rule = self._literal.first(_as_written(written), length, allow=False)
        return None if rule is None else (True, rule.text)

    def _longest_plain(self, path: str) -> tuple[int, bool, str]:
        for length in self._lengths:
            if length <= len(path):
                found = self._plain.get(path[:length])
                if found is not None:
                    return length, *found
        return 0, True, ""


# --- retrieval -------------------------------------------------------------------------------------------------

_NOT_MODIFIED = 304
# 4xx that speak of this moment and not of the file: they must not open a site.
_NOT_NOW = frozenset({408, 425, 429})
_HAS_COPY = frozenset({RobotsOutcome.RULES, RobotsOutcome.STALE_RULES})
_MAX_AGE = re.compile(r"(?:^|,)\s*max-age\s*=\s*\"?(\d{1,10})", re.IGNORECASE)
_UNCACHED = re.compile(r"(?:^|,)\s*(?:no-cache|no-store)\s*(?:[,=]|$)", re.IGNORECASE)


class RobotsDecision(Struct, frozen=True):
    """What holds for an origin from now on, and in how many ms its robots.txt must be fetched again."""

    outcome: RobotsOutcome
    ttl_ms: int


def decide_answer(
    status: int, rules: RobotsRules | None, *, cache_control: str, policy: RobotsPolicy
) -> RobotsDecision:
    """What a complete answer for robots.txt means, redirects already followed.

    `rules`: what was read from the body; for a 304, from the body that is still valid. 2xx and 304: these rules. 4xx:
    there are none (RFC 9309 2.3.1.3), except where the status means "not now". Everything else closes the origin
    (2.3.1.4); a caller that still holds a good copy asks `decide_failure` instead.
    """
    if rules is not None and (200 <= status < 300 or status == _NOT_MODIFIED):
        return RobotsDecision(RobotsOutcome.RULES, fresh_ms(policy, cache_control))
    if 400 <= status < 500 and status not in _NOT_NOW:
        return RobotsDecision(RobotsOutcome.ALLOW_ALL, fresh_ms(policy, cache_control))
    return RobotsDecision(RobotsOutcome.UNREACHABLE, policy.unreachable_retry_ms)


def decide_failure(
    prior: RobotsState, *, policy: RobotsPolicy, now_ms: int, throttled: bool = False
) -> RobotsDecision:
    """What it means that robots.txt could not be had: 5xx, 429, name, network, TLS, time, endless redirects.

    STALE_RULES keeps the rules, the Crawl-delay and `fetched_at_ms` of `prior`, while that copy is younger than
    `policy.stale_while_unreachable_ms`; without such a copy nothing may be fetched. `now_ms` is the store's clock; the
    deadline of a live lease is a safe upper bound for it. `throttled` (429): asked again soon.
    """
    # A server that says "not now" will soon say something else.
    retry_ms = (
        min(policy.unreachable_retry_ms, policy.fresh_ms_min) if throttled else policy.unreachable_retry_ms
    )
    left_ms = prior.fetched_at_ms + policy.stale_while_unreachable_ms - now_ms
    if prior.outcome in _HAS_COPY and prior.rules is not None and left_ms > 0:
        return RobotsDecision(RobotsOutcome.STALE_RULES, min(retry_ms, left_ms))
    return RobotsDecision(RobotsOutcome.UNREACHABLE, retry_ms)


def still_serving(prior: RobotsState) -> RobotsState:
    """The last good copy, kept in service with its age while a new one cannot be had."""
    return RobotsState(
        outcome=RobotsOutcome.STALE_RULES,
        fetched_at_ms=prior.fetched_at_ms,
        rules=prior.rules,
        crawl_delay_ms=prior.crawl_delay_ms,
    )


def fresh_ms(policy: RobotsPolicy, cache_control: str) -> int:
    """How long an answer with this Cache-Control serves: at most 24 h (RFC 9309 2.4), shortened within the policy."""
    ttl_ms = policy.fresh_ms_max
    match = _MAX_AGE.search(cache_control)
    if match is not None:
        ttl_ms = min(ttl_ms, int(match[1]) * 1000)
    if _UNCACHED.search(cache_control) is not None:
        ttl_ms = 0
    return max(ttl_ms, policy.fresh_ms_min)
