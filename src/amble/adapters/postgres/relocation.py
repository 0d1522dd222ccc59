"""Moving one partition to another server: closed, frozen, copied in key order, compared, and handed over in one commit.

Each step may be stopped anywhere and done again. Until the map says otherwise the partition belongs to its old server,
from then on to the new one, and in between nobody can claim it at either: there is one place that owns it, always.

While it is closed, its rows at the old server answer whoever still holds something of it as stale: leases and parses
have lost their tokens, cursors stand below zero, and its origins look busy to guests. What would have gone to its inbox
waits in outboxes. Bodies stay in the archive and their digests in the index, so that neither moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg
from msgspec import msgpack

from amble.adapters.postgres.connection import connect, describe, place_of, trouble_of
from amble.adapters.postgres.migrations import MAP_LOCK
from amble.adapters.postgres.placement import check_server
from amble.adapters.postgres.servers_link import NOW
from amble.adapters.postgres.setup import HASHED
from amble.adapters.sql.tally import ORIGINS
from amble.domain.errors import OperationRefused, StoreBroken, StoreUnavailable
from amble.domain.lifecycle import UrlState
from amble.domain.partition import PartitionMap

PIECE: Final = 2_000
# Origins whose rows are removed in one transaction.
REMOVED_AT_ONCE: Final = 200
LOOK_EVERY_S: Final = 0.25
# One of two advisory numbers, the other is the partition: one move of it at a time.
_LOCK: Final = 0x616D_626C
# Slots that no limit of an origin has: whoever asks for a start there is told to wait.
BUSY: Final = 1_000_000
# When nobody looks for what is in flight, until the partition is open.
FAR: Final = 1 << 53
_FLIGHT: Final = (int(UrlState.LEASED), int(UrlState.FETCHED), int(UrlState.PARSED))
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Table:
    """Which rows of a table belong to a partition ($1), and in which order they go.

    `counted` False: the database numbers anew, in the same order. `joined`: through the origin of the URL.
    `compared` False: a bounded log, whose oldest entries may go at any time.
    """

    name: str
    key: tuple[str, ...]
    of: str = "t.partition = $1"
    counted: bool = True
    joined: str = ""
    compared: bool = True

    @property
    def source(self) -> str:
        """FROM and WHERE."""
        join = f" JOIN origin AS o ON o.id = t.{self.joined} >> 36" if self.joined else ""
        where = "o.partition = $1" if self.joined else self.of
        return f'FROM "{self.name}" AS t{join} WHERE {where}'


# Manifests before URLs: a cursor never says more than the URLs that follow can show.
TABLES: Final = (
    _Table("origin", ("id",)),
    _Table("site", ("name",)),
    _Table("manifest", ("url_id", "attempt", "generation")),
    _Table("url", ("id",), joined="id"),
    _Table("fetch", ("url_id", "attempt"), joined="url_id"),
    _Table("publication", ("seq",)),
    _Table("sink", ("name",)),
    _Table("audit", ("seq",), counted=False),
    _Table("decision", ("seq",), counted=False, compared=False),
    _Table("outbox", ("number",), of="t.source = $1"),
    _Table("taken", ("source",), of="t.destination = $1"),
    _Table("inbox", ("number",), counted=False),
    _Table("tally", ("name",)),
)
# What is removed with the partition's own row, because it would count; the rest goes piece by piece afterwards.
_AT_ONCE: Final = (
    "DELETE FROM tally WHERE partition = $1",
    "DELETE FROM sink WHERE partition = $1",
    "DELETE FROM inbox WHERE partition = $1",
    "DELETE FROM outbox WHERE source = $1",
    "DELETE FROM taken WHERE destination = $1",
)
_AFTERWARDS: Final = ("site", "manifest", "publication", "audit", "decision")

# ---- freezing: each statement changes nothing when it is repeated

_OF_N: Final = "JOIN origin AS own ON own.id = u.id >> 36"
_FREE_SLOTS_ELSEWHERE: Final = f"""
UPDATE origin AS o SET active = o.active - n.held,
  wake_at = CASE WHEN o.queued > 0 AND NOT o.paused THEN coalesce(o.wake_at, $2) ELSE o.wake_at END
