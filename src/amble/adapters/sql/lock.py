"""The lock of a crawl folder: `run/lock`, held by flock, with the owner's pid inside for people.

The kernel lets go of it when the last process that has the file open ends, however it ends, so a lock is never
stale. Agent and store process share one open file: the folder is free when both are gone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# A killed agent's store process may still be finishing its last batch.
WAIT_S: Final = 5.0
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Busy:
    """Another live process holds the folder. `pid` is what the file says, 0 when it says nothing."""

    pid: int


@dataclass(frozen=True, slots=True)
class FolderLock:
    """The folder is ours while `fd`, or a copy of it in a child, is open."""

    fd: int
    path: Path

    def release(self) -> None:
        """Let go. A child that inherited the file holds the folder on."""
        os.close(self.fd)


def acquire(path: Path, *, wait_s: float = WAIT_S) -> FolderLock | Busy:
    """Take the lock file at `path`, waiting up to `wait_s` for a dying owner. Raises OSError when it cannot be made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline_s = time.monotonic() + wait_s
    while not _try(fd):
        if time.monotonic() >= deadline_s:
            busy = Busy(_owner(fd))
            os.close(fd)
            return busy
        time.sleep(_PAUSE_S)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return FolderLock(fd, path)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def _owner(fd: int) -> int:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else 0
