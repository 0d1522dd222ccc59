"""Frontier calls over a socket: calls made together travel in one frame and share one transaction.

At most two frames are on their way, one being applied and one behind it; what is called meanwhile collects for the
next. Answers resolve calls in the order in which they were made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from amble.adapters.sql.client import FrontierCalls
from amble.adapters.sql.messages import (
    HEAD,
    REPLY_DECODERS,
    Admit,
    AnyOperation,
    FrameKind,
    decode_broken,
    decode_replies,
    decode_text,
    encode,
    frame,
)
from amble.domain.errors import (
    AmbleError,
    CrawlFolderUnusable,
    OperationRefused,
    StoreBroken,
    StoreUnavailable,
)
from amble.domain.pacing import linger_s

# Frames on their way at once: one being applied, one waiting behind it.
FRAMES_MAX: Final = 2
# Operations in one frame, so that a burst cannot make one endless transaction.
OPERATIONS_MAX: Final = 4_096
# Candidates in one frame: at the longest URLs that pass the gate, a few dozen megabytes.
CANDIDATES_MAX: Final = 16_384
LINGER_S: Final = 0.008
# The least linger when it follows the pages under way (`pace`).
LINGER_S_MIN: Final = 0.005
# The first call after a pause this long goes at once.
IDLE_S: Final = 0.05

Waiting = tuple[AnyOperation, "asyncio.Future[Any]"]
_ERRORS: dict[str, type[AmbleError]] = {
    kind.__name__: kind for kind in (CrawlFolderUnusable, StoreUnavailable, StoreBroken)
}


class StoreWire(FrontierCalls):
    """ports.Frontier at the agent's end of a connected socket; `Server` is at the other end.

    `trouble` is why the store cannot write now (it keeps trying, calls simply wait), else None; `on_trouble` is
    called with each new value.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, linger_s: float = LINGER_S
    ) -> None:
        """The READY frame has been read already."""
        self._reader, self._writer = reader, writer
        self._linger_s = linger_s
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Waiting] = deque()
        self._sent: deque[list[Waiting]] = deque()
        self._timer: asyncio.Handle | None = None
        self._last_sent_s = -IDLE_S
        self._ended: AmbleError | None = None
        self._settled = asyncio.Event()
        self._settled.set()
        self.trouble: str | None = None
        self.on_trouble: Callable[[str | None], None] = lambda _: None
        self._receiver = self._loop.create_task(self._receive(), name="frontier store replies")

    def pace(self, in_flight: int) -> None:
        """Linger in proportion to the pages under way (domain/pacing.py)."""
        self._linger_s = linger_s(in_flight, at_least_s=LINGER_S_MIN)

    async def _call(self, operation: AnyOperation) -> Any:
        if self._ended is not None:
            raise self._ended
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._pending.append((operation, waiter))
        self._settled.clear()
        self._schedule()
        return await waiter

    def _schedule(self) -> None:
        """Send soon: at the end of this turn of the loop after a pause, else when the linger is over."""
        if self._timer is not None or not self._pending or len(self._sent) >= FRAMES_MAX:
            return
        idle = not self._sent and self._loop.time() - self._last_sent_s >= IDLE_S
        if idle or not self._linger_s:
            self._timer = self._loop.call_soon(self._send)
        else:
            self._timer = self._loop.call_later(self._linger_s, self._send)

    def _send(self) -> None:
        self._timer = None
        if self._ended is not None or not self._pending or len(self._sent) >= FRAMES_MAX:
            return
        group = self._next_group()
        try:
            payload = encode([operation for operation, _ in group])
        except (OverflowError, TypeError, ValueError):
            group = _sendable(group)
            payload = encode([operation for operation, _ in group])
        if group:
            self._sent.append(group)
            self._last_sent_s = self._loop.time()
            self._writer.write(frame(FrameKind.OPERATIONS, payload))
        elif not self._sent and not self._pending:
            self._settled.set()
        self._schedule()

    def _next_group(self) -> list[Waiting]:
        """What goes into the next frame: the oldest calls, as many as the bounds allow and at least one."""
        group: list[Waiting] = []
        candidates = 0
        while self._pending and len(group) < OPERATIONS_MAX:
            operation = self._pending[0][0]
            if isinstance(operation, Admit):
                candidates += len(operation.value.candidates)
                if candidates > CANDIDATES_MAX and group:
                    break
            group.append(self._pending.popleft())
        return group

    async def _receive(self) -> None:
        """Until the store process closes: resolve the calls of each answered frame, in order."""
        ending: AmbleError = StoreBroken("the store process ended without a word; start again to recover")
        try:
            while True:
                kind, payload = await _read(self._reader)
                if kind == FrameKind.BROKEN:
                    ending = _error(payload)
                elif kind == FrameKind.TROUBLE:
                    self._hear_trouble(decode_text(payload))
                else:
                    self._resolve(payload)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except (msgspec.MsgspecError, ValueError, IndexError) as error:
            ending = StoreBroken(f"the store process answered nonsense: {error}")
        self._end(ending)

    def _hear_trouble(self, text: str) -> None:
        self.trouble = text or None
        self.on_trouble(self.trouble)

    def _resolve(self, payload: bytes) -> None:
        group = self._sent[0]  # stays here until all of it is understood: `_end` tells whoever still waits
        for (operation, waiter), (refused, reply) in zip(group, decode_replies(payload), strict=True):
            if waiter.done():
                continue  # the caller no longer waits; the operation is applied all the same
            if refused:
                waiter.set_exception(OperationRefused(decode_text(reply)))
            else:
                waiter.set_result(REPLY_DECODERS[type(operation)].decode(reply))
        self._sent.popleft()
        if not self._sent and not self._pending:
            self._settled.set()
        self._schedule()

    def _end(self, error: AmbleError) -> None:
        self._ended = self._ended or error
        groups: Sequence[list[Waiting]] = [*self._sent, list(self._pending)]
        self._sent.clear()
        self._pending.clear()
        for group in groups:
            for _, waiter in group:
                if not waiter.done():
                    waiter.set_exception(error)
        self._settled.set()

    def abandon(self, error: StoreUnavailable) -> None:
        """Wait for the store no longer: every call that waits raises `error`, and so does every later one.

        What waited may have been applied or not, as after a crash; the next owner finds out from the file.
        """
        self._end(error)

    @property
    def broken(self) -> bool:
        """Whether the connection has ended and callers have been told."""
        return self._ended is not None

    async def close(self) -> None:
        """See ports.Frontier.close: every call made is answered, then the connection ends."""
        await self._settled.wait()
        if self._ended is None:
            self._ended = StoreUnavailable("the store is closed")
        self._writer.close()
        await asyncio.gather(self._receiver, return_exceptions=True)


def _sendable(group: list[Waiting]) -> list[Waiting]:
    """The calls that can be put into a frame. The others (a lone surrogate, 65 bits) are refused, and only they."""
    kept: list[Waiting] = []
    for operation, waiter in group:
        try:
            encode(operation)
        except (OverflowError, TypeError, ValueError) as error:
            if not waiter.done():
                waiter.set_exception(OperationRefused(f"{type(operation).__doc__}: {error}"))
        else:
            kept.append((operation, waiter))
    return kept


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    length, kind = HEAD.unpack(await reader.readexactly(HEAD.size))
    return kind, await reader.readexactly(length)


async def hear_ready(reader: asyncio.StreamReader) -> None:
    """Wait until the store has opened its file. Raises the error that kept it from that."""
    try:
        kind, payload = await _read(reader)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise StoreBroken("the store process ended before it had opened the file") from error
    if kind == FrameKind.BROKEN:
        raise _error(payload)


def _error(payload: bytes) -> AmbleError:
    name, text = decode_broken(payload)
    return _ERRORS.get(name, StoreBroken)(text)
