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
        self._positions: dict[int, int] = {}

    def position(self, partition: int = 0) -> int:
        """The highest sequence number of a partition that was written."""
        return self._positions.get(partition, 0)

    def write(self, documents: Iterable[tuple[int, Document]], partition: int = 0) -> int:
        """Write (sequence, document) pairs of a partition in ascending order. Raises SinkUnavailable when nobody reads any more."""
        try:
            for sequence, document in documents:
                if sequence > self.position(partition):
                    self._stream.write(self._encode(document) + b"\n")
                    self._positions[partition] = sequence
            self._stream.flush()
        except OSError as error:
            raise SinkUnavailable(f"the stream of documents ended early: {error.strerror}") from error
        return self.position(partition)

    def close(self) -> None:
        """The stream belongs to the caller."""
