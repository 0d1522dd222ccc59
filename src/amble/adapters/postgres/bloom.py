"""An accelerator that may only say "definitely new": a Bloom filter over the URL ids of each partition that is held.

What it does not rule out is looked up in the store, and an insert that meets a row after all makes the transaction begin
again without the filter: whatever a file or another owner has done to it, the answers are those of the store.

A filter is saved with the number of URLs that it has of each origin. Rows are never deleted, so an origin that has as
many in the store is complete; of every other one the ids are read again. A file that is damaged, or of another crawl, is
as if it were not there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from amble.adapters.postgres.servers_link import Link
from amble.adapters.postgres.setup import PATH_KEY
from amble.adapters.sql.identity import SLOT_BITS
from amble.domain.errors import AmbleError

VERSION: Final = 1
MAGIC: Final = b"amble-bloom\n"
# One block is a cache line: eight words, of which every id sets one bit each.
WORDS: Final = 8
BITS_PER_ID: Final = 12
CAPACITY_MIN: Final = 1 << 16
ORIGINS_AT_ONCE: Final = 2_000
_SALTS: Final = np.array(
    [
        0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93,
        0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3,
    ],
    dtype=np.uint64,
)  # fmt: skip
_COUNTS = (
    "SELECT id, urls + (robots_url_id IS NOT NULL)::integer FROM origin WHERE partition = $1 ORDER BY id"
)
_KEY = "SELECT value FROM meta WHERE name = $1"
_IDS = (
    "SELECT u.id FROM unnest($1::bigint[]) AS o CROSS JOIN LATERAL"
    " (SELECT id FROM url WHERE id >= (o << 36) AND id < ((o + 1) << 36)) AS u"
)
_Words = NDArray[np.uint64]


def _mixed(ids: Sequence[int] | NDArray[np.int64]) -> _Words:
    """Ids of neighbours, as if drawn at random (the finalizer of splitmix64)."""
    x = np.asarray(ids, dtype=np.int64).view(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * _SALTS[1]
    x = (x ^ (x >> np.uint64(27))) * _SALTS[2]
    mixed: _Words = x ^ (x >> np.uint64(31))
    return mixed


class Layer:
    """One blocked filter of a fixed size."""

    __slots__ = ("capacity", "count", "words")

    def __init__(self, capacity: int, words: _Words | None = None, count: int = 0) -> None:
        self.capacity = capacity
        self.count = count
        blocks = max(1, capacity * BITS_PER_ID // (64 * WORDS))
        self.words = np.zeros((blocks, WORDS), dtype=np.uint64) if words is None else words

    def _places(self, mixed: _Words) -> tuple[NDArray[np.int64], _Words]:
        """(block, bits in each of its words) of each id."""
        blocks = ((mixed >> np.uint64(32)) * np.uint64(len(self.words))) >> np.uint64(32)
        bits = (mixed & np.uint64(0xFFFFFFFF))[:, None] * _SALTS[None, :] >> np.uint64(58)
        return blocks.astype(np.int64), np.uint64(1) << bits

    def add(self, mixed: _Words) -> None:
        """Remember them."""
        blocks, masks = self._places(mixed)
        order = np.argsort(blocks, kind="stable")
        blocks, masks = blocks[order], masks[order]
        starts = np.flatnonzero(np.r_[True, blocks[1:] != blocks[:-1]])
        self.words[blocks[starts]] |= np.bitwise_or.reduceat(masks, starts, axis=0)
        self.count += len(mixed)

    def may_have(self, mixed: _Words) -> NDArray[np.bool_]:
        """False: certainly not remembered."""
        blocks, masks = self._places(mixed)
        found: NDArray[np.bool_] = ((self.words[blocks] & masks) == masks).all(axis=1)
        return found


class Filter:
    """The ids of one partition, and how many there are of each origin. It grows by layers, each twice the last."""

    def __init__(self, expected: int = 0) -> None:
        self.layers = [Layer(max(CAPACITY_MIN, 2 * expected))]
        self.counts: dict[int, int] = {}

    def add(self, ids: Sequence[int]) -> None:
        """Remember these ids; what is counted is the caller's affair."""
        if not ids:
            return
        mixed = _mixed(ids)
        last = self.layers[-1]
        if last.count + len(ids) > last.capacity and last.count:
            last = Layer(max(2 * last.capacity, 2 * len(ids)))
            self.layers.append(last)
        last.add(mixed)

    def may_have(self, ids: Sequence[int]) -> NDArray[np.bool_]:
        """False: certainly not remembered."""
        mixed = _mixed(ids)
        found = self.layers[0].may_have(mixed)
        for layer in self.layers[1:]:
            found |= layer.may_have(mixed)
        return found

    @property
    def size_bytes(self) -> int:
        """Memory of the bits."""
        return sum(layer.words.nbytes for layer in self.layers)


