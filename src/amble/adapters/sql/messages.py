"""The operations of the frontier as tagged values, and the frames that carry them between agent and store process.

A frame is four bytes of length (big endian), one byte of kind, and a msgpack payload. Requests hold a list of
operations, which become one transaction; the answer to each request frame holds one reply per operation, in order.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder, Encoder

from amble.adapters.sql.settings import StoreSettings
from amble.domain import frontier
from amble.domain.fetched import BodyRef

HEAD = struct.Struct(">IB")
FRAME_BYTES_MAX = 256 * 1024 * 1024


class FrameKind(IntEnum):
    """What a frame says. The agent sends OPERATIONS; everything else comes from the store process."""

    OPERATIONS = 0
    REPLIES = 1
    READY = 2  # the file is open; payload: a text about the engine
    TROUBLE = 3  # the store keeps trying; payload: why, or "" when it is over
    BROKEN = 4  # the store process ends; payload: (class of error, text)


class Operation(Struct, frozen=True, array_like=True, tag_field="op"):
    """One call of ports.Frontier."""


class TakeOver(Operation, tag=1, frozen=True, array_like=True):
    """take_over"""

    value: frontier.TakeoverAsk


class Admit(Operation, tag=2, frozen=True, array_like=True):
    """admit"""

    value: frontier.AdmitBatch


class TakeLease(Operation, tag=3, frozen=True, array_like=True):
    """lease"""

    value: frontier.LeaseAsk


class Reserve(Operation, tag=4, frozen=True, array_like=True):
    """reserve"""

    value: frontier.ReserveAsk


class GiveBack(Operation, tag=5, frozen=True, array_like=True):
    """put_back"""

    value: frontier.PutBack


class Leave(Operation, tag=6, frozen=True, array_like=True):
    """exclude"""

    value: frontier.Exclude


class KeepFetched(Operation, tag=7, frozen=True, array_like=True):
    """record_fetched"""

    value: frontier.RecordFetched


class KeepFailed(Operation, tag=8, frozen=True, array_like=True):
    """record_failed"""

    value: frontier.RecordFailed


class KeepParsed(Operation, tag=9, frozen=True, array_like=True):
    """record_parsed"""

    value: frontier.RecordParsed


class Finish(Operation, tag=10, frozen=True, array_like=True):
    """complete"""

    value: frontier.Complete


class Strike(Operation, tag=11, frozen=True, array_like=True):
    """parse_strike"""

    value: frontier.ParseStrike


class FindBody(Operation, tag=12, frozen=True, array_like=True):
    """find_body"""

    value: bytes


class Expire(Operation, tag=13, frozen=True, array_like=True):
    """expire"""

    value: int


class SetOrigin(Operation, tag=14, frozen=True, array_like=True):
    """set_origin"""

    value: frontier.OriginOrder


class Requeue(Operation, tag=15, frozen=True, array_like=True):
    """requeue"""

    value: frontier.RequeueOrder


class Adopt(Operation, tag=16, frozen=True, array_like=True):
    """adopt"""

    value: frontier.AdoptAsk


class Drain(Operation, tag=17, frozen=True, array_like=True):
    """drain"""

    value: frontier.DrainAsk


class Parcels(Operation, tag=18, frozen=True, array_like=True):
    """parcels"""

    value: frontier.ParcelAsk


class Deliver(Operation, tag=19, frozen=True, array_like=True):
    """deliver"""

    value: list[frontier.Parcel]


class DropParcels(Operation, tag=20, frozen=True, array_like=True):
    """drop_parcels"""

    value: frontier.DropParcels


class Visit(Operation, tag=21, frozen=True, array_like=True):
    """visit"""

    value: frontier.ReserveAsk


class FindNear(Operation, tag=22, frozen=True, array_like=True):
    """find_near"""

    value: int


class KeepSeeded(Operation, tag=23, frozen=True, array_like=True):
    """keep_seeded"""

    value: bytes


AnyOperation = (
    TakeOver
    | Admit
    | TakeLease
    | Reserve
    | GiveBack
    | Leave
    | KeepFetched
    | KeepFailed
    | KeepParsed
    | Finish
    | Strike
    | FindBody
    | Expire
    | SetOrigin
    | Requeue
    | Adopt
    | Drain
    | Parcels
    | Deliver
    | DropParcels
    | Visit
    | FindNear
    | KeepSeeded
)


class Refused(Struct, frozen=True):
    """An operation that the store could not carry out at all, for a reason of its own: a mistake of the caller."""

    error: str


class OpenStore(Struct, frozen=True, kw_only=True):
    """How the store process opens its file; one argument of its command line, as JSON."""

    path: str
    driver: str
    settings: StoreSettings


encode = Encoder().encode
decode_operations = Decoder(list[AnyOperation]).decode
# (0, reply) or (1, text of the refusal), the reply still packed: its type follows from the operation.
decode_replies = Decoder(list[tuple[int, Raw]]).decode
decode_text = Decoder(str).decode
decode_broken = Decoder(tuple[str, str]).decode

_REPLIES: dict[type[Operation], Any] = {
    TakeOver: frontier.Takeover,
    Admit: frontier.AdmitReport,
    TakeLease: frontier.LeaseReply,
    Reserve: frontier.ReserveReply,
    Visit: frontier.ReserveReply,
    FindBody: BodyRef | None,
    FindNear: str | None,
    Expire: int,
    Requeue: int,
    Adopt: list[frontier.Resumable],
    Drain: frontier.DrainReply,
    Parcels: list[frontier.Parcel],
}
REPLY_DECODERS: dict[type[Operation], Decoder[Any]] = {
    operation: Decoder(_REPLIES.get(operation, frontier.Applied)) for operation in AnyOperation.__args__
}


def frame(kind: FrameKind, payload: bytes) -> bytes:
    """One frame, ready to send."""
    return HEAD.pack(len(payload), kind) + payload


def pack_replies(replies: list[Any]) -> bytes:
    """The payload of a REPLIES frame."""
    return encode([(1, reply.error) if isinstance(reply, Refused) else (0, reply) for reply in replies])
