"""Several frontier files of one crawl folder, each with one partition: one answer out of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec.structs import asdict, replace

from amble.adapters.sql.check import SqliteCheck
from amble.adapters.sql.lines import status_of
from amble.adapters.sql.reports import SAMPLED_FETCHES, SAMPLED_ORIGINS, SqliteReports, StoreReports
from amble.domain.lifecycle import UrlState
from amble.domain.report import (
    Capture,
    FetchSample,
    OriginLine,
    PublicationLine,
    Status,
    UrlExplanation,
    UrlLine,
)


class FilesReports(StoreReports):
    """Read-only answers about all files of a crawl, in the words of SqliteReports. Url ids tell which file has them."""

    def __init__(self, paths: Sequence[Path], make: Callable[[Path], SqliteReports] = SqliteReports) -> None:
        """Raises CrawlFolderUnusable where one of them is no frontier."""
        with ExitStack() as opened:
            self.files = [opened.enter_context(make(path)) for path in paths]
            self._opened = opened.pop_all()
        self.crawl = self.files[0].crawl

    def close(self) -> None:
        """Let go of the files."""
        self._opened.close()

    @property
    def partitions(self) -> list[int]:
        """One for each file."""
        return list(range(len(self.files)))

    def _reading(self) -> AbstractContextManager[None]:
        """Each answer is made of answers of files, each of which is one snapshot."""
        return nullcontext()

    def _all(self, name: str, *parameters: object) -> list[Any]:
        return [row for file in self.files for row in file._all(name, *parameters)]

    def _now(self) -> int:
        return max(file._now() for file in self.files)

    def _owner(self) -> tuple[int, str]:
        return self.files[0]._owner()

    def status(self) -> Status:
        """The crawl at a glance; counts are those of all files, each as of its own last commit."""
        counts: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        now, epoch, owner, wakes = 0, 0, "", []
        for file in self.files:
            facts = file.counters()
            counts.update(facts.counts)
            waiting.update(facts.waiting)
            now, epoch, owner = max(now, facts.now_ms), max(epoch, facts.epoch), owner or facts.owner
            wakes += [] if facts.next_wake_ms is None else [facts.next_wake_ms]
        return status_of(
            counts, waiting, now_ms=now, epoch=epoch, owner=owner, next_wake_ms=min(wakes, default=None)
        )

    def urls(
        self, *, state: UrlState | None = None, origin: str | None = None, limit: int = 100, after: int = 0
    ) -> list[UrlLine]:
        """See SqliteReports.urls; the ids of a file follow those of the file before it."""
        found: list[UrlLine] = []
        for file in self.files:
            if len(found) < limit:
                found += file.urls(state=state, origin=origin, limit=limit - len(found), after=after)
        return found

    def failed(self, *, limit: int = 100, after: int = 0) -> list[UrlLine]:
        """URLs that failed for good, with their category and detail."""
        return self.urls(state=UrlState.FAILED, limit=limit, after=after)

    def origins(self, *, limit: int = 100, after: int = 0) -> list[OriginLine]:
        """See SqliteReports.origins."""
        found: list[OriginLine] = []
        for file in self.files:
            if len(found) < limit:
                found += file.origins(limit=limit - len(found), after=after)
        return found

    def origin(self, key: str) -> OriginLine | None:
        """The ledger of an origin where it lives: a redirected robots.txt may have left a bare one elsewhere."""
        lines = [line for file in self.files if (line := file.origin(key)) is not None]
        return max(lines, key=lambda line: line.urls, default=None)

    def publications(
        self, *, after: int = 0, limit: int = 100, partition: int | None = None
    ) -> list[PublicationLine]:
        """See StoreReports.publications: each file numbers its own."""
        file = self.files[partition or 0]
        return [self._named(file, line) for line in file.publications(after=after, limit=limit)]

    def _named(self, file: SqliteReports, line: PublicationLine) -> PublicationLine:
        """With the page it was found on, where another file knows that."""
        if line.found_on:
            return line
        found = file.urls(limit=1, after=line.url_id - 1)
        return replace(line, found_on=self._name_anywhere(found[0].parent)) if found else line

    def _name_anywhere(self, url_id: int) -> str:
        return next(filter(None, (file.name_of(url_id) for file in self.files)), "")

    def last_publication(self, partition: int | None = None) -> int:
        """See StoreReports.last_publication."""
        return self.files[partition or 0].last_publication()

    def explain(self, url: str) -> UrlExplanation:
        """Everything known of a canonical URL, from the file that remembers it, or else tells most of it."""
        told = [file.explain(url) for file in self.files]
        best = max(told, key=lambda one: (one.line is not None, _weight(one), len(one.decisions)))
        if best.line is not None and best.line.parent and not best.found_on:
            return replace(best, found_on=self._name_anywhere(best.line.parent))
        return best

    def fetch_sample(
        self, *, origins: int = SAMPLED_ORIGINS, fetches_each: int = SAMPLED_FETCHES
    ) -> FetchSample:
        """See SqliteReports.fetch_sample. Each file counts by the pages that it has fetched."""
        share = max(1, origins // len(self.files))
        weighted = [
            (file.status().pages, file.fetch_sample(origins=share, fetches_each=fetches_each))
            for file in self.files
        ]
        whole = sum(pages for pages, sample in weighted if sample.fetches)
        means = {
            name: sum(pages * getattr(sample, name) for pages, sample in weighted if sample.fetches)
            / (whole or 1)
            for name, value in asdict(weighted[0][1]).items()
            if isinstance(value, float)
        }
        return FetchSample(
            origins=sum(sample.origins for _, sample in weighted),
            fetches=sum(sample.fetches for _, sample in weighted),
            **means,
        )


def _weight(told: UrlExplanation) -> int:
    return 0 if told.origin is None else told.origin.urls + 1


class FilesCheck:
    """What `amble verify` asks of several files: each by itself, and links that one has found and another has."""

    def __init__(self, paths: Sequence[Path]) -> None:
        with ExitStack() as opened:
            self.files = [opened.enter_context(SqliteCheck(path)) for path in paths]
            self._opened = opened.pop_all()
        self._crossing = set().union(*(file.crossing() for file in self.files))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def problems(self) -> Iterator[str]:
        """Every problem within the files."""
        for number, file in enumerate(self.files):
            others = [other for other in self.files if other is not file]
            yield from (f"{problem} (file {number})" for problem in file.problems(others))

    def captures(self, *, after: tuple[int, int], limit: int) -> list[Capture]:
        """See SqliteCheck.captures; the ids of a file follow those of the file before it."""
        found: list[Capture] = []
        for file in self.files:
            if len(found) < limit:
                found += file.captures(after=after, limit=limit - len(found))
        return found

    def is_known(self, url: str) -> bool:
        """Whether a canonical URL is in one of the files, or on its way to one."""
        return any(file.is_known(url) for file in self.files) or url in self._crossing

    def was_over_budget(self) -> bool:
        """Whether any origin or site ever used up its discovery budget."""
        return any(file.was_over_budget() for file in self.files)
