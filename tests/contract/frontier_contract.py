"""What every frontier store promises (ports.Frontier), as behaviour. Run by test_frontier.py over each adapter."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from amble.adapters.sql.identity import Slots
from amble.adapters.sql.settings import StoreSettings
from amble.domain.attempt import Edge, Lease, LeaseKey, RobotsState, UrlKind
from amble.domain.decision import Reason
from amble.domain.errors import StoreBroken
from amble.domain.fetched import BodyRef, Validators
from amble.domain.frontier import (
    STRIKES_APART,
    Applied,
    Candidate,
    Exclude,
    OriginEffect,
    OriginOrder,
    Parcel,
    ParseStrike,
    PutBack,
    RequeueOrder,
    ReserveOutcome,
    TakeoverAsk,
    Verdict,
)
from amble.domain.lifecycle import UrlState
from amble.domain.manifest import CursorAdvance, ManifestKey
from amble.domain.priority import AGEING_EVERY
from amble.domain.robots import RobotsOutcome
from tests.contract.frontier_rig import (
    DAY,
    DELAY,
    HOLD,
    HOUR,
    SECOND,
    START,
    UNREACHABLE,
    A,
    B,
    MakeRig,
    Rig,
    answer,
    page,
)

OVER_SITE = int(Verdict.OVER_SITE_BUDGET)
ADMITTED, KNOWN, OVER = (int(v) for v in (Verdict.ADMITTED, Verdict.ALREADY_KNOWN, Verdict.OVER_BUDGET))
FORWARDED = int(Verdict.FORWARDED)
# Partitions that live elsewhere, whatever store is under test.
AWAY, FAR = 901, 902
FETCHED, PARSED = UrlState.FETCHED, UrlState.PARSED
# Two texts far from each other, and as many bits to change as are named, no two in one block of 16.
TEXT, OTHER_TEXT = 0xF123_4567_89AB_CDEF, 0x0EDC_BA98_7654_3210
FLIPS = (0, 1 << 63, 1 << 63 | 1 << 40, 1 << 63 | 1 << 40 | 1)


class AdmissionContract:
    async def test_an_unknown_candidate_is_known_and_queued_in_one_commit(self, rig: Rig) -> None:
        report = await rig.admit(page("/x"))
        assert list(report.verdicts) == [ADMITTED]
        assert rig.rows("SELECT path, state, rq, due_at, generation, attempt FROM url WHERE kind = 0") == [
            ("/x", 0, 2, START, 1, 0)
        ]

    async def test_a_site_that_makes_up_hosts_gets_no_more_than_its_bound_of_origins(
        self, make_rig: MakeRig
    ) -> None:
        rig = await make_rig(settings=StoreSettings(origins_per_site_max=70))
        hosts = [f"https://h{number}.trap.example" for number in range(200)]
        report = await rig.admit(*(page("/", host) for host in hosts[:50]))
        assert set(report.verdicts) == {ADMITTED}, "before sites are counted"
        report = await rig.admit(*(page("/", host) for host in hosts), page("/", "https://other.example"))
        verdicts = list(report.verdicts)
        assert verdicts[:50] == [KNOWN] * 50
        assert verdicts[50:70] == [ADMITTED] * 20
        assert verdicts[70:200] == [OVER_SITE] * 130
        assert verdicts[200] == ADMITTED, "another site has its own bound"
        assert rig.rows("SELECT value FROM tally WHERE name = 'rejected.site_budget'") == [(130,)]
        seed = Candidate("https://h199.trap.example", "/", 0, 1, 0, 0, int(Edge.SEED), 0)
        assert list((await rig.admit(seed)).verdicts) == [ADMITTED], "what an operator asks for is opened"

    async def test_a_new_origin_brings_its_robots_txt_in_the_same_commit(self, rig: Rig) -> None:
        await rig.admit(page("/x"))
        assert rig.rows("SELECT path, state, rq, kind FROM url WHERE kind = 1") == [("/robots.txt", 0, 0, 1)]

    async def test_a_page_named_robots_txt_is_the_robots_url(self, rig: Rig) -> None:
        report = await rig.admit(page("/robots.txt"))
        assert list(report.verdicts) == [KNOWN]
        assert rig.rows("SELECT kind FROM url") == [(1,)]

    async def test_rediscovery_changes_nothing(self, rig: Rig) -> None:
        await rig.admit(page("/x"))
        before = rig.rows("SELECT * FROM url ORDER BY id")
        rig.now += HOUR
        report = await rig.admit(page("/x", priority=0, depth=7))
        assert list(report.verdicts) == [KNOWN]
        assert rig.rows("SELECT * FROM url ORDER BY id") == before

    async def test_duplicates_within_a_batch_count_as_known(self, rig: Rig) -> None:
        report = await rig.admit(page("/x"), page("/y"), page("/x"), page("/x", B))
        assert list(report.verdicts) == [ADMITTED, ADMITTED, KNOWN, ADMITTED]

    async def test_concurrent_calls_admit_a_url_once(self, rig: Rig) -> None:
        reports = await asyncio.gather(*(rig.admit(page("/x"), page(f"/{n}")) for n in range(8)))
        assert sum(report.verdicts[0] == ADMITTED for report in reports) == 1
        assert all(report.verdicts[1] == ADMITTED for report in reports)

    async def test_an_origin_is_scheme_host_and_port(self, rig: Rig) -> None:
        origins = ("https://a.example", "http://a.example", "https://a.example:8443", "https://www.a.example")
        report = await rig.admit(*(page("/", origin) for origin in origins))
        assert list(report.verdicts) == [ADMITTED] * 4
        assert len(rig.rows("SELECT id FROM origin")) == 4

    @pytest.mark.parametrize("second", ["same", "differs"])
    async def test_paths_whose_hashes_collide_are_told_apart(self, make_rig: MakeRig, second: str) -> None:
        fallback = (lambda path: 5) if second == "same" else (lambda path: len(path))
        rig: Rig = await make_rig(slots=Slots(bytes(32), lambda path: 7, fallback))
        paths = ["/a", "/bb", "/ccc", "/dd"]
        report = await rig.admit(*(page(path) for path in paths))
        assert list(report.verdicts) == [ADMITTED] * 4
        again = await rig.admit(*(page(path) for path in reversed(paths)), page("/bb"), page("/new"))
        assert list(again.verdicts) == [KNOWN] * 5 + [ADMITTED]
        assert sorted(p for (p,) in rig.rows("SELECT path FROM url")) == sorted(
            [*paths, "/new", "/robots.txt"]
        )

    async def test_a_collision_at_the_last_slot_goes_round(self, make_rig: MakeRig) -> None:
        last = (1 << 36) - 1
        rig: Rig = await make_rig(slots=Slots(bytes(32), lambda path: last, lambda path: last))
        assert list((await rig.admit(page("/a"), page("/b"))).verdicts) == [ADMITTED] * 2
        assert list((await rig.admit(page("/a"), page("/b"))).verdicts) == [KNOWN] * 2
        assert len(rig.rows("SELECT id FROM url WHERE id >> 36 = 1")) == 3

    async def test_an_origin_keeps_to_its_discovery_budget(self, make_rig: MakeRig) -> None:
        rig: Rig = await make_rig(settings=StoreSettings(urls_per_origin_start=2, urls_per_fetched_page=3))
        report = await rig.admit(*(page(f"/{n}") for n in range(4)), page("/", B))
        assert list(report.verdicts) == [ADMITTED, ADMITTED, OVER, OVER, ADMITTED]
        assert rig.rows("SELECT value FROM tally WHERE name = 'rejected.origin_budget'") == [(2,)]

    async def test_the_discovery_budget_grows_with_fetched_pages_up_to_its_cap(
        self, make_rig: MakeRig
    ) -> None:
        settings = StoreSettings(urls_per_origin_start=1, urls_per_fetched_page=3, urls_per_origin_max=3)
        rig: Rig = await make_rig(settings=settings)
        await rig.take_over()
        await rig.ready(page("/0"))
        assert list((await rig.admit(page("/1"))).verdicts) == [OVER]
        lease = await rig.next_page()
        await rig.fetched(lease)
        report = await rig.admit(*(page(f"/{n}") for n in range(1, 6)))
        assert list(report.verdicts) == [ADMITTED, ADMITTED, OVER, OVER, OVER]

    async def test_refusals_of_the_url_gate_are_counted_and_sampled(self, rig: Rig) -> None:
        samples = [("ftp://a.example/", "scheme_unsupported", "ftp")]
        await rig.admit(rejected={"scheme_unsupported": 3}, samples=samples, known=5, policy_version=4)
        assert rig.rows("SELECT url, reason, detail, policy_version FROM decision") == [(*samples[0], 4)]
        counts = dict(rig.rows("SELECT name, value FROM tally"))
        assert counts["rejected.scheme_unsupported"] == 3
        assert counts["known"] == 5

    async def test_the_decision_log_is_bounded(self, make_rig: MakeRig) -> None:
        rig: Rig = await make_rig(settings=StoreSettings(decisions_max=10))
        for n in range(60):
            await rig.admit(samples=[(f"https://a.example/{n}", "out_of_scope", "")])
        kept = rig.rows("SELECT url FROM decision ORDER BY seq")
        assert 10 <= len(kept) <= 20
        assert kept[-1] == ("https://a.example/59",)


class CursorContract:
    async def opened(self, rig: Rig, links: int) -> Lease:
        await rig.take_over()
        await rig.ready(page("/hub"))
        return await rig.carry(await rig.lease_one(), links=links)

    async def test_links_and_cursor_move_in_one_commit(self, rig: Rig) -> None:
        lease = await self.opened(rig, 3)
        report = await rig.admit(page("/1"), page("/2"), cursor=rig.move(lease, 0, 2))
        assert report.applied == Applied.APPLIED
        assert rig.rows("SELECT cursor, links FROM manifest WHERE links > 0") == [(2, 3)]
        assert (await rig.lease(0)).open_manifests == 1
        await rig.admit(cursor=rig.move(lease, 2, 3))
        assert (await rig.lease(0)).open_manifests == 0

    @pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 2), (1, 2), (2, 3), (0, 0)])
    async def test_a_cursor_that_is_elsewhere_refuses_the_whole_batch(
        self, rig: Rig, start: int, end: int
    ) -> None:
        lease = await self.opened(rig, 5)
        await rig.admit(page("/1"), page("/2"), page("/3"), cursor=rig.move(lease, 0, 3))
        before = rig.rows("SELECT * FROM url ORDER BY id"), rig.rows("SELECT * FROM tally")
        report = await rig.admit(page("/new"), cursor=rig.move(lease, start, end), rejected={"too_deep": 1})
        assert (report.applied, report.verdicts) == (Applied.STALE, b"")
        assert (rig.rows("SELECT * FROM url ORDER BY id"), rig.rows("SELECT * FROM tally")) == before

    async def test_a_repeated_batch_is_harmless(self, rig: Rig) -> None:
        lease = await self.opened(rig, 1)
        assert (await rig.admit(page("/1"), cursor=rig.move(lease, 0, 1))).applied == Applied.APPLIED
        assert (await rig.admit(page("/1"), cursor=rig.move(lease, 0, 1))).applied == Applied.STALE

    async def test_a_cursor_of_an_unknown_manifest_is_stale(self, rig: Rig) -> None:
        move = CursorAdvance(ManifestKey(77, 1, 1), 0, 1)
        assert (await rig.admit(page("/1"), cursor=move)).applied == Applied.STALE

    async def test_a_cursor_beyond_its_links_is_a_broken_promise_and_spoils_no_other_call(
        self, rig: Rig
    ) -> None:
        lease = await self.opened(rig, 2)
        bad = rig.admit(page("/bad"), cursor=rig.move(lease, 0, 9))
        results = await asyncio.gather(
            rig.admit(page("/1")), bad, rig.admit(page("/2")), return_exceptions=True
        )
        assert isinstance(results[1], StoreBroken)
        paths = {path for (path,) in rig.rows("SELECT path FROM url")}
        assert paths == {"/hub", "/robots.txt", "/1", "/2"}

    async def test_discovery_goes_on_in_the_middle_after_a_crash(self, rig: Rig) -> None:
        lease = await self.opened(rig, 5)
        await rig.admit(page("/1"), page("/2"), cursor=rig.move(lease, 0, 2))
        taken = await rig.crash()
        (found,) = taken.open_manifests
        assert (found.cursor, found.total, found.ref) == (2, 5, BodyRef(1, 900, 40))
        assert (found.origin, found.path, found.depth) == (A, "/hub", 0)
        assert found.manifest == ManifestKey(lease.key.url_id, lease.key.attempt, 1)
        report = await rig.admit(page("/3"), cursor=rig.move(lease, 2, 5))
        assert report.applied == Applied.APPLIED
        assert (await rig.crash()).open_manifests == []

    async def test_links_consumed_before_the_page_is_complete_are_known_to_whoever_carries_it_on(
        self, rig: Rig
    ) -> None:
        await rig.take_over()
        await rig.ready(page("/hub"))
        lease = await rig.next_page()
        await rig.fetched(lease)
        await rig.parsed(lease, 5)
        report = await rig.admit(page("/1"), page("/2"), cursor=rig.move(lease, 0, 2))
        assert report.applied == Applied.APPLIED
        (found,) = (await rig.crash()).resumables
        assert (found.cursor, found.links) == (2, 5)


class LeaseContract:
    async def test_robots_goes_first_and_alone(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x", priority=0), page("/y", priority=0))
        reply = await rig.lease(10)
        assert [(lease.path, lease.kind) for lease in reply.leases] == [("/robots.txt", UrlKind.ROBOTS)]
        rig.now += DAY
        assert (await rig.lease(10)).leases == []

    @pytest.mark.parametrize("step", ["leased", "started", "fetched", "parsed"])
    async def test_pages_wait_while_robots_is_in_flight(self, rig: Rig, step: str) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        lease = await rig.lease_one()
        for name, action in (("started", rig.start), ("fetched", rig.fetched), ("parsed", rig.parsed)):
            if step == "leased":
                break
            await action(lease)
            if step == name:
                break
        rig.now += 10 * SECOND
        assert (await rig.lease()).leases == []
        assert (await rig.lease()).next_wake_ms is None

    async def test_pages_go_when_robots_is_decided(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        lease = await rig.lease_one()
        assert (lease.origin, lease.path, lease.key.attempt, lease.tries) == (A, "/x", 1, 0)
        assert lease.facts.robots.outcome == RobotsOutcome.ALLOW_ALL
        assert lease.facts.robots.version == 1
        assert lease.deadline_ms == rig.now + 30 * SECOND

    async def test_an_expired_decision_sends_robots_first_again_as_a_new_visit(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"), page("/y"))
        await rig.carry(await rig.lease_one())
        rig.now += DAY
        lease = await rig.lease_one()
        assert (lease.path, lease.crawl_generation, lease.key.attempt) == ("/robots.txt", 2, 2)
        await rig.carry(lease)
        rig.now += DELAY
        assert (await rig.lease_one()).facts.robots.version == 2

    async def test_robots_is_not_fetched_again_while_no_page_wants_it(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        await rig.carry(await rig.lease_one())
        rig.now += 2 * DAY
        reply = await rig.lease()
        assert (reply.leases, reply.queued, reply.next_wake_ms) == ([], 0, None)
        await rig.admit(page("/y"))
        assert (await rig.lease_one()).path == "/robots.txt"

    async def test_an_unreachable_robots_holds_pages_until_it_expires(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        lease = await rig.start(await rig.lease_one())
        await rig.failed(lease, robots=UNREACHABLE, robots_ttl_ms=HOUR)
        rig.now += 5 * SECOND
        reply = await rig.lease()
        assert (reply.leases, reply.next_wake_ms, reply.queued) == ([], START + HOUR, 1)
        rig.now = START + HOUR
        again = await rig.lease_one()
        assert (again.path, again.crawl_generation, again.tries) == ("/robots.txt", 2, 0)

    async def test_a_robots_retry_waits_its_time_and_holds_the_pages(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        await rig.failed(await rig.start(await rig.lease_one()), retry_ms=20 * SECOND)
        rig.now += 10 * SECOND
        reply = await rig.lease()
        assert (reply.leases, reply.next_wake_ms) == ([], START + 20 * SECOND)
        rig.now += 10 * SECOND
        lease = await rig.lease_one()
        assert (lease.path, lease.tries, lease.crawl_generation) == ("/robots.txt", 1, 1)

    async def test_without_obedience_pages_need_no_robots(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        first = await rig.lease_one(robots_obey=False)
        await rig.carry(first, robots=UNREACHABLE, robots_ttl_ms=DAY)
        rig.now += DELAY
        assert (await rig.lease_one(robots_obey=False)).path == "/x"

    @pytest.mark.parametrize("ending", ["excluded", "failed", "poisoned", "undecided"])
    async def test_a_robots_url_that_ends_without_a_decision_counts_as_unreachable(
        self, rig: Rig, ending: str
    ) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        lease = await rig.start(await rig.lease_one())
        if ending == "excluded":
            await rig.frontier.exclude(Exclude(lease.key, "destination_refused", "private", 1))
        elif ending == "failed":
            await rig.failed(lease)
        else:
            await rig.fetched(lease)
            if ending == "poisoned":
                await rig.frontier.parse_strike(ParseStrike(lease.key, "crashed", True))
            else:
                await rig.parsed(lease)
                await rig.complete(lease, robots=None)
        rig.now += 10 * SECOND
        reply = await rig.lease()
        assert (reply.leases, reply.next_wake_ms) == ([], START + HOUR)
        rig.now = START + HOUR
        assert (await rig.lease_one()).path == "/robots.txt"

    async def test_one_url_per_origin_and_turn_the_longest_waiting_first(self, rig: Rig) -> None:
        await rig.take_over()
        for n in range(4):
            await rig.admit(page("/x", f"https://o{n}.example"), page("/y", f"https://o{n}.example"))
            rig.now += 1
        first = await rig.lease(2)
        rest = await rig.lease(10)
        assert [lease.origin for lease in (*first.leases, *rest.leases)] == [
            f"https://o{n}.example" for n in range(4)
        ]

    async def test_new_origins_do_not_pass_one_that_waits(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x", A))
        for n in range(3):
            rig.now += SECOND
            await rig.admit(page("/x", f"https://o{n}.example"))
        assert (await rig.lease_one()).origin == A

    async def test_classes_order_the_urls_of_an_origin_and_due_time_the_urls_of_a_class(
        self, rig: Rig
    ) -> None:
        await rig.take_over()
        await rig.admit(page("/c5", priority=5))
        rig.now += 1
        await rig.admit(page("/c3", priority=3))
        rig.now += 1
        await rig.ready(page("/c3late", priority=3), page("/c1", priority=1))
        assert await self.order(rig, 4) == ["/c1", "/c3", "/c3late", "/c5"]

    async def order(self, rig: Rig, count: int) -> list[str]:
        paths = []
        for _ in range(count):
            lease = await rig.lease_one()
            paths.append(lease.path)
            await rig.carry(lease)
            rig.now += DELAY
        return paths

    async def test_no_class_starves(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(*(page(f"/first/{n}", priority=1) for n in range(40)), page("/last", priority=5))
        assert "/last" in await self.order(rig, AGEING_EVERY)

    async def test_an_origin_at_its_limit_gets_no_turn(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"), page("/y"))
        await rig.lease_one()
        rig.now += HOUR // 2
        reply = await rig.lease()
        assert (reply.leases, reply.in_flight, reply.queued, reply.next_wake_ms) == ([], 1, 1, None)

    async def test_an_origin_may_have_several_requests_where_its_limit_says_so(
        self, make_rig: MakeRig
    ) -> None:
        rig: Rig = await make_rig(settings=StoreSettings(default_active_max=3, default_spacing_ms=0))
        await rig.take_over()
        await rig.ready(*(page(f"/{n}") for n in range(5)))
        leases = (await rig.lease(10)).leases
        assert len(leases) == 3
        for lease in leases:
            reply = await rig.reserve(lease, delay_ms=0, active_max=3)
            assert reply.outcome == ReserveOutcome.GRANTED
        await rig.fetched(leases[0], effect=OriginEffect(10, 0, 0, 0))
        assert len((await rig.lease(10)).leases) == 1

    async def test_spacing_decides_when_the_next_turn_is(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"), page("/y"))
        lease = await rig.next_page()
        await rig.fetched(lease)
        reply = await rig.lease()
        assert (reply.leases, reply.next_wake_ms) == ([], rig.now + DELAY)
        rig.now += DELAY
        assert len((await rig.lease()).leases) == 1

    async def test_an_old_epoch_leases_nothing(self, rig: Rig) -> None:
        old = (await rig.take_over()).epoch
        await rig.admit(page("/x"))
        await rig.take_over("other")
        reply = await rig.lease(epoch=old)
        assert (reply.fenced, reply.leases) == (True, [])

    @pytest.mark.parametrize("pages_max", [0, 1, 2, 3])
    async def test_the_page_budget_counts_pages_in_flight_but_no_robots(
        self, rig: Rig, pages_max: int
    ) -> None:
        await rig.take_over()
        await rig.ready(*(page("/x", f"https://o{n}.example") for n in range(3)))
        reply = await rig.lease(10, pages_max=pages_max)
        assert len(reply.leases) == pages_max
        again = await rig.lease(10, pages_max=pages_max)
        assert again.leases == []
        assert again.budget_spent == (pages_max < 3)

    async def test_a_page_put_back_returns_its_place_in_the_budget(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"), page("/y", B))
        lease = await rig.lease_one(pages_max=1)
        await rig.frontier.put_back(PutBack(lease.key, "no_slot", "", 0))
        again = await rig.lease(10, pages_max=1)
        assert len(again.leases) == 1
        await rig.carry(again.leases[0])
        rig.now += DELAY
        spent = await rig.lease(10, pages_max=1)
        assert (spent.leases, spent.budget_spent, spent.pages) == ([], True, 1)

    async def test_only_answered_attempts_are_pages(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"), page("/y", B))
        one, two = (await rig.lease()).leases
        await rig.failed(await rig.start(one), retry_ms=0)
        await rig.failed(await rig.start(two), fetched=answer(503))
        assert (await rig.lease(0)).pages == 1


class ReserveContract:
    async def leased(self, rig: Rig) -> Lease:
        await rig.take_over()
        await rig.ready(page("/x"), page("/y"))
        return await rig.lease_one()

    async def test_a_grant_spends_a_start_and_a_slot_and_keeps_the_lease_alive(self, rig: Rig) -> None:
        lease = await self.leased(rig)
        reply = await rig.reserve(lease)
        assert (reply.outcome, reply.until_ms, reply.now_ms) == (
            ReserveOutcome.GRANTED,
            rig.now + HOLD,
            rig.now,
        )
        assert rig.rows("SELECT next_start, active FROM origin") == [(rig.now + DELAY, 1)]
        assert rig.row(lease.key.url_id, "slot_until", "started_at") == (rig.now + HOLD, rig.now)
        assert rig.row(lease.key.url_id, "expires_at") > rig.now + HOLD

    async def refused(self, rig: Rig, lease: Lease, outcome: ReserveOutcome, **facts: object) -> int:
        before = rig.rows("SELECT * FROM origin"), rig.rows("SELECT * FROM url")
        reply = await rig.reserve(lease, **facts)
        assert reply.outcome == outcome
        assert (rig.rows("SELECT * FROM origin"), rig.rows("SELECT * FROM url")) == before
        return reply.until_ms

    async def test_a_wrong_token_or_attempt_is_stale(self, rig: Rig) -> None:
        lease = await self.leased(rig)
        url_id, attempt, token = lease.key.url_id, lease.key.attempt, lease.key.token
        for key in (
            LeaseKey(url_id, attempt, bytes(16)),
            LeaseKey(url_id, attempt + 1, token),
            LeaseKey(url_id + 1, attempt, token),
        ):
            await self.refused(rig, lease, ReserveOutcome.STALE, key=key)

    async def test_an_old_epoch_is_fenced(self, rig: Rig) -> None:
        lease = await self.leased(rig)
        await self.refused(rig, lease, ReserveOutcome.FENCED, epoch=rig.epoch - 1)

    async def test_a_start_too_soon_is_told_when_to_come_back(self, rig: Rig) -> None:
        lease = await self.leased(rig)
        rig.now -= 0
        await rig.frontier.put_back(PutBack(lease.key, "not_yet", "", 0, rest_ms=7 * SECOND))
        until = rig.now + 7 * SECOND
        assert (await rig.lease()).next_wake_ms == until
        rig.now = until
        lease = await rig.lease_one()
        assert (await rig.reserve(lease)).outcome == ReserveOutcome.GRANTED
        assert await self.refused(rig, lease, ReserveOutcome.NOT_YET) == until + DELAY

    async def test_a_request_that_was_made_counts_for_the_spacing_though_its_url_is_put_back(
        self, rig: Rig
    ) -> None:
        lease = await self.leased(rig)
        assert (await rig.reserve(lease)).outcome == ReserveOutcome.GRANTED
        rig.now += 3_000  # the grant was heard late, the request took 500 ms
        effect = OriginEffect(duration_ms=500, delay_ms=DELAY, rest_ms=0, backoff_level=0)
        await rig.frontier.put_back(PutBack(lease.key, "local_limit", "", 0, effect=effect))
        until = rig.now - 500 + DELAY
        assert (await rig.lease()).next_wake_ms == until
        rig.now = until
        assert (await rig.reserve(await rig.lease_one())).outcome == ReserveOutcome.GRANTED

    async def test_a_crawl_delay_counts_from_the_request_that_brought_it(self, rig: Rig) -> None:
        """The robots.txt was asked for under a shorter delay, since nobody knew of the longer one yet."""
        await rig.take_over()
        await rig.admit(page("/x"))
        asked_at = rig.now
        rules = RobotsState(int(RobotsOutcome.RULES), rules=BodyRef(3, 4, 5), crawl_delay_ms=9 * SECOND)
        await rig.carry(await rig.lease_one(), robots=rules)
        rig.now += DELAY
        lease = await rig.lease_one()
        until = await self.refused(rig, lease, ReserveOutcome.NOT_YET, delay_ms=9 * SECOND)
        assert until == asked_at + 9 * SECOND
        # The gate's delay is the capped one, and binds: what the file says beyond it does not.
        assert (await rig.reserve(lease, delay_ms=DELAY)).outcome == ReserveOutcome.GRANTED

    async def test_no_slot_beyond_the_active_limit(self, make_rig: MakeRig) -> None:
        rig: Rig = await make_rig(settings=StoreSettings(default_active_max=2))
        await rig.take_over()
        await rig.ready(page("/x"), page("/y"))
        one, two = (await rig.lease()).leases
        assert (await rig.reserve(one, delay_ms=0)).outcome == ReserveOutcome.GRANTED
        await self.refused(rig, two, ReserveOutcome.NO_SLOT, active_max=1)
        assert (await rig.reserve(two, active_max=2)).outcome == ReserveOutcome.GRANTED

    async def test_a_changed_or_expired_robots_decision_refuses(self, rig: Rig) -> None:
        lease = await self.leased(rig)
        await self.refused(rig, lease, ReserveOutcome.ROBOTS_CHANGED, robots_version=2)
        rig.now = START + DAY
        await self.refused(rig, lease, ReserveOutcome.ROBOTS_CHANGED, robots_version=1)

    async def test_the_current_robots_decision_is_granted(self, rig: Rig) -> None:
        lease = await self.leased(rig)
        assert (await rig.reserve(lease, robots_version=1)).outcome == ReserveOutcome.GRANTED

    async def test_a_robots_hop_moves_the_slot_and_admits_nothing_there(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        lease = await rig.start(await rig.lease_one())
        assert (await rig.reserve(lease, origin=B)).outcome == ReserveOutcome.GRANTED
        assert rig.rows("SELECT key, active, leased FROM origin ORDER BY id") == [(A, 0, 1), (B, 1, 0)]
        assert len(rig.rows("SELECT id FROM url")) == 2
        rig.audit()
        await rig.fetched(lease)
        assert rig.rows("SELECT key, active, next_start FROM origin ORDER BY id") == [
            (A, 0, START + DELAY),
            (B, 0, START + DELAY),
        ]

    @pytest.mark.parametrize("place", [A, B])
    async def test_a_hop_counts_the_next_start_from_when_the_last_request_began(
        self, rig: Rig, place: str
    ) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        lease = await rig.start(await rig.lease_one())
        rig.now += 2 * DELAY
        reply = await rig.reserve(lease, origin=place, since_start_ms=100)
        expected = ReserveOutcome.NOT_YET if place == A else ReserveOutcome.GRANTED
        assert reply.outcome == expected
        assert rig.rows("SELECT next_start FROM origin WHERE key = ?", A) == [(rig.now - 100 + DELAY,)]

    async def test_an_origin_known_by_a_hop_gets_its_robots_with_its_first_page(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        lease = await rig.start(await rig.lease_one())
        await rig.reserve(lease, origin=B)
        await rig.admit(page("/y", B))
        assert rig.rows("SELECT count(*) FROM url WHERE path = '/robots.txt'") == [(2,)]

    async def hop_to_b(self, rig: Rig, crawl_delay_ms: int) -> tuple[Lease, Lease]:
        """B has its rules and a page that is leased; A's robots.txt has been asked for and leads to B."""
        await rig.take_over()
        await rig.admit(page("/x", B))
        rules = RobotsState(int(RobotsOutcome.RULES), rules=BodyRef(1, 2, 3), crawl_delay_ms=crawl_delay_ms)
        await rig.carry(await rig.lease_one(), robots=rules)
        rig.now += HOUR
        on_b = await rig.lease_one()
        assert (on_b.origin, on_b.kind) == (B, UrlKind.PAGE)
        await rig.admit(page("/y"))
        return await rig.start(await rig.lease_one()), on_b

    @pytest.mark.parametrize(("asks", "cap", "waits"), [(10, 300, 10), (10, 4, 4), (0, 300, 2), (1, 300, 2)])
    async def test_after_a_hop_the_other_origin_keeps_its_own_crawl_delay(
        self, rig: Rig, asks: int, cap: int, waits: int
    ) -> None:
        robots, on_b = await self.hop_to_b(rig, asks * SECOND)
        hop = await rig.reserve(robots, origin=B, crawl_delay_cap_ms=cap * SECOND)
        assert hop.outcome == ReserveOutcome.GRANTED
        start = rig.now
        await rig.fetched(robots)
        own = {"delay_ms": max(2, min(asks, cap)) * SECOND, "crawl_delay_cap_ms": cap * SECOND}
        rig.now = start + waits * SECOND - 1
        refused = await rig.reserve(on_b, **own)
        assert (refused.outcome, refused.until_ms) == (ReserveOutcome.NOT_YET, start + waits * SECOND)
        rig.now += 1
        assert (await rig.reserve(on_b, **own)).outcome == ReserveOutcome.GRANTED

    async def test_a_hop_respects_the_limit_of_the_other_origin(self, rig: Rig) -> None:
        robots, on_b = await self.hop_to_b(rig, 0)
        await rig.start(on_b)
        rig.now += HOLD // 2
        refused = await rig.reserve(robots, origin=B, active_max=4)
        assert refused.outcome == ReserveOutcome.NO_SLOT

    async def test_a_hop_does_not_talk_the_other_origin_out_of_its_backoff(self, rig: Rig) -> None:
        robots, on_b = await self.hop_to_b(rig, 0)
        await rig.start(on_b)
        await rig.failed(on_b, HOUR, effect=OriginEffect(10, DELAY, 0, 5))
        rig.now += 3 * SECOND
        assert (await rig.reserve(robots, origin=B)).outcome == ReserveOutcome.GRANTED
        await rig.fetched(robots)
        assert rig.rows("SELECT backoff_level FROM origin WHERE key = ?", B) == [(5,)]

    async def test_a_hop_takes_its_turn_like_any_start(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x"), page("/x", B))
        one, two = (await rig.lease()).leases
        await rig.start(one)
        await rig.start(two)
        assert (await rig.reserve(one, origin=B)).outcome == ReserveOutcome.NOT_YET
        rig.now += DELAY
        assert (await rig.reserve(one, origin=B)).outcome == ReserveOutcome.NO_SLOT
        await rig.fetched(two)
        rig.now += DELAY
        assert (await rig.reserve(one, origin=B)).outcome == ReserveOutcome.GRANTED

    async def test_starts_are_never_closer_than_the_delay_seen_from_the_real_start(self, rig: Rig) -> None:
        lease = await self.leased(rig)
        await rig.start(lease)
        rig.now += 5 * SECOND  # the grant was heard late: the request began now and took half a second
        rig.now += 500
        await rig.fetched(lease, effect=OriginEffect(500, DELAY, 0, 0))
        assert rig.rows("SELECT next_start FROM origin") == [(rig.now - 500 + DELAY,)]


class ResultContract:
    async def started(self, rig: Rig, *paths: str) -> Lease:
        await rig.take_over()
        await rig.ready(*(page(path) for path in paths or ("/x", "/y")))
        return await rig.next_page()

    async def test_a_page_goes_from_bar_to_bar(self, rig: Rig) -> None:
        lease = await self.started(rig)
        url_id = lease.key.url_id
        seen = [rig.state(url_id)]
        for action in (rig.fetched, rig.parsed, rig.complete):
            assert await action(lease) == Applied.APPLIED
            seen.append(rig.state(url_id))
        assert seen == [UrlState.LEASED, UrlState.FETCHED, UrlState.PARSED, UrlState.COMPLETE]

    @pytest.mark.parametrize(
        "step", ["leased", "fetched", "parsed", "complete", "failed", "put back", "excluded"]
    )
    async def test_stale_is_harmless_at_every_stage(self, rig: Rig, step: str) -> None:
        lease = await self.started(rig)
        await self.bring(rig, lease, step)
        before = [
            rig.rows(f"SELECT * FROM {table}")
            for table in ("url", "origin", "manifest", "publication", "fetch")
        ]
        wrong = LeaseKey(lease.key.url_id, lease.key.attempt, bytes(16))
        late = LeaseKey(lease.key.url_id, lease.key.attempt - 1, lease.key.token)
        for key in (wrong, late):
            other = Lease(key, *[getattr(lease, name) for name in Lease.__struct_fields__[1:]])
            for answered in (
                await rig.fetched(other),
                await rig.failed(other),
                await rig.failed(other, retry_ms=5),
                await rig.parsed(other),
                await rig.complete(other),
                await rig.frontier.put_back(PutBack(key, "no_slot", "", 0)),
                await rig.frontier.exclude(Exclude(key, "robots_disallowed", "", 1)),
                await rig.frontier.parse_strike(ParseStrike(key, "", True)),
            ):
                assert answered == Applied.STALE
        after = [
            rig.rows(f"SELECT * FROM {table}")
            for table in ("url", "origin", "manifest", "publication", "fetch")
        ]
        assert after == before

    async def bring(self, rig: Rig, lease: Lease, step: str) -> None:
        if step in ("fetched", "parsed", "complete"):
            await rig.fetched(lease)
        if step in ("parsed", "complete"):
            await rig.parsed(lease)
        if step == "complete":
            await rig.complete(lease)
        if step == "failed":
            await rig.failed(lease)
        if step == "put back":
            await rig.frontier.put_back(PutBack(lease.key, "no_slot", "", 0))
        if step == "excluded":
            await rig.frontier.exclude(Exclude(lease.key, "robots_disallowed", "", 1))

    @pytest.mark.parametrize("step", ["leased", "fetched", "parsed", "complete"])
    async def test_a_step_out_of_order_is_refused(self, rig: Rig, step: str) -> None:
        lease = await self.started(rig)
        await self.bring(rig, lease, step)
        if step != "leased":
            assert await rig.fetched(lease) == Applied.STALE
            assert await rig.failed(lease) == Applied.STALE
            assert await rig.frontier.put_back(PutBack(lease.key, "x", "", 0)) == Applied.STALE
            assert await rig.frontier.exclude(Exclude(lease.key, "x", "", 1)) == Applied.STALE
        if step != "fetched":
            assert await rig.frontier.parse_strike(ParseStrike(lease.key, "", False)) == Applied.STALE
        if step not in ("fetched", "parsed"):
            assert await rig.frontier.parse_strike(ParseStrike(lease.key, "", True)) == Applied.STALE
        if step in ("leased", "complete"):
            assert await rig.parsed(lease) == Applied.STALE
        if step != "parsed":
            assert await rig.complete(lease) == Applied.STALE

    async def test_parsed_again_with_the_same_key_is_applied_again_once(self, rig: Rig) -> None:
        lease = await self.started(rig)
        await rig.fetched(lease)
        assert await rig.parsed(lease, 3) == Applied.APPLIED
        assert await rig.parsed(lease, 3) == Applied.APPLIED
        assert rig.rows("SELECT count(*) FROM manifest WHERE links = 3") == [(1,)]

    async def test_a_parsed_page_of_which_nothing_is_left_can_fail(self, rig: Rig) -> None:
        lease = await self.started(rig)
        await rig.fetched(lease)
        await rig.parsed(lease, 0)
        assert await rig.frontier.parse_strike(ParseStrike(lease.key, "lost", True)) == Applied.APPLIED
        assert rig.state(lease.key.url_id) is UrlState.FAILED
        rig.audit()

    async def test_a_repeated_parse_replaces_the_manifest_until_it_is_opened(self, rig: Rig) -> None:
        lease = await self.started(rig)
        await rig.fetched(lease)
        await rig.parsed(lease, 3)
        assert await rig.parsed(lease, 2, ref=BodyRef(1, 7_000, 40)) == Applied.APPLIED
        assert rig.rows("SELECT links, ref FROM manifest WHERE links > 0") == [
            (2, BodyRef(1, 7_000, 40).pack())
        ]
        await rig.complete(lease)
        assert await rig.parsed(lease, 5) == Applied.STALE
        rig.audit()

    async def test_a_robots_decision_that_cannot_be_used_is_fetched_again(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        lease = await rig.lease_one()
        assert lease.kind == UrlKind.PAGE
        await rig.frontier.put_back(PutBack(lease.key, str(Reason.ROBOTS_MISSING), "gone", 0))
        assert (await rig.lease_one()).kind == UrlKind.ROBOTS
        rig.audit()

    async def test_a_second_completion_publishes_nothing(self, rig: Rig) -> None:
        lease = await self.started(rig)
        await rig.fetched(lease)
        await rig.parsed(lease)
        results = await asyncio.gather(rig.complete(lease), rig.complete(lease))
        assert sorted(results) == [Applied.STALE, Applied.APPLIED]
        assert rig.rows("SELECT count(*) FROM publication") == [(1,)]

    async def test_what_is_withheld_is_not_published_but_counted(self, rig: Rig) -> None:
        lease = await self.started(rig)
        await rig.fetched(lease)
        await rig.parsed(lease)
        await rig.complete(
            lease, publish=False, withheld="noindex", directives=1, canonical="https://a.example/c"
        )
        assert rig.rows("SELECT count(*) FROM publication") == [(0,)]
        assert rig.row(lease.key.url_id, "reason", "directives", "canonical") == (
            "noindex",
            1,
            "https://a.example/c",
        )
        assert rig.rows("SELECT value FROM tally WHERE name = 'withheld.noindex'") == [(1,)]

    async def test_every_bit_of_a_fingerprint_is_kept(self, rig: Rig) -> None:
        lease = await rig.carry(await self.leased(rig), fingerprint=0xFFFF_0000_FFFF_0001)
        assert rig.row(lease.key.url_id, "fingerprint") & (1 << 64) - 1 == 0xFFFF_0000_FFFF_0001

    async def leased(self, rig: Rig) -> Lease:
        await rig.take_over()
        await rig.ready(page("/x"))
        return await rig.lease_one()

    async def test_the_fetch_record_tells_what_was_answered(self, rig: Rig) -> None:
        lease = await self.started(rig)
        await rig.fetched(lease)
        assert rig.rows(
            "SELECT attempt, generation, at, duration_ms, status, category FROM fetch WHERE url_id = ?",
            lease.key.url_id,
        ) == [(1, 1, rig.now, 120, 200, None)]

    async def test_a_failed_try_goes_to_the_retry_lane_at_its_time(self, rig: Rig) -> None:
        lease = await self.started(rig, "/x")
        await rig.failed(lease, retry_ms=9 * SECOND)
        assert rig.row(lease.key.url_id, "state", "rq", "due_at", "tries") == (0, 6, rig.now + 9 * SECOND, 1)
        rig.now += 9 * SECOND - 1
        reply = await rig.lease()
        assert (reply.leases, reply.next_wake_ms) == ([], rig.now + 1)
        rig.now += 1
        again = await rig.lease_one()
        assert (again.key.attempt, again.tries, again.crawl_generation) == (2, 1, 1)

    async def test_a_failing_url_does_not_crowd_out_its_origin(self, rig: Rig) -> None:
        lease = await self.started(rig, "/x", "/y")
        await rig.failed(lease, retry_ms=0)
        rig.now += DELAY
        assert (await rig.lease_one()).path != lease.path

    async def test_the_last_try_ends_as_failed_with_its_category(self, rig: Rig) -> None:
        lease = await self.started(rig, "/x")
        await rig.failed(lease, fetched=answer(503))
        assert rig.row(lease.key.url_id, "state", "reason", "detail", "status", "rq") == (
            UrlState.FAILED,
            "connect_timeout",
            "no answer",
            503,
            None,
        )
        assert (await rig.lease(0)).queued == 0

    async def test_rest_and_backoff_hold_the_origin(self, rig: Rig) -> None:
        lease = await self.started(rig)
        await rig.failed(lease, retry_ms=0, effect=OriginEffect(80, DELAY, 30 * SECOND, 3))
        reply = await rig.lease()
        assert (reply.leases, reply.next_wake_ms) == ([], rig.now + 30 * SECOND)
        rig.now += 30 * SECOND
        facts = (await rig.lease_one()).facts
        assert (facts.backoff_level, facts.last_fetch_ms) == (3, 80)

    async def test_put_back_costs_no_try_and_keeps_the_class(self, rig: Rig) -> None:
        lease = await self.started(rig, "/x")
        await rig.frontier.put_back(PutBack(lease.key, "address_busy", "192.0.2.1", 3 * SECOND))
        assert rig.row(lease.key.url_id, "state", "rq", "tries", "due_at", "reason") == (
            0,
            2,
            0,
            rig.now + 3 * SECOND,
            "address_busy",
        )
        assert rig.rows("SELECT active, leased FROM origin") == [(0, 0)]
        rig.now += 3 * SECOND
        assert (await rig.lease_one()).key.attempt == 2

    async def test_excluded_is_final_and_explained(self, rig: Rig) -> None:
        lease = await self.started(rig, "/x")
        await rig.frontier.exclude(Exclude(lease.key, "robots_disallowed", "Disallow: /x", 7))
        assert rig.row(lease.key.url_id, "state", "reason", "detail", "policy_version") == (
            UrlState.EXCLUDED,
            "robots_disallowed",
            "Disallow: /x",
            7,
        )
        reply = await rig.lease()
        assert (reply.leases, reply.queued, reply.in_flight) == ([], 0, 0)

    async def test_strikes_add_up_and_the_last_one_fails_the_page(self, rig: Rig) -> None:
        lease = await self.started(rig)
        await rig.fetched(lease)
        assert await rig.frontier.parse_strike(ParseStrike(lease.key, "cpu", False)) == Applied.APPLIED
        assert rig.row(lease.key.url_id, "state", "strikes") == (UrlState.FETCHED, 1)
        assert await rig.frontier.parse_strike(ParseStrike(lease.key, "cpu", True)) == Applied.APPLIED
        assert rig.row(lease.key.url_id, "state", "reason", "detail") == (
            UrlState.FAILED,
            "parse_failed",
            "cpu",
        )

    async def test_a_revisit_is_due_at_its_time_as_the_next_generation(self, rig: Rig) -> None:
        lease = await self.leased(rig)
        await rig.carry(lease, revisit_ms=2 * HOUR)
        reply = await rig.lease()
        assert (reply.leases, reply.queued, reply.next_wake_ms is not None) == ([], 1, True)
        rig.now += 2 * HOUR
        again = await rig.lease_one()
        assert (again.path, again.crawl_generation, again.key.attempt) == ("/x", 2, 2)

    async def test_a_revisited_page_is_published_again_once_per_generation(self, rig: Rig) -> None:
        await rig.carry(await self.leased(rig), revisit_ms=HOUR)
        rig.now += HOUR
        await rig.carry(await rig.lease_one())
        assert rig.rows("SELECT crawl_generation FROM publication ORDER BY seq") == [(1,), (2,)]


class NearDuplicateContract:
    """Complete.near: the first document published keeps its place, later ones that nearly repeat its text are withheld."""

    async def begin(self, rig: Rig) -> None:
        """Both origins may be fetched from; their first pages have too little text for a fingerprint."""
        await rig.take_over()
        await rig.ready(page("/", A), page("/", B))
        for lease in (await rig.lease()).leases:
            await rig.carry(lease, near=True)

    async def found(self, rig: Rig, url: str, fingerprint: int, **facts: Any) -> Lease:
        """A page is found and carried to COMPLETE, to be published unless `facts` say otherwise."""
        origin, path = url[: len(A)], url[len(A) :]
        await rig.admit(page(path, origin))
        lease = await self.again(rig, fingerprint, **facts)
        assert lease.url == url
        return lease

    async def again(self, rig: Rig, fingerprint: int, **facts: Any) -> Lease:
        """The page that is due is carried to COMPLETE."""
        rig.now += DELAY
        return await rig.carry(await rig.lease_one(), fingerprint=fingerprint, **{"near": True, **facts})

    def published(self, rig: Rig) -> list[str]:
        rows = rig.rows(
            "SELECT o.key, u.path FROM publication p JOIN url u ON u.id = p.url_id JOIN origin o ON o.id = u.id >> 36"
        )
        return sorted(origin + path for origin, path in rows if path != "/")

    @pytest.mark.parametrize("twin", [A + "/twin", B + "/twin"], ids=["same origin", "another origin"])
    @pytest.mark.parametrize("bits", [0, 1, 2, 3])
    async def test_the_first_of_near_duplicates_is_published(self, rig: Rig, twin: str, bits: int) -> None:
        await self.begin(rig)
        await self.found(rig, A + "/first", TEXT)
        late = await self.found(rig, twin, TEXT ^ FLIPS[bits])
        assert self.published(rig) == [A + "/first"]
        assert rig.state(late.key.url_id) is UrlState.COMPLETE
        assert rig.rows("SELECT value FROM tally WHERE name = 'withheld.near_duplicate'") == [(1,)]

    async def test_what_is_withheld_names_its_twin(self, rig: Rig) -> None:
        await self.begin(rig)
        first = await self.found(rig, A + "/first", TEXT)
        late = await self.found(rig, B + "/twin", TEXT ^ FLIPS[2])
        reason, detail = rig.row(late.key.url_id, "reason", "detail")
        assert reason == "near_duplicate"
        assert detail == f"nearly the same text as {A}/first"
        assert rig.row(first.key.url_id, "reason") is None

    @pytest.mark.parametrize("flip", [0x0001_0001_0001_0001, 0b1111, 0xF000 << 48, (1 << 64) - 1])
    async def test_four_bits_are_another_text(self, rig: Rig, flip: int) -> None:
        await self.begin(rig)
        await self.found(rig, A + "/first", TEXT)
        await self.found(rig, A + "/other", TEXT ^ flip)
        assert self.published(rig) == [A + "/first", A + "/other"]

    async def test_texts_too_short_for_a_fingerprint_have_no_twins(self, rig: Rig) -> None:
        await self.begin(rig)
        await self.found(rig, A + "/short", 0)
        await self.found(rig, A + "/few-bits", 0b101)
        await self.found(rig, A + "/brief", 0)
        assert self.published(rig) == [A + "/brief", A + "/few-bits", A + "/short"]

    async def test_who_does_not_ask_publishes_whatever_there_is(self, rig: Rig) -> None:
        await self.begin(rig)
        await self.found(rig, A + "/first", TEXT)
        await self.found(rig, A + "/second", TEXT, near=False)
        assert self.published(rig) == [A + "/first", A + "/second"]
        assert not rig.rows("SELECT value FROM tally WHERE name = 'withheld.near_duplicate'")

    async def test_what_is_not_published_withholds_nothing(self, rig: Rig) -> None:
        await self.begin(rig)
        hidden = await self.found(rig, A + "/hidden", TEXT, publish=False, withheld="noindex")
        await self.found(rig, A + "/shown", TEXT)
        assert self.published(rig) == [A + "/shown"]
        assert rig.row(hidden.key.url_id, "reason") == "noindex"

    async def test_what_is_withheld_withholds_nothing(self, rig: Rig) -> None:
        await self.begin(rig)
        await self.found(rig, A + "/first", TEXT)
        await self.found(rig, A + "/near", TEXT ^ 0b111)
        await self.found(rig, A + "/far", TEXT ^ 0b11_1111)
        assert self.published(rig) == [A + "/far", A + "/first"]

    async def test_another_reason_to_withhold_comes_first(self, rig: Rig) -> None:
        await self.begin(rig)
        await self.found(rig, A + "/first", TEXT)
        late = await self.found(rig, A + "/copy", TEXT, publish=False, withheld="canonical_elsewhere")
        assert rig.row(late.key.url_id, "reason", "detail") == ("canonical_elsewhere", None)

    async def test_the_links_of_what_is_withheld_are_followed(self, rig: Rig) -> None:
        await self.begin(rig)
        await self.found(rig, A + "/first", TEXT)
        late = await self.found(rig, A + "/copy", TEXT, links=3)
        manifest = ManifestKey(late.key.url_id, late.key.attempt, 1)
        report = await rig.admit(page("/found", B), cursor=CursorAdvance(manifest, 0, 3))
        assert (report.applied, list(report.verdicts)) == (Applied.APPLIED, [ADMITTED])

    async def test_a_repeated_call_does_not_withhold_what_it_published(self, rig: Rig) -> None:
        await self.begin(rig)
        first = await self.found(rig, A + "/first", TEXT)
        assert await rig.complete(first, fingerprint=TEXT, near=True) == Applied.STALE
        assert self.published(rig) == [A + "/first"]
        assert rig.row(first.key.url_id, "reason") is None

    async def test_twins_completed_together_publish_one(self, rig: Rig) -> None:
        await self.begin(rig)
        await rig.admit(page("/one", A), page("/two", B))
        rig.now += DELAY
        leases = (await rig.lease()).leases
        for lease in leases:
            await rig.start(lease)
            await rig.fetched(lease)
            await rig.parsed(lease)
        await asyncio.gather(*(rig.complete(lease, fingerprint=TEXT, near=True) for lease in leases))
        assert len(self.published(rig)) == 1
        assert sorted(str(rig.row(lease.key.url_id, "reason")) for lease in leases) == [
            "None",
            "near_duplicate",
        ]

    @pytest.mark.parametrize("bits", [0, 2])
    async def test_a_url_is_never_its_own_twin(self, rig: Rig, bits: int) -> None:
        await self.begin(rig)
        await self.found(rig, A + "/first", TEXT, revisit_ms=HOUR)
        rig.now += HOUR
        await self.again(rig, TEXT ^ FLIPS[bits])
        assert self.published(rig) == [A + "/first"] * 2
        await self.found(rig, A + "/copy", TEXT ^ FLIPS[bits])
        assert self.published(rig) == [A + "/first"] * 2

    async def test_a_changed_text_frees_the_one_before(self, rig: Rig) -> None:
        await self.begin(rig)
        await self.found(rig, A + "/first", TEXT, revisit_ms=HOUR)
        rig.now += HOUR
        await self.again(rig, OTHER_TEXT)
        await self.found(rig, A + "/second", TEXT)
        await self.found(rig, A + "/third", OTHER_TEXT)
        assert self.published(rig) == [A + "/first", A + "/first", A + "/second"]

    @pytest.mark.parametrize(
        "end",
        [
            {"fingerprint": TEXT, "publish": False, "withheld": "noindex"},
            {"fingerprint": 0},
            {"fingerprint": 0, "publish": False, "withheld": "status_404"},
        ],
        ids=["noindex", "too short", "gone"],
    )
    async def test_what_is_not_published_any_more_frees_its_text(self, rig: Rig, end: dict[str, Any]) -> None:
        await self.begin(rig)
        await self.found(rig, A + "/first", TEXT, revisit_ms=HOUR)
        rig.now += HOUR
        await self.again(rig, **end)
        await self.found(rig, A + "/second", TEXT)
        assert A + "/second" in self.published(rig)

    async def test_a_text_that_comes_to_repeat_another_frees_its_own(self, rig: Rig) -> None:
        await self.begin(rig)
        await self.found(rig, A + "/first", TEXT)
        turncoat = await self.found(rig, A + "/turncoat", OTHER_TEXT, revisit_ms=HOUR)
        rig.now += HOUR
        await self.again(rig, TEXT)
        assert rig.row(turncoat.key.url_id, "reason") == "near_duplicate"
        await self.found(rig, A + "/heir", OTHER_TEXT)
        assert self.published(rig) == [A + "/first", A + "/heir", A + "/turncoat"]

    async def test_what_is_published_outlives_a_crash_in_the_index(self, rig: Rig) -> None:
        await self.begin(rig)
        await self.found(rig, A + "/first", TEXT)
        await rig.crash()
        await self.found(rig, A + "/copy", TEXT)
        assert self.published(rig) == [A + "/first"]

    async def test_of_many_texts_each_finds_its_own_twin(self, rig: Rig) -> None:
        await self.begin(rig)
        chance = random.Random(7)
        texts = [chance.getrandbits(64) for _ in range(20)]
        for number, text in enumerate(texts):
            await self.found(rig, f"{A}/{number}", text)
        assert len(self.published(rig)) == 20
        for number, text in enumerate(texts):
            late = await self.found(rig, f"{B}/{number}", text ^ 1 << chance.randrange(64))
            assert rig.row(late.key.url_id, "detail") == f"nearly the same text as {A}/{number}"


class BodyContract:
    async def revisited(self, rig: Rig, first: object, second: object) -> Lease:
        await rig.take_over()
        await rig.ready(page("/x"))
        await rig.carry(await rig.lease_one(), fetched=first, revisit_ms=HOUR)  # type: ignore[arg-type]
        rig.now += HOUR
        lease = await rig.start(await rig.lease_one())
        assert await rig.fetched(lease, second) == Applied.APPLIED  # type: ignore[arg-type]
        return lease

    async def test_validators_come_back_byte_for_byte(self, rig: Rig) -> None:
        odd = Validators('W/"\xff\x01 caf\xe9"', "Sun, 06 Nov 1994  08:49:37 gmt")
        await rig.take_over()
        await rig.ready(page("/x"))
        await rig.carry(await rig.lease_one(), fetched=answer(validators=odd), revisit_ms=HOUR)
        rig.now += HOUR
        lease = await rig.lease_one()
        assert lease.validators == odd
        assert (lease.prior_body, lease.prior_digest) == (BodyRef(1, 100, 50), b"\xc8" * 32)

    async def test_a_304_keeps_the_body_and_its_digest(self, rig: Rig) -> None:
        first = answer(digest=b"1" * 32, validators=Validators('"v1"', "then"))
        second = answer(304, digest=b"1" * 32, offset=700, not_modified=True, validators=Validators('"v2"'))
        lease = await self.revisited(rig, first, second)
        row = rig.row(
            lease.key.url_id, "body_ref", "digest", "etag", "last_modified", "status", "changes", "checks"
        )
        assert row == (BodyRef(1, 100, 50).pack(), b"1" * 32, '"v2"', "then", 304, 0, 2)

    async def test_an_error_page_does_not_replace_the_last_good_body(self, rig: Rig) -> None:
        first = answer(digest=b"1" * 32, validators=Validators('"v1"'))
        second = answer(404, digest=b"2" * 32, offset=700, validators=Validators('"error"'))
        lease = await self.revisited(rig, first, second)
        row = rig.row(lease.key.url_id, "body_ref", "digest", "etag", "status")
        assert row == (BodyRef(1, 100, 50).pack(), b"1" * 32, '"v1"', 404)

    async def test_a_changed_body_is_counted_as_a_change(self, rig: Rig) -> None:
        lease = await self.revisited(rig, answer(digest=b"1" * 32), answer(digest=b"2" * 32, offset=700))
        assert rig.row(lease.key.url_id, "digest", "changes", "checks", "etag") == (b"2" * 32, 1, 2, None)

    async def test_bytes_are_found_by_their_digest_where_they_were_stored_first(self, rig: Rig) -> None:
        await self.revisited(rig, answer(digest=b"1" * 32), answer(digest=b"1" * 32, offset=700))
        assert await rig.frontier.find_body(b"1" * 32) == BodyRef(1, 100, 50)
        assert await rig.frontier.find_body(b"2" * 32) is None

    async def test_a_robots_body_and_a_failed_answer_are_found_too(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        lease = await rig.start(await rig.lease_one())
        await rig.failed(lease, retry_ms=0, fetched=answer(503, digest=b"5" * 32, offset=800))
        assert await rig.frontier.find_body(b"5" * 32) == BodyRef(1, 800, 50)


class ExpiryContract:
    async def test_a_lapsed_lease_goes_back_to_the_queue_without_a_try(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        lease = await rig.lease_one()
        rig.now = lease.deadline_ms - 1
        assert await rig.frontier.expire(10) == 0
        rig.now += 1
        assert await rig.frontier.expire(10) == 1
        again = await rig.lease_one()
        assert (again.path, again.key.attempt, again.tries, again.crawl_generation) == ("/x", 2, 0, 1)

    async def test_expiry_frees_the_slot_and_the_late_worker_is_stale(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        late = await rig.next_page()
        rig.now += HOLD
        assert await rig.frontier.expire(10) == 0, "the slot outlives the request"
        rig.now += HOLD
        assert await rig.frontier.expire(10) == 1
        fresh = await rig.next_page()
        assert await rig.fetched(late) == Applied.STALE
        assert await rig.fetched(fresh) == Applied.APPLIED

    async def test_expiry_takes_a_bounded_number_the_oldest_first(self, rig: Rig) -> None:
        await rig.take_over()
        for n in range(3):
            await rig.admit(page("/x", f"https://o{n}.example"))
            await rig.lease_one()
            rig.now += SECOND
        rig.now += HOUR
        assert [await rig.frontier.expire(2) for _ in range(3)] == [2, 1, 0]

    @pytest.mark.parametrize("step", ["fetched", "parsed"])
    async def test_stored_bodies_are_never_fetched_again_by_expiry(self, rig: Rig, step: str) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        lease = await rig.next_page()
        await rig.fetched(lease)
        if step == "parsed":
            await rig.parsed(lease)
        rig.now += DAY
        assert await rig.frontier.expire(10) == 0
        if step == "fetched":
            assert await rig.parsed(lease) == Applied.APPLIED
        assert await rig.complete(lease) == Applied.APPLIED


class TakeoverContract:
    async def test_each_owner_gets_a_higher_epoch(self, rig: Rig) -> None:
        assert [(await rig.take_over(f"agent {n}")).epoch for n in range(3)] == [1, 2, 3]

    @pytest.mark.parametrize("step", ["leased", "started"])
    async def test_a_crash_before_the_answer_leads_back_to_the_queue(self, rig: Rig, step: str) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        old = await rig.lease_one()
        if step == "started":
            await rig.start(old)
        taken = await rig.crash()
        assert (taken.lapsed, taken.resumables, taken.open_manifests) == (1, [], [])
        assert rig.rows("SELECT active, leased FROM origin") == [(0, 0)]
        assert await rig.fetched(old) == Applied.STALE
        rig.now += DELAY
        again = await rig.lease_one()
        assert (again.path, again.key.attempt, again.tries) == ("/x", 2, 0)

    async def test_spacing_holds_over_a_crash(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        await rig.next_page()
        await rig.crash()
        reply = await rig.lease()
        assert (reply.leases, reply.next_wake_ms) == ([], rig.now + DELAY)

    async def test_a_start_granted_long_before_the_crash_may_have_happened_just_now(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        await rig.next_page()
        rig.now += 5 * DELAY
        await rig.crash()
        reply = await rig.lease()
        assert (reply.leases, reply.next_wake_ms) == ([], rig.now + DELAY)

    async def test_a_crash_after_fetched_hands_the_body_over_under_a_fresh_token(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        old = await rig.next_page()
        fetched = answer(200, validators=Validators('"v"'), quirks=("bare_lf",))
        await rig.fetched(old, fetched)
        await rig.frontier.parse_strike(ParseStrike(old.key, "cpu", False))
        (found,) = (await rig.crash()).resumables
        assert (found.fetched, found.strikes, found.manifest) == (fetched, 1, None)
        assert (found.lease.origin, found.lease.path, found.lease.key.attempt) == (A, "/x", 1)
        assert await rig.parsed(old) == Applied.STALE
        assert await rig.parsed(found.lease) == Applied.APPLIED
        assert await rig.complete(found.lease) == Applied.APPLIED

    async def test_a_crash_after_parsed_hands_the_manifest_over(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        old = await rig.next_page()
        await rig.fetched(old)
        await rig.parsed(old, 4)
        taken = await rig.crash()
        (found,) = taken.resumables
        assert (found.manifest, found.links, found.extraction_generation) == (BodyRef(1, 900, 40), 4, 1)
        assert (found.content_kind, taken.open_manifests) == ("html", [])
        assert await rig.complete(old) == Applied.STALE
        assert await rig.complete(found.lease) == Applied.APPLIED
        (open_manifest,) = (await rig.crash()).open_manifests
        assert (open_manifest.cursor, open_manifest.total) == (0, 4)

    async def test_a_crash_after_complete_leaves_only_the_links(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        await rig.carry(await rig.lease_one(), links=2)
        taken = await rig.crash()
        assert (taken.lapsed, taken.resumables) == (0, [])
        assert len(taken.open_manifests) == 1

    async def test_a_crash_during_a_robots_hop_frees_the_other_origin(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        lease = await rig.start(await rig.lease_one())
        await rig.reserve(lease, origin=B)
        await rig.crash()
        assert rig.rows("SELECT active FROM origin") == [(0,), (0,)]

    async def test_the_clock_never_goes_back(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        rig.now -= HOUR
        assert (await rig.lease()).now_ms == START
        assert (await rig.crash()).now_ms == START
        rig.now += 2 * HOUR
        assert (await rig.lease()).now_ms == START + HOUR

    async def test_a_page_whose_parser_fails_in_every_life_of_its_owner_ends_by_itself(
        self, rig: Rig
    ) -> None:
        """Each life gives it all its tries: one that ends the owner before they are over would come back for ever."""
        await rig.take_over()
        await rig.ready(page("/bad"), page("/x"))
        leases: dict[str, Lease] = {}
        for _ in range(2):
            lease = await rig.next_page()
            leases[lease.path] = lease
            await rig.fetched(lease)
            rig.now += DELAY
        lives = 0
        while "/bad" in (left := {one.lease.path: one for one in (await rig.take_over()).resumables}):
            await rig.frontier.parse_strike(ParseStrike(left["/bad"].lease.key, "memory", final=False))
            lives += 1
            assert lives < 10
        assert lives == StoreSettings().strikes_adopted_max
        assert rig.state(leases["/bad"].key.url_id) == UrlState.FAILED
        assert rig.row(leases["/bad"].key.url_id, "reason") == "parse_failed"
        assert list(left) == ["/x"], "restarts alone end nothing"


class AdoptContract:
    """Rows past LEASED that nobody holds: parse workers take what was fetched, the owner takes what they parsed."""

    async def waiting(self, rig: Rig, *paths: str) -> list[Lease]:
        """Pages whose bodies are stored and which parse workers may take."""
        await rig.take_over()
        await rig.ready(*(page(path) for path in paths))
        leases = []
        for _ in paths:
            leases.append(await rig.next_page())
            assert await rig.offered(leases[-1]) == Applied.APPLIED
            rig.now += DELAY
        return leases

    async def test_what_is_offered_can_be_adopted_at_once_and_by_one_only(self, rig: Rig) -> None:
        (old,) = await self.waiting(rig, "/x")
        (found,) = await rig.adopt()
        assert (found.lease.url, found.fetched, found.strikes, found.manifest) == (old.url, answer(), 0, None)
        assert (found.lease.key.attempt, found.lease.key.partition) == (old.key.attempt, 0)
        assert (found.lease.deadline_ms, found.lease.depth) == (rig.now + HOLD, old.depth)
        assert await rig.adopt() == []
        assert await rig.parsed(old) == Applied.STALE, "the token of the fetch is no authority any more"
        assert await rig.parsed(found.lease) == Applied.APPLIED

    async def test_what_somebody_holds_is_not_given_out_until_the_hold_lapses(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        await rig.fetched(await rig.next_page())
        assert await rig.adopt() == []
        rig.now += 10 * 60 * SECOND
        (found,) = await rig.adopt()
        assert found.strikes == 1

    async def test_the_oldest_come_first_and_no_more_than_asked_for(self, rig: Rig) -> None:
        leases = await self.waiting(rig, "/x", "/y", "/z")
        found = await rig.adopt(count=2)
        assert [one.lease.url for one in found] == [lease.url for lease in leases[:2]]
        assert [one.lease.url for one in await rig.adopt()] == [leases[2].url]

    async def test_only_the_kinds_that_were_asked_for(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x"), page("/map.xml", B, kind=UrlKind.SITEMAP))
        for lease in (await rig.lease()).leases:
            await rig.offered(await rig.start(lease))
        assert await rig.adopt(kinds=[UrlKind.PAGE, UrlKind.SITEMAP]) == []
        found = await rig.adopt(kinds=[UrlKind.ROBOTS])
        assert sorted(one.lease.origin for one in found) == [A, B]

    async def test_a_worker_that_goes_away_costs_the_page_a_strike_and_its_late_result_is_stale(
        self, rig: Rig
    ) -> None:
        await self.waiting(rig, "/x")
        (first,) = await rig.adopt()
        rig.now += HOLD - 1
        assert await rig.adopt() == []
        rig.now += 1
        (second,) = await rig.adopt()
        assert (first.strikes, second.strikes) == (0, 1)
        assert await rig.parsed(first.lease, hand_over=True) == Applied.STALE
        assert await rig.parsed(second.lease, hand_over=True) == Applied.APPLIED

    async def test_a_page_that_ends_every_worker_ends_as_parse_failed(self, make_rig: MakeRig) -> None:
        rig: Rig = await make_rig(settings=StoreSettings(strikes_adopted_max=3))
        (lease,) = await self.waiting(rig, "/x")
        seen = []
        for _ in range(4):
            seen += [one.strikes for one in await rig.adopt()]
            rig.now += HOLD
        assert seen == [0, 1, 2]
        assert rig.state(lease.key.url_id) == UrlState.FAILED
        assert rig.row(lease.key.url_id, "reason") == "parse_failed"

    async def test_a_page_that_may_have_ended_its_holders_is_adopted_alone(self, rig: Rig) -> None:
        """What was only in the same hands is then not in the hands that end with it."""
        await self.waiting(rig, "/x", "/y", "/z")
        for _ in range(STRIKES_APART):
            assert len(await rig.adopt()) == 3
            rig.now += HOLD
        alone = [await rig.adopt() for _ in range(4)]
        assert [[one.strikes for one in found] for found in alone] == [[STRIKES_APART]] * 3 + [[]]
        assert len({found[0].lease.url for found in alone[:3]}) == 3

    async def test_one_that_comes_alone_keeps_nobody_waiting(self, rig: Rig) -> None:
        await self.waiting(rig, "/old")
        for _ in range(STRIKES_APART):
            assert len(await rig.adopt()) == 1
            rig.now += HOLD
        await rig.admit(page("/fresh"))
        fresh = await rig.next_page()
        rig.now += DELAY
        await rig.offered(fresh)
        assert [one.strikes for one in await rig.adopt()] == [STRIKES_APART]
        assert [one.lease.url for one in await rig.adopt()] == [fresh.url]
        rig.now += HOLD
        both = [await rig.adopt(), await rig.adopt()]
        assert sorted(one.strikes for (one,) in both) == [1, STRIKES_APART + 1]

    async def test_strikes_of_the_parser_and_of_holders_add_up(self, rig: Rig) -> None:
        await self.waiting(rig, "/x")
        (first,) = await rig.adopt()
        await rig.frontier.parse_strike(ParseStrike(first.lease.key, "cpu", False))
        rig.now += HOLD
        (second,) = await rig.adopt()
        assert second.strikes == 2

    @pytest.mark.parametrize("harm", [None, b"no answer"])
    async def test_a_row_that_cannot_be_read_ends_by_itself_and_the_others_are_adopted(
        self, rig: Rig, harm: bytes | None
    ) -> None:
        broken, whole = await self.waiting(rig, "/x", "/y")
        rig.spoil("fetch", "answer", harm, broken.key.url_id)
        assert [one.lease.url for one in await rig.adopt(count=2)] == [whole.url]
        assert rig.row(broken.key.url_id, "state", "reason") == (UrlState.FAILED, "parse_failed")
        assert "fetch record" in rig.row(broken.key.url_id, "detail")
        rig.spoil("fetch", "answer", b"-", broken.key.url_id)  # the audit after each test counts answers

    async def test_an_owner_takes_over_although_one_row_cannot_be_read(self, rig: Rig) -> None:
        broken, whole = await self.waiting(rig, "/x", "/y")
        for found in await rig.adopt(count=2):
            assert await rig.parsed(found.lease) == Applied.APPLIED
        rig.spoil("manifest", "ref", b"!", broken.key.url_id)
        assert [one.lease.url for one in (await rig.crash()).resumables] == [whole.url]
        assert rig.row(broken.key.url_id, "state", "reason") == (UrlState.FAILED, "parse_failed")

    async def test_what_is_handed_over_goes_to_the_owner_with_its_manifest(self, rig: Rig) -> None:
        await self.waiting(rig, "/x")
        (found,) = await rig.adopt()
        text = BodyRef(1, 940, 10)
        assert await rig.parsed(found.lease, 3, hand_over=True, text_ref=text) == Applied.APPLIED
        (parsed,) = await rig.adopt(PARSED, partition=0)
        assert (parsed.manifest, parsed.links, parsed.content_kind) == (BodyRef(1, 900, 40), 3, "html")
        assert (parsed.extraction_generation, parsed.fetched) == (1, answer())
        assert await rig.complete(found.lease) == Applied.STALE
        assert await rig.complete(parsed.lease) == Applied.APPLIED
        assert rig.rows("SELECT text_ref FROM manifest WHERE links = 3") == [(text.pack(),)]

    async def test_what_is_parsed_and_kept_is_not_given_away(self, rig: Rig) -> None:
        await self.waiting(rig, "/x")
        (found,) = await rig.adopt()
        await rig.parsed(found.lease)
        assert await rig.adopt(PARSED, partition=0) == []
        assert await rig.complete(found.lease) == Applied.APPLIED

    async def test_handing_over_again_is_harmless(self, rig: Rig) -> None:
        await self.waiting(rig, "/x")
        (found,) = await rig.adopt()
        assert await rig.parsed(found.lease, 3, hand_over=True) == Applied.APPLIED
        assert await rig.parsed(found.lease, 3, hand_over=True) == Applied.APPLIED
        assert len(await rig.adopt(PARSED, partition=0)) == 1
        assert await rig.parsed(found.lease, 3, hand_over=True) == Applied.STALE

    async def test_an_owner_of_the_past_adopts_nothing(self, rig: Rig) -> None:
        await self.waiting(rig, "/x")
        old = rig.epoch
        await rig.crash()
        await rig.frontier.take_over(TakeoverAsk("third", resume=False))
        assert await rig.adopt(PARSED, partition=0, epoch=old) == []
        assert await rig.adopt(FETCHED, partition=0, epoch=old) == []

    async def test_an_owner_that_leaves_parsing_to_others_takes_over_no_page(self, rig: Rig) -> None:
        *_, free = await self.waiting(rig, "/x", "/y", "/z")
        held, parsed = await rig.adopt(count=2)
        await rig.parsed(parsed.lease, 2)
        taken = await rig.frontier.take_over(TakeoverAsk("next", resume=False))
        rig.epoch = taken.epoch
        assert taken.resumables == []
        found = [one.lease.url for one in await rig.adopt()]
        assert found == [free.url], "what a worker holds stays its own"
        assert await rig.parsed(held.lease, hand_over=True) == Applied.APPLIED
        urls = {one.lease.url for one in await rig.adopt(PARSED, partition=0)}
        assert urls == {held.lease.url, parsed.lease.url}

    async def test_such_an_owner_still_takes_over_the_robots_txt(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        await rig.fetched(await rig.start(await rig.lease_one()))
        taken = await rig.frontier.take_over(TakeoverAsk("next", resume=False))
        (found,) = taken.resumables
        assert found.lease.kind == UrlKind.ROBOTS
        assert await rig.parsed(found.lease) == Applied.APPLIED

    async def test_an_owner_that_parses_itself_takes_over_what_workers_hold(self, rig: Rig) -> None:
        await self.waiting(rig, "/x")
        (held,) = await rig.adopt()
        (found,) = (await rig.take_over("next")).resumables
        assert await rig.parsed(held.lease, hand_over=True) == Applied.STALE
        assert await rig.parsed(found.lease) == Applied.APPLIED


class CrossingContract:
    """Candidates of other partitions: out with the commit that found them, in at most once, nothing lost between."""

    async def open_page(self, rig: Rig, links: int = 4) -> Lease:
        await rig.take_over()
        await rig.ready(page("/parent"))
        return await rig.carry(await rig.lease_one(), links=links)

    def parcel(self, number: int, *paths: str, source: int = AWAY) -> Parcel:
        return Parcel(source, 0, number, [page(path) for path in paths], 1)

    async def test_links_of_other_partitions_leave_in_the_commit_of_the_cursor(self, rig: Rig) -> None:
        parent = await self.open_page(rig)
        report = await rig.admit(
            page("/here"),
            page("/a", B, partition=AWAY),
            page("/b", "https://c.example", partition=FAR),
            page("/c", B, partition=AWAY),
            cursor=rig.move(parent, 0, 4),
            policy_version=5,
        )
        assert list(report.verdicts) == [ADMITTED, FORWARDED, FORWARDED, FORWARDED]
        assert rig.paths() == ["/here", "/parent"]
        assert await rig.forwarded() == 3
        found = sorted(await rig.parcels(), key=lambda parcel: parcel.destination)
        assert [(one.source, one.destination, one.policy_version) for one in found] == [
            (0, AWAY, 5),
            (0, FAR, 5),
        ]
        assert found[0].candidates == [page("/a", B, partition=AWAY), page("/c", B, partition=AWAY)]

    async def test_a_batch_whose_cursor_is_elsewhere_sends_nothing(self, rig: Rig) -> None:
        parent = await self.open_page(rig)
        links = [page("/a", B, partition=AWAY)]
        assert (await rig.admit(*links, cursor=rig.move(parent, 0, 1))).applied == Applied.APPLIED
        assert (await rig.admit(*links, cursor=rig.move(parent, 0, 1))).applied == Applied.STALE
        assert len(await rig.parcels()) == 1

    async def test_parcels_come_in_the_order_of_their_numbers_and_stay_until_they_are_dropped(
        self, rig: Rig
    ) -> None:
        await rig.take_over()
        for number in range(5):
            await rig.admit(page(f"/{number}", B, partition=AWAY))
        first = await rig.parcels(2)
        assert [one.candidates[0].path for one in first] == ["/0", "/1"]
        assert await rig.parcels(2) == first, "asking changes nothing"
        assert await rig.drop((AWAY, first[-1].number)) == Applied.APPLIED
        rest = await rig.parcels()
        assert [one.candidates[0].path for one in rest] == ["/2", "/3", "/4"]
        assert sorted({one.number for one in rest}) == [one.number for one in rest]
        assert await rig.forwarded() == 3
        assert await rig.drop((AWAY, first[-1].number)) == Applied.APPLIED, "dropping again is harmless"
        assert await rig.forwarded() == 3

    async def test_numbers_are_never_given_out_again(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/a", B, partition=AWAY))
        (old,) = await rig.parcels()
        await rig.drop((AWAY, old.number))
        await rig.crash()
        await rig.admit(page("/b", B, partition=AWAY))
        (new,) = await rig.parcels()
        assert new.number > old.number

    async def test_dropping_concerns_one_destination_only(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/a", B, partition=AWAY), page("/b", "https://c.example", partition=FAR))
        highest = max(one.number for one in await rig.parcels())
        await rig.drop((AWAY, highest))
        assert [one.destination for one in await rig.parcels()] == [FAR]

    async def test_a_destination_that_is_away_does_not_keep_the_others_waiting(self, rig: Rig) -> None:
        await rig.take_over()
        for number in range(4):
            await rig.admit(page(f"/{number}", B, partition=AWAY))
        await rig.admit(page("/b", "https://c.example", partition=FAR))
        assert [one.destination for one in await rig.parcels(2, without=[AWAY])] == [FAR]

    async def test_an_owner_of_the_past_sees_and_drops_nothing(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/a", B, partition=AWAY))
        (parcel,) = await rig.parcels()
        old = rig.epoch
        await rig.crash()
        assert await rig.parcels(epoch=old) == []
        assert await rig.drop((AWAY, parcel.number), epoch=old) == Applied.STALE
        assert await rig.parcels() == [parcel]

    async def test_what_is_delivered_waits_in_the_inbox_until_it_is_drained(self, rig: Rig) -> None:
        await rig.take_over()
        assert await rig.frontier.deliver([self.parcel(7, "/x", "/y")]) == Applied.APPLIED
        assert (rig.paths(), await rig.forwarded()) == ([], 2)
        reply = await rig.drain()
        assert (reply.taken, reply.admitted, reply.left) == (2, 2, 0)
        assert (rig.paths(), await rig.forwarded()) == (["/x", "/y"], 0)
        assert rig.rows("SELECT path, state FROM url WHERE kind = 1") == [("/robots.txt", 0)]

    async def test_a_parcel_is_taken_once_however_often_it_comes(self, rig: Rig) -> None:
        await rig.take_over()
        parcels = [self.parcel(1, "/x"), self.parcel(2, "/y")]
        assert await rig.frontier.deliver(parcels) == Applied.APPLIED
        assert await rig.frontier.deliver(parcels) == Applied.APPLIED
        assert (await rig.drain()).taken == 2
        assert await rig.frontier.deliver([*parcels, self.parcel(3, "/z")]) == Applied.APPLIED
        assert (await rig.drain()).taken == 1
        assert await rig.frontier.deliver(parcels) == Applied.APPLIED, "the mark outlives what it marks"
        await rig.crash()
        assert await rig.frontier.deliver(parcels) == Applied.APPLIED
        assert (await rig.drain()).taken == 0

    async def test_parcels_that_come_together_are_taken_by_number(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.frontier.deliver([self.parcel(5, "/later"), self.parcel(3, "/sooner")])
        assert (await rig.drain()).taken == 2

    async def test_each_source_has_its_own_numbers(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.frontier.deliver([self.parcel(9, "/x")])
        await rig.frontier.deliver([self.parcel(1, "/y", source=FAR)])
        assert (await rig.drain()).taken == 2

    async def test_a_parcel_for_another_partition_is_refused_with_all_that_came_along(self, rig: Rig) -> None:
        await rig.take_over()
        astray = Parcel(AWAY, FAR, 2, [page("/y", B, partition=FAR)], 1)
        assert await rig.frontier.deliver([self.parcel(1, "/x"), astray]) == Applied.STALE
        assert (await rig.drain()).taken == 0
        assert await rig.frontier.deliver([self.parcel(1, "/x")]) == Applied.APPLIED
        assert (await rig.drain()).taken == 1

    async def test_draining_takes_no_more_than_asked_for_in_the_order_of_arrival(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.frontier.deliver([self.parcel(1, "/1", "/2", "/3"), self.parcel(2, "/4", "/5")])
        for limit, expected in ((2, (2, 2, 3)), (2, (2, 2, 1)), (9, (1, 1, 0)), (9, (0, 0, 0))):
            reply = await rig.drain(limit)
            assert (reply.taken, reply.admitted, reply.left) == expected
        assert rig.paths() == ["/1", "/2", "/3", "/4", "/5"]

    async def test_what_is_known_already_only_counts(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.admit(page("/x"))
        await rig.frontier.deliver([self.parcel(1, "/x", "/new", "/x")])
        reply = await rig.drain()
        assert (reply.taken, reply.admitted) == (3, 1)

    async def test_discovery_budgets_hold_for_what_comes_from_elsewhere(self, make_rig: MakeRig) -> None:
        rig: Rig = await make_rig(settings=StoreSettings(urls_per_origin_start=2))
        await rig.take_over()
        await rig.frontier.deliver([self.parcel(1, *(f"/{number}" for number in range(5)))])
        assert (await rig.drain()).admitted == 2

    async def test_an_owner_of_the_past_drains_nothing(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.frontier.deliver([self.parcel(1, "/x")])
        old = rig.epoch
        await rig.crash()
        assert (await rig.drain(epoch=old)).taken == 0
        assert (await rig.drain()).taken == 1

    async def test_nothing_is_lost_by_a_crash_at_any_point(self, rig: Rig) -> None:
        parent = await self.open_page(rig, links=1)
        await rig.admit(page("/a", B, partition=AWAY), cursor=rig.move(parent, 0, 1))
        await rig.crash()
        (parcel,) = await rig.parcels()
        assert parcel.candidates == [page("/a", B, partition=AWAY)]
        await rig.frontier.deliver([self.parcel(1, "/x")])
        await rig.crash()
        assert await rig.forwarded() == 2
        await rig.drain()
        await rig.crash()
        assert (await rig.drain()).taken == 0
        assert "/x" in rig.paths()


class OrderContract:
    """Orders of an operator, which every store of ours takes too."""

    async def order(self, rig: Rig, **facts: object) -> Applied:
        return await rig.frontier.set_origin(OriginOrder(A, "op", "because", **facts))  # type: ignore[attr-defined, no-any-return]

    async def requeue(self, rig: Rig, state: UrlState, **facts: object) -> int:
        return await rig.frontier.requeue(RequeueOrder(state, "op", "again", **facts))  # type: ignore[attr-defined, no-any-return]

    async def test_a_paused_origin_starts_and_leases_nothing_and_keeps_its_queue(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"), page("/y"))
        lease = await rig.lease_one()
        assert await self.order(rig, paused=True) == Applied.APPLIED
        assert (await rig.reserve(lease)).outcome == ReserveOutcome.PAUSED
        await rig.frontier.put_back(PutBack(lease.key, "origin_paused", "", 0))
        rig.now += DAY // 2
        reply = await rig.lease()
        assert (reply.leases, reply.queued, reply.next_wake_ms) == ([], 2, None)
        await self.order(rig, paused=False)
        assert len((await rig.lease()).leases) == 1

    async def test_a_pause_holds_over_a_crash(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        await self.order(rig, paused=True)
        await rig.crash()
        rig.now += HOUR
        assert (await rig.lease()).leases == []

    async def test_an_origin_can_be_paused_before_it_is_known(self, rig: Rig) -> None:
        await rig.take_over()
        await self.order(rig, paused=True)
        await rig.admit(page("/x"))
        assert (await rig.lease()).leases == []

    async def test_limits_of_one_origin_replace_the_defaults_and_go_back(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"), page("/y"), page("/z"))
        await self.order(rig, active_max=2, spacing_ms=700)
        one, two = (await rig.lease()).leases
        assert (one.facts.active_max, two.facts.spacing_ms) == (2, 700)
        assert await self.order(rig, active_max=-1, spacing_ms=-1) == Applied.APPLIED
        assert rig.rows("SELECT active_max, spacing_ms FROM origin") == [(None, None)]

    async def test_every_order_is_audited_with_old_and_new(self, rig: Rig) -> None:
        await rig.take_over()
        await self.order(rig, paused=True)
        assert await self.order(rig, paused=True) == Applied.STALE
        (row,) = rig.rows("SELECT at, who, what, subject, old, new, why FROM audit")
        assert row[:4] == (START, "op", "set_origin", A)
        assert (row[4].split(",")[0], row[5].split(",")[0], row[6]) == ("open", "paused", "because")

    async def failing(self, rig: Rig, count: int) -> None:
        await rig.take_over()
        await rig.ready(*(page("/x", f"https://o{n}.example") for n in range(count)))
        for lease in (await rig.lease(100)).leases:
            await rig.failed(await rig.start(lease))
        rig.now += DELAY

    async def test_failed_urls_are_queued_again_as_a_new_visit(self, rig: Rig) -> None:
        await self.failing(rig, 3)
        assert await self.requeue(rig, UrlState.FAILED, limit=2) == 2
        assert await self.requeue(rig, UrlState.FAILED) == 1
        leases = (await rig.lease(10)).leases
        assert [(lease.tries, lease.crawl_generation) for lease in leases] == [(0, 2)] * 3

    async def test_one_url_or_one_origin_can_be_chosen(self, rig: Rig) -> None:
        await self.failing(rig, 3)
        assert await self.requeue(rig, UrlState.FAILED, origin="https://o1.example", path="/other") == 0
        assert await self.requeue(rig, UrlState.FAILED, origin="https://o1.example", path="/x") == 1
        assert await self.requeue(rig, UrlState.FAILED, origin="https://o2.example") == 1
        assert await self.requeue(rig, UrlState.FAILED, origin="https://unknown.example") == 0

    async def test_a_page_that_waits_for_its_revisit_is_not_counted_twice(self, rig: Rig) -> None:
        await rig.take_over()
        await rig.ready(page("/x"))
        await rig.carry(await rig.lease_one(), revisit_ms=HOUR)
        assert await self.requeue(rig, UrlState.COMPLETE) == 2  # the page and its robots.txt
        assert (await rig.lease(0)).queued == 2

    async def test_only_finished_urls_can_be_queued_again(self, rig: Rig) -> None:
        await rig.admit(page("/x"))
        with pytest.raises(StoreBroken, match="not finished"):
            await self.requeue(rig, UrlState.PENDING)
