"""Every socket in the wall, one page: what the stages want from the world, in the domain's words.

A port states its promise; one contract suite per port holds every adapter to it (tests/contract).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from amble.domain.attempt import OriginId
from amble.domain.decision import Category
from amble.domain.fetched import BodyRef, Timings
from amble.domain.frontier import (
    AdmitBatch,
    AdmitReport,
    AdoptAsk,
    Applied,
    Complete,
    DrainAsk,
    DrainReply,
    DropParcels,
    Exclude,
    LeaseAsk,
    LeaseReply,
    Parcel,
    ParcelAsk,
    ParseStrike,
    PutBack,
    RecordFailed,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    ReserveReply,
    Resumable,
    Takeover,
    TakeoverAsk,
)
from amble.domain.manifest import ParseManifest
from amble.domain.partition import AgentLine, PartitionLine
from amble.domain.policy import FetchLimits
from amble.domain.record import IndexFacts, NewRecord, ReplayableBlock, StoredRecord


class Clock(Protocol):
    """Time of this process: a monotonic count for durations, the wall for dates that people read."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Entropy(Protocol):
    """Randomness: jitter and record ids."""

    def uniform(self) -> float:
        """A number in [0, 1)."""
        ...

    def token(self, count: int) -> bytes:
        """`count` unpredictable bytes."""
        ...


class Frontier(Protocol):
    """The durable record of every known URL. Each call is durable when it returns; calls made together share a commit.

    Calls are applied in the order in which they were made. Raises StoreUnavailable when nothing was changed and the
    same call may be made again. A repeated call with the same key is harmless.
    """

    async def take_over(self, ask: TakeoverAsk) -> Takeover:
        """Become the owner: a new epoch, leases of earlier owners lapse, what they fetched is handed over.

        Raises StoreBroken when `ask.epoch` is given and not current.
        """
        ...

    async def admit(self, batch: AdmitBatch) -> AdmitReport:
        """Insert unknown candidates as queued URLs, advance the cursor, count the rest; one commit."""
        ...

    async def lease(self, ask: LeaseAsk) -> LeaseReply:
        """PENDING to LEASED for the best due URL of each due origin, robots first where the decision has expired."""
        ...

    async def reserve(self, ask: ReserveAsk) -> ReserveReply:
        """Reserve the next start and an active slot of an origin under the epoch. Refusal spends nothing."""
        ...

    async def put_back(self, item: PutBack) -> Applied:
        """LEASED to PENDING; no try is counted, the slot is free."""
        ...

    async def exclude(self, item: Exclude) -> Applied:
        """LEASED to EXCLUDED with a reason."""
        ...

    async def record_fetched(self, item: RecordFetched) -> Applied:
        """LEASED to FETCHED; the slot is free; a fetch record is written."""
        ...

    async def record_failed(self, item: RecordFailed) -> Applied:
        """LEASED to the retry lane or FAILED; the slot is free."""
        ...

    async def record_parsed(self, item: RecordParsed) -> Applied:
        """FETCHED to PARSED; the manifest row is written with its cursor at 0."""
        ...

    async def complete(self, item: Complete) -> Applied:
        """PARSED to COMPLETE; publication (see Complete.near), directives, robots decision, next due time in one commit."""
        ...

    async def parse_strike(self, item: ParseStrike) -> Applied:
        """FETCHED with one strike more, or FAILED."""
        ...

    async def find_body(self, digest: bytes) -> BodyRef | None:
        """Where bytes with this sha256 are already stored by a committed fetch."""
        ...

    async def adopt(self, ask: AdoptAsk) -> list[Resumable]:
        """Take rows past LEASED that nobody holds (their hold has lapsed or was given up). None under a stale epoch."""
        ...

    async def drain(self, ask: DrainAsk) -> DrainReply:
        """Admit candidates of the inbox; they leave it in the same commit. Nothing under a stale epoch."""
        ...

    async def parcels(self, ask: ParcelAsk) -> list[Parcel]:
        """The oldest parcels of an outbox, in the order of their numbers. Changes nothing; none under a stale epoch."""
        ...

    async def deliver(self, parcels: list[Parcel]) -> Applied:
        """Put parcels into the inboxes of their destinations, those that were taken before left out; one commit.

        STALE when a destination does not live here.
        """
        ...

    async def drop_parcels(self, item: DropParcels) -> Applied:
        """Forget parcels that their destinations have taken. STALE under a stale epoch."""
        ...

    async def expire(self, limit: int) -> int:
        """Return up to `limit` lapsed leases to PENDING and free their slots; how many there were."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, checkpoint, and let go of the file."""
        ...


