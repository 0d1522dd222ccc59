"""One frontier out of many: `Shards` is ports.Frontier over the handles of the partitions that this agent holds.

A call goes where its key, cursor or ask says; leases are asked of all partitions that may have something due, in fair
parts. Partitions come (`add`), rest (nothing more is leased, everything else goes on), and go (`drop`) while the crawl
runs. Knows handles only, not what stores them: one server, several, or a SQLite file for each.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from amble.domain.attempt import Lease
from amble.domain.errors import StoreBroken, StoreUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.frontier import (
    AdmitBatch,
    AdmitReport,
    AdoptAsk,
    Applied,
    Complete,
    DrainAsk,
    DrainReply,
    DropParcels,
    Exclude,
    LeaseAsk,
    LeaseReply,
    Parcel,
    ParcelAsk,
    ParseStrike,
    PutBack,
    RecordFailed,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    ReserveOutcome,
    ReserveReply,
    Resumable,
    Takeover,
    TakeoverAsk,
)
from amble.ports import Clock, Frontier

# A partition whose rows nobody here has touched is looked at this often: others may have put something into it.
LOOK_EVERY_S = 1.0
# Sweeps of lapsed leases go round, so many partitions at a time: late by some seconds they do no harm.
SWEEPS_AT_ONCE = 8


@dataclass(slots=True)
class Shard:
    """One partition that is held: its handle, its epoch, and what its last lease told.

    `changed`: something happened there since it was asked. `due_s`: when it must be asked anyway (monotonic).
    `fenced`: the store has said that the epoch is not current, or that its lease has lapsed.
    """

    partition: int
    frontier: Frontier
    epoch: int
    resting: bool = False
    fenced: bool = False
    changed: bool = True
    due_s: float = -math.inf
    wake_s: float = math.inf
    last: LeaseReply | None = None

    def heard(self, reply: LeaseReply, asked: int, now_s: float) -> None:
        """Take in what a lease of `asked` has told."""
        self.last = reply
        self.changed = self.changed or len(reply.leases) >= asked
        wake_ms = reply.next_wake_ms
        self.wake_s = math.inf if wake_ms is None else now_s + max(0, wake_ms - reply.now_ms) / 1000
        self.due_s = min(self.wake_s, now_s + LOOK_EVERY_S)

    def is_due(self, now_s: float) -> bool:
        """Whether asking it may find something."""
        return not (self.resting or self.fenced) and (self.changed or now_s >= self.due_s)

    @property
    def spent(self) -> int:
        """Pages that count against a budget, those under way included."""
        return 0 if self.last is None else self.last.pages + self.last.in_flight


@dataclass(slots=True)
class Shards:
    """See the head of this file. Use it from one event loop.

    `on_fenced` hears of a partition whose epoch is not current any more. Where `may_start` says no, nothing is leased.
    `shared`: one store has them all, so that one handle knows the bodies of all, and a page budget counts over all. The handles belong to whoever added them, except that `close` closes those that are held then.
    """

    clock: Clock
    on_fenced: Callable[[int], None] = lambda _: None
    may_start: Callable[[int], bool] = lambda _: True
    shared: bool = True
    _held: dict[int, Shard] = field(default_factory=dict)
    _retired: dict[int, Frontier] = field(default_factory=dict)
    _turn: int = 0
    _swept: int = 0
    _now_ms: int = 0

    # -- which partitions -------------------------------------------------------------------------------------

    def add(self, partition: int, frontier: Frontier, epoch: int) -> None:
        """`partition` is held under `epoch`, and leased from now on."""
        self._retired.pop(partition, None)
        self._held[partition] = Shard(partition, frontier, epoch)

    def rest(self, partition: int) -> None:
        """Lease nothing more in `partition`. What is under way there goes on."""
        if (shard := self._held.get(partition)) is not None:
            shard.resting = True

    def wake(self, partition: int) -> None:
        """Lease in `partition` again."""
        if (shard := self._held.get(partition)) is not None:
            shard.resting, shard.changed = False, True

    def renewed(self, partition: int, epoch: int) -> None:
        """The store has confirmed `partition` under `epoch`: where it was fenced, it is leased again."""
        shard = self._held.get(partition)
        if shard is not None and shard.fenced and shard.epoch == epoch:
            shard.fenced, shard.changed = False, True

    def retire(self, partition: int) -> None:
        """Hold `partition` no longer, but pass on what still comes for it: its store knows what is stale."""
        shard = self._held.pop(partition, None)
        if shard is not None:
            self._retired[partition] = shard.frontier

    def drop(self, partition: int) -> Frontier | None:
        """Forget `partition` and return its handle. What still comes for it is answered as stale."""
        frontier = self.handle(partition)
        self._held.pop(partition, None)
        self._retired.pop(partition, None)
        return frontier

    def touch(self, partition: int) -> None:
        """Something happened in `partition` that may have made an origin due."""
        if (shard := self._held.get(partition)) is not None:
            shard.changed = True

    @property
    def held(self) -> dict[int, int]:
        """Partition -> epoch of everything that is held, resting or not."""
        return {shard.partition: shard.epoch for shard in self._held.values()}

    @property
    def working(self) -> dict[int, int]:
        """The same of those where something is under way, as far as is known."""
        return {
            shard.partition: shard.epoch
            for shard in self._held.values()
            if shard.last is None or shard.last.in_flight
        }

    @property
    def expecting(self) -> dict[int, int]:
        """The same of those where candidates are on their way to or from another partition, as far as is known."""
        return {
            shard.partition: shard.epoch
            for shard in self._held.values()
            if shard.last is None or shard.last.forwarded
        }

    def handle(self, partition: int) -> Frontier | None:
        """The handle of a partition that is or was held."""
        shard = self._held.get(partition)
        return self._retired.get(partition) if shard is None else shard.frontier

    # -- leases -----------------------------------------------------------------------------------------------

    async def lease(self, ask: LeaseAsk) -> LeaseReply:
        """See ports.Frontier. `ask.partition` and `ask.epoch` are of no account; totals are those of what is held."""
        leases: list[Lease] = []
        rotated = self._rotated()
        # The second round gives what some have left over to those that have more.
        for _ in range(2):
            room = ask.count - len(leases)
            now_s = self.clock.monotonic_s()
            due = [shard for shard in rotated if self._is_due(shard, now_s)][:room]
            if not due:
                break
            answers = await self._ask(ask, due, room)
            leases += [
                lease for answer in answers if isinstance(answer, LeaseReply) for lease in answer.leases
            ]
            troubles = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
            # What others have leased must not be lost because one of them cannot answer.
            if len(troubles) == len(answers) and not leases:
                raise troubles[0]
        return self._merged(leases)

    def _rotated(self) -> list[Shard]:
        shards = list(self._held.values())
        if not shards:
            return []
        self._turn = (self._turn + 1) % len(shards)
        return shards[self._turn :] + shards[: self._turn]

    def _is_due(self, shard: Shard, now_s: float) -> bool:
        return shard.is_due(now_s) and self.may_start(shard.partition)

    async def _ask(
        self, ask: LeaseAsk, due: Sequence[Shard], room: int
    ) -> Sequence[LeaseReply | StoreUnavailable]:
        share, more = divmod(room, len(due))
        asks = [(shard, share + (place < more)) for place, shard in enumerate(due)]
        if ask.pages_max is not None and not self.shared:
            # One after the other, because each has what the others leave of the budget.
            return [await self._answer(ask, shard, count) for shard, count in asks]
        return await asyncio.gather(*(self._answer(ask, shard, count) for shard, count in asks))

    async def _answer(self, ask: LeaseAsk, shard: Shard, count: int) -> LeaseReply | StoreUnavailable:
        pages_max, divided = ask.pages_max, False
        if pages_max is not None and not self.shared:
            divided = True
            # One that has not yet told what it has spent is first asked for nothing.
            known = all(other.last is not None for other in self._held.values())
            others = sum(other.spent for other in self._held.values() if other is not shard)
            pages_max = max(0, pages_max - others) if known else 0
        shard.changed = divided and shard.last is None
        try:
            reply = await shard.frontier.lease(
                replace(ask, partition=shard.partition, epoch=shard.epoch, count=count, pages_max=pages_max)
            )
        except StoreUnavailable as trouble:
            shard.due_s = self.clock.monotonic_s() + LOOK_EVERY_S
            return trouble
        shard.heard(reply, count, self.clock.monotonic_s())
        self._now_ms = reply.now_ms
        if reply.fenced:
            shard.fenced = True
            self.on_fenced(shard.partition)
        return reply

    def _merged(self, leases: list[Lease]) -> LeaseReply:
        now_s = self.clock.monotonic_s()
        told = [shard.last for shard in self._held.values() if shard.last is not None]
        active = [
            s for s in self._held.values() if not (s.resting or s.fenced) and self.may_start(s.partition)
        ]
        # A partition with nothing queued is not bound by a budget, and does not keep one from having been spent.
        bound = [
            s.last is not None and s.last.budget_spent for s in active if s.last is None or s.last.queued
        ]
        wake_s = min((shard.wake_s for shard in active), default=math.inf)
        if any(self._is_due(shard, now_s) for shard in active):
            wake_s = now_s
        return LeaseReply(
            leases=leases,
            now_ms=self._now_ms,
            next_wake_ms=None if wake_s == math.inf else self._now_ms + max(0, int((wake_s - now_s) * 1000)),
            queued=sum(reply.queued for reply in told),
            in_flight=sum(reply.in_flight for reply in told),
            open_manifests=sum(reply.open_manifests for reply in told),
            pages=sum(reply.pages for reply in told),
            budget_spent=bool(bound) and all(bound),
            unparsed=sum(reply.unparsed for reply in told),
            forwarded=sum(reply.forwarded for reply in told),
        )

    # -- by key -----------------------------------------------------------------------------------------------

    async def reserve(self, ask: ReserveAsk) -> ReserveReply:
        """See ports.Frontier. Of a partition that is not held: fenced."""
        frontier = self.handle(ask.key.partition)
        if frontier is None:
            return ReserveReply(ReserveOutcome.FENCED, 0, self._now_ms, 0)
        return await frontier.reserve(ask)

    async def put_back(self, item: PutBack) -> Applied:
        """See ports.Frontier."""
        frontier = self.handle(item.key.partition)
        applied = Applied.STALE if frontier is None else await frontier.put_back(item)
        self.touch(item.key.partition)
        return applied

    async def exclude(self, item: Exclude) -> Applied:
        """See ports.Frontier."""
        frontier = self.handle(item.key.partition)
        applied = Applied.STALE if frontier is None else await frontier.exclude(item)
        self.touch(item.key.partition)
        return applied

    async def record_fetched(self, item: RecordFetched) -> Applied:
        """See ports.Frontier."""
        frontier = self.handle(item.key.partition)
        applied = Applied.STALE if frontier is None else await frontier.record_fetched(item)
        self.touch(item.key.partition)
        return applied

    async def record_failed(self, item: RecordFailed) -> Applied:
        """See ports.Frontier."""
        frontier = self.handle(item.key.partition)
        applied = Applied.STALE if frontier is None else await frontier.record_failed(item)
        self.touch(item.key.partition)
        return applied

    async def record_parsed(self, item: RecordParsed) -> Applied:
        """See ports.Frontier."""
        frontier = self.handle(item.key.partition)
        return Applied.STALE if frontier is None else await frontier.record_parsed(item)

    async def complete(self, item: Complete) -> Applied:
        """See ports.Frontier."""
        frontier = self.handle(item.key.partition)
        applied = Applied.STALE if frontier is None else await frontier.complete(item)
        self.touch(item.key.partition)
        return applied

    async def parse_strike(self, item: ParseStrike) -> Applied:
        """See ports.Frontier."""
        frontier = self.handle(item.key.partition)
        applied = Applied.STALE if frontier is None else await frontier.parse_strike(item)
        self.touch(item.key.partition)
        return applied

    # -- admission, and what crosses --------------------------------------------------------------------------

    async def admit(self, batch: AdmitBatch) -> AdmitReport:
        """See ports.Frontier. Without a cursor any partition that is held passes the candidates on.

        Raises StoreUnavailable while none is held.
        """
        if batch.cursor is not None:
            partition = batch.cursor.manifest.partition
            frontier = self.handle(partition)
            if frontier is None:
                return AdmitReport(Applied.STALE, b"")
        else:
            shard = self._held.get(batch.partition) or next(iter(self._held.values()), None)
            if shard is None:
                raise StoreUnavailable("no partition is held just now")
            partition, frontier = shard.partition, shard.frontier
        report = await frontier.admit(replace(batch, partition=partition))
        self.touch(partition)
        return report

    async def drain(self, ask: DrainAsk) -> DrainReply:
        """See ports.Frontier."""
        frontier = self.handle(ask.partition)
        if frontier is None:
            return DrainReply(0, 0, 0)
        reply = await frontier.drain(ask)
        if reply.admitted:
            self.touch(ask.partition)
        return reply

    async def parcels(self, ask: ParcelAsk) -> list[Parcel]:
        """See ports.Frontier."""
        frontier = self.handle(ask.partition)
        return [] if frontier is None else await frontier.parcels(ask)

    async def deliver(self, parcels: list[Parcel]) -> Applied:
        """See ports.Frontier. One commit for each destination."""
        destinations = sorted({parcel.destination for parcel in parcels})
        for destination in destinations:
            frontier = self.handle(destination) or self._any()
            own = [parcel for parcel in parcels if parcel.destination == destination]
            if frontier is None or await frontier.deliver(own) == Applied.STALE:
                return Applied.STALE
            self.touch(destination)
        return Applied.APPLIED

    async def drop_parcels(self, item: DropParcels) -> Applied:
        """See ports.Frontier."""
        frontier = self.handle(item.partition)
        return Applied.STALE if frontier is None else await frontier.drop_parcels(item)

    def _any(self) -> Frontier | None:
        return next((shard.frontier for shard in self._held.values()), None)

    # -- of all -----------------------------------------------------------------------------------------------

    async def take_over(self, ask: TakeoverAsk) -> Takeover:
        """See ports.Frontier. Raises StoreBroken when the partition was not added."""
        frontier = self.handle(ask.partition)
        if frontier is None:
            raise StoreBroken(f"partition {ask.partition} is not held here")
        return await frontier.take_over(ask)

    async def adopt(self, ask: AdoptAsk) -> list[Resumable]:
        """See ports.Frontier. Of any partition: of one that is held after the other, until there are enough."""
        if ask.partition is not None:
            frontier = self.handle(ask.partition)
            return [] if frontier is None else await frontier.adopt(ask)
        found: list[Resumable] = []
        for shard in list(self._held.values()):
            if len(found) < ask.count:
                rest = replace(
                    ask, partition=shard.partition, epoch=shard.epoch, count=ask.count - len(found)
                )
                found += await shard.frontier.adopt(rest)
        return found

    async def find_body(self, digest: bytes) -> BodyRef | None:
        """See ports.Frontier."""
        handles: Iterable[Frontier] = [shard.frontier for shard in self._held.values()]
        for frontier in list(handles)[:1] if self.shared else handles:
            ref = await frontier.find_body(digest)
            if ref is not None:
                return ref
        return None

    async def expire(self, limit: int) -> int:
        """See ports.Frontier. A few partitions at a time, going round."""
        shards = list(self._held.values())
        if not shards:
            return 0
        start = self._swept % len(shards)
        turn = (shards[start:] + shards[:start])[:SWEEPS_AT_ONCE]
        self._swept = start + len(turn)
        lapsed = 0
        for shard in turn:
            count = await shard.frontier.expire(limit)
            if count:
                shard.changed = True
            lapsed += count
        return lapsed

    async def close(self) -> None:
        """See ports.Frontier: closes every handle that is held."""
        handles = [shard.frontier for shard in self._held.values()]
        self._held.clear()
        for frontier in handles:
            await frontier.close()


__all__ = ["Shard", "Shards"]
