"""Moving a crawl from a file into a database: everything arrives, equal, also when the move was stopped half-way."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from amble.adapters.postgres import moving
from amble.adapters.postgres.check import PostgresCheck
from amble.adapters.postgres.moving import Moved, Mover
from amble.adapters.postgres.reports import PostgresReports
from amble.adapters.postgres.setup import init
from amble.adapters.sandbox.pool import SandboxPool
from amble.adapters.sql.connection import open_reader
from amble.adapters.sql.reports import SqliteReports
from amble.domain.errors import OperationRefused, StoreBroken
from amble.domain.report import Status
from tests.support.line import POLICY, Lines
from tests.support.postgres import FreshDatabase
from tests.support.raw_server import RawServer, Session, respond

PARTITIONS = 3
PAGES = 6
# Later than any clock here, so that both sides tell the same time.
NOW = 4_000_000_000_000


async def prepared(dsn: str) -> None:
    await init(dsn, partitions=PARTITIONS)


@pytest.fixture
def database(fresh_database: FreshDatabase) -> str:
    return fresh_database(prepared)


async def script(session: Session) -> None:
    while head := await session.request():
        path = head.split(b" ", 2)[1]
        if path == b"/robots.txt":
            await session.send(respond(b"User-agent: *\nDisallow: /shut\n", b"Content-Type: text/plain"))
        elif path == b"/gone":
            await session.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno")
        else:
            links = b"".join(b'<a href="/%d">x</a>' % number for number in range(PAGES))
            far = b'<a href="https://elsewhere.example/a">x</a><a href="http://other.example/b">x</a>'
            await session.send(
                respond(b"<title>t</title><p>the text of " + path + links + far, b"Content-Type: text/html")
            )


@pytest_asyncio.fixture
async def crawled(tmp_path: Path) -> AsyncIterator[Path]:
    """A frontier file with pages in many states, among them one that is leased."""
    pool = await SandboxPool.open(limits=POLICY.parse, size=1)
    try:
        async with RawServer(script) as server, Lines(tmp_path, pool) as lines:
            line = await lines.next_life()
            root = f"http://127.0.0.1:{server.port}"
            await line.seed(*(f"{root}/{name}" for name in (*range(3), "gone", "shut")))
            await line.run(4)
            await line.lease()
            assert {"complete", "pending", "leased"} <= set(line.states().values())
    finally:
        await pool.close()
    yield tmp_path / "frontier.db"


@asynccontextmanager
async def mover(
    file: Path, dsn: str, progress: Callable[[str, int], None] = lambda _name, _rows: None
) -> AsyncIterator[Mover]:
    source = open_reader(file)
    target: asyncpg.Connection[Any] = await asyncpg.connect(dsn)
    try:
        yield Mover(source=source, target=target, crawl="crawl", dsn=dsn, progress=progress)
    finally:
        await target.close()
        source.close()


async def move(file: Path, dsn: str) -> Moved:
    async with mover(file, dsn) as made:
        return await made.run()


def facts(status: Status) -> dict[str, Any]:
    return {
        name: getattr(status, name) for name in Status.__struct_fields__ if name not in ("owner", "epoch")
    }


def in_thread(work: Callable[[], object]) -> Any:
    """Reports run a loop of their own, so they need a thread without one."""
    return asyncio.to_thread(work)


async def test_every_answer_is_the_same_after_a_move(crawled: Path, database: str) -> None:
    moved = await move(crawled, database)
    assert moved.resumed is False
    assert moved.rows["url"] >= PAGES + 4

    def look() -> None:
        with (
            SqliteReports(crawled, now_ms=lambda: NOW) as ours,
            PostgresReports(database, now_ms=lambda: NOW) as theirs,
        ):
            assert theirs.crawl == ours.crawl
            assert theirs.partitions == list(range(PARTITIONS))
            assert facts(theirs.status()) | {"now_ms": 0} == facts(ours.status()) | {"now_ms": 0}
            assert theirs.urls(limit=1000) == ours.urls(limit=1000)
            assert theirs.origins(limit=100) == ours.origins(limit=100)
            assert theirs.fetch_sample() == ours.fetch_sample()
            for line in ours.urls(limit=1000):
                was, now = ours.explain(line.url), theirs.explain(line.url)
                assert (now.line, now.fetches, now.manifests) == (was.line, was.fetches, was.manifests)
                assert (now.waits_for, now.found_on) == (was.waits_for, was.found_on)
            published = [one for number in range(PARTITIONS) for one in theirs.publications(partition=number)]
            assert sorted(published, key=lambda one: one.seq) == ours.publications()

    await in_thread(look)


async def test_the_index_of_near_duplicates_is_made_of_what_was_published(
    crawled: Path, database: str
) -> None:
    file = sqlite3.connect(crawled)
    with file:
        file.execute("UPDATE url SET fingerprint = 7 * id WHERE id IN (SELECT url_id FROM publication)")
    ((published,),) = file.execute("SELECT count(*) FROM publication").fetchall()
    file.close()
    moved = await move(crawled, database)
    assert moved.rows["near"] == published > 0
    target = await asyncpg.connect(database)
    texts = await target.fetch("SELECT url_id, fingerprint FROM near")
    assert sorted(map(tuple, texts)) == sorted((url_id, 7 * url_id) for url_id, _ in texts)
    assert await target.fetchval("SELECT count(*) FROM publication WHERE indexed") == published
    await target.close()


async def test_text_that_the_database_cannot_keep_arrives_as_it_would_have_been_written(
    crawled: Path, database: str
) -> None:
    """A site chooses what stands in a rule of its robots.txt, a title, a header; a file keeps its NULs."""
    file = sqlite3.connect(crawled)
    with file:
        file.execute("UPDATE url SET detail = 'a' || char(0) || 'b', etag = 'c' || char(0) WHERE kind = 0")
        file.execute("UPDATE manifest SET title = char(0) || 'd'")
    file.close()
    await move(crawled, database)
    target = await asyncpg.connect(database)
    assert (
        await target.fetchval("SELECT count(*) FROM url WHERE kind = 0 AND detail = $1", "a\ufffdb") > PAGES
    )
    assert await target.fetchval("SELECT count(*) FROM url WHERE kind = 0 AND etag IS NOT NULL") == 0
    assert await target.fetchval("SELECT count(*) FROM manifest WHERE title = $1", "\ufffdd") > 0
    await target.close()


async def test_a_moved_crawl_is_whole(crawled: Path, database: str) -> None:
    await move(crawled, database)

    def look() -> list[str]:
        with PostgresCheck(database) as check:
            return list(check.problems())

    assert await in_thread(look) == []


@pytest.mark.parametrize("table", ["origin", "url", "fetch", "manifest", "decision"])
async def test_a_move_that_was_stopped_goes_on(
    crawled: Path, database: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "PIECE", 2)

    def stop(name: str, _rows: int) -> None:
        if name == table:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with mover(crawled, database, stop) as made:
            await made.run()
    moved = await move(crawled, database)
    assert moved.resumed is True
    whole = open_reader(crawled)
    assert moved.rows["url"] == whole.execute("SELECT count(*) FROM url").fetchone()[0]
    whole.close()


async def test_partitions_cannot_be_claimed_before_all_was_compared(crawled: Path, database: str) -> None:
    seen: list[int] = []
    other: asyncpg.Connection[Any] = await asyncpg.connect(database)

    def stop(name: str, _rows: int) -> None:
        if name == "decision":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with mover(crawled, database, stop) as made:
            await made.run()
    seen.append(await other.fetchval("SELECT count(*) FROM partition WHERE moving"))
    await move(crawled, database)
    seen.append(await other.fetchval("SELECT count(*) FROM partition WHERE moving"))
    await other.close()
    assert seen == [PARTITIONS, 0]


async def test_a_row_that_arrived_otherwise_is_noticed(
    crawled: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = Mover._settle

    async def damage(self: Mover) -> None:
        await settle(self)
        await self.target.execute("UPDATE url SET depth = depth + 1 WHERE id = (SELECT max(id) FROM url)")

    monkeypatch.setattr(Mover, "_settle", damage)
    with pytest.raises(StoreBroken, match="table url"):
        await move(crawled, database)


async def test_a_row_too_many_is_noticed(
    crawled: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = Mover._settle

    async def damage(self: Mover) -> None:
        await settle(self)
        await self.target.execute("INSERT INTO body(digest, ref, bytes) VALUES ('\\xffff', '\\x00', 1)")

    monkeypatch.setattr(Mover, "_settle", damage)
    with pytest.raises(StoreBroken, match="more than the file"):
        await move(crawled, database)


async def test_another_crawl_in_the_database_is_left_alone(crawled: Path, database: str) -> None:
    await move(crawled, database)
    async with mover(crawled, database) as made:
        made.crawl = "another"
        with pytest.raises(OperationRefused, match="another crawl"):
            await made.run()


async def test_a_crawl_is_moved_once(crawled: Path, database: str) -> None:
    await move(crawled, database)
    again = await move(crawled, database)
    assert again.before
    assert again.rows == {}
