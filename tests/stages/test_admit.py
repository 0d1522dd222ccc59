"""The URL gate over the real store: what is admitted, what is only counted, what is rejected and why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.adapters.sql.settings import StoreSettings
from amble.domain.attempt import Edge, UrlKind
from amble.domain.decision import Reason, Rejected
from amble.domain.errors import StoreUnavailable
from amble.domain.frontier import AdmitBatch, AdmitReport, Applied, Candidate, Verdict
from amble.domain.manifest import NOFOLLOW, CursorAdvance, Link, ManifestKey
from amble.domain.policy import Policy, ScopeKind, UrlLimits
from amble.domain.priority import REDIRECT_CLASS, priority_of
from amble.domain.scope import Scope
from amble.domain.url import Canonicalizer
from amble.stages.admit import (
    SAMPLE_CHARS_MAX,
    SAMPLES_MAX,
    SAMPLES_PER_REASON_MAX,
    SEEDS_PER_BATCH,
    LinkSettings,
    RecentUrls,
    SeedOutcome,
    UrlGate,
)
from tests.contract.frontier_rig import A, B, Rig, page

SEED = f"{A}/"
ADMITTED, KNOWN, OVER = (int(v) for v in (Verdict.ADMITTED, Verdict.ALREADY_KNOWN, Verdict.OVER_BUDGET))


class Witness:
    """The store's `admit`, seen: what it was asked, and failing on demand before anything is changed."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.batches: list[AdmitBatch] = []
        self.down = False

    async def admit(self, batch: AdmitBatch) -> AdmitReport:
        if self.down:
            raise StoreUnavailable("the disk is full")
        self.batches.append(batch)
        await asyncio.sleep(0)  # as a store in another process: others run before it answers
        return await self._rig.frontier.admit(batch)

    @property
    def last(self) -> AdmitBatch:
        return self.batches[-1]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path, "inline", settings=StoreSettings(urls_per_origin_start=50, urls_per_fetched_page=0))
    await rig.open()
    yield rig
    rig.audit()
    await rig.close()


@pytest.fixture
def store(rig: Rig) -> Witness:
    return Witness(rig)


def gate_over(
    store: Any, policy: Policy | None = None, scope: Scope | None = None, **options: Any
) -> UrlGate:
    return UrlGate(
        store, policy or Policy(), scope or Scope(ScopeKind.HOST, [SEED]), Canonicalizer(), **options
    )


@pytest.fixture
def gate(store: Witness) -> UrlGate:
    return gate_over(store)


def link(path: str, edge: Edge = Edge.ANCHOR, rel: int = 0, origin: str = A) -> Link:
    return Link(origin + path, int(edge), rel)


async def found(gate: UrlGate, *links: Link, **facts: Any) -> AdmitReport:
    return await gate.admit_links(links, **{"parent": 7, "depth": 1, "hops": 0, "cursor": None, **facts})


# --- links -----------------------------------------------------------------------------------------------------


async def test_a_new_link_is_queued_one_step_deeper_with_its_provenance(gate: UrlGate, rig: Rig) -> None:
    report = await found(gate, link("/x?y", Edge.FRAME), depth=3, hops=4)
    assert list(report.verdicts) == [ADMITTED]
    rows = rig.rows("SELECT path, state, kind, priority, depth, hops, edge, parent FROM url WHERE kind = 0")
    assert rows == [("/x?y", 0, 0, priority_of(0, 1, 4), 4, 0, int(Edge.FRAME), 7)]


async def test_a_redirect_keeps_depth_and_kind_and_adds_a_hop(gate: UrlGate, store: Witness) -> None:
    await found(gate, link("/moved", Edge.REDIRECT), depth=3, hops=4)
    assert store.last.candidates == [Candidate(A, "/moved", 0, REDIRECT_CLASS, 3, 5, int(Edge.REDIRECT), 7)]
    await found(gate, link("/map.xml", Edge.REDIRECT), depth=1, hops=0, kind=UrlKind.SITEMAP)
    assert store.last.candidates[0].kind == UrlKind.SITEMAP


