"""Broken promises, one class per kind. Expected outcomes are values (`decision.py`), never exceptions."""

from __future__ import annotations


class AmbleError(Exception):
    """Base of every exception that amble raises on purpose. `str()` is one line an operator can read."""


class ConfigErrors(AmbleError):
    """The configuration has mistakes. All of them are listed, each with the setting and the fix."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class CrawlFolderBusy(AmbleError):
    """Another live process owns the crawl folder."""


class CrawlFolderUnusable(AmbleError):
    """The crawl folder is missing, unreadable, or made by a newer amble."""


class StoreUnavailable(AmbleError):
    """The frontier store cannot answer now (disk full, locked, gone). Nothing was changed; try again later."""


class StoreBroken(AmbleError):
    """The frontier store answered something impossible: a bug or a corrupted file."""


class StoreUnfit(StoreBroken):
    """The frontier store is whole, but not one that can be worked with as it is. The message names the fix."""


class OperationRefused(StoreBroken):
    """The frontier store cannot carry out this one call, whenever it is made: a mistake of ours. Others are unharmed."""


class ArchiveUnavailable(AmbleError):
    """The archive cannot be written or read now (disk full, read-only). Nothing was acknowledged."""


class ArchiveBroken(AmbleError):
    """A record in the archive is missing or does not match its reference or digest."""


class SegmentMissing(ArchiveBroken):
    """A whole segment is gone, so that every reference into it leads nowhere."""


class SandboxUnavailable(AmbleError):
    """No parser child can be started or kept alive."""


class SinkUnavailable(AmbleError):
    """A document sink cannot take documents now (disk full, read-only, gone). What it had accepted is kept."""


class SinkBroken(AmbleError):
    """A document sink's files contradict each other or the caller: documents out of order, or lines that are gone."""
