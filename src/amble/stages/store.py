"""The recorder: bytes first, then the state that refers to them, and in the same commit the slot is given back.

Every way an attempt can end is written here: fetched, failed, refused, unreachable. A mutation whose lease is gone is
answered with STALE and dropped: whoever holds the newer attempt is authoritative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from msgspec import Struct

from amble.domain.attempt import GiveUp, Lease, RetryAt, RobotsState, UrlKind, after_failure
from amble.domain.decision import Category, Reason, Refusal
from amble.domain.errors import ArchiveBroken
from amble.domain.fetched import BodyRef, Fetched, Timings, Validators
from amble.domain.frontier import (
    Applied,
    Exclude,
    OriginEffect,
    PutBack,
    RecordFailed,
    RecordFetched,
)
from amble.domain.policy import Policy
from amble.domain.politeness import backoff, effective_delay_ms, retry_after_ms
from amble.domain.robots import RobotsOutcome, decide_failure, still_serving
from amble.formats import warc
from amble.ports import Archive, Clock, Entropy, FetchFailure, Frontier, NewRecord, Permit, Reply, Telemetry
from amble.stages.health import Health, append_when_well, read_when_well

# How long the token of a FETCHED page may be held while it waits for a parser; it never lapses to a refetch.
PARSE_HOLD_MS = 600_000
# A rule of a robots.txt may be half a megabyte long, and is the detail of every URL that it forbids.
DETAIL_CHARS_MAX = 300
# Bodies that came in one of these are stored as they came: deflate would make them hardly shorter.
PACKED_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd"})


class Exchange(Struct, frozen=True, kw_only=True):
    """One request that was made, and its answer."""

    permit: Permit
    reply: Reply
    url: str
    started_s: float  # wall clock


class Stored(Struct, frozen=True):
    """Durable bytes: the fetch record to commit, and the id of the WARC record that holds the body."""

    fetched: Fetched
    record_id: str


def whole_head(head: bytes) -> bytes:
    """The header block with the blank line that ends it, which a connection cut in the head has not sent.

    HTTP/0.9 has no header block at all: it gets the status line that its answer stands for.
    """
    if not head:
        return b"HTTP/0.9 200 \r\n\r\n"
    if head.endswith((b"\r\n\r\n", b"\n\n", b"\n\r\n")):
        return head
    return head + (b"\r\n" if head.endswith(b"\n") else b"\r\n\r\n")


class Recorder(Struct, frozen=True, kw_only=True):
    """Writes what happened to an attempt."""

    frontier: Frontier
    archive: Archive
    policy: Policy
    clock: Clock
    entropy: Entropy
    telemetry: Telemetry
    health: Health
    store_now_ms: Callable[[], int]
    # Kinds of URL that parse workers take: offered to them at once.
    parsed_elsewhere: Set[int] = frozenset()

    # -- no request was made ----------------------------------------------------------------------------------

    async def refuse(self, lease: Lease, refusal: Refusal) -> Applied:
        """The gate said no: for good, or not yet."""
        if refusal.final:
            return await self.frontier.exclude(
                Exclude(
                    key=lease.key,
                    reason=refusal.reason.value,
                    detail=refusal.detail[:DETAIL_CHARS_MAX],
                    policy_version=self.policy.version,
                )
            )
        # The whole origin waits for its next start: one URL after the other would only be told the same.
        whole = refusal.reason in (Reason.NOT_YET, Reason.ADDRESS_BUSY)
        rest_ms = refusal.retry_in_ms if whole else 0
        return await self.put_back(lease, refusal.reason, refusal.detail, refusal.retry_in_ms, rest_ms)

    async def put_back(
        self,
        lease: Lease,
        reason: Reason,
        detail: str = "",
        delay_ms: int = 0,
        rest_ms: int = 0,
        *,
        asked_ms: int | None = None,
    ) -> Applied:
        """Back to the queue; no try is counted. `asked_ms`: how long a request took that was made all the same."""
        return await self.frontier.put_back(
            PutBack(
                key=lease.key,
                reason=reason.value,
                detail=detail[:DETAIL_CHARS_MAX],
                delay_ms=delay_ms,
                rest_ms=rest_ms,
                effect=None if asked_ms is None else self._spaced(lease, asked_ms),
            )
        )

    def _spaced(self, lease: Lease, duration_ms: int) -> OriginEffect:
        """Of a request that says nothing about its site but when it was made: a reservation is a little earlier."""
        delay_ms = self._delay_ms(lease, duration_ms)
        return OriginEffect(
            duration_ms=duration_ms, delay_ms=delay_ms, rest_ms=0, backoff_level=lease.facts.backoff_level
        )

    async def fail(
        self,
        lease: Lease,
        failure: FetchFailure,
        *,
        fetched: Fetched | None = None,
        retry_after: int | None = None,
        requested: bool = True,
    ) -> Applied:
        """A failed try: the retry lane, FAILED, or for robots.txt a decision that says no pages for now."""
        decision = after_failure(failure.category, lease.tries + 1, self.policy.retry, self.entropy.uniform())
        effect = self._effect(lease, failure.timings, failure.category, retry_after) if requested else None
        robots: RobotsState | None = None
        robots_ttl_ms = 0
        if isinstance(decision, GiveUp) and lease.kind == UrlKind.ROBOTS:
            outcome = decide_failure(
                lease.facts.robots,
                policy=self.policy.robots,
                now_ms=self.store_now_ms(),
                throttled=failure.category is Category.HTTP_THROTTLED,
            )
            robots_ttl_ms = outcome.ttl_ms
            robots = (
                still_serving(lease.facts.robots)
                if outcome.outcome == RobotsOutcome.STALE_RULES
                else RobotsState(outcome=outcome.outcome)
            )
        retry_ms = decision.delay_ms if isinstance(decision, RetryAt) else None
        if retry_ms is not None and effect is not None:
            retry_ms = max(retry_ms, effect.rest_ms)
        return await self.frontier.record_failed(
            RecordFailed(
                key=lease.key,
                category=failure.category.value,
                detail=failure.detail[:DETAIL_CHARS_MAX],
                retry_ms=retry_ms,
                fetched=fetched,
                effect=effect,
                robots=robots,
                robots_ttl_ms=robots_ttl_ms,
            )
        )

    # -- an answer came ---------------------------------------------------------------------------------------

    async def store(self, lease: Lease, exchanges: Sequence[Exchange]) -> Stored:
        """Append the exchanges to the archive; durable on return. The last one is the answer."""
        last = exchanges[-1]
        body_ref, original = await self._original_of(lease, last.reply)
        records: list[NewRecord] = []
        for exchange in exchanges:
            records += self._records(exchange, original if exchange is last else None)
        refs = await append_when_well(self.archive, records, self.health)
        if original is None:
            body_ref = refs[-1]
        record_id = records[-1].headers[0][1] if original is None else original.record_id
        return Stored(self._fetched(lease, last.reply, refs[-1], body_ref), record_id)

    async def record_fetched(self, lease: Lease, exchange: Exchange, fetched: Fetched) -> Applied:
        """LEASED to FETCHED; the bytes are already durable."""
        return await self.frontier.record_fetched(
            RecordFetched(
                key=lease.key,
                fetched=fetched,
                effect=self._effect(lease, exchange.reply.timings, None, self._retry_after(exchange.reply)),
                parse_hold_ms=0 if lease.kind in self.parsed_elsewhere else PARSE_HOLD_MS,
            )
        )

    async def record_trouble(
        self, lease: Lease, exchange: Exchange, fetched: Fetched, category: Category
    ) -> Applied:
        """An answer that counts as a failed try (5xx, 429, a body cut short): kept in the archive and the fetch log."""
        reply = exchange.reply
        detail = f"HTTP {reply.status}" + (f", body cut: {reply.truncated}" if reply.truncated else "")
        return await self.fail(
            lease,
            FetchFailure(category, detail, reply.timings),
            fetched=fetched,
            retry_after=self._retry_after(reply),
        )

    def _retry_after(self, reply: Reply) -> int | None:
        return retry_after_ms(reply.headers.get("retry-after"), self.clock.wall_s())

    def _effect(
        self, lease: Lease, timings: Timings, category: Category | None, retry_after: int | None
    ) -> OriginEffect:
        facts = lease.facts
        level, rest_ms = backoff(
            self.policy.origin,
            level=facts.backoff_level,
            category=category,
            retry_after_ms=retry_after,
            jitter=self.entropy.uniform(),
        )
        if category is None and retry_after:
            rest_ms = max(rest_ms, min(retry_after, self.policy.origin.retry_after_cap_ms))
        delay_ms = self._delay_ms(lease, timings.total_ms)
        return OriginEffect(
            duration_ms=timings.total_ms, delay_ms=delay_ms, rest_ms=rest_ms, backoff_level=level
        )

    def _delay_ms(self, lease: Lease, duration_ms: int) -> int:
        return effective_delay_ms(
            self.policy.origin,
            spacing_ms=lease.facts.spacing_ms,
            crawl_delay_ms=lease.facts.robots.crawl_delay_ms,
            last_fetch_ms=duration_ms,
        )

    async def _original_of(self, lease: Lease, reply: Reply) -> tuple[BodyRef | None, warc.Original | None]:
        """Where these very bytes are stored already: the prior body after a 304, an identical payload otherwise."""
        ref: BodyRef | None = None
        if reply.status == 304:
            ref = lease.prior_body
        elif reply.status == 200 and reply.body.length and not reply.truncated:
            ref = await self.frontier.find_body(reply.body.digest)
        if ref is None:
            return None, None
        try:
            return ref, warc.original_of(await read_when_well(self.archive, ref, self.health))
        except ArchiveBroken as broken:
            # The copy that the index names is gone; this one is stored in full.
            self.telemetry.event("archive.broken", url=lease.url, ref=str(ref), detail=str(broken))
            return None, None

    def _records(self, exchange: Exchange, original: warc.Original | None) -> list[NewRecord]:
        reply = exchange.reply
        common = warc.Exchange(url=exchange.url, address=reply.address, date_s=exchange.started_s)
        response_id = warc.record_id(self.entropy.token(16))
        request = warc.request(
            common,
            record_id=warc.record_id(self.entropy.token(16)),
            block=reply.request,
            concurrent_to=response_id,
        )
        if original is None:
            answer = warc.response(
                common,
                record_id=response_id,
                head=whole_head(reply.head),
                body=reply.body,
                body_bytes=reply.body.length,
                sha256=reply.body.digest,
                truncated=reply.truncated,
                packed=reply.headers.get("content-encoding", "").lower() in PACKED_CODINGS,
            )
        elif reply.status == 304:
            answer = warc.revisit_not_modified(
                common, record_id=response_id, head=whole_head(reply.head), original=original
            )
        else:
            answer = warc.revisit_identical(
                common,
                record_id=response_id,
                head=whole_head(reply.head),
                body=reply.body,
                sha256=reply.body.digest,
                original=original,
            )
        return [request, answer]

    def _fetched(self, lease: Lease, reply: Reply, ref: BodyRef, body_ref: BodyRef | None) -> Fetched:
        headers = reply.headers
        etag, modified = headers.get("etag"), headers.get("last-modified")
        not_modified = reply.status == 304 and body_ref != ref
        return Fetched(
            status=reply.status,
            ref=ref,
            body_ref=body_ref,
            digest=lease.prior_digest if not_modified else reply.body.digest,
            body_bytes=reply.body.length,
            wire_bytes=reply.wire_bytes,
            content_type=headers.get("content-type", "")[:200],
            address=reply.address,
            timings=reply.timings,
            validators=Validators(etag, modified) if etag or modified else None,
            truncated=reply.truncated,
            quirks=reply.quirks,
            not_modified=not_modified,
            location=headers.get("location", "")[:2048],
        )
