"""Extraction: a stored body goes through a sandboxed child, its manifest into the archive, the URL to PARSED.

The manifest is durable before the state says so. A body that kills its child costs itself a strike and, after a
bounded number of them, ends as `parse_failed`; nobody else waits for it.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from amble.domain.decision import Reason
from amble.domain.errors import SandboxUnavailable
from amble.domain.frontier import Applied, ParseStrike, RecordParsed
from amble.domain.policy import ParseLimits
from amble.formats import manifest_json, warc
from amble.ports import (
    Archive,
    Clock,
    Entropy,
    NewRecord,
    Parsed,
    ParseFailure,
    ParserPool,
    ParseTask,
    Telemetry,
)
from amble.stages.health import Health, append_when_well
from amble.stages.work import Extracted, Source


class ParseRows(Protocol):
    """The frontier as parsing sees it."""

    async def record_parsed(self, item: RecordParsed) -> Applied:
        """See ports.Frontier."""
        ...

    async def parse_strike(self, item: ParseStrike) -> Applied:
        """See ports.Frontier."""
        ...


class Extraction(Struct, frozen=True, kw_only=True):
    """Body to manifest."""

    pool: ParserPool
    archive: Archive
    frontier: ParseRows
    clock: Clock
    entropy: Entropy
    telemetry: Telemetry
    health: Health
    limits: ParseLimits

    async def extract(self, source: Source) -> Extracted | None:
        """Parse and store the manifest; None when the page ended as parse_failed or the lease was lost.

        It ends so when it has failed `strikes_max` times under this one holder.
        """
        # Those of earlier holders do not count here: they may have gone away without any doing of this page.
        strikes = 0
        while True:
            outcome = await self._parse(source)
            if isinstance(outcome, Parsed):
                return await self._store(source, outcome)
            strikes += 1
            # What cannot be decoded today cannot be decoded tomorrow; everything else gets its tries.
            final = strikes >= self.limits.strikes_max or outcome.reason == "decode"
            self.telemetry.event(
                "parse.failed",
                url=source.lease.url,
                reason=outcome.reason,
                detail=outcome.detail,
                final=final,
            )
            applied = await self.frontier.parse_strike(
                ParseStrike(
                    key=source.lease.key, detail=f"{outcome.reason}: {outcome.detail}"[:300], final=final
                )
            )
            if final or not applied:
                return None

    async def _parse(self, source: Source) -> Parsed | ParseFailure:
        task = ParseTask(
            url=source.lease.url,
            kind=source.lease.kind,
            status=source.status,
            head=source.head,
            body=source.body,
        )
        while True:
            try:
                outcome = await self.pool.parse(task)
            except SandboxUnavailable as trouble:
                self.health.report(Reason.PARSERS_UNAVAILABLE, str(trouble))
                await self.clock.sleep(0.5)
                continue
            self.health.clear(Reason.PARSERS_UNAVAILABLE)
            return outcome

    async def _store(self, source: Source, parsed: Parsed) -> Extracted:
        records = self._records(source, parsed)
        refs = await append_when_well(self.archive, records, self.health)
        return Extracted(
            parsed=parsed,
            generation=self.pool.generation,
            manifest_ref=refs[0],
            text_ref=refs[1] if len(refs) > 1 else None,
        )

    def _records(self, source: Source, parsed: Parsed) -> list[NewRecord]:
        url, now_s = source.lease.url, self.clock.wall_s()
        records = [
            warc.metadata(
                record_id=warc.record_id(self.entropy.token(16)),
                date_s=now_s,
                url=url,
                refers_to=source.record_id,
                block=manifest_json.encode(
                    parsed.manifest, b"" if parsed.main == parsed.text else parsed.main
                ),
                content_type=manifest_json.CONTENT_TYPE,
            )
        ]
        if parsed.text:
            records.append(
                warc.conversion(
                    record_id=warc.record_id(self.entropy.token(16)),
                    date_s=now_s,
                    url=url,
                    refers_to=source.record_id,
                    block=parsed.text,
                )
            )
        return records
