"""Results of an attempt: what was fetched, what failed, what was parsed, what is complete."""

from __future__ import annotations

from msgspec.msgpack import Encoder

from amble.adapters.postgres.books import Books, plain
from amble.adapters.postgres.holding import decide_robots, release
from amble.adapters.postgres.rows import ANSWER, END, FLIGHT, ManifestRow, Parse, UrlRow
from amble.adapters.sql import tally
from amble.domain.attempt import UrlKind
from amble.domain.decision import Category
from amble.domain.digest import signed
from amble.domain.fetched import BodyRef, Fetched
from amble.domain.frontier import (
    Applied,
    Complete,
    ParseStrike,
    RecordFailed,
    RecordFetched,
    RecordParsed,
)
from amble.domain.lifecycle import UrlEvent, sources, target
from amble.domain.priority import RETRY_CLASS, ROBOTS_CLASS

# Only a 304 whose body cannot be read is a failed try.
_NOT_MODIFIED = 304
_PAGE, _ROBOTS = int(UrlKind.PAGE), int(UrlKind.ROBOTS)
_FETCH_FROM, _FETCHED = sources(UrlEvent.RECORD_FETCHED), target(UrlEvent.RECORD_FETCHED)
_RETRY_FROM, _PENDING = sources(UrlEvent.RETRY), target(UrlEvent.RETRY)
_FAILED = target(UrlEvent.GIVE_UP)
_PARSE_FROM, _PARSED = sources(UrlEvent.RECORD_PARSED), target(UrlEvent.RECORD_PARSED)
_COMPLETE_FROM, _COMPLETE = sources(UrlEvent.COMPLETE), target(UrlEvent.COMPLETE)
_encode = Encoder().encode


# ---- fetched


def record_fetched(books: Books, item: RecordFetched) -> Applied:
    """See ports.Frontier.record_fetched."""
    row = books.held(item.key, _FETCH_FROM)
    if row is None:
        return Applied.STALE
    _write_answer(row, item.fetched, books.now)
    origin = release(books, row, item.effect)
    _log(books, row, origin.partition, item.effect.duration_ms, item.fetched, None, None)
    books.move(origin.partition, row.state, _FETCHED)
    row.state = _FETCHED
    row.hold_until(books.now + item.parse_hold_ms)
    if item.parse_hold_ms <= 0:
        row.worker = None  # nobody holds it: whoever takes it takes it from nobody
    return Applied.APPLIED


def _write_answer(row: UrlRow, fetched: Fetched, now: int) -> None:
    """The row's last good body changes only for a 2xx with bytes: neither a 304 nor an error page replaces it."""
    validators = fetched.validators
    etag = _header(validators.etag) if validators else None
    modified = _header(validators.last_modified) if validators else None
    row.status, row.fetched_at = fetched.status, now
    row.checks += 1
    row.changed |= ANSWER
    if fetched.body_ref and fetched.digest and 200 <= fetched.status <= 299 and not fetched.not_modified:
        row.changes += row.digest is not None and row.digest != fetched.digest
        row.digest, row.body_ref = fetched.digest, fetched.body_ref.pack()
        row.etag, row.last_modified = etag, modified
    elif fetched.not_modified:
        row.etag = etag if etag is not None else row.etag
        row.last_modified = modified if modified is not None else row.last_modified


def _header(value: str | None) -> str | None:
    """A validator with a NUL cannot be kept, so it cannot be sent back."""
    return None if value is None or "\x00" in value else value


def _log(
    books: Books,
    row: UrlRow,
    partition: int,
    duration_ms: int,
    fetched: Fetched | None,
    category: str | None,
    detail: str | None,
) -> None:
    """The immutable record of the attempt, and what it counts for."""
    answer = _encode(fetched) if fetched is not None else None
    status = fetched.status if fetched is not None else None
    told = None if detail is None else plain(detail)
    books.add_fetch(row.id, row.attempt, row.generation, duration_ms, status, category, told, answer)
    books.count(partition, tally.FETCHES)
    if fetched is None:
        return
    if row.kind == _PAGE:
        books.count(partition, tally.PAGES)
        books.origin_of(row.id).pages += 1
    books.count(partition, f"status.{fetched.status // 100}xx")
    books.count(partition, tally.WIRE_BYTES, fetched.wire_bytes)
    books.count(partition, tally.BODY_BYTES, fetched.body_bytes)
    if fetched.not_modified:
        books.count(partition, tally.NOT_MODIFIED)
    elif fetched.digest is not None and fetched.body_ref is not None and not books.settings.digests_elsewhere:
        books.add_body(fetched.digest, fetched.body_ref.pack(), fetched.body_bytes)


def find_body(books: Books, digest: bytes) -> BodyRef | None:
    """See ports.Frontier.find_body."""
    ref = books.bodies.get(digest)
    return None if ref is None else BodyRef.unpack(ref)


# ---- failed


