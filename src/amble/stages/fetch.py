"""One HTTP exchange under a permit: what is asked beyond the address, and what the answer amounts to."""

from __future__ import annotations

from msgspec import Struct

from amble.domain.attempt import Lease, UrlKind
from amble.domain.decision import Category
from amble.domain.policy import Policy
from amble.ports import Ask, FetchFailure, Permit, Reply, Transport

REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Fetcher(Struct, frozen=True):
    """Sends no cookies, no credentials, follows nothing. Conditional headers are echoed byte for byte."""

    transport: Transport
    policy: Policy

    async def fetch(self, lease: Lease, permit: Permit) -> Reply | FetchFailure:
        """The exchange for `lease`; for a robots hop `permit` points elsewhere and no validators are sent."""
        limits = self.policy.fetch
        bytes_max = {
            UrlKind.ROBOTS: limits.robots_bytes_max,
            UrlKind.SITEMAP: limits.sitemap_bytes_max,
        }.get(UrlKind(lease.kind), limits.body_bytes_max)
        return await self.transport.fetch(
            permit,
            Ask(
                headers=self._conditional(lease) if permit.url == lease.url else (),
                body_bytes_max=bytes_max,
                keep_alive=lease.facts.spacing_ms <= limits.idle_keepalive_s * 1000,
            ),
        )

    @staticmethod
    def _conditional(lease: Lease) -> tuple[tuple[str, str], ...]:
        """If-None-Match and If-Modified-Since, only while the body they speak of is still held (RFC 9110, 13.1)."""
        validators = lease.validators
        if validators is None or lease.prior_body is None:
            return ()
        headers: list[tuple[str, str]] = []
        if validators.etag:
            headers.append(("If-None-Match", validators.etag))
        if validators.last_modified:
            headers.append(("If-Modified-Since", validators.last_modified))
        return tuple(headers)


def trouble_of(reply: Reply, *, last_try: bool) -> Category | None:
    """The error category of an answer, None when it may be recorded as fetched.

    A body cut at the size limit is an answer. One cut by time or a lost connection is a failure worth another try; on
    the last try the part that came is kept, marked as truncated.
    """
    if reply.status == 429:
        return Category.HTTP_THROTTLED
    if reply.status >= 500:
        return Category.HTTP_SERVER_ERROR
    if reply.status == 408:
        return Category.HTTP_REQUEST_TIMEOUT
    if reply.truncated in ("", "length") or last_try:
        return None
    return _TRUNCATIONS.get(reply.truncated, Category.DISCONNECTED)


_TRUNCATIONS = {
    "idle": Category.TIMEOUT_IDLE,
    "total": Category.TIMEOUT_TOTAL,
    "disconnect": Category.DISCONNECTED,
    "framing": Category.PROTOCOL_ERROR,
    "slow": Category.TOO_SLOW,
}
