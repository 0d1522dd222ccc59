"""Checks a frontier file from the outside against the invariants of its tables. Changes nothing.

Every counter that is kept by deltas is counted again, every state is held against the columns it implies, and every
queued URL must have something that will move it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.msgpack import Decoder

from amble.adapters.sql import tally
from amble.adapters.sql.connection import Database
from amble.adapters.sql.lines import capture_line
from amble.adapters.sql.near import NearIndex
from amble.adapters.sql.near_check import index_problems, is_built
from amble.adapters.sql.reports import SqliteReports
from amble.domain.decision import Reason
from amble.domain.digest import unsigned
from amble.domain.errors import StoreBroken
from amble.domain.frontier import Candidate
from amble.domain.lifecycle import FINAL, IN_FLIGHT, UrlState
from amble.domain.report import Capture

# (what is wrong, statement that selects offending rows as (name, detail)); :flight and :final are lists of states.
_ROWS = (
    ("is in flight without a token or a deadline",
     "SELECT o.key || u.path, u.state FROM url u JOIN origin o ON o.id = u.id >> 36"
     " WHERE u.state IN (:flight) AND (u.token IS NULL OR u.expires_at IS NULL)"),
    ("is not in flight and holds a token",
     "SELECT o.key || u.path, u.state FROM url u JOIN origin o ON o.id = u.id >> 36"
     " WHERE u.state NOT IN (:flight) AND u.token IS NOT NULL"),
    ("is in flight and queued at once",
     "SELECT o.key || u.path, u.state FROM url u JOIN origin o ON o.id = u.id >> 36"
     " WHERE u.state IN (:flight) AND u.rq IS NOT NULL"),
    ("is pending and not queued: nothing would ever move it",
     "SELECT o.key || u.path, u.state FROM url u JOIN origin o ON o.id = u.id >> 36"
     " WHERE u.state = 0 AND u.rq IS NULL"),
    ("is queued without a due time",
     "SELECT o.key || u.path, u.rq FROM url u JOIN origin o ON o.id = u.id >> 36"
     " WHERE u.rq IS NOT NULL AND u.due_at IS NULL"),
    ("holds a slot though it is not leased",
     "SELECT o.key || u.path, u.state FROM url u JOIN origin o ON o.id = u.id >> 36"
     " WHERE u.slot_origin IS NOT NULL AND u.state <> 1"),
    ("belongs to no origin",
     "SELECT u.id || ' ' || u.path, u.state FROM url u LEFT JOIN origin o ON o.id = u.id >> 36 WHERE o.id IS NULL"),
    ("counts the wrong number of leased URLs",
     "SELECT o.key, o.leased || ' instead of ' || (SELECT count(*) FROM url u WHERE u.id >> 36 = o.id AND u.state = 1)"
     " FROM origin o WHERE o.leased <> (SELECT count(*) FROM url u WHERE u.id >= o.id << 36 AND"
     " u.id < (o.id + 1) << 36 AND u.state = 1)"),
    ("counts the wrong number of active slots",
     "SELECT o.key, o.active || ' instead of ' || coalesce(s.held, 0) FROM origin o LEFT JOIN"
     " (SELECT slot_origin, count(*) AS held FROM url WHERE slot_origin IS NOT NULL GROUP BY slot_origin) s"
     " ON s.slot_origin = o.id WHERE o.active <> coalesce(s.held, 0)"),
    ("counts the wrong number of URLs",
     "SELECT o.key, o.urls || ' instead of ' || coalesce(n.urls, 0) FROM origin o LEFT JOIN"
     " (SELECT id >> 36 AS origin, count(*) AS urls FROM url WHERE kind <> 1 GROUP BY id >> 36) n ON n.origin = o.id"
     " WHERE o.urls <> coalesce(n.urls, 0)"),
    ("has a cursor beyond its links",
     "SELECT 'manifest ' || url_id || '/' || attempt, cursor FROM manifest WHERE cursor > links OR cursor < 0"),
    ("has a manifest that nothing will open",
     "SELECT o.key || u.path, m.attempt FROM manifest m JOIN url u ON u.id = m.url_id JOIN origin o ON o.id = u.id >> 36"
     " WHERE m.cursor < m.links AND m.opened = 0 AND u.state IN (:final) AND u.attempt = m.attempt"),
    ("was published without a manifest",
     "SELECT o.key || u.path, p.seq FROM publication p JOIN url u ON u.id = p.url_id JOIN origin o ON o.id = u.id >> 36"
     " LEFT JOIN manifest m ON m.url_id = p.url_id AND m.attempt = p.attempt AND m.generation = p.extraction_generation"
     " WHERE m.url_id IS NULL"),
    ("is parsed or complete without a manifest of its last good attempt",
     "SELECT o.key || u.path, u.state FROM url u JOIN origin o ON o.id = u.id >> 36 LEFT JOIN manifest m"
     " ON m.url_id = u.id AND m.attempt = u.attempt WHERE u.state IN (3, 4) AND m.url_id IS NULL"),
    ("is addressed to the partition that it comes from",
     "SELECT 'parcel ' || o.number, o.destination FROM outbox o JOIN partition p ON p.partition = o.destination"),
    ("holds nothing",
     "SELECT 'parcel ' || number, destination FROM outbox WHERE amount <= 0"),
    ("was taken beyond its end, or left over when all of it was taken",
     "SELECT 'parcel ' || number || ' of partition ' || source, taken FROM inbox WHERE taken < 0 OR taken >= amount"),
    ("is in the inbox, but above the mark of its source",
     "SELECT 'parcel ' || i.number || ' of partition ' || i.source, coalesce(m.number, 'none') FROM inbox i"
     " LEFT JOIN parcel_mark m ON m.source = i.source WHERE m.number IS NULL OR i.number > m.number"),
    ("has queued URLs, nothing in flight and no time at which it will be looked at",
     "SELECT o.key, o.queued FROM origin o WHERE o.queued > 0 AND o.wake_at IS NULL AND o.paused = 0"
     " AND o.leased = 0 AND o.active = 0 AND NOT EXISTS (SELECT 1 FROM url r WHERE r.id = o.robots_url_id"
     " AND r.state IN (:flight))"),
)  # fmt: skip

_COUNTS = (
    (tally.PUBLICATIONS, "SELECT count(*) FROM publication"),
    (tally.ORIGINS, "SELECT count(*) FROM origin"),
    (tally.MANIFESTS_OPEN, "SELECT count(*) FROM manifest WHERE opened = 1 AND cursor < links"),
    (tally.FETCHES, "SELECT count(*) FROM fetch"),
    (tally.OUTBOX, "SELECT coalesce(sum(amount), 0) FROM outbox"),
    (tally.INBOX, "SELECT coalesce(sum(amount - taken), 0) FROM inbox"),
)
_WITHHELD = """
SELECT o.key || u.path, u.fingerprint, u.detail FROM url u JOIN origin o ON o.id = u.id >> 36
WHERE u.state = 4 AND u.reason = 'near_duplicate'
"""
_VISITS = "SELECT count(*) FROM manifest WHERE url_id = ?1 AND opened = 1"
_decode_parcel = Decoder(list[Candidate]).decode
SAMPLES = 5


_CAPTURES = """
SELECT f.url_id, o.key || u.path, u.kind, u.depth, u.hops, f.attempt, f.answer, m.ref, coalesce(m.links, 0),
  coalesce(m.cursor, 0), m.text_ref
