"""Reads records by reference from the segments of a folder. Changes nothing; safe beside a running writer."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

from amble.adapters.archive.member import open_member
from amble.adapters.archive.names import Segment, explain, list_segments
from amble.domain.errors import ArchiveBroken, ArchiveUnavailable, SegmentMissing
from amble.domain.fetched import BodyRef
from amble.domain.record import StoredRecord

OPEN_FILES_MAX = 64


class SegmentReader:
    """Keeps the most recently used segment files open. For one thread at a time."""

    def __init__(self, folder: Path, *, open_files_max: int = OPEN_FILES_MAX) -> None:
        self._folder = folder
        self._open_files_max = open_files_max
        self._segments: dict[int, Segment] = {}
        self._files: OrderedDict[int, int] = OrderedDict()

    def read(self, ref: BodyRef) -> StoredRecord:
        """The record at `ref`. Raises ArchiveBroken when it is not there or not whole, ArchiveUnavailable on I/O."""
        try:
            data = _read_at(self._file(ref.segment), ref)
        except OSError as error:
            raise ArchiveUnavailable(explain(error, self._folder)) from error
        try:
            return open_member(data)
        except ValueError as error:
            raise ArchiveBroken(f"record {ref} in {self._folder}: {error}") from error

    def file_name(self, serial: int) -> str:
        """The name that the segment has, or will have when it is sealed. Raises ArchiveBroken when there is none."""
        segment = self._segments.get(serial) or self._look(serial)
        if segment is None:
            raise SegmentMissing(f"segment {serial} is not in {self._folder}")
        return segment.file_name

    def close(self) -> None:
        """Let go of the files."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _file(self, serial: int) -> int:
        file = self._files.get(serial)
        if file is None:
            file = self._open(serial)
            self._files[serial] = file
            if len(self._files) > self._open_files_max:
                os.close(self._files.popitem(last=False)[1])
        self._files.move_to_end(serial)
        return file

    def _open(self, serial: int) -> int:
        for _ in range(3):  # a segment may be sealed, thus renamed, between the look and the open
            segment = self._segments.get(serial) or self._look(serial)
            if segment is None:
                break
            try:
                return os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._segments.pop(serial, None)
        raise SegmentMissing(f"segment {serial} is not in {self._folder}")

    def _look(self, serial: int) -> Segment | None:
        try:
            self._segments = {segment.serial: segment for segment in list_segments(self._folder)}
        except FileNotFoundError:
            return None
        return self._segments.get(serial)


def _read_at(file: int, ref: BodyRef) -> bytes:
    data = os.pread(file, ref.length, ref.offset)
    while len(data) < ref.length and (more := os.pread(file, ref.length - len(data), ref.offset + len(data))):
        data += more
    return data
