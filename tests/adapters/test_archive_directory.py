"""The folder of segments: group commit, sealing, the index, trouble with the disk, and what foreign tools say."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import resource
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from msgspec import structs
from warcio.checker import Checker

from amble.adapters.archive.check import verify
from amble.adapters.archive.directory import ArchiveLimits, DirectoryArchive
from amble.adapters.archive.member import compress, open_member
from amble.adapters.archive.names import list_segments
from amble.adapters.system import SystemClock, SystemEntropy
from amble.domain.errors import ArchiveBroken, ArchiveUnavailable
from amble.domain.fetched import BodyRef
from amble.formats import cdxj, warc
from tests.support.exchanges import DATE_S, HEAD, Body, Ids, exchange, page, response

Open = Callable[..., DirectoryArchive]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    made: list[DirectoryArchive] = []

    def open_archive(folder: Path = tmp_path, **settings: object) -> DirectoryArchive:
        made.append(DirectoryArchive(folder, SystemClock(), SystemEntropy(), **settings))  # type: ignore[arg-type]
        return made[-1]

    yield open_archive
    for archive in made:
        await archive.close()


class Syncs:
    """Counts syncs, and fails the ones it is told to."""

    def __init__(self) -> None:
        self.count = 0
        self.failing = 0

    def __call__(self, file: int) -> None:
        self.count += 1
        if self.failing:
            self.failing -= 1
            raise OSError(errno.EIO, "Input/output error")
        os.fdatasync(file)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def problems(folder: Path) -> list[str]:
    return [str(problem) for problem in verify(folder)]


# -- members -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[0], [1], [65_535], [65_536], [1 << 16, 1 << 16, 5], [200_000]])
def test_a_packed_body_is_stored_as_it_is_and_any_gzip_reader_reads_it(sizes: list[int]) -> None:
    pieces = [os.urandom(size) for size in sizes if size]
    plain, packed = (response(Ids(), *pieces, packed=packed) for packed in (False, True))
    head = warc.written_head(plain).data
    member = b"".join(compress(packed, head))
    whole = gzip.decompress(member)
    assert whole == head + HEAD + b"".join(pieces) + warc.RECORD_END
    assert whole == gzip.decompress(b"".join(compress(plain, head)))
    assert open_member(member).payload == b"".join(pieces)
    assert all(piece in member for piece in pieces if len(piece) < 1 << 16)


def test_a_packed_body_of_another_length_than_announced_is_refused() -> None:
    record = structs.replace(response(Ids(), b"longer", packed=True), body_bytes=3)
    with pytest.raises(ValueError, match="announced"):
        b"".join(compress(record, b"WARC/1.1\r\n\r\n"))


# -- group commit --------------------------------------------------------------------------------------------------


async def test_appends_made_together_share_a_sync(opened: Open) -> None:
    syncs = Syncs()
    archive = opened(sync=syncs, limits=ArchiveLimits(linger_s=0.05))
    ids = Ids()
    await archive.append(page(ids, 0))
    before = syncs.count
    await asyncio.gather(*(archive.append(page(ids, number)) for number in range(100)))
    assert syncs.count - before <= 4


async def test_an_append_returns_only_after_a_sync_that_covers_it(opened: Open, tmp_path: Path) -> None:
    durable = 0

    def sync(file: int) -> None:
        nonlocal durable
        os.fdatasync(file)
        durable = os.fstat(file).st_size

    archive = opened(sync=sync, limits=ArchiveLimits(linger_s=0))
    ids = Ids()

    async def one(number: int) -> None:
        refs = await archive.append(page(ids, number))
        assert refs[-1].offset + refs[-1].length <= durable

    await asyncio.gather(*(one(number) for number in range(50)))


async def test_a_batch_ends_at_its_size(opened: Open) -> None:
    syncs = Syncs()
    archive = opened(sync=syncs, limits=ArchiveLimits(batch_bytes_max=4000))
    ids = Ids()
    await asyncio.gather(*(archive.append([response(ids, os.urandom(1500))]) for _ in range(8)))
    assert syncs.count >= 3


# -- sealing and the index -----------------------------------------------------------------------------------------


async def test_a_segment_is_open_until_it_is_sealed(opened: Open, tmp_path: Path) -> None:
    archive = opened()
    assert names(tmp_path) == []
    await archive.append(page(Ids(), 1))
    assert [name.endswith((".warc.gz.open", ".cdxj.open")) for name in names(tmp_path)] == [True, True]
    await archive.close()
    assert [name.rpartition("~")[0] for name in names(tmp_path)] == [
        names(tmp_path)[0].rpartition("~")[0]
    ] * 2
    assert [name.endswith((".warc.gz", ".cdxj")) for name in names(tmp_path)] == [True, True]


async def test_an_archive_that_was_not_used_leaves_nothing(opened: Open, tmp_path: Path) -> None:
    await opened(tmp_path / "unused").close()
    assert names(tmp_path) == []


async def test_segments_are_sealed_by_size_and_references_hold_before_and_after(
    opened: Open, tmp_path: Path
) -> None:
    archive = opened(limits=ArchiveLimits(segment_bytes_max=20_000))
    ids = Ids()
    refs: list[BodyRef] = []
    for number in range(12):
        refs += await archive.append([response(ids, b"%d " % number + os.urandom(5000))])
    assert {ref.segment for ref in refs} == {1, 2, 3}
    for number, ref in enumerate(refs):
        assert (await archive.read(ref)).payload.startswith(b"%d " % number)
    await archive.close()
    assert [(segment.serial, segment.sealed) for segment in list_segments(tmp_path)] == [
        (1, True),
        (2, True),
        (3, True),
    ]
    assert problems(tmp_path) == []
    again = opened()
    for number, ref in enumerate(refs):
        assert (await again.read(ref)).payload.startswith(b"%d " % number)


async def test_a_reference_holds_when_its_segment_is_sealed_between_two_reads(opened: Open) -> None:
    archive = opened(limits=ArchiveLimits(segment_bytes_max=3000), open_files_max=1)
    ids = Ids()
    [first] = await archive.append([response(ids, b"first")])
    assert (await archive.read(first)).payload == b"first"
    refs = [(await archive.append([response(ids, os.urandom(4000))]))[0] for _ in range(4)]
    for ref in (first, *refs, first):
        await archive.read(ref)


async def test_segments_are_sealed_by_their_number_of_captures(opened: Open, tmp_path: Path) -> None:
    archive = opened(limits=ArchiveLimits(segment_index_max=3, linger_s=0))
    ids = Ids()
    for number in range(7):
        await archive.append(page(ids, number))
    await archive.close()
    counts = [len(segment.index_path.read_bytes().splitlines()) for segment in list_segments(tmp_path)]
    assert counts == [3, 3, 1]


async def test_a_new_run_goes_on_in_a_new_segment(opened: Open, tmp_path: Path) -> None:
    for number in range(3):
        archive = opened()
        [_, ref] = await archive.append(page(Ids(number), number))
        assert ref.segment == number + 1
        await archive.close()
    assert problems(tmp_path) == []


async def test_the_index_is_sorted_and_its_offsets_are_exact(opened: Open, tmp_path: Path) -> None:
    archive = opened()
    ids = Ids()
    urls = ["http://z.example/", "http://a.example/b", "http://a.example/a", "https://www.a.example/c"]
    refs = [(await archive.append([response(ids, url.encode(), url=url)]))[0] for url in urls]
    await archive.close()
    [segment] = list_segments(tmp_path)
    lines = segment.index_path.read_bytes().splitlines(keepends=True)
    assert lines == sorted(lines)
    assert len(lines) == len(urls)
    for line in lines:
        key, time, entry = cdxj.parse_line(line)
        assert key == cdxj.surt_key(entry.url)
        assert time == warc.timestamp(DATE_S)
        assert entry.filename == segment.file_name
        ref = refs[urls.index(entry.url)]
        assert (int(entry.offset), int(entry.length)) == (ref.offset, ref.length)
        with segment.path.open("rb") as file:
            file.seek(int(entry.offset))
            record = next(iter(ArchiveIterator(file)))
            assert record.headers["WARC-Target-URI"] == entry.url
            assert record.headers["WARC-Payload-Digest"] == entry.digest


async def test_a_missing_index_is_written_again_and_is_the_same(opened: Open, tmp_path: Path) -> None:
    archive = opened()
    ids = Ids()
    [_, ref] = await archive.append(page(ids, 1))
    original = warc.original_of(await archive.read(ref))
    await archive.append(
        [
            warc.revisit_not_modified(
                exchange(), record_id=ids(), head=b"HTTP/1.1 304 x\r\n\r\n", original=original
            )
        ]
    )
    await archive.append(page(ids, 2, body=os.urandom(200_000)))
    await archive.close()
    [segment] = list_segments(tmp_path)
    before = segment.index_path.read_bytes()
    segment.index_path.unlink()
    again = opened()
    assert await again.probe() is None
    assert segment.index_path.read_bytes() == before


# -- foreign tools -------------------------------------------------------------------------------------------------


async def every_record(archive: DirectoryArchive) -> None:
    ids = Ids()
    [_, ref, *_] = await archive.append([*page(ids, 1), response(ids, b"cut sho", truncated="disconnect")])
    original = warc.original_of(await archive.read(ref))
    about = {"date_s": DATE_S, "url": "http://example.com/page/1", "refers_to": original.record_id}
    await archive.append(
        [
            warc.revisit_identical(
                exchange(), record_id=ids(), head=HEAD, body=Body(b"x"), sha256=bytes(32), original=original
            ),
            warc.revisit_not_modified(
                exchange(), record_id=ids(), head=b"HTTP/1.1 304 Not Modified\r\n\r\n", original=original
            ),
            warc.metadata(record_id=ids(), block=b'{"links":[]}', **about),
            warc.conversion(record_id=ids(), block="grüße".encode(), **about),
            warc.resource(
                record_id=ids(),
                date_s=DATE_S,
                url="http://example.com/r",
                block=b"\x00",
                content_type="text/plain",
            ),
            response(ids, b"5\r\nhello\r\n", head=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            response(ids, head=b"HTTP/1.1 204 No Content\r\n\r\n"),
            response(ids, *[os.urandom(1 << 16)] * 40),
            response(ids, b"packed already", packed=True),
            response(ids, *[os.urandom(1 << 16)] * 3, packed=True),
            response(ids, b"\xff\x00", head=b"HTTP/1.1 200 \xff\r\nX: \x80\x00\r\n\r\n"),
        ]
    )


async def test_the_checker_of_a_foreign_library_finds_nothing(
    opened: Open, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = opened(info={"robots": "obeyed"})
    await every_record(archive)
    await archive.close()
    [segment] = list_segments(tmp_path)
    checker = Checker(SimpleNamespace(inputs=[str(segment.path)], verbose=True))
    assert checker.process_all() == 0
    said = capsys.readouterr().out
    assert said.count("WARC-Record-ID") == 15
    assert "not checked" not in said.replace("not checked (revisit)", "")
    assert "fail" not in said
    assert problems(tmp_path) == []


async def test_a_foreign_reader_finds_every_record_with_good_digests(opened: Open, tmp_path: Path) -> None:
    archive = opened()
    await every_record(archive)
    await archive.close()
    [segment] = list_segments(tmp_path)
    with segment.path.open("rb") as file:
        verdicts = [(r.record_type, r.verify_block_digest()) for r in ArchiveIterator(file, parse_http=False)]
    assert len(verdicts) == 15
    assert verdicts[0] == (WarcRecordType.warcinfo, True)
    # A response has a digest of its payload instead.
    assert all(good for kind, good in verdicts if kind != WarcRecordType.response)
    with segment.path.open("rb") as file:
        payloads = [
            r.verify_payload_digest()
            for r in ArchiveIterator(file)
            if r.record_type == WarcRecordType.response
        ]
    assert payloads == [True] * 8


async def test_each_segment_begins_with_a_warcinfo_that_names_it(opened: Open, tmp_path: Path) -> None:
    archive = opened(info={"operator": "someone", "robots": "obeyed"})
    await archive.append(page(Ids(), 1))
    await archive.close()
    [segment] = list_segments(tmp_path)
    with segment.path.open("rb") as file:
        first = next(iter(ArchiveIterator(file)))
        assert first.headers["WARC-Filename"] == segment.file_name
        assert b"operator: someone\r\nrobots: obeyed\r\n" in first.reader.read()


async def test_the_checker_finds_nothing_beside_a_running_writer(opened: Open, tmp_path: Path) -> None:
    archive = opened(limits=ArchiveLimits(segment_bytes_max=100_000, linger_s=0))
    ids = Ids()
    checking = asyncio.get_running_loop().run_in_executor(
        None, lambda: [problems(tmp_path) for _ in range(8)]
    )
    number = 0
    while not checking.done():
        await archive.append(page(ids, number, body=os.urandom(7_000)))
        number += 1
    assert await checking == [[]] * 8


# -- trouble with the disk -----------------------------------------------------------------------------------------


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """No file of this process may grow beyond `limit` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_write_that_fails_stores_nothing_and_the_archive_works_again(
    opened: Open, tmp_path: Path
) -> None:
    archive = opened()
    ids = Ids()
    kept = await archive.append(page(ids, 1))
    size = list_segments(tmp_path)[0].path.stat().st_size
    with file_size_limit(size + 5000):
        answers = await asyncio.gather(
            *(archive.append([response(ids, os.urandom(4000))]) for _ in range(4)), return_exceptions=True
        )
        assert all(isinstance(answer, ArchiveUnavailable) for answer in answers)
        assert "file size limit" in str(answers[0])
        assert list_segments(tmp_path)[0].path.stat().st_size == size
    again = await archive.append(page(ids, 2))
    assert again[0].segment == kept[0].segment
    assert again[0].offset == size
    assert b"page 1" in (await archive.read(kept[1])).payload
    assert b"page 2" in (await archive.read(again[1])).payload
    await archive.close()
    assert problems(tmp_path) == []


