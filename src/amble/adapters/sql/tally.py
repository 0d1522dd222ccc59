"""Counters that make status a read of a few rows: changed in memory, written as deltas in the commit they belong to."""

from __future__ import annotations

from typing import Final

from amble.adapters.sql.connection import Database
from amble.domain.lifecycle import UrlState

# A counter for each state, indexed by the state's integer.
STATES: Final = tuple(f"state.{state.name.lower()}" for state in UrlState)
QUEUED: Final = "queued"
PAGES: Final = "pages"
PAGES_LEASED: Final = "pages_leased"
MANIFESTS_OPEN: Final = "manifests_open"
ORIGINS: Final = "origins"
ADMITTED: Final = "admitted"
KNOWN: Final = "known"
FETCHES: Final = "fetches"
NOT_MODIFIED: Final = "not_modified"
WIRE_BYTES: Final = "bytes.wire"
BODY_BYTES: Final = "bytes.body"
PUBLICATIONS: Final = "publications"
LINKS: Final = "links"
LAPSED: Final = "lapsed"
REQUEUED: Final = "requeued"
FORWARDED: Final = "forwarded"
# Candidates that wait to be delivered, and to be admitted.
OUTBOX: Final = "outbox"
INBOX: Final = "inbox"

_ALL = "SELECT name, value FROM tally"
_ADD = "INSERT INTO tally(name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"


class Tally:
    """The counters of one store. `add` is cheap; `flush` writes; `keep` or `forget` after commit or rollback."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._totals: dict[str, int] = dict(database.execute(_ALL).fetchall())
        self._changes: dict[str, int] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Count."""
        self._changes[name] = self._changes.get(name, 0) + amount

    def move(self, source: int, destination: int, amount: int = 1) -> None:
        """`amount` URLs went from one state to another."""
        self.add(STATES[source], -amount)
        self.add(STATES[destination], amount)

    def value(self, name: str) -> int:
        """The counter as of the open transaction."""
        return self._totals.get(name, 0) + self._changes.get(name, 0)

    def flush(self) -> None:
        """Write what changed into the open transaction."""
        changes = [(name, amount) for name, amount in self._changes.items() if amount]
        if changes:
            self._database.executemany(_ADD, changes)

    def keep(self) -> None:
        """The transaction was committed."""
        for name, amount in self._changes.items():
            self._totals[name] = self._totals.get(name, 0) + amount
        self._changes.clear()

    def forget(self) -> None:
        """The transaction was rolled back."""
        self._changes.clear()
