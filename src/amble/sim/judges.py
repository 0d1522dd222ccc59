"""The judges: one per promise of the design, watching from outside what the web, the store and the archive saw.

`Watch` sees every request as it begins and every operation as the store applies it. `final` looks at what is left when
the storm is over. Nothing here trusts a stage: rules are matched, budgets counted and links followed by the world's own
knowledge.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

from amble.domain.attempt import UrlKind
from amble.domain.frontier import NEAR_DUPLICATE, Applied, OriginOrder, ReserveOutcome
from amble.domain.lifecycle import TRANSITIONS, UrlEvent, UrlState
from amble.domain.partition import PartitionMap
from amble.formats import warc
from amble.sim.agent import POLICY
from amble.sim.archive import Disk
from amble.sim.clock import Actor
from amble.sim.history import History, Request, RobotsAnswer
from amble.sim.world import Kind, World

SPACING_MS = POLICY.origin.spacing_ms
ACTIVE_MAX = POLICY.origin.active_max
# The store counts in whole milliseconds.
ROUNDING_S = 0.002
# A change of an origin's settings reaches a lease that was already out only with the next one.
SETTLING_S = 260.0
URLS_PER_ORIGIN = 40
# From the end of an answer to the commit of what it means.
COMMIT_S = 300.0
_NOTHING = RobotsAnswer(0.0, (), 0.0, ruled=False)

_MUTATIONS: dict[str, tuple[UrlEvent, UrlState]] = {
    "GiveBack": (UrlEvent.PUT_BACK, UrlState.LEASED),
    "Leave": (UrlEvent.EXCLUDE, UrlState.LEASED),
    "KeepFetched": (UrlEvent.RECORD_FETCHED, UrlState.LEASED),
    "KeepFailed": (UrlEvent.RETRY, UrlState.LEASED),
    "KeepParsed": (UrlEvent.RECORD_PARSED, UrlState.FETCHED),
    "Finish": (UrlEvent.COMPLETE, UrlState.PARSED),
    "Strike": (UrlEvent.GIVE_UP, UrlState.FETCHED),
}


@dataclass(slots=True)
class Holder:
    """Who holds a URL, as the judges know it."""

    url_id: int
    attempt: int
    token: bytes
    url: str
    origin: str
    kind: int
    tries: int
    until_ms: int
    state: UrlState = UrlState.LEASED
    slot: str = ""


@dataclass(slots=True)
class OriginWatch:
    """What the judges know of one origin."""

    paused: bool = False
    active_max: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, ACTIVE_MAX)])
    spacing_ms: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, SPACING_MS)])
    last_start: Request | None = None
    granted_s: float = -1.0
    rest_from_s: float = 0.0
    rest_until_s: float = 0.0
    # (committed at, expires at): decisions in order
    decisions: list[tuple[float, float]] = field(default_factory=list)

    def loosest(self, settings: list[tuple[float, int]], now_s: float, choose: Callable[..., int]) -> int:
        """The mildest value that may still be in force somewhere."""
        values = [settings[-1][1]]
        for (_, value), (until_s, _) in pairwise(settings):
            if until_s > now_s - SETTLING_S:
                values.append(value)
        return choose(values)


class Watch:
    """The judges that watch as it happens."""

    def __init__(self, world: World, history: History, disk: Disk, now_s: Callable[[], float]) -> None:
        self._world, self._history, self._disk, self._now_s = world, history, disk, now_s
        self.now_ms: Callable[[], int] = lambda: 0
        self.in_flight: Callable[[], dict[int, int]] = dict
        self.holders: dict[int, Holder] = {}
        self.origins: dict[str, OriginWatch] = defaultdict(OriginWatch)
        self.partitions = PartitionMap()
        self.epochs: dict[int, int] = defaultdict(int)
        self.started_epochs: dict[int, int] = defaultdict(int)
        self._attempts: dict[int, int] = {}
        self._cursors: dict[tuple[int, int, int], int] = {}
        self._tokens: set[bytes] = set()
        self._tries: dict[int, tuple[int, int]] = {}
        self.requeued = 0
        self.on_lease: Callable[[str], None] = lambda _: None
        self.failures: dict[str, int] = defaultdict(int)
        self.fetches: dict[str, int] = defaultdict(int)

    # -- the web -----------------------------------------------------------------------------------------------------

    def started(self, request: Request) -> None:
        """A request begins."""
        origin = self.origins[request.origin]
        self._judge_destination(request)
        self._judge_concurrency(request, origin)
        self._judge_spacing(request, origin)
        self._judge_authority(request)
        if not self._is_robots(request):
            self._judge_robots(request, origin)
            self.fetches[request.url] += 1
        origin.last_start = request

    def _judge_destination(self, request: Request) -> None:
        if not ip_address(request.address).is_global:
            self._history.violate("no forbidden destination", f"{request.url} at {request.address}")

    def _judge_concurrency(self, request: Request, origin: OriginWatch) -> None:
        limit = origin.loosest(origin.active_max, request.started_s, max)
        active = self._world.active[request.origin]
        if active > limit:
            self._history.violate("concurrency", f"{active} requests at {request.origin}, at most {limit}")

    def _judge_spacing(self, request: Request, origin: OriginWatch) -> None:
        last = origin.last_start
        if last is None:
            return
        gap_s = request.started_s - last.started_s
        needed_s = origin.loosest(origin.spacing_ms, request.started_s, min) / 1000
        if not self._is_robots(last):
            needed_s = max(needed_s, self._crawl_delay_s(last, origin))
        if gap_s < needed_s - ROUNDING_S:
            self._history.violate(
                "spacing", f"{request.url} {gap_s:.3f} s after {last.url}, at least {needed_s:.3f} s"
            )
        if (
            origin.rest_until_s
            and origin.granted_s > origin.rest_from_s
            and request.started_s < origin.rest_until_s - ROUNDING_S
        ):
            self._history.violate(
                "retry-after", f"{request.url} {origin.rest_until_s - request.started_s:.3f} s too soon"
            )

    def _crawl_delay_s(self, request: Request, origin: OriginWatch) -> float:
        """What the rules in force at that start asked for, if they surely were in force."""
        answers = self._answers_in_force(request.origin, origin, request.started_s)
        return min((answer.delay_s for answer in answers), default=0.0)

    def _judge_authority(self, request: Request) -> None:
        if self.partitions.hashed > 1 and self._is_robots(request):
            return  # a hop is made under the epoch of the origin that sent it
        where = self.partitions.of(request.origin)
        if request.epoch < self.started_epochs[where]:
            self._history.violate(
                "single authority",
                f"{request.url} under epoch {request.epoch} after a start under {self.started_epochs[where]}",
            )
        self.started_epochs[where] = max(self.started_epochs[where], request.epoch)

    def _judge_robots(self, request: Request, origin: OriginWatch) -> None:
        now_s = request.started_s
        granted_s = origin.granted_s
        if not origin.decisions:
            self._history.violate("no policy, no page", f"{request.url} without any decision")
            return
        committed_s, expires_s = next(
            (item for item in reversed(origin.decisions) if item[0] <= granted_s), origin.decisions[0]
        )
        if granted_s >= expires_s + 0.001:
            self._history.violate(
                "no policy, no page", f"{request.url} {now_s - expires_s:.1f} s after its rules expired"
            )
        answers = self._answers_in_force(request.origin, origin, granted_s)
        allowed = any(
            answer.disallow is not None and not any(request.path.startswith(rule) for rule in answer.disallow)
            for answer in answers
        )
        if not allowed:
            told = [answer.disallow for answer in answers]
            self._history.violate(
                "no policy, no page", f"{request.url} against {told} (decided at {committed_s:.1f} s)"
            )

    def _answers_in_force(self, key: str, origin: OriginWatch, at_s: float) -> list[RobotsAnswer]:
        """The robots answer behind the decision in force; a failure lets an older good copy serve."""
        committed_s = max((when for when, _ in origin.decisions if when <= at_s), default=None)
        if committed_s is None:
            return []
        answers = [answer for answer in self._history.robots[key] if answer.at_s <= committed_s]
        if not answers:
            return []
        if answers[-1].disallow is not None:
            return [answers[-1]]
        # Trouble: the file that was read last serves on for a while, unless the site has said meanwhile that there is none.
        last = next(answer for answer in reversed((_NOTHING, *answers)) if answer.disallow is not None)
        age_s = POLICY.robots.stale_while_unreachable_ms / 1000
        return [last] if last.ruled and at_s - last.at_s <= age_s + COMMIT_S else []

    @staticmethod
    def _is_robots(request: Request) -> bool:
        return request.path == "/robots.txt" or request.path.startswith("/rules-of-")

    # -- the store ---------------------------------------------------------------------------------------------------

    def applied(self, actor: Actor, name: str, value: Any, reply: Any) -> None:
        """The store has applied one operation."""
        self._history.reached[f"call.{name}"] += 1
        if hasattr(reply, "error"):
            self._history.violate("no internal error", f"the store refused {name}: {reply.error}")
            return
        told = getattr(self, f"_on_{name}", None)
        detail = ""
        if name in _MUTATIONS:
            detail = self._mutation(name, value, reply)
        elif told is not None:
            detail = told(value, reply) or ""
        if detail or name not in ("TakeLease", "Expire", "FindBody", "Drain", "Parcels"):
            self._history.tell(actor.name, name, detail)

    def _on_TakeOver(self, ask: Any, reply: Any) -> str:  # noqa: N802 - named after the operation
        last = self.epochs[ask.partition]
        if reply.epoch <= last:
            self._history.violate("single authority", f"epoch {reply.epoch} after {last}")
        self.epochs[ask.partition] = reply.epoch
        for url_id, holder in list(self.holders.items()):
            if self.partitions.of(holder.origin) == ask.partition:
                del self.holders[url_id]
        for work in reply.resumables:
            self._hold(work.lease, UrlState.FETCHED if work.manifest is None else UrlState.PARSED)
        return f"epoch {reply.epoch}, {reply.lapsed} lapsed, {len(reply.resumables)} to resume, {len(reply.open_manifests)} open"

    def _hold(self, lease: Any, state: UrlState) -> Holder:
        key = lease.key
        holder = Holder(
            key.url_id,
            key.attempt,
            key.token,
            lease.url,
            lease.origin,
            lease.kind,
            lease.tries,
            lease.deadline_ms,
            state,
        )
        self.holders[key.url_id] = holder
        if key.token in self._tokens:
            self._history.violate("stale is harmless", f"a token was given twice, now for {lease.url}")
        self._tokens.add(key.token)
        self._attempts[key.url_id] = key.attempt
        return holder

    def _on_TakeLease(self, ask: Any, reply: Any) -> str:  # noqa: N802
        epoch = self.epochs[ask.partition]
        if reply.leases and ask.epoch != epoch:
            self._history.violate("single authority", f"leases for epoch {ask.epoch}, it is {epoch}")
        if reply.fenced:
            self._history.reached["lease.fenced"] += 1
        for lease in reply.leases:
            self._judge_tries(lease)
            known = self.holders.get(lease.key.url_id)
            if known is not None:
                self._history.violate("stale is harmless", f"{lease.url} was leased while it was held")
            if lease.key.attempt <= self._attempts.get(lease.key.url_id, 0):
                self._history.violate(
                    "stale is harmless", f"{lease.url} was leased as attempt {lease.key.attempt} again"
                )
            self._hold(lease, UrlState.LEASED)
            self._history.reached["transition.lease"] += 1
            self.on_lease(lease.origin)
        return ", ".join(f"{lease.url} #{lease.key.attempt}" for lease in reply.leases)

    def _judge_tries(self, lease: Any) -> None:
        """Only a failed try counts as one, and each crawl generation begins with all of them."""
        generation, tries = self._tries.get(lease.key.url_id, (0, 0))
        tries = tries if generation == lease.crawl_generation else 0
        if lease.tries != tries:
            self._history.violate(
                "tries are counted right",
                f"{lease.url} has {lease.tries} tries behind it, {tries} have failed",
            )
        self._tries[lease.key.url_id] = (lease.crawl_generation, tries)

    def _on_Reserve(self, ask: Any, reply: Any) -> str:  # noqa: N802
        outcome = ReserveOutcome(reply.outcome)
        self._history.reached[f"reserve.{outcome.name.lower()}"] += 1
        holder = self.holders.get(ask.key.url_id)
        url = holder.url if holder else ask.origin
        if outcome != ReserveOutcome.GRANTED:
            return f"{url} {outcome.name}"
        if holder is None or (holder.attempt, holder.token) != (ask.key.attempt, ask.key.token):
            self._history.violate(
                "stale is harmless", f"a start at {ask.origin} was granted to a stale lease"
            )
            return url
        epoch = self.epochs[ask.key.partition]
        if ask.epoch != epoch:
            self._history.violate(
                "single authority", f"a start was granted to epoch {ask.epoch}, it is {epoch}"
            )
        if self.partitions.of(ask.origin) == ask.key.partition:
            self._judge_grant(ask.origin)
        holder.slot, holder.until_ms = ask.origin, reply.until_ms
        return f"{url} GRANTED"

    def _judge_grant(self, key: str) -> None:
        origin = self.origins[key]
        if origin.paused:
            self._history.violate("pause is prompt", f"a start was granted at {key}")
        origin.granted_s = self._now_s()

    def _on_Visit(self, ask: Any, reply: Any) -> str:  # noqa: N802
        outcome = ReserveOutcome(reply.outcome)
        self._history.reached[f"visit.{outcome.name.lower()}"] += 1
        if outcome == ReserveOutcome.GRANTED:
            self._judge_grant(ask.origin)
        return f"{ask.origin} {outcome.name}"

    def _on_Deliver(self, parcels: Any, _: int) -> str:  # noqa: N802
        self._history.reached["parcels.delivered"] += len(parcels)
        return ", ".join(f"{one.source} to {one.destination} #{one.number}" for one in parcels)

    def _on_Drain(self, ask: Any, reply: Any) -> str:  # noqa: N802
        self._history.reached["candidates.crossed"] += reply.taken
        return f"{ask.partition}: {reply.taken}, {reply.admitted} new" if reply.taken else ""

    def _on_Expire(self, _: int, reply: int) -> str:  # noqa: N802
        if not reply:
            return ""
        states = self.in_flight()
        lapsed = [holder for holder in self.holders.values() if states.get(holder.url_id) is None]
        for holder in lapsed:
            if holder.until_ms > self.now_ms():
                self._history.violate("concurrency", f"{holder.url} lapsed before its time was over")
            if holder.slot and any(
                request.ended_s is None and request.url == holder.url
                for request in self._history.requests[-200:]
            ):
                self._history.violate("concurrency", f"{holder.url} lapsed while its request was under way")
            del self.holders[holder.url_id]
        self._history.reached["transition.expire"] += len(lapsed)
        return ", ".join(holder.url for holder in lapsed)

    def _mutation(self, name: str, value: Any, reply: int) -> str:
        key, (event, state) = value.key, _MUTATIONS[name]
        holder = self.holders.get(key.url_id)
        if holder is not None and not (holder.attempt == key.attempt and holder.token == key.token):
            holder = None
        if holder is not None and holder.state != state:
            holder = None
        if reply != Applied.APPLIED:
            self._history.reached["stale"] += 1
            if holder is not None:
                self._history.violate(
                    "nothing lost", f"{name} of the holder of {holder.url} was refused as stale"
                )
            return "STALE"
        if holder is None:
            self._history.violate(
                "stale is harmless", f"{name} was applied for url {key.url_id} without authority"
            )
            return "without authority"
        getattr(self, f"_judge_{name}", lambda *_: None)(holder, value)
        final = name not in ("KeepFetched", "KeepParsed") and not (name == "Strike" and not value.final)
        if name == "KeepFailed" and value.retry_ms is None:
            event = UrlEvent.GIVE_UP
        if final:
            del self.holders[key.url_id]
        elif name != "Strike":
            holder.state = TRANSITIONS[event][state]
        self._history.reached[f"transition.{event}"] += 1
        return f"{holder.url} #{holder.attempt} {self._told(name, value)}"

    @staticmethod
    def _told(name: str, value: Any) -> str:
        match name:
            case "GiveBack" | "Leave":
                return f"{value.reason}"
            case "KeepFetched":
                return f"{value.fetched.status} {value.fetched.ref}"
            case "KeepFailed":
                return f"{value.category} retry {value.retry_ms}"
            case "KeepParsed":
                return f"{value.links} links {value.ref}"
            case "Finish":
                return "published" if value.publish else f"withheld {value.withheld}"
            case _:
                return f"{value.detail} final {value.final}"

    def _judge_KeepFetched(self, holder: Holder, value: Any) -> None:  # noqa: N802
        fetched = value.fetched
        for ref in (fetched.ref, fetched.body_ref):
            if not self._disk.holds(ref):
                self._history.violate(
                    "bytes before state", f"{holder.url} is FETCHED, {ref} is not in the archive"
                )
                return
        if fetched.digest and not fetched.not_modified:
            body = warc.read_record(self._disk.records[fetched.body_ref]).payload
            if hashlib.sha256(body).digest() != fetched.digest:
                self._history.violate(
                    "dedup keeps provenance", f"{holder.url} has the body of something else"
                )
        if (
            UrlKind(holder.kind) is UrlKind.PAGE
            and warc.read_record(self._disk.records[fetched.ref]).headers.get("WARC-Target-URI") != holder.url
        ):
            self._history.violate(
                "dedup keeps provenance", f"{holder.url} has the fetch record of something else"
            )

    def _judge_KeepFailed(self, holder: Holder, value: Any) -> None:  # noqa: N802
        self._history.reached[f"category.{value.category}"] += 1
        self.failures[holder.url] += 1
        generation, tries = self._tries[holder.url_id]
        self._tries[holder.url_id] = (generation, tries + (value.retry_ms is not None))
        if value.retry_ms is not None and value.retry_ms <= 0:
            self._history.violate("nothing waits without a reason", f"{holder.url} is retried at once")
        if value.robots is not None:
            self._decided(holder.origin, value.robots_ttl_ms)
        elif holder.kind == UrlKind.ROBOTS and value.retry_ms is None:
            self._history.violate("no policy, no page", f"{holder.url} ended without a decision")
        last = next((item for item in reversed(self._history.requests) if item.url == holder.url), None)
        if holder.slot and last is not None and last.retry_after_s and value.effect is not None:
            self._rest(holder.slot, last)

    def _rest(self, key: str, request: Request) -> None:
        origin = self.origins[key]
        ended_s = request.ended_s if request.ended_s is not None else self._now_s()
        cap_s = POLICY.origin.retry_after_cap_ms / 1000
        origin.rest_until_s = max(origin.rest_until_s, ended_s + min(cap_s, request.retry_after_s))
        origin.rest_from_s = self._now_s()

    def _judge_KeepParsed(self, holder: Holder, value: Any) -> None:  # noqa: N802
        for ref in (value.ref, value.text_ref):
            if ref is not None and not self._disk.holds(ref):
                self._history.violate(
                    "bytes before state", f"{holder.url} is PARSED, {ref} is not in the archive"
                )
        self._cursors.setdefault((holder.url_id, holder.attempt, value.extraction_generation), 0)

    def _judge_Finish(self, holder: Holder, value: Any) -> None:  # noqa: N802
        if holder.kind != UrlKind.ROBOTS:
            return
        if value.robots is None:
            self._history.violate("no policy, no page", f"{holder.url} is complete without a decision")
            return
        if value.robots.rules is not None and not self._disk.holds(value.robots.rules):
            self._history.violate(
                "bytes before state", f"the rules of {holder.origin} are not in the archive"
            )
        self._decided(holder.origin, value.robots_ttl_ms)

    def _decided(self, key: str, ttl_ms: int) -> None:
        self.origins[key].decisions.append((self._now_s(), self._now_s() + ttl_ms / 1000))

    def _judge_Leave(self, holder: Holder, value: Any) -> None:  # noqa: N802
        self._history.reached[f"reason.{value.reason}"] += 1

    def _judge_GiveBack(self, holder: Holder, value: Any) -> None:  # noqa: N802
        self._history.reached[f"reason.{value.reason}"] += 1

    def _on_Admit(self, batch: Any, reply: Any) -> str:  # noqa: N802
        for reason in batch.rejected:
            self._history.reached[f"reason.{reason}"] += 1
        move = batch.cursor
        if move is None:
            return f"{len(batch.candidates)} seeds"
        key = (move.manifest.url_id, move.manifest.attempt, move.manifest.extraction_generation)
        told = f"{len(batch.candidates)} of {move.end - move.start} links, cursor {move.start} to {move.end}"
        if reply.applied != Applied.APPLIED:
            return told + " STALE"
        if self._cursors.get(key, 0) != move.start:
            self._history.violate(
                "links are never lost",
                f"the cursor of {key} moved from {move.start}, it was at {self._cursors.get(key)}",
            )
        self._cursors[key] = move.end
        return told

    def _on_SetOrigin(self, order: OriginOrder, reply: int) -> str:  # noqa: N802
        origin, now_s = self.origins[order.origin], self._now_s()
        if reply == Applied.APPLIED:
            if order.paused is not None:
                origin.paused = order.paused
            if order.active_max is not None:
                origin.active_max.append((now_s, ACTIVE_MAX if order.active_max < 0 else order.active_max))
            if order.spacing_ms is not None:
                origin.spacing_ms.append((now_s, SPACING_MS if order.spacing_ms < 0 else order.spacing_ms))
        return f"{order.origin} paused {order.paused} active {order.active_max} spacing {order.spacing_ms}"

    def _on_Requeue(self, order: Any, reply: int) -> str:  # noqa: N802
        self.requeued += reply
        self._history.reached["transition.requeue"] += reply
        return f"state {order.state} {order.origin}{order.path}: {reply}"


# -- what is left at the end -------------------------------------------------------------------------------------------

Row = tuple[Any, ...]
_URLS = """
SELECT o.key || u.path, u.state, u.kind, u.reason, u.rq, u.due_at, u.status, u.id, u.generation, u.attempt, o.urls,
  u.fingerprint, u.detail