async def test_an_append_that_fails_by_its_own_fault_leaves_no_trace(opened: Open, tmp_path: Path) -> None:
    archive = opened()
    ids = Ids()
    wrong = warc.response(
        exchange(),
        record_id=ids(),
        head=HEAD,
        body=Body(os.urandom(3 << 20)),
        body_bytes=1 << 20,
        sha256=bytes(32),
    )
    await archive.append(page(ids, 1))
    with pytest.raises(ValueError, match="announced"):
        await archive.append([*page(ids, 2), wrong])
    await archive.append(page(ids, 3))
    await archive.close()
    assert problems(tmp_path) == []
    [segment] = list_segments(tmp_path)
    assert [
        b"/page/1 " in line or b"/page/3 " in line for line in segment.index_path.read_bytes().splitlines()
    ] == [
        True,
        True,
    ]


async def test_a_first_write_that_fails_leaves_no_segment(opened: Open, tmp_path: Path) -> None:
    archive = opened()
    with file_size_limit(100):
        with pytest.raises(ArchiveUnavailable, match="file size limit"):
            await archive.append(page(Ids(), 1))
        assert "file size limit" in (await archive.probe() or "")
        assert names(tmp_path) == []
    assert await archive.probe() is None
    [ref, _] = await archive.append(page(Ids(), 1))
    assert ref.segment == 1