class Claimed(Struct, frozen=True):
    """One partition that was claimed: its new epoch, and how long requests of the owner before may still be under way.

    `wait_ms` is 0 where that owner released the partition or never started anything. `hold_ms`: the longest time that a
    request of the owner before, or of this agent, may last after its start was granted.
    """

    partition: int
    epoch: int
    wait_ms: int
    hold_ms: int = 0


class Roster(Struct, frozen=True):
    """Everything an agent needs to know to keep, claim and hand over partitions.

    `lost`: partitions among those renewed that are not ours any more. `sites_apart`: sites with a partition of their own.
    `away`: partitions that are out of service because their server does not answer, and why. `clocks_ms`: the time by the
    clock of each server that answered, by which its leases run.
    """

    agents: Sequence[AgentLine]
    partitions: Sequence[PartitionLine]
    lost: Sequence[int]
    hashed: int
    sites_apart: Mapping[str, int]
    away: Mapping[int, str] = {}
    clocks_ms: Mapping[int, int] = {}


class Partitions(Protocol):
    """Who owns which partition: fenced rows under the clock of the database.

    Each call is one transaction. Raises StoreUnavailable when it is not known to have happened; it may be repeated.
    """

    async def renew(self, agent: str, holds: Mapping[int, int], ttl_ms: int, *, leaving: bool) -> Roster:
        """Say that `agent` is alive and renew its holds (partition -> epoch) for `ttl_ms` from now."""
        ...

    async def claim(self, agent: str, wanted: Sequence[int], ttl_ms: int, hold_ms: int) -> list[Claimed]:
        """Claim those of `wanted` that nobody holds, each under its next epoch.

        `hold_ms`: the longest time a request of this agent may last after its start was granted. It is kept with the
        partition: whoever claims it next waits for the longer of what its owner said and what itself would say.
        """
        ...

    async def release(self, agent: str, holds: Mapping[int, int]) -> None:
        """Give partitions up whose requests are all over: the next owner need not wait."""
        ...

    async def leave(self, agent: str) -> None:
        """Forget the agent; what it still holds lapses by itself."""
        ...


class Digests(Protocol):
    """Where bodies were stored first, apart from any frontier. Both calls wait while the index cannot answer."""

    async def find(self, digest: bytes) -> BodyRef | None:
        """Where bytes with this sha256 were stored first, as far as the index knows."""
        ...

    async def add(self, digest: bytes, ref: BodyRef, length: int) -> BodyRef:
        """Remember `ref` unless another came first; the one that did. Repeating it changes nothing."""
        ...


class ReplayableBody(Protocol):
    """The bytes of one answer, readable many times: in memory when small, in a temporary file when large."""

    @property
    def length(self) -> int:
        """Bytes in all."""
        ...

    @property
    def digest(self) -> bytes:
        """sha256 of the bytes."""
        ...

    def pieces(self) -> Iterator[bytes]:
        """The bytes from the start, in pieces of at most 64 KiB (one piece if in memory)."""
        ...

    def close(self) -> None:
        """Let go of the temporary file, if any."""
        ...


class Permit(Struct, frozen=True, kw_only=True):
    """The egress gate's permission to start one request. The only key to a socket; only stages/gate.py makes one.

    `address` is the judged and pinned IP address, `deadline_s` the monotonic time at which the request must be over.
    `start_by_s`: the monotonic time at which it must have begun; from then on another agent may own the origin.
    """

    url: str
    scheme: str
    host: str
    port: int
    target: str
    address: str
    epoch: int
    deadline_s: float
    origin_id: int
    start_by_s: float = math.inf


class Ask(Struct, frozen=True, kw_only=True):
    """What to send under a permit beyond the address: extra request headers and the bounds of the answer."""

    headers: tuple[tuple[str, str], ...] = ()
    body_bytes_max: int = 10 * 1024 * 1024
    keep_alive: bool = True


class Reply(Struct, kw_only=True):
    """One HTTP answer as received. `head` is the byte-exact status line and header block of the final response.

    `body` is the payload with the transfer coding removed and the content coding kept. `truncated` names why the body
    is incomplete: "", "length", "idle", "total", "disconnect", "framing", "slow".
    """

    status: int
    head: bytes
    headers: Mapping[str, str]  # lower-case names, first value wins, latin-1
    body: ReplayableBody
    request: bytes
    address: str
    timings: Timings
    wire_bytes: int
    truncated: str = ""
    quirks: tuple[str, ...] = ()
    reused: bool = False
    tls: str = ""


