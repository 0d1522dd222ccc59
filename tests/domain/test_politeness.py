"""Spacing, backoff and Retry-After of one origin."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.decision import Category
from amble.domain.policy import OriginPolicy
from amble.domain.politeness import BACKOFF_LEVEL_MAX, backoff, backs_off, effective_delay_ms, retry_after_ms

POLICY = OriginPolicy()
FIXED = OriginPolicy(delay_fixed=True)


@pytest.mark.parametrize(
    ("policy", "spacing_ms", "crawl_delay_ms", "last_fetch_ms", "delay_ms"),
    [
        (POLICY, 2_000, 0, 0, 2_000),
        (POLICY, 2_000, 0, 399, 2_000),
        (POLICY, 2_000, 0, 1_000, 5_000),
        (POLICY, 2_000, 0, 6_000, 30_000),
        (POLICY, 2_000, 0, 60_000, 30_000),
        (POLICY, 40_000, 0, 60_000, 40_000),
        (POLICY, 2_000, 10_000, 1_000, 10_000),
        (POLICY, 2_000, 1_000, 0, 2_000),
        (POLICY, 2_000, 300_000, 0, 300_000),
        (POLICY, 2_000, 86_400_000, 0, 300_000),
        # the operator named the delay: nothing on top, but what the site asks for still counts
        (FIXED, 100, 0, 60_000, 100),
        (FIXED, 100, 10_000, 60_000, 10_000),
        (FIXED, 0, 0, 0, 0),
    ],
)
def test_the_longest_wish_is_the_delay(
    policy: OriginPolicy, spacing_ms: int, crawl_delay_ms: int, last_fetch_ms: int, delay_ms: int
) -> None:
    assert (
        effective_delay_ms(
            policy, spacing_ms=spacing_ms, crawl_delay_ms=crawl_delay_ms, last_fetch_ms=last_fetch_ms
        )
        == delay_ms
    )


OVERLOADED = {
    Category.HTTP_THROTTLED,
    Category.HTTP_SERVER_ERROR,
    Category.CONNECT_REFUSED,
    Category.CONNECT_TIMEOUT,
    Category.CONNECT_UNREACHABLE,
    Category.TLS_TIMEOUT,
    Category.TIMEOUT_FIRST_BYTE,
}


@pytest.mark.parametrize("category", [None, *Category])
def test_only_signs_of_trouble_at_the_origin_back_off(category: Category | None) -> None:
    assert backs_off(category) is (category in OVERLOADED)


@pytest.mark.parametrize(
    ("level", "category", "retry_after", "jitter", "expected"),
    [
        (0, None, None, 0.9, (0, 0)),
        (3, None, None, 0.9, (2, 0)),
        (3, None, 60_000, 0.9, (2, 0)),
        # of no concern to the origin
        (3, Category.PROTOCOL_ERROR, None, 0.9, (3, 0)),
        (3, Category.PROTOCOL_ERROR, 60_000, 0.9, (3, 60_000)),
        # one hiccup costs no rest
        (0, Category.HTTP_SERVER_ERROR, None, 0.9, (1, 0)),
        (0, Category.HTTP_SERVER_ERROR, 60_000, 0.0, (1, 60_000)),
        # a server that says so is believed at once
        (0, Category.HTTP_THROTTLED, None, 0.0, (1, 5_000)),
        (0, Category.HTTP_THROTTLED, None, 0.5, (1, 7_500)),
        (0, Category.HTTP_THROTTLED, 1_000, 0.0, (1, 5_000)),
        (0, Category.HTTP_THROTTLED, 60_000, 0.0, (1, 60_000)),
        (1, Category.CONNECT_TIMEOUT, None, 0.0, (2, 10_000)),
        (2, Category.CONNECT_TIMEOUT, None, 0.0, (3, 20_000)),
        (20, Category.CONNECT_TIMEOUT, None, 0.0, (BACKOFF_LEVEL_MAX, 1_800_000)),
        # what a server may ask for is capped
        (0, Category.HTTP_THROTTLED, 10**12, 0.0, (1, POLICY.retry_after_cap_ms)),
    ],
)
def test_level_and_rest_after_one_request(
    level: int, category: Category | None, retry_after: int | None, jitter: float, expected: tuple[int, int]
) -> None:
    assert (
        backoff(POLICY, level=level, category=category, retry_after_ms=retry_after, jitter=jitter) == expected
    )


@given(
    level=st.integers(0, BACKOFF_LEVEL_MAX),
    category=st.sampled_from([None, *Category]),
    retry_after=st.none() | st.integers(0, 10**15),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_level_and_rest_are_bounded(
    level: int, category: Category | None, retry_after: int | None, jitter: float
) -> None:
    raised, rest_ms = backoff(
        POLICY, level=level, category=category, retry_after_ms=retry_after, jitter=jitter
    )
    assert 0 <= raised <= BACKOFF_LEVEL_MAX
    assert 0 <= rest_ms <= max(POLICY.backoff_cap_ms, POLICY.retry_after_cap_ms)


NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        ("0", 0),
        (" 120 ", 120_000),
        ("0000000000120", 10**15),
        ("9" * 5_000, 10**15),
        ("Sun, 01 Mar 2026 12:01:00 GMT", 60_000),
        ("Sun, 01 Mar 2026 12:01:00", 60_000),
        ("Sun, 01 Mar 2026 12:01:00 -0000", 60_000),
        ("Sun, 01 Mar 2026 14:01:00 +0200", 60_000),
        ("Sunday, 01-Mar-26 12:01:00 GMT", 60_000),
        ("Sun, 01 Mar 2026 11:59:00 GMT", 0),
        ("Mon, 01 Jan 0001 00:00:00 GMT", 0),
        ("Sun, 99 Mar 2026 12:01:00 GMT", None),
        ("Sun, 01 Mar 99999 12:01:00 GMT", None),
    ],
)
def test_both_forms_of_retry_after(value: str | None, expected: int | None) -> None:
    assert retry_after_ms(value, NOW) == expected


@given(
    value=st.text(max_size=40)
    | st.from_regex(r"[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} [+-]?\w{3,5}")
)
def test_any_retry_after_has_an_answer(value: str) -> None:
    answer = retry_after_ms(value, NOW)
    assert answer is None or answer >= 0
