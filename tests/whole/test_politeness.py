"""Politeness as the servers see it: spacing, requests at once, Retry-After, Crawl-delay, over troubled sites."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.support.amble_process import run
from tests.web.handle import TestWeb
from tests.whole import log
from tests.whole.rig import SOON_S, arguments

DELAY_S = 0.25
TOLERANCE_S = 0.003
#: Redirects, 429 and 503 with Retry-After, a reset at each first ask, Crawl-delay, robots.txt in other places.
SITES = (
    "redirects", "throttle-429", "busy-503", "robots-429", "flaky", "crawl-delay", "robots-redirect-cross",
    "robots-elsewhere",
)  # fmt: skip


def starts_before(entries: list[log.Entry], status: int, rest_s: float) -> list[str]:
    """Requests at an origin that started less than `rest_s` after an answer with `status` was sent."""
    return [
        f"{origin}: {after.target} started {(after.mono_start_us - before.mono_end_us) / 1e6:.3f} s after a {status}"
        for origin, requests in log.by_origin(entries).items()
        for before, after in pairwise(requests)
        if before.status == status and after.mono_start_us - before.mono_end_us < (rest_s - TOLERANCE_S) * 1e6
    ]


def test_spacing_holds_over_redirects_retries_and_robots_fetches(tmp_path: Path) -> None:
    """One request at once and a quarter of a second between starts, for every origin, whatever goes wrong there."""
    out = tmp_path / "crawl"
    with TestWeb.start(tmp_path, sites=0) as web:
        done = run(
            arguments(
                web, out, "--delay", str(DELAY_S), "--set", "retry.base_ms=200",
                "--set", "origin.backoff_base_ms=500", seeds=[web.url(name) for name in SITES],
            ),
            timeout_s=SOON_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        web.flush()
        entries = log.load(web.log_path)
    assert {entry.host.removesuffix(".test") for entry in entries} == set(SITES)
    delays = {"crawl-delay.test": 1.0}
    assert log.spacing(entries, DELAY_S, tolerance_s=TOLERANCE_S, delays=delays) == []
    assert log.concurrency(entries, 1) == []
    assert log.robots_first([entry for entry in entries if entry.host != "robots-elsewhere.test"]) == []
    throttled = [entry for entry in entries if entry.host == "throttle-429.test"]
    assert starts_before(throttled, 429, 2.0) == []
    assert starts_before([entry for entry in entries if entry.host == "robots-429.test"], 429, 1.0) == []
    assert starts_before([entry for entry in entries if entry.host == "busy-503.test"], 503, 1.0) == []
    # Each kind of trouble did happen and was got over.
    assert {429, 503, 301, 200} <= {entry.status for entry in entries}
    answered = {entry.url for entry in entries if entry.status == 200 and entry.ending == "done"}
    for name in ("throttle-429", "busy-503", "flaky", "robots-429"):
        assert web.url(name) in answered, f"{name} was given up"
    assert len([entry for entry in entries if entry.host == "crawl-delay.test" and not entry.is_robots]) == 6


def test_three_requests_at_once_are_used_and_never_exceeded(tmp_path: Path) -> None:
    """Slow answers, hardly any delay, and --per-origin 3."""
    out = tmp_path / "crawl"
    with TestWeb.start(tmp_path, sites=2, pages=40) as web:
        web.control("site", host="*", delay_s=0.15)
        done = run(arguments(web, out, "--delay", "0.01", "--per-origin", "3"), timeout_s=SOON_S)
        assert done.returncode == 0, done.stdout + done.stderr
        web.flush()
        entries = log.load(web.log_path)
    assert log.concurrency(entries, 3) == []
    assert log.concurrency(entries, 2) != [], "three at once were never used"
    assert log.spacing(entries, 0.01, tolerance_s=TOLERANCE_S) == []
    assert log.robots_first(entries) == []
