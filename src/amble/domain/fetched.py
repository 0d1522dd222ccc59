"""What the network answered: references to stored bytes, validators, the immutable fetch record."""

from __future__ import annotations

import struct

from msgspec import Struct

_REF = struct.Struct(">IQI")


class BodyRef(Struct, frozen=True, array_like=True):
    """Where a record lies in the archive: segment serial, byte offset of its gzip member, length of the member."""

    segment: int
    offset: int
    length: int

    def pack(self) -> bytes:
        """16 bytes for a database column."""
        return _REF.pack(self.segment, self.offset, self.length)

    @classmethod
    def unpack(cls, packed: bytes) -> BodyRef:
        """The reference that `pack` wrote."""
        return cls(*_REF.unpack(packed))

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}+{self.length}"


class Validators(Struct, frozen=True, array_like=True):
    """Conditional-request headers as the server sent them, echoed byte for byte (latin-1 text)."""

    etag: str | None = None
    last_modified: str | None = None


class Timings(Struct, frozen=True, array_like=True):
    """Milliseconds from the start of the exchange; -1 where the phase did not happen (reused connection)."""

    connect_ms: int = -1
    tls_ms: int = -1
    first_byte_ms: int = -1
    total_ms: int = 0


class Fetched(Struct, frozen=True, array_like=True):
    """One answer from the network, as recorded with FETCHED or with a failed try. Immutable.

    `ref` points at the `response` or `revisit` record; `body_ref` at the record that holds the bytes (the same
    unless the answer was a 304 or an identical payload). `digest` is sha256 over the payload as stored.
    """

    status: int
    ref: BodyRef | None
    body_ref: BodyRef | None
    digest: bytes | None
    body_bytes: int
    wire_bytes: int
    content_type: str
    address: str
    timings: Timings
    validators: Validators | None = None
    truncated: str = ""
    quirks: tuple[str, ...] = ()
    not_modified: bool = False
    location: str = ""
