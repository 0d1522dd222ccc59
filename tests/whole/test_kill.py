"""kill -9 at random instants, continue with the same command, until the crawl is done: nothing lost, nothing doubled.

The witness is the server's log. A URL may be asked for again only if its lease was in flight when amble was killed;
the frontier file, read between two runs, says which those are.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest

from tests.support.amble_process import AmbleProcess, kill, run, running
from tests.web.handle import TestWeb
from tests.whole import log

DELAY_S = 0.02
SEED = int(os.environ.get("AMBLE_KILL_SEED", "1"))


@dataclass(slots=True)
class Campaign:
    """What happened, for the judges and for the report."""

    kills: Counter[str] = field(default_factory=Counter)
    allowed: Counter[str] = field(default_factory=Counter)  # URL -> how often it may be asked for again
    runs: int = 0


def leased_urls(frontier: Path) -> list[str]:
    """URLs whose lease was in flight when the last run ended, robots.txt included."""
    connection = apsw.Connection(str(frontier), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [
            url
            for (url,) in connection.execute(
                "SELECT o.key || u.path FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE u.state = 1"
            )
        ]
    finally:
        connection.close()


def kill_agent(amble: AmbleProcess, _: random.Random) -> None:
    kill(amble.pid)
    amble.process.wait()


def kill_parser(amble: AmbleProcess, rng: random.Random) -> None:
    children = amble.descendants("amble.adapters.sandbox.child")
    if children:
        kill(rng.choice(children))


def kill_store(amble: AmbleProcess, _: random.Random) -> None:
    for pid in amble.descendants("amble.adapters.sql.server"):
        kill(pid)
    amble.wait(60)


def kill_both(amble: AmbleProcess, rng: random.Random) -> None:
    kill_parser(amble, rng)
    kill_agent(amble, rng)


def kill_everything(amble: AmbleProcess, _: random.Random) -> None:
    amble.kill_tree()


WEAPONS: dict[str, Callable[[AmbleProcess, random.Random], None]] = {
    "agent": kill_agent,
    "parser": kill_parser,
    "both": kill_both,
    "store": kill_store,
    "everything": kill_everything,
}


def wait_for_requests(path: Path, beyond: int, amble: AmbleProcess) -> bool:
    """Until the log has grown by a line; False when amble ended first."""
    while path.stat().st_size <= beyond:
        if amble.process.poll() is not None:
            return False
        time.sleep(0.002)
    return True


def campaign(web: TestWeb, folder: Path, rounds: int, rng: random.Random) -> Campaign:
    out, done = folder / "crawl", Campaign()
    arguments = [
        "crawl", *web.seeds, "--out", str(out), "--resolver", web.dns, "--allow-net", web.net, "--quiet",
        "--delay", str(DELAY_S), "--pages", "1000000", "--concurrency", "40",
    ]  # fmt: skip
    while done.kills.total() < rounds:
        weapon = rng.choice(list(WEAPONS))
        with running(arguments, folder / "amble.out") as amble:
            done.runs += 1
            working = wait_for_requests(web.log_path, web.log_path.stat().st_size, amble)
            # The random instant: from the very first request to well into the run.
            deadline = time.monotonic() + rng.choice((0.0, rng.uniform(0, 0.15), rng.uniform(0, 1.2)))
            while time.monotonic() < deadline and amble.process.poll() is None:
                time.sleep(0.001)
            if not working or amble.process.poll() is not None:
                assert amble.process.wait() == 0, amble.text()[-2000:]
                return done
            WEAPONS[weapon](amble, rng)
            done.kills[weapon] += 1
            if weapon == "parser":
                # A lost parser child stops nobody: this run goes on, and is itself killed or ends.
                amble.kill_tree() if amble.process.poll() is None else None
        web.flush()
        done.allowed.update(leased_urls(out / "frontier.db"))
    last = run(arguments, timeout_s=300)
    assert last.returncode == 0, last.stdout + last.stderr
    return done


def judge(web: TestWeb, folder: Path, done: Campaign) -> None:
    web.flush()
    entries = log.load(web.log_path)
    truth = web.truth()
    coverage = log.coverage(entries, truth)
    assert not coverage.missed, str(coverage)
    assert not coverage.unknown, str(coverage)
    assert not coverage.forbidden, str(coverage)
    # A robots.txt that redirects is asked for hop by hop under one lease: its hops are no URLs of their own.
    robots = {url for url, facts in truth["urls"].items() if facts["outcome"] == "robots"}
    asked = Counter(entry.url for entry in entries if entry.url not in robots)
    too_often = {url: n for url, n in asked.items() if n > 1 + done.allowed[url]}
    assert not too_often, f"asked for again without a lease in flight: {too_often}"
    assert log.spacing(entries, DELAY_S, tolerance_s=0.003) == []
    assert log.concurrency(entries, 1) == []
    assert log.robots_first(entries) == []
    verified = run(["verify", str(folder / "crawl")], timeout_s=300)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    documents = run(["export", str(folder / "crawl"), "--to", "jsonl", "--file", "-"], timeout_s=300)
    lines = documents.stdout.splitlines()
    urls = [line.split('"url":"', 1)[1].split('"', 1)[0] for line in lines]
    twice = [url for url, n in Counter(urls).items() if n > 1]
    assert not twice, f"published twice: {twice}"


@pytest.mark.timeout(300)
def test_a_crawl_killed_at_random_instants_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """The small campaign of every test run."""
    rng = random.Random(SEED)
    with TestWeb.start(tmp_path, sites=12, pages=500) as web:
        done = campaign(web, tmp_path, 6, rng)
        judge(web, tmp_path, done)
    assert done.kills.total() >= 4, f"the crawl was over too soon: {done}"


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_hundred_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """The long campaign: crawls of the closed set, each killed again and again, until a hundred kills have hit."""
    rng = random.Random(SEED)
    kills: Counter[str] = Counter()
    number = 0
    while kills.total() < int(os.environ.get("AMBLE_KILLS", "100")):
        folder = tmp_path / f"campaign-{number}"
        folder.mkdir()
        with TestWeb.start(folder, sites=20, pages=1500, seed=number + 1) as web:
            done = campaign(web, folder, 25, rng)
            judge(web, folder, done)
        kills += done.kills
        number += 1
        print(f"campaign {number}: {dict(done.kills)}, {done.allowed.total()} leases in flight at the kills")
    print(f"kills: {dict(kills)}")
