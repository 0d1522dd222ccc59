"""Several frontier files: what they are called, which numbers are refused, and one answer out of all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from amble.adapters.sql.files import FilesCheck, FilesReports
from amble.adapters.sql.names import file_of, files_of, refuse_other_number
from amble.adapters.sql.settings import StoreSettings, of_file
from amble.adapters.system import SystemClock
from amble.app.filegroup import FileShards
from amble.domain.attempt import Edge, LeaseKey
from amble.domain.errors import CrawlFolderUnusable
from amble.domain.frontier import AdmitBatch, Candidate, ReserveAsk, ReserveOutcome, TakeoverAsk
from amble.domain.lifecycle import UrlState
from tests.contract.frontier_rig import A, B, Rig, memory_folder, page

tmp_path = memory_folder
C = "https://c.example"
HOSTS = (A, B, C)


def test_the_first_file_keeps_its_name_and_the_others_are_numbered(tmp_path: Path) -> None:
    first = tmp_path / "frontier.db"
    assert [file_of(first, number).name for number in range(3)] == [
        "frontier.db",
        "frontier-1.db",
        "frontier-2.db",
    ]
    assert files_of(first) == []


@pytest.mark.parametrize(
    ("there", "asked", "complaint"),
    [
        ([], 1, ""),
        ([], 4, ""),
        ([0], 1, ""),
        ([0, 1, 2], 3, ""),
        ([1, 2], 3, ""),  # a start that was cut short before the first file was made
        ([1, 2], 2, "frontier-2.db is left of a crawl that was never begun"),
        ([1], 1, "frontier-1.db is left of a crawl that was never begun"),
        ([0], 2, "was begun with store.files = 1"),
        ([0, 1, 2], 2, "was begun with store.files = 3"),
        ([0, 2], 3, "frontier-1.db is missing"),
    ],
)
def test_a_crawl_keeps_its_number_of_files(
    tmp_path: Path, there: list[int], asked: int, complaint: str
) -> None:
    first = tmp_path / "frontier.db"
    for number in there:
        file_of(first, number).touch()
    if not complaint:
        refuse_other_number(first, asked)
        return
    with pytest.raises(CrawlFolderUnusable, match=complaint):
        refuse_other_number(first, asked)


class Files:
    """Three files, each with a page that is complete and one that is queued."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rigs: list[Rig] = []

    async def open(self) -> None:
        for number in range(3):
            rig = Rig(self.folder, "inline-apsw", settings=of_file(StoreSettings(), number, 3))
            rig.path = file_of(self.folder / "frontier.db", number)
            await rig.open()
            self.rigs.append(rig)

    async def close(self) -> None:
        for rig in self.rigs:
            await rig.close()

    @property
    def paths(self) -> list[Path]:
        return [rig.path for rig in self.rigs]


async def _own(rig: Rig, number: int) -> None:
    rig.epoch = (await rig.frontier.take_over(TakeoverAsk("agent", number))).epoch


@pytest_asyncio.fixture
async def files(tmp_path: Path) -> AsyncIterator[Files]:
    made = Files(tmp_path)
    await made.open()
    for number, (rig, host) in enumerate(zip(made.rigs, HOSTS, strict=True)):
        await _own(rig, number)
        pages = [page(path, host, partition=number) for path in ("/x", "/y")]
        await rig.frontier.admit(AdmitBatch(pages, partition=number))
        robots = await rig.lease_one(partition=number)
        await rig.carry(robots)
        rig.now += 2_000
        await rig.carry(await rig.lease_one(partition=number))
    yield made
    await made.close()


async def test_a_status_adds_up(files: Files) -> None:
    with FilesReports(files.paths) as reports:
        status = reports.status()
    assert (status.states["complete"], status.states["pending"], status.pages) == (6, 3, 3)
    assert (status.origins, status.documents, status.queued, status.epoch) == (3, 3, 3, 1)
    assert sum(status.origins_waiting.values()) + status.origins_ready == 3


