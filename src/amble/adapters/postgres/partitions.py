"""ports.Partitions on PostgreSQL: who owns which partition, by fenced rows under the clock of the database.

Uses one small connection of its own, so that renewals never wait behind the traffic of pages, and single statements
only: an agent that is stopped in the middle of one leaves no lock behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import asyncpg

from amble.adapters.postgres.connection import NO_ADDRESS, NOT_LET_IN, Trouble, describe, place_of, trouble_of
from amble.adapters.postgres.seeds import SEEDS, decode_seeds
from amble.adapters.postgres.setup import HASHED
from amble.domain.errors import StoreBroken, StoreUnavailable, StoreUnfit
from amble.domain.partition import AgentLine, PartitionFacts, PartitionLine
from amble.ports import Claimed, Roster

T = TypeVar("T")

# A call that takes longer has failed; the caller repeats it, and its trust window runs meanwhile.
CALL_S_MAX = 5.0
CONNECT_S_MAX = 5.0
# How long a row may be waited for that a transaction under way still reads; then those rows are left for the next time.
LOCK_WAIT_MS = 1_000
# An agent that was not heard of for so long and holds nothing is forgotten.
FORGOTTEN_AFTER_MS = 3_600_000

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

# Agents are rows of one table with their holds renewed in the same statement. A row that is locked for long by a
# transaction under way is not waited for (`skip`): what is left of its lease is told, and it is tried again.
_RENEW = """
WITH alive AS (
  INSERT INTO agent AS a (name, seen_at, leaving) VALUES ($1, {now}, $4)
  ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, leaving = excluded.leaving
), mine AS (
  SELECT p.partition FROM partition p JOIN unnest($2::int[], $3::bigint[]) AS h(partition, epoch)
    ON p.partition = h.partition AND p.epoch = h.epoch AND p.owner = $1
  ORDER BY p.partition FOR NO KEY UPDATE OF p {skip}
)
UPDATE partition p SET lease_until = {now} + $5 FROM mine WHERE p.partition = mine.partition RETURNING p.partition
"""
_PARTITIONS = """
SELECT partition, owner, epoch, coalesce(lease_until - {now}, CASE owner WHEN '' THEN 0 ELSE {forever} END) AS left_ms,
  moving FROM partition ORDER BY partition
"""
_AGENTS = """
SELECT a.name, {now} - a.seen_at AS ago_ms, a.leaving,
  (SELECT count(*) FROM partition p WHERE p.owner = a.name) AS partitions
FROM agent a ORDER BY a.name
"""
# FOR UPDATE waits for every transaction that has read the epoch; none that comes later reads it as current. Every owner
# leaves word how long its requests may last; one that comes before the last have ended passes the longer time on.
_CLAIM = """
WITH free AS (
  SELECT partition, released, lease_until, hold_ms FROM partition
  WHERE partition = ANY($2::int[]) AND NOT moving AND (owner = '' OR lease_until <= {now})
  ORDER BY partition FOR UPDATE {skip}
)
UPDATE partition p SET owner = $1, epoch = p.epoch + 1, released = false, lease_until = {now} + $3,
  hold_ms = greatest($4, CASE WHEN free.released THEN 0 ELSE free.hold_ms END)
FROM free WHERE p.partition = free.partition
RETURNING p.partition, p.epoch,
  CASE WHEN free.released THEN 0 ELSE
    greatest(0, coalesce(free.lease_until, {now}) + greatest($4, free.hold_ms) - {now}) END AS wait_ms,
  greatest($4, free.hold_ms) AS hold_ms
"""
_RELEASE = """
UPDATE partition p SET owner = '', released = true, lease_until = NULL
FROM unnest($2::int[], $3::bigint[]) AS h(partition, epoch)
WHERE p.partition = h.partition AND p.epoch = h.epoch AND p.owner = $1
"""
_COUNTS = ("queued", "in_flight", "inbox", "outbox")
_FACTS = """
SELECT p.partition, coalesce(t.queued, 0) AS queued, coalesce(t.in_flight, 0) AS in_flight,
  coalesce((SELECT sum(amount) FROM inbox i WHERE i.partition = p.partition), 0) AS inbox,
  coalesce((SELECT sum(amount) FROM outbox o WHERE o.source = p.partition), 0) AS outbox
