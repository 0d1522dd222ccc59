"""A fleet as its operator sees it: `amble agent` processes over one database and one archive, judged by the server's log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.amble_process import run, wait_until
from tests.support.fleet import (
    Fleet,
    Member,
    Watch,
    contact,
    double_authority,
    judge,
    sender,
    started_between,
)
from tests.support.postgres import FreshDatabase, OwnPostgres
from tests.web.handle import TestWeb
from tests.whole import log

DELAY_S = 0.2
PARTITIONS = 8
DONE_S = 90.0
# Short enough that a lapse is soon over: a request is over after `total_s`, and fifteen seconds are added for good measure.
TOTAL_S = 2.0
LEASE_S = 2.0


def agent(web: TestWeb, dsn: str, archive: Path, name: str, *more: str) -> list[str]:
    """The command line of one agent of the fleet."""
    return [
        "agent", "--store", dsn, "--archive", f"file://{archive}", "--name", name, "--contact", contact(name),
        "--resolver", web.dns, "--allow-net", web.net, "--log", str(archive.parent / f"{name}.jsonl"),
        "--set", "parse.children=1", "--set", f"origin.spacing_ms={int(DELAY_S * 1000)}",
        "--set", "origin.delay_fixed=true", "--set", "budget.pages_max=unlimited", "--set", f"agent.lease_s={LEASE_S}",
        "--set", f"fetch.total_s={TOTAL_S}", "--set", f"fetch.connect_s={TOTAL_S}",
        "--set", f"fetch.first_byte_s={TOTAL_S}", "--set", "finish.wait_max_s=5", *more,
    ]  # fmt: skip


def command(*arguments: str) -> str:
    """One command that ends at once; its output."""
    done = run(arguments, timeout_s=60.0)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def prepared(web: TestWeb, dsn: str) -> None:
    """A database with partitions, and the seeds of the web."""
    command("store", "init", "--store", dsn, "--partitions", str(PARTITIONS))
    command("seed", *web.seeds, "--store", dsn, "--contact", contact("operator"))


def partitions(dsn: str) -> list[dict[str, Any]]:
    """What `amble partitions --json` says."""
    return [json.loads(line) for line in command("partitions", "--store", dsn, "--json").splitlines()]


def owned(dsn: str) -> dict[str, int]:
    """How many partitions each agent owns, by the name it was given."""
    counts: dict[str, int] = {}
    for line in partitions(dsn):
        name = line["owner"].partition("~")[0]
        counts[name] = counts.get(name, 0) + 1
    return counts


def begun(dsn: str, name: str, at_least: int = 1) -> bool:
    """Whether an agent owns so many partitions."""
    return owned(dsn).get(name, 0) >= at_least


def ended_well(member: Member, code: int = 0) -> None:
    """It ends by itself."""
    assert member.wait(DONE_S) == code, member.tail()


def test_agents_share_the_partitions_as_they_come_and_go_and_everything_is_crawled_once(
    tmp_path: Path, database: str
) -> None:
    with TestWeb.start(tmp_path, sites=8, pages=100) as web, Fleet(tmp_path) as fleet:
        prepared(web, database)
        watch = Watch(web.log_path, fleet)
        archive = tmp_path / "archive"
        ada = fleet.start("ada", agent(web, database, archive, "ada"))
        ben = fleet.start("ben", agent(web, database, archive, "ben", "--until-done"))
        watch.wait_for_more(5, by="ada")
        cyd = fleet.start("cyd", agent(web, database, archive, "cyd", "--until-done"))
        wait_until(lambda: begun(database, "cyd", 2), DONE_S, "a third of the partitions for the third agent")
        assert ada.stop() == 10, ada.tail()
        assert "ada" not in owned(database)
        ended_well(ben)
        ended_well(cyd)
        verdict = judge(web, DELAY_S)
        assert verdict.offences == [], str(verdict)
        assert all(verdict.requests[name] > 0 for name in ("ada", "ben")), str(verdict)
        assert double_authority(watch.read()) == []
        assert owned(database) == {"": PARTITIONS}
        lines = [json.loads(line) for line in command("agents", "--store", database, "--json").splitlines()]
        assert lines == [], "all have said goodbye"


def test_an_agent_that_was_stopped_for_longer_than_its_window_starts_nothing_when_it_wakes(
    tmp_path: Path, own_postgres: OwnPostgres
) -> None:
    server = own_postgres()
    dsn = server.create_database("frontier")
    # Many origins with little between two starts: at every moment some requests are about to leave.
    with TestWeb.start(tmp_path, sites=30, pages=1500) as web, Fleet(tmp_path) as fleet:
        prepared(web, dsn)
        watch = Watch(web.log_path, fleet)
        ada = fleet.start(
            "ada", agent(web, dsn, tmp_path / "archive", "ada", "--set", "origin.spacing_ms=20")
        )
        watch.wait_for_more(150, by="ada")
        frozen_us = ada.freeze()
        # The database goes away meanwhile: no renewal can give the right to start back.
        server.stop("immediate")
        time.sleep(LEASE_S + 0.5)
        thawed_us = ada.thaw()
        time.sleep(2.0)
        web.flush()
        entries = watch.read()
        assert len(started_between(entries, 0, frozen_us)) >= 150
        assert started_between(entries, thawed_us) == []
        # Once the database is back, its renewal under the same epoch opens the window again.
        server.start_again()
        watch.wait_for_more(20, by="ada")
        assert ada.stop() == 10, ada.tail()
        again = watch.read()
        assert log.concurrency(again, 1) == []
        assert log.spacing(again, 0.02, tolerance_s=0.003) == []


@pytest.mark.soak
def test_the_partitions_of_a_killed_agent_go_on_with_another_when_its_last_requests_must_be_over(
    tmp_path: Path, database: str
) -> None:
    with TestWeb.start(tmp_path, sites=12, pages=500) as web, Fleet(tmp_path) as fleet:
        prepared(web, database)
        watch = Watch(web.log_path, fleet)
        members = [
            fleet.start(name, agent(web, database, tmp_path / "archive", name, "--until-done"))
            for name in ("ada", "ben", "cyd")
        ]
        wait_until(lambda: len(owned(database)) == 3, DONE_S, "a share for each")
        watch.wait_for_more(10, by="ada")
        lines = {line["partition"] for line in partitions(database) if line["owner"].startswith("ada~")}
        killed_us = members[0].kill()
        for member in members[1:]:
            ended_well(member)
        entries = watch.read()
        taken = [json.loads(line) for name in ("ben", "cyd") for line in (tmp_path / f"{name}.jsonl").open()]
        waits = [
            e["wait_ms"]
            for e in taken
            if e["event"] == "partition.claimed" and e["partition"] in lines and e["wait_ms"]
        ]
        assert len(waits) == len(lines)
        assert min(waits) > 10_000, "until the longest request of the dead one is over"
        assert started_between(entries, killed_us, by="ada") == []
        verdict = judge(web, DELAY_S, again=in_flight_at(web, killed_us, "ada"))
        assert verdict.offences == [], str(verdict)


def in_flight_at(web: TestWeb, killed_us: int, name: str) -> dict[str, int]:
    """URLs that the dead one had asked for, so shortly before its end that the answer may not have been stored."""
    web.flush()
    since_us = killed_us - 5_000_000
    return {e.url: 1 for e in log.load(web.log_path) if sender(e) == name and e.mono_end_us > since_us}


@pytest.mark.soak
def test_a_fleet_over_two_databases_crawls_everything_once(
    tmp_path: Path, fresh_database: FreshDatabase
) -> None:
    dsns = f"{fresh_database()} {fresh_database()}"
    with TestWeb.start(tmp_path, sites=8, pages=160) as web, Fleet(tmp_path) as fleet:
        prepared(web, dsns)
        assert {line["partition"] for line in partitions(dsns)} == set(range(PARTITIONS))
        members = [
            fleet.start(name, agent(web, dsns, tmp_path / "archive", name, "--until-done"))
            for name in ("ada", "ben")
        ]
        for member in members:
            ended_well(member)
        verdict = judge(web, DELAY_S)
        assert verdict.offences == [], str(verdict)
        assert all(verdict.requests[name] > 0 for name in ("ada", "ben")), str(verdict)
        assert owned(dsns) == {"": PARTITIONS}