@pytest.mark.parametrize(
    ("edge", "kind"),
    [
        (edge, {Edge.SITEMAP: UrlKind.SITEMAP, Edge.FEED: UrlKind.FEED}.get(edge, UrlKind.PAGE))
        for edge in Edge
    ],
)
async def test_the_edge_tells_the_kind_of_its_target(
    gate: UrlGate, store: Witness, edge: Edge, kind: UrlKind
) -> None:
    await found(gate, link("/x", edge))
    assert [candidate.kind for candidate in store.last.candidates] == [kind]


async def test_what_the_store_knows_is_known_and_changes_nothing(gate: UrlGate, rig: Rig) -> None:
    await rig.admit(page("/x"))
    before = rig.rows("SELECT * FROM url ORDER BY id")
    report = await found(gate, link("/x"), link("/robots.txt", origin=A))
    assert list(report.verdicts) == [KNOWN]
    assert rig.rows("SELECT * FROM url ORDER BY id") == before


async def test_a_url_seen_before_is_only_counted(gate: UrlGate, store: Witness, rig: Rig) -> None:
    await found(gate, link("/x"), link("/y"))
    report = await found(gate, link("/x"), link("/y"), link("/z"))
    assert [candidate.path for candidate in store.last.candidates] == ["/z"]
    assert store.last.known == 2
    assert list(report.verdicts) == [ADMITTED]
    assert rig.rows("SELECT value FROM tally WHERE name = 'known'") == [(2,)]


async def test_a_url_over_budget_is_asked_for_again(gate: UrlGate, store: Witness) -> None:
    await found(gate, *(link(f"/{number}") for number in range(60)))
    report = await found(gate, link("/59"))
    assert list(report.verdicts) == [OVER]
    assert store.last.known == 0


async def test_what_was_never_committed_is_not_known(gate: UrlGate, store: Witness) -> None:
    store.down = True
    with pytest.raises(StoreUnavailable):
        await found(gate, link("/x"))
    store.down = False
    report = await found(gate, link("/x"))
    assert list(report.verdicts) == [ADMITTED]


async def test_two_pages_that_find_the_same_url_at_once_admit_it_once(gate: UrlGate) -> None:
    first, second = await asyncio.gather(found(gate, link("/x")), found(gate, link("/x")))
    assert sorted([*first.verdicts, *second.verdicts]) == [KNOWN, ADMITTED]


# --- the cursor ------------------------------------------------------------------------------------------------


async def _manifest(rig: Rig, links: int) -> ManifestKey:
    await rig.take_over()
    await rig.ready(page("/"))
    lease = await rig.carry(await rig.lease_one(), links=links)
    return ManifestKey(lease.key.url_id, lease.key.attempt, 1)


async def test_the_cursor_moves_with_the_links_even_when_none_of_them_passes(gate: UrlGate, rig: Rig) -> None:
    key = await _manifest(rig, 3)
    await found(gate, link("/x"), cursor=CursorAdvance(key, 0, 1))
    await found(gate, link("/x"), link("/", origin=B), cursor=CursorAdvance(key, 1, 3))
    assert rig.rows("SELECT cursor FROM manifest WHERE url_id = ?", key.url_id) == [(3,)]


async def test_a_stale_cursor_admits_nothing_and_teaches_nothing(
    gate: UrlGate, store: Witness, rig: Rig
) -> None:
    key = await _manifest(rig, 3)
    report = await found(gate, link("/x"), cursor=CursorAdvance(key, 2, 3))
    assert report.applied == Applied.STALE
    assert not rig.rows("SELECT id FROM url WHERE path = '/x'")
    await found(gate, link("/x"), cursor=CursorAdvance(key, 0, 1))
    assert [candidate.path for candidate in store.last.candidates] == ["/x"]


