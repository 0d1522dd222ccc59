"""Answers to an operator's questions about a crawl: status, URLs, origins, why. Facts only; faces choose the words.

Times are the store's clock in milliseconds since 1970. Reading them changes nothing.
"""

from __future__ import annotations

from msgspec import Struct

from amble.domain.fetched import BodyRef, Fetched


class Status(Struct, frozen=True, kw_only=True):
    """A crawl at a glance. Dictionaries map a reason, category or class to a count, the largest first.

    `states` counts URLs by the names of lifecycle.UrlState in lower case, robots.txt included; `pages` are page
    fetches that were answered; `bytes` is what came over the wire, `body_bytes` the stored payloads. `queued` leaves
    out robots.txt that wait for a page to want them. `origins_ready` may start now as far as is known before their
    queues are looked at; `origins_waiting` says what the others with queued URLs wait for (a word of decision.Reason, or "in_flight").
    Above 20,000 origins both are estimates from a sample.
    """

    now_ms: int
    epoch: int
    owner: str
    states: dict[str, int]
    urls: int
    queued: int
    in_flight: int
    failed: int
    excluded: int
    pages: int
    fetches: int
    documents: int
    open_manifests: int
    bytes: int
    body_bytes: int
    not_modified: int
    admitted: int
    known: int
    links: int
    status_classes: dict[str, int]
    failures: dict[str, int]
    exclusions: dict[str, int]
    refused: dict[str, int]
    retries: dict[str, int]
    put_back: dict[str, int]
    withheld: dict[str, int]
    origins: int
    origins_ready: int
    origins_waiting: dict[str, int]
    next_wake_ms: int | None


class UrlLine(Struct, frozen=True, kw_only=True):
    """One known URL. `due_ms` is None when it is not queued; `reason` is its last refusal, failure or wait."""

    url_id: int
    url: str
    state: int
    kind: int
    depth: int
    hops: int
    edge: int
    parent: int
    crawl_generation: int
    attempt: int
    tries: int
    queue_class: int | None
    due_ms: int | None
    admitted_ms: int
    fetched_ms: int | None
    status: int | None
    reason: str
    detail: str
    reason_ms: int | None
    policy_version: int
    lease_expires_ms: int | None
    started_ms: int | None
    content_kind: str
    canonical: str
    directives: int
    strikes: int


class OriginLine(Struct, frozen=True, kw_only=True):
    """The ledger of one origin. `active_max` and `spacing_ms` are None where the default holds."""

    origin_id: int
    origin: str
    wake_ms: int | None
    next_start_ms: int
    rest_until_ms: int
    backoff_level: int
    last_fetch_ms: int
    leased: int
    active: int
    active_max: int | None
    spacing_ms: int | None
    paused: bool
    queued: int
    urls: int
    pages: int
    robots_outcome: int
    robots_version: int
    robots_fetched_ms: int
    robots_expires_ms: int
    robots_rules: BodyRef | None
    crawl_delay_ms: int


class FetchLine(Struct, frozen=True, kw_only=True):
    """One attempt. `answer` is None where the network answered nothing; `category` is "" where nothing failed."""

    attempt: int
    crawl_generation: int
    at_ms: int
    duration_ms: int
    status: int | None
    category: str
    detail: str
    answer: Fetched | None


class DecisionLine(Struct, frozen=True, kw_only=True):
    """One entry of the bounded decision log."""

    at_ms: int
    reason: str
    detail: str
    policy_version: int


class ManifestLine(Struct, frozen=True, kw_only=True):
    """One parse of one attempt, and how far discovery has consumed its links."""

    attempt: int
    extraction_generation: int
    ref: BodyRef
    text_ref: BodyRef | None
    links: int
    cursor: int
    open: bool
    content_kind: str
    title: str
    at_ms: int


class UrlExplanation(Struct, frozen=True, kw_only=True):
    """Everything that `why` needs. `line` is None for a URL that is not remembered; `decisions` may still explain it.

    `waits_for` is a word of decision.Reason, "turn" (it is ready and waits for its origin's turn), "fetch", "parse"
    or "complete" while it is in flight, "" when nothing will move it. `waits_until_ms` is None where no time is known.
    """

    url: str
    now_ms: int
    line: UrlLine | None
    origin: OriginLine | None
    found_on: str
    fetches: list[FetchLine]
    decisions: list[DecisionLine]
    manifests: list[ManifestLine]
    waits_for: str
    waits_until_ms: int | None
    robots: UrlLine | None = None


class PublicationLine(Struct, frozen=True, kw_only=True):
    """One publication with the references that a document is built from. `fetched.ref` is the record of the capture."""

    seq: int
    url_id: int
    url: str
    canonical: str
    depth: int
    found_on: str
    crawl_generation: int
    extraction_generation: int
    attempt: int
    at_ms: int
    fetched_ms: int
    fetched: Fetched
    manifest: BodyRef
    text: BodyRef | None
    title: str
    content_kind: str
    fingerprint: int


class Capture(Struct, frozen=True, kw_only=True):
    """One committed fetch with its answer and, where it was parsed, its manifest: what `verify` holds together."""

    url_id: int
    url: str
    kind: int
    depth: int
    hops: int
    attempt: int
    fetched: Fetched
    manifest: BodyRef | None
    links: int
    cursor: int
    text: BodyRef | None


class FetchSample(Struct, frozen=True, kw_only=True):
    """Means over page fetches of origins picked evenly, each origin counting by its pages. 0 where there is none.

    `answered_share`: fetches that brought an answer; `error_share`: fetches whose answer was 4xx or 5xx. `answered_ms`
    and `unanswered_ms` are mean durations, `body_bytes` the mean payload and `wire_bytes` what came over the wire of
    an answer, `links` the distinct links of a parsed page.
    """

    origins: int
    fetches: int
    answered_share: float
    error_share: float
    answered_ms: float
    unanswered_ms: float
    body_bytes: float
    wire_bytes: float
    links: float
