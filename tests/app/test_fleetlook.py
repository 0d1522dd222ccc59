"""One status out of those of several servers, and whether a fleet that stands like this is done."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from amble.app.fleetlook import end_of, merged
from amble.app.progress import EndReason
from amble.domain.report import Status

ZERO = Status(
    **dict.fromkeys(Status.__struct_fields__, 0)  # type: ignore[arg-type]
    | {
        name: {}
        for name in (
            "states", "status_classes", "failures", "exclusions", "refused", "retries", "put_back", "withheld",
            "origins_waiting",
        )
    }
    | {"owner": "", "next_wake_ms": None}
)  # fmt: skip


def test_numbers_are_summed_and_reasons_too_the_largest_first() -> None:
    one = structs.replace(
        ZERO, pages=3, queued=1, failures={"dns_failed": 1, "http_server_error": 2}, owner="a"
    )
    two = structs.replace(ZERO, pages=4, queued=5, failures={"dns_failed": 4}, owner="a", epoch=7)
    both = merged([one, two])
    assert both is not None
    assert (both.pages, both.queued, both.epoch, both.owner) == (7, 6, 7, "a")
    assert list(both.failures.items()) == [("dns_failed", 5), ("http_server_error", 2)]


def test_the_soonest_wake_counts_though_clocks_differ() -> None:
    near = structs.replace(ZERO, now_ms=1_000, next_wake_ms=1_500)
    late = structs.replace(ZERO, now_ms=9_000, next_wake_ms=10_000)
    both = merged([late, near, ZERO])
    assert both is not None
    assert (both.now_ms, both.next_wake_ms) == (9_000, 9_500)
    only = merged([ZERO, ZERO])
    assert only is not None
    assert only.next_wake_ms is None


def test_of_one_server_nothing_is_changed_and_of_none_nothing_known() -> None:
    assert merged([ZERO]) is ZERO
    assert merged([]) is None


IDLE: dict[str, Any] = {}
DUE: dict[str, Any] = {"queued": 5, "pages": 3, "now_ms": 1_000, "next_wake_ms": 1_000}
LATE: dict[str, Any] = DUE | {"next_wake_ms": 700_000}


@pytest.mark.parametrize(
    ("servers", "pages_max", "end"),
    [
        ([], None, None),
        ([IDLE], None, EndReason.FINISHED),
        ([DUE], None, None),
        ([DUE], 4, None),
        ([DUE], 3, EndReason.PAGE_BUDGET),
        ([DUE | {"in_flight": 1}], 3, None),
        ([DUE | {"open_manifests": 1}], 3, None),
        ([LATE], None, EndReason.FINISHED),
        ([LATE], 4, EndReason.FINISHED),
        ([DUE, IDLE], 6, EndReason.PAGE_BUDGET),
        ([DUE, LATE], 6, EndReason.PAGE_BUDGET),
        ([DUE, DUE], 7, None),
        ([DUE, LATE], 5, EndReason.PAGE_BUDGET),
    ],
)
def test_a_fleet_is_done_when_no_server_may_fetch_anything_soon(
    servers: list[dict[str, Any]], pages_max: int | None, end: EndReason | None
) -> None:
    stands = [structs.replace(ZERO, **facts) for facts in servers]
    assert end_of(stands, 600, pages_max) is end
