"""Admission: unknown candidates become queued URLs, in the commit that advances the cursor they came from."""

from __future__ import annotations

from msgspec.structs import replace

from amble.adapters.sql import tally
from amble.adapters.sql.books import Books
from amble.adapters.sql.crossing import Outbox
from amble.adapters.sql.identity import SLOT_BITS, subject_of
from amble.adapters.sql.ledger import Origin
from amble.adapters.sql.sites import Sites
from amble.adapters.sql.statements import load
from amble.domain.attempt import Edge, UrlKind
from amble.domain.decision import Reason
from amble.domain.errors import StoreBroken
from amble.domain.frontier import AdmitBatch, AdmitReport, Applied, Candidate, Verdict
from amble.domain.manifest import CursorAdvance
from amble.domain.priority import ROBOTS_CLASS

_URL, _WORK = load("url"), load("work")
_INSERT = _URL["insert"]
_MANIFEST, _ADVANCE = _WORK["manifest"], _WORK["advance"]
_ROBOTS_PATH = "/robots.txt"
_PENDING = tally.STATES[0]
_BUDGETS = ((Verdict.OVER_BUDGET, Reason.ORIGIN_BUDGET), (Verdict.OVER_SITE_BUDGET, Reason.SITE_BUDGET))

# url_id, path, kind, class, due, depth, hops, edge, parent, policy version: the parameters of `insert`.
NewRow = tuple[int, str, int, int, int, int, int, int, int, int]


