"""The composition root of an agent: one process of a fleet, over a database and an archive that it shares with others.

An agent owns partitions (`upkeep/ownership.py`), crawls them with the same line as a crawl in a folder, carries links to
other partitions, goes on with what parse workers hand over, and runs until it is stopped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import TypeVar

from amble import __version__
from amble.adapters.archive.objects import ObjectArchive
from amble.adapters.archive.objects_open import open_archive_url
from amble.adapters.health import HealthServer, parse_address
from amble.adapters.net.resolver import DnsResolver
from amble.adapters.net.transport import Http1Transport
from amble.adapters.postgres.bloom import Membership, PartitionFilters
from amble.adapters.postgres.partitions import PostgresPartitions
from amble.adapters.postgres.placement import servers_of
from amble.adapters.postgres.servers import PostgresServers
from amble.adapters.postgres.servers_partitions import ServersPartitions
from amble.adapters.postgres.store import PostgresStore
from amble.adapters.sandbox.pool import SandboxPool
from amble.adapters.system import EventLog, SuspendedClock, SystemEntropy
from amble.app.build import (
    BACKLOG_MIN,
    BACKLOG_PER_CHILD,
    hosts_allowed,
    warcinfo,
    within_open_files,
)
from amble.app.collecting import LOOK_EVERY_S, CollectInTurn
from amble.app.config import CrawlConfig, complain, contact_missing, scope_of
from amble.app.crawl import Chore, Crawl, Parts, Tenancy
from amble.app.fleet import admit_seeds, map_of, named, open_partitions, open_store
from amble.app.fleetlook import FleetLook
from amble.app.ground import PARSED_ELSEWHERE, Adoption, PartitionGround
from amble.app.progress import CrawlResult, Progress
from amble.app.shards import Shards
from amble.app.wiring import Line, Rules, Tools, wire_line
from amble.domain.decision import Reason
from amble.domain.errors import ArchiveUnavailable, ConfigErrors
from amble.domain.policy import ScopeKind
from amble.formats.extraction import ExtractionSettings
from amble.ports import Clock, Frontier, Roster
from amble.stages.admit import UrlGate
from amble.stages.gate import HOLD_MARGIN_S, Fence
from amble.stages.health import Health
from amble.upkeep.ownership import Ownership
from amble.upkeep.relay import Intake, Relay

T = TypeVar("T")

# How often it is looked whether something is due: a partition to begin, candidates that arrived, work handed over.
TICK_S = 0.25
STATUS_EVERY_S = 2.0
SEEDS_EVERY_S = 5.0
# FETCHED pages that may wait for parse workers, for each request at once, before dispatch slows down.
UNPARSED_PER_REQUEST, UNPARSED_MIN = 4, 500


@dataclass(slots=True)
class Agent:
    """One agent, opened. `run` once; `stop` may be called at any time."""

    name: str
    crawl: Crawl
    ownership: Ownership
    health: Health
    clock: Clock

    async def run(self) -> CrawlResult:
        """Until it is stopped, or done. Closes everything."""
        return await self.crawl.run()

    def stop(self) -> None:
        """Start nothing more, finish what is under way, hand every partition over."""
        self.crawl.stop()

    def progress(self) -> Progress:
        """One look at it."""
        return self.crawl.progress()

    def not_live(self) -> str | None:
        """Why an orchestrator should restart it: nothing that a restart does not mend."""
        return None

    def not_ready(self) -> str | None:
        """Why it does not do its work just now."""
        if self.ownership.silence_s > self.ownership.ttl_s:
            return "the database does not answer renewals"
        return self.health.describe()


async def open_agent(
    config: CrawlConfig,
    *,
    until_done: bool = False,
    log: Path | None = None,
    probes: tuple[str, int] | None = None,
) -> Agent:
    """An agent ready to run: database and archive reached, parsers warm, no partition owned yet.

    `until_done`: it ends when the whole store has nothing left to do. `log`: events as JSON lines. `probes`: where
    /live and /ready are answered. Raises ConfigErrors, StoreUnavailable, StoreBroken, ArchiveUnavailable,
    SandboxUnavailable, OSError when the address of the probes is taken.
    """
    check(config)
    async with contextlib.AsyncExitStack() as stack:
        world = await _reach(within_open_files(config), log, stack)
        # From here on the agent closes what was opened.
        closing = stack.pop_all()
        agent = _assemble(world, closing, until_done=until_done)
        if probes is not None:
            server = HealthServer(agent.not_live, agent.not_ready)
            await server.open(*probes)
            closing.push_async_callback(server.close)
        return agent


def check(config: CrawlConfig) -> None:
    """Raises ConfigErrors where something is missing without which there is no fleet."""
    fleet = config.fleet
    problems = []
    if not fleet.store_url:
        problems.append(
            "store.url: an agent needs the database of its fleet; give it with --store postgresql://..."
        )
    if not fleet.archive_url:
        problems.append(
            "archive.url: an agent needs the archive of its fleet; give it with --archive s3://..."
        )
    if problems:
        raise ConfigErrors(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """What an agent has reached. `config` has the seeds of the fleet beside its own."""

    config: CrawlConfig
    own: CrawlConfig
    roster: Roster
    seeds_bytes: int
    store: PostgresStore | PostgresServers
    partitions: PostgresPartitions | ServersPartitions
    archive: ObjectArchive
    look: FleetLook
    pool: SandboxPool
    resolver: DnsResolver
    transport: Http1Transport
    clock: SuspendedClock
    entropy: SystemEntropy
    log: EventLog
    health: Health
    filters: PartitionFilters | None = None


async def _reach(own: CrawlConfig, log_path: Path | None, stack: contextlib.AsyncExitStack) -> _World:
    clock, entropy = SuspendedClock(), SystemEntropy()
    log = EventLog(str(log_path) if log_path else None)
    stack.callback(log.close)
    health = Health(clock, log)
    partitions = open_partitions(own)
    stack.push_async_callback(partitions.close)
    roster, seeds = await partitions.roster(int(own.fleet.lease_s * 1000)), await partitions.seeds()
    assert seeds is not None
    config = named(own, seeds[1])
    _check_scope(config)
    store = await open_store(config, roster, partitions)
    store.on_trouble = health.listener(Reason.STORE_UNAVAILABLE)
    store.hear_indexes(health.listener(Reason.DIGESTS_UNAVAILABLE))
    if isinstance(store, PostgresServers):
        _listen(store, health, log)
    stack.push_async_callback(store.close)
    filters = _filters(config, store)
    if filters is not None:
        # After the last commit, and before the connections go.
        stack.callback(filters.close)
    archive = open_archive_url(own.fleet.archive_url, clock, entropy, info=warcinfo(config))
    stack.push_async_callback(archive.close)
    refused = await archive.refusal()
    if refused is not None:
        # Before any partition is claimed: others can do its work.
        raise ArchiveUnavailable(refused)
    look = FleetLook(servers_of(own.fleet.store_url), config.wait_max_s, config.policy.budget.pages_max)
    stack.push_async_callback(look.close)
    pool = await SandboxPool.open(
        limits=config.policy.parse,
        settings=ExtractionSettings(agent_tokens=config.policy.robots.agent_tokens),
        size=config.parser_children,
    )
    stack.push_async_callback(pool.close)
    servers = [config.resolver] if config.resolver else []
    resolver = DnsResolver(servers, clock, hosts_allowed=hosts_allowed(config))
    stack.push_async_callback(resolver.close)
    spool = Path(tempfile.mkdtemp(prefix="amble-agent-"))
    stack.callback(shutil.rmtree, spool, ignore_errors=True)
    transport = Http1Transport(
        config.policy.fetch,
        config.user_agent,
        spool,
        tls_verify="strict" if config.tls_verify else "fallback",
        ca_file=Path(config.tls_ca_file) if config.tls_ca_file else None,
        # Permits carry times of this clock.
        clock=clock.monotonic_s,
    )
    stack.push_async_callback(transport.close)
    return _World(
        config=config,
        own=own,
        roster=roster,
        seeds_bytes=seeds[0],
        store=store,
        partitions=partitions,
        archive=archive,
        look=look,
        pool=pool,
        resolver=resolver,
        transport=transport,
        clock=clock,
        entropy=entropy,
        log=log,
        health=health,
        filters=filters,
    )


def _listen(store: PostgresServers, health: Health, log: EventLog) -> None:
    """One server that is away stops its own partitions only; without the digest index no page can be kept."""

    def hear(number: int, trouble: str | None) -> None:
        log.event("server.back" if trouble is None else "server.away", server=number, detail=trouble or "")

    store.on_away = hear


def _filters(config: CrawlConfig, store: PostgresStore | PostgresServers) -> PartitionFilters | None:
    """Where the agent keeps filters of its partitions, if it should."""
    if not config.fleet.bloom_folder:
        return None
    membership = Membership(Path(config.fleet.bloom_folder))
    store.use(membership)
    return PartitionFilters(membership, store.link_of)


def _wired(world: _World, shards: Shards, fence: Fence, worker: int) -> Line:
    config = world.config
    return wire_line(
        Tools(
            frontier=shards,
            archive=world.archive,
            resolver=world.resolver,
            transport=world.transport,
            pool=world.pool,
            clock=world.clock,
            entropy=world.entropy,
            telemetry=world.log,
            health=world.health,
        ),
        Rules(
            policy=config.policy,
            scope=scope_of(config),
            fence=fence,
            worker=worker,
            allowed_nets=[ip_network(net) for net in config.allow_nets],
            partition_of=map_of(world.roster).of,
            parsed_elsewhere=PARSED_ELSEWHERE if config.fleet.parse_elsewhere else frozenset(),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Holdings:
    """Which partitions may be worked on now."""

    world: _World
    shards: Shards
    fence: Fence

    def may_start(self, partition: int) -> bool:
        """Whether its ownership can be trusted at this moment."""
        return self.fence.held(partition, self.world.clock.monotonic_s()) is not None

    def held(self) -> dict[int, int]:
        """Partition -> epoch."""
        return {p: epoch for p, epoch in self.shards.held.items() if self.may_start(p)}

    def expecting(self) -> dict[int, int]:
        """The same of those that candidates are on their way to or from."""
        return {p: epoch for p, epoch in self.shards.expecting.items() if self.may_start(p)}


def _assemble(world: _World, closing: contextlib.AsyncExitStack, *, until_done: bool) -> Agent:
    config, fleet, clock, log = world.config, world.config.fleet, world.clock, world.log
    fence, worker = Fence(), int.from_bytes(world.entropy.token(6), "big")
    # Unlike any other, also after a restart under the same name: who owns a partition must never be in doubt.
    name = f"{fleet.name or f'{socket.gethostname()}/{os.getpid()}'}~{world.entropy.token(3).hex()}"
    shards = Shards(clock, on_fenced=fence.lose)
    holdings = _Holdings(world, shards, fence)
    shards.may_start = holdings.may_start
    line = _wired(world, shards, fence, worker)
    ground = PartitionGround(
        shards=shards,
        fence=fence,
        open=world.store.frontier,
        owner=name,
        resume=not fleet.parse_elsewhere,
        telemetry=log,
        filters=world.filters,
    )
    ownership = Ownership(
        agent=name,
        partitions=world.partitions,
        ground=ground,
        clock=clock,
        telemetry=log,
        ttl_s=fleet.lease_s,
        hold_s=config.policy.fetch.longest_s + HOLD_MARGIN_S,
    )
    adoption = Adoption(
        shards=shards, held=holdings.held, worker=worker, elsewhere=fleet.parse_elsewhere, clock=clock
    )

    def pace(in_flight: int) -> None:
        world.store.pace(in_flight)
        world.archive.pace(in_flight)

    crawl = Crawl(
        Parts(
            frontier=shards,
            scheduler=line.scheduler,
            dispatch=line.dispatch,
            extract=line.extract,
            discovery=line.discovery,
            recorder=line.recorder,
            expiry=line.expiry,
            fence=fence,
            health=world.health,
            clock=clock,
            telemetry=log,
            takeover=None,
            seed=_Seeding(world).admit,
            read_status=world.look.status,
            publish=None,
            on_status=lambda _: None,
            abandon_store=world.store.abandon,
            pace=pace,
            close=closing.aclose,
            budget=config.policy.budget,
            concurrency=config.concurrency,
            backlog_max=max(BACKLOG_MIN, BACKLOG_PER_CHILD * world.pool.size),
            wait_s_max=config.wait_max_s,
            status_every_s=STATUS_EVERY_S,
            tenancy=Tenancy(
                chores=_chores(world, holdings, ownership, adoption, line),
                depart=ownership.depart,
                leave=ownership.leave,
                ended=world.look.ended if until_done else None,
                unparsed_max=max(UNPARSED_MIN, UNPARSED_PER_REQUEST * config.concurrency)
                if fleet.parse_elsewhere
                else None,
            ),
        )
    )
    ground.crawl = adoption.crawl = crawl
    log.event("agent.opened", version=__version__, agent=name, partitions=len(world.roster.partitions))
    return Agent(name, crawl, ownership, world.health, clock)


def _chores(
    world: _World, holdings: _Holdings, ownership: Ownership, adoption: Adoption, line: Line
) -> Sequence[Chore]:
    def reach(partition: int) -> Frontier | None:
        if isinstance(world.store, PostgresServers):
            return world.store.reach(partition)
        roster = ownership.roster or world.roster
        lives_here = any(line.partition == partition for line in roster.partitions)
        return world.store.frontier(partition) if lives_here else None

    relay = Relay(source=holdings.shards, held=holdings.expecting, reach=reach, telemetry=world.log)
    intake = Intake(frontier=holdings.shards, held=holdings.expecting)
    watch = _ScopeWatch(world.partitions, line.url_gate, world.own, world.seeds_bytes)
    collecting = CollectInTurn(
        archive_url=world.own.fleet.archive_url,
        take_turn=lambda every_ms: world.partitions.take_turn("gc", every_ms),
        telemetry=world.log,
    )
    return [
        Chore(name="ownership", every_s=min(TICK_S, ownership.ttl_s / 20), work=ownership.tick),
        Chore(name="relay", every_s=TICK_S, work=relay.once),
        Chore(name="intake", every_s=TICK_S, work=intake.once),
        Chore(name="adoption", every_s=TICK_S, work=adoption.once),
        Chore(name="scope", every_s=SEEDS_EVERY_S, work=watch.once),
        Chore(name="gc", every_s=LOOK_EVERY_S, work=collecting.once),
    ]


@dataclass(slots=True)
class _ScopeWatch:
    """Seeds that come while the agent runs widen its scope."""

    partitions: PostgresPartitions | ServersPartitions
    gate: UrlGate
    config: CrawlConfig
    known_bytes: int

    async def once(self) -> None:
        """Look for new seeds. Raises StoreUnavailable."""
        found = await self.partitions.seeds(self.known_bytes)
        if found is not None:
            self.known_bytes, seeds = found
            self.gate.rescope(scope_of(named(self.config, seeds)))


@dataclass(frozen=True, slots=True)
class _Seeding:
    """Admits the seeds that the agent itself was given."""

    world: _World

    async def admit(self) -> int:
        """How many there were."""
        world = self.world
        outcomes = await admit_seeds(world.store, world.roster, world.own, world.clock)
        for outcome in outcomes:
            if outcome.rejected is not None:
                reason, detail = outcome.rejected.reason.value, outcome.rejected.detail
                world.log.event("seed.rejected", seed=outcome.given, reason=reason, detail=detail)
        return len(outcomes)


def _check_scope(config: CrawlConfig) -> None:
    complain(contact_missing(config))
    if config.seeds or config.scope.hosts or config.scope.kind is ScopeKind.ANY:
        return
    raise ConfigErrors(
        [
            f"scope.kind = {config.scope.kind.value} is around seeds, and this fleet has none yet: run "
            "`amble seed URL...` first, name hosts with scope.hosts, or set scope.kind to any"
        ]
    )


__all__ = ["Agent", "open_agent", "parse_address"]
