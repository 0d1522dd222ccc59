"""The store in a process of its own.

It inherits one end of a socket pair, and the lock of the crawl folder, so that the folder stays taken until the last
write is durable. If the store process dies alone, every waiting call raises StoreBroken and so does every later one:
whether the last batch was committed is unknown, so the agent stops and a restart recovers from the file. It is not
restarted under a running agent, because a lease whose answer was lost would then lie idle until it lapsed, and a
process that dies once may die again.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Final

import msgspec

from amble.adapters.sql.connection import DRIVER, Database, Driver, open_reader, trouble_of
from amble.adapters.sql.messages import KeepSeeded, OpenStore
from amble.adapters.sql.near import NearIndex
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.sieve import Sieve
from amble.adapters.sql.statements import load
from amble.adapters.sql.wire import LINGER_S, StoreWire, hear_ready
from amble.domain.errors import StoreBroken, StoreUnavailable
from amble.domain.fetched import BodyRef, Fetched
from amble.domain.frontier import Applied, RecordFailed, RecordFetched

# How long the process may take to finish after the agent closed.
CLOSE_S: Final = 60.0
_WORK = load("work")
_FIND_BODY: Final = _WORK["find_body"]
_ANY_BODY: Final = _WORK["any_body"]


class StoreProcess(StoreWire):
    """ports.Frontier with the store in another process. Open with `start`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        process: asyncio.subprocess.Process,
        bodies: Database,
        *,
        linger_s: float = LINGER_S,
    ) -> None:
        """Use `start`."""
        super().__init__(reader, writer, linger_s=linger_s)
        self._process = process
        self._bodies = bodies
        self._near = NearIndex(bodies)
        self._sieve = None if bodies.execute(_ANY_BODY).fetchall() else Sieve()

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
            await hear_ready(reader)
            return cls(reader, writer, process, open_reader(path, driver=driver), linger_s=linger_s)
        except BaseException as error:
            writer.close()
            await process.wait()
            # A damaged page may be met by the first read only.
            trouble = trouble_of(error)
            if trouble is None:
                raise
            raise trouble from error

    @property
    def pid(self) -> int:
        """The store process."""
        return self._process.pid

    async def record_fetched(self, item: RecordFetched) -> Applied:
        """See ports.Frontier.record_fetched."""
        self._note_body(item.fetched)
        return await super().record_fetched(item)

    async def record_failed(self, item: RecordFailed) -> Applied:
        """See ports.Frontier.record_failed."""
        self._note_body(item.fetched)
        return await super().record_failed(item)

    def _note_body(self, fetched: Fetched | None) -> None:
        if self._sieve is not None and fetched is not None and fetched.digest is not None:
            self._sieve.add(fetched.digest)

    async def find_body(self, digest: bytes) -> BodyRef | None:
        """See ports.Frontier.find_body. A read of what is committed, so it needs neither the process nor a commit."""
        if self._sieve is not None and not self._sieve.may_hold(digest):
            return None
        try:
            # All of them, or the statement would stay open, and its snapshot would keep the log from being folded in.
            rows = self._bodies.execute(_FIND_BODY, (digest,)).fetchall()
        except Exception as error:
            if trouble_of(error) is None:
                raise
            return await super().find_body(digest)
        return BodyRef.unpack(rows[0][0]) if rows else None

    async def find_near(self, fingerprint: int) -> str | None:
        """See FrontierCalls.find_near. A read of what is committed, as `find_body`."""
        try:
            return self._near.twin_url(fingerprint)
        except Exception as error:
            if trouble_of(error) is None:
                raise
            return await super().find_near(fingerprint)

    async def keep_seeded(self, value: bytes) -> None:
        """Remember which seeds were admitted; SqliteReports.seeded tells. Raises StoreUnavailable, StoreBroken."""
        await self._call(KeepSeeded(value))

    async def close(self) -> None:
        """See ports.Frontier.close. While the file cannot be written this waits for at most a minute.

        Raises StoreUnavailable when that was too short, StoreBroken when the process failed at the end. After a
        death that callers have already been told of, it only cleans up.
        """
        told = self.broken
        self._bodies.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await super().close()
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            raise StoreUnavailable("the store process did not finish in time") from None
        if self._process.returncode and not told:
            raise StoreBroken(f"the store process ended with status {self._process.returncode}")
