"""`amble gc`: small segments become large ones, by hand, or by one agent of many when its turn has come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from amble.adapters.archive.objects_open import open_archive_url, open_bucket
from amble.adapters.archive.objects_reader import verify_objects
from amble.adapters.postgres.partitions import PostgresPartitions
from amble.adapters.postgres.setup import init
from amble.adapters.system import SystemClock, SystemEntropy
from amble.app.collecting import CollectInTurn, collect
from amble.domain.errors import ConfigErrors
from amble.domain.fetched import BodyRef
from tests.support.amble_process import run
from tests.support.exchanges import Ids, page
from tests.support.postgres import FreshDatabase

SEGMENTS = 5
HOUR_MS = 3_600_000


class Told:
    """The events of a run."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []
        self.something = asyncio.Event()

    def event(self, name: str, **fields: object) -> None:
        self.events.append((name, fields))
        self.something.set()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/archive"


async def filled(url: str) -> list[BodyRef]:
    """An archive of several processes, one small segment each."""
    refs: list[BodyRef] = []
    for number in range(SEGMENTS):
        archive = open_archive_url(url, SystemClock(), SystemEntropy(), info={"software": "amble"})
        refs += await archive.append(page(Ids(number), number))
        await archive.close()
    return refs


async def read(url: str, refs: list[BodyRef]) -> int:
    archive = open_archive_url(url, SystemClock(), SystemEntropy())
    try:
        return len([await archive.read(ref) for ref in refs])
    finally:
        await archive.close()


async def test_what_is_less_than_a_large_segment_is_left_unless_everything_is_asked_for(url: str) -> None:
    refs = await filled(url)
    assert (await collect(url, everything=False)).made == 0
    told = await collect(url, everything=True)
    assert (told.made, told.moved, told.deleted, told.problems) == (1, SEGMENTS, 0, ())
    assert told.moved_bytes > 0
    assert await read(url, refs) == len(refs)
    assert list(verify_objects(open_bucket(url))) == []


async def test_an_archive_in_a_folder_has_nothing_to_collect() -> None:
    with pytest.raises(ConfigErrors, match="object storage"):
        await collect("", everything=False)


async def test_the_command_tells_what_it_did(url: str, tmp_path: Path) -> None:
    await filled(url)
    done = await asyncio.to_thread(run, ["gc", "--archive", url, "--everything", "--json"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["moved"] == SEGMENTS
    again = await asyncio.to_thread(run, ["gc"], env={"AMBLE_ARCHIVE_URL": url})
    assert again.returncode == 0, again.stderr
    assert "nothing to join yet" in again.stderr


@pytest.fixture
async def dsn(fresh_database: FreshDatabase) -> str:
    async def two(dsn: str) -> None:
        await init(dsn, partitions=2)

    return await asyncio.to_thread(fresh_database, two)


@pytest.fixture
async def agents(dsn: str) -> AsyncIterator[list[PostgresPartitions]]:
    made = [PostgresPartitions(dsn) for _ in range(4)]
    yield made
    await asyncio.gather(*(each.close() for each in made))


async def test_one_agent_of_many_has_the_turn_when_its_time_has_come(
    agents: list[PostgresPartitions], dsn: str
) -> None:
    async def turns() -> list[bool]:
        return await asyncio.gather(*(agent.take_turn("gc", HOUR_MS) for agent in agents))

    assert sum(await turns()) == 0, "a new fleet has nothing to collect"
    connection = await asyncpg.connect(dsn)
    for _ in range(3):
        # An hour later.
        await connection.execute("UPDATE meta SET value = '0' WHERE name = 'turn.gc'")
        assert sum(await turns()) == 1
        assert sum(await turns()) == 0
    await connection.close()


async def test_in_its_turn_an_agent_runs_the_command_to_its_end(url: str) -> None:
    await filled(url)
    told = Told()

    async def ours(every_ms: int) -> bool:
        return every_ms == HOUR_MS

    await CollectInTurn(archive_url=url, take_turn=ours, telemetry=told).once()
    (begun, _), (ended, facts) = told.events
    assert (begun, ended, facts["code"]) == ("gc.begun", "gc.ended", 0), facts
    assert json.loads(str(facts["told"]))["made"] == 0


async def test_out_of_its_turn_an_agent_does_nothing(url: str) -> None:
    async def theirs(_: int) -> bool:
        return False

    told = Told()
    await CollectInTurn(archive_url=url, take_turn=theirs, telemetry=told).once()
    assert told.events == []


async def test_an_agent_that_stops_ends_the_command_with_it(url: str) -> None:
    async def ours(_: int) -> bool:
        return True

    told = Told()
    running = asyncio.create_task(CollectInTurn(archive_url=url, take_turn=ours, telemetry=told).once())
    await told.something.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 10)
    assert [name for name, _ in told.events] == ["gc.begun"]
