"""A running crawl meets what cannot be: records that are gone, pages that raise. It goes on, ends, and says so."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec import structs

from amble.adapters.archive.names import list_segments
from amble.adapters.sandbox.pool import SandboxPool
from amble.adapters.sql.reports import SqliteReports
from amble.adapters.system import EventLog, SystemClock
from amble.app import keeping
from amble.app.config import CrawlConfig, ScopeChoice
from amble.app.crawl import Chore, Crawl, Parts, Tenancy
from amble.app.progress import CrawlResult, EndReason
from amble.domain.attempt import Lease, UrlKind
from amble.domain.errors import StoreUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.frontier import AdoptAsk
from amble.domain.lifecycle import UrlState
from amble.domain.policy import Budget, OriginPolicy, ScopeKind
from amble.stages.work import Source
from amble.upkeep.expire import Expiry
from tests.support.line import POLICY, Line, Lines, StoreTime
from tests.support.raw_server import RawServer, Session

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = replace(POLICY, origin=OriginPolicy(spacing_ms=20, delay_fixed=True))
ENDS_S = 20.0


class RealTime(StoreTime):
    """The store's clock runs."""

    def __call__(self) -> int:
        return int(time.time() * 1000)


@dataclass(slots=True)
class Site:
    """Answers by path; counts what it was asked for."""

    answers: dict[str, bytes] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    tagged: set[str] = field(default_factory=set)  # paths that say 304 to whoever has a validator

    async def script(self, session: Session) -> None:
        while head := await session.request():
            path = head.split(b" ", 2)[1].decode()
            self.asked[path] += 1
            if path in self.tagged and b"If-None-Match" in head:
                await session.send(b'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\n\r\n')
                continue
            await session.send(self.answers.get(path) or html(f"page {path}"))


