"""An operator's questions to a fleet over several servers: counters are summed, lists are merged, `why` asks the right one.

Blocking, as the reports of one server. A server that does not answer makes every answer that needs it unavailable; of a
URL that would be there it is said that its server is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from amble.adapters.postgres.connection import place_of
from amble.adapters.postgres.reports import PostgresReports
from amble.adapters.sql.lines import status_of
from amble.adapters.sql.reports import SAMPLED_FETCHES, SAMPLED_ORIGINS, StoreReports
from amble.domain.decision import Reason
from amble.domain.errors import StoreUnavailable
from amble.domain.lifecycle import UrlState
from amble.domain.partition import PartitionMap
from amble.domain.report import (
    FetchSample,
    OriginLine,
    PublicationLine,
    Status,
    UrlExplanation,
    UrlLine,
)

T = TypeVar("T")


class ServersReports(StoreReports):
    """Read-only answers about all servers of a fleet. `away`: those that could not be reached, and why."""

    def __init__(self, dsns: Sequence[str], make: Callable[[str], PostgresReports] = PostgresReports) -> None:
        """Connect. Raises StoreUnavailable when no server answers, StoreBroken, CrawlFolderUnusable."""
        self.servers: dict[int, PostgresReports] = {}
        self.away: dict[int, str] = {}
        try:
            for number, dsn in enumerate(dsns):
                try:
                    self.servers[number] = make(dsn)
                except StoreUnavailable as error:
                    self.away[number] = str(error)
        except BaseException:
            self.close()
            raise
        if not self.servers:
            raise StoreUnavailable("; ".join(self.away.values()))
        first = self.servers[min(self.servers)]
        self._place = place_of(dsns[0])
        self.crawl = first.crawl
        self._map = PartitionMap(int(first._one("hashed")[0]), dict(first._all("apart")))
        self._server_of = dict(self.servers[0]._all("placement")) if 0 in self.servers else {}
        for number, server in self.servers.items():
            self._server_of.update(dict.fromkeys(server.partitions, number))

    def close(self) -> None:
        """Let go of the connections."""
        for server in self.servers.values():
            server.close()

    @property
    def partitions(self) -> list[int]:
        """All partitions of the fleet whose servers are known."""
        return sorted(self._server_of)

    def _reading(self) -> AbstractContextManager[None]:
        """Each answer is made of answers of servers, each of which is one snapshot."""
        return nullcontext()

    def _whole(self) -> list[PostgresReports]:
        """All servers. Raises StoreUnavailable when one is away."""
        if self.away:
            number, trouble = next(iter(self.away.items()))
            raise StoreUnavailable(f"server {number} is away: {trouble}")
        return list(self.servers.values())

    def _at(self, partition: int) -> PostgresReports:
        number = self._server_of.get(partition)
        if number is None or number not in self.servers:
            told = "nobody knows its server" if number is None else f"server {number} is away"
            raise StoreUnavailable(f"partition {partition}: {told}")
        return self.servers[number]

    def _all(self, name: str, *parameters: object) -> list[Any]:
        return [row for server in self._whole() for row in server._all(name, *parameters)]

    def _now(self) -> int:
        return max(server._now() for server in self._whole())

    def _owner(self) -> tuple[int, str]:
        told = [server._owner() for server in self._whole()]
        owners = {name for _, names in told for name in names.split(", ") if name}
        return max(epoch for epoch, _ in told), ", ".join(sorted(owners))

    # ---- status and lists

    def status(self) -> Status:
        """The crawl at a glance; counts are those of all servers. Raises StoreUnavailable when one is away."""
        counts: dict[str, int] = {}
        waiting: dict[str, int] = {}
        waits: list[int] = []
        for server in self._whole():
            with server._reading():
                now = server._now()
                _add(counts, server._all("tallies"))
                _add(waiting, server._waiting(now).items())
                (wake,) = server._one("next_wake")
            waits += [] if wake is None else [wake - now]
        now, (epoch, owner) = self._now(), self._owner()
        next_wake = now + min(waits) if waits else None
        return status_of(counts, waiting, now_ms=now, epoch=epoch, owner=owner, next_wake_ms=next_wake)

    def urls(
        self, *, state: UrlState | None = None, origin: str | None = None, limit: int = 100, after: int = 0
    ) -> list[UrlLine]:
        """Known URLs in the order of their ids, which are unique in the fleet."""
        found = (
            server.urls(state=state, origin=origin, limit=limit, after=after) for server in self._whole()
        )
        return _merged(found, attrgetter("url_id"), limit)

    def origins(self, *, limit: int = 100, after: int = 0) -> list[OriginLine]:
        """Origins in the order of their ids."""
        found = (server.origins(limit=limit, after=after) for server in self._whole())
        return _merged(found, attrgetter("origin_id"), limit)

    def origin(self, key: str) -> OriginLine | None:
        """The ledger of "scheme://host[:port]", from the server of its partition."""
        return self._at(self._map.of(key)).origin(key)

    def publications(
        self, *, after: int = 0, limit: int = 100, partition: int | None = None
    ) -> list[PublicationLine]:
        """See StoreReports.publications."""
        where = self.partitions[0] if partition is None else partition
        lines = self._at(where).publications(after=after, limit=limit, partition=where)
        return [line if line.found_on else self._named(self._at(where), line) for line in lines]

    def _named(self, server: PostgresReports, line: PublicationLine) -> PublicationLine:
        """With the page it was found on, where another server knows that."""
        found = server.urls(limit=1, after=line.url_id - 1)
        return replace(line, found_on=self._name_anywhere(found[0].parent)) if found else line

    def _name_anywhere(self, url_id: int) -> str:
        if not url_id:
            return ""
        for server in self.servers.values():
            with server._reading():
                name = server._name_of(url_id)
            if name:
                return name
        return ""

    def last_publication(self, partition: int | None = None) -> int:
        """See StoreReports.last_publication."""
        where = self.partitions[0] if partition is None else partition
        return self._at(where).last_publication(where)

    def forwarded(self) -> tuple[int, int]:
        """Candidates that wait in all inboxes, and in all outboxes."""
        waiting = [server.forwarded() for server in self._whole()]
        return sum(inbox for inbox, _ in waiting), sum(outbox for _, outbox in waiting)

    def fetch_sample(
        self, *, origins: int = SAMPLED_ORIGINS, fetches_each: int = SAMPLED_FETCHES
    ) -> FetchSample:
        """See StoreReports.fetch_sample. Each server counts by the fetches of its sample."""
        servers = self._whole()
        share = max(1, origins // len(servers))
        samples = [server.fetch_sample(origins=share, fetches_each=fetches_each) for server in servers]
        whole = sum(sample.fetches for sample in samples)
        means = {
            name: sum(sample.fetches * getattr(sample, name) for sample in samples) / (whole or 1)
            for name, value in asdict(samples[0]).items()
            if isinstance(value, float)
        }
        return FetchSample(origins=sum(sample.origins for sample in samples), fetches=whole, **means)

    # ---- why

    def explain(self, url: str) -> UrlExplanation:
        """Everything known of a canonical URL. While its server is away, that is what it waits for."""
        slash = url.find("/", url.find("://") + 3)
        partition = self._map.of(url if slash < 0 else url[:slash])
        number = self._server_of.get(partition)
        if number is None or number not in self.servers:
            return self._unanswered(url)
        told = self.servers[number].explain(url)
        if told.line is None and not told.decisions:
            # What was refused is logged where it was found, which may be anywhere.
            others = [server.explain(url) for other, server in self.servers.items() if other != number]
            return max([told, *others], key=lambda one: len(one.decisions))
        if told.line is not None and told.line.parent and not told.found_on:
            return replace(told, found_on=self._name_anywhere(told.line.parent))
        return told

    def _unanswered(self, url: str) -> UrlExplanation:
        return UrlExplanation(
            url=url,
            now_ms=max(server._now() for server in self.servers.values()),
            line=None,
            origin=None,
            found_on="",
            fetches=[],
            decisions=[],
            manifests=[],
            waits_for=str(Reason.SERVER_AWAY),
            waits_until_ms=None,
        )


def _add(total: dict[str, int], counts: Iterable[tuple[str, int]]) -> None:
    for name, value in counts:
        total[name] = total.get(name, 0) + value


def _merged(parts: Iterable[list[T]], number: Callable[[T], int], limit: int) -> list[T]:
    """In the order of their numbers; of one that moves between servers both have it."""
    lines = {number(line): line for part in parts for line in part}
    return [lines[key] for key in sorted(lines)[:limit]]
