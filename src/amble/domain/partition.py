"""Which partition a URL belongs to, and which agent should own which partition.

A partition is a set of sites. Every scheme, port and subdomain of a site lies in one partition, so that one owner sees
all that politeness towards the site needs. The number of partitions is fixed when a fleet is set up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import xxhash
from msgspec import Struct

from amble.domain.url import host_of, partition_of, site_of

# Origins whose partition is remembered: a registrable domain costs a walk over the public suffix list.
_REMEMBERED_MAX = 100_000


@dataclass(slots=True)
class PartitionMap:
    """Origins to partitions. `apart` gives sites a partition of their own (site -> partition), beyond the hashed ones.

    `hashed` is how many partitions share the sites that are not named in `apart`; it never changes for a fleet.
    """

    hashed: int = 1
    apart: Mapping[str, int] = field(default_factory=dict)
    _remembered: dict[str, int] = field(default_factory=dict)

    def of(self, origin_key: str) -> int:
        """The partition of an origin ("https://example.org")."""
        if self.hashed == 1 and not self.apart:
            return 0
        known = self._remembered.get(origin_key)
        if known is None:
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            known = self._remembered[origin_key] = self._find(origin_key)
        return known

    def _find(self, origin_key: str) -> int:
        if self.apart:
            own = self.apart.get(site_of(host_of(origin_key)))
            if own is not None:
                return own
        return partition_of(origin_key, self.hashed)


class PartitionLine(Struct, frozen=True, kw_only=True):
    """One partition as the store knows it. `lease_left_ms`: until its ownership lapses, 0 or less when it has.

    `moving`: it is on its way to another server, nobody may claim it.
    """

    partition: int
    owner: str
    epoch: int
    lease_left_ms: int
    moving: bool = False


class AgentLine(Struct, frozen=True, kw_only=True):
    """One agent as the store knows it. `seen_ms_ago`: since it last renewed. `leaving`: it takes nothing new."""

    agent: str
    seen_ms_ago: int
    alive: bool
    leaving: bool
    partitions: int = 0


def share_of(agents: Collection[str], partitions: Sequence[int]) -> dict[str, int]:
    """How many partitions each live agent should own: as even as can be, the remainder to the first in name order."""
    if not agents:
        return {}
    least, more = divmod(len(partitions), len(agents))
    return {agent: least + (place < more) for place, agent in enumerate(sorted(agents))}


def to_claim(me: str, agents: Collection[str], owners: Mapping[int, str]) -> list[int]:
    """Free partitions that `me` should claim now. `owners`: every partition's live owner, "" where there is none.

    Agents that decide at the same moment from the same facts prefer different partitions (rendezvous hashing), so
    that they rarely try for the same one.
    """
    mine = sum(owner == me for owner in owners.values())
    room = share_of(agents, list(owners)).get(me, 0) - mine
    free = [partition for partition, owner in owners.items() if not owner]
    return sorted(free, key=lambda partition: _weight(me, partition), reverse=True)[: max(0, room)]


def to_hand_over(me: str, agents: Collection[str], owners: Mapping[int, str]) -> list[int]:
    """Partitions that `me` should hand over, so that others reach their share. As few as possible.

    Nothing is handed over while free partitions would do: an agent that joins takes those first.
    """
    mine = [partition for partition, owner in owners.items() if owner == me]
    surplus = len(mine) - share_of(agents, list(owners)).get(me, 0)
    missing = sum(
        max(0, share - sum(owner == agent for owner in owners.values()))
        for agent, share in share_of(agents, list(owners)).items()
        if agent != me
    )
    free = sum(not owner for owner in owners.values())
    giving = max(0, min(surplus, missing - free))
    return sorted(mine, key=lambda partition: _weight(me, partition))[:giving]


def _weight(agent: str, partition: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{agent} {partition}".encode())