def reply(body: bytes, media: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nContent-Type: {media}\r\n\r\n".encode() + body


def html(text: str, *links: str) -> bytes:
    anchors = "".join(f'<a href="{link}">x</a>' for link in links)
    return reply(f"<title>{text}</title><p>{text} in some words</p>{anchors}".encode(), "text/html")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    opened = await SandboxPool.open(limits=QUICK.parse, size=1)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def site() -> AsyncIterator[tuple[Site, str]]:
    site = Site(
        {
            "/robots.txt": reply(b"User-agent: *\nDisallow: /private\n", "text/plain"),
            "/": html("home", "/a", "/b"),
        }
    )
    async with RawServer(site.script) as server:
        yield site, f"http://127.0.0.1:{server.port}"


@pytest_asyncio.fixture(loop_scope="module")
async def lines(tmp_path: Path, pool: SandboxPool) -> AsyncIterator[Lines]:
    async with Lines(tmp_path, pool, QUICK) as opened:
        opened.time = RealTime()
        yield opened


def crawl_of(line: Line, *seeds: str) -> Crawl:
    reports = SqliteReports(line.folder / "frontier.db", database=line.store.database)

    async def seed() -> int:
        await line.seed(*seeds)
        return 0

    async def status() -> Any:
        return reports.status()

    async def close() -> None:
        """The life is closed by the fixture."""

    return Crawl(
        Parts(
            frontier=line.frontier, scheduler=line.scheduler, dispatch=line.dispatch, extract=line.extract,
            discovery=line.discovery, recorder=line.recorder, expiry=Expiry(line.frontier, EventLog(None)),
            fence=line.gate.fence, health=line.recorder.health, clock=SystemClock(), telemetry=EventLog(None),
            takeover=line.takeover, seed=seed, read_status=status, publish=None, on_status=lambda _: None,
            abandon_store=lambda _: None, close=close, budget=Budget(), concurrency=8, backlog_max=8, wait_s_max=5.0,
        )
    )  # fmt: skip


async def run(line: Line, *seeds: str) -> CrawlResult:
    async with asyncio.timeout(ENDS_S):
        return await crawl_of(line, *seeds).run()


async def lease_soon(line: Line) -> Lease:
    while not (leases := (await line.scheduler.lease(1)).leases):
        await asyncio.sleep(0.02)
    return leases[0]


async def home_fetched(line: Line, base: str) -> Source:
    """robots.txt is complete, the home page FETCHED."""
    await line.seed(f"{base}/")
    robots = await line.dispatch.run(await lease_soon(line))
    assert robots is not None
    await line.extract.run(robots)
    home = await line.dispatch.run(await lease_soon(line))
    assert home is not None
    return home


async def home_parsed(line: Line, base: str) -> None:
    source = await home_fetched(line, base)
    extracted = await line.extraction.extract(source)
    assert extracted is not None
    await line.completion.record_parsed(source.lease, extracted)


async def home_complete(line: Line, base: str) -> None:
    source = await home_fetched(line, base)
    extracted = await line.extraction.extract(source)
    assert extracted is not None
    await line.completion.record_parsed(source.lease, extracted)
    await line.completion.complete(source, extracted)


def destroy(line: Line, *names: str) -> None:
    """Overwrite records of the home page in the archive: `body`, `manifest`."""
    columns = {
        "body": "SELECT body_ref FROM url WHERE path = '/'",
        "manifest": "SELECT m.ref FROM manifest m JOIN url u ON u.id = m.url_id WHERE u.path = '/'",
        "robots body": "SELECT body_ref FROM url WHERE kind = 1",
        "rules": "SELECT robots_rules FROM origin",
    }
    for name in names:
        ((packed,),) = line.store.database.execute(columns[name]).fetchall()
        ref = BodyRef.unpack(packed)
        (segment,) = [item for item in list_segments(line.folder / "archive") if item.serial == ref.segment]
        file = os.open(segment.path, os.O_WRONLY)
        os.pwrite(file, bytes(ref.length), ref.offset)
        os.close(file)


@pytest.mark.parametrize("lost", [("body",), ("manifest",)])
async def test_a_parsed_page_is_completed_from_what_the_archive_still_has(
    site: tuple[Site, str], lines: Lines, lost: tuple[str, ...]
) -> None:
    line = await lines.next_life()
    await home_parsed(line, site[1])
    destroy(line, *lost)
    line = await lines.next_life()
    result = await run(line)
    assert (result.reason, result.trouble) == (EndReason.FINISHED, "")
    assert line.states() == {"/": "complete", "/a": "complete", "/b": "complete"}
    assert site[0].asked["/"] == 1
    assert line.problems() == []


async def test_a_parsed_page_of_which_nothing_is_left_fails_and_the_crawl_ends(
    site: tuple[Site, str], lines: Lines
) -> None:
    line = await lines.next_life()
    await home_parsed(line, site[1])
    await line.seed(f"{site[1]}/other")
    destroy(line, "body", "manifest")
    line = await lines.next_life()
    result = await run(line)
    assert result.reason is EndReason.FINISHED
    assert line.states() == {"/": "failed", "/other": "complete"}
    assert line.reason("/") == "parse_failed"


async def test_links_whose_manifest_is_lost_are_told_of_and_keep_nobody_waiting(
    site: tuple[Site, str], lines: Lines
) -> None:
    line = await lines.next_life()
    await home_complete(line, site[1])
    await line.seed(f"{site[1]}/other")
    destroy(line, "manifest")
    line = await lines.next_life()
    result = await run(line)
    assert line.states() == {"/": "complete", "/other": "complete"}
    assert result.reason is EndReason.TROUBLE
    assert "1 page" in result.trouble


async def test_a_page_that_raises_in_extraction_is_told_of_and_keeps_nobody_waiting(
    site: tuple[Site, str], lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = await lines.next_life()
    await line.seed(f"{site[1]}/other")
    parse = type(line.pool).parse

    async def stumble(pool: SandboxPool, task: Any) -> Any:
        if task.url.endswith("/a"):
            raise RuntimeError("a mistake")
        return await parse(pool, task)

    monkeypatch.setattr(type(line.pool), "parse", stumble)
    result = await run(line, f"{site[1]}/")
    assert line.states() == {"/": "complete", "/a": "fetched", "/b": "complete", "/other": "complete"}
    assert result.reason is EndReason.TROUBLE
    assert "1 page" in result.trouble
    monkeypatch.undo()
    line = await lines.next_life()
    assert (await run(line)).reason is EndReason.FINISHED
    assert line.states()["/a"] == "complete"
    assert site[0].asked["/a"] == 1


async def test_rules_that_the_archive_has_lost_are_fetched_again(
    site: tuple[Site, str], lines: Lines
) -> None:
    line = await lines.next_life()
    await home_complete(line, site[1])
    destroy(line, "rules")
    line = await lines.next_life()
    result = await run(line, f"{site[1]}/private")
    assert result.reason is EndReason.FINISHED
    assert line.states() == {"/": "complete", "/a": "complete", "/b": "complete", "/private": "excluded"}
    assert site[0].asked["/robots.txt"] == 2
    assert line.problems() == []


async def test_verify_takes_a_link_to_a_robots_txt_for_what_it_is(
    site: tuple[Site, str], lines: Lines, tmp_path: Path
) -> None:
    site[0].answers["/"] = html("home", "https://elsewhere.example/robots.txt", "/a")
    line = await lines.next_life()
    assert (await run(line, f"{site[1]}/")).reason is EndReason.FINISHED
    await lines.next_life()
    config = CrawlConfig(seeds=(f"{site[1]}/",), scope=ScopeChoice(kind=ScopeKind.ANY))
    assert list(keeping.verify(tmp_path, config)) == []


async def test_rules_lost_with_the_body_they_stood_in_are_fetched_in_full(
    site: tuple[Site, str], lines: Lines
) -> None:
    robots = site[0].answers["/robots.txt"]
    site[0].answers["/robots.txt"] = robots.replace(b"Content-Type", b'ETag: "1"\r\nContent-Type')
    site[0].tagged.add("/robots.txt")
    line = await lines.next_life()
    await home_complete(line, site[1])
    destroy(line, "rules", "robots body")
    line = await lines.next_life()
    result = await run(line, f"{site[1]}/private")
    assert result.reason is EndReason.FINISHED
    assert line.states() == {"/": "complete", "/a": "complete", "/b": "complete", "/private": "excluded"}
    assert site[0].asked["/robots.txt"] == 3
    assert line.problems() == []


# -- an agent of a fleet --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tenant:
    """What an agent of a fleet adds to a crawl, written down."""

    said: list[str] = field(default_factory=list)
    looked: int = 0
    unanswered: int = 0

    async def look(self) -> None:
        self.looked += 1
        if self.looked <= self.unanswered:
            raise StoreUnavailable("away")

    async def ended(self) -> EndReason | None:
        return EndReason.FINISHED if self.looked >= 3 else None

    def depart(self) -> None:
        self.said.append("depart")

    async def leave(self) -> None:
        self.said.append("leave")

    def tenancy(self, **more: Any) -> Tenancy:
        chores = [Chore(name="look", every_s=0.05, work=self.look)]
        facts: dict[str, Any] = {"ended": self.ended, **more}
        return Tenancy(chores=chores, depart=self.depart, leave=self.leave, **facts)


def agent_of(line: Line, tenancy: Tenancy, *seeds: str) -> Crawl:
    crawl = crawl_of(line, *seeds)
    return Crawl(structs.replace(crawl.parts, takeover=None, tenancy=tenancy))


async def test_an_agent_ends_when_the_fleet_is_done_and_gives_its_partitions_back_last(
    lines: Lines, site: tuple[Site, str]
) -> None:
    line, tenant = await lines.next_life(), Tenant(unanswered=2)

    async def ended() -> EndReason | None:
        return None if "pending" in line.states().values() else await tenant.ended()

    crawl = agent_of(line, tenant.tenancy(ended=ended), f"{site[1]}/")
    async with asyncio.timeout(ENDS_S):
        result = await crawl.run()
    assert (result.reason, result.pages) == (EndReason.FINISHED, 3)
    assert tenant.said == ["depart", "leave"]
    assert tenant.looked >= 3, "a chore that was not answered is made again"


async def test_an_agent_that_holds_nothing_waits_until_it_is_stopped(
    lines: Lines, site: tuple[Site, str]
) -> None:
    line, tenant = await lines.next_life(), Tenant()
    line.gate.fence.lose_all()
    crawl = agent_of(line, tenant.tenancy(ended=None))
    running = asyncio.ensure_future(crawl.run())
    while tenant.looked < 3:
        await asyncio.sleep(0.01)
    crawl.stop()
    async with asyncio.timeout(ENDS_S):
        assert (await running).reason is EndReason.STOPPED
    assert tenant.said == ["depart", "leave"]


async def test_while_enough_pages_wait_for_parse_workers_only_robots_txt_is_asked_for(
    lines: Lines, site: tuple[Site, str]
) -> None:
    line, tenant = await lines.next_life(), Tenant()
    crawl = agent_of(line, tenant.tenancy(ended=None, unparsed_max=1), f"{site[1]}/", f"{site[1]}/a")
    recorder = structs.replace(line.recorder, parsed_elsewhere=frozenset({UrlKind.PAGE}))
    crawl = Crawl(structs.replace(crawl.parts, dispatch=structs.replace(line.dispatch, recorder=recorder)))
    running = asyncio.ensure_future(crawl.run())

    def pages() -> int:
        return site[0].asked["/"] + site[0].asked["/a"]

    while not pages():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    assert (pages(), crawl.progress().binding_limit) == (1, "parse_backlog")
    (work,) = await line.frontier.adopt(AdoptAsk(UrlState.FETCHED, 9, 10, 60_000))
    await line.extract.resume(work)
    while pages() < 2:
        await asyncio.sleep(0.01)
    crawl.stop()
    async with asyncio.timeout(ENDS_S):
        await running


async def test_an_agent_knows_in_which_partitions_something_is_under_way(
    lines: Lines, site: tuple[Site, str]
) -> None:
    line, tenant = await lines.next_life(), Tenant()
    crawl = agent_of(line, tenant.tenancy(), f"{site[1]}/")
    busy: set[bool] = set()

    async def watch() -> None:
        while True:
            busy.add(crawl.is_busy(0))
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    async with asyncio.timeout(ENDS_S):
        await crawl.run()
    watching.cancel()
    assert busy == {False, True}
    assert not crawl.is_busy(0)
    assert not crawl.is_busy(1)
