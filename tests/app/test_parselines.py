"""Parse workers: what was fetched is parsed by somebody, handed to its owner, and never lost with a worker."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio
from msgspec.structs import replace

from amble.adapters.archive.directory import DirectoryArchive
from amble.adapters.system import EventLog, SystemClock, SystemEntropy
from amble.app.parselines import PAGES_PER_CHILD, ParseLines, Patient
from amble.domain.attempt import Lease
from amble.domain.errors import SandboxUnavailable, StoreUnavailable
from amble.domain.frontier import AdmitBatch, RecordFetched, Resumable
from amble.domain.lifecycle import UrlState
from amble.domain.policy import ParseLimits, Policy
from amble.formats import manifest_json, warc
from amble.formats.extraction import ExtractionSettings
from amble.formats.registry import Answer, Reading, Registry
from amble.ports import Parsed, ParseFailure, ParseTask
from amble.stages.complete import Completion
from amble.stages.discover import Discovery
from amble.stages.health import Health
from amble.stages.journey import Extract, Handover, StoredBody
from amble.stages.parse import Extraction
from amble.stages.rules import RobotsBook
from tests.contract.frontier_rig import EFFECT, Rig, answer, memory_folder, page

tmp_path = memory_folder
HOLD_S = 30.0
HTML = b"<title>A page</title><main><p>Some text to keep.</p><a href='/next'>next</a></main>"


class Readers:
    """ports.ParserPool with the production readers in this process; `before` is called with each page."""

    size = 2

    def __init__(self) -> None:
        self._registry = Registry(ParseLimits(), ExtractionSettings())
        self.generation = self._registry.generation
        self.before: Callable[[ParseTask], Any] = lambda _: None
        self.now = self.most = 0

    async def parse(self, task: ParseTask) -> Parsed | ParseFailure:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            verdict = self.before(task)
            if asyncio.iscoroutine(verdict):
                verdict = await verdict
            if verdict is not None:
                return verdict  # type: ignore[no-any-return]
            body = b"".join(task.body.pieces())
            reading = self._registry.read(Answer(task.url, task.kind, task.status, task.head, body))
            assert isinstance(reading, Reading)
            return Parsed(manifest=reading.manifest, text=reading.text, main=reading.main)
        finally:
            self.now -= 1

    async def close(self) -> None: ...


class Flaky:
    """A frontier whose next answers are lost: the call has happened."""

    def __init__(self, frontier: Any) -> None:
        self._frontier, self.lost = frontier, 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._frontier, name)

        async def call(argument: Any) -> Any:
            reply = await method(argument)
            if self.lost:
                self.lost -= 1
                raise StoreUnavailable("the answer was lost")
            return reply

        return call


class Place:
    """A store with a moved clock, an archive of its own, and workers on them."""

    def __init__(self, rig: Rig, archive: DirectoryArchive) -> None:
        self.rig, self.archive, self.readers = rig, archive, Readers()
        self.log = EventLog(None)
        self.clock, self.entropy = SystemClock(), SystemEntropy()
        self.health = Health(self.clock, self.log)
        self.frontier = Flaky(rig.frontier)

    async def fetched(self, *paths: str, body: bytes = HTML) -> list[Lease]:
        """Pages with a body in the archive, offered to parse workers."""
        await self.rig.take_over()
        await self.rig.ready(*(page(path) for path in paths))
        return await self.fetch(*paths, body=body)

    async def fetch(self, *paths: str, body: bytes = HTML) -> list[Lease]:
        """The same, where robots.txt is known."""
        await self.rig.admit(*(page(path) for path in paths))
        leases = []
        for _ in paths:
            lease = await self.rig.next_page()
            digest = hashlib.sha256(body).digest()
            record = warc.response(
                warc.Exchange(url=lease.url, address="192.0.2.1", date_s=1.7e9),
                record_id=warc.record_id(self.entropy.token(16)),
                head=b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n",
                body=StoredBody(body, digest),
                body_bytes=len(body),
                sha256=digest,
            )
            (ref,) = await self.archive.append([record])
            facts = answer(200, digest=digest, body_ref=ref)
            facts = replace(facts, ref=ref)
            await self.rig.frontier.record_fetched(RecordFetched(lease.key, facts, EFFECT, 0))
            leases.append(lease)
            self.rig.now += 2_000
        return leases

    def worker(self, **options: Any) -> ParseLines:
        patient = Patient(self.frontier, self.health, self.clock)  # type: ignore[arg-type]
        extraction = Extraction(
            pool=self.readers, archive=self.archive, frontier=patient, clock=self.clock, entropy=self.entropy,
            telemetry=self.log, health=self.health, limits=ParseLimits(),
        )  # fmt: skip
        facts: dict[str, Any] = {
            "until_done": True,
            "done_after_s": 0.1,
            "worker": 5,
            "hold_s": HOLD_S,
            **options,
        }
        return ParseLines(
            frontier=self.frontier,  # type: ignore[arg-type]
            handover=Handover(extraction=extraction),
            health=self.health,
            clock=self.clock,
            telemetry=self.log,
            children=self.readers.size,
            **facts,
        )

    def owner(self) -> Extract:
        frontier, policy, book = self.rig.frontier, Policy(), RobotsBook(self.archive)
        extraction = Extraction(
            pool=self.readers, archive=self.archive, frontier=frontier, clock=self.clock, entropy=self.entropy,
            telemetry=self.log, health=self.health, limits=ParseLimits(),
        )  # fmt: skip

        class NoGate:
            async def admit_links(self, links: Any, **facts: Any) -> Any:
                return await frontier.admit(
                    AdmitBatch([page(link.url[17:]) for link in links], facts["cursor"])
                )

        return Extract(
            extraction=extraction,
            completion=Completion(
                frontier=frontier, book=book, policy=policy, store_now_ms=lambda: self.rig.now
            ),
            discovery=Discovery(gate=NoGate(), archive=self.archive),
            archive=self.archive,
            telemetry=self.log,
        )

    async def adopted(self) -> list[Resumable]:
        return await self.rig.adopt(UrlState.PARSED, partition=0)


@pytest_asyncio.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    rig = Rig(tmp_path, "inline-apsw")
    await rig.open()
    archive = DirectoryArchive(tmp_path / "archive", SystemClock(), SystemEntropy())
    yield Place(rig, archive)
    rig.audit()
    await rig.close()
    await archive.close()


async def test_a_page_is_parsed_by_a_worker_and_completed_by_its_owner(place: Place) -> None:
    (lease,) = await place.fetched("/x")
    count = await place.worker().run()
    assert (count.adopted, count.parsed, count.lost, count.stumbled) == (1, 1, 0, 0)
    (work,) = await place.adopted()
    assert work.manifest is not None
    assert manifest_json.decode(await place.archive.read(work.manifest)).manifest.title == "A page"
    await place.owner().resume(work)
    assert place.rig.state(lease.key.url_id) == UrlState.COMPLETE
    assert place.rig.rows("SELECT path FROM url WHERE path = '/next'") == [("/next",)]
    assert len(place.rig.rows("SELECT seq FROM publication")) == 1
    ((text_ref,),) = place.rig.rows("SELECT text_ref FROM manifest WHERE url_id = ?", lease.key.url_id)
    assert text_ref is not None, "the text that the worker stored is still referred to"


async def test_many_pages_are_shared_between_workers_and_each_is_parsed_once(place: Place) -> None:
    await place.fetched(*(f"/{number}" for number in range(40)))
    counts = await asyncio.gather(place.worker(worker=1).run(), place.worker(worker=2).run())
    assert sum(count.parsed for count in counts) == 40
    assert all(count.parsed for count in counts)
    assert place.readers.most <= 2 * place.readers.size * PAGES_PER_CHILD
    assert len(await place.rig.adopt(UrlState.PARSED, count=99, partition=0)) == 40


async def test_robots_txt_is_left_to_its_owner(place: Place) -> None:
    await place.rig.take_over()
    await place.rig.admit(page("/x"))
    await place.rig.offered(await place.rig.start(await place.rig.lease_one()))
    assert (await place.worker().run()).adopted == 0


async def test_a_worker_told_to_stop_finishes_what_it_holds_and_takes_nothing_more(place: Place) -> None:
    await place.fetched(*(f"/{number}" for number in range(40)))
    worker = place.worker(until_done=False)
    place.readers.before = lambda _: worker.stop()
    count = await asyncio.wait_for(worker.run(), 5)
    assert count.parsed == count.adopted <= place.readers.size * PAGES_PER_CHILD
    assert len(await place.rig.adopt(count=99)) == 40 - count.adopted > 0


async def test_a_stop_does_not_wait_for_a_page_that_takes_too_long(place: Place) -> None:
    await place.fetched("/x")
    worker = place.worker(until_done=False, stop_grace_s=0.05)
    stuck = asyncio.Event()

    async def hang() -> None:
        worker.stop()
        await stuck.wait()

    place.readers.before = lambda _: hang()
    count = await asyncio.wait_for(worker.run(), 5)
    assert (count.adopted, count.parsed) == (1, 0)


async def test_what_a_killed_worker_held_is_parsed_by_another_when_the_hold_lapses(place: Place) -> None:
    await place.fetched("/x", "/y")
    worker = place.worker()
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    place.readers.before = lambda _: hang()
    running = asyncio.ensure_future(worker.run())
    await started.wait()
    running.cancel()
    await asyncio.wait({running})
    place.readers.before = lambda _: None
    assert (await place.worker().run()).adopted == 0
    place.rig.now += int(HOLD_S * 1000)
    assert (await place.worker().run()).parsed == 2


async def test_a_page_that_kills_its_child_ends_as_parse_failed_and_stops_nobody_else(place: Place) -> None:
    leases = await place.fetched("/x", "/bad", "/y")
    place.readers.before = lambda task: (
        ParseFailure("memory", "too much") if task.url.endswith("/bad") else None
    )
    count = await place.worker().run()
    assert (count.parsed, count.lost) == (2, 1)
    states = {lease.path: place.rig.state(lease.key.url_id) for lease in leases}
    assert states == {"/x": UrlState.PARSED, "/bad": UrlState.FAILED, "/y": UrlState.PARSED}


async def lost_holders(place: Place, count: int) -> None:
    """Workers that took everything and went away, one after the other."""
    for _ in range(count):
        while await place.rig.adopt(count=99):
            pass
        place.rig.now += int(HOLD_S * 1000) + 60_000


async def test_lost_workers_do_not_make_one_failure_of_a_child_the_last(place: Place) -> None:
    (lease,) = await place.fetched("/x")
    await lost_holders(place, 3)
    failures = iter([ParseFailure("crashed", "killed from outside"), None])
    place.readers.before = lambda _: next(failures)
    assert (await place.worker().run()).parsed == 1
    assert place.rig.state(lease.key.url_id) == UrlState.PARSED


async def test_of_pages_that_are_lost_together_only_the_one_that_ends_its_workers_fails(place: Place) -> None:
    leases = await place.fetched("/x", "/bad", "/y", "/z")
    for _ in range(8):
        worker, ended = place.worker(), asyncio.Event()

        async def parse(task: ParseTask) -> None:
            if task.url.endswith("/bad"):
                ended.set()  # noqa: B023
            await (asyncio.Event().wait() if ended.is_set() else asyncio.sleep(0.01))  # noqa: B023

        place.readers.before = parse
        running = asyncio.ensure_future(worker.run())
        await asyncio.wait(
            {running, asyncio.ensure_future(ended.wait())}, return_when=asyncio.FIRST_COMPLETED
        )
        running.cancel()
        await asyncio.wait({running})
        place.rig.now += int(HOLD_S * 1000)
    states = {lease.path: place.rig.state(lease.key.url_id) for lease in leases}
    assert states == dict.fromkeys(("/x", "/y", "/z"), UrlState.PARSED) | {"/bad": UrlState.FAILED}


async def test_a_suspect_is_parsed_with_nothing_else_in_hand(place: Place) -> None:
    await place.fetched("/x", "/y")
    await lost_holders(place, 3)
    await place.fetch("/new", "/newer")
    place.readers.most = 0
    seen: list[tuple[str, int]] = []
    worker = place.worker()
    place.readers.before = lambda task: seen.append((task.url, len(worker._active)))
    assert (await worker.run()).parsed == 4
    assert [in_hand for url, in_hand in seen if url.endswith(("/x", "/y"))] == [1, 1]


async def test_a_body_that_the_archive_has_lost_ends_as_parse_failed(place: Place) -> None:
    await place.rig.take_over()
    await place.rig.ready(page("/x"))
    lease = await place.rig.next_page()
    await place.rig.offered(lease)
    assert (await place.worker().run()).lost == 1
    assert place.rig.row(lease.key.url_id, "reason") == "parse_failed"


async def test_lost_answers_of_the_store_neither_lose_nor_double_a_page(place: Place) -> None:
    await place.fetched("/x")
    worker = place.worker(done_after_s=2.0)

    def lose(_: ParseTask) -> None:
        place.frontier.lost = 2

    place.readers.before = lose
    assert (await worker.run()).parsed == 1
    assert len(await place.adopted()) == 1
    assert not place.health.blocked


async def test_while_no_child_can_be_had_pages_wait(place: Place) -> None:
    await place.fetched("/x")
    refusals = iter([True, True, False])

    def refuse(_: ParseTask) -> None:
        if next(refusals):
            raise SandboxUnavailable("no memory")

    place.readers.before = refuse
    assert (await place.worker(done_after_s=1.0).run()).parsed == 1
    assert not place.health.blocked


async def test_a_mistake_of_ours_costs_one_page_its_turn_and_is_told(place: Place) -> None:
    await place.fetched("/x", "/y")

    def stumble(task: ParseTask) -> None:
        if task.url.endswith("/x"):
            raise RuntimeError("a bug")

    place.readers.before = stumble
    count = await place.worker().run()
    assert (count.parsed, count.stumbled) == (1, 1)


async def test_a_worker_waits_for_work_until_it_is_stopped(place: Place) -> None:
    worker = place.worker(until_done=False)
    running = asyncio.ensure_future(worker.run())
    await asyncio.sleep(0.1)
    await place.fetched("/x")
    while not worker.count.parsed:
        await asyncio.sleep(0.01)
    worker.stop()
    assert (await asyncio.wait_for(running, 5)).parsed == 1
