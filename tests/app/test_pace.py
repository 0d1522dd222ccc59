"""The pace shown is that of the last seconds, whether or not anything was counted in them."""

from __future__ import annotations

import pytest

from amble.app.pace import Pace


def test_nothing_is_known_before_the_first_count() -> None:
    assert Pace().per_s(10.0) == 0.0


def test_a_steady_crawl_shows_its_rate() -> None:
    pace = Pace()
    for step in range(100):
        pace.note(step * 0.25, step * 5)
    assert pace.per_s(99 * 0.25) == pytest.approx(20.0, rel=0.05)


def test_pages_counted_between_two_notes_are_in_the_rate() -> None:
    pace = Pace()
    pace.note(0.0, 0)
    pace.note(0.4, 40)
    assert pace.per_s(0.4) == pytest.approx(100.0)


def test_a_stall_brings_the_rate_down_to_nothing() -> None:
    pace = Pace()
    for step in range(20):
        pace.note(step * 0.5, step * 10)
    rates = [pace.per_s(9.5 + waited) for waited in (0.0, 2.0, 4.0, 6.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 0.0


def test_a_burst_after_a_stall_is_not_thinned_by_the_stall() -> None:
    pace = Pace()
    for now_s, pages in ((0.0, 0), (0.5, 10), (60.0, 10), (62.0, 110)):
        pace.note(now_s, pages)
    assert pace.per_s(62.0) > 15.0
    assert pace.per_s(65.0) == pytest.approx(20.0)


def test_partitions_that_come_and_go_are_no_pages_fetched_or_lost() -> None:
    pace = Pace()
    for step in range(10):
        pace.note(step * 0.5, 1_000 + step * 5, of=(0, 1))
    pace.note(5.0, 300, of=(0,))
    assert pace.per_s(5.0) == 0.0
    pace.note(6.0, 310, of=(0,))
    assert pace.per_s(6.0) == pytest.approx(10.0)
    pace.note(6.5, 5_000, of=(0, 2))
    assert pace.per_s(6.5) == 0.0
