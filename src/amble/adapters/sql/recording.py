"""Results of an attempt: what was fetched, what failed, what was parsed, what is complete."""

from __future__ import annotations

from msgspec.msgpack import Encoder

from amble.adapters.sql import tally
from amble.adapters.sql.books import REFETCH_CLASS, Books
from amble.adapters.sql.gatekeeping import robots_without_answer
from amble.adapters.sql.holding import Held, Holding
from amble.adapters.sql.identity import SLOT_BITS
from amble.adapters.sql.ledger import Origin
from amble.adapters.sql.near import NearIndex
from amble.adapters.sql.statements import load
from amble.domain.attempt import LeaseKey, UrlKind
from amble.domain.decision import Category
from amble.domain.digest import signed, unsigned
from amble.domain.fetched import BodyRef, Fetched
from amble.domain.frontier import (
    NEAR_DUPLICATE,
    Applied,
    Complete,
    ParseStrike,
    RecordFailed,
    RecordFetched,
    RecordParsed,
    near_detail,
)
from amble.domain.lifecycle import UrlEvent, UrlState, sources, target
from amble.domain.priority import RETRY_CLASS, ROBOTS_CLASS

_URL, _WORK = load("url"), load("work")
_RECORD_BODY, _RECORD_OTHER, _FORGET_BODY, _RETRY, _GIVE_UP, _STRIKE, _PARSED, _HAND_OVER, _COMPLETE = (
    _URL[name]
    for name in (
        "record_body",
        "record_other",
        "forget_body",
        "retry",
        "give_up",
        "strike",
        "record_parsed",
        "hand_over",
        "complete",
    )
)
_ADD_FETCH, _ADD_BODY, _FIND_BODY, _ADD_MANIFEST, _OPEN_MANIFEST, _PUBLISH = (
    _WORK[name]
    for name in (
        "add_fetch",
        "add_body",
        "find_body",
        "add_manifest",
        "open_manifest",
        "publish",
    )
)
# Only a 304 whose body cannot be read is a failed try.
_NOT_MODIFIED = 304
_PAGE, _ROBOTS = int(UrlKind.PAGE), int(UrlKind.ROBOTS)
_FETCH_FROM, _FETCHED = sources(UrlEvent.RECORD_FETCHED), target(UrlEvent.RECORD_FETCHED)
_RETRY_FROM, _PENDING = sources(UrlEvent.RETRY), target(UrlEvent.RETRY)
_FAILED = target(UrlEvent.GIVE_UP)
_PARSE_FROM, _PARSED_STATE = sources(UrlEvent.RECORD_PARSED), target(UrlEvent.RECORD_PARSED)
_COMPLETE_FROM, _COMPLETE_STATE = sources(UrlEvent.COMPLETE), target(UrlEvent.COMPLETE)

Queue = tuple[int | None, int | None]  # (class, due time) of a finished row, both None when it is not queued


