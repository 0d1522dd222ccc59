"""The index of published documents by fingerprint, over the servers of a fleet: who is nearly the same text.

A document has sixteen keys, of which it shares at least one with every near-duplicate; each key has its server. Before a
completion is committed its document *claims* its text: it is entered under its keys on all their servers, and only then
its neighbours are looked up there, so that of two that come at once at least one sees the other. No transaction spans
index and frontier, hence an entry is a hint and the row of its URL the truth (standing.py). A neighbour that is
published withholds the claimant, one that was left behind is removed. Of two that are both under way, the one with
the greater id steps back and comes again, the other waits until it has, or is published. See
docs/decisions/0011-near-duplicates-of-a-fleet.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

import xxhash
from msgspec.structs import replace

from amble.adapters.postgres.rows import columns
from amble.adapters.postgres.servers_link import Link
from amble.adapters.postgres.sharing import Share, Troubles
from amble.adapters.postgres.standing import UNKNOWN, Standing, Standings
from amble.adapters.postgres.statements import NEAR
from amble.domain.digest import NEAR_DUPLICATE_BITS_MAX, fine_keys, signed, unsigned
from amble.domain.errors import StoreUnavailable
from amble.domain.frontier import NEAR_DUPLICATE, Complete, near_detail

# How soon it is looked again whether a neighbour that is under way has come to an end.
LOOK_S: Final = 0.03
# A claim that nothing has come of for so long was left behind: whoever made it has to claim again. One that took a
# third of that is made anew before it counts. Those who wait for a server that is away are waited for.
ABANDONED_MS: Final = 30_000
FRESH_S: Final = 10.0
# Neighbours are found by arrays against an index that only such scans can use.
LINK_SETTINGS: Final = {"enable_bitmapscan": "on"}


class Document(NamedTuple):
    """What claims a text. `fingerprint` is signed, as the database keeps it, and not 0."""

    url_id: int
    partition: int
    attempt: int
    fingerprint: int


class _Entry(NamedTuple):
    """A neighbour, as the index of one server has it."""

    url_id: int
    partition: int
    fingerprint: int
    claim: int
    age_ms: int
    server: int = 0


class _Ask(NamedTuple):
    """What a server is asked: to enter a document, to look its neighbours up, both in that order, or to remove entries."""

    what: Literal["enter", "look", "claim", "withdraw", "forget"]
    document: Document
    claim: int
    keys: str = ""


class _Verdict(NamedTuple):
    """What neighbours mean for a claimant: withheld because of `twin`, to step back, to wait, or none of these."""

    twin: str = ""
    back: bool = False
    wait: bool = False


def home_of(key: int, servers: list[int]) -> int:
    """The server of a key: with one server more, only its share of the keys changes place.

    What was entered before is not found there. Most near-duplicates share many keys, so few are missed by it.
    """
    packed = key.to_bytes(4)
    return max(servers, key=lambda number: xxhash.xxh3_64_intdigest(packed, number))


def keys_by_server(fingerprint: int, servers: list[int]) -> dict[int, str]:
    """The keys of a signed fingerprint as literals of integer arrays, by the server that each has."""
    keys = fine_keys(unsigned(fingerprint))
    homes: dict[int, list[int]] = {}
    for key in keys:
        home = servers[0] if len(servers) == 1 else home_of(key, servers)
        homes.setdefault(home, []).append(key - (1 << 32) if key >= 1 << 31 else key)
    return {home: "{" + ",".join(map(str, some)) + "}" for home, some in homes.items()}


def index_link(dsn: str) -> Link:
    """A connection for one server of the index."""
    return Link(dsn, "amble near", LINK_SETTINGS)


class Fingerprints:
    """The index over `links`, servers by their numbers, which are closed with this.

    `on_trouble` is told why completions wait, and None when they do not any more.
    """

    def __init__(
        self,
        links: Mapping[int, Link],
        link_of: Callable[[int], Link] | None = None,
        look: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`link_of` and `look`: see Standings; None where there is one server for all."""
        self.on_trouble: Callable[[str | None], None] = lambda _: None
        self._troubles = Troubles(lambda trouble: self.on_trouble(trouble))
        self._links = dict(links)
        self._numbers = sorted(links)
        self._shares: dict[int, Share[_Ask, list[_Entry]]] = {
            number: Share(link, _answer, self._troubles, "near-duplicate") for number, link in links.items()
        }
        only = self._links[self._numbers[0]]
        self._standings = Standings(link_of or (lambda _: only), look)

    @property
    def trouble(self) -> str | None:
        """Why completions wait, if any does."""
        return self._troubles.standing or self._standings.trouble

    async def settle(self, item: Complete) -> Complete:
        """What is to be committed: `item`, or the same withheld in favour of a document that was published before.

        Afterwards its URL is in the index exactly if it is to be published. Raises StoreUnavailable, StoreBroken.
        """
        document = Document(item.key.url_id, item.key.partition, item.key.attempt, signed(item.fingerprint))
        if not (item.publish and item.near and item.fingerprint):
            await self._forget(document)
            return item
        twin = await self.claim(document)
        if twin is None:
            return item
        return replace(item, publish=False, near=False, withheld=NEAR_DUPLICATE, detail=near_detail(twin))

    async def claim(self, document: Document) -> str | None:
        """Enter a document that is to be published; else the URL of the one that keeps it from that.

        Its completion has to be committed within half a minute, or another may be published beside it.
        """
        loop, claim = asyncio.get_running_loop(), random.getrandbits(62)
        homes = keys_by_server(document.fingerprint, self._numbers)
        await self._leave_others(document, homes)
        known: bool | None = None
        while True:
            since_s = loop.time()
            found = await self._enter(document, claim, homes)
            if known is None:
                # What is published at its first attempt was published by this very call before.
                known = document.attempt == 1 or any(entry.url_id == document.url_id for entry in found)
            verdict = await self._judge(document, found, known=known)
            while verdict.wait and loop.time() - since_s < FRESH_S:
                verdict = await self._look_again(document, claim, homes)
            if verdict.twin or verdict.back:
                await self._ask_homes("withdraw", document, claim, homes)
            while verdict.back:
                verdict = await self._look_again(document, claim, homes)
                since_s = -FRESH_S
            if verdict.twin:
                return verdict.twin
            if not verdict.wait and loop.time() - since_s < FRESH_S:
                return None

    async def find(self, fingerprint: int) -> str | None:
        """The URL of a published document that is nearly the same text as that of this unsigned fingerprint."""
        document = Document(0, 0, 0, signed(fingerprint))
        homes = keys_by_server(document.fingerprint, self._numbers)
        for entry in await self._ask_homes("look", document, 0, homes):
            standing = await self._standings.ask(entry.url_id, entry.partition)
            if _is_published(entry, standing):
                return standing.url
        return None

    # ---- what claims are made of

    async def _enter(self, document: Document, claim: int, homes: Mapping[int, str]) -> list[_Entry]:
        """Everywhere first, and then look: whoever enters later sees this one, whoever entered before is seen.

        A document that is entered with this very text already is among what is found.
        """
        if len(homes) == 1:
            return await self._ask_homes("claim", document, claim, homes)
        known = await self._ask_homes("enter", document, claim, homes)
        return known + await self._ask_homes("look", document, claim, homes)

    async def _ask_homes(
        self,
        what: Literal["enter", "look", "claim", "withdraw"],
        document: Document,
        claim: int,
        homes: Mapping[int, str],
    ) -> list[_Entry]:
        asks = (self._shares[number].ask(_Ask(what, document, claim, keys)) for number, keys in homes.items())
        answers = await asyncio.gather(*asks)
        return [
            entry._replace(server=number)
            for number, entries in zip(homes, answers, strict=True)
            for entry in entries
        ]

    async def _look_again(self, document: Document, claim: int, homes: Mapping[int, str]) -> _Verdict:
        await asyncio.sleep(LOOK_S)
        return await self._judge(document, await self._ask_homes("look", document, claim, homes))

    async def _leave_others(self, document: Document, homes: Mapping[int, str]) -> None:
        """A text that has changed is known elsewhere by the one before."""
        if document.attempt > 1:
            await self._forget_at([number for number in self._numbers if number not in homes], document)

    async def _forget(self, document: Document) -> None:
        """It is not to be published. At its first attempt it can only have been entered with this text."""
        if document.attempt > 1:
            await self._forget_at(self._numbers, document)
        elif document.fingerprint:
            await self._forget_at(list(keys_by_server(document.fingerprint, self._numbers)), document)

    async def _forget_at(self, numbers: list[int], document: Document) -> None:
        await asyncio.gather(*(self._shares[number].ask(_Ask("forget", document, 0)) for number in numbers))

    async def _judge(self, document: Document, found: list[_Entry], *, known: bool = False) -> _Verdict:
        """`known`: it was entered with this text before, for which it may be published."""
        found = [entry for entry in found if entry.url_id != document.url_id]
        if not found:
            return _Verdict()
        asked = {entry.url_id: entry.partition for entry in found}
        if known:
            asked[document.url_id] = document.partition
        answers = await asyncio.gather(*(self._standings.ask(*ask) for ask in asked.items()))
        standings = dict(zip(asked, answers, strict=True))
        own = standings.get(document.url_id, UNKNOWN)
        if own.published and own.fingerprint == document.fingerprint:
            return _Verdict()  # it came first: the others will see it
        twins = [entry.url_id for entry in found if _is_published(entry, standings[entry.url_id])]
        if twins:
            return _Verdict(twin=standings[min(twins)].url)
        left = [entry for entry in found if _was_left(entry, standings[entry.url_id])]
        await self._remove(left)
        under_way = {entry.url_id for entry in found} - {entry.url_id for entry in left}
        if not under_way:
            return _Verdict()
        return _Verdict(back=min(under_way) < document.url_id, wait=min(under_way) > document.url_id)

    async def _remove(self, left: list[_Entry]) -> None:
        asks = (
            self._shares[entry.server].ask(
                _Ask(
                    "withdraw",
                    Document(entry.url_id, entry.partition, 0, entry.fingerprint),
                    entry.claim,
                )
            )
            for entry in left
        )
        await asyncio.gather(*asks)

    # ---- the end

    def abandon(self, error: StoreUnavailable) -> None:
        """Wait for the index no longer: calls that wait raise `error`, and so does every later one."""
        for share in self._shares.values():
            share.abandon(error)
        self._standings.abandon(error)
        for link in self._links.values():
            link.cut()

    async def close(self) -> None:
        """Let go of the servers. Calls that wait raise StoreUnavailable."""
        for share in self._shares.values():
            await share.stop()
        await self._standings.stop()
        for link in self._links.values():
            await link.close()


