"""Whether a document is published, by the row of its URL, on whatever server that lives: an index only hints at it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from amble.adapters.postgres.servers_link import Link
from amble.adapters.postgres.sharing import RETRY_S, Share, Troubles
from amble.adapters.postgres.statements import NEAR
from amble.domain.errors import StoreUnavailable
from amble.domain.lifecycle import UrlState

_IN_HAND: Final = (int(UrlState.FETCHED), int(UrlState.PARSED))
# (url id, its partition)
_Ask = tuple[int, int]


class Standing(NamedTuple):
    """Of one URL: the fingerprint of its last completion, with a sign; whether that was published; whether it may be
    completed at any moment.
    """

    url: str = ""
    fingerprint: int | None = None
    published: bool = False
    in_hand: bool = False


UNKNOWN: Final = Standing()


class Standings:
    """Asks the server of each partition. While it is away, or nobody knows which it is, callers wait.

    Nobody else need wait for it, so that its troubles are told to nobody.
    """

    def __init__(
        self, link_of: Callable[[int], Link], look: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`link_of` a partition, which is not closed here; raises StoreUnavailable where nobody knows.

        `look` learns anew where partitions live; None where they all live at one place.
        """
        self._link_of = link_of
        self._look = look
        self._troubles = Troubles(lambda _: None)
        self._shares: dict[Link, Share[_Ask, Standing | None]] = {}
        self._ended: StoreUnavailable | None = None

    @property
    def trouble(self) -> str | None:
        """Why callers wait, if they do."""
        return self._troubles.standing

    async def ask(self, url_id: int, partition: int) -> Standing:
        """How it stands; `UNKNOWN` when there is no such URL where its partition lives."""
        while True:
            try:
                share = self._share(self._link_of(partition))
            except StoreUnavailable as trouble:
                self._troubles.tell(self, str(trouble))
            else:
                self._troubles.tell(self, None)
                found = await share.ask((url_id, partition))
                if found is not None:
                    return found
            # The partition is about to open elsewhere.
            await asyncio.sleep(RETRY_S)
            if self._look is not None:
                await self._look()

    def _share(self, link: Link) -> Share[_Ask, Standing | None]:
        if self._ended is not None:
            raise self._ended
        if link not in self._shares:
            self._shares[link] = Share(link, self._answer, self._troubles, "frontier")
        return self._shares[link]

    async def _answer(self, connection: Any, asks: list[_Ask]) -> list[Standing | None]:
        rows = await connection.fetch(NEAR["standing"], sorted({url_id for url_id, _ in asks}))
        found = {
            url_id: Standing(url, fingerprint, published, state in _IN_HAND)
            for url_id, fingerprint, state, url, published in rows
        }
        missing = {partition for url_id, partition in asks if url_id not in found}
        here = missing
        if missing and self._look is not None:
            here = {row[0] for row in await connection.fetch(NEAR["settled"], sorted(missing))}
        return [found.get(url_id, UNKNOWN if partition in here else None) for url_id, partition in asks]

    def abandon(self, error: StoreUnavailable) -> None:
        """End what waits, and what is still to come, with `error`."""
        self._ended = error
        for share in self._shares.values():
            share.abandon(error)

    async def stop(self) -> None:
        """End what waits."""
        self._ended = self._ended or StoreUnavailable("the index of near-duplicates is closed")
        for share in self._shares.values():
            await share.stop()
