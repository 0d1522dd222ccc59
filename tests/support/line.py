"""The whole line in one process with real parts: SQLite inline, WARC segments, a sandboxed child, our own HTTP engine.

Only the store's clock is the test's. A step can be left out (`until`) to stand for a crash at that very point: what the
process had not yet committed is simply gone.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

from amble.adapters.archive.directory import DirectoryArchive
from amble.adapters.net.resolver import DnsResolver
from amble.adapters.net.tls import lenient_provider
from amble.adapters.net.transport import Http1Transport
from amble.adapters.sandbox.pool import SandboxPool
from amble.adapters.sql.check import SqliteCheck
from amble.adapters.sql.inline import InlineStore
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.sqlite import SqliteStore
from amble.adapters.system import EventLog, SystemClock, SystemEntropy
from amble.domain.frontier import Takeover, TakeoverAsk
from amble.domain.policy import FetchLimits, OriginPolicy, Policy, RetryPolicy, ScopeKind
from amble.domain.scope import Scope
from amble.domain.url import Canonicalizer
from amble.stages.admit import LinkSettings, UrlGate
from amble.stages.complete import Completion
from amble.stages.discover import BATCH_LINKS, Discovery
from amble.stages.fetch import Fetcher
from amble.stages.gate import EgressGate, Fence
from amble.stages.health import Health
from amble.stages.journey import Dispatch, Extract
from amble.stages.lease import Scheduler
from amble.stages.parse import Extraction
from amble.stages.rules import RobotsBook
from amble.stages.store import Recorder

START_MS = 1_700_000_000_000
POLICY = Policy(
    fetch=FetchLimits(connect_s=2, first_byte_s=2, idle_s=2, total_s=5),
    origin=OriginPolicy(spacing_ms=1_000, delay_fixed=True),
    retry=RetryPolicy(tries_max=2, base_ms=1_000),
)


@dataclass(slots=True)
class StoreTime:
    """The store's clock, moved by the test."""

    now_ms: int = START_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass(slots=True)
class Line:
    """One life of an agent. `next_life` is what a restart after a crash would be."""

    folder: Path
    time: StoreTime
    store: SqliteStore
    frontier: InlineStore
    archive: DirectoryArchive
    pool: SandboxPool
    takeover: Takeover
    url_gate: UrlGate
    scheduler: Scheduler
    gate: EgressGate
    fetcher: Fetcher
    recorder: Recorder
    dispatch: Dispatch
    extraction: Extraction
    completion: Completion
    discovery: Discovery
    extract: Extract
    resolver_troubles: list[str] = field(default_factory=list)

    async def seed(self, *urls: str) -> None:
        await self.url_gate.admit_seeds(urls)

    async def lease(self) -> list[object]:
        """Everything that is due after the spacing has passed."""
        self.time.now_ms += 2_000
        return list((await self.scheduler.lease(10)).leases)

    async def run(self, turns: int = 50) -> None:
        """The line until nothing is due."""
        for _ in range(turns):
            leases = await self.lease()
            if not leases:
                return
            for lease in leases:
                source = await self.dispatch.run(lease)  # type: ignore[arg-type]
                if source is not None:
                    await self.extract.run(source)

    async def resume(self) -> None:
        """What a new life does first."""
        for work in self.takeover.resumables:
            await self.extract.resume(work)
        for manifest in self.takeover.open_manifests:
            await self.discovery.resume(manifest)

    def states(self) -> dict[str, str]:
        """Path -> state of every page."""
        names = ("pending", "leased", "fetched", "parsed", "complete", "failed", "excluded")
        rows = self.store.database.execute("SELECT path, state FROM url WHERE kind = 0").fetchall()
        return {path: names[state] for path, state in rows}

    def reason(self, path: str) -> str:
        """Why a page is where it is."""
        row = self.store.database.execute("SELECT reason FROM url WHERE path = ?1", (path,)).fetchone()
        return row[0] or ""

    def problems(self) -> list[str]:
        """What `amble verify` would say of the frontier."""
        return list(SqliteCheck(self.folder / "frontier.db", database=self.store.database).problems())

    def published(self) -> list[str]:
        rows = self.store.database.execute(
            "SELECT u.path FROM publication p JOIN url u ON u.id = p.url_id ORDER BY p.seq"
        ).fetchall()
        return [path for (path,) in rows]


