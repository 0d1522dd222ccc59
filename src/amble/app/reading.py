"""The composition root of the commands that look at a crawl, running or not, in a folder or in a database.

One root for each thing that commands do, because importing adapters is most of what a short command costs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from amble.app import folder as crawl_folder
from amble.app.folder import FRONTIER_NAME, OWN_SERVER
from amble.app.layout import Folder
from amble.domain.errors import CrawlFolderUnusable

if TYPE_CHECKING:
    from collections.abc import Callable

    from amble.adapters.postgres.reports import PostgresReports
    from amble.adapters.sql.reports import StoreReports

    R = TypeVar("R", bound=PostgresReports)

# What the database of `amble fleet` is called.
OWN_DATABASE = "crawl"


def open_reports(root: Path) -> StoreReports:
    """Read-only questions about the crawl of `root`, running or not: its own, or that of the database it names.

    Raises ConfigErrors, CrawlFolderUnusable, StoreUnavailable, StoreBroken.
    """
    url = crawl_folder.store_url_of(root, os.environ)
    if url:
        from amble.adapters.postgres.placement import servers_of
        from amble.adapters.postgres.reports import PostgresReports
        from amble.adapters.postgres.servers_reports import ServersReports

        dsns = servers_of(url)
        return serving(root, url, PostgresReports) if len(dsns) == 1 else ServersReports(dsns)
    return open_files(root)


def serving(root: Path, url: str, opened: Callable[[str], R]) -> R:
    """`opened(url)`; where the server is the folder's own (`amble fleet`) and has ended with it, it runs again meanwhile.

    Raises StoreUnavailable, StoreBroken.
    """
    from amble.domain.errors import StoreUnavailable

    own = root / OWN_SERVER
    if own.is_dir():
        # The password of this server stands in a file beside it; one meant for another server would win over that.
        os.environ.pop("PGPASSWORD", None)
    try:
        return opened(url)
    except StoreUnavailable:
        if not (own / "data" / "PG_VERSION").is_file():
            raise
    from amble.adapters.postgres.embedded import EmbeddedPostgres

    server = EmbeddedPostgres.start(own)
    try:
        reports = opened(server.dsn(OWN_DATABASE))
    except BaseException:
        server.close()
        raise
    reports.after_close = server.close
    return reports


def open_files(root: Path) -> StoreReports:
    """The same of the frontier files of a folder."""
    from amble.adapters.sql.files import FilesReports
    from amble.adapters.sql.reports import SqliteReports

    paths = frontier_files(root)
    return SqliteReports(paths[0]) if len(paths) == 1 else FilesReports(paths)


def frontier_files(root: Path) -> list[Path]:
    """The frontier files of the crawl in `root`, one or more. Raises CrawlFolderUnusable."""
    from amble.adapters.sql.names import files_of

    paths = files_of(Folder(root=root).frontier)
    if not paths:
        raise CrawlFolderUnusable(f"{root}: there is no crawl here (no {FRONTIER_NAME}); name its folder")
    return paths
