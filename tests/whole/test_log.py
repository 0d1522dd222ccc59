"""The judges of the access log: each finds its offence, and nothing in a clean log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.whole import log as judge


def entry(
    target: str,
    at_s: float,
    *,
    took_s: float = 0.01,
    host: str = "a.test",
    status: int = 200,
    ending: str = "done",
) -> judge.Entry:
    start = int(at_s * 1e6)
    end = int((at_s + took_s) * 1e6)
    return judge.Entry(
        start_us=start, end_us=end, mono_start_us=start, mono_end_us=end, scheme="http", host=host, port=80,
        address="127.10.0.1", connection=1, method="GET", target=target, status=status, bytes=9, user_agent="x",
        ending=ending,
    )  # fmt: skip


CLEAN = [
    entry("/robots.txt", 0.0),
    entry("/", 1.0),
    entry("/x", 2.0),
    entry("/robots.txt", 0.5, host="b.test"),
]
TRUTH: dict[str, Any] = {
    "hosts": ["a.test", "b.test"],
    "urls": {
        "http://a.test/robots.txt": {"outcome": "robots"},
        "http://b.test/robots.txt": {"outcome": "robots"},
        "http://a.test/": {"outcome": "page", "status": 200},
        "http://a.test/x": {"outcome": "page", "status": 200},
        "http://a.test/private": {"outcome": "disallowed", "status": 200},
    },
}


def test_a_clean_log_has_no_offences() -> None:
    assert judge.spacing(CLEAN, 1.0) == []
    assert judge.concurrency(CLEAN) == []
    assert judge.duplicates(CLEAN) == []
    assert judge.robots_first(CLEAN) == []
    assert judge.forbidden(CLEAN, TRUTH) == []
    assert judge.coverage(CLEAN, TRUTH).exact


@pytest.mark.parametrize(("gap_s", "offences"), [(0.5, 1), (0.994, 1), (0.996, 0), (1.0, 0)])
def test_starts_closer_than_the_delay_less_the_tolerance_are_found(gap_s: float, offences: int) -> None:
    assert len(judge.spacing([entry("/", 0), entry("/x", gap_s)], 1.0)) == offences


def test_an_origin_with_a_delay_of_its_own_is_judged_by_it() -> None:
    requests = [
        entry("/", 0),
        entry("/x", 1.0),
        entry("/", 0, host="b.test"),
        entry("/x", 1.0, host="b.test"),
    ]
    assert len(judge.spacing(requests, 1.0, delays={"b.test": 2.0})) == 1
    assert len(judge.spacing(requests, 1.0, delays={"http://a.test": 2.0, "b.test": 0.5})) == 1


def test_other_origins_do_not_count_for_spacing_or_concurrency() -> None:
    requests = [entry("/", 0, took_s=1), entry("/", 0, took_s=1, host="b.test")]
    assert judge.spacing(requests, 1.0) == judge.concurrency(requests) == []


@pytest.mark.parametrize(("limit", "offences"), [(1, 2), (2, 1), (3, 0)])
def test_more_at_once_than_the_limit_is_found(limit: int, offences: int) -> None:
    requests = [entry("/1", 0, took_s=3), entry("/2", 1, took_s=3), entry("/3", 2, took_s=3), entry("/4", 9)]
    assert len(judge.concurrency(requests, limit)) == offences


def test_a_url_asked_for_twice_is_found_and_robots_is_not() -> None:
    requests = [entry("/robots.txt", 0), entry("/robots.txt", 1), entry("/x", 2), entry("/x", 3)]
    assert judge.duplicates(requests) == ["http://a.test/x was asked for 2 times"]
    assert judge.duplicates(requests, allowed={"http://a.test/x": 2}) == []


@pytest.mark.parametrize(
    "requests",
    [
        [entry("/", 0), entry("/robots.txt", 1)],
        [entry("/robots.txt", 0, took_s=2), entry("/", 1)],
    ],
    ids=["page first", "page before the answer"],
)
def test_a_page_before_robots_is_found(requests: list[judge.Entry]) -> None:
    assert len(judge.robots_first(requests)) == 1


def test_a_forbidden_request_is_found() -> None:
    requests = [*CLEAN, entry("/private", 3)]
    assert len(judge.forbidden(requests, TRUTH)) == 1
    assert judge.coverage(requests, TRUTH).forbidden == ["http://a.test/private"]


def test_coverage_tells_what_was_missed_repeated_and_unheard_of() -> None:
    requests = [entry("/", 0), entry("/", 1), entry("/x", 2, status=500), entry("/made-up", 3)]
    found = judge.coverage(requests, TRUTH)
    assert (found.missed, found.repeated, found.unknown) == (
        ["http://a.test/x"], ["http://a.test/"], ["http://a.test/made-up"],
    )  # fmt: skip
    assert (found.pages, found.pages_expected, found.exact) == (1, 2, False)
    assert str(found).startswith("1 of 2 pages; 1 missed")


def test_an_answer_that_was_cut_does_not_count_as_fetched() -> None:
    assert judge.coverage([*CLEAN[:2], entry("/x", 2, ending="cut")], TRUTH).missed == ["http://a.test/x"]


def test_a_line_still_being_written_is_left_out(tmp_path: Path) -> None:
    line = "1\t2\t3\t4\thttp\ta.test\t80\t127.0.0.1\t1\tGET\t/\t200\t5\tx\tdone\n"
    path = tmp_path / "access.log"
    path.write_text(line + line[:-9])
    [found] = judge.load(path)
    assert (found.url, found.status) == ("http://a.test/", 200)


def test_rate_is_counted_from_the_first_start_to_the_last_end() -> None:
    assert judge.starts_per_second([entry("/", 0), entry("/x", 0.99)]) == pytest.approx(2.0)
    assert judge.starts_per_second([]) == 0.0
