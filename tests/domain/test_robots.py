"""RFC 9309: public expectations, rule precedence, equivalence of spellings, hostile patterns, retrieval outcomes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain import robots
from amble.domain.attempt import RobotsState
from amble.domain.fetched import BodyRef
from amble.domain.glob import Glob
from amble.domain.manifest import RobotsRules
from amble.domain.policy import RobotsPolicy
from amble.domain.robots import (
    RobotsDecision,
    RobotsOutcome,
    RuleSet,
    decide_answer,
    decide_failure,
    fresh_ms,
    still_serving,
)
from amble.formats.robots_txt import parse

DATA = Path(__file__).parent.parent / "data" / "robots-spec" / "cases.json"
CASES: list[dict[str, Any]] = json.loads(DATA.read_text("utf-8"))
STANDARD = [case for case in CASES if case["kind"] == "standard"]
GOOGLE = [case for case in CASES if case["kind"] != "standard"]


def ruleset(*lines: str) -> RuleSet:
    return RuleSet(RobotsRules(tuple((line[0] == "+", line[1:]) for line in lines)))


def answer(case: dict[str, Any]) -> bool:
    path = case["url"][case["url"].find("/", 8) :] if case["url"] else ""
    return RuleSet(parse(base64.b64decode(case["robots_base64"]), (case["user_agent"],))).allows(path)[0]


def _name(case: dict[str, Any]) -> str:
    return f"{case['group']} {case['user_agent']} {case['url']}"


# --- public expectations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", STANDARD, ids=_name)
def test_the_public_expectations_of_the_standard_hold(case: dict[str, Any]) -> None:
    assert answer(case) is case["allowed"]


def test_the_public_expectations_of_the_standard_are_all_here() -> None:
    assert len(STANDARD) == 124


@pytest.mark.parametrize(
    ("lines", "path", "allowed"),
    [
        (["-/", "+/foo/%62%61%7A"], "/foo/baz", False),  # doubt closes
        (["-/", "+/foo/%62%61%7a"], "/foo/%62%61%7A", True),
        (["-/foo/", "+/foo/%62*x"], "/foo/%62/x", True),
        (["-/foo/bar/more", "+/foo/%62%61%72"], "/foo/%62%61%72/more", False),  # the longer rule still wins
        (["+/", "-/foo/%62%61%7A"], "/foo/baz", False),  # a Disallow is decoded
        (["-/", "+/%C3%A4"], "/%c3%a4", True),
    ],
)
def test_an_allow_that_escapes_plain_characters_opens_only_what_is_written_so(
    lines: list[str], path: str, allowed: bool
) -> None:
    assert ruleset(*lines).allows(path)[0] is allowed


# What Google's crawler does beyond the RFC, and what amble answers; reasons in docs/decisions/0003.
OUR_ANSWERS = {
    ("accepted-mistakes", "FooBot", "http://foo.bar/x/y"): False,
    ("empty-string", "FooBot", ""): None,  # depends on the body: as Google
    ("empty-string", "", ""): True,
    ("index-page", "foobot", "http://foo.com/allowed-slash/"): False,  # Google: True
    ("index-page", "foobot", "http://foo.com/allowed-slash/index.htm"): False,
    ("index-page", "foobot", "http://foo.com/allowed-slash/index.html"): True,
    ("user-agent-name", "Foo", "http://foo.bar/x/y"): True,
    ("user-agent-name", "Foo Bar", "http://foo.bar/x/y"): False,
    ("user-agent-name", "foo", "http://foo.bar/x/y"): True,
    ("user-agent-name", "Foo", "http://foo.bar/a/b"): False,
    ("user-agent-name", "foo", "http://foo.bar/a/b"): False,
}
DIFFERS_FROM_GOOGLE = {("index-page", "foobot", "http://foo.com/allowed-slash/")}


@pytest.mark.parametrize("case", GOOGLE, ids=_name)
def test_each_google_specific_case_is_decided(case: dict[str, Any]) -> None:
    key = (case["group"], case["user_agent"], case["url"])
    decided = OUR_ANSWERS[key]
    ours = answer(case)
    assert decided is None or ours is decided
    assert (ours is not case["allowed"]) is (key in DIFFERS_FROM_GOOGLE)


def test_all_google_specific_cases_are_there() -> None:
    assert len(GOOGLE) == 22


# --- precedence and wildcards ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "path", "allowed", "pattern"),
    [
        ([], "/a", True, ""),
        (["-/"], "/a", False, "/"),
        (["-/"], "", False, "/"),
        (["-/a"], "/b", True, ""),
        (["-/a", "+/a"], "/a", True, "/a"),
        (["+/a", "-/a"], "/a", True, "/a"),
        (["-/a/b", "+/a"], "/a/b/c", False, "/a/b"),
        (["-/a", "+/a/b"], "/a/b/c", True, "/a/b"),
        (["-/a*", "+/a"], "/a", False, "/a*"),
        (["+/page", "-/*.htm"], "/page.htm", False, "/*.htm"),
        (["+/page$", "-/page"], "/page", True, "/page$"),
        (["+/page$", "-/page"], "/pages", False, "/page"),
        (["-/page$", "+/page"], "/page", False, "/page$"),
        (["+/$", "-/"], "/", True, "/$"),
        (["+/$", "-/"], "/?q", False, "/"),
        (["-*"], "/anything", False, "*"),
        (["-*$"], "/anything", False, "*$"),
        (["-/*$"], "/", False, "/*$"),
        (["-*/b"], "/a/b", False, "*/b"),
        (["-/a**b"], "/aXb", False, "/a**b"),
        (["-/*a*a*a"], "/aa", True, ""),
        (["-/*a*a*a"], "/xaxaxa", False, "/*a*a*a"),
        (["-/*ab$"], "/abab", False, "/*ab$"),
        (["-/a*a$"], "/a", True, ""),
        (["-/a*a$"], "/aa", False, "/a*a$"),
        (["-/a*bc*c$"], "/abc", True, ""),
        (["-/a$b"], "/a$b", False, "/a$b"),
        (["-/a$b"], "/a", True, ""),
        (["-/fish*.php"], "/Fish.PHP", True, ""),
        (["-/?"], "/?", False, "/?"),
        (["-/*?q="], "/x?q=1", False, "/*?q="),
    ],
)
def test_the_longest_match_wins_and_allow_wins_a_tie(
    lines: list[str], path: str, allowed: bool, pattern: str
) -> None:
    assert ruleset(*lines).allows(path) == (allowed, pattern)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/%62%61%7A", "/baz"),
        ("/baz", "/%62%61%7A"),
        ("/%7Euser", "/~user"),
        ("/~user", "/%7euser"),
        ("/%c3%a4", "/%C3%A4"),
        ("/a%2Fb", "/a%2fb"),
        ("/{id}", "/%7Bid%7D"),
        ("/?a={id}|^`", "/?a=%7Bid%7D%7C%5E%60"),
        ("/?a='b'", "/?a=%27b%27"),
        ("/%27b", "/'b"),
        ("/a%20b", "/a%20b"),
        ("/a b", "/a%20b"),
        # special characters meant literally (RFC 9309 2.2.3)
        ("/file-with-a-%2A.html", "/file-with-a-*.html"),
        ("/foo-%24", "/foo-$"),
    ],
)
def test_equivalent_spellings_match(pattern: str, path: str) -> None:
    assert ruleset(f"-{pattern}").allows(path) == (False, pattern)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/a%2Fb", "/a/b"),
        ("/a/b", "/a%2Fb"),
        ("/a%3Fb", "/a?b"),
        ("/%2A", "/x"),
        ("/a%24", "/a"),
        ("/A", "/a"),
    ],
)
def test_different_paths_do_not_match(pattern: str, path: str) -> None:
    assert ruleset(f"-{pattern}").allows(path) == (True, "")


def test_robots_txt_itself_is_always_allowed() -> None:
    rules = ruleset("-/", "-/robots.txt")
    assert rules.allows("/robots.txt") == (True, "")
    assert rules.allows("/robots.txt?x") == (False, "/robots.txt")
    assert rules.allows("/a/robots.txt") == (False, "/")


# --- an oracle that tries everything ---------------------------------------------------------------------------


def _matches(pattern: str, path: str) -> bool:
    """The definition, by recursion: exponential, fine for short strings."""
    if pattern == "":
        return True
    if pattern == "$":
        return path == ""
    if pattern[0] == "*":
        return any(_matches(pattern[1:], path[start:]) for start in range(len(path) + 1))
    return path[:1] == pattern[0] and _matches(pattern[1:], path[1:])


def _expected(rules: list[tuple[bool, str]], path: str) -> bool:
    hits = [(len(pattern), allow) for allow, pattern in rules if _matches(pattern, path)]
    return max(hits, default=(0, True))[1]


SHORT = st.text("ab*", max_size=6)


@given(
    rules=st.lists(st.tuples(st.booleans(), st.tuples(SHORT, st.sampled_from(["", "$"])).map("".join).map("/{}".format))),
    path=st.text("ab", max_size=8).map("/{}".format),
)  # fmt: skip
def test_matching_agrees_with_the_definition(rules: list[tuple[bool, str]], path: str) -> None:
    assert RuleSet(RobotsRules(tuple(rules))).allows(path)[0] is _expected(rules, path)
    with sifted_from(0):
        assert RuleSet(RobotsRules(tuple(rules))).allows(path)[0] is _expected(rules, path)


@contextmanager
def sifted_from(count: int) -> Iterator[None]:
    """Sets of so many rules are sifted for those that are worth a try; beyond that each rule is tried."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(robots, "_SIFTED_MIN", count)
        yield


