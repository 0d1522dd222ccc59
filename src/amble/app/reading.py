"""The second composition root: adapters for the commands that look at a crawl, check it or export it.

Apart from `app/build.py` because that one imports everything a crawl is made of, and none of it is needed to read.
What only `doctor` tries out is imported when it does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from amble.adapters.archive.check import verify as verify_archive
from amble.adapters.archive.reader import SegmentReader
from amble.adapters.sinks.jsonl import JsonlSink
from amble.adapters.sinks.stream import JsonlStream
from amble.adapters.sql.check import SqliteCheck
from amble.adapters.sql.reports import SqliteReports
from amble.adapters.system import SystemClock
from amble.app.config import CrawlConfig, scope_of
from amble.app.doctor import examine
from amble.app.findings import ExportResult, Finding, Verdict
from amble.app.folder import FRONTIER_NAME
from amble.app.layout import Folder
from amble.app.verify import Judge, check_captures
from amble.domain.attempt import Edge
from amble.domain.decision import Rejected
from amble.domain.errors import AmbleError, CrawlFolderUnusable
from amble.domain.fetched import BodyRef
from amble.domain.manifest import Link, RobotsRules
from amble.domain.policy import ParseLimits
from amble.domain.report import Capture
from amble.domain.robots import RuleSet
from amble.domain.traps import judge_distance, judge_shape
from amble.formats import manifest_json
from amble.ports import ResolveFailure
from amble.stages.publish import Publisher

# A name that exists nowhere: what counts is that the server says so.
DOCTOR_HOST = "amble-doctor.invalid"


def open_reports(root: Path) -> SqliteReports:
    """Read-only questions about the crawl in `root`, running or not. Raises CrawlFolderUnusable."""
    folder = Folder(root=root)
    if not folder.frontier.is_file():
        raise CrawlFolderUnusable(f"{root}: there is no crawl here (no {FRONTIER_NAME}); name its folder")
    return SqliteReports(folder.frontier)


def read_robots_rules(root: Path, ref: BodyRef) -> RuleSet:
    """The robots rules stored at `ref`. Raises ArchiveBroken."""
    reader = SegmentReader(Folder(root=root).archive)
    try:
        return RuleSet(manifest_json.decode(reader.read(ref)).manifest.robots or RobotsRules())
    finally:
        reader.close()


def export_jsonl(root: Path, target: Path | None) -> ExportResult:
    """Write every document that `target` does not hold yet; None: all of them to standard output.

    Raises SinkUnavailable, SinkBroken, ArchiveBroken.
    """
    reader = SegmentReader(Folder(root=root).archive)
    sink = JsonlSink(target) if target is not None else JsonlStream(sys.stdout.buffer)
    try:
        with open_reports(root) as reports:
            publisher = Publisher(publications=reports, records=reader, sink=sink)
            written = publisher.run()
            return ExportResult(
                documents=written, position=sink.position(), target=str(target) if target else "-"
            )
    finally:
        sink.close()
        reader.close()


def verify(root: Path, config: CrawlConfig) -> Iterator[str]:
    """Every problem of a crawl folder, readable: archive, frontier, and the two against each other."""
    folder = Folder(root=root)
    open_reports(root).close()
    yield from map(str, verify_archive(folder.archive))
    reader = SegmentReader(folder.archive)
    try:
        with SqliteCheck(folder.frontier) as frontier:
            yield from frontier.problems()
            yield from check_captures(frontier, reader.read, _judge_of(config))
    finally:
        reader.close()


def _judge_of(config: CrawlConfig) -> Judge:
    scope, limits = scope_of(config), config.policy.urls

    def judge(url: str, link: Link, capture: Capture) -> Rejected | None:
        redirect = link.edge == Edge.REDIRECT
        depth = capture.depth + (0 if redirect else 1)
        hops = capture.hops + 1 if redirect else 0
        return (
            scope.judge(url)
            or judge_shape(url, limits)
            or judge_distance(depth=depth, hops=hops, limits=limits)
        )

    return judge


def doctor(place: Path, config: CrawlConfig) -> list[Finding]:
    """What this machine lacks for crawling, one finding each."""
    return examine(place, (_sandbox_finding, lambda: _resolver_finding(config)))


def _sandbox_finding() -> Finding:
    from amble.adapters.sandbox.pool import SandboxPool

    async def look() -> dict[str, list[str]]:
        pool = await SandboxPool.open(limits=ParseLimits(), size=1)
        try:
            return pool.confinement
        finally:
            await pool.close()

    try:
        held = asyncio.run(look())
    except AmbleError as error:
        return Finding(
            name="sandbox",
            verdict=Verdict.PROBLEM,
            detail=str(error),
            fix="see the message; no page can be parsed",
        )
    detail = "parser children are held by " + (", ".join(held["holding"]) or "nothing")
    if held["missing"]:
        return Finding(
            name="sandbox",
            verdict=Verdict.NOTE,
            detail=f"{detail}; not by {', '.join(held['missing'])}",
            fix="a newer kernel confines hostile pages better",
        )
    return Finding(name="sandbox", verdict=Verdict.GOOD, detail=detail)


def _resolver_finding(config: CrawlConfig) -> Finding:
    from amble.adapters.net.resolver import DnsResolver

    async def look() -> ResolveFailure | None:
        resolver = DnsResolver([config.resolver] if config.resolver else [], SystemClock())
        try:
            answer = await resolver.resolve(DOCTOR_HOST)
            return answer if isinstance(answer, ResolveFailure) else None
        finally:
            await resolver.close()

    name = config.resolver or "the system's name server"
    failure = asyncio.run(look())
    if failure is not None and failure.unavailable:
        return Finding(
            name="resolver",
            verdict=Verdict.PROBLEM,
            detail=f"{name} does not answer: {failure.detail}",
            fix="mend the network, or name another with --resolver ADDR:PORT",
        )
    return Finding(name="resolver", verdict=Verdict.GOOD, detail=f"{name} answers")
