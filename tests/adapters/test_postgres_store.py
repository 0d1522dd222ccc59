"""What the PostgreSQL store promises beyond the frontier contract: exactly once, many partitions, many stores."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from amble.adapters.postgres.connection import Database
from amble.adapters.postgres.leasing import FAR
from amble.adapters.postgres.migrations import BUDGET_LOCK, available, migrate
from amble.adapters.postgres.partitions import PostgresPartitions
from amble.adapters.postgres.placement import set_up_servers
from amble.adapters.postgres.setup import init
from amble.adapters.postgres.statements import ORIGIN
from amble.adapters.postgres.store import AGAIN_UNLOCKED, PostgresFrontier, PostgresStore
from amble.adapters.postgres.tick import Tick
from amble.adapters.sql.migrations import Migration
from amble.adapters.sql.settings import StoreSettings
from amble.domain.attempt import Lease, LeaseKey, UrlKind
from amble.domain.errors import OperationRefused, StoreBroken, StoreUnavailable
from amble.domain.frontier import (
    AdmitBatch,
    AdoptAsk,
    Applied,
    Complete,
    DrainAsk,
    LeaseAsk,
    OriginEffect,
    Parcel,
    ParcelAsk,
    PutBack,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    ReserveOutcome,
    TakeoverAsk,
    Verdict,
)
from amble.domain.lifecycle import UrlState
from tests.contract.frontier_rig import ALLOW_ALL, DAY, START, A, B, answer, page
from tests.support.ha import Pair
from tests.support.postgres import FreshDatabase, OwnPostgres, SharedPostgres
from tests.support.toxics import Drop, ToxicProxy

Open = Callable[..., Awaitable[PostgresStore]]
PARTITIONS = 4
# Elsewhere in the fleet.
AWAY = 3
QUICK = OriginEffect(5, 0, 0, 0)
HASTY = StoreSettings(default_spacing_ms=0, default_active_max=8)


async def make_fleet(dsn: str) -> None:
    """Three of four partitions live here."""
    await init(dsn, partitions=PARTITIONS, here=range(AWAY))


@pytest.fixture
def dsn(fresh_database: FreshDatabase) -> str:
    return fresh_database(make_fleet)


@pytest_asyncio.fixture
async def open_store(dsn: str) -> AsyncIterator[Open]:
    stores: list[PostgresStore] = []

    async def open_(
        settings: StoreSettings = HASTY, *, kind: type[PostgresStore] = PostgresStore, **options: Any
    ) -> PostgresStore:
        stores.append(await kind.open(options.pop("dsn", dsn), settings, linger_s=0.0, **options))
        return stores[-1]

    yield open_
    for store in stores:
        if not store.broken:
            await store.close()


@pytest_asyncio.fixture
async def store(open_store: Open) -> PostgresStore:
    return await open_store()


class Agent:
    """The owner of one partition and the steps of its line."""

    def __init__(self, frontier: PostgresFrontier) -> None:
        self.frontier = frontier
        self.partition = frontier.partition
        self.epoch = 0

    @classmethod
    async def on(cls, store: PostgresStore, partition: int = 0) -> Agent:
        agent = cls(store.frontier(partition))
        agent.epoch = (await agent.frontier.take_over(TakeoverAsk("agent", partition))).epoch
        return agent

    async def admit(self, *paths: str, origin: str = A) -> list[int]:
        candidates = [page(path, origin, partition=self.partition) for path in paths]
        report = await self.frontier.admit(AdmitBatch(candidates, partition=self.partition))
        return list(report.verdicts)

    async def lease(self, count: int = 100, **facts: Any) -> list[Lease]:
        facts = {"partition": self.partition, "robots_obey": False, **facts}
        return list((await self.frontier.lease(LeaseAsk(self.epoch, 1, count, 30_000, **facts))).leases)

    async def reserve(self, lease: Lease, **facts: Any) -> ReserveOutcome:
        """When the next start may be: a commit that takes its time moves it a little."""
        facts = {"origin": lease.origin, "delay_ms": 0, "hold_ms": 60_000, "robots_version": -1, **facts}
        ask = ReserveAsk(lease.key, self.epoch, active_max=8, **facts)
        while (reply := await self.frontier.reserve(ask)).outcome == ReserveOutcome.NOT_YET:
            await asyncio.sleep((reply.until_ms - reply.now_ms) / 1000)
        return ReserveOutcome(reply.outcome)

    async def carry(self, lease: Lease) -> None:
        """From a lease to COMPLETE, the last three steps in one transaction."""
        assert await self.reserve(lease) == ReserveOutcome.GRANTED
        robots = lease.kind == UrlKind.ROBOTS
        decision: dict[str, Any] = {"robots": ALLOW_ALL, "robots_ttl_ms": DAY} if robots else {}
        results = await asyncio.gather(
            self.frontier.record_fetched(RecordFetched(lease.key, answer(), QUICK, 60_000)),
            self.frontier.record_parsed(RecordParsed(lease.key, 1, answer().ref, 0, "html")),  # type: ignore[arg-type]
            self.frontier.complete(Complete(lease.key, 1, publish=not robots, **decision)),
        )
        assert list(results) == [Applied.APPLIED] * 3


async def rows(dsn: str, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *parameters)]
    finally:
        await connection.close()


# ---- one transaction


async def test_fetched_parsed_and_complete_of_one_page_may_share_a_transaction(
    store: PostgresStore, dsn: str
) -> None:
    agent = await Agent.on(store)
    await agent.admit("/x")
    for lease in await agent.lease():
        await agent.carry(lease)
    states = await rows(dsn, "SELECT state, count(*) FROM url GROUP BY state ORDER BY state")
    assert states == [(UrlState.PENDING, 1), (UrlState.COMPLETE, 1)] or states == [(UrlState.COMPLETE, 2)]


async def test_the_number_of_statements_does_not_grow_with_the_batch(store: PostgresStore) -> None:
    agent = await Agent.on(store)

    async def statements(count: int, name: str) -> int:
        assert store._database is not None
        before = store._database.statements
        await agent.admit(*(f"/{name}{n}" for n in range(count)), origin=f"https://{name}.example")
        await asyncio.gather(
            *(agent.admit(f"/{name}x{n}", origin=f"https://{name}{n}.example") for n in range(count))
        )
        leases = await agent.lease(count)
        await asyncio.gather(*(agent.reserve(lease) for lease in leases))
        fetched = (
            agent.frontier.record_fetched(RecordFetched(lease.key, answer(), QUICK, 60_000))
            for lease in leases
        )
        await asyncio.gather(*fetched)
        return store._database.statements - before

    await statements(3, "warm")
    assert await statements(100, "big") <= await statements(3, "small")


async def test_data_that_cannot_be_kept_spoil_only_their_own_call(store: PostgresStore, dsn: str) -> None:
    agent = await Agent.on(store)
    results = await asyncio.gather(
        *(agent.admit(path) for path in ("/1", "/2\x00", "/3", "/\ud800", "/5")), return_exceptions=True
    )
    assert [isinstance(result, OperationRefused) for result in results] == [False, True, False, True, False]
    found = await rows(dsn, "SELECT path FROM url WHERE kind = 0 ORDER BY path")
    assert [path for (path,) in found] == ["/1", "/3", "/5"]
    assert store.trouble is None


async def test_text_for_people_may_hold_what_the_database_cannot(store: PostgresStore, dsn: str) -> None:
    agent = await Agent.on(store)
    await agent.admit("/x")
    (lease, *_) = await agent.lease()
    assert await agent.frontier.put_back(PutBack(lease.key, "no_slot", "a\x00b", 0)) == Applied.APPLIED
    assert await rows(dsn, "SELECT detail FROM url WHERE detail IS NOT NULL") == [("a\ufffdb",)]


async def test_a_sample_of_what_was_refused_may_hold_what_the_database_cannot(
    store: PostgresStore, dsn: str
) -> None:
    """A seed of a list that is no text, or a link of a child that a page has taken over."""
    agent = await Agent.on(store)
    samples = [("a\x00b", "not_a_url", ""), ("c\udcffd", "not_a_url", "e\udcff")]
    batch = AdmitBatch([page("/x", A)], None, {"not_a_url": 2}, samples)
    assert (await agent.frontier.admit(batch)).applied == Applied.APPLIED
    kept = await rows(dsn, "SELECT url, detail FROM decision WHERE reason = 'not_a_url' ORDER BY seq")
    assert kept == [("a\ufffdb", ""), ("c\ufffdd", "e\ufffd")]


async def test_a_refused_call_changes_nothing(store: PostgresStore, dsn: str) -> None:
    with pytest.raises(OperationRefused, match="epoch"):
        await store.frontier(0).take_over(TakeoverAsk("x", epoch=77))
    with pytest.raises(OperationRefused, match="does not live here"):
        await store.frontier(AWAY).take_over(TakeoverAsk("x"))
    assert await rows(dsn, "SELECT count(*) FROM partition WHERE owner <> ''") == [(0,)]


# ---- exactly once


class Breaking(PostgresStore):
    """Its connection breaks at the COMMITs that are asked for: before the server hears of it, or after it obeyed."""

    breaks: list[str]

    def next_break(self) -> str:
        """ "before", "after", or "" for a COMMIT that is left alone."""
        return self.breaks.pop(0) if self.breaks else ""

    async def _connect(self) -> Database:
        database = await super()._connect()
        execute = database.execute

        async def broken(statement: str, *parameters: Any) -> int:
            how = self.next_break() if statement == "COMMIT" else ""
            if how == "before":
                database.connection.terminate()
            done = await execute(statement, *parameters)
            if how == "after":
                database.connection.terminate()
                raise ConnectionResetError("the answer was lost")
            return done

        database.execute = broken  # type: ignore[method-assign]
        return database


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_commit_without_an_answer_is_carried_out_once(open_store: Open, dsn: str, how: str) -> None:
    store = await open_store(kind=Breaking)
    assert isinstance(store, Breaking)
    store.breaks = []
    troubles: list[str | None] = []
    store.on_trouble = troubles.append
    agent = await Agent.on(store)
    for step in ("admit", "lease", "reserve"):
        store.breaks = [how]
        if step == "admit":
            assert await agent.admit("/x", "/y") == [Verdict.ADMITTED] * 2
        elif step == "lease":
            leases = await agent.lease(1)
            assert len(leases) == 1
        else:
            assert await agent.reserve(leases[0]) == ReserveOutcome.GRANTED
        assert store.breaks == []
    assert await rows(dsn, "SELECT attempt FROM url WHERE state = 1") == [(1,)]
    assert await rows(dsn, "SELECT active, leased FROM origin") == [(1, 1)]
    assert await rows(dsn, "SELECT value FROM tally WHERE name = 'admitted'") == [(3,)]
    assert troubles[-1] is None
    assert len(troubles) == 6


async def test_a_server_that_crashes_in_mid_traffic_has_all_it_acknowledged_once(
    own_postgres: OwnPostgres, open_store: Open
) -> None:
    server = own_postgres(fsync="on")
    await make_fleet(server.dsn())
    store = await open_store(dsn=server.dsn())
    agents = [await Agent.on(store, partition) for partition in range(AWAY)]
    acknowledged: Counter[int] = Counter()

    async def traffic(agent: Agent) -> None:
        for number in range(60):
            verdicts = await agent.admit(f"/{number}", origin=f"https://p{agent.partition}.example")
            acknowledged.update(verdicts)

    work = [asyncio.ensure_future(traffic(agent)) for agent in agents]
    for goal in (30, 90):
        while acknowledged.total() < goal:
            await asyncio.sleep(0)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start_again)
    await asyncio.gather(*work)
    assert acknowledged == {Verdict.ADMITTED: 180}
    assert await rows(server.dsn(), "SELECT count(*) FROM url WHERE kind = 0") == [(180,)]
    counted = "SELECT sum(value)::int FROM tally WHERE name = 'admitted'"
    assert await rows(server.dsn(), counted) == [(180 + AWAY,)]


@pytest.mark.parametrize("freeze_s", [0.0, 0.3])
async def test_a_failover_to_a_synchronous_standby_carries_every_call_out_once(
    postgres: SharedPostgres, open_store: Open, freeze_s: float
) -> None:
    with Pair.start(postgres.pristine(), synchronous=True) as pair:
        await make_fleet(pair.primary.server.dsn())
        store = await open_store(dsn=pair.dsn(), silence_s=5.0)
        agent = await Agent.on(store)
        acknowledged: Counter[int] = Counter()

        async def traffic(name: str) -> None:
            for number in range(40):
                acknowledged.update(await agent.admit(f"/{name}/{number}"))

        work = [asyncio.ensure_future(traffic(name)) for name in "abc"]
        while acknowledged.total() < 30:
            await asyncio.sleep(0)
        await asyncio.to_thread(pair.kill_primary, freeze_s=freeze_s)
        await asyncio.to_thread(pair.promote)
        await asyncio.wait_for(asyncio.gather(*work), 60)
        assert acknowledged == {Verdict.ADMITTED: 120}
        dsn = pair.primary.server.dsn()
        assert await rows(dsn, "SELECT count(*) FROM url WHERE kind = 0") == [(120,)]
        assert await rows(dsn, "SELECT value FROM tally WHERE name = 'admitted'") == [(121,)]
        await store.close()


async def test_a_network_that_goes_silent_is_noticed_and_the_calls_are_answered_when_it_is_back(
    own_postgres: OwnPostgres, open_store: Open
) -> None:
    server = own_postgres()
    await make_fleet(server.dsn())
    with ToxicProxy.start("127.0.0.1", server.port) as proxy:
        store = await open_store(dsn=server.dsn(port=proxy.port), silence_s=0.4)
        agent = await Agent.on(store)
        noticed = asyncio.Event()
        store.on_trouble = lambda trouble: noticed.set() if trouble else None
        proxy.set(down=Drop())
        call = asyncio.ensure_future(agent.admit("/x"))
        await asyncio.wait_for(noticed.wait(), 10)
        assert not call.done()
        proxy.heal()
        assert await asyncio.wait_for(call, 20) == [Verdict.ADMITTED]
    assert store.trouble is None


async def test_a_server_that_may_only_be_read_is_waited_for(
    own_postgres: OwnPostgres, open_store: Open
) -> None:
    server = own_postgres()
    await make_fleet(server.dsn())
    store = await open_store(dsn=server.dsn())
    agent = await Agent.on(store)
    noticed = asyncio.Event()
    store.on_trouble = lambda trouble: noticed.set() if trouble else None
    await asyncio.to_thread(server.reload, {"default_transaction_read_only": "on"})
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start_again)
    call = asyncio.ensure_future(agent.admit("/x"))
    await asyncio.wait_for(noticed.wait(), 10)
    await asyncio.sleep(0.1)
    assert not call.done()
    await asyncio.to_thread(server.reload, {"default_transaction_read_only": "off"})
    assert await asyncio.wait_for(call, 20) == [Verdict.ADMITTED]


async def test_a_store_that_is_abandoned_answers_all_who_wait(store: PostgresStore) -> None:
    agent = await Agent.on(store)
    call = asyncio.ensure_future(agent.admit("/x"))
    await asyncio.sleep(0)
    store.abandon(StoreUnavailable("enough"))
    with pytest.raises(StoreUnavailable, match="enough"):
        await call
    with pytest.raises(StoreUnavailable, match="enough"):
        await agent.admit("/y")
    assert store.broken


async def test_the_time_does_not_go_back_from_one_store_to_the_next(open_store: Open) -> None:
    first = await open_store(now_ms=lambda: START + 5_000)
    agent = await Agent.on(first)
    await first.close()
    late = await open_store(now_ms=lambda: START)
    taken = await late.frontier(0).take_over(TakeoverAsk("next"))
    assert taken.now_ms == START + 5_000
    assert agent.epoch < taken.epoch


async def test_after_a_failover_to_a_clock_that_is_behind_time_goes_on_from_the_mark(
    open_store: Open, dsn: str
) -> None:
    await rows(dsn, "UPDATE clock SET now_ms = 4e12::bigint RETURNING 1")  # in the year 2096
    store = await open_store()
    first = (await store.frontier(0).take_over(TakeoverAsk("agent"))).now_ms
    await asyncio.sleep(0.02)
    later = (await store.frontier(0).take_over(TakeoverAsk("agent"))).now_ms
    assert first == 4 * 10**12
    assert 20 <= later - first < 60_000
    await rows(dsn, "UPDATE partition SET lease_until = extract(epoch FROM now()) * 1000 + 60000 RETURNING 1")
    reply = await store.frontier(0).lease(LeaseAsk(2, 1, 1, 1_000))
    assert not reply.fenced, "terms are held by the clock that gave them"


async def test_without_a_clock_of_a_test_the_database_tells_the_time(store: PostgresStore, dsn: str) -> None:
    taken = await store.frontier(0).take_over(TakeoverAsk("agent"))
    ((now,),) = await rows(dsn, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    assert 0 <= now - taken.now_ms < 60_000


# ---- in each other's way


async def test_a_row_that_another_changed_meanwhile_is_read_again(store: PostgresStore, dsn: str) -> None:
    agent = await Agent.on(store)
    await agent.admit("/x")
    (lease, *_) = await agent.lease(1)
    other = await asyncpg.connect(dsn)
    async with other.transaction():
        await other.execute("UPDATE origin SET paused = true")
        call = asyncio.ensure_future(agent.reserve(lease))
        await until_someone_waits(other)
    assert await call == ReserveOutcome.PAUSED
    assert store.retries == 1
    await other.close()


async def test_whoever_is_always_overtaken_locks_what_it_reads(
    open_store: Open, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody changes the origin each time after it was read, as long as it can be changed."""
    store = await open_store()
    agent = await Agent.on(store)
    await agent.admit("/x")
    (lease, *_) = await agent.lease(1)
    other = await asyncpg.connect(dsn, server_settings={"lock_timeout": "50ms"})
    overtaken = 0

    async def overtake(self: Tick) -> list[Any]:
        nonlocal overtaken
        try:
            await other.execute("UPDATE origin SET policy_version = policy_version + 1")
            overtaken += 1
        except asyncpg.LockNotAvailableError:
            pass
        return await applied(self)

    applied = Tick._apply
    monkeypatch.setattr(Tick, "_apply", overtake)
    assert await agent.reserve(lease) == ReserveOutcome.GRANTED
    assert overtaken == store.retries == AGAIN_UNLOCKED
    await other.close()


