"""Admission: unknown candidates become queued URLs, or leave for their partition, in the commit that moves the cursor."""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec.msgpack import Encoder

from amble.adapters.postgres.books import Books
from amble.adapters.postgres.rows import Origin
from amble.adapters.postgres.statements import URL
from amble.adapters.sql import tally
from amble.adapters.sql.identity import SLOT_BITS, subject_of
from amble.adapters.sql.sites import COUNTED_FROM
from amble.domain.attempt import Edge, UrlKind
from amble.domain.decision import Reason
from amble.domain.errors import OperationRefused
from amble.domain.frontier import AdmitBatch, AdmitReport, Applied, Candidate, Verdict
from amble.domain.manifest import CursorAdvance
from amble.domain.priority import ROBOTS_CLASS
from amble.domain.robots import ROBOTS_PATH
from amble.domain.url import host_of, site_of

_PENDING: Final = tally.STATES[0]
_BUDGETS: Final = (
    (Verdict.OVER_BUDGET, Reason.ORIGIN_BUDGET),
    (Verdict.OVER_SITE_BUDGET, Reason.SITE_BUDGET),
)
_encode = Encoder().encode


def site_name(origin_key: str) -> str:
    """The registrable domain of an origin, under which its site counts."""
    return site_of(host_of(origin_key + "/"))


async def admit(books: Books, partition: int, batch: AdmitBatch) -> AdmitReport:
    """See ports.Frontier.admit."""
    if batch.cursor is not None and not _advance(books, batch.cursor):
        return AdmitReport(int(Applied.STALE), b"")
    verdicts = bytearray(len(batch.candidates))
    parcels: dict[int, list[Candidate]] = {}
    for number, candidate in enumerate(batch.candidates):
        if books.is_known(candidate.origin, candidate.path):
            continue  # ALREADY_KNOWN, wherever it belongs
        if candidate.partition == partition:
            verdicts[number] = await _admit(books, partition, candidate, batch.policy_version)
        elif candidate.partition in books.here and await find(books, candidate.origin, candidate.path):
            verdicts[number] = Verdict.ALREADY_KNOWN
        else:
            verdicts[number] = Verdict.FORWARDED
            parcels.setdefault(candidate.partition, []).append(candidate)
    _forward(books, partition, parcels, batch.policy_version)
    _count(books, partition, batch, bytes(verdicts))
    return AdmitReport(int(Applied.APPLIED), bytes(verdicts))


async def admit_here(books: Books, partition: int, candidates: list[Candidate], policy_version: int) -> bytes:
    """Admit all candidates, whichever partition they name, and count; one verdict for each."""
    verdicts = bytearray(len(candidates))
    for number, candidate in enumerate(candidates):
        if not books.is_known(candidate.origin, candidate.path):
            verdicts[number] = await _admit(books, partition, candidate, policy_version)
    _count(books, partition, AdmitBatch(candidates, policy_version=policy_version), bytes(verdicts))
    return bytes(verdicts)


def _advance(books: Books, move: CursorAdvance) -> bool:
    key = (move.manifest.url_id, move.manifest.attempt, move.manifest.extraction_generation)
    row = books.manifests.get(key)
    if row is None or row.cursor != move.start:
        return False
    if not move.start <= move.end <= row.links:
        raise OperationRefused(f"a cursor cannot move from {move.start} to {move.end} of {row.links} links")
    if move.end > move.start:
        row.cursor, row.changed = move.end, True
        books.count(row.partition, tally.LINKS, move.end - move.start)
        if row.opened and move.end == row.links:
            books.count(row.partition, tally.MANIFESTS_OPEN, -1)
    return True


async def find(books: Books, origin_key: str, path: str) -> int | None:
    """The id of a known URL."""
    origin_id = books.origin_ids.get(origin_key)
    if origin_id is None:
        return None
    url_id, holder = await _place(books, origin_id, path)
    return None if holder is None else url_id


async def _place(books: Books, origin_id: int, path: str) -> tuple[int, str | None]:
    """The id that holds this path, or the first free one. More than one look is a true collision, which is rare."""
    url_id = origin_id << SLOT_BITS | books.slots.first(path)
    holder = await _path_at(books, url_id)
    if holder is None or holder == path:
        return url_id, holder
    for slot in books.slots.after_first(path):
        url_id = origin_id << SLOT_BITS | slot
        holder = await _path_at(books, url_id)
        if holder is None or holder == path:
            return url_id, holder
    raise AssertionError("the slots of an origin never end")


async def _path_at(books: Books, url_id: int) -> str | None:
    if url_id not in books.paths and url_id >> SLOT_BITS in books.opened:
        return None
    if url_id not in books.paths:
        row = await books.database.one(URL["paths"], [url_id])
        books.paths[url_id] = None if row is None else row[1]
    return books.paths[url_id]