async def test_a_failed_sync_stores_nothing_and_the_segment_is_not_trusted_again(
    opened: Open, tmp_path: Path
) -> None:
    syncs = Syncs()
    archive = opened(sync=syncs)
    ids = Ids()
    kept = await archive.append(page(ids, 1))
    syncs.failing = 1
    with pytest.raises(ArchiveUnavailable, match="disk reports an error"):
        await archive.append(page(ids, 2))
    again = await archive.append(page(ids, 3))
    assert again[0].segment == kept[0].segment + 1
    assert [segment.sealed for segment in list_segments(tmp_path)] == [True, False]
    for ref in (*kept, *again):
        await archive.read(ref)
    await archive.close()
    assert problems(tmp_path) == []
    text = b"".join(segment.index_path.read_bytes() for segment in list_segments(tmp_path))
    assert b"/page/2" not in text


async def test_below_the_floor_of_free_space_nothing_is_appended(opened: Open, tmp_path: Path) -> None:
    archive = opened(limits=ArchiveLimits(free_bytes_min=1 << 62))
    with pytest.raises(ArchiveUnavailable, match="disk almost full"):
        await archive.append(page(Ids(), 1))
    assert "disk almost full" in (await archive.probe() or "")
    assert names(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_is_told_and_space_makes_it_work_again(opened: Open, small_disk: Path) -> None:
    archive = opened(small_disk / "archive", limits=ArchiveLimits(free_bytes_min=0))
    ids = Ids()
    kept = await archive.append(page(ids, 1))
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(900_000))
    with pytest.raises(ArchiveUnavailable, match="the disk is full"):
        await archive.append([response(ids, os.urandom(300_000))])
    assert b"page 1" in (await archive.read(kept[1])).payload
    ballast.unlink()
    assert await archive.probe() is None
    [ref] = await archive.append([response(ids, os.urandom(300_000))])
    assert len((await archive.read(ref)).payload) == 300_000
    await archive.close()
    assert problems(small_disk / "archive") == []