def record_failed(books: Books, item: RecordFailed) -> Applied:
    """See ports.Frontier.record_failed."""
    row = books.held(item.key, _RETRY_FROM)
    if row is None:
        return Applied.STALE
    origin = release(books, row, item.effect)
    partition = origin.partition
    duration_ms = item.effect.duration_ms if item.effect else 0
    _log(books, row, partition, duration_ms, item.fetched, item.category, item.detail)
    if item.fetched is not None:
        row.status = item.fetched.status
        row.changed |= ANSWER
        if item.fetched.status == _NOT_MODIFIED:
            row.digest = row.body_ref = row.etag = row.last_modified = None
    row.tries += 1
    row.let_go()
    row.explain(item.category, plain(item.detail), books.now)
    if item.retry_ms is None:
        _give_up(books, row, partition, item.category)
        if row.kind == _ROBOTS:
            decide_robots(books, row, item.robots, item.robots_ttl_ms)
        return Applied.APPLIED
    books.move(partition, row.state, _PENDING)
    row.state = _PENDING
    row.rq = ROBOTS_CLASS if row.kind == _ROBOTS else RETRY_CLASS
    row.due_at = books.now + item.retry_ms
    books.queued(origin, 1)
    books.changed(origin)
    books.count(partition, f"retry.{item.category}")
    return Applied.APPLIED


def _give_up(books: Books, row: UrlRow, partition: int, category: str) -> None:
    books.move(partition, row.state, _FAILED)
    row.state = row.ended = _FAILED
    row.rq = row.due_at = None
    books.count(partition, f"failed.{category}")


# ---- parsed


def record_parsed(books: Books, item: RecordParsed) -> Applied:
    """See ports.Frontier.record_parsed. In PARSED the same key brings a repeated parse, whose manifest replaces the first."""
    row = books.held(item.key, (*_PARSE_FROM, _PARSED))
    if row is None:
        return Applied.STALE
    partition = item.key.partition
    text_ref = item.text_ref.pack() if item.text_ref else None
    manifest = ManifestRow(
        None, row.id, row.attempt, item.extraction_generation, partition, 0, item.links, opened=False
    )
    books.add_parse(manifest, Parse(item.ref.pack(), item.content_kind, plain(item.title), text_ref))
    if row.state != _PARSED:
        books.move(partition, row.state, _PARSED)
        row.state, row.content_kind = _PARSED, item.content_kind
        row.changed |= FLIGHT | ANSWER
    if item.hand_over:
        row.worker = None
        row.hold_until(books.now)
    return Applied.APPLIED


def parse_strike(books: Books, item: ParseStrike) -> Applied:
    """See ports.Frontier.parse_strike."""
    row = books.held(item.key, (*_PARSE_FROM, _PARSED) if item.final else _PARSE_FROM)
    if row is None:
        return Applied.STALE
    if item.final:
        fail_parse(books, row, item.key.partition, item.detail)
    else:
        row.strikes += 1
        row.detail = plain(item.detail)
        row.changed |= FLIGHT | END
    return Applied.APPLIED


def fail_parse(books: Books, row: UrlRow, partition: int, detail: str) -> None:
    """No further parse of this body."""
    row.let_go()
    row.explain(str(Category.PARSE_FAILED), plain(detail), books.now)
    _give_up(books, row, partition, str(Category.PARSE_FAILED))
    if row.kind == _ROBOTS:
        decide_robots(books, row, None, 0)


# ---- complete


def complete(books: Books, item: Complete) -> Applied:
    """See ports.Frontier.complete."""
    row = books.held(item.key, _COMPLETE_FROM)
    if row is None:
        return Applied.STALE
    partition = item.key.partition
    books.move(partition, row.state, _COMPLETE)
    row.state, row.tries = _COMPLETE, 0
    row.let_go()
    row.explain(item.withheld or None, plain(item.detail) or None, books.now)
    row.canonical = item.canonical or None
    row.directives, row.fingerprint = item.directives, signed(item.fingerprint)
    _next_visit(books, item, row)
    _open_manifest(books, row, item.extraction_generation)
    if item.publish:
        indexed = item.near and item.fingerprint != 0
        books.publish(partition, row, item.extraction_generation, indexed=indexed)
    elif item.withheld:
        books.count(partition, f"withheld.{item.withheld}")
    return Applied.APPLIED


def _next_visit(books: Books, item: Complete, row: UrlRow) -> None:
    row.rq = row.due_at = None
    if row.kind == _ROBOTS:
        decide_robots(books, row, item.robots, item.robots_ttl_ms)
    elif item.revisit_ms is not None:
        origin = books.origin_of(row.id)
        row.rq, row.due_at = item.revisit_priority, books.now + item.revisit_ms
        books.queued(origin, 1)
        books.changed(origin)


def _open_manifest(books: Books, row: UrlRow, generation: int) -> None:
    manifest = books.manifests.get((row.id, row.attempt, generation))
    if manifest is None:
        return
    manifest.opened = manifest.changed = True
    if manifest.cursor < manifest.links:
        books.count(manifest.partition, tally.MANIFESTS_OPEN)
