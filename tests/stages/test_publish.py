"""Publishing from real records: a damaged one is left out and told, and all others get through."""

from __future__ import annotations

from pathlib import Path

from amble.adapters.archive.reader import SegmentReader
from amble.adapters.sandbox.pool import SandboxPool
from amble.adapters.sinks.jsonl import JsonlSink
from amble.adapters.sql.reports import SqliteReports
from amble.stages.publish import Publisher
from tests.support.line import POLICY, Lines
from tests.support.raw_server import RawServer, Session, respond


async def script(session: Session) -> None:
    while head := await session.request():
        path = head.split(b" ", 2)[1]
        if path == b"/robots.txt":
            await session.send(respond(b"User-agent: *\n", b"Content-Type: text/plain"))
        else:
            await session.send(respond(b"<p>the text of " + path, b"Content-Type: text/html"))


async def test_a_damaged_record_costs_its_own_document_and_no_other(tmp_path: Path) -> None:
    pool = await SandboxPool.open(limits=POLICY.parse, size=1)
    try:
        async with RawServer(script) as server, Lines(tmp_path, pool) as lines:
            line = await lines.next_life()
            await line.seed(*(f"http://127.0.0.1:{server.port}/{number}" for number in range(5)))
            await line.run()
            published = SqliteReports("", database=line.store.database).publications()
            assert len(published) == 5
            await line.archive.close()
            victim = published[2]
            (segment,) = (tmp_path / "archive").glob("*.warc.gz")
            data = bytearray(segment.read_bytes())
            data[victim.manifest.offset + 40] ^= 0xFF
            segment.write_bytes(data)
            reader, sink = SegmentReader(tmp_path / "archive"), JsonlSink(tmp_path / "documents.jsonl")
            publisher = Publisher(
                publications=SqliteReports("", database=line.store.database), records=reader, sink=sink
            )
            assert publisher.run() == 4
            assert [told.split(": ")[0] for told in publisher.skipped] == [victim.url]
            sink.close()
            reader.close()
            assert len((tmp_path / "documents.jsonl").read_bytes().splitlines()) == 4
    finally:
        await pool.close()
