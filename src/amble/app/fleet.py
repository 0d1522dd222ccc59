"""What is asked of a fleet, and told to it, from a command line: its configuration, set-up, seeds, who owns what.

A composition root, like that of an agent, for commands that end at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from amble.adapters.postgres.connection import place_of
from amble.adapters.postgres.partitions import PostgresPartitions
from amble.adapters.postgres.placement import servers_of, set_up_servers
from amble.adapters.postgres.relocation import Relocated, Relocation
from amble.adapters.postgres.seeds import add_seeds
from amble.adapters.postgres.servers import PostgresServers
from amble.adapters.postgres.servers_partitions import ServersPartitions
from amble.adapters.postgres.setup import partitions_of
from amble.adapters.postgres.store import PostgresStore
from amble.adapters.system import SystemClock
from amble.app import folder as crawl_folder
from amble.app.build import store_settings
from amble.app.config import CrawlConfig, Given, scope_of
from amble.app.folder import OWN_SERVER
from amble.app.reading import OWN_DATABASE
from amble.app.settings import SETTINGS
from amble.app.shards import Shards
from amble.app.wiring import LINKS
from amble.domain.errors import ConfigErrors, StoreUnavailable
from amble.domain.partition import AgentLine, PartitionFacts, PartitionMap
from amble.domain.url import Canonicalizer, site_of
from amble.ports import Clock, Roster
from amble.stages.admit import SeedOutcome, UrlGate
from amble.stages.gate import HOLD_MARGIN_S

# Four each for sixteen agents; one that nobody needs costs next to nothing.
PARTITIONS = 64

Run = Callable[[Coroutine[Any, Any, "Ownerships"]], "Ownerships"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetWishes:
    """What one command line asks for. `flags` come from options of their own, `assignments` from --set."""

    folder: Path | None = (
        None  # a crawl folder; its amble.toml has the settings, in the place of `config_file`
    )
    config_file: Path | None = None
    assignments: tuple[str, ...] = ()
    flags: Mapping[str, Given] = field(default_factory=dict)
    seeds: tuple[str, ...] = ()


def configure(wishes: FleetWishes, env: Mapping[str, str]) -> CrawlConfig:
    """The configuration of a command about a fleet. Raises ConfigErrors with every mistake."""
    file = wishes.config_file
    if wishes.folder is not None:
        if file is not None:
            raise ConfigErrors([f"a folder, {wishes.folder}, and --config {file} are named: give one"])
        file = crawl_folder.find(wishes.folder) / crawl_folder.CONFIG_NAME
    config = crawl_folder.settings_in(file, wishes.assignments, wishes.flags, env, seeds=wishes.seeds)
    if not config.fleet.store_url and wishes.folder is not None:
        raise ConfigErrors(
            [
                f"{wishes.folder}: its crawl is in files of its own and has no agents; `amble status {wishes.folder}` "
                "tells of it, --store names a fleet"
            ]
        )
    if not config.fleet.store_url:
        raise ConfigErrors(
            [
                "store.url: which fleet? give its database with --store postgresql://user@host/name, a --config, "
                "or the folder of its crawl"
            ]
        )
    return config


def folder_here(env: Mapping[str, str]) -> Path | None:
    """The one crawl folder here, for commands that only look; None where the environment or nothing names the fleet."""
    if SETTINGS["store.url"].env in env:
        return None
    try:
        return crawl_folder.find(None, env)
    except ConfigErrors:
        return None


def ownerships_in(folder: Path | None, config: CrawlConfig, run: Run) -> Ownerships:
    """`ownerships`, carried out by `run`; a database server that `amble fleet` has left in `folder` runs meanwhile."""
    own = None if folder is None else folder / OWN_SERVER
    if own is not None and own.is_dir():
        # The password of this server stands in a file beside it; one meant for another server would win over that.
        os.environ.pop("PGPASSWORD", None)
    try:
        return run(ownerships(config))
    except StoreUnavailable:
        if own is None or not (own / "data" / "PG_VERSION").is_file():
            raise
    from amble.adapters.postgres.embedded import EmbeddedPostgres

    server = EmbeddedPostgres.start(own)
    try:
        fleet = replace(config.fleet, store_url=server.dsn(OWN_DATABASE))
        return run(ownerships(replace(config, fleet=fleet)))
    finally:
        server.close()


async def set_up(config: CrawlConfig, partitions: int | None, apart: Sequence[str]) -> int:
    """Prepare the database, or find that it is; how many partitions there are. Raises ConfigErrors, StoreBroken.

    `partitions` None: those that the database was prepared with, or PARTITIONS of a new one.
    """
    problems = [
        f"--apart {site!r}: that is no site; give a registrable domain such as {site_of(site.lower())!r}"
        for site in apart
        if not site or site_of(site.lower()) != site.lower() or set(site) & set("/:@ ")
    ]
    if problems:
        raise ConfigErrors(problems)
    dsns, index_at = servers_of(config.fleet.store_url), servers_of(config.fleet.digests_url)
    if partitions is None:
        partitions = await partitions_of(dsns[0]) or PARTITIONS
    for dsn in index_at:
        if dsn not in dsns:
            await set_up_servers([dsn], partitions=partitions)
    return await set_up_servers(
        dsns,
        partitions=partitions,
        apart=[site.lower() for site in apart],
        index_at=index_at if len(dsns) > 1 else (),
    )


@dataclass(frozen=True, slots=True)
class Ownerships:
    """Agents and partitions at one moment. `place` is the database without secrets.

    `away`: partitions that are out of service because their server does not answer, and why.
    """

    place: str
    agents: Sequence[AgentLine]
    partitions: Sequence[PartitionFacts]
    away: Mapping[int, str] = field(default_factory=dict)


async def ownerships(config: CrawlConfig) -> Ownerships:
    """Who is there, and who owns what. Raises StoreUnavailable, StoreBroken."""
    partitions = open_partitions(config)
    try:
        roster = await partitions.roster(int(config.fleet.lease_s * 1000))
        facts = []
        for dsn in servers_of(config.fleet.store_url):
            try:
                facts += await _facts(dsn)
            except StoreUnavailable:
                if not roster.away:
                    raise
        # Of a partition on its way to another server both have a row; the roster knows which one counts.
        counting = {(line.partition, line.moving) for line in roster.partitions}
        shown = [one for one in facts if (one.line.partition, one.line.moving) in counting]
        return Ownerships(
            place_of(config.fleet.store_url),
            roster.agents,
            sorted(shown, key=lambda one: one.line.partition),
            roster.away,
        )
    finally:
        await partitions.close()


async def move(
    config: CrawlConfig, partition: int, target: int, on_step: Callable[[str], None] = lambda _: None
) -> Relocated:
    """Move a partition to another server of the fleet, or go on with a move that was stopped; see Relocation."""
    hold_s = config.policy.fetch.longest_s + HOLD_MARGIN_S
    return await Relocation(
        dsns=servers_of(config.fleet.store_url),
        partition=partition,
        target=target,
        hold_ms=int(hold_s * 1000),
        on_step=on_step,
    ).run()


async def _facts(dsn: str) -> list[PartitionFacts]:
    partitions = PostgresPartitions(dsn)
    try:
        return await partitions.facts()
    finally:
        await partitions.close()


def open_partitions(config: CrawlConfig) -> PostgresPartitions | ServersPartitions:
    """Who owns what, on one server or several. Connects when first used."""
    dsns = servers_of(config.fleet.store_url)
    return PostgresPartitions(dsns[0]) if len(dsns) == 1 else ServersPartitions(dsns)


async def open_store(
    config: CrawlConfig, roster: Roster, partitions: PostgresPartitions | ServersPartitions
) -> PostgresStore | PostgresServers:
    """The frontier of the fleet, on one server or several. Raises StoreUnavailable, StoreBroken."""
    dsns, settings = servers_of(config.fleet.store_url), store_settings(config)
    if isinstance(partitions, PostgresPartitions):
        return await PostgresStore.open(dsns[0], settings)
    store = await PostgresServers.open(
        dsns,
        settings,
        partition_of=map_of(roster).of,
        digests_at=servers_of(config.fleet.digests_url) or None,
    )
    # Every renewal tells anew where partitions live.
    partitions.places = store.places
    return store


def map_of(roster: Roster) -> PartitionMap:
    """Origins to partitions."""
    return PartitionMap(roster.hashed, dict(roster.sites_apart))


async def seed(config: CrawlConfig) -> list[SeedOutcome]:
    """Admit the seeds of `config`, and let them widen the scope of the fleet. Raises StoreUnavailable, StoreBroken."""
    partitions = open_partitions(config)
    try:
        roster = await partitions.roster(int(config.fleet.lease_s * 1000))
        store = await open_store(config, roster, partitions)
        try:
            return await admit_seeds(store, roster, config, SystemClock())
        finally:
            await store.close()
    finally:
        await partitions.close()


async def admit_seeds(
    store: PostgresStore | PostgresServers, roster: Roster, config: CrawlConfig, clock: Clock
) -> list[SeedOutcome]:
    """Admit the seeds of `config` through some partition of the store, which passes them on to where they belong."""
    if not config.seeds:
        return []
    await add_seeds(servers_of(config.fleet.store_url)[0], config.seeds)
    first = next(line.partition for line in roster.partitions if not line.moving)
    door = Shards(clock)
    door.add(first, store.frontier(first), 0)
    gate = UrlGate(
        door, config.policy, scope_of(config), Canonicalizer(), links=LINKS, partition_of=map_of(roster).of
    )
    return await gate.admit_seeds(config.seeds)


def named(config: CrawlConfig, seeds: Sequence[str]) -> CrawlConfig:
    """`config` with the seeds of the fleet in front of its own: what makes the scope."""
    return replace(config, seeds=tuple(dict.fromkeys([*seeds, *config.seeds])))


__all__ = [
    "FleetWishes",
    "Ownerships",
    "admit_seeds",
    "configure",
    "folder_here",
    "map_of",
    "move",
    "named",
    "open_partitions",
    "open_store",
    "ownerships",
    "ownerships_in",
    "seed",
    "set_up",
]