async def test_a_disk_too_full_for_the_index_seals_later(opened: Open, small_disk: Path) -> None:
    folder = small_disk / "archive"
    archive = opened(folder, limits=ArchiveLimits(free_bytes_min=0, segment_bytes_max=10_000))
    ids = Ids()
    await archive.append(page(ids, 1))
    filler = os.open(small_disk / "ballast", os.O_WRONLY | os.O_CREAT)
    room = os.statvfs(small_disk)
    os.posix_fallocate(filler, 0, room.f_bavail * room.f_frsize - 16384)
    os.close(filler)
    [ref] = await archive.append([response(ids, os.urandom(9_500))])
    with pytest.raises(ArchiveUnavailable, match="the disk is full"):
        await archive.append([response(ids, os.urandom(40_000))])
    (small_disk / "ballast").unlink()
    await archive.append(page(ids, 2))
    await archive.read(ref)
    await archive.close()
    assert problems(folder) == []


async def test_a_read_only_disk_is_told_reads_go_on_and_appends_work_again(
    opened: Open, small_disk: Path
) -> None:
    folder = small_disk / "archive"
    before = opened(folder, limits=ArchiveLimits(free_bytes_min=0))
    kept = await before.append(page(Ids(1), 1))
    await before.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    archive = opened(folder, limits=ArchiveLimits(free_bytes_min=0))
    with pytest.raises(ArchiveUnavailable, match="read-only"):
        await archive.append(page(Ids(2), 2))
    assert "read-only" in (await archive.probe() or "")
    assert b"page 1" in (await archive.read(kept[1])).payload
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert await archive.probe() is None
    await archive.append(page(Ids(2), 2))


async def test_a_folder_that_is_a_file_is_told(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    archive = opened(tmp_path / "file")
    with pytest.raises(ArchiveUnavailable, match=str(tmp_path)):
        await archive.append(page(Ids(), 1))


async def test_a_second_writer_of_a_folder_is_refused_while_the_first_one_writes(opened: Open) -> None:
    first, second = opened(), opened()
    await first.append(page(Ids(1), 1))
    with pytest.raises(ArchiveUnavailable, match="another process"):
        await second.append(page(Ids(2), 2))
    await first.append(page(Ids(1), 3))
    await first.close()
    await second.append(page(Ids(2), 2))


async def test_a_segment_that_is_gone_is_broken_not_unavailable(opened: Open, tmp_path: Path) -> None:
    archive = opened()
    [ref, _] = await archive.append(page(Ids(), 1))
    await archive.close()
    list_segments(tmp_path)[0].path.unlink()
    again = opened()
    with pytest.raises(ArchiveBroken, match="segment 1"):
        await again.read(ref)
