"""The scheduler: asks the frontier for due work in batches, keeps a clock of the store, knows when to ask again.

Which URL is next is decided in the frontier's own transaction (due origin first, best class within it, robots first).
Here is only the pace: how many to ask for, and how long to wait when nothing is due.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from amble.domain.frontier import LeaseAsk, LeaseReply
from amble.domain.policy import Policy
from amble.ports import Clock, Frontier

# A lease that is not reserved within this time lapses; the gate needs DNS at most, so a minute is generous.
LEASE_TTL_MS = 120_000
# Asking more often than this finds little more and costs a transaction each time.
ASK_EVERY_S = 0.008
# The longest sleep without a reason: an upper bound on how late a missed wake-up can be noticed.
SLEEP_S_MAX = 1.0


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """Leases in batches. `kick` says that something changed which may have made an origin due."""

    frontier: Frontier
    clock: Clock
    policy: Policy
    epoch: int
    worker: int = 1
    sleep_s_max: float = SLEEP_S_MAX
    last: LeaseReply | None = None
    _kick: asyncio.Event = field(default_factory=asyncio.Event)
    _asked_s: float = 0.0
    _heard_s: float = 0.0

    def kick(self) -> None:
        """An origin may have become due: ask again soon."""
        self._kick.set()

    async def lease(self, count: int, *, pages: bool = True) -> LeaseReply:
        """Up to `count` leases. `pages` False: of robots.txt only, and to hear how things stand."""
        assert count > 0
        self._kick.clear()
        self._asked_s = self.clock.monotonic_s()
        self.last = await self.frontier.lease(
            LeaseAsk(
                epoch=self.epoch,
                worker=self.worker,
                count=count,
                ttl_ms=LEASE_TTL_MS,
                pages_max=self.policy.budget.pages_max if pages else 0,
                robots_obey=self.policy.robots.obey,
            )
        )
        self._heard_s = self.clock.monotonic_s()
        return self.last

    def store_now_ms(self) -> int:
        """The store's clock, as far as the last lease told it."""
        if self.last is None:
            return 0
        return self.last.now_ms + int((self.clock.monotonic_s() - self._heard_s) * 1000)

    async def wait(self) -> None:
        """Until the next origin is due or something changed; at least `ASK_EVERY_S` since the last ask."""
        wait_s = self.sleep_s_max
        # Once the page budget is spent only the end of a page under way changes anything, which kicks.
        if self.last is not None and self.last.next_wake_ms is not None and not self.last.budget_spent:
            wait_s = min(wait_s, max(0.0, (self.last.next_wake_ms - self.last.now_ms) / 1000))
        if wait_s > 0 and not self._kick.is_set():
            try:
                async with asyncio.timeout(wait_s):
                    await self._kick.wait()
            except TimeoutError:
                pass
        rest_s = ASK_EVERY_S - (self.clock.monotonic_s() - self._asked_s)
        if rest_s > 0:
            await self.clock.sleep(rest_s)