async def test_lists_go_on_from_file_to_file_in_the_order_of_ids(files: Files) -> None:
    with FilesReports(files.paths) as reports:
        whole = reports.urls(limit=100)
        found, after = [], 0
        while batch := reports.urls(limit=2, after=after):
            found += batch
            after = batch[-1].url_id
        assert found == whole
        assert len(whole) == 9
        assert [line.url_id for line in whole] == sorted(line.url_id for line in whole)
        assert len(reports.urls(state=UrlState.PENDING)) == 3
        assert [line.origin for line in reports.origins()] == list(HOSTS)
        assert {line.url for line in reports.urls(origin=B)} == {f"{B}/x", f"{B}/y", f"{B}/robots.txt"}
        assert reports.failed() == []


async def test_an_origin_is_told_by_the_file_where_it_lives(files: Files) -> None:
    key = LeaseKey(1 << 60, 1, b"t", 2)
    ask = ReserveAsk(key, 1, B, 2_000, 60_000, -1, 1)
    await files.rigs[0].frontier.visit(ask)  # type: ignore[attr-defined]
    with FilesReports(files.paths) as reports:
        line = reports.origin(B)
        assert line is not None
        assert line.urls == 2
        assert reports.origin("https://nobody.example") is None


async def test_why_names_the_page_of_another_file_on_which_a_url_was_found(files: Files) -> None:
    with FilesReports(files.paths) as reports:
        parent = reports.urls(origin=A, limit=1)[0]
        child = Candidate(C, "/child", 0, 2, 1, 0, int(Edge.ANCHOR), parent.url_id, 2)
        await files.rigs[2].frontier.admit(AdmitBatch([child], partition=2))
        told = reports.explain(f"{C}/child")
        assert (told.line is not None, told.found_on) == (True, parent.url)
        assert reports.explain(f"{B}/x").line is not None
        assert reports.explain("https://nobody.example/").line is None


async def test_documents_are_numbered_by_file(files: Files) -> None:
    with FilesReports(files.paths) as reports:
        assert reports.partitions == [0, 1, 2]
        for number, host in enumerate(HOSTS):
            assert [line.url[: len(host)] for line in reports.publications(partition=number)] == [host]
            assert reports.last_publication(number) == 1
            assert reports.publications(partition=number, after=1) == []


async def test_a_sample_weighs_files_by_their_pages(files: Files) -> None:
    with FilesReports(files.paths) as reports:
        sample = reports.fetch_sample()
        assert (sample.origins, sample.fetches, sample.answered_share) == (3, 3, 1.0)
        assert sample.body_bytes == 1000


async def test_verify_looks_into_all_files_and_into_what_crosses(files: Files) -> None:
    away = page("/far", C, partition=2)
    await files.rigs[0].frontier.admit(AdmitBatch([away]))
    with FilesCheck(files.paths) as check:
        assert list(check.problems()) == []
        assert check.is_known(f"{B}/x")
        assert check.is_known(f"{C}/far"), "it is on its way"
        assert not check.is_known(f"{C}/elsewhere")
        captures = check.captures(after=(-1, -1), limit=100)
        assert len(captures) == 6
        assert check.captures(after=(captures[3].url_id, captures[3].attempt), limit=2) == captures[4:]
    files.rigs[1].frontier.store.database.execute("DELETE FROM tally WHERE name = 'fetches'")  # type: ignore[attr-defined]
    with FilesCheck(files.paths) as check:
        assert any("(file 1)" in problem for problem in check.problems())


async def test_a_hop_to_another_file_starts_only_when_that_file_agrees(files: Files) -> None:
    hosts = {number: rig.frontier for number, rig in enumerate(files.rigs)}
    shards = FileShards(clock=SystemClock(), partition_of=lambda key: HOSTS.index(key), hosts=hosts)  # type: ignore[arg-type]
    for number, rig in enumerate(files.rigs):
        rig.now += 10_000
        shards.add(number, rig.frontier, rig.epoch)
    lease = await files.rigs[0].lease_one(partition=0)

    async def hop(origin: str) -> int:
        return (await shards.reserve(ReserveAsk(lease.key, 1, origin, 2_000, 60_000, -1, 1))).outcome

    assert await hop(A) == ReserveOutcome.GRANTED
    assert await hop(B) == ReserveOutcome.GRANTED
    assert await hop(B) == ReserveOutcome.NOT_YET
    assert (await files.rigs[1].lease(partition=1)).leases == [], "B waits for its guest"
