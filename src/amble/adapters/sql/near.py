"""The index of published documents by fingerprint: who is nearly the same text as one that is to be published.

A document is filed under four keys (domain/digest.py), in rows of many documents each: a row for each of them would be
slower to read with tens of millions, and no smaller. Only those enter that are published with `Complete.near`, so of
two near-duplicates at most one is here, but for documents that were published before there was an index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from amble.adapters.sql.connection import Database
from amble.adapters.sql.statements import load
from amble.domain.digest import PAIR, coarse_keys, first_near, unsigned

_SQL: Final = load("near")
_PARTS, _LAST_PART, _PUT, _DROP, _URL = (_SQL[name] for name in ("parts", "last_part", "put", "drop", "url"))
_BUILT_TO, _BUILD_ON, _BUILT, _UNENTERED, _ENTER = (
    _SQL[name] for name in ("built_to", "build_on", "built", "unentered", "enter")
)
PART_BITS: Final = 24
# A part of a key holds no more, so that one text on many pages never makes one row long. Bytes.
PART_BYTES_MAX: Final = 2_048
_ENTRY: Final = PAIR
# Documents entered in one transaction when an older file is opened.
BUILD_AT_ONCE: Final = 100_000

Entry = tuple[int, int]  # (fingerprint, url id)


def entries(documents: bytes) -> Iterator[Entry]:
    """The documents of one row."""
    return _ENTRY.iter_unpack(documents)


class NearIndex:
    """The index in one file, within the caller's transaction. Fingerprints are unsigned and not 0."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.execute

    def enter(self, url_id: int, fingerprint: int) -> int | None:
        """File a document, unless a near-duplicate of it is here: then the url id of that one, and nothing changes."""
        keys = coarse_keys(fingerprint)
        parts = self._parts(keys)
        twin = _twin(parts, fingerprint)
        if twin is not None:
            return twin
        last = {key >> PART_BITS: (key, documents) for key, documents in parts}
        entry = _ENTRY.pack(fingerprint, url_id)
        self._database.executemany(_PUT, [_appended(key, last.get(key), entry) for key in keys])
        return None

    def twin(self, fingerprint: int) -> int | None:
        """The url id of a document that is nearly the same text, None where there is none. Changes nothing."""
        return _twin(self._parts(coarse_keys(fingerprint)), fingerprint)

    def twin_url(self, fingerprint: int) -> str | None:
        """The same by its URL."""
        twin = self.twin(fingerprint)
        return None if twin is None else self.url(twin)

    def url(self, url_id: int) -> str:
        """What a URL of this file is called."""
        rows = self._execute(_URL, (url_id,)).fetchall()
        return str(rows[0][0])

    def leave(self, url_id: int, fingerprint: int) -> None:
        """Take a document out that was filed under `fingerprint`."""
        entry = _ENTRY.pack(fingerprint, url_id)
        for key, documents in self._parts(coarse_keys(fingerprint)):
            at = _place(documents, entry)
            if at is None:
                continue
            left = documents[:at] + documents[at + _ENTRY.size :]
            if left:
                self._execute(_PUT, (key, left))
            else:
                self._execute(_DROP, (key,))

    def _parts(self, keys: tuple[int, int, int, int]) -> list[tuple[int, bytes]]:
        # All of them, or the statement would stay open.
        found: list[tuple[int, bytes]] = self._execute(_PARTS, [key << PART_BITS for key in keys]).fetchall()
        return found

    # -- of an older file -------------------------------------------------------------------------------------

    def build(self) -> None:
        """Enter what was published before the file had this index. Transactions of its own; ended halfway, it goes on."""
        row = self._execute(_BUILT_TO).fetchone()
        position = None if row is None else int(row[0])
        while position is not None:
            self._execute("BEGIN IMMEDIATE")
            position = self._build_on(position)
            self._execute("COMMIT")
            self._database.checkpoint()

    def _build_on(self, position: int) -> int | None:
        """One batch after `position`; where the next one goes on."""
        rows = self._execute(_UNENTERED, (position, BUILD_AT_ONCE)).fetchall()
        if not rows:
            self._execute(_BUILT)
            return None
        self.file((unsigned(fingerprint), url_id) for url_id, fingerprint in rows)
        self._database.executemany(_ENTER, [(url_id,) for url_id, _ in rows])
        last = int(rows[-1][0])
        self._execute(_BUILD_ON, (str(last).encode(),))
        return last

    def file(self, documents: Iterable[Entry]) -> None:
        """File many documents whether or not they are near to others, in the order of the keys."""
        filed: defaultdict[int, list[bytes]] = defaultdict(list)
        for fingerprint, url_id in documents:
            entry = _ENTRY.pack(fingerprint, url_id)
            for key in coarse_keys(fingerprint):
                filed[key].append(entry)
        for key in sorted(filed):
            rows = self._execute(_LAST_PART, (key << PART_BITS,)).fetchall()
            part: tuple[int, bytes] | None = rows[0] if rows else None
            for entry in filed[key]:
                appended = _appended(key, part, entry)
                if part is not None and appended[0] != part[0]:
                    self._execute(_PUT, part)
                part = appended
            self._execute(_PUT, part)


def _twin(parts: list[tuple[int, bytes]], fingerprint: int) -> int | None:
    for _, documents in parts:
        twin = first_near(documents, fingerprint)
        if twin is not None:
            return twin
    return None


def _appended(key: int, last: tuple[int, bytes] | None, entry: bytes) -> tuple[int, bytes]:
    """The row in which `entry` is the last: that of the last part, or the one after it."""
    if last is None:
        return key << PART_BITS, entry
    number, documents = last
    if len(documents) + len(entry) > PART_BYTES_MAX:
        return number + 1, entry
    return number, documents + entry


def _place(documents: bytes, entry: bytes) -> int | None:
    for at in range(0, len(documents), _ENTRY.size):
        if documents[at : at + _ENTRY.size] == entry:
            return at
    return None
