"""A new owner takes over: a new epoch fences the old one, its leases lapse, what it had fetched is handed on."""

from __future__ import annotations

from msgspec.msgpack import Decoder

from amble.adapters.sql.books import TOKEN_BYTES, Books
from amble.adapters.sql.gatekeeping import Gatekeeping
from amble.adapters.sql.identity import SLOT_BITS
from amble.adapters.sql.statements import load
from amble.domain.attempt import Lease, LeaseKey
from amble.domain.errors import StoreBroken
from amble.domain.fetched import BodyRef, Fetched
from amble.domain.frontier import OpenManifest, Resumable, Takeover, TakeoverAsk
from amble.domain.lifecycle import UrlState
from amble.domain.manifest import ManifestKey

_ORIGIN, _URL, _WORK = load("origin"), load("url"), load("work")
_CLAIM = _ORIGIN["claim"]
_LEASED_ROWS, _RESUMABLE, _RETOKEN = (_URL[name] for name in ("leased", "resumable", "retoken"))
_MANIFEST_OF, _OPEN_MANIFESTS = _WORK["manifest_of"], _WORK["open_manifests"]
_PARSED = int(UrlState.PARSED)

# id, state, attempt, path, kind, depth, hops, tries, generation, strikes, answer: one row of `resumable`.
ResumableRow = tuple[int, int, int, str, int, int, int, int, int, int, bytes]

# url_id, attempt, generation, ref, cursor, links, depth, hops, origin, path: one row of `open_manifests`.
OpenRow = tuple[int, int, int, bytes, int, int, int, int, str, str]


class Ownership:
    """The operation `take_over`. What it returns is bounded by the parse backlog that the agent allows itself."""

    def __init__(self, books: Books, gatekeeping: Gatekeeping) -> None:
        self._books = books
        self._gatekeeping = gatekeeping
        self._decode = Decoder(Fetched).decode

    def take_over(self, ask: TakeoverAsk) -> Takeover:
        """See ports.Frontier.take_over."""
        books = self._books
        if ask.epoch is None:
            books.epoch = books.execute(_CLAIM, (ask.owner,)).fetchone()[0]
        elif ask.epoch != books.epoch:
            raise StoreBroken(f"partition {ask.partition} is under epoch {books.epoch}, not {ask.epoch}")
        lapsed = books.execute(_LEASED_ROWS).fetchall()
        self._gatekeeping.requeue_leased(lapsed)
        return Takeover(
            epoch=books.epoch,
            lapsed=len(lapsed),
            resumables=[self._resumable(row) for row in books.execute(_RESUMABLE).fetchall()],
            open_manifests=[self._open(row) for row in books.execute(_OPEN_MANIFESTS).fetchall()],
            now_ms=books.now,
        )

    def _resumable(self, row: ResumableRow) -> Resumable:
        books = self._books
        url_id, state, attempt, path, kind, depth, hops, tries, generation, strikes, answer = row
        if answer is None:
            raise StoreBroken(f"URL {url_id} is past FETCHED, but its fetch record has no answer")
        token = books.token(TOKEN_BYTES)
        hold_until = books.now + books.settings.resume_hold_ms
        books.execute(_RETOKEN, (url_id, token, hold_until))
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
        fetched = self._decode(answer)
        if state != _PARSED:
            return Resumable(lease, fetched, strikes)
        manifest = books.execute(_MANIFEST_OF, (url_id, attempt)).fetchone()
        if manifest is None:
            raise StoreBroken(f"URL {url_id} is PARSED without a manifest")
        extraction_generation, ref, links, content_kind = manifest
        return Resumable(
            lease, fetched, strikes, BodyRef.unpack(ref), extraction_generation, links, content_kind
        )

    def _open(self, row: OpenRow) -> OpenManifest:
        url_id, attempt, generation, ref, cursor, links, depth, hops, origin, path = row
        key = ManifestKey(url_id, attempt, generation, self._books.settings.partition)
        return OpenManifest(key, BodyRef.unpack(ref), cursor, links, depth, hops, origin, path)
