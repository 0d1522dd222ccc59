"""How PostgreSQL carries the statements out: by index at any size, and in place where nothing indexed changes."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from amble.adapters.postgres.connection import connect
from amble.adapters.postgres.setup import init
from amble.adapters.postgres.statements import ORIGIN, URL, WORK
from amble.adapters.postgres.store import PostgresStore
from amble.adapters.sql.settings import StoreSettings
from amble.domain.fetched import BodyRef
from amble.domain.frontier import (
    LeaseAsk,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    TakeoverAsk,
)
from tests.contract.frontier_rig import EFFECT, answer
from tests.support.postgres import FreshDatabase

ORIGINS, EACH = 2_000, 12


async def make_large(dsn: str) -> None:
    """Many URLs at rest over many origins, a few in flight."""
    await init(dsn, partitions=2)
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"""
        INSERT INTO origin(id, key, partition, wake_at, queued, urls, created_at)
        SELECT n, 'https://o' || n || '.example', n % 2, n, 6, {EACH}, 0 FROM generate_series(1, {ORIGINS}) n;
        INSERT INTO url(id, path, state, kind, rq, due_at, priority, depth, hops, edge, parent, admitted_at, attempt,
          generation, tries, strikes, checks, changes, sweep_at, expires_at)
        SELECT (o::bigint << 36) + n, '/' || n, CASE WHEN n % 2 = 0 THEN 0 WHEN o % 500 = 0 THEN 1 ELSE 4 END, 0,
          CASE WHEN n % 2 = 0 THEN 2 END, n, 2, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0,
          CASE WHEN o % 500 = 0 AND n % 2 = 1 THEN n END, CASE WHEN o % 500 = 0 AND n % 2 = 1 THEN n END
        FROM generate_series(1, {ORIGINS}) o, generate_series(1, {EACH}) n;
        INSERT INTO "fetch"(url_id, at, duration_ms, attempt, generation) SELECT id, 0, 0, 0, 1 FROM url;
        INSERT INTO manifest(url_id, at, attempt, generation, partition, links, cursor, opened, content_kind, title, ref)
        SELECT id, 0, 0, 1, 0, 1, (id % 300 <> 0)::int, true, '', '', decode(repeat('00', 16), 'hex') FROM url;
        INSERT INTO body SELECT sha256(id::text::bytea), '', 1 FROM url;
        INSERT INTO publication SELECT 0, row_number() OVER (), id, 0, 1, 1, 1 FROM url;
        INSERT INTO inbox(partition, source, amount, policy_version, candidates)
        SELECT n % 2, 0, 1, 1, '' FROM generate_series(1, 2000) n;
        INSERT INTO outbox SELECT n % 2, n, 9, 1, 1, '' FROM generate_series(1, 2000) n;
        INSERT INTO decision(subject, at, partition, policy_version, url, reason, detail)
        SELECT id, 0, 0, 1, '', '', '' FROM url;
    """)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


async def plan_of(connection: asyncpg.Connection[Any], statement: str) -> str:
    """The plan for parameters that are not known, as the store has it made."""
    prepared = await connection.prepare(statement)
    nulls = ", ".join("NULL" for _ in prepared.get_parameters())
    await connection.execute(f"PREPARE tried AS {statement}")
    try:
        rows = await connection.fetch(f"EXPLAIN EXECUTE tried{f'({nulls})' if nulls else ''}")
    finally:
        await connection.execute("DEALLOCATE tried")
    return "\n".join(row[0] for row in rows)


# Statements, the indexes that they must use.
HOT: dict[str, tuple[str, tuple[str, ...]]] = {
    "origins by key": (ORIGIN["by_key"], ("origin_key",)),
    "origins by id": (ORIGIN["by_id"], ("origin_pkey",)),
    "origins written": (ORIGIN["write"], ("origin_pkey",)),
    "origins that are due": (ORIGIN["due"], ("origin_wake", "url_due", "url_pkey")),
    "the next wake": (ORIGIN["next_wake"], ("origin_wake",)),
    "URLs": (URL["rows"], ("url_pkey",)),
    "which are known": (URL["paths"], ("url_pkey",)),
    "a flight": (URL["write_flight"], ("url_pkey",)),
    "an answer": (URL["write_answer"], ("url_pkey",)),
    "an end": (URL["write_end"], ("url_pkey",)),
    "everything": (URL["write_whole"], ("url_pkey",)),
    "lapsed leases": (URL["lapsed"], ("url_sweep", "origin_pkey")),
    "what can be adopted": (URL["adoptable"], ("url_sweep", "origin_pkey")),
    "the sweep refreshed": (URL["refresh_sweep"], ("url_sweep", "url_pkey")),
    "what a former owner left": (URL["in_flight"], ("url_sweep", "origin_pkey")),
    "what has ended": (URL["ended"], ("url_ended",)),
    "manifests": (WORK["manifests"], ("manifest_pkey",)),
    "manifests written": (WORK["write_manifests"], ("manifest_pkey",)),
    "open manifests": (WORK["open_manifests"], ("manifest_open", "url_pkey", "origin_pkey")),
    "answers": (WORK["answers"], ("fetch_pkey",)),
    "latest manifests": (WORK["latest_manifests"], ("manifest_pkey",)),
    "bodies": (WORK["find_bodies"], ("body_pkey",)),
    "an inbox": (WORK["inbox"], ("inbox_pkey",)),
    "an outbox": (WORK["parcels"], ("outbox_pkey",)),
    "what waits": (WORK["waiting"], ("inbox_pkey", "outbox_pkey")),
    "parcels taken": (WORK["drop_parcels"], ("outbox_pkey",)),
    "old decisions": (WORK["prune_decisions"], ("decision_pkey",)),
}


@pytest.mark.parametrize("name", HOT)
async def test_a_hot_statement_finds_its_rows_by_index(fresh_database: FreshDatabase, name: str) -> None:
    statement, indexes = HOT[name]
    connection = await connect(fresh_database(make_large))
    plan = await plan_of(connection, statement)
    await connection.close()
    for index in indexes:
        assert index in plan, plan
    for table in ("url", "origin", "fetch", "manifest", "body", "inbox", "outbox", "decision"):
        assert f"Seq Scan on {table}" not in plan, plan
    assert "Hash Join" not in plan


async def test_a_start_an_answer_and_a_parse_rewrite_no_index(fresh_database: FreshDatabase) -> None:
    dsn = fresh_database(make_large)
    store = await PostgresStore.open(dsn, StoreSettings(default_spacing_ms=0), linger_s=0.0)
    frontier = store.frontier(0)
    epoch = (await frontier.take_over(TakeoverAsk("agent"))).epoch
    leases = (await frontier.lease(LeaseAsk(epoch, 1, 50, 60_000, robots_obey=False))).leases
    assert len(leases) == 50
    assert store._database is not None

    async def updates() -> tuple[int, int]:
        """(all, those in place) of the table of URLs."""
        assert store._database is not None
        await store._database.fetch("SELECT pg_stat_force_next_flush()")
        row = await store._database.one(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'url'"
        )
        return row[0], row[1]

    before = await updates()
    for lease in leases:
        await frontier.reserve(ReserveAsk(lease.key, epoch, lease.origin, 0, 60_000, -1, 8))
        await frontier.record_fetched(RecordFetched(lease.key, answer(), EFFECT, 600_000))
        await frontier.record_parsed(RecordParsed(lease.key, 1, BodyRef(1, 1, 1), 0, "html"))
    after = await updates()
    assert after[0] - before[0] == 150
    # A page without room takes the new version elsewhere, which is rare.
    assert after[1] - before[1] >= 140
    await store.close()
