"""Reads an archive on object storage without an event loop: by reference, segment by segment, and a check of it all.

Changes nothing; safe beside running writers and compactors. For one thread at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from amble.adapters.archive import objects_names as names
from amble.adapters.archive.check import Problem
from amble.adapters.archive.index import line_of
from amble.adapters.archive.member import Damage, Member, walk
from amble.adapters.archive.names import folder_serial
from amble.adapters.archive.objects import opened
from amble.adapters.archive.objects_map import Maps, load_now
from amble.adapters.archive.objects_store import Bucket
from amble.domain.errors import ArchiveBroken, ArchiveUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.record import StoredRecord
from amble.formats import warc


@dataclass(frozen=True, slots=True)
class SegmentObject:
    """One WARC file of the archive. `compacted`: it was made of others, and has an index beside it."""

    key: str
    serial: int
    size: int
    compacted: bool

    @property
    def file_name(self) -> str:
        """The name that the file states of itself."""
        return names.file_name(self.key)


class ObjectReader:
    """Records by reference, wherever compaction has moved them."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._maps: Maps | None = None

    def read(self, ref: BodyRef) -> StoredRecord:
        """The record at `ref`. Raises ArchiveBroken when it is not there or not whole, ArchiveUnavailable on I/O."""
        data = self._look(ref)
        if data is None and load_now(self._bucket, self._known()):
            data = self._look(ref)
        return opened(data, ref, self._bucket.place)

    def file_name(self, serial: int) -> str:
        """The name of the file that holds the segment now."""
        return self._known().file_name(serial)

    def segments(self) -> list[SegmentObject]:
        """Every WARC file, each record in exactly one of them: what was compacted is left out where it still lies about."""
        maps = Maps()
        load_now(self._bucket, maps)
        sizes = {seen.key: seen.size for seen in self._bucket.list_now(names.LARGE)}
        large = [
            SegmentObject(found.key, found.serial, found.size, compacted=True)
            for found in maps.all
            if sizes.get(found.key) == found.size
        ]
        whole = {segment.key for segment in large}
        small: list[SegmentObject] = []
        for seen in self._bucket.list_now(names.SEGMENTS):
            serial = names.serial_of(seen.key)
            if serial is None:
                continue
            moved = maps.map_of(serial)
            if moved is None or moved.key not in whole:
                small.append(SegmentObject(seen.key, serial, seen.size, compacted=False))
        return sorted([*large, *small], key=lambda segment: segment.serial)

    def close(self) -> None:
        """Nothing is held open."""

    def _known(self) -> Maps:
        if self._maps is None:
            maps = Maps()
            load_now(self._bucket, maps)
            self._maps = maps
        return self._maps

    def _look(self, ref: BodyRef) -> bytes | None:
        for place in self._known().places(ref.segment, ref.offset, ref.length):
            data = self._bucket.range_now(place.key, place.offset, ref.length)
            if data is not None:
                return data
        return None


def is_arrived(key: str, warcinfo: StoredRecord) -> bool:
    """Whether the segment at `key` was written as a file of a folder, and then put into the bucket under its serial."""
    named = folder_serial(warcinfo.headers.get("WARC-Filename", ""))
    return named is not None and named == names.serial_of(key)


@contextmanager
def fetched(bucket: Bucket, key: str) -> Iterator[IO[bytes] | None]:
    """An object as a temporary file, gone at the end; None: no such object. Raises ArchiveUnavailable."""
    try:
        with tempfile.TemporaryFile(prefix="amble-") as file:
            found = bucket.fetch_now(key, file)
            file.flush()
            yield file if found else None
    except OSError as error:
        raise ArchiveUnavailable(f"a temporary file for {key}: {error.strerror or error}") from error


def index_lines(bucket: Bucket, segment: SegmentObject) -> list[bytes]:
    """The sorted CDXJ lines of a segment: from its index where there is one, else from its records.

    Raises ArchiveBroken when the segment is gone, ArchiveUnavailable.
    """
    if segment.compacted and (data := bucket.get_now(names.index_key(segment.key))) is not None:
        return data.splitlines(keepends=True)
    with fetched(bucket, segment.key) as file:
        if file is None:
            raise ArchiveBroken(f"{segment.key} is not in {bucket.place}")
        lines = []
        for found in walk(file.fileno()):
            if isinstance(found, Member):
                line = line_of(warc.read_record(found.data), found, segment.file_name)
                if line is not None:
                    lines.append(line)
        return sorted(lines)


