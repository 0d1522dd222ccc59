"""The composition root of a parse worker: a database, an archive, parser children, and nothing that reaches a site."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from amble.adapters.archive.objects_open import open_archive_url
from amble.adapters.health import HealthServer, parse_address
from amble.adapters.postgres.connection import place_of
from amble.adapters.postgres.placement import servers_of
from amble.adapters.postgres.servers import PostgresServers
from amble.adapters.postgres.store import PostgresStore
from amble.adapters.sandbox.pool import SandboxPool
from amble.adapters.system import EventLog, SystemClock, SystemEntropy
from amble.app import folder as crawl_folder
from amble.app.build import warcinfo
from amble.app.config import CrawlConfig, Given
from amble.app.parselines import HOLD_S, ParseCount, ParseLines, Patient
from amble.domain.decision import Reason
from amble.domain.errors import ArchiveUnavailable, ConfigErrors, StoreUnavailable
from amble.domain.frontier import AdoptAsk, Applied, ParseStrike, RecordParsed, Resumable
from amble.formats.extraction import ExtractionSettings
from amble.stages.health import Health
from amble.stages.journey import Handover
from amble.stages.parse import Extraction

# How long the end waits for a database that does not answer before the last writes are left to the next holder.
CLOSE_S_MAX = 4.0
# Worker numbers are drawn, so that nobody has to give them out.
_WORKER_BYTES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseWishes:
    """What one command line asks for. `flags` come from options of their own, `assignments` from --set."""

    config_file: Path | None = None
    assignments: tuple[str, ...] = ()
    flags: Mapping[str, Given] | None = None
    until_done: bool = False
    hold_s: float = HOLD_S
    log: Path | None = None
    health: tuple[str, int] | None = None


def configure(wishes: ParseWishes, env: Mapping[str, str]) -> CrawlConfig:
    """The configuration of a parse worker. Raises ConfigErrors with every mistake."""
    problems: list[str] = []
    config = crawl_folder.settings_in(wishes.config_file, wishes.assignments, wishes.flags or {}, env)
    if not config.fleet.store_url:
        problems.append(
            "store.url: a parse worker needs the database of a fleet; give --store postgresql://user@host/name "
            "(the frontier of a crawl folder belongs to the process that crawls there)"
        )
    if not config.fleet.archive_url:
        problems.append(
            "archive.url: a parse worker needs the archive of the fleet; give --archive s3://bucket/prefix or file:///folder"
        )
    if problems:
        raise ConfigErrors(problems)
    return config


class _Rows:
    """The rows of all partitions of one database, each call under the partition that its key names."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def adopt(self, ask: AdoptAsk) -> list[Resumable]:
        """See ports.Frontier."""
        return await self._store.frontier(0).adopt(ask)

    async def record_parsed(self, item: RecordParsed) -> Applied:
        """See ports.Frontier."""
        return await self._store.frontier(item.key.partition).record_parsed(item)

    async def parse_strike(self, item: ParseStrike) -> Applied:
        """See ports.Frontier."""
        return await self._store.frontier(item.key.partition).parse_strike(item)


class Parsing:
    """One parse worker, open. `run` ends with everything closed."""

    def __init__(self, lines: ParseLines, closing: contextlib.AsyncExitStack, place: str) -> None:
        self._lines, self._closing = lines, closing
        self.place = place

    @property
    def children(self) -> int:
        """Parser processes that may work at once."""
        return self._lines.children

    @property
    def count(self) -> ParseCount:
        """What came of the pages so far."""
        return self._lines.count

    def stop(self) -> None:
        """Take nothing more, finish what is under way, and end."""
        self._lines.stop()

    async def run(self) -> ParseCount:
        """Until somebody says stop, or with `until_done` until there has been nothing to do for a while."""
        async with self._closing:
            return await self._lines.run()


Wire = Callable[[contextlib.AsyncExitStack], Parsing]


async def open_parsing(config: CrawlConfig, wishes: ParseWishes) -> Parsing:
    """A worker with its database, its archive and warm children.

    Raises StoreUnavailable, StoreBroken, ConfigErrors, SandboxUnavailable, OSError for a health address that is taken.
    """
    async with contextlib.AsyncExitStack() as stack:
        parsing = await _open(config, wishes, stack)
        # From here on the worker closes what was opened.
        return parsing(stack.pop_all())


async def _open(config: CrawlConfig, wishes: ParseWishes, stack: contextlib.AsyncExitStack) -> Wire:
    clock, entropy = SystemClock(), SystemEntropy()
    log = EventLog(str(wishes.log) if wishes.log else None)
    stack.callback(log.close)
    health = Health(clock, log)
    # As those of agents say it: segments that say the same are joined by compaction.
    archive = open_archive_url(config.fleet.archive_url, clock, entropy, info=warcinfo(config))
    stack.push_async_callback(archive.close)
    refused = await archive.refusal()
    if refused is not None:
        raise ArchiveUnavailable(refused)
    store = await _open_store(config)
    stack.push_async_callback(_close_store, store)
    store.on_trouble = health.listener(Reason.STORE_UNAVAILABLE)
    pool = await SandboxPool.open(
        limits=config.policy.parse,
        settings=ExtractionSettings(agent_tokens=config.policy.robots.agent_tokens),
        size=config.parser_children,
    )
    stack.push_async_callback(pool.close)
    rows = _Rows(store) if isinstance(store, PostgresStore) else store.everywhere()
    extraction = Extraction(
        pool=pool,
        archive=archive,
        frontier=Patient(rows, health, clock, wait_s_max=wishes.hold_s),
        clock=clock,
        entropy=entropy,
        telemetry=log,
        health=health,
        limits=config.policy.parse,
    )

    def pace(in_flight: int) -> None:
        store.pace(in_flight)
        archive.pace(in_flight)

    lines = ParseLines(
        frontier=rows,
        handover=Handover(extraction=extraction),
        health=health,
        clock=clock,
        telemetry=log,
        children=pool.size,
        worker=int.from_bytes(entropy.token(_WORKER_BYTES), "big") + 1,
        hold_s=wishes.hold_s,
        until_done=wishes.until_done,
        pace=pace,
    )
    if wishes.health is not None:
        probes = HealthServer(lambda: None, lambda: "stopping" if lines.stopping else health.describe())
        await probes.open(*wishes.health)
        stack.push_async_callback(probes.close)
    place = place_of(config.fleet.store_url)
    log.event("parse.opened", store=place, children=pool.size, worker=lines.worker)
    return lambda closing: Parsing(lines, closing, place)


async def _open_store(config: CrawlConfig) -> PostgresStore | PostgresServers:
    """The frontier of the fleet, on one server or several. Raises StoreUnavailable, StoreBroken."""
    dsns = servers_of(config.fleet.store_url)
    return await PostgresStore.open(dsns[0]) if len(dsns) == 1 else await PostgresServers.open(dsns)


async def _close_store(store: PostgresStore | PostgresServers) -> None:
    try:
        async with asyncio.timeout(CLOSE_S_MAX):
            await store.close()
    except TimeoutError:
        store.abandon(StoreUnavailable("the database did not answer at the end"))
        await store.close()


__all__ = ["ParseWishes", "Parsing", "configure", "open_parsing", "parse_address"]
