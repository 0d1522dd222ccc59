"""The agent's side of the store process: calls made together travel in one frame and share one transaction.

The store process inherits one end of a socket pair, and the lock of the crawl folder, so that the folder stays taken
until the last write is durable. If the store process dies alone, every waiting call raises StoreBroken and so does
every later one: whether the last batch was committed is unknown, so the agent stops and a restart recovers from the
file. It is not restarted under a running agent, because a lease whose answer was lost would then lie idle until it
lapsed, and a process that dies once may die again.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from amble.adapters.sql.client import FrontierCalls
from amble.adapters.sql.connection import DRIVER, Driver
from amble.adapters.sql.messages import (
    HEAD,
    REPLY_DECODERS,
    AnyOperation,
    FrameKind,
    OpenStore,
    decode_broken,
    decode_replies,
    decode_text,
    encode,
    frame,
)
from amble.adapters.sql.settings import StoreSettings
from amble.domain.errors import AmbleError, CrawlFolderUnusable, StoreBroken, StoreUnavailable

# Frames on their way at once: one being applied, one waiting behind it.
FRAMES_MAX: Final = 2
# Operations in one frame, so that a burst cannot make one endless transaction.
OPERATIONS_MAX: Final = 4_096
LINGER_S: Final = 0.008
# The first call after a pause this long goes at once.
IDLE_S: Final = 0.05
# How long the process may take to finish after the agent closed.
CLOSE_S: Final = 60.0

Waiting = tuple[AnyOperation, "asyncio.Future[Any]"]
_ERRORS: dict[str, type[AmbleError]] = {
    kind.__name__: kind for kind in (CrawlFolderUnusable, StoreUnavailable, StoreBroken)
}


class StoreProcess(FrontierCalls):
    """ports.Frontier in a process of its own. Open with `start`.

    `trouble` is why the store cannot write now (it keeps trying, calls simply wait), else None; `on_trouble` is
    called with each new value.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        process: asyncio.subprocess.Process,
        *,
        linger_s: float = LINGER_S,
    ) -> None:
        """Use `start`."""
        self._reader, self._writer, self._process = reader, writer, process
        self._linger_s = linger_s
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Waiting] = deque()
        self._sent: deque[list[Waiting]] = deque()
        self._timer: asyncio.Handle | None = None
        self._last_sent_s = 0.0
        self._ended: AmbleError | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.trouble: str | None = None
        self.on_trouble: Callable[[str | None], None] = lambda _: None
        self._receiver = self._loop.create_task(self._receive(), name="frontier store replies")

    @classmethod
    async def start(
        cls,
        path: Path | str,
        settings: StoreSettings | None = None,
        *,
        driver: Driver = DRIVER,
        lock_fd: int | None = None,
        linger_s: float = LINGER_S,
    ) -> StoreProcess:
        """Start the process and wait until it has opened the file.

        `lock_fd`: an open file that the process keeps open as long as it lives (the lock of the crawl folder).
        Raises CrawlFolderUnusable, StoreUnavailable or StoreBroken when the file cannot be opened.
        """
        ours, theirs = socket.socketpair()
        try:
            options = OpenStore(path=str(path), driver=driver, settings=settings or StoreSettings())
            kept = (theirs.fileno(),) if lock_fd is None else (theirs.fileno(), lock_fd)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "amble.adapters.sql.server",
                str(theirs.fileno()),
                msgspec.json.encode(options).decode(),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=kept,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
        try:
            await _hear_ready(reader)
        except BaseException:
            writer.close()
            await process.wait()
            raise
        return cls(reader, writer, process, linger_s=linger_s)

    @property
    def pid(self) -> int:
        """The store process."""
        return self._process.pid

    async def _call(self, operation: AnyOperation) -> Any:
        if self._ended is not None:
            raise self._ended
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._pending.append((operation, waiter))
        self._quiet.clear()
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
        group = [self._pending.popleft() for _ in range(min(len(self._pending), OPERATIONS_MAX))]
        self._sent.append(group)
        self._last_sent_s = self._loop.time()
        self._writer.write(frame(FrameKind.OPERATIONS, encode([operation for operation, _ in group])))
        self._schedule()

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
        except msgspec.MsgspecError as error:
            ending = StoreBroken(f"the store process answered nonsense: {error}")
        self._end(ending)

    def _hear_trouble(self, text: str) -> None:
        self.trouble = text or None
        self.on_trouble(self.trouble)

    def _resolve(self, payload: bytes) -> None:
        group = self._sent.popleft()
        for (operation, waiter), (refused, reply) in zip(group, decode_replies(payload), strict=True):
            if waiter.done():
                continue  # the caller no longer waits; the operation is applied all the same
            if refused:
                waiter.set_exception(StoreBroken(decode_text(reply)))
            else:
                waiter.set_result(REPLY_DECODERS[type(operation)].decode(reply))
        if not self._sent and not self._pending:
            self._quiet.set()
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
        self._quiet.set()

    async def close(self) -> None:
        """See ports.Frontier.close. While the file cannot be written this waits for at most a minute.

        Raises StoreUnavailable when that was too short, StoreBroken when the process failed at the end. After a
        death that callers have already been told of, it only cleans up.
        """
        told = self._ended is not None
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._quiet.wait()
                if self._ended is None:
                    self._ended = StoreUnavailable("the store is closed")
                self._writer.close()
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            raise StoreUnavailable("the store process did not finish in time") from None
        finally:
            self._receiver.cancel()
            await asyncio.gather(self._receiver, return_exceptions=True)
        if self._process.returncode and not told:
            raise StoreBroken(f"the store process ended with status {self._process.returncode}")


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    length, kind = HEAD.unpack(await reader.readexactly(HEAD.size))
    return kind, await reader.readexactly(length)


async def _hear_ready(reader: asyncio.StreamReader) -> None:
    try:
        kind, payload = await _read(reader)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise StoreBroken("the store process ended before it had opened the file") from error
    if kind == FrameKind.BROKEN:
        raise _error(payload)


def _error(payload: bytes) -> AmbleError:
    name, text = decode_broken(payload)
    return _ERRORS.get(name, StoreBroken)(text)
