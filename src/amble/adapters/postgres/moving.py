"""Moving a crawl from a frontier file into a database: copied table by table in key order, resumable, then compared.

Every piece of rows is one transaction together with how far the copy has come, so that a move which was stopped at any
point goes on where it was. Partitions cannot be claimed before every row was read back and found equal. The index of
near-duplicates follows from the rows and is made anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg
from msgspec import msgpack

from amble.adapters.postgres.books import plain
from amble.adapters.postgres.connection import place_of
from amble.adapters.postgres.fingerprints_build import compare, fill
from amble.adapters.postgres.reports import trouble_of
from amble.adapters.postgres.setup import HASHED
from amble.adapters.postgres.statements import NEAR
from amble.adapters.sql import tally
from amble.adapters.sql.connection import Database
from amble.adapters.sql.identity import SLOT_BITS
from amble.domain.errors import OperationRefused, StoreBroken
from amble.domain.lifecycle import UrlState
from amble.domain.partition import PartitionMap

PIECE: Final = 2_000
_WORKSPACE: Final = (
    "CREATE TABLE IF NOT EXISTS arrival(crawl text NOT NULL, name text NOT NULL, position bytea NOT NULL,"
    " done boolean NOT NULL, PRIMARY KEY (crawl, name))"
)
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What a move has brought over. `rows` by table; `resumed` True when an earlier try had begun it.

    `before` True: an earlier one had brought all of it over, and agents may have gone on since; nothing was copied.
    """

    rows: dict[str, int]
    resumed: bool
    before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """One table on both sides.

    `columns` are read from the file and written under the same names; `key` orders them. `extra` are columns that only
    the database has, filled by `place(row)` from the row as read. `numbered` False: the database numbers anew, in the
    same order, so the key is not written.
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    extra: tuple[str, ...] = ()
    booleans: tuple[str, ...] = ()
    numbered: bool = True
    order: str = ""

    @property
    def target(self) -> str:
        return f'"{self.name}"'

    @property
    def written(self) -> tuple[str, ...]:
        own = self.columns if self.numbered else tuple(c for c in self.columns if c not in self.key)
        return own + self.extra


_ORIGIN = _Table(
    name="origin",
    columns=(
        "id", "key", "wake_at", "next_start", "rest_until", "backoff_level", "last_fetch_ms", "leased", "active",
        "active_max", "spacing_ms", "paused", "policy_version", "queued", "urls", "pages", "turns", "robots_url_id",
        "robots_outcome", "robots_version", "robots_fetched_at", "robots_expires_at", "robots_rules",
        "robots_delay_ms", "created_at",
    ),
    key=("id",), extra=("partition",), booleans=("paused",),
)  # fmt: skip
_URL = _Table(
    name="url",
    columns=(
        "id", "path", "state", "kind", "rq", "due_at", "priority", "depth", "hops", "edge", "parent", "admitted_at",
        "attempt", "generation", "tries", "strikes", "token", "worker", "started_at", "expires_at", "slot_origin",
        "slot_until", "status", "fetched_at", "digest", "body_ref", "etag", "last_modified", "checks", "changes",
        "canonical", "directives", "fingerprint", "content_kind", "reason", "detail", "reason_at", "policy_version",
    ),
    key=("id",), extra=("sweep_at", "ended"),
)  # fmt: skip
_TABLES: Final = (
    _ORIGIN,
    _Table(name="site", columns=("name", "origins"), key=("name",), extra=("partition",)),
    _URL,
    _Table(
        name="fetch",
        columns=("url_id", "attempt", "generation", "at", "duration_ms", "status", "category", "detail", "answer"),
        key=("url_id", "attempt"),
    ),
    _Table(
        name="manifest",
        columns=("url_id", "attempt", "generation", "ref", "links", "cursor", "opened", "content_kind", "title",
                 "text_ref", "at"),
        key=("url_id", "attempt", "generation"), extra=("partition",), booleans=("opened",),
    ),
    _Table(name="body", columns=("digest", "ref", "bytes"), key=("digest",)),
    _Table(
        name="publication",
        columns=("seq", "url_id", "crawl_generation", "extraction_generation", "attempt", "at"),
        key=("seq",), extra=("partition",), order="seq, partition",
    ),
    _Table(name="policy", columns=("version", "at", "who", "document"), key=("version",)),
    _Table(
        name="audit", columns=("seq", "at", "who", "what", "subject", "old", "new", "why"), key=("seq",),
        extra=("partition",), numbered=False, order="seq",
    ),
    _Table(
        name="decision", columns=("seq", "subject", "at", "url", "reason", "detail", "policy_version"), key=("seq",),
        extra=("partition",), numbered=False, order="seq",
    ),
)  # fmt: skip
_VALIDATORS: Final = ("etag", "last_modified")
_FLIGHT: Final = (int(UrlState.LEASED), int(UrlState.FETCHED), int(UrlState.PARSED))
_ENDED: Final = (int(UrlState.FAILED), int(UrlState.EXCLUDED))

# Counters that follow from the rows: (name, statement of (partition, number)).
_COUNTED: Final = (
    (tally.QUEUED, "SELECT partition, sum(queued)::bigint FROM origin GROUP BY 1"),
    (tally.PAGES, "SELECT partition, sum(pages)::bigint FROM origin GROUP BY 1"),
    (tally.ORIGINS, "SELECT partition, count(*) FROM origin GROUP BY 1"),
    (tally.FETCHES,
     'SELECT o.partition, count(*) FROM "fetch" f JOIN origin o ON o.id = f.url_id >> 36 GROUP BY 1'),
    (tally.PUBLICATIONS, "SELECT partition, count(*) FROM publication GROUP BY 1"),
    (tally.MANIFESTS_OPEN, "SELECT partition, count(*) FROM manifest WHERE opened AND cursor < links GROUP BY 1"),
    (tally.PAGES_LEASED,
     "SELECT o.partition, count(*) FROM url u JOIN origin o ON o.id = u.id >> 36"
     " WHERE u.state = 1 AND u.kind = 0 GROUP BY 1"),
    *((name, "SELECT o.partition, count(*) FROM url u JOIN origin o ON o.id = u.id >> 36"
             f" WHERE u.state = {number} GROUP BY 1") for number, name in enumerate(tally.STATES)),
)  # fmt: skip


@dataclass(slots=True)
class Mover:
    """One move. `source` reads the frontier file, whose folder the caller has locked; `crawl` names the crawl."""

    source: Database
    target: asyncpg.Connection[Any]
    crawl: str
    dsn: str
    progress: Callable[[str, int], None] = lambda _name, _rows: None
    _partition_of_origin: dict[int, int] = field(default_factory=dict)
    _map: PartitionMap = field(default_factory=PartitionMap)
    _partitions: list[int] = field(default_factory=list)

    async def run(self) -> Moved:
        """Copy what is not there yet, compare all of it, open the partitions. Nothing once that was done.

        Raises OperationRefused when the database holds something else, StoreBroken when the copy is not equal,
        StoreUnavailable when the database went away: the same move may be run again.
        """
        try:
            return await self._run()
        except Exception as error:
            trouble = trouble_of(error, place_of(self.dsn))
            if trouble is None:
                raise
            raise trouble from error

    async def _run(self) -> Moved:
        resumed = await self._open()
        if await self._is_done("compared"):
            return Moved(rows={}, resumed=True, before=True)
        if not await self._is_done("moved"):
            for table in _TABLES:
                await self._copy(table)
            async with self.target.transaction():
                await self._settle()
                await self.target.execute(NEAR["begin_build"])
                await self._mark("moved", b"", done=True)
        self.progress("near", await fill(self.target, {0: self.target}))
        rows = {table.name: await self._compare(table) for table in _TABLES}
        rows["near"] = await compare(self.target)
        await self._compare_counters()
        async with self.target.transaction():
            await self.target.execute("UPDATE partition SET moving = false WHERE moving")
            await self._mark("compared", b"", done=True)
        return Moved(rows=rows, resumed=resumed)

    # -- before -------------------------------------------------------------------------------------------------------

    async def _open(self) -> bool:
        """Make sure that the database is empty or holds the beginning of this very move; whether it did."""
        waiting = self.source.execute("SELECT count(*) FROM outbox").fetchone()[0]
        waiting += self.source.execute("SELECT count(*) FROM inbox").fetchone()[0]
        if waiting:
            raise OperationRefused(
                f"{waiting} parcels of links are on their way between the files of this crawl; "
                "let `amble crawl` run until it ends, then move it"
            )
        async with self.target.transaction():
            await self.target.execute(_WORKSPACE)
            await self.target.execute("LOCK TABLE arrival IN EXCLUSIVE MODE")
            resumed = bool(
                await self.target.fetchval("SELECT count(*) FROM arrival WHERE crawl = $1", self.crawl)
            )
            if not resumed:
                await self._begin()
        await self._learn_partitions()
        return resumed

    async def _begin(self) -> None:
        if await self.target.fetchval("SELECT EXISTS (SELECT 1 FROM origin)"):
            raise OperationRefused(
                f"{place_of(self.dsn)}: there is another crawl in it; name an empty database"
            )
        if await self.target.fetchval(
            "SELECT EXISTS (SELECT 1 FROM partition WHERE owner <> '' AND NOT released)"
        ):
            raise OperationRefused(f"{place_of(self.dsn)}: agents own its partitions; stop them first")
        (key,) = self.source.execute("SELECT value FROM meta WHERE name = 'path_key'").fetchone()
        # Ids follow from the key, so that it comes before the first row.
        await self.target.execute(
            "INSERT INTO meta(name, value) VALUES ('path_key', $1)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            bytes(key),
        )
        await self.target.execute("UPDATE partition SET moving = true")
        await self._mark("begun", b"", done=True)

    async def _learn_partitions(self) -> None:
        self._partitions = [
            row[0] for row in await self.target.fetch("SELECT partition FROM partition ORDER BY partition")
        ]
        apart = {row[0]: row[1] for row in await self.target.fetch("SELECT site, partition FROM site_apart")}
        hashed = await self.target.fetchval("SELECT value FROM meta WHERE name = $1", HASHED)
        self._map = PartitionMap(hashed=int(hashed), apart=apart)
        rows = self.source.execute("SELECT id, key FROM origin").fetchall()
        self._partition_of_origin = {origin_id: self._map.of(key) for origin_id, key in rows}

    async def _is_done(self, name: str) -> bool:
        return bool(
            await self.target.fetchval(
                "SELECT done FROM arrival WHERE crawl = $1 AND name = $2", self.crawl, name
            )
        )

    async def _mark(self, name: str, position: bytes, *, done: bool) -> None:
        await self.target.execute(
            "INSERT INTO arrival(crawl, name, position, done) VALUES ($1, $2, $3, $4)"
            " ON CONFLICT (crawl, name) DO UPDATE SET position = excluded.position, done = excluded.done",
            self.crawl,
            name,
            position,
            done,
        )

    # -- copying ------------------------------------------------------------------------------------------------------

    async def _copy(self, table: _Table) -> None:
        row = await self.target.fetchrow(
            "SELECT position, done FROM arrival WHERE crawl = $1 AND name = $2", self.crawl, table.name
        )
        if row is not None and row["done"]:
            return
        after = None if row is None else tuple(msgpack.decode(row["position"]))
        copied = 0
        for piece in self._pieces(table, after):
            rows = [self._written(table, found) for found in piece]
            last = [piece[-1][table.columns.index(name)] for name in table.key]
            async with self.target.transaction():
                await self.target.copy_records_to_table(table.name, records=rows, columns=table.written)
                await self._mark(table.name, msgpack.encode(last), done=False)
            copied += len(rows)
            self.progress(table.name, copied)
        await self._mark(table.name, b"", done=True)

    def _pieces(self, table: _Table, after: tuple[Any, ...] | None) -> Iterator[list[Row]]:
        """The rows of the file in key order, from the one after `after` on."""
        keys = ", ".join(table.key)
        marks = ", ".join("?" * len(table.key))
        columns = ", ".join(table.columns)
        while True:
            where = "" if after is None else f"WHERE ({keys}) > ({marks})"
            statement = f'SELECT {columns} FROM "{table.name}" {where} ORDER BY {keys} LIMIT {PIECE}'
            rows: list[Row] = self.source.execute(statement, after or ()).fetchall()
            if not rows:
                return
            yield rows
            after = tuple(rows[-1][table.columns.index(name)] for name in table.key)

    def _written(self, table: _Table, row: Row) -> Row:
        """A row of the file as the database keeps it."""
        facts = dict(zip(table.columns, row, strict=True))
        for name in table.booleans:
            facts[name] = bool(facts[name])
        for name, value in facts.items():
            if isinstance(value, str) and "\x00" in value:
                # As the store writes it: such a validator could not be sent back.
                facts[name] = None if name in _VALIDATORS else plain(value)
        facts |= self._extra(table, facts)
        return tuple(facts[name] for name in table.written)

    def _extra(self, table: _Table, facts: dict[str, Any]) -> dict[str, Any]:
        match table.name:
            case "url":
                held = facts["state"] in _FLIGHT
                ended = facts["state"] if facts["state"] in _ENDED else None
                return {"sweep_at": facts["expires_at"] if held else None, "ended": ended}
            case "origin":
                return {"partition": self._partition_of_origin[facts["id"]]}
            case "site":
                return {"partition": self._map.of(f"https://{facts['name']}")}
            case "manifest" | "publication":
                return {"partition": self._of_url(facts["url_id"])}
            case "decision":
                known = facts["subject"] >= 0
                return {"partition": self._of_url(facts["subject"]) if known else self._of_text(facts["url"])}
            case "audit":
                return {"partition": self._partitions[0]}
            case _:
                return {}

    def _of_url(self, url_id: int) -> int:
        return self._partition_of_origin.get(url_id >> SLOT_BITS, self._partitions[0])

    def _of_text(self, url: str) -> int:
        """The partition of a URL that is not remembered and may have been cut."""
        scheme, found, rest = url.partition("://")
        authority = rest.partition("/")[0]
        return self._map.of(f"{scheme}://{authority}") if found and authority else self._partitions[0]

    # -- after --------------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """What follows from the rows: counters of each partition, the last numbers, the next origin, the clock."""
        totals = dict(self.source.execute("SELECT name, value FROM tally").fetchall())
        shares: dict[tuple[int, str], int] = {}
        for name, statement in _COUNTED:
            counted = {row[0]: row[1] for row in await self.target.fetch(statement)}
            left = totals.pop(name, 0) - sum(counted.values())
            if left:
                raise StoreBroken(
                    f"the counter {name} of the frontier file is off by {left}; `amble verify` tells more"
                )
            shares |= {(partition, name): number for partition, number in counted.items()}
        # What happened in the past is known of the crawl as a whole only.
        shares |= {(self._partitions[0], name): value for name, value in totals.items()}
        await self.target.execute("DELETE FROM tally")
        await self.target.copy_records_to_table(
            "tally",
            columns=("partition", "name", "value"),
            records=[(partition, name, value) for (partition, name), value in sorted(shares.items())],
        )
        await self.target.execute(
            "UPDATE partition p SET published = coalesce("
            "(SELECT max(seq) FROM publication b WHERE b.partition = p.partition), 0)"
        )
        last = self.source.execute("SELECT coalesce(max(id), 0) FROM origin").fetchone()[0]
        await self.target.execute(
            "UPDATE origin_block SET next = $1 WHERE first <= $1 AND last >= $1 AND next < $1", last + 1
        )
        (now_ms,) = self.source.execute("SELECT now_ms FROM clock").fetchone()
        await self.target.execute("UPDATE clock SET now_ms = greatest(now_ms, $1)", now_ms)

    # -- comparing ----------------------------------------------------------------------------------------------------

    async def _compare(self, table: _Table) -> int:
        """Read both sides in one order and hold them against each other, row by row; how many there are."""
        found = 0
        theirs = self._theirs(table)
        for piece in self._pieces(table, None):
            for row in piece:
                wanted = self._written(table, row)
                other = await anext(theirs, None)
                if other != wanted:
                    raise StoreBroken(
                        f"table {table.name}: row {found + 1} is not what the file holds; "
                        "empty the database and move the crawl again"
                    )
                found += 1
        if await anext(theirs, None) is not None:
            raise StoreBroken(f"table {table.name}: the database holds more than the file")
        return found

    async def _theirs(self, table: _Table) -> AsyncIterator[Row]:
        columns = ", ".join(f'"{name}"' for name in table.written)
        order = table.order or ", ".join(table.key)
        async with self.target.transaction(readonly=True):
            statement = f"SELECT {columns} FROM {table.target} ORDER BY {order}"
            async for record in self.target.cursor(statement, prefetch=PIECE):
                yield tuple(record)

    async def _compare_counters(self) -> None:
        ours = {
            name: value
            for name, value in self.source.execute("SELECT name, value FROM tally").fetchall()
            if value
        }
        rows = await self.target.fetch("SELECT name, sum(value)::bigint FROM tally GROUP BY name")
        theirs = {row[0]: row[1] for row in rows if row[1]}
        if ours != theirs:
            names: Sequence[str] = sorted(
                name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
            )
            raise StoreBroken(f"the counters {', '.join(names)} differ after the move")