PIECES = st.sampled_from(
    ["a", "ab", "b?", "shop", "item=", "/view/", "%62", "%C3%A4", "$", "catalogue-of", ".html"]
)
LONGER = st.lists(st.one_of(PIECES, st.just("*")), max_size=7).map(lambda parts: "/" + "".join(parts))


@given(
    rules=st.lists(st.tuples(st.booleans(), LONGER), max_size=40),
    paths=st.lists(st.lists(PIECES, max_size=8).map(lambda parts: "/" + "".join(parts)), max_size=12),
)
def test_of_many_rules_the_same_one_decides_as_when_each_is_tried(
    rules: list[tuple[bool, str]], paths: list[str]
) -> None:
    found = RobotsRules(tuple(rules))
    with sifted_from(1_000):
        plain = RuleSet(found)
        wanted = [plain.allows(path) for path in paths]
    with sifted_from(0):
        sifted = RuleSet(found)
        assert [sifted.allows(path) for path in paths] == wanted


# --- hostile files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    ["/" + "*a" * 1000 + "*b", "/" + "a*" * 5000 + "$", "*" * 100_000 + "b", "/" + "*aaaaaaab" * 200],
    ids=["stars", "anchored", "only stars", "near misses"],
)
def test_hostile_wildcards_take_linear_time(pattern: str) -> None:
    rules = ruleset(f"-{pattern}")
    path = "/" + "a" * 16_000
    started = time.process_time()
    rules.allows(path)
    assert time.process_time() - started < 0.25


