"""The line, stopped after every step: a new life falls back to the last durable bar and never further."""

from __future__ import annotations

import asyncio
import gzip
import os
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
from amble.domain.attempt import Lease, UrlKind
from amble.domain.decision import Reason, Refusal
from amble.domain.frontier import AdoptAsk, Applied, OriginEffect, RecordFailed, ReserveAsk, ReserveReply
from amble.domain.lifecycle import UrlState
from amble.domain.manifest import CursorAdvance, ManifestKey
from amble.domain.policy import Budget, RetryPolicy
from amble.formats.warc import stored_head
from amble.ports import Ask, FetchFailure, Permit, Reply
from amble.stages.gate import Lapsed
from amble.stages.store import Exchange, whole_head
from amble.stages.work import Source
from tests.support.line import POLICY, Line, Lines
from tests.support.raw_server import RawServer, Session

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(slots=True)
class Site:
    """A small site; every answer can be replaced. Counts what it was asked for."""

    answers: dict[str, bytes] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    async def script(self, session: Session) -> None:
        while head := await session.request():
            path = head.split(b" ", 2)[1].decode()
            self.asked[path] += 1
            await session.send(self.answers.get(path) or html(f"page {path}"))


def reply(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def html(text: str, *links: str) -> bytes:
    body = f"<title>{text}</title><p>{text} in some words</p>" + "".join(
        f'<a href="{x}">x</a>' for x in links
    )
    return reply("200 OK", body.encode(), "Content-Type: text/html")


ROBOTS = reply("200 OK", b"User-agent: *\nDisallow: /private\n", "Content-Type: text/plain")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    opened = await SandboxPool.open(limits=POLICY.parse, size=1)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def site() -> AsyncIterator[tuple[Site, str]]:
    site = Site({"/robots.txt": ROBOTS, "/": html("home", "/a", "/b", "/private")})
    async with RawServer(site.script) as server:
        yield site, f"http://127.0.0.1:{server.port}"


@pytest_asyncio.fixture(loop_scope="module")
async def lines(tmp_path: Path, pool: SandboxPool) -> AsyncIterator[Lines]:
    async with Lines(tmp_path, pool) as opened:
        yield opened


async def robots_done(line: Line, base: str) -> None:
    """Seed the home page and bring its origin to a robots decision."""
    await line.seed(f"{base}/")
    (lease,) = await line.lease()
    assert isinstance(lease, Lease)
    assert lease.kind == UrlKind.ROBOTS
    source = await line.dispatch.run(lease)
    assert source is not None
    await line.extract.run(source)


async def home_leased(line: Line, base: str) -> Lease:
    await robots_done(line, base)
    (lease,) = await line.lease()
    assert isinstance(lease, Lease)
    assert lease.path == "/"
    return lease


async def home_fetched(line: Line, base: str) -> Source:
    source = await line.dispatch.run(await home_leased(line, base))
    assert source is not None
    return source


async def finish_and_judge(line: Line, site: Site, *, home_asked: int) -> None:
    """Whatever was left goes on to the end, with every page complete once and nothing published twice."""
    await line.resume()
    await line.run()
    assert line.states() == {"/": "complete", "/a": "complete", "/b": "complete", "/private": "excluded"}
    assert sorted(line.published()) == ["/", "/a", "/b"]
    assert site.asked == Counter({"/": home_asked, "/a": 1, "/b": 1, "/robots.txt": 1})
    assert line.problems() == []


async def test_a_site_is_crawled_once_and_its_rules_are_kept(site: tuple[Site, str], lines: Lines) -> None:
    line = await lines.next_life()
    await line.seed(f"{site[1]}/")
    await finish_and_judge(line, site[0], home_asked=1)
    assert line.reason("/private") == Reason.ROBOTS_DISALLOWED


async def test_a_crash_after_the_lease_costs_nothing(site: tuple[Site, str], lines: Lines) -> None:
    await home_leased(await lines.next_life(), site[1])
    line = await lines.next_life()
    assert line.takeover.lapsed == 1
    await finish_and_judge(line, site[0], home_asked=1)


async def test_a_crash_after_the_reservation_frees_the_slot_and_keeps_the_spacing(
    site: tuple[Site, str], lines: Lines
) -> None:
    line = await lines.next_life()
    permit = await line.gate.ask(await home_leased(line, site[1]))
    assert isinstance(permit, Permit)
    line = await lines.next_life()
    again = (await line.scheduler.lease(10)).leases
    assert again == [], "the start that was reserved counts, whether it happened or not"
    await finish_and_judge(line, site[0], home_asked=1)


async def test_a_crash_after_the_body_was_stored_costs_one_repeated_fetch(
    site: tuple[Site, str], lines: Lines
) -> None:
    line = await lines.next_life()
    lease = await home_leased(line, site[1])
    permit = await line.gate.ask(lease)
    assert isinstance(permit, Permit)
    answer = await line.fetcher.fetch(lease, permit)
    assert isinstance(answer, Reply)
    await line.recorder.store(lease, [Exchange(permit=permit, reply=answer, url=lease.url, started_s=0.0)])
    await finish_and_judge(await lines.next_life(), site[0], home_asked=2)


async def test_a_crash_after_fetched_parses_the_stored_body_and_fetches_nothing(
    site: tuple[Site, str], lines: Lines
) -> None:
    await home_fetched(await lines.next_life(), site[1])
    line = await lines.next_life()
    assert [work.lease.path for work in line.takeover.resumables] == ["/"]
    await finish_and_judge(line, site[0], home_asked=1)


async def test_a_crash_after_the_manifest_was_stored_costs_one_repeated_parse(
    site: tuple[Site, str], lines: Lines
) -> None:
    line = await lines.next_life()
    source = await home_fetched(line, site[1])
    assert await line.extraction.extract(source) is not None
    await finish_and_judge(await lines.next_life(), site[0], home_asked=1)


async def test_a_crash_after_parsed_completes_from_the_manifest(site: tuple[Site, str], lines: Lines) -> None:
    line = await lines.next_life()
    source = await home_fetched(line, site[1])
    extracted = await line.extraction.extract(source)
    assert extracted is not None
    assert await line.completion.record_parsed(source.lease, extracted) == Applied.APPLIED
    line = await lines.next_life()
    assert line.takeover.resumables[0].manifest is not None
    await finish_and_judge(line, site[0], home_asked=1)


async def test_a_crash_while_completing_waits_and_links_are_admitted_loses_none_of_the_others(
    site: tuple[Site, str], lines: Lines
) -> None:
    line = await lines.next_life()
    source = await home_fetched(line, site[1])
    extracted = await line.extraction.extract(source)
    assert extracted is not None
    await line.completion.record_parsed(source.lease, extracted)
    links, key = extracted.parsed.manifest.links, source.lease.key
    move = CursorAdvance(ManifestKey(key.url_id, key.attempt, extracted.generation, key.partition), 0, 1)
    report = await line.discovery.gate.admit_links(links[:1], parent=key.url_id, depth=0, hops=0, cursor=move)
    assert report.applied == Applied.APPLIED
    line = await lines.next_life()
    assert line.takeover.resumables[0].cursor == 1
    await finish_and_judge(line, site[0], home_asked=1)


async def test_a_crash_after_complete_discovers_from_the_manifest(
    site: tuple[Site, str], lines: Lines
) -> None:
    line = await lines.next_life()
    source = await home_fetched(line, site[1])
    extracted = await line.extraction.extract(source)
    assert extracted is not None
    await line.completion.record_parsed(source.lease, extracted)
    assert await line.completion.complete(source, extracted) == Applied.APPLIED
    assert line.states() == {"/": "complete"}
    line = await lines.next_life()
    assert len(line.takeover.open_manifests) == 1
    await finish_and_judge(line, site[0], home_asked=1)


async def test_a_crash_in_the_middle_of_a_manifest_goes_on_at_its_cursor(
    site: tuple[Site, str], lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines.batch_links = 1
    line = await lines.next_life()
    source = await home_fetched(line, site[1])
    admit, calls = line.url_gate.admit_links, []

    async def crash_at_the_second(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the process is gone")
        return await admit(*arguments, **named)

    monkeypatch.setattr(line.url_gate, "admit_links", crash_at_the_second)
    with pytest.raises(RuntimeError):
        await line.extract.run(source)
    line = await lines.next_life()
    (left,) = line.takeover.open_manifests
    assert (left.cursor, left.total) == (1, 3)
    await finish_and_judge(line, site[0], home_asked=1)


async def test_a_worker_that_wakes_after_its_replacement_changes_nothing(
    site: tuple[Site, str], lines: Lines
) -> None:
    old = await lines.next_life()
    lease = await home_leased(old, site[1])
    # The store gives the lease to somebody else while this worker sleeps.
    old.time.now_ms += 3_600_000
    assert await old.frontier.expire(10) == 1
    new = (await old.scheduler.lease(1)).leases[0]
    assert new.key.token != lease.key.token
    assert isinstance(await old.gate.ask(lease), Lapsed)
    permit = await old.gate.ask(new)
    assert isinstance(permit, Permit)
    answer = await old.fetcher.fetch(new, permit)
    assert isinstance(answer, Reply)
    exchange = Exchange(permit=permit, reply=answer, url=new.url, started_s=0.0)
    stored = await old.recorder.store(new, [exchange])
    assert await old.recorder.record_fetched(lease, exchange, stored.fetched) == Applied.STALE
    effect = OriginEffect(1, 0, 0, 0)
    failed = RecordFailed(lease.key, "internal", "", None, None, effect)
    assert await old.frontier.record_failed(failed) == Applied.STALE
    assert await old.recorder.put_back(lease, Reason.STOPPING) == Applied.STALE
    assert await old.recorder.record_fetched(new, exchange, stored.fetched) == Applied.APPLIED
    assert old.problems() == []


async def test_rules_that_change_while_a_lease_waits_are_noticed_at_the_gate(
    site: tuple[Site, str], lines: Lines
) -> None:
    line = await lines.next_life()
    lease = await home_leased(line, site[1])
    line.store.database.execute("UPDATE origin SET robots_version = robots_version + 1")
    line.store.books.ledger.forget()
    answer = await line.gate.ask(lease)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.ROBOTS_CHANGED
    assert site[0].asked["/"] == 0


async def test_an_identical_body_is_stored_once_and_both_pages_keep_their_own_record(
    site: tuple[Site, str], lines: Lines
) -> None:
    site[0].answers["/a"] = site[0].answers["/b"] = html("the same", "x")
    line = await lines.next_life()
    await line.seed(f"{site[1]}/a", f"{site[1]}/b")
    await line.run()
    rows = line.store.database.execute(
        "SELECT u.path, f.answer, u.body_ref FROM fetch f JOIN url u ON u.id = f.url_id WHERE u.path IN ('/a', '/b')"
    ).fetchall()
    assert len({body for _, _, body in rows}) == 1, "one copy of the bytes"
    assert len({answer for _, answer, _ in rows}) == 2, "two fetch records"
    assert {"/a", "/b"} <= set(line.published())


async def test_a_redirect_is_a_discovery_and_a_chain_ends_at_its_bound(
    site: tuple[Site, str], lines: Lines
) -> None:
    for number in range(30):
        site[0].answers[f"/r{number}"] = reply("302 Found", b"", f"Location: /r{number + 1}")
    line = await lines.next_life()
    await line.seed(f"{site[1]}/r0")
    await line.run(turns=100)
    reached = [path for path in line.states() if path.startswith("/r")]
    assert len(reached) == 11, "the seed and ten hops"
    assert set(line.states().values()) == {"complete"}


async def test_a_server_error_goes_to_the_retry_lane_and_ends_as_failed(
    site: tuple[Site, str], lines: Lines
) -> None:
    site[0].answers["/bad"] = reply("503 Busy", b"later")
    line = await lines.next_life()
    await line.seed(f"{site[1]}/bad")
    for _ in range(20):
        await line.run()
        line.time.now_ms += 60_000
    assert line.states()["/bad"] == "failed"
    assert line.reason("/bad") == "http_server_error"
    assert site[0].asked["/bad"] == 2


@pytest.mark.parametrize("status", ["500 No", "503 No", "429 Too many"])
async def test_no_page_is_asked_for_while_robots_txt_cannot_be_had(
    site: tuple[Site, str], lines: Lines, status: str
) -> None:
    site[0].answers["/robots.txt"] = reply(status, b"")
    line = await lines.next_life()
    await line.seed(f"{site[1]}/")
    for _ in range(10):
        await line.run()
        line.time.now_ms += 30_000
    assert site[0].asked["/"] == 0
    assert line.states() == {"/": "pending"}
    assert line.problems() == []


@pytest.mark.parametrize(
    "coded", [b"\x1f\x8bgarbage", gzip.compress(b"#" * 9_000 + os.urandom(500) + ROBOTS)[:-40]]
)
async def test_a_robots_txt_that_cannot_be_read_to_its_end_opens_nothing(
    site: tuple[Site, str], lines: Lines, coded: bytes
) -> None:
    """The very rule that matters may stand in the part that is lost."""
    site[0].answers["/robots.txt"] = reply("200 OK", coded, "Content-Encoding: gzip")
    line = await lines.next_life()
    await line.seed(f"{site[1]}/private")
    await line.run()
    assert line.states() == {"/private": "pending"}
    site[0].answers["/robots.txt"] = ROBOTS
    line.time.now_ms += 7_200_000
    await line.run()
    assert line.states() == {"/private": "excluded"}
    assert line.problems() == []


@pytest.mark.parametrize("delay", ["1e308", "1e300", "1e20", "99999999999999999999"])
async def test_a_crawl_delay_beyond_all_bounds_counts_as_the_longest(
    site: tuple[Site, str], lines: Lines, delay: str
) -> None:
    site[0].answers["/robots.txt"] = reply("200 OK", f"User-agent: *\nCrawl-delay: {delay}\n".encode())
    line = await lines.next_life()
    await line.seed(f"{site[1]}/a")
    for _ in range(2):
        await line.run()
        line.time.now_ms += 300_000
    assert line.states() == {"/a": "complete"}


async def test_rules_come_from_where_robots_txt_was_moved_to(site: tuple[Site, str], lines: Lines) -> None:
    site[0].answers["/robots.txt"] = reply("301 Moved", b"", "Location: /rules")
    site[0].answers["/rules"] = ROBOTS
    policy_free = await lines.next_life()
    policy_free.gate.clock.sleep = _advance(policy_free)  # type: ignore[method-assign]
    await policy_free.seed(f"{site[1]}/", f"{site[1]}/private")
    await policy_free.run()
    assert policy_free.states()["/private"] == "excluded"
    assert policy_free.states()["/"] == "complete"


async def test_the_place_robots_txt_was_moved_to_is_read_as_utf_8(
    site: tuple[Site, str], lines: Lines
) -> None:
    """As for pages; read otherwise it would be another place, whose 404 would open the site."""
    moved = "HTTP/1.1 301 Moved\r\nContent-Length: 0\r\nLocation: /r\u00fcles\r\n\r\n"
    site[0].answers["/robots.txt"] = moved.encode()
    site[0].answers["/r%C3%BCles"] = ROBOTS
    line = await lines.next_life()
    line.gate.clock.sleep = _advance(line)  # type: ignore[method-assign]
    await line.seed(f"{site[1]}/private")
    await line.run()
    assert line.states() == {"/private": "excluded"}


def _advance(line: Line) -> Any:
    """A hop waits for its turn: the wait passes on the store's clock at once."""

    async def sleep(seconds: float) -> None:
        line.time.now_ms += int(seconds * 1000) + 1

    return sleep


async def test_a_private_destination_is_refused_and_nothing_is_sent(
    site: tuple[Site, str], lines: Lines
) -> None:
    line = await lines.next_life()
    port = site[1].rpartition(":")[2]
    await line.seed(f"http://127.0.0.2:{port}/")
    for _ in range(5):
        await line.run()
        line.time.now_ms += 60_000
    assert site[0].asked == Counter()
    assert line.states() == {"/": "pending"}, (
        "its robots.txt is out of reach, so the page waits with a reason"
    )


@pytest.mark.parametrize(
    "answer",
    [
        b"\r\n" + html("after an empty line"),
        html("folded").replace(b"Content-Type: text/html", b"Content-Type: text/html\r\nX-Folded: a\r\n b"),
        html("bare line feeds").replace(b"\r\n", b"\n"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/html\r\n\r\n"
        b"15\r\n<title>chunked</title\r\n1\r\n>\r\n0\r\n\r\n",
    ],
    ids=["empty line first", "folded header", "bare line feeds", "chunked"],
)
async def test_a_sloppy_answer_is_stored_parsed_and_completed(
    site: tuple[Site, str], lines: Lines, answer: bytes
) -> None:
    site[0].answers["/sloppy"] = answer
    line = await lines.next_life()
    await line.seed(f"{site[1]}/sloppy")
    await line.run()
    assert line.states()["/sloppy"] == "complete"
    assert line.problems() == []


@pytest.mark.parametrize(
    ("head", "whole"),
    [
        (b"", b"HTTP/0.9 200 \r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n", b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nA: b", b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"),
    ],
)
async def test_a_head_that_was_cut_is_stored_with_the_line_that_ends_it(head: bytes, whole: bytes) -> None:
    assert whole_head(head) == whole
    assert stored_head(whole)[0] == whole


async def test_a_robots_txt_that_redirects_to_the_port_of_another_service_is_refused(
    site: tuple[Site, str], lines: Lines
) -> None:
    """Links to such ports are rejected when they are found; a hop is followed at once and must be held to the same."""
    site[0].answers["/robots.txt"] = reply("301 Moved", b"", "Location: http://127.0.0.1:6667/robots.txt")
    line = await lines.next_life()
    await line.seed(f"{site[1]}/")
    await line.run()
    row = line.store.database.execute("SELECT reason, detail FROM url WHERE kind = 1").fetchone()
    assert row == ("refused_destination", "port 6667 is not for HTTP")
    assert line.states() == {"/": "pending"}


async def test_a_crawl_delay_beyond_all_measure_is_a_long_delay_and_nothing_breaks(
    site: tuple[Site, str], lines: Lines
) -> None:
    for number, delay in enumerate((b"1e17", b"1e300", b"1.7976931348623157e308", b"-0.0")):
        site[0].answers["/robots.txt"] = reply(
            "200 OK", b"User-agent: *\nCrawl-delay: " + delay, "Content-Type: text/plain"
        )
        line = await lines.next_life()
        line.time.now_ms += (number + 1) * 86_400_000
        await robots_done(line, site[1])
        (kept,) = line.store.database.execute("SELECT robots_delay_ms FROM origin").fetchone()
        assert 0 <= kept < 2**62
        assert line.problems() == []


async def test_a_new_crawl_delay_puts_the_origin_to_sleep_and_not_one_url_after_the_other(
    site: tuple[Site, str], lines: Lines
) -> None:
    site[0].answers["/robots.txt"] = reply(
        "200 OK", b"User-agent: *\nCrawl-delay: 60", "Content-Type: text/plain"
    )
    line = await lines.next_life()
    await line.seed(*(f"{site[1]}/{number}" for number in range(10)))
    await line.run()
    asked = line.store.database.execute("SELECT max(attempt) FROM url WHERE kind = 0").fetchone()[0]
    leased = line.store.database.execute("SELECT sum(attempt) FROM url WHERE kind = 0").fetchone()[0]
    assert (asked, leased) == (1, 1), "the first page was told when, and nobody else had to ask"
    assert site[0].asked == Counter({"/robots.txt": 1})
    (wake,) = line.store.database.execute("SELECT wake_at FROM origin").fetchone()
    assert wake >= line.time.now_ms + 50_000


async def test_a_rule_without_end_is_not_kept_with_every_url_that_it_forbids(
    site: tuple[Site, str], lines: Lines
) -> None:
    site[0].answers["/robots.txt"] = reply(
        "200 OK", b"User-agent: *\nDisallow: /" + b"*" * 400_000, "Content-Type: text/plain"
    )
    line = await lines.next_life()
    await line.seed(f"{site[1]}/1", f"{site[1]}/2")
    await line.run()
    assert set(line.states().values()) == {"excluded"}
    lengths = line.store.database.execute(
        "SELECT max(length(detail)) FROM url UNION ALL SELECT max(length(detail)) FROM decision"
    ).fetchall()
    assert all(length <= 300 for (length,) in lengths)


async def test_a_robots_txt_that_leads_to_a_busy_site_is_tried_again_and_not_given_up(
    site: tuple[Site, str], lines: Lines
) -> None:
    other = Site({"/robots.txt": reply("200 OK", b"User-agent: *\nCrawl-delay: 60\nDisallow: /private")})
    async with RawServer(other.script) as server:
        base = f"http://127.0.0.1:{server.port}"
        site[0].answers["/robots.txt"] = reply("301 Moved", b"", f"Location: {base}/robots.txt")
        line = await lines.next_life()
        await robots_done(line, base)
        await line.seed(f"{site[1]}/private")
        robots = next(lease for lease in await line.lease() if lease.origin == site[1])  # type: ignore[attr-defined]
        assert await line.dispatch.run(robots) is None  # type: ignore[arg-type]
        row = line.store.database.execute(
            "SELECT u.state, u.reason, u.tries FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE o.key = ? AND u.kind = 1",
            (site[1],),
        ).fetchone()
        assert row == (0, "no_turn", 1)
        line.time.now_ms += 120_000
        await line.run()
        assert line.states()["/private"] == "excluded"


async def test_a_body_that_breaks_off_at_the_last_try_is_kept_whatever_broke_it(
    site: tuple[Site, str], tmp_path: Path, pool: SandboxPool
) -> None:
    site[0].answers["/broken"] = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/html\r\n\r\n"
        b"20\r\n<title>broken</title><p>words</p>\r\nzz\r\n"
    )
    async with Lines(tmp_path, pool, replace(POLICY, retry=RetryPolicy(tries_max=4, base_ms=1_000))) as lines:
        line = await lines.next_life()
        await line.seed(f"{site[1]}/broken")
        for _ in range(10):
            await line.run()
            line.time.now_ms += 60_000
        assert line.states() == {"/broken": "complete"}
        assert site[0].asked["/broken"] == 2, "framing errors rarely go away"


async def test_while_the_archive_cannot_be_read_a_page_waits_and_is_then_carried_on(
    site: tuple[Site, str], lines: Lines
) -> None:
    await home_fetched(await lines.next_life(), site[1])
    line = await lines.next_life()
    (segment,) = list_segments(line.folder / "archive")
    aside = segment.path.rename(line.folder / "aside")
    segment.path.mkdir()
    carried = asyncio.ensure_future(line.resume())
    health = line.recorder.health
    while Reason.ARCHIVE_UNAVAILABLE not in health.troubles:
        await asyncio.sleep(0.01)
    assert isinstance(await line.gate._judge_rules(home := line.takeover.resumables[0].lease), Refusal)
    assert home.path == "/"
    segment.path.rmdir()
    aside.rename(segment.path)
    line.archive._reader.close()
    await carried
    assert not health.blocked
    await line.run()
    assert line.states()["/"] == "complete"


async def test_with_the_budget_spent_the_scheduler_waits_for_a_page_to_end(
    site: tuple[Site, str], tmp_path: Path, pool: SandboxPool
) -> None:
    async with Lines(tmp_path, pool, replace(POLICY, budget=Budget(pages_max=1))) as lines:
        line = await lines.next_life()
        await robots_done(line, site[1])
        await line.seed(f"{site[1]}/2")
        other = await line.lease()
        assert len(other) == 1
        line.time.now_ms += 60_000
        assert (await line.scheduler.lease(1)).budget_spent
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await line.scheduler.wait()
        line.scheduler.kick()
        await line.scheduler.wait()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 999 Odd\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 206 Partial\r\nContent-Type: text/html\r\nContent-Length: 9\r\n\r\n<p>words<",
        b"HTTP/1.1 205 Reset\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 304 Unasked\r\n\r\n",
        b"HTTP/1.1 301 Moved\r\nContent-Length: 0\r\nLocation: http://" + b"a" * 30_000 + b"/\r\n\r\n",
        b"HTTP/1.1 302 Moved\r\nContent-Length: 0\r\nLocation: http://\xff\xfe\x00\xed\xa0\x80/\r\n\r\n",
        reply("200 OK", b"", "Content-Type: text/html"),
        reply("200 OK", b"<p>words", "Content-Type: " + "x" * 30_000, 'ETag: "' + "e" * 30_000 + '"'),
        reply("200 OK", b"<p>words", "Content-Type: text/html").replace(
            b"text/html", b"text/html\x00; \xed\xa0\x80"
        ),
        reply("200 OK", "<title>\x00\ud800</title><p>\udfff words".encode("utf-8", "surrogatepass")),
        reply("200 OK", b"<link rel=canonical href='http://x/" + b"c" * 100_000 + b"'><p>words"),
        reply("503 No", b"", "Retry-After: 99999999999999999999999999"),
        reply("429 No", b"", "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"),
        reply("200 OK", b"<p>words", "Retry-After: 999999999999"),
    ],
)
async def test_an_odd_answer_costs_nobody_but_itself(
    site: tuple[Site, str], lines: Lines, answer: bytes
) -> None:
    site[0].answers["/odd"] = answer
    line = await lines.next_life()
    await line.seed(f"{site[1]}/odd", f"{site[1]}/even")
    for _ in range(8):
        await line.run()
        line.time.now_ms += 86_400_000
    assert line.states()["/even"] == "complete"
    assert line.states()["/odd"] in ("complete", "failed")
    assert line.problems() == []


async def test_a_body_that_this_machine_cannot_keep_costs_no_try(
    site: tuple[Site, str], lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    site[0].answers["/large"] = reply("200 OK", b"x" * 3_000_000, "Content-Type: text/plain")
    line = await lines.next_life()
    in_the_way = lines.folder / "a-file-in-the-way"
    in_the_way.write_bytes(b"")
    monkeypatch.setattr(line.fetcher.transport, "_spool_dir", in_the_way)
    await line.seed(f"{site[1]}/large")
    await line.run(turns=4)
    assert line.states()["/large"] == "pending"
    assert line.reason("/large") == Reason.LOCAL_LIMIT
    in_the_way.unlink()
    line.time.now_ms += 60_000
    await line.run()
    assert line.states()["/large"] == "complete"


@pytest.mark.parametrize("how", ["the body cannot be kept", "the crawl is stopped"])
async def test_a_request_whose_page_is_put_back_counts_for_the_spacing_from_when_it_was_made(
    site: tuple[Site, str], lines: Lines, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    site[0].answers["/"] = reply("200 OK", b"x" * 3_000_000, "Content-Type: text/plain")
    line = await lines.next_life()
    lease = await home_leased(line, site[1])
    transport, made_ms = line.fetcher.transport, []
    fetch = transport.fetch

    async def fetch_late(permit: Permit, ask: Ask) -> Reply | FetchFailure:
        line.time.now_ms += 700  # from the reservation until the request is made
        made_ms.append(line.time.now_ms)
        if how == "the crawl is stopped":
            raise asyncio.CancelledError
        return await fetch(permit, ask)

    monkeypatch.setattr(transport, "fetch", fetch_late)
    in_the_way = lines.folder / "a-file-in-the-way"
    in_the_way.write_bytes(b"")
    monkeypatch.setattr(transport, "_spool_dir", in_the_way)
    if how == "the crawl is stopped":
        with pytest.raises(asyncio.CancelledError):
            await line.dispatch.run(lease)
    else:
        await line.dispatch.run(lease)
    assert line.states()["/"] == "pending"
    (next_start, last_fetch_ms) = line.store.database.execute(
        "SELECT next_start, last_fetch_ms FROM origin"
    ).fetchone()
    assert next_start == made_ms[0] - last_fetch_ms + POLICY.origin.spacing_ms
    assert last_fetch_ms < 600, "or the test shows nothing"


# -- ownership of a partition that comes to an end ------------------------------------------------------------------------


async def test_outside_its_window_an_agent_asks_nothing_of_a_site_and_costs_it_no_try(
    lines: Lines, site: tuple[Site, str]
) -> None:
    line = await lines.next_life()
    lease = await home_leased(line, site[1])
    line.gate.fence.trust(0, line.takeover.epoch, line.gate.clock.monotonic_s())
    assert await line.dispatch.run(lease) is None
    assert site[0].asked["/"] == 0
    line.gate.fence.trust(0, line.takeover.epoch)
    (again,) = await line.lease()
    assert isinstance(again, Lease)
    assert (again.url, again.tries) == (lease.url, 0)


async def test_a_window_that_ends_while_the_start_is_reserved_gives_no_permit(
    lines: Lines, site: tuple[Site, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = await lines.next_life()
    lease = await home_leased(line, site[1])
    reserve = line.frontier.reserve

    async def slow(ask: ReserveAsk) -> ReserveReply:
        granted: ReserveReply = await reserve(ask)
        line.gate.fence.trust(0, line.takeover.epoch, line.gate.clock.monotonic_s())
        return granted

    monkeypatch.setattr(line.frontier, "reserve", slow)
    assert await line.gate.ask(lease) == Refusal(reason=Reason.STALE_EPOCH)


async def test_a_permit_whose_window_ends_before_its_request_begins_is_put_back(
    lines: Lines, site: tuple[Site, str]
) -> None:
    line = await lines.next_life()
    lease = await home_leased(line, site[1])
    line.gate.fence.trust(0, line.takeover.epoch, line.gate.clock.monotonic_s() + 50.0)

    class Late:
        """The transport, reached only when the window has ended."""

        async def fetch(self, permit: Permit, ask: Ask) -> Reply | FetchFailure:
            late = structs.replace(permit, start_by_s=line.gate.clock.monotonic_s())
            return await line.fetcher.transport.fetch(late, ask)

    fetcher = structs.replace(line.fetcher, transport=Late())
    assert await structs.replace(line.dispatch, fetcher=fetcher).run(lease) is None
    assert site[0].asked["/"] == 0
    (again,) = await line.lease()
    assert isinstance(again, Lease)
    assert (again.url, again.tries) == (lease.url, 0)


async def test_what_parse_workers_take_is_offered_at_once_and_not_parsed_here(
    lines: Lines, site: tuple[Site, str]
) -> None:
    line = await lines.next_life()
    lease = await home_leased(line, site[1])
    recorder = structs.replace(line.recorder, parsed_elsewhere=frozenset({UrlKind.PAGE}))
    assert await structs.replace(line.dispatch, recorder=recorder).run(lease) is None
    assert line.states()["/"] == "fetched"
    (taken,) = await line.frontier.adopt(AdoptAsk(UrlState.FETCHED, 2, 10, 60_000))
    assert (taken.lease.url, taken.strikes) == (lease.url, 0)
