"""Every setting of a crawl, once: name, what it accepts, default, unit, and why it is there.

The commented amble.toml, the settings reference, `amble config show` and the parser all read this table. Defaults
of limits come from `domain/policy.py` and are not repeated here. No file is read here and nothing is decided.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from amble.domain.policy import Policy, ScopeKind

UNLIMITED = "unlimited"
AUTO = "auto"

# A setting holds one of these; lists are tuples so that a configuration stays a value.
SettingValue = bool | int | float | str | tuple[str, ...] | None

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(b|kb|mb|gb|kib|mib|gib)?", re.IGNORECASE)
_SIZE_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_TOKEN = re.compile(r"[A-Za-z_-]+")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a setting accepts: the check, the same in words, and whether it is a list."""

    accepts: str
    adapter: TypeAdapter[Any]
    many: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `name` is `section.key` as in amble.toml; `unit` is "" where the value has none."""

    name: str
    kind: Kind
    default: SettingValue
    unit: str
    why: str

    @property
    def section(self) -> str:
        """The TOML table that holds it."""
        return self.name.partition(".")[0]

    @property
    def key(self) -> str:
        """The key inside its table."""
        return self.name.partition(".")[2]

    @property
    def env(self) -> str:
        """The environment variable that overrides it."""
        return "AMBLE_" + self.name.replace(".", "_").upper()


def _seconds(value: object) -> object:
    """Seconds of "90", "90s", "15m", "2h"; anything else is left for the check to refuse."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip().lower())):
        return float(match[1]) * _DURATION_UNITS_S[match[2] or "s"]
    return value


def _milliseconds(value: object) -> object:
    """Milliseconds of a bare number or of a duration with its unit."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip().lower())):
        return round(float(match[1]) * _DURATION_UNITS_S[match[2] or "ms"] * 1_000)
    return value


def _bytes(value: object) -> object:
    """Bytes of "10MiB", "64 KiB", "1000"."""
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        return int(float(match[1]) * _SIZE_UNITS[(match[2] or "b").lower()])
    return value


def _unlimited(value: object) -> object:
    """The word for no bound becomes None."""
    return None if isinstance(value, str) and value.strip().lower() == UNLIMITED else value


def _auto(value: object) -> object:
    """The word for "amble chooses" becomes 0."""
    return 0 if isinstance(value, str) and value.strip().lower() == AUTO else value


def _no_bool(value: object) -> object:
    """True is not the number 1, whatever Python thinks."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")
    return value


def _network(value: str) -> str:
    """One network in CIDR form; a bare address is the network of itself."""
    return str(ipaddress.ip_network(value.strip()))


def _endpoint(value: str) -> str:
    """ "" or ADDR:PORT of a name server; a bare address gets port 53."""
    text = value.strip()
    if not text:
        return ""
    host, _, port = text.rpartition(":") if text.count(":") == 1 or text.startswith("[") else (text, "", "")
    if not host or text.endswith("]"):
        host, port = text, "53"
    address = ipaddress.ip_address(host.strip("[]"))
    number = int(port or "53")
    if not 1 <= number <= 65_535:
        raise ValueError("a port is 1 to 65535")
    return f"[{address}]:{number}" if address.version == 6 else f"{address}:{number}"


def _line(value: str) -> str:
    """One line of printable characters: it travels in a request header."""
    text = value.strip()
    if not text.isprintable() or not text.isascii():
        raise ValueError("printable ASCII on one line is wanted")
    return text


def _contact(value: str) -> str:
    """ "" or something a webmaster can open or write to."""
    text = _line(value)
    if text and not re.fullmatch(r"https?://[^\s/()]+\S*|(mailto:)?[^\s@()]+@[^\s@()]+\.[^\s@()]+", text):
        raise ValueError("not a contact")
    return text


def _token(value: str) -> str:
    """A product token, RFC 9309 section 2.2.1."""
    if not _TOKEN.fullmatch(value.strip()):
        raise ValueError("not a product token")
    return value.strip().lower()


def _kind(accepts: str, annotation: Any, *, many: bool = False) -> Kind:
    return Kind(accepts, TypeAdapter(annotation), many)


_Float = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
_Int = Annotated[int, BeforeValidator(_no_bool)]

