"""Lapsed leases go back to the queue, and their slots with them.

A lease is held at least as long as the longest request it may have started, so a slot that is freed here belongs to no
socket any more, even if the worker that held it is only paused.
"""

from __future__ import annotations

from dataclasses import dataclass

from amble.ports import Frontier, Telemetry

BATCH_MAX = 500


@dataclass(frozen=True, slots=True)
class Expiry:
    """One sweep at a time."""

    frontier: Frontier
    telemetry: Telemetry

    async def once(self) -> int:
        """Return lapsed leases; how many there were."""
        lapsed = await self.frontier.expire(BATCH_MAX)
        if lapsed:
            self.telemetry.event("lease.lapsed", count=lapsed)
        return lapsed