FROM (SELECT u.slot_origin AS id, count(*)::integer AS held FROM url AS u {_OF_N}
  WHERE u.sweep_at IS NOT NULL AND u.slot_origin IS NOT NULL AND own.partition = $1 GROUP BY 1) AS n
WHERE o.id = n.id AND o.partition <> $1
"""
_TURN_GUESTS_OUT: Final = """
WITH guest AS (UPDATE url AS u SET slot_origin = NULL, slot_until = NULL FROM origin AS own, origin AS o
  WHERE own.id = u.id >> 36 AND o.id = u.slot_origin AND u.sweep_at IS NOT NULL AND own.partition <> $1
    AND o.partition = $1 RETURNING o.id, (SELECT b.slot_until FROM url AS b WHERE b.id = u.id) AS until)
UPDATE origin AS o SET next_start = greatest(o.next_start, n.until)
FROM (SELECT id, max(until) AS until FROM guest GROUP BY id) AS n WHERE o.id = n.id
"""
_VOID_TOKENS: Final = """
UPDATE url AS u SET token = NULL, worker = NULL, sweep_at = NULL, slot_origin = NULL, slot_until = NULL,
  expires_at = least(u.expires_at, $2)
FROM origin AS own WHERE own.id = u.id >> 36 AND u.sweep_at IS NOT NULL AND own.partition = $1
"""
_HIDE_CURSORS: Final = (
    "UPDATE manifest SET cursor = -1 - cursor WHERE partition = $1 AND cursor >= 0 AND cursor < links"
)
_LOOK_BUSY: Final = "UPDATE origin SET active = $2 WHERE partition = $1 AND active <> $2"

_FIND_AGAIN: Final = (
    "UPDATE url AS u SET sweep_at = expires_at FROM origin AS o"
    " WHERE o.id = u.id >> 36 AND o.partition = $1 AND u.sweep_at = $2"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocated:
    """What a move came to. `rows` by table; `resumed`: an earlier try had begun it; `moved` False: it was there."""

    partition: int
    source: int
    target: int
    rows: dict[str, int]
    resumed: bool = False
    moved: bool = True


@dataclass(slots=True, kw_only=True)
class Relocation:
    """One move of `partition` to server `target`; `dsns` are all servers in order.

    `hold_ms`: the least time that a request of an owner before is given; its own word may be longer. `on_step` hears what is being done, before it is done.
    `patience_s`: how long the owner may take to hand the partition over.
    """

    dsns: Sequence[str]
    partition: int
    target: int
    hold_ms: int
    patience_s: float = 600.0
    on_step: Callable[[str], None] = lambda _: None
    _map: Any = None
    _from: Any = None
    _to: Any = None
    _source: int = 0
    _shift_ms: int = 0
    _columns: dict[str, list[str]] = field(default_factory=dict)

    async def run(self) -> Relocated:
        """Move it, or go on with a move that was begun.

        Raises OperationRefused where that makes no sense, StoreUnavailable when a server or the owner does not answer:
        the same move may then be made again; StoreBroken.
        """
        if not 0 <= self.target < len(self.dsns):
            raise OperationRefused(f"there is no server {self.target} in this fleet")
        try:
            return await self._run()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            if trouble_of(error).value in ("refused", "broken"):
                raise StoreBroken(describe(error)) from error
            raise StoreUnavailable(describe(error)) from error
        finally:
            for connection in (self._map, self._from, self._to):
                if connection is not None:
                    connection.terminate()

    async def _run(self) -> Relocated:
        self._map = await self._connect(0)
        if not await self._map.fetchval("SELECT pg_try_advisory_lock($1, $2)", _LOCK, self.partition):
            raise OperationRefused(f"partition {self.partition} is being moved by another process")
        place, resumed = await self._plan()
        if place is None:
            return self._told({}, moved=False)
        self._from, self._to = await self._connect(self._source), await self._connect(self.target)
        rows: dict[str, int] = {}
        if place != self.target:
            await self._close_and_freeze()
            await self._land()
            for table in TABLES:
                await self._copy(table)
            for table in TABLES:
                if table.compared:
                    self.on_step(f"compare {table.name}")
                    rows[table.name] = await self._compare(table)
            await self._flip()
        await self._retire()
        await self._open()
        await self._remove()
        await self._finish()
        return self._told(rows, resumed=resumed)

    def _told(self, rows: dict[str, int], *, resumed: bool = False, moved: bool = True) -> Relocated:
        return Relocated(
            partition=self.partition,
            source=self._source,
            target=self.target,
            rows=rows,
            resumed=resumed,
            moved=moved,
        )

    async def _connect(self, number: int) -> Any:
        connection = await connect(self.dsns[number], name="amble move")
        await check_server(connection, number, None)
        # Pieces are small; only what is counted or freed at once may take long.
        await connection.execute("SET statement_timeout = 0")
        return connection

    # ---- deciding

    async def _plan(self) -> tuple[int | None, bool]:
        """(where the map says it is, whether a move was begun); None when there is nothing to do."""
        self.on_step("plan")
        async with self._map.transaction():
            place = await self._map.fetchval(
                "SELECT server FROM placement WHERE partition = $1 FOR UPDATE", self.partition
            )
            if place is None:
                raise OperationRefused(f"there is no partition {self.partition} in this fleet")
            row = await self._map.fetchrow(
                "SELECT source, target, shift_ms FROM relocation WHERE partition = $1", self.partition
            )
            if row is None and place == self.target:
                self._source = place
                return None, False
            if row is not None and row["target"] != self.target:
                raise OperationRefused(
                    f"partition {self.partition} is on its way to server {row['target']}: finish that move first"
                )
            self._source = place if row is None else row["source"]
            self._shift_ms = 0 if row is None else row["shift_ms"] or 0
            if row is None:
                await self._map.execute(
                    "INSERT INTO relocation(partition, source, target) VALUES ($1, $2, $3)",
                    self.partition,
                    place,
                    self.target,
                )
        return place, row is not None

    # ---- at the old server

    async def _close_and_freeze(self) -> None:
        self.on_step("close")
        async with self._from.transaction():
            # Whoever looks which partitions live here has looked before, or finds that this one is leaving.
            await self._from.execute("SELECT pg_advisory_xact_lock($1)", MAP_LOCK)
            closed = await self._from.execute(
                "UPDATE partition SET moving = true WHERE partition = $1 AND NOT arriving", self.partition
            )
        if closed != "UPDATE 1":
            raise StoreBroken(
                f"partition {self.partition} is not on server {self._source}, where the map has it"
            )
        self.on_step("wait")
        give_up_s = asyncio.get_running_loop().time() + self.patience_s
        while not await self._freeze():
            if asyncio.get_running_loop().time() > give_up_s:
                raise StoreUnavailable(
                    f"partition {self.partition} is still owned; it was asked for, so run this again"
                )
            await asyncio.sleep(LOOK_EVERY_S)
        await self._measure_shift()

    async def _freeze(self) -> bool:
        """Make what others hold of it void, once no request of its last owner can be under way. False: not yet."""
        async with self._from.transaction():
            # Waits for every transaction that has read the partition's row.
            row = await self._from.fetchrow(
                "SELECT owner, lease_until, hold_ms FROM partition WHERE partition = $1 FOR UPDATE",
                self.partition,
            )
            now = await self._from.fetchval(NOW)
            hold_ms = max(self.hold_ms, row["hold_ms"])
            lapsed = row["lease_until"] is not None and row["lease_until"] + hold_ms <= now
            if row["owner"] and not lapsed:
                return False
            self.on_step("freeze")
            await self._bring_home()
            await self._from.execute(_FREE_SLOTS_ELSEWHERE, self.partition, now)
            await self._from.execute(_TURN_GUESTS_OUT, self.partition)
            await self._from.execute(_VOID_TOKENS, self.partition, now)
            await self._from.execute(_HIDE_CURSORS, self.partition)
            await self._from.execute(_LOOK_BUSY, self.partition, BUSY)
            await self._from.execute(
                "UPDATE partition SET owner = '', released = true, lease_until = NULL WHERE partition = $1",
                self.partition,
            )
        return True

    async def _bring_home(self) -> None:
        """Ledgers that a hop opened for the partition it came from go to the one that they belong to."""
        hashed = int(await self._from.fetchval("SELECT value FROM meta WHERE name = $1", HASHED))
        apart = {row[0]: row[1] for row in await self._from.fetch("SELECT site, partition FROM site_apart")}
        places = PartitionMap(hashed=hashed, apart=apart)
        here = {row[0] for row in await self._from.fetch("SELECT partition FROM partition")}
        for row in await self._from.fetch(
            "SELECT id, key, partition FROM origin WHERE robots_url_id IS NULL"
        ):
            home = places.of(row["key"])
            if home == row["partition"] or self.partition not in (home, row["partition"]) or home not in here:
                continue
            await self._from.execute("UPDATE origin SET partition = $2 WHERE id = $1", row["id"], home)
            for partition, amount in ((row["partition"], -1), (home, 1)):
                await self._from.execute(
                    "INSERT INTO tally(partition, name, value) VALUES ($1, $2, $3)"
                    " ON CONFLICT (partition, name) DO UPDATE SET value = tally.value + excluded.value",
                    partition,
                    ORIGINS,
                    amount,
                )

    async def _measure_shift(self) -> None:
        """How far the new server's clock may be ahead: so much later nothing starts sooner than it should."""
        if await self._map.fetchval(
            "SELECT shift_ms IS NOT NULL FROM relocation WHERE partition = $1", self.partition
        ):
            return
        theirs = await self._from.fetchval(NOW)
        self._shift_ms = max(0, await self._to.fetchval(NOW) - theirs)
        await self._map.execute(
            "UPDATE relocation SET shift_ms = $2 WHERE partition = $1", self.partition, self._shift_ms
        )

    # ---- at the new server

    async def _land(self) -> None:
        """A place for it, which nobody can claim and which does not count."""
        self.on_step("land")
        row = await self._from.fetchrow(
            "SELECT epoch, published, sent FROM partition WHERE partition = $1", self.partition
        )
        async with self._to.transaction():
            await self._to.execute("DELETE FROM departed WHERE partition = $1", self.partition)
            await self._to.execute(
                "INSERT INTO partition(partition, epoch, published, sent, moving, arriving)"
                " VALUES ($1, $2, $3, $4, true, true) ON CONFLICT DO NOTHING",
                self.partition,
                *row,
            )
            if not await self._to.fetchval(
                "SELECT arriving FROM partition WHERE partition = $1", self.partition
            ):
                raise StoreBroken(f"server {self.target} has a partition {self.partition} of its own")

    async def _copy(self, table: _Table) -> None:
        mark = await self._to.fetchrow(
            "SELECT position, done FROM landing WHERE partition = $1 AND name = $2",
            self.partition,
            table.name,
        )
        if mark is not None and mark["done"]:
            return
        position = None if mark is None else mark["position"]
        names = await self._names(table)
        places = [names.index(name) for name in table.key]
        async with aclosing(self._pieces(self._from, table, position)) as pieces:
            async for piece in pieces:
                self.on_step(f"copy {table.name}")
                last = msgpack.encode([piece[-1][place] for place in places])
                async with self._to.transaction():
                    await self._make_room(table, piece, names)
                    await self._to.copy_records_to_table(
                        table.name,
                        records=[self._written(table, names, row) for row in piece],
                        columns=self._carried(table, names),
                    )
                    await self._mark(table, position, last, len(piece), done=False)
                position = last
        await self._mark(table, position, position, 0, done=True)

    async def _mark(
        self, table: _Table, before: bytes | None, position: bytes | None, count: int, *, done: bool
    ) -> None:
        """How far the copy has come; another copy that had gone on meanwhile is noticed."""
        changed = await self._to.execute(
            "INSERT INTO landing AS l (partition, name, position, rows, done) VALUES ($1, $2, $4, $5, $6)"
            " ON CONFLICT (partition, name) DO UPDATE SET position = $4, rows = l.rows + $5, done = $6"
            " WHERE l.position IS NOT DISTINCT FROM $3",
            self.partition,
            table.name,
            before,
            position,
            count,
            done,
        )
        if changed != "INSERT 0 1":
            raise StoreUnavailable(f"another process has moved on with partition {self.partition}")

    async def _make_room(self, table: _Table, piece: list[Row], names: list[str]) -> None:
        """A ledger that a hop had opened at the new server, and that nothing was admitted for, gives way."""
        if table.name == "origin":
            keys = [row[names.index("key")] for row in piece]
            await self._to.execute(
                "DELETE FROM origin WHERE key = ANY($1::text[]) AND partition <> $2 AND robots_url_id IS NULL",
                keys,
                self.partition,
            )

    async def _names(self, table: _Table) -> list[str]:
        if table.name not in self._columns:
            rows = await self._from.fetch(
                "SELECT attname FROM pg_attribute WHERE attrelid = ('\"' || $1 || '\"')::regclass"
                " AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                table.name,
            )
            self._columns[table.name] = [row[0] for row in rows]
        return self._columns[table.name]

    @staticmethod
    def _carried(table: _Table, names: list[str]) -> list[str]:
        return [name for name in names if table.counted or name not in table.key]

    def _written(self, table: _Table, names: list[str], row: Row) -> Row:
        """A row of the old server as the new one has it."""
        if table.name in ("origin", "url", "manifest"):
            facts = dict(zip(names, row, strict=True))
            self._restore(table.name, facts)
            row = tuple(facts.values())
        if table.counted:
            return row
        return tuple(value for name, value in zip(names, row, strict=True) if name not in table.key)

    def _restore(self, name: str, facts: dict[str, Any]) -> None:
        """Undo what freezing did, but for what was held."""
        match name:
            case "origin":
                for time in ("next_start", "rest_until", "robots_fetched_at"):
                    facts[time] += self._shift_ms if facts[time] else 0
                facts["active"] = 0
                # A turn that finds nothing to do says when to look again; nobody else would wake some of them.
                if facts["queued"] and not facts["paused"]:
                    facts["wake_at"] = max(facts["wake_at"] or 0, facts["next_start"], facts["rest_until"])
            case "url":
                facts["sweep_at"] = FAR if facts["state"] in _FLIGHT else None
            case "manifest":
                facts["cursor"] = max(facts["cursor"], -1 - facts["cursor"])
            case _:
                raise AssertionError(name)

    async def _pieces(
        self, connection: Any, table: _Table, position: bytes | None
    ) -> AsyncGenerator[list[Row], None]:
        """The rows in key order, from the one after `position` on, read once through."""
        names = ", ".join(f't."{name}"' for name in await self._names(table))
        keys = ", ".join(f"t.{name}" for name in table.key)
        after = [] if position is None else msgpack.decode(position)
        marks = ", ".join(f"${number}" for number in range(2, 2 + len(after)))
        where = f" AND ({keys}) > ({marks})" if after else ""
        statement = f"SELECT {names} {table.source}{where} ORDER BY {keys}"
        async with connection.transaction(readonly=True):
            cursor = await connection.cursor(statement, self.partition, *after)
            while rows := await cursor.fetch(PIECE):
                yield [tuple(row) for row in rows]

    # ---- comparing

    async def _compare(self, table: _Table) -> int:
        """Hold both sides against each other; how many rows there are. A copy that differs is thrown away."""
        count = await self._count_equal(table)
        if count is None:
            await self._wipe(self._to)
            raise StoreUnavailable(
                f"table {table.name} of partition {self.partition} changed while it was copied: move it again"
            )
        return count

    async def _count_equal(self, table: _Table) -> int | None:
        names = await self._names(table)
        count = 0
        async with (
            aclosing(self._pieces(self._from, table, None)) as ours,
            aclosing(self._pieces(self._to, table, None)) as theirs,
        ):
            async for piece in ours:
                found: list[Row] = await anext(theirs, [])
                wanted = [self._written(table, names, row) for row in piece]
                if wanted != [self._as_carried(table, names, row) for row in found]:
                    return None
                count += len(piece)
            return count if await anext(theirs, None) is None else None

    def _as_carried(self, table: _Table, names: list[str], row: Row) -> Row:
        return tuple(
            value for name, value in zip(names, row, strict=True) if table.counted or name not in table.key
        )

    # ---- handing over

    async def _flip(self) -> None:
        """The one moment: before it the partition is the old server's, after it the new one's."""
        self.on_step("flip")
        changed = await self._map.execute(
            "UPDATE placement SET server = $2, epoch = epoch + 1 WHERE partition = $1 AND server = $3",
            self.partition,
            self.target,
            self._source,
        )
        if changed != "UPDATE 1":
            raise StoreBroken(f"the map has partition {self.partition} elsewhere by now")

    async def _retire(self) -> None:
        self.on_step("retire")
        async with self._from.transaction():
            epoch = await self._from.fetchval(
                "DELETE FROM partition WHERE partition = $1 RETURNING epoch", self.partition
            )
            if epoch is not None:
                await self._from.execute(
                    "INSERT INTO departed(partition, epoch) VALUES ($1, $2)"
                    " ON CONFLICT (partition) DO UPDATE SET epoch = excluded.epoch",
                    self.partition,
                    epoch,
                )
            for statement in _AT_ONCE:
                await self._from.execute(statement, self.partition)

    async def _open(self) -> None:
        self.on_step("open")
        async with self._to.transaction():
            await self._to.execute(_FIND_AGAIN, self.partition, FAR)
            await self._to.execute(
                "UPDATE partition SET moving = false, arriving = false WHERE partition = $1 AND arriving",
                self.partition,
            )

    async def _remove(self) -> None:
        self.on_step("remove")
        await self._wipe_rows(self._from)

    async def _finish(self) -> None:
        self.on_step("finish")
        await self._to.execute("DELETE FROM landing WHERE partition = $1", self.partition)
        await self._map.execute("DELETE FROM relocation WHERE partition = $1", self.partition)

    async def _wipe(self, connection: Any) -> None:
        """Throw a copy away."""
        async with connection.transaction():
            for statement in _AT_ONCE:
                await connection.execute(statement, self.partition)
        await self._wipe_rows(connection)
        await connection.execute("DELETE FROM landing WHERE partition = $1", self.partition)

    async def _wipe_rows(self, connection: Any) -> None:
        """The rows of the partition, the origins last: they tell which URLs are its own."""
        while True:
            ids = [
                row[0]
                for row in await connection.fetch(
                    "SELECT id FROM origin WHERE partition = $1 ORDER BY id LIMIT $2",
                    self.partition,
                    REMOVED_AT_ONCE,
                )
            ]
            if not ids:
                break
            async with connection.transaction():
                for name, column in (("fetch", "url_id"), ("url", "id")):
                    await connection.execute(
                        f'DELETE FROM "{name}" AS t USING unnest($1::bigint[]) AS o'
                        f" WHERE t.{column} >= (o << 36) AND t.{column} < ((o + 1) << 36)",
                        ids,
                    )
                await connection.execute("DELETE FROM origin WHERE id = ANY($1::bigint[])", ids)
            self.on_step("remove more")
        for name in _AFTERWARDS:
            await connection.execute(f"DELETE FROM {name} WHERE partition = $1", self.partition)


async def moves_under_way(dsn: str) -> list[tuple[int, int, int]]:
    """(partition, source, target) of moves that were begun and not ended, from server 0."""
    try:
        connection = await connect(dsn, name="amble move")
        try:
            rows = await connection.fetch("SELECT partition, source, target FROM relocation ORDER BY 1")
        finally:
            await connection.close()
    except asyncpg.PostgresError as error:
        raise StoreUnavailable(f"{place_of(dsn)}: {describe(error)}") from error
    return [tuple(row) for row in rows]