class Recording:
    """The operations that carry an attempt from its answer to its end."""

    def __init__(self, books: Books, holding: Holding) -> None:
        self._books = books
        self._holding = holding
        self._near = NearIndex(books.database)
        self._encode = Encoder().encode

    # ---- fetched

    def record_fetched(self, item: RecordFetched) -> Applied:
        """See ports.Frontier.record_fetched."""
        key, fetched = item.key, item.fetched
        held = self._holding.held(key, _FETCH_FROM)
        if held is None:
            return Applied.STALE
        self._write_answer(key, fetched, self._books.now + item.parse_hold_ms)
        self._books.tally.move(held.state, _FETCHED)
        self._log(key, held, item.effect.duration_ms, fetched, None, None)
        self._holding.release(key, held, item.effect)
        return Applied.APPLIED

    def _write_answer(self, key: LeaseKey, fetched: Fetched, hold_until: int) -> None:
        """The row's last good body changes only for a 2xx with bytes: neither a 304 nor an error page replaces it."""
        books = self._books
        validators = fetched.validators
        etag = validators.etag if validators else None
        modified = validators.last_modified if validators else None
        if fetched.body_ref and fetched.digest and 200 <= fetched.status <= 299 and not fetched.not_modified:
            body = (fetched.digest, fetched.body_ref.pack(), etag, modified)
            head = (key.url_id, key.token, hold_until, fetched.status, books.now)
            books.execute(_RECORD_BODY, (*head, *body))
            return
        if not fetched.not_modified:
            etag = modified = None
        books.execute(
            _RECORD_OTHER,
            (key.url_id, key.token, hold_until, fetched.status, books.now, etag, modified),
        )

    def _log(
        self,
        key: LeaseKey,
        held: Held,
        duration_ms: int,
        fetched: Fetched | None,
        category: str | None,
        detail: str | None,
    ) -> None:
        """The immutable record of the attempt, and what it counts for."""
        books = self._books
        answer = self._encode(fetched) if fetched is not None else None
        status = fetched.status if fetched is not None else None
        head = (key.url_id, key.attempt, held.generation, books.now, duration_ms)
        books.execute(_ADD_FETCH, (*head, status, category, detail, answer))
        books.tally.add(tally.FETCHES)
        if fetched is None:
            return
        if held.kind == _PAGE:
            books.tally.add(tally.PAGES)
            books.ledger.by_id(key.url_id >> SLOT_BITS).pages += 1
        books.tally.add(f"status.{fetched.status // 100}xx")
        books.tally.add(tally.WIRE_BYTES, fetched.wire_bytes)
        books.tally.add(tally.BODY_BYTES, fetched.body_bytes)
        if fetched.not_modified:
            books.tally.add(tally.NOT_MODIFIED)
        elif fetched.digest is not None and fetched.body_ref is not None:
            books.execute(_ADD_BODY, (fetched.digest, fetched.body_ref.pack(), fetched.body_bytes))

    def find_body(self, digest: bytes) -> BodyRef | None:
        """See ports.Frontier.find_body."""
        row = self._books.execute(_FIND_BODY, (digest,)).fetchone()
        return None if row is None else BodyRef.unpack(row[0])

    # ---- failed

    def record_failed(self, item: RecordFailed) -> Applied:
        """See ports.Frontier.record_failed."""
        books, key = self._books, item.key
        held = self._holding.held(key, _RETRY_FROM)
        if held is None:
            return Applied.STALE
        duration_ms = item.effect.duration_ms if item.effect else 0
        self._log(key, held, duration_ms, item.fetched, item.category, item.detail)
        if item.fetched is not None and item.fetched.status == _NOT_MODIFIED:
            books.execute(_FORGET_BODY, (key.url_id, key.token))
        origin = self._holding.release(key, held, item.effect)
        status = item.fetched.status if item.fetched else None
        texts = (status, item.category, item.detail, books.now)
        if item.retry_ms is None:
            queue = self._after_last_try(item, held, origin)
            books.execute(_GIVE_UP, (key.url_id, key.token, *queue, *texts, 1))
            books.tally.move(held.state, _FAILED)
            books.tally.add(f"failed.{item.category}")
        else:
            lane = ROBOTS_CLASS if held.kind == _ROBOTS else RETRY_CLASS
            books.execute(_RETRY, (key.url_id, key.token, lane, books.now + item.retry_ms, *texts))
            books.queued(origin.id, 1)
            books.ledger.changed(origin)
            books.tally.move(held.state, _PENDING)
            books.tally.add(f"retry.{item.category}")
        return Applied.APPLIED

    def _after_last_try(self, item: RecordFailed, held: Held, origin: Origin) -> Queue:
        if held.kind != _ROBOTS:
            return None, None
        if item.robots is None:
            return robots_without_answer(self._books, origin)
        origin.decide_robots(item.robots, self._books.now, item.robots_ttl_ms)
        self._books.ledger.changed(origin)
        return REFETCH_CLASS, origin.robots_expires_at

    # ---- parsed

    def record_parsed(self, item: RecordParsed) -> Applied:
        """See ports.Frontier.record_parsed. In PARSED the same key brings a repeated parse, whose manifest replaces the first."""
        books, key = self._books, item.key
        held = self._holding.held(key, (*_PARSE_FROM, _PARSED_STATE))
        if held is None:
            return Applied.STALE
        manifest = (key.url_id, key.attempt, item.extraction_generation)
        text_ref = item.text_ref.pack() if item.text_ref else None
        facts = (item.ref.pack(), item.links, item.content_kind, item.title, text_ref, books.now)
        books.execute(_ADD_MANIFEST, (*manifest, *facts))
        if held.state != _PARSED_STATE:
            books.execute(_PARSED, (key.url_id, key.token, item.content_kind))
            books.tally.move(held.state, _PARSED_STATE)
        if item.hand_over:
            books.execute(_HAND_OVER, (key.url_id, key.token, books.now))
        return Applied.APPLIED

    def parse_strike(self, item: ParseStrike) -> Applied:
        """See ports.Frontier.parse_strike."""
        books, key = self._books, item.key
        held = self._holding.held(key, (*_PARSE_FROM, _PARSED_STATE) if item.final else _PARSE_FROM)
        if held is None:
            return Applied.STALE
        if not item.final:
            books.execute(_STRIKE, (key.url_id, key.token, item.detail))
            return Applied.APPLIED
        origin = books.ledger.by_id(key.url_id >> SLOT_BITS)
        queue: Queue = (None, None)
        if held.kind == _ROBOTS:
            queue = robots_without_answer(books, origin)
        texts = (None, str(Category.PARSE_FAILED), item.detail, books.now)
        books.execute(_GIVE_UP, (key.url_id, key.token, *queue, *texts, 0))
        books.tally.move(held.state, _FAILED)
        books.tally.add(f"failed.{Category.PARSE_FAILED}")
        return Applied.APPLIED

    # ---- complete

    def complete(self, item: Complete) -> Applied:
        """See ports.Frontier.complete."""
        books, key = self._books, item.key
        held = self._holding.held(key, _COMPLETE_FROM)
        if held is None:
            return Applied.STALE
        queue = self._next_visit(item, held, key.url_id >> SLOT_BITS)
        indexed, twin = self._index(item, held)
        withheld, detail = (NEAR_DUPLICATE, near_detail(twin)) if twin else (item.withheld, item.detail)
        facts = (
            item.canonical or None,
            item.directives,
            signed(item.fingerprint),
            withheld or None,
            books.now,
        )
        books.execute(_COMPLETE, (key.url_id, key.token, *queue, *facts, detail or None, indexed))
        books.tally.move(held.state, _COMPLETE_STATE)
        self._open_manifest(key, item.extraction_generation)
        if item.publish and not twin:
            self._publish(key, held.generation, item.extraction_generation)
        elif withheld:
            books.tally.add(f"withheld.{withheld}")
        return Applied.APPLIED

    def _index(self, item: Complete, held: Held) -> tuple[int | None, str]:
        """url.indexed from now on, and the URL of the twin in favour of which the document is withheld."""
        url_id, fingerprint = item.key.url_id, item.fingerprint
        published = item.publish and fingerprint != 0
        if held.indexed is not None:
            before = unsigned(held.indexed)
            if published and item.near and before == fingerprint:
                return 1, ""
            self._near.leave(url_id, before)
        if not published or not item.near:
            return 0 if published else None, ""
        twin = self._near.enter(url_id, fingerprint)
        return (1, "") if twin is None else (None, self._near.url(twin))

    def find_near(self, fingerprint: int) -> str | None:
        """The URL of a published document of this file that is nearly the same text."""
        return self._near.twin_url(fingerprint)

    def _next_visit(self, item: Complete, held: Held, origin_id: int) -> Queue:
        books = self._books
        if held.kind == _ROBOTS:
            origin = books.ledger.by_id(origin_id)
            if item.robots is None:
                return robots_without_answer(books, origin)
            origin.decide_robots(item.robots, books.now, item.robots_ttl_ms)
            books.ledger.changed(origin)
            return REFETCH_CLASS, origin.robots_expires_at
        if item.revisit_ms is None:
            return None, None
        books.queued(origin_id, 1)
        books.ledger.changed(books.ledger.by_id(origin_id))
        return item.revisit_priority, books.now + item.revisit_ms

    def _open_manifest(self, key: LeaseKey, generation: int) -> None:
        books = self._books
        row = books.execute(_OPEN_MANIFEST, (key.url_id, key.attempt, generation)).fetchone()
        if row is not None and row[0] < row[1]:
            books.tally.add(tally.MANIFESTS_OPEN)

    def _publish(self, key: LeaseKey, crawl_generation: int, extraction_generation: int) -> None:
        books = self._books
        document = (key.url_id, crawl_generation, extraction_generation, key.attempt, books.now)
        if books.execute(_PUBLISH, document).fetchone() is not None:
            books.tally.add(tally.PUBLICATIONS)


# The states that this module moves between are the table's own; a change there must be looked at here.
assert (_FETCHED, _PARSED_STATE, _COMPLETE_STATE, _FAILED, _PENDING) == (
    UrlState.FETCHED,
    UrlState.PARSED,
    UrlState.COMPLETE,
    UrlState.FAILED,
    UrlState.PENDING,
)
