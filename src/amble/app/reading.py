"""The composition root of the commands that look at a crawl, running or not.

One root for each thing that commands do, because importing adapters is most of what a short command costs.
"""

from __future__ import annotations

from pathlib import Path

from amble.adapters.sql.reports import SqliteReports
from amble.app.folder import FRONTIER_NAME
from amble.app.layout import Folder
from amble.domain.errors import CrawlFolderUnusable


def open_reports(root: Path) -> SqliteReports:
    """Read-only questions about the crawl in `root`, running or not. Raises CrawlFolderUnusable."""
    folder = Folder(root=root)
    if not folder.frontier.is_file():
        raise CrawlFolderUnusable(f"{root}: there is no crawl here (no {FRONTIER_NAME}); name its folder")
    return SqliteReports(folder.frontier)
