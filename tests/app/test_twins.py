"""Near-duplicates over several frontier files: whichever files they live in, one of them is published."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from amble.adapters.sql.check import SqliteCheck
from amble.adapters.sql.files import FilesCheck
from amble.adapters.sql.inline import InlineStore
from amble.adapters.sql.names import file_of
from amble.adapters.sql.settings import StoreSettings, of_file
from amble.adapters.sql.sqlite import SqliteStore
from amble.adapters.system import SystemClock
from amble.app.filegroup import FileShards
from amble.domain.attempt import Edge, Lease, UrlKind
from amble.domain.errors import StoreUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.frontier import (
    AdmitBatch,
    Applied,
    Candidate,
    Complete,
    LeaseAsk,
    OriginEffect,
    RecordFetched,
    RecordParsed,
    TakeoverAsk,
)
from tests.contract.frontier_rig import answer

FILES = 3
TEXT = 0xF123_4567_89AB_CDEF
REF = BodyRef(1, 100, 50)


class Slow(InlineStore):
    """A store whose commits can be held up, and that can be away when it is asked."""

    held: asyncio.Event | None = None
    waiting = 0
    away = False

    async def complete(self, item: Complete) -> Applied:
        if self.held is not None:
            self.waiting += 1
            await self.held.wait()
        return await super().complete(item)

    async def find_near(self, fingerprint: int) -> str | None:
        if self.away:
            raise StoreUnavailable("away")
        return await super().find_near(fingerprint)


@dataclass(slots=True)
class Group:
    """A crawl over several files; page n of partition p is https://p.example/n."""

    shards: FileShards
    stores: list[Slow]
    folder: Path

    async def parsed(self, partition: int, number: int) -> Lease:
        """A page that only needs to be completed."""
        found = Candidate(
            f"https://{partition}.example", f"/{number}", UrlKind.PAGE, 2, 0, 0, Edge.SEED, 0, partition
        )
        await self.shards.admit(AdmitBatch([found], partition=partition))
        store = self.stores[partition]
        ask = LeaseAsk(self.shards.held[partition], 1, 10, 30_000, robots_obey=False, partition=partition)
        leases = [lease for _ in range(2) for lease in (await store.lease(ask)).leases]
        (lease,) = (lease for lease in leases if lease.kind == UrlKind.PAGE)
        fetched = answer(digest=bytes([partition, number]) * 16)
        await store.record_fetched(RecordFetched(lease.key, fetched, OriginEffect(1, 0, 0, 0), 60_000))
        await store.record_parsed(RecordParsed(lease.key, 1, REF, 0, "html"))
        return lease

    async def complete(self, lease: Lease, fingerprint: int = TEXT, *, near: bool = True) -> Applied:
        return await self.shards.complete(Complete(lease.key, 1, True, fingerprint=fingerprint, near=near))

    def published(self) -> list[tuple[int, str]]:
        return [
            (partition, path)
            for partition, store in enumerate(self.stores)
            for (path,) in store.store.database.execute(
                "SELECT u.path FROM publication p JOIN url u ON u.id = p.url_id ORDER BY p.seq"
            ).fetchall()
        ]

    def reason(self, lease: Lease) -> tuple[str | None, str | None]:
        database = self.stores[lease.key.partition].store.database
        row = database.execute("SELECT reason, detail FROM url WHERE id = ?1", (lease.key.url_id,)).fetchone()
        return row[0], row[1]

    def problems(self) -> list[str]:
        with FilesCheck([file_of(self.folder / "frontier.db", number) for number in range(FILES)]) as check:
            return list(check.problems())


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    with TemporaryDirectory(prefix="amble-test-") as folder:
        path = Path(folder) / "frontier.db"
        stores = [
            Slow(
                SqliteStore(
                    file_of(path, number),
                    of_file(StoreSettings(default_spacing_ms=0, default_active_max=9), number, FILES),
                )
            )
            for number in range(FILES)
        ]
        shards = FileShards(SystemClock(), partition_of=lambda _: 0, hosts=dict(enumerate(stores)))
        for number, store in enumerate(stores):
            shards.add(number, store, (await store.take_over(TakeoverAsk("agent", number))).epoch)
        yield Group(shards, stores, Path(folder))
        for store in stores:
            await store.close()