FLAG = _kind("true or false", bool)
COUNT = _kind("a whole number, 1 or more", Annotated[_Int, Field(ge=1, le=10**12)])
COUNT_OR_NONE = _kind("a whole number, 0 or more", Annotated[_Int, Field(ge=0, le=10**12)])
CHILDREN = _kind(
    f'a whole number from 1 to 256, or "{AUTO}"', Annotated[_Int, Field(ge=0, le=256), BeforeValidator(_auto)]
)
CONNECTIONS = _kind("a whole number from 1 to 20000", Annotated[_Int, Field(ge=1, le=20_000)])
FACTOR = _kind("a number, 0 or more", Annotated[_Float, Field(ge=0, le=1_000)])
SECONDS = _kind(
    "seconds greater than 0, or a duration such as 90s, 15m, 2h",
    Annotated[_Float, Field(gt=0, le=10**9), BeforeValidator(_seconds)],
)
SECONDS_OR_NONE = _kind(
    "seconds, 0 or more, or a duration such as 90s, 15m, 2h",
    Annotated[_Float, Field(ge=0, le=10**9), BeforeValidator(_seconds)],
)
MILLISECONDS = _kind(
    "milliseconds, 0 or more, or a duration such as 500ms, 2s, 1h",
    Annotated[_Int, Field(ge=0, le=10**12), BeforeValidator(_milliseconds)],
)
BYTES = _kind(
    "bytes, 1 or more, or a size such as 64KiB, 10MiB",
    Annotated[_Int, Field(ge=1, le=2**50), BeforeValidator(_bytes)],
)
SEGMENT = _kind(
    "bytes, at least 1MiB and less than 4GiB, or a size such as 512MiB",
    Annotated[_Int, Field(ge=2**20, lt=2**32), BeforeValidator(_bytes)],
)
PAGES = _kind(
    f'a whole number, 1 or more, or "{UNLIMITED}"',
    Annotated[Annotated[_Int, Field(ge=1, le=10**12)] | None, BeforeValidator(_unlimited)],
)
TIME = _kind(
    f'seconds greater than 0, a duration such as 90s, 15m, 2h, or "{UNLIMITED}"',
    Annotated[
        Annotated[_Float, Field(gt=0, le=10**9), BeforeValidator(_seconds)] | None,
        BeforeValidator(_unlimited),
    ],
)
SCOPE = _kind(
    "one of " + ", ".join(kind.value for kind in ScopeKind), Literal[tuple(kind.value for kind in ScopeKind)]
)
WORDS = _kind("a list of texts", list[Annotated[str, Field(min_length=1)]], many=True)
TOKENS = _kind(
    "a list of product tokens (letters, _ and - only)",
    list[Annotated[str, AfterValidator(_token)]],
    many=True,
)
NETWORKS = _kind(
    "networks in CIDR form without host bits, such as 127.0.0.0/8 or fd00::/8",
    list[Annotated[str, AfterValidator(_network)]],
    many=True,
)
ENDPOINT = _kind(
    "ADDRESS:PORT of a name server, such as 127.0.0.1:5353", Annotated[str, AfterValidator(_endpoint)]
)
AGENT = _kind(
    "one line of printable ASCII, starting with a product token", Annotated[str, AfterValidator(_line)]
)
CONTACT = _kind(
    "a web address or a mail address, such as https://you.example/bot",
    Annotated[str, AfterValidator(_contact)],
)
PATH = _kind("a path", str)

_P = Policy()


def _own(name: str, kind: Kind, default: SettingValue, unit: str, why: str) -> Setting:
    return Setting(name=name, kind=kind, default=default, unit=unit, why=why)


def _policy(name: str, kind: Kind, unit: str, why: str) -> Setting:
    """A setting whose default stands in domain/policy.py."""
    section, _, key = name.partition(".")
    default = getattr(getattr(_P, section), key)
    return Setting(name=name, kind=kind, default=default, unit=unit, why=why)


SECTIONS: dict[str, str] = {
    "crawl": "Who crawls, and how much at once.",
    "scope": "How far from its seeds the crawl may go.",
    "budget": "What the crawl may spend before it ends by itself.",
    "origin": "How one origin (scheme, host, port) is treated.",
    "robots": "robots.txt, by RFC 9309.",
    "retry": "The retry lane of failed attempts.",
    "urls": "Bounds on what may enter the frontier.",
    "fetch": "Bounds of one HTTP exchange.",
    "parse": "Bounds of one parse in a sandboxed child.",
    "network": "Names and addresses.",
    "tls": "Certificates.",
    "archive": "The WARC files.",
    "finish": "When a crawl that still has something queued ends.",
}

