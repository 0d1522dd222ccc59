"""A canary: listens where no crawler may ever connect, and remembers who did.

Used to prove that refused destinations are not merely answered badly but never dialled. It accepts and at once closes,
so that a forbidden connection costs nothing and is counted even if no byte is sent.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True, slots=True)
class Touch:
    """One connection attempt: wall time in seconds, the address dialled, the peer."""

    at_s: float
    address: str
    port: int
    peer: str


class Canary:
    """Listeners on the given addresses, all on one port. A context manager; `touches` is the evidence.

    Addresses that this machine does not have (10.0.0.1, 169.254.169.254) cannot be listened on without privileges;
    tests stand loopback addresses outside the crawl's allowed range in for them.
    """

    def __init__(self, *addresses: str, port: int = 0) -> None:
        self.addresses = addresses or ("127.66.0.1",)
        self.port = port
        self.touches: list[Touch] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._touched = threading.Event()

    def __enter__(self) -> Canary:
        for address in self.addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, self.port))
            listener.listen(64)
            self.port = listener.getsockname()[1]
            thread = threading.Thread(target=self._watch, args=(listener, address), daemon=True)
            thread.start()
            self._sockets.append(listener)
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        for listener in self._sockets:
            try:
                listener.shutdown(socket.SHUT_RDWR)  # wakes the accept
            except OSError:
                pass
        for thread in self._threads:
            thread.join(timeout=5)
        for listener in self._sockets:
            listener.close()

    def _watch(self, listener: socket.socket, address: str) -> None:
        while True:
            try:
                connection, peer = listener.accept()
            except OSError:
                return
            connection.close()
            with self._lock:
                self.touches.append(Touch(time.time(), address, self.port, f"{peer[0]}:{peer[1]}"))
            self._touched.set()

    @property
    def silent(self) -> bool:
        """Whether nobody has connected so far."""
        with self._lock:
            return not self.touches

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first touch; whether there was one in time."""
        return self._touched.wait(timeout_s)
