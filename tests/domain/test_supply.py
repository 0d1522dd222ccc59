"""What known origins permit in a time, which of them hold a crawl up, and what would have to change."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.capacity import Lever, Outcome, Workload
from amble.domain.policy import OriginPolicy, UrlLimits
from amble.domain.report import OriginLine
from amble.domain.supply import (
    BOTTLENECKS_MAX,
    DAY_S,
    OriginSupply,
    SupplyCurve,
    Survey,
    estimate_folder,
    supply_of,
)

FIXED = OriginPolicy(delay_fixed=True)


def origin(name: str = "https://a.example", **facts: Any) -> OriginLine:
    return OriginLine(
        **{
            "origin_id": 1,
            "origin": name,
            "wake_ms": None,
            "next_start_ms": 0,
            "rest_until_ms": 0,
            "backoff_level": 0,
            "last_fetch_ms": 200,
            "leased": 0,
            "active": 0,
            "active_max": None,
            "spacing_ms": None,
            "paused": False,
            "queued": 10,
            "urls": 30,
            "pages": 20,
            "robots_outcome": 1,
            "robots_version": 1,
            "robots_fetched_ms": 0,
            "robots_expires_ms": 0,
            "robots_rules": None,
            "crawl_delay_ms": 0,
            **facts,
        }
    )


def supply(queued: int, interval_s: float = 2.0, **facts: Any) -> OriginSupply:
    facts = {"origin": "https://a.example", "may_hold": queued, "cause": "spacing", **facts}
    return OriginSupply(queued=queued, interval_s=interval_s, **facts)


def surveyed(*supplies: OriginSupply, days: float = 1.0) -> Survey:
    survey = Survey(time_s=days * DAY_S)
    for item in supplies:
        survey.add(item)
    return survey


def workload(pages: float, days: float = 1.0, **facts: Any) -> Workload:
    return Workload(**{"pages": pages, "days": days, "timeout_share": 0.0, "service_s": 0.2, **facts})


# ---- the curve


def test_each_origin_gives_one_start_per_interval_until_its_urls_are_used_up() -> None:
    curve = SupplyCurve([(2.0, 10), (5.0, 2), (1.0, inf)])
    assert curve.within(0) == 0
    assert curve.within(10) == pytest.approx(5 + 2 + 10)
    assert curve.within(1_000) == pytest.approx(10 + 2 + 1_000)


@given(
    loads=st.lists(st.tuples(st.floats(0.01, 1_000), st.integers(0, 10_000)), max_size=20),
    seconds=st.floats(0, 1e6),
)
def test_the_curve_is_the_sum_over_origins(loads: list[tuple[float, int]], seconds: float) -> None:
    expected = sum(min(amount, seconds / interval) for interval, amount in loads)
    assert SupplyCurve(loads).within(seconds) == pytest.approx(expected, abs=1e-6)


@given(
    loads=st.lists(st.tuples(st.floats(0.01, 1_000), st.integers(1, 10_000)), min_size=1, max_size=20),
    share=st.floats(0.01, 0.99),
)
def test_the_time_for_an_amount_is_when_that_amount_is_permitted(
    loads: list[tuple[float, int]], share: float
) -> None:
    curve = SupplyCurve(loads)
    wanted = share * sum(amount for _, amount in loads)
    seconds = curve.seconds_for(wanted)
    assert curve.within(seconds) == pytest.approx(wanted, rel=1e-6)
    assert curve.within(seconds * 0.99) < wanted


@given(loads=st.lists(st.tuples(st.floats(0.01, 1_000), st.integers(1, 10_000)), min_size=1, max_size=50))
def test_all_of_it_takes_as_long_as_the_slowest_origin(loads: list[tuple[float, int]]) -> None:
    curve = SupplyCurve(loads)
    slowest = max(interval * amount for interval, amount in loads)
    assert curve.seconds_for(sum(amount for _, amount in loads)) == pytest.approx(slowest)


def test_more_than_there_is_takes_for_ever() -> None:
    assert SupplyCurve([(1.0, 10)]).seconds_for(11) == inf
    assert SupplyCurve([]).seconds_for(1) == inf
    assert SupplyCurve([]).seconds_for(0) == 0


# ---- one origin


@pytest.mark.parametrize(
    ("facts", "policy", "interval_s", "cause"),
    [
        ({}, OriginPolicy(), 2.0, "spacing"),
        ({"spacing_ms": 7_000}, OriginPolicy(), 7.0, "spacing"),
        ({"crawl_delay_ms": 10_000}, OriginPolicy(), 10.0, "crawl_delay"),
        ({"crawl_delay_ms": 900_000}, OriginPolicy(), 300.0, "crawl_delay"),
        ({"last_fetch_ms": 1_000}, OriginPolicy(), 5.0, "adaptive"),
        ({"last_fetch_ms": 1_000}, FIXED, 2.0, "spacing"),
        ({"last_fetch_ms": 50_000}, OriginPolicy(), 50.0, "duration"),
        ({"last_fetch_ms": 50_000, "active_max": 10}, FIXED, 5.0, "duration"),
    ],
)
def test_the_interval_of_an_origin_and_what_sets_it(
    facts: dict[str, Any], policy: OriginPolicy, interval_s: float, cause: str
) -> None:
    found = supply_of(origin(**facts), policy, UrlLimits())
    assert (found.interval_s, found.cause) == (interval_s, cause)


def test_an_origin_may_come_to_hold_what_its_url_budget_leaves() -> None:
    limits = UrlLimits(urls_per_origin_max=100)
    assert supply_of(origin(queued=10, urls=30), FIXED, limits).may_hold == 80
    assert supply_of(origin(queued=10, urls=100), FIXED, limits).may_hold == 10


def test_nothing_more_is_expected_of_an_origin_whose_queue_is_empty() -> None:
    assert supply_of(origin(queued=0), FIXED, UrlLimits()).may_hold == 0


# ---- many


def test_a_queue_that_is_long_enough_and_spread_enough_is_reachable() -> None:
    found = estimate_folder(workload(1_000), surveyed(*[supply(20)] * 60))
    assert found.estimate.verdict.outcome is Outcome.REACHABLE
    assert found.known_starts == 1_200
    assert not found.bottlenecks


def test_one_giant_origin_cannot_give_its_queue_in_time() -> None:
    giant = supply(1_000_000, origin="https://giant.example")
    found = estimate_folder(workload(100_000), surveyed(giant, *[supply(20)] * 10))
    verdict = found.estimate.verdict
    assert verdict.outcome is Outcome.NOT_POLITELY
    assert verdict.starts_possible == pytest.approx(DAY_S / 2 + 200)
    assert [item.origin for item in found.bottlenecks] == ["https://giant.example"]
    assert found.surplus == pytest.approx(1_000_000 - DAY_S / 2)
    needs = {change.lever: change.need for change in verdict.changes}
    assert needs[Lever.DAYS] == pytest.approx((100_000 - 200) * 2 / DAY_S, rel=1e-6)
    assert needs[Lever.PAGES] == pytest.approx(DAY_S / 2 + 200)


def test_too_few_known_urls_on_willing_origins_is_a_matter_of_discovery() -> None:
    found = estimate_folder(workload(5_000), surveyed(*[supply(20, may_hold=10_000)] * 100))
    verdict = found.estimate.verdict
    assert verdict.outcome is Outcome.NEEDS_DISCOVERY
    (change,) = verdict.changes
    assert (change.lever, change.have, change.need) == (Lever.URLS, 2_000, 5_000)


def test_pages_that_fail_need_more_starts() -> None:
    survey = surveyed(*[supply(20)] * 60)
    assert (
        estimate_folder(workload(1_000, error_share=0.1), survey).estimate.verdict.outcome
        is Outcome.REACHABLE
    )
    failing = estimate_folder(workload(1_000, error_share=0.5), survey)
    assert failing.estimate.verdict.outcome is Outcome.NOT_POLITELY


def test_the_crawls_own_limit_on_requests_at_once_is_told_apart_from_what_sites_permit() -> None:
    survey = surveyed(*[supply(200, 0.5)] * 1_000)
    found = estimate_folder(workload(100_000, days=0.01, service_s=2.0, concurrency=100.0), survey)
    assert found.estimate.verdict.outcome is Outcome.NEEDS_CONCURRENCY


def test_a_paused_origin_gives_nothing_and_is_counted_apart() -> None:
    found = estimate_folder(workload(10), surveyed(supply(20, paused=True)))
    assert (found.origins, found.eligible, found.queued, found.paused_queued) == (1, 0, 0, 20)
    assert found.estimate.verdict.outcome is Outcome.NOT_POLITELY


def test_only_the_worst_few_are_named_the_worst_first() -> None:
    queues = [100_000 + 1_000 * number for number in range(50)]
    found = surveyed(*(supply(queued) for queued in queues))
    named = [item.queued for item in found.bottlenecks]
    assert named == sorted(queues, reverse=True)[:BOTTLENECKS_MAX]
    assert found.surplus_origins == 50


def test_a_crawl_without_any_origin_gets_an_answer() -> None:
    found = estimate_folder(workload(10), surveyed())
    assert found.estimate.verdict.outcome is Outcome.NOT_POLITELY
    assert found.interval_mean_s == 0
