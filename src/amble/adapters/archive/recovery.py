"""What an earlier writer left behind: unsealed segments with a torn tail, and missing indexes.

Only bytes that were never acknowledged can be torn, because an append is acknowledged after its sync. So cutting a
segment behind its last whole record loses nothing. Damage before that record is left for the checker to report.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from amble.adapters.archive.index import lines_from, read_journal, write_index
from amble.adapters.archive.member import Member, walk
from amble.adapters.archive.names import OPEN, Segment, list_segments, sync_folder
from amble.domain.errors import ArchiveUnavailable


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery did to one segment: `cut_bytes` of torn tail removed; `sealed` False when nothing was in it."""

    segment: Segment
    cut_bytes: int
    sealed: bool


def recover(folder: Path) -> list[Recovered]:
    """Seal every segment that has no writer, and write the indexes that are missing.

    Raises OSError when the folder cannot be written, ArchiveUnavailable when another process writes a segment.
    """
    done = []
    for segment in list_segments(folder):
        if not segment.sealed:
            done.append(_recover_segment(segment))
        elif not segment.index_path.exists():
            _rebuild_index(segment)
    _remove_strays(folder)
    return done


def lock(file: int, segment: Segment) -> None:
    """Hold the segment as its only writer until `file` is closed. Raises ArchiveUnavailable when it is held."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ArchiveUnavailable(
            f"archive {segment.folder}: another process writes {segment.path.name}"
        ) from None


def seal(segment: Segment, lines: Iterable[bytes]) -> Segment:
    """Write the index, give the segment its final name, drop the journal. Raises OSError; may then be repeated."""
    sealed = Segment(segment.folder, segment.stem, segment.serial, sealed=True)
    write_index(segment, list(lines))
    os.rename(segment.path, sealed.path)
    sync_folder(segment.folder)
    segment.journal_path.unlink(missing_ok=True)
    return sealed


def _recover_segment(segment: Segment) -> Recovered:
    file = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        lock(file, segment)
        size = os.fstat(file).st_size
        lines, start = read_journal(segment.journal_path, size)
        end = start
        for found in walk(file, start):
            if isinstance(found, Member):
                end = found.offset + found.length
        if end < size:
            os.ftruncate(file, end)
            os.fsync(file)
        if end == 0:
            segment.path.unlink()
            segment.journal_path.unlink(missing_ok=True)
            sync_folder(segment.folder)
            return Recovered(segment, size, sealed=False)
        sealed = seal(segment, [*lines, *lines_from(file, start, segment.file_name)])
        return Recovered(sealed, size - end, sealed=True)
    finally:
        os.close(file)


def _rebuild_index(segment: Segment) -> None:
    file = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        write_index(segment, list(lines_from(file, 0, segment.file_name)))
    finally:
        os.close(file)
    sync_folder(segment.folder)


def _remove_strays(folder: Path) -> None:
    """Journals whose segment is sealed already, and half-written indexes: what a crash while sealing leaves."""
    for name in os.listdir(folder):
        stem = name.removesuffix(f".cdxj{OPEN}")
        orphan = stem != name and not (folder / f"{stem}.warc.gz{OPEN}").exists()
        if orphan or name.endswith(".cdxj.part") or name.startswith(".probe-"):
            (folder / name).unlink(missing_ok=True)
