"""What operators may set: limits, origin policy, crawl budget. Values only; parsing lives in app/config.py.

Units stand at the end of each name. Defaults are polite and safe with no settings at all (DESIGN section 9).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Bounds of one HTTP exchange. A crossing ends the attempt with a named category."""

    connect_s: float = 10.0
    tls_s: float = 10.0
    first_byte_s: float = 20.0
    idle_s: float = 10.0
    total_s: float = 60.0
    rate_min_bytes_s: int = 256
    rate_grace_s: float = 20.0
    body_bytes_max: int = 10 * 1024 * 1024
    robots_bytes_max: int = 500 * 1024
    sitemap_bytes_max: int = 50 * 1024 * 1024
    head_bytes_max: int = 64 * 1024
    head_lines_max: int = 256
    informational_max: int = 20
    memory_body_bytes_max: int = 1024 * 1024
    idle_keepalive_s: float = 15.0
    connections_max: int = 4000
    handshakes_max: int = 128

    @property
    def longest_s(self) -> float:
        """No exchange under these limits can last longer (seconds)."""
        return self.total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlLimits:
    """Bounds on what may be admitted."""

    url_chars_max: int = 2048
    depth_max: int = 20
    hops_max: int = 10
    path_segments_max: int = 40
    path_repeats_max: int = 3
    query_params_max: int = 30
    urls_per_origin_max: int = 1_000_000
    urls_per_origin_start: int = 20_000
    urls_per_fetched_page: int = 50
    origins_per_site_max: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseLimits:
    """Bounds of one parse in a sandboxed child."""

    cpu_s: float = 5.0
    wall_s: float = 20.0
    memory_bytes_max: int = 1536 * 1024 * 1024
    decoded_bytes_max: int = 10 * 1024 * 1024
    links_max: int = 20_000
    text_bytes_max: int = 4 * 1024 * 1024
    title_chars_max: int = 512
    anchor_chars_max: int = 200
    strikes_max: int = 2
    pages_per_child_max: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginPolicy:
    """How one origin is treated. `delay_fixed` means the operator named the delay: no adaptive factor on top."""

    active_max: int = 1
    address_active_max: int = 16
    spacing_ms: int = 2_000
    delay_fixed: bool = False
    adaptive_factor: float = 5.0
    adaptive_cap_ms: int = 30_000
    crawl_delay_cap_ms: int = 300_000
    backoff_base_ms: int = 10_000
    backoff_cap_ms: int = 3_600_000
    retry_after_cap_ms: int = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The retry lane: `tries_max` attempts in all, exponential backoff with jitter between them."""

    tries_max: int = 4
    base_ms: int = 5_000
    cap_ms: int = 900_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotsPolicy:
    """RFC 9309 with the choices the RFC leaves open."""

    obey: bool = True
    fresh_ms_max: int = 86_400_000
    fresh_ms_min: int = 300_000
    unreachable_retry_ms: int = 3_600_000
    hops_max: int = 5
    stale_while_unreachable_ms: int = 86_400_000
    agent_tokens: tuple[str, ...] = ("amble",)


class NearDuplicates(StrEnum):
    """What becomes of a document that is nearly the same text as one that was published before."""

    WITHHOLD = "withhold"
    PUBLISH = "publish"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPolicy:
    """Which documents are handed to sinks, of those that may be."""

    near_duplicates: NearDuplicates = NearDuplicates.WITHHOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a crawl may spend. None: no bound."""

    pages_max: int | None = 10_000
    seconds_max: float | None = None


class ScopeKind(StrEnum):
    """How far from its seeds a crawl may go."""

    HOST = "host"
    SITE = "site"
    PREFIX = "prefix"
    ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything the stages decide with. Frozen; a change is a new version, written to the audit."""

    version: int = 1
    fetch: FetchLimits = field(default_factory=FetchLimits)
    urls: UrlLimits = field(default_factory=UrlLimits)
    parse: ParseLimits = field(default_factory=ParseLimits)
    origin: OriginPolicy = field(default_factory=OriginPolicy)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    robots: RobotsPolicy = field(default_factory=RobotsPolicy)
    publish: PublishPolicy = field(default_factory=PublishPolicy)
    budget: Budget = field(default_factory=Budget)
