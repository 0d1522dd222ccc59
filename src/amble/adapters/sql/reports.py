"""An operator's questions, answered through a connection of their own that can only read.

Works while the store process writes and when nothing runs. Each answer is one short read transaction, so the writer
can always fold in its log. Blocking: call it from a thread where an event loop must go on.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from amble.adapters.sql.clock import StoreClock
from amble.adapters.sql.connection import DRIVER, Database, Driver, open_reader, trouble_of
from amble.adapters.sql.identity import SLOT_BITS, Slots, subject_of
from amble.adapters.sql.lines import (
    ORIGIN_COLUMNS,
    URL_COLUMNS,
    fetch_line,
    manifest_line,
    origin_line,
    publication_line,
    status_of,
    url_line,
    waits,
)
from amble.adapters.sql.means import Means
from amble.adapters.sql.statements import load
from amble.domain.errors import CrawlFolderUnusable
from amble.domain.lifecycle import FINAL, IN_FLIGHT, UrlState
from amble.domain.report import (
    DecisionLine,
    FetchSample,
    OriginLine,
    PublicationLine,
    Status,
    UrlExplanation,
    UrlLine,
)

_SQL: Final = {
    name: sql.replace(":url_columns", URL_COLUMNS).replace(":origin_columns", ORIGIN_COLUMNS)
    for name, sql in load("report").items()
}
# A file holds one partition, so these statements do not name it.
_OF_ONE_PARTITION: Final = frozenset({"publications", "last_publication"})
# How much of its history `explain` shows of one URL.
HISTORY_MAX: Final = 20
# Bounds of `fetch_sample`: a few thousand rows tell a mean as well as a million.
SAMPLED_ORIGINS: Final = 256
SAMPLED_FETCHES: Final = 32
# `status` looks at so many origins, at the ends of so many equal steps through all of them where there are more: it is
# asked every second by the running crawl.
ORIGINS_SEEN_MAX: Final = 20_000
ORIGIN_RANGES: Final = 20


class Counters(NamedTuple):
    """The facts behind a Status: counters by name, origins by what they wait for, clock, ownership."""

    counts: dict[str, int]
    waiting: dict[str, int]
    now_ms: int
    epoch: int
    owner: str
    next_wake_ms: int | None


class StoreReports(ABC):
    """The answers of any store, from statements that have the same names and columns everywhere.

    A store says how a statement is read, within one snapshot for all the statements of an answer, and what time it is.
    """

    _slots: Slots
    #: Tells this crawl from all others; its hash says nothing about it.
    crawl: str
    #: Where the crawl lives, "" where that is a folder.
    place: str = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of the store."""

    @abstractmethod
    def _reading(self) -> AbstractContextManager[None]:
        """One snapshot for all the statements of an answer."""

    @abstractmethod
    def _all(self, name: str, *parameters: object) -> list[Any]:
        """The rows of a statement."""

    @abstractmethod
    def _now(self) -> int:
        """The store's clock."""

    @abstractmethod
    def _owner(self) -> tuple[int, str]:
        """(epoch, who owns the crawl); with several partitions the newest epoch and all owners."""

    def _one(self, name: str, *parameters: object) -> Any:
        rows = self._all(name, *parameters)
        return rows[0] if rows else None

    @property
    def partitions(self) -> list[int]:
        """The partitions that live in this store."""
        return [0]

    # ---- status

    def status(self) -> Status:
        """The crawl at a glance: a few hundred rows of counters, and at most ORIGINS_SEEN_MAX origins."""
        facts = self.counters()
        return status_of(
            facts.counts,
            facts.waiting,
            now_ms=facts.now_ms,
            epoch=facts.epoch,
            owner=facts.owner,
            next_wake_ms=facts.next_wake_ms,
        )

    def counters(self) -> Counters:
        """What a status is made of."""
        with self._reading():
            counts: dict[str, int] = dict(self._all("tallies"))
            now = self._now()
            epoch, owner = self._owner()
            return Counters(counts, self._waiting(now), now, epoch, owner, self._one("next_wake")[0])

    def _ids_after(self) -> int:
        """The number before that of the first origin."""
        return 0

    def _waiting(self, now: int) -> dict[str, int]:
        """How many origins wait for what; of very many, an estimate from ranges of ids at equal distances."""
        before = self._ids_after()
        last = int(self._one("last_origin")[0])
        known = last - before
        if known <= ORIGINS_SEEN_MAX:
            return dict(self._all("waiting", now, before, last))
        found: Counter[str] = Counter()
        size = ORIGINS_SEEN_MAX // ORIGIN_RANGES
        for number in range(ORIGIN_RANGES):
            start = before + (known - size) * number // (ORIGIN_RANGES - 1)
            found.update(dict(self._all("waiting", now, start, start + size)))
        return {reason: round(count * known / (size * ORIGIN_RANGES)) for reason, count in found.items()}

    # ---- lists

    def urls(
        self, *, state: UrlState | None = None, origin: str | None = None, limit: int = 100, after: int = 0
    ) -> list[UrlLine]:
        """Known URLs in the order of their ids, from the one after `after` (a url_id) on."""
        with self._reading():
            if origin is not None:
                row = self._one("origin_by_key", origin)
                return [] if row is None else self._urls_of(row[0], state, limit, after)
            if state is None:
                return [url_line(row) for row in self._all("urls", after, limit)]
            name = "urls_in_state"
            if state in IN_FLIGHT:
                name = "urls_in_flight"
            elif state in FINAL and state is not UrlState.COMPLETE:
                name = "urls_ended"
            return [url_line(row) for row in self._all(name, after, limit, int(state))]

    def _urls_of(self, origin_id: int, state: UrlState | None, limit: int, after: int) -> list[UrlLine]:
        first, last = (origin_id << SLOT_BITS) - 1, (origin_id + 1) << SLOT_BITS
        start = max(after, first)
        if state is None:
            return [url_line(row) for row in self._all("urls_of_origin", start, limit, last)]
        return [url_line(row) for row in self._all("urls_of_origin_in_state", start, limit, last, int(state))]

    def failed(self, *, limit: int = 100, after: int = 0) -> list[UrlLine]:
        """URLs that failed for good, with their category and detail."""
        return self.urls(state=UrlState.FAILED, limit=limit, after=after)

    def origins(self, *, limit: int = 100, after: int = 0) -> list[OriginLine]:
        """Origins in the order of their ids, from the one after `after` (an origin_id) on."""
        with self._reading():
            return [origin_line(row) for row in self._all("origins", after, limit)]

    def origin(self, key: str) -> OriginLine | None:
        """The ledger of "scheme://host[:port]"."""
        with self._reading():
            row = self._one("origin_by_key", key)
        return None if row is None else origin_line(row)

    def fetch_sample(
        self, *, origins: int = SAMPLED_ORIGINS, fetches_each: int = SAMPLED_FETCHES
    ) -> FetchSample:
        """What fetching pages was like so far, by at most `origins` origins and `fetches_each` attempts of each."""
        means = Means()
        with self._reading():
            before, last = self._ids_after(), int(self._one("last_origin")[0])
            step, seen = max(1, -(-(last - before) // origins)), 0
            for start in range(before + 1, last + 1, step):
                if start <= seen:
                    continue
                row = self._one("fetched_origin", start)
                if row is None or means.origins >= origins:
                    break
                seen, pages = row
                begin, end = seen << SLOT_BITS, (seen + 1) << SLOT_BITS
                means.add_origin(pages, self._all("page_fetches", begin, end, fetches_each))
        return means.sample()

    def publications(
        self, *, after: int = 0, limit: int = 100, partition: int | None = None
    ) -> list[PublicationLine]:
        """What `partition` (None: the first one here) has published after the sequence number `after`, in order."""
        where = self.partitions[0] if partition is None else partition
        with self._reading():
            return [self._publication(row) for row in self._all("publications", after, limit, where)]

    def last_publication(self, partition: int | None = None) -> int:
        """The newest sequence number of `partition` (None: the first one here), 0 before the first."""
        where = self.partitions[0] if partition is None else partition
        with self._reading():
            return int(self._one("last_publication", where)[0])

    def _name_of(self, url_id: int) -> str:
        row = self._one("name_of", url_id) if url_id else None
        return "" if row is None else str(row[0])

    def name_of(self, url_id: int) -> str:
        """The URL with this id, "" where it does not live here."""
        with self._reading():
            return self._name_of(url_id)

    def _publication(self, row: Any) -> PublicationLine:
        return publication_line(row, found_on=self._name_of(row[5]))

    # ---- why

    def explain(self, url: str) -> UrlExplanation:
        """Everything known of a canonical URL, remembered or not."""
        slash = url.find("/", url.find("://") + 3)
        key, path = (url, "/") if slash < 0 else (url[:slash], url[slash:])
        with self._reading():
            now = self._now()
            origin = self._one("origin_by_key", key)
            ledger = None if origin is None else origin_line(origin)
            line = None if ledger is None else self._find(ledger.origin_id, key + path)
            robots = None if ledger is None else self._find(ledger.origin_id, key + "/robots.txt")
            subject = line.url_id if line else subject_of(key + path)
            decisions = self._all("decisions", subject, HISTORY_MAX)
            fetches = self._all("fetches", line.url_id, HISTORY_MAX) if line else []
            manifests = self._all("manifests", line.url_id, HISTORY_MAX) if line else []
            found_on = self._name_of(line.parent) if line else ""
        waits_for, waits_until = ("", None) if line is None or ledger is None else waits(line, ledger, now)
        return UrlExplanation(
            url=key + path,
            now_ms=now,
            line=line,
            origin=ledger,
            found_on=found_on,
            fetches=[fetch_line(row) for row in fetches],
            decisions=[
                DecisionLine(at_ms=at, reason=reason, detail=detail, policy_version=version)
                for at, reason, detail, version, named in decisions
                if named in ("", key + path)
            ],
            manifests=[manifest_line(row) for row in manifests],
            waits_for=waits_for,
            waits_until_ms=waits_until,
            robots=robots,
        )

    def _find(self, origin_id: int, url: str) -> UrlLine | None:
        path = url[url.find("/", url.find("://") + 3) :]
        row = self._one("url_by_id", origin_id << SLOT_BITS | self._slots.first(path))
        if row is None or row[1] == url:
            return None if row is None else url_line(row)
        for slot in self._slots.after_first(path):
            row = self._one("url_by_id", origin_id << SLOT_BITS | slot)
            if row is None or row[1] == url:
                return None if row is None else url_line(row)
        raise AssertionError("the slots of an origin never end")


class SqliteReports(StoreReports):
    """Read-only answers about one frontier file. Raises StoreUnavailable while it is locked, StoreBroken if damaged."""

    def __init__(
        self,
        path: Path | str,
        *,
        driver: Driver = DRIVER,
        now_ms: Callable[[], int] | None = None,
        slots: Slots | None = None,
        database: Database | None = None,
    ) -> None:
        """`database` reads through an open connection instead (a store in memory); it is not closed here.

        Raises CrawlFolderUnusable when there is no frontier at `path`.
        """
        if database is None and not Path(path).is_file():
            raise CrawlFolderUnusable(f"there is no crawl here: {path} does not exist")
        self._own = database is None
        self._database = database or open_reader(path, driver=driver)
        with self._reading():
            row = self._one("path_key")
            key = bytes(row[0]) if row else bytes(32)
            self._slots = slots or Slots(key)
            # Made with the frontier, and never again: no two crawls share it. Its hash says nothing about it.
            self.crawl = hashlib.sha256(b"crawl" + key).hexdigest()[:32]
            self._clock = StoreClock(self._database, now_ms=now_ms)

    def seeded(self) -> bytes | None:
        """What StoreProcess.keep_seeded was given last."""
        with self._reading():
            row = self._one("seeded")
        return None if row is None else bytes(row[0])

    def close(self) -> None:
        """Let go of the file."""
        if self._own:
            self._database.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """One snapshot for all the statements of an answer."""
        nested = self._database.in_transaction
        try:
            if not nested:
                self._database.execute("BEGIN")
            yield
        except Exception as error:
            trouble = trouble_of(error)
            if trouble is None:
                raise
            raise trouble from error
        finally:
            if not nested:
                self._database.rollback()

    def _all(self, name: str, *parameters: object) -> list[Any]:
        if name in _OF_ONE_PARTITION:
            parameters = parameters[:-1]
        rows: list[Any] = self._database.execute(_SQL[name], parameters).fetchall()
        return rows

    def _now(self) -> int:
        return self._clock.now()

    def _ids_after(self) -> int:
        return int(self._one("first_origin")[0]) - 1

    def _owner(self) -> tuple[int, str]:
        epoch, owner = self._one("owner")
        return epoch, owner
