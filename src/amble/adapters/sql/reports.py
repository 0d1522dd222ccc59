"""An operator's questions, answered through a connection of their own that can only read.

Works while the store process writes and when nothing runs. Each answer is one short read transaction, so the writer
can always fold in its log. Blocking: call it from a thread where an event loop must go on.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from msgspec.msgpack import Decoder

from amble.adapters.sql import tally
from amble.adapters.sql.clock import StoreClock
from amble.adapters.sql.connection import DRIVER, Database, Driver, open_reader, trouble_of
from amble.adapters.sql.identity import SLOT_BITS, Slots, subject_of
from amble.adapters.sql.means import Means
from amble.adapters.sql.statements import load
from amble.domain.decision import Reason
from amble.domain.errors import CrawlFolderUnusable
from amble.domain.fetched import BodyRef, Fetched
from amble.domain.lifecycle import FINAL, IN_FLIGHT, UrlState
from amble.domain.report import (
    DecisionLine,
    FetchLine,
    FetchSample,
    ManifestLine,
    OriginLine,
    PublicationLine,
    Status,
    UrlExplanation,
    UrlLine,
)
from amble.domain.robots import RobotsOutcome

_URL_COLUMNS = (
    "u.id, o.key || u.path, u.state, u.kind, u.depth, u.hops, u.edge, u.parent, u.generation, u.attempt, u.tries, u.rq, "
    "u.due_at, u.admitted_at, u.fetched_at, u.status, u.reason, u.detail, u.reason_at, u.policy_version, u.expires_at, "
    "u.started_at, u.content_kind, u.canonical, u.directives, u.strikes"
)
_ORIGIN_COLUMNS = (
    "o.id, o.key, o.wake_at, o.next_start, o.rest_until, o.backoff_level, o.last_fetch_ms, o.leased, o.active, "
    "o.active_max, o.spacing_ms, o.paused, o.queued, o.urls, o.pages, o.robots_outcome, o.robots_version, "
    "o.robots_fetched_at, o.robots_expires_at, o.robots_rules, o.robots_delay_ms"
)
_SQL: Final = {
    name: sql.replace(":url_columns", _URL_COLUMNS).replace(":origin_columns", _ORIGIN_COLUMNS)
    for name, sql in load("report").items()
}
_decode_answer = Decoder(Fetched).decode
# How much of its history `explain` shows of one URL.
HISTORY_MAX: Final = 20
# Bounds of `fetch_sample`: a few thousand rows tell a mean as well as a million.
SAMPLED_ORIGINS: Final = 256
SAMPLED_FETCHES: Final = 32
# `status` looks at so many origins, at the ends of so many equal steps through all of them where there are more: it is
# asked every second by the running crawl.
ORIGINS_SEEN_MAX: Final = 20_000
ORIGIN_RANGES: Final = 20


class SqliteReports:
    """Read-only answers about one frontier file. Raises StoreUnavailable while it is locked, StoreBroken if damaged."""

    def __init__(
        self,
        path: Path | str,
        *,
        driver: Driver = DRIVER,
        now_ms: Callable[[], int] | None = None,
        slots: Slots | None = None,
        database: Database | None = None,
    ) -> None:
        """`database` reads through an open connection instead (a store in memory); it is not closed here.

        Raises CrawlFolderUnusable when there is no frontier at `path`.
        """
        if database is None and not Path(path).is_file():
            raise CrawlFolderUnusable(f"there is no crawl here: {path} does not exist")
        self._own = database is None
        self._database = database or open_reader(path, driver=driver)
        with self._reading():
            row = self._one("path_key")
            key = bytes(row[0]) if row else bytes(32)
            self._slots = slots or Slots(key)
            # Made with the frontier, and never again: no two crawls share it. Its hash says nothing about it.
            self.crawl = hashlib.sha256(b"crawl" + key).hexdigest()[:32]
            self._clock = StoreClock(self._database, now_ms=now_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._own:
            self._database.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """One snapshot for all the statements of an answer."""
        nested = self._database.in_transaction
        try:
            if not nested:
                self._database.execute("BEGIN")
            yield
        except Exception as error:
            trouble = trouble_of(error)
            if trouble is None:
                raise
            raise trouble from error
        finally:
            if not nested:
                self._database.rollback()

    def _one(self, name: str, *parameters: object) -> Any:
        return self._database.execute(_SQL[name], parameters).fetchone()

    def _all(self, name: str, *parameters: object) -> list[Any]:
        rows: list[Any] = self._database.execute(_SQL[name], parameters).fetchall()
        return rows

    # ---- status

    def status(self) -> Status:
        """The crawl at a glance: a few hundred rows of counters, and at most ORIGINS_SEEN_MAX origins."""
        with self._reading():
            counts: dict[str, int] = dict(self._all("tallies"))
            now = self._clock.now()
            epoch, owner = self._one("owner")
            waiting = self._waiting(now)
            next_wake = self._one("next_wake")[0]
        states = {state.name.lower(): counts.get(tally.STATES[state], 0) for state in UrlState}
        ready = waiting.pop("ready", 0)
        return Status(
            now_ms=now,
            epoch=epoch,
            owner=owner,
            states=states,
            urls=sum(states.values()),
            queued=counts.get(tally.QUEUED, 0),
            in_flight=sum(states[state.name.lower()] for state in IN_FLIGHT),
            failed=states["failed"],
            excluded=states["excluded"],
            pages=counts.get(tally.PAGES, 0),
            fetches=counts.get(tally.FETCHES, 0),
            documents=counts.get(tally.PUBLICATIONS, 0),
            open_manifests=counts.get(tally.MANIFESTS_OPEN, 0),
            bytes=counts.get(tally.WIRE_BYTES, 0),
            body_bytes=counts.get(tally.BODY_BYTES, 0),
            not_modified=counts.get(tally.NOT_MODIFIED, 0),
            admitted=counts.get(tally.ADMITTED, 0),
            known=counts.get(tally.KNOWN, 0),
            links=counts.get(tally.LINKS, 0),
            status_classes=_part(counts, "status."),
            failures=_part(counts, "failed."),
            exclusions=_part(counts, "excluded."),
            refused=_part(counts, "rejected."),
            retries=_part(counts, "retry."),
            put_back=_part(counts, "put_back."),
            withheld=_part(counts, "withheld."),
            origins=counts.get(tally.ORIGINS, 0),
            origins_ready=ready,
            origins_waiting=_sorted(waiting),
            next_wake_ms=next_wake,
        )

    def _waiting(self, now: int) -> dict[str, int]:
        """How many origins wait for what; of very many, an estimate from ranges of ids at equal distances."""
        last = int(self._one("last_origin")[0])
        if last <= ORIGINS_SEEN_MAX:
            return dict(self._all("waiting", now, 0, last))
        found: Counter[str] = Counter()
        size = ORIGINS_SEEN_MAX // ORIGIN_RANGES
        for number in range(ORIGIN_RANGES):
            start = (last - size) * number // (ORIGIN_RANGES - 1)
            found.update(dict(self._all("waiting", now, start, start + size)))
        return {reason: round(count * last / (size * ORIGIN_RANGES)) for reason, count in found.items()}

    # ---- lists

    def urls(
        self, *, state: UrlState | None = None, origin: str | None = None, limit: int = 100, after: int = 0
    ) -> list[UrlLine]:
        """Known URLs in the order of their ids, from the one after `after` (a url_id) on."""
        with self._reading():
            if origin is not None:
                row = self._one("origin_by_key", origin)
                return [] if row is None else self._urls_of(row[0], state, limit, after)
            if state is None:
                return [_url(row) for row in self._all("urls", after, limit)]
            name = "urls_in_state"
            if state in IN_FLIGHT:
                name = "urls_in_flight"
            elif state in FINAL and state is not UrlState.COMPLETE:
                name = "urls_ended"
            return [_url(row) for row in self._all(name, after, limit, int(state))]

    def _urls_of(self, origin_id: int, state: UrlState | None, limit: int, after: int) -> list[UrlLine]:
        first, last = (origin_id << SLOT_BITS) - 1, (origin_id + 1) << SLOT_BITS
        start = max(after, first)
        if state is None:
            return [_url(row) for row in self._all("urls_of_origin", start, limit, last)]
        return [_url(row) for row in self._all("urls_of_origin_in_state", start, limit, last, int(state))]

    def failed(self, *, limit: int = 100, after: int = 0) -> list[UrlLine]:
        """URLs that failed for good, with their category and detail."""
        return self.urls(state=UrlState.FAILED, limit=limit, after=after)

    def origins(self, *, limit: int = 100, after: int = 0) -> list[OriginLine]:
        """Origins in the order of their ids, from the one after `after` (an origin_id) on."""
        with self._reading():
            return [_origin(row) for row in self._all("origins", after, limit)]

    def origin(self, key: str) -> OriginLine | None:
        """The ledger of "scheme://host[:port]"."""
        with self._reading():
            row = self._one("origin_by_key", key)
        return None if row is None else _origin(row)

    def fetch_sample(
        self, *, origins: int = SAMPLED_ORIGINS, fetches_each: int = SAMPLED_FETCHES
    ) -> FetchSample:
        """What fetching pages was like so far, by at most `origins` origins and `fetches_each` attempts of each."""
        means = Means()
        with self._reading():
            last = int(self._one("last_origin")[0])
            step, seen = max(1, -(-last // origins)), 0
            for start in range(1, last + 1, step):
                if start <= seen:
                    continue
                row = self._one("fetched_origin", start)
                if row is None or means.origins >= origins:
                    break
                seen, pages = row
                begin, end = seen << SLOT_BITS, (seen + 1) << SLOT_BITS
                means.add_origin(pages, self._all("page_fetches", begin, end, fetches_each))
        return means.sample()

    def publications(self, *, after: int = 0, limit: int = 100) -> list[PublicationLine]:
        """What was published after the sequence number `after`, in order."""
        with self._reading():
            return [self._publication(row) for row in self._all("publications", after, limit)]

    def last_publication(self) -> int:
        """The newest sequence number, 0 before the first."""
        with self._reading():
            return int(self._one("last_publication")[0])

    def _name_of(self, url_id: int) -> str:
        row = self._one("name_of", url_id) if url_id else None
        return "" if row is None else str(row[0])

    def _publication(self, row: Any) -> PublicationLine:
        (
            seq,
            url_id,
            url,
            canonical,
            depth,
            parent,
            crawl_generation,
            extraction_generation,
            attempt,
            at,
            fetched_at,
            answer,
            ref,
            text_ref,
            title,
            content_kind,
            fingerprint,
        ) = row
        return PublicationLine(
            seq=seq,
            url_id=url_id,
            url=url,
            canonical=canonical or "",
            depth=depth,
            found_on=self._name_of(parent),
            crawl_generation=crawl_generation,
            extraction_generation=extraction_generation,
            attempt=attempt,
            at_ms=at,
            fetched_ms=fetched_at,
            fetched=_decode_answer(answer),
            manifest=BodyRef.unpack(ref),
            text=_ref(text_ref),
            title=title,
            content_kind=content_kind,
            fingerprint=(fingerprint or 0) & 0xFFFF_FFFF_FFFF_FFFF,
        )

    # ---- why

    def explain(self, url: str) -> UrlExplanation:
        """Everything known of a canonical URL, remembered or not."""
        slash = url.find("/", url.find("://") + 3)
        key, path = (url, "/") if slash < 0 else (url[:slash], url[slash:])
        with self._reading():
            now = self._clock.now()
            origin = self._one("origin_by_key", key)
            ledger = None if origin is None else _origin(origin)
            line = None if ledger is None else self._find(ledger.origin_id, key + path)
            robots = None if ledger is None else self._find(ledger.origin_id, key + "/robots.txt")
            subject = line.url_id if line else subject_of(key + path)
            decisions = self._all("decisions", subject, HISTORY_MAX)
            fetches = self._all("fetches", line.url_id, HISTORY_MAX) if line else []
            manifests = self._all("manifests", line.url_id, HISTORY_MAX) if line else []
            found_on = self._name_of(line.parent) if line else ""
        waits_for, waits_until = ("", None) if line is None or ledger is None else _waits(line, ledger, now)
        return UrlExplanation(
            url=key + path,
            now_ms=now,
            line=line,
            origin=ledger,
            found_on=found_on,
            fetches=[_fetch(row) for row in fetches],
            decisions=[
                DecisionLine(at_ms=at, reason=reason, detail=detail, policy_version=version)
                for at, reason, detail, version, named in decisions
                if named in ("", key + path)
            ],
            manifests=[_manifest(row) for row in manifests],
            waits_for=waits_for,
            waits_until_ms=waits_until,
            robots=robots,
        )

    def _find(self, origin_id: int, url: str) -> UrlLine | None:
        path = url[url.find("/", url.find("://") + 3) :]
        row = self._one("url_by_id", origin_id << SLOT_BITS | self._slots.first(path))
        if row is None or row[1] == url:
            return None if row is None else _url(row)
        for slot in self._slots.after_first(path):
            row = self._one("url_by_id", origin_id << SLOT_BITS | slot)
            if row is None or row[1] == url:
                return None if row is None else _url(row)
        raise AssertionError("the slots of an origin never end")


def _waits(line: UrlLine, origin: OriginLine, now: int) -> tuple[str, int | None]:
    """(what a URL waits for, until when). The first obstacle in the order in which the line would meet them."""
    if line.state in IN_FLIGHT:
        step = {UrlState.LEASED: "fetch", UrlState.FETCHED: "parse"}.get(UrlState(line.state), "complete")
        return step, line.lease_expires_ms
    if line.due_ms is None:
        return "", None
    if line.due_ms > now:
        return Reason.RETRY_LATER if line.tries else Reason.NOT_YET, line.due_ms
    if origin.paused:
        return Reason.ORIGIN_PAUSED, None
    if origin.rest_until_ms > now:
        return Reason.ORIGIN_BACKING_OFF, origin.rest_until_ms
    if (
        line.kind != 1
        and origin.robots_outcome == RobotsOutcome.UNREACHABLE
        and origin.robots_expires_ms > now
    ):
        return Reason.ROBOTS_UNREACHABLE, origin.robots_expires_ms
    if line.kind != 1 and origin.robots_expires_ms <= now:
        missing = origin.robots_outcome == RobotsOutcome.MISSING
        return Reason.ROBOTS_MISSING if missing else Reason.ROBOTS_EXPIRED, None
    if origin.leased or origin.active:
        return Reason.NO_SLOT, None
    if origin.next_start_ms > now:
        return Reason.NOT_YET, origin.next_start_ms
    return "turn", None


def _part(counts: dict[str, int], prefix: str) -> dict[str, int]:
    return _sorted({name[len(prefix) :]: value for name, value in counts.items() if name.startswith(prefix)})


def _sorted(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(((k, v) for k, v in counts.items() if v), key=lambda item: (-item[1], item[0])))


def _ref(packed: bytes | None) -> BodyRef | None:
    return None if packed is None else BodyRef.unpack(packed)


def _url(row: Any) -> UrlLine:
    values = dict(zip(UrlLine.__struct_fields__, row, strict=True))
    for text in ("reason", "detail", "content_kind", "canonical"):
        values[text] = values[text] or ""
    values["directives"] = values["directives"] or 0
    values["policy_version"] = values["policy_version"] or 0
    return UrlLine(**values)


def _origin(row: Any) -> OriginLine:
    values = dict(zip(OriginLine.__struct_fields__, row, strict=True))
    values["paused"] = bool(values["paused"])
    values["robots_rules"] = _ref(values["robots_rules"])
    return OriginLine(**values)


def _fetch(row: Any) -> FetchLine:
    attempt, generation, at, duration_ms, status, category, detail, answer = row
    return FetchLine(
        attempt=attempt,
        crawl_generation=generation,
        at_ms=at,
        duration_ms=duration_ms,
        status=status,
        category=category or "",
        detail=detail or "",
        answer=None if answer is None else _decode_answer(answer),
    )


def _manifest(row: Any) -> ManifestLine:
    attempt, generation, ref, text_ref, links, cursor, opened, content_kind, title, at = row
    return ManifestLine(
        attempt=attempt,
        extraction_generation=generation,
        ref=BodyRef.unpack(ref),
        text_ref=_ref(text_ref),
        links=links,
        cursor=cursor,
        open=bool(opened and cursor < links),
        content_kind=content_kind,
        title=title,
        at_ms=at,
    )