async def test_a_deadlock_is_only_a_delay(store: PostgresStore, dsn: str) -> None:
    agent = await Agent.on(store)
    await agent.admit("/x")
    other = await asyncpg.connect(dsn, server_settings={"deadlock_timeout": "60s"})
    async with other.transaction():
        await other.execute("SELECT 1 FROM tally FOR UPDATE")
        call = asyncio.ensure_future(agent.admit("/y"))
        await until_someone_waits(other)
        await other.execute("UPDATE origin SET policy_version = policy_version + 1")
    assert await call == [Verdict.ADMITTED]
    assert store.retries >= 1
    await other.close()


async def until_someone_waits(connection: asyncpg.Connection[Any]) -> None:
    waits = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.datname = current_database() WHERE NOT granted"
    while not await connection.fetchval(waits):
        await asyncio.sleep(0.005)


async def test_agents_of_one_database_work_side_by_side(open_store: Open, dsn: str) -> None:
    stores = [await open_store() for _ in range(AWAY)]
    agents = [await Agent.on(store, partition) for partition, store in enumerate(stores)]

    async def crawl(agent: Agent) -> int:
        """Each partition has origins of its own, and all meet at one more."""
        done = 0
        for number in range(4):
            await agent.admit("/a", "/b", origin=f"https://p{agent.partition}n{number}.example")
        while leases := await agent.lease(5):
            for lease in leases:
                await agent.reserve(lease, origin="https://shared.example")
                await agent.carry(lease)
                done += 1
        return done

    assert await asyncio.gather(*map(crawl, agents)) == [12] * AWAY
    assert await rows(dsn, "SELECT count(*) FROM origin WHERE key = 'https://shared.example'") == [(1,)]
    assert await rows(dsn, "SELECT sum(active)::int, sum(leased)::int FROM origin") == [(0, 0)]
    published = "SELECT partition, count(*), min(seq), max(seq) FROM publication GROUP BY 1 ORDER BY 1"
    assert await rows(dsn, published) == [(partition, 8, 1, 8) for partition in range(AWAY)]
    assert await rows(dsn, "SELECT count(*), count(DISTINCT id >> 36) FROM url") == [(36, 12)]


