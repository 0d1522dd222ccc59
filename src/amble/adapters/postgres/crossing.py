"""Candidates that cross partitions: inboxes of those that live here, an outbox for those that live elsewhere.

Between partitions of one database a batch goes straight into the inbox, in the commit that found it. To another it
goes as a numbered parcel, which the destination takes once, however often it is delivered.
"""

from __future__ import annotations

from typing import Any

from msgspec.msgpack import Decoder, Encoder

from amble.adapters.postgres.admission import admit_here
from amble.adapters.postgres.books import Books
from amble.adapters.postgres.rows import columns
from amble.adapters.postgres.statements import WORK
from amble.domain.frontier import (
    Applied,
    Candidate,
    DrainAsk,
    DrainReply,
    DropParcels,
    Parcel,
    ParcelAsk,
    Verdict,
)

_encode = Encoder().encode
decode_candidates = Decoder(list[Candidate]).decode

# number, candidates, policy version: one batch of an inbox.
Batch = tuple[int, list[Candidate], int]


async def drain(books: Books, ask: DrainAsk, batches: list[Batch]) -> DrainReply:
    """See ports.Frontier.drain. `left` is filled in when everything is written."""
    if not books.is_current(ask.partition, ask.epoch):
        return DrainReply(0, 0, 0)
    room, admitted = ask.limit, 0
    emptied: list[int] = []
    for number, candidates, policy_version in batches:
        if room <= 0:
            break
        some, rest = candidates[:room], candidates[room:]
        verdicts = await admit_here(books, ask.partition, some, policy_version)
        admitted += verdicts.count(Verdict.ADMITTED)
        room -= len(some)
        if rest:
            await books.database.execute(
                WORK["shorten"], ask.partition, [number], [_encode(rest)], [len(rest)]
            )
        else:
            emptied.append(number)
    if room < ask.limit or emptied:
        books.wrote = True
        await books.database.execute(WORK["take_out"], ask.partition, emptied)
    return DrainReply(ask.limit - room, admitted, 0)


async def parcels(books: Books, ask: ParcelAsk) -> list[Parcel]:
    """See ports.Frontier.parcels."""
    if not books.is_current(ask.partition, ask.epoch):
        return []
    rows = await books.database.fetch(WORK["parcels"], ask.partition, max(0, ask.limit), list(ask.without))
    return [
        Parcel(source, destination, number, decode_candidates(packed), policy_version)
        for source, destination, number, packed, policy_version in rows
    ]


async def drop_parcels(books: Books, item: DropParcels) -> Applied:
    """See ports.Frontier.drop_parcels."""
    if not books.is_current(item.partition, item.epoch):
        return Applied.STALE
    if item.taken:
        books.wrote = True
        await books.database.execute(WORK["drop_parcels"], item.partition, *columns(list(item.taken)))
    return Applied.APPLIED


async def deliver(books: Books, delivered: list[Parcel]) -> Applied:
    """See ports.Frontier.deliver."""
    if any(parcel.destination not in books.here for parcel in delivered):
        return Applied.STALE
    pairs = sorted({(parcel.source, parcel.destination) for parcel in delivered})
    if not pairs:
        return Applied.APPLIED
    books.wrote = True
    await books.database.execute(WORK["know_sources"], *columns(pairs))
    rows = await books.database.fetch(WORK["taken"], *columns(pairs))
    marks: dict[tuple[int, int], int] = {
        (source, destination): number for source, destination, number in rows
    }
    new: list[tuple[Any, ...]] = []
    for parcel in sorted(delivered, key=lambda parcel: (parcel.source, parcel.number)):
        pair = (parcel.source, parcel.destination)
        if parcel.number > marks[pair]:
            marks[pair] = parcel.number
            new.append((parcel.destination, parcel.source, len(parcel.candidates), parcel.policy_version,
                        _encode(parcel.candidates)))  # fmt: skip
    for destination, source, size, policy_version, packed in new:
        if size:
            books.put_in(destination, source, size, policy_version, packed)
    if new:
        moved = [(*pair, number) for pair, number in sorted(marks.items())]
        await books.database.execute(WORK["write_taken"], *columns(moved))
    return Applied.APPLIED
