"""The composition root of moving a crawl out of its folder: the frontier into a database, the segments into a bucket."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from amble.adapters.archive.objects_arrival import copy_segments
from amble.adapters.archive.objects_open import open_bucket
from amble.adapters.postgres.connection import connect, place_of
from amble.adapters.postgres.moving import Mover
from amble.adapters.postgres.seeds import add_seeds
from amble.adapters.postgres.setup import init, partitions_of
from amble.adapters.sql.connection import open_reader
from amble.adapters.sql.lock import Busy, acquire
from amble.app import folder as crawl_folder
from amble.app.config import complain
from amble.app.layout import Folder
from amble.domain.errors import ConfigErrors, CrawlFolderBusy, CrawlFolderUnusable

# Of a database that has none yet: several for each of as many agents as most fleets have.
PARTITIONS = 64
# Called with what is being moved and how far that has come.
Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveWishes:
    """What a move is asked for. `archive`: the bucket that takes the segments, "" leaves them in the folder.

    `partitions` None: as many as the database was prepared with, else `PARTITIONS`.
    """

    folder: Path
    database: str
    partitions: int | None = None
    archive: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveResult:
    """What was moved. `rows` by table, all of them read back and found equal; `last_segment` is the last serial moved.

    `before` True: the frontier had been moved there by an earlier command, so that only segments were.
    """

    database: str
    archive: str
    resumed: bool
    before: bool = False
    rows: dict[str, int] = field(default_factory=dict)
    last_segment: int = 0


def parse(source: str, target: str, partitions: int | None, archive: str) -> MoveWishes:
    """Both ends of a move as they are given on a command line. Raises ConfigErrors with every mistake."""
    problems = []
    scheme, _, path = source.partition(":")
    if scheme != "sqlite" or not path:
        problems.append(f"--from {source}: write sqlite:DIR, with the folder of the crawl")
    elif not crawl_folder.is_crawl_folder(Path(path)):
        problems.append(f"--from {source}: there is no crawl in {path}")
    if target.partition("://")[0] not in ("postgresql", "postgres"):
        problems.append(f"--to {target}: write postgresql://HOST/DATABASE")
    if partitions is not None and partitions < 1:
        problems.append("--partitions: give at least 1")
    complain(problems)
    return MoveWishes(folder=Path(path), database=target, partitions=partitions, archive=archive)


def move(wishes: MoveWishes, progress: Progress = lambda _name, _done: None) -> MoveResult:
    """Move the crawl; a move that was stopped goes on. The folder keeps what it had.

    Raises CrawlFolderBusy while the crawl runs, CrawlFolderUnusable, ConfigErrors, OperationRefused where the database
    holds something else, StoreUnavailable, StoreBroken, ArchiveUnavailable, ArchiveBroken.
    """
    folder = Folder(root=wishes.folder)
    if not folder.frontier.is_file():
        raise CrawlFolderUnusable(
            f"{wishes.folder}: it has no {folder.frontier.name}; there is nothing to move"
        )
    if folder.frontier.with_name("frontier-1.db").exists():
        raise ConfigErrors(
            [f"{wishes.folder}: its frontier is spread over several files, which cannot be moved together"]
        )
    lock = acquire(folder.lock)
    if isinstance(lock, Busy):
        raise CrawlFolderBusy(f"{wishes.folder} is being crawled by process {lock.pid}; stop it first")
    try:
        last = 0
        if wishes.archive:
            last = copy_segments(
                folder.archive, open_bucket(wishes.archive), lambda done, _all: progress("segments", done)
            )
        # References are copied after what they refer to has arrived.
        moved = asyncio.run(_move(wishes, folder, last, progress))
        crawl_folder.mark_moved(wishes.folder, moved.database)
        return moved
    finally:
        lock.release()


async def _move(wishes: MoveWishes, folder: Folder, last: int, progress: Progress) -> MoveResult:
    known = await partitions_of(wishes.database)
    await init(wishes.database, partitions=wishes.partitions or known or PARTITIONS)
    problems: list[str] = []
    seeds_path = wishes.folder / crawl_folder.SEEDS_NAME
    seeds = crawl_folder.read_seeds(seeds_path, problems) if seeds_path.exists() else []
    complain(problems)
    source = open_reader(folder.frontier)
    try:
        target = await connect(wishes.database, name="amble migrate", silence_s=3_600.0)
        try:
            (key,) = source.execute("SELECT value FROM meta WHERE name = 'path_key'").fetchone()
            crawl = hashlib.sha256(b"crawl" + bytes(key)).hexdigest()[:32]
            mover = Mover(source=source, target=target, crawl=crawl, dsn=wishes.database, progress=progress)
            moved = await mover.run()
        finally:
            await target.close()
    finally:
        source.close()
    await add_seeds(wishes.database, seeds)
    return MoveResult(
        database=place_of(wishes.database),
        archive=wishes.archive,
        resumed=moved.resumed,
        before=moved.before,
        rows=moved.rows,
        last_segment=last,
    )
