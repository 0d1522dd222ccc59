"""After a crash: what was acknowledged is there, what was torn is cut; and every damage is noticed."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from isal import isal_zlib

from amble.adapters.archive.check import verify
from amble.adapters.archive.directory import ArchiveLimits, DirectoryArchive
from amble.adapters.archive.member import GZIP_HEAD, Damage, Member, walk
from amble.adapters.archive.names import list_segments
from amble.adapters.archive.reader import SegmentReader
from amble.adapters.archive.recovery import recover
from amble.adapters.archive.writer import SegmentWriter
from amble.adapters.system import SystemClock, SystemEntropy
from amble.domain.errors import ArchiveBroken
from amble.domain.fetched import BodyRef
from tests.support.exchanges import Ids, page, response

REPO = Path(__file__).parents[2]

CHILD = """
import asyncio, sys
from pathlib import Path
from amble.adapters.archive.directory import ArchiveLimits, DirectoryArchive
from amble.adapters.system import SystemClock, SystemEntropy
from tests.support.exchanges import Ids, page

async def main(folder, seed):
    archive = DirectoryArchive(
        Path(folder), SystemClock(), SystemEntropy(), limits=ArchiveLimits(linger_s=0.001, segment_bytes_max=60_000)
    )
    ids = Ids(int(seed))

    async def forever(start):
        for number in range(start, 1_000_000, 8):
            refs = await archive.append(page(ids, number, body=b"page %d " % number + ids().encode() * 30))
            print(number, refs[1].pack().hex(), flush=True)

    await asyncio.gather(*(forever(start) for start in range(8)))

asyncio.run(main(*sys.argv[1:]))
"""


async def acknowledged_before_kill(folder: Path, seed: int, lines: int) -> list[tuple[int, BodyRef]]:
    """Append in a process of its own, kill it in the middle, and tell what it had been promised."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(folder), str(seed), stdout=asyncio.subprocess.PIPE, cwd=REPO
    )
    assert child.stdout is not None
    told = [await child.stdout.readline() for _ in range(lines)]
    child.send_signal(signal.SIGKILL)
    told += (await child.stdout.read()).splitlines(keepends=True)
    await child.wait()
    whole = [line.split() for line in told if line.endswith(b"\n")]
    return [(int(number), BodyRef.unpack(bytes.fromhex(ref.decode()))) for number, ref in whole]


async def test_after_kill_9_every_acknowledged_record_is_readable(tmp_path: Path) -> None:
    promised: list[tuple[int, BodyRef]] = []
    for seed, lines in enumerate((50, 1, 137)):
        promised += await acknowledged_before_kill(tmp_path, seed, lines)
    archive = DirectoryArchive(tmp_path, SystemClock(), SystemEntropy())
    assert await archive.probe() is None
    for number, ref in promised:
        assert (await archive.read(ref)).payload.startswith(b"page %d " % number)
    await archive.append(page(Ids(9), 0))
    await archive.close()
    assert [str(problem) for problem in verify(tmp_path)] == []
    assert all(segment.sealed for segment in list_segments(tmp_path))


@pytest.fixture
def crashed(tmp_path: Path) -> tuple[Path, list[BodyRef]]:
    """A folder as a crash leaves it: one unsealed segment with three commits, and the references given out."""
    folder = tmp_path / "crashed"
    writer = SegmentWriter(
        tmp_path / "writing", SystemClock(), SystemEntropy(), limits=ArchiveLimits(), info={}
    )
    ids = Ids()
    refs: list[BodyRef] = []
    writer.make_ready()
    for number in range(3):
        refs += writer.stage(page(ids, number))
        writer.commit()
    shutil.copytree(tmp_path / "writing", folder)
    writer.close()
    return folder, refs


def read_all(folder: Path, refs: list[BodyRef]) -> None:
    reader = SegmentReader(folder)
    for ref in refs:
        reader.read(ref)
    reader.close()


