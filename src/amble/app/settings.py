"""Every setting of a crawl, once: name, what it accepts, default, unit, and why it is there.

The commented amble.toml, the settings reference, `amble config show` and the parser all read this table. Defaults
of limits come from `domain/policy.py` and are not repeated here. No file is read here and nothing is decided.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from amble.domain.policy import NearDuplicates, Policy, ScopeKind

UNLIMITED = "unlimited"
HERE, ELSEWHERE = "here", "elsewhere"
PARSE_PLACES = (HERE, ELSEWHERE)
AUTO = "auto"

# A setting holds one of these; lists are tuples so that a configuration stays a value.
SettingValue = bool | int | float | str | tuple[str, ...] | None
# The value that was meant by one as given. The flag: it came as text (environment, command line), not from TOML.
# Raises ValueError when it is not accepted.
Check = Callable[[object, bool], SettingValue]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(b|kb|mb|gb|kib|mib|gib)?", re.IGNORECASE)
_SIZE_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_TOKEN = re.compile(r"[A-Za-z_-]+")
_ABOVE_ZERO = math.ulp(0.0)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a setting accepts: the check, the same in words, and whether it is a list."""

    accepts: str
    check: Check
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


def _flag(value: object, text: bool) -> bool:  # noqa: FBT001
    words = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
    }
    if text and isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    if isinstance(value, bool):
        return value
    raise ValueError("true or false is wanted")


def _whole(low: int, high: int, read: Callable[[object], object] = lambda value: value) -> Check:
    """A whole number from `low` to `high`; `read` takes other spellings to a number first."""

    def check(value: object, text: bool) -> int:  # noqa: FBT001
        number = read(value)
        if text and isinstance(number, str):
            number = int(number)
        # True is not the number 1, whatever Python thinks.
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise ValueError("a whole number within bounds is wanted")
        return number

    return check


def _real(low: float, high: float, read: Callable[[object], object] = lambda value: value) -> Check:
    """A number from `low` to `high`, which keeps nan and inf out."""

    def check(value: object, text: bool) -> float:  # noqa: FBT001
        number = read(value)
        if text and isinstance(number, str):
            number = float(number)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError("a number is wanted")
        if not low <= number <= high:
            raise ValueError("a number within bounds is wanted")
        return float(number)

    return check


def _or_unlimited(check: Check) -> Check:
    def either(value: object, text: bool) -> SettingValue:  # noqa: FBT001
        given = _unlimited(value)
        return None if given is None else check(given, text)

    return either


def _string(check: Callable[[str], str]) -> Check:
    def one(value: object, text: bool) -> str:  # noqa: FBT001
        if not isinstance(value, str):
            raise ValueError("a text is wanted")
        return check(value)

    return one


def _each(check: Callable[[str], str]) -> Check:
    """A list of texts."""
    item = _string(check)

    def every(value: object, text: bool) -> tuple[str, ...]:  # noqa: FBT001
        if not isinstance(value, list):
            raise ValueError("a list is wanted")
        return tuple(str(item(entry, text)) for entry in value)

    return every


def _some(value: str) -> str:
    if not value:
        raise ValueError("something is wanted")
    return value


def _scope(value: str) -> str:
    return ScopeKind(value).value


def _near(value: str) -> str:
    return NearDuplicates(value).value


def _database(value: str) -> str:
    """ "" or the address of a PostgreSQL database, or those of several with blanks between them."""
    addresses = value.split()
    if not all(re.fullmatch(r"postgres(ql)?://\S+", address) for address in addresses):
        raise ValueError("not a database address")
    return " ".join(addresses)


def _objects(value: str) -> str:
    """ "" or an archive address; `adapters/archive/objects_open.py` reads the rest of it."""
    text = value.strip()
    if text and not re.fullmatch(r"(s3|file|memory)://\S+", text):
        raise ValueError("not an archive address")
    return text


def _name(value: str) -> str:
    text = value.strip()
    if len(text) > 100 or not text.isprintable() or re.search(r"\s", text):
        raise ValueError("not a name")
    return text


def _place(value: str) -> str:
    if value not in PARSE_PLACES:
        raise ValueError("not a place")
    return value


FLAG = Kind("true or false", _flag)
FILES = Kind("a whole number from 1 to 32", _whole(1, 32))
COUNT = Kind("a whole number, 1 or more", _whole(1, 10**12))
COUNT_OR_NONE = Kind("a whole number, 0 or more", _whole(0, 10**12))
CHILDREN = Kind(f'a whole number from 1 to 256, or "{AUTO}"', _whole(0, 256, _auto))
CONNECTIONS = Kind("a whole number from 1 to 20000", _whole(1, 20_000))
FACTOR = Kind("a number, 0 or more", _real(0, 1_000))
SECONDS = Kind(
    "seconds greater than 0, or a duration such as 90s, 15m, 2h", _real(_ABOVE_ZERO, 10**9, _seconds)
)
SECONDS_OR_NONE = Kind("seconds, 0 or more, or a duration such as 90s, 15m, 2h", _real(0, 10**9, _seconds))
MILLISECONDS = Kind(
    "milliseconds, 0 or more, or a duration such as 500ms, 2s, 1h", _whole(0, 10**12, _milliseconds)
)
BYTES = Kind("bytes, 1 or more, or a size such as 64KiB, 10MiB", _whole(1, 2**50, _bytes))
SEGMENT = Kind(
    "bytes, at least 1MiB and less than 4GiB, or a size such as 512MiB", _whole(2**20, 2**32 - 1, _bytes)
)
PAGES = Kind(f'a whole number, 1 or more, or "{UNLIMITED}"', _or_unlimited(_whole(1, 10**12)))
TIME = Kind(
    f'seconds greater than 0, a duration such as 90s, 15m, 2h, or "{UNLIMITED}"',
    _or_unlimited(_real(_ABOVE_ZERO, 10**9, _seconds)),
)
SCOPE = Kind("one of " + ", ".join(kind.value for kind in ScopeKind), _string(_scope))
NEAR = Kind("one of " + ", ".join(NearDuplicates), _string(_near))
WORDS = Kind("a list of texts", _each(_some), many=True)
TOKENS = Kind("a list of product tokens (letters, _ and - only)", _each(_token), many=True)
NETWORKS = Kind(
    "networks in CIDR form without host bits, such as 127.0.0.0/8 or fd00::/8", _each(_network), many=True
)
ENDPOINT = Kind("ADDRESS:PORT of a name server, such as 127.0.0.1:5353", _string(_endpoint))
AGENT = Kind("one line of printable ASCII, starting with a product token", _string(_line))
CONTACT = Kind("a web address or a mail address, such as https://you.example/bot", _string(_contact))
PATH = Kind("a path", _string(str))

