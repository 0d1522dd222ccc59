"""Writes the growing segment of a folder: staged, synced together, rolled back together. For one thread at a time."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amble import __version__
from amble.adapters.archive import recovery
from amble.adapters.archive.index import read_journal
from amble.adapters.archive.member import Prepared, compress
from amble.adapters.archive.names import Segment, list_segments, new_segment, sync_folder, write_all
from amble.domain.errors import ArchiveUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.record import IndexFacts, NewRecord
from amble.formats import cdxj, warc
from amble.ports import Clock, Entropy

_BUFFER_BYTES = 1 << 20
_PROBE_BYTES = 4096
_LENGTH_MAX = 0xFFFF_FFFF  # BodyRef keeps lengths and serials in 32 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """Bounds of the directory archive.

    A segment is sealed when it holds `segment_bytes_max` or `segment_index_max` indexed records (its index is sorted
    in memory). Appends wait up to `linger_s` for others to share their sync, `batch_bytes_max` (of blocks) at most.
    Below `free_bytes_min` on the disk nothing is appended, so that the frontier beside it can still commit.
    """

    segment_bytes_max: int = 1 << 30
    segment_index_max: int = 200_000
    batch_bytes_max: int = 16 << 20
    linger_s: float = 0.006
    free_bytes_min: int = 64 << 20


@dataclass(slots=True)
class _Growing:
    """The segment being written. `synced` bytes are durable, `written` are in the file, `size` are staged."""

    segment: Segment
    file: int
    journal: int
    warcinfo_id: str
    size: int = 0
    written: int = 0
    synced: int = 0
    buffer: bytearray = field(default_factory=bytearray)
    lines: list[bytes] = field(default_factory=list)
    journal_bytes: int = 0
    journal_whole: bool = True
    indexed: int = 0
    folder_synced: bool = False


class SegmentWriter:
    """Stage records, then commit or roll back everything staged since the last commit.

    Methods raise OSError when the disk refuses and ArchiveUnavailable when amble does; after either, `roll_back`.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        entropy: Entropy,
        *,
        limits: ArchiveLimits,
        info: Mapping[str, str],
        sync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._entropy = entropy
        self._limits = limits
        self._info = dict(info)
        self._sync = sync
        self._recovered = False
        self._left_open = False  # whether this writer has let go of a segment without sealing it
        self._next_serial = 1
        self._growing: _Growing | None = None

    @property
    def staged_bytes(self) -> int:
        """Compressed bytes staged and not yet committed."""
        return 0 if self._growing is None else self._growing.size - self._growing.synced

    @property
    def full(self) -> bool:
        """Whether the segment should be sealed before more is staged."""
        growing = self._growing
        return growing is not None and (
            growing.size >= self._limits.segment_bytes_max
            or growing.indexed >= self._limits.segment_index_max
        )

    def make_ready(self) -> None:
        """Recover what an earlier writer left, once, and see that there is space."""
        if not self._recovered:
            self._recover()
        state = os.statvfs(self._folder)
        free = state.f_bavail * state.f_frsize
        if free < self._limits.free_bytes_min:
            raise ArchiveUnavailable(
                f"archive {self._folder}: disk almost full: {free >> 20} MiB free, "
                f"appends stop below {self._limits.free_bytes_min >> 20} MiB"
            )

    @property
    def warcinfo_id(self) -> str | None:
        """Of the segment that is being written; None when there is none."""
        growing = self._growing
        return None if growing is None else growing.warcinfo_id

    def stage(self, records: Sequence[NewRecord], prepared: Sequence[Prepared] = ()) -> list[BodyRef]:
        """Append without syncing. An exception that is not of the disk takes back these records only.

        `prepared`: the same records compressed ahead, or nothing. What was prepared for another segment is done again.
        """
        growing = self._growing or self._begin()
        mark, lines, indexed = growing.size, len(growing.lines), growing.indexed
        try:
            if prepared and all(ready.warcinfo_id == growing.warcinfo_id for ready in prepared):
                pairs = zip(records, prepared, strict=True)
                return [self._stage_prepared(growing, record, ready) for record, ready in pairs]
            return [self._stage_one(growing, record) for record in records]
        except OSError:
            raise
        except Exception:
            _rewind(growing, mark)
            del growing.lines[lines:]
            growing.indexed = indexed
            raise

    def commit(self) -> None:
        """Make everything staged durable."""
        growing = self._growing
        if growing is None or growing.size == growing.synced:
            return
        _flush(growing)
        try:
            self._sync(growing.file)
            if not growing.folder_synced:
                sync_folder(self._folder)
                growing.folder_synced = True
        except OSError:
            # After a failed sync the kernel may drop the dirty pages and call them clean: never trust the tail again.
            self.roll_back()
            self._retire()
            raise
        growing.synced = growing.size
        _write_journal(growing)

    def roll_back(self) -> None:
        """Forget everything staged since the last commit. Never raises."""
        growing = self._growing
        if growing is None:
            return
        growing.indexed -= len(growing.lines)
        growing.lines.clear()
        try:
            _rewind(growing, growing.synced)
        except OSError:
            self._retire()
            return
        if growing.synced == 0:
            self._discard()

    def seal(self) -> None:
        """Give the committed segment its index and final name; a new one begins with the next record."""
        growing = self._growing
        if growing is None:
            return
        if growing.synced == 0:
            self._discard()
            return
        lines: list[bytes] = []
        if growing.journal_whole:
            lines = read_journal(growing.segment.journal_path, growing.synced)[0]
        if len(lines) != growing.indexed:
            self._retire()  # its journal could not be kept: recovery walks the segment instead
            self._recover()
            return
        try:
            recovery.seal(growing.segment, lines)
        finally:
            self._retire()
        self._recovered = True
        self._left_open = False

    def close(self) -> None:
        """Seal, and seal what could not be sealed before."""
        try:
            self.seal()
            if self._left_open:
                self._recover()
        finally:
            self._retire()

    def probe(self) -> None:
        """Write, sync and remove a small file, or raise what an append would."""
        self.make_ready()
        path = self._folder / f".probe-{os.getpid()}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(file, bytes(_PROBE_BYTES), 0)
            self._sync(file)
        finally:
            os.close(file)
            path.unlink(missing_ok=True)

    def _recover(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        recovery.recover(self._folder)
        serials = [segment.serial for segment in list_segments(self._folder)]
        self._next_serial = max([self._next_serial - 1, *serials]) + 1
        self._recovered = True
        self._left_open = False

    def _begin(self) -> _Growing:
        now = self._clock.wall_s()
        serial = self._next_serial
        if serial > _LENGTH_MAX:
            raise ArchiveUnavailable(f"archive {self._folder}: no segment numbers left")
        tag = f"{socket.gethostname()}~{os.getpid()}"
        segment = new_segment(self._folder, warc.timestamp(now), serial, tag)
        warcinfo_id = warc.record_id(self._entropy.token(16))
        fields = {
            "software": f"amble/{__version__}",
            "format": "WARC File Format 1.1",
            "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
            **self._info,
        }
        first = warc.warcinfo(record_id=warcinfo_id, date_s=now, filename=segment.file_name, fields=fields)
        growing = self._growing = _open(segment, warcinfo_id)
        self._next_serial = serial + 1
        _stage_member(growing, first, warc.written_head(first).data)
        return growing

    def _stage_one(self, growing: _Growing, record: NewRecord) -> BodyRef:
        head = warc.written_head(record, growing.warcinfo_id)
        offset = growing.size
        _stage_member(growing, record, head.data)
        return self._staged(growing, record, offset, head.payload_digest)

    def _stage_prepared(self, growing: _Growing, record: NewRecord, ready: Prepared) -> BodyRef:
        offset = growing.size
        _stage_piece(growing, ready.member)
        return self._staged(growing, record, offset, ready.payload_digest)

    def _staged(self, growing: _Growing, record: NewRecord, offset: int, payload_digest: str) -> BodyRef:
        length = growing.size - offset
        if length > _LENGTH_MAX:
            raise ValueError(f"a record of {length} bytes cannot be referred to")
        if record.index is not None:
            growing.lines.append(_line(record.index, payload_digest, growing.segment, offset, length))
            growing.indexed += 1
        return BodyRef(growing.segment.serial, offset, length)

    def _retire(self) -> None:
        """Let go of the segment as it is. What is left unsealed is sealed by the next recovery."""
        growing, self._growing = self._growing, None
        if growing is not None:
            os.close(growing.file)
            os.close(growing.journal)
            self._recovered = False
            self._left_open = True

    def _discard(self) -> None:
        """Remove a segment in which nothing was ever durable."""
        growing = self._growing
        if growing is None:
            return
        try:
            growing.segment.path.unlink(missing_ok=True)
            growing.segment.journal_path.unlink(missing_ok=True)
            self._next_serial = growing.segment.serial
        except OSError:
            pass  # recovery removes it
        self._retire()


def _open(segment: Segment, warcinfo_id: str) -> _Growing:
    """Create the files of a new segment and hold them. Raises OSError and ArchiveUnavailable; then nothing is left."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    file = os.open(segment.path, flags, 0o644)
    try:
        recovery.lock(file, segment)
        journal = os.open(segment.journal_path, flags, 0o644)
    except BaseException:
        os.close(file)
        segment.path.unlink(missing_ok=True)
        raise
    return _Growing(segment, file, journal, warcinfo_id)


def _stage_member(growing: _Growing, record: NewRecord, head: bytes) -> None:
    for piece in compress(record, head):
        _stage_piece(growing, piece)


def _stage_piece(growing: _Growing, piece: bytes) -> None:
    growing.buffer += piece
    growing.size += len(piece)
    if len(growing.buffer) >= _BUFFER_BYTES:
        _flush(growing)


def _line(facts: IndexFacts, digest: str, segment: Segment, offset: int, length: int) -> bytes:
    return cdxj.index_line(facts, digest=digest, filename=segment.file_name, offset=offset, length=length)


def _flush(growing: _Growing) -> None:
    write_all(growing.file, growing.buffer, growing.written)
    growing.written += len(growing.buffer)
    growing.buffer.clear()


def _rewind(growing: _Growing, mark: int) -> None:
    """Forget what was staged behind `mark`. Raises OSError."""
    if mark >= growing.written:
        del growing.buffer[mark - growing.written :]
    else:
        growing.buffer.clear()
        growing.written = mark
    growing.size = mark
    if os.fstat(growing.file).st_size > growing.written:
        os.ftruncate(growing.file, growing.written)


def _write_journal(growing: _Growing) -> None:
    """Best effort: a journal that cannot be kept costs a walk through the segment when it is sealed."""
    lines = b"".join(growing.lines)
    growing.lines.clear()
    if not growing.journal_whole:
        return
    try:
        write_all(growing.journal, lines, growing.journal_bytes)
        growing.journal_bytes += len(lines)
    except OSError:
        growing.journal_whole = False