@pytest.mark.parametrize("journal", [True, False], ids=["with its journal", "without its journal"])
def test_a_tail_torn_at_any_byte_is_cut_behind_the_last_whole_record(
    crashed: tuple[Path, list[BodyRef]], tmp_path: Path, journal: bool
) -> None:
    folder, refs = crashed
    [segment] = list_segments(folder)
    whole = segment.path.read_bytes()
    tail = whole[refs[-1].offset :]
    if not journal:
        segment.journal_path.unlink()
    for size in range(0, len(tail), 7):
        copy = tmp_path / f"{size}"
        shutil.copytree(folder, copy)
        [segment] = list_segments(copy)
        segment.path.write_bytes(whole + tail[:size])
        [done] = recover(copy)
        assert done.cut_bytes == size
        assert done.segment.path.read_bytes() == whole
        read_all(copy, refs)
        assert list(verify(copy)) == []


@pytest.mark.parametrize("tail", [bytes(5000), b"\xff" * 100, b"WARC/1.1\r\n", b"\x1f\x8b\x08" + bytes(7)])
def test_a_tail_of_rubbish_is_cut(crashed: tuple[Path, list[BodyRef]], tail: bytes) -> None:
    folder, refs = crashed
    [segment] = list_segments(folder)
    with segment.path.open("ab") as file:
        file.write(tail)
    [done] = recover(folder)
    assert (done.cut_bytes, done.sealed) == (len(tail), True)
    read_all(folder, refs)
    assert list(verify(folder)) == []


@pytest.mark.parametrize("spoil", [b"", b"\x00" * 300, b"rubbish\n", b"com,example)/ 20260101000000 {}\n"])
@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_a_journal_that_a_power_cut_spoilt_costs_nothing(
    crashed: tuple[Path, list[BodyRef]], spoil: bytes, keep: int
) -> None:
    folder, refs = crashed
    [segment] = list_segments(folder)
    lines = segment.journal_path.read_bytes().splitlines(keepends=True)
    segment.journal_path.write_bytes(b"".join(lines[:keep]) + spoil)
    recover(folder)
    read_all(folder, refs)
    assert list(verify(folder)) == []
    assert list_segments(folder)[0].index_path.read_bytes() == b"".join(sorted(lines))


def test_a_journal_that_tells_of_more_than_there_is_is_not_believed(
    crashed: tuple[Path, list[BodyRef]],
) -> None:
    folder, refs = crashed
    [segment] = list_segments(folder)
    os.truncate(segment.path, refs[-1].offset)
    recover(folder)
    read_all(folder, refs[:-1])
    assert list(verify(folder)) == []


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", bytes(100)])
def test_a_segment_without_a_whole_record_is_removed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "amble-20260101000000-00000004-x.warc.gz.open"
    path.write_bytes(content)
    [done] = recover(tmp_path)
    assert (done.cut_bytes, done.sealed) == (len(content), False)
    assert list(tmp_path.iterdir()) == []


def torn_record_with(inside: bytes) -> bytes:
    """The beginning of a member whose body could not be compressed and holds `inside` as it is."""
    body = os.urandom(2_000) + inside + os.urandom(20_000)
    member = isal_zlib.compress(b"WARC/1.1\r\nWARC-Type: response\r\n\r\n" + body, 1, 31)
    assert inside in member
    return member[:-100]


def test_an_archive_in_the_body_of_a_torn_record_is_not_taken_for_records(
    crashed: tuple[Path, list[BodyRef]], tmp_path: Path
) -> None:
    folder, refs = crashed
    forger = SegmentWriter(
        tmp_path / "forged", SystemClock(), SystemEntropy(), limits=ArchiveLimits(), info={}
    )
    forger.make_ready()
    forger.stage(page(Ids(7), 66))
    forger.commit()
    [forged] = list_segments(tmp_path / "forged")
    [segment] = list_segments(folder)
    with segment.path.open("ab") as file:
        file.write(torn_record_with(forged.path.read_bytes()))
    forger.close()
    recover(folder)
    assert [str(problem) for problem in verify(folder)] == []
    [segment] = list_segments(folder)
    assert segment.index_path.read_bytes().count(b"\n") == 3
    read_all(folder, refs)


