"""The robots rules at hand: compiled rule sets by where they are stored, loaded from the archive when not in memory.

The ledger owns the decision; this is only a cache of what the decision refers to, bounded in sets and in rules, and lost without harm.
"""

from __future__ import annotations

from collections import OrderedDict

from amble.domain.fetched import BodyRef
from amble.domain.manifest import RobotsRules
from amble.domain.robots import RuleSet
from amble.formats import manifest_json
from amble.ports import Archive

SETS_MAX = 10_000
# A compiled rule takes up to 350 bytes, and one file may have 40,000 of them.
RULES_MAX = 200_000


class RobotsBook:
    """Rule sets by reference, least recently used dropped first."""

    def __init__(self, archive: Archive, *, sets_max: int = SETS_MAX, rules_max: int = RULES_MAX) -> None:
        self._archive = archive
        self._sets: OrderedDict[BodyRef, tuple[RuleSet, int]] = OrderedDict()
        self._sets_max = sets_max
        self._rules_max = rules_max
        self._rules = 0

    def __len__(self) -> int:
        return len(self._sets)

    def remember(self, ref: BodyRef, rules: RobotsRules) -> RuleSet:
        """Keep the rules that were just stored at `ref`."""
        compiled = RuleSet(rules)
        self._forget(ref)
        self._sets[ref] = compiled, len(rules.rules)
        self._rules += len(rules.rules)
        # The newest stays, however large it is.
        while len(self._sets) > 1 and (len(self._sets) > self._sets_max or self._rules > self._rules_max):
            self._forget(next(iter(self._sets)))
        return compiled

    def _forget(self, ref: BodyRef) -> None:
        _, rules = self._sets.pop(ref, (None, 0))
        self._rules -= rules

    async def rules(self, ref: BodyRef) -> RuleSet:
        """The rules stored at `ref`. Raises ArchiveBroken when the manifest there is missing or has no rules."""
        known = self._sets.get(ref)
        if known is not None:
            self._sets.move_to_end(ref)
            return known[0]
        manifest = manifest_json.decode(await self._archive.read(ref)).manifest
        return self.remember(ref, manifest.robots or RobotsRules())
