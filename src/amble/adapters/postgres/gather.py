"""What a batch of operations needs to know, read with one statement for each kind of row before any is applied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from amble.adapters.postgres.admission import find, site_name
from amble.adapters.postgres.books import Books
from amble.adapters.postgres.crossing import Batch, decode_candidates
from amble.adapters.postgres.migrations import MAP_LOCK
from amble.adapters.postgres.orders import check_requeue
from amble.adapters.postgres.ownership import Stored
from amble.adapters.postgres.rows import ManifestRow, Origin, PartitionRow, UrlRow, columns
from amble.adapters.postgres.statements import ORIGIN, URL, WORK
from amble.adapters.sql import messages as m
from amble.adapters.sql import tally
from amble.adapters.sql.identity import SLOT_BITS
from amble.adapters.sql.sites import COUNTED_FROM
from amble.domain.frontier import Candidate, RequeueOrder
from amble.domain.lifecycle import UrlState

# An operation and the partition of the handle that it was asked of.
Asked = tuple[int, m.AnyOperation]

_FETCHED, _PARSED, _COMPLETE = int(UrlState.FETCHED), int(UrlState.PARSED), int(UrlState.COMPLETE)
_STARTS: Final = (m.Reserve, m.GiveBack, m.Leave, m.KeepFetched, m.KeepFailed)
_KEYED: Final = (*_STARTS, m.KeepParsed, m.Finish, m.Strike)


@dataclass(slots=True)
class Found:
    """What was read for single operations, by their place in the batch."""

    swept: dict[int, list[UrlRow]] = field(default_factory=dict)
    adoptable: dict[int, list[tuple[int, UrlRow]]] = field(default_factory=dict)
    chosen: dict[int, list[int]] = field(default_factory=dict)
    opened: dict[int, list[Any]] = field(default_factory=dict)
    batches: dict[int, list[Batch]] = field(default_factory=dict)
    stored: Stored = field(default_factory=lambda: Stored({}, {}))


class Gathering:
    """Reads for one transaction. Rows of the database come into `books`, what belongs to one operation into `found`."""

    def __init__(self, books: Books, asked: Sequence[Asked]) -> None:
        self._books = books
        self._fetch = books.database.fetch
        self._asked = asked
        self.found = Found()
        # Candidates by the partition that they are to be admitted to; None: only looked up.
        self._candidates: list[tuple[int | None, Candidate]] = []
        # (partition, origin, id of the origin) of those that may be new.
        self._new: list[tuple[int, str, int | None]] = []

    async def gather(self) -> Found:
        """Read everything."""
        await self._map()
        await self._inboxes()
        await self._sweeps()
        await self._choices()
        await self._urls()
        await self._manifests()
        await self._known()
        await self._origins()
        await self._sites()
        await self._bodies()
        return self.found

    def _each(self, *kinds: type[m.Operation]) -> Iterable[tuple[int, int, Any]]:
        """(place, partition of the handle, value) of the operations of these kinds."""
        for place, (partition, operation) in enumerate(self._asked):
            if isinstance(operation, kinds):
                yield place, partition, operation.value

    # ---- partitions

    async def _map(self) -> None:
        """Which of the destinations live here."""
        away = {
            candidate.partition
            for _, partition, batch in self._each(m.Admit)
            for candidate in batch.candidates
            if candidate.partition != partition
        }
        away |= {parcel.destination for _, _, parcels in self._each(m.Deliver) for parcel in parcels}
        if away:
            await self._fetch(WORK["hold_map"], MAP_LOCK)
            rows = await self._fetch(WORK["here"], sorted(away))
            self._books.here = {partition for (partition,) in rows}

    async def _inboxes(self) -> None:
        for place, _, ask in self._each(m.Drain):
            if ask.limit > 0 and self._books.is_current(ask.partition, ask.epoch):
                rows = await self._fetch(WORK["inbox"], ask.partition, ask.limit)
                self.found.batches[place] = [
                    (number, decode_candidates(packed), policy_version)
                    for number, packed, policy_version in rows
                ]

    # ---- rows in flight

    async def _sweeps(self) -> None:
        """What lapsed, what can be adopted, what an earlier owner left."""
        now = self._books.now
        for place, partition, limit in self._each(m.Expire):
            rows = await self._fetch(URL["lapsed"], now, partition, max(0, limit))
            self.found.swept[place] = self._keep(rows)
        for place, _, ask in self._each(m.Adopt):
            if ask.partition is None or self._books.is_current(ask.partition, ask.epoch):
                what = (ask.state, ask.partition, list(ask.kinds), max(0, ask.count))
                rows = await self._fetch(URL["adoptable"], now, *what)
                kept = self._keep([row[1:] for row in map(tuple, rows)])
                self.found.adoptable[place] = [
                    (row[0], kept_row) for row, kept_row in zip(rows, kept, strict=True)
                ]
        for place, partition, _ in self._each(m.TakeOver):
            self.found.swept[place] = self._keep(await self._fetch(URL["in_flight"], partition))
            self.found.opened[place] = await self._fetch(WORK["open_manifests"], partition)
        await self._stored()

    def _keep(self, rows: Iterable[Any]) -> list[UrlRow]:
        """Each row is kept once, whoever asks for it."""
        urls = self._books.urls
        return [urls.setdefault(row[1], UrlRow(*row)) for row in rows]

    async def _stored(self) -> None:
        rows = [row for _, row in (pair for pairs in self.found.adoptable.values() for pair in pairs)]
        rows += [row for place, *_ in self._each(m.TakeOver) for row in self.found.swept[place]]
        attempts = sorted({(row.id, row.attempt) for row in rows if row.state in (_FETCHED, _PARSED)})
        if not attempts:
            return
        arrays = columns(attempts)
        answers = await self._fetch(WORK["answers"], *arrays)
        manifests: list[Any] = []
        if any(row.state == _PARSED for row in rows):
            manifests = await self._fetch(WORK["latest_manifests"], *arrays)
        self.found.stored = Stored(
            dict(map(tuple, answers)),
            {url_id: tuple(rest) for url_id, *rest in manifests},
        )

    async def _choices(self) -> None:
        """URLs that an operator queues again."""
        for place, partition, order in self._each(m.Requeue):
            check_requeue(order)
            self.found.chosen[place] = [row[0] for row in await self._choose(partition, order)]

    async def _choose(self, partition: int, order: RequeueOrder) -> list[Any]:
        books = self._books
        if not order.origin:
            name = "in_state" if order.state == _COMPLETE else "ended"
            return await self._fetch(URL[name], partition, order.state, order.limit)
        rows = await self._fetch(ORIGIN["by_key"], [order.origin])
        if not rows:
            return []
        first, last = rows[0][1] << SLOT_BITS, (rows[0][1] + 1) << SLOT_BITS
        if order.path:
            books.origin_ids[order.origin] = rows[0][1]
            known = await find(books, order.origin, order.path)
            if known is None:
                return []
            first, last = known, known + 1
        return await self._fetch(URL["in_state_at"], order.state, first, last, order.limit)

    async def _urls(self) -> None:
        """The rows that results and reservations name."""
        wanted = {value.key.url_id for _, _, value in self._each(*_KEYED)}
        wanted.update(url_id for ids in self.found.chosen.values() for url_id in ids)
        missing = sorted(wanted - self._books.urls.keys())
        if missing:
            self._keep(await self._fetch(URL["rows"] + self._books.locking, missing))

    async def _manifests(self) -> None:
        wanted = {
            (value.key.url_id, value.key.attempt, value.extraction_generation)
            for _, _, value in self._each(m.Finish)
        }
        for _, _, batch in self._each(m.Admit):
            if batch.cursor is not None:
                key = batch.cursor.manifest
                wanted.add((key.url_id, key.attempt, key.extraction_generation))
        if wanted:
            rows = await self._fetch(WORK["manifests"], *columns(sorted(wanted)))
            for row in rows:
                manifest = ManifestRow(*row)
                self._books.manifests[row[1], row[2], row[3]] = manifest

    # ---- what is known of candidates

    async def _known(self) -> None:
        """Ids of origins, and which candidates are known."""
        books = self._books
        here = books.here
        for _, partition, batch in self._each(m.Admit):
            for candidate in batch.candidates:
                if candidate.partition == partition:
                    self._candidates.append((partition, candidate))
                elif candidate.partition in here:
                    self._candidates.append((None, candidate))
        for place, _, ask in self._each(m.Drain):
            for _, candidates, _ in self.found.batches.get(place, ()):
                self._candidates += [(ask.partition, candidate) for candidate in candidates]
        keys = {candidate.origin for _, candidate in self._candidates}
        keys |= {value.origin for _, _, value in self._each(m.Reserve, m.Visit, m.SetOrigin)}
        if keys:
            books.origin_ids.update(await self._fetch(ORIGIN["by_key"], sorted(keys)))
        first = books.slots.first
        for _, candidate in self._candidates:
            origin_id = books.origin_ids.get(candidate.origin)
            if origin_id is not None:
                link = candidate.origin, candidate.path
                if link not in books.first_ids:
                    books.first_ids[link] = origin_id << SLOT_BITS | first(candidate.path)
        if books.first_ids:
            books.paths.update(dict.fromkeys(books.first_ids.values()))
            wanted = self._perhaps_known()
            if wanted:
                books.paths.update(await self._fetch(URL["paths"], wanted))
        self._new = [
            (partition, candidate.origin, books.origin_ids.get(candidate.origin))
            for partition, candidate in self._candidates
            if partition is not None and not books.is_known(candidate.origin, candidate.path)
        ]

    def _perhaps_known(self) -> list[int]:
        """Ids to look up: all of them, but for those that a filter of this agent has ruled out."""
        books = self._books
        if books.membership is None:
            return sorted(set(books.first_ids.values()))
        asked: dict[int, set[int]] = {}
        for _, candidate in self._candidates:
            url_id = books.first_ids.get((candidate.origin, candidate.path))
            if url_id is not None:
                asked.setdefault(candidate.partition, set()).add(url_id)
        return books.membership.unsure({partition: list(ids) for partition, ids in asked.items()})

    async def _origins(self) -> None:
        books = self._books
        ids: set[int] = {origin_id for _, _, origin_id in self._new if origin_id is not None}
        for _, _, value in self._each(m.Reserve, m.Visit, m.SetOrigin):
            known = books.origin_ids.get(value.origin)
            if known is not None:
                ids.add(known)
        for row in books.urls.values():
            ids.add(row.id >> SLOT_BITS)
            if row.slot_origin is not None:
                ids.add(row.slot_origin)
        missing = sorted(ids - books.origins.keys())
        if missing:
            await read_origins(books, missing)

    async def _sites(self) -> None:
        """Counts of sites, where origins may be opened and enough are known."""
        books = self._books
        keys: dict[int, set[str]] = {}
        for partition, origin_key, origin_id in self._new:
            if origin_id is None:
                keys.setdefault(partition, set()).add(origin_key)
        if not keys:
            return
        rows = await self._fetch(WORK["counters"], sorted(keys), [tally.ORIGINS])
        books.origins_known = {**dict.fromkeys(keys, 0), **{partition: value for partition, _, value in rows}}
        for partition, new in keys.items():
            if books.origins_known[partition] + len(new) >= COUNTED_FROM:
                await self._count_sites(partition, new)

    async def _count_sites(self, partition: int, new: set[str]) -> None:
        """The origins that were opened before sites were counted are counted first."""
        books = self._books
        counts = books.sites[partition] = {}
        (counted,) = await books.database.one(ORIGIN["sites_counted"], partition)
        if counted:
            names = sorted({site_name(key) for key in new})
            counts.update(await self._fetch(ORIGIN["sites"], partition, names))
            return
        books.uncounted[partition] = [key for (key,) in await self._fetch(ORIGIN["keys"], partition)]

    async def _bodies(self) -> None:
        digests = sorted({value for _, _, value in self._each(m.FindBody)})
        if digests:
            self._books.bodies.update(await self._fetch(WORK["find_bodies"], digests))


async def read_origins(books: Books, ids: list[int]) -> None:
    """Ledgers by id, with their names."""
    for row in await books.database.fetch(ORIGIN["by_id"] + books.locking, ids):
        origin = Origin(*row[1:])
        origin.seen = row[0]
        books.origins[origin.id] = origin
        books.origin_ids[origin.key] = origin.id


async def read_partitions(books: Books, asked: Sequence[Asked]) -> None:
    """Who owns the partitions that operations act for; no other claims them before the end of the transaction."""
    database = books.database
    for partition, operation in asked:
        if isinstance(operation, m.TakeOver) and operation.value.epoch is None:
            await database.one(WORK["wait_for_partition"], partition)
            if await database.one(WORK["claim_partition"], partition, operation.value.owner) is not None:
                books.wrote = True
    wanted = {fenced for partition, operation in asked for fenced in fenced_by(partition, operation)}
    if wanted:
        rows = await database.fetch(WORK["hold_partitions"], sorted(wanted))
        books.partitions = {row[0]: PartitionRow(*row) for row in rows}


def fenced_by(partition: int, operation: m.AnyOperation) -> tuple[int, ...]:
    """The partition whose row decides whether the operation is allowed."""
    match operation:
        case m.TakeOver() | m.TakeLease() | m.SetOrigin() | m.Requeue():
            return (partition,)
        case m.Reserve():
            return (operation.value.key.partition,)
        case m.Drain() | m.Parcels() | m.DropParcels() | m.Adopt() if operation.value.partition is not None:
            return (operation.value.partition,)
        case _:
            return ()
