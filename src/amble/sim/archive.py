"""The archive of a seed: records in memory that are durable from one instant on, with every fault of a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from amble.domain.errors import ArchiveBroken, ArchiveUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.record import NewRecord, StoredRecord
from amble.formats import warc
from amble.sim.clock import Actor, Dice
from amble.sim.faults import Fault, Weather
from amble.sim.history import History

_SEGMENT_BYTES_MAX = 20_000


class Disk:
    """What survives a crash. An offset is never used twice, torn or not."""

    def __init__(self) -> None:
        self.full = False
        self.records: dict[BodyRef, bytes] = {}
        self._segment, self._offset = 1, 0

    def write(self, blocks: Sequence[bytes]) -> list[BodyRef]:
        """All of one append, into one segment; durable."""
        refs = []
        for block in blocks:
            ref = BodyRef(self._segment, self._offset, len(block))
            self.records[ref] = block
            self._offset += len(block)
            refs.append(ref)
        if self._offset > _SEGMENT_BYTES_MAX:
            self.next_segment()
        return refs

    def next_segment(self) -> None:
        """Seal this one."""
        self._segment, self._offset = self._segment + 1, 0

    def tear(self, block: bytes) -> None:
        """Half a record at the end, never acknowledged: recovery cuts it off, and a new segment begins."""
        self._offset += len(block) // 2
        self.next_segment()

    def holds(self, ref: BodyRef | None) -> bool:
        """Whether a reference can be read."""
        return ref in self.records


class SimArchive:
    """ports.Archive of one agent's life on a disk that outlives it."""

    def __init__(self, disk: Disk, actor: Actor, weather: Weather, history: History, dice: Dice) -> None:
        self._disk, self._actor, self._weather, self._history, self._dice = (
            disk,
            actor,
            weather,
            history,
            dice,
        )
        self._pending: dict[int, bytes] = {}
        self._number = 0

    async def append(self, records: Sequence[NewRecord]) -> list[BodyRef]:
        """See ports.Archive."""
        blocks = [_bytes_of(record) for record in records]
        self._number += 1
        number = self._number
        self._pending[number] = blocks[-1]
        weather = self._weather
        await asyncio.sleep(self._dice.between(0.001, 0.02))
        if weather.strikes(Fault.ARCHIVE_LATE):
            await asyncio.sleep(weather.dice(Fault.ARCHIVE_LATE).longtail(1.0, 200.0))
        del self._pending[number]
        if self._disk.full:
            weather.note(Fault.ARCHIVE_FULL)
            raise ArchiveUnavailable("simulated: no space left")
        refs = self._disk.write(blocks)
        self._history.tell(
            self._actor.name, "archived", f"{records[0].warc_type} {refs[0]} and {len(refs) - 1} more"
        )
        if weather.strikes(Fault.CRASH_ARCHIVED):
            await _die(self._actor)
        await asyncio.sleep(self._dice.between(0.0005, 0.002))
        if weather.strikes(Fault.ARCHIVE_LOST_ANSWER):
            raise ArchiveUnavailable("simulated: the sync failed")
        return refs

    async def read(self, ref: BodyRef) -> StoredRecord:
        """See ports.Archive."""
        await asyncio.sleep(self._dice.between(0.0005, 0.005))
        if self._weather.strikes(Fault.ARCHIVE_READ_ERROR):
            raise ArchiveUnavailable("simulated: an error of the disk")
        block = self._disk.records.get(ref)
        if block is None:
            raise ArchiveBroken(f"there is no record at {ref}")
        return warc.read_record(block)

    async def probe(self) -> str | None:
        """See ports.Archive."""
        await asyncio.sleep(0.001)
        return "simulated: no space left" if self._disk.full else None

    async def close(self) -> None:
        """See ports.Archive."""
        self._disk.next_segment()

    def crash(self) -> None:
        """The process is gone: what was not acknowledged is not there, or half there."""
        if self._pending and self._weather.strikes(Fault.ARCHIVE_TORN):
            self._disk.tear(self._pending[max(self._pending)])
        else:
            self._disk.next_segment()


async def _die(actor: Actor) -> None:
    """The process ends here: nothing after this line happens."""
    actor.dies_at = actor.steps
    await asyncio.sleep(0)
    await asyncio.get_running_loop().create_future()


def _bytes_of(record: NewRecord) -> bytes:
    body = b"".join(record.body.pieces()) if record.body is not None else b""
    return warc.written_head(record).data + record.head + body + warc.RECORD_END