async def test_a_twin_in_another_file_is_found_and_named(group: Group) -> None:
    first, second, third = [await group.parsed(number, number) for number in range(3)]
    assert await group.complete(first) == Applied.APPLIED
    assert await group.complete(second, TEXT ^ 0b111) == Applied.APPLIED
    assert await group.complete(third, TEXT ^ 0b1111) == Applied.APPLIED
    assert group.published() == [(0, "/0"), (2, "/2")]
    assert group.reason(second) == ("near_duplicate", "nearly the same text as https://0.example/0")
    assert group.problems() == []


async def test_twins_on_their_way_at_once_publish_one(group: Group) -> None:
    leases = [await group.parsed(number % FILES, number) for number in range(9)]
    assert set(await asyncio.gather(*(group.complete(lease) for lease in leases))) == {Applied.APPLIED}
    assert group.published() == [(0, "/0")]
    assert group.problems() == []


async def test_the_second_waits_for_the_fate_of_the_first(group: Group) -> None:
    first, second, other = await group.parsed(0, 0), await group.parsed(1, 1), await group.parsed(2, 2)
    group.stores[0].held = asyncio.Event()
    tasks = [asyncio.ensure_future(group.complete(lease)) for lease in (first, second)]
    assert await group.complete(other, ~TEXT & (1 << 64) - 1) == Applied.APPLIED, "other texts do not wait"
    assert not any(task.done() for task in tasks)
    group.stores[0].held.set()
    assert await asyncio.gather(*tasks) == [Applied.APPLIED] * 2
    assert group.published() == [(0, "/0"), (2, "/2")]


async def test_a_first_one_that_is_stale_leaves_its_place_to_the_second(group: Group) -> None:
    first, second = await group.parsed(0, 0), await group.parsed(1, 1)
    taken = await group.stores[0].take_over(TakeoverAsk("another", 0))
    results = await asyncio.gather(group.complete(first), group.complete(second))
    assert results == [Applied.STALE, Applied.APPLIED]
    assert group.published() == [(1, "/1")]
    (resumed,) = taken.resumables
    assert await group.complete(resumed.lease) == Applied.APPLIED
    assert group.reason(first)[0] == "near_duplicate"
    assert group.problems() == []


async def test_what_was_sent_counts_though_whoever_asked_went_away(group: Group) -> None:
    first, second = await group.parsed(0, 0), await group.parsed(1, 1)
    store = group.stores[0]
    store.held = asyncio.Event()
    asker = asyncio.ensure_future(group.complete(first))
    while not store.waiting:
        await asyncio.sleep(0)
    asker.cancel()
    late = asyncio.ensure_future(group.complete(second))
    await asyncio.wait([asker])
    store.held.set()
    assert await late == Applied.APPLIED
    assert group.published() == [(0, "/0")]
    assert group.reason(second)[0] == "near_duplicate"


async def test_a_file_that_cannot_answer_keeps_a_document_from_being_completed(group: Group) -> None:
    first, second = await group.parsed(0, 0), await group.parsed(1, 1)
    await group.complete(first)
    group.stores[0].away = True
    with pytest.raises(StoreUnavailable):
        await group.complete(second)
    group.stores[0].away = False
    assert await group.complete(second) == Applied.APPLIED
    assert group.published() == [(0, "/0")]


async def test_who_does_not_ask_is_not_held_up(group: Group) -> None:
    first, second = await group.parsed(0, 0), await group.parsed(1, 1)
    await group.complete(first)
    group.stores[0].away = True
    assert await group.complete(second, near=False) == Applied.APPLIED
    assert group.published() == [(0, "/0"), (1, "/1")]


async def test_one_file_alone_does_not_know_the_twins_of_others(group: Group) -> None:
    """Which is why the files of a crawl are checked together."""
    first, second = await group.parsed(0, 0), await group.parsed(1, 1)
    await group.complete(first)
    await group.complete(second)
    with SqliteCheck(file_of(group.folder / "frontier.db", 1)) as check:
        (problem,) = check.problems()
    assert (
        "https://1.example/1 is withheld as a near-duplicate, but no published document is near it" in problem
    )
    assert group.problems() == []
