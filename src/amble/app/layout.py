"""The paths of a crawl folder that belong to amble itself: frontier, archive, and what a running process leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from amble.app.folder import FRONTIER_NAME
from amble.domain.errors import CrawlFolderUnusable

ARCHIVE_NAME = "archive"
RUN_NAME = "run"
LOCK_NAME = "lock"
STATUS_NAME = "status.json"
LOG_NAME = "events.jsonl"
SPOOL_NAME = "spool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The paths of one crawl folder."""

    root: Path

    @property
    def frontier(self) -> Path:
        """The SQLite file."""
        return self.root / FRONTIER_NAME

    @property
    def archive(self) -> Path:
        """The WARC segments."""
        return self.root / ARCHIVE_NAME

    @property
    def run(self) -> Path:
        """Lock, log, status: what belongs to the running process."""
        return self.root / RUN_NAME

    @property
    def status(self) -> Path:
        """Progress of the running crawl, rewritten every second."""
        return self.run / STATUS_NAME

    @property
    def lock(self) -> Path:
        """Held while a process owns the folder."""
        return self.run / LOCK_NAME

    @property
    def log(self) -> Path:
        """Events of all runs, JSON lines."""
        return self.run / LOG_NAME

    @property
    def spool(self) -> Path:
        """Bodies too large for memory, while they are fetched."""
        return self.run / SPOOL_NAME

    def make(self) -> None:
        """Create what is missing. Raises CrawlFolderUnusable."""
        try:
            for path in (self.root, self.archive, self.run, self.spool):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CrawlFolderUnusable(
                f"{self.root}: {error.strerror}; mend its permissions or name another folder with --out"
            ) from error
