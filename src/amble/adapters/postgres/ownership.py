"""Who carries on what is in flight: a new owner of a partition, a parse worker, an owner after a parse worker."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from msgspec.msgpack import Decoder

from amble.adapters.postgres.books import TOKEN_BYTES, Books
from amble.adapters.postgres.gatekeeping import requeue_leased
from amble.adapters.postgres.recording import fail_parse
from amble.adapters.postgres.rows import FLIGHT, UrlRow
from amble.adapters.sql.ownership import STRUCK_OUT, RowUnreadable, stored_answer, stored_ref
from amble.domain.attempt import Lease, LeaseKey, UrlKind
from amble.domain.errors import OperationRefused
from amble.domain.fetched import BodyRef, Fetched
from amble.domain.frontier import STRIKES_APART, AdoptAsk, OpenManifest, Resumable, Takeover, TakeoverAsk
from amble.domain.lifecycle import UrlState
from amble.domain.manifest import ManifestKey

_LEASED: Final = int(UrlState.LEASED)
_FETCHED: Final = int(UrlState.FETCHED)
_PARSED: Final = int(UrlState.PARSED)
_ROBOTS: Final = int(UrlKind.ROBOTS)
_decode = Decoder(Fetched).decode


class Stored(NamedTuple):
    """What the archive has of rows past LEASED: their answers, and the latest manifest of those that are parsed."""

    answers: dict[int, bytes | None]
    manifests: dict[int, tuple[int, bytes, int, str, int]]  # generation, reference, links, kind, cursor


def take_over(
    books: Books, partition: int, ask: TakeoverAsk, rows: list[UrlRow], stored: Stored, opened: list[Any]
) -> Takeover:
    """See ports.Frontier.take_over. `rows`: all that is in flight; `opened`: rows of `open_manifests`.

    What it returns is bounded by the parse backlog that an agent allows itself.
    """
    owned = books.partitions.get(partition)
    if owned is None:
        raise OperationRefused(f"partition {partition} does not live here")
    if ask.epoch is not None and ask.epoch != owned.epoch:
        raise OperationRefused(f"partition {partition} is under epoch {owned.epoch}, not {ask.epoch}")
    lapsed = [row for row in rows if row.state == _LEASED]
    requeue_leased(books, lapsed, stopped=ask.epoch is None)
    resumables: list[Resumable] = []
    for row in rows:
        if row.state == _PARSED and not ask.resume:
            row.worker = None
            row.hold_until(min(books.now, row.expires_at or 0))
        elif row.state == _PARSED or (row.state == _FETCHED and (ask.resume or row.kind == _ROBOTS)):
            if row.state == _FETCHED and row.strikes >= books.settings.strikes_adopted_max:
                # Every life of the agent gives it its tries anew, and perhaps has ended with it before they were over.
                fail_parse(books, row, partition, STRUCK_OUT)
                continue
            row.hold(books.token(TOKEN_BYTES), row.worker, books.now + books.settings.resume_hold_ms)
            resumables += _readable(books, partition, row, stored)
    return Takeover(
        epoch=owned.epoch,
        lapsed=len(lapsed),
        resumables=resumables,
        open_manifests=[_open(partition, row) for row in opened],
        now_ms=books.now,
    )


def adopt(books: Books, ask: AdoptAsk, rows: list[tuple[int, UrlRow]], stored: Stored) -> list[Resumable]:
    """See ports.Frontier.adopt. `rows`: (partition, row) of what nobody holds.

    A FETCHED row whose last holder let its hold lapse has perhaps ended that holder: it gets a strike, and with too
    many of them it ends as parse_failed instead of ending one parse worker after the other; before that it is adopted
    alone, so that others do not end with it. A row that was offered, or handed over, gets none.
    """
    if ask.partition is not None and not books.is_current(ask.partition, ask.epoch):
        return []
    found: list[Resumable] = []
    for partition, row in rows:
        if row.state != ask.state or row.expires_at is None or row.expires_at > books.now:
            continue  # an earlier call of this transaction took it
        lapsed = row.state == _FETCHED and row.worker is not None
        apart = row.state == _FETCHED and row.strikes + lapsed >= STRIKES_APART
        if apart and found:
            continue
        if lapsed:
            row.strikes += 1
            row.changed |= FLIGHT
            if row.strikes >= books.settings.strikes_adopted_max:
                fail_parse(books, row, partition, "whoever parsed it went away")
                continue
        row.hold(books.token(TOKEN_BYTES), ask.worker, books.now + ask.hold_ms)
        found += _readable(books, partition, row, stored)
        if apart and found:
            break
    return found


def _readable(books: Books, partition: int, row: UrlRow, stored: Stored) -> list[Resumable]:
    """Nothing where the row cannot be read: it ends as parse_failed, and nobody else's page waits for it."""
    try:
        return [_resumable(books, partition, row, stored)]
    except RowUnreadable as broken:
        fail_parse(books, row, partition, str(broken))
        return []


def _resumable(books: Books, partition: int, row: UrlRow, stored: Stored) -> Resumable:
    fetched = stored_answer(_decode, stored.answers.get(row.id))
    assert row.token is not None
    assert row.expires_at is not None
    origin = books.origin_of(row.id)
    lease = Lease(
        LeaseKey(row.id, row.attempt, row.token, partition),
        origin.id,
        origin.key,
        row.path,
        row.kind,
        row.depth,
        row.hops,
        row.tries,
        row.generation,
        row.expires_at,
        books.facts(origin),
    )
    if row.state != _PARSED:
        return Resumable(lease, fetched, row.strikes)
    manifest = stored.manifests.get(row.id)
    if manifest is None:
        raise RowUnreadable("it was parsed, but no manifest is known")
    generation, ref, links, content_kind, cursor = manifest
    return Resumable(lease, fetched, row.strikes, stored_ref(ref), generation, links, content_kind, cursor)


def _open(partition: int, row: Any) -> OpenManifest:
    url_id, attempt, generation, ref, cursor, links, depth, hops, origin, path = row
    key = ManifestKey(url_id, attempt, generation, partition)
    return OpenManifest(key, BodyRef.unpack(ref), cursor, links, depth, hops, origin, path)
