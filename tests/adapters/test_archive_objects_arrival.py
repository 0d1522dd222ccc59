"""Segments of a folder arrive in a bucket whole, under the serials that references name."""

from __future__ import annotations

from pathlib import Path

import pytest

from amble.adapters.archive.directory import DirectoryArchive
from amble.adapters.archive.names import list_segments
from amble.adapters.archive.objects_arrival import copy_segments
from amble.adapters.archive.objects_compaction import Compactor
from amble.adapters.archive.objects_names import segment_key
from amble.adapters.archive.objects_open import open_bucket
from amble.adapters.archive.objects_reader import ObjectReader, verify_objects
from amble.adapters.archive.objects_serials import ClaimedSerials
from amble.adapters.archive.objects_store import Bucket
from amble.adapters.archive.writer import ArchiveLimits
from amble.adapters.system import SystemClock, SystemEntropy
from amble.domain.errors import ArchiveBroken
from amble.domain.fetched import BodyRef
from amble.domain.record import StoredRecord
from tests.support.exchanges import Ids, page


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket(f"file://{tmp_path / 'bucket'}")


async def fill(folder: Path, *, count: int = 6) -> list[tuple[BodyRef, StoredRecord]]:
    """An archive of several segments, and what each reference into it leads to."""
    archive = DirectoryArchive(
        folder, SystemClock(), SystemEntropy(), limits=ArchiveLimits(segment_bytes_max=2_000)
    )
    ids = Ids()
    refs = [ref for number in range(count) for ref in await archive.append(page(ids, number))]
    records = [await archive.read(ref) for ref in refs]
    await archive.close()
    return list(zip(refs, records, strict=True))


async def test_every_reference_is_good_in_the_bucket(tmp_path: Path, bucket: Bucket) -> None:
    written = await fill(tmp_path / "archive")
    last = copy_segments(tmp_path / "archive", bucket)
    assert last == max(ref.segment for ref, _ in written) > 1
    reader = ObjectReader(bucket)
    assert [reader.read(ref) for ref, _ in written] == [record for _, record in written]
    assert list(verify_objects(bucket)) == []


async def test_a_copy_may_be_repeated(tmp_path: Path, bucket: Bucket) -> None:
    await fill(tmp_path / "archive")
    steps: list[tuple[int, int]] = []
    assert copy_segments(tmp_path / "archive", bucket) == copy_segments(
        tmp_path / "archive", bucket, lambda done, every: steps.append((done, every))
    )
    assert steps[-1][0] == steps[-1][1] == len(steps)


async def test_another_object_under_the_name_of_a_segment_is_refused(tmp_path: Path, bucket: Bucket) -> None:
    written = await fill(tmp_path / "archive")
    key = segment_key(written[0][0].segment)
    bucket.create_now(key, b"something else")
    with pytest.raises(ArchiveBroken, match="name an empty place"):
        copy_segments(tmp_path / "archive", bucket)
    assert bucket.get_now(key) == b"something else"


async def test_a_folder_without_segments_has_no_serial(tmp_path: Path, bucket: Bucket) -> None:
    (tmp_path / "archive").mkdir()
    assert copy_segments(tmp_path / "archive", bucket) == 0


async def test_segments_that_arrived_are_left_as_they_are_by_compaction(
    tmp_path: Path, bucket: Bucket
) -> None:
    written = await fill(tmp_path / "archive")
    copy_segments(tmp_path / "archive", bucket)
    report = await Compactor(bucket, SystemClock(), SystemEntropy()).run(everything=True)
    assert (report.made, report.moved, report.problems) == (0, 0, [])
    assert [ObjectReader(bucket).read(ref) for ref, _ in written] == [record for _, record in written]


async def test_a_record_bound_to_another_file_is_still_a_problem(tmp_path: Path, bucket: Bucket) -> None:
    await fill(tmp_path / "archive")
    first, second = list_segments(tmp_path / "archive")[:2]
    mixed = first.path.read_bytes() + second.path.read_bytes()
    bucket.create_now(segment_key(first.serial), mixed)
    told = {problem.what for problem in verify_objects(bucket)}
    assert any("names a warcinfo record" in reason for reason in told)
    assert any("second warcinfo" in reason for reason in told)


async def test_serials_claimed_later_come_after_those_that_arrived(tmp_path: Path, bucket: Bucket) -> None:
    await fill(tmp_path / "archive")
    last = copy_segments(tmp_path / "archive", bucket)
    assert min(await ClaimedSerials(bucket)(3)) > last
