"""Where bodies were stored first, over the servers of a fleet: each digest has its server, whatever its URL's is.

No transaction spans this index and a frontier. A body is in the archive before its digest is added, and the digest is
added before FETCHED is committed; a crash between any two of them leaves an entry that is true all the same. While a
server is away, whoever needs it waits: a page is neither stored twice nor recorded without its digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import xxhash

from amble.adapters.postgres.rows import columns
from amble.adapters.postgres.servers_link import Link
from amble.adapters.postgres.sharing import Share, Troubles
from amble.adapters.postgres.statements import WORK
from amble.domain.errors import StoreUnavailable
from amble.domain.fetched import BodyRef

# digest, reference and length of what is to be added; a digest alone is looked up.
_Ask = tuple[bytes, bytes | None, int]


def home_of(digest: bytes, servers: list[int]) -> int:
    """The server of a digest: with one server more, only its share of the digests changes place.

    An entry left behind is merely not found any more, which costs one more copy of those bytes.
    """
    return max(servers, key=lambda number: xxhash.xxh3_64_intdigest(digest, number))


class PostgresDigests:
    """ports.Digests over the tables `body` of several servers. Calls made together share a statement.

    `on_trouble` is told why calls wait, and None when they do not any more.
    """

    def __init__(self, links: Mapping[int, Link]) -> None:
        """`links`: servers by their numbers; they are closed with this."""
        self.on_trouble: Callable[[str | None], None] = lambda _: None
        troubles = Troubles(lambda trouble: self.on_trouble(trouble))
        self._links = list(links.values())
        self._shares: dict[int, Share[_Ask, bytes | None]] = {
            number: Share(link, _answer, troubles, "digest") for number, link in links.items()
        }
        self._numbers = sorted(links)

    async def find(self, digest: bytes) -> BodyRef | None:
        """See ports.Digests."""
        packed = await self._share(digest).ask((digest, None, 0))
        return None if packed is None else BodyRef.unpack(packed)

    async def add(self, digest: bytes, ref: BodyRef, length: int) -> BodyRef:
        """See ports.Digests."""
        packed = await self._share(digest).ask((digest, ref.pack(), length))
        return ref if packed is None else BodyRef.unpack(packed)

    def abandon(self, error: StoreUnavailable) -> None:
        """Wait for the index no longer: calls that wait raise `error`, and so does every later one."""
        for share in self._shares.values():
            share.abandon(error)

    async def close(self) -> None:
        """Let go of the servers. Calls that wait raise StoreUnavailable."""
        for share in self._shares.values():
            await share.stop()
        for link in self._links:
            await link.close()

    def _share(self, digest: bytes) -> Share[_Ask, bytes | None]:
        return self._shares[home_of(digest, self._numbers)]


async def _answer(connection: Any, asks: list[_Ask]) -> list[bytes | None]:
    """The packed reference of each digest, after those that came with one are added."""
    new = {digest: (digest, ref, length) for digest, ref, length in reversed(asks) if ref is not None}
    if new:
        await connection.execute(WORK["add_bodies"], *columns(sorted(new.values())))
    wanted = sorted({ask[0] for ask in asks})
    found = dict(map(tuple, await connection.fetch(WORK["find_bodies"], wanted)))
    return [found.get(ask[0]) for ask in asks]
