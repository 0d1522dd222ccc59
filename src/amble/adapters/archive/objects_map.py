"""Compaction maps: where the records of a compacted segment lie now. Immutable objects, numbered without gaps.

The number is what two compactors compete for: a map is created only if nobody else has created one of that number, so
that all maps together are one history that everybody reads alike. Of two maps that name the same segment the later one
holds (a compaction is done again when its result got lost).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from amble.adapters.archive import objects_names as names
from amble.adapters.archive.objects_store import Bucket
from amble.domain.errors import ArchiveBroken

_T = TypeVar("_T")

VERSION = 1
CHECKPOINT_EVERY = 128  # maps; a reader that starts gets one checkpoint and at most so many maps


class Move(msgspec.Struct, frozen=True, array_like=True):
    """The bytes from `start` to `end` of segment `serial` now lie `shift` further on in another object."""

    serial: int
    start: int
    end: int
    shift: int


class CompactionMap(msgspec.Struct, frozen=True, kw_only=True):
    """One compaction: which segments are in the object `key`, which has `size` bytes and the serial `serial`.

    `made_s`: when the map was made, by the wall clock of the compactor (s since 1970).
    """

    version: int = VERSION
    number: int
    serial: int
    key: str
    size: int
    made_s: float
    moves: tuple[Move, ...]

    def encode(self) -> bytes:
        """The map as an object."""
        return msgspec.json.encode(self) + b"\n"


@dataclass(frozen=True, slots=True)
class Place:
    """The object that holds a record of a segment, and the record's offset in it."""

    key: str
    offset: int


@dataclass(frozen=True, slots=True)
class _Moves:
    serials: NDArray[np.uint32]
    rows: NDArray[np.int64]


class Maps:
    """All maps read so far, looked up by serial. Small: 36 bytes for each segment that was moved."""

    def __init__(self) -> None:
        self._maps: list[CompactionMap] = []
        self._large: dict[int, int] = {}  # serial of a compacted segment -> its map
        # Serials in order, and for each: map, start, end, shift. One attribute, so that threads see both or neither.
        self._moves = _Moves(np.empty(0, np.uint32), np.empty((0, 4), np.int64))

    @property
    def next_number(self) -> int:
        """The number of the map that comes next."""
        return len(self._maps)

    @property
    def all(self) -> Sequence[CompactionMap]:
        """Every map, by number, without its moves."""
        return self._maps

    def add(self, added: Sequence[CompactionMap]) -> None:
        """Take in the next maps. Raises ValueError when they do not follow on the last one."""
        if not added:
            return
        for found in added:
            if found.number != self.next_number:
                raise ValueError(f"map {self.next_number} is missing")
            self._large[found.serial] = found.number
            self._maps.append(msgspec.structs.replace(found, moves=()))
        serials = [move.serial for found in added for move in found.moves]
        moves = [(found.number, move.start, move.end, move.shift) for found in added for move in found.moves]
        every = np.concatenate([self._moves.serials, np.array(serials, np.uint32)])
        order = np.argsort(every, kind="stable")  # stable: the last of a serial is that of the latest map
        rows = np.concatenate([self._moves.rows, np.array(moves, np.int64).reshape(-1, 4)])
        self._moves = _Moves(every[order], rows[order])

    def map_of(self, serial: int) -> CompactionMap | None:
        """The latest map that moved a segment."""
        row = self._row(serial)
        return None if row is None else self._maps[int(row[0])]

    def knows(self, serial: int) -> bool:
        """Whether the serial was used for a segment that was moved, or for what one was moved into."""
        return serial in self._large or self._row(serial) is not None

    def end_of(self, serial: int) -> int | None:
        """Bytes of the segment when it was moved; None if it was not."""
        row = self._row(serial)
        return None if row is None else int(row[2])

    def serials_of(self, number: int) -> list[int]:
        """The segments for which map `number` is the latest."""
        moves = self._moves
        here = np.flatnonzero(moves.rows[:, 0] == number)
        serials = [int(serial) for serial in moves.serials[here]]
        return [serial for serial in serials if (found := self.map_of(serial)) and found.number == number]

    def file_name(self, serial: int) -> str:
        """The name of the file that holds a segment now."""
        found = self.map_of(serial)
        if found is None and serial in self._large:
            found = self._maps[self._large[serial]]
        return names.file_name(found.key if found else names.segment_key(serial))

    def places(self, serial: int, offset: int, length: int) -> list[Place]:
        """Where a record may lie, the likeliest place first; none when it lies outside of what was moved."""
        direct = Place(names.segment_key(serial), offset)
        row = self._row(serial)
        if row is None:
            number = self._large.get(serial)
            return [direct if number is None else Place(self._maps[number].key, offset)]
        number, start, end, shift = (int(value) for value in row)
        if offset < start or offset + length > end:
            return []
        return [Place(self._maps[number].key, offset + shift), direct]

    def _row(self, serial: int) -> NDArray[np.int64] | None:
        if not 0 <= serial <= names.SERIAL_MAX:
            return None
        moves = self._moves
        found = int(np.searchsorted(moves.serials, np.uint32(serial), side="right")) - 1
        return moves.rows[found] if found >= 0 and moves.serials[found] == serial else None


def load_now(bucket: Bucket, maps: Maps) -> bool:
    """Read the maps that are newer than those in `maps`; whether there were any. Blocks.

    Raises ArchiveBroken when the history has a hole or a damaged map, ArchiveUnavailable when it cannot be read.
    """
    before = maps.next_number
    if before == 0:
        for seen in sorted(bucket.list_now(names.CHECKPOINTS), key=lambda seen: seen.key)[-1:]:
            _add(bucket, maps, _decode(bucket, seen.key, list[CompactionMap]))
    after = names.map_key(maps.next_number - 1) if maps.next_number else ""
    keys = sorted(seen.key for seen in bucket.list_now(names.MAPS, after) if seen.key > after)
    found = [_decode(bucket, key, CompactionMap) for key in keys if names.number_of(key) is not None]
    _add(bucket, maps, found)
    return maps.next_number > before


def checkpoint(bucket: Bucket) -> tuple[str, bytes]:
    """Key and content of a checkpoint over all maps there are. Blocks. Raises as `load_now`."""
    every: list[CompactionMap] = []
    for seen in sorted(bucket.list_now(names.CHECKPOINTS), key=lambda seen: seen.key)[-1:]:
        every = _decode(bucket, seen.key, list[CompactionMap])
    after = names.map_key(every[-1].number) if every else ""
    keys = sorted(seen.key for seen in bucket.list_now(names.MAPS, after) if seen.key > after)
    every += [_decode(bucket, key, CompactionMap) for key in keys]
    return names.checkpoint_key(every[-1].number), msgspec.json.encode(every)


def _add(bucket: Bucket, maps: Maps, found: Sequence[CompactionMap]) -> None:
    try:
        maps.add(found)
    except ValueError as error:
        raise ArchiveBroken(f"archive {bucket.place}: {error}") from None


def _decode(bucket: Bucket, key: str, kind: type[_T]) -> _T:
    data = bucket.get_now(key)
    if data is None:
        raise ArchiveBroken(f"archive {bucket.place}: {key} is gone")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ArchiveBroken(f"archive {bucket.place}: {key} is damaged: {error}") from None
