"""What all operations of the store share: the connection, the ledger, the tally, the time of the transaction."""

from __future__ import annotations

import os
from collections.abc import Callable

from amble.adapters.sql.connection import Database
from amble.adapters.sql.identity import Slots
from amble.adapters.sql.ledger import OriginLedger
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.statements import load
from amble.adapters.sql.tally import ORIGINS, QUEUED, Tally
from amble.domain.errors import CrawlFolderUnusable

_ORIGIN, _URL, _WORK = load("origin"), load("url"), load("work")
_EPOCH, _PARTITION, _SETTLE = (_ORIGIN[name] for name in ("epoch", "partition", "settle"))
_PATH_AT = _URL["path_at"]
_ADD_DECISION, _LAST_DECISION, _PRUNE = (
    _WORK[name] for name in ("add_decision", "last_decision", "prune_decisions")
)
# The queue class of a robots.txt that is only refetched when a page of its origin wants it.
REFETCH_CLASS = 8
TOKEN_BYTES = 16
# The decision log may be this much longer than its bound before it is cut.
_PRUNE_EVERY = 1000

Decision = tuple[int, int, str, str, str, int]


class Books:
    """State of one store between and during transactions. `now` is the one time of the open transaction."""

    def __init__(
        self,
        database: Database,
        settings: StoreSettings,
        slots: Slots,
        token: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.database = database
        self.execute = database.execute
        self.settings = settings
        self.slots = slots
        self.token = token
        self.ledger = OriginLedger(database, settings)
        self.tally = Tally(database)
        self.now = 0
        self.epoch: int = self._settle()
        self._decisions: list[Decision] = []
        self._pruned_to = self._oldest_allowed()

    def is_current(self, partition: int, epoch: int) -> bool:
        """Whether `partition` lives here and `epoch` is that of its owner."""
        return epoch == self.epoch and partition == self.settings.partition

    def _settle(self) -> int:
        """The epoch of the partition that lives here. A new file belongs to the partition it is first opened for."""
        mine = self.settings.partition
        partition, epoch = self.execute(_PARTITION).fetchone()
        if partition != mine and epoch == 0 and not self.tally.value(ORIGINS):
            self.execute(_SETTLE, (mine,))
        elif partition != mine:
            raise CrawlFolderUnusable(f"this frontier file holds partition {partition}, not {mine}")
        return int(epoch)

    def begin(self, now: int) -> None:
        """A transaction opens; everything in it happens at `now`."""
        self.now = self.ledger.now = now

    def decide(
        self, subject: int, reason: str, detail: str, *, url: str = "", policy_version: int = 0
    ) -> None:
        """One entry for the bounded decision log."""
        self._decisions.append((subject, self.now, url, reason, detail, policy_version))

    def queued(self, origin_id: int, amount: int) -> None:
        """The queue of an origin grew or shrank; the caller tells the ledger that the row changed."""
        self.ledger.by_id(origin_id).queued += amount
        self.tally.add(QUEUED, amount)

    def path_at(self, url_id: int) -> str | None:
        """The path stored under an id."""
        row = self.execute(_PATH_AT, (url_id,)).fetchone()
        return None if row is None else row[0]

    def flush(self) -> None:
        """Write everything that was kept back into the open transaction."""
        self.ledger.flush()
        self.tally.flush()
        if self._decisions:
            self.database.executemany(_ADD_DECISION, self._decisions)
            self._decisions.clear()
            self._prune()

    def _oldest_allowed(self) -> int:
        return int(self.execute(_LAST_DECISION).fetchone()[0]) - self.settings.decisions_max

    def _prune(self) -> None:
        allowed = self._oldest_allowed()
        if allowed >= self._pruned_to + min(_PRUNE_EVERY, self.settings.decisions_max) and allowed > 0:
            self.execute(_PRUNE, (allowed,))
            self._pruned_to = allowed

    def keep(self) -> None:
        """The transaction was committed."""
        self.ledger.keep()
        self.tally.keep()

    def forget(self) -> None:
        """The transaction was rolled back."""
        self._decisions.clear()
        self.ledger.forget()
        self.tally.forget()
        self.epoch = self.execute(_EPOCH).fetchone()[0]
