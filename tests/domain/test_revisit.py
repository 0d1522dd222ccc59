"""When a URL is due again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.revisit import ONCE, FreshnessClass, next_due_ms

HOUR_MS = 3_600_000
DAILY = FreshnessClass(
    name="daily", target_ms=24 * HOUR_MS, interval_min_ms=HOUR_MS, interval_max_ms=60 * HOUR_MS
)


@pytest.mark.parametrize("checks", [0, 1, 100])
def test_a_page_that_is_visited_once_is_never_due_again(checks: int) -> None:
    assert next_due_ms(ONCE, checks=checks, changes=0) is None


@pytest.mark.parametrize(
    ("checks", "changes", "hours"),
    [
        (0, 0, 24),
        (1, 0, 24),
        (1, 1, 24),
        (4, 4, 12),
        (4, 2, 24),
        (4, 1, 48),
        (10, 1, 60),  # four times the target, but not beyond the longest interval
        (10, 0, 60),
    ],
)
def test_what_changes_often_is_seen_often(checks: int, changes: int, hours: int) -> None:
    assert next_due_ms(DAILY, checks=checks, changes=changes) == hours * HOUR_MS


@given(checks=st.integers(0, 10**6), share=st.floats(0, 1), target_ms=st.integers(1, 10**12))
def test_the_interval_stays_within_its_bounds(checks: int, share: float, target_ms: int) -> None:
    freshness = FreshnessClass(target_ms=target_ms)
    due_ms = next_due_ms(freshness, checks=checks, changes=int(checks * share))
    assert due_ms is not None
    assert freshness.interval_min_ms <= due_ms <= freshness.interval_max_ms


@given(checks=st.integers(2, 1_000), data=st.data())
def test_more_changes_never_mean_a_later_visit(checks: int, data: st.DataObject) -> None:
    few = data.draw(st.integers(0, checks))
    many = data.draw(st.integers(few, checks))
    later, sooner = (next_due_ms(DAILY, checks=checks, changes=changes) for changes in (few, many))
    assert later is not None
    assert sooner is not None
    assert sooner <= later
