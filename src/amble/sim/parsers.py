"""The parser pool of a seed: the production readers in this process, and children that die, hang and babble."""

from __future__ import annotations

import asyncio

from amble.domain.errors import SandboxUnavailable
from amble.domain.policy import ParseLimits
from amble.formats.decode import Undecodable
from amble.formats.extraction import ExtractionSettings
from amble.formats.registry import Answer, Registry
from amble.ports import Parsed, ParseFailure, ParseTask
from amble.sim.clock import Dice
from amble.sim.faults import Fault, Weather
from amble.sim.world import POISON

_REASONS = {
    Fault.PARSER_DEATH: "crashed",
    Fault.PARSER_HANG: "wall",
    Fault.PARSER_GARBAGE: "garbage",
}


class Children:
    """Whether children can be had at all."""

    def __init__(self) -> None:
        self.gone = False


class SimParsers:
    """ports.ParserPool."""

    def __init__(self, children: Children, weather: Weather, dice: Dice, limits: ParseLimits) -> None:
        self._children, self._weather, self._dice, self._limits = children, weather, dice, limits
        self._registry = _registry(limits)
        self._free = asyncio.Semaphore(self.size)

    async def parse(self, task: ParseTask) -> Parsed | ParseFailure:
        """See ports.ParserPool."""
        if self._children.gone:
            self._weather.note(Fault.PARSERS_GONE)
            raise SandboxUnavailable("simulated: no child can be started")
        async with self._free:
            for fault, reason in _REASONS.items():
                if self._weather.strikes(fault):
                    await asyncio.sleep(self._limits.wall_s if fault is Fault.PARSER_HANG else 0.01)
                    return ParseFailure(reason, "simulated")
            await asyncio.sleep(self._dice.between(0.001, 0.03))
            return self._read(task)

    def _read(self, task: ParseTask) -> Parsed | ParseFailure:
        body = b"".join(task.body.pieces())
        if POISON in body:
            return ParseFailure("memory", "simulated: the page is poisoned")
        reading = self._registry.read(Answer(task.url, task.kind, task.status, task.head, body))
        if isinstance(reading, Undecodable):
            return ParseFailure("decode", str(reading))
        return Parsed(manifest=reading.manifest, text=reading.text, main=reading.main)

    @property
    def generation(self) -> int:
        """See ports.ParserPool."""
        return self._registry.generation

    @property
    def size(self) -> int:
        """See ports.ParserPool."""
        return 2

    async def close(self) -> None:
        """See ports.ParserPool."""


_REGISTRIES: dict[ParseLimits, Registry] = {}


def _registry(limits: ParseLimits) -> Registry:
    """Readers are costly to make and hold no state between pages."""
    known = _REGISTRIES.get(limits)
    if known is None:
        known = _REGISTRIES[limits] = Registry(limits, ExtractionSettings())
    return known
