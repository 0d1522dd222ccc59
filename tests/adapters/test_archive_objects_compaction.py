"""Compaction on object storage: old references hold through every step, crash and race; nothing is deleted too early."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from warcio.checker import Checker

from amble.adapters.archive import objects_compaction
from amble.adapters.archive import objects_names as names
from amble.adapters.archive.objects import ObjectArchive, ObjectLimits
from amble.adapters.archive.objects_compaction import CompactionLimits, CompactionReport, Compactor
from amble.adapters.archive.objects_map import CompactionMap, Maps, Move, load_now
from amble.adapters.archive.objects_open import open_archive_url, open_bucket
from amble.adapters.archive.objects_reader import ObjectReader, index_lines, verify_objects
from amble.adapters.archive.objects_store import Bucket
from amble.adapters.system import SystemClock, SystemEntropy
from amble.domain.errors import ArchiveBroken, ArchiveUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.record import NewRecord
from amble.formats import cdxj
from tests.support.exchanges import Ids, page, response
from tests.support.s3 import S3Server

DAY_S = 86400.0
STEPS = ("gathered", "uploaded", "indexed", "mapped", "deleted")


class LaterClock(SystemClock):
    """The wall clock so many seconds from now."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s

    def wall_s(self) -> float:
        return super().wall_s() + self.ahead_s