FROM fetch f JOIN url u ON u.id = f.url_id JOIN origin o ON o.id = f.url_id >> 36
LEFT JOIN manifest m ON m.url_id = f.url_id AND m.attempt = f.attempt
WHERE (f.url_id, f.attempt) > (?1, ?2) AND f.answer IS NOT NULL ORDER BY f.url_id, f.attempt LIMIT ?3
"""


class SqliteCheck(SqliteReports):
    """What `amble verify` asks of a frontier file."""

    def problems(self, others: Sequence[SqliteCheck] = ()) -> Iterator[str]:
        """Every problem within the file, readable; none means that its tables agree with each other.

        `others`: the other files of the crawl, where there are any.
        """
        with self._reading():
            found = [row[0] for row in self._database.execute("PRAGMA quick_check(20)").fetchall()]
            if found != ["ok"]:
                # One verdict may have several lines.
                lines = [
                    line for verdict in found for line in verdict.splitlines() if not line.startswith("***")
                ]
                more = f", and {len(lines) - SAMPLES} places more" if len(lines) > SAMPLES else ""
                yield f"the frontier file is damaged: {'; '.join(lines[:SAMPLES])}{more}"
                raise StoreBroken("the frontier file is damaged, and what else it says cannot be relied on")
            yield from _rows(self._database)
            yield from _tallies(self._database)
            yield from self._near_duplicates([self, *others])

    def _near_duplicates(self, files: Sequence[SqliteCheck]) -> Iterator[str]:
        """The index of near-duplicates, and what was withheld because of it."""
        if not is_built(self._database):
            return
        yield from index_problems(self._database)
        shared = [NearIndex(file._database) for file in files]
        for name, fingerprint, detail in self._database.execute(_WITHHELD).fetchall():
            if any(index.twin(unsigned(fingerprint)) is not None for index in shared):
                continue
            # Its twin may have been visited again since, and found to be another text.
            twin = detail.rpartition(" ")[2] if detail else ""
            if not any(file._visits(twin) > 1 for file in files):
                yield f"{name} is withheld as a near-duplicate, but no published document is near it ({detail})"

    def _visits(self, url: str) -> int:
        """How often a URL of this file was carried to COMPLETE; 0 for one that is not here."""
        origin = self._one("origin_by_key", url[: url.find("/", url.find("://") + 3)])
        line = None if origin is None else self._find(origin[0], url)
        return 0 if line is None else int(self._database.execute(_VISITS, (line.url_id,)).fetchone()[0])

    def captures(self, *, after: tuple[int, int], limit: int) -> list[Capture]:
        """Fetches with an answer, by (url_id, attempt), after that key."""
        with self._reading():
            rows = self._database.execute(_CAPTURES, (*after, limit)).fetchall()
        return [capture_line(row) for row in rows]

    def is_known(self, url: str) -> bool:
        """Whether a canonical URL is in the frontier."""
        key = url[: url.find("/", url.find("://") + 3)]
        with self._reading():
            origin = self._one("origin_by_key", key)
            return origin is not None and self._find(origin[0], url) is not None

    def crossing(self) -> set[str]:
        """The URLs that are on their way to or from another partition."""
        with self._reading():
            parcels = self._database.execute(
                "SELECT candidates FROM outbox UNION ALL SELECT candidates FROM inbox"
            ).fetchall()
        return {
            candidate.origin + candidate.path for (packed,) in parcels for candidate in _decode_parcel(packed)
        }

    def was_over_budget(self) -> bool:
        """Whether any origin or site ever used up its discovery budget."""
        with self._reading():
            refused = self._database.execute(
                "SELECT count(*) FROM tally WHERE value > 0 AND name IN (?1, ?2)",
                (f"rejected.{Reason.ORIGIN_BUDGET}", f"rejected.{Reason.SITE_BUDGET}"),
            ).fetchone()
        return bool(refused[0])


def _rows(database: Database) -> Iterator[str]:
    flight = ", ".join(str(int(state)) for state in sorted(IN_FLIGHT))
    final = ", ".join(str(int(state)) for state in sorted(FINAL))
    for complaint, statement in _ROWS:
        sql = statement.replace(":flight", flight).replace(":final", final)
        rows: list[Any] = database.execute(sql).fetchall()
        for name, detail in rows[:SAMPLES]:
            yield f"{name} {complaint} ({detail})"
        if len(rows) > SAMPLES:
            yield f"… and {len(rows) - SAMPLES} more: {complaint}"


def _tallies(database: Database) -> Iterator[str]:
    kept: dict[str, int] = dict(database.execute("SELECT name, value FROM tally").fetchall())
    counted: dict[str, int] = {
        tally.STATES[state]: number
        for state, number in database.execute("SELECT state, count(*) FROM url GROUP BY state").fetchall()
    }
    for state in UrlState:
        counted.setdefault(tally.STATES[state], 0)
    for name, statement in _COUNTS:
        counted[name] = database.execute(statement).fetchone()[0]
    for name, number in sorted(counted.items()):
        if kept.get(name, 0) != number:
            yield f"the counter {name} says {kept.get(name, 0)}, there are {number}"
