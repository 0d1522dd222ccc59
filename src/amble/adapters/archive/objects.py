"""The archive on object storage: records gather into segments, each an immutable object, put once and acknowledged.

A segment is one WARC file: a warcinfo record and the records of many appends. An append returns when the store has
acknowledged the put that carries it. Its records name no warcinfo record: in WARC they then belong to the one before
them in the same file (clause 5.14), which stays true when compaction moves them, byte for byte, into a larger file.

A put is conditional (create only), so that nothing is ever overwritten. When its answer is lost it is repeated, and
"exists already" is settled by comparing: the same bytes are ours; others mean that the serial is taken, and the segment
is written under a new one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from amble import __version__
from amble.adapters.archive import objects_names as names
from amble.adapters.archive.member import open_member, prepare
from amble.adapters.archive.objects_map import Maps, Place, load_now
from amble.adapters.archive.objects_serials import ClaimedSerials
from amble.adapters.archive.objects_store import Bucket, ObjectTrouble
from amble.adapters.archive.objects_window import ReadWindows
from amble.domain.errors import ArchiveBroken, ArchiveUnavailable, StoreUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.pacing import PAGES_PER_S, PASSES
from amble.domain.record import NewRecord, StoredRecord
from amble.formats import warc
from amble.ports import Clock, Entropy

__all__ = ["ObjectArchive", "ObjectLimits", "Serials"]

# Gives out serials of segments, in blocks: never one twice, whoever asks.
Serials = Callable[[int], Awaitable[Sequence[int]]]

# Records up to this size together are compressed by the caller, larger ones in a thread.
PREPARED_BYTES_MAX = 256 * 1024
_TAKEN_MAX = 16  # serials in a row that somebody has used before: whoever gives them out is wrong
_BACKOFF_S_MAX = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLimits:
    """Bounds of the archive on object storage.

    A segment is put when it holds `segment_bytes_max` (compressed) or when its oldest append has waited `linger_s`;
    `pace` shortens the wait down to `linger_s_min` while few pages are under way. At most `puts_in_flight_max` puts run
    at once, and records of `pending_bytes_max` wait in memory; more appends wait to get in. A put is tried `put_tries`
    times within `put_total_s`, first after `retry_first_s`, then after twice as long each time. Reads get windows of
    `read_window_bytes` and keep `read_windows_max` of them (0 bytes: each record is got by itself).
    """

    segment_bytes_max: int = 8 << 20
    linger_s: float = 1.0
    linger_s_min: float = 0.05
    puts_in_flight_max: int = 8
    pending_bytes_max: int = 128 << 20
    put_tries: int = 5
    put_total_s: float = 60.0
    retry_first_s: float = 0.2
    serials_at_once: int = 16
    read_window_bytes: int = 0
    read_windows_max: int = 32


@dataclass(slots=True, eq=False)
class _Append:
    """The compressed records of one append, and the future of the caller who waits for their references."""

    members: list[bytes]
    future: asyncio.Future[list[BodyRef]]
    size: int


@dataclass(slots=True)
class _Gathering:
    """Appends that will share a put."""

    appends: list[_Append] = field(default_factory=list)
    size: int = 0


class ObjectArchive:
    """`ports.Archive` on a bucket. Does nothing until first used.

    `serials` gives out serials in blocks (the database does, where there is one); None: blocks are claimed in the
    bucket. `info` are further lines of each warcinfo record (operator, robots policy, user agent).
    """

    def __init__(
        self,
        bucket: Bucket,
        clock: Clock,
        entropy: Entropy,
        *,
        serials: Serials | None = None,
        limits: ObjectLimits | None = None,
        info: Mapping[str, str] | None = None,
    ) -> None:
        self._bucket = bucket
        self._clock = clock
        self._entropy = entropy
        self._limits = limits or ObjectLimits()
        self._info = dict(info or {})
        self._serials = _SerialStock(
            serials or ClaimedSerials(bucket), self._limits.serials_at_once, bucket.place
        )
        self._linger_s = self._limits.linger_s
        self._gathering = _Gathering()
        self._timer: asyncio.TimerHandle | None = None
        self._room = _Room(self._limits.pending_bytes_max)
        self._slots = asyncio.Semaphore(self._limits.puts_in_flight_max)
        self._compressing: set[asyncio.Future[list[bytes]]] = set()
        self._puts: set[asyncio.Task[None]] = set()
        self._windows = ReadWindows(bucket, self._limits.read_window_bytes, self._limits.read_windows_max)
        self._maps = Maps()
        self._maps_lock = asyncio.Lock()
        self._coder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="archive-code")
        self._past_known = False
        self._conditional = False  # whether the store has been seen to honour a conditional create
        self._closed = False

    def pace(self, in_flight: int) -> None:
        """Wait for others in proportion to the pages under way: a busy crawl pays for fewer puts, an idle one is quick."""
        wanted = in_flight / (PASSES * PAGES_PER_S)
        self._linger_s = min(self._limits.linger_s, max(self._limits.linger_s_min, wanted))

    # -- appends -------------------------------------------------------------------------------------------------------

    async def append(self, records: Sequence[NewRecord]) -> list[BodyRef]:
        """Append in order, into one segment; durable on return. Raises ArchiveUnavailable, then nothing counts as stored."""
        if not records:
            return []
        self._check_open()
        size = sum(record.block_bytes for record in records)
        await self._room.take(size)
        if self._closed:
            self._room.give(size)
            self._check_open()
        try:
            members = await self._compress(records) if size > PREPARED_BYTES_MAX else _members(records)
        except BaseException:
            self._room.give(size)
            raise
        return await self._gather(members, size)

    async def _compress(self, records: Sequence[NewRecord]) -> list[bytes]:
        """The members of large records, made in a thread."""
        work = asyncio.get_running_loop().run_in_executor(self._coder, _members, records)
        self._compressing.add(work)
        try:
            return await work
        finally:
            self._compressing.discard(work)

    def _gather(self, members: list[bytes], taken: int) -> asyncio.Future[list[BodyRef]]:
        """Join the growing segment, and put it if that fills it."""
        loop = asyncio.get_running_loop()
        append = _Append(members, loop.create_future(), sum(map(len, members)))
        self._room.correct(append.size - taken)
        self._gathering.appends.append(append)
        self._gathering.size += append.size
        if self._gathering.size >= self._limits.segment_bytes_max:
            self._hand_over()
        elif self._timer is None:
            self._timer = loop.call_later(self._linger_s, self._hand_over)
        return append.future

    def _hand_over(self) -> None:
        """What has gathered becomes a segment."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._gathering.appends:
            gathered, self._gathering = self._gathering, _Gathering()
            task = asyncio.get_running_loop().create_task(self._store(gathered))
            self._puts.add(task)
            task.add_done_callback(self._puts.discard)

    async def _store(self, gathered: _Gathering) -> None:
        """Put a segment and tell those who wait for it."""
        try:
            async with self._slots:
                waiting = [append for append in gathered.appends if not append.future.cancelled()]
                if waiting:
                    await self._store_for(waiting)
        finally:
            self._room.give(gathered.size)

    async def _store_for(self, waiting: Sequence[_Append]) -> None:
        try:
            serial, offset = await self._put([member for append in waiting for member in append.members])
        except BaseException as error:
            for append in waiting:
                if not append.future.done():
                    append.future.set_exception(_for_one(error))
            if not isinstance(error, Exception):
                raise
            return
        for append in waiting:
            refs: list[BodyRef] = []
            for member in append.members:
                refs.append(BodyRef(serial, offset, len(member)))
                offset += len(member)
            if not append.future.done():
                append.future.set_result(refs)

    # -- one segment ---------------------------------------------------------------------------------------------------

    async def _put(self, members: Sequence[bytes]) -> tuple[int, int]:
        """Store a segment. Returns its serial and the offset of the first member."""
        await self._know_the_past()
        for _ in range(_TAKEN_MAX):
            serial = await self._serials.take()
            if self._maps.knows(serial):
                continue  # its segment was moved and deleted: the key is free, the serial is not
            first = self._warcinfo(names.segment_key(serial))
            if await self._put_object(names.segment_key(serial), b"".join([first, *members])):
                return serial, len(first)
        raise ArchiveUnavailable(
            f"archive {self._bucket.place}: {_TAKEN_MAX} serials in a row were used before: "
            "whatever gives them out has gone back in time"
        )

    async def _know_the_past(self) -> None:
        """Read the maps before the first put, so that no serial of theirs is used again."""
        if self._past_known:
            return
        try:
            await self._load_maps()
        except ArchiveBroken as error:
            raise ArchiveUnavailable(str(error)) from error
        self._past_known = True

    async def _put_object(self, key: str, data: bytes) -> bool:
        """Whether `data` lies at `key`; False: something else does. Raises ArchiveUnavailable when nobody can tell."""
        deadline = self._clock.monotonic_s() + self._limits.put_total_s
        trouble: ObjectTrouble | None = None
        for tried in range(self._limits.put_tries):
            if tried:
                pause = self._limits.retry_first_s * 2 ** (tried - 1) * (0.5 + self._entropy.uniform())
                await self._clock.sleep(min(pause, _BACKOFF_S_MAX))
                if self._clock.monotonic_s() > deadline:
                    break
            try:
                if await self._bucket.create(key, data):
                    return True
                same = await asyncio.to_thread(self._bucket.same_now, key, data)
            except ObjectTrouble as error:
                if error.refused:
                    raise
                trouble = error
                continue
            if same is not None:  # None: another put of this key is under way, and may yet fail
                return same
        raise trouble or ObjectTrouble(f"archive {self._bucket.place}: puts to {key} stay in conflict")

    def _warcinfo(self, key: str) -> bytes:
        return prepare(
            warc.warcinfo(
                record_id=warc.record_id(self._entropy.token(16)),
                date_s=self._clock.wall_s(),
                filename=names.file_name(key),
                fields=warcinfo_fields(self._info),
            ),
            "",
        ).member

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, ref: BodyRef) -> StoredRecord:
        """The record at `ref`, wherever compaction has moved it. Raises ArchiveBroken when it is not there or not whole."""
        self._check_open()
        data = await self._read_places(self._maps.places(ref.segment, ref.offset, ref.length), ref.length)
        if data is None and await self._load_maps():
            data = await self._read_places(self._maps.places(ref.segment, ref.offset, ref.length), ref.length)
        return opened(data, ref, self._bucket.place)

    async def _read_places(self, places: Sequence[Place], length: int) -> bytes | None:
        for place in places:
            data = await self._windows.range(place.key, place.offset, length)
            if data is not None:
                return data
        return None

    async def _load_maps(self) -> bool:
        """Whether there are maps that were not known; those who ask together share an answer."""
        known = self._maps.next_number
        async with self._maps_lock:
            if self._maps.next_number > known:
                return True
            return await asyncio.to_thread(load_now, self._bucket, self._maps)

    async def file_name(self, serial: int) -> str:
        """The name of the file that holds segment `serial` now, as far as this archive has read the maps."""
        await self._load_maps()
        return self._maps.file_name(serial)

    # -- the rest ------------------------------------------------------------------------------------------------------

    async def probe(self) -> str | None:
        """None when appends should work now, else the reason they cannot. One or two small puts."""
        if self._closed:
            return f"archive {self._bucket.place}: it is closed"
        try:
            await self._bucket.replace(names.PROBE, b"")
            if not self._conditional and await self._bucket.create(names.PROBE, b""):
                return (
                    f"archive {self._bucket.place}: the store ignores If-None-Match, so that a repeated put could "
                    "overwrite a segment: use a store that honours conditional writes"
                )
        except ArchiveUnavailable as error:
            return str(error)
        self._conditional = True
        return None

    async def refusal(self) -> str | None:
        """Why appends will not work however long one waits (no such bucket, no right to write); None: not known of."""
        try:
            await self._bucket.replace(names.PROBE, b"")
        except ObjectTrouble as error:
            return str(error) if error.refused else None
        return None

    async def close(self) -> None:
        """Put what has gathered and wait for all puts. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._room.let_all_in()
        self._hand_over()
        while self._compressing or self._puts:
            under_way: list[asyncio.Future[Any]] = [*self._compressing, *self._puts]
            await asyncio.wait(under_way)
            await asyncio.sleep(0)  # those whose records are compressed now join a segment
            self._hand_over()
        self._coder.shutdown(wait=False)

    def _check_open(self) -> None:
        if self._closed:
            raise ArchiveUnavailable(f"archive {self._bucket.place}: it is closed")


class _SerialStock:
    """Serials in stock, refilled a block at a time."""

    def __init__(self, source: Serials, at_once: int, place: str) -> None:
        self._source = source
        self._at_once = at_once
        self._place = place
        self._stock: deque[int] = deque()
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """One serial. Raises ArchiveUnavailable when there are none to be had."""
        async with self._lock:
            if not self._stock:
                try:
                    self._stock.extend(await self._source(self._at_once))
                except StoreUnavailable as error:
                    raise ArchiveUnavailable(f"archive {self._place}: no serials now: {error}") from error
            if not self._stock:
                raise ArchiveUnavailable(f"archive {self._place}: no serials are left")
            serial = self._stock.popleft()
        if not 0 < serial <= names.SERIAL_MAX:
            raise ArchiveUnavailable(f"archive {self._place}: {serial} is no serial of a segment")
        return serial


class _Room:
    """Bytes that may be in memory at once. First come, first served; one that is larger than all waits until alone."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Wait for room and take it."""
        if not self._queue and self._fits(size):
            self._used += size
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(size)  # it was let in and cancelled at once
            raise

    def give(self, size: int) -> None:
        """Give room back."""
        self.correct(-size)

    def correct(self, by: int) -> None:
        """What was taken turned out to be so much more or less."""
        self._used += by
        self._admit(all_of_them=False)

    def let_all_in(self) -> None:
        """Nobody has to wait any longer."""
        self._admit(all_of_them=True)

    def _admit(self, *, all_of_them: bool) -> None:
        while self._queue and (all_of_them or self._fits(self._queue[0][0])):
            size, future = self._queue.popleft()
            if not future.done():
                self._used += size
                future.set_result(None)

    def _fits(self, size: int) -> bool:
        return self._used == 0 or self._used + size <= self._bytes_max


