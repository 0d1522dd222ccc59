"""Spacing and backoff of one origin. Arithmetic only: the ledger stores, the gate asks.

Effective delay between two starts = max(policy spacing, Crawl-delay up to its cap, factor x last fetch duration up
to its cap). Retry-After and backoff are a rest: no start at all until they end.
"""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime

from amble.domain.decision import Category
from amble.domain.policy import OriginPolicy

# Answers and failures that say "you are too much for me".
_BACKS_OFF = frozenset(
    {
        Category.HTTP_THROTTLED,
        Category.CONNECT_REFUSED,
        Category.CONNECT_TIMEOUT,
        Category.CONNECT_UNREACHABLE,
        Category.TLS_TIMEOUT,
        Category.TIMEOUT_FIRST_BYTE,
        Category.HTTP_SERVER_ERROR,
    }
)
BACKOFF_LEVEL_MAX = 12
# More digits of Retry-After seconds than this mean "for ever"; the policy's cap decides what that is.
_DIGITS_MAX = 12
_FOREVER_MS = 10**15


def effective_delay_ms(
    policy: OriginPolicy, *, spacing_ms: int, crawl_delay_ms: int, last_fetch_ms: int
) -> int:
    """Milliseconds that must lie between two starts.

    `spacing_ms` is the origin's own setting; `crawl_delay_ms` what its robots.txt asks (0: nothing; values over the
    cap count as the cap); `last_fetch_ms` how long its last fetch took. A fixed delay set by the operator leaves the
    adaptive part out; Crawl-delay always counts.
    """
    adaptive = 0
    if not policy.delay_fixed:
        adaptive = min(policy.adaptive_cap_ms, int(policy.adaptive_factor * last_fetch_ms))
    return max(spacing_ms, min(crawl_delay_ms, policy.crawl_delay_cap_ms), adaptive)


def backs_off(category: Category | None) -> bool:
    """Whether a failure of this category means the origin should be left alone for a while."""
    return category in _BACKS_OFF


def backoff(
    policy: OriginPolicy, *, level: int, category: Category | None, retry_after_ms: int | None, jitter: float
) -> tuple[int, int]:
    """(new level, rest in ms) after one request.

    Success lowers the level by one and asks for no rest. A category that backs off raises it; the rest doubles with
    each level, half of it random, and is never shorter than Retry-After (capped).
    """
    if category is None:
        return max(0, level - 1), 0
    after = min(retry_after_ms or 0, policy.retry_after_cap_ms)
    if category not in _BACKS_OFF:
        return level, after
    raised = min(BACKOFF_LEVEL_MAX, level + 1)
    # One hiccup of a server costs no rest beyond the retry lane; a 429 or a Retry-After always does.
    if raised == 1 and category is not Category.HTTP_THROTTLED and not after:
        return raised, 0
    full = min(policy.backoff_cap_ms, policy.backoff_base_ms * 2 ** (raised - 1))
    return raised, max(after, int(full / 2 + full / 2 * jitter))


def retry_after_ms(value: str | None, now_s: float) -> int | None:
    """What a Retry-After header asks, in ms from now; None when absent or unreadable (RFC 9110, 10.2.3).

    Both forms count: seconds, and an HTTP date compared with `now_s` (seconds since 1970). Never negative.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return int(text) * 1000 if len(text) <= _DIGITS_MAX else _FOREVER_MS
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        # A date without a zone means UTC here as everywhere in HTTP, not the zone of this machine.
        moment = moment.replace(tzinfo=UTC)
    return max(0, int((moment.timestamp() - now_s) * 1000))
