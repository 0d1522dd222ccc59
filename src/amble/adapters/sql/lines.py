"""Rows of a store as lines of a report: the same for every store, because columns of one name mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.msgpack import Decoder

from amble.adapters.sql import tally
from amble.domain.decision import Reason
from amble.domain.digest import unsigned
from amble.domain.fetched import BodyRef, Fetched
from amble.domain.lifecycle import IN_FLIGHT, UrlState
from amble.domain.report import Capture, FetchLine, ManifestLine, OriginLine, PublicationLine, Status, UrlLine
from amble.domain.robots import RobotsOutcome

URL_COLUMNS: Final = (
    "u.id, o.key || u.path, u.state, u.kind, u.depth, u.hops, u.edge, u.parent, u.generation, u.attempt, u.tries, u.rq, "
    "u.due_at, u.admitted_at, u.fetched_at, u.status, u.reason, u.detail, u.reason_at, u.policy_version, u.expires_at, "
    "u.started_at, u.content_kind, u.canonical, u.directives, u.strikes"
)
ORIGIN_COLUMNS: Final = (
    "o.id, o.key, o.wake_at, o.next_start, o.rest_until, o.backoff_level, o.last_fetch_ms, o.leased, o.active, "
    "o.active_max, o.spacing_ms, o.paused, o.queued, o.urls, o.pages, o.robots_outcome, o.robots_version, "
    "o.robots_fetched_at, o.robots_expires_at, o.robots_rules, o.robots_delay_ms"
)
_decode_answer = Decoder(Fetched).decode


def status_of(
    counts: Mapping[str, int],
    waiting: Mapping[str, int],
    *,
    now_ms: int,
    epoch: int,
    owner: str,
    next_wake_ms: int | None,
) -> Status:
    """The crawl at a glance, from its counters and from what its origins wait for (reason -> origins)."""
    states = {state.name.lower(): counts.get(tally.STATES[state], 0) for state in UrlState}
    return Status(
        now_ms=now_ms,
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
        origins_ready=waiting.get("ready", 0),
        origins_waiting=_sorted({reason: count for reason, count in waiting.items() if reason != "ready"}),
        next_wake_ms=next_wake_ms,
    )


def publication_line(row: Any, *, found_on: str) -> PublicationLine:
    """A row of the statement `publications`; `found_on` is the URL behind its column `parent`."""
    (
        seq,
        url_id,
        url,
        canonical,
        depth,
        _,
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
        found_on=found_on,
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
        fingerprint=unsigned(fingerprint or 0),
    )


def waits(line: UrlLine, origin: OriginLine, now: int) -> tuple[str, int | None]:
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
        # An origin also rests, at level 0, while others on its address have the turn.
        backs_off = origin.backoff_level > 0
        return Reason.ORIGIN_BACKING_OFF if backs_off else Reason.ADDRESS_BUSY, origin.rest_until_ms
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


def _part(counts: Mapping[str, int], prefix: str) -> dict[str, int]:
    return _sorted({name[len(prefix) :]: value for name, value in counts.items() if name.startswith(prefix)})


def _sorted(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(((k, v) for k, v in counts.items() if v), key=lambda item: (-item[1], item[0])))


def _ref(packed: bytes | None) -> BodyRef | None:
    return None if packed is None else BodyRef.unpack(packed)


def url_line(row: Any) -> UrlLine:
    """A row of URL_COLUMNS."""
    values = dict(zip(UrlLine.__struct_fields__, row, strict=True))
    for text in ("reason", "detail", "content_kind", "canonical"):
        values[text] = values[text] or ""
    values["directives"] = values["directives"] or 0
    values["policy_version"] = values["policy_version"] or 0
    return UrlLine(**values)


def origin_line(row: Any) -> OriginLine:
    """A row of ORIGIN_COLUMNS."""
    values = dict(zip(OriginLine.__struct_fields__, row, strict=True))
    values["paused"] = bool(values["paused"])
    values["robots_rules"] = _ref(values["robots_rules"])
    return OriginLine(**values)


def fetch_line(row: Any) -> FetchLine:
    """A row of (attempt, generation, at, duration_ms, status, category, detail, answer)."""
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


def manifest_line(row: Any) -> ManifestLine:
    """A row of (attempt, generation, ref, text_ref, links, cursor, opened, content_kind, title, at)."""
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


def capture_line(row: Any) -> Capture:
    """A row of the statement `captures`."""
    url_id, url, kind, depth, hops, attempt, answer, ref, links, cursor, text = row
    return Capture(
        url_id=url_id,
        url=url,
        kind=kind,
        depth=depth,
        hops=hops,
        attempt=attempt,
        fetched=_decode_answer(answer),
        manifest=BodyRef.unpack(ref) if ref else None,
        links=links,
        cursor=cursor,
        text=BodyRef.unpack(text) if text else None,
    )
