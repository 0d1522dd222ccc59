"""Near-duplicates in a fleet: one of each group is published, over two databases, with parse workers in between."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from amble.domain.partition import PartitionMap
from tests.support import servers as s
from tests.support.amble_process import run
from tests.support.fleet import Fleet
from tests.support.postgres import FreshDatabase
from tests.web.handle import TestWeb
from tests.whole.test_fleet import agent, command, ended_well

PARTITIONS = 8


@pytest.mark.parametrize("parsed_by", [pytest.param("agents", marks=pytest.mark.soak), "workers"])
def test_of_each_group_of_near_duplicates_one_document_is_published(
    tmp_path: Path, fresh_database: FreshDatabase, parsed_by: str
) -> None:
    databases = [fresh_database(), fresh_database()]
    dsns, archive = " ".join(databases), tmp_path / "archive"
    with TestWeb.start(tmp_path, sites=1, pages=2) as web, Fleet(tmp_path) as fleet:
        command("store", "init", "--store", dsns, "--partitions", str(PARTITIONS))
        seeds = [web.url("mirror"), web.url("mirror-2", "/article"), web.url("dup")]
        assert len({PartitionMap(hashed=PARTITIONS).of(seed.rsplit(":", 1)[0]) % 2 for seed in seeds}) == 2
        command("seed", *seeds, "--store", dsns, "--contact", "x@example.org")
        more = ["--until-done"]
        if parsed_by == "workers":
            more += ["--set", "parse.where=elsewhere"]
            fleet.start(
                "worker", ["parse", "--store", dsns, "--archive", f"file://{archive}", "--children", "1"]
            )
        members = [fleet.start(name, agent(web, dsns, archive, name, *more)) for name in ("ada", "ben")]
        for member in members:
            ended_well(member)
        groups = web.truth()["near_duplicates"]
    rows = [
        row
        for dsn in databases
        for row in asyncio.run(
            s.rows(
                dsn,
                "SELECT o.key || u.path, u.reason, u.detail, EXISTS (SELECT 1 FROM publication p WHERE p.url_id = u.id)"
                " FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE u.kind = 0",
            )
        )
    ]
    told = {url: (reason, detail) for url, reason, detail, _ in rows}
    published = {url for url, _, _, was in rows if was}
    for group in groups:
        (shown,) = set(group) & published
        assert all(
            told[url] == ("near_duplicate", f"nearly the same text as {shown}")
            for url in group
            if url != shown
        )
    assert web.url("mirror", "/other") in published
    env = {"AMBLE_STORE_URL": dsns, "AMBLE_ARCHIVE_URL": f"file://{archive}"}
    assert json.loads(run(["status", "--json"], env=env).stdout)["documents"] == len(published)
    sound = run(["verify"], env=env, timeout_s=60)
    assert sound.returncode == 0, sound.stdout + sound.stderr
    origin, lost = web.url("mirror", "/").removesuffix("/"), "/print"
    gone = "DELETE FROM url u USING origin o WHERE o.id = u.id >> 36 AND o.key = $1 AND u.path = $2"
    for dsn in databases:
        asyncio.run(s.rows(dsn, gone, origin, lost))
    damaged = run(["verify"], env=env, timeout_s=60)
    assert damaged.returncode == 3, damaged.stdout + damaged.stderr
    assert f"its link {origin}{lost} is lost" in damaged.stdout