_CRAWL = (
    _own(
        "crawl.contact",
        CONTACT,
        "",
        "",
        "Sent in User-Agent so that a webmaster can reach you. Public crawls need it.",
    ),
    _own("crawl.user_agent", AGENT, "", "", "Sent with every request. Empty: amble/VERSION (+CONTACT)."),
    _own(
        "crawl.concurrency",
        CONNECTIONS,
        256,
        "requests",
        "Requests on the wire at once over all origins; bounds memory and load on your line.",
    ),
)
_SCOPE = (
    _own(
        "scope.kind",
        SCOPE,
        ScopeKind.HOST.value,
        "",
        "host: the seeds' hosts. site: their registrable domains. prefix: below the seeds' paths. any: everywhere.",
    ),
    _own(
        "scope.hosts",
        WORDS,
        (),
        "",
        "Further hosts that belong to the crawl, beside those of the seeds; *.example.org is every host below example.org.",
    ),
    _own(
        "scope.include",
        WORDS,
        (),
        "",
        "Patterns of which a URL must match one, when there are any. * is any text, a final $ the end; /... is held against the path, *... against the whole URL, others from the host on.",
    ),
    _own(
        "scope.exclude",
        WORDS,
        (),
        "",
        "Patterns that keep a URL out, whatever includes it.",
    ),
)
_BUDGET = (
    _policy(
        "budget.pages_max",
        PAGES,
        "pages",
        "The crawl ends after so many fetched pages; keeps a first try from becoming a flood.",
    ),
    _policy("budget.seconds_max", TIME, "s", "One run ends after this time."),
)
_ORIGIN = (
    _policy(
        "origin.active_max",
        COUNT,
        "requests",
        "Requests at one origin at once. One is what a polite visitor does.",
    ),
    _policy("origin.spacing_ms", MILLISECONDS, "ms", "Least time between two starts at one origin."),
    _policy(
        "origin.delay_fixed",
        FLAG,
        "",
        "True: spacing_ms is what you want, no adaptive delay on top. Crawl-delay still counts.",
    ),
    _policy(
        "origin.adaptive_factor",
        FACTOR,
        "",
        "A slow origin is left alone for this many times its last fetch.",
    ),
    _policy("origin.adaptive_cap_ms", MILLISECONDS, "ms", "The adaptive delay never grows beyond this."),
    _policy(
        "origin.crawl_delay_cap_ms", MILLISECONDS, "ms", "A Crawl-delay in robots.txt counts up to this."
    ),
    _policy(
        "origin.backoff_base_ms",
        MILLISECONDS,
        "ms",
        "First rest of an origin that says it is too much; doubles each time.",
    ),
    _policy("origin.backoff_cap_ms", MILLISECONDS, "ms", "Longest rest of an origin that keeps failing."),
    _policy("origin.retry_after_cap_ms", MILLISECONDS, "ms", "Retry-After is obeyed up to this."),
)
_ROBOTS = (
    _policy("robots.obey", FLAG, "", "Turn off only for sites that are yours."),
    _policy(
        "robots.fresh_ms_max",
        MILLISECONDS,
        "ms",
        "A robots.txt is fetched again after at most this (RFC 9309, 2.4: a day).",
    ),
    _policy(
        "robots.fresh_ms_min", MILLISECONDS, "ms", "Cache-Control cannot make amble ask more often than this."
    ),
    _policy(
        "robots.unreachable_retry_ms",
        MILLISECONDS,
        "ms",
        "An unreachable robots.txt is asked for again after this.",
    ),
    _policy(
        "robots.hops_max",
        COUNT,
        "redirects",
        "Redirects followed for a robots.txt (RFC 9309, 2.3.1.2: at least five).",
    ),
    _policy(
        "robots.stale_while_unreachable_ms",
        MILLISECONDS,
        "ms",
        "The last good copy serves this long, from its fetch, while its origin fails.",
    ),
    _own(
        "robots.agent_tokens",
        TOKENS,
        (),
        "",
        "Names by which robots.txt may address this crawler. Empty: the product token of User-Agent.",
    ),
)
_RETRY = (
    _policy("retry.tries_max", COUNT, "tries", "Attempts at one URL in all before it counts as failed."),
    _policy(
        "retry.base_ms", MILLISECONDS, "ms", "Wait before the second attempt; doubles, half of it random."
    ),
    _policy("retry.cap_ms", MILLISECONDS, "ms", "Longest wait between two attempts."),
)
_URLS = (
    _policy("urls.url_chars_max", COUNT, "characters", "Longer URLs are nearly always generated."),
    _policy("urls.depth_max", COUNT_OR_NONE, "links", "Links away from a seed."),
    _policy(
        "urls.hops_max", COUNT_OR_NONE, "redirects", "Redirects in a row; each target is a URL of its own."
    ),
    _policy("urls.path_segments_max", COUNT, "segments", "Deeper paths are nearly always a trap."),
    _policy(
        "urls.path_repeats_max", COUNT, "times", "The same path segment more often is nearly always a trap."
    ),
    _policy(
        "urls.query_params_max", COUNT, "parameters", "Wider queries are nearly always filters without end."
    ),
    _policy("urls.urls_per_origin_max", COUNT, "URLs", "No origin may fill the frontier with more."),
    _policy(
        "urls.urls_per_origin_start", COUNT, "URLs", "What an origin may add before it has shown any page."
    ),
    _policy(
        "urls.urls_per_fetched_page",
        COUNT_OR_NONE,
        "URLs",
        "What each fetched page adds to its origin's allowance.",
    ),
)
_FETCH = (
    _policy("fetch.connect_s", SECONDS, "s", "A connection that takes longer fails."),
    _policy("fetch.tls_s", SECONDS, "s", "A TLS handshake that takes longer fails."),
    _policy("fetch.first_byte_s", SECONDS, "s", "A server that stays silent longer fails."),
    _policy("fetch.idle_s", SECONDS, "s", "A body that pauses longer is cut off."),
    _policy("fetch.total_s", SECONDS, "s", "No exchange lasts longer, however steadily it drips."),
    _policy(
        "fetch.rate_min_bytes_s",
        COUNT_OR_NONE,
        "bytes/s",
        "Slower answers are cut off; a slot is worth more.",
    ),
    _policy("fetch.rate_grace_s", SECONDS_OR_NONE, "s", "The least rate is asked for only after this."),
    _policy("fetch.body_bytes_max", BYTES, "bytes", "Bodies are cut off here, on the wire."),
    _policy(
        "fetch.robots_bytes_max",
        BYTES,
        "bytes",
        "A robots.txt is read up to here (RFC 9309, 2.5: at least 500 KiB).",
    ),
    _policy("fetch.head_bytes_max", BYTES, "bytes", "A larger header block fails the attempt."),
    _policy("fetch.head_lines_max", COUNT, "lines", "More header lines fail the attempt."),
    _policy(
        "fetch.informational_max", COUNT_OR_NONE, "answers", "1xx answers tolerated before the final one."
    ),
    _policy(
        "fetch.memory_body_bytes_max",
        BYTES,
        "bytes",
        "Larger bodies go to a temporary file while they arrive.",
    ),
    _policy(
        "fetch.idle_keepalive_s",
        SECONDS_OR_NONE,
        "s",
        "A connection is kept this long for the next request to its origin.",
    ),
    _policy("fetch.connections_max", CONNECTIONS, "sockets", "Open sockets in all, idle ones included."),
    _policy(
        "fetch.handshakes_max",
        CONNECTIONS,
        "handshakes",
        "TLS handshakes at once; they are the dearest step.",
    ),
)
_PARSE = (
    _own(
        "parse.children",
        CHILDREN,
        0,
        "processes",
        "Parser processes. auto: one per core beside the first, at least one.",
    ),
    _policy("parse.cpu_s", SECONDS, "s", "CPU time of one page."),
    _policy("parse.wall_s", SECONDS, "s", "Time of one page on the clock."),
    _policy("parse.memory_bytes_max", BYTES, "bytes", "Address space of one child."),
    _policy("parse.decoded_bytes_max", BYTES, "bytes", "A compressed body is unpacked up to here."),
    _policy("parse.links_max", COUNT, "links", "Distinct links taken from one page."),
    _policy("parse.text_bytes_max", BYTES, "bytes", "Text kept of one page."),
    _policy("parse.title_chars_max", COUNT, "characters", "Title kept of one page."),
    _policy("parse.anchor_chars_max", COUNT, "characters", "Anchor text kept of one link."),
    _policy(
        "parse.strikes_max", COUNT, "strikes", "A page that kills its child so often ends as parse_failed."
    ),
    _policy("parse.pages_per_child_max", COUNT, "pages", "A child is replaced after so many pages."),
)
_REST = (
    _own("network.allow_nets", NETWORKS, (), "", "Private or special networks that may be contacted. All others of that sort are refused."),
    _own("network.resolver", ENDPOINT, "", "", "Name server to ask. Empty: those of the system."),
    _own("tls.verify", FLAG, True, "", "Turn off only for sites that are yours."),
    _own("tls.ca_file", PATH, "", "", "Authority to trust instead of the bundled public roots (a PEM file)."),
    _own("archive.segment_bytes", SEGMENT, 1024 * 1024 * 1024, "bytes", "A WARC file is sealed at this size and a new one begun."),
    _own("finish.wait_max_s", SECONDS_OR_NONE, 600.0, "s", "A crawl ends when nothing queued becomes due within this."),
)  # fmt: skip

SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (*_CRAWL, *_SCOPE, *_BUDGET, *_ORIGIN, *_ROBOTS, *_RETRY, *_URLS, *_FETCH, *_PARSE, *_REST)
}


def shown(setting: Setting, value: SettingValue) -> str:
    """A value as people write it: the words for "no bound" and "amble chooses" instead of their codes."""
    if value is None:
        return UNLIMITED
    if setting.kind is CHILDREN and value == 0:
        return AUTO
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(value) + "]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
