"""Names in the archive folder, and the few file operations that all of its parts share."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

OPEN = ".open"  # suffix of what is still being written
_NAME = re.compile(r"amble-\d{14}-(?P<serial>\d{8})-[A-Za-z0-9._~-]+(?=\.warc\.gz)")

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission is missing",
    errno.EPERM: "permission is missing",
    errno.EFBIG: "a file may not grow any further (file size limit)",
    errno.EIO: "the disk reports an error",
    errno.EMFILE: "this process has too many open files",
    errno.ENFILE: "the machine has too many open files",
    errno.ENOENT: "the folder is gone",
    errno.ESTALE: "the folder is gone",
    errno.ENOTDIR: "it is not a folder",
}


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of the folder. `stem` is the file name up to `.warc.gz`; `sealed` False while it may still grow."""

    folder: Path
    stem: str
    serial: int
    sealed: bool

    @property
    def file_name(self) -> str:
        """The name of the sealed file, as index lines and documents state it."""
        return f"{self.stem}.warc.gz"

    @property
    def path(self) -> Path:
        """Where the segment is now."""
        return self.folder / (self.file_name if self.sealed else self.file_name + OPEN)

    @property
    def index_path(self) -> Path:
        """The sorted index of a sealed segment."""
        return self.folder / f"{self.stem}.cdxj"

    @property
    def journal_path(self) -> Path:
        """Index lines of a segment that is still written, in order of offset."""
        return self.folder / f"{self.stem}.cdxj{OPEN}"


def new_segment(folder: Path, time14: str, serial: int, tag: str) -> Segment:
    """A segment that does not exist yet. `tag` tells machines and processes apart."""
    clean = re.sub(r"[^A-Za-z0-9._~-]", "_", tag) or "amble"
    return Segment(folder, f"amble-{time14}-{serial:08d}-{clean}", serial, sealed=False)


def list_segments(folder: Path) -> list[Segment]:
    """All segments of the folder by serial. A sealed file beats an open one of the same name. Raises OSError."""
    found: dict[str, Segment] = {}
    for name in os.listdir(folder):
        match = _NAME.match(name)
        if match is None:
            continue
        rest = name[match.end() :]
        if rest == ".warc.gz" or (rest == ".warc.gz" + OPEN and match[0] not in found):
            found[match[0]] = Segment(folder, match[0], int(match["serial"]), sealed=rest == ".warc.gz")
    return sorted(found.values(), key=lambda segment: segment.serial)


def folder_serial(file_name: str) -> int | None:
    """The serial in the name of a sealed segment; None for other names."""
    match = _NAME.match(file_name)
    return int(match["serial"]) if match and file_name[match.end() :] == ".warc.gz" else None


def sync_folder(folder: Path) -> None:
    """Make creations and renames in `folder` durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(file: int, data: bytes | bytearray, offset: int) -> None:
    """Write all of `data` at `offset`. Raises OSError."""
    done = os.pwrite(file, data, offset)
    while done < len(data):
        # Released before an error leaves, else the traceback would keep a bytearray from being resized.
        with memoryview(data) as view, view[done:] as rest:
            done += os.pwrite(file, rest, offset + done)


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file so that readers see the old or the new content, never a part. Raises OSError."""
    part = path.with_name(path.name + ".part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(handle, data, 0)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(part, path)


def explain(error: OSError, folder: Path) -> str:
    """One line that an operator can act on."""
    reason = _REASONS.get(error.errno or 0, error.strerror or type(error).__name__)
    return f"archive {folder}: {reason}"
