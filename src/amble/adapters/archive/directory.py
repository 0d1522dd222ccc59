"""The archive on a folder: appends from the event loop to one writer thread with group commit, reads beside it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from msgspec import Struct

from amble.adapters.archive.member import Prepared, prepare
from amble.adapters.archive.names import explain
from amble.adapters.archive.reader import OPEN_FILES_MAX, SegmentReader
from amble.adapters.archive.writer import ArchiveLimits, SegmentWriter
from amble.domain.errors import ArchiveUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.pacing import linger_s
from amble.domain.record import NewRecord, StoredRecord
from amble.ports import Clock, Entropy

__all__ = ["ArchiveLimits", "DirectoryArchive"]

# Records up to this size together are compressed by the caller, larger ones by the writer thread.
PREPARED_BYTES_MAX = 256 * 1024


class _Append(Struct, frozen=True, eq=False):
    """Records that wait for the writer, and the future of the caller who waits for them."""

    records: Sequence[NewRecord]
    prepared: Sequence[Prepared]
    future: asyncio.Future[list[BodyRef]]


class _Batch(Struct, frozen=True, eq=False):
    """Appends that share a sync."""

    jobs: Sequence[_Append]


class _Probe(Struct, frozen=True, eq=False):
    future: asyncio.Future[str | None]


class _Stop:
    """Asks the writer to end."""


class DirectoryArchive:
    """`ports.Archive` on a folder of WARC segments.

    Does nothing until first used; then it recovers what an earlier run left, and seals it. The number of appends that
    wait is bounded by the callers, each of whom waits for its own. `info` are further lines of each warcinfo record
    (operator, robots policy, user agent). `sync` is `os.fdatasync` outside of tests.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        entropy: Entropy,
        *,
        limits: ArchiveLimits | None = None,
        info: Mapping[str, str] | None = None,
        open_files_max: int = OPEN_FILES_MAX,
        sync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        self._folder = folder
        self._limits = limits or ArchiveLimits()
        self._linger_s = self._limits.linger_s
        self._writer = SegmentWriter(folder, clock, entropy, limits=self._limits, info=info or {}, sync=sync)
        self._reader = SegmentReader(folder, open_files_max=open_files_max)
        self._queue: SimpleQueue[_Batch | _Probe | _Stop] = SimpleQueue()
        self._pending: list[_Append] = []
        self._pending_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="archive-read")
        self._thread: threading.Thread | None = None
        self._closed = False
        self._close_trouble: OSError | ArchiveUnavailable | None = None

    def pace(self, in_flight: int) -> None:
        """Wait for others in proportion to the pages under way, so that busy crawls share more of each sync."""
        self._linger_s = linger_s(in_flight, at_least_s=self._limits.linger_s)

    async def append(self, records: Sequence[NewRecord]) -> list[BodyRef]:
        """Append in order, into one segment; durable on return. Raises ArchiveUnavailable, then nothing is stored."""
        if not records:
            return []
        self._start()
        loop = asyncio.get_running_loop()
        job = _Append(records, self._prepare(records), loop.create_future())
        self._pending.append(job)
        self._pending_bytes += sum(record.block_bytes for record in records)
        if self._pending_bytes >= self._limits.batch_bytes_max:
            self._hand_over()
        elif self._timer is None:
            self._timer = loop.call_later(self._linger_s, self._hand_over)
        return await job.future

    def _prepare(self, records: Sequence[NewRecord]) -> Sequence[Prepared]:
        """Compress small records here and now: two threads that take turns at it cost more than the work itself."""
        warcinfo_id = self._writer.warcinfo_id
        if warcinfo_id is None or sum(record.block_bytes for record in records) > PREPARED_BYTES_MAX:
            return ()
        return [prepare(record, warcinfo_id) for record in records]

    def _hand_over(self) -> None:
        """What has gathered goes to the writer thread as one batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending:
            self._queue.put(_Batch(self._pending))
            self._pending, self._pending_bytes = [], 0

    async def read(self, ref: BodyRef) -> StoredRecord:
        """The record at `ref`. Raises ArchiveBroken when it is not there or not whole."""
        if self._closed:
            raise ArchiveUnavailable(f"archive {self._folder}: it is closed")
        return await asyncio.get_running_loop().run_in_executor(self._reads, self._reader.read, ref)

    async def file_name(self, serial: int) -> str:
        """The file that holds segment `serial` once it is sealed. Raises ArchiveBroken when there is none."""
        return await asyncio.get_running_loop().run_in_executor(self._reads, self._reader.file_name, serial)

    async def probe(self) -> str | None:
        """None when appends should work now, else the reason they cannot."""
        if self._closed:
            return f"archive {self._folder}: it is closed"
        self._start()
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._queue.put(_Probe(future))
        return await future

    async def close(self) -> None:
        """Finish what was accepted, seal the open segment, let go of all files. A second call does nothing.

        Raises ArchiveUnavailable when the segment could not be sealed: nothing is lost, the next start seals it.
        """
        if self._closed:
            return
        self._closed = True
        self._hand_over()
        if self._thread is not None:
            self._queue.put(_Stop())
            await asyncio.get_running_loop().run_in_executor(self._reads, self._thread.join)
        await asyncio.get_running_loop().run_in_executor(self._reads, self._reader.close)
        self._reads.shutdown()
        match self._close_trouble:
            case OSError() as error:
                raise ArchiveUnavailable(explain(error, self._folder)) from error
            case ArchiveUnavailable() as error:
                raise error
            case None:
                return

    def _start(self) -> None:
        if self._closed:
            raise ArchiveUnavailable(f"archive {self._folder}: it is closed")
        if self._thread is None:
            # A daemon: a process that ends without close() leaves what a crash leaves, and recovery handles that.
            self._thread = threading.Thread(target=self._run, name="archive-write", daemon=True)
            self._thread.start()

    # -- in the writer thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not isinstance(job := self._queue.get(), _Stop):
            match job:
                case _Batch():
                    self._serve(job.jobs)
                case _Probe():
                    _settle([(job, self._probe())])
        try:
            self._writer.close()
        except (OSError, ArchiveUnavailable) as error:
            self._close_trouble = error

    def _serve(self, jobs: Sequence[_Append]) -> None:
        """Stage, sync once, settle; in parts where a segment becomes full in between."""
        left = [job for job in jobs if not job.future.cancelled()]
        while left:
            left = self._serve_some(left)

    def _serve_some(self, jobs: list[_Append]) -> list[_Append]:
        """The jobs up to a full segment. Returns those behind it."""
        done: list[tuple[_Append | _Probe, object]] = []
        try:
            self._writer.make_ready()
            for job in jobs:
                done.append((job, None))
                done[-1] = (job, self._stage(job))
                if self._writer.full:
                    break
            self._writer.commit()
        except Exception as error:
            self._writer.roll_back()
            trouble = self._unavailable(error) if isinstance(error, OSError) else error
            _settle([(job, trouble) for job in jobs])
            return []
        _settle(done)
        self._seal_if_full()
        return jobs[len(done) :]

    def _stage(self, job: _Append) -> object:
        """References, or the exception that is this job's own fault."""
        try:
            return self._writer.stage(job.records, job.prepared)
        except (OSError, ArchiveUnavailable):
            raise
        except Exception as error:
            return error

    def _seal_if_full(self) -> None:
        if not self._writer.full:
            return
        try:
            self._writer.seal()
        except (OSError, ArchiveUnavailable):
            # What is in it is durable and acknowledged. The next append recovers, thus seals, it or reports why not.
            pass

    def _probe(self) -> str | None:
        try:
            self._writer.probe()
        except OSError as error:
            return explain(error, self._folder)
        except ArchiveUnavailable as error:
            return str(error)
        return None

    def _unavailable(self, error: OSError) -> ArchiveUnavailable:
        trouble = ArchiveUnavailable(explain(error, self._folder))
        trouble.__cause__ = error
        return trouble


def _settle(batch: Sequence[tuple[_Append | _Probe, object]]) -> None:
    """Resolve the futures of a batch, each on its own loop, with one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Append | _Probe, object]]] = {}
    for job, outcome in batch:
        by_loop.setdefault(job.future.get_loop(), []).append((job, outcome))
    for loop, outcomes in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, outcomes)
        except RuntimeError:
            continue  # the loop is closed: nobody waits any more


def _resolve(outcomes: Sequence[tuple[_Append | _Probe, object]]) -> None:
    for job, outcome in outcomes:
        if job.future.done():
            continue  # cancelled: what was written stays, as a record that nobody refers to
        if isinstance(outcome, BaseException):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)  # type: ignore[arg-type]