# --- rejections ------------------------------------------------------------------------------------------------

STRICT = Policy(version=9, urls=UrlLimits(depth_max=2, hops_max=1, query_params_max=2, url_chars_max=60))


@pytest.mark.parametrize(
    ("found_link", "facts", "reason"),
    [
        (link("/", origin=B), {}, Reason.OUT_OF_SCOPE),
        (link("/private/x"), {}, Reason.EXCLUDED_BY_RULE),
        (link("/x"), {"depth": 2}, Reason.TOO_DEEP),
        (link("/x", Edge.REDIRECT), {"hops": 1}, Reason.TOO_MANY_HOPS),
        (link("/?a&b&c"), {}, Reason.QUERY_TOO_WIDE),
        (link("/" + "x" * 60), {}, Reason.URL_TOO_LONG),
        (link("/a/a/a/a"), {}, Reason.PATH_REPEATS),
        (link("/", origin=f"{A}:25"), {}, Reason.PORT_REFUSED),
        (link("/map.xml", Edge.SITEMAP), {}, Reason.KIND_UNWANTED),
        (link("/robots.txt"), {}, Reason.KIND_UNWANTED),
        (link("/x", rel=NOFOLLOW), {}, Reason.NOFOLLOW),
        (link("/x"), {"follow": False}, Reason.NOFOLLOW),
    ],
)
async def test_a_rejected_link_is_counted_and_explained_and_not_remembered(
    store: Witness, rig: Rig, found_link: Link, facts: dict[str, Any], reason: Reason
) -> None:
    settings = LinkSettings(follow_rel_nofollow=False, kinds=frozenset({UrlKind.PAGE}))
    scope = Scope(ScopeKind.HOST, [SEED], exclude=["/private/"])
    gate = gate_over(store, STRICT, scope, links=settings)
    for times in (1, 2):
        report = await found(gate, found_link, **facts)
        assert report.verdicts == b""
        assert store.last.rejected == {reason.value: 1}
        assert rig.rows("SELECT value FROM tally WHERE name = ?", f"rejected.{reason.value}") == [(times,)]
    assert not rig.rows("SELECT id FROM url")
    url, word, detail, version = rig.rows("SELECT url, reason, detail, policy_version FROM decision")[0]
    assert (url, word, version) == (found_link.url, reason.value, 9)
    assert detail


async def test_what_can_never_pass_is_logged_once_and_counted_always(gate: UrlGate, store: Witness) -> None:
    await found(gate, link("/", origin=B))
    await found(gate, link("/", origin=B))
    assert [len(batch.samples) for batch in store.batches] == [1, 0]
    assert [batch.rejected for batch in store.batches] == [{"out_of_scope": 1}] * 2


async def test_a_url_too_deep_here_may_pass_when_it_is_found_nearer(store: Witness) -> None:
    gate = gate_over(store, STRICT)
    await found(gate, link("/x"), depth=2)
    report = await found(gate, link("/x"), depth=1)
    assert list(report.verdicts) == [ADMITTED]


async def test_a_page_out_of_scope_may_still_be_a_sitemap_in_scope(store: Witness) -> None:
    gate = gate_over(store, scope=Scope(ScopeKind.PREFIX, [f"{A}/docs/"]))
    await found(gate, link("/sitemap.xml"))
    assert store.last.rejected == {"out_of_scope": 1}
    report = await found(gate, link("/sitemap.xml", Edge.SITEMAP))
    assert list(report.verdicts) == [ADMITTED]


async def test_samples_are_few_and_short_and_counters_complete(store: Witness) -> None:
    gate = gate_over(store, Policy(urls=UrlLimits(url_chars_max=3_000)))
    links = [link(f"/{number}/" + "x" * 2_500, origin=B) for number in range(20)]
    links += [link(f"/{number}?" + "&" * 40) for number in range(20)]
    links += [link(f"/{number}/a/a/a/a") for number in range(20)]
    await found(gate, *links)
    assert store.last.rejected == {"out_of_scope": 20, "query_too_wide": 20, "path_repeats": 20}
    assert len(store.last.samples) == 3 * SAMPLES_PER_REASON_MAX <= SAMPLES_MAX
    assert max(len(url) for url, _, _ in store.last.samples) == SAMPLE_CHARS_MAX


