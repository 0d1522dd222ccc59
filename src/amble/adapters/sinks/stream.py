"""Documents as JSON lines to a stream that nobody can look back into: standard output, a pipe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

import msgspec

from amble.domain.document import Document
from amble.domain.errors import SinkUnavailable


class JsonlStream:
    """Remembers its position only as long as it lives: each export to a stream begins at the first document."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._encode = msgspec.json.Encoder().encode
        self._position = 0

    def position(self) -> int:
        """The highest sequence number written."""
        return self._position

    def write(self, documents: Iterable[tuple[int, Document]]) -> int:
        """Write (sequence, document) pairs in ascending order. Raises SinkUnavailable when nobody reads any more."""
        try:
            for sequence, document in documents:
                if sequence > self._position:
                    self._stream.write(self._encode(document) + b"\n")
                    self._position = sequence
            self._stream.flush()
        except OSError as error:
            raise SinkUnavailable(f"the stream of documents ended early: {error.strerror}") from error
        return self._position

    def close(self) -> None:
        """The stream belongs to the caller."""
