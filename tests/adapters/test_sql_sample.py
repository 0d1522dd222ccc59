"""The sample of page fetches: bounded, page fetches only, each origin by its weight."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from amble.adapters.sql.reports import SqliteReports
from amble.adapters.sql.sqlite import SqliteStore
from amble.adapters.sql.statements import load
from amble.domain.frontier import OriginEffect
from tests.contract.frontier_rig import DELAY, HOUR, A, B, Rig, answer, memory_folder, page

tmp_path = memory_folder


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path, "inline-apsw")
    await made.open()
    await made.take_over()
    yield made
    await made.close()


@pytest.fixture
def reports(rig: Rig) -> Iterator[SqliteReports]:
    with SqliteReports(rig.path, now_ms=lambda: rig.now) as opened:
        yield opened


def took(duration_ms: int) -> OriginEffect:
    return OriginEffect(duration_ms, DELAY, 0, 0)


async def fetch(rig: Rig, duration_ms: int, *, status: int = 200, links: int = 0) -> None:
    rig.now += HOUR
    lease = await rig.next_page()
    await rig.fetched(lease, answer(status), took(duration_ms))
    await rig.parsed(lease, links)
    await rig.complete(lease)


async def test_a_frontier_without_fetches_has_an_empty_sample(rig: Rig, reports: SqliteReports) -> None:
    await rig.admit(page("/a"))
    sample = reports.fetch_sample()
    assert (sample.origins, sample.fetches, sample.answered_share, sample.answered_ms) == (0, 0, 0, 0)


async def test_means_over_answered_and_unanswered_fetches(rig: Rig, reports: SqliteReports) -> None:
    await rig.ready(*(page(f"/{n}") for n in range(4)))
    await fetch(rig, 100, links=4)
    await fetch(rig, 300, links=8)
    await fetch(rig, 200, status=404)
    rig.now += HOUR
    await rig.failed(await rig.next_page(), effect=took(10_000))
    sample = reports.fetch_sample()
    assert (sample.origins, sample.fetches) == (1, 4)
    assert sample.answered_share == pytest.approx(0.75)
    assert sample.error_share == pytest.approx(0.25)
    assert sample.answered_ms == pytest.approx(200)
    assert sample.unanswered_ms == pytest.approx(10_000)
    assert (sample.body_bytes, sample.wire_bytes) == (1_000, 400)
    assert sample.links == pytest.approx(4)


async def test_robots_txt_is_no_page(rig: Rig, reports: SqliteReports) -> None:
    await rig.ready(page("/a"))
    assert reports.fetch_sample().fetches == 0


async def test_an_origin_counts_by_its_pages_however_few_are_sampled(
    rig: Rig, reports: SqliteReports
) -> None:
    await rig.ready(page("/1"), page("/2"), page("/3"), page("/1", B))
    for _ in range(4):
        rig.now += HOUR
        lease = await rig.next_page()
        await rig.fetched(lease, None, took(100 if lease.origin == A else 900))
        await rig.parsed(lease)
        await rig.complete(lease)
    assert reports.fetch_sample(fetches_each=1).answered_ms == pytest.approx((3 * 100 + 900) / 4)


async def test_the_sample_is_bounded_and_spread_over_all_origins(rig: Rig, reports: SqliteReports) -> None:
    origins = [f"https://o{number}.example" for number in range(40)]
    await rig.ready(*(page("/", origin) for origin in origins))
    for lease in (await rig.lease(100)).leases:
        await rig.carry(lease)
    sample = reports.fetch_sample(origins=10, fetches_each=5)
    assert (sample.origins, sample.fetches) == (10, 10)


@pytest.mark.parametrize(
    ("name", "searched"),
    [
        ("last_origin", ("SEARCH origin",)),
        ("fetched_origin", ("SEARCH o USING INTEGER PRIMARY KEY (rowid>?)",)),
        (
            "page_fetches",
            (
                "SEARCH f USING PRIMARY KEY (url_id>? AND url_id<?)",
                "SEARCH u USING INTEGER PRIMARY KEY (rowid=?)",
                "SEARCH m USING PRIMARY KEY (url_id=? AND attempt=?)",
            ),
        ),
    ],
)
def test_sampling_reads_ranges_of_keys_only(name: str, searched: tuple[str, ...]) -> None:
    store = SqliteStore(":memory:")
    sql = load("report")[name]
    count = max((number for number in range(1, 10) if f"?{number}" in sql), default=0)
    rows = store.database.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * count).fetchall()
    plan = "\n".join(row[3] for row in rows)
    store.close()
    for step in searched:
        assert step in plan, plan
    assert "SCAN" not in plan
