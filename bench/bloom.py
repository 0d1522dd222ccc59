"""Candidate checks on PostgreSQL with the Bloom accelerator and without, with a warm and with a cold cache.

    python -m bench.bloom [--urls 1000000] [--batches 60] [--known 0.9]

A server of its own is started in a folder on disk with small shared buffers and loaded with the URLs. Each measurement
admits batches of candidates, of which a share is known. Cold: the server is stopped, its files are dropped from the
cache of the system, and it is started again before every measurement; on a disk that answers in microseconds that
hides most of what a real cold store costs, so the blocks read are told as well.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from amble.adapters.postgres.bloom import Membership
from amble.adapters.postgres.embedded import EmbeddedPostgres
from amble.adapters.postgres.placement import set_up_servers
from amble.adapters.postgres.servers_link import Link
from amble.adapters.postgres.store import PostgresStore
from amble.adapters.sql.identity import SLOT_BITS, Slots
from amble.adapters.sql.settings import StoreSettings
from amble.domain.attempt import Edge, UrlKind
from amble.domain.frontier import AdmitBatch, Candidate, Verdict

ORIGINS = 1_000
BATCH = 500
SETTINGS = {"shared_buffers": "64MB", "max_wal_size": "4GB", "fsync": "off"}
LIMITS = StoreSettings(urls_per_origin_start=10**9, urls_per_origin_max=10**9)

_LOAD_ORIGINS = """
INSERT INTO origin(id, key, partition, created_at, robots_url_id, urls, queued)
SELECT n, 'https://o' || n || '.example', 0, 0, n << 36, $2, 0 FROM generate_series(1, $1) AS n
"""
_COLUMNS = (
    "id", "path", "state", "kind", "priority", "depth", "hops", "edge", "parent", "admitted_at", "attempt",
    "generation", "tries", "strikes", "checks", "changes",
)  # fmt: skip


def path_of(number: int) -> str:
    return f"/section/{number % 97}/page-{number}.html"


def rows(urls: int, slots: Slots) -> Iterator[tuple[object, ...]]:
    """URLs as they would be admitted, in the order of their ids."""
    each = urls // ORIGINS
    for origin in range(1, ORIGINS + 1):
        paths = {slots.first(path_of(number)): path_of(number) for number in range(each)}
        for slot in sorted(paths):
            yield (origin << SLOT_BITS | slot, paths[slot], 4, 0, 2, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0)


async def load(dsn: str, urls: int) -> None:
    await set_up_servers([dsn], partitions=1)
    connection = await asyncpg.connect(dsn)
    key = await connection.fetchval("SELECT value FROM meta WHERE name = 'path_key'")
    await connection.execute(_LOAD_ORIGINS, ORIGINS, urls // ORIGINS)
    await connection.execute("UPDATE origin_block SET next = $1", ORIGINS + 1)
    await connection.copy_records_to_table("url", records=rows(urls, Slots(key)), columns=_COLUMNS)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


def batches(urls: int, count: int, known: float, seed: int) -> Iterator[list[Candidate]]:
    chance, each = random.Random(seed), urls // ORIGINS
    for number in range(count):
        batch = []
        for place in range(BATCH):
            origin = chance.randrange(1, ORIGINS + 1)
            if chance.random() < known:
                path = path_of(chance.randrange(each))
            else:
                path = f"/new/{seed}/{number}/{place}"
            batch.append(
                Candidate(f"https://o{origin}.example", path, int(UrlKind.PAGE), 2, 1, 0, int(Edge.ANCHOR), 0)
            )
        yield batch


def forget(folder: Path) -> None:
    """Drop the files of a stopped server from the cache of the system, and nothing else."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


async def measure(
    dsn: str, options: argparse.Namespace, seed: int, folder: Path | None
) -> tuple[float, int, int, int]:
    """(candidates a second, blocks read by the server, looked up, ruled out)."""
    membership = None
    if folder is not None:
        membership = Membership(folder)
        link = Link(dsn)
        begin = time.perf_counter()
        caught_up = await membership.take_up(0, link)
        await link.close()
        print(
            f"    take-up: {time.perf_counter() - begin:.2f} s, file used: {caught_up.loaded}, "
            f"{caught_up.origins_read:,} origins and {caught_up.read:,} ids read, "
            f"{membership.size_bytes / 1e6:.1f} MB"
        )
    if options.cold_again is not None:
        options.cold_again()
    store = await PostgresStore.open(dsn, LIMITS, linger_s=0.0)
    store.use(membership)
    side = await asyncpg.connect(dsn)
    await side.execute("SELECT pg_stat_reset()")
    new = 0
    begin = time.perf_counter()
    for batch in batches(options.urls, options.batches, options.known, seed):
        verdicts = (await store.frontier(0).admit(AdmitBatch(batch))).verdicts
        new += verdicts.count(Verdict.ADMITTED)
    took = time.perf_counter() - begin
    await store.close()
    await asyncio.sleep(1.2)  # counters are told to others once a second
    read = await side.fetchval("SELECT blks_read FROM pg_stat_database WHERE datname = current_database()")
    await side.close()
    looked_up = ruled_out = 0
    if membership is not None:
        looked_up, ruled_out = membership.looked_up, membership.ruled_out
        membership.close()
    return options.batches * BATCH / took, read, looked_up, ruled_out


async def compare(server: EmbeddedPostgres, dsn: str, options: argparse.Namespace, filters: Path) -> None:
    seed = 1
    print("  filter taken up for the first time:")
    options.cold_again = None
    await measure(dsn, options, seed, filters)
    for label in ("warm", "cold"):

        def cold() -> None:
            server.stop()
            forget(server.data)
            server.start_again()

        options.cold_again = cold if label == "cold" else None
        for turn in range(options.repeat):
            # Each goes first as often as the other: what one admits makes pages of the other warm.
            for on in (True, False) if turn % 2 else (False, True):
                seed += 1
                rate, read, looked_up, ruled_out = await measure(dsn, options, seed, filters if on else None)
                note = f", {looked_up:,} looked up, {ruled_out:,} ruled out" if on else ""
                print(
                    f"  {label:<5} filter {'on ' if on else 'off'} {rate:>9,.0f} candidates/s, {read:>7,} blocks read{note}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--urls", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--known", type=float, default=0.9)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, default=None, help="on a disk; default: the folder for temporary files"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="amble-bloom-", dir=options.folder) as made:
        Path(made).chmod(0o755)  # the server may run as a user of its own
        server = EmbeddedPostgres.start(Path(made) / "server", settings=SETTINGS)
        try:
            dsn = server.create_database("bench")
            print(
                f"{options.urls:,} URLs of {ORIGINS:,} origins, {options.known:.0%} of candidates known, {BATCH} in a batch"
            )
            asyncio.run(load(dsn, options.urls))
            asyncio.run(compare(server, dsn, options, Path(made) / "filters"))
        finally:
            server.close()


if __name__ == "__main__":
    main()
