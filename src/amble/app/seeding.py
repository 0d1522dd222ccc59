"""Seeds into the frontier: at the first start all of them, later those that are new, or all when the rules have changed.

What was admitted is remembered in the frontier itself, so that a frontier which is begun anew, or put back from a copy,
is given what it lacks. The memory is a saving and nothing more: without it, seeds are admitted again and change nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

from amble import __version__
from amble.app.config import CrawlConfig
from amble.domain.frontier import Verdict
from amble.ports import Telemetry
from amble.stages.admit import SeedOutcome, UrlGate

# What may come in later under the same rules: when its origin or site has room.
_UNSETTLED = frozenset({Verdict.OVER_BUDGET, Verdict.OVER_SITE_BUDGET})


class SeedMemory(Protocol):
    """A few bytes that live and die with the frontier."""

    def read(self) -> bytes | None:
        """What was kept last; None where nothing was, or where it cannot be read now."""
        ...

    async def keep(self, value: bytes) -> None:
        """Keep `value` durably. Raises StoreUnavailable, StoreBroken."""
        ...


class _Settled(msgspec.Struct, frozen=True):
    """The first `count` seeds, whose digest is `seeds`, are admitted or refused for good under the rules `rules`."""

    rules: str
    count: int
    seeds: str


class Seeder:
    """Admits the seeds of the configuration; known ones change nothing."""

    def __init__(
        self, gate: UrlGate, config: CrawlConfig, log: Telemetry, memory: SeedMemory | None = None
    ) -> None:
        """Without `memory` all of them are admitted each time."""
        self._gate, self._seeds, self._log, self._memory = gate, config.seeds, log, memory
        self._rules = rules_of(config)

    async def admit(self) -> int:
        """How many seeds were admitted now, or passed on to the partition where they belong."""
        settled = self._settled()
        if settled:
            self._log.event("seeds.known", count=settled)
        outcomes = await self._gate.admit_seeds(self._seeds[settled:])
        for outcome in outcomes:
            if outcome.rejected is not None:
                self._log.event(
                    "seed.rejected",
                    seed=outcome.given,
                    reason=outcome.rejected.reason.value,
                    detail=outcome.rejected.detail,
                )
        await self._remember(settled, outcomes)
        return sum(outcome.verdict in (Verdict.ADMITTED, Verdict.FORWARDED) for outcome in outcomes)

    def _settled(self) -> int:
        """How many seeds, from the first on, need not be admitted again."""
        value = None if self._memory is None else self._memory.read()
        if value is None:
            return 0
        try:
            known = msgspec.json.decode(value, type=_Settled)
        except msgspec.MsgspecError:
            return 0
        same = known.rules == self._rules and known.seeds == _digest(self._seeds[: known.count])
        return known.count if same else 0

    async def _remember(self, settled: int, outcomes: Sequence[SeedOutcome]) -> None:
        new = next(
            (number for number, outcome in enumerate(outcomes) if outcome.verdict in _UNSETTLED),
            len(outcomes),
        )
        if self._memory is not None and new:
            count = settled + new
            known = _Settled(self._rules, count, _digest(self._seeds[:count]))
            await self._memory.keep(msgspec.json.encode(known))


def rules_of(config: CrawlConfig) -> str:
    """A digest of all that decides whether a seed is admitted."""
    rules = (__version__, config.scope, config.policy, config.allow_nets)
    return hashlib.sha256(msgspec.json.encode(rules, order="sorted")).hexdigest()


def _digest(seeds: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(seeds).encode()).hexdigest()
