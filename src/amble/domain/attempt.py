"""Identity of one try at one URL: ids, kinds, the lease. Plus the rule that decides between retry and give up.

The structs here cross process borders as msgpack arrays; field order is the wire format.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NewType

from msgspec import Struct

from amble.domain.decision import Category
from amble.domain.fetched import BodyRef, Validators

if TYPE_CHECKING:
    # The store process needs none of the settings, and making their classes takes 8 ms.
    from amble.domain.policy import RetryPolicy

UrlId = NewType("UrlId", int)
OriginId = NewType("OriginId", int)
Epoch = NewType("Epoch", int)
LeaseToken = NewType("LeaseToken", bytes)


class UrlKind(IntEnum):
    """What a URL is fetched for. A kind other than PAGE is parsed by its own parser and never published."""

    PAGE = 0
    ROBOTS = 1
    SITEMAP = 2
    FEED = 3


class Edge(IntEnum):
    """How a URL was found. Stored as provenance."""

    SEED = 0
    ANCHOR = 1
    REDIRECT = 2
    FRAME = 3
    CANONICAL = 4
    ALTERNATE = 5
    FEED = 6
    REFRESH = 7
    NEXT = 8
    ROBOTS = 9
    SITEMAP = 10
    IMAGE = 11
    OPERATOR = 12


class LeaseKey(Struct, frozen=True, array_like=True):
    """Authority over one attempt. Every mutation names it; one that no longer matches is stale and changes nothing.

    `partition` is where the URL lives: it routes a call to its store and finds the epoch that it is made under.
    """

    url_id: int
    attempt: int
    token: bytes
    partition: int = 0


class RobotsState(Struct, frozen=True, array_like=True):
    """What the ledger knows of an origin's robots.txt. Times are the store's clock in ms.

    `version` grows with every decision; a reservation names it, so a decision that changed in between is noticed.
    `rules` refers to the parse manifest that holds the rules (None unless outcome is RULES).
    """

    outcome: int  # robots.RobotsOutcome
    version: int = 0
    fetched_at_ms: int = 0
    expires_at_ms: int = 0
    rules: BodyRef | None = None
    crawl_delay_ms: int = 0


class OriginFacts(Struct, frozen=True, array_like=True):
    """What the gate needs to know of an origin to decide, as of the lease."""

    active_max: int
    spacing_ms: int
    last_fetch_ms: int
    backoff_level: int
    robots: RobotsState


class Lease(Struct, frozen=True, array_like=True):
    """Temporary authority over one URL. It updates records; it opens no socket.

    `tries` counts failed tries of this crawl generation so far; `deadline_ms` is the store's clock.
    """

    key: LeaseKey
    origin_id: int
    origin: str
    path: str
    kind: int
    depth: int
    hops: int
    tries: int
    crawl_generation: int
    deadline_ms: int
    facts: OriginFacts
    validators: Validators | None = None
    prior_body: BodyRef | None = None
    prior_digest: bytes | None = None

    @property
    def url(self) -> str:
        """The canonical URL."""
        return self.origin + self.path


class RetryAt(Struct, frozen=True):
    """Try again, not before `delay_ms` from now."""

    delay_ms: int


class GiveUp(Struct, frozen=True):
    """No further try in this crawl generation."""


# Far beyond any cap; keeps the arithmetic small whatever number of tries an operator permits.
_DOUBLINGS_MAX = 40

# Trying again soon cannot help; one attempt is the answer.
_FINAL_AT_ONCE = frozenset({Category.REFUSED_DESTINATION, Category.ROBOTS_HOPS, Category.TLS_CERTIFICATE})
# These rarely change within minutes: two tries.
_TWO_TRIES = frozenset(
    {
        Category.DNS_NOT_FOUND,
        Category.PROTOCOL_ERROR,
        Category.HEADERS_TOO_LARGE,
        Category.TLS_FAILED,
        Category.PEER_MISMATCH,
    }
)


def after_failure(category: Category, tries: int, policy: RetryPolicy, jitter: float) -> RetryAt | GiveUp:
    """Retry or give up.

    `tries` counts this failure too (1 for the first). `jitter` is a uniform number in [0, 1). The delay is
    exponential in tries, half of it random ("equal jitter"), capped.
    """
    assert tries >= 1
    assert 0.0 <= jitter < 1.0
    if category in _FINAL_AT_ONCE:
        return GiveUp()
    bound = min(2, policy.tries_max) if category in _TWO_TRIES else policy.tries_max
    if tries >= bound:
        return GiveUp()
    full = min(policy.cap_ms, policy.base_ms << min(tries - 1, _DOUBLINGS_MAX))
    return RetryAt(int(full / 2 + full / 2 * jitter))