def concerns(item: Complete) -> bool:
    """Whether a completion has to do with the index: nothing that can have been entered, nothing that is to be."""
    if item.robots is not None:
        return False
    if item.publish and not item.near:
        return item.key.attempt > 1
    return item.fingerprint != 0 or item.key.attempt > 1


def _is_published(entry: _Entry, standing: Standing) -> bool:
    return standing.published and standing.fingerprint == entry.fingerprint


def _was_left(entry: _Entry, standing: Standing) -> bool:
    """Nothing will come of this claim, or whoever made it will claim again first."""
    return not standing.in_hand or entry.age_ms > ABANDONED_MS


async def _answer(connection: Any, asks: list[_Ask]) -> list[list[_Entry]]:
    """One statement for each kind of request; removing comes first, and looking last, over what was entered."""
    forgotten = {(ask.document.url_id, ask.document.attempt) for ask in asks if ask.what == "forget"}
    if forgotten:
        await connection.execute(NEAR["forget"], *columns(sorted(forgotten)))
    withdrawn = {(ask.document.url_id, ask.claim) for ask in asks if ask.what == "withdraw"}
    if withdrawn:
        await connection.execute(NEAR["withdraw"], *columns(sorted(withdrawn)))
    known = await _known(connection, asks)
    await _put(connection, [ask for ask in asks if ask.what in ("enter", "claim")])
    found = await _look(connection, asks)
    return [mine + others for mine, others in zip(known, found, strict=True)]