def test_a_file_full_of_wildcards_is_matched_in_bounded_time() -> None:
    lines = [f"-/*{number:x}*{number * 7:x}*z" for number in range(20_000)]
    rules = ruleset(*lines)
    started = time.process_time()
    assert rules.allows("/" + "0123456789abcdef" * 120)[0]
    assert time.process_time() - started < 0.1


def test_of_a_file_full_of_wildcards_few_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Glob] = []
    matches = Glob.matches

    def counted(glob: Glob, text: str) -> bool:
        tried.append(glob)
        return matches(glob, text)

    monkeypatch.setattr(Glob, "matches", counted)
    lines = [f"-/*?item{number}=" for number in range(1_000)]
    lines += [f"-/user{number}/*/private" for number in range(1_000)]
    lines += [f"-/*/{number}.html$" for number in range(1_000)]
    rules = ruleset(*lines)
    assert rules.allows("/user77/photos/public")[0]
    assert not rules.allows("/user77/photos/private")[0]
    assert not rules.allows("/list?item500=1")[0]
    assert not rules.allows("/a/b/77.html")[0]
    assert len(tried) < 50


# --- retrieval -------------------------------------------------------------------------------------------------

POLICY = RobotsPolicy()
DAY_MS = 86_400_000
FOUND = RobotsRules(((False, "/a"),))
COPY = BodyRef(1, 2, 3)


@pytest.mark.parametrize(
    ("status", "rules", "outcome", "ttl_ms"),
    [
        (200, FOUND, RobotsOutcome.RULES, DAY_MS),
        (204, RobotsRules(), RobotsOutcome.RULES, DAY_MS),
        (304, FOUND, RobotsOutcome.RULES, DAY_MS),
        (400, None, RobotsOutcome.ALLOW_ALL, DAY_MS),
        (401, None, RobotsOutcome.ALLOW_ALL, DAY_MS),
        (403, FOUND, RobotsOutcome.ALLOW_ALL, DAY_MS),
        (404, None, RobotsOutcome.ALLOW_ALL, DAY_MS),
        (410, None, RobotsOutcome.ALLOW_ALL, DAY_MS),
        (499, None, RobotsOutcome.ALLOW_ALL, DAY_MS),
        (408, None, RobotsOutcome.UNREACHABLE, POLICY.unreachable_retry_ms),
        (425, None, RobotsOutcome.UNREACHABLE, POLICY.unreachable_retry_ms),
        (429, None, RobotsOutcome.UNREACHABLE, POLICY.unreachable_retry_ms),
        (200, None, RobotsOutcome.UNREACHABLE, POLICY.unreachable_retry_ms),
        (304, None, RobotsOutcome.UNREACHABLE, POLICY.unreachable_retry_ms),
        (302, FOUND, RobotsOutcome.UNREACHABLE, POLICY.unreachable_retry_ms),
        (500, FOUND, RobotsOutcome.UNREACHABLE, POLICY.unreachable_retry_ms),
        (503, None, RobotsOutcome.UNREACHABLE, POLICY.unreachable_retry_ms),
        (600, None, RobotsOutcome.UNREACHABLE, POLICY.unreachable_retry_ms),
    ],
)
def test_what_an_answer_means(
    status: int, rules: RobotsRules | None, outcome: RobotsOutcome, ttl_ms: int
) -> None:
    assert decide_answer(status, rules, cache_control="", policy=POLICY) == RobotsDecision(outcome, ttl_ms)


