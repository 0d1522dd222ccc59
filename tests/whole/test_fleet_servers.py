"""A fleet over two databases while partitions move between them, judged by the server's log."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import servers as s
from tests.support.amble_process import run, wait_until
from tests.support.fleet import Fleet, Watch, judge
from tests.support.postgres import FreshDatabase
from tests.web.handle import TestWeb
from tests.whole.test_fleet import DELAY_S, DONE_S, PARTITIONS, agent, command, ended_well, owned, prepared

MOVED = ((0, 1), (1, 0))


@pytest.mark.soak
def test_partitions_move_between_servers_under_a_running_crawl_and_everything_is_crawled_once(
    tmp_path: Path, fresh_database: FreshDatabase
) -> None:
    dsns = f"{fresh_database(s.migrated)} {fresh_database(s.migrated)}"
    with TestWeb.start(tmp_path, sites=12, pages=150) as web, Fleet(tmp_path) as fleet:
        prepared(web, dsns)
        watch = Watch(web.log_path, fleet)
        archive = tmp_path / "archive"
        ada = fleet.start("ada", agent(web, dsns, archive, "ada", "--until-done", "--set",
                                       f"agent.bloom_folder={tmp_path / 'bloom'}"))  # fmt: skip
        ben = fleet.start("ben", agent(web, dsns, archive, "ben", "--until-done"))
        wait_until(lambda: len(owned(dsns)) == 2, DONE_S, "a share for each")
        watch.wait_for_more(20)
        for partition, target in MOVED:
            told = json.loads(
                command("partitions", "move", str(partition), "--to", str(target), "--store", dsns, "--json")
            )
            assert (told["partition"], told["target"], told["moved"]) == (partition, target, True)
        ended_well(ada)
        ended_well(ben)
        verdict = judge(web, DELAY_S)
        assert verdict.offences == [], str(verdict)
        assert owned(dsns) == {"": PARTITIONS}
        status = run(["status", "--json"], timeout_s=60.0, env={"AMBLE_STORE_URL": dsns})
        assert status.returncode == 0, status.stdout + status.stderr
        told = json.loads(status.stdout)
        assert told["in_flight"] == 0
        assert list((tmp_path / "bloom").glob("bloom-*"))


SEEDS = 3_000
KILLS = 25


@pytest.mark.soak
def test_a_mover_that_is_killed_at_any_moment_leaves_one_place_and_loses_nothing(
    fresh_database: FreshDatabase,
) -> None:
    dsns = [fresh_database(s.migrated), fresh_database(s.migrated)]
    store = " ".join(dsns)
    command("store", "init", "--store", store, "--partitions", "2")
    urls = [f"{s.site_in(0, n % 40, 2)}/{n}" for n in range(SEEDS)]
    for start in range(0, SEEDS, 500):
        command("seed", *urls[start : start + 500], "--store", store, "--contact", "me@a.example")

    def known(number: int) -> int:
        sql = "SELECT count(*) FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE o.partition = 0"
        return int(str(asyncio.run(s.rows(dsns[number], sql))[0][0]))

    def open_at() -> list[int]:
        sql = "SELECT 1 FROM partition WHERE partition = 0 AND NOT moving"
        return [number for number, dsn in enumerate(dsns) if asyncio.run(s.rows(dsn, sql))]

    chance, total, target, kills, arrived = random.Random(7), known(0), 1, 0, 0
    assert total > SEEDS
    while kills < KILLS:
        mover = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "amble.faces.cli",
                "partitions",
                "move",
                "0",
                "--to",
                str(target),
                "--store",
                store,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert mover.wait(0.5 + 2.0 * chance.random()) in (0, 12, 14), "moved, or told why not now"
        except subprocess.TimeoutExpired:
            mover.kill()
            mover.wait()
            kills += 1
        ((where,),) = asyncio.run(s.rows(dsns[0], "SELECT server FROM placement WHERE partition = 0"))
        assert len(open_at()) <= 1
        assert known(int(str(where))) == total, "whole where the map says"
        if mover.returncode == 0:
            assert open_at() == [target]
            assert known(1 - target) == 0
            target, arrived = 1 - target, arrived + 1
    command("partitions", "move", "0", "--to", str(target), "--store", store)
    assert (open_at(), known(target)) == ([target], total)