async def test_agents_together_spend_the_page_budget_to_the_last_page(open_store: Open) -> None:
    budget = 41
    stores = [await open_store() for _ in range(AWAY)]
    agents = [await Agent.on(store, partition) for partition, store in enumerate(stores)]
    for agent in agents:
        for number in range(30):
            await agent.admit("/x", origin=f"https://p{agent.partition}n{number}.example")

    async def spend(agent: Agent) -> int:
        pages = idle = 0
        while idle < 3:
            leases = [lease for lease in await agent.lease(2, pages_max=budget) if lease.kind == UrlKind.PAGE]
            pages += len(leases)
            idle = 0 if leases else idle + 1
        return pages

    assert sum(await asyncio.gather(*map(spend, agents))) == budget


async def test_many_agents_at_once_do_not_overspend_the_page_budget(open_store: Open, dsn: str) -> None:
    many, count = 12, 4
    budget = FAR * count
    stores = [await open_store() for _ in range(many)]
    agent = await Agent.on(stores[0])
    await asyncio.gather(
        *(agent.admit("/x", origin=f"https://n{number}.example") for number in range(many * count))
    )
    robots = await agent.lease(many * count)
    await asyncio.gather(*(agent.carry(lease) for lease in robots if lease.kind == UrlKind.ROBOTS))
    await asyncio.gather(
        *(agent.frontier.put_back(PutBack(lease.key, "stopping", "", 0)) for lease in robots)
    )
    agents = [Agent(store.frontier(0)) for store in stores]
    other = await asyncpg.connect(dsn)
    async with other.transaction():
        await other.execute("SELECT 1 FROM tally ORDER BY name FOR UPDATE")
        for each in agents:
            each.epoch = agent.epoch
        calls = [asyncio.ensure_future(each.lease(count, pages_max=budget)) for each in agents]
        waits = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.datname = current_database() WHERE NOT granted"
        while await other.fetchval(waits) < many:
            await asyncio.sleep(0.01)
    await other.close()
    leases = [lease for leases in await asyncio.gather(*calls) for lease in leases]
    assert len([lease for lease in leases if lease.kind == UrlKind.PAGE]) <= budget