# --- nofollow --------------------------------------------------------------------------------------------------


async def test_by_default_rel_nofollow_is_a_hint_and_a_nofollow_page_is_obeyed(gate: UrlGate) -> None:
    assert list((await found(gate, link("/x", rel=NOFOLLOW))).verdicts) == [ADMITTED]
    assert list((await found(gate, link("/y"), follow=False)).verdicts) == []


async def test_a_page_may_be_followed_against_its_wish_when_the_operator_says_so(store: Witness) -> None:
    gate = gate_over(store, links=LinkSettings(obey_page_nofollow=False))
    assert list((await found(gate, link("/x"), follow=False)).verdicts) == [ADMITTED]


async def test_a_redirect_is_no_link_of_a_page(store: Witness) -> None:
    gate = gate_over(store, links=LinkSettings(follow_rel_nofollow=False))
    report = await found(gate, link("/x", Edge.REDIRECT, NOFOLLOW), follow=False)
    assert list(report.verdicts) == [ADMITTED]


async def test_a_link_rejected_for_nofollow_may_be_followed_from_elsewhere(store: Witness) -> None:
    gate = gate_over(store, links=LinkSettings(follow_rel_nofollow=False))
    await found(gate, link("/x", rel=NOFOLLOW))
    assert list((await found(gate, link("/x"))).verdicts) == [ADMITTED]


# --- seeds -----------------------------------------------------------------------------------------------------


async def test_each_seed_has_an_outcome_in_order(store: Witness, rig: Rig) -> None:
    gate = gate_over(store, scope=Scope(ScopeKind.HOST, [SEED], exclude=["/private/"]))
    given_seeds = [
        "HTTPS://A.example",
        "mailto:someone@a.example",
        "https://a.example/#top",
        "https://elsewhere.example/?utm_source=x",
        "https://a.example/private/x",
        "https://a.example:25/",
        "https://user@a.example/",
        "nonsense",
        "https://a.example/robots.txt",
    ]
    outcomes = await gate.admit_seeds(given_seeds)
    assert [outcome.given for outcome in outcomes] == given_seeds
    assert outcomes[0] == SeedOutcome(given="HTTPS://A.example", url=f"{A}/", verdict=Verdict.ADMITTED)
    assert outcomes[2].verdict is Verdict.ALREADY_KNOWN
    assert (outcomes[3].url, outcomes[3].verdict) == ("https://elsewhere.example/", Verdict.ADMITTED)
    assert [item.rejected and item.rejected.reason for item in outcomes] == [
        None,
        Reason.SCHEME_UNSUPPORTED,
        None,
        None,
        Reason.EXCLUDED_BY_RULE,
        Reason.PORT_REFUSED,
        Reason.HAS_USERINFO,
        Reason.NOT_A_URL,
        Reason.KIND_UNWANTED,
    ]
    rows = rig.rows("SELECT path, depth, hops, edge, parent, priority FROM url WHERE kind = 0")
    assert rows == [("/", 0, 0, int(Edge.SEED), 0, REDIRECT_CLASS)] * 2


async def test_seeds_given_again_are_known(gate: UrlGate) -> None:
    await gate.admit_seeds([SEED])
    assert [outcome.verdict for outcome in await gate.admit_seeds([SEED])] == [Verdict.ALREADY_KNOWN]


async def test_a_link_back_to_a_seed_is_recognised(gate: UrlGate, store: Witness) -> None:
    await gate.admit_seeds([SEED])
    await found(gate, link("/"))
    assert store.last.known == 1


