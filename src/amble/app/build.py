"""The composition root of a crawl: chooses its adapters and wires it from its configuration."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from ipaddress import ip_network
from pathlib import Path

import msgspec

from amble import __version__
from amble.adapters.archive.directory import DirectoryArchive
from amble.adapters.archive.writer import ArchiveLimits
from amble.adapters.net.resolver import DnsResolver
from amble.adapters.net.transport import Http1Transport
from amble.adapters.sandbox.pool import SandboxPool
from amble.adapters.sql.lock import Busy, FolderLock, acquire
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.system import EventLog, SystemClock, SystemEntropy, room_for
from amble.app.config import CrawlConfig, scope_of
from amble.app.crawl import Crawl, Parts
from amble.app.layout import Folder
from amble.app.progress import Progress
from amble.app.seeding import Seeder
from amble.app.storefiles import Stores, open_one
from amble.app.wiring import Rules, Tools, wire_line
from amble.domain.decision import Reason
from amble.domain.errors import CrawlFolderBusy
from amble.domain.url import host_of
from amble.formats.extraction import ExtractionSettings
from amble.ports import Clock, Telemetry
from amble.stages.health import Health

# FETCHED pages that may wait for a parser, for each child, before dispatch slows down.
BACKLOG_PER_CHILD = 24
BACKLOG_MIN = 48


async def open_crawl(config: CrawlConfig, root: Path) -> Crawl:
    """A crawl ready to run: folder locked, store taken over, archive recovered, parsers warm.

    Raises CrawlFolderBusy, CrawlFolderUnusable, ArchiveUnavailable, SandboxUnavailable.
    """
    folder = Folder(root=root)
    folder.make()
    async with contextlib.AsyncExitStack() as stack:
        opened = await _open(within_open_files(config), folder, stack)
        # From here on the crawl closes what was opened.
        return Crawl(opened(stack.pop_all()))


def within_open_files(config: CrawlConfig) -> CrawlConfig:
    """What was asked for, as far as this process may have files open: beyond that, pages would fail for nothing."""
    fetch = config.policy.fetch
    connections, concurrency = room_for(fetch.connections_max, config.concurrency)
    policy = replace(config.policy, fetch=replace(fetch, connections_max=connections))
    return replace(config, policy=policy, concurrency=concurrency)


Wire = Callable[[contextlib.AsyncExitStack], Parts]


async def _open(config: CrawlConfig, folder: Folder, stack: contextlib.AsyncExitStack) -> Wire:
    policy = config.policy
    clock, entropy = SystemClock(), SystemEntropy()
    lock = _own(folder)
    stack.callback(lock.release)
    log = EventLog(str(folder.log))
    stack.callback(log.close)
    health = Health(clock, log)
    stores = await _open_frontier(config, folder, stack, lock.fd, clock, log, health)
    archive = DirectoryArchive(
        folder.archive,
        clock,
        entropy,
        limits=ArchiveLimits(segment_bytes_max=config.segment_bytes),
        info=warcinfo(config),
    )
    stack.push_async_callback(archive.close)
    pool = await SandboxPool.open(
        limits=policy.parse,
        settings=ExtractionSettings(agent_tokens=policy.robots.agent_tokens),
        size=config.parser_children,
    )
    stack.push_async_callback(pool.close)
    resolver = DnsResolver(
        [config.resolver] if config.resolver else [], clock, hosts_allowed=hosts_allowed(config)
    )
    stack.push_async_callback(resolver.close)
    transport = Http1Transport(
        policy.fetch,
        config.user_agent,
        folder.spool,
        tls_verify="strict" if config.tls_verify else "fallback",
        ca_file=Path(config.tls_ca_file) if config.tls_ca_file else None,
    )
    stack.push_async_callback(transport.close)
    log.event("crawl.opened", version=__version__, epoch=stores.epoch, pid=os.getpid())

    line = wire_line(
        Tools(
            frontier=stores.frontier,
            archive=archive,
            resolver=resolver,
            transport=transport,
            pool=pool,
            clock=clock,
            entropy=entropy,
            telemetry=log,
            health=health,
        ),
        Rules(
            policy=policy,
            scope=scope_of(config),
            fence=stores.fence,
            epoch=stores.epoch,
            partition_of=stores.partition_of,
            allowed_nets=[ip_network(net) for net in config.allow_nets],
        ),
    )

    def pace(in_flight: int) -> None:
        stores.pace(in_flight)
        archive.pace(in_flight)

    def wire(opened: contextlib.AsyncExitStack) -> Parts:
        return Parts(
            frontier=stores.frontier,
            scheduler=line.scheduler,
            dispatch=line.dispatch,
            extract=line.extract,
            discovery=line.discovery,
            recorder=line.recorder,
            expiry=line.expiry,
            fence=line.fence,
            health=health,
            clock=clock,
            telemetry=log,
            takeover=stores.takeover,
            seed=Seeder(line.url_gate, config, log, stores.seeds).admit,
            read_status=lambda: asyncio.to_thread(stores.read_status),
            publish=None,
            on_status=_StatusFile(folder.status).write,
            abandon_store=stores.abandon,
            chores=stores.chores(line.scheduler.kick),
            pace=pace,
            close=opened.aclose,
            budget=policy.budget,
            concurrency=config.concurrency,
            backlog_max=max(BACKLOG_MIN, BACKLOG_PER_CHILD * pool.size),
            wait_s_max=config.wait_max_s,
        )

    return wire


async def _open_frontier(
    config: CrawlConfig,
    folder: Folder,
    stack: contextlib.AsyncExitStack,
    lock_fd: int,
    clock: Clock,
    log: Telemetry,
    health: Health,
) -> Stores:
    """The frontier of the folder, taken over: of one file, or of several that share the sites."""
    settings, hear = store_settings(config), health.listener(Reason.STORE_UNAVAILABLE)
    if config.store_files == 1:
        return await open_one(folder, settings, stack, lock_fd=lock_fd, hear=hear)
    # Loaded only where it is wanted: it would be a good part of what a short crawl needs to start.
    from amble.app.filegroup import open_several

    files = config.store_files
    return await open_several(
        folder, settings, files, stack, lock_fd=lock_fd, clock=clock, telemetry=log, hear=hear
    )


def _own(folder: Folder) -> FolderLock:
    """Own the folder. Raises CrawlFolderBusy naming the pid of whoever does."""
    got = acquire(folder.lock)
    if isinstance(got, Busy):
        who = f"process {got.pid}" if got.pid else "another process"
        raise CrawlFolderBusy(
            f"{folder.root} is being crawled by {who}; stop it, or name another folder with --out"
        )
    return got


def store_settings(config: CrawlConfig) -> StoreSettings:
    """What a frontier store must know of the policy."""
    origin, urls = config.policy.origin, config.policy.urls
    return StoreSettings(
        default_active_max=origin.active_max,
        default_spacing_ms=origin.spacing_ms,
        urls_per_origin_start=urls.urls_per_origin_start,
        urls_per_origin_max=urls.urls_per_origin_max,
        urls_per_fetched_page=urls.urls_per_fetched_page,
        origins_per_site_max=urls.origins_per_site_max,
    )


def hosts_allowed(config: CrawlConfig) -> list[str]:
    """Names that the hosts file may answer for: those the operator wrote down, and only on a private crawl."""
    return [host_of(seed) for seed in config.seeds] if config.allow_nets else []


def warcinfo(config: CrawlConfig) -> dict[str, str]:
    """What each WARC file says about how it came about."""
    fields = {
        "software": f"amble/{__version__}",
        "format": "WARC File Format 1.1",
        "robots": "obey" if config.policy.robots.obey else "ignore",
        "http-header-user-agent": config.user_agent,
    }
    return fields | ({"operator": config.contact} if config.contact else {})


class _StatusFile:
    """The progress of the running crawl as JSON, replaced whole, for `amble status` and the curious."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, progress: Progress) -> None:
        """Replace the file. Never raises."""
        text = msgspec.json.encode({"pid": os.getpid(), **asdict(progress)})
        draft = self._path.with_suffix(".new")
        try:
            draft.write_bytes(text)
            draft.replace(self._path)
        except OSError:
            self._write_over(text)

    def _write_over(self, text: bytes) -> None:
        """On a full disk there is no room for a draft, and just then people look: write into the blocks that exist.

        Spaces behind the text cover what a longer one has left.
        """
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(file, text.ljust(os.fstat(file).st_size), 0)
            finally:
                os.close(file)
        except OSError:
            pass
