"""Links that cross partitions go from the outbox where they were found to the inbox where they belong, and are admitted.

Read, deliver, drop: in this order, and after a crash between any two of them simply again. The destination leaves out
what it has taken before, so a parcel is admitted once; it is dropped only when the destination has said that it has it,
so none is lost. An owner that has been replaced may still deliver what it had read: its successor's repeat is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from amble.domain.errors import StoreUnavailable
from amble.domain.frontier import Applied, DrainAsk, DropParcels, Parcel, ParcelAsk
from amble.ports import Frontier, Telemetry

# Parcels read at once. One is what a batch of links had for one destination: some hundred candidates at the most.
PARCELS_MAX = 64
# A destination that has not answered by then is away; its parcels wait, and nobody waits for it.
DELIVER_S_MAX = 15.0
# Candidates admitted in one commit.
DRAIN_MAX = 2_000


class Away(StrEnum):
    """Why the parcels for a destination wait."""

    NO_SERVER = "no_server"  # nobody knows where it lives, or it cannot be reached from here
    UNAVAILABLE = "unavailable"  # its store does not answer
    MOVED = "moved"  # it does not live where the map says


@dataclass(slots=True)
class Relayed:
    """What one round came to. `waiting`: destinations whose parcels wait, and why; `behind`: sources not reached."""

    parcels: int = 0
    candidates: int = 0
    waiting: dict[int, Away] = field(default_factory=dict)
    behind: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """One round at a time.

    `held`: the partitions that are owned here and their epochs. `source` is the frontier that has them all. `reach`
    gives the frontier in which a partition lives, whoever owns it; None where it is not known.
    """

    source: Frontier
    held: Callable[[], Mapping[int, int]]
    reach: Callable[[int], Frontier | None]
    telemetry: Telemetry
    parcels_max: int = PARCELS_MAX
    deliver_s_max: float = DELIVER_S_MAX

    async def once(self) -> Relayed:
        """Carry everything that waits and can be carried. Raises nothing that a store may expect to happen."""
        relayed = Relayed()
        for partition, epoch in dict(self.held()).items():
            try:
                await self._empty(partition, epoch, relayed)
            except StoreUnavailable as trouble:
                relayed.behind.append(partition)
                self.telemetry.event("relay.unanswered", partition=partition, detail=str(trouble))
        return relayed

    async def _empty(self, partition: int, epoch: int, relayed: Relayed) -> None:
        while True:
            ask = ParcelAsk(partition, epoch, self.parcels_max, sorted(relayed.waiting))
            parcels = await self.source.parcels(ask)
            if not parcels:
                return
            taken = await self._deliver(parcels, relayed)
            if taken:
                applied = await self.source.drop_parcels(DropParcels(partition, epoch, taken))
                if applied == Applied.STALE:
                    return  # the next owner goes on

    async def _deliver(self, parcels: list[Parcel], relayed: Relayed) -> list[tuple[int, int]]:
        """(destination, highest number) of what was taken; the others are told as waiting, so the next read is short."""
        groups: dict[int, list[Parcel]] = {}
        for parcel in parcels:
            groups.setdefault(parcel.destination, []).append(parcel)
        answers = await asyncio.gather(*(self._hand(*group) for group in groups.items()))
        taken: list[tuple[int, int]] = []
        for (destination, group), away in zip(groups.items(), answers, strict=True):
            if away is not None:
                relayed.waiting[destination] = away
                self.telemetry.event("relay.away", destination=destination, reason=away.value)
                continue
            relayed.parcels += len(group)
            relayed.candidates += sum(len(parcel.candidates) for parcel in group)
            taken.append((destination, group[-1].number))
        return taken

    async def _hand(self, destination: int, parcels: list[Parcel]) -> Away | None:
        """Deliver to one destination; None when it has them. What was not answered may have arrived all the same."""
        frontier = self.reach(destination)
        if frontier is None:
            return Away.NO_SERVER
        try:
            async with asyncio.timeout(self.deliver_s_max):
                applied = await frontier.deliver(parcels)
        except (StoreUnavailable, TimeoutError):
            return Away.UNAVAILABLE
        return None if applied == Applied.APPLIED else Away.MOVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Admits what has arrived for the partitions that are owned here."""

    frontier: Frontier
    held: Callable[[], Mapping[int, int]]
    drain_max: int = DRAIN_MAX

    async def once(self) -> int:
        """Empty the inboxes; how many candidates were new. Raises StoreUnavailable when one of them cannot be read.

        It is told after the others were emptied: a server that is away must not keep those of other servers waiting.
        """
        admitted, trouble = 0, None
        for partition, epoch in dict(self.held()).items():
            try:
                admitted += await self._empty(partition, epoch)
            except StoreUnavailable as error:
                trouble = error
        if trouble is not None:
            raise trouble
        return admitted

    async def _empty(self, partition: int, epoch: int) -> int:
        admitted = 0
        while True:
            reply = await self.frontier.drain(DrainAsk(partition, epoch, self.drain_max))
            admitted += reply.admitted
            if not reply.left or not reply.taken:
                return admitted
