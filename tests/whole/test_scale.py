"""The whole command on a frontier of 50,000 URLs over 1,000 origins: it starts, stays small, and answers beside.

Bounds are far from what is usual (bench.scale measures that), so that a busy machine does not fail them.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.amble_process import AmbleProcess, cpu_s, rss_bytes, run, running, wait_until
from tests.support.full_frontier import fill
from tests.web.handle import TestWeb
from tests.whole import log

ORIGINS, PAGES = 1_000, 50
DELAY_S = 0.5
EARLY, LATE = 150, 450
START_CPU_S_MAX = 6.0
AGENT_BYTES_MAX = 500e6
AGENT_GROWTH_BYTES_MAX = 40e6


@dataclass(frozen=True, slots=True)
class Crowd:
    """A test web and a crawl folder that knows all of it."""

    web: TestWeb
    folder: Path

    def arguments(self) -> list[str]:
        return [
            "crawl", "--out", str(self.folder), "--delay", str(DELAY_S), "--pages", "unlimited",
            "--resolver", self.web.dns, "--allow-net", self.web.net, "--quiet",
        ]  # fmt: skip

    def served(self) -> int:
        return int(self.web.control("stats")["requests"])


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    folder = tmp_path / "crawl"
    folder.mkdir()
    with TestWeb.start(
        tmp_path, sites=0, pages=0, bench_origins=ORIGINS, bench_pages=4 * PAGES, page_bytes=8_000, links=20
    ) as web:
        origins = [web.url(f"bench-{number}", "") for number in range(ORIGINS)]
        (folder / "seeds.txt").write_text("".join(f"{origin}/\n" for origin in origins))
        fill(folder / "frontier.db", origins, PAGES)
        yield Crowd(web, folder)


def until_served(crowd: Crowd, amble: AmbleProcess, count: int) -> None:
    def enough() -> bool:
        assert amble.process.poll() is None, amble.text()[-2000:]
        return crowd.served() >= count

    wait_until(enough, 60, f"{count} requests")


def test_a_crawl_of_many_known_urls_starts_stays_small_and_answers(crowd: Crowd, tmp_path: Path) -> None:
    with running(crowd.arguments(), tmp_path / "out") as amble:
        until_served(crowd, amble, 1)
        start_cpu_s = cpu_s(amble.pid)
        until_served(crowd, amble, EARLY)
        early = rss_bytes(amble.pid)
        status = run(["status", str(crowd.folder), "--json"])
        until_served(crowd, amble, LATE)
        late = rss_bytes(amble.pid)
        amble.send(signal.SIGINT)
        assert amble.wait(60) == 10, amble.text()
    assert start_cpu_s < START_CPU_S_MAX
    assert late < AGENT_BYTES_MAX
    assert late - early < AGENT_GROWTH_BYTES_MAX
    facts = json.loads(status.stdout)
    assert facts["running"]
    assert facts["urls"] >= ORIGINS * (PAGES + 1)
    assert facts["origins"] == ORIGINS
    crowd.web.flush()
    entries = log.load(crowd.web.log_path)
    assert log.spacing(entries, DELAY_S) == []
    assert log.concurrency(entries, 1) == []
    # The robots.txt of every origin was decided before: none is asked for again, and pages of many are served.
    assert not any(entry.is_robots for entry in entries)
    assert len({entry.origin for entry in entries}) > 100


def test_a_killed_crawl_of_many_known_urls_goes_on(crowd: Crowd, tmp_path: Path) -> None:
    crowd.web.control("site", host="*", stall=True)
    with running(crowd.arguments(), tmp_path / "out") as amble:

        def requests_hang() -> bool:
            done = run(["status", str(crowd.folder), "--json"])
            return json.loads(done.stdout)["in_flight"] >= 200

        wait_until(requests_hang, 60, "200 requests under way")
        amble.kill_tree()
    crowd.web.control("clear", host="*")
    before = crowd.served()
    with running(crowd.arguments(), tmp_path / "out") as amble:
        until_served(crowd, amble, before + 50)
        amble.send(signal.SIGINT)
        assert amble.wait(60) == 10, amble.text()