def warcinfo_fields(info: Mapping[str, str]) -> dict[str, str]:
    """What the warcinfo record of a segment says. Nothing of one machine or process: compaction joins equal ones only."""
    return {
        "software": f"amble/{__version__}",
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
        **info,
    }


def opened(data: bytes | None, ref: BodyRef, place: str) -> StoredRecord:
    """The record in the bytes that were found for `ref`. Raises ArchiveBroken."""
    if data is None:
        raise ArchiveBroken(f"record {ref}: segment {ref.segment} is not in {place}")
    if len(data) < ref.length:
        raise ArchiveBroken(f"record {ref} in {place}: the segment ends before it")
    try:
        return open_member(data)
    except ValueError as error:
        raise ArchiveBroken(f"record {ref} in {place}: {error}") from error


def _members(records: Sequence[NewRecord]) -> list[bytes]:
    """Each record as a gzip member. Raises ValueError, and whatever a body raises that cannot be read."""
    members = [prepare(record, "").member for record in records]
    longest = max(map(len, members))
    if longest > names.SERIAL_MAX:
        raise ValueError(f"a record of {longest} bytes cannot be referred to")
    return members


def _for_one(error: BaseException) -> BaseException:
    """An exception of its own for each who waits: one that is raised in many places mixes up their tracebacks."""
    if isinstance(error, ArchiveUnavailable):
        return ArchiveUnavailable(str(error))
    return (
        ArchiveUnavailable(f"the put was broken off: {error!r}")
        if isinstance(error, asyncio.CancelledError)
        else error
    )
