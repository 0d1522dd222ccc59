"""What would happen to a URL: canonical form, scope, bounds, destination, robots. Asks no network, changes nothing.

The answers come from the rules that the crawl itself uses; facts that only a store has are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network

from amble.app.config import CrawlConfig, scope_of
from amble.domain.decision import Reason
from amble.domain.destination import judge
from amble.domain.report import UrlExplanation
from amble.domain.robots import ROBOTS_PATH, RobotsOutcome, RuleSet
from amble.domain.traps import judge_shape
from amble.domain.url import Canonicalizer, host_of, split


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One judge and its answer. `passed` None: it cannot tell without asking the network."""

    name: str
    passed: bool | None
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What would happen to `url`. `canonical` is "" where it has no canonical form; `fetched` is the verdict."""

    url: str
    canonical: str
    steps: tuple[Step, ...]

    @property
    def fetched(self) -> bool:
        """Whether every judge that can tell says yes."""
        return all(step.passed is not False for step in self.steps)


def _yes(name: str, detail: str = "") -> Step:
    return Step(name=name, passed=True, reason="", detail=detail)


def _no(name: str, reason: Reason, detail: str = "") -> Step:
    return Step(name=name, passed=False, reason=reason.value, detail=detail)


def _unknown(name: str, reason: str, detail: str) -> Step:
    return Step(name=name, passed=None, reason=reason, detail=detail)


def canonical_of(text: str) -> str | Reason:
    """The canonical form of any text, or why it has none."""
    return Canonicalizer().canon(text, None)


def dry_run(text: str, config: CrawlConfig, known: UrlExplanation | None, rules: RuleSet | None) -> DryRun:
    """Every judge's answer to `text`, as a link found one step from a seed.

    `known` is what the store of the crawl says of it (None: there is no crawl yet); `rules` are the robots rules that
    are at hand for its origin.
    """
    canonical = canonical_of(text)
    if isinstance(canonical, Reason):
        return DryRun(url=text, canonical="", steps=(_no("url", canonical),))
    steps = [_yes("url", canonical), _scope(canonical, config), _shape(canonical, config)]
    steps.append(_destination(canonical, config))
    steps.append(_robots(canonical, config, known, rules))
    return DryRun(url=text, canonical=canonical, steps=tuple(steps))


def _scope(url: str, config: CrawlConfig) -> Step:
    if not config.seeds:
        return _unknown(
            "scope",
            "",
            "no seeds are at hand to compare with: name a crawl folder with --out (those of a fleet are in its database)",
        )
    scope = scope_of(config)
    rejected = scope.judge_seed(url) if url in config.seeds else scope.judge(url)
    return (
        _no("scope", rejected.reason, rejected.detail) if rejected else _yes("scope", config.scope.kind.value)
    )


def _shape(url: str, config: CrawlConfig) -> Step:
    rejected = judge_shape(url, config.policy.urls)
    return _no("bounds", rejected.reason, rejected.detail) if rejected else _yes("bounds")


def _destination(url: str, config: CrawlConfig) -> Step:
    host = host_of(url)
    if ":" not in host and not host.rpartition(".")[2].isdigit():
        return _unknown("destination", "", "the addresses of a name are judged when it is resolved")
    verdict = judge(host, [ip_network(net) for net in config.allow_nets])
    if verdict.allowed:
        return _yes("destination", host)
    return _no("destination", Reason.DESTINATION_REFUSED, verdict.refused)


def _robots(url: str, config: CrawlConfig, known: UrlExplanation | None, rules: RuleSet | None) -> Step:
    path = split(url)[1]
    if not config.policy.robots.obey:
        return _yes("robots", "not obeyed (robots.obey = false)")
    if path == ROBOTS_PATH:
        return _yes("robots", "robots.txt itself may always be fetched")
    origin = known.origin if known is not None else None
    outcome = RobotsOutcome(origin.robots_outcome) if origin is not None else RobotsOutcome.MISSING
    if outcome is RobotsOutcome.ALLOW_ALL:
        return _yes("robots", "the origin has no robots.txt")
    if outcome is RobotsOutcome.UNREACHABLE:
        return _no("robots", Reason.ROBOTS_UNREACHABLE)
    if outcome is RobotsOutcome.MISSING or rules is None:
        return _unknown(
            "robots", Reason.ROBOTS_MISSING.value, "robots.txt is not at hand; it is fetched first"
        )
    allowed, pattern = rules.allows(path)
    said = f"by the rule {pattern}" if pattern else "no rule of robots.txt speaks against it"
    return (
        _yes("robots", said) if allowed else _no("robots", Reason.ROBOTS_DISALLOWED, f"by the rule {pattern}")
    )
