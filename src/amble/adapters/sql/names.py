"""The names of the frontier files of a crawl folder, one for each partition, and how many there may be."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from amble.adapters.sql.settings import FILES_MAX
from amble.domain.errors import CrawlFolderUnusable

_STEM: Final = "frontier"


def file_of(first: Path, partition: int) -> Path:
    """Where a partition lives: `frontier.db`, `frontier-1.db`, …, beside the first one."""
    return first if partition == 0 else first.with_name(f"{_STEM}-{partition}.db")


def files_of(first: Path) -> list[Path]:
    """The files that there are, by partition; empty where no crawl was begun.

    Raises CrawlFolderUnusable when one of them is missing.
    """
    found = [number for number in range(FILES_MAX) if file_of(first, number).is_file()]
    if not first.is_file():
        return []
    if found != list(range(len(found))):
        missing = next(number for number in range(FILES_MAX) if number not in found)
        raise CrawlFolderUnusable(
            f"{file_of(first, missing)} is missing, a part of this crawl; put it back, or go on in another folder"
        )
    return [file_of(first, number) for number in found]


def refuse_other_number(first: Path, files: int) -> None:
    """A crawl keeps the number of files that it was begun with. Raises CrawlFolderUnusable for another one."""
    have = len(files_of(first))
    # The first file is made last: without it, others are left of a start that was cut short.
    more = file_of(first, files)
    if have == 0 and more.is_file():
        raise CrawlFolderUnusable(f"{more} is left of a crawl that was never begun; remove it")
    if have not in (0, files):
        raise CrawlFolderUnusable(
            f"{first.parent} was begun with store.files = {have}, which cannot change: "
            f"set store.files = {have}, or begin another folder for {files}"
        )
