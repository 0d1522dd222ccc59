"""Scope: what belongs to a crawl, by kind of scope and by the operator's patterns."""

from __future__ import annotations

import pytest

from amble.domain.decision import Reason, Rejected
from amble.domain.policy import ScopeKind
from amble.domain.scope import Scope

SEEDS = ["https://www.example.org/docs/start.html?x=/y/", "http://shop.example.net:8080/"]


def within(scope: Scope, url: str) -> bool:
    rejected = scope.judge(url)
    assert rejected is None or rejected.reason is Reason.OUT_OF_SCOPE
    return rejected is None


@pytest.mark.parametrize(
    ("kind", "url", "expected"),
    [
        (ScopeKind.HOST, "https://www.example.org/other", True),
        (ScopeKind.HOST, "http://www.example.org:81/", True),
        (ScopeKind.HOST, "http://shop.example.net/", True),
        (ScopeKind.HOST, "https://example.org/", True),
        (ScopeKind.HOST, "https://blog.example.org/", False),
        (ScopeKind.HOST, "https://a.www.example.org/", False),
        (ScopeKind.HOST, "https://www.example.org.evil.example/", False),
        (ScopeKind.HOST, "https://evil.example/www.example.org/", False),
        (ScopeKind.SITE, "https://example.org/", True),
        (ScopeKind.SITE, "http://a.b.example.org:81/", True),
        (ScopeKind.SITE, "https://example.net/", True),
        (ScopeKind.SITE, "https://notexample.org/", False),
        (ScopeKind.SITE, "https://org/", False),
        (ScopeKind.PREFIX, "https://www.example.org/docs/", True),
        (ScopeKind.PREFIX, "http://www.example.org/docs/a/b?c", True),
        (ScopeKind.PREFIX, "https://www.example.org/docs", False),
        (ScopeKind.PREFIX, "https://www.example.org/", False),
        (ScopeKind.PREFIX, "https://www.example.org:81/docs/", False),
        (ScopeKind.PREFIX, "http://shop.example.net:8080/any", True),
        (ScopeKind.PREFIX, "http://shop.example.net/any", False),
        (ScopeKind.ANY, "http://anything.example/", True),
    ],
)
def test_the_kind_of_scope(kind: ScopeKind, url: str, expected: bool) -> None:
    assert within(Scope(kind, SEEDS), url) is expected


def test_private_suffixes_and_addresses_are_sites_of_their_own() -> None:
    scope = Scope(ScopeKind.SITE, ["https://alice.github.io/", "http://127.0.0.1:8000/"])
    assert within(scope, "https://www.alice.github.io/")
    assert within(scope, "http://127.0.0.1:9000/")
    assert not within(scope, "https://bob.github.io/")
    assert not within(scope, "http://127.0.0.2:8000/")


def test_a_scope_without_seeds_holds_nothing_unless_it_is_any() -> None:
    for kind in ScopeKind:
        assert within(Scope(kind), "http://a.example/") is (kind is ScopeKind.ANY)


@pytest.mark.parametrize("kind", list(ScopeKind))
def test_further_hosts_belong_to_every_kind_of_scope(kind: ScopeKind) -> None:
    scope = Scope(kind, SEEDS, hosts=["CDN.example.", "*.files.example"])
    assert within(scope, "http://cdn.example/")
    assert within(scope, "http://a.b.files.example/")
    if kind is not ScopeKind.ANY:
        assert not within(scope, "http://a.cdn.example/")
        assert not within(scope, "http://files.example/")
        assert not within(scope, "http://notfiles.example/")


@pytest.mark.parametrize(
    ("pattern", "url", "excluded"),
    [
        ("/private/", "http://a.example/private/x", True),
        ("/private/", "http://a.example/x/private/", False),
        ("/*.pdf$", "http://a.example/x.pdf", True),
        ("/*.pdf$", "http://a.example/x.pdf?y", False),
        ("*?print=", "http://a.example/x?print=1", True),
        ("*example/x", "http://a.example/x", True),
        ("http://a.example/x", "http://a.example/xy", True),
        ("http://a.example/x", "https://a.example/xy", False),
        ("https://*", "https://a.example/", True),
        ("a.example/x", "https://a.example/x", True),
        ("a.example/x", "https://b.a.example/x", False),
        ("a.example:81", "https://a.example:81/x", True),
        ("a.example", "https://a.example.net/", True),
        ("", "https://a.example/", True),
    ],
)
def test_an_exclude_pattern_keeps_a_url_out(pattern: str, url: str, excluded: bool) -> None:
    rejected = Scope(ScopeKind.ANY, exclude=[pattern]).judge(url)
    assert rejected == (Rejected(Reason.EXCLUDED_BY_RULE, pattern) if excluded else None)


def test_a_url_must_match_one_include_pattern_when_there_are_any() -> None:
    scope = Scope(ScopeKind.HOST, ["http://a.example/"], include=["/docs/", "/blog/"], exclude=["/docs/old/"])
    assert scope.judge("http://a.example/docs/x") is None
    assert scope.judge("http://a.example/blog/") is None
    assert scope.judge("http://a.example/shop/") == Rejected(
        Reason.OUT_OF_SCOPE, "no include pattern matches"
    )
    assert scope.judge("http://a.example/docs/old/x") == Rejected(Reason.EXCLUDED_BY_RULE, "/docs/old/")
    # including is no way around the kind of scope
    assert scope.judge("http://b.example/docs/x") == Rejected(
        Reason.OUT_OF_SCOPE, "b.example is outside the scope (host)"
    )


def test_a_seed_is_bound_only_by_exclude_patterns() -> None:
    scope = Scope(ScopeKind.HOST, [], include=["/docs/"], exclude=["/docs/old/"])
    assert scope.judge_seed("http://anywhere.example/") is None
    assert scope.judge_seed("http://anywhere.example/docs/old/") == Rejected(
        Reason.EXCLUDED_BY_RULE, "/docs/old/"
    )


def test_sitemaps_and_feeds_may_stand_outside_folder_and_include_patterns_but_not_outside_the_host() -> None:
    scope = Scope(ScopeKind.PREFIX, ["http://a.example/docs/"], include=["*.html$"], exclude=["/news"])
    assert scope.judge_auxiliary("https://a.example/sitemap.xml") is None
    assert scope.judge_auxiliary("http://a.example/news.xml") == Rejected(Reason.EXCLUDED_BY_RULE, "/news")
    for outside in ("http://b.example/docs/sitemap.xml", "http://a.example:81/sitemap.xml"):
        rejected = scope.judge_auxiliary(outside)
        assert rejected is not None
        assert rejected.reason is Reason.OUT_OF_SCOPE
    assert Scope(ScopeKind.HOST, ["http://a.example/"]).judge_auxiliary("http://a.example/feed") is None


@pytest.mark.parametrize(
    ("seed", "url", "within"),
    [
        ("https://example.org/", "https://www.example.org/a", True),
        ("https://www.example.org/", "http://example.org/a", True),
        ("https://example.org/", "https://www2.example.org/", False),
        ("https://example.org/", "https://docs.example.org/", False),
        ("http://127.0.0.1/", "http://127.0.0.2/", False),
    ],
)
def test_a_host_and_its_www_twin_are_one_scope(seed: str, url: str, *, within: bool) -> None:
    assert (Scope(ScopeKind.HOST, [seed]).judge(url) is None) is within
