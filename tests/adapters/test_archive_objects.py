"""The archive on object storage: group commit by put, trouble with the store, serials, what foreign tools say, URLs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from warcio.checker import Checker

from amble.adapters.archive import objects_names as names
from amble.adapters.archive.objects import ObjectArchive, ObjectLimits
from amble.adapters.archive.objects_open import is_object_url, open_archive_url, open_bucket
from amble.adapters.archive.objects_reader import ObjectReader, verify_objects
from amble.adapters.archive.objects_store import ObjectTrouble, StoreTimes, explain
from amble.adapters.system import SystemClock, SystemEntropy
from amble.domain.errors import ArchiveBroken, ArchiveUnavailable, ConfigErrors, StoreUnavailable
from amble.domain.fetched import BodyRef
from tests.support.exchanges import Body, Ids, page, response
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, S3Server

Open = Callable[..., ObjectArchive]

QUICK = StoreTimes(request_s=0.5, connect_s=0.5, read_repeats=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server.running(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(server: S3Server) -> Iterator[S3Server]:
    server.calls.clear()
    server.at_once_max = 0
    yield server
    server.delay_s = 0.0
    server.heal()


@pytest.fixture
async def opened(s3: S3Server, tmp_path: Path) -> AsyncIterator[Open]:
    made: list[ObjectArchive] = []

    def open_archive(*, limits: dict[str, object] | None = None, **settings: object) -> ObjectArchive:
        bounds = ObjectLimits(**{"linger_s": 0.01, "retry_first_s": 0.01, **(limits or {})})  # type: ignore[arg-type]
        made.append(
            open_archive_url(
                s3.url(tmp_path.name),
                SystemClock(),
                SystemEntropy(),
                limits=bounds,
                environment=s3.environment(),
                **settings,  # type: ignore[arg-type]
            )
        )
        return made[-1]

    yield open_archive
    s3.heal()
    for archive in made:
        await archive.close()


def segments(s3: S3Server, tmp_path: Path) -> list[str]:
    return s3.keys(f"{tmp_path.name}/segments/")


async def listed(source: list[int], count: int) -> list[int]:
    """Serials one after the other, for tests that say which come."""
    taken, source[:] = source[:count], source[count:]
    return taken


def problems(s3: S3Server, tmp_path: Path) -> list[str]:
    return [
        str(problem)
        for problem in verify_objects(open_bucket(s3.url(tmp_path.name), environment=s3.environment()))
    ]


# -- group commit ------------------------------------------------------------------------------------------------------


async def test_appends_made_together_share_a_put(opened: Open, s3: S3Server) -> None:
    archive, ids = opened(limits={"linger_s": 0.05}), Ids()
    await asyncio.gather(*(archive.append(page(ids, number)) for number in range(100)))
    assert s3.count("PUT", "segments/") == 1


async def test_a_full_segment_is_put_without_waiting(opened: Open, s3: S3Server, tmp_path: Path) -> None:
    archive, ids = opened(limits={"linger_s": 3600, "segment_bytes_max": 20_000}), Ids()
    noise = SystemEntropy().token(7_000)
    await asyncio.gather(*(archive.append([response(ids, noise)]) for _ in range(9)))
    assert len(segments(s3, tmp_path)) == 3


async def test_an_append_returns_only_after_its_segment_is_stored(
    opened: Open, s3: S3Server, tmp_path: Path
) -> None:
    archive = opened()
    stall = s3.fail("stall", method="PUT", key="segments/")
    append = asyncio.ensure_future(archive.append(page(Ids(), 1)))
    while not stall.happened:
        await asyncio.sleep(0.005)
    assert not append.done()
    assert segments(s3, tmp_path) == []
    s3.heal()
    [_, ref] = await append
    assert segments(s3, tmp_path) == [f"{tmp_path.name}/{names.segment_key(ref.segment)}"]


async def test_closing_puts_what_has_gathered(opened: Open, s3: S3Server, tmp_path: Path) -> None:
    archive = opened(limits={"linger_s": 3600})
    append = asyncio.ensure_future(archive.append(page(Ids(), 1)))
    await asyncio.sleep(0)
    await archive.close()
    assert len(await append) == 2
    assert len(segments(s3, tmp_path)) == 1


async def test_closing_waits_for_large_records_that_are_being_compressed(opened: Open) -> None:
    archive = opened(limits={"linger_s": 3600})
    noise = SystemEntropy().token(3_000_000)
    append = asyncio.ensure_future(archive.append([response(Ids(), noise)]))
    await asyncio.sleep(0)
    await archive.close()
    [ref] = await append
    assert (await opened().read(ref)).payload == noise


async def test_a_record_above_the_segment_size_gets_a_segment_of_its_size(opened: Open) -> None:
    archive, ids = opened(limits={"segment_bytes_max": 10_000, "pending_bytes_max": 100_000}), Ids()
    noise = SystemEntropy().token(2_000_000)
    small, [large] = await asyncio.gather(
        archive.append(page(ids, 1)), archive.append([response(ids, noise)])
    )
    assert large.length > 2_000_000
    assert (await archive.read(large)).payload == noise
    assert b"page 1" in (await archive.read(small[1])).payload


async def test_nothing_at_all_is_put_for_an_append_of_nothing(opened: Open, s3: S3Server) -> None:
    archive = opened()
    assert await archive.append([]) == []
    await archive.close()
    assert s3.calls == []


async def test_the_wait_for_others_follows_the_pages_under_way(opened: Open) -> None:
    archive = opened(limits={"linger_s": 1.0, "linger_s_min": 0.05})
    waits = []
    for in_flight in (1, 200, 10_000):
        archive.pace(in_flight)
        waits.append(archive._linger_s)
    assert waits == [0.05, 0.25, 1.0]


async def test_puts_overlap_up_to_their_bound(opened: Open, s3: S3Server, tmp_path: Path) -> None:
    serials = list(range(1, 100))
    archive = opened(
        limits={"segment_bytes_max": 1, "puts_in_flight_max": 3}, serials=lambda count: listed(serials, count)
    )
    s3.delay_s = 0.02
    ids = Ids()
    await asyncio.gather(*(archive.append(page(ids, number)) for number in range(12)))
    assert s3.at_once_max == 3
    assert s3.count("PUT") == 12
    assert len(segments(s3, tmp_path)) == 12


async def test_appends_beyond_the_memory_bound_wait_until_others_are_stored(
    opened: Open, s3: S3Server
) -> None:
    archive, ids = opened(limits={"pending_bytes_max": 50_000, "put_tries": 9}), Ids()
    noise = SystemEntropy().token(20_000)
    stall = s3.fail("stall", method="PUT", count=-1)
    appends = [asyncio.ensure_future(archive.append([response(ids, noise)])) for _ in range(10)]
    while not stall.happened:
        await asyncio.sleep(0.005)
    assert archive._room._used <= 50_000
    assert len(archive._room._queue) == 8
    appends[9].cancel()
    s3.heal()
    done = await asyncio.gather(*appends, return_exceptions=True)
    assert [isinstance(refs, list) for refs in done] == [True] * 9 + [False]
    await archive.close()
    assert archive._room._used == 0


async def test_what_a_caller_gave_up_is_not_stored(opened: Open, s3: S3Server, tmp_path: Path) -> None:
    archive, ids = opened(), Ids()
    given_up = asyncio.ensure_future(archive.append(page(ids, 1)))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    await archive.close()
    assert segments(s3, tmp_path) == []


# -- trouble with the store ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "trouble", "puts"),
    [
        ("lost", {}, 2),
        ("cut", {}, 2),
        ("error", {"status": 500, "code": "InternalError"}, 2),
        ("error", {"status": 503, "code": "SlowDown", "count": 2}, 3),
        ("error", {"status": 409, "code": "ConditionalRequestConflict"}, 2),
        ("stored-error", {"status": 500, "code": "InternalError"}, 2),
    ],
)
async def test_a_put_in_trouble_is_stored_once_and_acknowledged_once(
    opened: Open, s3: S3Server, tmp_path: Path, kind: str, trouble: dict[str, object], puts: int
) -> None:
    archive = opened()
    fault = s3.fail(kind, method="PUT", key="segments/", **trouble)
    refs = await archive.append(page(Ids(), 1))
    assert fault.happened == puts - 1
    assert s3.count("PUT", "segments/") == puts
    assert segments(s3, tmp_path) == [f"{tmp_path.name}/{names.segment_key(refs[0].segment)}"]
    assert b"page 1" in (await archive.read(refs[1])).payload
    assert problems(s3, tmp_path) == []


async def test_an_answer_that_does_not_come_in_time_is_a_lost_one(
    opened: Open, s3: S3Server, tmp_path: Path
) -> None:
    archive = opened(times=QUICK)
    s3.fail("stall", method="PUT", key="segments/")
    refs = await archive.append(page(Ids(), 1))
    assert b"page 1" in (await archive.read(refs[1])).payload
    assert len(segments(s3, tmp_path)) == 1


async def test_a_put_that_stays_in_trouble_fails_with_the_reason_and_can_be_made_again(
    opened: Open, s3: S3Server
) -> None:
    archive, records = opened(limits={"put_tries": 3}), page(Ids(), 1)
    s3.fail("error", method="PUT", key="segments/", count=3)
    with pytest.raises(ArchiveUnavailable, match="slow down"):
        await archive.append(records)
    assert s3.count("PUT", "segments/") == 3
    refs = await archive.append(records)
    assert b"page 1" in (await archive.read(refs[1])).payload


async def test_tries_end_when_their_time_is_over(opened: Open, s3: S3Server) -> None:
    archive = opened(limits={"put_tries": 1000, "put_total_s": 0.1})
    s3.fail("error", count=-1, key="segments/")
    with pytest.raises(ArchiveUnavailable):
        await asyncio.wait_for(archive.append(page(Ids(), 1)), 5)


async def test_the_store_may_die_and_come_back(opened: Open, s3: S3Server, tmp_path: Path) -> None:
    archive, ids = opened(limits={"put_tries": 50, "retry_first_s": 0.02}), Ids()
    before = await archive.append(page(ids, 1))
    s3.kill()
    append = asyncio.ensure_future(archive.append(page(ids, 2)))
    await asyncio.to_thread(s3.start_process)
    during = await append
    assert b"page 1" in (await archive.read(before[1])).payload
    assert b"page 2" in (await archive.read(during[1])).payload
    assert problems(s3, tmp_path) == []


async def test_a_writer_killed_before_its_acknowledgement_harms_nothing(
    opened: Open, s3: S3Server, tmp_path: Path
) -> None:
    program = """