class _Head(msgspec.Struct, frozen=True):
    """What stands before the bits in a file. `generation` counts its saves."""

    version: int
    crawl: bytes
    partition: int
    generation: int
    layers: list[tuple[int, int, int]]  # capacity, count, blocks
    origins: bytes
    counts: bytes


def save(path: Path, crawl: bytes, partition: int, kept: Filter, generation: int) -> None:
    """Replace the file whole, with a checksum over all of it. Raises OSError; the old file then stays."""
    head = msgspec.msgpack.encode(
        _Head(
            VERSION,
            crawl,
            partition,
            generation,
            [(layer.capacity, layer.count, len(layer.words)) for layer in kept.layers],
            np.fromiter(kept.counts.keys(), np.int64, len(kept.counts)).tobytes(),
            np.fromiter(kept.counts.values(), np.int64, len(kept.counts)).tobytes(),
        )
    )
    pieces = [MAGIC, len(head).to_bytes(8, "big"), head, *(layer.words.tobytes() for layer in kept.layers)]
    checksum = xxhash.xxh3_128()
    draft = path.with_suffix(".new")
    with draft.open("wb") as file:
        for piece in pieces:
            checksum.update(piece)
            file.write(piece)
        file.write(checksum.digest())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def load(path: Path, crawl: bytes, partition: int) -> tuple[Filter, int] | None:
    """The filter of a file and its generation; None where there is none that can be used."""
    try:
        content = path.read_bytes()
        body, digest = content[:-16], content[-16:]
        if not body.startswith(MAGIC) or xxhash.xxh3_128(body).digest() != digest:
            return None
        start = len(MAGIC) + 8
        size = int.from_bytes(body[len(MAGIC) : start], "big")
        head = msgspec.msgpack.decode(body[start : start + size], type=_Head)
    except (OSError, msgspec.DecodeError):
        return None
    if (head.version, head.crawl, head.partition) != (VERSION, crawl, partition):
        return None
    kept = Filter()
    kept.layers, place = [], start + size
    for capacity, count, blocks in head.layers:
        end = place + blocks * WORDS * 8
        words = np.frombuffer(body[place:end], dtype=np.uint64).reshape(blocks, WORDS).copy()
        kept.layers.append(Layer(capacity, words, count))
        place = end
    origins, counts = np.frombuffer(head.origins, np.int64), np.frombuffer(head.counts, np.int64)
    kept.counts = dict(zip(origins.tolist(), counts.tolist(), strict=True))
    return kept, head.generation


