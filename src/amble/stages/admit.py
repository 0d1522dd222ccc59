"""The URL gate: from discovered links to remembered URLs. Every link is admitted, known, or rejected with a reason.

Most links of a crawl have been seen before. A bounded cache of recent identities recognises them by their exact
canonical string before anything is judged, and answers two things only: "the frontier knows it" and "it can never pass
under this policy". It may forget, never invent: a URL enters it after the frontier's commit has answered for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from amble.domain.attempt import Edge, UrlKind
from amble.domain.decision import Reason, Rejected
from amble.domain.frontier import AdmitBatch, AdmitReport, Applied, Candidate, Verdict
from amble.domain.manifest import NOFOLLOW, CursorAdvance, Link
from amble.domain.policy import Policy
from amble.domain.priority import priority_of
from amble.domain.robots import ROBOTS_PATH
from amble.domain.scope import Scope
from amble.domain.traps import judge_distance, judge_shape
from amble.domain.url import Canonicalizer, is_well_formed, split
from amble.ports import Frontier

# About 230 bytes each (string and two dict slots), so some 50 MB when full.
RECENT_MAX = 200_000
# Refused links may be 16 KiB long; a site could fill the memory with them. The longer ones are judged every time.
RECENT_CHARS_MAX = 512
# Rejections written to the decision log with each batch; counters count all of them.
SAMPLES_MAX = 8
SAMPLES_PER_REASON_MAX = 2
SAMPLE_CHARS_MAX = 2_048
SEEDS_PER_BATCH = 1_000

# An edge that says what its target is. Keys are plain numbers because that is what a manifest holds.
_KIND_OF_EDGE = {int(Edge.SITEMAP): UrlKind.SITEMAP, int(Edge.FEED): UrlKind.FEED}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Which links are followed, beyond scope and bounds.

    `follow_rel_nofollow`: rel=nofollow is a hint to ranking and does not forbid a visit. `obey_page_nofollow`: a page
    whose robots directives say nofollow asks that none of its links be followed. `kinds`: others are rejected.
    """

    follow_rel_nofollow: bool = True
    obey_page_nofollow: bool = True
    kinds: frozenset[UrlKind] = frozenset(UrlKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOutcome:
    """What became of one seed. `verdict` None: it was rejected, for `rejected`; `url` is its canonical form, if any."""

    given: str
    url: str = ""
    verdict: Verdict | None = None
    rejected: Rejected | None = None


class RecentUrls:
    """Canonical URLs of the recent past: None for "known to the frontier", a Reason for "never passes". Page URLs only.

    Two generations: when the young one is full it becomes the old one and the old one is dropped, so that a URL in use
    stays and nothing is moved on a hit in the young one.
    """

    __slots__ = ("_half_max", "_old", "_young")

    def __init__(self, recent_max: int = RECENT_MAX) -> None:
        self._half_max = max(1, recent_max // 2)
        self._young: dict[str, Reason | None] = {}
        self._old: dict[str, Reason | None] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, url: str, missing: str) -> Reason | str | None:
        """What is remembered of `url`, or `missing`."""
        if url in self._young:
            return self._young[url]
        if url in self._old:
            answer = self._old.pop(url)
            self.put(url, answer)
            return answer
        return missing

    def put(self, url: str, answer: Reason | None) -> None:
        """Remember `answer`, unless the URL is long."""
        if len(url) > RECENT_CHARS_MAX:
            return
        if len(self._young) >= self._half_max and url not in self._young:
            self._old, self._young = self._young, {}
        self._young[url] = answer


_MISSING = ""


@dataclass(slots=True)
class _Batch:
    """What one batch comes to while its links are judged."""

    candidates: list[Candidate] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    samples: list[tuple[str, str, str]] = field(default_factory=list)
    known: int = 0

    def reject(self, url: str, rejected: Rejected) -> None:
        """Count a rejection, and keep the first few as samples."""
        reason = rejected.reason.value
        self.rejected[reason] += 1
        if self.rejected[reason] <= SAMPLES_PER_REASON_MAX and len(self.samples) < SAMPLES_MAX:
            self.samples.append((url[:SAMPLE_CHARS_MAX], reason, rejected.detail))


def judge_robots_url(url: str, kind: int) -> Rejected | None:
    """A link to a robots.txt is no page: one row cannot be both, and the frontier keeps that of each origin itself."""
    if kind != UrlKind.ROBOTS and url.endswith(ROBOTS_PATH) and split(url)[1] == ROBOTS_PATH:
        return Rejected(Reason.KIND_UNWANTED, "robots.txt is fetched for its rules only")
    return None


class UrlGate:
    """Judges candidates and asks the frontier to remember those that pass."""

    def __init__(
        self,
        frontier: Frontier,
        policy: Policy,
        scope: Scope,
        canonicalizer: Canonicalizer,
        *,
        links: LinkSettings | None = None,
        recent_max: int = RECENT_MAX,
        partition_of: Callable[[str], int] | None = None,
    ) -> None:
        """`partition_of`: origins to partitions; None where there is only one."""
        self._partition_of = partition_of
        self._frontier = frontier
        self._policy = policy
        self._scope = scope
        self._canonicalizer = canonicalizer
        self._links = links or LinkSettings()
        self._recent_max = recent_max
        self._recent = RecentUrls(recent_max)

    def rescope(self, scope: Scope) -> None:
        """Judge by `scope` from now on. What was refused before is judged anew when it is met again."""
        self._scope = scope
        self._recent = RecentUrls(self._recent_max)

    # -- pure ---------------------------------------------------------------------------------------------------

    def judge(
        self, url: str, *, kind: int, edge: int, depth: int, hops: int, parent: int = 0
    ) -> Candidate | Rejected:
        """The candidate that a canonical `url` becomes, or why it may not. Asks nobody and remembers nothing."""
        rejected = judge_distance(depth=depth, hops=hops, limits=self._policy.urls) or self._judge_static(
            url, kind
        )
        if rejected is not None:
            return rejected
        return self._candidate(url, kind=kind, edge=edge, depth=depth, hops=hops, parent=parent)

    def check(self, url: str) -> Candidate | Rejected:
        """What would become of any text as a link one step from a seed: a dry run for people."""
        canonical = self._canonicalizer.canon(url, None)
        if isinstance(canonical, Reason):
            return Rejected(canonical, "")
        return self.judge(canonical, kind=UrlKind.PAGE, edge=Edge.ANCHOR, depth=1, hops=0)

    def _judge_static(self, url: str, kind: int) -> Rejected | None:
        """What depends on the URL, its kind and the policy only, so that the answer may be remembered."""
        scope = self._scope.judge(url) if kind == UrlKind.PAGE else self._scope.judge_auxiliary(url)
        return scope or self._judge_form(url, kind)

    def _judge_form(self, url: str, kind: int) -> Rejected | None:
        if kind not in self._links.kinds:
            return Rejected(Reason.KIND_UNWANTED, UrlKind(kind).name.lower())
        return judge_robots_url(url, kind) or judge_shape(url, self._policy.urls)

    # -- links --------------------------------------------------------------------------------------------------

    async def admit_links(
        self,
        links: Sequence[Link],
        *,
        parent: int,
        depth: int,
        hops: int,
        cursor: CursorAdvance | None,
        follow: bool = True,
        kind: int = UrlKind.PAGE,
    ) -> AdmitReport:
        """Judge the links of one page and admit them; the cursor moves in the same commit.

        `parent`, `depth`, `hops` and `kind` are those of the page. A redirect keeps depth and kind and adds a hop;
        every other link adds one to depth and starts hops again. `follow` False: the page says nofollow. Verdicts are
        those of the candidates that were sent, in order. Raises StoreUnavailable: the same call may be made again.
        """
        batch = self._sort(links, parent=parent, depth=depth, hops=hops, follow=follow, kind=kind)
        report = await self._frontier.admit(
            AdmitBatch(
                batch.candidates,
                cursor,
                dict(batch.rejected),
                batch.samples,
                batch.known,
                self._policy.version,
                0 if cursor is None else cursor.manifest.partition,
            )
        )
        self._remember(batch.candidates, report)
        return report

    def _sort(
        self, links: Sequence[Link], *, parent: int, depth: int, hops: int, follow: bool, kind: int
    ) -> _Batch:
        """The hot path: about a hundred links a page, most of them known."""
        batch = _Batch()
        recent = self._recent.get
        shut = not follow and self._links.obey_page_nofollow
        hints = 0 if self._links.follow_rel_nofollow else NOFOLLOW
        onward = judge_distance(depth=depth + 1, hops=0, limits=self._policy.urls)
        for link in links:
            url = link.url
            # A redirect is not a link of a page: it is where the page has gone.
            if (shut or link.rel & hints) and link.edge != Edge.REDIRECT:
                batch.reject(url, Rejected(Reason.NOFOLLOW, "the page" if shut else "the link"))
                continue
            seen = recent(url, _MISSING)
            if seen is None:
                batch.known += 1
                continue
            link_kind = kind if link.edge == Edge.REDIRECT else _KIND_OF_EDGE.get(link.edge, UrlKind.PAGE)
            if seen is not _MISSING and link_kind == UrlKind.PAGE:
                batch.rejected[seen] += 1
                continue
            if link.edge == Edge.REDIRECT:
                distance = judge_distance(depth=depth, hops=hops + 1, limits=self._policy.urls)
                self._take(batch, link, link_kind, distance, parent, depth, hops + 1)
            else:
                self._take(batch, link, link_kind, onward, parent, depth + 1, 0)
        return batch

    def _take(
        self,
        batch: _Batch,
        link: Link,
        kind: int,
        distance: Rejected | None,
        parent: int,
        depth: int,
        hops: int,
    ) -> None:
        url = link.url
        if not is_well_formed(url):
            # No reader of ours makes such a link: a child that a page has taken over may.
            batch.reject(url, Rejected(Reason.NOT_A_URL, "not canonical"))
            return
        rejected = self._judge_static(url, kind)
        if rejected is not None:
            if kind == UrlKind.PAGE:
                self._recent.put(url, rejected.reason)
            batch.reject(url, rejected)
        elif distance is not None:
            batch.reject(url, distance)
        else:
            batch.candidates.append(
                self._candidate(link.url, kind=kind, edge=link.edge, depth=depth, hops=hops, parent=parent)
            )

    def _remember(self, candidates: Sequence[Candidate], report: AdmitReport) -> None:
        """What the frontier has committed is known from now on. A stale batch has committed nothing."""
        if report.applied != Applied.APPLIED:
            return
        for candidate, verdict in zip(candidates, report.verdicts, strict=True):
            # Over budget is not known: the origin's allowance may grow.
            if verdict not in (Verdict.OVER_BUDGET, Verdict.OVER_SITE_BUDGET):
                self._recent.put(candidate.origin + candidate.path, None)

    # -- seeds --------------------------------------------------------------------------------------------------

    async def admit_seeds(self, urls: Sequence[str]) -> list[SeedOutcome]:
        """Canonicalize, judge and admit seeds; one outcome for each, in order.

        A seed needs no scope, since it makes the scope; bounds hold, and so does an exclude rule.
        """
        outcomes: list[SeedOutcome] = []
        for start in range(0, len(urls), SEEDS_PER_BATCH):
            outcomes += await self._admit_seeds(urls[start : start + SEEDS_PER_BATCH])
        return outcomes

    async def _admit_seeds(self, urls: Sequence[str]) -> list[SeedOutcome]:
        judged = [self._judge_seed(url) for url in urls]
        candidates = [
            self._candidate(item.url, kind=UrlKind.PAGE, edge=Edge.SEED, depth=0, hops=0, parent=0)
            for item in judged
            if item.rejected is None
        ]
        batch = _Batch(candidates)
        for item in judged:
            if item.rejected is not None:
                batch.reject(item.url or item.given, item.rejected)
        report = await self._frontier.admit(
            AdmitBatch(candidates, None, dict(batch.rejected), batch.samples, 0, self._policy.version)
        )
        self._remember(candidates, report)
        verdicts = iter(report.verdicts)
        return [
            item
            if item.rejected is not None
            else SeedOutcome(given=item.given, url=item.url, verdict=Verdict(next(verdicts)))
            for item in judged
        ]

    def _judge_seed(self, given: str) -> SeedOutcome:
        url = self._canonicalizer.canon(given, None)
        if isinstance(url, Reason):
            return SeedOutcome(given=given, rejected=Rejected(url))
        rejected = self._scope.judge_seed(url) or self._judge_form(url, UrlKind.PAGE)
        return SeedOutcome(given=given, url=url, rejected=rejected)

    def _candidate(self, url: str, *, kind: int, edge: int, depth: int, hops: int, parent: int) -> Candidate:
        origin, path = split(url)
        priority = priority_of(kind, edge, depth)
        partition = 0 if self._partition_of is None else self._partition_of(origin)
        return Candidate(origin, path, int(kind), priority, depth, hops, int(edge), parent, partition)
