"""The relay: nothing is lost and nothing is admitted twice, wherever it stops and however often it comes again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from amble.adapters.sql.inline import InlineStore
from amble.adapters.sql.settings import StoreSettings, of_file
from amble.adapters.sql.sqlite import SqliteStore
from amble.domain.attempt import Edge
from amble.domain.errors import StoreUnavailable
from amble.domain.frontier import (
    AdmitBatch,
    Applied,
    Candidate,
    DrainAsk,
    DropParcels,
    LeaseAsk,
    Parcel,
    ParcelAsk,
    TakeoverAsk,
)
from amble.upkeep.relay import Away, Intake, Relay

FILES = 3


class Silent:
    """Telemetry that nobody reads."""

    def event(self, name: str, **fields: object) -> None: ...

    def count(self, name: str, amount: int = 1) -> None: ...


class Faulty:
    """A frontier whose calls can be made to fail, before or after they have happened."""

    def __init__(self, frontier: Any) -> None:
        self._frontier = frontier
        self.fails: dict[str, str] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._frontier, name)

        async def call(argument: Any) -> Any:
            self.calls.append(name)
            when = self.fails.get(name, "")
            if when == "hangs":
                await asyncio.Event().wait()
            if when == "before":
                raise StoreUnavailable("gone")
            reply = await method(argument)
            if when == "after":
                raise StoreUnavailable("the answer was lost")
            return reply

        return call


class World:
    """Three partitions in one process; the first two are ours, the third is somebody else's."""

    def __init__(self) -> None:
        self.stores = [
            InlineStore(SqliteStore(":memory:", of_file(StoreSettings(), number, FILES)))
            for number in range(FILES)
        ]
        self.ends = [Faulty(store) for store in self.stores]
        self.epochs: dict[int, int] = {}
        self.reachable = set(range(FILES))

    async def own(self, *partitions: int) -> None:
        for partition in partitions:
            taken = await self.stores[partition].take_over(TakeoverAsk("agent", partition))
            self.epochs[partition] = taken.epoch

    def relay(self, partition: int = 0, **options: Any) -> Relay:
        epochs = dict(self.epochs)
        return Relay(
            source=self.ends[partition],  # type: ignore[arg-type]
            held=lambda: {partition: epochs[partition]},
            reach=lambda other: self.ends[other] if other in self.reachable else None,  # type: ignore[arg-type, return-value]
            telemetry=Silent(),
            **options,
        )

    async def find(self, partition: int, *paths: str, source: int = 0) -> None:
        """Links found in one partition that belong to another."""
        host = f"https://p{partition}.example"
        batch = [Candidate(host, path, 0, 2, 1, 0, int(Edge.ANCHOR), 0, partition) for path in paths]
        await self.stores[source].admit(AdmitBatch(batch, partition=source))

    async def left(self, partition: int = 0) -> int:
        ask = LeaseAsk(self.epochs[partition], 1, 0, 1000, partition=partition)
        return (await self.stores[partition].lease(ask)).forwarded

    async def drained(self, partition: int) -> tuple[int, int]:
        reply = await self.stores[partition].drain(DrainAsk(partition, self.epochs[partition], 100))
        return reply.taken, reply.admitted


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for store in made.stores:
        store.store.close()


async def test_links_arrive_in_their_order_and_leave_nothing_behind(world: World) -> None:
    await world.own(0, 1, 2)
    for number in range(5):
        await world.find(1, f"/{number}")
    await world.find(2, "/x", "/y")
    relayed = await world.relay(parcels_max=2).once()
    assert (relayed.parcels, relayed.candidates, relayed.waiting, relayed.behind) == (6, 7, {}, [])
    assert await world.left() == 0
    rows = world.stores[1].store.database.execute("SELECT number FROM inbox ORDER BY seq").fetchall()
    assert rows == sorted(rows)
    assert await world.drained(1) == (5, 5)
    assert await world.drained(2) == (2, 2)


@pytest.mark.parametrize(
    ("store", "call", "when"),
    [
        (0, "parcels", "before"),
        (0, "parcels", "after"),
        (1, "deliver", "before"),
        (1, "deliver", "after"),
        (0, "drop_parcels", "before"),
        (0, "drop_parcels", "after"),
    ],
)
async def test_stopped_at_any_point_the_next_round_loses_and_doubles_nothing(
    world: World, store: int, call: str, when: str
) -> None:
    await world.own(0, 1)
    await world.find(1, "/a", "/b")
    await world.find(1, "/c")
    world.ends[store].fails = {call: when}
    await world.relay().once()
    world.ends[store].fails = {}
    await world.find(1, "/d")
    await world.own(0)  # another agent takes over
    await world.relay().once()
    await world.relay().once()
    assert await world.left() == 0
    assert await world.drained(1) == (4, 4)


