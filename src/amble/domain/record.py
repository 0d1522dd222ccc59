"""One WARC record, before it is appended and after it is read back, as values free of any archive."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Protocol

from msgspec import Struct

_HEAD_END = re.compile(rb"\n\r?\n")


class ReplayableBlock(Protocol):
    """Bytes that can be read from the start more than once, in pieces: in memory or spooled to a file."""

    def pieces(self) -> Iterator[bytes]:
        """The bytes from the start."""
        ...


class IndexFacts(Struct, frozen=True, kw_only=True):
    """What the CDXJ line of a record says about the capture; the archive adds digest, file, offset and length."""

    url: str
    timestamp: str  # 14 digits, UTC
    mime: str
    status: str  # three digits, or "-"


class NewRecord(Struct, frozen=True, kw_only=True):
    """One WARC record to append. Built by `formats/warc.py` only.

    The block is `head` followed by `body`. `headers` are all fields but Content-Length, the digests and the id of the
    segment's warcinfo, which are known only when the record is written. `body` and `payload` are read from the start
    as often as an append needs, and must stay readable until the append has returned. `packed`: the body is compressed
    already, so that compressing it again would be for nothing.
    """

    warc_type: str
    headers: tuple[tuple[str, str], ...]
    head: bytes = b""
    body: ReplayableBlock | None = None
    body_bytes: int = 0
    packed: bool = False
    payload: ReplayableBlock | None = None  # hashed for WARC-Payload-Digest; need not be part of the block
    index: IndexFacts | None = None  # None: not indexed

    @property
    def record_id(self) -> str:
        """Its WARC-Record-ID, to which other records refer."""
        return dict(self.headers)["WARC-Record-ID"]

    @property
    def block_bytes(self) -> int:
        """Content-Length of the record."""
        return len(self.head) + self.body_bytes


class StoredRecord(Struct, frozen=True, kw_only=True):
    """One record read back. `headers` has the field names as WARC spells them (`WARC-Record-ID`)."""

    warc_type: str
    headers: Mapping[str, str]
    block: bytes

    @property
    def record_id(self) -> str:
        """`<urn:uuid:…>`, ready for WARC-Concurrent-To and WARC-Refers-To."""
        return self.headers["WARC-Record-ID"]

    @property
    def http_head(self) -> bytes:
        """Status line and header block of an HTTP record, with the blank line; the whole block if there is none."""
        end = _HEAD_END.search(self.block)
        return self.block if end is None else self.block[: end.end()]

    @property
    def payload(self) -> bytes:
        """What follows the HTTP header block: transfer coding removed, content coding kept."""
        end = _HEAD_END.search(self.block)
        return b"" if end is None else self.block[end.end() :]
