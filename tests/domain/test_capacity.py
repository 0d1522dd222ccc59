"""Capacity: the worked numbers of well-known crawl targets come out, and verdicts say what would have to change."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.assumptions import INPUTS
from amble.domain.capacity import (
    LINES,
    Change,
    Lever,
    Outcome,
    Workload,
    estimate,
    figures_of,
    problems_of,
)

# Fixed spacing of two seconds, nothing times out: the assumptions under which the targets below were worked out.
EVEN: dict[str, Any] = {"adaptive_factor": 0.0, "timeout_share": 0.0}
# 15 billion pages in four weeks, 100 KB each, a second each, ten links.
WEB = {"pages": 15e9, "days": 28.0, **EVEN}
# 10 million fetches a day with a fivefold peak.
DAILY = {"pages": 10e6, "days": 1.0, "peak": 5.0, **EVEN}
# A billion pages a month with a twofold peak, kept for five years.
MONTHLY = {"pages": 1e9, "days": 30.0, "peak": 2.0, "keep_days": 5 * 365.0, **EVEN}


@pytest.mark.parametrize(
    ("workload", "name", "value", "tolerance"),
    [
        (WEB, "pages_per_s", 6_200, 0.001),
        (WEB, "ingress_bytes_per_s", 620e6, 0.001),
        (WEB, "ingress_bytes_per_day", 53.6e12, 0.001),
        (WEB, "corpus_bytes", 1.5075e15, 0.0001),
        (WEB, "corpus_copies_bytes", 4.5e15, 0.01),
        ({**WEB, "facts_bytes": 0.0}, "corpus_bytes", 1.5e15, 0.0001),
        (WEB, "origins_needed", 12_400, 0.001),
        (WEB, "candidates_per_s", 62_000, 0.001),
        (WEB, "in_flight", 6_200, 0.001),
        ({**WEB, "origins": 1_000.0}, "ceiling_starts_per_s", 500, 0.001),
        ({**WEB, "body_reads": 2.0}, "reread_bytes_per_s", 1.24e9, 0.001),
        ({**WEB, "duplicate_share": 0.3}, "parse_bytes_spared_per_s", 186e6, 0.001),
        ({**WEB, "pages": 1e9, "known_per_page": 1.0}, "frontier_bytes", 200e9, 0.001),
        (WEB, "near_index_bytes", 27e12, 0.001),
        ({**WEB, "near_bytes": 0.0}, "near_index_bytes", 0.0, 0),
        (WEB, "peak_ingress_bits_per_s", 5.0e9, 0.01),
        (WEB, "database_servers", 8, 0),
        (WEB, "database_machines", 16, 0),
        (WEB, "database_log_bytes_per_s", 67e6, 0.001),
        ({**WEB, "utilisation": 1.0}, "database_cores", 3.0, 0.01),
        (DAILY, "pages_per_s", 116, 0.005),
        (DAILY, "peak_pages_per_s", 580, 0.005),
        (DAILY, "ingress_bytes_per_day", 1e12, 0.001),
        (DAILY, "in_flight", 116, 0.005),
        (MONTHLY, "pages_per_s", 400, 0.04),
        (MONTHLY, "peak_pages_per_s", 800, 0.04),
        (MONTHLY, "peak_in_flight", 800, 0.04),
        ({**MONTHLY, "facts_bytes": 0.0}, "corpus_bytes", 100e12, 0.001),
        ({**MONTHLY, "facts_bytes": 0.0}, "kept_corpus_bytes", 6e15, 0.02),
        ({**MONTHLY, "pages": 10e9, "known_per_page": 1.0}, "filter_bytes", 12e9, 0.005),
        ({**MONTHLY, "pages": 100e9, "known_per_page": 1.0}, "filter_bytes", 120e9, 0.005),
        ({**MONTHLY, "url_bytes": 100.0, "known_per_page": 3.0}, "frontier_bytes", 300e9, 0.001),
        (MONTHLY, "sqlite_files", 2, 0),
        (MONTHLY, "database_servers", 1, 0),
    ],
)
def test_worked_numbers_come_out(workload: dict[str, Any], name: str, value: float, tolerance: float) -> None:
    assert estimate(Workload(**workload))[name] == pytest.approx(value, rel=tolerance or 1e-9)


@pytest.mark.parametrize(
    ("share", "in_flight"),
    [(0.0, 6_200), (0.01, 6_820), (0.05, 9_460), (0.10, 13_090), (0.20, 21_700)],
)
def test_a_ten_second_tail_takes_many_more_slots(share: float, in_flight: float) -> None:
    """Starts grow by those that bring nothing, and each of those holds its slot ten times as long."""
    found = estimate(Workload(**{**WEB, "timeout_share": share}))
    assert found["in_flight"] == pytest.approx(in_flight, rel=0.001)


def test_slow_origins_get_longer_delays_unless_the_spacing_is_fixed() -> None:
    fixed = estimate(Workload(**WEB))
    adaptive = estimate(Workload(**{**WEB, "adaptive_factor": 5.0}))
    assert fixed["interval_s"] == 2.0
    assert adaptive["interval_s"] == 5.0
    assert adaptive["origins_needed"] == pytest.approx(31_000, rel=0.001)


def test_one_request_at_a_time_bounds_an_origin_by_its_own_slowness() -> None:
    slow = {**WEB, "service_s": 8.0}
    assert estimate(Workload(**slow))["interval_s"] == 8.0
    assert estimate(Workload(**{**slow, "active_max": 4.0}))["interval_s"] == 2.0


def test_without_origins_the_answer_is_how_many_it_takes() -> None:
    verdict = estimate(Workload(**WEB)).verdict
    assert verdict.outcome is Outcome.NEEDS_ORIGINS
    (change,) = verdict.changes
    assert change.lever is Lever.ORIGINS
    assert change.need == pytest.approx(12_400, rel=0.001)


def test_too_few_origins_are_told_with_what_would_have_to_change() -> None:
    verdict = estimate(Workload(**WEB, origins=1_000.0)).verdict
    assert verdict.outcome is Outcome.NOT_POLITELY
    needs = {change.lever: change.need for change in verdict.changes}
    assert needs[Lever.ORIGINS] == pytest.approx(12_400, rel=0.001)
    assert needs[Lever.DAYS] == pytest.approx(347.2, rel=0.001)
    assert needs[Lever.INTERVAL] == pytest.approx(0.161, rel=0.01)
    assert needs[Lever.PAGES] == pytest.approx(1.21e9, rel=0.001)


@pytest.mark.parametrize("lever", [Lever.ORIGINS, Lever.DAYS, Lever.PAGES])
def test_each_change_alone_makes_the_target_reachable(lever: Lever) -> None:
    workload = {**WEB, "origins": 1_000.0}
    change = next(item for item in estimate(Workload(**workload)).verdict.changes if item.lever is lever)
    more = 1 / 1.001 if lever is Lever.PAGES else 1.001
    changed = {**workload, lever.value: change.need * more}
    assert estimate(Workload(**changed)).verdict.outcome is Outcome.REACHABLE


def test_enough_origins_and_too_few_requests_at_once() -> None:
    workload = {**WEB, "origins": 20_000.0}
    assert estimate(Workload(**workload)).verdict.outcome is Outcome.REACHABLE
    verdict = estimate(Workload(**workload, concurrency=256.0)).verdict
    assert verdict.outcome is Outcome.NEEDS_CONCURRENCY
    assert verdict.changes == (Change(Lever.CONCURRENCY, 256.0, estimate(Workload(**workload))["in_flight"]),)


def test_the_ceiling_is_left_out_where_the_origins_are_not_known() -> None:
    names = {figure.line.name for figure in figures_of(Workload(**WEB))}
    assert "origins_needed" in names
    assert "ceiling_starts_per_s" not in names


def test_every_input_is_a_field_of_a_workload_and_accepts_its_own_default() -> None:
    assert [item.name for item in fields(Workload)] == list(INPUTS)
    assert all(item.default is None or item.accepts(item.default) for item in INPUTS.values())


def test_every_figure_has_a_name_of_its_own() -> None:
    names = [line.name for line in LINES]
    assert len(names) == len(set(names))
    assert not set(names) & set(INPUTS)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"timeout_share": 0.6, "error_share": 0.4}, "leave no start"),
        ({"keep_days": 3.0}, "keep_days 3 is shorter than days 28"),
    ],
)
def test_what_does_not_fit_together_is_told(changes: dict[str, float], told: str) -> None:
    (problem,) = problems_of(Workload(**{**WEB, **changes}))
    assert told in problem


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("pages", 0.0, False),
        ("pages", 1.0, True),
        ("days", -1.0, False),
        ("origins", 0.0, True),
        ("timeout_share", 0.0, True),
        ("timeout_share", 1.0, False),
        ("compression", 0.0, False),
        ("spacing_s", 0.0, True),
        ("service_s", math.nan, False),
    ],
)
def test_an_input_knows_what_it_accepts(name: str, value: float, accepted: bool) -> None:
    assert INPUTS[name].accepts(value) is accepted


@given(
    pages=st.floats(1, 1e12),
    days=st.floats(0.01, 10_000),
    origins=st.floats(1, 1e7),
    service_s=st.floats(0.01, 100),
    timeout_share=st.floats(0, 0.5),
)
def test_a_target_is_reachable_exactly_when_there_are_origins_enough(
    pages: float, days: float, origins: float, service_s: float, timeout_share: float
) -> None:
    found = estimate(
        Workload(pages=pages, days=days, origins=origins, service_s=service_s, timeout_share=timeout_share)
    )
    enough = found["origins_needed"] <= origins
    if found["origins_needed"] != pytest.approx(origins):
        assert (found.verdict.outcome is Outcome.REACHABLE) == enough