# ---- fencing


async def test_an_owner_whose_term_is_over_starts_and_leases_nothing(store: PostgresStore, dsn: str) -> None:
    agent = await Agent.on(store)
    await agent.admit("/x")
    (lease, *_) = await agent.lease(1)
    await rows(dsn, "UPDATE partition SET lease_until = 1 WHERE partition = 0 RETURNING 1")
    assert await agent.reserve(lease) == ReserveOutcome.FENCED
    reply = await agent.frontier.lease(LeaseAsk(agent.epoch, 1, 5, 1000))
    assert (reply.fenced, reply.leases) == (True, [])
    await rows(dsn, "UPDATE partition SET lease_until = 1e15::bigint WHERE partition = 0 RETURNING 1")
    assert await agent.reserve(lease) == ReserveOutcome.GRANTED


async def test_who_has_released_a_partition_leases_and_starts_nothing_in_it(
    store: PostgresStore, dsn: str
) -> None:
    """Nobody has it under a new epoch yet; the next owner does not wait for whoever said that it had finished."""
    agent = await Agent.on(store)
    await agent.admit("/x")
    (lease, *_) = await agent.lease(1)
    partitions = PostgresPartitions(dsn)
    await partitions.release("agent", {0: agent.epoch})
    await partitions.close()
    assert await agent.reserve(lease) == ReserveOutcome.FENCED
    reply = await agent.frontier.lease(LeaseAsk(agent.epoch, 1, 5, 1000))
    assert (reply.fenced, reply.leases) == (True, [])