def test_what_a_torn_record_expands_to_is_not_held_in_memory(crashed: tuple[Path, list[BodyRef]]) -> None:
    folder, refs = crashed
    coder = isal_zlib.compressobj(3, isal_zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    bomb = (
        coder.compress(b"WARC/1.1\r\n\r\n")
        + b"".join(coder.compress(zeros) for _ in range(400))
        + coder.flush()
    )
    [segment] = list_segments(folder)
    with segment.path.open("ab") as file:
        # Behind a record that is cut, so that only the search for whole records can come upon it.
        file.write(GZIP_HEAD + b"cut" + bomb)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    recover(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 100_000
    assert [str(problem) for problem in verify(folder)] == []
    read_all(folder, refs)


def test_recovery_can_be_stopped_at_any_step_and_repeated(crashed: tuple[Path, list[BodyRef]]) -> None:
    folder, refs = crashed
    [segment] = list_segments(folder)
    journal = segment.journal_path.read_bytes()
    (folder / f"{segment.stem}.cdxj.part").write_bytes(b"half")
    recover(folder)
    segment.journal_path.write_bytes(journal)  # as if it had stopped before the journal was removed
    recover(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{segment.stem}.cdxj",
        f"{segment.stem}.warc.gz",
    ]
    os.rename(folder / segment.file_name, segment.path)  # as if it had stopped before the rename
    recover(folder)
    read_all(folder, refs)
    assert list(verify(folder)) == []


def test_damage_in_the_middle_is_kept_and_what_follows_it_too(crashed: tuple[Path, list[BodyRef]]) -> None:
    folder, refs = crashed
    [segment] = list_segments(folder)
    segment.journal_path.unlink()
    data = bytearray(segment.path.read_bytes())
    data[refs[2].offset + 30] ^= 0xFF
    segment.path.write_bytes(data)
    [done] = recover(folder)
    assert done.cut_bytes == 0
    read_all(folder, [ref for ref in refs if ref != refs[2]])
    with pytest.raises(ArchiveBroken):
        read_all(folder, [refs[2]])
    [problem] = verify(folder)
    assert problem.offset == refs[2].offset


@pytest.mark.parametrize("size", [1, 9, 65_527, 65_530, 65_536, 65_537, 140_000])
@pytest.mark.parametrize(
    "decoy", [b"", GZIP_HEAD, GZIP_HEAD + b"nothing", isal_zlib.compress(b"no record", 1, 31)]
)
def test_what_follows_a_damaged_stretch_is_found_wherever_it_begins(
    crashed: tuple[Path, list[BodyRef]], size: int, decoy: bytes
) -> None:
    folder, refs = crashed
    [segment] = list_segments(folder)
    whole = segment.path.read_bytes()
    damage = b"\x55" * size + decoy
    segment.path.write_bytes(whole[: refs[2].offset] + damage + whole[refs[2].offset :])
    with segment.path.open("rb") as file:
        found = list(walk(file.fileno()))
    spoilt = [item for item in found if isinstance(item, Damage)]
    assert [(item.offset, item.end) for item in spoilt] == [(refs[2].offset, refs[2].offset + len(damage))]
    assert len(found) - len(spoilt) == 1 + len(refs)


# -- every damage is noticed ---------------------------------------------------------------------------------------


@pytest.fixture
def sealed(crashed: tuple[Path, list[BodyRef]]) -> tuple[Path, list[BodyRef]]:
    folder, refs = crashed
    recover(folder)
    assert list(verify(folder)) == []
    return folder, refs


def flips(size: int) -> Iterator[int]:
    yield from range(0, size * 8, 19)


def test_a_flipped_bit_anywhere_is_found_by_the_checker_or_changes_nothing(
    sealed: tuple[Path, list[BodyRef]],
) -> None:
    """The bits that pad the last byte of a deflate stream mean nothing: a flip there leaves every record as it was."""
    folder, refs = sealed
    [segment] = list_segments(folder)
    good = segment.path.read_bytes()
    whole = SegmentReader(folder)
    records = [whole.read(ref) for ref in refs]
    whole.close()
    padding = 0
    for bit in flips(len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << (bit % 8)
        segment.path.write_bytes(bad)
        if not list(verify(folder)):
            padding += 1
            reader = SegmentReader(folder)
            assert [reader.read(ref) for ref in refs] == records
            reader.close()
    assert padding <= len(refs)


def test_a_flipped_bit_in_a_record_never_reads_as_another_record(sealed: tuple[Path, list[BodyRef]]) -> None:
    folder, refs = sealed
    [segment] = list_segments(folder)
    good = segment.path.read_bytes()
    ref = refs[1]
    reader = SegmentReader(folder)
    record = reader.read(ref)
    for bit in range(ref.length * 8):
        bad = bytearray(good)
        bad[ref.offset + bit // 8] ^= 1 << (bit % 8)
        segment.path.write_bytes(bad)
        try:
            assert reader.read(ref) == record
        except ArchiveBroken:
            continue
    reader.close()


def test_a_flipped_bit_anywhere_in_the_index_is_found(sealed: tuple[Path, list[BodyRef]]) -> None:
    folder, _ = sealed
    [segment] = list_segments(folder)
    good = segment.index_path.read_bytes()
    for bit in flips(len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << (bit % 8)
        segment.index_path.write_bytes(bad)
        assert list(verify(folder)), f"byte {bit // 8}"


def spoil_nothing(folder: Path) -> None:
    """An archive as it should be."""


def spoil_cut(folder: Path) -> None:
    segment = list_segments(folder)[0]
    os.truncate(segment.path, segment.path.stat().st_size - 1)


def spoil_repeat(folder: Path) -> None:
    segment = list_segments(folder)[0]
    segment.path.write_bytes(segment.path.read_bytes() * 2)


def spoil_first_record(folder: Path) -> None:
    segment = list_segments(folder)[0]
    data = segment.path.read_bytes()
    with segment.path.open("rb") as file:
        first = next(iter(walk(file.fileno())))
    assert isinstance(first, Member)
    segment.path.write_bytes(data[first.length :])


def spoil_name(folder: Path) -> None:
    segment = list_segments(folder)[0]
    os.rename(segment.path, folder / segment.file_name.replace("00000001", "00000002"))
    os.rename(segment.index_path, folder / f"{segment.stem.replace('00000001', '00000002')}.cdxj")


def spoil_serial(folder: Path) -> None:
    segment = list_segments(folder)[0]
    shutil.copy(segment.path, folder / segment.file_name.replace("amble-2", "amble-3"))


def spoil_index_missing(folder: Path) -> None:
    list_segments(folder)[0].index_path.unlink()


def spoil_index_order(folder: Path) -> None:
    path = list_segments(folder)[0].index_path
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))


def spoil_index_short(folder: Path) -> None:
    path = list_segments(folder)[0].index_path
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))


def spoil_index_twice(folder: Path) -> None:
    path = list_segments(folder)[0].index_path
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(sorted([lines[0], *lines])))