@pytest.mark.parametrize("trouble", ["before", "hangs", "unknown", "moved"])
async def test_a_destination_that_is_away_keeps_only_its_own_parcels_waiting(
    world: World, trouble: str
) -> None:
    await world.own(0, 1, 2)
    expected = Away.UNAVAILABLE
    if trouble == "unknown":
        world.reachable.remove(1)
        expected = Away.NO_SERVER
    elif trouble == "moved":
        world.ends[1] = Faulty(world.stores[2])
        expected = Away.MOVED
    else:
        world.ends[1].fails = {"deliver": trouble}
    for number in range(6):
        await world.find(1, f"/{number}")
    await world.find(2, "/x")
    relayed = await world.relay(parcels_max=2, deliver_s_max=0.05).once()
    assert relayed.waiting == {1: expected}
    assert await world.drained(2) == (1, 1)
    assert await world.left() == 6
    world.ends[1] = Faulty(world.stores[1])
    world.reachable.add(1)
    assert (await world.relay().once()).waiting == {}
    assert await world.drained(1) == (6, 6)


async def test_an_owner_of_the_past_that_delivers_late_changes_nothing(world: World) -> None:
    await world.own(0, 1)
    await world.find(1, "/a", "/b")
    stale = await world.stores[0].parcels(ParcelAsk(0, world.epochs[0], 10))
    old = world.relay()
    await world.own(0)
    await world.relay().once()
    assert await world.drained(1) == (2, 2)
    assert await world.stores[1].deliver(stale) == Applied.APPLIED
    assert await world.drained(1) == (0, 0)
    await world.find(1, "/c")
    assert (await old.once()).parcels == 0, "nothing is read under an old epoch"
    late = DropParcels(0, world.epochs[0] - 1, [(1, 99)])
    assert await world.stores[0].drop_parcels(late) == Applied.STALE
    assert await world.left() == 1


async def test_an_owner_of_the_past_that_delivers_first_spares_the_next_one_the_work(world: World) -> None:
    await world.own(0, 1)
    await world.find(1, "/a")
    stale: list[Parcel] = await world.stores[0].parcels(ParcelAsk(0, world.epochs[0], 10))
    await world.own(0)
    await world.stores[1].deliver(stale)
    await world.find(1, "/b")
    await world.relay().once()
    assert await world.drained(1) == (2, 2)


async def test_a_source_that_does_not_answer_does_not_keep_the_others(world: World) -> None:
    await world.own(0, 1, 2)
    await world.find(2, "/x", source=1)
    world.ends[0].fails = {"parcels": "before"}

    class Both:
        async def parcels(self, ask: ParcelAsk) -> Any:
            return await world.ends[ask.partition].parcels(ask)

        async def drop_parcels(self, item: DropParcels) -> Any:
            return await world.ends[item.partition].drop_parcels(item)

    relay = Relay(
        source=Both(),  # type: ignore[arg-type]
        held=lambda: {0: world.epochs[0], 1: world.epochs[1]},
        reach=lambda other: world.ends[other],  # type: ignore[arg-type, return-value]
        telemetry=Silent(),
    )
    relayed = await relay.once()
    assert (relayed.parcels, relayed.behind) == (1, [0])


async def test_the_intake_admits_in_bounded_commits_until_nothing_is_left(world: World) -> None:
    await world.own(0, 1)
    await world.find(1, *(f"/{number}" for number in range(10)))
    await world.relay().once()
    intake = Intake(
        frontier=world.ends[1],  # type: ignore[arg-type]
        held=lambda: {1: world.epochs[1]},
        drain_max=3,
    )
    assert await intake.once() == 10
    assert world.ends[1].calls.count("drain") == 4
    assert await world.left(1) == 0


async def test_the_intake_of_an_owner_of_the_past_ends(world: World) -> None:
    await world.own(0, 1)
    await world.find(1, "/a")
    await world.relay().once()
    epoch = world.epochs[1]
    await world.own(1)
    intake = Intake(frontier=world.stores[1], held=lambda: {1: epoch})
    assert await intake.once() == 0
