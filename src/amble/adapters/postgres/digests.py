"""Where bodies were stored first, over the servers of a fleet: each digest has its server, whatever its URL's is.

No transaction spans this index and a frontier. A body is in the archive before its digest is added, and the digest is
added before FETCHED is committed; a crash between any two of them leaves an entry that is true all the same. While a
server is away, whoever needs it waits: a page is neither stored twice nor recorded without its digest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import xxhash

from amble.adapters.postgres.rows import columns
from amble.adapters.postgres.servers_link import Link
from amble.adapters.postgres.statements import WORK
from amble.domain.errors import StoreUnavailable
from amble.domain.fetched import BodyRef

RETRY_S: Final = 0.5
# Digests in one statement.
ASKED_MAX: Final = 1_000

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
        self._shares = {number: _Share(link, self._tell) for number, link in links.items()}
        self._numbers = sorted(links)
        self._troubles: dict[Link, str] = {}

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
            await share.close()

    def _share(self, digest: bytes) -> _Share:
        return self._shares[home_of(digest, self._numbers)]

    def _tell(self, link: Link, trouble: str | None) -> None:
        before = next(iter(self._troubles.values()), None)
        if trouble is None:
            self._troubles.pop(link, None)
        else:
            self._troubles[link] = trouble
        after = next(iter(self._troubles.values()), None)
        if after != before:
            self.on_trouble(after)


class _Share:
    """What one server has of the index."""

    def __init__(self, link: Link, tell: Callable[[Link, str | None], None]) -> None:
        self._link = link
        self._tell = tell
        self._waiting: list[tuple[_Ask, asyncio.Future[bytes | None]]] = []
        self._worker: asyncio.Task[None] | None = None
        self._ended: StoreUnavailable | None = None

    async def ask(self, ask: _Ask) -> bytes | None:
        """The packed reference of the digest once the server has answered."""
        if self._ended is not None:
            raise self._ended
        waiter: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((ask, waiter))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work(), name="digests")
        return await waiter

    async def _work(self) -> None:
        group: list[tuple[_Ask, asyncio.Future[bytes | None]]] = []
        try:
            while self._waiting:
                await asyncio.sleep(0)  # calls of this turn of the loop come along
                group, self._waiting = self._waiting[:ASKED_MAX], self._waiting[ASKED_MAX:]
                found = await self._answer([ask for ask, _ in group])
                for ask, waiter in group:
                    if not waiter.done():
                        waiter.set_result(found.get(ask[0]))
        except BaseException as error:
            for _, waiter in [*group, *self._waiting]:
                if not waiter.done():
                    ended = self._ended or StoreUnavailable("the digest index is closed")
                    waiter.set_exception(ended if isinstance(error, asyncio.CancelledError) else error)
            self._waiting = []
            if not isinstance(error, Exception):
                raise

    async def _answer(self, asks: list[_Ask]) -> dict[bytes, bytes]:
        new = {digest: (digest, ref, length) for digest, ref, length in reversed(asks) if ref is not None}
        rows = sorted(new.values())

        async def work(connection: Any) -> dict[bytes, bytes]:
            if rows:
                await connection.execute(WORK["add_bodies"], *columns(rows))
            wanted = sorted({ask[0] for ask in asks})
            return dict(map(tuple, await connection.fetch(WORK["find_bodies"], wanted)))

        while True:
            try:
                found = await self._link.call(work)
            except StoreUnavailable as trouble:
                self._tell(self._link, str(trouble))
                await asyncio.sleep(RETRY_S)
            else:
                self._tell(self._link, None)
                return found

    def abandon(self, error: StoreUnavailable) -> None:
        """End what waits, and what is still to come."""
        self._ended = error
        if self._worker is not None:
            self._worker.cancel()

    async def close(self) -> None:
        """End what waits."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self._link.close()
