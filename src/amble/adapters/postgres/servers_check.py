"""Checks a fleet over several servers from the outside: each by itself, and what one knows of another. Changes nothing.

What no transaction spans is held against each other in the order in which it is written, so that a fleet that works in
the meantime gives no false alarm about links and numbers of parcels; counters are exact for a quiet one, as on one server.
A server that is away is told as a problem, and the others are checked for all that can be said without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

from amble.adapters.postgres.check import PostgresCheck
from amble.adapters.postgres.fingerprints import keys_by_server
from amble.adapters.postgres.servers_reports import ServersReports
from amble.domain.digest import near_duplicates, unsigned
from amble.domain.errors import StoreUnavailable
from amble.domain.report import Capture
from amble.domain.url import split

_LIVES_HERE: Final = "SELECT partition FROM partition WHERE NOT arriving ORDER BY partition"
_MOVES: Final = "SELECT partition FROM relocation"
_PLACES: Final = "SELECT partition, server FROM placement"
_TAKEN: Final = "SELECT source, destination, number FROM taken WHERE number > 0"
_SENT: Final = "SELECT partition, sent FROM partition WHERE NOT arriving"
_WAITS: Final = (
    "SELECT source, number, destination FROM outbox WHERE NOT source = destination ORDER BY source, number"
)
_NEAR_HERE: Final = "SELECT url_id, fingerprint, keys FROM near WHERE url_id = ANY($1::bigint[])"
_BUILT: Final = "SELECT NOT EXISTS (SELECT 1 FROM meta WHERE name = 'near_built_to')"


class ServersCheck(ServersReports):
    """What `amble verify` asks of a fleet. `index_at`: addresses of the index of near-duplicates where it lies apart."""

    def __init__(self, dsns: Sequence[str], index_at: Sequence[str] = ()) -> None:
        """Connect. Raises StoreUnavailable when no server answers, StoreBroken, CrawlFolderUnusable."""
        self.checks: dict[int, PostgresCheck] = {}
        self._index = self.checks
        super().__init__(dsns, PostgresCheck)
        for number, server in self.servers.items():
            assert isinstance(server, PostgresCheck)
            self.checks[number] = server
        self._homes = list(range(len(index_at or dsns)))
        self._index_away: list[str] = list(self.away.values())
        if index_at:
            self._index, self._index_away = {}, []
            self._open_index(index_at)

    def _open_index(self, index_at: Sequence[str]) -> None:
        for number, dsn in enumerate(index_at):
            try:
                self._index[number] = PostgresCheck(dsn)
            except StoreUnavailable as error:
                self._index_away.append(str(error))

    def close(self) -> None:
        """Let go of the connections."""
        super().close()
        if self._index is not self.checks:
            for server in self._index.values():
                server.close()

    def problems(self) -> Iterator[str]:
        """Every problem within the servers and between them, readable."""
        for number, trouble in self.away.items():
            yield f"server {number} is away, and what lives there was not checked: {trouble}"
        for number, check in self.checks.items():
            yield from (f"{problem} (server {number})" for problem in check.problems(index=False))
        yield from self._misplaced()
        yield from self._untold()
        if self._index is not self.checks:
            yield from (f"a server of the digest index is away: {trouble}" for trouble in self._index_away)
        for number, server in self._index.items():
            yield from (f"{problem} (index at server {number})" for problem in server.entries())
        if not self._index_away:
            yield from self._unfound()
        if not self.away:
            yield from self._alone()

    def captures(self, *, after: tuple[int, int], limit: int) -> list[Capture]:
        """See PostgresCheck.captures. Ids are unique in the fleet, and servers have them in turns."""
        found = [
            capture for check in self.checks.values() for capture in check.captures(after=after, limit=limit)
        ]
        return sorted(found, key=attrgetter("url_id", "attempt"))[:limit]

    def is_known(self, url: str) -> bool:
        """Whether a canonical URL is in the fleet, or on its way through it; of a server that is away it may be."""
        number = self._server_of.get(self._map.of(split(url)[0]))
        if number is None or number not in self.checks:
            return True
        home = self.checks[number]
        # A parcel is in an inbox before it leaves the outbox: looked for in that order it cannot slip by.
        return home.is_known(url) or self._travels(url) or home.is_known(url)

    def _travels(self, url: str) -> bool:
        return any(check.is_known(url) for check in self.checks.values())

    def seeds(self) -> tuple[str, ...]:
        """The seeds of the fleet, from the server that was named first. Raises StoreUnavailable when that is away."""
        if 0 not in self.checks:
            self._whole()
        return self.checks[0].seeds()

    def was_over_budget(self) -> bool:
        """Whether any origin or site ever used up its discovery budget; of a server that is away it may be."""
        return bool(self.away) or any(check.was_over_budget() for check in self.checks.values())

    # -- between servers ------------------------------------------------------------------------------------------

    def _misplaced(self) -> Iterator[str]:
        """Each partition lives on one server, the one that the map names, but for those that are being moved."""
        if 0 not in self.checks:
            return
        moving = {row[0] for row in self.checks[0].ask(_MOVES)}
        places = dict(self.checks[0].ask(_PLACES))
        lives: dict[int, list[int]] = {}
        for number, check in self.checks.items():
            for (partition,) in check.ask(_LIVES_HERE):
                lives.setdefault(partition, []).append(number)
        moving |= {row[0] for row in self.checks[0].ask(_MOVES)}
        for partition in sorted(places.keys() | lives.keys()):
            at, named = lives.get(partition, []), places.get(partition)
            if partition in moving or at == [named] or (named in self.away and not at):
                continue
            told = " and ".join(f"server {number}" for number in at) or "no server"
            listed = "is not in the map" if named is None else f"is at server {named} by the map"
            yield f"partition {partition} {listed}, and lives on {told}"

    def _untold(self) -> Iterator[str]:
        """A parcel stays in its outbox until it is taken, and nobody takes one that was not sent."""
        taken = {
            (source, destination): number
            for check in self.checks.values()
            for source, destination, number in check.ask(_TAKEN)
        }
        # Read after the marks: numbers only grow.
        sent = {partition: last for check in self.checks.values() for partition, last in check.ask(_SENT)}
        for (source, destination), number in sorted(taken.items()):
            if source in sent and number > sent[source]:
                yield (
                    f"partition {destination} has taken parcel {number} of partition {source}, "
                    f"which has sent {sent[source]} in all"
                )
        for number, check in self.checks.items():
            for source, parcel, destination in check.ask(_WAITS):
                if destination not in self._server_of:
                    yield f"parcel {parcel} of partition {source} is for partition {destination}, which nobody has (server {number})"

    def _unfound(self) -> Iterator[str]:
        """A document that was published with its text indexed is at every home of its keys."""
        if not all(server.ask(_BUILT)[0][0] for server in (*self.checks.values(), *self._index.values())):
            return
        for check in self.checks.values():
            for rows in check.indexed():
                missing = self._missing({url_id: fingerprint for url_id, fingerprint, _ in rows})
                for url_id, _, name in rows:
                    if url_id in missing:
                        told = ", ".join(map(str, missing[url_id]))
                        yield f"{name} is published and not in the index of near-duplicates at server {told}"

    def _missing(self, documents: dict[int, int]) -> dict[int, list[int]]:
        """The homes at which documents (url id -> fingerprint) are not found by all the keys that these have."""
        wanted: dict[int, dict[int, set[str]]] = {}
        for url_id, fingerprint in documents.items():
            for home, keys in keys_by_server(fingerprint, self._homes).items():
                wanted.setdefault(home, {})[url_id] = set(keys.strip("{}").split(","))
        missing: dict[int, list[int]] = {}
        for home, keys_of in sorted(wanted.items()):
            found = {
                url_id: set(map(str, keys))
                for url_id, fingerprint, keys in self._index[home].ask(_NEAR_HERE, list(keys_of))
                if fingerprint == documents[url_id]
            }
            for url_id, needed in keys_of.items():
                if not needed <= found.get(url_id, set()):
                    missing.setdefault(url_id, []).append(home)
        return missing

    def _alone(self) -> Iterator[str]:
        """What was withheld as a near-duplicate has a twin, published with nearly that text, or visited again since."""
        for check in self.checks.values():
            for rows in check.withheld():
                for _, fingerprint, detail, name in rows:
                    twin = (detail or "").rpartition(" ")[2]
                    if not self._is_twin(twin, fingerprint):
                        yield f"{name} is withheld as a near-duplicate, but no published document is near it ({detail})"

    def _is_twin(self, url: str, fingerprint: int) -> bool:
        for check in self.checks.values():
            if (standing := check.published(url)) is not None:
                own, visits = standing
                return visits > 1 or near_duplicates(unsigned(own), unsigned(fingerprint))
        return False
