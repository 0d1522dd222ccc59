"""A fleet over two databases while partitions move between them, judged by the server's log."""

from __future__ import annotations

import json
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
