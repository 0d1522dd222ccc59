"""ports.Frontier in terms of one method: how each call becomes an operation. Shared by both ways to run the store."""

from __future__ import annotations

from typing import Any

from amble.adapters.sql import messages
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
    OriginOrder,
    Parcel,
    ParcelAsk,
    ParseStrike,
    PutBack,
    RecordFailed,
    RecordFetched,
    RecordParsed,
    RequeueOrder,
    ReserveAsk,
    ReserveReply,
    Resumable,
    Takeover,
    TakeoverAsk,
)


class FrontierCalls:
    """Each method's promise stands in ports.Frontier, but for the operators' orders, which have their own."""

    async def _call(self, operation: messages.AnyOperation) -> Any:
        """Apply one operation durably; its reply. Raises StoreUnavailable, StoreBroken."""
        raise NotImplementedError

    async def take_over(self, ask: TakeoverAsk) -> Takeover:
        """See ports.Frontier.take_over."""
        reply: Takeover = await self._call(messages.TakeOver(ask))
        return reply

    async def admit(self, batch: AdmitBatch) -> AdmitReport:
        """See ports.Frontier.admit."""
        reply: AdmitReport = await self._call(messages.Admit(batch))
        return reply

    async def lease(self, ask: LeaseAsk) -> LeaseReply:
        """See ports.Frontier.lease."""
        reply: LeaseReply = await self._call(messages.TakeLease(ask))
        return reply

    async def reserve(self, ask: ReserveAsk) -> ReserveReply:
        """See ports.Frontier.reserve."""
        reply: ReserveReply = await self._call(messages.Reserve(ask))
        return reply

    async def put_back(self, item: PutBack) -> Applied:
        """See ports.Frontier.put_back."""
        return Applied(await self._call(messages.GiveBack(item)))

    async def exclude(self, item: Exclude) -> Applied:
        """See ports.Frontier.exclude."""
        return Applied(await self._call(messages.Leave(item)))

    async def record_fetched(self, item: RecordFetched) -> Applied:
        """See ports.Frontier.record_fetched."""
        return Applied(await self._call(messages.KeepFetched(item)))

    async def record_failed(self, item: RecordFailed) -> Applied:
        """See ports.Frontier.record_failed."""
        return Applied(await self._call(messages.KeepFailed(item)))

    async def record_parsed(self, item: RecordParsed) -> Applied:
        """See ports.Frontier.record_parsed."""
        return Applied(await self._call(messages.KeepParsed(item)))

    async def complete(self, item: Complete) -> Applied:
        """See ports.Frontier.complete."""
        return Applied(await self._call(messages.Finish(item)))

    async def parse_strike(self, item: ParseStrike) -> Applied:
        """See ports.Frontier.parse_strike."""
        return Applied(await self._call(messages.Strike(item)))

    async def find_body(self, digest: bytes) -> BodyRef | None:
        """See ports.Frontier.find_body."""
        reply: BodyRef | None = await self._call(messages.FindBody(digest))
        return reply

    async def find_near(self, fingerprint: int) -> str | None:
        """The URL of a published document of this file that is nearly the same text: see Complete.near."""
        reply: str | None = await self._call(messages.FindNear(fingerprint))
        return reply

    async def expire(self, limit: int) -> int:
        """See ports.Frontier.expire."""
        reply: int = await self._call(messages.Expire(limit))
        return reply

    async def adopt(self, ask: AdoptAsk) -> list[Resumable]:
        """See ports.Frontier.adopt."""
        reply: list[Resumable] = await self._call(messages.Adopt(ask))
        return reply

    async def drain(self, ask: DrainAsk) -> DrainReply:
        """See ports.Frontier.drain."""
        reply: DrainReply = await self._call(messages.Drain(ask))
        return reply

    async def parcels(self, ask: ParcelAsk) -> list[Parcel]:
        """See ports.Frontier.parcels."""
        reply: list[Parcel] = await self._call(messages.Parcels(ask))
        return reply

    async def deliver(self, parcels: list[Parcel]) -> Applied:
        """See ports.Frontier.deliver."""
        return Applied(await self._call(messages.Deliver(parcels)))

    async def drop_parcels(self, item: DropParcels) -> Applied:
        """See ports.Frontier.drop_parcels."""
        return Applied(await self._call(messages.DropParcels(item)))

    async def visit(self, ask: ReserveAsk) -> ReserveReply:
        """A start at an origin of this file for a lease of another one: see Gatekeeping.visit."""
        reply: ReserveReply = await self._call(messages.Visit(ask))
        return reply

    async def set_origin(self, order: OriginOrder) -> Applied:
        """Pause, resume, or set the limits of an origin; STALE when nothing would change. Durable, audited."""
        return Applied(await self._call(messages.SetOrigin(order)))

    async def requeue(self, order: RequeueOrder) -> int:
        """Queue finished URLs again; how many. Durable, audited."""
        reply: int = await self._call(messages.Requeue(order))
        return reply
