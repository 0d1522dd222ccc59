"""The frontier on PostgreSQL: page cycles per second, CPU of client and server, and log written, by number of agents.

A page cycle is lease + reserve + fetched + parsed + complete + admit of 30 candidates of which 3 are new, 64 cycles to
three transactions. Each agent is a process with a connection and a partition of its own. The server is started here
unless `--dsn` names one that may be filled; CPU of the server is known only of one that runs on this machine. With
`--near` each page claims its text in the index of near-duplicates before it is completed, and one in ten finds a twin.

    python -m bench.postgres --urls 100000 --agents 1 --agents 2 --agents 4 --seconds 10
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg

from amble.adapters.postgres.embedded import EmbeddedPostgres, children_of
from amble.adapters.postgres.setup import PATH_KEY, init
from amble.adapters.postgres.store import PostgresFrontier, PostgresStore
from amble.adapters.sql.identity import SLOT_BITS, fast_slot
from amble.adapters.sql.settings import StoreSettings
from amble.domain.fetched import BodyRef, Fetched, Timings, Validators
from amble.domain.frontier import (
    AdmitBatch,
    Candidate,
    Complete,
    LeaseAsk,
    OriginEffect,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    TakeoverAsk,
)
from amble.domain.manifest import CursorAdvance, ManifestKey

HOUR = 3_600_000
GROUP = 64
LINKS, NEW = 30, 3
EFFECT = OriginEffect(120, 0, 0, 0)
CHUNK = 50_000
SETTINGS = StoreSettings(default_spacing_ms=0, urls_per_origin_start=10**9, urls_per_origin_max=10**9)
SERVER = {
    "shared_buffers": "1GB",
    "wal_compression": "on",
    "checkpoint_timeout": "15min",
    "max_wal_size": "16GB",
    "synchronous_commit": "on",
    "fsync": "on",
}
_URL = ("id", "path", "state", "kind", "rq", "due_at", "priority", "depth", "hops", "edge", "parent", "admitted_at",
        "attempt", "generation", "tries", "strikes", "digest", "etag", "checks", "changes")  # fmt: skip
_INDEXES = (
    "CREATE INDEX url_due ON url((id >> 36), rq, due_at) WHERE rq IS NOT NULL",
    "CREATE INDEX url_sweep ON url(sweep_at) WHERE sweep_at IS NOT NULL",
    "CREATE INDEX url_ended ON url(ended) WHERE ended IS NOT NULL",
)


def path_of(number: int) -> str:
    return f"/section/{number % 97}/an-article-with-a-title-{number}"


@dataclass(frozen=True, slots=True)
class World:
    """`urls` known URLs over `origins` origins with sizes by a power law, half pending and half complete."""

    urls: int
    origins: int
    partitions: int
    near: bool = False

    def sizes(self) -> list[int]:
        """URLs of each origin."""
        weights = self.weights()
        total = sum(weights)
        return [max(2, int(self.urls * weight / total)) for weight in weights]

    def weights(self) -> list[float]:
        """How popular each origin is."""
        return [1 / (number + 1) ** 0.9 for number in range(self.origins)]

    def key(self, number: int) -> str:
        """An origin; every so manieth belongs to the same partition."""
        return f"https://site{number}.example"


async def load(dsn: str, world: World) -> None:
    """Fill an empty frontier."""
    connection = await asyncpg.connect(dsn)
    first = fast_slot(await connection.fetchval("SELECT value FROM meta WHERE name = $1", PATH_KEY))
    for name in ("url_due", "url_sweep", "url_ended"):
        await connection.execute(f"DROP INDEX {name}")
    now = round(time.time() * 1000)
    rows: list[tuple[Any, ...]] = []
    for number, size in enumerate(world.sizes()):
        origin_id = number + 1
        here = list(_urls_of(origin_id, size, first, now))
        queued = sum(row[4] is not None for row in here)
        await connection.execute(
            "INSERT INTO origin(id, key, partition, wake_at, queued, urls, robots_url_id, robots_outcome, robots_version,"
            " robots_expires_at, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, 2, 1, $8, 0)",
            origin_id, world.key(number), number % world.partitions, now - 1000, queued, len(here) - 1,
            origin_id << SLOT_BITS | first("/robots.txt"), now + 48 * HOUR,
        )  # fmt: skip
        rows += here
        if len(rows) >= CHUNK:
            await connection.copy_records_to_table("url", records=rows, columns=_URL)
            rows.clear()
    await connection.copy_records_to_table("url", records=rows, columns=_URL)
    await connection.execute("UPDATE origin_block SET next = $1", world.origins + 1)
    for statement in _INDEXES:
        await connection.execute(statement)
    for table in ("url", "origin"):
        await connection.execute(f"VACUUM (ANALYZE) {table}")
    await connection.execute("CHECKPOINT")
    await connection.close()


def _urls_of(origin_id: int, size: int, first: Any, now: int) -> Iterator[tuple[Any, ...]]:
    robots = origin_id << SLOT_BITS | first("/robots.txt")
    here = {robots: "/robots.txt"}
    for number in range(size):
        here.setdefault(origin_id << SLOT_BITS | first(path_of(number)), path_of(number))
    for number, (url_id, path) in enumerate(sorted(here.items())):
        done = url_id == robots or number % 2 == 1
        rq = None if done else number % 6
        yield (
            url_id, path, 4 if done else 0, int(url_id == robots), rq, None if done else now - 1000,
            3 if rq is None else rq, 3, 0, 1, 1, 0, int(done), 1, 0, 0,
            random.randbytes(32) if done else None, '"0123456789abcdef"' if done else None, 0, 0,
        )  # fmt: skip


class Agent:
    """One process: leases of its partition, carried to COMPLETE in groups."""

    def __init__(self, world: World, frontier: PostgresFrontier, epoch: int) -> None:
        self.world = world
        self.frontier = frontier
        self.epoch = epoch
        self.mine = frontier.partition
        self.random = random.Random(self.mine)
        self.sizes = world.sizes()
        self.cumulative: list[float] = []
        total = 0.0
        for weight in world.weights():
            total += weight
            self.cumulative.append(total)
        self.fresh = (self.mine + 1) * 10**9
        self.offset = 0
        self.texts: list[int] = []

    def text(self) -> int:
        """A fingerprint; one in ten is near to another."""
        if self.texts and self.random.random() < 0.1:
            return self.random.choice(self.texts) ^ 1 << self.random.randrange(64)
        self.texts.append(self.random.getrandbits(64))
        return self.texts[-1]

    def links(self, origin: str) -> list[Candidate]:
        """Nine in ten are known; three in four stay on the origin, the rest within the partition."""
        own = int(origin[12:-8])
        found = []
        for number in range(LINKS):
            target = own
            if number % 4 == 3:
                target = self.random.choices(range(self.world.origins), cum_weights=self.cumulative)[0]
                target = min(
                    self.world.origins - 1,
                    target // self.world.partitions * self.world.partitions + self.mine,
                )
            if number < NEW:
                self.fresh += 1
                path = path_of(self.fresh)
            else:
                size = self.sizes[target]
                path = path_of(self.random.randrange(min(size, 50) if number % 2 else size))
            found.append(Candidate(self.world.key(target), path, 0, 3, 3, 0, 1, 1, self.mine))
        return found

    async def cycle(self) -> tuple[int, float]:
        """(pages, CPU spent on making up the web)."""
        frontier = self.frontier
        leases = (await frontier.lease(LeaseAsk(self.epoch, 1, GROUP, 30_000, partition=self.mine))).leases
        await asyncio.gather(
            *(
                frontier.reserve(ReserveAsk(lease.key, self.epoch, lease.origin, 0, 60_000, 1, 1))
                for lease in leases
            )
        )
        cpu = time.process_time()
        web = [self._answer(lease.origin) for lease in leases]
        cpu = time.process_time() - cpu
        calls: list[Any] = []
        for lease, (fetched, links) in zip(leases, web, strict=True):
            key, ref = lease.key, fetched.ref
            assert ref is not None
            manifest = ManifestKey(key.url_id, key.attempt, 1, self.mine)
            calls += [
                frontier.record_fetched(RecordFetched(key, fetched, EFFECT, 600_000)),
                frontier.record_parsed(RecordParsed(key, 1, ref, LINKS, "html", ref, "A title")),
                frontier.complete(Complete(
                    key, 1, publish=True, fingerprint=self.text(), revisit_ms=24 * HOUR, near=self.world.near
                )),
                frontier.admit(AdmitBatch(links, CursorAdvance(manifest, 0, LINKS), {"out_of_scope": 2}, known=5)),
            ]  # fmt: skip
        replies = await asyncio.gather(*calls)
        assert all(reply == 1 for reply in replies[::4]), replies[:4]
        return len(leases), cpu

    def _answer(self, origin: str) -> tuple[Fetched, list[Candidate]]:
        self.offset += 20_000
        ref = BodyRef(self.mine, self.offset, 20_000)
        fetched = Fetched(
            200, ref, ref, random.randbytes(32), 80_000, 20_000, "text/html", "192.0.2.1",
            Timings(1, 2, 3, 120), Validators('"0123456789abcdef"'),
        )  # fmt: skip
        return fetched, self.links(origin)


async def crawl(dsn: str, world: World, partition: int, seconds: float) -> dict[str, float]:
    """Page cycles for so long; what they took on this side."""
    store = await PostgresStore.open(dsn, SETTINGS, linger_s=0.0)
    frontier = store.frontier(partition)
    taken = await frontier.take_over(TakeoverAsk("bench", partition, resume=False))
    agent = Agent(world, frontier, taken.epoch)
    await agent.cycle()
    began, cpu, pages, aside = time.perf_counter(), time.process_time(), 0, 0.0
    transactions = store.transactions
    while time.perf_counter() - began < seconds:
        done, made_up = await agent.cycle()
        pages, aside = pages + done, aside + made_up
    figures = {
        "pages": pages,
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu - aside,
        "transactions": store.transactions - transactions,
        "retries": store.retries,
    }
    await store.close()
    return figures


@dataclass(frozen=True, slots=True)
class Figures:
    """Averages over the page cycles of one measurement."""

    urls: int
    agents: int
    pages_per_s: float
    candidates_per_s: float
    client_us: float
    server_us: float
    wal_bytes: float
    retries: int

    def line(self) -> str:
        """All of them."""
        return (
            f"{self.urls:>11,} URLs {self.agents} agents {self.pages_per_s:7.0f} pages/s"
            f" {self.candidates_per_s:8.0f} candidates/s {self.client_us:6.0f} us client {self.server_us:6.0f} us server"
            f" {self.wal_bytes / 1000:6.1f} KB log/page {self.retries} retries"
        )


def server_cpu_s(server: EmbeddedPostgres | None) -> float:
    """CPU that the processes of the server have used; those that have ended count with their parent."""
    if server is None:
        return 0.0
    tick = os.sysconf("SC_CLK_TCK")
    total = 0
    for pid in (server.pid, *children_of(server.pid)):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:13] if pid != server.pid else fields[11:15]))
    return total / tick


async def wal_bytes(dsn: str) -> int:
    """How much log the server has written."""
    connection = await asyncpg.connect(dsn)
    written: int = await connection.fetchval("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")
    await connection.close()
    return written


def measure(dsn: str, server: EmbeddedPostgres | None, world: World, agents: int, seconds: float) -> Figures:
    """Agents side by side, each a process."""
    log, cpu = asyncio.run(wal_bytes(dsn)), server_cpu_s(server)
    command = [sys.executable, "-m", "bench.postgres", "--agent", dsn, json.dumps(asdict(world))]
    running = [
        subprocess.Popen([*command, str(partition), str(seconds)], stdout=subprocess.PIPE)
        for partition in range(agents)
    ]
    told = [json.loads(process.communicate()[0]) for process in running]
    cpu, log = server_cpu_s(server) - cpu, asyncio.run(wal_bytes(dsn)) - log
    pages = sum(one["pages"] for one in told)
    rate = sum(one["pages"] / one["seconds"] for one in told)
    every = pages + agents * GROUP  # the first group of each counts for the server
    return Figures(
        world.urls,
        agents,
        rate,
        rate * LINKS,
        1e6 * sum(one["cpu"] for one in told) / max(1, pages),
        1e6 * cpu / every,
        log / every,
        sum(round(one["retries"]) for one in told),
    )


def run(dsn: str, server: EmbeddedPostgres | None, options: argparse.Namespace) -> None:
    """Fill the frontier and measure with each number of agents."""
    world = World(options.urls, options.origins, max(options.agents), options.near)
    asyncio.run(init(dsn, partitions=world.partitions))
    began = time.perf_counter()
    asyncio.run(load(dsn, world))
    print(f"{options.urls:,} URLs loaded in {time.perf_counter() - began:.0f} s", flush=True)
    for agents in options.agents:
        print(measure(dsn, server, world, agents, options.seconds).line(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--urls", type=int, default=100_000)
    parser.add_argument("--origins", type=int, default=2_000)
    parser.add_argument("--agents", type=int, action="append")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--near", action="store_true", help="withhold near-duplicates")
    parser.add_argument("--dsn", default="")
    parser.add_argument("--folder", type=Path, help="where the server that is started here keeps its files")
    parser.add_argument("--agent", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.agent is not None:
        dsn, world, partition, seconds = options.agent
        print(json.dumps(asyncio.run(crawl(dsn, World(**json.loads(world)), int(partition), float(seconds)))))
        return
    options.agents = options.agents or [1, 2, 4]
    if options.dsn:
        run(options.dsn, None, options)
        return
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="amble-bench-") as folder:
        Path(folder).chmod(0o755)
        server = EmbeddedPostgres.start(Path(folder) / "server", settings=SERVER)
        try:
            run(server.socket_dsn(server.create_database("bench").rpartition("/")[2]), server, options)
        finally:
            server.close()


if __name__ == "__main__":
    main()
