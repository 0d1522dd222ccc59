"""The promise of ports.Partitions, held by a real server: one owner at a time, fenced, by the clock of the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from amble.adapters.postgres import reports
from amble.adapters.postgres.connection import connect, place_of
from amble.adapters.postgres.migrations import migrate
from amble.adapters.postgres.partitions import PostgresPartitions
from amble.adapters.postgres.seeds import add_seeds
from amble.domain.errors import StoreBroken, StoreUnavailable
from amble.ports import Partitions
from tests.support.postgres import FreshDatabase

TTL, HOLD = 60_000, 20_000


async def four_partitions(dsn: str) -> None:
    """The tables of a frontier with four partitions, the last of them for one site alone."""
    connection = await asyncpg.connect(dsn)
    try:
        await migrate(connection)
        await connection.execute("INSERT INTO partition(partition) SELECT generate_series(0, 3)")
        await connection.execute("INSERT INTO meta VALUES ('hashed', '3')")
        await connection.execute("INSERT INTO site_apart VALUES ('busy.example', 3)")
    finally:
        await connection.close()


@pytest.fixture
def dsn(fresh_database: FreshDatabase) -> str:
    return fresh_database(four_partitions)


@pytest.fixture
async def partitions(dsn: str) -> AsyncIterator[PostgresPartitions]:
    made = PostgresPartitions(dsn)
    yield made
    await made.close()


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Another hand at the database."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def lapse(sql: asyncpg.Connection[asyncpg.Record], ms_ago: int = 1) -> None:
    """All leases ended so long ago."""
    await sql.execute(
        "UPDATE partition SET lease_until = (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1::bigint "
        "WHERE lease_until IS NOT NULL",
        ms_ago,
    )


async def test_what_nobody_has_owned_is_claimed_without_a_wait(partitions: Partitions) -> None:
    claimed = await partitions.claim("a", [0, 2], TTL, HOLD)
    assert sorted((c.partition, c.epoch, c.wait_ms) for c in claimed) == [(0, 1, 0), (2, 1, 0)]


async def test_what_another_owns_is_not_claimed(partitions: Partitions) -> None:
    await partitions.claim("a", [0, 1], TTL, HOLD)
    assert [c.partition for c in await partitions.claim("b", [0, 1, 2], TTL, HOLD)] == [2]


async def test_a_released_partition_is_claimed_under_the_next_epoch_without_a_wait(
    partitions: Partitions,
) -> None:
    await partitions.claim("a", [1], TTL, HOLD)
    await partitions.release("a", {1: 1})
    (claimed,) = await partitions.claim("b", [1], TTL, HOLD)
    assert (claimed.epoch, claimed.wait_ms) == (2, 0)


async def test_after_a_lapse_the_next_owner_waits_until_the_last_request_is_surely_over(
    partitions: Partitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    await partitions.claim("a", [1, 2], TTL, HOLD)
    await lapse(sql, 5_000)
    claimed = await partitions.claim("b", [1, 2], TTL, HOLD)
    assert [c.epoch for c in claimed] == [2, 2]
    assert all(HOLD - 6_500 < c.wait_ms <= HOLD - 5_000 for c in claimed)


async def test_long_after_a_lapse_nobody_waits(
    partitions: Partitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    await partitions.claim("a", [1], TTL, HOLD)
    await lapse(sql, HOLD + 1)
    assert [c.wait_ms for c in await partitions.claim("b", [1], TTL, HOLD)] == [0]


async def test_a_renewal_tells_who_is_there_and_who_owns_what(partitions: Partitions) -> None:
    await partitions.renew("b", {}, TTL, leaving=True)
    await partitions.claim("a", [0, 3], TTL, HOLD)
    roster = await partitions.renew("a", {0: 1, 3: 1}, TTL, leaving=False)
    assert [(a.agent, a.alive, a.leaving, a.partitions) for a in roster.agents] == [
        ("a", True, False, 2),
        ("b", True, True, 0),
    ]
    assert [(p.partition, p.owner, p.epoch) for p in roster.partitions] == [
        (0, "a", 1),
        (1, "", 0),
        (2, "", 0),
        (3, "a", 1),
    ]
    left = [p.lease_left_ms for p in roster.partitions]
    assert left[1:3] == [0, 0]
    assert all(TTL - 2_000 < left[p] <= TTL for p in (0, 3))
    assert (roster.lost, roster.hashed, roster.sites_apart) == ([], 3, {"busy.example": 3})


async def test_a_lapsed_hold_that_nobody_took_is_renewed_under_its_epoch(
    partitions: Partitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    await partitions.claim("a", [0], TTL, HOLD)
    await lapse(sql)
    roster = await partitions.renew("a", {0: 1}, TTL, leaving=False)
    assert roster.lost == []
    assert roster.partitions[0].lease_left_ms > TTL - 2_000
    assert await partitions.claim("b", [0], TTL, HOLD) == []


async def test_a_hold_that_another_took_is_lost_and_not_renewed(
    partitions: Partitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    await partitions.claim("a", [0, 1], TTL, HOLD)
    await lapse(sql)
    await partitions.claim("b", [0], 5_000, HOLD)
    roster = await partitions.renew("a", {0: 1, 1: 1}, TTL, leaving=False)
    assert roster.lost == [0]
    assert roster.partitions[0].owner == "b"
    assert roster.partitions[0].lease_left_ms <= 5_000


async def test_releasing_under_an_old_epoch_changes_nothing(
    partitions: Partitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    await partitions.claim("a", [0], TTL, HOLD)
    await lapse(sql)
    await partitions.claim("a", [0], TTL, HOLD)
    await partitions.release("a", {0: 1})
    assert (await partitions.renew("a", {0: 2}, TTL, leaving=False)).lost == []


async def test_an_agent_that_left_is_not_there_and_one_that_is_silent_is_not_alive(
    partitions: PostgresPartitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    for name in ("gone", "silent", "here"):
        await partitions.renew(name, {}, TTL, leaving=False)
    await partitions.leave("gone")
    await sql.execute("UPDATE agent SET seen_at = seen_at - 61000 WHERE name = 'silent'")
    roster = await partitions.renew("here", {}, TTL, leaving=False)
    assert {a.agent: a.alive for a in roster.agents} == {"silent": False, "here": True}
    await sql.execute("UPDATE agent SET seen_at = 0 WHERE name = 'silent'")
    await partitions.renew("here", {}, TTL, leaving=False)
    assert [a.agent for a in (await partitions.roster(TTL)).agents] == ["here"]


async def test_a_partition_on_its_way_to_another_server_is_not_claimed(
    partitions: Partitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    await sql.execute("UPDATE partition SET moving = true WHERE partition = 2")
    assert await partitions.claim("a", [2], TTL, HOLD) == []
    assert [p.moving for p in (await partitions.renew("a", {}, TTL, leaving=False)).partitions] == [
        False, False, True, False,
    ]  # fmt: skip


async def test_of_many_who_claim_at_once_each_partition_has_one_owner(dsn: str) -> None:
    agents = {f"agent{n}": PostgresPartitions(dsn) for n in range(5)}
    try:
        claims = await asyncio.gather(
            *(each.claim(name, [3, 1, 0, 2], TTL, HOLD) for name, each in agents.items())
        )
        assert sorted(c.partition for claimed in claims for c in claimed) == [0, 1, 2, 3]
        assert {c.epoch for claimed in claims for c in claimed} == {1}
    finally:
        for each in agents.values():
            await each.close()


async def test_a_claim_waits_for_whoever_reads_the_epoch_in_a_transaction_under_way(
    partitions: Partitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    async with sql.transaction():
        await sql.fetch("SELECT epoch FROM partition WHERE partition = 0 FOR KEY SHARE")
        claiming = asyncio.ensure_future(partitions.claim("a", [0], TTL, HOLD))
        done, _ = await asyncio.wait({claiming}, timeout=0.2)
        assert not done
    assert [c.partition for c in await claiming] == [0]


async def test_one_that_is_stopped_in_a_transaction_does_not_keep_the_others_waiting(
    partitions: Partitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    await partitions.claim("a", [0, 1], TTL, HOLD)
    async with sql.transaction():
        await sql.fetch("SELECT epoch FROM partition WHERE partition IN (0, 2) FOR SHARE")
        assert [c.partition for c in await partitions.claim("b", [2, 3], TTL, HOLD)] == [3]
        roster = await partitions.renew("a", {0: 1, 1: 1}, 2 * TTL, leaving=False)
    assert roster.lost == []
    assert roster.partitions[0].lease_left_ms <= TTL, "not renewed: the caller must not trust it longer"
    assert roster.partitions[1].lease_left_ms > TTL


async def test_each_partition_tells_what_work_is_in_it(
    partitions: PostgresPartitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    await partitions.claim("a", [1], TTL, HOLD)
    await sql.execute(
        "INSERT INTO tally VALUES (1, 'queued', 7), (1, 'state.leased', 2), (1, 'state.parsed', 1), (2, 'queued', 1)"
    )
    await sql.execute(
        "INSERT INTO inbox(partition, source, amount, policy_version, candidates) VALUES (1, 2, 5, 1, '')"
    )
    facts = [
        (f.line.partition, f.line.owner, f.queued, f.in_flight, f.inbox, f.outbox)
        for f in await partitions.facts()
    ]
    assert facts == [(0, "", 0, 0, 0, 0), (1, "a", 7, 3, 5, 0), (2, "", 1, 0, 0, 0), (3, "", 0, 0, 0, 0)]


async def test_seeds_are_told_when_there_are_new_ones(partitions: PostgresPartitions, dsn: str) -> None:
    assert await partitions.seeds() == (0, ())
    await add_seeds(dsn, ["https://a.example/", "https://b.example/"])
    await add_seeds(dsn, ["https://b.example/"])
    found = await partitions.seeds(0)
    assert found is not None
    assert found[1] == ("https://a.example/", "https://b.example/")
    assert await partitions.seeds(found[0]) is None


async def test_a_database_without_a_frontier_is_told_apart_from_one_that_is_away(
    database: str,
) -> None:
    empty = PostgresPartitions(database)
    with pytest.raises(StoreBroken, match="amble store init"):
        await empty.renew("a", {}, TTL, leaving=False)
    await empty.close()
    gone = PostgresPartitions("postgresql://amble@127.0.0.1:1/frontier")
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await gone.claim("a", [0], TTL, HOLD)
    await gone.close()


async def test_after_a_cut_connection_the_next_call_makes_a_new_one(
    partitions: PostgresPartitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    await partitions.claim("a", [0], TTL, HOLD)
    await sql.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'amble partitions' "
        "AND datname = current_database()"
    )
    try:
        await partitions.renew("a", {0: 1}, TTL, leaving=False)
    except StoreUnavailable:
        pass  # the cut was noticed by the call itself
    assert (await partitions.renew("a", {0: 1}, TTL, leaving=False)).lost == []


def test_a_password_is_not_shown() -> None:
    assert place_of("postgresql://me:secret@db.example:5432/x?a=b") == "postgresql://me@db.example:5432/x?a=b"
    assert place_of("postgresql:///x?host=/tmp") == "postgresql:///x?host=/tmp"


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:hush@db.example/x",
        "postgresql://db.example/x?user=me&password=hush&a=b",
        "postgresql://db.example/x?sslpassword=hush",
        "postgresql://me:hu/hush@db.example/x",
        "postgresql://me:a@hush@db.example/x",
    ],
)
def test_no_password_is_shown_whichever_way_it_was_given(dsn: str) -> None:
    assert "hush" not in place_of(dsn)
    assert "db.example/x" in place_of(dsn)


async def test_an_address_that_is_none_is_told_without_what_may_be_its_password() -> None:
    dsn = "postgresql://me:hush/y@127.0.0.1:1/x"
    with pytest.raises(StoreBroken, match="%2F") as told:
        await PostgresPartitions(dsn).renew("a", {}, TTL, leaving=False)
    assert "hush" not in str(told.value)
    with pytest.raises(StoreBroken, match="%2F") as told:
        await connect(dsn)
    assert "hush" not in str(told.value)
    with pytest.raises(StoreBroken, match="%2F") as told:
        await asyncio.to_thread(reports.PostgresReports, dsn)
    assert "hush" not in str(told.value)


async def test_a_server_that_may_only_be_read_is_waited_for(
    partitions: PostgresPartitions, dsn: str, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    """A standby that is about to take over refuses nothing for good: an agent must survive the meantime."""
    name = dsn.rpartition("/")[2]
    await sql.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    with pytest.raises(StoreUnavailable):
        await partitions.renew("a", {}, TTL, leaving=False)
    await sql.execute("SET transaction_read_only = off")
    await sql.execute("SET default_transaction_read_only = off")
    await sql.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    assert (await partitions.renew("a", {}, TTL, leaving=False)).lost == []


async def test_the_next_owner_waits_for_the_longest_request_that_the_owner_before_may_have(
    partitions: Partitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    await partitions.claim("slow", [0, 1], TTL, 90_000)
    await lapse(sql)
    (quick,) = await partitions.claim("quick", [0], TTL, 10_000)
    assert 80_000 < quick.wait_ms <= 90_000
    (slower,) = await partitions.claim("slower", [1], TTL, 120_000)
    assert 110_000 < slower.wait_ms <= 120_000


async def test_an_owner_that_dies_while_it_waits_passes_the_longer_time_on(
    partitions: Partitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    await partitions.claim("slow", [0], TTL, 90_000)
    for agent in ("quick", "quicker"):
        await lapse(sql)
        (claimed,) = await partitions.claim(agent, [0], TTL, 10_000)
        assert 80_000 < claimed.wait_ms <= 90_000


async def test_after_a_release_nobody_waits_for_requests_that_are_over(
    partitions: Partitions, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    (slow,) = await partitions.claim("slow", [0], TTL, 90_000)
    await partitions.release("slow", {0: slow.epoch})
    (quick,) = await partitions.claim("quick", [0], TTL, 10_000)
    assert quick.wait_ms == 0
    await lapse(sql)
    (next_one,) = await partitions.claim("next", [0], TTL, 10_000)
    assert next_one.wait_ms <= 10_000
