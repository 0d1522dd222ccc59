"""One transaction for a batch of operations: read what they need, apply them in memory, write what changed.

Results come first, so that what they free can be reserved and leased in the same transaction; operations of one rank
keep the order of their calls. Leases come last, over what the others have written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from amble.adapters.postgres import admission, crossing, gatekeeping, orders, ownership, recording
from amble.adapters.postgres.books import Books, Ids, Membership
from amble.adapters.postgres.connection import Database
from amble.adapters.postgres.gather import Asked, Found, Gathering, read_origins, read_partitions
from amble.adapters.postgres.leasing import TOTALS, Leasing
from amble.adapters.postgres.statements import ORIGIN, URL, WORK
from amble.adapters.sql import messages as m
from amble.adapters.sql import tally
from amble.adapters.sql.identity import Slots
from amble.adapters.sql.settings import StoreSettings
from amble.domain.attempt import Lease
from amble.domain.frontier import DrainReply, LeaseReply

_RANKS: Final[dict[type[m.Operation], int]] = {
    m.Admit: 1,
    m.Drain: 1,
    m.Deliver: 1,
    m.Parcels: 2,
    m.DropParcels: 2,
    m.SetOrigin: 2,
    m.Requeue: 2,
    m.Expire: 3,
    m.TakeOver: 3,
    m.Adopt: 4,
    m.Reserve: 5,
    m.Visit: 5,
    m.TakeLease: 6,
}
# Ids are taken from the database so many at a time; what a crash loses of them is never missed.
IDS_AT_ONCE: Final = 256
# The decision log may be this much longer than its bound before it is cut, at most so many entries at a time.
PRUNE_EVERY: Final = 1000
PRUNED_MAX: Final = 10_000
# Rows that are held longer than they once were are looked at so many at a time.
REFRESHED_MAX: Final = 1000


@dataclass(slots=True)
class Carry:
    """What one transaction of a store leaves for its next; lost without harm when the store ends."""

    ids: Ids = field(default_factory=Ids)
    late: dict[int, int] = field(default_factory=dict)  # starts that began later than granted: origin -> ms
    near: bool = False  # the page budget is nearly spent
    undecided: int = 0  # entries of the decision log since it was last cut
    membership: Membership | None = None
    doubt: bool = False  # the last try met what its filter had ruled out, perhaps
    refreshed_s: float = -1e9


@dataclass(slots=True)
class Outcome:
    """What a transaction answers, and what it leaves, once it is committed."""

    replies: list[Any]
    wrote: bool
    now: int
    granted: list[int]
    near: bool | None
    decided: int
    pruned: bool
    added: list[tuple[int, int]]  # (partition, id) of new URLs


class Tick:
    """One transaction, from BEGIN to just before its end."""

    def __init__(
        self,
        database: Database,
        settings: StoreSettings,
        slots: Slots,
        token: Callable[[int], bytes],
        carry: Carry,
        asked: Sequence[Asked],
        *,
        lock: bool = False,
    ) -> None:
        """`lock`: others got in the way before, so rows are locked as they are read, in the order of their ids."""
        self._database = database
        self._carry = carry
        self._asked = asked
        self._books = Books(database, settings, slots, carry.ids, token, lock=lock)
        self._books.membership = None if carry.doubt else carry.membership
        self._leasing = Leasing(self._books, near=carry.near)
        self._found = Found()

    async def run(self, read_clock: Callable[[Database], Any], writer: int, number: int) -> Outcome:
        """Everything but the COMMIT. Raises what the database raises, Conflict, OperationRefused."""
        books = self._books
        await self._take_ids()
        await self._database.execute("BEGIN")
        await read_partitions(books, self._asked)
        books.now, books.term_now = await read_clock(self._database)
        await self._refresh()
        self._found = await Gathering(books, self._asked).gather()
        await self._settle()
        replies = await self._apply()
        await books.flush()
        leases = await self._lease()
        await self._answer(replies, leases)
        pruned = await self._prune()
        wrote = books.wrote or any(books.tally.values())
        if wrote:
            await books.finish(writer, number)
        near = self._leasing.was_near
        added = [(books.origin_of(url_id).partition, url_id) for url_id in books.added]
        return Outcome(replies, wrote, books.now, books.granted, near, books.decided, pruned, added)

    async def _take_ids(self) -> None:
        """As many origin ids as this batch could need. Outside of the transaction, so that nobody waits for it."""
        keys: set[str] = set()
        for _, operation in self._asked:
            match operation:
                case m.Admit():
                    keys.update(candidate.origin for candidate in operation.value.candidates)
                case m.Reserve() | m.Visit() | m.SetOrigin():
                    keys.add(operation.value.origin)
        drained = sum(operation.value.limit for _, operation in self._asked if isinstance(operation, m.Drain))
        wanted = len(keys) + max(0, drained)
        if self._carry.ids.left < wanted:
            row = await self._database.one(ORIGIN["take_ids"], wanted + IDS_AT_ONCE)
            if row is not None:
                self._carry.ids.refill(*row)

    async def _refresh(self) -> None:
        """Now and then, see that rows which are held for long are not looked at by every sweep."""
        sweeps = any(isinstance(operation, m.Expire | m.Adopt) for _, operation in self._asked)
        now_s = asyncio.get_running_loop().time()
        if sweeps and now_s - self._carry.refreshed_s >= 1.0:
            self._carry.refreshed_s = now_s
            count = await self._database.execute(URL["refresh_sweep"], self._books.now, REFRESHED_MAX)
            self._books.wrote |= count > 0

    async def _settle(self) -> None:
        late = self._carry.late
        missing = sorted(late.keys() - self._books.origins.keys())
        if missing:
            await read_origins(self._books, missing)
        gatekeeping.settle(self._books, late)

    # ---- applying

    async def _apply(self) -> list[Any]:
        replies: list[Any] = [None] * len(self._asked)
        ranked = sorted(range(len(self._asked)), key=lambda place: _RANKS.get(type(self._asked[place][1]), 0))
        for place in ranked:
            partition, operation = self._asked[place]
            if not isinstance(operation, m.TakeLease):
                replies[place] = await self._one(place, partition, operation)
        return replies

    async def _one(self, place: int, partition: int, operation: m.AnyOperation) -> Any:
        books, found = self._books, self._found
        plain = _RESULTS.get(type(operation))
        if plain is not None:
            return plain(books, operation.value)
        match operation:
            case m.Admit():
                return await admission.admit(books, partition, operation.value)
            case m.Drain():
                return await crossing.drain(books, operation.value, found.batches.get(place, []))
            case m.Deliver():
                return await crossing.deliver(books, operation.value)
            case m.Parcels():
                return await crossing.parcels(books, operation.value)
            case m.DropParcels():
                return await crossing.drop_parcels(books, operation.value)
            case m.Visit():
                return gatekeeping.visit(books, partition, operation.value)
            case m.SetOrigin():
                return orders.set_origin(books, partition, operation.value)
            case m.Requeue():
                rows = [books.urls[url_id] for url_id in found.chosen[place] if url_id in books.urls]
                return orders.requeue(books, partition, operation.value, rows)
            case m.Expire():
                return gatekeeping.expire(books, found.swept[place])
            case m.TakeOver():
                rows, opened = found.swept[place], found.opened[place]
                return ownership.take_over(books, partition, operation.value, rows, found.stored, opened)
            case m.Adopt():
                return ownership.adopt(books, operation.value, found.adoptable.get(place, []), found.stored)
            case _:
                raise TypeError(f"{type(operation).__name__} is not an operation of a store")

    async def _lease(self) -> dict[int, tuple[list[Lease], bool, bool]]:
        """(leases, budget spent, fenced) of each ask, by its place."""
        found = {}
        for place, (partition, operation) in enumerate(self._asked):
            if isinstance(operation, m.TakeLease):
                ask = operation.value
                if self._books.is_current(partition, ask.epoch):
                    found[place] = (*await self._leasing.lease(partition, ask), False)
                else:
                    found[place] = ([], False, True)
        return found

    # ---- answers that need to be counted last

    async def _answer(self, replies: list[Any], leases: Mapping[int, tuple[list[Lease], bool, bool]]) -> None:
        partitions = {self._asked[place][0] for place in leases}
        partitions |= {ask.partition for ask in self._drains().values()}
        if not partitions:
            return
        wanted = sorted(partitions)
        waiting = {row[0]: row[1:] for row in await self._database.fetch(WORK["waiting"], wanted)}
        for place, ask in self._drains().items():
            reply = replies[place]
            replies[place] = DrainReply(reply.taken, reply.admitted, waiting[ask.partition][0])
        if leases:
            wakes = dict(map(tuple, await self._database.fetch(ORIGIN["next_wake"], wanted)))
            totals = await self._totals(wanted)
            for place, told in leases.items():
                partition = self._asked[place][0]
                replies[place] = self._lease_reply(
                    *told, totals[partition], wakes[partition], sum(waiting[partition])
                )

    def _drains(self) -> dict[int, Any]:
        return {
            place: operation.value
            for place, (_, operation) in enumerate(self._asked)
            if isinstance(operation, m.Drain)
        }

    async def _totals(self, partitions: list[int]) -> dict[int, dict[str, int]]:
        """Counters as this transaction leaves them."""
        totals = {partition: dict.fromkeys(TOTALS, 0) for partition in partitions}
        for partition, name, value in await self._database.fetch(WORK["counters"], partitions, TOTALS):
            totals[partition][name] = value
        for (partition, name), amount in self._books.tally.items():
            if partition in totals and name in totals[partition]:
                totals[partition][name] += amount
        return totals

    def _lease_reply(
        self,
        leases: list[Lease],
        budget_spent: bool,  # noqa: FBT001
        fenced: bool,  # noqa: FBT001
        totals: Mapping[str, int],
        next_wake: int | None,
        forwarded: int,
    ) -> LeaseReply:
        leased, fetched, parsed = (totals[tally.STATES[state]] for state in (1, 2, 3))
        return LeaseReply(
            leases=leases,
            now_ms=self._books.now,
            next_wake_ms=next_wake,
            queued=totals[tally.QUEUED],
            in_flight=leased + fetched + parsed,
            open_manifests=totals[tally.MANIFESTS_OPEN],
            pages=totals[tally.PAGES],
            budget_spent=budget_spent and totals[tally.QUEUED] > 0,
            fenced=fenced,
            unparsed=fetched,
            forwarded=forwarded,
        )

    async def _prune(self) -> bool:
        books, bound = self._books, self._books.settings.decisions_max
        if not books.decided or self._carry.undecided + books.decided < min(PRUNE_EVERY, bound):
            return False
        await self._database.execute(WORK["prune_decisions"], bound, PRUNED_MAX)
        return True


_RESULTS: Final[dict[type[m.Operation], Callable[[Books, Any], Any]]] = {
    m.KeepFetched: recording.record_fetched,
    m.KeepFailed: recording.record_failed,
    m.GiveBack: gatekeeping.put_back,
    m.Leave: gatekeeping.exclude,
    m.KeepParsed: recording.record_parsed,
    m.Strike: recording.parse_strike,
    m.Finish: recording.complete,
    m.FindBody: recording.find_body,
    m.Reserve: gatekeeping.reserve,
}
