"""The chunked transfer coding (RFC 9112 section 7.1), taken off incrementally and leniently.

Pure. Keeps no payload: what a piece of input holds is returned at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]+)[ \t]*(?:;[^\n]*)?", re.DOTALL)
_SIZE_DIGITS_MAX = 12
_SIZE_LINE_BYTES_MAX = 4096

_READ_SIZE: Final = 0
_READ_DATA: Final = 1
_READ_END: Final = 2
_READ_TRAILER: Final = 3
_STOPPED: Final = 4


class ChunkedDecoder:
    """Feed it the body as it comes. `done`: the coding ended; `broken`: it cannot be read on; `rest`: unread bytes.

    `note` is called with a quirk word for every leniency, `trailer_bytes_max` bounds what may follow the last chunk.
    """

    __slots__ = ("_held", "_left", "_note", "_state", "_trailer_left", "broken", "done")

    def __init__(self, note: Callable[[str], None], trailer_bytes_max: int) -> None:
        self._note = note
        self._held = b""
        self._left = 0
        self._state = _READ_SIZE
        self._trailer_left = trailer_bytes_max
        self.done = False
        self.broken = False

    @property
    def rest(self) -> bytes:
        """Bytes that were fed and belong to no chunk: an unfinished line, or what came after the end."""
        return self._held

    @property
    def in_trailer(self) -> bool:
        """Whether the last chunk has been seen and the final blank line has not."""
        return self._state == _READ_TRAILER

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the coded body, give back the payload in it."""
        if self._state == _READ_DATA and len(data) < self._left:
            self._left -= len(data)
            return data
        block = self._held + data if self._held else data
        payload: list[bytes] = []
        position = 0
        # One step per line or run of data. Pieces are joined once: one-byte chunks must not cost a write each.
        while self._state != _STOPPED:
            if self._state == _READ_DATA:
                piece = block[position : position + self._left]
                payload.append(piece)
                position += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._state = _READ_END
            else:
                moved = self._step(block, position)
                if moved < 0:
                    break
                position = moved
        self._held = block[position:]
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _step(self, block: bytes, position: int) -> int:
        """Read one line at `position`; the offset behind it, or -1 when more input is needed."""
        if self._state == _READ_SIZE:
            return self._read_size(block, position)
        if self._state == _READ_END:
            return self._read_end(block, position)
        return self._read_trailer(block, position)

    def _read_end(self, block: bytes, position: int) -> int:
        """The line end behind the data of a chunk."""
        following = block[position : position + 2]
        if following == b"\r\n":
            position += 2
        elif not following or following == b"\r":
            return -1
        elif following[0] in b"\r\n":
            self._note("chunk-line-end")
            position += 1
        else:
            self._note("chunk-no-crlf")
        self._state = _READ_SIZE
        return position

    def _read_size(self, block: bytes, position: int) -> int:
        """A chunk size with its extensions, which mean nothing to us."""
        end = block.find(b"\n", position, position + _SIZE_LINE_BYTES_MAX)
        if end < 0:
            return self._break(position) if len(block) - position >= _SIZE_LINE_BYTES_MAX else -1
        line = block[position:end]
        match = _SIZE.fullmatch(line.removesuffix(b"\r"))
        digits = (match[1].lstrip(b"0") or b"0") if match else b""
        if not digits or len(digits) > _SIZE_DIGITS_MAX:
            return self._break(position)
        if not line.endswith(b"\r"):
            self._note("chunk-line-end")
        self._left = int(digits, 16)
        self._state = _READ_DATA if self._left else _READ_TRAILER
        return end + 1

    def _read_trailer(self, block: bytes, position: int) -> int:
        """A line of the trailer section; the empty one ends the coding."""
        end = block.find(b"\n", position)
        length = (len(block) if end < 0 else end + 1) - position
        if length > self._trailer_left:
            self._note("trailer-too-long")
            return self._finish(position)
        if end < 0:
            return -1
        self._trailer_left -= length
        line = block[position:end].removesuffix(b"\r")
        if not line.strip():
            if length == 1:
                self._note("chunk-line-end")
            return self._finish(end + 1)
        self._note("trailer")
        return end + 1

    def _finish(self, position: int) -> int:
        self._state = _STOPPED
        self.done = True
        return position

    def _break(self, position: int) -> int:
        self._state = _STOPPED
        self.broken = True
        return position
