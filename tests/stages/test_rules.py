"""The robots rules at hand: bounded by number and by size, and had again from the archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from amble.adapters.archive.directory import DirectoryArchive
from amble.adapters.system import SystemClock, SystemEntropy
from amble.domain.fetched import BodyRef
from amble.domain.manifest import RobotsRules
from amble.stages.rules import RobotsBook


def ref(number: int) -> BodyRef:
    return BodyRef(1, number, 10)


def rules(count: int) -> RobotsRules:
    return RobotsRules(tuple((False, f"/{number}") for number in range(count)))


@pytest.fixture
def archive(tmp_path: Path) -> DirectoryArchive:
    return DirectoryArchive(tmp_path, SystemClock(), SystemEntropy())


async def test_the_rules_that_were_used_last_are_kept(archive: DirectoryArchive) -> None:
    book = RobotsBook(archive, sets_max=2)
    first = book.remember(ref(1), rules(1))
    book.remember(ref(2), rules(1))
    assert await book.rules(ref(1)) is first
    book.remember(ref(3), rules(1))
    assert len(book) == 2
    assert await book.rules(ref(1)) is first


def test_files_of_many_rules_push_others_out_before_they_fill_memory(archive: DirectoryArchive) -> None:
    book = RobotsBook(archive, rules_max=100)
    for number in range(50):
        book.remember(ref(number), rules(30))
    assert len(book) == 3
    book.remember(ref(99), rules(1_000))
    assert len(book) == 1
    for number in range(50):
        book.remember(ref(number), rules(1))
    assert len(book) == 50


def test_the_same_file_read_again_counts_once(archive: DirectoryArchive) -> None:
    book = RobotsBook(archive, rules_max=100)
    book.remember(ref(1), rules(10))
    for _ in range(20):
        book.remember(ref(2), rules(60))
    assert len(book) == 2
