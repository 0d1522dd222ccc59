"""CPU of the frontier store per page cycle, and how it grows with the number of known URLs.

A page cycle is lease + reserve + fetched + parsed + complete + admit of 30 candidates of which 3 are new, 64 cycles
to a commit. The file is bulk-loaded first, so its pages are full and the first inserts split them.

    python -m bench.frontier --urls 100000 --urls 1000000 --seconds 5
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from amble.adapters.sql import messages as m
from amble.adapters.sql.identity import SLOT_BITS
from amble.adapters.sql.near import NearIndex
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.sqlite import SqliteStore
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
DOCUMENTS_AT_ONCE = 500_000
EFFECT = OriginEffect(120, 0, 0, 0)


def path_of(number: int) -> str:
    return f"/section/{number % 97}/an-article-with-a-title-{number}"


class World:
    """A store with `urls` known URLs over `origins` origins, half pending and half complete."""

    def __init__(self, file: Path, urls: int, origins: int, documents: int = 0) -> None:
        self.now = 1_700_000_000_000
        settings = StoreSettings(default_spacing_ms=0, urls_per_origin_start=10**9, urls_per_origin_max=10**9)
        self.store = SqliteStore(file, settings, now_ms=lambda: self.now)
        self.random = random.Random(1)
        self.origins = [f"https://site{n}.example" for n in range(origins)]
        weights = [1 / (n + 1) ** 0.9 for n in range(origins)]
        self.weights = weights
        self.per_origin = [max(2, int(urls * weight / sum(weights))) for weight in weights]
        self.fresh = 10**9
        self._load()
        self._index(documents)
        self.epoch = self.store.apply([m.TakeOver(TakeoverAsk("bench"))])[0].epoch

    def _load(self) -> None:
        store, first = self.store, self.store.books.slots.first
        db = store.database
        db.execute("BEGIN IMMEDIATE")
        rows: list[tuple] = []
        for n, key in enumerate(self.origins):
            origin_id, robots = n + 1, (n + 1) << SLOT_BITS | first("/robots.txt")
            here = {robots: "/robots.txt"}
            for k in range(self.per_origin[n]):
                here.setdefault(origin_id << SLOT_BITS | first(path_of(k)), path_of(k))
            queued = 0
            for number, (url_id, path) in enumerate(sorted(here.items())):
                done = url_id == robots or number % 2
                queued += not done
                etag = '"0123456789abcdef"' if done else None
                rows.append(
                    (url_id, path, 4 if done else 0, int(url_id == robots), None if done else number % 6,
                     None if done else self.now - 1000, (done and random.randbytes(32)) or None, etag)
                )  # fmt: skip
            db.execute(
                "INSERT INTO origin(id, key, wake_at, next_start, rest_until, backoff_level, last_fetch_ms, "
                "leased, active, paused, policy_version, queued, urls, pages, turns, robots_url_id, robots_outcome, "
                "robots_version, robots_fetched_at, robots_expires_at, robots_delay_ms, created_at) "
                "VALUES (?,?,?,0,0,0,0,0,0,0,1,?,?,0,0,?,2,1,0,?,0,0)",
                (origin_id, key, self.now - 1000, queued, len(here) - 1, robots, self.now + 24 * HOUR),
            )
        db.executemany(
            "INSERT INTO url(id, path, state, kind, rq, due_at, priority, depth, hops, edge, parent, admitted_at, "
            "attempt, generation, tries, strikes, digest, etag, checks, changes) "
            "VALUES (?1,?2,?3,?4,?5,?6,coalesce(?5,3),3,0,1,1,0,?3 <> 0,1,0,0,?7,?8,0,0)",
            rows,
        )
        counts = db.execute("SELECT state, count(*) FROM url GROUP BY state").fetchall()
        names = {0: "state.pending", 4: "state.complete"}
        values = [(names[state], count) for state, count in counts]
        queued = db.execute("SELECT count(*) FROM url WHERE rq IS NOT NULL").fetchone()[0]
        db.executemany(
            "INSERT INTO tally VALUES (?, ?)", [*values, ("queued", queued), ("origins", len(self.origins))]
        )
        db.execute("COMMIT")
        store._roll_back()
        store.books.tally.__init__(db)
        db.checkpoint()

    def _index(self, documents: int) -> None:
        """So many documents of unrelated texts are published already."""
        db, index = self.store.database, NearIndex(self.store.database)
        for first in range(0, documents, DOCUMENTS_AT_ONCE):
            count = min(DOCUMENTS_AT_ONCE, documents - first)
            db.execute("BEGIN IMMEDIATE")
            index.file(
                (self.random.getrandbits(64), 1 << SLOT_BITS | self.random.getrandbits(SLOT_BITS))
                for _ in range(count)
            )
            db.execute("COMMIT")
            db.checkpoint()

    def links(self, origin: str) -> list[Candidate]:
        """Nine in ten are known; three in four stay on the origin."""
        out = []
        for n in range(LINKS):
            key = origin
            if n % 4 == 3:
                key = self.random.choices(self.origins, self.weights)[0]
            if n < NEW:
                self.fresh += 1
                out.append(Candidate(key, path_of(self.fresh), 0, 3, 3, 0, 1, 1))
            else:
                size = self.per_origin[int(key[12:-8])]
                out.append(
                    Candidate(
                        key,
                        path_of(self.random.randrange(min(size, 50) if n % 2 else size)),
                        0,
                        3,
                        3,
                        0,
                        1,
                        1,
                    )
                )
        return out

    def tick(self, offset: int, *, near: bool = True) -> tuple[int, float, float]:
        """(pages, CPU seconds of the store, of the codec that carries the same operations over the socket).

        `near`: near-duplicates are looked for.
        """
        self.now += 1000
        cpu = time.process_time()
        (reply,) = self.store.apply([m.TakeLease(LeaseAsk(self.epoch, 1, GROUP, 30_000))])
        lease_cpu = time.process_time() - cpu
        operations: list = []
        for number, lease in enumerate(reply.leases):
            ref = BodyRef(1, offset + number, 20_000)
            fetched = Fetched(200, ref, ref, random.randbytes(32), 80_000, 20_000, "text/html", "192.0.2.1",
                              Timings(1, 2, 3, 120), Validators('"0123456789abcdef"'))  # fmt: skip
            key = lease.key
            manifest = ManifestKey(key.url_id, key.attempt, 1)
            operations += [
                m.Reserve(ReserveAsk(key, self.epoch, lease.origin, 0, 60_000, lease.facts.robots.version, 1)),
                m.KeepFetched(RecordFetched(key, fetched, EFFECT, 600_000)),
                m.KeepParsed(RecordParsed(key, 1, ref, LINKS, "html", ref, "A title")),
                m.Finish(Complete(key, 1, True, fingerprint=random.getrandbits(64), near=near, revisit_ms=24 * HOUR)),
                m.Admit(AdmitBatch(self.links(lease.origin), CursorAdvance(manifest, 0, LINKS), {"out_of_scope": 2}, [], 5)),
            ]  # fmt: skip
        cpu = time.process_time()
        payload = m.encode(operations)
        m.decode_operations(payload)
        codec_cpu = time.process_time() - cpu
        cpu = time.process_time()
        replies = self.store.apply(operations)
        self.store.checkpoint(quiet=False)
        apply_cpu = time.process_time() - cpu
        assert not any(isinstance(reply, m.Refused) for reply in replies), replies
        assert all(reply == 1 for reply in replies[1::5]), replies
        return len(reply.leases), lease_cpu + apply_cpu, codec_cpu


@dataclass(frozen=True, slots=True)
class Figures:
    """Averages over the page cycles of one measurement; microseconds of CPU and bytes."""

    urls: int
    origins: int
    bytes_per_url: float
    store_us: float
    plain_us: float
    codec_us: float
    wal_bytes: float
    rss_mb: int

    def line(self) -> str:
        """All of them."""
        return (
            f"{self.urls:>9,} URLs {self.origins:>7,} origins  {self.bytes_per_url:5.0f} B/URL"
            f"  {self.store_us:6.0f} µs store CPU/page ({self.plain_us:.0f} without near-duplicates)"
            f"  {self.codec_us:4.0f} µs codec"
            f"  {1e6 / (self.store_us or 1):5.0f} pages/CPU-s  {self.wal_bytes / 1000:4.0f} KB WAL/page"
            f"  {self.rss_mb} MB RSS"
        )


def measure(
    urls: int,
    origins: int,
    seconds: float,
    profiler: cProfile.Profile | None = None,
    *,
    documents: int = 0,
) -> Figures:
    """Run page cycles for `seconds` on a frontier with `urls` known URLs and `documents` published ones."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "frontier.db"
        world = World(file, urls, origins, documents)
        size = file.stat().st_size
        world.tick(0)
        near = False
        began, pages, cpu, codec = time.perf_counter(), [0, 0], [0.0, 0.0], 0.0
        if profiler is not None:
            profiler.enable()
        while time.perf_counter() - began < seconds:
            # In turn, because the speed of a shared machine changes.
            near = not near
            done, used, coded = world.tick(sum(pages) * 1000, near=near)
            pages[near], cpu[near], codec = pages[near] + done, cpu[near] + used, codec + coded
        if profiler is not None:
            profiler.disable()
        wal = world.store.wal_bytes() / sum(pages)
        world.store.close()
        return Figures(
            urls=urls,
            origins=origins,
            bytes_per_url=size / urls,
            store_us=1e6 * cpu[True] / pages[True],
            plain_us=1e6 * cpu[False] / pages[False],
            codec_us=1e6 * codec / sum(pages),
            wal_bytes=wal,
            rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--urls", type=int, action="append")
    parser.add_argument("--origins", type=int, default=2_000)
    parser.add_argument("--documents", type=int, default=0, help="in the index of near-duplicates at first")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    for urls in arguments.urls or [100_000, 1_000_000]:
        profiler = cProfile.Profile() if arguments.profile else None
        figures = measure(
            urls,
            arguments.origins,
            arguments.seconds,
            profiler,
            documents=arguments.documents,
        )
        print(figures.line())
        if profiler is not None:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(28)


if __name__ == "__main__":
    main()
