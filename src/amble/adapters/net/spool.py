"""Bodies while they arrive and after: in memory when small, in a nameless temporary file when large.

The file has no name at any time a crash could leave one behind, and is gone when the body is closed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

PIECE_BYTES_MAX: Final = 64 * 1024


class SpooledBody:
    """The bytes of one answer, readable many times. Implements `ports.ReplayableBody`."""

    __slots__ = ("_digest", "_file", "_length", "_memory")

    def __init__(self, memory: bytes, file: IO[bytes] | None, length: int, digest: bytes) -> None:
        self._memory = memory
        self._file = file
        self._length = length
        self._digest = digest

    @property
    def length(self) -> int:
        """Bytes in all."""
        return self._length

    @property
    def digest(self) -> bytes:
        """sha256 of the bytes."""
        return self._digest

    @property
    def in_memory(self) -> bool:
        """Whether the bytes are held in memory."""
        return self._file is None

    def pieces(self) -> Iterator[bytes]:
        """The bytes from the start: one piece if in memory, else pieces of at most 64 KiB.

        Several readers may be under way at once. Raises ValueError if the body was closed.
        """
        if self._file is None:
            if self._memory:
                yield self._memory
            return
        offset = 0
        while offset < self._length:
            # A position of its own for every reader: they share the descriptor, not the offset.
            piece = os.pread(self._file.fileno(), PIECE_BYTES_MAX, offset)
            assert piece, "spool file is shorter than what was written to it"
            offset += len(piece)
            yield piece

    def close(self) -> None:
        """Let go of the temporary file, if any. Harmless to repeat."""
        if self._file is not None:
            self._file.close()


class Spool:
    """Takes the pieces of one body, and turns into a `SpooledBody`. The digest is computed on the way."""

    __slots__ = ("_directory", "_file", "_hash", "_length", "_memory_bytes_max", "_pieces")

    def __init__(self, directory: Path, memory_bytes_max: int) -> None:
        self._directory = directory
        self._memory_bytes_max = memory_bytes_max
        self._pieces: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._length = 0
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Take the next piece. Raises OSError when the temporary file cannot be written."""
        self._hash.update(data)
        self._length += len(data)
        if self._file is None:
            self._pieces.append(data)
            if self._length > self._memory_bytes_max:
                self._spill()
        else:
            self._file.write(data)

    def _spill(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        # It lives as long as the body that is made of it, not as long as a block of code.
        self._file = tempfile.TemporaryFile(dir=self._directory, prefix="body-", buffering=PIECE_BYTES_MAX)  # noqa: SIM115
        self._file.writelines(self._pieces)
        self._pieces.clear()

    def finish(self) -> SpooledBody:
        """Everything that was written. Raises OSError when the last of it cannot be written."""
        pieces = self._pieces
        if self._file is not None:
            self._file.flush()
        memory = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return SpooledBody(memory, self._file, self._length, self._hash.digest())

    def discard(self) -> None:
        """Drop it all. Never raises."""
        self._pieces.clear()
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                pass  # what was still buffered does not fit on the disk; the descriptor is closed all the same
