"""What one transaction knows and changes: rows read, rows changed, counters, logs; written together by `flush`.

Every operation of a batch works on the same rows in memory, in the order of the calls, so a result, the parse and the
completion of one page may share a transaction. Nothing is kept from one transaction to the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from amble.adapters.postgres.connection import Database
from amble.adapters.postgres.rows import (
    FIELDS,
    ORIGIN_FIELDS,
    ManifestRow,
    Origin,
    Parse,
    PartitionRow,
    UrlRow,
    columns,
)
from amble.adapters.postgres.statements import ORIGIN, URL, WORK
from amble.adapters.sql.identity import SLOT_BITS, Slots
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.tally import PUBLICATIONS, QUEUED, STATES
from amble.domain.attempt import LeaseKey, OriginFacts
from amble.domain.errors import OperationRefused, StoreBroken

# The queue class of a robots.txt that is only refetched when a page of its origin wants it.
REFETCH_CLASS: Final = 8
TOKEN_BYTES: Final = 16
_HALVES: Final = re.compile("[\ud800-\udfff]")
ManifestKey = tuple[int, int, int]
# url_id, path, kind, priority, depth, hops, edge, parent, policy version: the parameters of `insert`.
NewUrl = tuple[int, str, int, int, int, int, int, int, int]


class Membership(Protocol):
    """What an agent knows of the URLs of its partitions beside the store; see bloom.py. May only rule out."""

    def unsure(self, asked: Mapping[int, Sequence[int]]) -> list[int]:
        """Of ids by partition, those that may be known, sorted."""
        ...

    def added(self, rows: Iterable[tuple[int, int]]) -> None:
        """(partition, id) of rows that are now committed."""
        ...


class Conflict(Exception):
    """Another transaction changed what this one had read: begin again."""


class Ids:
    """Origin ids that this store has taken from the database and not yet used. What a crash loses is not missed."""

    def __init__(self) -> None:
        self._next = self._end = 0

    @property
    def left(self) -> int:
        """How many there are."""
        return self._end - self._next

    def refill(self, first: int, count: int) -> None:
        """A new range; the rest of the old one is given up."""
        self._next, self._end = first, first + count

    def take(self) -> int:
        """The next id. Raises OperationRefused when the database has no more to give."""
        if self._next >= self._end:
            raise OperationRefused("the origin ids of this database are used up")
        self._next += 1
        return self._next - 1


class Books:
    """One transaction. `now` is the time at which everything in it happens."""

    def __init__(
        self,
        database: Database,
        settings: StoreSettings,
        slots: Slots,
        ids: Ids,
        token: Callable[[int], bytes],
        *,
        lock: bool = False,
    ) -> None:
        self.database = database
        self.settings = settings
        self.slots = slots
        self.token = token
        self.locking = " FOR NO KEY UPDATE" if lock else ""
        self.now = 0
        self.term_now = 0  # by the clock of the machine, which gives owners their terms
        self._ids = ids
        self.partitions: dict[int, PartitionRow] = {}
        self.here: set[int] = set()
        self.urls: dict[int, UrlRow] = {}
        self.origins: dict[int, Origin] = {}
        self.origin_ids: dict[str, int] = {}
        self.opened: set[int] = set()  # by this transaction
        self.manifests: dict[ManifestKey, ManifestRow] = {}
        self.paths: dict[int, str | None] = {}
        self.membership: Membership | None = None
        self.added: list[int] = []
        # Where to look first for candidates of known origins: (origin, path) -> id.
        self.first_ids: dict[tuple[str, str], int] = {}
        self.bodies: dict[bytes, bytes] = {}
        self.sites: dict[int, dict[str, int]] = {}
        self.origins_known: dict[int, int] = {}
        # Partitions whose sites were never counted, with the origins that they had when this transaction began.
        self.uncounted: dict[int, list[str]] = {}
        self.tally: dict[tuple[int, str], int] = {}
        self.granted: list[int] = []
        self.decided = 0
        self.wrote = False
        self._changed_origins: dict[int, Origin] = {}
        self._new_origins: list[Origin] = []
        self._changed_sites: set[tuple[int, str]] = set()
        self._parses: dict[ManifestKey, Parse] = {}
        self._new_urls: list[NewUrl] = []
        self._fetches: list[tuple[Any, ...]] = []
        self._new_bodies: dict[bytes, tuple[bytes, int]] = {}
        self._decisions: list[tuple[Any, ...]] = []
        self._publications: list[tuple[int, int, int, int, int, bool]] = []
        self._audits: list[tuple[Any, ...]] = []
        self._put_in: list[tuple[Any, ...]] = []
        self._sent: list[tuple[Any, ...]] = []

    # ---- what the rows say

    def is_current(self, partition: int, epoch: int) -> bool:
        """Whether `partition` lives here, `epoch` is that of its owner, and it has not lapsed."""
        row = self.partitions.get(partition)
        if row is None or row.epoch != epoch:
            return False
        return row.lease_until is None or row.lease_until > self.term_now

    def held(self, key: LeaseKey, allowed: tuple[int, ...]) -> UrlRow | None:
        """The row of `key` if it is held under exactly that key and in one of the `allowed` states; else it is stale."""
        row = self.urls.get(key.url_id)
        if row is None or row.token != key.token or row.attempt != key.attempt or row.state not in allowed:
            return None
        return row

    def origin_of(self, url_id: int) -> Origin:
        """The origin of a URL."""
        return self.origin(url_id >> SLOT_BITS)

    def origin(self, origin_id: int) -> Origin:
        """The origin with this id, which was read or opened in this transaction."""
        try:
            return self.origins[origin_id]
        except KeyError:
            raise StoreBroken(f"origin {origin_id} is not in the database") from None

    def by_key(self, key: str) -> Origin | None:
        """The origin "scheme://host[:port]", None when it is unknown."""
        origin_id = self.origin_ids.get(key)
        return None if origin_id is None else self.origin(origin_id)

    def is_known(self, origin_key: str, path: str) -> bool:
        """Whether a candidate is known for certain without a further look; nearly all that are known are known so."""
        url_id = self.first_ids.get((origin_key, path))
        return url_id is not None and self.paths.get(url_id) == path

    def active_max(self, origin: Origin) -> int:
        """How many requests may be active at the origin."""
        return origin.active_limit(self.settings)

    def spacing_ms(self, origin: Origin) -> int:
        """The origin's own setting, or the default."""
        return origin.spacing(self.settings)

    def facts(self, origin: Origin) -> OriginFacts:
        """What the gate needs to know of the origin."""
        return origin.facts(self.settings)

    # ---- changes

    @property
    def can_open(self) -> bool:
        """Whether there is an id for one more origin."""
        return self._ids.left > 0

    def open_origin(self, key: str, partition: int) -> Origin:
        """A row for an origin that nothing was admitted for yet."""
        origin = Origin(self._ids.take(), key, paused=False, partition=partition)
        self._new_origins.append(origin)
        self.opened.add(origin.id)
        self.origins[origin.id] = origin
        self.origin_ids[key] = origin.id
        return origin

    def changed(self, origin: Origin) -> None:
        """The row is to be written; when it may be leased again follows from its new facts.

        An origin that is due already keeps its place in the row of those that wait.
        """
        self._changed_origins[origin.id] = origin
        origin.look_again(self.now, self.settings)

    def postpone(self, origin: Origin, wake_at: int | None) -> None:
        """A turn found nothing to do: look again at `wake_at`, or when something changes."""
        self._changed_origins[origin.id] = origin
        origin.wake_at = wake_at

    def queued(self, origin: Origin, amount: int) -> None:
        """The queue of an origin grew or shrank; the caller says when the row is `changed`."""
        origin.queued += amount
        self.count(origin.partition, QUEUED, amount)

    def count(self, partition: int, name: str, amount: int = 1) -> None:
        """Count for a partition."""
        key = (partition, name)
        self.tally[key] = self.tally.get(key, 0) + amount

    def move(self, partition: int, source: int, destination: int, amount: int = 1) -> None:
        """`amount` URLs went from one state to another."""
        self.count(partition, STATES[source], -amount)
        self.count(partition, STATES[destination], amount)

    def decide(
        self,
        partition: int,
        subject: int,
        reason: str,
        detail: str,
        *,
        url: str = "",
        policy_version: int = 0,
    ) -> None:
        """One entry for the bounded decision log."""
        self._decisions.append((partition, subject, plain(url), reason, plain(detail), policy_version))

    def add_url(self, row: NewUrl) -> None:
        """A URL that was not known."""
        self._new_urls.append(row)
        self.added.append(row[0])
        self.paths[row[0]] = row[1]

    def add_fetch(self, *row: Any) -> None:
        """url_id, attempt, generation, duration_ms, status, category, detail, answer."""
        self._fetches.append(row)

    def add_body(self, digest: bytes, ref: bytes, length: int) -> None:
        """Where bytes were stored, if nowhere else before."""
        self._new_bodies.setdefault(digest, (ref, length))
        self.bodies.setdefault(digest, ref)

    def add_parse(self, row: ManifestRow, parse: Parse) -> None:
        """A manifest is durable in the archive; it replaces an earlier one of the same parse."""
        key = (row.url_id, row.attempt, row.generation)
        self.manifests[key] = row
        self._parses[key] = parse

    def publish(self, partition: int, row: UrlRow, extraction_generation: int, *, indexed: bool) -> None:
        """Hand a document to the sinks of a partition. `indexed`: it is in the index of near-duplicates."""
        self._publications.append(
            (partition, row.id, row.generation, extraction_generation, row.attempt, indexed)
        )

    def audit(self, partition: int, who: str, what: str, subject: str, old: str, new: str, why: str) -> None:
        """One operator action."""
        self._audits.append((partition, who, what, subject, old, new, why))

    def count_site(self, partition: int, name: str, origins: int) -> None:
        """How many origins a site has."""
        self.sites[partition][name] = origins
        self._changed_sites.add((partition, name))

    def put_in(self, destination: int, source: int, size: int, policy_version: int, packed: bytes) -> None:
        """Candidates for a partition that lives here."""
        self._put_in.append((destination, source, size, policy_version, packed))

    def send(self, source: int, destination: int, size: int, policy_version: int, packed: bytes) -> None:
        """Candidates for a partition that lives elsewhere."""
        self._sent.append((source, destination, size, policy_version, packed))

    # ---- writing

    async def flush(self) -> None:
        """Write all changes but the counters into the open transaction, rows of a table in the order of their ids."""
        await self._write_origins()
        await self._write_urls()
        await self._write_manifests()
        await self._write_logs()
        await self._write_crossing()

    async def _insert(self, statement: str, rows: list[tuple[Any, ...]], *more: Any) -> int:
        self.wrote = True
        return await self.database.execute(statement, *columns(rows), *more)

    async def _write_origins(self) -> None:
        if self._new_origins:
            rows = [(origin.id, origin.key, origin.partition) for origin in self._new_origins]
            rows.sort(key=lambda row: row[1])
            if await self._insert(ORIGIN["create"], rows, self.now) < len(rows):
                raise Conflict("an origin was opened by another")
            await self._read_versions()
        changed = self._changed_origins
        if changed:
            rows = [ORIGIN_FIELDS(changed[id_]) for id_ in sorted(changed)]
            if await self._insert(ORIGIN["write"], rows) < len(rows):
                raise Conflict("an origin has changed")
            changed.clear()
        if self._changed_sites:
            counts = [(*site, self.sites[site[0]][site[1]]) for site in sorted(self._changed_sites)]
            await self._insert(ORIGIN["write_sites"], counts)
            self._changed_sites.clear()

    async def _read_versions(self) -> None:
        """What this transaction has just made carries its own version."""
        rows = await self.database.fetch(ORIGIN["by_id"], [origin.id for origin in self._new_origins])
        for row in rows:
            self.origins[row[1]].seen = row[0]
        self._new_origins.clear()

    async def _write_urls(self) -> None:
        if self._new_urls:
            new = sorted(self._new_urls)  # neighbours of one origin share pages
            if await self._insert(URL["insert"], new, self.now) < len(new):
                raise Conflict("a URL was admitted by another")
            self._new_urls.clear()
        groups: dict[int, list[UrlRow]] = {}
        for row in self.urls.values():
            if row.changed:
                groups.setdefault(row.changed | 1, []).append(row)
        for changed, rows in sorted(groups.items()):
            name, fields = FIELDS[changed]
            rows.sort(key=lambda row: row.id)
            if await self._insert(URL[name], [fields(row) for row in rows]) < len(rows):
                raise Conflict("a URL has changed")
        self.urls.clear()  # their versions are those of before

    async def _write_manifests(self) -> None:
        if self._parses:
            rows = []
            for key in sorted(self._parses):
                row, parse = self.manifests[key], self._parses[key]
                head = (*key, row.partition, parse.ref, row.links, row.cursor, row.opened)
                rows.append((*head, parse.content_kind, parse.title, parse.text_ref))
            if await self._insert(WORK["add_manifests"], rows, self.now) < len(rows):
                raise Conflict("a manifest was opened by another")
        moved = [
            row for key, row in sorted(self.manifests.items()) if row.changed and key not in self._parses
        ]
        if moved:
            progress = [
                (row.url_id, row.attempt, row.generation, row.seen, row.cursor, row.opened) for row in moved
            ]
            if await self._insert(WORK["write_manifests"], progress) < len(moved):
                raise Conflict("a manifest has changed")
        self._parses.clear()
        self.manifests.clear()

    async def _write_logs(self) -> None:
        if self._fetches:
            await self._insert(WORK["add_fetches"], sorted(self._fetches, key=lambda row: row[:2]), self.now)
            self._fetches.clear()
        if self._new_bodies:
            bodies = [(digest, *where) for digest, where in sorted(self._new_bodies.items())]
            await self._insert(WORK["add_bodies"], bodies)
            self._new_bodies.clear()
        if self._decisions:
            await self._insert(WORK["add_decisions"], self._decisions, self.now)
            self.decided += len(self._decisions)
            self._decisions.clear()
        if self._audits:
            await self._insert(WORK["audit"], self._audits, self.now)
            self._audits.clear()

    async def _write_crossing(self) -> None:
        if self._put_in:
            await self._insert(WORK["put_in"], self._put_in)
            self._put_in.clear()
        if not (self._publications or self._sent):
            return
        numbers = await self._numbers()
        if self._publications:
            published = [
                (partition, numbers[partition][0].pop(), *rest) for partition, *rest in self._publications
            ]
            rows = await self.database.fetch(WORK["publish"], *columns(published), self.now)
            for (partition,) in rows:
                self.count(partition, PUBLICATIONS)
        if self._sent:
            sent = [(source, numbers[source][1].pop(), *rest) for source, *rest in self._sent]
            await self._insert(WORK["send"], sent)
        self._publications.clear()
        self._sent.clear()

    async def _numbers(self) -> dict[int, tuple[list[int], list[int]]]:
        """Ascending numbers for publications and for parcels of each partition, to be popped from the end."""
        wanted: dict[int, list[int]] = {}
        for place, items in enumerate((self._publications, self._sent)):
            for item in items:
                wanted.setdefault(item[0], [0, 0])[place] += 1
        ask = [(partition, *counts) for partition, counts in sorted(wanted.items())]
        self.wrote = True
        rows = await self.database.fetch(WORK["number"], *columns(ask))
        if len(rows) < len(ask):
            raise StoreBroken("a partition that does not live here has publications or parcels")
        given = {}
        for partition, *last in rows:
            given[partition] = tuple(
                list(range(last[place], last[place] - wanted[partition][place], -1)) for place in (0, 1)
            )
        return given  # type: ignore[return-value]

    async def finish(self, writer: int, tick: int) -> None:
        """The last statement: the number of the transaction, and what was counted."""
        counts = [(*key, amount) for key, amount in sorted(self.tally.items()) if amount]
        arrays = columns(counts) if counts else [[], [], []]
        await self.database.execute(WORK["finish"], writer, tick, self.now, *arrays)


def plain(text: str) -> str:
    """Text as PostgreSQL can keep it: without NULs and without halves of surrogate pairs."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    return text if text.isascii() else _HALVES.sub("\ufffd", text)
