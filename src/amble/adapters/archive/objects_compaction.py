"""Many small segments become one large object, while others write and read, and whatever moment it is broken off at.

In this order: the records are gathered, byte for byte, behind one new warcinfo record; the large object is uploaded
under a key that nobody else can choose; its index is put beside it; a map says where everything lies now. The map is the
moment that counts: before it, nothing has happened but an object too many; from it on, readers find everything in the
new place. The small segments are deleted only after a grace period, and only while the large object is seen to be there,
whole. What was broken off before its map is deleted when it is older than any compaction can be.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from amble.adapters.archive import objects_names as names
from amble.adapters.archive.check import Problem
from amble.adapters.archive.index import line_of
from amble.adapters.archive.member import Damage, Member, prepare, walk
from amble.adapters.archive.objects import Serials
from amble.adapters.archive.objects_map import (
    CHECKPOINT_EVERY,
    CompactionMap,
    Maps,
    Move,
    checkpoint,
    load_now,
)
from amble.adapters.archive.objects_reader import fetched, is_arrived
from amble.adapters.archive.objects_serials import ClaimedSerials
from amble.adapters.archive.objects_store import PIECE_BYTES, Bucket, ObjectSeen, ObjectTrouble
from amble.domain.errors import ArchiveUnavailable
from amble.formats import warc
from amble.ports import Clock, Entropy

_CREATE_TRIES = 5
_CREATE_PAUSE_S = 0.2
_LOST_MAX = 10  # races lost to other compactors in a row, before leaving the work to them


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    """Bounds of a compaction.

    Segments of up to half of `target_bytes` are joined into objects of about `target_bytes`; a temporary file of that
    size is needed. Those that were joined are deleted `grace_s` after their map was made; what was uploaded without a
    map coming of it, `orphan_s` after its upload (longer than any compaction takes).
    """

    target_bytes: int = 1 << 30
    grace_s: float = 3600.0
    orphan_s: float = 86400.0


@dataclass(slots=True)
class CompactionReport:
    """What a run did: large objects made, segments and bytes moved into them, objects deleted, and what was wrong."""

    made: int = 0
    moved: int = 0
    moved_bytes: int = 0
    deleted: int = 0
    problems: list[Problem] = field(default_factory=list)


class _Lost(Exception):
    """Another compactor was faster."""


@dataclass(slots=True)
class _Output:
    """The large object while it is gathered in a file."""

    file: IO[bytes]
    key: str
    serial: int
    block: bytes = b""  # of its warcinfo record
    size: int = 0
    moves: list[Move] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)


class Compactor:
    """Compacts and cleans up one archive. Any number may run at once; they lose work to each other, never records.

    `serials` as for the archive itself. `on_step` is told the name of each step that is done ("gathered", "uploaded",
    "indexed", "mapped", "deleted") from the thread that did it.
    """

    def __init__(
        self,
        bucket: Bucket,
        clock: Clock,
        entropy: Entropy,
        *,
        serials: Serials | None = None,
        limits: CompactionLimits | None = None,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._bucket = bucket
        self._clock = clock
        self._entropy = entropy
        self._serials = serials or ClaimedSerials(bucket)
        self._limits = limits or CompactionLimits()
        self._on_step = on_step
        self._maps = Maps()
        self._kinds: dict[
            str, bytes
        ] = {}  # what the warcinfo records of segments said that did not go with others
        self._left_alone: set[int] = set()  # segments that this run does not look at again
        self._report = CompactionReport()

    async def run(self, *, everything: bool = False) -> CompactionReport:
        """Compact until less than a large object is left (`everything`: that as well), then delete what is done with.

        Raises ArchiveUnavailable and ArchiveBroken; whatever was done by then is as good as if it had been all.
        """
        self._report = CompactionReport()
        self._left_alone.clear()
        self._kinds.clear()
        lost = 0
        candidates = await asyncio.to_thread(self._plan)
        while lost < _LOST_MAX and self._is_enough(candidates, everything=everything):
            [serial] = await self._serials(1)
            if self._maps.knows(serial):
                raise ArchiveUnavailable(f"archive {self._bucket.place}: serial {serial} was used before")
            try:
                done = await asyncio.to_thread(self._compact, serial, list(candidates.values()))
            except _Lost:
                lost += 1
                candidates = await asyncio.to_thread(self._plan)
                continue
            for number in (*done, *self._left_alone):
                candidates.pop(number, None)
        await asyncio.to_thread(self._sweep)
        return self._report

    def _is_enough(self, candidates: Mapping[int, ObjectSeen], *, everything: bool) -> bool:
        """Whether there is something to compact."""
        if len(candidates) < 2:
            return False
        return everything or sum(seen.size for seen in candidates.values()) >= self._limits.target_bytes

    # -- all below runs in a thread ------------------------------------------------------------------------------------

    def _plan(self) -> dict[int, ObjectSeen]:
        """The segments that may be compacted, by serial."""
        load_now(self._bucket, self._maps)
        whole = _Whole(self._bucket)
        found: dict[int, ObjectSeen] = {}
        for seen in self._bucket.list_now(names.SEGMENTS):
            serial = names.serial_of(seen.key)
            if serial is None or serial in self._left_alone or seen.size > self._limits.target_bytes // 2:
                continue
            moved = self._maps.map_of(serial)
            if moved is None or not whole(moved):
                found[serial] = seen
        return dict(sorted(found.items()))

    def _compact(self, serial: int, candidates: Sequence[ObjectSeen]) -> list[int]:
        """One large object. The segments that are in it. Raises _Lost when another compactor took some of them."""
        try:
            return self._compact_into(serial, candidates)
        except OSError as error:
            raise ArchiveUnavailable(f"a temporary file: {error.strerror or error}") from error

    def _compact_into(self, serial: int, candidates: Sequence[ObjectSeen]) -> list[int]:
        key = names.large_key(serial, self._entropy.token(8))
        before = self._maps.next_number
        with tempfile.TemporaryFile(prefix="amble-") as file:
            out = _Output(file, key, serial)
            self._gather(out, candidates)
            if len(out.moves) < 2:
                self._left_alone.update(move.serial for move in out.moves)
                return []
            self._on_step("gathered")
            file.seek(0)
            self._bucket.upload_now(key, file)
        if self._bucket.size_now(key) != out.size:
            raise ArchiveUnavailable(f"archive {self._bucket.place}: {key} is not whole after its upload")
        self._on_step("uploaded")
        self._create(names.index_key(key), b"".join(sorted(out.lines)))
        self._on_step("indexed")
        self._commit(out, before)
        self._on_step("mapped")
        self._report.made += 1
        self._report.moved += len(out.moves)
        self._report.moved_bytes += sum(move.end - move.start for move in out.moves)
        return [move.serial for move in out.moves]

    def _gather(self, out: _Output, candidates: Sequence[ObjectSeen]) -> None:
        for seen in candidates:
            if out.moves and out.size + seen.size > self._limits.target_bytes:
                return
            if out.moves and self._kinds.get(seen.key, out.block) != out.block:
                continue
            with fetched(self._bucket, seen.key) as file:
                if file is None:
                    raise _Lost
                what = self._take(out, seen, file)
            if what:
                serial = names.serial_of(seen.key)
                self._left_alone.add(serial or 0)
                self._report.problems.append(Problem(seen.key, -1, f"{what}: it is left as it is"))

    def _take(self, out: _Output, seen: ObjectSeen, file: IO[bytes]) -> str:
        """Add the records of a segment to the output, unless they do not go with it. What is wrong with them, if so."""
        members = walk(file.fileno())
        first = next(members, None)
        if not isinstance(first, Member):
            return first.reason if first else "it is empty"
        try:
            stored = warc.read_record(first.data)
        except ValueError as error:
            return str(error)
        if stored.warc_type != "warcinfo":
            return "it does not begin with a warcinfo record"
        if is_arrived(seen.key, stored):
            self._left_alone.add(names.serial_of(seen.key) or 0)
            return ""  # its records refer to it, and it is as large as files of a folder are
        if not out.moves:
            self._begin(out, stored.block)
        if stored.block != out.block:
            self._kinds[seen.key] = stored.block
            return ""  # of another version or configuration: for an object with its like
        shift = out.size - first.length
        lines: list[bytes] = []
        ids: set[str] = set()
        what = _read_rest(members, shift, names.file_name(out.key), lines, ids)
        if what or ids & out.ids:
            return what  # the same records twice: one is of an append that was given up, and made again
        end = seen.size
        _copy(file, first.length, end, out.file)
        out.size += end - first.length
        out.moves.append(Move(names.serial_of(seen.key) or 0, first.length, end, shift))
        out.lines += lines
        out.ids |= ids
        return ""

    def _begin(self, out: _Output, block: bytes) -> None:
        """The warcinfo record of the output says what those of its segments said."""
        lines = block.decode("utf-8", "replace").split("\r\n")
        fields = dict(line.partition(": ")[::2] for line in lines if line)
        record = warc.warcinfo(
            record_id=warc.record_id(self._entropy.token(16)),
            date_s=self._clock.wall_s(),
            filename=names.file_name(out.key),
            fields=fields,
        )
        member = prepare(record, "").member
        out.file.seek(0)
        out.file.truncate()
        out.file.write(member)
        out.size, out.block = len(member), block

    def _commit(self, out: _Output, before: int) -> None:
        """Make the map. Raises _Lost, after cleaning up, when one of the segments has been moved since `before`."""
        while True:
            number = self._maps.next_number
            made = CompactionMap(
                number=number,
                serial=out.serial,
                key=out.key,
                size=out.size,
                made_s=self._clock.wall_s(),
                moves=tuple(out.moves),
            )
            if self._create(names.map_key(number), made.encode()):
                self._maps.add([made])
                break
            load_now(self._bucket, self._maps)
            moved = (self._maps.map_of(move.serial) for move in out.moves)
            if any(other is not None and other.number >= before for other in moved):
                self._bucket.delete_now(out.key)
                self._bucket.delete_now(names.index_key(out.key))
                raise _Lost
        if (number + 1) % CHECKPOINT_EVERY == 0:
            self._create(*checkpoint(self._bucket))

    def _create(self, key: str, data: bytes) -> bool:
        """Whether `data` lies at `key`; False: something else does. Raises ArchiveUnavailable when nobody can tell."""
        trouble: ObjectTrouble | None = None
        for tried in range(_CREATE_TRIES):
            if tried:
                time.sleep(_CREATE_PAUSE_S * 2 ** (tried - 1))
            try:
                if self._bucket.create_now(key, data):
                    return True
                same = self._bucket.same_now(key, data)
            except ObjectTrouble as error:
                if error.refused:
                    raise
                trouble = error
                continue
            if same is not None:
                return same
        raise trouble or ObjectTrouble(f"archive {self._bucket.place}: puts to {key} stay in conflict")

    def _sweep(self) -> None:
        """Delete segments that were moved long enough ago, and large objects that nothing came of."""
        uploads = list(
            self._bucket.list_now(names.LARGE)
        )  # before the maps: what is listed has its map by then
        load_now(self._bucket, self._maps)
        now = self._clock.wall_s()
        whole = _Whole(self._bucket)
        for seen in list(self._bucket.list_now(names.SEGMENTS)):
            serial = names.serial_of(seen.key) or 0
            moved = self._maps.map_of(serial)
            if moved is None or now - moved.made_s < self._limits.grace_s or not whole(moved):
                continue
            if seen.size == self._maps.end_of(serial):
                self._delete(seen.key)
            else:
                what = "it is not the segment of this serial that was compacted: serials are given out twice"
                self._report.problems.append(Problem(seen.key, -1, what))
        known = {found.key for found in self._maps.all}
        for seen in uploads:
            key = seen.key.removesuffix(".cdxj") + ".warc.gz" if seen.key.endswith(".cdxj") else seen.key
            if key not in known and now - seen.modified_s >= self._limits.orphan_s:
                self._delete(seen.key)

    def _delete(self, key: str) -> None:
        self._bucket.delete_now(key)
        self._report.deleted += 1
        self._on_step("deleted")


class _Whole:
    """Whether the object of a map is there, in full. Each is looked at once."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._seen: dict[int, bool] = {}

    def __call__(self, found: CompactionMap) -> bool:
        if found.number not in self._seen:
            self._seen[found.number] = self._bucket.size_now(found.key) == found.size
        return self._seen[found.number]


def _read_rest(
    members: Iterator[Member | Damage], shift: int, file_name: str, lines: list[bytes], ids: set[str]
) -> str:
    """Index lines and ids of the records behind the first one, in their new place; what is wrong, if something is."""
    for found in members:
        if isinstance(found, Damage):
            return f"at byte {found.offset}: {found.reason}"
        try:
            stored = warc.read_record(found.data)
        except ValueError as error:
            return f"at byte {found.offset}: {error}"
        if stored.warc_type == "warcinfo" or "WARC-Warcinfo-ID" in stored.headers:
            return f"at byte {found.offset}: a record that is bound to this file"
        if stored.record_id in ids:
            return f"at byte {found.offset}: a record that is in it twice"
        ids.add(stored.record_id)
        line = line_of(stored, Member(found.offset + shift, found.length, b""), file_name)
        if line is not None:
            lines.append(line)
    return ""


def _copy(file: IO[bytes], start: int, end: int, target: IO[bytes]) -> None:
    at = start
    while at < end:
        piece = os.pread(file.fileno(), min(PIECE_BYTES, end - at), at)
        if not piece:
            raise ArchiveUnavailable("a temporary file was cut short")
        target.write(piece)
        at += len(piece)