import asyncio, sys
from amble.adapters.archive.objects import ObjectLimits
from amble.adapters.archive.objects_open import open_archive_url
from amble.adapters.system import SystemClock, SystemEntropy
from tests.support.exchanges import Ids, page

async def serials(count):
    return [7]

async def main():
    limits = ObjectLimits(linger_s=0.0)
    archive = open_archive_url(sys.argv[1], SystemClock(), SystemEntropy(), serials=serials, limits=limits)
    await archive.append(page(Ids(), 1))

asyncio.run(main())
"""
    lost = s3.fail("lost", method="PUT", key="segments/")
    s3.fail("stall", method="PUT", key="segments/", count=-1)
    child = subprocess.Popen(
        [sys.executable, "-c", program, s3.url(tmp_path.name)],
        env={**s3.environment(), "PYTHONPATH": ":".join(sys.path)},
        cwd=Path(__file__).parents[2],
    )
    while not lost.happened:
        assert child.poll() is None
        await asyncio.sleep(0.01)
    child.kill()
    child.wait()
    s3.heal()
    [orphan] = segments(s3, tmp_path)
    bytes_of_the_dead = s3.path(orphan).read_bytes()
    source = [7, 8]
    archive = opened(serials=lambda count: listed(source, count))
    refs = await archive.append(page(Ids(), 1))
    assert {ref.segment for ref in refs} == {8}
    assert s3.path(orphan).read_bytes() == bytes_of_the_dead
    assert b"page 1" in (await archive.read(refs[1])).payload
    assert problems(s3, tmp_path) == []


async def test_two_writers_with_the_same_serials_overwrite_nothing(
    opened: Open, s3: S3Server, tmp_path: Path
) -> None:
    sources = [list(range(1, 40)), list(range(1, 40))]
    first, second = (
        opened(limits={"segment_bytes_max": 1}, serials=lambda count, s=s: listed(s, count)) for s in sources
    )
    ids = Ids()
    appends = [archive.append(page(ids, number)) for number in range(10) for archive in (first, second)]
    answers = await asyncio.gather(*appends)
    assert len({refs[0].segment for refs in answers}) == 20
    for place, refs in enumerate(answers):
        assert b"page %d<" % (place // 2) in (await first.read(refs[1])).payload
    assert len(segments(s3, tmp_path)) == 20


async def test_two_writers_claim_serials_apart(opened: Open, s3: S3Server, tmp_path: Path) -> None:
    first, second, ids = (
        opened(limits={"segment_bytes_max": 1}),
        opened(limits={"segment_bytes_max": 1}),
        Ids(),
    )
    answers = await asyncio.gather(
        *(archive.append(page(ids, number)) for number in range(8) for archive in (first, second))
    )
    assert len({refs[0].segment for refs in answers}) == 16
    assert len(s3.keys(f"{tmp_path.name}/claims/")) == 2
    assert all(call.status == 200 for call in s3.calls if "segments/" in call.key)


@pytest.mark.parametrize(("highest", "first"), [(0, 1), (1, 65), (64, 65), (65, 129), (1000, 1025)])
async def test_claims_begin_behind_the_segments_that_came_from_elsewhere(
    opened: Open, highest: int, first: int
) -> None:
    archive = opened()
    for serial in {1, highest} - {0} if highest else ():
        assert await archive._bucket.create(names.segment_key(serial), b"copied")
    [ref] = await archive.append([response(Ids(), b"new")])
    assert ref.segment == first


async def test_a_source_of_serials_that_went_back_in_time_is_found_out(opened: Open) -> None:
    ids = Ids()
    for first in (1, 17):
        source = list(range(first, first + 16))
        archive = opened(limits={"segment_bytes_max": 1}, serials=lambda count, s=source: listed(s, count))
        await asyncio.gather(*(archive.append(page(ids, number)) for number in range(16)))
    source = list(range(1, 200))
    restored = opened(serials=lambda count: listed(source, count))
    with pytest.raises(ArchiveUnavailable, match="back in time"):
        await restored.append(page(ids, 1))


@pytest.mark.parametrize(
    ("given", "says"), [([], "no serials are left"), ([0], "no serial"), ([1 << 32], "no serial")]
)
async def test_serials_that_cannot_be_used_are_refused(opened: Open, given: list[int], says: str) -> None:
    archive = opened(serials=lambda count: listed(given, count))
    with pytest.raises(ArchiveUnavailable, match=says):
        await archive.append(page(Ids(), 1))


async def test_a_database_that_gives_no_serials_makes_the_archive_unavailable(opened: Open) -> None:
    async def gone(count: int) -> list[int]:
        raise StoreUnavailable("the database is gone")

    with pytest.raises(ArchiveUnavailable, match="the database is gone"):
        await opened(serials=gone).append(page(Ids(), 1))


# -- reasons -------------------------------------------------------------------------------------------------------------


async def refused(url: str, environment: dict[str, str]) -> tuple[str, str]:
    """What an append and a probe say."""
    limits = ObjectLimits(linger_s=0.0, put_tries=1)
    serials = list(range(1, 9))
    archive = open_archive_url(
        url,
        SystemClock(),
        SystemEntropy(),
        serials=lambda count: listed(serials, count),
        limits=limits,
        times=QUICK,
        environment=environment,
    )
    with pytest.raises(ArchiveUnavailable) as caught:
        await archive.append(page(Ids(), 1))
    probed = await archive.probe()
    await archive.close()
    return str(caught.value), probed or ""


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (
            {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": "another-secret"},
            "AWS_SECRET_ACCESS_KEY",
        ),
        ({"AWS_ACCESS_KEY_ID": "AKIAWRONG", "AWS_SECRET_ACCESS_KEY": SECRET_KEY}, "AWS_ACCESS_KEY_ID"),
    ],
)
async def test_wrong_credentials_are_named_and_not_shown(
    s3: S3Server, environment: dict[str, str], says: str
) -> None:
    for message in await refused(s3.url(), environment):
        assert says in message
        assert "\n" not in message
        for secret in (*environment.values(), ACCESS_KEY, SECRET_KEY, "StringToSign"):
            assert secret not in message


async def test_a_bucket_that_is_not_there_is_named(s3: S3Server) -> None:
    for message in await refused(s3.url(bucket="nowhere"), s3.environment()):
        assert "s3://nowhere/crawl: the bucket does not exist" in message


async def test_a_server_that_is_not_there_is_named(s3: S3Server) -> None:
    url = f"s3://bucket/crawl?endpoint=http://127.0.0.1:{free_port()}"
    for message in await refused(url, s3.environment()):
        assert "no connection" in message


async def test_a_server_that_does_not_answer_is_named(s3: S3Server) -> None:
    s3.fail("stall", count=-1)
    for message in await refused(s3.url(), s3.environment()):
        assert "no answer in time" in message


async def test_a_refusal_is_not_tried_again(opened: Open, s3: S3Server) -> None:
    archive = opened()
    s3.fail("error", method="PUT", key="segments/", status=403, code="AccessDenied", count=-1)
    with pytest.raises(ArchiveUnavailable, match="s3:PutObject"):
        await archive.append(page(Ids(), 1))
    assert s3.count("PUT", "segments/") == 1


async def test_what_no_waiting_mends_is_told_apart_from_trouble(opened: Open, s3: S3Server) -> None:
    archive = opened()
    assert await archive.refusal() is None
    s3.fail("error", method="PUT", status=403, code="AccessDenied", count=1)
    assert "s3:PutObject" in (await archive.refusal() or "")
    s3.heal()
    s3.fail("error", method="PUT", status=503, code="SlowDown", count=-1)
    assert await archive.refusal() is None


async def test_a_store_that_ignores_conditions_does_not_probe_well(opened: Open, s3: S3Server) -> None:
    archive = opened()
    s3.fail("overwrite", count=-1)
    assert "If-None-Match" in (await archive.probe() or "")
    s3.heal()
    assert await archive.probe() is None
    s3.calls.clear()
    assert await archive.probe() is None
    assert len(s3.calls) == 1


@pytest.mark.parametrize(
    ("text", "reason", "is_refusal"),
    [
        ("PUT http://169.254.169.254/latest/api/token", "no credentials", True),
        ("status code: 301 Moved: <Code>PermanentRedirect</Code>", "?region=", True),
        ("status code: 400 Bad: <Code>ExpiredToken</Code>", "AWS_SESSION_TOKEN", True),
        ("status code: 403 Forbidden", "access is denied (403)", True),
        (
            "status code: 501 Not: <Code>NotImplemented</Code>",
            "refuses the request (501 NotImplemented)",
            True,
        ),
        ("status code: 502 Bad Gateway: <html>", "reports an error (502)", False),
        ("status code: 503 Slow: <Code>SlowDown</Code>", "slow down", False),
        ("inner: Http(HttpError { kind: Timeout, source", "no answer in time", False),
        ("Unable to copy: No space left on device (os error 28)", "No space left on device", False),
        ("something new", "", False),
    ],
)
def test_errors_of_the_store_become_reasons(text: str, reason: str, is_refusal: bool) -> None:
    said, final = explain(text)
    assert reason in said
    assert final is is_refusal


async def test_a_bug_is_not_taken_for_trouble_with_the_store(opened: Open) -> None:
    archive = opened()
    with pytest.raises(TypeError):
        await archive._bucket.range("probe", "nonsense", 1)  # type: ignore[arg-type]


# -- damage --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["changed", "cut", "gone"])
async def test_a_damaged_segment_is_broken_to_readers_and_told_by_the_check(
    opened: Open, s3: S3Server, tmp_path: Path, harm: str
) -> None:
    archive = opened()
    refs = await archive.append([*page(Ids(), 1), response(Ids(5), b"behind")])
    [key] = segments(s3, tmp_path)
    data = bytearray(s3.path(key).read_bytes())
    match harm:
        case "changed":
            data[refs[1].offset + refs[1].length // 2] ^= 0x55
            s3.path(key).write_bytes(data)
        case "cut":
            s3.path(key).write_bytes(data[: refs[1].offset + 30])
        case "gone":
            s3.path(key).unlink()
    with pytest.raises(ArchiveBroken):
        await archive.read(refs[1])
    reader = ObjectReader(open_bucket(s3.url(tmp_path.name), environment=s3.environment()))
    with pytest.raises(ArchiveBroken):
        reader.read(refs[1])
    if harm == "changed":
        assert (await archive.read(refs[2])).payload == b"behind"
        assert reader.read(refs[2]).payload == b"behind"
    assert (problems(s3, tmp_path) != []) is (harm != "gone")


async def test_a_read_survives_an_error_of_the_store(opened: Open, s3: S3Server) -> None:
    archive = opened()
    refs = await archive.append(page(Ids(), 1))
    for kind in ("error", "lost", "cut"):
        s3.fail(kind, method="GET", key="segments/")
        assert b"page 1" in (await archive.read(refs[1])).payload


async def test_a_read_that_stays_in_trouble_is_unavailable_and_not_broken(opened: Open, s3: S3Server) -> None:
    archive = opened(times=QUICK)
    refs = await archive.append(page(Ids(), 1))
    s3.fail("error", method="GET", key="segments/", count=-1)
    with pytest.raises(ArchiveUnavailable, match="slow down"):
        await archive.read(refs[1])


# -- reading in windows --------------------------------------------------------------------------------------------------


async def test_records_that_lie_together_are_read_together(opened: Open, s3: S3Server) -> None:
    ids = Ids()
    writer = opened(limits={"linger_s": 0.1})
    answers = await asyncio.gather(*(writer.append(page(ids, number)) for number in range(40)))
    archive = opened(limits={"read_window_bytes": 1 << 20})
    first = await asyncio.gather(*(archive.read(refs[1]) for refs in answers))
    again = [await archive.read(refs[1]) for refs in reversed(answers)]
    for number, stored in enumerate(first):
        assert b"page %d<" % number in stored.payload
        assert again[-1 - number] == stored
    assert s3.count("GET", "segments/") == 1


async def test_windows_overlap_so_that_each_record_is_whole_in_one(opened: Open, s3: S3Server) -> None:
    ids = Ids()
    writer = opened(limits={"linger_s": 0.1})
    noise = [SystemEntropy().token(size) for size in (100, 900, 1500, 3000, 10, 2500, 40, 700) * 3]
    refs = [
        refs[0] for refs in await asyncio.gather(*(writer.append([response(ids, part)]) for part in noise))
    ]
    archive = opened(limits={"read_window_bytes": 4096, "read_windows_max": 2})
    for ref, part in zip(refs, noise, strict=True):
        assert (await archive.read(ref)).payload == part
    assert len(archive._windows._kept) == 2
    for wrong in (
        BodyRef(refs[-1].segment, refs[-1].offset + refs[-1].length, 9),
        BodyRef(refs[0].segment, 1 << 40, 9),
    ):
        with pytest.raises(ArchiveBroken):
            await archive.read(wrong)


async def test_a_window_that_could_not_be_read_is_asked_for_again(opened: Open, s3: S3Server) -> None:
    refs = await opened().append(page(Ids(), 1))
    archive = opened(limits={"read_window_bytes": 1 << 20}, times=QUICK)
    s3.fail("error", method="GET", key="segments/", count=-1)
    failed = await asyncio.gather(*(archive.read(refs[1]) for _ in range(3)), return_exceptions=True)
    assert {type(error) for error in failed} == {ObjectTrouble}
    s3.heal()
    assert b"page 1" in (await archive.read(refs[1])).payload
    with pytest.raises(ArchiveBroken):
        await archive.read(BodyRef(4_000_000, 0, 100))


# -- foreign tools -------------------------------------------------------------------------------------------------------


async def test_strict_readers_accept_a_segment(
    opened: Open, s3: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, ids = opened(limits={"linger_s": 0.1}, info={"operator": "somebody", "robots": "classic"}), Ids()
    big = Body(SystemEntropy().token(600_000))
    await asyncio.gather(
        *(archive.append(page(ids, number)) for number in range(20)),
        archive.append([response(ids, b""), response(ids, *big.pieces())]),
    )
    [key] = segments(s3, tmp_path)
    path = tmp_path / names.file_name(key)
    path.write_bytes(s3.path(key).read_bytes())
    assert Checker(SimpleNamespace(inputs=[str(path)], verbose=True)).process_all() == 0
    said = capsys.readouterr().out
    assert said.count("WARC-Record-ID") == 43
    assert "fail" not in said
    with path.open("rb") as file:
        records = [(record.record_type, record.headers) for record in ArchiveIterator(file, parse_http=False)]
    assert [kind for kind, _ in records].count(WarcRecordType.warcinfo) == 1
    assert records[0][0] == WarcRecordType.warcinfo
    assert dict(records[0][1].items())["WARC-Filename"] == path.name
    assert len(records) == 43
    assert problems(s3, tmp_path) == []


def test_every_key_leads_to_its_serial_and_back() -> None:
    for serial in (1, 255, 256, 70_000, (1 << 32) - 1):
        assert names.serial_of(names.segment_key(serial)) == serial
    for key in (
        "segments/00/amble-0000000001.warc.gz",
        "segments/00/amble-0000000000.warc.gz",
        "segments/x",
        "probe",
    ):
        assert names.serial_of(key) is None


# -- URLs ----------------------------------------------------------------------------------------------------------------

IN = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize(
    ("url", "environment", "says"),
    [
        ("gs://bucket/x", IN, "s3://"),
        ("bucket/x", IN, "s3://"),
        ("s3:///x", IN, "s3://bucket/prefix"),
        ("s3://UPPER/x", IN, "no name of a bucket"),
        ("s3://AKIA:secret@bucket/x", IN, "AWS_ACCESS_KEY_ID"),
        ("s3://bucket/a b", IN, "prefix"),
        ("s3://bucket/a/../b", IN, "prefix"),
        ("s3://bucket/x?endpont=http://a", IN, "'endpont' is no option"),
        ("s3://bucket/x?endpoint=localhost:9000", IN, "endpoint must be a URL"),
        ("s3://bucket/x?endpoint=http://a:b@host", IN, "without credentials"),
        ("s3://bucket/x?anonymous=yes", IN, "true or false"),
        ("s3://bucket/x", {"AWS_ACCESS_KEY_ID": "AKIA"}, "set both"),
        ("s3://bucket/x?endpoint=http://127.0.0.1:9000", {}, "no credentials for http://127.0.0.1:9000"),
        ("file://relative", IN, "three slashes"),
        ("file:///proc/nowhere/x", IN, "cannot be used"),
        ("memory:///", IN, "three slashes"),
    ],
)
def test_a_wrong_url_is_refused_with_the_fix(url: str, environment: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigErrors, match=r"archive: ") as caught:
        open_bucket(url, environment=environment)
    assert says in str(caught.value)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "environment", "place"),
    [
        ("s3://bucket/crawls/a?region=eu-central-1", IN, "s3://bucket/crawls/a"),
        ("s3://bucket", {}, "s3://bucket"),
        ("s3://bucket/x?anonymous=true&endpoint=https://example.org", {}, "s3://bucket/x"),
        (
            "s3://bucket/x",
            {**IN, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_SESSION_TOKEN": "t"},
            "s3://bucket/x",
        ),
        (
            "s3://bucket/x?endpoint=http://127.0.0.1:9",
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/run/token"},
            "s3://bucket/x",
        ),
        ("memory:///crawl", {}, "memory:///crawl"),
    ],
)
def test_a_right_url_opens_without_a_connection(url: str, environment: dict[str, str], place: str) -> None:
    assert open_bucket(url, environment=environment).place == place
    assert is_object_url(url)


def test_a_folder_is_no_url() -> None:
    assert not any(map(is_object_url, ("archive", "/data/archive", "./s3/x", "https://bucket")))


def test_without_the_library_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigErrors, match=r"pip install 'amble\[fleet\]'"):
        open_bucket("memory:///x")


def test_the_archive_on_folders_does_not_need_the_library() -> None:
    code = "import amble.app.build, sys; sys.exit('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


async def test_trouble_with_the_folder_is_named_by_an_archive_in_one(tmp_path: Path) -> None:
    archive = open_archive_url(
        f"file://{tmp_path}/a", SystemClock(), SystemEntropy(), limits=ObjectLimits(put_tries=1, linger_s=0.0)
    )
    (tmp_path / "a" / "segments").write_text("in the way")
    with pytest.raises(ArchiveUnavailable, match=r"Not a directory|File exists"):
        await archive.append(page(Ids(), 1))
    assert (await archive.file_name(3)) == "amble-0000000003.warc.gz"
    with pytest.raises((ArchiveBroken, ArchiveUnavailable)):
        await archive.read(BodyRef(1, 0, 10))
    await archive.close()


def free_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