class Admission:
    """The operation `admit`."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._sites = Sites(books)
        self._outbox = Outbox(books)

    def admit(self, batch: AdmitBatch) -> AdmitReport:
        """See ports.Frontier.admit."""
        if batch.cursor is not None and not self._advance(batch.cursor):
            return AdmitReport(int(Applied.STALE), b"")
        return AdmitReport(int(Applied.APPLIED), self._sort(batch))

    def _sort(self, batch: AdmitBatch) -> bytes:
        """Admit what belongs here and forward the rest."""
        mine = self._books.settings.partition
        away = [candidate for candidate in batch.candidates if candidate.partition != mine]
        if not away:
            return self.admit_here(batch)
        here = [candidate for candidate in batch.candidates if candidate.partition == mine]
        verdicts = iter(self.admit_here(replace(batch, candidates=here)))
        self._outbox.send(away, batch.policy_version)
        return bytes(
            next(verdicts) if candidate.partition == mine else Verdict.FORWARDED
            for candidate in batch.candidates
        )

    def admit_here(self, batch: AdmitBatch) -> bytes:
        """Admit all candidates of the batch, whichever partition they name, and count; one verdict for each."""
        verdicts = self._admit(batch.candidates, batch.policy_version) if batch.candidates else b""
        self._count(batch, verdicts)
        return verdicts

    def _advance(self, move: CursorAdvance) -> bool:
        key = (move.manifest.url_id, move.manifest.attempt, move.manifest.extraction_generation)
        row = self._books.execute(_MANIFEST, key).fetchone()
        if row is None or row[0] != move.start:
            return False
        _, links, opened = row
        if not move.start <= move.end <= links:
            raise StoreBroken(f"a cursor cannot move from {move.start} to {move.end} of {links} links")
        if move.end > move.start:
            self._books.execute(_ADVANCE, (*key, move.end, move.start))
            self._books.tally.add(tally.LINKS, move.end - move.start)
            if opened and move.end == links:
                self._books.tally.add(tally.MANIFESTS_OPEN, -1)
        return True

    def _admit(self, candidates: list[Candidate], policy_version: int) -> bytes:
        books = self._books
        first = books.slots.first
        origins = [self._origin(candidate) for candidate in candidates]
        ids = [
            -1 if origin is None else origin.id << SLOT_BITS | first(candidate.path)
            for origin, candidate in zip(origins, candidates, strict=True)
        ]
        taken = books.database.known(sorted(set(ids) - {-1}))
        verdicts = bytearray(len(candidates))
        new: list[NewRow] = []
        for number, candidate in enumerate(candidates):
            url_id, origin = ids[number], origins[number]
            if origin is None:
                verdicts[number] = Verdict.OVER_SITE_BUDGET
                continue
            holder = taken.get(url_id)
            if holder is not None and holder != candidate.path:
                url_id, holder = self._place(origin.id, candidate.path, taken)
            if holder is not None:
                continue  # ALREADY_KNOWN
            if self._over_budget(origin):
                verdicts[number] = Verdict.OVER_BUDGET
                continue
            verdicts[number] = Verdict.ADMITTED
            taken[url_id] = candidate.path
            origin.urls += 1
            new.append(self._row(url_id, candidate, policy_version))
        self._insert(new)
        return bytes(verdicts)

    def _place(self, origin_id: int, path: str, taken: dict[int, str]) -> tuple[int, str | None]:
        """After a true collision: the id that holds this path, or the first free one. `taken` includes this batch."""
        for slot in self._books.slots.after_first(path):
            url_id = origin_id << SLOT_BITS | slot
            holder = taken.get(url_id) or self._books.path_at(url_id)
            if holder is None or holder == path:
                return url_id, holder
        raise AssertionError("the slots of an origin never end")

    def find(self, origin_id: int, path: str) -> int | None:
        """The id of a known URL."""
        books = self._books
        url_id = origin_id << SLOT_BITS | books.slots.first(path)
        holder = books.path_at(url_id)
        if holder is not None and holder != path:
            url_id, holder = self._place(origin_id, path, {})
        return None if holder is None else url_id

    def _over_budget(self, origin: Origin) -> bool:
        settings = self._books.settings
        earned = settings.urls_per_origin_start + settings.urls_per_fetched_page * origin.pages
        return origin.urls >= min(settings.urls_per_origin_max, earned)

    def _row(self, url_id: int, candidate: Candidate, policy_version: int) -> NewRow:
        return (
            url_id,
            candidate.path,
            candidate.kind,
            candidate.priority,
            self._books.now,
            candidate.depth,
            candidate.hops,
            candidate.edge,
            candidate.parent,
            policy_version,
        )

    def _insert(self, rows: list[NewRow]) -> None:
        if not rows:
            return
        books = self._books
        rows.sort()  # neighbours of one origin share pages
        books.database.executemany(_INSERT, rows)
        grown: dict[int, int] = {}
        for row in rows:
            origin_id = row[0] >> SLOT_BITS
            grown[origin_id] = grown.get(origin_id, 0) + 1
        for origin_id, amount in grown.items():
            books.queued(origin_id, amount)
            books.ledger.changed(books.ledger.by_id(origin_id))
        books.tally.add(_PENDING, len(rows))
        books.tally.add(tally.ADMITTED, len(rows))

    def _origin(self, candidate: Candidate) -> Origin | None:
        """The origin of a candidate, with its robots.txt known and queued before any of its pages is.

        None when its site has too many origins already; what an operator gave as a seed is opened all the same.
        """
        key = candidate.origin
        origin = self._books.ledger.by_key(key)
        if origin is None:
            if self._books.ledger.is_full:
                return None
            if not self._sites.has_room(key) and candidate.edge != Edge.SEED:
                return None
            origin = self.open_origin(key)
        if origin.robots_url_id is None:
            self._admit_robots(origin)
        return origin

    def open_origin(self, key: str) -> Origin:
        """A row for an origin that nothing was admitted for yet."""
        self._books.tally.add(tally.ORIGINS)
        return self._books.ledger.create(key, self._books.now)

    def _admit_robots(self, origin: Origin) -> None:
        books = self._books
        url_id = origin.id << SLOT_BITS | books.slots.first(_ROBOTS_PATH)
        origin.robots_url_id = url_id
        row = (
            url_id,
            _ROBOTS_PATH,
            int(UrlKind.ROBOTS),
            ROBOTS_CLASS,
            books.now,
            0,
            0,
            int(Edge.ROBOTS),
            0,
            0,
        )
        self._insert([row])

    def _count(self, batch: AdmitBatch, verdicts: bytes) -> None:
        books = self._books
        known = batch.known + verdicts.count(Verdict.ALREADY_KNOWN)
        if known:
            books.tally.add(tally.KNOWN, known)
        for verdict, budget in _BUDGETS:
            over = verdicts.count(verdict)
            if over:
                books.tally.add(f"rejected.{budget}", over)
                refused = batch.candidates[verdicts.index(verdict)]
                self._sample(refused.origin + refused.path, budget, "", batch.policy_version)
        for reason, amount in batch.rejected.items():
            books.tally.add(f"rejected.{reason}", amount)
        for url, reason, detail in batch.samples:
            self._sample(url, reason, detail, batch.policy_version)

    def _sample(self, url: str, reason: str, detail: str, policy_version: int) -> None:
        self._books.decide(subject_of(url), reason, detail, url=url, policy_version=policy_version)
