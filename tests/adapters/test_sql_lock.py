"""The lock of a crawl folder: one owner, freed by death, shared with a child."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from amble.adapters.sql.lock import Busy, FolderLock, acquire


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "lock"


def test_a_free_folder_is_taken_and_names_its_owner(path: Path) -> None:
    lock = acquire(path)
    assert isinstance(lock, FolderLock)
    assert path.read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_taken_folder_is_busy_with_the_owner_s_pid(path: Path) -> None:
    lock = acquire(path)
    assert isinstance(lock, FolderLock)
    assert acquire(path, wait_s=0.0) == Busy(os.getpid())
    lock.release()


def test_a_released_folder_can_be_taken_again(path: Path) -> None:
    first = acquire(path)
    assert isinstance(first, FolderLock)
    first.release()
    second = acquire(path, wait_s=0.0)
    assert isinstance(second, FolderLock)
    second.release()


def test_the_pid_of_a_dead_owner_keeps_nobody_out(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("999999999 and more text than a pid has\n")
    lock = acquire(path, wait_s=0.0)
    assert isinstance(lock, FolderLock)
    assert path.read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_child_holds_the_folder_until_it_ends_and_the_next_owner_waits_for_that(path: Path) -> None:
    lock = acquire(path)
    assert isinstance(lock, FolderLock)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=(lock.fd,)
    )
    lock.release()
    assert isinstance(acquire(path, wait_s=0.0), Busy)
    assert child.stdin is not None
    child.stdin.close()
    again = acquire(path, wait_s=5.0)
    assert isinstance(again, FolderLock)
    again.release()
    child.wait()
