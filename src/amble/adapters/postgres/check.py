"""Checks a frontier on PostgreSQL from the outside against the invariants of its tables. Changes nothing.

Every counter that is kept by deltas is counted again, every state is held against the columns it implies, and every
queued URL must have something that will move it. Meant for a quiet store: it reads whole tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec.msgpack import Decoder

from amble.adapters.postgres.fingerprints import keys_by_server
from amble.adapters.postgres.reports import PostgresReports
from amble.adapters.postgres.rows import columns
from amble.adapters.postgres.seeds import SEEDS, decode_seeds
from amble.adapters.postgres.statements import NEAR
from amble.adapters.sql import tally
from amble.adapters.sql.lines import capture_line
from amble.domain.decision import Reason
from amble.domain.digest import NEAR_DUPLICATE_BITS_MAX, fine_keys, unsigned
from amble.domain.frontier import NEAR_DUPLICATE, Candidate
from amble.domain.lifecycle import FINAL, IN_FLIGHT, UrlState
from amble.domain.report import Capture

_URLS = "SELECT o.key || u.path, u.state::text FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE "
# (what is wrong, statement that selects offending rows as (name, detail)); :flight and :final are lists of states.
_ROWS: Final = (
    ("is in flight without a token or a deadline",
     _URLS + "u.state IN (:flight) AND (u.token IS NULL OR u.expires_at IS NULL OR u.sweep_at IS NULL)"),
    ("is not in flight and holds a token",
     _URLS + "u.state NOT IN (:flight) AND (u.token IS NOT NULL OR u.sweep_at IS NOT NULL)"),
    ("would be swept after its deadline", _URLS + "u.sweep_at > u.expires_at"),
    ("is in flight and queued at once", _URLS + "u.state IN (:flight) AND u.rq IS NOT NULL"),
    ("is pending and not queued: nothing would ever move it", _URLS + "u.state = 0 AND u.rq IS NULL"),
    ("is queued without a due time", _URLS + "u.rq IS NOT NULL AND u.due_at IS NULL"),
    ("is listed as ended though it is not, or the other way round",
     _URLS + "u.ended IS DISTINCT FROM CASE WHEN u.state IN (5, 6) THEN u.state END"),
    ("holds a slot though it is not leased", _URLS + "u.slot_origin IS NOT NULL AND u.state <> 1"),
    ("belongs to no origin",
     "SELECT u.id || ' ' || u.path, u.state::text FROM url u LEFT JOIN origin o ON o.id = u.id >> 36 WHERE o.id IS NULL"),
    ("lies in a partition that is not here",
     "SELECT o.key, o.partition::text FROM origin o LEFT JOIN partition p ON p.partition = o.partition"
     " WHERE p.partition IS NULL"),
    ("lies in a partition that is not here",
     "SELECT 'publication ' || b.seq, b.partition::text FROM publication b LEFT JOIN partition p"
     " ON p.partition = b.partition WHERE p.partition IS NULL"),
    ("holds nothing", "SELECT 'parcel ' || number || ' of partition ' || source, amount::text FROM outbox WHERE amount <= 0"),
    ("is beyond the last number of its source",
     "SELECT 'parcel ' || o.number || ' of partition ' || o.source, p.sent::text FROM outbox o"
     " JOIN partition p ON p.partition = o.source WHERE o.number > p.sent"),
    ("counts the wrong number of leased URLs",
     "SELECT o.key, o.leased || ' instead of ' || coalesce(n.urls, 0) FROM origin o LEFT JOIN"
     " (SELECT id >> 36 AS origin, count(*) AS urls FROM url WHERE state = 1 GROUP BY 1) n ON n.origin = o.id"
     " WHERE o.leased <> coalesce(n.urls, 0)"),
    ("counts the wrong number of active slots",
     "SELECT o.key, o.active || ' instead of ' || coalesce(s.held, 0) FROM origin o LEFT JOIN"
     " (SELECT slot_origin, count(*) AS held FROM url WHERE slot_origin IS NOT NULL GROUP BY 1) s"
     " ON s.slot_origin = o.id WHERE o.active <> coalesce(s.held, 0)"),
    ("counts the wrong number of URLs",
     "SELECT o.key, o.urls || ' instead of ' || coalesce(n.urls, 0) FROM origin o LEFT JOIN"
     " (SELECT id >> 36 AS origin, count(*) AS urls FROM url WHERE kind <> 1 GROUP BY 1) n ON n.origin = o.id"
     " WHERE o.urls <> coalesce(n.urls, 0)"),
    ("counts the wrong number of queued URLs",
     "SELECT o.key, o.queued || ' instead of ' || coalesce(n.urls, 0) FROM origin o LEFT JOIN"
     " (SELECT id >> 36 AS origin, count(*) AS urls FROM url WHERE rq < 8 GROUP BY 1) n ON n.origin = o.id"
     " WHERE o.queued <> coalesce(n.urls, 0)"),
    ("has a cursor beyond its links",
     "SELECT 'manifest ' || url_id || '/' || attempt, cursor::text FROM manifest WHERE cursor > links OR cursor < 0"),
    ("has a manifest that nothing will open",
     "SELECT o.key || u.path, m.attempt::text FROM manifest m JOIN url u ON u.id = m.url_id"
     " JOIN origin o ON o.id = u.id >> 36"
     " WHERE m.cursor < m.links AND NOT m.opened AND u.state IN (:final) AND u.attempt = m.attempt"),
    ("was published without a manifest",
     "SELECT o.key || u.path, p.seq::text FROM publication p JOIN url u ON u.id = p.url_id"
     " JOIN origin o ON o.id = u.id >> 36 LEFT JOIN manifest m"
     " ON m.url_id = p.url_id AND m.attempt = p.attempt AND m.generation = p.extraction_generation"
     " WHERE m.url_id IS NULL"),
    ("has a publication beyond the last number of its partition",
     "SELECT 'publication ' || b.seq, p.published::text FROM publication b JOIN partition p"
     " ON p.partition = b.partition WHERE b.seq > p.published"),
    ("is parsed or complete without a manifest of its last good attempt",
     _URLS + "u.state IN (3, 4) AND NOT EXISTS"
     " (SELECT 1 FROM manifest m WHERE m.url_id = u.id AND m.attempt = u.attempt)"),
    ("has queued URLs, nothing in flight and no time at which it will be looked at",
     "SELECT o.key, o.queued::text FROM origin o WHERE o.queued > 0 AND o.wake_at IS NULL AND NOT o.paused"
     " AND o.leased = 0 AND o.active = 0 AND NOT EXISTS (SELECT 1 FROM url r WHERE r.id = o.robots_url_id"
     " AND r.state IN (:flight))"),
)  # fmt: skip

# What the counters of each partition should say: (partition, name, number).
_COUNTS: Final = (
    "SELECT o.partition, u.state, count(*) FROM url u JOIN origin o ON o.id = u.id >> 36 GROUP BY 1, 2",
    "SELECT partition, '{publications}', count(*) FROM publication GROUP BY 1",
    "SELECT partition, '{origins}', count(*) FROM origin GROUP BY 1",
    "SELECT partition, '{open}', count(*) FROM manifest WHERE opened AND cursor < links GROUP BY 1",
    "SELECT o.partition, '{fetches}', count(*) FROM \"fetch\" f JOIN origin o ON o.id = f.url_id >> 36 GROUP BY 1",
    "SELECT partition, '{queued}', sum(queued)::bigint FROM origin GROUP BY 1",
)
_NAMES: Final = {
    "publications": tally.PUBLICATIONS,
    "origins": tally.ORIGINS,
    "open": tally.MANIFESTS_OPEN,
    "fetches": tally.FETCHES,
    "queued": tally.QUEUED,
}
SAMPLES: Final = 5
# Rows of the index, and documents that were withheld, that are looked at together.
PIECE: Final = 2_000

# Whether a URL is published as it was last completed.
_AS_LAST = " AND p.attempt = (SELECT max(m.attempt) FROM manifest m WHERE m.url_id = u.id AND m.opened)"
_NOW: Final = f"EXISTS (SELECT 1 FROM publication p WHERE p.url_id = u.id{_AS_LAST})"
_INDEXED_NOW: Final = f"EXISTS (SELECT 1 FROM publication p WHERE p.url_id = u.id AND p.indexed{_AS_LAST})"
_ENTRIES: Final = (
    "SELECT n.url_id, n.fingerprint, n.keys, n.attempt, u.attempt, u.state, u.fingerprint, o.key || u.path,"
    f" {_NOW} FROM near n LEFT JOIN (url u JOIN origin o ON o.id = u.id >> 36) ON u.id = n.url_id"
    " WHERE n.url_id > $1 ORDER BY n.url_id LIMIT $2"
)
_INDEXED_URLS: Final = (
    "SELECT u.id, u.fingerprint, o.key || u.path FROM url u JOIN origin o ON o.id = u.id >> 36"
    f" WHERE u.id > $1 AND u.state = 4 AND {_INDEXED_NOW}"
)
_INDEXED: Final = f"{_INDEXED_URLS} ORDER BY u.id LIMIT $2"
_MISSING: Final = (
    f"{_INDEXED_URLS} AND NOT EXISTS (SELECT 1 FROM near n WHERE n.url_id = u.id AND n.fingerprint = u.fingerprint)"
    " ORDER BY u.id LIMIT $2"
)
_WITHHELD: Final = (
    "SELECT u.id, u.fingerprint, u.detail, o.key || u.path FROM url u JOIN origin o ON o.id = u.id >> 36"
    " WHERE u.id > $1 AND u.state = 4 AND u.reason = $3 ORDER BY u.id LIMIT $2"
)
# The fingerprint of a URL, whether it is published as it was last completed, and how often it was carried to COMPLETE.
_STANDING: Final = (
    f"SELECT u.fingerprint, {_NOW}, (SELECT count(*) FROM manifest m WHERE m.url_id = u.id AND m.opened)"
    " FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE o.key = $1 AND u.path = $2"
)
_ALONE: Final = (
    "SELECT NOT EXISTS (SELECT 1 FROM server WHERE number > 0)"
    " AND coalesce((SELECT value FROM meta WHERE name = 'server'), '0') = '0'"
    " AND NOT EXISTS (SELECT 1 FROM meta WHERE name = 'near_built_to')"
)
_32_BITS: Final = (1 << 32) - 1
_decode_candidates = Decoder(list[Candidate]).decode


class PostgresCheck(PostgresReports):
    """What `amble verify` asks of a database."""

    def problems(self, *, index: bool = True) -> Iterator[str]:
        """Every problem within the tables, readable; none means that they agree with each other.

        `index` False: the index of near-duplicates is shared with other servers, and left out.
        """
        with self._reading():
            problems = [*self._rows(), *self._tallies()]
            if index:
                problems += [*self.entries(), *self._withheld()]
        yield from problems

    def captures(self, *, after: tuple[int, int], limit: int) -> list[Capture]:
        """Fetches with an answer, by (url_id, attempt), after that key."""
        with self._reading():
            return [capture_line(row) for row in self._all("captures", *after, limit)]

    def is_known(self, url: str) -> bool:
        """Whether a canonical URL is in the frontier, or on its way to another partition."""
        slash = url.find("/", url.find("://") + 3)
        with self._reading():
            origin = self._one("origin_by_key", url[:slash])
            if origin is not None and self._find(origin[0], url) is not None:
                return True
            return any(
                candidate.origin + candidate.path == url
                for (packed,) in self._all("waits_in_parcels")
                for candidate in _decode_candidates(packed)
            )

    def seeds(self) -> tuple[str, ...]:
        """The seeds of the fleet, which make the scope by which its agents judge links."""
        with self._reading():
            rows = self.ask(f"SELECT value FROM meta WHERE name = '{SEEDS}'")
        return tuple(decode_seeds(rows[0][0])) if rows else ()

    def was_over_budget(self) -> bool:
        """Whether any origin or site ever used up its discovery budget."""
        names = [f"rejected.{Reason.ORIGIN_BUDGET}", f"rejected.{Reason.SITE_BUDGET}"]
        with self._reading():
            return bool(self._one("over_budget", names)[0])

    def ask(self, statement: str, *parameters: object) -> list[Any]:
        """The rows of a statement that only reads."""
        return [tuple(row) for row in self._run(self._connection.fetch(statement, *parameters))]

    def _rows(self) -> Iterator[str]:
        flight = ", ".join(str(int(state)) for state in sorted(IN_FLIGHT))
        final = ", ".join(str(int(state)) for state in sorted(FINAL))
        for complaint, statement in _ROWS:
            rows = self.ask(statement.replace(":flight", flight).replace(":final", final))
            for name, detail in rows[:SAMPLES]:
                yield f"{name} {complaint} ({detail})"
            if len(rows) > SAMPLES:
                yield f"… and {len(rows) - SAMPLES} more: {complaint}"

    def _pieces(self, statement: str, *parameters: object) -> Iterator[list[Any]]:
        last = -1
        while rows := self.ask(statement, last, PIECE, *parameters):
            yield rows
            last = rows[-1][0]

    def indexed(self) -> Iterator[list[Any]]:
        """Documents that were in the index when they were published as they are now: (url id, fingerprint, URL)."""
        return self._pieces(_INDEXED)

    def withheld(self) -> Iterator[list[Any]]:
        """Documents that are withheld as near-duplicates: (url id, fingerprint, detail, URL)."""
        return self._pieces(_WITHHELD, NEAR_DUPLICATE)

    def published(self, url: str) -> tuple[int, int] | None:
        """The fingerprint of a canonical URL that is published as it was last completed or was visited more than once, and
        how often it was.
        """
        fingerprint, published, visits = self._standing(url)
        return (fingerprint, visits) if published or visits > 1 else None

    def _standing(self, url: str) -> tuple[int, bool, int]:
        """The row of _STANDING; of a URL that is not here, that it is not published and was never visited."""
        slash = url.find("/", url.find("://") + 3)
        rows = self.ask(_STANDING, url[:slash], url[slash:])
        return (int(rows[0][0] or 0), bool(rows[0][1]), int(rows[0][2])) if rows else (0, False, 0)

    def entries(self) -> Iterator[str]:
        """What is in the index of near-duplicates. Of what is under way, or ended otherwise, an entry may be left."""
        for rows in self._pieces(_ENTRIES):
            for url_id, fingerprint, keys, attempt, at_attempt, state, own, name, published in rows:
                if not {key & _32_BITS for key in keys} <= set(fine_keys(unsigned(fingerprint))):
                    yield f"{name or url_id} is in the index of near-duplicates under keys of another text"
                settled = state == UrlState.COMPLETE and attempt == at_attempt
                if settled and not (published and own == fingerprint):
                    yield f"{name} is in the index of near-duplicates, but not published with this text"

    def _withheld(self) -> Iterator[str]:
        """What was published can be found, and what was withheld has a published twin, where the index is here and built."""
        if not self.ask(_ALONE)[0][0]:
            return
        for rows in self._pieces(_MISSING):
            for _, _, name in rows:
                yield f"{name} is published and not in the index of near-duplicates"
        for rows in self._pieces(_WITHHELD, NEAR_DUPLICATE):
            asks = [(place, row[0], row[1], keys_by_server(row[1], [0])[0]) for place, row in enumerate(rows)]
            near = {row[0] for row in self.ask(NEAR["look"], *columns(asks), NEAR_DUPLICATE_BITS_MAX)}
            for place, (_, _, detail, name) in enumerate(rows):
                # Its twin may have been visited again since, and found to be another text.
                if place not in near and self._standing((detail or "").rpartition(" ")[2])[2] < 2:
                    yield f"{name} is withheld as a near-duplicate, but no published document is near it ({detail})"

    def _tallies(self) -> Iterator[str]:
        kept = {
            (partition, name): value
            for partition, name, value in self.ask("SELECT partition, name, value FROM tally")
        }
        counted = {
            (partition, name): 0
            for partition in self.partitions
            for name in (*tally.STATES[: len(UrlState)], *_NAMES.values())
        }
        for statement in _COUNTS:
            for partition, name, number in self.ask(statement.format(**_NAMES)):
                counted[partition, tally.STATES[name] if isinstance(name, int) else name] = number
        for (partition, name), number in sorted(counted.items()):
            if kept.get((partition, name), 0) != number:
                yield (
                    f"partition {partition}: the counter {name} says {kept.get((partition, name), 0)}, "
                    f"there are {number}"
                )
