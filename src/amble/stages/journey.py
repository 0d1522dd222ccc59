"""The order of the line, and the only file that knows it. Each leg starts at a durable bar and ends at one.

Dispatch   lease, gate, fetch, store        PENDING to FETCHED
Extract    parse, complete                  FETCHED to COMPLETE
Handover   parse, in a parse worker        FETCHED to PARSED, completed by the owner
Discover   cursor to admissions             (in stages/discover.py, called by Extract for what it just parsed)
Publish    document to sinks
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from msgspec import Struct

from amble.domain.attempt import GiveUp, Lease, UrlKind, after_failure
from amble.domain.decision import Category, Reason, Refusal
from amble.domain.errors import ArchiveBroken
from amble.domain.fetched import BodyRef, Fetched
from amble.domain.frontier import Applied, ParseStrike, Resumable
from amble.domain.manifest import ManifestKey
from amble.domain.record import StoredRecord
from amble.domain.url import Canonicalizer, base_of
from amble.formats import manifest_json
from amble.formats.head import Head
from amble.ports import Archive, FetchFailure, Parsed, Permit, Reply, Telemetry
from amble.stages.complete import Completion, parsed_row
from amble.stages.discover import Discovery
from amble.stages.fetch import REDIRECTS, Fetcher, trouble_of
from amble.stages.gate import Answer, EgressGate, Lapsed, Unreachable
from amble.stages.health import read_when_well
from amble.stages.parse import Extraction
from amble.stages.store import Exchange, Recorder
from amble.stages.work import Extracted, Source

NOT_MODIFIED = 304
# A robots hop may have to wait for the other origin's turn; longer than this and the try has failed.
HOP_WAIT_S_MAX = 30.0
# A page for which this machine had no room is offered again this much later.
LOCAL_RETRY_MS = 5_000


class Dispatch(Struct, frozen=True, kw_only=True):
    """PENDING to FETCHED. What it returns is what Extract goes on with; None when there is nothing to parse."""

    gate: EgressGate
    fetcher: Fetcher
    recorder: Recorder
    canonicalizer: Canonicalizer
    on_resolver_trouble: Callable[[str, str], None]

    async def run(self, lease: Lease) -> Source | None:
        """One attempt. Cancelled before an answer came, it puts the URL back."""
        asked_s: list[float] = []
        try:
            return await self._attempt(lease, asked_s)
        except asyncio.CancelledError:
            asked_ms = int((self.gate.clock.monotonic_s() - asked_s[-1]) * 1000) if asked_s else None
            # Shielded: the put-back must reach the store even though this task is going down.
            await asyncio.shield(self.recorder.put_back(lease, Reason.STOPPING, asked_ms=asked_ms))
            raise

    async def _attempt(self, lease: Lease, asked_s: list[float]) -> Source | None:
        """`asked_s`: when requests were made, for whoever must end the attempt."""
        answer = await self.gate.ask(lease)
        exchanges: list[Exchange] = []
        while True:
            if not isinstance(answer, Permit):
                await self._no_permit(lease, answer, exchanges)
                return None
            started_s, since_s = self.gate.clock.wall_s(), self.gate.clock.monotonic_s()
            asked_s.append(since_s)
            try:
                outcome = await self.fetcher.fetch(lease, answer)
            finally:
                self.gate.finished(answer)
            if isinstance(outcome, FetchFailure) and outcome.stale:
                answer = await self._ask_again(lease, answer.url, since_s)
                continue
            if isinstance(outcome, FetchFailure):
                await self._failed(lease, outcome)
                return None
            exchanges.append(Exchange(permit=answer, reply=outcome, url=answer.url, started_s=started_s))
            hop = self._robots_hop(lease, outcome, answer.url)
            if hop is None:
                return await self._record(lease, exchanges)
            if len(exchanges) > self.recorder.policy.robots.hops_max:
                await self._too_many_hops(lease, exchanges)
                return None
            answer = await self._ask_hop(lease, hop, since_s)

    async def _failed(self, lease: Lease, failure: FetchFailure) -> None:
        if failure.category is Category.STALE_EPOCH:
            # It never began, and the site may be another agent's by now.
            await self.recorder.put_back(lease, Reason.STALE_EPOCH, failure.detail)
        elif failure.category is Category.LOCAL_LIMIT:
            # Our own shortage, not the site's fault: no try is counted, and the next one waits for room.
            self.recorder.telemetry.event("dispatch.local_limit", url=lease.url, detail=failure.detail)
            # The body may be what could not be kept: the request was made then, and counts for the spacing.
            asked_ms = failure.timings.total_ms
            await self.recorder.put_back(
                lease, Reason.LOCAL_LIMIT, failure.detail, LOCAL_RETRY_MS, asked_ms=asked_ms
            )
        else:
            await self.recorder.fail(lease, failure)

    async def _ask_again(self, lease: Lease, url: str, since_s: float) -> Answer:
        """A kept connection was dead: no try is counted, but the next request waits for the origin's next start."""
        if url == lease.url:
            return await self.gate.ask(lease, since_s=since_s)
        return await self._ask_hop(lease, url, since_s)

    async def _no_permit(
        self, lease: Lease, answer: Refusal | Lapsed | Unreachable, exchanges: list[Exchange]
    ) -> None:
        match answer:
            case Lapsed():
                self.recorder.telemetry.event("dispatch.lapsed", url=lease.url)
            case Unreachable(category, detail):
                await self.recorder.fail(lease, FetchFailure(category, detail), requested=bool(exchanges))
            case Refusal():
                if answer.reason is Reason.DNS_UNAVAILABLE:
                    self.on_resolver_trouble(lease.origin, answer.detail)
                if answer.final and lease.kind == UrlKind.ROBOTS:
                    # Whether its own address or a hop's: rules behind a refused door are rules that cannot be had.
                    failure = FetchFailure(Category.REFUSED_DESTINATION, answer.detail)
                    await self.recorder.fail(lease, failure, requested=bool(exchanges))
                else:
                    await self.recorder.refuse(lease, answer)

    async def _record(self, lease: Lease, exchanges: list[Exchange]) -> Source | None:
        last = exchanges[-1]
        stored = await self.recorder.store(lease, exchanges)
        fetched = stored.fetched
        category = trouble_of(last.reply, last_try=False)
        if fetched.status == NOT_MODIFIED and not fetched.not_modified and lease.prior_body is not None:
            # It speaks of a body that the archive has lost; the failed try lets go of it, and the next asks for all.
            category = Category.PROTOCOL_ERROR
        if category is not None and self._gives_up(lease, category):
            category = trouble_of(last.reply, last_try=True)
        if category is not None:
            await self.recorder.record_trouble(lease, last, fetched, category)
            last.reply.body.close()
            return None
        applied = await self.recorder.record_fetched(lease, last, fetched)
        if applied == Applied.STALE:
            self.recorder.telemetry.event("dispatch.stale", url=lease.url)
            last.reply.body.close()
            return None
        if lease.kind in self.recorder.parsed_elsewhere:
            last.reply.body.close()
            return None
        return Source(
            lease=lease,
            fetched=fetched,
            head=last.reply.head,
            body=last.reply.body,
            record_id=stored.record_id,
        )

    def _gives_up(self, lease: Lease, category: Category) -> bool:
        """Whether this failure would be the last one: how many tries there are depends on what failed."""
        return isinstance(after_failure(category, lease.tries + 1, self.recorder.policy.retry, 0.0), GiveUp)

    # -- robots.txt may be elsewhere: the one place where a redirect is followed inside an attempt ---------------

    def _robots_hop(self, lease: Lease, reply: Reply, url: str) -> str | None:
        """Where a redirected robots.txt is to be asked next; None when this answer is the last."""
        if lease.kind != UrlKind.ROBOTS or reply.status not in REDIRECTS:
            return None
        location = Head(reply.head).location()
        base = base_of(url)
        if not location or isinstance(base, Reason):
            return None
        target = self.canonicalizer.canon(location, base)
        return None if isinstance(target, Reason) else target

    async def _ask_hop(self, lease: Lease, url: str, since_s: float) -> Answer:
        """Ask the gate for the hop, waiting for the other origin's turn within bounds."""
        clock = self.gate.clock
        give_up_s = clock.monotonic_s() + HOP_WAIT_S_MAX
        while True:
            answer = await self.gate.ask_hop(lease, url, since_s=since_s)
            waits = isinstance(answer, Refusal) and answer.reason in (Reason.NOT_YET, Reason.NO_SLOT)
            if isinstance(answer, Refusal) and answer.reason is Reason.ORIGIN_PAUSED:
                # A failed try: put back for nothing, the URL's own origin would be asked for the redirect for ever.
                return Unreachable(Category.NO_TURN, f"{url} is paused")
            if not waits:
                return answer
            assert isinstance(answer, Refusal)
            wait_s = max(0.05, answer.retry_in_ms / 1000)
            if clock.monotonic_s() + wait_s > give_up_s:
                return Unreachable(Category.NO_TURN, f"no turn at {url} within {HOP_WAIT_S_MAX:.0f} s")
            await clock.sleep(wait_s)

    async def _too_many_hops(self, lease: Lease, exchanges: list[Exchange]) -> None:
        await self.recorder.store(lease, exchanges)
        await self.recorder.fail(
            lease,
            FetchFailure(
                Category.ROBOTS_HOPS,
                f"more than {self.recorder.policy.robots.hops_max} redirects",
                exchanges[-1].reply.timings,
            ),
        )