async def test_a_takeover_of_a_claimed_partition_keeps_its_epoch_and_term(
    store: PostgresStore, dsn: str
) -> None:
    await rows(
        dsn, "UPDATE partition SET epoch = 5, owner = 'me', lease_until = 1e15::bigint RETURNING partition"
    )
    taken = await store.frontier(1).take_over(TakeoverAsk("me", 1, epoch=5))
    assert taken.epoch == 5
    kept = await rows(dsn, "SELECT owner, epoch, lease_until FROM partition WHERE partition = 1")
    assert kept == [("me", 5, 10**15)]


async def test_a_new_owner_starts_nothing_where_a_longer_request_of_the_last_one_may_go_on(
    open_store: Open, dsn: str
) -> None:
    """Agents need not agree how long a request may take; the slot says it."""
    now = START
    store = await open_store(now_ms=lambda: now)
    agent = await Agent.on(store)
    await agent.admit("/x", "/y")
    (lease, *_) = await agent.lease(1)
    assert await agent.reserve(lease, hold_ms=600_000) == ReserveOutcome.GRANTED
    claimed = "UPDATE partition SET epoch = epoch + 1, owner = 'next', lease_until = 1e15::bigint WHERE partition = 0"
    ((agent.epoch,),) = await rows(dsn, claimed + " RETURNING epoch")
    now += 75_000
    await agent.frontier.take_over(TakeoverAsk("next", 0, agent.epoch))
    assert await agent.lease() == []
    now = START + 600_000
    assert len(await agent.lease()) >= 1