FROM partition p LEFT JOIN (
  SELECT partition, sum(value) FILTER (WHERE name = 'queued') AS queued,
    sum(value) FILTER (WHERE name IN ('state.leased', 'state.fetched', 'state.parsed')) AS in_flight
  FROM tally GROUP BY partition
) t USING (partition)
"""
_SEEDS = "SELECT length(value) AS size, value FROM meta WHERE name = $1"
# Who comes first when the time has come has the turn, and puts it off for the others. The first look only sets the time.
_TURN = """
INSERT INTO meta AS m (name, value) VALUES ($1, convert_to(({now} + $2::bigint)::text, 'UTF8'))
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE convert_from(m.value, 'UTF8')::bigint <= {now}
RETURNING xmax <> 0 AS ours
"""
_LEAVE = "DELETE FROM agent WHERE name = $1"
_FORGET = """
DELETE FROM agent a WHERE a.seen_at < {now} - $1::bigint AND NOT EXISTS (SELECT 1 FROM partition p WHERE p.owner = a.name)
"""
# The lease of an owner without a term never ends by itself.
_FOREVER_MS = 1 << 53


def _sql(template: str, skip: str = "") -> str:
    return template.format(now=_NOW, skip=skip, forever=_FOREVER_MS)


class PostgresPartitions:
    """ports.Partitions over the database at `dsn`, which has the tables of the frontier. Connects when first used."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._one_at_a_time = asyncio.Lock()

    # -- ports.Partitions -------------------------------------------------------------------------------------

    async def renew(self, agent: str, holds: Mapping[int, int], ttl_ms: int, *, leaving: bool) -> Roster:
        """See ports.Partitions.renew."""
        given = (agent, list(holds), list(holds.values()), leaving, ttl_ms)

        async def work(connection: Any) -> Roster:
            await _patient(connection, _RENEW, given)
            await connection.execute(_sql(_FORGET), FORGOTTEN_AFTER_MS)
            return await _roster(connection, agent, holds, ttl_ms)

        return await self._call(work)

    async def claim(self, agent: str, wanted: Sequence[int], ttl_ms: int, hold_ms: int) -> list[Claimed]:
        """See ports.Partitions.claim."""
        if not wanted:
            return []

        async def work(connection: Any) -> list[Claimed]:
            rows = await _patient(connection, _CLAIM, (agent, list(wanted), ttl_ms, hold_ms))
            return [Claimed(row["partition"], row["epoch"], row["wait_ms"], row["hold_ms"]) for row in rows]

        return await self._call(work)

    async def release(self, agent: str, holds: Mapping[int, int]) -> None:
        """See ports.Partitions.release."""

        async def work(connection: Any) -> None:
            await connection.execute(_RELEASE, agent, list(holds), list(holds.values()))

        if holds:
            await self._call(work)

    async def leave(self, agent: str) -> None:
        """See ports.Partitions.leave."""

        async def work(connection: Any) -> None:
            await connection.execute(_LEAVE, agent)

        await self._call(work)

    async def roster(self, ttl_ms: int) -> Roster:
        """Agents and partitions as they are; changes nothing. An agent counts as alive for `ttl_ms` since it was seen."""

        async def work(connection: Any) -> Roster:
            return await _roster(connection, "", {}, ttl_ms)

        return await self._call(work)

    async def facts(self) -> list[PartitionFacts]:
        """All partitions with their owners and their work; changes nothing."""

        async def work(connection: Any) -> list[PartitionFacts]:
            lines = await _lines(connection)
            rows = {row["partition"]: row for row in await connection.fetch(_FACTS)}
            return [
                PartitionFacts(line=line, **{name: int(rows[line.partition][name]) for name in _COUNTS})
                for line in lines
                if line.partition in rows
            ]

        return await self._call(work)

    async def seeds(self, known_bytes: int = -1) -> tuple[int, tuple[str, ...]] | None:
        """The seeds of the fleet and how long their list is stored; None when it is as long as `known_bytes`."""

        async def work(connection: Any) -> tuple[int, tuple[str, ...]] | None:
            row = await connection.fetchrow(_SEEDS, SEEDS)
            size, value = (0, None) if row is None else (row["size"], row["value"])
            if size == known_bytes:
                return None
            return size, tuple(decode_seeds(value)) if value is not None else ()

        return await self._call(work)

    async def take_turn(self, name: str, every_ms: int) -> bool:
        """Whether the caller is the one of all agents that does `name` now. So long after it was done, somebody does it."""

        async def work(connection: Any) -> bool:
            return bool(await connection.fetchval(_sql(_TURN), f"turn.{name}", every_ms))

        return await self._call(work)

    async def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=CALL_S_MAX)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()

    # -- the connection ---------------------------------------------------------------------------------------

    async def _call(self, work: Callable[[Any], Awaitable[T]]) -> T:
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(CALL_S_MAX):
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await self._connect()
                    return await work(self._connection)
            except asyncio.CancelledError:
                self._abandon()
                raise
            except (asyncpg.UndefinedTableError, asyncpg.InvalidCatalogNameError) as error:
                raise StoreUnfit(
                    f"{place_of(self._dsn)} holds no frontier ({error}): make one with `amble store init`"
                ) from None
            except asyncpg.InvalidAuthorizationSpecificationError as error:
                raise StoreUnfit(f"{place_of(self._dsn)}: {describe(error)}; {NOT_LET_IN}") from None
            except (
                OSError,
                asyncpg.PostgresError,
                asyncpg.InterfaceError,
                asyncpg.InternalClientError,
            ) as error:
                self._abandon()
                if trouble_of(error) in (Trouble.REFUSED, Trouble.BROKEN):
                    raise StoreBroken(f"{place_of(self._dsn)}: {describe(error)}") from error
                raise StoreUnavailable(f"{place_of(self._dsn)} does not answer: {describe(error)}") from error

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        try:
            return await asyncpg.connect(
                self._dsn,
                timeout=CONNECT_S_MAX,
                target_session_attrs="read-write",
                server_settings={"application_name": "amble partitions", "lock_timeout": str(LOCK_WAIT_MS)},
            )
        except ValueError:
            raise StoreBroken(NO_ADDRESS) from None

    def _abandon(self) -> None:
        """What the connection was doing is not known: the next call makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


async def _patient(connection: Any, template: str, arguments: tuple[Any, ...]) -> list[asyncpg.Record]:
    """Run a statement that locks rows; where one of them is held for too long, with what can be had at once."""
    try:
        return list(await connection.fetch(_sql(template), *arguments))
    except asyncpg.LockNotAvailableError:
        return list(await connection.fetch(_sql(template, "SKIP LOCKED"), *arguments))


async def _lines(connection: Any) -> list[PartitionLine]:
    return [
        PartitionLine(
            partition=row["partition"],
            owner=row["owner"],
            epoch=row["epoch"],
            lease_left_ms=row["left_ms"],
            moving=row["moving"],
        )
        for row in await connection.fetch(_sql(_PARTITIONS))
    ]


async def _roster(connection: Any, agent: str, holds: Mapping[int, int], ttl_ms: int) -> Roster:
    partitions = await _lines(connection)
    agents = [
        AgentLine(
            agent=row["name"],
            seen_ms_ago=row["ago_ms"],
            alive=row["ago_ms"] <= ttl_ms,
            leaving=row["leaving"],
            partitions=row["partitions"],
        )
        for row in await connection.fetch(_sql(_AGENTS))
    ]
    apart = {row["site"]: row["partition"] for row in await connection.fetch("SELECT * FROM site_apart")}
    hashed = await connection.fetchval("SELECT value FROM meta WHERE name = $1", HASHED)
    if hashed is None:
        raise StoreUnfit("the frontier was not told how many partitions it has: run `amble store init`")
    ours = {
        line.partition
        for line in partitions
        if line.owner == agent and line.epoch == holds.get(line.partition)
    }
    now_ms = int(await connection.fetchval(_sql("SELECT {now}")))
    lost = [p for p in holds if p not in ours]
    return Roster(agents, partitions, lost, int(hashed), apart, clocks_ms={0: now_ms})
