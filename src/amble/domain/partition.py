"""Which partition a URL belongs to, and which agent should own which partition.

A partition is a set of sites. Every scheme, port and subdomain of a site lies in one partition, so that one owner sees
all that politeness towards the site needs. The number of partitions is fixed when a fleet is set up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
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


class PartitionFacts(Struct, frozen=True, kw_only=True):
    """A partition and its work: URLs queued and under way, candidates on their way to it and from it."""

    line: PartitionLine
    queued: int
    in_flight: int
    inbox: int
    outbox: int


class AgentLine(Struct, frozen=True, kw_only=True):
    """One agent as the store knows it. `seen_ms_ago`: since it last renewed. `leaving`: it takes nothing new."""

    agent: str
    seen_ms_ago: int
    alive: bool
    leaving: bool
    partitions: int = 0


def share_of(agents: Collection[str], owners: Mapping[int, str]) -> dict[str, int]:
    """How many partitions each agent should own: as even as can be, reached with the fewest moves.

    `owners`: every partition's owner, "" where there is none. Where the partitions cannot be divided evenly, those that
    own the most keep one more (then the first by name), so that a balanced fleet moves nothing.
    """
    if not agents:
        return {}
    owned = Counter(owners.values())
    least, more = divmod(len(owners), len(agents))
    order = sorted(agents, key=lambda agent: (-owned[agent], agent))
    return {agent: least + (place < more) for place, agent in enumerate(order)}


def to_claim(me: str, agents: Collection[str], owners: Mapping[int, str]) -> list[int]:
    """Free partitions that `me` should claim now, the dearest to it first.

    Agents that decide at the same moment from the same facts prefer different partitions (rendezvous hashing), so
    that they rarely try for the same one. `agents`: those that live and stay.
    """
    room = share_of(agents, owners).get(me, 0) - _owned(me, owners)
    free = [partition for partition, owner in owners.items() if not owner]
    return sorted(free, key=lambda partition: _weight(me, partition), reverse=True)[: max(0, room)]


def to_hand_over(me: str, agents: Collection[str], owners: Mapping[int, str]) -> list[int]:
    """Partitions that `me` should hand over, so that others reach their share. As few as possible, none without need.

    An agent that is not among `agents` (it leaves) hands over all it has.
    """
    surplus = _owned(me, owners) - share_of(agents, owners).get(me, 0)
    mine = [partition for partition, owner in owners.items() if owner == me]
    return sorted(mine, key=lambda partition: _weight(me, partition))[: max(0, surplus)]


def _owned(agent: str, owners: Mapping[int, str]) -> int:
    return sum(owner == agent for owner in owners.values())


def _weight(agent: str, partition: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{agent} {partition}".encode())
