"""One HTTP/1 response, byte by byte: the parser and its framing.

Pure: bytes go in by `feed` and `end`, payload goes out through a callback, and the same bytes give the same answer
however they are cut into pieces. Owns no socket, no clock and no body. What a hostile server can cost is bounded
here: bytes and lines of a header block, interim responses, payload, and framing around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from amble.adapters.net.chunked import ChunkedDecoder
from amble.adapters.net.heads import HARMLESS, Head, head_end, read_head, starts_like_http
from amble.domain.decision import Category
from amble.domain.policy import FetchLimits

# One-byte chunks cost about 3 µs of CPU per payload byte: beyond this much input, two thirds of it may be framing.
_FRAMING_GRACE_BYTES: Final = 256 * 1024
_BLANK_BYTES_MAX: Final = 1024

_HEAD: Final = 0
_LENGTH: Final = 1
_CHUNKED: Final = 2
_UNTIL_CLOSE: Final = 3
_DONE: Final = 4


class Fault(Struct, frozen=True):
    """Why an exchange gave no answer. `stale`: a pooled connection died before a byte of the answer came."""

    category: Category
    detail: str
    stale: bool = False


class ResponseParser:
    """Parses one response to a GET.

    After `done` is true either `fault` says why there is no usable answer, or `status`, `head`, `quirks` and
    `truncated` describe it. `reusable` tells whether the connection may carry another request.
    """

    __slots__ = (
        "_blank_bytes",
        "_body_bytes_max",
        "_chunks",
        "_head_bytes_max",
        "_head_lines_max",
        "_held",
        "_informational_left",
        "_left",
        "_scanned",
        "_state",
        "_write",
        "body_bytes",
        "done",
        "fault",
        "head",
        "http09",
        "quirks",
        "reusable",
        "status",
        "truncated",
        "wire_bytes",
    )

    def __init__(
        self,
        limits: FetchLimits,
        body_bytes_max: int,
        write: Callable[[bytes], object],
        *,
        http09: bool = False,
    ) -> None:
        """`write` takes payload as it comes. `http09`: an answer without a status line may be all body."""
        self._body_bytes_max = body_bytes_max
        self._head_bytes_max = limits.head_bytes_max
        self._head_lines_max = limits.head_lines_max
        self._informational_left = limits.informational_max
        self._write = write
        self.http09 = http09
        self._state = _HEAD
        self._held = b""
        self._scanned = 0
        self._blank_bytes = 0
        self._left = 0
        self._chunks: ChunkedDecoder | None = None
        self.status = 0
        self.head = b""
        self.quirks: list[str] = []
        self.truncated = ""
        self.reusable = True
        self.done = False
        self.fault: Fault | None = None
        self.body_bytes = 0
        self.wire_bytes = 0

    # -- input -----------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take the next bytes from the connection."""
        if not data:
            return
        self.wire_bytes += len(data)
        self._dispatch(data)

    def _dispatch(self, data: bytes) -> None:
        state = self._state
        if state == _HEAD:
            self._take_head(data)
        elif state == _LENGTH:
            self._take_length(data)
        elif state == _CHUNKED:
            self._take_chunked(data)
        elif state == _UNTIL_CLOSE:
            self._deliver(data)
        else:
            self._surplus()

    def end(self, *, clean: bool = True) -> None:
        """The server closed the connection. `clean` False: below TLS, without close_notify."""
        if self.done:
            return
        self.reusable = False
        if self._state == _HEAD:
            self._end_in_head()
        elif self._state == _UNTIL_CLOSE:
            if not clean:
                self._note("no-close-notify")
            self._finish()
        elif self._chunks is not None and self._chunks.in_trailer:
            self._note("no-final-crlf")
            self._finish()
        elif self._chunks is not None and self._chunks.rest and not self.body_bytes:
            self._not_chunked(self._chunks.rest)
            if not self.done:
                self._finish()
        else:
            self._cut("disconnect")

    def cut(self, word: str, fault: Fault) -> None:
        """The exchange is over by order of a deadline or an error: a body so far is kept and marked, else `fault`."""
        if self.done:
            return
        self.reusable = False
        if self._state == _HEAD:
            self._refuse(fault)
        else:
            self._cut(word)

    # -- header block ----------------------------------------------------------------------------------------------

    def _take_head(self, data: bytes) -> None:
        block = self._held + data if self._held else data
        while self._state == _HEAD and not self.done:
            block = self._skip_blank(block)
            if not block or self.done:
                self._held = b""
                return
            if not starts_like_http(block):
                self._held = b""
                self._take_headless(block)
                return
            end = head_end(block, self._scanned)
            if end < 0:
                self._held = block
                self._scanned = max(0, len(block) - 2)
                if len(block) > self._head_bytes_max:
                    self._too_large(f"more than {self._head_bytes_max} bytes")
                return
            self._scanned = 0
            self._accept_head(block[:end])
            block = block[end:]
        self._held = b""
        if block and self.fault is None:
            self._dispatch(block)

    def _skip_blank(self, block: bytes) -> bytes:
        """Drop blank lines in front of the status line (RFC 9112 2.2 has that rule for requests)."""
        if not block.startswith((b"\r", b"\n")):
            return block
        stripped = block.lstrip(b"\r\n")
        self._note("leading-crlf")
        self._blank_bytes += len(block) - len(stripped)
        if self._blank_bytes > _BLANK_BYTES_MAX:
            self._refuse(Fault(Category.PROTOCOL_ERROR, "endless blank lines before the status line"))
        return stripped

    def _take_headless(self, block: bytes) -> None:
        """Bytes that are no status line: HTTP/0.9 where that may be, else garbage."""
        if not self.http09:
            self._refuse(Fault(Category.PROTOCOL_ERROR, f"no status line but {block[:40]!r}"))
            return
        self._note("http09")
        self.status = 200
        self._state = _UNTIL_CLOSE
        self._deliver(block)

    def _accept_head(self, block: bytes) -> None:
        """A complete header block: interim, final, or refused."""
        self.http09 = False
        if len(block) > self._head_bytes_max:
            self._too_large(f"{len(block)} bytes")
            return
        if block.count(b"\n") > self._head_lines_max + 2:
            self._too_large(f"more than {self._head_lines_max} lines")
            return
        head = read_head(block)
        if isinstance(head, str):
            self._refuse(Fault(Category.PROTOCOL_ERROR, head))
            return
        if head.quirks:
            self._adopt(head.quirks)
        if 100 <= head.status < 200 and head.status != 101:
            self._informational_left -= 1
            if self._informational_left < 0:
                self._refuse(Fault(Category.PROTOCOL_ERROR, "too many interim responses"))
            return
        self.status = head.status
        self.head = block
        self._begin_body(head)

    def _begin_body(self, head: Head) -> None:
        """How the body is delimited (RFC 9112 section 6.3)."""
        if not head.persistent or (head.codings and head.length is not None):
            self.reusable = False
        if head.status in (204, 304):
            # A 304 may carry the length of what was not sent; anything else promises a body that must not be.
            if head.codings or (head.status == 204 and head.length):
                self._note("body-forbidden")
            self._finish()
        elif head.status == 101:
            self._note("101")
            self._state = _UNTIL_CLOSE
        elif head.chunked_last:
            self._chunks = ChunkedDecoder(self._note, self._head_bytes_max)
            self._state = _CHUNKED
        elif head.codings or head.length is None or head.length < 0:
            self.reusable = False
            self._state = _UNTIL_CLOSE
        elif head.length == 0:
            self._finish()
        else:
            self._left = head.length
            self._state = _LENGTH

    def _end_in_head(self) -> None:
        held = self._held
        if b"\n" not in held:
            if held:
                self._refuse(Fault(Category.DISCONNECTED, "closed inside the status line"))
            else:
                self._refuse(Fault(Category.EMPTY_REPLY, "closed without an answer"))
            return
        head = read_head(held if held.endswith(b"\n") else held + b"\n")
        if isinstance(head, str):
            self._refuse(Fault(Category.PROTOCOL_ERROR, head))
            return
        if 100 <= head.status < 200:
            self._refuse(Fault(Category.DISCONNECTED, "closed after an interim response"))
            return
        self._note("head-eof")
        self.status = head.status
        self.head = held
        self._cut("disconnect")

    # -- body ------------------------------------------------------------------------------------------------------

    def _take_length(self, data: bytes) -> None:
        surplus = len(data) - self._left
        if surplus > 0:
            data = data[: self._left]
        self._left -= len(data)
        self._deliver(data)
        if not self._left and not self.done:
            self._finish()
            if surplus > 0:
                self._surplus()

    def _take_chunked(self, data: bytes) -> None:
        chunks = self._chunks
        assert chunks is not None
        payload = chunks.feed(data)
        if payload:
            self._deliver(payload)
            if self.done:
                return
        if chunks.broken:
            self._break_chunks(chunks.rest)
        elif chunks.done:
            self._finish()
            if chunks.rest:
                self._surplus()
        elif self.wire_bytes > _FRAMING_GRACE_BYTES and self.body_bytes * 3 < self.wire_bytes:
            self._cut("framing")

    def _break_chunks(self, rest: bytes) -> None:
        if self.body_bytes:
            self._note("bad-chunk")
            self._cut("framing")
        else:
            self._not_chunked(rest)

    def _not_chunked(self, rest: bytes) -> None:
        """The header lied: nothing of the body is in the chunked coding."""
        self._note("not-chunked")
        self._chunks = None
        self._state = _UNTIL_CLOSE
        self._deliver(rest)

    def _deliver(self, data: bytes) -> None:
        room = self._body_bytes_max - self.body_bytes
        if len(data) > room:
            if room:
                self._write(data[:room])
            self.body_bytes += room
            self._cut("length")
            return
        self.body_bytes += len(data)
        self._write(data)

    # -- ends ------------------------------------------------------------------------------------------------------

    def _surplus(self) -> None:
        if self.fault is None and not self.truncated:
            self._note("data-after-body")

    def _note(self, quirk: str) -> None:
        if quirk not in self.quirks:
            self.quirks.append(quirk)
            if quirk not in HARMLESS:
                self.reusable = False

    def _adopt(self, quirks: list[str]) -> None:
        for quirk in quirks:
            self._note(quirk)

    def _too_large(self, detail: str) -> None:
        self._refuse(Fault(Category.HEADERS_TOO_LARGE, f"header block has {detail}"))

    def _cut(self, word: str) -> None:
        self.truncated = word
        self.reusable = False
        self._finish()

    def _refuse(self, fault: Fault) -> None:
        self.fault = fault
        self.reusable = False
        self._finish()

    def _finish(self) -> None:
        self._state = _DONE
        self.done = True
