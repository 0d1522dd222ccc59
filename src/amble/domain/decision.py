"""Why amble did or did not do something: the closed set of reasons, and the values that carry them.

A reason is a stable word: it is stored, counted, shown by `why` and documented in docs/reference/reasons.md.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Reason(StrEnum):
    """Every refusal, skip and wait has one of these."""

    # admission: the URL gate refuses a candidate; the URL is not remembered, the reason is counted
    NOT_A_URL = "not_a_url"
    SCHEME_UNSUPPORTED = "scheme_unsupported"
    HAS_USERINFO = "has_userinfo"
    PORT_REFUSED = "port_refused"
    URL_TOO_LONG = "url_too_long"
    OUT_OF_SCOPE = "out_of_scope"
    EXCLUDED_BY_RULE = "excluded_by_rule"
    TOO_DEEP = "too_deep"
    TOO_MANY_HOPS = "too_many_hops"
    PATH_REPEATS = "path_repeats"
    PATH_TOO_DEEP = "path_too_deep"
    QUERY_TOO_WIDE = "query_too_wide"
    ORIGIN_BUDGET = "origin_budget"
    SITE_BUDGET = "site_budget"
    KIND_UNWANTED = "kind_unwanted"
    NOFOLLOW = "nofollow"

    # dispatch: final for this crawl generation
    ROBOTS_DISALLOWED = "robots_disallowed"
    DESTINATION_REFUSED = "destination_refused"

    # dispatch: not yet
    STALE_EPOCH = "stale_epoch"
    ORIGIN_PAUSED = "origin_paused"
    ORIGIN_BACKING_OFF = "origin_backing_off"
    NOT_YET = "not_yet"
    NO_SLOT = "no_slot"
    ADDRESS_BUSY = "address_busy"
    BUDGET_SPENT = "budget_spent"
    ROBOTS_MISSING = "robots_missing"
    ROBOTS_EXPIRED = "robots_expired"
    ROBOTS_UNREACHABLE = "robots_unreachable"
    ROBOTS_CHANGED = "robots_changed"
    DNS_UNAVAILABLE = "dns_unavailable"
    ARCHIVE_UNAVAILABLE = "archive_unavailable"
    STORE_UNAVAILABLE = "store_unavailable"
    SERVER_AWAY = "server_away"
    DIGESTS_UNAVAILABLE = "digests_unavailable"
    PARSERS_UNAVAILABLE = "parsers_unavailable"
    PARSE_BACKLOG = "parse_backlog"
    STOPPING = "stopping"
    LEASE_LAPSED = "lease_lapsed"
    RETRY_LATER = "retry_later"
    LOCAL_LIMIT = "local_limit"


class Withheld(StrEnum):
    """Why a complete document is not published. Beside these there is `status_` and the status of an answer outside 2xx."""

    NOT_A_PAGE = "not_a_page"
    NOINDEX = "noindex"
    CANONICAL_ELSEWHERE = "canonical_elsewhere"
    NO_TEXT = "no_text"
    NEAR_DUPLICATE = "near_duplicate"


# Before the status of an answer, as a word of why its document is withheld.
WITHHELD_STATUS = "status_"


class Category(StrEnum):
    """What went wrong with an attempt: a closed set, stored in fetch records and shown to operators."""

    DNS_NOT_FOUND = "dns_not_found"
    DNS_TIMEOUT = "dns_timeout"
    DNS_FAILED = "dns_failed"
    CONNECT_REFUSED = "connect_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    CONNECT_UNREACHABLE = "connect_unreachable"
    CONNECT_RESET = "connect_reset"
    PEER_MISMATCH = "peer_mismatch"
    TLS_TIMEOUT = "tls_timeout"
    TLS_CERTIFICATE = "tls_certificate"
    TLS_FAILED = "tls_failed"
    TIMEOUT_FIRST_BYTE = "timeout_first_byte"
    TIMEOUT_IDLE = "timeout_idle"
    TIMEOUT_TOTAL = "timeout_total"
    TOO_SLOW = "too_slow"
    DISCONNECTED = "disconnected"
    EMPTY_REPLY = "empty_reply"
    PROTOCOL_ERROR = "protocol_error"
    HEADERS_TOO_LARGE = "headers_too_large"
    HTTP_THROTTLED = "http_throttled"
    HTTP_SERVER_ERROR = "http_server_error"
    HTTP_REQUEST_TIMEOUT = "http_request_timeout"
    ROBOTS_HOPS = "robots_hops"
    NO_TURN = "no_turn"
    REFUSED_DESTINATION = "refused_destination"
    PARSE_FAILED = "parse_failed"
    LOCAL_LIMIT = "local_limit"
    STALE_EPOCH = "stale_epoch"
    INTERNAL = "internal"


class Rejected(Struct, frozen=True):
    """The URL gate said no to a candidate. `detail` is for people: the rule, the limit, the part that offends."""

    reason: Reason
    detail: str = ""


class Refusal(Struct, frozen=True, kw_only=True):
    """The egress gate said no to one start. Nothing was spent.

    `retry_in_ms`: the URL need not be offered again sooner; 0 leaves it to the ledger. `final` True: not in this
    crawl generation.
    """

    reason: Reason
    detail: str = ""
    retry_in_ms: int = 0
    final: bool = False