async def test_many_seeds_go_in_bounded_batches(gate: UrlGate, store: Witness) -> None:
    seeds = [f"https://site{number}.example/" for number in range(SEEDS_PER_BATCH + 5)]
    outcomes = await gate.admit_seeds(seeds)
    assert [len(batch.candidates) for batch in store.batches] == [SEEDS_PER_BATCH, 5]
    assert all(outcome.verdict is Verdict.ADMITTED for outcome in outcomes)


async def test_no_seeds_ask_nothing(gate: UrlGate, store: Witness) -> None:
    assert await gate.admit_seeds([]) == []
    assert store.batches == []


# --- dry runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HTTPS://a.example/x#y", Candidate(A, "/x", 0, priority_of(0, 1, 1), 1, 0, int(Edge.ANCHOR), 0)),
        ("ftp://a.example/", Rejected(Reason.SCHEME_UNSUPPORTED)),
        ("https://b.example/", Rejected(Reason.OUT_OF_SCOPE, "b.example is outside the scope (host)")),
        ("https://a.example/a/a/a/a", Rejected(Reason.PATH_REPEATS, "/a 4 times, at most 3")),
    ],
)
async def test_a_dry_run_says_what_would_become_of_a_url_and_changes_nothing(
    gate: UrlGate, store: Witness, rig: Rig, text: str, expected: Candidate | Rejected
) -> None:
    assert gate.check(text) == expected
    assert store.batches == []
    assert not rig.rows("SELECT id FROM url")


async def test_judging_is_what_admission_does(gate: UrlGate, store: Witness) -> None:
    judged = gate.judge(f"{A}/x", kind=UrlKind.PAGE, edge=Edge.ANCHOR, depth=2, hops=0, parent=7)
    await found(gate, link("/x"), depth=1)
    assert store.last.candidates == [judged]


# --- the recent identities -------------------------------------------------------------------------------------


def test_recent_urls_are_bounded_and_those_in_use_stay() -> None:
    recent = RecentUrls(10)
    recent.put("kept", None)
    for number in range(100):
        recent.put(f"{number}", Reason.OUT_OF_SCOPE)
        assert recent.get("kept", "missing") is None
        assert len(recent) <= 10
    assert recent.get("99", "missing") is Reason.OUT_OF_SCOPE
    assert recent.get("0", "missing") == "missing"


def test_a_later_answer_replaces_an_earlier_one() -> None:
    recent = RecentUrls(4)
    for url in ("a", "b", "c"):
        recent.put(url, Reason.OUT_OF_SCOPE)
    recent.put("a", None)
    assert recent.get("a", "missing") is None


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=80), size=st.integers(1, 8))
def test_recent_urls_forget_but_never_invent(steps: list[tuple[bool, int]], size: int) -> None:
    recent = RecentUrls(size)
    truth: dict[str, Reason | None] = {}
    for is_put, number in steps:
        url = str(number)
        if is_put:
            truth[url] = Reason.OUT_OF_SCOPE if number % 2 else None
            recent.put(url, truth[url])
        answer = recent.get(url, "missing")
        assert answer == "missing" or answer is truth[url]
        assert len(recent) <= max(2, size)


def test_urls_of_any_length_cannot_fill_the_memory() -> None:
    recent = RecentUrls(4)
    recent.put(f"{A}/{'x' * 16_000}", Reason.URL_TOO_LONG)
    assert len(recent) == 0


async def test_links_that_no_reader_makes_are_rejected_and_the_others_admitted(gate: UrlGate) -> None:
    """A parser child that a page has taken over says what it likes."""
    lies = ["nonsense", "http://a", "http://a/\r\nX: y", "http://a:x/", "http://u@a/", "\0", f"{A}/#x"]
    links = [Link(url, int(Edge.ANCHOR)) for url in [*lies, f"{A}/fine"]]
    report = await gate.admit_links(links, parent=0, depth=0, hops=0, cursor=None)
    assert list(report.verdicts) == [Verdict.ADMITTED]