FROM url u JOIN origin o ON o.id = u.id >> 36 ORDER BY u.id
"""


def _near(one: int, other: int) -> bool:
    """Whether two fingerprints, as the tables keep them, are of nearly the same text."""
    return one != 0 and other != 0 and ((one ^ other) & (1 << 64) - 1).bit_count() <= 3


@dataclass(slots=True)
class Left:
    """The judges of what is left when the storm is over and nothing is due any more."""

    world: World
    history: History
    watch: Watch
    disk: Disk
    rows: Callable[..., list[Row]]

    def judge(self) -> None:
        """Every URL in its place, every link accounted for, every document once."""
        rows = self.rows(_URLS)
        urls = {row[0]: row for row in rows}
        if len(urls) < len(rows):
            self.history.violate("insert once", f"{len(rows) - len(urls)} URLs are known in two places")
        for url, row in urls.items():
            self.history.reached[f"state.{UrlState(row[1]).name}"] += 1
            self._judge_url(url, row)
            if row[1] == UrlState.COMPLETE and row[2] != UrlKind.ROBOTS:
                self._judge_links(url, urls)
        for seed in self.world.seeds:
            if seed not in urls:
                self.history.violate("nothing lost", f"the seed {seed} is not known")
        self._judge_publications(urls)

    def _judge_url(self, url: str, row: Row) -> None:
        state, kind = UrlState(row[1]), row[2]
        if kind == UrlKind.ROBOTS:
            return
        judges: dict[UrlState, Callable[[str, Row], str]] = {
            UrlState.COMPLETE: self._complete,
            UrlState.FAILED: self._failed,
            UrlState.EXCLUDED: self._excluded,
            UrlState.PENDING: self._pending,
        }
        judge = judges.get(state)
        complaint = judge(url, row) if judge else "nothing moves it on"
        if complaint:
            self.history.violate("nothing lost", f"{url} is {state.name}: {complaint}")

    def _answers(self, url: str) -> list[Request]:
        return [item for item in self.history.requests if item.url == url and item.status]

    def _complete(self, url: str, row: Row) -> str:
        statuses = [item.status for item in self._answers(url)]
        if not statuses:
            return "it was never answered"
        return "" if row[6] in statuses else f"status {row[6]}, the web said {statuses}"

    def _failed(self, url: str, row: Row) -> str:
        page = self.world.page_at(url)
        if row[3] == "parse_failed":
            return ""
        tries = (
            1
            if row[3] == "refused_destination"
            else 2
            if row[3] == "dns_not_found"
            else POLICY.retry.tries_max
        )
        if self.watch.failures[url] < tries and not (page and page.kind is Kind.BROKEN):
            return f"{row[3]} after {self.watch.failures[url]} failures"
        return ""

    def _excluded(self, url: str, row: Row) -> str:
        if row[3] == "destination_refused":
            return ""
        origin, path = url[: url.index("/", 8)], url[url.index("/", 8) :]
        forbidden = any(
            answer.disallow is not None and any(path.startswith(rule) for rule in answer.disallow)
            for answer in self.history.robots[origin]
        )
        return "" if forbidden else f"{row[3]}, yet no rules ever forbade it"

    def _pending(self, url: str, row: Row) -> str:
        origin = url[: url.index("/", 8)]
        if not self.world.is_lost(origin):
            return f"its rules can be had, and it waits ({row[3]})"
        return "" if row[4] is not None else "it is not queued"

    def _judge_links(self, url: str, urls: dict[str, Row]) -> None:
        page = self.world.page_at(url)
        if (
            page is None
            or urls[url][6] not in (200, 302, 304)
            or page.kind in (Kind.NOFOLLOW, Kind.EMPTY, Kind.BINARY)
        ):
            return
        if any(item.cut for item in self._answers(url)[-1:]):
            # The last try brought half of the page: what it links to in the other half is not lost, it never came.
            return
        links = (*page.links, page.target) if page.target else page.links
        full = {row[0][: row[0].index("/", 8)] for row in urls.values() if row[10] >= URLS_PER_ORIGIN}
        for link in links:
            origin = link[: link.index("/", 8)]
            if link not in urls and origin not in full and not self.world.is_endless(link):
                self.history.violate("links are never lost", f"{link}, found on {url}, is not known")

    def _judge_publications(self, urls: dict[str, Row]) -> None:
        rows = self.rows("SELECT url_id, crawl_generation, count(*) FROM publication GROUP BY 1, 2")
        published: dict[int, dict[int, int]] = defaultdict(dict)
        for url_id, generation, times in rows:
            published[url_id][generation] = times
            if times > 1:
                self.history.violate(
                    "one publication", f"url {url_id} generation {generation}: {times} times"
                )
        for url, row in urls.items():
            if row[1] != UrlState.COMPLETE or row[2] == UrlKind.ROBOTS or row[6] not in (200, 304):
                continue
            wanted, got = self._publishable(url, row), published[row[7]].get(row[8], 0) == 1
            if wanted and row[3] == NEAR_DUPLICATE:
                self.history.reached["withheld.near_duplicate"] += 1
                wanted = not self._has_twin(url, row, urls, published)
            if wanted != got:
                self.history.violate(
                    "one publication", f"{url} generation {row[8]}: published {got}, should be {wanted}"
                )

        self._judge_twins(
            [
                (url, row[11])
                for url, row in urls.items()
                if row[1] == UrlState.COMPLETE and row[8] in published[row[7]] and row[11]
            ]
        )

    def _has_twin(
        self, url: str, row: Row, urls: dict[str, Row], published: dict[int, dict[int, int]]
    ) -> bool:
        """Whether a document was published that is nearly the same text, as far as can be told now."""
        for other, twin in urls.items():
            if other == url or not published[twin[7]]:
                continue
            if _near(twin[11] or 0, row[11]):
                return True
            # It was named, and has been visited again since: its text may have become another one.
            if twin[8] > 1 and str(row[12]).endswith(f" {other}"):
                return True
        return False

    def _judge_twins(self, documents: list[tuple[str, int]]) -> None:
        for place, (url, fingerprint) in enumerate(documents):
            for other, another in documents[:place]:
                if _near(fingerprint, another):
                    self.history.violate("one of near-duplicates", f"{other} and {url} are both published")

    def _publishable(self, url: str, row: Row) -> bool:
        page = self.world.page_at(url)
        if (
            page is None
            or row[2] != UrlKind.PAGE
            or page.kind in (Kind.NOINDEX, Kind.EMPTY, Kind.BINARY, Kind.SITEMAP)
        ):
            return False
        return not (page.kind is Kind.CANONICAL and page.target != url)
