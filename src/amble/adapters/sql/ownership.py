"""Who carries rows on that were left behind: a new owner takes over, parse workers and owners adopt."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from msgspec import MsgspecError
from msgspec.msgpack import Decoder

from amble.adapters.sql.books import TOKEN_BYTES, Books
from amble.adapters.sql.gatekeeping import Gatekeeping
from amble.adapters.sql.identity import SLOT_BITS
from amble.adapters.sql.recording import Recording
from amble.adapters.sql.statements import load
from amble.domain.attempt import Lease, LeaseKey
from amble.domain.errors import StoreBroken
from amble.domain.fetched import BodyRef, Fetched
from amble.domain.frontier import (
    STRIKES_APART,
    AdoptAsk,
    OpenManifest,
    ParseStrike,
    Resumable,
    Takeover,
    TakeoverAsk,
)
from amble.domain.lifecycle import UrlState
from amble.domain.manifest import ManifestKey

_ORIGIN, _URL, _WORK = load("origin"), load("url"), load("work")
_CLAIM = _ORIGIN["claim"]
_LEASED_ROWS, _RESUMABLE, _RESUMABLE_ROBOTS, _RETOKEN, _OFFER_PARSED, _ADOPTABLE, _ADOPT = (
    _URL[name]
    for name in (
        "leased",
        "resumable",
        "resumable_robots",
        "retoken",
        "offer_parsed",
        "adoptable",
        "adopt",
    )
)
_MANIFEST_OF, _OPEN_MANIFESTS = _WORK["manifest_of"], _WORK["open_manifests"]
_FETCHED, _PARSED = int(UrlState.FETCHED), int(UrlState.PARSED)

# Why a page ends that no life of its owner could parse to the end.
STRUCK_OUT: Final = "its parser failed too often, and its owner went away before it was parsed"

# id, state, attempt, path, kind, depth, hops, tries, generation, strikes, answer: one row of `resumable`.
ResumableRow = tuple[int, int, int, str, int, int, int, int, int, int, bytes]

# The same, then the token and the worker of the last holder: one row of `adoptable`.
AdoptableRow = tuple[int, int, int, str, int, int, int, int, int, int, bytes, bytes, int | None]

# url_id, attempt, generation, ref, cursor, links, depth, hops, origin, path: one row of `open_manifests`.
OpenRow = tuple[int, int, int, bytes, int, int, int, int, str, str]


class RowUnreadable(Exception):
    """What is stored of one row past FETCHED cannot be carried on. It ends with this reason; others go on."""


class Ownership:
    """The operations `take_over` and `adopt`.

    What `take_over` returns is bounded by the parse backlog that the agent allows itself.
    """

    def __init__(self, books: Books, gatekeeping: Gatekeeping, recording: Recording) -> None:
        self._books = books
        self._gatekeeping = gatekeeping
        self._recording = recording
        self._decode = Decoder(Fetched).decode

    def take_over(self, ask: TakeoverAsk) -> Takeover:
        """See ports.Frontier.take_over."""
        books = self._books
        if ask.partition != books.settings.partition:
            raise StoreBroken(f"partition {ask.partition} does not live in this file")
        if ask.epoch is None:
            books.epoch = books.execute(_CLAIM, (ask.owner,)).fetchone()[0]
        elif ask.epoch != books.epoch:
            raise StoreBroken(f"partition {ask.partition} is under epoch {books.epoch}, not {ask.epoch}")
        lapsed = books.execute(_LEASED_ROWS).fetchall()
        self._gatekeeping.requeue_leased(lapsed)
        if ask.resume:
            left = books.execute(_RESUMABLE).fetchall()
        else:
            books.execute(_OFFER_PARSED, (books.now,))
            left = books.execute(_RESUMABLE_ROBOTS).fetchall()
        return Takeover(
            epoch=books.epoch,
            lapsed=len(lapsed),
            resumables=[found for row in left if (found := self._resume(row)) is not None],
            open_manifests=[self._open(row) for row in books.execute(_OPEN_MANIFESTS).fetchall()],
            now_ms=books.now,
        )

    def _resume(self, row: ResumableRow) -> Resumable | None:
        """A row that the new owner holds from now on; None: it has ended: it cannot be read, or has too many strikes."""
        books = self._books
        token = books.token(TOKEN_BYTES)
        hold_until = books.now + books.settings.resume_hold_ms
        books.execute(_RETOKEN, (row[0], token, hold_until))
        if row[1] == _FETCHED and row[9] >= books.settings.strikes_adopted_max:
            # Every life of the agent gives it its tries anew, and perhaps has ended with it before they were over.
            key = LeaseKey(row[0], row[2], token, books.settings.partition)
            self._recording.parse_strike(ParseStrike(key, STRUCK_OUT, final=True))
            return None
        return self._readable(row, token, hold_until)

    def adopt(self, ask: AdoptAsk) -> list[Resumable]:
        """See ports.Frontier.adopt.

        A FETCHED row whose last holder let its hold lapse has perhaps ended that holder: it gets a strike, and with
        too many of them it ends as parse_failed instead of ending one parse worker after the other; before that it is
        adopted alone, so that others do not end with it. A row that was offered, or handed over, gets none.
        """
        books = self._books
        if ask.partition is not None and not books.is_current(ask.partition, ask.epoch):
            return []
        kinds = sum(1 << kind for kind in ask.kinds) if ask.kinds else -1
        rows = books.execute(_ADOPTABLE, (ask.state, books.now, ask.count, kinds)).fetchall()
        found: list[Resumable] = []
        for row in rows:
            strikes = row[9] + (row[1] == _FETCHED and row[12] is not None)
            apart = row[1] == _FETCHED and strikes >= STRIKES_APART
            if apart and found:
                continue
            adopted = self._adopt(row, ask, strikes)
            found += [] if adopted is None else [adopted]
            if apart and found:
                break
        return found

    def _adopt(self, row: AdoptableRow, ask: AdoptAsk, strikes: int) -> Resumable | None:
        books = self._books
        url_id, state, attempt, *_ = row
        last_token, last_holder = row[11], row[12]
        lapsed = state == _FETCHED and last_holder is not None
        if lapsed and strikes >= books.settings.strikes_adopted_max:
            key = LeaseKey(url_id, attempt, last_token, books.settings.partition)
            self._recording.parse_strike(ParseStrike(key, "whoever parsed it went away", final=True))
            return None
        token, hold_until = books.token(TOKEN_BYTES), books.now + ask.hold_ms
        books.execute(_ADOPT, (url_id, token, ask.worker, hold_until, strikes))
        return self._readable((*row[:9], strikes, row[10]), token, hold_until)

    def _readable(self, row: ResumableRow, token: bytes, hold_until: int) -> Resumable | None:
        """None where the row cannot be read: it ends as parse_failed, and nobody else's page waits for it."""
        try:
            return self._resumable(row, token, hold_until)
        except RowUnreadable as broken:
            key = LeaseKey(row[0], row[2], token, self._books.settings.partition)
            self._recording.parse_strike(ParseStrike(key, str(broken), final=True))
            return None

    def _resumable(self, row: ResumableRow, token: bytes, hold_until: int) -> Resumable:
        books = self._books
        url_id, state, attempt, path, kind, depth, hops, tries, generation, strikes, answer = row
        fetched = stored_answer(self._decode, answer)
        origin = books.ledger.by_id(url_id >> SLOT_BITS)
        lease = Lease(
            LeaseKey(url_id, attempt, token, books.settings.partition),
            origin.id,
            origin.key,
            path,
            kind,
            depth,
            hops,
            tries,
            generation,
            hold_until,
            books.ledger.facts(origin),
        )
        if state != _PARSED:
            return Resumable(lease, fetched, strikes)
        manifest = books.execute(_MANIFEST_OF, (url_id, attempt)).fetchone()
        if manifest is None:
            raise RowUnreadable("it was parsed, but no manifest is known")
        extraction_generation, ref, links, *rest = manifest
        return Resumable(lease, fetched, strikes, stored_ref(ref), extraction_generation, links, *rest)

    def _open(self, row: OpenRow) -> OpenManifest:
        url_id, attempt, generation, ref, cursor, links, depth, hops, origin, path = row
        key = ManifestKey(url_id, attempt, generation, self._books.settings.partition)
        return OpenManifest(key, BodyRef.unpack(ref), cursor, links, depth, hops, origin, path)


def stored_answer(decode: Callable[[bytes], Fetched], answer: bytes | None) -> Fetched:
    """The answer of a fetch record. Raises RowUnreadable."""
    if answer is None:
        raise RowUnreadable("it was fetched, but its fetch record has no answer")
    try:
        return decode(answer)
    except MsgspecError as error:
        raise RowUnreadable(f"the answer in its fetch record cannot be read: {error}") from None


def stored_ref(packed: bytes) -> BodyRef:
    """Where a manifest is stored. Raises RowUnreadable."""
    try:
        return BodyRef.unpack(packed)
    except (ValueError, struct.error) as error:
        raise RowUnreadable(f"where its manifest is stored cannot be read: {error}") from None
