"""The origin ledger: each origin's row as one object, read once, changed in memory, written once per transaction.

The store is the only writer of the file, so a row may stay in memory between transactions. A rollback forgets
everything. `flush` must run before any statement that looks at `wake_at`.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import astuple

from amble.adapters.sql.connection import Database
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.statements import load
from amble.domain.attempt import OriginFacts, RobotsState
from amble.domain.fetched import BodyRef

_SQL = load("origin")
_BY_ID, _BY_KEY, _CREATE, _WRITE, _LAST_ID = (
    _SQL[name] for name in ("by_id", "by_key", "create", "write", "last_id")
)


class Origin(Struct, gc=False):
    """One row of the table `origin`; field order is that of origin.sql. Times are the store's clock in ms."""

    id: int
    key: str
    wake_at: int | None = None
    next_start: int = 0
    rest_until: int = 0
    backoff_level: int = 0
    last_fetch_ms: int = 0
    leased: int = 0
    active: int = 0
    active_max: int | None = None
    spacing_ms: int | None = None
    paused: int = 0
    policy_version: int = 1
    queued: int = 0
    urls: int = 0
    pages: int = 0
    turns: int = 0
    robots_url_id: int | None = None
    robots_outcome: int = 0
    robots_version: int = 0
    robots_fetched_at: int = 0
    robots_expires_at: int = 0
    robots_rules: bytes | None = None
    robots_delay_ms: int = 0

    @property
    def ready_at(self) -> int:
        """The soonest start that spacing and rest allow."""
        return max(self.next_start, self.rest_until)

    def robots_valid(self, now: int) -> bool:
        """Whether there is a robots decision and it has not expired."""
        return self.robots_outcome != 0 and self.robots_expires_at > now

    def decide_robots(self, state: RobotsState, now: int, ttl_ms: int) -> None:
        """A new robots decision; its version is one more than the last."""
        self.robots_outcome = state.outcome
        self.robots_version += 1
        self.robots_fetched_at = state.fetched_at_ms or now
        self.robots_expires_at = now + ttl_ms
        self.robots_rules = state.rules.pack() if state.rules else None
        self.robots_delay_ms = state.crawl_delay_ms

    def active_limit(self, settings: StoreSettings) -> int:
        """How many requests may be active: the origin's own setting, or the default."""
        return settings.default_active_max if self.active_max is None else self.active_max

    def spacing(self, settings: StoreSettings) -> int:
        """Milliseconds between two starts: the origin's own setting, or the default."""
        return settings.default_spacing_ms if self.spacing_ms is None else self.spacing_ms

    def look_again(self, now: int, settings: StoreSettings) -> None:
        """Set when the origin may be leased again, after its facts have changed. One that is due keeps its place."""
        busy = max(self.leased, self.active) >= self.active_limit(settings)
        if self.paused or not self.queued or busy:
            self.wake_at = None
        elif self.ready_at > now:
            self.wake_at = self.ready_at
        elif self.wake_at is None or self.wake_at > now:
            self.wake_at = now

    def facts(self, settings: StoreSettings) -> OriginFacts:
        """What the gate needs to know of the origin."""
        rules = BodyRef.unpack(self.robots_rules) if self.robots_rules else None
        robots = RobotsState(
            self.robots_outcome,
            self.robots_version,
            self.robots_fetched_at,
            self.robots_expires_at,
            rules,
            self.robots_delay_ms,
        )
        return OriginFacts(
            self.active_limit(settings),
            self.spacing(settings),
            self.last_fetch_ms,
            self.backoff_level,
            robots,
        )


class OriginLedger:
    """Origins by id and by key, with the rows that are to be written."""

    def __init__(self, database: Database, settings: StoreSettings) -> None:
        self._database = database
        self._execute = database.execute
        self._settings = settings
        self.now = 0  # of the open transaction
        self._by_id: dict[int, Origin] = {}
        self._by_key: dict[str, Origin] = {}
        self._changed: dict[int, Origin] = {}
        self._last_id = self._find_last_id()

    def _find_last_id(self) -> int:
        return int(self._execute(_LAST_ID, (self._settings.origin_ids_after,)).fetchone()[0])

    @property
    def is_full(self) -> bool:
        """Whether the ids of this file are used up, but for a reserve that redirects of a robots.txt may need."""
        return self._last_id - self._settings.origin_ids_after >= self._settings.origins_max

    def by_id(self, origin_id: int) -> Origin:
        """The origin with this id; it must exist."""
        origin = self._by_id.get(origin_id)
        if origin is None:
            origin = self._remember(Origin(*self._execute(_BY_ID, (origin_id,)).fetchone()))
        return origin

    def by_key(self, key: str) -> Origin | None:
        """The origin "scheme://host[:port]", None when it is unknown."""
        origin = self._by_key.get(key)
        if origin is None:
            row = self._execute(_BY_KEY, (key,)).fetchone()
            if row is not None:
                origin = self._remember(Origin(*row))
        return origin

    def create(self, key: str, now: int) -> Origin:
        """A new origin, without a URL."""
        self._last_id += 1
        self._execute(_CREATE, (self._last_id, key, now))
        return self._remember(Origin(self._last_id, key))

    def _remember(self, origin: Origin) -> Origin:
        self._by_id[origin.id] = origin
        self._by_key[origin.key] = origin
        return origin

    def active_max(self, origin: Origin) -> int:
        """How many requests may be active at the origin."""
        return origin.active_limit(self._settings)

    def spacing_ms(self, origin: Origin) -> int:
        """The origin's own setting, or the default."""
        return origin.spacing(self._settings)

    def changed(self, origin: Origin) -> None:
        """The row is to be written; when it may be leased again follows from its new facts.

        An origin that is due already keeps its place in the row of those that wait.
        """
        self._changed[origin.id] = origin
        origin.look_again(self.now, self._settings)

    def postpone(self, origin: Origin, wake_at: int | None) -> None:
        """A turn found nothing to do: look again at `wake_at`, or when something changes."""
        self._changed[origin.id] = origin
        origin.wake_at = wake_at

    def facts(self, origin: Origin) -> OriginFacts:
        """What the gate needs to know of the origin."""
        return origin.facts(self._settings)

    def flush(self) -> None:
        """Write the changed rows into the open transaction, in the order of their ids."""
        if self._changed:
            self._database.executemany(_WRITE, [astuple(self._changed[id_]) for id_ in sorted(self._changed)])
            self._changed.clear()

    def keep(self) -> None:
        """The transaction was committed: let go of the rows in memory when they are too many."""
        if len(self._by_id) > self._settings.origins_cached_max and not self._changed:
            self._by_id.clear()
            self._by_key.clear()

    def forget(self) -> None:
        """The transaction was rolled back: nothing in memory can be trusted."""
        self._by_id.clear()
        self._by_key.clear()
        self._changed.clear()
        self._last_id = self._find_last_id()
