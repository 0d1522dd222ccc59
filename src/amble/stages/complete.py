"""Completion: PARSED to COMPLETE. Directives onto the record, the document offered for publication, the next due time.

For a robots URL the manifest becomes the decision of its origin in the same commit.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from amble.domain.attempt import Lease, RobotsState, UrlKind
from amble.domain.decision import WITHHELD_STATUS, Withheld
from amble.domain.frontier import Applied, Complete, RecordParsed
from amble.domain.manifest import CODING_BROKEN, NOINDEX, ParseManifest
from amble.domain.policy import NearDuplicates, Policy
from amble.domain.revisit import ONCE, FreshnessClass, next_due_ms
from amble.domain.robots import RobotsDecision, RobotsOutcome, decide_answer, decide_failure, still_serving
from amble.formats.head import Head
from amble.ports import Frontier
from amble.stages.rules import RobotsBook
from amble.stages.work import Extracted, Source

# What a robots.txt asks is kept as it is up to here, so that people can be told; the policy's cap is far below.
CRAWL_DELAY_S_MAX = 10.0**9


def withheld_because(status: int, manifest: ParseManifest, url: str, kind: int) -> str:
    """Why the document is not published; "" when it is, unless the store knows a near-duplicate of it."""
    if kind != UrlKind.PAGE:
        return Withheld.NOT_A_PAGE.value
    if not 200 <= status < 300:
        return f"{WITHHELD_STATUS}{status}"
    if manifest.directives & NOINDEX:
        return Withheld.NOINDEX.value
    if manifest.canonical and manifest.canonical != url:
        return Withheld.CANONICAL_ELSEWHERE.value
    if not manifest.text_bytes:
        return Withheld.NO_TEXT.value
    return ""


def _delay_ms(crawl_delay_s: float | None) -> int:
    """A Crawl-delay as the ledger keeps it. A robots.txt may ask for any number; for ever is long enough."""
    if crawl_delay_s is None or not crawl_delay_s > 0:
        return 0
    return int(min(crawl_delay_s, CRAWL_DELAY_S_MAX) * 1000)


def parsed_row(lease: Lease, extracted: Extracted, *, hand_over: bool = False) -> RecordParsed:
    """FETCHED to PARSED for this manifest. `hand_over`: the owner of the partition completes it."""
    manifest = extracted.parsed.manifest
    return RecordParsed(
        key=lease.key,
        extraction_generation=extracted.generation,
        ref=extracted.manifest_ref,
        links=len(manifest.links),
        content_kind=manifest.content_kind,
        text_ref=extracted.text_ref,
        title=manifest.title,
        hand_over=hand_over,
    )


class Completion(Struct, frozen=True, kw_only=True):
    """The last write of an attempt."""

    frontier: Frontier
    book: RobotsBook
    policy: Policy
    store_now_ms: Callable[[], int]
    freshness: FreshnessClass = ONCE

    async def record_parsed(self, lease: Lease, extracted: Extracted) -> Applied:
        """The manifest exists."""
        return await self.frontier.record_parsed(parsed_row(lease, extracted))

    async def complete(self, source: Source, extracted: Extracted) -> Applied:
        """Close the attempt."""
        lease, manifest = source.lease, extracted.parsed.manifest
        if lease.kind == UrlKind.ROBOTS:
            return await self._complete_robots(source, extracted)
        withheld = withheld_because(source.status, manifest, lease.url, lease.kind)
        return await self.frontier.complete(
            Complete(
                key=lease.key,
                extraction_generation=extracted.generation,
                publish=not withheld,
                canonical=manifest.canonical,
                directives=manifest.directives,
                fingerprint=manifest.fingerprint,
                revisit_ms=next_due_ms(self.freshness, checks=1, changes=0),
                withheld=withheld,
                near=self.policy.publish.near_duplicates == NearDuplicates.WITHHOLD,
            )
        )

    async def _complete_robots(self, source: Source, extracted: Extracted) -> Applied:
        lease, rules = source.lease, extracted.parsed.manifest.robots
        decision = self._decide_robots(source, extracted.parsed.manifest)
        state = RobotsState(outcome=decision.outcome)
        if decision.outcome == RobotsOutcome.RULES and rules is not None:
            self.book.remember(extracted.manifest_ref, rules)
            state = RobotsState(
                outcome=decision.outcome,
                rules=extracted.manifest_ref,
                crawl_delay_ms=_delay_ms(rules.crawl_delay_s),
            )
        elif decision.outcome == RobotsOutcome.STALE_RULES:
            state = still_serving(lease.facts.robots)
        return await self.frontier.complete(
            Complete(
                key=lease.key,
                extraction_generation=extracted.generation,
                publish=False,
                robots=state,
                robots_ttl_ms=decision.ttl_ms,
                withheld=Withheld.NOT_A_PAGE.value,
            )
        )

    def _decide_robots(self, source: Source, manifest: ParseManifest) -> RobotsDecision:
        truncated = source.fetched.truncated
        # One that was cut at the size limit is read as far as it goes (RFC 9309 2.5), and its coding ends there too.
        if truncated != "length" and (truncated or CODING_BROKEN in manifest.notes):
            # Half a file may lack the very rule that matters.
            return decide_failure(
                source.lease.facts.robots, policy=self.policy.robots, now_ms=self.store_now_ms()
            )
        return decide_answer(
            source.status,
            manifest.robots,
            cache_control=Head(source.head).first("cache-control"),
            policy=self.policy.robots,
        )
