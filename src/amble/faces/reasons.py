"""What each reason and failure category means, in one sentence for people, and what can be done about it.

The words themselves are the closed sets of `domain/decision.py`; this table must cover them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

from amble.domain.decision import WITHHELD_STATUS, Category, Reason, Withheld


@dataclass(frozen=True, slots=True)
class Explanation:
    """`meaning`: what happened. `remedy`: the setting or action that changes it, "" when there is nothing to do."""

    meaning: str
    remedy: str = ""


REASONS: dict[Reason, Explanation] = {
    Reason.NOT_A_URL: Explanation("A link that no URL parser accepts."),
    Reason.SCHEME_UNSUPPORTED: Explanation(
        "A link that is neither http nor https (mailto, javascript, ftp and so on)."
    ),
    Reason.HAS_USERINFO: Explanation(
        "The URL carries a user name or a password; amble sends no credentials."
    ),
    Reason.PORT_REFUSED: Explanation("The port belongs to another protocol, where a request could do harm."),
    Reason.URL_TOO_LONG: Explanation("The URL is longer than the bound.", "urls.url_chars_max"),
    Reason.OUT_OF_SCOPE: Explanation(
        "The URL lies outside the scope of the crawl.", "--scope, scope.kind, scope.hosts"
    ),
    Reason.EXCLUDED_BY_RULE: Explanation(
        "An include or exclude pattern keeps the URL out.", "--include, --exclude"
    ),
    Reason.TOO_DEEP: Explanation("More links away from a seed than the bound.", "urls.depth_max"),
    Reason.TOO_MANY_HOPS: Explanation("More redirects in a row than the bound.", "urls.hops_max"),
    Reason.PATH_REPEATS: Explanation(
        "The same path segment comes back too often: a trap.", "urls.path_repeats_max"
    ),
    Reason.PATH_TOO_DEEP: Explanation("The path has more segments than the bound.", "urls.path_segments_max"),
    Reason.QUERY_TOO_WIDE: Explanation(
        "The query has more parameters than the bound.", "urls.query_params_max"
    ),
    Reason.ORIGIN_BUDGET: Explanation(
        "The origin has already put as many URLs into the frontier as its pages have earned.",
        "urls.urls_per_origin_start, urls.urls_per_fetched_page, urls.urls_per_origin_max",
    ),
    Reason.SITE_BUDGET: Explanation(
        "The site has as many origins in the frontier as one site may have: a trap of host names.",
        "urls.origins_per_site_max",
    ),
    Reason.KIND_UNWANTED: Explanation(
        "A link to something that is not fetched by this crawl (images, for one)."
    ),
    Reason.NOFOLLOW: Explanation("The page or the link asks not to be followed."),
    Reason.ROBOTS_DISALLOWED: Explanation(
        "robots.txt does not allow it.", "robots.obey, for sites that are yours"
    ),
    Reason.DESTINATION_REFUSED: Explanation(
        "The name leads to an address that is private or special.", "--allow-net, for networks that are yours"
    ),
    Reason.STALE_EPOCH: Explanation("Another owner has taken over; this one may start nothing any more."),
    Reason.ORIGIN_PAUSED: Explanation("An operator has paused the origin."),
    Reason.ORIGIN_BACKING_OFF: Explanation(
        "The origin rests for a while: it said that it is too much, or it failed.",
        "origin.backoff_base_ms",
    ),
    Reason.NOT_YET: Explanation(
        "The delay between two starts at the origin has not passed.", "--delay, origin.spacing_ms"
    ),
    Reason.NO_SLOT: Explanation(
        "As many requests as allowed are active at the origin.", "--per-origin, origin.active_max"
    ),
    Reason.ADDRESS_BUSY: Explanation(
        "Other origins on the same address have used its share.", "origin.address_active_max"
    ),
    Reason.BUDGET_SPENT: Explanation("The budget of the crawl is spent.", "--pages, --max-time"),
    Reason.ROBOTS_MISSING: Explanation("The robots.txt of the origin is not known yet; it is fetched first."),
    Reason.ROBOTS_EXPIRED: Explanation("The robots.txt of the origin is too old; it is fetched again first."),
    Reason.ROBOTS_UNREACHABLE: Explanation(
        "The robots.txt of the origin cannot be had, which forbids everything (RFC 9309, 2.3.1.4).",
        "robots.unreachable_retry_ms",
    ),
    Reason.ROBOTS_CHANGED: Explanation(
        "The robots decision changed between the lease and the start; asked again."
    ),
    Reason.DNS_UNAVAILABLE: Explanation(
        "The name server does not answer; no site is to blame.", "--resolver"
    ),
    Reason.ARCHIVE_UNAVAILABLE: Explanation("The archive cannot be written now; amble waits for it."),
    Reason.STORE_UNAVAILABLE: Explanation("The frontier cannot be written now; amble waits for it."),
    Reason.SERVER_AWAY: Explanation(
        "The server where the partition lives does not answer; the other partitions go on.",
        "amble partitions",
    ),
    Reason.DIGESTS_UNAVAILABLE: Explanation(
        "The index of stored bodies and texts does not answer; pages wait for it rather than being kept twice."
    ),
    Reason.PARSERS_UNAVAILABLE: Explanation("No parser process can be started.", "amble doctor"),
    Reason.PARSE_BACKLOG: Explanation("Enough fetched pages wait for the parsers.", "parse.children"),
    Reason.LOCAL_LIMIT: Explanation(
        "This machine had no file or no room to keep the answer; it is asked again a little later."
    ),
    Reason.STOPPING: Explanation("The crawl is being stopped."),
    Reason.LEASE_LAPSED: Explanation(
        "The worker that held the URL did not report in time; it is queued again."
    ),
    Reason.RETRY_LATER: Explanation(
        "The last try failed; the next one waits.", "retry.base_ms, retry.tries_max"
    ),
}

WITHHELD: dict[Withheld, Explanation] = {
    Withheld.NOT_A_PAGE: Explanation("A robots.txt, sitemap or feed: read for its links, not a document."),
    Withheld.NOINDEX: Explanation("The page asks not to be indexed."),
    Withheld.CANONICAL_ELSEWHERE: Explanation(
        "The page names another URL as its canonical one; that one is published, if it can be had."
    ),
    Withheld.NO_TEXT: Explanation("The page has no text."),
    Withheld.NEAR_DUPLICATE: Explanation(
        "A document with nearly the same text was published before; links were followed, and the body is kept.",
        "publish.near_duplicates",
    ),
}
# For `status_` and a number.
WITHHELD_BY_STATUS = Explanation("The answer was not a success (2xx), so there is no document.")

CATEGORIES: dict[Category, Explanation] = {
    Category.DNS_NOT_FOUND: Explanation("The name does not exist or has no address."),
    Category.DNS_TIMEOUT: Explanation("The name server did not answer in time.", "--resolver"),
    Category.DNS_FAILED: Explanation("The name server answered with a failure.", "--resolver"),
    Category.CONNECT_REFUSED: Explanation("Nothing listens at that address and port."),
    Category.CONNECT_TIMEOUT: Explanation("No connection came about in time.", "fetch.connect_s"),
    Category.CONNECT_UNREACHABLE: Explanation("There is no way to that address."),
    Category.CONNECT_RESET: Explanation("The server reset the connection before it answered."),
    Category.PEER_MISMATCH: Explanation("The socket led to another address than the judged one; dropped."),
    Category.TLS_TIMEOUT: Explanation("The TLS handshake took too long.", "fetch.tls_s"),
    Category.TLS_CERTIFICATE: Explanation(
        "The certificate is not valid for the site.", "tls.verify, for sites that are yours"
    ),
    Category.TLS_FAILED: Explanation("The TLS handshake failed."),
    Category.TIMEOUT_FIRST_BYTE: Explanation("The server stayed silent too long.", "fetch.first_byte_s"),
    Category.TIMEOUT_IDLE: Explanation("The answer stopped arriving.", "fetch.idle_s"),
    Category.TIMEOUT_TOTAL: Explanation("The exchange took too long as a whole.", "fetch.total_s"),
    Category.TOO_SLOW: Explanation(
        "The answer arrived slower than the least rate.", "fetch.rate_min_bytes_s"
    ),
    Category.DISCONNECTED: Explanation("The server closed the connection in the middle of the answer."),
    Category.EMPTY_REPLY: Explanation("The server closed the connection without an answer."),
    Category.PROTOCOL_ERROR: Explanation("The answer is not HTTP/1.1, or is dangerously ambiguous."),
    Category.HEADERS_TOO_LARGE: Explanation(
        "The header block is larger than the bound.", "fetch.head_bytes_max"
    ),
    Category.HTTP_THROTTLED: Explanation(
        "429, or 503 with Retry-After: the site asks for fewer requests.", "--delay"
    ),
    Category.HTTP_SERVER_ERROR: Explanation("The server answered 5xx."),
    Category.HTTP_REQUEST_TIMEOUT: Explanation("The server answered 408 or 425: try again."),
    Category.NO_TURN: Explanation(
        "The robots.txt redirects to another address, whose site had no turn for it in time."
    ),
    Category.ROBOTS_HOPS: Explanation(
        "The robots.txt redirects more often than the bound.", "robots.hops_max"
    ),
    Category.REFUSED_DESTINATION: Explanation(
        "The name leads to an address that is private or special.", "--allow-net, for networks that are yours"
    ),
    Category.PARSE_FAILED: Explanation(
        "The body cannot be decoded, or the parser died or ran over a limit on it more than once."
    ),
    Category.LOCAL_LIMIT: Explanation(
        "This machine had no file or no room to keep the answer; the site is not to blame and no try is counted.",
        "amble doctor",
    ),
    Category.STALE_EPOCH: Explanation(
        "The right to start requests at the site ended before this one began; no try is counted."
    ),
    Category.INTERNAL: Explanation("A mistake in amble.", "report it with the log in the crawl folder"),
}


def explanation_of(word: str) -> Explanation | None:
    """The explanation of a stored word, None for one that this version does not know."""
    for reason, explanation in REASONS.items():
        if reason.value == word:
            return explanation
    for category, explanation in CATEGORIES.items():
        if category.value == word:
            return explanation
    for withheld, explanation in WITHHELD.items():
        if withheld.value == word:
            return explanation
    if word.startswith(WITHHELD_STATUS):
        return WITHHELD_BY_STATUS
    return None