@dataclass(slots=True)
class _Held:
    """A partition that is held. Until it is `ready` it rules nothing out; what is admitted meanwhile is kept aside."""

    kept: Filter
    generation: int
    ready: bool = False
    aside: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What taking a partition up came to. `loaded`: a saved filter was used; `read`: ids that had to be read."""

    loaded: bool
    origins_read: int
    read: int


class Membership:
    """The filters of the partitions that one agent holds, kept in `folder`. Give it to the stores of the agent.

    `looked_up` and `ruled_out` count ids that the store was, and was not, asked for.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: this agent's alone, as long as it runs; made when it is first needed."""
        self._folder = folder
        self._crawl = b""
        self._held: dict[int, _Held] = {}
        self.looked_up = 0
        self.ruled_out = 0

    # ---- for the store

    def unsure(self, asked: Mapping[int, Sequence[int]]) -> list[int]:
        """Of ids by partition, those that may be known, sorted. All of what has no filter, or none that is ready."""
        rest: list[int] = []
        for partition, ids in asked.items():
            held = self._held.get(partition)
            if held is None or not held.ready:
                rest += ids
                continue
            may = held.kept.may_have(ids)
            rest += [id_ for id_, perhaps in zip(ids, may.tolist(), strict=True) if perhaps]
        self.looked_up += len(rest)
        self.ruled_out += sum(map(len, asked.values())) - len(rest)
        return sorted(rest)

    def added(self, rows: Iterable[tuple[int, int]]) -> None:
        """(partition, id) of rows that are now committed."""
        groups: dict[int, list[int]] = {}
        for partition, id_ in rows:
            groups.setdefault(partition, []).append(id_)
        for partition, ids in groups.items():
            held = self._held.get(partition)
            if held is None:
                continue
            if not held.ready:
                held.aside += ids
                continue
            held.kept.add(ids)
            counts = held.kept.counts
            for id_ in ids:
                origin = id_ >> SLOT_BITS
                counts[origin] = counts.get(origin, 0) + 1

    # ---- for the agent

    async def take_up(self, partition: int, link: Link) -> CaughtUp:
        """Make the filter of a partition that was just claimed: from its file, and from what was admitted since.

        Raises StoreUnavailable; the partition then simply has no filter.
        """
        key = await link.call(lambda connection: connection.fetchval(_KEY, PATH_KEY))
        self._crawl = xxhash.xxh3_128(b"crawl" + bytes(key)).digest()
        saved = load(self._path(partition), self._crawl, partition)
        kept, generation = (Filter(), 0) if saved is None else saved
        held = self._held[partition] = _Held(kept, generation)
        try:
            origins, read = await link.snapshot(lambda connection: _catch_up(connection, partition, kept))
        except BaseException:
            if self._held.get(partition) is held:
                self._held.pop(partition)
            raise
        self._settle(held)
        return CaughtUp(saved is not None, origins, read)

    @staticmethod
    def _settle(held: _Held) -> None:
        """What was admitted while ids were read may be among them or not: it is remembered, its origins are uncertain."""
        held.kept.add(held.aside)
        for id_ in held.aside:
            held.kept.counts[id_ >> SLOT_BITS] = -1
        held.aside = []
        held.ready = True

    def save(self, partition: int) -> bool:
        """Write the filter of a partition; False when it has none, or no place to write it."""
        held = self._held.get(partition)
        if held is None or not held.ready:
            return False
        held.generation += 1
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            save(self._path(partition), self._crawl, partition, held.kept, held.generation)
        except OSError:
            return False  # it is made anew from what there is
        return True

    def let_go(self, partition: int) -> None:
        """The partition is another agent's from now on."""
        self.save(partition)
        self._held.pop(partition, None)

    def close(self) -> None:
        """Save everything."""
        for partition in list(self._held):
            self.let_go(partition)

    @property
    def size_bytes(self) -> int:
        """Memory of all filters."""
        return sum(held.kept.size_bytes for held in self._held.values())

    def _path(self, partition: int) -> Path:
        return self._folder / f"bloom-{partition}"


class PartitionFilters:
    """Takes filters up behind the crawl and lets them go with their partitions. One that cannot be had is done without."""

    def __init__(self, membership: Membership, link_of: Callable[[int], Link]) -> None:
        self._membership = membership
        self._link_of = link_of
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def take_up(self, partition: int) -> None:
        """The partition is held from now on. Never raises."""
        self.let_go(partition)
        task = asyncio.get_running_loop().create_task(self._take_up(partition), name=f"filter {partition}")
        self._tasks[partition] = task

    async def _take_up(self, partition: int) -> None:
        try:
            # A connection of its own: reading all ids may take minutes, and guests must not wait behind it.
            link = Link(self._link_of(partition).dsn, "amble filter")
            try:
                await self._membership.take_up(partition, link)
            finally:
                await link.close()
        except AmbleError:
            pass  # without a filter everything is looked up, as without this setting

    def let_go(self, partition: int) -> None:
        """It is not held any more."""
        task = self._tasks.pop(partition, None)
        if task is not None:
            task.cancel()
            self._membership.let_go(partition)

    def close(self) -> None:
        """Save what there is."""
        for partition in list(self._tasks):
            self.let_go(partition)


async def _catch_up(connection: Any, partition: int, kept: Filter) -> tuple[int, int]:
    """Read the ids of origins whose numbers differ, in one snapshot with the numbers; (origins, ids) that were read."""
    counts: dict[int, int] = dict(map(tuple, await connection.fetch(_COUNTS, partition)))
    changed = [origin for origin, count in counts.items() if kept.counts.get(origin) != count]
    total, more = sum(counts.values()), sum(counts[origin] for origin in changed)
    if more > total // 2:
        # Most of it is read anyway: a new filter is smaller than the old one with all of that added once more.
        kept.layers, changed = [Layer(max(CAPACITY_MIN, 2 * total))], list(counts)
    read = 0
    for start in range(0, len(changed), ORIGINS_AT_ONCE):
        cursor = await connection.cursor(_IDS, changed[start : start + ORIGINS_AT_ONCE])
        while rows := await cursor.fetch(50_000):
            kept.add([row[0] for row in rows])
            read += len(rows)
    kept.counts = counts
    return len(changed), read
