"""The Bloom accelerator: it never calls a known URL new, and when it is made to, the store's answer is right all the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from amble.adapters.postgres import bloom
from amble.adapters.postgres.bloom import CAPACITY_MIN, Filter, Membership, PartitionFilters, load, save
from amble.adapters.postgres.placement import set_up_servers
from amble.adapters.postgres.servers_link import Link
from amble.adapters.postgres.store import PostgresStore
from amble.adapters.sql.identity import SLOT_BITS
from amble.domain.errors import StoreUnavailable
from amble.domain.frontier import AdmitBatch, DrainAsk, TakeoverAsk, Verdict
from tests.support import servers as s
from tests.support.postgres import FreshDatabase

CRAWL = b"c" * 16


# ---- the filter alone


@given(st.lists(st.integers(0, 2**62), max_size=300), st.lists(st.integers(0, 2**62), max_size=50))
@settings(max_examples=60, deadline=None)
def test_what_was_added_is_never_ruled_out(ids: list[int], more: list[int]) -> None:
    kept = Filter()
    for start in range(0, len(ids), 37):
        kept.add(ids[start : start + 37])
    if ids:
        assert kept.may_have(ids).all()
    if more:
        ruled_out = [id_ for id_, may in zip(more, kept.may_have(more), strict=True) if not may]
        assert not set(ruled_out) & set(ids)


def test_about_one_in_a_hundred_is_looked_up_for_nothing() -> None:
    chance = random.Random(5)
    known = [chance.getrandbits(62) for _ in range(60_000)]
    kept = Filter(30_000)
    kept.add(known)
    wrong = kept.may_have([chance.getrandbits(62) for _ in range(50_000)]).mean()
    assert wrong < 0.02
    neighbours = [(7 << SLOT_BITS) + n for n in range(20_000)]
    assert kept.may_have(neighbours).mean() < 0.02, "ids of one origin lie close together"


def test_it_grows_by_layers_and_forgets_nothing() -> None:
    kept, chance = Filter(), random.Random(1)
    known = [chance.getrandbits(62) for _ in range(4 * CAPACITY_MIN)]
    for start in range(0, len(known), 5_000):
        kept.add(known[start : start + 5_000])
    assert len(kept.layers) > 1
    assert kept.may_have(known).all()
    assert kept.may_have([chance.getrandbits(62) for _ in range(20_000)]).mean() < 0.05


# ---- its file


def some_filter() -> tuple[Filter, list[int]]:
    kept, ids = Filter(), [(origin << SLOT_BITS) + n for origin in (1, 2, 9) for n in range(50)]
    kept.add(ids)
    kept.counts = {1: 50, 2: 50, 9: 50}
    return kept, ids


def test_a_saved_filter_comes_back_as_it_was(tmp_path: Path) -> None:
    kept, ids = some_filter()
    save(tmp_path / "f", CRAWL, 3, kept, 7)
    back = load(tmp_path / "f", CRAWL, 3)
    assert back is not None
    assert (back[1], back[0].counts) == (7, kept.counts)
    assert back[0].may_have(ids).all()
    back[0].add([12345])
    assert back[0].may_have([12345]).all()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text", "missing"])
def test_a_damaged_file_is_as_if_it_were_not_there(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "f"
    save(path, CRAWL, 3, some_filter()[0], 1)
    content = bytearray(path.read_bytes())
    match damage:
        case "cut":
            path.write_bytes(content[:-100])
        case "flip":
            content[len(content) // 2] ^= 4
            path.write_bytes(content)
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_bytes(b"hello there, this is no filter at all")
        case _:
            path.unlink()
    assert load(path, CRAWL, 3) is None


def test_a_file_of_another_crawl_or_partition_is_not_used(tmp_path: Path) -> None:
    save(tmp_path / "f", CRAWL, 3, some_filter()[0], 1)
    assert load(tmp_path / "f", b"d" * 16, 3) is None
    assert load(tmp_path / "f", CRAWL, 4) is None


# ---- with a store


class World:
    """A database, and agents that come and go with the folder of each."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn, self.folder = dsn, folder
        self.link = Link(dsn)
        self.stores: list[PostgresStore] = []
        self.truth: set[tuple[str, str]] = set()

    async def agent(self, name: str, *, filtered: bool = True) -> tuple[PostgresStore, Membership | None]:
        store = await PostgresStore.open(self.dsn, linger_s=0.0)
        self.stores.append(store)
        if not filtered:
            return store, None
        membership = Membership(self.folder / name)
        store.use(membership)
        return store, membership

    async def admit(self, store: PostgresStore, urls: list[tuple[str, str]]) -> None:
        """Each verdict is checked against what is true."""
        batch = AdmitBatch([s.page(origin, path) for origin, path in urls], partition=0)
        verdicts = (await store.frontier(0).admit(batch)).verdicts
        seen = set(self.truth)
        for url, verdict in zip(urls, verdicts, strict=True):
            assert (verdict == Verdict.ALREADY_KNOWN) == (url in seen), url
            seen.add(url)
        self.truth |= set(urls)

    async def close(self) -> None:
        for store in self.stores:
            await store.close()
        await self.link.close()