class FetchFailure(Struct, frozen=True):
    """The exchange failed without a usable answer.

    `stale`: a kept connection turned out dead before a byte of the answer came. That says nothing about the URL; it
    may be asked for again at once, under a permit of its own.
    """

    category: Category
    detail: str
    timings: Timings = field(default_factory=Timings)
    stale: bool = False


class Transport(Protocol):
    """One HTTP exchange under a permit: a permit or nothing. Never follows redirects, sends no cookies."""

    async def fetch(self, permit: Permit, ask: Ask) -> Reply | FetchFailure:
        """Do it. Expected failures are values; cancellation closes the connection."""
        ...

    def has_idle(self, permit_host: str, port: int, scheme: str) -> bool:
        """Whether an idle connection to that origin is pooled."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class Resolved(Struct, frozen=True):
    """All addresses of a name, IPv4 and IPv6, in the resolver's order; `ttl_s` left in the cache."""

    addresses: tuple[str, ...]
    ttl_s: float


class ResolveFailure(Struct, frozen=True):
    """`category` is one of dns_*. `unavailable` True: the resolver itself does not answer, the name is not to blame."""

    category: Category
    detail: str
    unavailable: bool = False


class Resolver(Protocol):
    """Names to addresses, with a TTL cache that also remembers refusals. Judges nothing."""

    async def resolve(self, host: str) -> Resolved | ResolveFailure:
        """All addresses of `host`; an IP literal resolves to itself."""
        ...

    async def close(self) -> None:
        """Stop."""
        ...


class Archive(Protocol):
    """WARC segments. An append is durable when it returns; calls made together share one sync."""

    async def append(self, records: Sequence[NewRecord]) -> list[BodyRef]:
        """Append in order, into one segment; one reference per record.

        Raises ArchiveUnavailable and then nothing counts as stored; the same records may be appended again.
        """
        ...

    async def read(self, ref: BodyRef) -> StoredRecord:
        """The record at `ref`. Raises ArchiveBroken when it is not there or not whole."""
        ...

    async def probe(self) -> str | None:
        """None when appends should work now, else the reason they cannot (disk full, read-only), readable."""
        ...

    async def close(self) -> None:
        """Seal the open segment."""
        ...


class ParseTask(Struct, frozen=True, kw_only=True):
    """One body for a sandboxed child. `head` is the HTTP header block; the body still has its content coding."""

    url: str
    kind: int
    status: int
    head: bytes
    body: ReplayableBody


class Parsed(Struct, frozen=True, kw_only=True):
    """What a child returns. `text`: visible text, `main`: main text, both UTF-8, empty where there is none."""

    manifest: ParseManifest
    text: bytes = b""
    main: bytes = b""


class ParseFailure(Struct, frozen=True):
    """The child died, overran a limit, or could not make sense of the body. `reason` is a stable word."""

    reason: str  # cpu, wall, memory, crashed, garbage, decode, internal
    detail: str


class ParserPool(Protocol):
    """Sandboxed parser children. One hostile page costs itself a strike and nobody else anything."""

    async def parse(self, task: ParseTask) -> Parsed | ParseFailure:
        """Parse one body. Raises SandboxUnavailable when no child can be had at all."""
        ...

    @property
    def generation(self) -> int:
        """Extraction generation of these children: parser version and settings."""
        ...

    @property
    def size(self) -> int:
        """Children."""
        ...

    async def close(self) -> None:
        """End the children."""
        ...


class Telemetry(Protocol):
    """Named events with ids, and counters. Never a body, never a secret."""

    def event(self, name: str, **fields: object) -> None:
        """One event for the log."""
        ...

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        ...


__all__ = [
    "Archive",
    "Ask",
    "Clock",
    "Entropy",
    "FetchFailure",
    "FetchLimits",
    "Frontier",
    "IndexFacts",
    "NewRecord",
    "OriginId",
    "ParseFailure",
    "ParseTask",
    "Parsed",
    "ParserPool",
    "Permit",
    "ReplayableBlock",
    "ReplayableBody",
    "Reply",
    "ResolveFailure",
    "Resolved",
    "Resolver",
    "StoredRecord",
    "Telemetry",
    "Transport",
]
