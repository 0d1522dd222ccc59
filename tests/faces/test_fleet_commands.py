"""The commands about a fleet, over a real database: what they say, what they refuse, and how the fix is named."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from amble.faces.cli import main
from tests.support import servers as s
from tests.support.postgres import FreshDatabase, OwnPostgres


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of one command."""
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_fleet_is_set_up_seeded_and_looked_at(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    init = ("store", "init", "--store", database, "--partitions", "3", "--apart", "busy.example")
    code, _, told = said(capsys, *init)
    assert (code, "4 partitions" in told) == (0, True), told
    assert said(capsys, *init)[0] == 0, "again and again"
    code, _, told = said(capsys, "store", "init", "--store", database, "--partitions", "4")
    assert code == 14
    assert "another number of partitions" in told

    seed = (
        "seed",
        "https://busy.example/",
        "https://a.example/",
        "--store",
        database,
        "--contact",
        "me@a.example",
    )
    code, _, told = said(capsys, *seed)
    assert code == 0
    assert "2 seeds: 2 taken" in told
    assert "`amble agent`" in told

    code, out, _ = said(capsys, "partitions", "--store", database, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["partition"] for line in lines] == [0, 1, 2, 3]
    assert {(line["owner"], line["epoch"], line["moving"]) for line in lines} == {("", 0, False)}
    assert sum(line["queued"] + line["inbox"] for line in lines) >= 2
    assert lines[3]["queued"] + lines[3]["inbox"] >= 1, "it has a partition of its own"

    _, out, _ = said(capsys, "partitions", "--store", database)
    table = out.splitlines()
    assert table[0].split() == [
        "partition",
        "owner",
        "epoch",
        "lease",
        "left",
        "queued",
        "in",
        "flight",
        "inbox",
        "outbox",
    ]
    assert len(table) == 5
    code, out, told = said(capsys, "agents", "--store", database)
    assert (code, "no agent has been seen" in told) == (0, True)


def test_a_site_is_set_apart_before_the_crawl_begins(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, told = said(
        capsys, "store", "init", "--store", database, "--partitions", "2", "--apart", "www.example.org"
    )
    assert code == 2
    assert "'example.org'" in told
    assert said(capsys, "store", "init", "--store", database, "--partitions", "2")[0] == 0
    assert (
        said(capsys, "seed", "https://a.example/", "--store", database, "--contact", "me@a.example")[0] == 0
    )
    code, _, told = said(
        capsys, "store", "init", "--store", database, "--partitions", "2", "--apart", "late.example"
    )
    assert code == 2
    assert "the crawl has begun" in told


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (["agents"], "--store postgresql://"),
        (["partitions"], "--store postgresql://"),
        (["seed", "https://a.example/", "--contact", "me@a.example"], "--store postgresql://"),
        (["store", "init", "--partitions", "4"], "--store postgresql://"),
        (["agents", "--store", "mysql://x/y"], "a database address such as postgresql://"),
        (["agent", "--store", "postgresql://x/y"], "--archive s3://"),
        (
            ["agent", "--store", "postgresql://x/y", "--archive", "ftp://x"],
            "s3://bucket/prefix or file:///folder",
        ),
        (["agent", "--store", "postgresql://x/y", "--set", "agent.lease_s=0"], "seconds from 1 to 600"),
        (["agent", "--store", "postgresql://x/y", "--set", "parse.where=there"], "here, elsewhere"),
        (["agent", "--store", "postgresql://x/y", "--archive", "file:///x", "--health", "8089"], "ADDR:PORT"),
        (["agents", "--config", "/nowhere/fleet.toml"], "cannot be read"),
    ],
)
def test_what_is_missing_or_wrong_is_told_with_its_fix(
    arguments: list[str], fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, told = said(capsys, *arguments)
    assert code == 2
    assert fix in told


def test_an_agent_without_anything_to_begin_with_says_what_to_do(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "store", "init", "--store", database, "--partitions", "2")[0] == 0
    code, _, told = said(capsys, "agent", "--store", database, "--archive", f"file://{tmp_path}")
    assert code == 2
    assert "amble seed" in told


def test_a_database_that_is_not_there_or_not_prepared_is_told_apart(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, told = said(capsys, "partitions", "--store", database)
    assert (code, "amble store init" in told) == (14, True)
    code, _, told = said(capsys, "partitions", "--store", "postgresql://me:secret@127.0.0.1:1/x")
    assert (code, "does not answer" in told, "secret" in told) == (14, True, False)


def test_a_partition_is_moved_to_another_server(
    fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"{fresh_database()} {fresh_database()}"
    code, _, told = said(capsys, "store", "init", "--store", store, "--partitions", "2")
    assert code == 0, told
    said(
        capsys,
        "seed",
        "https://a.example/",
        "https://b.example/",
        "--store",
        store,
        "--contact",
        "me@a.example",
    )
    code, _, told = said(capsys, "partitions", "move", "0", "--to", "1", "--store", store)
    assert code == 0, told
    assert "comparing" in told
    assert "lives on server 1 now" in told
    code, _, told = said(capsys, "partitions", "move", "0", "--to", "1", "--store", store)
    assert (code, "already" in told) == (0, True)
    code, out, _ = said(capsys, "partitions", "--store", store, "--json")
    assert [json.loads(line)["partition"] for line in out.splitlines()] == [0, 1]
    code, out, _ = said(capsys, "partitions", "move", "1", "--to", "0", "--store", store, "--json")
    assert (code, json.loads(out)["target"]) == (0, 0)
    code, _, told = said(capsys, "partitions", "move", "0", "--to", "9", "--store", store)
    assert (code != 0, "no server 9" in told) == (True, True)


def test_partitions_of_a_server_that_is_away_are_told_with_the_reason(
    fresh_database: FreshDatabase,
    own_postgres: OwnPostgres,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fragile = own_postgres()
    store = f"{fresh_database()} {fragile.dsn()}"
    assert said(capsys, "store", "init", "--store", store, "--partitions", "2")[0] == 0
    fragile.kill()
    code, out, told = said(capsys, "partitions", "--store", store)
    assert code == 0
    assert len(out.splitlines()) == 2
    assert "partition 1 is out of service: server_away: server 1 is away" in told
    _, out, _ = said(capsys, "partitions", "--store", store, "--json")
    assert json.loads(out.splitlines()[1])["away"].startswith("server_away")
    monkeypatch.setenv("AMBLE_STORE_URL", store)
    _, out, _ = said(capsys, "why", s.site_in(1, partitions=2))
    assert "server_away" in out
    _, out, _ = said(capsys, "why", s.site_in(0, partitions=2))
    assert "not in the frontier" in out


@pytest.fixture
def fleet_folder(database: str, tmp_path: Path) -> Path:
    """A crawl folder whose settings name a fleet that has nothing to say of itself yet."""
    folder = tmp_path / "crawl-fleet"
    folder.mkdir()
    (folder / "amble.toml").write_text(f'[store]\nurl = "{database}"\n')
    return folder


def test_a_fleet_is_named_by_the_folder_of_its_crawl(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, told = said(capsys, "store", "init", "--out", str(fleet_folder), "--partitions", "3")
    assert code == 0, told
    asked = ("https://a.example/", "--out", str(fleet_folder), "--contact", "me@a.example")
    assert said(capsys, "seed", *asked)[0] == 0
    for command in (("partitions",), ("partitions", "show")):
        code, out, _ = said(capsys, *command, str(fleet_folder))
        assert (code, len(out.splitlines())) == (0, 4)
    assert said(capsys, "agents", str(fleet_folder))[0] == 0
    monkeypatch.chdir(fleet_folder.parent)
    assert said(capsys, "partitions")[0] == 0, "the only one here"
    code, _, told = said(capsys, "agents", str(fleet_folder), "--config", "x.toml")
    assert (code, "give one" in told) == (2, True)


def test_a_crawl_in_files_of_its_own_has_no_agents_and_says_where_to_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "amble.toml").write_text("")
    code, _, told = said(capsys, "agents", str(tmp_path))
    assert (code, "amble status" in told) == (2, True)


def test_a_new_database_gets_a_sensible_number_of_partitions_and_an_old_one_keeps_its_own(
    fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    new, old = fresh_database(), fresh_database()
    assert "64 partitions" in said(capsys, "store", "init", "--store", new)[2]
    said(capsys, "store", "init", "--store", old, "--partitions", "5")
    code, _, told = said(capsys, "store", "init", "--store", old)
    assert (code, "5 partitions" in told) == (0, True)


def test_seeds_are_counted_by_what_became_of_them(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "store", "init", "--store", database, "--partitions", "1")
    fleet = ("--store", database, "--contact", "me@a.example")
    said(capsys, "seed", "https://a.example/", *fleet)
    code, _, told = said(capsys, "seed", "https://a.example/", "https://b.example/", *fleet)
    assert code == 0
    assert "2 seeds: 1 taken, 1 known before" in told


async def test_an_agent_that_is_long_silent_and_owns_nothing_is_listed_when_all_are_asked_for(
    fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    (dsn,) = await s.two_servers(fresh_database, servers=1)
    ago = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint - "
    await s.rows(dsn, f"INSERT INTO agent(name, seen_at) VALUES ('killed', {ago} 400000)")
    await s.rows(dsn, f"INSERT INTO agent(name, seen_at) VALUES ('owns', {ago} 400000)")
    await s.rows(dsn, "UPDATE partition SET owner = 'owns', lease_until = 0 WHERE partition = 0")

    def listed(*more: str) -> tuple[list[str], str]:
        _, out, told = said(capsys, "agents", "--store", dsn, *more)
        return [line.split()[0] for line in out.splitlines()[1:]], told

    shown, told = await asyncio.to_thread(listed)
    assert (shown, "--all" in told) == (["owns"], True)
    assert (await asyncio.to_thread(listed, "--all"))[0] == ["killed", "owns"]
    await s.rows(dsn, "DELETE FROM agent WHERE name = 'owns'")
    _, out, told = await asyncio.to_thread(said, capsys, "agents", "--store", dsn)
    assert (out, "1 agent silent" in told) == ("", True)
