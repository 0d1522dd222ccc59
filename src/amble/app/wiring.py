"""The line, wired in one place: which stage gets which tools and which part of the policy.

Composition roots choose the tools (`app/build.py` for a crawl folder, `app/agent.py` for a fleet, the simulator for its
world); what they make of them is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from amble.domain.policy import Policy
from amble.domain.scope import Scope
from amble.domain.url import Canonicalizer
from amble.ports import (
    Archive,
    Clock,
    Entropy,
    Frontier,
    ParserPool,
    Resolver,
    Telemetry,
    Transport,
)
from amble.stages.admit import RECENT_MAX, LinkSettings, UrlGate
from amble.stages.complete import Completion
from amble.stages.discover import BATCH_LINKS, Discovery
from amble.stages.fetch import Fetcher
from amble.stages.gate import EgressGate, Fence
from amble.stages.health import Health, ResolverWatch
from amble.stages.journey import Dispatch, Extract
from amble.stages.lease import SLEEP_S_MAX, Scheduler
from amble.stages.parse import Extraction
from amble.stages.rules import SETS_MAX, RobotsBook
from amble.stages.store import Recorder
from amble.upkeep.expire import Expiry

# rel=nofollow is obeyed: whoever wrote it does not vouch for the target, and a polite crawler need not insist.
LINKS = LinkSettings(follow_rel_nofollow=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Everything that the stages use of the world."""

    frontier: Frontier
    archive: Archive
    resolver: Resolver
    transport: Transport
    pool: ParserPool
    clock: Clock
    entropy: Entropy
    telemetry: Telemetry
    health: Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the stages are told. The last four are what a test or a simulator makes small."""

    policy: Policy
    scope: Scope
    fence: Fence
    epoch: int = 0
    worker: int = 1
    allowed_nets: Sequence[IPv4Network | IPv6Network] = ()
    partition_of: Callable[[str], int] | None = None
    parsed_elsewhere: Set[int] = frozenset()
    recent_max: int = RECENT_MAX
    rule_sets_max: int = SETS_MAX
    batch_links: int = BATCH_LINKS
    sleep_s_max: float = SLEEP_S_MAX
    store_now_ms: Callable[[], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The stages, wired."""

    url_gate: UrlGate
    scheduler: Scheduler
    gate: EgressGate
    recorder: Recorder
    dispatch: Dispatch
    extraction: Extraction
    completion: Completion
    discovery: Discovery
    extract: Extract
    expiry: Expiry
    fence: Fence
    watch: ResolverWatch = field(repr=False)


def wire_line(tools: Tools, rules: Rules) -> Line:
    """The stages over `tools` under `rules`."""
    policy, canonicalizer = rules.policy, Canonicalizer()
    url_gate = UrlGate(
        tools.frontier,
        policy,
        rules.scope,
        canonicalizer,
        links=LINKS,
        recent_max=rules.recent_max,
        partition_of=rules.partition_of,
    )
    book = RobotsBook(tools.archive, sets_max=rules.rule_sets_max)
    scheduler = Scheduler(
        frontier=tools.frontier,
        clock=tools.clock,
        policy=policy,
        epoch=rules.epoch,
        worker=rules.worker,
        sleep_s_max=rules.sleep_s_max,
    )
    store_now_ms = rules.store_now_ms or scheduler.store_now_ms
    gate = EgressGate(
        frontier=tools.frontier,
        resolver=tools.resolver,
        book=book,
        policy=policy,
        allowed_nets=rules.allowed_nets,
        clock=tools.clock,
        telemetry=tools.telemetry,
        fence=rules.fence,
    )
    recorder = Recorder(
        frontier=tools.frontier,
        archive=tools.archive,
        policy=policy,
        clock=tools.clock,
        entropy=tools.entropy,
        telemetry=tools.telemetry,
        health=tools.health,
        store_now_ms=store_now_ms,
        parsed_elsewhere=rules.parsed_elsewhere,
    )
    extraction = Extraction(
        pool=tools.pool,
        archive=tools.archive,
        frontier=tools.frontier,
        clock=tools.clock,
        entropy=tools.entropy,
        telemetry=tools.telemetry,
        health=tools.health,
        limits=policy.parse,
    )
    completion = Completion(frontier=tools.frontier, book=book, policy=policy, store_now_ms=store_now_ms)
    discovery = Discovery(gate=url_gate, archive=tools.archive, batch_links=rules.batch_links)
    watch = ResolverWatch(tools.health, tools.resolver)
    return Line(
        url_gate=url_gate,
        scheduler=scheduler,
        gate=gate,
        recorder=recorder,
        dispatch=Dispatch(
            gate=gate,
            fetcher=Fetcher(tools.transport, policy),
            recorder=recorder,
            canonicalizer=canonicalizer,
            on_resolver_trouble=watch.report,
        ),
        extraction=extraction,
        completion=completion,
        discovery=discovery,
        extract=Extract(
            extraction=extraction,
            completion=completion,
            discovery=discovery,
            archive=tools.archive,
            telemetry=tools.telemetry,
        ),
        expiry=Expiry(tools.frontier, tools.telemetry),
        fence=rules.fence,
        watch=watch,
    )
