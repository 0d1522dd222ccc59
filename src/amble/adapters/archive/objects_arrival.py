"""Segments of a folder put into a bucket under their own serials, so that every reference into them stays good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from amble.adapters.archive import objects_names as names
from amble.adapters.archive.names import Segment, list_segments
from amble.adapters.archive.objects_serials import BLOCK
from amble.adapters.archive.objects_store import Bucket
from amble.adapters.archive.recovery import recover
from amble.domain.errors import ArchiveBroken, ArchiveUnavailable

_PIECE = 8 << 20


def copy_segments(
    folder: Path, bucket: Bucket, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> int:
    """Put every segment of `folder` that is not in the bucket yet; the highest serial, 0 for an empty folder.

    What an unclean end has left open is sealed first. May be repeated: what has arrived whole is left alone. Serials
    that are claimed in the bucket later come after those that arrived. Raises ArchiveUnavailable, and ArchiveBroken
    where another object has the name of a segment.
    """
    try:
        recover(folder)
        segments = list_segments(folder)
        for number, segment in enumerate(segments):
            _copy(segment, bucket)
            progress(number + 1, len(segments))
    except OSError as error:
        raise ArchiveUnavailable(f"archive {folder}: {error.strerror or error}") from error
    last = max((segment.serial for segment in segments), default=0)
    if last:
        # Whoever claims serials later goes on behind the newest claim.
        bucket.create_now(names.claim_key((last - 1) // BLOCK), b"")
    return last


def _copy(segment: Segment, bucket: Bucket) -> None:
    key = names.segment_key(segment.serial)
    size = segment.path.stat().st_size
    there = bucket.size_now(key)
    if there is None:
        with segment.path.open("rb") as file:
            bucket.upload_now(key, file)
        there = bucket.size_now(key)
    if there != size or not _same(segment, bucket, key):
        raise ArchiveBroken(f"{bucket.place}: {key} is not {segment.file_name}; name an empty place")


def _same(segment: Segment, bucket: Bucket, key: str) -> bool:
    """Read back what was put: a reference into it will be trusted for as long as the crawl lives."""
    at = 0
    with segment.path.open("rb") as file:
        while piece := file.read(_PIECE):
            if bucket.range_now(key, at, len(piece)) != piece:
                return False
            at += len(piece)
    return True
