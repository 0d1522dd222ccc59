"""One frontier out of many handles: where calls go, and how leases are divided."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace

from amble.adapters.sql.inline import InlineStore
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.sqlite import SqliteStore
from amble.app.shards import LOOK_EVERY_S, Shards
from amble.domain.attempt import Edge, Lease, UrlKind
from amble.domain.errors import StoreUnavailable
from amble.domain.frontier import (
    AdmitBatch,
    Applied,
    Candidate,
    LeaseAsk,
    LeaseReply,
    PutBack,
    ReserveAsk,
    ReserveOutcome,
    TakeoverAsk,
)
from amble.domain.manifest import CursorAdvance, ManifestKey

TTL_MS = 30_000


@dataclass(slots=True)
class Time:
    """The clock of the agent, which the test moves."""

    now_s: float = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Spied(InlineStore):
    """A store that counts its leases and can be away."""

    asks: list[LeaseAsk]
    away = False

    async def lease(self, ask: LeaseAsk) -> LeaseReply:
        self.asks.append(ask)
        if self.away:
            raise StoreUnavailable("away")
        return await super().lease(ask)


@dataclass(slots=True)
class Many:
    shards: Shards
    time: Time
    stores: list[Spied]
    fenced: list[int] = field(default_factory=list)

    async def put(self, partition: int, pages: int) -> None:
        """So many origins with one page each, whose robots.txt come first."""
        candidates = [
            Candidate(
                f"https://p{partition}-{n}.example", "/", UrlKind.PAGE, 2, 0, 0, Edge.SEED, 0, partition
            )
            for n in range(pages)
        ]
        await self.shards.admit(AdmitBatch(candidates, partition=partition))

    async def lease(
        self, count: int, pages_max: int | None = None, *, robots_obey: bool = True
    ) -> LeaseReply:
        return await self.shards.lease(LeaseAsk(0, 1, count, TTL_MS, pages_max, robots_obey))

    def asked(self) -> list[int]:
        """How often each partition was asked since the last look."""
        counts = [len(store.asks) for store in self.stores]
        for store in self.stores:
            store.asks.clear()
        return counts


Make = Callable[[int], Many]


@pytest.fixture
async def many() -> AsyncIterator[Many]:
    """Three partitions."""
    time = Time()
    fenced: list[int] = []
    shards = Shards(time, on_fenced=fenced.append, shared=False)
    stores: list[Spied] = []
    with TemporaryDirectory(prefix="amble-test-") as folder:
        for partition in range(3):
            store = SqliteStore(
                Path(folder) / f"{partition}.db",
                StoreSettings(partition=partition),
                now_ms=lambda: int(time.now_s * 1000),
            )
            stores.append(Spied(store))
            stores[-1].asks = []
            taken = await stores[-1].take_over(TakeoverAsk("agent", partition))
            shards.add(partition, stores[-1], taken.epoch)
        yield Many(shards, time, stores, fenced)
        for spied in stores:
            await spied.close()


def partitions(leases: list[Lease]) -> list[int]:
    return sorted(lease.key.partition for lease in leases)


async def test_leases_come_from_all_partitions_in_fair_parts(many: Many) -> None:
    for partition in range(3):
        await many.put(partition, 10)
    reply = await many.lease(6)
    assert partitions(reply.leases) == [0, 0, 1, 1, 2, 2]
    assert (reply.queued + reply.in_flight, reply.in_flight) == (60, 6)


async def test_what_one_partition_leaves_goes_to_those_that_have_more(many: Many) -> None:
    await many.put(1, 10)
    reply = await many.lease(9)
    assert partitions(reply.leases) == [1] * 9
    assert reply.next_wake_ms is not None
    assert reply.next_wake_ms <= reply.now_ms, "the partition that gave all it was asked for is due at once"


async def test_only_a_partition_where_something_happened_or_is_due_is_asked(many: Many) -> None:
    await many.put(0, 1)
    await many.lease(9)
    many.asked()
    assert (await many.lease(9)).leases == []
    assert many.asked() == [0, 0, 0]
    await many.put(2, 1)
    assert partitions((await many.lease(9)).leases) == [2]
    assert many.asked() == [0, 0, 1]
    many.time.now_s += LOOK_EVERY_S
    await many.lease(9)
    assert many.asked() == [1, 1, 1], "others may have put something there"


async def test_a_lease_is_put_back_where_it_came_from_and_may_be_had_again(many: Many) -> None:
    await many.put(2, 1)
    (lease,) = (await many.lease(9)).leases
    assert await many.shards.put_back(PutBack(lease.key, "stopping", "", 0)) == Applied.APPLIED
    (again,) = (await many.lease(9)).leases
    assert (again.key.url_id, again.key.partition) == (lease.key.url_id, 2)


async def test_a_resting_partition_leases_nothing_but_takes_what_comes_back(many: Many) -> None:
    await many.put(1, 2)
    (lease,) = (await many.lease(1)).leases
    many.shards.rest(1)
    many.time.now_s += 10
    assert (await many.lease(9)).leases == []
    assert await many.shards.put_back(PutBack(lease.key, "stopping", "", 0)) == Applied.APPLIED
    many.shards.wake(1)
    assert len((await many.lease(9)).leases) == 2


async def test_what_comes_for_a_partition_that_is_gone_is_stale(many: Many) -> None:
    await many.put(1, 1)
    (lease,) = (await many.lease(9)).leases
    assert many.shards.drop(1) is many.stores[1]
    assert await many.shards.put_back(PutBack(lease.key, "stopping", "", 0)) == Applied.STALE
    refused = await many.shards.reserve(ReserveAsk(lease.key, 1, lease.origin, 0, 1_000, -1, 1))
    assert refused.outcome == ReserveOutcome.FENCED
    moved = CursorAdvance(ManifestKey(1, 1, 1, 1), 0, 1)
    assert (await many.shards.admit(AdmitBatch([], moved))).applied == Applied.STALE
    assert many.shards.held == {0: 1, 2: 1}


async def test_a_retired_partition_is_held_no_longer_but_its_store_judges_what_still_comes(
    many: Many,
) -> None:
    await many.put(1, 2)
    (lease,) = (await many.lease(1)).leases
    many.shards.retire(1)
    assert many.shards.held == {0: 1, 2: 1}
    assert (await many.lease(9)).queued == 0
    assert await many.shards.put_back(PutBack(lease.key, "stopping", "", 0)) == Applied.APPLIED
    assert await many.shards.put_back(PutBack(lease.key, "stopping", "", 0)) == Applied.STALE


async def test_nothing_is_leased_where_nothing_may_start(many: Many) -> None:
    for partition in range(3):
        await many.put(partition, 1)
    many.shards.may_start = lambda partition: partition != 1
    assert partitions((await many.lease(9)).leases) == [0, 2]
    many.asked()
    reply = await many.lease(9)
    assert many.asked() == [0, 0, 0]
    assert reply.next_wake_ms is None or reply.next_wake_ms > reply.now_ms, (
        "no hurry about what may not start"
    )


async def test_a_fenced_partition_is_lost_alone(many: Many) -> None:
    for partition in range(3):
        await many.put(partition, 1)
    await many.stores[1].take_over(TakeoverAsk("another", 1))
    reply = await many.lease(9)
    assert not reply.fenced
    assert partitions(reply.leases) == [0, 2]
    assert many.fenced == [1]
    many.asked()
    many.time.now_s += 10
    await many.lease(9)
    assert many.asked() == [1, 0, 1]
    many.shards.renewed(1, 7)
    many.time.now_s += 10
    await many.lease(9)
    assert many.asked() == [1, 0, 1], "that was another epoch"
    many.shards.renewed(1, 1)
    await many.lease(9)
    assert many.asked() == [0, 1, 0], "its lease had only lapsed, and was renewed"


async def test_one_store_that_cannot_answer_does_not_cost_the_leases_of_the_others(many: Many) -> None:
    for partition in range(3):
        await many.put(partition, 1)
    many.stores[0].away = True
    assert partitions((await many.lease(9)).leases) == [1, 2]
    many.time.now_s += LOOK_EVERY_S
    with pytest.raises(StoreUnavailable):
        many.stores[1].away = many.stores[2].away = True
        await many.lease(9)
    many.stores[0].away = False
    many.time.now_s += LOOK_EVERY_S
    assert partitions((await many.lease(9)).leases) == [0]


async def test_a_page_budget_counts_over_all_partitions(many: Many) -> None:
    for partition in range(3):
        await many.put(partition, 3)
    got: list[Lease] = []
    for _ in range(6):
        many.time.now_s += LOOK_EVERY_S
        reply = await many.lease(9, pages_max=4)
        got += reply.leases
    # Robots.txt is asked for whatever the budget says; of pages there are none before it.
    assert len([lease for lease in got if lease.kind == UrlKind.PAGE]) == 0
    assert all(
        ask.pages_max is not None and ask.pages_max <= 4 for store in many.stores for ask in store.asks
    )


async def test_a_partition_with_nothing_queued_does_not_keep_a_budget_from_being_spent(many: Many) -> None:
    await many.put(0, 3)
    assert not (await many.lease(9, pages_max=4, robots_obey=False)).budget_spent
    await many.put(1, 3)
    many.time.now_s += LOOK_EVERY_S
    reply = await many.lease(9, pages_max=0, robots_obey=False)
    assert reply.budget_spent
    assert reply.queued > 0


async def test_seeds_go_through_any_partition_that_is_held(many: Many) -> None:
    many.shards.drop(0)
    seed = Candidate("https://s.example", "/", UrlKind.PAGE, 1, 0, 0, Edge.SEED, 0, 1)
    assert (await many.shards.admit(AdmitBatch([seed]))).applied == Applied.APPLIED
    for partition in (1, 2):
        many.shards.drop(partition)
    with pytest.raises(StoreUnavailable, match="no partition"):
        await many.shards.admit(AdmitBatch([replace(seed, path="/x")]))


async def test_nothing_held_is_nothing_to_lease_and_nothing_to_wait_for(many: Many) -> None:
    for partition in range(3):
        many.shards.drop(partition)
    reply = await many.lease(9)
    assert (reply.leases, reply.next_wake_ms, reply.queued, reply.fenced) == ([], None, 0, False)
    assert await many.shards.expire(10) == 0


async def test_lapsed_leases_of_all_partitions_come_back(many: Many) -> None:
    for partition in range(3):
        await many.put(partition, 2)
    await many.lease(9)
    many.time.now_s += TTL_MS / 1000 + 1
    assert await many.shards.expire(100) == 6
    assert len((await many.lease(9)).leases) == 6
