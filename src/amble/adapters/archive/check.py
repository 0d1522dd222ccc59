"""Checks a folder of segments from the outside: every member, length, digest and index line. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from amble.adapters.archive.index import line_of
from amble.adapters.archive.member import Damage, Member, walk
from amble.adapters.archive.names import Segment, explain, list_segments
from amble.domain.record import StoredRecord
from amble.formats import warc


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in an archive. `offset` -1: with the file as a whole."""

    file: str
    offset: int
    what: str

    def __str__(self) -> str:
        place = self.file if self.offset < 0 else f"{self.file} at byte {self.offset}"
        return f"{place}: {self.what}"


def verify(folder: Path) -> Iterator[Problem]:
    """Every problem of the archive in `folder`, segment by segment; none means that all is as it was written.

    Segments that are still written are checked up to what is in the file; their tail may be in flight, so bytes that
    just stop at its end are no problem there, and they have no index yet.
    """
    try:
        segments = list_segments(folder)
    except OSError as error:
        yield Problem(str(folder), -1, explain(error, folder))
        return
    yield from _serials(segments)
    for segment in segments:
        yield from _verify_segment(segment)


def _serials(segments: list[Segment]) -> Iterator[Problem]:
    for before, after in pairwise(segments):
        if before.serial == after.serial:
            yield Problem(after.path.name, -1, f"has the same serial as {before.path.name}")


def _verify_segment(segment: Segment) -> Iterator[Problem]:
    name = segment.path.name
    try:
        file = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # it was sealed, thus renamed, since the folder was listed: the next check sees it
    except OSError as error:
        yield Problem(name, -1, explain(error, segment.folder))
        return
    try:
        expected: list[bytes] = []
        yield from _verify_members(segment, file, expected)
        if segment.sealed:
            yield from _verify_index(segment, sorted(expected))
    except OSError as error:
        yield Problem(name, -1, explain(error, segment.folder))
    finally:
        os.close(file)


def _verify_members(segment: Segment, file: int, expected: list[bytes]) -> Iterator[Problem]:
    """Problems of the records; adds the index lines that there should be to `expected`."""
    name = segment.path.name
    warcinfo_id = ""
    ids: set[str] = set()
    tail: Damage | None = None
    for found in walk(file):
        if tail is not None:
            yield Problem(name, tail.offset, f"{tail.reason} ({tail.end - tail.offset} bytes)")
            tail = None
        if isinstance(found, Damage):
            tail = found  # in a segment that is still written it is a problem only if something whole follows
            continue
        try:
            stored = warc.read_record(found.data)
        except ValueError as error:
            yield Problem(name, found.offset, str(error))
            continue
        if found.offset == 0 and stored.warc_type == "warcinfo":
            warcinfo_id = stored.record_id
        for what in _record_problems(segment, found, stored, warcinfo_id, ids):
            yield Problem(name, found.offset, what)
        line = line_of(stored, found, segment.file_name)
        if line is not None:
            expected.append(line)
    if tail is not None and segment.sealed:
        yield Problem(name, tail.offset, f"{tail.reason} ({tail.end - tail.offset} bytes)")
    if not warcinfo_id and segment.sealed:
        yield Problem(name, 0, "the segment does not begin with a warcinfo record")


def _record_problems(
    segment: Segment, member: Member, stored: StoredRecord, warcinfo_id: str, ids: set[str]
) -> Iterator[str]:
    problem = warc.digest_problem(stored)
    if problem:
        yield problem
    if stored.record_id in ids:
        yield "its WARC-Record-ID is that of an earlier record of this segment"
    ids.add(stored.record_id)
    if stored.warc_type == "warcinfo":
        if member.offset != 0:
            yield "a second warcinfo record"
        if stored.headers.get("WARC-Filename") != segment.file_name:
            yield "its WARC-Filename is that of another file"
    elif stored.headers.get("WARC-Warcinfo-ID") != warcinfo_id:
        yield "it does not refer to the warcinfo record of its segment"


def _verify_index(segment: Segment, expected: list[bytes]) -> Iterator[Problem]:
    name = segment.index_path.name
    try:
        lines = segment.index_path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        yield Problem(name, -1, "the index is missing (the next crawl in this folder writes it again)")
        return
    if lines != sorted(lines):
        yield Problem(name, -1, "the index is not sorted")
    missing = len(set(expected) - set(lines))
    extra = len(set(lines) - set(expected))
    if missing:
        yield Problem(name, -1, f"{missing} captures of the segment are not in the index as they should be")
    if extra:
        yield Problem(name, -1, f"{extra} lines of the index fit no capture of the segment")
    if len(lines) != len(set(lines)):
        yield Problem(name, -1, "the index has a line twice")
