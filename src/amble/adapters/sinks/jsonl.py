"""Documents as JSON lines in a file, exactly once by position, over crashes and repeats."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from amble.domain.document import Document
from amble.domain.errors import SinkBroken, SinkUnavailable


class _Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Up to which publication of which crawl, and to which byte, the file is committed.

    `sequence` is that of partition 0, `others` those of further partitions.
    """

    sequence: int
    bytes: int
    crawl: str = ""
    others: dict[int, int] = {}

    def of(self, partition: int) -> int:
        return self.others.get(partition, 0) if partition else self.sequence


class JsonlSink:
    """Appends documents in the order of their sequence numbers, which each partition counts by itself; each exactly once.

    Beside the file lies a mark: the highest sequences in it and the length of the file at that point. Lines are synced
    before the mark is replaced, and what lies behind the mark is cut when the sink is opened, so a document is in the
    file exactly if the mark covers it. A repeat is skipped. Not for two threads at once.
    """

    def __init__(self, path: Path, *, crawl: str = "") -> None:
        """Open or create. `crawl` tells crawls apart, whose publications are each numbered from 1.

        Raises SinkUnavailable when the file cannot be used, SinkBroken when lines are missing or those of another crawl.
        """
        self._path = path
        self._crawl = crawl
        self._mark_path = path.with_name(path.name + ".position")
        self._encode = msgspec.json.Encoder().encode
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unavailable(error) from error
        try:
            self._mark = self._recover()
        except BaseException:
            os.close(self._file)
            raise
        self._closed = False
        self._doubtful = False  # whether the mark on disk may be newer than the one in memory

    def position(self, partition: int = 0) -> int:
        """The highest sequence number of a partition that is durably in the file; 0 when there is none."""
        return self._mark.of(partition)

    def write(self, documents: Iterable[tuple[int, Document]], partition: int = 0) -> int:
        """Append (sequence, document) pairs of a partition in ascending order; durable on return. Returns the new position.

        Pairs up to `position()` are repeats and skipped. Sequence numbers may have gaps, for documents that are not
        eligible. Raises SinkUnavailable, after which the same call may be made again, and SinkBroken when the order is
        not ascending.
        """
        if self._closed:
            raise SinkUnavailable(f"sink {self._path}: it is closed")
        if self._doubtful:
            self._reload()
        lines = bytearray()
        last = known = self._mark.of(partition)
        previous = -1
        for sequence, document in documents:
            if sequence <= previous:
                raise SinkBroken(f"sink {self._path}: publication {sequence} came after {previous}")
            previous = sequence
            if sequence <= known:
                continue
            lines += self._encode(document) + b"\n"
            last = sequence
        if not lines:
            return last
        self._commit(self._moved(partition, last, len(lines)), lines)
        return last

    def _moved(self, partition: int, sequence: int, more: int) -> _Mark:
        mark = self._mark
        others = mark.others if not partition else mark.others | {partition: sequence}
        return _Mark(
            sequence=mark.sequence if partition else sequence,
            bytes=mark.bytes + more,
            crawl=self._crawl,
            others=others,
        )

    def close(self) -> None:
        """Let go of the file. What was written is durable already."""
        if not self._closed:
            self._closed = True
            os.close(self._file)

    def _commit(self, mark: _Mark, lines: bytearray) -> None:
        try:
            # A call that failed may have left bytes behind the mark: every call writes from the mark.
            _write_all(self._file, lines, self._mark.bytes)
            os.ftruncate(self._file, mark.bytes)
            os.fdatasync(self._file)
            self._write_mark(mark)
        except OSError as error:
            self._doubtful = True
            raise self._unavailable(error) from error
        self._mark = mark

    def _reload(self) -> None:
        """After a failed commit: the mark on disk decides, because lines are synced before it is replaced."""
        try:
            self._mark = self._read_mark() or self._mark
        except OSError as error:
            raise self._unavailable(error) from error
        self._doubtful = False

    def _recover(self) -> _Mark:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(self._file).st_size
            mark = self._read_mark()
            if mark is None:
                if size:
                    raise SinkBroken(
                        f"sink {self._path}: the file is not empty and has no {self._mark_path.name}"
                    )
                mark = _Mark(sequence=0, bytes=0, crawl=self._crawl)
                self._write_mark(mark)
            if (mark.sequence or mark.others) and mark.crawl not in ("", self._crawl):
                raise SinkBroken(f"sink {self._path}: it holds the documents of another crawl")
            if size < mark.bytes:
                raise SinkBroken(f"sink {self._path}: {mark.bytes - size} bytes that were written are gone")
            if size > mark.bytes:
                os.ftruncate(self._file, mark.bytes)
                os.fsync(self._file)
        except BlockingIOError as error:
            raise SinkUnavailable(f"sink {self._path}: another process writes it") from error
        except OSError as error:
            raise self._unavailable(error) from error
        return mark

    def _read_mark(self) -> _Mark | None:
        try:
            return msgspec.json.decode(self._mark_path.read_bytes(), type=_Mark)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise SinkBroken(f"sink {self._path}: {self._mark_path.name} is damaged: {error}") from error

    def _write_mark(self, mark: _Mark) -> None:
        part = self._mark_path.with_name(self._mark_path.name + ".part")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write_all(handle, self._encode(mark), 0)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(part, self._mark_path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _unavailable(self, error: OSError) -> SinkUnavailable:
        return SinkUnavailable(f"sink {self._path}: {error.strerror or type(error).__name__}")


def _write_all(file: int, data: bytes | bytearray, offset: int) -> None:
    done = os.pwrite(file, data, offset)
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)