def verify_objects(bucket: Bucket) -> Iterator[Problem]:
    """Every problem of the archive: maps, members, lengths, digests, indexes. None means that all is as written.

    Reads every object once. Raises nothing: trouble with the store is a problem as well, and ends the check.
    """
    try:
        maps = Maps()
        load_now(bucket, maps)
        yield from _maps(bucket, maps)
        for segment in ObjectReader(bucket).segments():
            yield from _segment(bucket, segment)
    except (ArchiveBroken, ArchiveUnavailable) as error:
        yield Problem(bucket.place, -1, str(error))


def _maps(bucket: Bucket, maps: Maps) -> Iterator[Problem]:
    """Maps whose object is not as they say. A problem only where what they moved cannot be read in its old place."""
    small = {names.serial_of(seen.key) for seen in bucket.list_now(names.SEGMENTS)}
    sizes = {seen.key: seen.size for seen in bucket.list_now(names.LARGE)}
    for found in maps.all:
        size = sizes.get(found.key)
        if size == found.size:
            continue
        lost = [serial for serial in maps.serials_of(found.number) if serial not in small]
        if lost:
            what = "is gone" if size is None else f"has {size} bytes, its map says {found.size}"
            yield Problem(found.key, -1, f"{what}: {len(lost)} segments were in it and nowhere else")


def _segment(bucket: Bucket, segment: SegmentObject) -> Iterator[Problem]:
    expected: list[bytes] = []
    with fetched(bucket, segment.key) as file:
        if file is None:
            if segment.compacted:
                yield Problem(segment.key, -1, "is gone")
            return  # it was compacted, and deleted, since the listing: the next check sees it there
        yield from _members(segment, file, expected)
    if segment.compacted:
        yield from _index(bucket, segment, sorted(expected))


def _members(segment: SegmentObject, file: IO[bytes], expected: list[bytes]) -> Iterator[Problem]:
    ids: set[str] = set()
    bound = ""  # to which warcinfo record the others may refer: only in a file that arrived as it is from a folder
    for found in walk(file.fileno()):
        if isinstance(found, Damage):
            yield Problem(segment.key, found.offset, f"{found.reason} ({found.end - found.offset} bytes)")
            continue
        try:
            stored = warc.read_record(found.data)
        except ValueError as error:
            yield Problem(segment.key, found.offset, str(error))
            continue
        if stored.warc_type == "warcinfo" and is_arrived(segment.key, stored):
            bound = stored.record_id
        for what in _record(segment, found, stored, ids, bound):
            yield Problem(segment.key, found.offset, what)
        line = line_of(stored, found, segment.file_name)
        if line is not None:
            expected.append(line)
    if not ids:
        yield Problem(segment.key, -1, "no whole record is in it")


def _record(
    segment: SegmentObject, member: Member, stored: StoredRecord, ids: set[str], bound: str
) -> Iterator[str]:
    problem = warc.digest_problem(stored)
    if problem:
        yield problem
    if stored.record_id in ids:
        yield "its WARC-Record-ID is that of an earlier record of this segment"
    ids.add(stored.record_id)
    if (stored.warc_type == "warcinfo") != (member.offset == 0):
        yield (
            "a second warcinfo record"
            if member.offset
            else "the segment does not begin with a warcinfo record"
        )
    named = stored.headers.get("WARC-Filename")
    if stored.warc_type == "warcinfo" and named != segment.file_name and not bound:
        yield "its WARC-Filename is that of another file"
    if stored.headers.get("WARC-Warcinfo-ID", bound) != bound:
        yield "it names a warcinfo record, and stays behind it when it is moved"


def _index(bucket: Bucket, segment: SegmentObject, expected: list[bytes]) -> Iterator[Problem]:
    key = names.index_key(segment.key)
    data = bucket.get_now(key)
    if data is None:
        yield Problem(key, -1, "the index is missing")
    elif data.splitlines(keepends=True) != expected:
        yield Problem(key, -1, "the index does not fit its segment")
