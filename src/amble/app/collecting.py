"""The composition root of `amble gc`: compaction of an archive in object storage, by hand or by the agents in turn.

Agents run it as a process of its own: it needs a disk for a while and a core for minutes, and may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from amble.adapters.archive.objects_compaction import Compactor
from amble.adapters.archive.objects_open import open_bucket
from amble.adapters.system import SystemClock, SystemEntropy
from amble.app.settings import SETTINGS
from amble.domain.errors import ConfigErrors
from amble.ports import Telemetry

# The other agents leave it alone for so long, however it went.
TURN_EVERY_S = 3600.0
LOOK_EVERY_S = 300.0
# Crawling comes first.
_NICE = 10
_TAIL_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What one run came to. `problems`: segments that were left as they are, and why."""

    place: str
    made: int
    moved: int
    moved_bytes: int
    deleted: int
    problems: tuple[str, ...]


async def collect(url: str, *, everything: bool) -> Collected:
    """Compact the archive at `url`; `everything`: also what is less than a large object.

    Raises ConfigErrors, ArchiveUnavailable, ArchiveBroken; whatever was done by then stays done.
    """
    if not url:
        raise ConfigErrors(
            [
                "archive.url: only an archive in object storage has small segments to join; name it with --archive "
                "s3://bucket/prefix (those of a crawl folder are large from the start)"
            ]
        )
    bucket = open_bucket(url)
    report = await Compactor(bucket, SystemClock(), SystemEntropy()).run(everything=everything)
    return Collected(
        place=bucket.place,
        made=report.made,
        moved=report.moved,
        moved_bytes=report.moved_bytes,
        deleted=report.deleted,
        problems=tuple(map(str, report.problems)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectInTurn:
    """One agent after the other compacts the archive. `take_turn` says whether it is this one's turn now.

    Two at once would do no harm, only the same work; so the turn needs no lease that is renewed.
    """

    archive_url: str
    take_turn: Callable[[int], Awaitable[bool]]
    telemetry: Telemetry

    async def once(self) -> None:
        """Run `amble gc` to its end if it is this agent's turn; cancelled, it ends it. Raises StoreUnavailable."""
        if not await self.take_turn(int(TURN_EVERY_S * 1000)):
            return
        self.telemetry.event("gc.begun")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "amble", "gc", "--json",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, SETTINGS["archive.url"].env: self.archive_url},
        )  # fmt: skip
        try:
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
            said, _ = await process.communicate()
        except BaseException:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            raise
        told = said.decode("utf-8", "replace").strip()[-_TAIL_CHARACTERS:]
        self.telemetry.event("gc.ended", code=process.returncode, told=told)


__all__ = ["LOOK_EVERY_S", "CollectInTurn", "Collected", "collect"]