@pytest_asyncio.fixture
async def world(fresh_database: FreshDatabase, tmp_path: Path) -> AsyncIterator[World]:
    dsn = fresh_database(s.migrated)
    await set_up_servers([dsn], partitions=s.PARTITIONS)
    made = World(dsn, tmp_path)
    yield made
    await made.close()


ORIGINS = [s.site_in(0, number) for number in range(6)]


def urls(chance: random.Random, count: int) -> list[tuple[str, str]]:
    return [(chance.choice(ORIGINS), f"/{chance.randrange(150)}") for _ in range(count)]


@pytest.mark.parametrize("seed", range(3))
async def test_over_saves_crashes_catch_ups_and_other_owners_no_verdict_is_wrong(
    world: World, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(10):
        name = chance.choice(["one", "two", "plain"])
        store, membership = await world.agent(name, filtered=name != "plain")
        if membership is not None:
            caught_up = await membership.take_up(0, world.link)
            assert caught_up.read <= len(world.truth) + len(ORIGINS)
        for _ in range(chance.randrange(1, 4)):
            await world.admit(store, urls(chance, chance.randrange(1, 60)))
            if membership is not None and chance.random() < 0.3:
                membership.save(0)
        if membership is not None and chance.random() < 0.5:
            membership.let_go(0)  # else it dies without a word
        damaged = world.folder / name / "bloom-0"
        if damaged.exists() and chance.random() < 0.15:
            damaged.write_bytes(damaged.read_bytes()[:-3])
    assert len(world.truth) > 50


async def test_after_a_clean_return_nothing_is_read_again(world: World) -> None:
    store, membership = await world.agent("one")
    assert membership is not None
    assert not (await membership.take_up(0, world.link)).loaded
    await world.admit(store, urls(random.Random(1), 100))
    membership.let_go(0)
    _, again = await world.agent("one")
    assert again is not None
    assert await again.take_up(0, world.link) == bloom.CaughtUp(True, 0, 0)


async def test_only_origins_that_grew_meanwhile_are_read_again(world: World) -> None:
    store, membership = await world.agent("one")
    assert membership is not None
    await membership.take_up(0, world.link)
    await world.admit(store, [(origin, f"/{n}") for origin in ORIGINS for n in range(10)])
    membership.let_go(0)
    other, _ = await world.agent("two", filtered=False)
    await world.admit(other, [(ORIGINS[2], "/new")])
    back, again = await world.agent("one")
    assert again is not None
    caught_up = await again.take_up(0, world.link)
    assert (caught_up.origins_read, caught_up.read) == (1, 10 + 1 + 1)
    await world.admit(back, [(ORIGINS[2], "/new"), (ORIGINS[2], "/newer")])


async def test_what_another_admits_while_the_filter_is_in_use_is_still_known(world: World) -> None:
    """An owner that was replaced may admit on: the filter does not know of it, the insert does."""
    mine, membership = await world.agent("one")
    assert membership is not None
    await membership.take_up(0, world.link)
    await world.admit(mine, [(ORIGINS[0], "/a")])
    other, _ = await world.agent("two", filtered=False)
    await world.admit(other, [(ORIGINS[0], "/b")])
    before = mine.retries
    await world.admit(mine, [(ORIGINS[0], "/b"), (ORIGINS[0], "/c")])
    assert mine.retries > before, "it met the row and began again without the filter"
    await world.admit(mine, [(ORIGINS[0], "/c")])


async def test_new_urls_are_not_looked_up(world: World) -> None:
    store, membership = await world.agent("one")
    assert membership is not None
    await membership.take_up(0, world.link)
    await world.admit(store, [(ORIGINS[0], f"/{n}") for n in range(200)])
    membership.looked_up = membership.ruled_out = 0
    await world.admit(store, [(ORIGINS[0], f"/new-{n}") for n in range(200)])
    assert membership.ruled_out > 190
    membership.looked_up = membership.ruled_out = 0
    await world.admit(store, [(ORIGINS[0], f"/{n}") for n in range(200)])
    assert membership.looked_up == 200


async def test_what_arrives_through_the_inbox_is_remembered_too(world: World) -> None:
    store, membership = await world.agent("one")
    assert membership is not None
    epoch = (await store.frontier(0).take_over(TakeoverAsk("one", 0))).epoch
    await membership.take_up(0, world.link)
    links = [s.page(ORIGINS[1], f"/{n}") for n in range(30)]
    await store.frontier(1).admit(AdmitBatch(links, partition=1))
    assert (await store.frontier(0).drain(DrainAsk(0, epoch, 100))).admitted == 30
    world.truth = {(link.origin, link.path) for link in links}
    await world.admit(store, sorted(world.truth))
    membership.let_go(0)
    _, again = await world.agent("one")
    assert again is not None
    assert (await again.take_up(0, world.link)).read == 0


async def test_what_is_admitted_while_ids_are_read_is_remembered_and_read_again_next_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, membership = await world.agent("one")
    assert membership is not None
    await world.admit(store, [(ORIGINS[0], "/before")])
    plain = bloom._catch_up

    async def slow(connection: Any, partition: int, kept: Filter) -> tuple[int, int]:
        found = await plain(connection, partition, kept)
        await world.admit(store, [(ORIGINS[0], "/meanwhile"), (ORIGINS[3], "/other")])
        return found

    monkeypatch.setattr(bloom, "_catch_up", slow)
    await membership.take_up(0, world.link)
    monkeypatch.undo()
    await world.admit(store, [(ORIGINS[0], "/meanwhile"), (ORIGINS[3], "/other"), (ORIGINS[0], "/before")])
    membership.let_go(0)
    _, again = await world.agent("one")
    assert again is not None
    assert (await again.take_up(0, world.link)).origins_read == 2


async def test_without_a_server_the_partition_has_no_filter_and_works(world: World) -> None:
    store, membership = await world.agent("one")
    assert membership is not None
    gone = Link("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailable):
        await membership.take_up(0, gone)
    await world.admit(store, urls(random.Random(2), 50))
    assert not membership.save(0)
    assert membership.size_bytes == 0
    membership.close()


async def test_a_folder_that_cannot_be_written_only_costs_the_file(world: World, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    membership = Membership(blocked)
    await membership.take_up(0, world.link)
    assert not membership.save(0)
    membership.close()


async def test_an_agent_takes_filters_up_behind_its_crawl_and_saves_them_with_its_partitions(
    world: World,
) -> None:
    store, membership = await world.agent("one")
    assert membership is not None
    filters = PartitionFilters(membership, store.link_of)
    filters.take_up(0)
    await asyncio.gather(*filters._tasks.values())
    await world.admit(store, [(ORIGINS[0], f"/{n}") for n in range(40)])
    filters.let_go(0)
    filters.let_go(0)
    assert (world.folder / "one" / "bloom-0").exists()
    await world.admit(store, [(ORIGINS[0], "/while-another-has-it")])
    filters.take_up(0)
    filters.take_up(0)
    await asyncio.gather(*filters._tasks.values())
    await world.admit(store, [(ORIGINS[0], "/while-another-has-it"), (ORIGINS[0], "/more")])
    assert membership.ruled_out > 0
    filters.close()
    assert membership.size_bytes == 0


async def test_a_filter_that_cannot_be_had_is_done_without(world: World) -> None:
    store, membership = await world.agent("one")
    assert membership is not None
    filters = PartitionFilters(membership, lambda _: Link("postgresql://nobody@127.0.0.1:1/none"))
    filters.take_up(0)
    await asyncio.gather(*filters._tasks.values())
    await world.admit(store, urls(random.Random(3), 40))
    filters.close()
