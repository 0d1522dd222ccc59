"""WARC/1.1 records: how each kind is built, written as bytes, and read back. Clauses are of ISO 28500:2017.

Pure: ids, dates and addresses are arguments. Compression and files belong to the archive. The head of a response is
stored so that strict readers understand the block, and so that the head as received can be had back (`wire_head`);
docs/decisions/0003-warc-transfer-coding.md says why.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache

from msgspec import Struct

from amble.domain.record import IndexFacts, NewRecord, ReplayableBlock, StoredRecord

VERSION = b"WARC/1.1\r\n"
RECORD_END = b"\r\n\r\n"

IDENTICAL_PAYLOAD = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
SERVER_NOT_MODIFIED = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"

# Extension fields. Unknown fields are to be ignored by readers (clause 4), so these harm nobody.
PAYLOAD_SHA256 = "X-Amble-Payload-SHA256"
HEAD_RENAMED = "X-Amble-Head-Renamed"  # numbers of the head lines whose name got RENAME_PREFIX
HEAD_BARE_LF = "X-Amble-Head-Bare-LF"  # numbers of the head lines that ended in LF alone

RENAME_PREFIX = b"X-Crawl-"

# Why an exchange ended early (ports.Reply.truncated) in the words of clause 5.13.
_TRUNCATED = {
    "length": "length",
    "idle": "time",
    "total": "time",
    "slow": "time",
    "disconnect": "disconnect",
    "framing": "unspecified",
}

_NO_MARKS = str.maketrans("", "", "-:TZ.")
_RECORD_ID = re.compile(r"<urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}>\Z")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f]")
_TRANSFER_ENCODING = re.compile(rb"\n(?:transfer-encoding)[ \t]*:", re.IGNORECASE)
_FRAMING_NAME = re.compile(rb"(?:transfer-encoding|content-length)[ \t]*:", re.IGNORECASE)
_BARE_LF = re.compile(rb"(?<!\r)\n")
_CONTENT_TYPE = re.compile(rb"\ncontent-type[ \t]*:[ \t]*([^\s;,]{1,127})", re.IGNORECASE)
_STATUS = re.compile(rb"[^ \r\n]+ +(\d{3})(?!\d)")

_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS = tuple(first + second for first in _BASE32 for second in _BASE32)
_FORTY_BITS = struct.Struct(">BIBIBIBI").unpack

EMPTY_SHA1 = "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"


class Exchange(Struct, frozen=True, kw_only=True):
    """What all records of one HTTP exchange share: URL, pinned address, wall time of its start (s since 1970)."""

    url: str
    address: str
    date_s: float


class Original(Struct, frozen=True, kw_only=True):
    """The earlier capture that a revisit refers to. `payload_digest` as that record states it, "" if it does not."""

    record_id: str
    url: str
    date: str
    payload_digest: str = ""
    sha256: str = ""


def record_id(token: bytes) -> str:
    """A WARC-Record-ID from 16 random bytes: a version 4 UUID (RFC 9562 section 5.4) as a bracketed URN."""
    if len(token) != 16:
        raise ValueError(f"a record id takes 16 random bytes, not {len(token)}")
    text = token.hex()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"<urn:uuid:{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}>"


def is_record_id(value: str) -> bool:
    """Whether `value` is an id that `record_id` can have made."""
    return _RECORD_ID.match(value) is not None


@lru_cache(maxsize=64)  # the records of one page share their date
def date(wall_s: float) -> str:
    """WARC-Date with milliseconds, in UTC (clause 5.4; RFC 3339)."""
    seconds, ms = divmod(int(wall_s * 1000), 1000)
    return f"{_second(seconds)}.{ms:03d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def timestamp(wall_s: float) -> str:
    """The 14-digit UTC time of CDX lines and file names."""
    return timestamp_of(date(wall_s))


def timestamp_of(warc_date: str) -> str:
    """The 14-digit time of a WARC-Date."""
    return warc_date[:19].translate(_NO_MARKS)


def sha1_label(digest: bytes) -> str:
    """A digest of 20 bytes as readers expect it: `sha1:` and base 32 (clause 5.8; RFC 4648 section 6)."""
    # Two characters at a time from four numbers of 40 bits: 1.9 us instead of the 6.5 us of base64.b32encode.
    a, b, c, d, e, f, g, h = _FORTY_BITS(digest)
    b |= a << 32
    d |= c << 32
    f |= e << 32
    h |= g << 32
    p = _PAIRS
    return (
        f"sha1:{p[b >> 30]}{p[b >> 20 & 1023]}{p[b >> 10 & 1023]}{p[b & 1023]}"
        f"{p[d >> 30]}{p[d >> 20 & 1023]}{p[d >> 10 & 1023]}{p[d & 1023]}"
        f"{p[f >> 30]}{p[f >> 20 & 1023]}{p[f >> 10 & 1023]}{p[f & 1023]}"
        f"{p[h >> 30]}{p[h >> 20 & 1023]}{p[h >> 10 & 1023]}{p[h & 1023]}"
    )


# -- the kinds of record -------------------------------------------------------------------------------------------


def warcinfo(*, record_id: str, date_s: float, filename: str, fields: Mapping[str, str]) -> NewRecord:
    """The first record of a segment: who wrote it, by which rules (clause 6.2)."""
    block = "".join(f"{_safe(name)}: {_safe(value)}\r\n" for name, value in fields.items()).encode()
    return NewRecord(
        warc_type="warcinfo",
        headers=(
            ("WARC-Record-ID", record_id),
            ("WARC-Date", date(date_s)),
            ("WARC-Filename", filename),
            ("Content-Type", "application/warc-fields"),
        ),
        head=block,
    )


def request(exchange: Exchange, *, record_id: str, block: bytes, concurrent_to: str = "") -> NewRecord:
    """The request as sent (clause 6.5). `concurrent_to`: id of the response or revisit it led to."""
    return NewRecord(
        warc_type="request",
        headers=(
            *_exchange_fields(exchange, record_id),
            *_optional("WARC-Concurrent-To", concurrent_to),
            ("Content-Type", "application/http;msgtype=request"),
        ),
        head=block,
    )


def response(
    exchange: Exchange,
    *,
    record_id: str,
    head: bytes,
    body: ReplayableBlock | None,
    body_bytes: int,
    sha256: bytes,
    truncated: str = "",
    packed: bool = False,
) -> NewRecord:
    """A response with its payload (clause 6.3). `truncated` in the words of `ports.Reply`; `sha256` of the payload.

    `packed`: see `NewRecord`.
    """
    stored, edits = stored_head(head)
    return NewRecord(
        warc_type="response",
        headers=(
            *_exchange_fields(exchange, record_id),
            *_optional("WARC-Truncated", _truncated(truncated)),
            (PAYLOAD_SHA256, sha256.hex()),
            *edits,
            ("Content-Type", "application/http;msgtype=response"),
        ),
        head=stored,
        body=body if body_bytes else None,
        body_bytes=body_bytes,
        packed=packed,
        payload=body if body_bytes else EMPTY,
        index=index_facts(exchange.url, timestamp(exchange.date_s), stored),
    )


def revisit_identical(
    exchange: Exchange,
    *,
    record_id: str,
    head: bytes,
    body: ReplayableBlock | None,
    sha256: bytes,
    original: Original,
) -> NewRecord:
    """A response whose payload is already stored: its head, and where the payload is (clause 6.7.2).

    `body` is the payload just received. It is hashed, not stored.
    """
    stored, edits = stored_head(head)
    return NewRecord(
        warc_type="revisit",
        headers=(
            *_exchange_fields(exchange, record_id),
            ("WARC-Profile", IDENTICAL_PAYLOAD),
            *_refers_to(original),
            ("WARC-Truncated", "length"),
            (PAYLOAD_SHA256, sha256.hex()),
            *edits,
            ("Content-Type", "application/http;msgtype=response"),
        ),
        head=stored,
        payload=body if body is not None else EMPTY,
        index=_revisit_facts(exchange, stored),
    )


def revisit_not_modified(exchange: Exchange, *, record_id: str, head: bytes, original: Original) -> NewRecord:
    """A 304 answer: its head, and the capture that is still valid (clause 6.7.3)."""
    stored, edits = stored_head(head)
    return NewRecord(
        warc_type="revisit",
        headers=(
            *_exchange_fields(exchange, record_id),
            ("WARC-Profile", SERVER_NOT_MODIFIED),
            *_refers_to(original),
            *_optional("WARC-Payload-Digest", original.payload_digest),
            *_optional(PAYLOAD_SHA256, original.sha256),
            *edits,
            ("Content-Type", "application/http;msgtype=response"),
        ),
        head=stored,
        index=_revisit_facts(exchange, stored),
    )


def metadata(
    *,
    record_id: str,
    date_s: float,
    url: str,
    refers_to: str,
    block: bytes,
    content_type: str = "application/json",
) -> NewRecord:
    """Facts about a capture, such as the manifest of a parse (clause 6.6). `refers_to`: id of that capture."""
    return _derived("metadata", record_id, date_s, url, refers_to, block, content_type)


def conversion(
    *,
    record_id: str,
    date_s: float,
    url: str,
    refers_to: str,
    block: bytes,
    content_type: str = "text/plain; charset=utf-8",
) -> NewRecord:
    """Another form of a captured payload, such as its text (clause 6.8). `refers_to`: id of the capture."""
    return _derived("conversion", record_id, date_s, url, refers_to, block, content_type)


def resource(*, record_id: str, date_s: float, url: str, block: bytes, content_type: str) -> NewRecord:
    """Bytes that belong to a URL without an HTTP exchange (clause 6.4)."""
    return _derived("resource", record_id, date_s, url, "", block, content_type)


def original_of(stored: StoredRecord) -> Original:
    """What a revisit must say of the stored capture it refers to. A revisit of a revisit refers to the first one."""
    fields = stored.headers
    return Original(
        record_id=fields.get("WARC-Refers-To") or stored.record_id,
        url=fields.get("WARC-Refers-To-Target-URI") or fields.get("WARC-Target-URI", ""),
        date=fields.get("WARC-Refers-To-Date") or fields.get("WARC-Date", ""),
        payload_digest=fields.get("WARC-Payload-Digest", ""),
        sha256=fields.get(PAYLOAD_SHA256, ""),
    )


# -- the head of a response ------------------------------------------------------------------------------------------


def stored_head(head: bytes) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """The head as it goes into the block, and the extension fields that say what was changed.

    Framing that no longer describes the block is renamed: Transfer-Encoding, and a Content-Length beside it, which it
    overrides (RFC 9112 section 6.3). Lines that end in LF alone get CRLF, else strict readers miss the end of the
    head. Raises ValueError when `head` is not one header block that ends with its only blank line.
    """
    edits: tuple[tuple[str, str], ...] = ()
    if b"\n" in head.replace(b"\r\n", b""):
        lines = head.split(b"\n")
        bare = [number for number, line in enumerate(lines[:-1]) if not line.endswith(b"\r")]
        head = _BARE_LF.sub(b"\r\n", head)
        edits = ((HEAD_BARE_LF, _numbers(bare)),)
    if _TRANSFER_ENCODING.search(head):
        lines = head.split(b"\r\n")
        renamed = [number for number, line in enumerate(lines) if number and _FRAMING_NAME.match(line)]
        for number in renamed:
            lines[number] = RENAME_PREFIX + lines[number]
        head = b"\r\n".join(lines)
        edits = (*edits, (HEAD_RENAMED, _numbers(renamed)))
    if head.find(RECORD_END) != len(head) - 4:
        raise ValueError("an HTTP head must end with its only blank line")
    return head, edits


def wire_head(stored: StoredRecord) -> bytes:
    """The head of an HTTP record byte for byte as it was received: undoes `stored_head`."""
    lines = stored.http_head.split(b"\r\n")
    for number in _parse_numbers(stored.headers.get(HEAD_RENAMED, "")):
        lines[number] = lines[number].removeprefix(RENAME_PREFIX)
    bare = set(_parse_numbers(stored.headers.get(HEAD_BARE_LF, "")))
    ends = [b"\n" if number in bare else b"\r\n" for number in range(len(lines) - 1)]
    return b"".join(line + end for line, end in zip(lines, ends, strict=False)) + lines[-1]


def index_facts(url: str, time: str, head: bytes) -> IndexFacts:
    """What a CDXJ line says of a response: media type and status from its head, "unk" and "-" where it has none."""
    status = _STATUS.match(head)
    kind = _CONTENT_TYPE.search(head)
    return IndexFacts(
        url=url,
        timestamp=time,
        mime=kind[1].decode("latin-1").lower() if kind else "unk",
        status=status[1].decode("ascii") if status else "-",
    )


# -- bytes ---------------------------------------------------------------------------------------------------------


class WrittenHead(Struct, frozen=True):
    """The WARC header of a record as bytes, with its blank line, and the payload digest it states ("" if none)."""

    data: bytes
    payload_digest: str


def written_head(record: NewRecord, warcinfo_id: str = "") -> WrittenHead:
    """Serialize the header of `record` (clause 4). Reads body and payload at most once each, for the digests.

    A block that holds its payload gets no digest of its own: that of the payload covers all but the HTTP head, and the
    checksum of the gzip member covers both.
    """
    payload_digest = "" if record.payload is None else _hash_one(record.payload)
    text = "".join([f"{name}: {value}\r\n" for name, value in record.headers])
    if warcinfo_id:
        text += f"WARC-Warcinfo-ID: {warcinfo_id}\r\n"
    if payload_digest:
        text += f"WARC-Payload-Digest: {payload_digest}\r\n"
    if record.payload is None or record.payload is not record.body:
        text += f"WARC-Block-Digest: {_hash_block(record)}\r\n"
    if record.index is not None and not payload_digest:
        payload_digest = dict(record.headers).get("WARC-Payload-Digest", "")
    whole = f"WARC/1.1\r\nWARC-Type: {record.warc_type}\r\n{text}Content-Length: {record.block_bytes}\r\n\r\n"
    return WrittenHead(whole.encode(), payload_digest)


def read_record(member: bytes) -> StoredRecord:
    """One whole record (uncompressed) as a value. Raises ValueError, with the reason, when it is not exactly one.

    Reads what this module writes; foreign files are FastWARC's business.
    """
    end = member.find(RECORD_END)
    if not member.startswith(VERSION) or end < 0:
        raise ValueError("not a WARC/1.1 record")
    fields = _parse_fields(member[len(VERSION) : end])
    length_text = fields.get("Content-Length", "")
    if not (length_text.isascii() and length_text.isdecimal()):
        raise ValueError("no usable Content-Length")
    start, length = end + 4, int(length_text)
    if len(member) != start + length + 4 or not member.endswith(RECORD_END):
        raise ValueError(f"the record holds {len(member) - start - 4} block bytes, its header says {length}")
    if not is_record_id(fields.get("WARC-Record-ID", "")):
        raise ValueError("no well-formed WARC-Record-ID")
    kind = fields.get("WARC-Type", "")
    if not kind:
        raise ValueError("no WARC-Type")
    return StoredRecord(warc_type=kind, headers=fields, block=member[start : start + length])


def digest_problem(stored: StoredRecord) -> str | None:
    """None when the digests that the record states fit its block, else what does not fit."""
    stated = stored.headers.get("WARC-Block-Digest", "")
    # The block of a response need not have one: its payload has two.
    if (stated or stored.warc_type != "response") and stated != sha1_label(
        hashlib.sha1(stored.block, usedforsecurity=False).digest()
    ):
        return "the block does not have the digest that its header states"
    if stored.warc_type != "response":
        return None
    payload = stored.payload
    if stored.headers.get("WARC-Payload-Digest") != sha1_label(
        hashlib.sha1(payload, usedforsecurity=False).digest()
    ):
        return "the payload does not have the digest that its header states"
    if stored.headers.get(PAYLOAD_SHA256) != hashlib.sha256(payload).hexdigest():
        return "the payload does not have the sha256 that its header states"
    return None


# -- parts ---------------------------------------------------------------------------------------------------------


class _Empty:
    """A payload of no bytes."""

    def pieces(self) -> Iterator[bytes]:
        return iter(())


EMPTY: ReplayableBlock = _Empty()


def _exchange_fields(exchange: Exchange, record_id: str) -> tuple[tuple[str, str], ...]:
    return (
        ("WARC-Record-ID", record_id),
        ("WARC-Date", date(exchange.date_s)),
        ("WARC-Target-URI", _safe(exchange.url)),
        *_optional("WARC-IP-Address", _safe(exchange.address)),
    )


def _derived(
    kind: str, record_id: str, date_s: float, url: str, refers_to: str, block: bytes, content_type: str
) -> NewRecord:
    return NewRecord(
        warc_type=kind,
        headers=(
            ("WARC-Record-ID", record_id),
            ("WARC-Date", date(date_s)),
            ("WARC-Target-URI", _safe(url)),
            *_optional("WARC-Refers-To", refers_to),
            ("Content-Type", _safe(content_type)),
        ),
        head=block,
    )


def _refers_to(original: Original) -> tuple[tuple[str, str], ...]:
    return (
        ("WARC-Refers-To", original.record_id),
        *_optional("WARC-Refers-To-Target-URI", _safe(original.url)),
        *_optional("WARC-Refers-To-Date", original.date),
    )


def _revisit_facts(exchange: Exchange, head: bytes) -> IndexFacts:
    facts = index_facts(exchange.url, timestamp(exchange.date_s), head)
    return IndexFacts(url=facts.url, timestamp=facts.timestamp, mime="warc/revisit", status=facts.status)


def _optional(name: str, value: str) -> tuple[tuple[str, str], ...]:
    return ((name, value),) if value else ()


def _truncated(word: str) -> str:
    return _TRUNCATED.get(word, "unspecified") if word else ""


def _safe(value: str) -> str:
    """Refuse what could end a header line early: no value of ours holds a control character."""
    if _UNSAFE.search(value):
        raise ValueError(f"a control character in a WARC field: {value[:80]!r}")
    return value


def _numbers(lines: list[int]) -> str:
    return ",".join(map(str, lines))


def _parse_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")] if text else []


def _hash_one(payload: ReplayableBlock) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for piece in payload.pieces():
        digest.update(piece)
    return sha1_label(digest.digest())


def _hash_block(record: NewRecord) -> str:
    digest = hashlib.sha1(record.head, usedforsecurity=False)
    if record.body is not None:
        for piece in record.body.pieces():
            digest.update(piece)
    return sha1_label(digest.digest())


def _parse_fields(block: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in block.decode("utf-8").split("\r\n"):  # UnicodeDecodeError is a ValueError
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError("a header line without a colon")
        fields[name] = value.strip()
    return fields
