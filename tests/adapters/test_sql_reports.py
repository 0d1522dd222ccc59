"""Reports: the operator's questions, answered while the store writes and when nothing runs; reading changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from amble.adapters.sql.identity import Slots
from amble.adapters.sql.inline import InlineStore
from amble.adapters.sql.reports import SqliteReports
from amble.domain.attempt import RobotsState
from amble.domain.decision import Reason
from amble.domain.errors import CrawlFolderUnusable
from amble.domain.fetched import BodyRef
from amble.domain.frontier import Exclude, OriginEffect, OriginOrder, PutBack, TakeoverAsk
from amble.domain.lifecycle import UrlState
from amble.domain.report import UrlExplanation
from amble.domain.robots import RobotsOutcome
from amble.faces.tables import why_lines
from tests.contract.frontier_rig import (
    DELAY,
    HOUR,
    SECOND,
    START,
    UNREACHABLE,
    A,
    B,
    Rig,
    answer,
    memory_folder,
    page,
)

tmp_path = memory_folder


@pytest_asyncio.fixture(params=["inline-apsw", "inline-stdlib"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path, request.param)
    await made.open()
    await made.take_over("agent 7")
    yield made
    await made.close()


@pytest.fixture
def reports(rig: Rig) -> Iterator[SqliteReports]:
    with SqliteReports(rig.path, driver=rig.driver, now_ms=lambda: rig.now) as opened:
        yield opened


async def test_status_of_a_crawl_in_the_middle(rig: Rig, reports: SqliteReports) -> None:
    await rig.ready(page("/ok"), page("/gone"), page("/no", B), page("/later", "https://c.example"))
    ok, no, later = (await rig.lease()).leases
    await rig.carry(ok, links=2)
    await rig.frontier.exclude(Exclude(no.key, "robots_disallowed", "Disallow: /", 1))
    await rig.failed(await rig.start(later), retry_ms=HOUR)
    await rig.admit(rejected={"out_of_scope": 9, "too_deep": 2}, known=4)
    rig.now += DELAY
    await rig.failed(await rig.start(await rig.lease_one()), fetched=answer(404))
    assert (await rig.lease()).leases == []
    await rig.admit(page("/more"))
    status = reports.status()
    assert (status.epoch, status.owner, status.now_ms) == (1, "agent 7", rig.now)
    assert (status.urls, status.pages, status.documents, status.fetches) == (8, 2, 1, 6)
    assert status.states == {
        "pending": 2, "leased": 0, "fetched": 0, "parsed": 0, "complete": 4, "failed": 1, "excluded": 1,
    }  # fmt: skip
    assert (status.queued, status.in_flight, status.failed, status.excluded) == (2, 0, 1, 1)
    assert (status.bytes, status.body_bytes, status.open_manifests, status.known) == (5 * 400, 5 * 1000, 1, 4)
    assert status.status_classes == {"2xx": 4, "4xx": 1}
    assert list(status.refused.items()) == [("out_of_scope", 9), ("too_deep", 2)]
    assert (status.failures, status.exclusions) == ({"connect_timeout": 1}, {"robots_disallowed": 1})
    assert (status.origins, status.origins_ready) == (3, 0)
    assert status.origins_waiting == {"not_yet": 1, "retry_later": 1}
    assert status.next_wake_ms == rig.now + DELAY


async def test_an_empty_crawl_has_a_status(reports: SqliteReports) -> None:
    status = reports.status()
    assert (status.urls, status.pages, status.origins_waiting, status.next_wake_ms) == (0, 0, {}, None)


async def test_urls_are_paged_in_order_and_filtered(rig: Rig, reports: SqliteReports) -> None:
    await rig.admit(*(page(f"/{n}") for n in range(5)), page("/x", B))
    everything = reports.urls()
    assert [line.url_id for line in everything] == sorted(line.url_id for line in everything)
    assert len(everything) == 8
    first = reports.urls(limit=3)
    assert reports.urls(limit=3, after=first[-1].url_id) == everything[3:6]
    assert {line.url for line in reports.urls(origin=B)} == {B + "/x", B + "/robots.txt"}
    assert [line.url for line in reports.urls(origin=B, after=reports.urls(origin=B)[0].url_id)] == [
        reports.urls(origin=B)[1].url
    ]
    assert reports.urls(origin="https://unknown.example") == []


@pytest.mark.parametrize("state", list(UrlState))
async def test_urls_of_one_state(rig: Rig, reports: SqliteReports, state: UrlState) -> None:
    origins = [f"https://o{n}.example" for n in range(7)]
    await rig.ready(*(page("/x", origin) for origin in origins))
    leases = (await rig.lease(6)).leases
    for lease in leases[1:]:
        await rig.start(lease)
    for lease in leases[1:4]:
        await rig.fetched(lease)
    for lease in leases[2:4]:
        await rig.parsed(lease)
    await rig.complete(leases[3])
    await rig.failed(leases[4])
    await rig.frontier.exclude(Exclude(leases[5].key, "robots_disallowed", "", 1))
    order = {
        UrlState.LEASED: 0,
        UrlState.FETCHED: 1,
        UrlState.PARSED: 2,
        UrlState.FAILED: 4,
        UrlState.EXCLUDED: 5,
    }
    found = [line.url for line in reports.urls(state=state) if line.kind == 0]
    if state in order:
        assert found == [leases[order[state]].url]
        assert [line.url for line in reports.urls(state=state, origin=leases[order[state]].origin)] == found
    else:
        assert len(found) == 1
    assert all(line.state == state for line in reports.urls(state=state))


async def test_failed_urls_come_with_category_and_detail(rig: Rig, reports: SqliteReports) -> None:
    await rig.ready(page("/x"))
    await rig.failed(await rig.next_page())
    (line,) = reports.failed()
    assert (line.url, line.reason, line.detail, line.reason_ms, line.tries) == (
        A + "/x", "connect_timeout", "no answer", rig.now, 1,
    )  # fmt: skip
    assert reports.failed(after=line.url_id) == []


async def test_origins_show_their_ledger(rig: Rig, reports: SqliteReports) -> None:
    await rig.ready(page("/x"), page("/y", B))
    await rig.frontier.set_origin(OriginOrder(B, "op", "", paused=True, spacing_ms=9))  # type: ignore[attr-defined]
    first, second = reports.origins()
    assert (first.origin, first.queued, first.urls, first.paused, first.robots_outcome) == (A, 1, 1, False, 2)
    assert (second.paused, second.spacing_ms, second.active_max, second.wake_ms) == (True, 9, None, None)
    assert reports.origins(after=first.origin_id) == [second]
    assert reports.origin(B) == second
    assert reports.origin("https://unknown.example") is None


async def test_publications_carry_all_references_in_order(rig: Rig, reports: SqliteReports) -> None:
    await rig.ready(page("/x"), page("/y", B))
    one, two = (await rig.lease()).leases
    for lease in (one, two):
        await rig.start(lease)
        await rig.fetched(lease, answer(offset=lease.origin_id))
        await rig.parsed(lease, text_ref=BodyRef(2, 5, 7), title="A title")
        await rig.complete(lease, fingerprint=(1 << 64) - 1, canonical="https://a.example/c")
    first, second = reports.publications()
    assert [line.seq for line in (first, second)] == [1, 2]
    assert (first.url, first.fetched.ref, first.manifest, first.text) == (
        one.url, BodyRef(1, one.origin_id, 50), BodyRef(1, 900, 40), BodyRef(2, 5, 7),
    )  # fmt: skip
    assert (first.title, first.fingerprint, first.canonical) == (
        "A title",
        (1 << 64) - 1,
        "https://a.example/c",
    )
    assert (first.crawl_generation, first.extraction_generation, first.fetched_ms) == (1, 1, rig.now)
    assert reports.publications(after=1) == [second]
    assert reports.publications(limit=1) == [first]
    assert reports.last_publication() == 2


# ---- why


async def test_an_unknown_url_is_explained_by_the_refusal_that_was_sampled(
    rig: Rig, reports: SqliteReports
) -> None:
    await rig.admit(samples=[("ftp://x.example/a", "scheme_unsupported", "ftp")], policy_version=3)
    found = reports.explain("ftp://x.example/a")
    assert (found.line, found.origin, found.waits_for) == (None, None, "")
    (decision,) = found.decisions
    assert (decision.reason, decision.detail, decision.policy_version) == ("scheme_unsupported", "ftp", 3)
    assert reports.explain("https://nowhere.example/").decisions == []


async def test_a_url_is_explained_with_its_history(rig: Rig, reports: SqliteReports) -> None:
    await rig.ready(page("/x"))
    await rig.failed(await rig.next_page(), retry_ms=0, fetched=answer(503))
    rig.now += DELAY
    lease = await rig.lease_one()
    await rig.frontier.put_back(PutBack(lease.key, "address_busy", "192.0.2.1", 0))
    await rig.carry(await rig.lease_one(), links=3)
    found = reports.explain(A + "/x")
    assert found.line is not None
    assert (found.line.state, found.line.attempt) == (UrlState.COMPLETE, 3)
    assert [(fetch.attempt, fetch.status, fetch.category) for fetch in found.fetches] == [
        (3, 200, ""), (1, 503, "connect_timeout"),
    ]  # fmt: skip
    assert [decision.reason for decision in found.decisions] == ["address_busy"]
    assert [(manifest.links, manifest.cursor, manifest.open) for manifest in found.manifests] == [
        (3, 0, True)
    ]


async def test_provenance_names_the_page_a_url_was_found_on(rig: Rig, reports: SqliteReports) -> None:
    await rig.ready(page("/hub"))
    lease = await rig.carry(await rig.lease_one(), links=1)
    child = page("/child")
    await rig.admit(type(child)(A, "/child", 0, 2, 1, 0, 1, lease.key.url_id))
    assert reports.explain(A + "/child").found_on == A + "/hub"


async def test_a_url_whose_hash_collides_is_found(tmp_path: Path) -> None:
    slots = Slots(bytes(32), lambda path: 7, lambda path: 7)
    rig = Rig(tmp_path, "inline-apsw", slots=slots)
    await rig.open()
    await rig.admit(page("/a"), page("/b"), page("/c"))
    with SqliteReports(rig.path, slots=slots) as reports:
        for path in ("/a", "/b", "/c"):
            line = reports.explain(A + path).line
            assert line is not None
            assert line.url == A + path
        assert reports.explain(A + "/d").line is None
    await rig.close()


def waits(found: UrlExplanation) -> tuple[str, int | None]:
    return found.waits_for, found.waits_until_ms


async def test_why_says_what_a_url_waits_for_at_each_step(rig: Rig, reports: SqliteReports) -> None:
    url = A + "/x"
    await rig.admit(page("/x"), page("/y"))
    assert waits(reports.explain(url)) == (Reason.ROBOTS_MISSING, None)
    assert waits(reports.explain(A + "/robots.txt")) == ("turn", None)
    await rig.carry(await rig.lease_one())
    assert waits(reports.explain(url)) == (Reason.NOT_YET, rig.now + DELAY)
    rig.now += DELAY
    assert waits(reports.explain(url)) == ("turn", None)
    lease = await rig.lease_one()
    other = A + ("/y" if lease.path == "/x" else "/x")
    assert waits(reports.explain(lease.url)) == ("fetch", rig.now + 30 * SECOND)
    assert waits(reports.explain(other)) == (Reason.NO_SLOT, None)
    await rig.start(lease)
    await rig.fetched(lease)
    assert reports.explain(lease.url).waits_for == "parse"
    await rig.parsed(lease)
    assert reports.explain(lease.url).waits_for == "complete"
    await rig.complete(lease, revisit_ms=HOUR)
    assert waits(reports.explain(lease.url)) == (Reason.NOT_YET, rig.now + HOUR)
    rig.now += DELAY
    again = await rig.start(await rig.lease_one())
    await rig.failed(again, retry_ms=HOUR, effect=OriginEffect(9, 0, HOUR // 2, 1))
    assert waits(reports.explain(again.url)) == (Reason.RETRY_LATER, rig.now + HOUR)
    await rig.admit(page("/z"))
    assert waits(reports.explain(A + "/z")) == (Reason.ORIGIN_BACKING_OFF, rig.now + HOUR // 2)
    await rig.frontier.set_origin(OriginOrder(A, "op", "", paused=True))  # type: ignore[attr-defined]
    assert waits(reports.explain(A + "/z")) == (Reason.ORIGIN_PAUSED, None)


async def test_why_tells_an_origin_that_backs_off_from_one_whose_address_is_busy(
    rig: Rig, reports: SqliteReports
) -> None:
    await rig.admit(page("/x"), page("/y"))
    await rig.carry(await rig.lease_one())
    rig.now += DELAY
    lease = await rig.lease_one()
    await rig.frontier.put_back(PutBack(lease.key, "address_busy", "192.0.2.1", HOUR, HOUR))
    other = A + ("/y" if lease.path == "/x" else "/x")
    assert waits(reports.explain(other)) == (Reason.ADDRESS_BUSY, rig.now + HOUR)
    assert reports.status().origins_waiting == {"address_busy": 1}


async def test_a_robots_txt_that_fails_again_and_again_is_told_with_how_often(
    rig: Rig, reports: SqliteReports
) -> None:
    await rig.admit(page("/x"))
    for level in (1, 2):
        lease = await rig.start(await rig.lease_one())
        await rig.failed(lease, retry_ms=HOUR, effect=OriginEffect(9, 0, HOUR, level))
        rig.now += HOUR
    (told,) = [line for line in why_lines(reports.explain(A + "/x")) if line.startswith("robots.txt")]
    assert "unreachable so far, tried 2 times; because of" in told


@pytest.mark.parametrize(
    ("expired", "reason"), [(False, Reason.ROBOTS_UNREACHABLE), (True, Reason.ROBOTS_EXPIRED)]
)
async def test_why_tells_an_unreachable_robots_from_an_expired_one(
    rig: Rig, reports: SqliteReports, expired: bool, reason: Reason
) -> None:
    await rig.admit(page("/x"))
    await rig.failed(await rig.start(await rig.lease_one()), robots=UNREACHABLE, robots_ttl_ms=HOUR)
    until = None if expired else rig.now + HOUR
    rig.now += HOUR if expired else 5 * SECOND
    assert waits(reports.explain(A + "/x")) == (reason, until)


async def test_why_shows_what_became_of_the_robots_txt_that_a_page_waits_for(
    rig: Rig, reports: SqliteReports
) -> None:
    await rig.admit(page("/x"))
    lease = await rig.lease_one()
    await rig.frontier.exclude(Exclude(lease.key, "destination_refused", "10.0.0.1", 1))
    found = reports.explain(A + "/x")
    assert found.waits_for == Reason.ROBOTS_UNREACHABLE
    assert found.robots is not None
    assert (found.robots.state, found.robots.reason) == (UrlState.EXCLUDED, "destination_refused")
    assert found.robots.detail == "10.0.0.1"


async def test_the_rules_of_an_origin_are_referred_to(rig: Rig, reports: SqliteReports) -> None:
    await rig.admit(page("/x"))
    rules = RobotsState(int(RobotsOutcome.RULES), rules=BodyRef(3, 4, 5), crawl_delay_ms=7_000)
    await rig.carry(await rig.lease_one(), robots=rules)
    origin = reports.origin(A)
    assert origin is not None
    assert (origin.robots_rules, origin.crawl_delay_ms, origin.robots_version) == (BodyRef(3, 4, 5), 7_000, 1)


# ---- the reader


async def test_reading_changes_nothing(rig: Rig, reports: SqliteReports) -> None:
    await rig.ready(page("/x"))
    tables = ("url", "origin", "tally", "clock", "decision", "meta")
    before = [rig.rows(f"SELECT * FROM {table}") for table in tables]
    rig.now += HOUR
    reports.status()
    reports.urls()
    reports.explain(A + "/x")
    reports.publications()
    assert [rig.rows(f"SELECT * FROM {table}") for table in tables] == before


async def test_a_reader_holds_no_snapshot_between_its_answers(rig: Rig, reports: SqliteReports) -> None:
    reports.status()
    await rig.admit(page("/x"))
    assert isinstance(rig.frontier, InlineStore)
    rig.frontier.store.database.checkpoint()
    assert rig.frontier.store.wal_bytes() == 0
    assert reports.status().urls == 2


async def test_reports_work_when_nothing_runs_and_their_clock_goes_on(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "inline-apsw")
    await rig.open()
    await rig.admit(page("/x"))
    await rig.close()
    with SqliteReports(rig.path) as reports:
        assert reports.status().urls == 2
        assert reports.status().now_ms > START


def test_a_folder_without_a_crawl_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(CrawlFolderUnusable, match="no crawl here"):
        SqliteReports(tmp_path / "frontier.db")
    assert list(tmp_path.iterdir()) == []


async def test_a_store_in_memory_can_be_asked_through_its_own_connection() -> None:
    from amble.adapters.sql.sqlite import SqliteStore

    frontier = InlineStore(SqliteStore(":memory:", now_ms=lambda: START))
    await frontier.take_over(TakeoverAsk("me"))
    reports = SqliteReports(":memory:", database=frontier.store.database, now_ms=lambda: START)
    assert reports.status().owner == "me"
    reports.close()
    assert await frontier.expire(1) == 0
    await frontier.close()