def spoil_folder(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (spoil_nothing, None),
        (spoil_cut, "cut short"),
        (spoil_repeat, "a second warcinfo"),
        (spoil_repeat, "WARC-Record-ID is that of an earlier"),
        (spoil_first_record, "does not begin with a warcinfo"),
        (spoil_first_record, "does not refer to the warcinfo"),
        (spoil_name, "WARC-Filename"),
        (spoil_serial, "same serial"),
        (spoil_index_missing, "index is missing"),
        (spoil_index_order, "not sorted"),
        (spoil_index_short, "1 captures of the segment are not in the index"),
        (spoil_index_twice, "a line twice"),
        (spoil_folder, "the folder is gone"),
    ],
)
def test_the_checker_names_what_is_wrong(
    sealed: tuple[Path, list[BodyRef]], spoil: object, what: str | None
) -> None:
    folder, _ = sealed
    spoil(folder)  # type: ignore[operator]
    found = [str(problem) for problem in verify(folder)]
    if what is None:
        assert found == []
    else:
        assert any(what in line for line in found), found


def test_the_checker_leaves_a_segment_that_is_still_written_in_peace(
    crashed: tuple[Path, list[BodyRef]],
) -> None:
    folder, _ = crashed
    [segment] = list_segments(folder)
    with segment.path.open("ab") as file:
        file.write(segment.path.read_bytes()[:50])
    assert list(verify(folder)) == []


def test_the_walk_finds_members_larger_than_its_steps(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, SystemClock(), SystemEntropy(), limits=ArchiveLimits(), info={})
    writer.make_ready()
    large = [b"\x00" * (1 << 20)] * 6
    [first, second] = writer.stage([response(Ids(1), *large), response(Ids(2), os.urandom(200_000))])
    writer.commit()
    [segment] = list_segments(tmp_path)
    with segment.path.open("rb") as file:
        found = list(walk(file.fileno()))
        assert not any(isinstance(item, Damage) for item in found)
        assert [(item.offset, item.length) for item in found[1:] if isinstance(item, Member)] == [
            (first.offset, first.length),
            (second.offset, second.length),
        ]
    writer.close()
