"""Checks the index of near-duplicates against the rows of the URLs that are in it. Changes nothing.

Sums tell whether both agree, in one pass over each; only where they do not is every entry looked up, for its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from amble.adapters.sql.connection import Database
from amble.adapters.sql.near import PART_BITS, entries
from amble.domain.digest import coarse_keys, unsigned

SAMPLES = 5
_ROWS_AT_ONCE = 10_000
_BLOCKS = 4
_64_BITS = (1 << 64) - 1
_ODD = 0x9E37_79B9_7F4A_7C15

_HAS_INDEX = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'near'"
_IS_BUILDING = "SELECT 1 FROM meta WHERE name = 'near_built_to'"
_FILED = "SELECT key, documents FROM near WHERE key > ?1 ORDER BY key LIMIT ?2"
_INDEXED = "SELECT id, fingerprint FROM url WHERE id > ?1 AND indexed = 1 ORDER BY id LIMIT ?2"
_ROW = "SELECT fingerprint FROM url WHERE id = ?1 AND indexed = 1"
_PARTS = "SELECT documents FROM near WHERE key BETWEEN ?1 AND ?2"
_NAME = "SELECT o.key || u.path FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE u.id = ?1"
# Whether the last visit that came to its end was published.
_PUBLISHED = (
    "EXISTS (SELECT 1 FROM publication p WHERE p.url_id = u.id AND p.attempt ="
    " (SELECT max(m.attempt) FROM manifest m WHERE m.url_id = u.id AND m.opened = 1))"
)
_DISAGREEING = (
    (
        "is in the index of near-duplicates though it is not published",
        f"SELECT u.id FROM url u WHERE u.indexed IS NOT NULL AND NOT {_PUBLISHED}",
    ),
    (
        "is published, but nobody has looked whether it is a near-duplicate",
        f"SELECT u.id FROM url u WHERE u.fingerprint <> 0 AND u.indexed IS NULL AND {_PUBLISHED}",
    ),
)


def is_built(database: Database) -> bool:
    """Whether the file has an index. One of an older amble has none, or half of one, until a crawl opens it again."""
    return bool(database.execute(_HAS_INDEX).fetchall()) and not database.execute(_IS_BUILDING).fetchall()


def index_problems(database: Database) -> Iterator[str]:
    """What is in the index that should not be, and what is missing."""
    for complaint, statement in _DISAGREEING:
        rows = database.execute(statement).fetchall()
        for (url_id,) in rows[:SAMPLES]:
            yield f"{_name(database, url_id)} {complaint}"
        if len(rows) > SAMPLES:
            yield f"… and {len(rows) - SAMPLES} more: {complaint}"
    if _filed_sums(database) != [_indexed_sum(database)] * _BLOCKS:
        yield from islice(_missing(database), SAMPLES)
        yield from islice(_left_over(database), SAMPLES)


def _rows(database: Database, statement: str) -> Iterator[tuple[int, Any]]:
    """All rows of a statement, in the order of their first column, some at a time."""
    last = -1
    while rows := database.execute(statement, (last, _ROWS_AT_ONCE)).fetchall():
        yield from rows
        last = rows[-1][0]


def _sum(url_id: int, fingerprint: int) -> int:
    return (url_id * _ODD ^ fingerprint) & _64_BITS


def _filed_sums(database: Database) -> list[tuple[int, int]]:
    """(documents, their sum) of each block; a document under a wrong key counts in none."""
    counts, sums = [0] * _BLOCKS, [0] * _BLOCKS
    for key, documents in _rows(database, _FILED):
        coarse = key >> PART_BITS
        block = coarse >> 16
        for fingerprint, url_id in entries(documents):
            if coarse_keys(fingerprint)[block] == coarse:
                counts[block] += 1
                sums[block] += _sum(url_id, fingerprint)
    return [(count, total & _64_BITS) for count, total in zip(counts, sums, strict=True)]


def _indexed_sum(database: Database) -> tuple[int, int]:
    count = total = 0
    for url_id, fingerprint in _rows(database, _INDEXED):
        count += 1
        total += _sum(url_id, unsigned(fingerprint))
    return count, total & _64_BITS


def _missing(database: Database) -> Iterator[str]:
    for url_id, signed in _rows(database, _INDEXED):
        document = (unsigned(signed), url_id)
        for coarse in coarse_keys(document[0]):
            bounds = (coarse << PART_BITS, (coarse + 1 << PART_BITS) - 1)
            filed = [
                entry
                for (documents,) in database.execute(_PARTS, bounds).fetchall()
                for entry in entries(documents)
            ]
            if filed.count(document) != 1:
                yield f"{_name(database, url_id)} is {filed.count(document)} times under a key of its text instead of once"


def _left_over(database: Database) -> Iterator[str]:
    for key, documents in _rows(database, _FILED):
        for fingerprint, url_id in entries(documents):
            row = database.execute(_ROW, (url_id,)).fetchone()
            if (
                row is None
                or unsigned(row[0]) != fingerprint
                or key >> PART_BITS not in coarse_keys(fingerprint)
            ):
                yield f"{_name(database, url_id)} is in the index of near-duplicates under a text that is not its own"


def _name(database: Database, url_id: int) -> str:
    row = database.execute(_NAME, (url_id,)).fetchone()
    return f"URL {url_id}" if row is None else str(row[0])
