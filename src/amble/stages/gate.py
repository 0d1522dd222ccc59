"""The egress gate: sole authority for outbound requests, and the only place that makes a Permit.

The order is cheapest first and spends nothing on refusal: epoch, robots decision, DNS, judgement of every address,
and last the reservation of a start and a slot in the ledger, which checks epoch, pause, spacing and the robots
version again in one commit. A lease opens no socket; a permit opens one.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import assert_never

from msgspec import Struct

from amble.domain.attempt import Lease, UrlKind
from amble.domain.decision import Category, Reason, Refusal
from amble.domain.destination import REFUSED_PORTS, judge_all
from amble.domain.errors import ArchiveBroken, ArchiveUnavailable
from amble.domain.frontier import ReserveAsk, ReserveOutcome, ReserveReply
from amble.domain.policy import Policy
from amble.domain.politeness import effective_delay_ms
from amble.domain.robots import RobotsOutcome
from amble.domain.url import Origin, origin_of, target_of
from amble.ports import Clock, Frontier, Permit, ResolveFailure, Resolver, Telemetry
from amble.stages.rules import RobotsBook

# A slot is held this much longer than the longest exchange: the time between reserving and opening the socket.
HOLD_MARGIN_S = 15.0
# When the resolver itself is silent, a URL that met it is offered again this much later.
DNS_RETRY_MS = 2_000
# A start that must wait longer for another one at its origin is given back.
TURN_WAIT_S_MAX = 5.0
# Origins with several slots whose last start is remembered.
TURNS_MAX = 10_000
# The same when the robots rules cannot be read.
ARCHIVE_RETRY_MS = 2_000
# When the origins of one address have all its slots, another of them looks again this much later.
ADDRESS_RETRY_MS = 1_000


class Lapsed(Struct, frozen=True):
    """The lease is not ours any more; whoever holds it now goes on. Nothing to record."""


class Unreachable(Struct, frozen=True):
    """The name did not resolve: a failed try, not a refusal of ours."""

    category: Category
    detail: str


Answer = Permit | Refusal | Lapsed | Unreachable


class _Terms(Struct, frozen=True):
    """What a reservation asks for beyond its origin; see `ReserveAsk`. `since_s`: see `EgressGate.ask`."""

    robots_version: int
    crawl_delay_ms: int
    since_s: float | None


class _Turns:
    """When requests really began at origins with several slots.

    Starts are granted at a distance, but an answer of the store may be late: two of them heard at once must still begin
    one after the other. An origin with one slot needs none of this, since its next start is counted from the last one.
    """

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, key: str, delay_s: float, now_s: float) -> float:
        """How long a request that may start must still wait. The turn is taken unless that is too long."""
        begins_s = max(now_s, self._begun.get(key, now_s - delay_s) + delay_s)
        if begins_s - now_s <= TURN_WAIT_S_MAX:
            self._begun[key] = begins_s
            self._begun.move_to_end(key)
            if len(self._begun) > TURNS_MAX:
                self._begun.popitem(last=False)
        return begins_s - now_s


@dataclass(frozen=True, slots=True)
class Hold:
    """Ownership of one partition as its holder knows it: `epoch`, trusted until `until_s` on the monotonic clock."""

    epoch: int
    until_s: float = math.inf


class Fence:
    """Which partitions this agent may start requests for, under which epochs and until when.

    A partition that is let go or lost starts nothing more; it comes back only under a new epoch.
    """

    __slots__ = ("_holds",)

    def __init__(self, epoch: int | None = None) -> None:
        """With `epoch`: partition 0 is held without end, which is what owning a crawl folder means."""
        self._holds: dict[int, Hold] = {} if epoch is None else {0: Hold(epoch)}

    def trust(self, partition: int, epoch: int, until_s: float = math.inf) -> None:
        """`partition` is held under `epoch` until `until_s` (monotonic)."""
        self._holds[partition] = Hold(epoch, until_s)

    def lose(self, partition: int) -> None:
        """Start nothing more in `partition`."""
        self._holds.pop(partition, None)

    def lose_all(self) -> None:
        """Start nothing more at all."""
        self._holds.clear()

    def held(self, partition: int, now_s: float) -> Hold | None:
        """The hold on `partition`, None when there is none that can be trusted at `now_s`."""
        hold = self._holds.get(partition)
        return hold if hold is not None and now_s < hold.until_s else None

    @property
    def lost(self) -> bool:
        """Nothing is held."""
        return not self._holds

    @property
    def partitions(self) -> list[int]:
        """What is held, trusted or not."""
        return list(self._holds)


@dataclass(slots=True, kw_only=True)
class EgressGate:
    """Asks nothing of a site; decides whether a request may start, and when not, why not and until when."""

    frontier: Frontier
    resolver: Resolver
    book: RobotsBook
    policy: Policy
    allowed_nets: Sequence[IPv4Network | IPv6Network]
    clock: Clock
    telemetry: Telemetry
    fence: Fence
    _address_active: Counter[str] = field(default_factory=Counter)
    _turns: _Turns = field(default_factory=_Turns)

    async def ask(self, lease: Lease, *, since_s: float | None = None) -> Answer:
        """Permission to start the request that `lease` is for.

        `since_s`: when this attempt last started a request (monotonic), None when it has not.
        """
        version = -1
        crawl_delay_ms = lease.facts.robots.crawl_delay_ms
        if lease.kind != UrlKind.ROBOTS and self.policy.robots.obey:
            refusal = await self._judge_robots(lease)
            if refusal is not None:
                return refusal
            version = lease.facts.robots.version
        return await self._permit(lease, lease.url, _Terms(version, crawl_delay_ms, since_s))

    async def ask_hop(self, lease: Lease, url: str, *, since_s: float) -> Answer:
        """Permission for one redirect hop of a robots URL, in the schedule of the hop's own origin."""
        return await self._permit(lease, url, _Terms(-1, 0, since_s))

    def finished(self, permit: Permit) -> None:
        """The request under `permit` is over."""
        self._release_address(permit.address)

    async def _judge_robots(self, lease: Lease) -> Refusal | None:
        """The robots decision as it is now, at dispatch (RFC 9309, 2.2)."""
        state = lease.facts.robots
        match RobotsOutcome(state.outcome):
            case RobotsOutcome.MISSING:
                return Refusal(reason=Reason.ROBOTS_MISSING)
            case RobotsOutcome.UNREACHABLE:
                return Refusal(reason=Reason.ROBOTS_UNREACHABLE)
            case RobotsOutcome.ALLOW_ALL:
                return None
            case RobotsOutcome.RULES | RobotsOutcome.STALE_RULES:
                return await self._judge_rules(lease)
            case unknown:
                assert_never(unknown)

    async def _judge_rules(self, lease: Lease) -> Refusal | None:
        ref = lease.facts.robots.rules
        if ref is None:
            return Refusal(reason=Reason.ROBOTS_MISSING, detail="the decision names no rules")
        try:
            rules = await self.book.rules(ref)
        except ArchiveBroken as broken:
            return Refusal(reason=Reason.ROBOTS_MISSING, detail=str(broken))
        except ArchiveUnavailable as trouble:
            return Refusal(
                reason=Reason.ARCHIVE_UNAVAILABLE, detail=str(trouble), retry_in_ms=ARCHIVE_RETRY_MS
            )
        allowed, pattern = rules.allows(lease.path)
        if allowed:
            return None
        return Refusal(reason=Reason.ROBOTS_DISALLOWED, detail=f"Disallow: {pattern}", final=True)

    async def _permit(self, lease: Lease, url: str, terms: _Terms) -> Answer:
        if self._held(lease) is None:
            return Refusal(reason=Reason.STALE_EPOCH)
        origin = origin_of(url)
        if origin.port in REFUSED_PORTS:
            # Links are held to this when they are admitted; where a robots.txt redirects to is asked for at once.
            return Refusal(
                reason=Reason.PORT_REFUSED, detail=f"port {origin.port} is not for HTTP", final=True
            )
        found = await self.resolver.resolve(origin.host)
        if isinstance(found, ResolveFailure):
            if found.unavailable:
                return Refusal(reason=Reason.DNS_UNAVAILABLE, detail=found.detail, retry_in_ms=DNS_RETRY_MS)
            return Unreachable(found.category, found.detail)
        judgement = judge_all(found.addresses, self.allowed_nets)
        if judgement.refusals:
            return Refusal(
                reason=Reason.DESTINATION_REFUSED, detail="; ".join(judgement.refusals), final=True
            )
        address = self._pick(judgement.allowed, lease)
        if address is None:
            return Refusal(
                reason=Reason.ADDRESS_BUSY, detail=judgement.allowed[0], retry_in_ms=ADDRESS_RETRY_MS
            )
        self._address_active[address] += 1
        answer: Answer | None = None
        try:
            answer = await self._reserve(lease, url, origin, address, terms)
        finally:
            # Also when the store fails or the task is cancelled: nobody else would count it down.
            if not isinstance(answer, Permit):
                self._release_address(address)
        return answer

    def _held(self, lease: Lease) -> Hold | None:
        return self.fence.held(lease.key.partition, self.clock.monotonic_s())

    def _release_address(self, address: str) -> None:
        self._address_active[address] -= 1
        if self._address_active[address] <= 0:
            del self._address_active[address]

    def _pick(self, addresses: Sequence[str], lease: Lease) -> str | None:
        """One address to pin. A try after a failure takes the next one of the list."""
        assert addresses
        start = lease.tries % len(addresses)
        for step in range(len(addresses)):
            address = addresses[(start + step) % len(addresses)]
            if self._address_active[address] < max(
                self.policy.origin.address_active_max, lease.facts.active_max
            ):
                return address
        return None

    async def _reserve(self, lease: Lease, url: str, origin: Origin, address: str, terms: _Terms) -> Answer:
        limits = self.policy.fetch
        hold = self._held(lease)
        if hold is None:
            return Refusal(reason=Reason.STALE_EPOCH)
        asked_s = self.clock.monotonic_s()
        hold_s = limits.longest_s + HOLD_MARGIN_S
        delay_ms = effective_delay_ms(
            self.policy.origin,
            spacing_ms=lease.facts.spacing_ms,
            crawl_delay_ms=terms.crawl_delay_ms,
            last_fetch_ms=lease.facts.last_fetch_ms,
        )
        reply = await self.frontier.reserve(
            ReserveAsk(
                key=lease.key,
                epoch=hold.epoch,
                origin=origin.key,
                delay_ms=delay_ms,
                hold_ms=int(hold_s * 1000),
                robots_version=terms.robots_version,
                active_max=lease.facts.active_max,
                since_start_ms=-1 if terms.since_s is None else int((asked_s - terms.since_s) * 1000),
                crawl_delay_cap_ms=self.policy.origin.crawl_delay_cap_ms,
            )
        )
        if reply.outcome != ReserveOutcome.GRANTED:
            return self._refused(reply, lease)
        if lease.facts.active_max > 1:
            wait_s = self._turns.wait_s(origin.key, delay_ms / 1000, self.clock.monotonic_s())
            if wait_s > TURN_WAIT_S_MAX:
                return Refusal(reason=Reason.NOT_YET, retry_in_ms=int(wait_s * 1000))
            if wait_s > 0:
                await self.clock.sleep(wait_s)
        now_s = self.clock.monotonic_s()
        deadline_s = min(now_s + limits.longest_s, asked_s + hold_s - 1.0)
        if deadline_s - now_s < limits.longest_s / 2:
            # The store took so long to answer that the slot would end in the middle of the request.
            return Refusal(reason=Reason.STORE_UNAVAILABLE, detail="the reservation came too late to be used")
        hold = self._held(lease)
        if hold is None:
            return Refusal(reason=Reason.STALE_EPOCH)
        return Permit(
            url=url,
            scheme=origin.scheme,
            host=origin.host,
            port=origin.port,
            target=target_of(url),
            address=address,
            epoch=hold.epoch,
            deadline_s=deadline_s,
            origin_id=reply.origin_id,
            start_by_s=hold.until_s,
        )

    def _refused(self, reply: ReserveReply, lease: Lease) -> Refusal | Lapsed:
        match ReserveOutcome(reply.outcome):
            case ReserveOutcome.STALE:
                return Lapsed()
            case ReserveOutcome.FENCED:
                self.fence.lose(lease.key.partition)
                self.telemetry.event("gate.fenced", partition=lease.key.partition)
                return Refusal(reason=Reason.STALE_EPOCH)
            case ReserveOutcome.NOT_YET:
                return Refusal(reason=Reason.NOT_YET, retry_in_ms=max(0, reply.until_ms - reply.now_ms))
            case ReserveOutcome.NO_SLOT:
                return Refusal(reason=Reason.NO_SLOT)
            case ReserveOutcome.PAUSED:
                return Refusal(reason=Reason.ORIGIN_PAUSED)
            case ReserveOutcome.ROBOTS_CHANGED:
                return Refusal(reason=Reason.ROBOTS_CHANGED)
            case ReserveOutcome.GRANTED:
                raise AssertionError("a grant is not a refusal")
            case unknown:
                assert_never(unknown)