async def _known(connection: Any, asks: list[_Ask]) -> list[list[_Entry]]:
    """Documents that were entered before, with the text with which they are to be entered now."""
    entering = [ask.what in ("enter", "claim") and ask.document.attempt > 1 for ask in asks]
    again = {ask.document.url_id for ask, enters in zip(asks, entering, strict=True) if enters}
    if not again:
        return [[] for _ in asks]
    entries = [_Entry(*row) for row in await connection.fetch(NEAR["own"], sorted(again))]
    own = {(entry.url_id, entry.fingerprint): [entry] for entry in entries}
    return [
        own.get((ask.document.url_id, ask.document.fingerprint), []) if enters else []
        for ask, enters in zip(asks, entering, strict=True)
    ]


async def _put(connection: Any, asks: list[_Ask]) -> None:
    entries: dict[int, tuple[Any, ...]] = {}
    for ask in sorted(asks, key=lambda ask: ask.document.attempt):
        document = ask.document
        entries[document.url_id] = (
            document.url_id, document.fingerprint, ask.claim, document.attempt, document.partition, ask.keys,
        )  # fmt: skip
    if entries:
        await connection.execute(NEAR["put"], *columns(list(entries.values())))


async def _look(connection: Any, asks: list[_Ask]) -> list[list[_Entry]]:
    found: list[list[_Entry]] = [[] for _ in asks]
    wanted = [
        (place, ask.document.url_id, ask.document.fingerprint, ask.keys)
        for place, ask in enumerate(asks)
        if ask.what in ("look", "claim")
    ]
    if wanted:
        for place, *entry in await connection.fetch(NEAR["look"], *columns(wanted), NEAR_DUPLICATE_BITS_MAX):
            found[place].append(_Entry(*entry))
    return found
