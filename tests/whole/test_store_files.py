"""One crawl over several frontier files: the same coverage, politeness and answers as with one."""

from __future__ import annotations

import json
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.support.amble_process import AmbleProcess, run
from tests.web.handle import TestWeb
from tests.whole import log
from tests.whole.rig import wait_for_requests

SITES, PAGES, DELAY_S = 10, 400, 0.01


def arguments(web: TestWeb, out: Path, files: int, *more: str, seeds: list[str] | None = None) -> list[str]:
    return [
        "crawl", *(seeds or web.seeds), "--out", str(out), "--resolver", web.dns, "--allow-net", web.net, "--quiet",
        "--delay", str(DELAY_S), "--pages", "1000000", "--set", f"store.files={files}", *more,
    ]  # fmt: skip


def pages_in(path: Path) -> int:
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return int(database.execute("SELECT count(*) FROM url WHERE kind = 0 AND state = 4").fetchone()[0])
    finally:
        database.close()


@pytest.mark.timeout(300)
def test_a_crawl_over_three_files_is_cut_short_goes_on_and_is_complete(tmp_path: Path) -> None:
    """Killed in the middle, begun again: every page, spacing and slots as with one file, nothing lost between files."""
    with TestWeb.start(tmp_path, sites=SITES, pages=PAGES) as web:
        out = tmp_path / "crawl"
        amble = AmbleProcess(arguments(web, out, 3), tmp_path / "first.txt")
        wait_for_requests(web, PAGES // 4, amble)
        amble.kill_tree()
        refused = run(arguments(web, out, 2), timeout_s=60)
        assert refused.returncode == 14
        assert "was begun with store.files = 3" in refused.stderr
        done = run(arguments(web, out, 3), timeout_s=250)
        assert done.returncode == 0, done.stdout + done.stderr
        web.flush()
        entries = log.load(web.log_path)
        truth = web.truth()
    coverage = log.coverage(entries, truth)
    assert [*coverage.missed, *coverage.unknown, *coverage.forbidden] == [], str(coverage)
    assert log.spacing(entries, DELAY_S, tolerance_s=0.003) == []
    assert log.concurrency(entries, 1) == []
    counts = [pages_in(out / name) for name in ("frontier.db", "frontier-1.db", "frontier-2.db")]
    assert all(counts), counts
    verified = run(["verify", str(out)], timeout_s=200)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    _answers(out, web.seeds[0], sum(counts))


def _answers(out: Path, seed: str, complete: int) -> None:
    """The commands that look at a crawl see all files."""
    status = json.loads(run(["status", str(out), "--json"], timeout_s=60).stdout)
    assert status["states"]["complete"] >= complete
    assert status["queued"] == 0
    urls = run(["urls", str(out), "--state", "complete", "--limit", "100000", "--json"], timeout_s=60)
    ids = [json.loads(line)["url_id"] for line in urls.stdout.splitlines() if '"url_id"' in line]
    assert ids == sorted(set(ids))
    assert {number >> 36 >> 22 for number in ids} == {0, 1, 2}
    why = run(["why", seed, str(out), "--json"], timeout_s=60)
    assert json.loads(why.stdout)["line"]["url"] == seed
    for _ in range(2):
        exported = run(["export", str(out)], timeout_s=60)
        assert exported.returncode == 0, exported.stderr
    documents = (out / "export" / "documents.jsonl").read_text().splitlines()
    assert len({json.loads(line)["url"] for line in documents}) == len(documents) == status["documents"]


@pytest.mark.timeout(120)
def test_links_from_one_seed_cross_to_the_other_files(tmp_path: Path) -> None:
    with TestWeb.start(tmp_path, sites=4, pages=80) as web:
        out = tmp_path / "crawl"
        done = run(
            arguments(web, out, 2, "--scope", "any", "--contact", "https://me.example", seeds=web.seeds[:1]),
            timeout_s=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        counts = [pages_in(out / name) for name in ("frontier.db", "frontier-1.db")]
    assert all(counts), counts
    assert run(["verify", str(out)], timeout_s=60).returncode == 0


@pytest.mark.timeout(120)
def test_a_missing_file_is_named_and_nothing_is_begun_anew(tmp_path: Path) -> None:
    with TestWeb.start(tmp_path, sites=2, pages=20) as web:
        out = tmp_path / "crawl"
        amble = AmbleProcess(arguments(web, out, 2), tmp_path / "first.txt")
        wait_for_requests(web, 5, amble)
        amble.send(signal.SIGTERM)
        amble.wait(60)
        (out / "frontier.db").rename(out / "elsewhere.db")
        refused = run(arguments(web, out, 1), timeout_s=60)
    assert refused.returncode == 14
    assert "frontier-1.db" in refused.stderr
