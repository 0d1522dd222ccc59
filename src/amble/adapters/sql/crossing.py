"""Links that cross partitions: a durable outbox where they were found, a durable inbox where they belong.

A parcel is in the outbox from the commit that found its links until the destination has said that it has it. There it
is left out when its number is not above the mark of its source, so that a relay may deliver it any number of times.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from msgspec.msgpack import Decoder, Encoder

from amble.adapters.sql import tally
from amble.adapters.sql.books import Books
from amble.adapters.sql.statements import load
from amble.domain.frontier import (
    AdmitBatch,
    Applied,
    Candidate,
    DrainAsk,
    DrainReply,
    DropParcels,
    Parcel,
    ParcelAsk,
    Verdict,
)

_PARCEL = load("parcel")
_SEND, _WAITING, _SENT, _DROP, _MARK, _SET_MARK, _RECEIVE, _NEXT, _TAKE, _EMPTY = (
    _PARCEL[name]
    for name in (
        "send",
        "waiting",
        "sent",
        "drop",
        "mark",
        "set_mark",
        "receive",
        "next",
        "take",
        "empty",
    )
)
_encode = Encoder().encode
_decode = Decoder(list[Candidate]).decode


class Outbox:
    """Parcels to other partitions."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def send(self, candidates: list[Candidate], policy_version: int) -> None:
        """One parcel for each destination, in the open transaction."""
        books = self._books
        parcels: dict[int, list[Candidate]] = {}
        for candidate in candidates:
            parcels.setdefault(candidate.partition, []).append(candidate)
        for destination, parcel in parcels.items():
            books.execute(_SEND, (destination, _encode(parcel), len(parcel), policy_version, books.now))
        books.tally.add(tally.OUTBOX, len(candidates))
        books.tally.add(tally.FORWARDED, len(candidates))

    def parcels(self, ask: ParcelAsk) -> list[Parcel]:
        """See ports.Frontier.parcels."""
        books = self._books
        if not books.is_current(ask.partition, ask.epoch):
            return []
        rows = books.execute(_WAITING, (ask.limit, json.dumps(ask.without))).fetchall()
        return [
            Parcel(ask.partition, destination, number, _decode(candidates), policy_version)
            for destination, number, candidates, policy_version in rows
        ]

    def drop_parcels(self, item: DropParcels) -> Applied:
        """See ports.Frontier.drop_parcels."""
        books = self._books
        if not books.is_current(item.partition, item.epoch):
            return Applied.STALE
        for taken in item.taken:
            books.tally.add(tally.OUTBOX, -books.execute(_SENT, taken).fetchone()[0])
            books.execute(_DROP, taken)
        return Applied.APPLIED


class Inbox:
    """Parcels from other partitions. `admit` judges candidates in the open transaction and counts what came of them."""

    def __init__(self, books: Books, admit: Callable[[AdmitBatch], bytes]) -> None:
        self._books = books
        self._admit = admit

    def deliver(self, parcels: list[Parcel]) -> Applied:
        """See ports.Frontier.deliver."""
        books = self._books
        if any(parcel.destination != books.settings.partition for parcel in parcels):
            return Applied.STALE
        for parcel in sorted(parcels, key=lambda parcel: (parcel.source, parcel.number)):
            mark = books.execute(_MARK, (parcel.source,)).fetchone()
            if mark is None or parcel.number > mark[0]:
                self._receive(parcel)
        return Applied.APPLIED

    def _receive(self, parcel: Parcel) -> None:
        books = self._books
        amount = len(parcel.candidates)
        head = (parcel.source, parcel.number)
        books.execute(_SET_MARK, head)
        if amount:
            packed = _encode(parcel.candidates)
            books.execute(_RECEIVE, (*head, packed, amount, parcel.policy_version, books.now))
            books.tally.add(tally.INBOX, amount)

    def drain(self, ask: DrainAsk) -> DrainReply:
        """See ports.Frontier.drain."""
        books = self._books
        if not books.is_current(ask.partition, ask.epoch):
            return DrainReply(0, 0, books.tally.value(tally.INBOX))
        left, admitted = ask.limit, 0
        while left > 0:
            row = books.execute(_NEXT).fetchone()
            if row is None:
                break
            seq, packed, amount, taken, policy_version = row
            some = _decode(packed)[taken : taken + left]
            verdicts = self._admit(AdmitBatch(some, policy_version=policy_version))
            admitted += verdicts.count(Verdict.ADMITTED)
            left -= len(some)
            if taken + len(some) < amount:
                books.execute(_TAKE, (seq, taken + len(some)))
            else:
                books.execute(_EMPTY, (seq,))
        books.tally.add(tally.INBOX, left - ask.limit)
        return DrainReply(ask.limit - left, admitted, books.tally.value(tally.INBOX))
