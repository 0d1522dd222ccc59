"""Seeds at a second start: what was admitted is left alone, what is new or judged by other rules is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from amble.adapters.sql.connection import open_writer
from amble.adapters.sql.process import StoreProcess
from amble.adapters.sql.reports import SqliteReports
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.system import EventLog
from amble.app.config import CrawlConfig, Given, scope_of
from amble.app.seeding import Seeder
from amble.app.storefiles import FileMemory
from amble.domain.frontier import AdmitBatch, AdmitReport
from amble.domain.url import Canonicalizer
from amble.stages.admit import UrlGate
from tests.contract.frontier_rig import memory_folder

tmp_path = memory_folder

SEEDS = [f"https://{name}.example/" for name in ("a", "b", "c")]


class Starts:
    """One crawl folder's frontier, started again and again with the seeds and rules of the day."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.settings = StoreSettings()
        self.asked: list[str] = []

    async def start(self, seeds: list[str], **rules: object) -> list[str]:
        """The URLs that the frontier was asked to admit."""
        config = CrawlConfig.parse(
            '[crawl]\ncontact = "https://me.example"',
            given={name.replace("__", "."): Given(value, "test") for name, value in rules.items()},
            seeds=seeds,
        )
        self.asked = []
        store = await StoreProcess.start(self.file, self.settings)
        reports = SqliteReports(self.file)
        try:
            gate = UrlGate(Witness(store, self.asked), config.policy, scope_of(config), Canonicalizer())
            await Seeder(gate, config, EventLog(None), FileMemory(store, reports)).admit()
        finally:
            reports.close()
            await store.close()
        return self.asked

    def urls(self) -> set[str]:
        database = open_writer(self.file)
        rows = database.execute(
            "SELECT o.key || u.path FROM url AS u JOIN origin AS o ON o.id = u.id >> 36 WHERE u.kind = 0"
        ).fetchall()
        database.close()
        return {url for (url,) in rows}


class Witness:
    """The store's `admit`, seen."""

    def __init__(self, store: StoreProcess, asked: list[str]) -> None:
        self._store, self._asked = store, asked

    async def admit(self, batch: AdmitBatch) -> AdmitReport:
        self._asked += [candidate.origin + candidate.path for candidate in batch.candidates]
        return await self._store.admit(batch)


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    return Starts(tmp_path / "frontier.db")


async def test_what_was_admitted_is_not_admitted_again(starts: Starts) -> None:
    assert await starts.start(SEEDS) == SEEDS
    assert await starts.start(SEEDS) == []
    assert starts.urls() == set(SEEDS)


async def test_of_a_longer_list_only_what_is_new_is_admitted(starts: Starts) -> None:
    await starts.start(SEEDS[:2])
    assert await starts.start(SEEDS) == SEEDS[2:]
    assert await starts.start(SEEDS) == []
    assert starts.urls() == set(SEEDS)


@pytest.mark.parametrize("other", [[SEEDS[2], *SEEDS[:2]], SEEDS[1:], [*SEEDS[:2], "https://d.example/"]])
async def test_another_list_is_admitted_as_a_whole(starts: Starts, other: list[str]) -> None:
    await starts.start(SEEDS)
    assert await starts.start(other) == other
    assert await starts.start(other) == []


async def test_other_rules_let_in_what_was_refused(starts: Starts) -> None:
    refusing = {"scope__exclude": ["b.example/"]}
    assert await starts.start(SEEDS, **refusing) == [SEEDS[0], SEEDS[2]]
    assert await starts.start(SEEDS, **refusing) == []
    assert await starts.start(SEEDS) == SEEDS
    assert starts.urls() == set(SEEDS)


async def test_a_seed_that_found_no_room_is_given_another_chance_at_each_start(starts: Starts) -> None:
    seeds = [SEEDS[0], *(f"{SEEDS[1]}{number}" for number in range(3)), SEEDS[2]]
    starts.settings = StoreSettings(urls_per_origin_start=2, urls_per_fetched_page=0)
    assert await starts.start(seeds) == seeds
    assert await starts.start(seeds) == seeds[3:]
    starts.settings = StoreSettings()
    assert await starts.start(seeds) == seeds[3:]
    assert await starts.start(seeds) == []
    assert starts.urls() == set(seeds)


async def test_a_frontier_that_is_begun_anew_or_put_back_is_given_what_it_lacks(starts: Starts) -> None:
    await starts.start(SEEDS[:1])
    older = starts.file.read_bytes()
    await starts.start(SEEDS)
    starts.file.write_bytes(older)
    assert await starts.start(SEEDS) == SEEDS[1:]
    starts.file.unlink()
    assert await starts.start(SEEDS) == SEEDS


async def test_a_memory_that_cannot_be_read_costs_no_more_than_the_saving(starts: Starts) -> None:
    await starts.start(SEEDS)
    database = open_writer(starts.file)
    database.execute("UPDATE meta SET value = x'7b' WHERE name = 'seeded'")
    database.close()
    assert await starts.start(SEEDS) == SEEDS
    assert await starts.start(SEEDS) == []


async def test_a_crawl_without_seeds_asks_nothing(starts: Starts) -> None:
    assert await starts.start([], scope__kind="any") == []
