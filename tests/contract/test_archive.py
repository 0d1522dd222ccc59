"""What every archive promises (`ports.Archive`), held by each adapter."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from amble.adapters.archive.directory import DirectoryArchive
from amble.adapters.archive.objects import ObjectLimits
from amble.adapters.archive.objects_open import open_archive_url
from amble.adapters.system import SystemClock, SystemEntropy
from amble.domain.errors import ArchiveBroken, ArchiveUnavailable
from amble.domain.fetched import BodyRef
from amble.formats import warc
from amble.ports import Archive
from tests.support.exchanges import HEAD, Body, Ids, exchange, page, response
from tests.support.s3 import S3Server


class SpoolFailure(Body):
    """A body whose spool breaks while it is read."""

    def pieces(self) -> Iterator[bytes]:
        yield b"first"
        raise RuntimeError("the spool is gone")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server.running(tmp_path_factory.mktemp("s3")) as s3:
        yield s3


# Another store for the suite than the server of the tests: s3://BUCKET?endpoint=…&region=…, keys as AWS_* variables.
NAMED_BUCKET = "AMBLE_S3_URL"


class ArchiveContract:
    """The suite. A subclass gives `reopen`: a function that opens the same archive again."""

    @pytest.fixture
    async def archive(self, reopen: Callable[[], Archive]) -> AsyncIterator[Archive]:
        archive = reopen()
        yield archive
        await archive.close()

    async def test_every_record_of_an_append_is_read_back_by_its_reference(self, archive: Archive) -> None:
        ids = Ids()
        records = [*page(ids, 1), *page(ids, 2)]
        refs = await archive.append(records)
        assert len(refs) == len(records)
        for ref, record in zip(refs, records, strict=True):
            stored = await archive.read(ref)
            assert stored.record_id == record.record_id
            assert stored.warc_type == record.warc_type
            assert warc.digest_problem(stored) is None

    async def test_a_payload_comes_back_byte_for_byte(self, archive: Archive) -> None:
        payload = bytes(range(256)) * 40 + b"\r\n\r\n\n\n"
        [ref] = await archive.append([response(Ids(), payload)])
        stored = await archive.read(ref)
        assert stored.payload == payload
        assert stored.http_head == HEAD

    async def test_an_empty_payload_comes_back_empty(self, archive: Archive) -> None:
        [ref] = await archive.append([response(Ids(), head=b"HTTP/1.1 204 No Content\r\n\r\n")])
        assert (await archive.read(ref)).payload == b""

    async def test_a_large_body_in_pieces_comes_back_whole(self, archive: Archive) -> None:
        pieces = [hashlib.sha512(b"%d" % number).digest() * 1024 for number in range(160)]
        body = Body(*pieces)
        record = warc.response(
            exchange(), record_id=Ids()(), head=HEAD, body=body, body_bytes=body.length, sha256=body.sha256
        )
        assert body.length == 10 * 1024 * 1024
        [ref] = await archive.append([record])
        assert hashlib.sha256((await archive.read(ref)).payload).digest() == body.sha256

    async def test_appends_made_together_keep_the_order_of_their_records(self, archive: Archive) -> None:
        ids = Ids()
        calls = [[response(ids, b"%d-%d" % (call, place)) for place in range(5)] for call in range(20)]
        answers = await asyncio.gather(*(archive.append(records) for records in calls))
        for call, refs in enumerate(answers):
            assert [(await archive.read(ref)).payload for ref in refs] == [
                b"%d-%d" % (call, place) for place in range(5)
            ]
            assert len({ref.segment for ref in refs}) == 1
            assert [ref.offset for ref in refs] == sorted(ref.offset for ref in refs)

    async def test_no_reference_is_given_twice(self, archive: Archive) -> None:
        ids = Ids()
        answers = await asyncio.gather(*(archive.append(page(ids, number)) for number in range(30)))
        refs = [ref for refs in answers for ref in refs]
        assert len({(ref.segment, ref.offset) for ref in refs}) == len(refs)

    async def test_an_append_of_nothing_gives_nothing(self, archive: Archive) -> None:
        assert await archive.append([]) == []

    async def test_references_hold_after_closing_and_opening_again(
        self, archive: Archive, reopen: Callable[[], Archive]
    ) -> None:
        first = await archive.append(page(Ids(1), 1))
        await archive.close()
        again = reopen()
        second = await again.append(page(Ids(2), 2))
        assert b"page 1" in (await again.read(first[1])).payload
        assert b"page 2" in (await again.read(second[1])).payload
        await again.close()

    async def test_a_reference_to_nothing_is_broken(self, archive: Archive) -> None:
        [first, second] = await archive.append(page(Ids(), 1))
        for wrong in (
            BodyRef(first.segment + 7, first.offset, first.length),
            BodyRef(first.segment, first.offset + 1, first.length - 1),
            BodyRef(first.segment, first.offset, first.length - 1),
            BodyRef(first.segment, first.offset, first.length + 1),
            BodyRef(first.segment, first.offset, first.length + second.length),
            BodyRef(second.segment, second.offset + second.length, 100),
            BodyRef(first.segment, 1 << 40, 100),
        ):
            with pytest.raises(ArchiveBroken):
                await archive.read(wrong)

    async def test_a_body_that_cannot_be_read_fails_its_own_append_only(self, archive: Archive) -> None:
        ids = Ids()
        broken = warc.response(
            exchange(), record_id=ids(), head=HEAD, body=SpoolFailure(), body_bytes=9, sha256=bytes(32)
        )
        before, failed, after = await asyncio.gather(
            archive.append(page(ids, 1)),
            archive.append([response(ids, b"whole"), broken]),
            archive.append(page(ids, 2)),
            return_exceptions=True,
        )
        assert isinstance(failed, RuntimeError)
        assert not isinstance(before, BaseException)
        assert not isinstance(after, BaseException)
        assert b"page 1" in (await archive.read(before[1])).payload
        assert b"page 2" in (await archive.read(after[1])).payload

    async def test_a_body_of_another_length_than_announced_is_not_stored(self, archive: Archive) -> None:
        ids = Ids()
        for size in (10, 2 << 20):
            body = Body(bytes(size))
            record = warc.response(
                exchange(), record_id=ids(), head=HEAD, body=body, body_bytes=size + 1, sha256=body.sha256
            )
            with pytest.raises(ValueError, match="announced"):
                await archive.append([record])
        [ref] = await archive.append([response(ids, b"after")])
        assert (await archive.read(ref)).payload == b"after"

    async def test_a_caller_who_gives_up_harms_nobody(self, archive: Archive) -> None:
        ids = Ids()
        impatient = [asyncio.ensure_future(archive.append(page(ids, number))) for number in range(5)]
        patient = asyncio.ensure_future(archive.append(page(ids, 9)))
        await asyncio.sleep(0)
        for task in impatient:
            task.cancel()
        refs = await patient
        assert b"page 9" in (await archive.read(refs[1])).payload

    async def test_a_working_archive_probes_well(self, archive: Archive) -> None:
        assert await archive.probe() is None
        await archive.append(page(Ids(), 1))
        assert await archive.probe() is None

    async def test_what_was_accepted_before_closing_is_stored(
        self, archive: Archive, reopen: Callable[[], Archive]
    ) -> None:
        append = asyncio.ensure_future(archive.append(page(Ids(), 1)))
        await asyncio.sleep(0)
        await archive.close()
        refs = await append
        again = reopen()
        assert b"page 1" in (await again.read(refs[1])).payload
        await again.close()

    async def test_a_closed_archive_says_so(self, archive: Archive) -> None:
        refs = await archive.append(page(Ids(), 1))
        await archive.close()
        await archive.close()
        with pytest.raises(ArchiveUnavailable, match="closed"):
            await archive.append(page(Ids(), 2))
        with pytest.raises(ArchiveUnavailable, match="closed"):
            await archive.read(refs[0])
        assert "closed" in (await archive.probe() or "")


class TestDirectoryArchive(ArchiveContract):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Callable[[], Archive]:
        return lambda: DirectoryArchive(tmp_path / "archive", SystemClock(), SystemEntropy())


class TestObjectArchive(ArchiveContract):
    """Over HTTP, on a real server."""

    @pytest.fixture
    def reopen(self, s3: S3Server, tmp_path: Path) -> Callable[[], Archive]:
        limits = ObjectLimits(linger_s=0.01)
        url, environment = s3.url(tmp_path.name), s3.environment()
        if named := os.environ.get(NAMED_BUCKET):
            url, environment = named.replace("?", f"/{tmp_path.name}?", 1), dict(os.environ)
        return lambda: open_archive_url(
            url, SystemClock(), SystemEntropy(), limits=limits, environment=environment
        )


class TestObjectArchiveInMemory(ArchiveContract):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Callable[[], Archive]:
        limits = ObjectLimits(linger_s=0.005)
        return lambda: open_archive_url(f"memory://{tmp_path}", SystemClock(), SystemEntropy(), limits=limits)


class TestObjectArchiveInAFolder(ArchiveContract):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Callable[[], Archive]:
        limits = ObjectLimits(linger_s=0.005)
        return lambda: open_archive_url(
            f"file://{tmp_path}/archive", SystemClock(), SystemEntropy(), limits=limits
        )
