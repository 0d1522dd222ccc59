"""ports.Partitions over several servers: one roster, and each partition claimed under the clock of its own server.

A server that is away takes its partitions out of service: they are told with the reason, are not renewed (so that the
trust in them ends by itself), and come back with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from amble.adapters.postgres.partitions import PostgresPartitions
from amble.adapters.postgres.placement import read_map
from amble.adapters.postgres.servers import Places
from amble.adapters.postgres.servers_link import Link
from amble.domain.decision import Reason
from amble.domain.errors import StoreUnavailable
from amble.domain.partition import AgentLine, PartitionLine
from amble.ports import Claimed, Roster

T = TypeVar("T")


class ServersPartitions:
    """ports.Partitions. `places` learns where partitions live from every renewal."""

    def __init__(self, dsns: Sequence[str], places: Places | None = None) -> None:
        """`dsns`: the servers in the order of their numbers. Connects when first used."""
        self.places = places or Places()
        self._servers = [PostgresPartitions(dsn) for dsn in dsns]
        self._map = Link(dsns[0], "amble map")
        # Given up here, and not yet known to the server: number -> partition -> epoch.
        self._owed: dict[int, dict[int, int]] = {}

    async def renew(self, agent: str, holds: Mapping[int, int], ttl_ms: int, *, leaving: bool) -> Roster:
        """See ports.Partitions. Raises StoreUnavailable only when no server answers."""
        shares = self._shares(holds)
        rosters, troubles = await self._all(
            lambda number, server: server.renew(agent, shares[number], ttl_ms, leaving=leaving)
        )
        await self._pay(agent, set(rosters))
        return await self._merged(rosters, troubles)

    async def roster(self, ttl_ms: int) -> Roster:
        """See PostgresPartitions.roster."""
        rosters, troubles = await self._all(lambda _, server: server.roster(ttl_ms))
        return await self._merged(rosters, troubles)

    async def claim(self, agent: str, wanted: Sequence[int], ttl_ms: int, hold_ms: int) -> list[Claimed]:
        """See ports.Partitions. What is on a server that is away is not claimed."""
        groups: dict[int, list[int]] = {}
        for partition in wanted:
            number = self.places.of(partition)
            if number is not None:
                groups.setdefault(number, []).append(partition)
        if not groups:
            return []
        try:
            claims, _ = await self._all(
                lambda number, server: server.claim(agent, groups[number], ttl_ms, hold_ms), set(groups)
            )
        except StoreUnavailable:
            return []  # the next renewal tells which servers answer
        return [claimed for claim in claims.values() for claimed in claim]

    async def release(self, agent: str, holds: Mapping[int, int]) -> None:
        """See ports.Partitions. What a server that is away is not told is told when it is back, or lapses there."""
        for number, share in self._shares(holds).items():
            if share:
                self._owed[number] = self._owed.get(number, {}) | share
        await self._pay(agent, set(self._owed))

    async def _pay(self, agent: str, numbers: set[int]) -> None:
        for number in numbers & self._owed.keys():
            try:
                await self._servers[number].release(agent, self._owed[number])
            except StoreUnavailable:
                continue
            self._owed.pop(number)

    async def leave(self, agent: str) -> None:
        """See ports.Partitions."""
        await self._all(lambda _, server: server.leave(agent))

    async def seeds(self, known_bytes: int = -1) -> tuple[int, tuple[str, ...]] | None:
        """See PostgresPartitions.seeds: server 0 has them."""
        return await self._servers[0].seeds(known_bytes)

    async def take_turn(self, name: str, every_ms: int) -> bool:
        """See PostgresPartitions.take_turn: server 0 gives turns."""
        return await self._servers[0].take_turn(name, every_ms)

    async def close(self) -> None:
        """Let go of the connections."""
        for server in self._servers:
            await server.close()
        await self._map.close()

    def _shares(self, holds: Mapping[int, int]) -> dict[int, dict[int, int]]:
        shares: dict[int, dict[int, int]] = {number: {} for number in range(len(self._servers))}
        for partition, epoch in holds.items():
            number = self.places.of(partition)
            if number is not None:
                shares[number][partition] = epoch
        return shares

    async def _all(
        self, work: Callable[[int, PostgresPartitions], Awaitable[T]], numbers: set[int] | None = None
    ) -> tuple[dict[int, T], dict[int, str]]:
        """Answers and troubles by server. Raises StoreUnavailable when no server answers."""
        asked = range(len(self._servers)) if numbers is None else sorted(numbers)
        replies = await asyncio.gather(
            *(work(number, self._servers[number]) for number in asked), return_exceptions=True
        )
        answers: dict[int, T] = {}
        troubles: dict[int, str] = {}
        for number, reply in zip(asked, replies, strict=True):
            if isinstance(reply, StoreUnavailable):
                troubles[number] = str(reply)
            elif isinstance(reply, BaseException):
                raise reply
            else:
                answers[number] = reply
        if troubles and not answers:
            raise StoreUnavailable("; ".join(troubles.values()))
        return answers, troubles

    async def _merged(self, rosters: Mapping[int, Roster], troubles: Mapping[int, str]) -> Roster:
        if 0 not in troubles:
            try:
                self.places.map(await self._map.call(read_map))
            except StoreUnavailable:
                pass  # the map that was read before still tells most
        lines: dict[int, PartitionLine] = {}
        for number, roster in rosters.items():
            for line in roster.partitions:
                if not line.moving:
                    self.places.seen(line.partition, number)
                    lines[line.partition] = line
        # Of one that moves both servers have a row; the one where it was last known counts.
        for number, roster in rosters.items():
            for line in roster.partitions:
                if line.partition not in lines and self.places.of(line.partition) == number:
                    lines[line.partition] = line
        first = rosters.get(0) or next(iter(rosters.values()))
        away = {
            partition: f"{Reason.SERVER_AWAY}: server {number} is away: {troubles[number]}"
            for partition, number in self.places.known.items()
            if number in troubles and partition not in lines
        }
        return Roster(
            agents=_agents(rosters.values(), lines),
            partitions=[lines[partition] for partition in sorted(lines)],
            lost=sorted({lost for roster in rosters.values() for lost in roster.lost}),
            hashed=first.hashed,
            sites_apart=first.sites_apart,
            away=away,
            clocks_ms={
                number: now for number, roster in rosters.items() for now in roster.clocks_ms.values()
            },
        )


def _agents(rosters: Any, lines: Mapping[int, PartitionLine]) -> list[AgentLine]:
    """Each agent once, as the server knows it that heard of it last."""
    agents: dict[str, AgentLine] = {}
    for roster in rosters:
        for line in roster.agents:
            known = agents.get(line.agent)
            if known is None or line.seen_ms_ago < known.seen_ms_ago:
                agents[line.agent] = line
    owned = [line.owner for line in lines.values()]
    return [replace(agents[name], partitions=owned.count(name)) for name in sorted(agents)]
