"""The robots rules at hand: compiled rule sets by where they are stored, loaded from the archive when not in memory.

The ledger owns the decision; this is only a cache of what the decision refers to, bounded and lost without harm.
"""

from __future__ import annotations

from collections import OrderedDict

from amble.domain.fetched import BodyRef
from amble.domain.manifest import RobotsRules
from amble.domain.robots import RuleSet
from amble.formats import manifest_json
from amble.ports import Archive

SETS_MAX = 10_000


class RobotsBook:
    """Rule sets by reference, least recently used dropped first."""

    def __init__(self, archive: Archive, *, sets_max: int = SETS_MAX) -> None:
        self._archive = archive
        self._sets: OrderedDict[BodyRef, RuleSet] = OrderedDict()
        self._sets_max = sets_max

    def remember(self, ref: BodyRef, rules: RobotsRules) -> RuleSet:
        """Keep the rules that were just stored at `ref`."""
        compiled = RuleSet(rules)
        self._sets[ref] = compiled
        self._sets.move_to_end(ref)
        if len(self._sets) > self._sets_max:
            self._sets.popitem(last=False)
        return compiled

    async def rules(self, ref: BodyRef) -> RuleSet:
        """The rules stored at `ref`. Raises ArchiveBroken when the manifest there is missing or has no rules."""
        known = self._sets.get(ref)
        if known is not None:
            self._sets.move_to_end(ref)
            return known
        manifest = manifest_json.decode(await self._archive.read(ref)).manifest
        return self.remember(ref, manifest.robots or RobotsRules())