DATABASE = Kind(
    "a database address such as postgresql://user@host:5432/name, or several with blanks between them",
    _string(_database),
)
OBJECTS = Kind("an archive address: s3://bucket/prefix or file:///folder", _string(_objects))
NAME = Kind("up to 100 printable characters without blanks", _string(_name))
LEASE = Kind("seconds from 1 to 600, or a duration such as 15s", _real(1, 600, _seconds))
WHERE = Kind(f"one of {', '.join(PARSE_PLACES)}", _string(_place))

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
    "publish": "What is handed to sinks, of what may be.",
    "network": "Names and addresses.",
    "tls": "Certificates.",
    "archive": "The WARC files.",
    "store": "Where the frontier of a fleet lives; a crawl folder has its own.",
    "agent": "One agent of a fleet.",
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
        "host: the seeds' hosts, with and without www. site: their registrable domains. prefix: below the seeds' paths. any: everywhere.",
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
    _policy(
        "origin.address_active_max",
        COUNT,
        "requests",
        "Requests at one IP address at once, over all origins that live there.",
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
    _policy(
        "urls.origins_per_site_max",
        COUNT,
        "origins",
        "A site that makes up host names without end gets no more than this many origins.",
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
    _policy(
        "fetch.sitemap_bytes_max",
        BYTES,
        "bytes",
        "A sitemap is read up to here (sitemaps.org: at most 50 MB).",
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
    _own(
        "parse.where",
        WHERE,
        HERE,
        "",
        "For a fleet: here in the agent, or elsewhere in `amble parse` processes; robots.txt and sitemaps always here.",
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
_PUBLISH = (
    _policy(
        "publish.near_duplicates",
        NEAR,
        "",
        "withhold: of documents with nearly the same text only the first is published. publish: all of them.",
    ),
)
_FLEET = (
    _own(
        "store.url",
        DATABASE,
        "",
        "",
        "The PostgreSQL database of a fleet, or several, in an order that never changes. Keep passwords out of it: PGPASSWORD, PGPASSFILE or a service file.",
    ),
    _own(
        "store.digests_url",
        DATABASE,
        "",
        "",
        "Databases that hold the digest index of a fleet over several servers. Empty: those of store.url; while one of them is away, pages wait.",
    ),
    _own(
        "store.files",
        FILES,
        1,
        "files",
        "Frontier files of a crawl folder, each with a process of its own; fixed when the crawl begins. More than one only helps where a core is left for each.",
    ),
    _own(
        "archive.url",
        OBJECTS,
        "",
        "",
        "Where a fleet keeps WARC segments. Credentials come from the environment (AWS_...), never from here.",
    ),
    _own(
        "agent.bloom_folder",
        PATH,
        "",
        "",
        "Keep a Bloom filter of each held partition in this folder, so that new URLs are not looked up. Empty: off, which is as fast on most stores.",
    ),
    _own("agent.name", NAME, "", "", "Shown by `amble agents`. Empty: the host name and the process number."),
    _own(
        "agent.lease_s",
        LEASE,
        15.0,
        "s",
        "How long a partition stays with an agent that is not heard of; the same for all agents of a fleet.",
    ),
)
_REST = (
    _own("network.allow_nets", NETWORKS, (), "", "Private or special networks that may be contacted. All others of that sort are refused."),
    _own("network.resolver", ENDPOINT, "", "", "Name server to ask. Empty: those of the system."),
    _own("tls.verify", FLAG, True, "", "Turn off only for sites that are yours."),
    _own("tls.ca_file", PATH, "", "", "Authority to trust instead of the bundled public roots (a PEM file)."),
    _own("archive.segment_bytes", SEGMENT, 1024 * 1024 * 1024, "bytes", "A WARC file is sealed at this size and a new one begun."),
    _own("finish.wait_max_s", SECONDS_OR_NONE, 600.0, "s", "A crawl ends when nothing queued becomes due within this, or nothing but robots.txt was asked for so long."),
)  # fmt: skip

SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        *_CRAWL,
        *_SCOPE,
        *_BUDGET,
        *_ORIGIN,
        *_ROBOTS,
        *_RETRY,
        *_URLS,
        *_FETCH,
        *_PARSE,
        *_PUBLISH,
        *_FLEET,
        *_REST,
    )
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
