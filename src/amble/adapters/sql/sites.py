"""How many origins each site has, so that a site that makes up host names without end cannot take over a crawl.

A registrable domain stands for a site. Nothing is counted while the crawl knows so few origins that no site can have
too many; when it knows more, the few are counted first.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from amble.adapters.sql import tally
from amble.adapters.sql.books import Books
from amble.adapters.sql.statements import load
from amble.domain.url import host_of, site_of

_SQL = load("origin")
_KEYS, _SITE, _COUNT = (_SQL[name] for name in ("keys", "site", "count_site"))
# From this many origins on, sites are counted. Small crawls need not know what a registrable domain is.
COUNTED_FROM: Final = 64


class Sites:
    """Counts of one store, kept in its file."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def has_room(self, origin_key: str) -> bool:
        """Whether one more origin of this site may be opened; if so it is counted."""
        books = self._books
        known = books.tally.value(tally.ORIGINS)
        if known < COUNTED_FROM:
            return True
        if known == COUNTED_FROM:
            self._count_all()
        name = _site_of(origin_key)
        row = books.execute(_SITE, (name,)).fetchone()
        if row is not None and row[0] >= books.settings.origins_per_site_max:
            return False
        books.execute(_COUNT, (name, 1))
        return True

    def _count_all(self) -> None:
        """The origins that were opened before sites were counted. Done once: the next origin is one more."""
        books = self._books
        if books.execute("SELECT 1 FROM site LIMIT 1").fetchone() is not None:
            return
        counts = Counter(_site_of(key) for (key,) in books.execute(_KEYS).fetchall())
        books.database.executemany(_COUNT, list(counts.items()))


def _site_of(origin_key: str) -> str:
    return site_of(host_of(origin_key + "/"))
