"""The store process: `python -m amble.adapters.sql.server FD OPTIONS`. Owns the frontier file; talks over one socket.

A plain blocking loop: take every frame that waits, apply all of their operations in one transaction, answer each
frame. It ends when the agent closes its end, after everything it had received is durable. Signals from a terminal
are ignored: the agent decides when the store may go.
"""

from __future__ import annotations

import gc
import select
import signal
import socket
import sys
import time
from typing import Any

import msgspec

from amble.adapters.sql.connection import Driver, trouble_of
from amble.adapters.sql.messages import (
    FRAME_BYTES_MAX,
    HEAD,
    AnyOperation,
    Expire,
    FrameKind,
    OpenStore,
    decode_operations,
    encode,
    frame,
    pack_replies,
)
from amble.adapters.sql.sqlite import SqliteStore
from amble.domain.errors import AmbleError, StoreBroken, StoreUnavailable

_READ_BYTES = 1 << 18
# Between two tries of a batch that could not be written.
_RETRY_S = 0.5
# So long after a stall no lease lapses: what the agent has in hand arrives first.
_SETTLE_S = 5.0
# Without a frame for this long the store is quiet.
_QUIET_S = 1.0


class Inbox:
    """Frames out of a byte stream."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._poll = select.poll()
        self._poll.register(peer, select.POLLIN)
        self._buffer = bytearray()
        self.closed = False

    def take(self) -> list[bytes]:
        """Every whole frame received so far; waits for one. Empty when the agent has closed or nothing came in time."""
        frames = self._cut()
        while not frames and not self.closed:
            if not self._waits(_QUIET_S):
                return []
            self._fill()
            frames = self._cut()
        while not self.closed and self._waits(0):
            self._fill()
        return frames + self._cut()

    def _waits(self, seconds: float) -> bool:
        return bool(self._poll.poll(seconds * 1000))

    def _fill(self) -> None:
        try:
            piece = self._peer.recv(_READ_BYTES)
        except ConnectionError:
            piece = b""
        self.closed = not piece
        self._buffer += piece

    def _cut(self) -> list[bytes]:
        frames, at = [], 0
        while len(self._buffer) - at >= HEAD.size:
            length, _ = HEAD.unpack_from(self._buffer, at)
            if length > FRAME_BYTES_MAX:
                raise StoreBroken(f"a frame of {length} bytes")
            end = at + HEAD.size + length
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[at + HEAD.size : end]))
            at = end
        del self._buffer[:at]
        return frames

    def left(self, seconds: float) -> bool:
        """Wait; True when the agent has closed meanwhile."""
        if self._waits(seconds):
            self._fill()
        return self.closed


class Server:
    """One agent, one file."""

    def __init__(self, peer: socket.socket, store: SqliteStore) -> None:
        self._peer = peer
        self._store = store
        self._inbox = Inbox(peer)
        self._trouble = ""
        self._settled_s = 0.0

    def run(self) -> None:
        """Serve until the agent closes."""
        while True:
            frames = self._inbox.take()
            if frames:
                self._serve([decode_operations(payload) for payload in frames])
            elif self._inbox.closed:
                return
            self._checkpoint(quiet=not frames)

    def _serve(self, groups: list[list[AnyOperation]]) -> None:
        operations = [operation for group in groups for operation in group]
        replies = self._apply(operations)
        at = 0
        for group in groups:
            self._send(FrameKind.REPLIES, pack_replies(replies[at : at + len(group)]))
            at += len(group)

    def _apply(self, operations: list[AnyOperation]) -> list[Any]:
        """Apply, and while the file cannot be written keep trying: the agent is told and simply waits."""
        if time.monotonic() < self._settled_s:
            operations = _without_expiry(operations)
        replies: list[Any] = []
        while len(replies) < len(operations):
            try:
                replies += self._store.apply(operations[len(replies) :])
            except StoreUnavailable as error:
                self._tell(str(error))
                if self._inbox.left(_RETRY_S):
                    raise
                self._settled_s = time.monotonic() + _SETTLE_S
                operations = _without_expiry(operations)
        self._tell("")
        return replies

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._send(FrameKind.TROUBLE, encode(trouble))

    def _checkpoint(self, *, quiet: bool) -> None:
        try:
            self._store.checkpoint(quiet=quiet)
        except Exception as error:
            if not isinstance(trouble_of(error), StoreUnavailable):
                raise

    def _send(self, kind: FrameKind, payload: bytes) -> None:
        try:
            self._peer.sendall(frame(kind, payload))
        except ConnectionError:
            pass  # the agent is gone; what it asked for is durable all the same


def _without_expiry(operations: list[AnyOperation]) -> list[AnyOperation]:
    """A sweep in or right after a stall would lapse leases whose answers wait behind it."""
    return [Expire(0) if isinstance(operation, Expire) else operation for operation in operations]


def main(arguments: list[str]) -> int:
    """Serve on the inherited socket. Exit status 0: everything received is durable."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    peer = socket.socket(fileno=int(arguments[0]))
    options = msgspec.json.decode(arguments[1], type=OpenStore)
    try:
        serve(peer, options)
    except AmbleError as error:
        try:
            peer.sendall(frame(FrameKind.BROKEN, encode((type(error).__name__, str(error)))))
        except OSError:
            pass
        return 1
    return 0


def serve(peer: socket.socket, options: OpenStore) -> None:
    """Open the file, say so, serve, close. Raises the AmbleError that ended it."""
    driver: Driver = "sqlite3" if options.driver == "sqlite3" else "apsw"
    store = SqliteStore(options.path, options.settings, driver=driver)
    try:
        # What was loaded stays: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        peer.sendall(frame(FrameKind.READY, encode(driver)))
        Server(peer, store).run()
    finally:
        store.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
