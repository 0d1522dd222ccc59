"""The composition root of what reads a crawl's archive: robots rules that are at hand, export, verify."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from amble.adapters.archive.check import verify as verify_archive
from amble.adapters.archive.reader import SegmentReader
from amble.adapters.sinks.jsonl import JsonlSink
from amble.adapters.sinks.stream import JsonlStream
from amble.adapters.sql.check import SqliteCheck
from amble.adapters.sql.files import FilesCheck
from amble.app import folder as crawl_folder
from amble.app.config import CrawlConfig, scope_of
from amble.app.findings import ExportResult
from amble.app.layout import Folder
from amble.app.reading import frontier_files, open_reports, serving
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

if TYPE_CHECKING:
    from amble.adapters.archive.objects_reader import ObjectReader
    from amble.adapters.postgres.check import PostgresCheck
    from amble.adapters.postgres.servers_check import ServersCheck


@runtime_checkable
class HasSeeds(Protocol):
    """A frontier that knows the seeds from which it came."""

    def seeds(self) -> tuple[str, ...]:
        """Canonical URLs."""
        ...


def read_robots_rules(root: Path, ref: BodyRef) -> RuleSet:
    """The robots rules stored at `ref`. Raises ArchiveBroken."""
    reader = _open_records(root)
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
        reader = held.enter_context(closing(_open_records(root)))
        sink: JsonlSink | JsonlStream = (
            JsonlSink(target, crawl=reports.crawl) if target is not None else JsonlStream(sys.stdout.buffer)
        )
        held.callback(sink.close)
        publishers = [
            Publisher(publications=reports, records=reader, sink=sink, partition=partition)
            for partition in reports.partitions
        ]
        return ExportResult(
            documents=sum(publisher.run() for publisher in publishers),
            position=sum(sink.position(partition) for partition in reports.partitions),
            target=str(target) if target else "-",
            skipped=tuple(damaged for publisher in publishers for damaged in publisher.skipped),
        )


def verify(root: Path, config: CrawlConfig) -> Iterator[str]:
    """Every problem of a crawl, readable: archive, frontier, and the two against each other."""
    # The archive comes first: it can be told about also where the frontier is damaged.
    yield from _archive_problems(root)
    with _open_check(root, config.fleet.digests_url) as frontier:
        reader = _open_records(root)
        try:
            yield from frontier.problems()
            # Those of a folder stand in a file beside it, and are in its configuration already.
            seeds = frontier.seeds() if isinstance(frontier, HasSeeds) else config.seeds
            yield from check_captures(frontier, reader.read, _judge_of(replace(config, seeds=seeds)))
        finally:
            reader.close()


def _open_records(root: Path) -> SegmentReader | ObjectReader:
    """The archive of a crawl, to be read by reference."""
    url = crawl_folder.archive_url_of(root, os.environ)
    if not url:
        return SegmentReader(Folder(root=root).archive)
    from amble.adapters.archive.objects_open import open_bucket
    from amble.adapters.archive.objects_reader import ObjectReader

    return ObjectReader(open_bucket(url))


def _archive_problems(root: Path) -> Iterator[str]:
    url = crawl_folder.archive_url_of(root, os.environ)
    if not url:
        yield from map(str, verify_archive(Folder(root=root).archive))
        return
    from amble.adapters.archive.objects_open import open_bucket
    from amble.adapters.archive.objects_reader import verify_objects

    yield from map(str, verify_objects(open_bucket(url)))


def _open_check(root: Path, digests_url: str) -> SqliteCheck | FilesCheck | PostgresCheck | ServersCheck:
    url = crawl_folder.store_url_of(root, os.environ)
    if not url:
        paths = frontier_files(root)
        return SqliteCheck(paths[0]) if len(paths) == 1 else FilesCheck(paths)
    from amble.adapters.postgres.placement import servers_of

    dsns, index_at = servers_of(url), servers_of(digests_url)
    if len(dsns) > 1 or index_at:
        from amble.adapters.postgres.servers_check import ServersCheck

        return ServersCheck(dsns, index_at)
    from amble.adapters.postgres.check import PostgresCheck

    return serving(root, url, PostgresCheck)


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