@pytest.mark.parametrize(
    ("cache_control", "ttl_ms"),
    [
        ("", DAY_MS),
        ("max-age=3600", 3_600_000),
        ("public, Max-Age=3600", 3_600_000),
        ('max-age="3600"', 3_600_000),
        ("max-age=99999999", DAY_MS),
        ("max-age=99999999999999999999999", DAY_MS),
        ("max-age=1", POLICY.fresh_ms_min),
        ("max-age=0, must-revalidate", POLICY.fresh_ms_min),
        ("no-cache", POLICY.fresh_ms_min),
        ("private, NO-STORE", POLICY.fresh_ms_min),
        ("no-cache=set-cookie", POLICY.fresh_ms_min),
        ("no-cache-at-all", DAY_MS),
        ("s-max-age=3600", DAY_MS),
        ("max-age=soon", DAY_MS),
    ],
)
def test_cache_control_shortens_within_the_policy(cache_control: str, ttl_ms: int) -> None:
    assert fresh_ms(POLICY, cache_control) == ttl_ms
    assert decide_answer(404, None, cache_control=cache_control, policy=POLICY).ttl_ms == ttl_ms


def _state(outcome: RobotsOutcome, fetched_at_ms: int, rules: BodyRef | None = COPY) -> RobotsState:
    return RobotsState(int(outcome), 7, fetched_at_ms, fetched_at_ms + DAY_MS, rules, 5_000)


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("prior", "age_ms", "throttled", "expected"),
    [
        (RobotsOutcome.RULES, 2 * HOUR_MS, False, RobotsDecision(RobotsOutcome.STALE_RULES, HOUR_MS)),
        (RobotsOutcome.RULES, 2 * HOUR_MS, True, RobotsDecision(RobotsOutcome.STALE_RULES, 300_000)),
        (RobotsOutcome.STALE_RULES, DAY_MS - 1, False, RobotsDecision(RobotsOutcome.STALE_RULES, 1)),
        (RobotsOutcome.STALE_RULES, DAY_MS, False, RobotsDecision(RobotsOutcome.UNREACHABLE, HOUR_MS)),
        (RobotsOutcome.RULES, 2 * DAY_MS, True, RobotsDecision(RobotsOutcome.UNREACHABLE, 300_000)),
        # doubt closes: that there were no rules is not a copy of rules
        (RobotsOutcome.ALLOW_ALL, 0, False, RobotsDecision(RobotsOutcome.UNREACHABLE, HOUR_MS)),
        (RobotsOutcome.MISSING, 0, False, RobotsDecision(RobotsOutcome.UNREACHABLE, HOUR_MS)),
        (RobotsOutcome.UNREACHABLE, 0, False, RobotsDecision(RobotsOutcome.UNREACHABLE, HOUR_MS)),
    ],
)
def test_what_a_failure_means(
    prior: RobotsOutcome, age_ms: int, throttled: bool, expected: RobotsDecision
) -> None:
    state = _state(prior, 1_000)
    assert decide_failure(state, policy=POLICY, now_ms=1_000 + age_ms, throttled=throttled) == expected


def test_a_copy_without_its_rules_serves_nobody() -> None:
    state = _state(RobotsOutcome.RULES, 0, rules=None)
    assert decide_failure(state, policy=POLICY, now_ms=1).outcome is RobotsOutcome.UNREACHABLE


def test_a_policy_may_let_the_last_copy_serve_longer() -> None:
    month = RobotsPolicy(stale_while_unreachable_ms=30 * DAY_MS)
    decision = decide_failure(_state(RobotsOutcome.RULES, 0), policy=month, now_ms=29 * DAY_MS)
    assert decision == RobotsDecision(RobotsOutcome.STALE_RULES, HOUR_MS)


def test_a_copy_kept_in_service_keeps_its_age_and_its_delay() -> None:
    kept = still_serving(_state(RobotsOutcome.RULES, 1_000))
    assert (kept.outcome, kept.fetched_at_ms, kept.rules, kept.crawl_delay_ms) == (
        RobotsOutcome.STALE_RULES,
        1_000,
        COPY,
        5_000,
    )
