"""`amble migrate`: a crawl that was begun on one machine is gone on with by agents, and nothing of it is lost or repeated."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.support.amble_process import run
from tests.support.postgres import FreshDatabase
from tests.web.handle import TestWeb
from tests.whole import log

SITES, PAGES = 3, 40
DELAY_S = 0.05


def crawl(web: TestWeb, out: Path, *more: str) -> None:
    done = run(
        ["crawl", *web.seeds, "--out", str(out), "--resolver", web.dns, "--allow-net", web.net, "--quiet",
         "--delay", str(DELAY_S), *more],
        timeout_s=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def urls_in(path: Path) -> list[str]:
    return [json.loads(line)["url"] for line in path.read_text("utf-8").splitlines()]


def test_a_crawl_that_was_moved_is_finished_by_agents_and_each_page_was_fetched_once(
    tmp_path: Path, fresh_database: FreshDatabase
) -> None:
    database, bucket, out = fresh_database(), f"file://{tmp_path / 'bucket'}", tmp_path / "crawl"
    fleet = {"AMBLE_STORE_URL": database, "AMBLE_ARCHIVE_URL": bucket}
    with TestWeb.start(tmp_path, sites=SITES, pages=PAGES) as web:
        crawl(web, out, "--pages", "12")
        moved = run(
            [
                "migrate",
                "--from",
                f"sqlite:{out}",
                "--to",
                database,
                "--archive",
                bucket,
                "--partitions",
                "3",
                "--json",
            ]
        )
        assert moved.returncode == 0, moved.stderr
        told = json.loads(moved.stdout.splitlines()[-1])
        assert told["rows"]["publication"] > 0
        assert told["last_segment"] == 1
        before = run(["status", str(out), "--json"])
        after = run(["status", "--json"], env=fleet)
        same = ("states", "urls", "queued", "pages", "documents", "bytes", "links", "origins")
        assert {name: json.loads(after.stdout)[name] for name in same} == {
            name: json.loads(before.stdout)[name] for name in same
        }
        agent = run(
            ["agent", "--until-done", "--quiet", "--resolver", web.dns, "--allow-net", web.net,
             "--set", f"origin.spacing_ms={round(DELAY_S * 1000)}", "--set", "origin.delay_fixed=true"],
            env=fleet,
            timeout_s=110,
        )  # fmt: skip
        assert agent.returncode == 0, agent.stdout + agent.stderr
        web.flush()
        entries, truth = log.load(web.log_path), web.truth()
    coverage = log.coverage(entries, truth)
    assert coverage.exact, str(coverage)
    assert log.spacing(entries, DELAY_S, tolerance_s=0.002) == []
    verified = run(["verify"], env=fleet, timeout_s=100)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    documents = tmp_path / "documents.jsonl"
    assert run(["export", "--file", str(documents)], env=fleet).returncode == 0
    urls = urls_in(documents)
    assert len(urls) == len(set(urls)) > 12


def test_segments_may_follow_a_frontier_that_was_moved_and_nobody_crawls_on_in_the_folder(
    tmp_path: Path, fresh_database: FreshDatabase
) -> None:
    database, bucket, out = fresh_database(), tmp_path / "bucket", tmp_path / "crawl"
    words = ["migrate", "--from", f"sqlite:{out}", "--to", database]
    with TestWeb.start(tmp_path, sites=1, pages=6) as web:
        crawl(web, out, "--pages", "3")
        first = run(words)
        assert first.returncode == 0, first.stderr
        again = run([*words, "--archive", f"file://{bucket}"])
        assert again.returncode == 0, again.stderr
        assert "its frontier was moved to" in again.stderr
        assert "its segments lie in" in again.stderr
        assert list((bucket / "segments").rglob("*.warc.gz"))
        refused = run(["crawl", "--out", str(out)])
        assert refused.returncode == 14
        assert f"remove {out / 'moved.txt'}" in refused.stderr
        assert run(["status", str(out)]).returncode == 0
        assert run(["export", str(out)]).returncode == 0
        (out / "moved.txt").unlink()
        crawl(web, out)


def test_a_mistake_in_either_address_is_told_with_its_fix(tmp_path: Path) -> None:
    done = run(["migrate", "--from", f"sqlite:{tmp_path}", "--to", "mysql://db/x"])
    assert done.returncode == 2
    assert "there is no crawl in" in done.stderr
    assert "write postgresql://HOST/DATABASE" in done.stderr


def test_a_crawl_under_way_is_not_moved(tmp_path: Path, fresh_database: FreshDatabase) -> None:
    import fcntl

    out = tmp_path / "crawl"
    with TestWeb.start(tmp_path, sites=1, pages=4) as web:
        crawl(web, out)
    lock = os.open(out / "run" / "lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run(["migrate", "--from", f"sqlite:{out}", "--to", fresh_database()])
    finally:
        os.close(lock)
    assert done.returncode == 12
    assert "stop it first" in done.stderr
