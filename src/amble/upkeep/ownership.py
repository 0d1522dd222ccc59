"""Which partitions this agent owns: claimed, renewed, handed over when others need their share, left at the end.

Nothing starts in a partition but under its epoch and within the trust window: counted on this machine's clock from the
moment the last renewal was sent, and shorter than the lease that the database then gave. Where renewals fail the window
ends by itself and with it every start; a renewal under the same epoch opens it again. A partition whose last owner did
not release it is claimed at once but starts nothing until that owner's last request must be over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from amble.domain.errors import StoreUnavailable
from amble.domain.partition import to_claim, to_hand_over
from amble.ports import Claimed, Clock, Partitions, Roster, Telemetry

# So much of a lease is not trusted: clocks do not run at quite the same pace, and a start takes a moment to leave.
MARGIN_SHARE = 0.1
# Renewals in the time of one lease: two may fail before the window closes.
RENEWALS_PER_LEASE = 3
# An agent that was silent for a whole lease does not know who else was: the database may have been away from all. Before
# it claims what has lapsed it gives the others so much of a lease to renew: no partition then changes hands, and nobody
# has to wait for the requests of an owner that lives.
PATIENCE_SHARE = 0.5
# The clock of a database that gained so much of a lease on our own since the last renewal was set, or is another one's
# after a failover: leases seem to have lapsed that have not.
CLOCK_JUMP_SHARE = 0.1
# After a renewal that was not answered the next one comes sooner.
RETRY_SHARE = 0.1


class Ground(Protocol):
    """What the rest of the agent does with a partition."""

    def begin(self, partition: int, epoch: int) -> None:
        """Take up what its last owner left, and lease. Its last owner can start nothing more, and nothing runs on."""
        ...

    def trust(self, partition: int, epoch: int, until_s: float) -> None:
        """Requests may start in it until `until_s` (monotonic)."""
        ...

    def rest(self, partition: int) -> None:
        """Lease nothing more in it; what is under way goes on."""
        ...

    def wake(self, partition: int) -> None:
        """Lease in it again."""
        ...

    def is_idle(self, partition: int) -> bool:
        """Whether no request and no page of it is under way here."""
        ...

    def lose(self, partition: int) -> None:
        """Start nothing more in it, now."""
        ...


@dataclass(slots=True)
class _Tenure:
    """One partition that is held. `begins_s`: when the last owner's requests are over (monotonic)."""

    epoch: int
    begins_s: float
    trusted_s: float
    begun: bool = False
    resting: bool = False