class Crash(Exception):
    """The process ends here."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server.running(tmp_path_factory.mktemp("s3")) as server:
        yield server


class Place:
    """One archive whose objects are files in `root`, and everything that a test does with it."""

    def __init__(self, url: str, environment: dict[str, str], root: Path) -> None:
        self.url = url
        self.environment = environment
        self.root = root
        self.ids = Ids()
        self.stored: list[tuple[BodyRef, NewRecord]] = []
        self.bucket = self.open_bucket()

    def open_bucket(self) -> Bucket:
        return open_bucket(self.url, environment=self.environment)

    def archive(self, info: dict[str, str] | None = None) -> ObjectArchive:
        return open_archive_url(
            self.url,
            SystemClock(),
            SystemEntropy(),
            info=info,
            limits=ObjectLimits(segment_bytes_max=1, retry_first_s=0.01),
            environment=self.environment,
        )

    async def fill(self, segments: int, info: dict[str, str] | None = None) -> None:
        """So many segments, each with a page."""
        archive = self.archive(info)
        await asyncio.gather(*(self.store(archive, page(self.ids, number)) for number in range(segments)))
        await archive.close()

    async def store(self, archive: ObjectArchive, records: Sequence[NewRecord]) -> None:
        refs = await archive.append(records)
        self.stored += zip(refs, records, strict=True)

    async def compact(
        self,
        *,
        ahead_s: float = 0.0,
        on_step: Callable[[str], None] = lambda _: None,
        everything: bool = True,
        **limits: float,
    ) -> CompactionReport:
        bounds = CompactionLimits(**{"target_bytes": 1 << 20, **limits})  # type: ignore[arg-type]
        compactor = Compactor(
            self.open_bucket(), LaterClock(ahead_s), SystemEntropy(), limits=bounds, on_step=on_step
        )
        return await compactor.run(everything=everything)

    async def unreadable(self) -> list[BodyRef]:
        """What cannot be read of all that was acknowledged, by a new archive and by a new reader."""
        archive, reader = self.archive(), ObjectReader(self.open_bucket())
        lost = []
        for ref, record in self.stored:
            try:
                found = [await archive.read(ref), await asyncio.to_thread(reader.read, ref)]
            except ArchiveBroken:
                lost.append(ref)
                continue
            assert {stored.record_id for stored in found} == {record.record_id}
        await archive.close()
        return lost

    def keys(self, folder: str) -> list[str]:
        found = (self.root / folder).rglob("*")
        return sorted(path.relative_to(self.root).as_posix() for path in found if path.is_file())

    def file(self, key: str) -> Path:
        return self.root / key

    def problems(self) -> list[str]:
        return [str(problem) for problem in verify_objects(self.open_bucket())]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_compaction, "_CREATE_PAUSE_S", 0.01)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """In a folder: the same code, and quick."""
    return Place(f"file://{tmp_path}/archive", {}, tmp_path / "archive")


@pytest.fixture
def s3(server: S3Server) -> Iterator[S3Server]:
    server.calls.clear()
    yield server
    server.heal()


@pytest.fixture
def s3_place(s3: S3Server, tmp_path: Path) -> Place:
    """In a bucket, over HTTP."""
    return Place(s3.url(tmp_path.name), s3.environment(), s3.path(tmp_path.name))


# -- what it makes -------------------------------------------------------------------------------------------------------


async def test_small_segments_become_a_large_one_and_every_reference_holds(s3_place: Place) -> None:
    await s3_place.fill(12)
    report = await s3_place.compact()
    assert (report.made, report.moved, report.deleted) == (1, 12, 0)
    assert await s3_place.unreadable() == []
    assert (await s3_place.compact(ahead_s=2 * DAY_S)).deleted == 12
    assert s3_place.keys("segments") == []
    assert len(s3_place.keys("large")) == 2
    assert await s3_place.unreadable() == []
    assert s3_place.problems() == []


async def test_a_large_object_is_a_valid_file_with_one_warcinfo_record(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await place.fill(10, {"operator": "somebody"})
    await place.compact()
    [key, _] = sorted(place.keys("large"), key=lambda key: key.endswith(".cdxj"))
    path = tmp_path / names.file_name(key)
    path.write_bytes(place.file(key).read_bytes())
    assert Checker(SimpleNamespace(inputs=[str(path)], verbose=True)).process_all() == 0
    assert "fail" not in capsys.readouterr().out
    with path.open("rb") as file:
        records = [
            (record.record_type, dict(record.headers.items()))
            for record in ArchiveIterator(file, parse_http=False)
        ]
    assert [kind for kind, _ in records].count(WarcRecordType.warcinfo) == 1
    assert records[0][1]["WARC-Filename"] == path.name
    assert {headers["WARC-Record-ID"] for _, headers in records[1:]} == {r.record_id for _, r in place.stored}
    assert not any("WARC-Warcinfo-ID" in headers for _, headers in records)


async def test_the_index_finds_each_capture_in_the_large_object(place: Place) -> None:
    await place.fill(10)
    await place.compact()
    reader = ObjectReader(place.bucket)
    [segment] = reader.segments()
    lines = index_lines(place.bucket, segment)
    assert lines == sorted(lines)
    assert len(lines) == 10
    for line in lines:
        entry = cdxj.parse_line(line)[2]
        stored = reader.read(BodyRef(segment.serial, int(entry.offset), int(entry.length)))
        assert stored.headers["WARC-Target-URI"] == entry.url
        assert entry.filename == segment.file_name


async def test_segments_that_were_not_compacted_have_their_index_made(place: Place) -> None:
    await place.fill(3)
    lines = [index_lines(place.bucket, segment) for segment in ObjectReader(place.bucket).segments()]
    assert [len(each) for each in lines] == [1, 1, 1]


async def test_large_objects_are_filled_up_to_the_target(place: Place) -> None:
    await place.fill(40)
    size = place.file(place.keys("segments")[0]).stat().st_size
    report = await place.compact(everything=False, target_bytes=size * 12)
    assert report.made == 2
    assert all(place.file(key).stat().st_size <= size * 12 for key in place.keys("large"))
    left = 40 - report.moved
    assert (await place.compact(everything=False, target_bytes=size * 12)).made == 0
    assert (await place.compact(everything=True, target_bytes=size * 12)).moved == left
    assert await place.unreadable() == []
    assert place.problems() == []


async def test_segments_that_are_large_already_stay_as_they_are(place: Place) -> None:
    await place.fill(4)
    archive = place.archive()
    await place.store(archive, [response(place.ids, SystemEntropy().token(100_000))])
    await archive.close()
    report = await place.compact(target_bytes=100_000)
    assert report.moved == 4
    assert await place.unreadable() == []


async def test_segments_of_different_settings_are_not_mixed(place: Place) -> None:
    for operator in ("one", "other"):
        await place.fill(4, {"operator": operator})
    report = await place.compact()
    assert (report.made, report.moved) == (2, 8)
    assert await place.unreadable() == []
    assert place.problems() == []


async def test_segments_of_mixed_settings_are_fetched_twice_at_most(s3: S3Server, s3_place: Place) -> None:
    for number in range(9):
        await s3_place.fill(1, {"operator": "one" if number % 2 else "other"})
    size = s3_place.file(s3_place.keys("segments")[0]).stat().st_size
    s3.calls.clear()
    report = await s3_place.compact(target_bytes=size * 3)
    assert report.moved >= 8
    fetches = [call.key for call in s3.calls if call.method == "GET" and "segments/" in call.key]
    assert max(fetches.count(key) for key in fetches) <= 2
    assert await s3_place.unreadable() == []


async def test_the_same_records_in_two_segments_do_not_meet_in_one_file(place: Place) -> None:
    records = page(place.ids, 1)
    archive = place.archive()
    for _ in range(2):
        await place.store(archive, records)
        await place.store(archive, page(place.ids, 2))
    await archive.close()
    await place.compact()
    await place.compact(ahead_s=2 * DAY_S)
    assert place.problems() == []
    assert await place.unreadable() == []


async def test_a_damaged_segment_is_left_alone_and_told(place: Place) -> None:
    await place.fill(6)
    key = place.keys("segments")[2]
    data = bytearray(place.file(key).read_bytes())
    data[-20] ^= 0x55
    place.file(key).write_bytes(data)
    report = await place.compact(ahead_s=2 * DAY_S)
    assert report.moved == 5
    assert [problem.file for problem in report.problems] == [key]
    await place.compact(ahead_s=4 * DAY_S)
    assert key in place.keys("segments")
    assert len(place.problems()) == 1
    assert len(await place.unreadable()) == 1


async def test_nothing_is_done_for_a_single_segment_or_none(place: Place) -> None:
    assert (await place.compact()).made == 0
    await place.fill(1)
    assert (await place.compact()).made == 0
    assert place.keys("large") == []


# -- readers beside it ---------------------------------------------------------------------------------------------------


async def test_readers_go_on_while_segments_are_compacted_and_deleted(place: Place) -> None:
    await place.fill(8)
    archive, reader = place.archive(), ObjectReader(place.open_bucket())
    assert reader.read(place.stored[0][0]).record_id == place.stored[0][1].record_id
    steps: list[str] = []

    def look(step: str) -> None:
        steps.append(step)
        for ref, record in place.stored:
            assert reader.read(ref).record_id == record.record_id
        future = asyncio.run_coroutine_threadsafe(read_all(), loop)
        assert future.result(20) == [record.record_id for _, record in place.stored]

    async def read_all() -> list[str]:
        return [(await archive.read(ref)).record_id for ref, _ in place.stored]

    loop = asyncio.get_running_loop()
    await place.compact(on_step=look)
    await place.compact(on_step=look, ahead_s=2 * DAY_S)
    assert steps == [*STEPS[:4], *["deleted"] * 8]
    await archive.close()


async def test_references_beside_a_record_stay_broken_after_it_was_moved(place: Place) -> None:
    await place.fill(4)
    await place.compact()
    await place.compact(ahead_s=2 * DAY_S)
    archive = place.archive()
    [first, second] = sorted((ref for ref, _ in place.stored if ref.segment == 1), key=lambda ref: ref.offset)
    for wrong in (
        BodyRef(1, 0, first.offset),
        BodyRef(1, first.offset, first.length - 1),
        BodyRef(1, second.offset + second.length, first.length),
        BodyRef(1, second.offset, second.length + first.length),
        BodyRef(3_000_000, 0, 10),
    ):
        with pytest.raises(ArchiveBroken):
            await archive.read(wrong)
    await archive.close()


async def test_documents_name_the_file_that_holds_them_now(place: Place) -> None:
    await place.fill(3)
    archive = place.archive()
    assert await archive.file_name(2) == "amble-0000000002.warc.gz"
    await place.compact()
    [key] = [key for key in place.keys("large") if key.endswith(".gz")]
    assert await archive.file_name(2) == names.file_name(key)
    assert ObjectReader(place.bucket).file_name(2) == names.file_name(key)
    await archive.close()


async def test_each_record_is_in_exactly_one_of_the_files_to_copy(place: Place) -> None:
    await place.fill(6)
    await place.compact()
    await place.fill(2)
    found = ObjectReader(place.bucket).segments()
    assert [segment.compacted for segment in found].count(True) == 1
    captures = [line for segment in found for line in index_lines(place.bucket, segment)]
    assert len(captures) == 8


# -- crashes and races ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_after_any_step_leaves_everything_readable_and_the_next_run_finishes(
    place: Place, step: str
) -> None:
    await place.fill(6)
    if step == "deleted":
        await place.compact()

    def crash(done: str) -> None:
        if done == step:
            raise Crash

    with pytest.raises(Crash):
        await place.compact(on_step=crash, ahead_s=2 * DAY_S)
    assert await place.unreadable() == []
    assert place.problems() == []
    await place.compact(ahead_s=4 * DAY_S)
    await place.compact(ahead_s=8 * DAY_S)
    assert await place.unreadable() == []
    assert place.problems() == []
    assert place.keys("segments") == []
    assert len(place.keys("large")) == 2


@pytest.mark.parametrize("kind", ["lost", "error", "stored-error"])
@pytest.mark.parametrize(
    ("method", "part"), [("PUT", "maps/"), ("PUT", ".cdxj"), ("PUT", "large/"), ("POST", "large/")]
)
async def test_trouble_with_any_request_of_a_compaction_harms_nothing(
    s3: S3Server, s3_place: Place, kind: str, method: str, part: str
) -> None:
    await s3_place.fill(4)
    s3.fail(kind, method=method, key=part, status=500, code="InternalError")
    try:
        await s3_place.compact()
    except ArchiveUnavailable:
        await s3_place.compact()
    assert await s3_place.unreadable() == []
    await s3_place.compact(ahead_s=2 * DAY_S)
    assert s3_place.keys("segments") == []
    assert len(s3_place.keys("maps")) == 1
    assert await s3_place.unreadable() == []
    assert s3_place.problems() == []


async def test_two_compactors_at_once_move_each_segment_once(s3_place: Place) -> None:
    await s3_place.fill(10)
    inside = asyncio.Event()
    loop = asyncio.get_running_loop()

    def meanwhile(step: str) -> None:
        if step == "indexed" and not inside.is_set():
            loop.call_soon_threadsafe(inside.set)
            asyncio.run_coroutine_threadsafe(other(), loop).result(30)

    async def other() -> None:
        reports.append(await s3_place.compact())

    reports: list[CompactionReport] = []
    reports.append(await s3_place.compact(on_step=meanwhile))
    assert sorted(report.moved for report in reports) == [0, 10]
    assert len(s3_place.keys("maps")) == 1
    assert len(s3_place.keys("large")) == 2
    assert await s3_place.unreadable() == []
    await asyncio.gather(*(s3_place.compact(ahead_s=2 * DAY_S) for _ in range(3)))
    assert s3_place.keys("segments") == []
    assert await s3_place.unreadable() == []


async def test_a_compactor_whose_work_nobody_touched_takes_the_next_number(place: Place) -> None:
    await place.fill(4)
    others: list[bool] = []

    def meanwhile(step: str) -> None:
        if step == "indexed" and not others:
            others.append(True)
            made = CompactionMap(
                number=0, serial=900, key="large/x", size=1, made_s=0.0, moves=(Move(901, 0, 1, 0),)
            )
            assert place.bucket.create_now(names.map_key(0), made.encode())

    report = await place.compact(on_step=meanwhile)
    assert report.moved == 4
    assert len(place.keys("maps")) == 2
    assert await place.unreadable() == []


async def test_nothing_is_deleted_while_the_large_object_is_not_there(place: Place) -> None:
    await place.fill(5)
    await place.compact()
    [key] = [key for key in place.keys("large") if key.endswith(".gz")]
    place.file(key).unlink()
    assert await place.unreadable() == []
    assert place.problems() == []
    report = await place.compact(ahead_s=2 * DAY_S)
    assert (report.moved, report.deleted) == (5, 0)
    await place.compact(ahead_s=4 * DAY_S)
    assert place.keys("segments") == []
    assert await place.unreadable() == []
    assert place.problems() == []


async def test_a_large_object_that_got_lost_with_its_segments_is_told(place: Place) -> None:
    await place.fill(5)
    await place.compact()
    await place.compact(ahead_s=2 * DAY_S)
    [key] = [key for key in place.keys("large") if key.endswith(".gz")]
    place.file(key).unlink()
    assert any("5 segments were in it and nowhere else" in problem for problem in place.problems())
    assert len(await place.unreadable()) == 10


@pytest.mark.parametrize("harm", ["gone", "other"])
async def test_an_index_that_does_not_fit_is_told(place: Place, harm: str) -> None:
    await place.fill(3)
    await place.compact()
    [key] = [key for key in place.keys("large") if key.endswith(".cdxj")]
    if harm == "gone":
        place.file(key).unlink()
    else:
        place.file(key).write_bytes(place.file(key).read_bytes().splitlines(keepends=True)[0])
    [problem] = place.problems()
    assert "index" in problem


async def test_a_serial_whose_segment_was_moved_away_is_not_used_again(place: Place) -> None:
    await place.fill(5)
    await place.compact()
    await place.compact(ahead_s=2 * DAY_S)
    serials = [*range(1, 6), 900]

    async def restored(count: int) -> list[int]:
        return [serials.pop(0)]

    archive = open_archive_url(
        place.url, SystemClock(), SystemEntropy(), serials=restored, limits=ObjectLimits(segment_bytes_max=1)
    )
    await place.store(archive, page(place.ids, 77))
    assert place.stored[-1][0].segment == 900
    await archive.close()
    assert await place.unreadable() == []


async def test_a_segment_that_is_not_the_one_that_was_moved_is_told_and_never_deleted(place: Place) -> None:
    await place.fill(5)
    await place.compact()
    key = names.segment_key(2)
    place.file(key).write_bytes(place.file(key).read_bytes() + b"more")
    report = await place.compact(ahead_s=2 * DAY_S)
    assert report.deleted == 4
    assert ["given out twice" in str(problem) for problem in report.problems] == [True]
    assert key in place.keys("segments")


async def test_the_segments_are_kept_for_the_grace_period(place: Place) -> None:
    await place.fill(3)
    await place.compact()
    assert (await place.compact(ahead_s=1000, grace_s=2000)).deleted == 0
    assert (await place.compact(ahead_s=3000, grace_s=2000)).deleted == 3


@pytest.mark.parametrize("seed", [1, 2])
async def test_writers_compactors_and_readers_survive_random_trouble_together(
    s3: S3Server, s3_place: Place, seed: int
) -> None:
    chance = random.Random(seed)
    writing = True

    async def write(number: int) -> None:
        archive = s3_place.archive()
        for _ in range(12):
            records = page(s3_place.ids, number)
            for _ in range(20):
                try:
                    await s3_place.store(archive, records)
                    break
                except ArchiveUnavailable:
                    continue
            else:
                raise AssertionError("never stored")
        await archive.close()

    async def compact() -> None:
        while writing:
            try:
                await s3_place.compact(ahead_s=chance.choice([0, 2 * DAY_S]))
            except ArchiveUnavailable:
                await asyncio.sleep(0.01)

    async def read() -> None:
        archive = s3_place.archive()
        while writing:
            await asyncio.sleep(0.002)
            for ref, record in chance.sample(s3_place.stored, min(3, len(s3_place.stored))):
                try:
                    assert (await archive.read(ref)).record_id == record.record_id
                except ArchiveUnavailable:
                    continue
        await archive.close()

    async def trouble() -> None:
        while writing:
            await asyncio.sleep(chance.uniform(0.02, 0.15))
            s3.fail(
                chance.choice(["lost", "cut", "error", "stored-error"]),
                method=chance.choice(["", "PUT", "GET", "POST", "DELETE"]),
                count=chance.randint(1, 3),
                skip=chance.randint(0, 4),
            )
            if chance.random() < 0.05:
                await asyncio.to_thread(s3.kill)
                await asyncio.to_thread(s3.start_process)

    others = [asyncio.ensure_future(other()) for other in (compact, compact, read, trouble)]
    await asyncio.gather(*(write(number) for number in range(4)))
    writing = False
    await asyncio.gather(*others)
    s3.heal()
    for ahead in (4, 8):
        await s3_place.compact(ahead_s=ahead * DAY_S)
    assert len(s3_place.stored) == 4 * 12 * 2
    assert await s3_place.unreadable() == []
    assert s3_place.problems() == []


# -- maps ----------------------------------------------------------------------------------------------------------------


async def test_a_reader_that_starts_reads_one_checkpoint_and_the_maps_behind_it(
    s3: S3Server, s3_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_compaction, "CHECKPOINT_EVERY", 3)
    for _ in range(8):
        await s3_place.fill(2)
        await s3_place.compact()
    assert s3_place.keys("checkpoints") == [names.checkpoint_key(2), names.checkpoint_key(5)]
    s3.calls.clear()
    maps = Maps()
    assert load_now(s3_place.bucket, maps)
    assert maps.next_number == 8
    assert sum(call.method == "GET" and call.key.endswith(".json") for call in s3.calls) == 3
    assert not load_now(s3_place.bucket, maps)
    assert await s3_place.unreadable() == []


@pytest.mark.parametrize("harm", ["hole", "damage"])
async def test_a_history_with_a_hole_is_broken_and_not_half_believed(place: Place, harm: str) -> None:
    for _ in range(2):
        await place.fill(2)
        await place.compact()
    if harm == "hole":
        place.file(names.map_key(0)).unlink()
    else:
        place.file(names.map_key(0)).write_bytes(b"{")
    with pytest.raises(ArchiveBroken, match=r"map 0 is missing|is damaged"):
        load_now(place.bucket, Maps())
    with pytest.raises(ArchiveBroken):
        await place.compact()
    assert place.problems() != []


def test_the_latest_map_of_a_segment_holds() -> None:
    maps = Maps()

    def made(number: int, serials: range) -> CompactionMap:
        moves = tuple(Move(serial, 100, 1000, number * 10_000) for serial in serials)
        return CompactionMap(
            number=number, serial=500 + number, key=f"large/{number}", size=1, made_s=0.0, moves=moves
        )

    maps.add([made(0, range(1, 6)), made(1, range(6, 9))])
    maps.add([made(2, range(4, 7))])
    latest = {serial: found.number for serial in range(12) if (found := maps.map_of(serial)) is not None}
    assert latest == {1: 0, 2: 0, 3: 0, 4: 2, 5: 2, 6: 2, 7: 1, 8: 1}
    assert maps.serials_of(0) == [1, 2, 3]
    assert [place.key for place in maps.places(5, 200, 50)] == ["large/2", names.segment_key(5)]
    assert maps.places(5, 200, 50)[0].offset == 20_200
    assert maps.places(5, 50, 10) == maps.places(5, 990, 11) == []
    assert [place.key for place in maps.places(501, 7, 5)] == ["large/1"]
    with pytest.raises(ValueError, match="map 3 is missing"):
        maps.add([made(4, range(1, 2))])


def test_maps_are_read_as_they_were_written() -> None:
    made = CompactionMap(number=3, serial=9, key="large/a", size=7, made_s=1.5, moves=(Move(1, 2, 3, -4),))
    assert msgspec.json.decode(made.encode(), type=CompactionMap) == made
