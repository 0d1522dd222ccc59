"""The composition root of what reads a crawl's archive: robots rules that are at hand, export, verify."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from amble.adapters.archive.check import verify as verify_archive
from amble.adapters.archive.reader import SegmentReader
from amble.adapters.sinks.jsonl import JsonlSink
from amble.adapters.sinks.stream import JsonlStream
from amble.adapters.sql.check import SqliteCheck
from amble.app.config import CrawlConfig, scope_of
from amble.app.findings import ExportResult
from amble.app.layout import Folder
from amble.app.reading import open_reports
from amble.app.verify import Judge, check_captures
from amble.domain.attempt import Edge, UrlKind
from amble.domain.decision import Reason, Rejected
from amble.domain.fetched import BodyRef
from amble.domain.manifest import Link, RobotsRules
from amble.domain.report import Capture
from amble.domain.robots import RuleSet
from amble.domain.traps import judge_distance, judge_shape
from amble.domain.url import is_well_formed
from amble.formats import manifest_json
from amble.stages.admit import judge_robots_url
from amble.stages.publish import Publisher


def read_robots_rules(root: Path, ref: BodyRef) -> RuleSet:
    """The robots rules stored at `ref`. Raises ArchiveBroken."""
    reader = SegmentReader(Folder(root=root).archive)
    try:
        return RuleSet(manifest_json.decode(reader.read(ref)).manifest.robots or RobotsRules())
    finally:
        reader.close()


def export_jsonl(root: Path, target: Path | None) -> ExportResult:
    """Write every document that `target` does not hold yet; None: all of them to standard output.

    A document whose records are damaged is left out and told. Raises SinkUnavailable, SinkBroken.
    """
    with ExitStack() as held:
        reports = held.enter_context(open_reports(root))
        reader = held.enter_context(closing(SegmentReader(Folder(root=root).archive)))
        sink: JsonlSink | JsonlStream = (
            JsonlSink(target, crawl=reports.crawl) if target is not None else JsonlStream(sys.stdout.buffer)
        )
        held.callback(sink.close)
        publisher = Publisher(publications=reports, records=reader, sink=sink)
        written = publisher.run()
        return ExportResult(
            documents=written,
            position=sink.position(),
            target=str(target) if target else "-",
            skipped=tuple(publisher.skipped),
        )


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
        if not is_well_formed(url):
            return Rejected(Reason.NOT_A_URL, "not canonical")
        return (
            scope.judge(url)
            or judge_robots_url(url, UrlKind.PAGE)
            or judge_shape(url, limits)
            or judge_distance(depth=depth, hops=hops, limits=limits)
        )

    return judge