class StoredBody(Struct, frozen=True):
    """A body read back from the archive, small enough by the limits of the fetch to be in memory."""

    content: bytes
    sha256: bytes

    @property
    def length(self) -> int:
        """Bytes in all."""
        return len(self.content)

    @property
    def digest(self) -> bytes:
        """sha256, as recorded when it was fetched."""
        return self.sha256

    def pieces(self) -> Iterator[bytes]:
        """The content at once."""
        yield self.content

    def close(self) -> None:
        """Nothing to let go of."""


async def stored_source(tools: Extraction, lease: Lease, fetched: Fetched) -> Source | None:
    """The stored body; None when the archive has lost it, which ends the URL as parse_failed with that reason."""
    assert fetched.body_ref is not None, "FETCHED is never committed without a body reference"
    try:
        record = await read_when_well(tools.archive, fetched.body_ref, tools.health)
        head = record.http_head
        if fetched.ref is not None and fetched.ref != fetched.body_ref and not fetched.not_modified:
            # Identical bytes were stored before, but the header block of this answer is its own.
            head = (await read_when_well(tools.archive, fetched.ref, tools.health)).http_head
    except ArchiveBroken as broken:
        tools.telemetry.event("archive.broken", url=lease.url, detail=str(broken))
        await tools.frontier.parse_strike(ParseStrike(key=lease.key, detail=str(broken)[:300], final=True))
        return None
    return Source(
        lease=lease,
        fetched=fetched,
        head=head,
        body=StoredBody(record.payload, fetched.digest or b""),
        record_id=record.record_id,
    )