async def test_who_wants_no_pages_waits_for_nobody_who_spends_the_budget(
    store: PostgresStore, dsn: str
) -> None:
    """It is asked so as long as parse workers are behind."""
    agent = await Agent.on(store)
    await agent.admit("/x")
    other = await asyncpg.connect(dsn)
    async with other.transaction():
        await other.execute("SELECT pg_advisory_xact_lock($1)", BUDGET_LOCK)
        assert await asyncio.wait_for(agent.lease(pages_max=0), 20) == []
    await other.close()


async def test_a_parse_worker_adopts_pages_of_any_partition(open_store: Open) -> None:
    agents = [await Agent.on(await open_store(), partition) for partition in range(AWAY)]
    for agent in agents:
        await agent.admit("/x", origin=f"https://p{agent.partition}.example")
        for lease in await agent.lease():
            await agent.reserve(lease)
            await agent.frontier.record_fetched(RecordFetched(lease.key, answer(), QUICK, 0))
    worker = (await open_store()).frontier(0)
    ask = AdoptAsk(int(UrlState.FETCHED), 9, 100, 60_000, kinds=[int(UrlKind.PAGE)])
    found = await worker.adopt(ask)
    assert sorted(one.lease.key.partition for one in found) == list(range(AWAY))
    for one in found:
        key = one.lease.key
        parsed = RecordParsed(key, 1, answer().ref, 1, "html", hand_over=True)  # type: ignore[arg-type]
        assert await worker.record_parsed(parsed) == Applied.APPLIED
    for agent in agents:
        mine = AdoptAsk(int(UrlState.PARSED), 1, 9, 60_000, partition=agent.partition, epoch=agent.epoch)
        (one,) = await agent.frontier.adopt(mine)
        assert one.lease.origin == f"https://p{agent.partition}.example"
        assert await agent.frontier.complete(Complete(one.lease.key, 1, publish=True)) == Applied.APPLIED


# ---- between partitions


async def test_who_asked_and_went_away_holds_nothing(store: PostgresStore, dsn: str) -> None:
    """A parse worker that was told to stop while the database could not answer."""
    agent = await Agent.on(store)
    await agent.admit("/x")
    (lease, *_) = await agent.lease(1)
    assert await agent.reserve(lease) == ReserveOutcome.GRANTED
    await agent.frontier.record_fetched(RecordFetched(lease.key, answer(), QUICK, 0))
    other = await asyncpg.connect(dsn)
    async with other.transaction():
        await other.execute("SELECT 1 FROM tally FOR UPDATE")
        busy = asyncio.ensure_future(agent.admit("/y"))
        await until_someone_waits(other)
        adopting = asyncio.ensure_future(agent.frontier.adopt(AdoptAsk(int(UrlState.FETCHED), 7, 9, 60_000)))
        leasing = asyncio.ensure_future(agent.lease())
        await asyncio.sleep(0)
        adopting.cancel()
        leasing.cancel()
    await other.close()
    assert await busy == [Verdict.ADMITTED]
    await store.settle()
    assert await rows(dsn, "SELECT count(*) FROM url WHERE worker = 7 OR state = 1") == [(0,)]
    assert len(await agent.frontier.adopt(AdoptAsk(int(UrlState.FETCHED), 8, 9, 60_000))) == 1