@dataclass(slots=True, kw_only=True)
class Ownership:
    """Call `tick` every so often (much more often than `ttl_s / 3`); `agent` must be a name that nobody else ever has.

    `hold_s`: the longest time that a request of this agent can last after its start was granted. Whoever claims a
    partition after it waits for that, or for its own when that is longer.
    """

    agent: str
    partitions: Partitions
    ground: Ground
    clock: Clock
    telemetry: Telemetry
    ttl_s: float
    hold_s: float
    roster: Roster | None = None
    _leaving: bool = False
    _held: dict[int, _Tenure] = field(default_factory=dict)
    # Released here, and not yet known to the store: partition -> epoch.
    _given_up: dict[int, int] = field(default_factory=dict)
    _due_s: float = float("-inf")
    _heard_s: float = float("-inf")
    _patient_until_s: float = float("-inf")
    # Per server: its clock at the last renewal that it answered, and when that was sent (monotonic).
    _clocks: dict[int, tuple[int, float]] = field(default_factory=dict)
    # When a clock was last found set ahead (monotonic): the lease of an owner may seem long over whose requests are not.
    _jumped_s: float = float("-inf")
    # When the lease of each partition is over by the clock as it was before that (monotonic).
    _leases_end_s: dict[int, float] = field(default_factory=dict)

    @property
    def held(self) -> Mapping[int, int]:
        """Partition -> epoch of what is held, waiting ones included."""
        return {partition: tenure.epoch for partition, tenure in self._held.items()}

    @property
    def waiting(self) -> list[int]:
        """Held partitions whose last owner's requests may still be under way."""
        return [partition for partition, tenure in self._held.items() if not tenure.begun]

    @property
    def silence_s(self) -> float:
        """How long ago the last renewal that was answered was sent."""
        return self.clock.monotonic_s() - self._heard_s

    def depart(self) -> None:
        """Claim nothing more, and hand over everything as it falls idle."""
        self._leaving = True
        self._due_s = float("-inf")
        for partition, tenure in self._held.items():
            self._rest(partition, tenure)

    async def tick(self) -> None:
        """Everything that is due now. Never raises StoreUnavailable."""
        try:
            if self.clock.monotonic_s() >= self._due_s:
                await self.once()
            else:
                self._begin_those_due()
                await self._release_idle()
        except StoreUnavailable as trouble:
            # The window is open still: many tries within it, and none in a hurry.
            self._due_s = min(self._due_s, self.clock.monotonic_s() + self.ttl_s * RETRY_SHARE)
            self.telemetry.event(
                "ownership.unanswered", detail=str(trouble), silent_s=round(self.silence_s, 1)
            )

    async def once(self) -> None:
        """Renew, learn who is there, lose what is lost, claim, hand over. Raises StoreUnavailable: nothing is known."""
        sent_s = self.clock.monotonic_s()
        self._due_s = sent_s + self.ttl_s / RENEWALS_PER_LEASE
        asked = self.held
        roster = await self.partitions.renew(self.agent, asked, self._ttl_ms, leaving=self._leaving)
        jumped = self._clock_jumped(roster, sent_s)
        if jumped or self.ttl_s < sent_s - self._heard_s < float("inf"):
            self._patient_until_s = sent_s + self.ttl_s * PATIENCE_SHARE
        self.roster, self._heard_s = roster, sent_s
        for partition in roster.lost:
            self._lose(partition, "lost")
        self._renewed(roster, sent_s, asked)
        self._begin_those_due()
        await self._release_idle()
        if not self._leaving:
            if sent_s >= self._patient_until_s:
                await self._claim(roster)
            self._hand_over(roster)

    async def leave(self) -> None:
        """Give up everything, now that no request is under way. What cannot be told lapses by itself."""
        self._leaving = True
        for partition, tenure in list(self._held.items()):
            self._rest(partition, tenure)
            self._give_up(partition, tenure)
        try:
            await self._release_idle()
            await self.partitions.leave(self.agent)
        except StoreUnavailable as trouble:
            self.telemetry.event(
                "ownership.unanswered", detail=str(trouble), silent_s=round(self.silence_s, 1)
            )

    # -- steps ------------------------------------------------------------------------------------------------

    @property
    def _ttl_ms(self) -> int:
        return int(self.ttl_s * 1000)

    def _until_s(self, sent_s: float, left_ms: int) -> float:
        return sent_s + min(self._ttl_ms, left_ms) / 1000 - self.ttl_s * MARGIN_SHARE

    def _renewed(self, roster: Roster, sent_s: float, asked: Mapping[int, int]) -> None:
        for line in roster.partitions:
            tenure = self._held.get(line.partition)
            ours = line.owner == self.agent and line.epoch == asked.get(line.partition)
            if tenure is None or not ours:
                continue
            # What the lease has left as the database told it: a row that could not be renewed just now has less.
            tenure.trusted_s = max(tenure.trusted_s, self._until_s(sent_s, line.lease_left_ms))
            if tenure.begun:
                self.ground.trust(line.partition, tenure.epoch, tenure.trusted_s)

    def _begin_those_due(self) -> None:
        now_s = self.clock.monotonic_s()
        for partition, tenure in self._held.items():
            # Never outside the window: it may be another agent's by now, whose requests nobody has waited for.
            if tenure.begun or tenure.resting or not tenure.begins_s <= now_s < tenure.trusted_s:
                continue
            tenure.begun = True
            self.telemetry.event("partition.begun", partition=partition, epoch=tenure.epoch)
            self.ground.trust(partition, tenure.epoch, tenure.trusted_s)
            self.ground.begin(partition, tenure.epoch)

    def _lose(self, partition: int, why: str) -> None:
        tenure = self._held.pop(partition, None)
        if tenure is not None:
            self.ground.lose(partition)
            self.telemetry.event(f"partition.{why}", partition=partition, epoch=tenure.epoch)

    async def _claim(self, roster: Roster) -> None:
        wanted = [
            p for p in to_claim(self.agent, self._agents(roster), self._owners(roster)) if p not in self._held
        ]
        # Who did not release what he had: of those only it is not known whether a request is under way.
        owners = {line.partition: line.owner for line in roster.partitions}
        sent_s = self.clock.monotonic_s()
        claimed = await self.partitions.claim(self.agent, wanted, self._ttl_ms, int(self.hold_s * 1000))
        heard_s = self.clock.monotonic_s()
        for item in claimed:
            self.telemetry.event(
                "partition.claimed", partition=item.partition, epoch=item.epoch, wait_ms=item.wait_ms
            )
            begins_s = heard_s + item.wait_ms / 1000
            if owners.get(item.partition):
                begins_s = max(begins_s, self._clear_s(item))
            self._held[item.partition] = _Tenure(item.epoch, begins_s, self._until_s(sent_s, self._ttl_ms))
        self._begin_those_due()

    def _clock_jumped(self, roster: Roster, sent_s: float) -> bool:
        """Whether the clock of a database is further ahead of ours than at the last renewal: wait for those that live."""
        now_s = self.clock.monotonic_s()
        jumps = []
        for number, clock_ms in roster.clocks_ms.items():
            last_ms, asked_s = self._clocks.get(number, (clock_ms, sent_s))
            ahead_s = (clock_ms - last_ms) / 1000 - (now_s - asked_s)
            if ahead_s > self.ttl_s * CLOCK_JUMP_SHARE:
                jumps.append(ahead_s)
            self._clocks[number] = clock_ms, sent_s
        if jumps:
            self._jumped_s = now_s
            for line in roster.partitions:
                end_s = now_s + line.lease_left_ms / 1000 + max(jumps)
                self._leases_end_s[line.partition] = max(self._leases_end_s.get(line.partition, end_s), end_s)
            self.telemetry.event("ownership.clock_jumped", ahead_s=round(max(jumps), 1))
        return bool(jumps)

    def _clear_s(self, item: Claimed) -> float:
        """When the requests of a silent owner are over whose lease a clock that was set ahead has ended before its time.

        What began at the end of its lease may last, by its own settings. A lease is taken for no shorter than ours: a
        database after a failover may not know of the last renewal.
        """
        end_s = max(self._jumped_s + self.ttl_s, self._leases_end_s.get(item.partition, float("-inf")))
        return end_s + max(self.hold_s, item.hold_ms / 1000)

    def _hand_over(self, roster: Roster) -> None:
        giving = set(to_hand_over(self.agent, self._agents(roster), self._owners(roster)))
        # An operator moves it to another server: that waits for us.
        giving.update(line.partition for line in roster.partitions if line.moving)
        for partition, tenure in self._held.items():
            if partition in giving:
                self._rest(partition, tenure)
            elif tenure.resting:
                tenure.resting = False
                self.ground.wake(partition)

    def _rest(self, partition: int, tenure: _Tenure) -> None:
        if not tenure.resting:
            tenure.resting = True
            self.ground.rest(partition)

    async def _release_idle(self) -> None:
        """Release what is to be handed over and has nothing under way."""
        now_s = self.clock.monotonic_s()
        for partition, tenure in list(self._held.items()):
            if tenure.resting and tenure.begins_s <= now_s and self.ground.is_idle(partition):
                self._give_up(partition, tenure)
        if self._given_up:
            # Repeated when it was not answered; under an epoch that is over by then it changes nothing.
            await self.partitions.release(self.agent, self._given_up)
            self._given_up = {}

    def _give_up(self, partition: int, tenure: _Tenure) -> None:
        self._lose(partition, "released")
        # One whose last owner's requests may still be under way must not look as if there were none: it lapses.
        if tenure.begins_s <= self.clock.monotonic_s():
            self._given_up[partition] = tenure.epoch

    # -- facts ------------------------------------------------------------------------------------------------

    def _agents(self, roster: Roster) -> set[str]:
        staying = {line.agent for line in roster.agents if line.alive and not line.leaving}
        return staying | {self.agent}

    def _owners(self, roster: Roster) -> dict[int, str]:
        """Who owns each partition that may be owned, as of the last renewal and what was given up since."""
        owners = {
            line.partition: line.owner if line.lease_left_ms > 0 else ""
            for line in roster.partitions
            if not line.moving
        }
        for partition in owners:
            if owners[partition] == self.agent and partition not in self._held:
                # Given up since; or claimed by a call whose answer was lost, and then it lapses.
                owners[partition] = "nobody in particular"
        return owners
