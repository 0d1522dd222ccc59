"""Header blocks of HTTP/1 responses: where one ends, what it says about framing, and how it breaks the rules.

Pure functions over bytes. A block that follows RFC 9112 to the letter passes one regular expression; anything else
is read as browsers read it, and every leniency is named by a quirk word (`QUIRKS`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct, field

QUIRKS: Final[Mapping[str, str]] = {
    "101": "101 Switching Protocols although nothing was asked for",
    "bad-chunk": "a chunk size in the middle of the body could not be read; the body ends there",
    "bad-content-length": "Content-Length is not a number of 1 to 18 digits; the body was read to the close",
    "bad-name": "a field name is empty or has characters that RFC 9110 5.1 forbids",
    "bare-lf": "a line of the header block ends in LF alone",
    "body-forbidden": "204 or 304 announced a body",
    "chunk-line-end": "a line of the chunked coding does not end in CRLF",
    "chunk-no-crlf": "chunk data is not followed by a line end",
    "content-length-conflict": "Content-Length values differ; the body was read to the close",
    "content-length-repeated": "the same Content-Length several times",
    "control-character": "a control character in a field value or reason phrase",
    "data-after-body": "bytes followed the end of the body; they were dropped",
    "head-eof": "the connection closed inside the header block",
    "http09": "no status line: the whole answer was taken as the body",
    "icy": "a SHOUTcast status line",
    "leading-crlf": "blank lines before the status line",
    "no-close-notify": "TLS ended without close_notify under a body that is delimited by the close",
    "no-colon": "a header line without a colon",
    "no-final-crlf": "the connection closed after the last chunk, before the final blank line",
    "no-reason": "no space after the status code",
    "not-chunked": "announced as chunked, but is not; taken as it came, to the close",
    "obs-fold": "a header line continued on the next line (RFC 9112 5.2)",
    "request-header-dropped": "a header to be sent had characters that cannot be sent; it was left out",
    "space-before-colon": "white space between field name and colon (RFC 9112 5.1)",
    "status-line": "status line with odd case or spacing",
    "te-and-content-length": "both Transfer-Encoding and Content-Length; the former was believed",
    "te-http10": "Transfer-Encoding in an HTTP/1.0 answer",
    "te-identity": "the coding `identity`, which RFC 9112 no longer has",
    "te-list": "codings besides one final chunked; they were left on the body",
    "te-unknown": "an unknown transfer coding; the body was read to the close",
    "tls-unverified": "the certificate did not verify or the protocol is obsolete; the operator allowed that",
    "trailer": "header fields after the last chunk",
    "trailer-too-long": "more trailer than a header block may have; the rest was not read",
    "version": "an HTTP version other than 1.0 and 1.1",
}
"""Every quirk word that this engine records, with what it means."""

# Quirks that leave no doubt about where the answer ends. After any other the connection is not used again, so that
# a confused server cannot pass the tail of one answer off as the next.
HARMLESS: Final = frozenset(
    {"no-reason", "trailer", "content-length-repeated", "control-character", "te-identity"}
)

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_TEXT = rb"[\t\x20-\x7e\x80-\xff]*+"
_STRICT = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9][0-9]) " + _TEXT + rb"\r\n(?:" + _TOKEN + rb":" + _TEXT + rb"\r\n)*+\r\n"
)
_STATUS = re.compile(
    rb"(HTTP/)(\d{1,3})(?:\.(\d{1,3}))?([ \t]+)(\d{3})(?:([ \t]+).*|[ \t]*)", re.IGNORECASE | re.DOTALL
)
_ICY = re.compile(rb"ICY[ \t]+(\d{3})(?:[ \t].*)?", re.DOTALL)
_FRAMING = re.compile(rb"\n(content-length|transfer-encoding|connection)[ \t]*:([^\n]*)", re.IGNORECASE)
_FOLD = re.compile(rb"\r?\n[ \t]+(?=[^\r\n])")
_NAME = re.compile(_TOKEN)
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_DIGITS_MAX = 18


class Head(Struct):
    """What a header block says. `length`: None not given, -1 not usable. `codings`: lower case, without identity.

    `chunked_last` tells that chunked is the outermost coding. `persistent`: the server would keep the connection.
    """

    status: int
    minor: int
    persistent: bool = True
    length: int | None = None
    codings: tuple[bytes, ...] = ()
    quirks: list[str] = field(default_factory=list)

    @property
    def chunked_last(self) -> bool:
        """Whether the body is delimited by the chunked coding."""
        return bool(self.codings) and self.codings[-1] == b"chunked"

    def note(self, quirk: str) -> None:
        """Record a quirk once."""
        if quirk not in self.quirks:
            self.quirks.append(quirk)


def head_end(block: bytes, start: int = 0) -> int:
    """Offset behind the blank line that ends the header block, -1 if there is none at or after `start`.

    A bare LF ends a line (RFC 9112 2.2), so two in a row end the block too.
    """
    usual = block.find(b"\n\r\n", start)
    if usual < 0:
        bare = block.find(b"\n\n", start)
    else:
        bare = block.find(b"\n\n", start, usual + 1)
    if bare >= 0:
        return bare + 2
    return usual + 3 if usual >= 0 else -1


def starts_like_http(block: bytes) -> bool:
    """Whether this can be, or can become, the start of a status line."""
    return b"HTTP/".startswith(block[:5].upper()) or b"ICY ".startswith(block[:4])


def read_head(block: bytes) -> Head | str:
    """Read a whole header block, blank line included. A text result says why nobody could make sense of it."""
    strict = _STRICT.fullmatch(block)
    if strict is not None:
        head = Head(int(strict[2]), int(strict[1]))
        _frame(head, block)
        return head
    line_end = block.find(b"\n")
    read = _read_status(block[:line_end].removesuffix(b"\r"))
    if isinstance(read, str):
        return read
    _inspect(read, block, line_end)
    if "obs-fold" in read.quirks:
        block = _FOLD.sub(b" ", block)
    _frame(read, block)
    return read


def _read_status(line: bytes) -> Head | str:
    """The status line as browsers take it."""
    icy = _ICY.fullmatch(line)
    if icy is not None:
        return Head(int(icy[1]), 0, quirks=["icy"])
    match = _STATUS.fullmatch(line)
    if match is None:
        return f"status line {line[:80]!r} cannot be read"
    status = int(match[5])
    if status < 100:
        return f"status {status} does not exist"
    major, minor = int(match[2]), int(match[3] or b"0")
    # A version from the future promises at least what 1.1 does; one before 1.1 keeps no connection by itself.
    head = Head(status, 1 if (major, minor) >= (1, 1) else 0)
    if match[3] is None or (major, minor) not in ((1, 0), (1, 1)):
        head.note("version")
    if match[1] != b"HTTP/" or match[4] != b" ":
        head.note("status-line")
    if match[6] is None:
        head.note("no-reason")
    if _CONTROL.search(line):
        head.note("control-character")
    return head


def _inspect(head: Head, block: bytes, line_end: int) -> None:
    """Name what is wrong with the header lines."""
    if block.count(b"\n") != block.count(b"\r\n"):
        head.note("bare-lf")
    for raw in block[line_end + 1 :].split(b"\n"):
        line = raw.removesuffix(b"\r")
        if not line:
            continue
        if line[:1] in b" \t":
            head.note("obs-fold")
            continue
        name, colon, value = line.partition(b":")
        if not colon:
            head.note("no-colon")
            continue
        bare_name = name.rstrip(b" \t")
        if bare_name != name:
            head.note("space-before-colon")
        if not _NAME.fullmatch(bare_name):
            head.note("bad-name")
        if _CONTROL.search(value):
            head.note("control-character")


def _frame(head: Head, block: bytes) -> None:
    """Content-Length, Transfer-Encoding and Connection (RFC 9112 section 6 and 9.3)."""
    coding: bytes | None = None
    connection = b""
    for name, value in _FRAMING.findall(block):
        kind = name[0] | 0x20
        if kind == 0x74:  # t
            coding = value if coding is None else coding + b"," + value
        elif name[3] | 0x20 == 0x74:  # conTent-length
            _read_length(head, value)
        else:
            connection += b"," + value.lower()
    if head.minor == 0:
        head.persistent = b"keep-alive" in connection and b"close" not in connection
    elif connection:
        head.persistent = b"close" not in connection
    if coding is not None:
        _read_codings(head, coding)


def _read_length(head: Head, value: bytes) -> None:
    """One Content-Length line, possibly a list (RFC 9112 6.3: equal repeats may be taken as one)."""
    for item in value.split(b","):
        digits = item.strip()
        if not digits.isdigit() or len(digits) > _DIGITS_MAX:
            head.note("bad-content-length")
            head.length = -1
        elif head.length is None:
            head.length = int(digits)
        elif head.length == int(digits):
            head.note("content-length-repeated")
        elif head.length >= 0:
            head.note("content-length-conflict")
            head.length = -1


def _read_codings(head: Head, value: bytes) -> None:
    """The transfer codings, innermost first."""
    listed = [item.strip().lower() for item in value.split(b",")]
    codings = tuple(item for item in listed if item and item != b"identity")
    head.codings = codings
    if b"identity" in listed:
        head.note("te-identity")
    if not codings:
        return
    if head.length is not None:
        head.note("te-and-content-length")
    if head.minor == 0:
        head.note("te-http10")
    if codings[-1] != b"chunked":
        head.note("te-unknown")
    elif len(codings) > 1:
        head.note("te-list")


class HeaderFields(Mapping[str, str]):
    """The header fields of a block by lower-case name, first value wins, latin-1. Read on first use."""

    __slots__ = ("_block", "_fields")

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._fields: dict[str, str] | None = None

    def _read(self) -> dict[str, str]:
        fields = self._fields
        if fields is None:
            fields = self._fields = {}
            block = self._block
            if b"\n " in block or b"\n\t" in block:
                block = _FOLD.sub(b" ", block)
            for line in block.decode("latin-1").split("\n")[1:]:
                name, colon, value = line.partition(":")
                name = name.rstrip(" \t").lower()
                if colon and name and name not in fields:
                    fields[name] = value.strip(" \t\r")
        return fields

    def __getitem__(self, name: str) -> str:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return f"HeaderFields({self._read()!r})"
