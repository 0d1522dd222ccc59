"""What crosses the frontier port: candidates in, leases out, results in. Values only; the wire format is field order.

Every result names a `LeaseKey`. A key that no longer matches the row is answered with `STALE` and changes nothing.
All times are the store's clock in milliseconds; callers hand over durations, never absolute times of their own.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from msgspec import Struct

from amble.domain.attempt import Lease, LeaseKey, RobotsState
from amble.domain.decision import Withheld
from amble.domain.fetched import BodyRef, Fetched
from amble.domain.manifest import CursorAdvance, ManifestKey


class Applied(IntEnum):
    """The answer to a guarded mutation."""

    APPLIED = 1
    STALE = 0


class Candidate(Struct, frozen=True, array_like=True):
    """One URL that passed the URL gate and asks to be remembered.

    `origin` is the origin key ("https://example.org", port only where not default), `path` begins with "/".
    `priority` is a class 0..7, 0 first (see priority.py). `parent` is the url_id of the page it was found on (0: none).
    `partition` is the one that its site belongs to (see partition.py).
    """

    origin: str
    path: str
    kind: int
    priority: int
    depth: int
    hops: int
    edge: int
    parent: int
    partition: int = 0


class Verdict(IntEnum):
    """What admission did with one candidate, in the order of the batch.

    FORWARDED: it belongs to another partition and is durably on its way to that one's inbox, where it is admitted,
    known or over budget later.
    """

    ALREADY_KNOWN = 0
    ADMITTED = 1
    OVER_BUDGET = 2
    OVER_SITE_BUDGET = 3
    FORWARDED = 4


class AdmitBatch(Struct, frozen=True, array_like=True):
    """Candidates and, where they come from a manifest, the cursor move that belongs to the same commit.

    `rejected` counts what the URL gate refused (reason -> count); `samples` are (url, reason, detail) for `why`.
    `known` is the number of links that the recent-identity cache recognised: they only count. `partition` is the one
    that the batch comes from: its counters count, and candidates of others leave through its outbox.
    """

    candidates: list[Candidate]
    cursor: CursorAdvance | None = None
    rejected: dict[str, int] = {}
    samples: list[tuple[str, str, str]] = []
    known: int = 0
    policy_version: int = 1
    partition: int = 0


class AdmitReport(Struct, frozen=True, array_like=True):
    """One `Verdict` per candidate; `applied` is STALE when the cursor was not where the batch believed it."""

    applied: int
    verdicts: bytes


class LeaseAsk(Struct, frozen=True, array_like=True):
    """Ask for up to `count` leases of `partition` under `epoch`.

    `ttl_ms`: how long a lease may live until it is reserved. `pages_max`: crawl budget of page fetches in all, None
    without bound; pages in flight count. `robots_obey` False skips the robots-first rule.
    """

    epoch: int
    worker: int
    count: int
    ttl_ms: int
    pages_max: int | None = None
    robots_obey: bool = True
    partition: int = 0


class LeaseReply(Struct, frozen=True, array_like=True):
    """Leases, and what to wait for when there are fewer than asked.

    `now_ms` is the store's clock. `next_wake_ms`: when the next origin becomes due (None: none is waiting for time).
    `queued`/`in_flight`/`open_manifests` are totals of the frontier; `budget_spent` says that only the page budget binds.
    `fenced` True: the epoch is not current, nothing may be leased. `unparsed`: FETCHED rows, whoever is to parse them.
    `forwarded`: candidates on their way to or from another partition.
    """

    leases: list[Lease]
    now_ms: int
    next_wake_ms: int | None
    queued: int
    in_flight: int
    open_manifests: int
    pages: int
    budget_spent: bool = False
    fenced: bool = False
    unparsed: int = 0
    forwarded: int = 0


class ReserveAsk(Struct, frozen=True, array_like=True):
    """The gate's last step: reserve a start and an active slot at `origin` for the holder of `key`.

    `origin` differs from the lease's own only for a robots hop; a slot already held by this lease elsewhere is given
    back in the same commit. `delay_ms` is the effective delay that the next start must keep from this one.
    `hold_ms`: the longest time the request can last; the slot and the lease are held at least that long.
    `robots_version`: of the decision that allowed this start (-1: none needed). `since_start_ms`: how long ago the last
    request of this lease really started (-1: there was none), so that its origin's next start counts from there.
    `crawl_delay_cap_ms`: how much of a Crawl-delay counts. The store needs it for a hop, because the asker knows
    nothing of the delay and the limits of the other origin.
    """

    key: LeaseKey
    epoch: int
    origin: str
    delay_ms: int
    hold_ms: int
    robots_version: int
    active_max: int
    since_start_ms: int = -1
    crawl_delay_cap_ms: int = 0


class ReserveOutcome(IntEnum):
    """Granted, or why not. Only GRANTED spends anything."""

    GRANTED = 0
    STALE = 1
    FENCED = 2
    NOT_YET = 3
    NO_SLOT = 4
    PAUSED = 5
    ROBOTS_CHANGED = 6


class ReserveReply(Struct, frozen=True, array_like=True):
    """`until_ms`: for GRANTED the deadline of the slot; for NOT_YET and PAUSED when to ask again (0: unknown)."""

    outcome: int
    until_ms: int
    now_ms: int
    origin_id: int


class OriginEffect(Struct, frozen=True, array_like=True):
    """What one finished request teaches the ledger of its origin.

    `delay_ms`: effective delay between starts seen from the start of this request (0: keep). `rest_ms`: no start for
    that long from now (Retry-After, backoff). `backoff_level`: the new level.
    """

    duration_ms: int
    delay_ms: int
    rest_ms: int
    backoff_level: int


class RecordFetched(Struct, frozen=True, array_like=True):
    """LEASED to FETCHED; the slot is released.

    `parse_hold_ms`: how long the same token may hold it for parsing; 0 offers it to parse workers at once.
    """

    key: LeaseKey
    fetched: Fetched
    effect: OriginEffect
    parse_hold_ms: int


class RecordFailed(Struct, frozen=True, array_like=True):
    """A failed try: to the retry lane (`retry_ms` from now) or, with None, FAILED. The slot is released.

    `fetched` is given where the network answered something worth a fetch record (5xx, 429, a partial body).
    `robots` is given when a robots URL has run out of tries: the origin's decision, and the row is queued again at
    its expiry instead of FAILED.
    """

    key: LeaseKey
    category: str
    detail: str
    retry_ms: int | None
    fetched: Fetched | None
    effect: OriginEffect | None
    robots: RobotsState | None = None
    robots_ttl_ms: int = 0


class PutBack(Struct, frozen=True, array_like=True):
    """LEASED to PENDING without costing a try. `delay_ms`: not due before that much later. `rest_ms`: as OriginEffect.

    `effect`: what a request taught that was made all the same; its spacing counts from there.
    """

    key: LeaseKey
    reason: str
    detail: str
    delay_ms: int
    rest_ms: int = 0
    effect: OriginEffect | None = None


class Exclude(Struct, frozen=True, array_like=True):
    """LEASED to EXCLUDED for this crawl generation, with the reason that `why` prints."""

    key: LeaseKey
    reason: str
    detail: str
    policy_version: int


class RecordParsed(Struct, frozen=True, array_like=True):
    """FETCHED to PARSED: the manifest is durable in the archive at `ref` and has `links` links.

    `hand_over` True: the holder is a parse worker and lets go; the owner of the partition adopts the row at once.
    """

    key: LeaseKey
    extraction_generation: int
    ref: BodyRef
    links: int
    content_kind: str
    text_ref: BodyRef | None = None
    title: str = ""
    hand_over: bool = False


NEAR_DUPLICATE = Withheld.NEAR_DUPLICATE.value


def near_detail(url: str) -> str:
    """What stands beside NEAR_DUPLICATE: the published document that is nearly the same text."""
    return f"nearly the same text as {url}"


class Complete(Struct, frozen=True, array_like=True):
    """PARSED to COMPLETE; the cursor opens and the lease ends.

    `publish`: hand the document to sinks (index allowed, canonical, has text). `revisit_ms`: due again that much
    later as priority class `revisit_priority` (None: not revisited). `robots`: for a robots URL, the new decision of
    its origin; it expires `robots_ttl_ms` from now. `near`: all the same not published, withheld as near_duplicate, when
    a document that was published before has a fingerprint in at most `digest.NEAR_DUPLICATE_BITS_MAX` other bits.
    A fingerprint of 0 is near nothing; nothing withheld withholds another; a URL is never its own near-duplicate.
    """

    key: LeaseKey
    extraction_generation: int
    publish: bool
    canonical: str = ""
    directives: int = 0
    fingerprint: int = 0
    revisit_ms: int | None = None
    revisit_priority: int = 7
    robots: RobotsState | None = None
    robots_ttl_ms: int = 0
    withheld: str = ""  # why not published, when publish is False
    near: bool = False
    detail: str = ""  # what `why` adds to `withheld`


class ParseStrike(Struct, frozen=True, array_like=True):
    """A parse failed. With `final` the URL becomes FAILED (parse_failed), else it stays FETCHED with one strike more.

    A PARSED URL can only fail for good: its manifest and its body are both lost.
    """

    key: LeaseKey
    detail: str
    final: bool


class Resumable(Struct, frozen=True, array_like=True):
    """A FETCHED or PARSED row of an earlier life, under a fresh token: carry it on from the archive, do not fetch it.

    FETCHED: `manifest` is None, parse the body again. PARSED: the manifest is durable at `manifest` with `links`
    links under `extraction_generation`; load it and complete. Discovery goes on at `cursor`: links may have been
    consumed before the row was complete.
    """

    lease: Lease
    fetched: Fetched
    strikes: int
    manifest: BodyRef | None = None
    extraction_generation: int = 0
    links: int = 0
    content_kind: str = ""
    cursor: int = 0


class OpenManifest(Struct, frozen=True, array_like=True):
    """A manifest whose links are not all consumed: discovery continues at `cursor`."""

    manifest: ManifestKey
    ref: BodyRef
    cursor: int
    total: int
    depth: int
    hops: int
    origin: str
    path: str


class TakeoverAsk(Struct, frozen=True, array_like=True):
    """Become the owner of `partition`, whose earlier owner is known to be stopped or can start nothing more.

    `epoch` None: claim it now, under the next epoch. Else it was claimed under `epoch` (see ports.Partitions), and this
    call takes up what the earlier owner left, once its requests must be over. `resume` False leaves FETCHED rows to
    parse workers and PARSED rows to `adopt`: only those of robots.txt, which parse workers do not take, are handed
    over. What parse workers hold stays theirs; PARSED rows may be adopted at once, whoever held them.
    """

    owner: str
    partition: int = 0
    epoch: int | None = None
    resume: bool = True


# A page with so many strikes is suspected of ending whoever holds it: see AdoptAsk.
STRIKES_APART: Final = 3


class AdoptAsk(Struct, frozen=True, array_like=True):
    """Take up to `count` rows in `state` (FETCHED or PARSED) that nobody holds, under a new token held for `hold_ms`.

    A parse worker asks for FETCHED pages of any partition: `partition` None. The owner of a partition asks for PARSED
    rows that parse workers handed over, under its `epoch`. `kinds`: only these kinds (attempt.UrlKind); empty: all.

    A FETCHED row that a holder let lapse comes with one strike more, since perhaps it has ended that holder. One that
    was never held since it was fetched comes without. From STRIKES_APART on it comes alone in a reply, and is to be
    parsed with nothing else in hand: a page that lapses then does so by itself, not through its neighbours. With
    `strikes_adopted_max` (StoreSettings) of them it ends as parse_failed instead.
    """

    state: int
    worker: int
    count: int
    hold_ms: int
    partition: int | None = None
    epoch: int = 0
    kinds: list[int] = []


class Parcel(Struct, frozen=True, array_like=True):
    """Candidates that cross from one partition to another. Parcels of one `source` to one `destination` have ascending
    `number`s, and the destination takes each only once, in order.
    """

    source: int
    destination: int
    number: int
    candidates: list[Candidate]
    policy_version: int


class ParcelAsk(Struct, frozen=True, array_like=True):
    """The oldest parcels, at most `limit`, that wait in the outbox of `partition` under `epoch`.

    `without`: destinations that cannot be reached now; what waits for them must not keep the others waiting.
    """

    partition: int
    epoch: int
    limit: int
    without: list[int] = []


class DropParcels(Struct, frozen=True, array_like=True):
    """The destination has durably taken these parcels of `partition`: (destination, highest number taken)."""

    partition: int
    epoch: int
    taken: list[tuple[int, int]]


class DrainAsk(Struct, frozen=True, array_like=True):
    """Admit what waits in the inbox of `partition`, at most `limit` candidates, under `epoch`."""

    partition: int
    epoch: int
    limit: int


class DrainReply(Struct, frozen=True, array_like=True):
    """How many candidates left the inbox, how many of them were new, and how many still wait."""

    taken: int
    admitted: int
    left: int


class Takeover(Struct, frozen=True, array_like=True):
    """What a new owner finds: its epoch, and the work that an earlier life left in flight.

    LEASED rows have become PENDING again (`lapsed` of them), their slots are free: the old owner is known stopped.
    """

    epoch: int
    lapsed: int
    resumables: list[Resumable]
    open_manifests: list[OpenManifest]
    now_ms: int


class OriginOrder(Struct, frozen=True, array_like=True):
    """An operator's order for one origin, audited. None leaves a setting as it is, -1 gives it back to the default.

    A pause holds from the moment the order is answered: no start is granted at the origin until it is lifted.
    """

    origin: str
    who: str
    why: str
    paused: bool | None = None
    active_max: int | None = None
    spacing_ms: int | None = None


class RequeueOrder(Struct, frozen=True, array_like=True):
    """An operator's order to queue finished URLs again, audited: at most `limit` in `state` (COMPLETE, FAILED, EXCLUDED).

    `origin` narrows it to one origin, with `path` to one URL. Each URL begins its next crawl generation with all its
    tries before it.
    """

    state: int
    who: str
    why: str
    origin: str = ""
    path: str = ""
    limit: int = 10_000