class Extract(Struct, frozen=True, kw_only=True):
    """FETCHED to COMPLETE, and the links on their way."""

    extraction: Extraction
    completion: Completion
    discovery: Discovery
    archive: Archive
    telemetry: Telemetry

    async def run(self, source: Source) -> None:
        """Parse, complete, discover. The three writes are issued in order and share a commit.

        Unless completing waits for a near-duplicate of another file or server: then links may be admitted before it.
        """
        try:
            if source.fetched.not_modified:
                prior = await stored_source(self.extraction, source.lease, source.fetched)
                if prior is None:
                    return
                source = prior
            extracted = await self.extraction.extract(source)
        finally:
            source.body.close()
        if extracted is not None:
            await self._finish(source, extracted)

    async def resume(self, work: Resumable) -> None:
        """Go on from what an earlier life stored: the manifest if there is one, else the body. Nothing is fetched."""
        extracted = await self._extracted(work)
        if extracted is not None:
            source = await self._without_body(work)
            await asyncio.gather(
                self.completion.complete(source, extracted), self._discover(source, extracted, work.cursor)
            )
            return
        whole = await stored_source(self.extraction, work.lease, work.fetched)
        if whole is not None:
            await self.run(whole)

    async def _extracted(self, work: Resumable) -> Extracted | None:
        """The manifest of a PARSED row; None when there is none, or the archive has lost it and the body must do."""
        if work.manifest is None:
            return None
        try:
            stored = manifest_json.decode(await self._read(work.manifest))
        except ArchiveBroken as broken:
            self.telemetry.event("archive.broken", url=work.lease.url, detail=str(broken))
            return None
        return Extracted(
            parsed=Parsed(manifest=stored.manifest),
            generation=work.extraction_generation,
            manifest_ref=work.manifest,
            text_ref=None,
        )

    async def _without_body(self, work: Resumable) -> Source:
        """What completing a PARSED row needs: of the answer only its header block, and that only where it is left."""
        fetched = work.fetched
        ref = fetched.body_ref if fetched.not_modified or fetched.ref is None else fetched.ref
        assert ref is not None, "FETCHED is never committed without a body reference"
        try:
            head = (await self._read(ref)).http_head
        except ArchiveBroken as broken:
            self.telemetry.event("archive.broken", url=work.lease.url, detail=str(broken))
            head = b""
        body = StoredBody(b"", fetched.digest or b"")
        return Source(lease=work.lease, fetched=fetched, head=head, body=body, record_id="")

    async def _finish(self, source: Source, extracted: Extracted) -> None:
        await asyncio.gather(
            self.completion.record_parsed(source.lease, extracted),
            self.completion.complete(source, extracted),
            self._discover(source, extracted),
        )

    async def _discover(self, source: Source, extracted: Extracted, start: int = 0) -> None:
        lease, manifest = source.lease, extracted.parsed.manifest
        await self.discovery.consume(
            ManifestKey(lease.key.url_id, lease.key.attempt, extracted.generation, lease.key.partition),
            manifest.links,
            depth=lease.depth,
            hops=lease.hops,
            directives=manifest.directives,
            start=start,
        )

    async def _read(self, ref: BodyRef) -> StoredRecord:
        return await read_when_well(self.archive, ref, self.extraction.health)


class Handover(Struct, frozen=True, kw_only=True):
    """FETCHED to PARSED in a parse worker. The owner of the partition adopts the row and completes it."""

    extraction: Extraction

    async def run(self, work: Resumable) -> Applied:
        """Parse what was fetched; STALE when it was lost to somebody else, or ended as parse_failed."""
        source = await stored_source(self.extraction, work.lease, work.fetched)
        if source is None:
            return Applied.STALE
        extracted = await self.extraction.extract(source)
        if extracted is None:
            return Applied.STALE
        return await self.extraction.frontier.record_parsed(parsed_row(work.lease, extracted, hand_over=True))