class Lines:
    """Opens lives one after another on one folder."""

    def __init__(self, folder: Path, pool: SandboxPool, policy: Policy = POLICY) -> None:
        self.folder, self.pool, self.policy = folder, pool, policy
        self.time = StoreTime()
        self.batch_links = BATCH_LINKS
        self._life = AsyncExitStack()

    async def __aenter__(self) -> Lines:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._life.aclose()

    async def next_life(self) -> Line:
        """A fresh agent on the folder. The one before is gone: nothing of its memory is left."""
        await self._life.aclose()
        self._life = AsyncExitStack()
        policy, clock, entropy = self.policy, SystemClock(), SystemEntropy()
        log = EventLog(None)
        store = SqliteStore(
            self.folder / "frontier.db",
            StoreSettings(default_spacing_ms=policy.origin.spacing_ms),
            now_ms=self.time,
        )
        frontier = InlineStore(store)
        self._life.push_async_callback(frontier.close)
        archive = DirectoryArchive(self.folder / "archive", clock, entropy)
        self._life.push_async_callback(archive.close)
        transport = Http1Transport(
            policy.fetch, "amble/test", self.folder, providers=(lenient_provider(),), tick_s=0.05
        )
        self._life.push_async_callback(transport.close)
        resolver = DnsResolver(["127.0.0.1:1"], clock)
        self._life.push_async_callback(resolver.close)
        takeover = await frontier.take_over(TakeoverAsk("test"))
        canonicalizer, health = Canonicalizer(), Health(clock, log)
        url_gate = UrlGate(
            frontier,
            policy,
            Scope(ScopeKind.ANY),
            canonicalizer,
            links=LinkSettings(follow_rel_nofollow=False),
        )
        book, fence = RobotsBook(archive), Fence(takeover.epoch)
        scheduler = Scheduler(frontier=frontier, clock=clock, policy=policy, epoch=takeover.epoch)
        gate = EgressGate(
            frontier=frontier, resolver=resolver, book=book, policy=policy,
            allowed_nets=[ip_network("127.0.0.1/32")], clock=clock, telemetry=log, fence=fence,
        )  # fmt: skip
        recorder = Recorder(
            frontier=frontier, archive=archive, policy=policy, clock=clock, entropy=entropy, telemetry=log,
            health=health, store_now_ms=self.time,
        )  # fmt: skip
        extraction = Extraction(
            pool=self.pool, archive=archive, frontier=frontier, clock=clock, entropy=entropy, telemetry=log,
            health=health, limits=policy.parse,
        )  # fmt: skip
        completion = Completion(frontier=frontier, book=book, policy=policy, store_now_ms=self.time)
        discovery = Discovery(gate=url_gate, archive=archive, batch_links=self.batch_links)
        troubles: list[str] = []
        fetcher = Fetcher(transport, policy)
        return Line(
            folder=self.folder,
            time=self.time,
            store=store,
            frontier=frontier,
            archive=archive,
            pool=self.pool,
            takeover=takeover,
            url_gate=url_gate,
            scheduler=scheduler,
            gate=gate,
            fetcher=fetcher,
            recorder=recorder,
            dispatch=Dispatch(
                gate=gate,
                fetcher=fetcher,
                recorder=recorder,
                canonicalizer=canonicalizer,
                on_resolver_trouble=lambda origin, _: troubles.append(origin),
            ),
            extraction=extraction,
            completion=completion,
            discovery=discovery,
            extract=Extract(
                extraction=extraction,
                completion=completion,
                discovery=discovery,
                archive=archive,
                telemetry=log,
            ),
            resolver_troubles=troubles,
        )
