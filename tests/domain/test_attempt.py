"""Retry or give up: every category, every try, and the delays between them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.attempt import (
    Edge,
    GiveUp,
    Lease,
    LeaseKey,
    OriginFacts,
    RetryAt,
    RobotsState,
    UrlKind,
    after_failure,
)
from amble.domain.decision import Category
from amble.domain.fetched import BodyRef, Validators
from amble.domain.policy import RetryPolicy

POLICY = RetryPolicy(tries_max=4, base_ms=5_000, cap_ms=900_000)
ONE_TRY = {Category.REFUSED_DESTINATION, Category.ROBOTS_HOPS, Category.TLS_CERTIFICATE}
TWO_TRIES = {
    Category.DNS_NOT_FOUND,
    Category.PROTOCOL_ERROR,
    Category.HEADERS_TOO_LARGE,
    Category.TLS_FAILED,
    Category.PEER_MISMATCH,
}


@pytest.mark.parametrize("category", list(Category))
def test_each_category_has_its_number_of_tries(category: Category) -> None:
    tries_max = 1 if category in ONE_TRY else 2 if category in TWO_TRIES else POLICY.tries_max
    for tries in range(1, 10):
        decision = after_failure(category, tries, POLICY, 0.0)
        assert isinstance(decision, RetryAt) is (tries < tries_max)


@pytest.mark.parametrize(
    ("tries", "jitter", "delay_ms"),
    [(1, 0.0, 2_500), (1, 0.5, 3_750), (2, 0.0, 5_000), (3, 0.0, 10_000), (3, 0.999999, 19_999)],
)
def test_the_delay_doubles_and_half_of_it_is_chance(tries: int, jitter: float, delay_ms: int) -> None:
    assert after_failure(Category.CONNECT_RESET, tries, POLICY, jitter) == RetryAt(delay_ms)


@given(
    tries=st.integers(1, 10**9),
    jitter=st.floats(0, 1, exclude_max=True),
    base_ms=st.integers(0, 10**9),
    cap_ms=st.integers(0, 10**9),
)
def test_the_delay_stays_below_its_cap_for_any_policy(
    tries: int, jitter: float, base_ms: int, cap_ms: int
) -> None:
    policy = RetryPolicy(tries_max=10**12, base_ms=base_ms, cap_ms=cap_ms)
    decision = after_failure(Category.HTTP_SERVER_ERROR, tries, policy, jitter)
    assert isinstance(decision, RetryAt)
    assert 0 <= decision.delay_ms <= cap_ms


def test_a_policy_of_one_try_never_tries_again() -> None:
    once = RetryPolicy(tries_max=1)
    assert all(after_failure(category, 1, once, 0.0) == GiveUp() for category in Category)


def test_stored_numbers_never_change_their_meaning() -> None:
    assert [int(kind) for kind in UrlKind] == [0, 1, 2, 3]
    assert [edge.name for edge in Edge] == [
        "SEED", "ANCHOR", "REDIRECT", "FRAME", "CANONICAL", "ALTERNATE", "FEED", "REFRESH", "NEXT", "ROBOTS",
        "SITEMAP", "IMAGE", "OPERATOR",
    ]  # fmt: skip
    assert [int(edge) for edge in Edge] == list(range(13))


def test_a_lease_survives_the_wire_and_knows_its_url() -> None:
    lease = Lease(
        key=LeaseKey(1, 2, b"t"),
        origin_id=3,
        origin="https://a.example",
        path="/x?y",
        kind=UrlKind.PAGE,
        depth=1,
        hops=0,
        tries=0,
        crawl_generation=1,
        deadline_ms=99,
        facts=OriginFacts(1, 2_000, 10, 0, RobotsState(1, 2, 3, 4, BodyRef(1, 2, 3), 5)),
        validators=Validators('"e"', None),
        prior_body=BodyRef(4, 5, 6),
        prior_digest=b"d" * 32,
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(lease), type=Lease) == lease
    assert lease.url == "https://a.example/x?y"