async def test_links_between_partitions_of_one_database_need_no_parcel(
    store: PostgresStore, dsn: str
) -> None:
    here, there = await Agent.on(store, 0), await Agent.on(store, 1)
    await there.admit("/known", origin=B)
    links = [page("/known", B, partition=1), page("/new", B, partition=1), page("/far", B, partition=AWAY)]
    report = await here.frontier.admit(AdmitBatch(links))
    assert list(report.verdicts) == [Verdict.ALREADY_KNOWN, Verdict.FORWARDED, Verdict.FORWARDED]
    assert await rows(dsn, "SELECT partition, source, amount FROM inbox") == [(1, 0, 1)]
    (parcel,) = await here.frontier.parcels(ParcelAsk(0, here.epoch, 10))
    assert (parcel.destination, parcel.candidates) == (AWAY, [links[2]])
    assert (await there.frontier.lease(LeaseAsk(there.epoch, 1, 0, 1, partition=1))).forwarded == 1
    drained = await there.frontier.drain(DrainAsk(1, there.epoch, 10))
    assert (drained.taken, drained.admitted, drained.left) == (1, 1, 0)
    assert await there.admit("/new", origin=B) == [Verdict.ALREADY_KNOWN]


async def test_an_inbox_is_drained_by_no_more_than_was_asked_for(store: PostgresStore) -> None:
    here, there = await Agent.on(store, 0), await Agent.on(store, 1)
    for number in range(3):
        links = [page(f"/{number}/{n}", B, partition=1) for n in range(4)]
        await here.frontier.admit(AdmitBatch(links))
    seen = []
    for _ in range(4):
        reply = await there.frontier.drain(DrainAsk(1, there.epoch, 5))
        seen.append((reply.taken, reply.admitted, reply.left))
    assert seen == [(5, 5, 7), (5, 5, 2), (2, 2, 0), (0, 0, 0)]


async def test_an_origin_that_a_redirect_opened_comes_to_the_partition_of_its_urls(
    store: PostgresStore, dsn: str
) -> None:
    here, there = await Agent.on(store, 0), await Agent.on(store, 1)
    await here.admit("/x")
    (lease, *_) = await here.lease(1)
    assert await here.reserve(lease, origin=B) == ReserveOutcome.GRANTED
    assert await rows(dsn, "SELECT partition FROM origin WHERE key = $1", B) == [(0,)]
    await there.admit("/y", origin=B)
    assert await rows(dsn, "SELECT partition FROM origin WHERE key = $1", B) == [(1,)]
    counts = await rows(dsn, "SELECT partition, value FROM tally WHERE name = 'origins' ORDER BY 1")
    assert counts == [(0, 1), (1, 1)]
    assert {lease.origin for lease in await there.lease()} == {B}


async def test_a_hop_from_another_database_has_the_origin_to_itself(store: PostgresStore, dsn: str) -> None:
    await store.frontier(1).admit(AdmitBatch([page("/x", B, partition=1)]))
    guest = LeaseKey(77, 1, b"unknown here", AWAY)
    ask = ReserveAsk(guest, 9, B, 1_000, 60_000, -1, 8)
    granted = await store.frontier(1).visit(ask)
    assert (granted.outcome, granted.until_ms) == (ReserveOutcome.GRANTED, granted.now_ms + 60_000)
    again = await store.frontier(1).visit(ask)
    assert (again.outcome, again.until_ms) == (ReserveOutcome.NOT_YET, granted.until_ms + 1_000)
    assert await rows(dsn, "SELECT active, leased FROM origin") == [(0, 0)]


async def test_parcels_of_two_destinations_can_be_delivered_together(store: PostgresStore, dsn: str) -> None:
    parcels = [
        Parcel(AWAY, to, number, [page("/x", B, partition=to)], 1) for number, to in enumerate((0, 1), 1)
    ]
    assert await store.frontier(0).deliver(parcels) == Applied.APPLIED
    assert await store.frontier(1).deliver(parcels) == Applied.APPLIED
    assert await rows(dsn, "SELECT partition FROM inbox ORDER BY 1") == [(0,), (1,)]
    assert await store.frontier(0).deliver([Parcel(0, AWAY, 1, [], 1)]) == Applied.STALE


# ---- the database


async def test_origin_ids_come_from_the_block_of_the_database(fresh_database: FreshDatabase) -> None:
    dsn = fresh_database()
    await init(dsn, partitions=1, origin_ids=(1_000, 1_001))
    store = await PostgresStore.open(dsn, HASTY, linger_s=0.0)
    agent = await Agent.on(store)
    verdicts = [await agent.admit("/", origin=f"https://o{number}.example") for number in range(3)]
    assert verdicts == [[Verdict.ADMITTED], [Verdict.ADMITTED], [Verdict.OVER_SITE_BUDGET]]
    assert await rows(dsn, "SELECT id FROM origin ORDER BY 1") == [(1_000,), (1_001,)]
    await store.close()


async def test_a_database_is_prepared_once_and_the_same_way(dsn: str) -> None:
    await make_fleet(dsn)
    await asyncio.gather(*(make_fleet(dsn) for _ in range(3)))
    assert await rows(dsn, "SELECT partition FROM partition ORDER BY 1") == [(n,) for n in range(AWAY)]
    with pytest.raises(StoreBroken, match="number of partitions"):
        await init(dsn, partitions=PARTITIONS + 1)
    with pytest.raises(StoreBroken, match="path key"):
        await init(dsn, partitions=PARTITIONS, path_key=bytes(32))