async def _admit(books: Books, partition: int, candidate: Candidate, policy_version: int) -> int:
    origin_id = books.origin_ids.get(candidate.origin)
    if origin_id is not None:
        _, holder = await _place(books, origin_id, candidate.path)
        if holder is not None:
            return Verdict.ALREADY_KNOWN
    origin = await _origin(books, partition, candidate)
    if origin is None:
        return Verdict.OVER_SITE_BUDGET
    url_id, holder = await _place(books, origin.id, candidate.path)
    if holder is not None:
        return Verdict.ALREADY_KNOWN
    if _over_budget(books, origin):
        return Verdict.OVER_BUDGET
    origin.urls += 1
    where = (candidate.depth, candidate.hops, candidate.edge, candidate.parent, policy_version)
    books.add_url((url_id, candidate.path, candidate.kind, candidate.priority, *where))
    _queue(books, origin)
    return Verdict.ADMITTED


def _queue(books: Books, origin: Origin) -> None:
    books.queued(origin, 1)
    books.changed(origin)
    books.count(origin.partition, _PENDING)
    books.count(origin.partition, tally.ADMITTED)


def _over_budget(books: Books, origin: Origin) -> bool:
    settings = books.settings
    earned = settings.urls_per_origin_start + settings.urls_per_fetched_page * origin.pages
    return origin.urls >= min(settings.urls_per_origin_max, earned)


async def _origin(books: Books, partition: int, candidate: Candidate) -> Origin | None:
    """The origin of a candidate, with its robots.txt known and queued before any of its pages is.

    None when its site has too many origins already; what an operator gave as a seed is opened all the same.
    """
    origin = books.by_key(candidate.origin)
    if origin is None:
        if not books.can_open:
            return None
        if not _has_room(books, partition, candidate.origin) and candidate.edge != Edge.SEED:
            return None
        origin = open_origin(books, candidate.origin, partition)
    if origin.robots_url_id is None:
        _come_home(books, origin, partition)
        await _admit_robots(books, origin)
    return origin


def open_origin(books: Books, key: str, partition: int) -> Origin:
    """A row for an origin that nothing was admitted for yet."""
    books.count(partition, tally.ORIGINS)
    if partition in books.origins_known:
        books.origins_known[partition] += 1
    return books.open_origin(key, partition)


def _come_home(books: Books, origin: Origin, partition: int) -> None:
    """A redirect of a robots.txt opened the row for the partition that it came from; its URLs belong to this one."""
    if origin.partition != partition:
        books.count(origin.partition, tally.ORIGINS, -1)
        books.count(partition, tally.ORIGINS)
        origin.partition = partition


async def _admit_robots(books: Books, origin: Origin) -> None:
    url_id, _ = await _place(books, origin.id, ROBOTS_PATH)
    origin.robots_url_id = url_id
    books.add_url((url_id, ROBOTS_PATH, int(UrlKind.ROBOTS), ROBOTS_CLASS, 0, 0, int(Edge.ROBOTS), 0, 0))
    _queue(books, origin)


def _has_room(books: Books, partition: int, origin_key: str) -> bool:
    """Whether one more origin of this site may be opened; if so it is counted."""
    if books.origins_known.get(partition, 0) < COUNTED_FROM:
        return True
    counts = books.sites[partition]
    if partition in books.uncounted:
        _count_sites(books, partition)
    name = site_name(origin_key)
    if counts.get(name, 0) >= books.settings.origins_per_site_max:
        return False
    books.count_site(partition, name, counts.get(name, 0) + 1)
    return True


def _count_sites(books: Books, partition: int) -> None:
    """The origins that were opened before sites were counted, in this transaction too."""
    keys = {*books.uncounted.pop(partition)}
    keys |= {origin.key for origin in books.origins.values() if origin.partition == partition}
    for name, origins in Counter(map(site_name, keys)).items():
        books.count_site(partition, name, origins)


def _forward(books: Books, source: int, parcels: dict[int, list[Candidate]], policy_version: int) -> None:
    for destination, candidates in parcels.items():
        rest = (len(candidates), policy_version, _encode(candidates))
        if destination in books.here:
            books.put_in(destination, source, *rest)
        else:
            books.send(source, destination, *rest)
        books.count(source, tally.FORWARDED, len(candidates))


def _count(books: Books, partition: int, batch: AdmitBatch, verdicts: bytes) -> None:
    known = batch.known + verdicts.count(Verdict.ALREADY_KNOWN)
    if known:
        books.count(partition, tally.KNOWN, known)
    for verdict, budget in _BUDGETS:
        over = verdicts.count(verdict)
        if over:
            books.count(partition, f"rejected.{budget}", over)
            refused = batch.candidates[verdicts.index(verdict)]
            _sample(books, partition, refused.origin + refused.path, budget, "", batch.policy_version)
    for reason, amount in batch.rejected.items():
        books.count(partition, f"rejected.{reason}", amount)
    for url, reason, detail in batch.samples:
        _sample(books, partition, url, reason, detail, batch.policy_version)


def _sample(books: Books, partition: int, url: str, reason: str, detail: str, policy_version: int) -> None:
    subject = subject_of(url)
    books.decide(partition, subject, reason, detail, url=url, policy_version=policy_version)
