"""A crawl of the closed set from the command line, judged from the server's side and by amble's own verification."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.amble_process import run
from tests.web.handle import TestWeb
from tests.whole import log

SITES = int(os.environ.get("AMBLE_CLOSED_SITES", "20"))
PAGES = int(os.environ.get("AMBLE_CLOSED_PAGES", "1000"))


def crawl_arguments(web: TestWeb, out: Path, *more: str) -> list[str]:
    return [
        "crawl", *web.seeds, "--out", str(out), "--resolver", web.dns, "--allow-net", web.net, "--quiet", *more,
    ]  # fmt: skip


@pytest.mark.timeout(600)
def test_a_closed_set_is_crawled_exactly_as_its_truth_says(tmp_path: Path) -> None:
    """Every reachable page once, nothing forbidden, redirects and 404s as they are, robots.txt first, and in order."""
    delay_s = 0.01
    with TestWeb.start(tmp_path, sites=SITES, pages=PAGES) as web:
        out = tmp_path / "crawl"
        done = run(crawl_arguments(web, out, "--delay", str(delay_s), "--pages", "1000000"), timeout_s=550)
        assert done.returncode == 0, done.stdout + done.stderr
        web.flush()
        entries = log.load(web.log_path)
        truth = web.truth()
    coverage = log.coverage(entries, truth)
    assert coverage.exact, str(coverage)
    assert log.spacing(entries, delay_s, tolerance_s=0.002) == []
    assert log.concurrency(entries, 1) == []
    assert log.robots_first(entries) == []
    verified = run(["verify", str(out)], timeout_s=300)
    assert verified.returncode == 0, verified.stdout + verified.stderr