async def test_a_database_that_is_empty_newer_or_foreign_is_refused(database: str, dsn: str) -> None:
    with pytest.raises(StoreBroken, match="no frontier yet"):
        await PostgresStore.open(database)
    await rows(database, "CREATE TABLE wiki(page text)")
    with pytest.raises(StoreBroken, match="another program"):
        await init(database, partitions=1)
    await rows(dsn, "INSERT INTO migration(version, checksum) VALUES (9999, 'x')")
    with pytest.raises(StoreBroken, match="upgrade amble"):
        await PostgresStore.open(dsn)
    with pytest.raises(StoreBroken, match="upgrade amble"):
        await make_fleet(dsn)


async def test_a_database_in_which_we_may_make_nothing_is_refused_with_the_reason(database: str) -> None:
    """Since PostgreSQL 15 nobody but the owner of a database may make tables in it unless told so."""
    name = database.rpartition("/")[2]
    role = f"guest_{name}"
    await rows(database, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        place = database.rpartition("@")[2]
        with pytest.raises(StoreBroken, match="permission denied"):
            await set_up_servers([f"postgresql://{role}:x@{place}"], partitions=1)
    finally:
        await rows(database, f"DROP ROLE {role}")


async def test_a_migration_that_fails_leaves_no_trace(database: str) -> None:
    connection = await asyncpg.connect(database)
    steps = [*available(), Migration(9999, "CREATE TABLE half(x int); SELECT nonsense;")]
    with pytest.raises(asyncpg.PostgresError):
        await migrate(connection, steps)
    assert await connection.fetch("SELECT 1 FROM pg_tables WHERE schemaname = 'public'") == []
    assert await migrate(connection) == len(available())
    assert await migrate(connection) == 0
    await connection.close()


async def test_nobody_at_the_address_is_an_outage_and_no_address_a_mistake() -> None:
    with pytest.raises(StoreUnavailable):
        await PostgresStore.open("postgresql://amble@127.0.0.1:1/x")
    with pytest.raises(StoreBroken):
        await PostgresStore.open("mysql://nowhere")


@pytest.mark.parametrize("queued", [True, False])
async def test_what_changes_while_due_origins_are_read_is_seen_before_they_are_decided(
    store: PostgresStore, dsn: str, monkeypatch: pytest.MonkeyPatch, *, queued: bool
) -> None:
    """Another process changes the origin after the statement has begun to look, and before it locks the row."""
    agent = await Agent.on(store)
    await agent.admit("/x")
    for lease in await agent.lease():
        await agent.carry(lease)
    soon = "rq = 0, due_at = 1"
    before, after = ("rq = 7, due_at = 1e15::bigint", soon) if queued else (soon, "rq = NULL, due_at = NULL")
    await rows(dsn, f"UPDATE url SET {before} WHERE kind = 0 RETURNING 1")
    await rows(dsn, "UPDATE origin SET queued = 1, wake_at = 1 RETURNING 1")
    slow = "WHERE (SELECT pg_advisory_xact_lock_shared(77))::text IS NOT NULL AND partition = $1"
    monkeypatch.setitem(ORIGIN, "due", ORIGIN["due"].replace("WHERE partition = $1", slow))
    other = await asyncpg.connect(dsn)
    async with other.transaction():
        await other.execute("SELECT pg_advisory_xact_lock(77)")
        call = asyncio.ensure_future(agent.lease())
        await until_someone_waits(other)
        await other.execute(f"UPDATE url SET {after} WHERE kind = 0")
        await other.execute("UPDATE origin SET turns = turns + 1, queued = $1", int(queued))
    await other.close()
    assert [lease.path for lease in await call] == (["/x"] if queued else [])


# ---- the place of a store


async def test_a_store_that_has_written_nothing_yet_is_not_forgotten_when_another_comes(
    open_store: Open,
) -> None:
    """Agents start together: one is at work when the others come, and theirs is the place of a living store too."""
    busy = await open_store()
    await Agent.on(busy)
    fresh = await open_store(kind=Breaking)
    assert isinstance(fresh, Breaking)
    fresh.breaks = []
    await open_store()
    agent = await Agent.on(fresh, 1)
    fresh.breaks = ["after"]
    assert await agent.admit("/x") == [Verdict.ADMITTED]
    assert fresh.breaks == []


async def test_a_store_whose_place_was_forgotten_takes_a_new_one(open_store: Open, dsn: str) -> None:
    """It was silent for longer than places are kept."""
    store = await open_store(kind=Breaking)
    assert isinstance(store, Breaking)
    store.breaks = []
    agent = await Agent.on(store)
    for how in ("before", "after"):
        await rows(dsn, "DELETE FROM writer RETURNING 1")
        store.breaks = [how]
        assert await agent.admit(f"/{how}") == [Verdict.ADMITTED]
    assert await rows(dsn, "SELECT count(*) FROM url WHERE kind = 0") == [(2,)]
    assert await rows(dsn, "SELECT value FROM tally WHERE name = 'admitted'") == [(3,)]
