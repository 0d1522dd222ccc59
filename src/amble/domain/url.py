"""The canonical URL: the one spelling under which amble knows a page, and the parts that are read from it.

Underneath lies the WHATWG URL parser; on top of its serialization this file applies amble's own policy:

- http and https only; a URL that carries a user name or a password is refused, never stripped;
- the fragment is dropped, the default port is dropped (by the parser), an empty path is "/", an empty query has no "?";
- the dot of a fully qualified host is dropped: `example.org.` and `example.org` are one host to a server and so must
  be one origin to politeness; a host with an empty label is no host;
- percent-encoded unreserved characters are decoded and the hex digits of all others are upper case (RFC 3986
  6.2.2.1 and 6.2.2.2), except right behind a stray "%", where decoding could make another escape;
- tracking parameters are dropped by a documented list; all other parameters keep their order and their spelling.

`CANONICALIZER_VERSION` grows whenever any URL would get another canonical form. The function is idempotent, and total:
any str has an answer, a Reason or a canonical URL (ASCII, at most `CANONICAL_CHARS_MAX` characters).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

import xxhash
from msgspec import Struct, field
from upa_url import URL

from amble.domain.decision import Reason

# The optional C module: hrefs resolved in one call, None for each that needs the parser. None where it was not built.
resolve_plain: Callable[[list[str], str], list[str | None]] | None
try:
    from amble._native import resolve_plain
except ImportError:
    resolve_plain = None

CANONICALIZER_VERSION = 1

# No href or canonical URL longer than this is looked at; UrlLimits.url_chars_max is the operator's (smaller) bound.
CANONICAL_CHARS_MAX = 16_384
# RFC 1035 3.1: a name has at most 255 octets on the wire, which is 253 characters in text.
HOST_CHARS_MAX = 253

# Names that carry where a visitor came from and never what the page shows. Compared without regard to case.
TRACKING_PARAMETERS = frozenset(
    {
        "_ga", "_gl", "_hsenc", "_hsmi", "_openstat", "dclid", "epik", "fbclid", "gad_source", "gbraid", "gclid",
        "gclsrc", "igsh", "igshid", "li_fat_id", "mc_cid", "mc_eid", "mkt_tok", "ml_subscriber",
        "ml_subscriber_hash", "msclkid", "oly_anon_id", "oly_enc_id", "rb_clickid", "s_cid", "srsltid", "ttclid",
        "twclid", "vero_conv", "vero_id", "wbraid", "wickedid", "yclid", "ysclid",
    }
)  # fmt: skip
TRACKING_PREFIXES = ("utm_",)

# An escape; or a stray "%" with the escapes right behind it, whose decoding would make an escape of it.
_ESCAPES = re.compile("%([0-9A-Fa-f]{2})|(%(?![0-9A-Fa-f]{2})[0-9A-Fa-f]?)((?:%[0-9A-Fa-f]{2}){1,2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_NORMAL_TRIPLET = {
    f"{byte:02x}": chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}" for byte in range(256)
}


class SiteQueryRule(Struct, frozen=True, kw_only=True):
    """What one site's operator knows better than the general list.

    `keep`: parameters never dropped there, though they are on the tracking list. `drop`: parameters dropped there in
    addition (session ids). `path_parameters`: names removed from path segments (";jsessionid=…"). All compared in
    lower case.
    """

    keep: frozenset[str] = frozenset()
    drop: frozenset[str] = frozenset()
    path_parameters: frozenset[str] = frozenset()


class QueryPolicy(Struct, frozen=True, kw_only=True):
    """Which query parameters do not belong to the identity of a page.

    `sites` maps a host name to a rule that holds for that host and everything below it; the longest name wins.
    """

    drop: frozenset[str] = TRACKING_PARAMETERS
    drop_prefixes: tuple[str, ...] = TRACKING_PREFIXES
    sites: Mapping[str, SiteQueryRule] = field(default_factory=dict)


class Base:
    """A parsed base URL for resolving the links of one document. Made by `base_of`."""

    __slots__ = ("directory", "is_plain", "root", "text", "whatwg")

    def __init__(self, whatwg: URL) -> None:
        self.whatwg = whatwg
        self.text: str = whatwg.href
        # Up to the last slash of its path: what a relative link is put behind.
        self.directory = _directory_of(self.text)
        # Up to the first: a URL that begins so has an origin that needs no further look. "" where it is not canonical.
        root = self.directory[: self.directory.index("/", 8) + 1]
        self.root = root if _is_canonical_origin(root[:-1]) else ""
        # Whether a canonical path behind the directory makes a canonical URL.
        self.is_plain = self.root != "" and (
            "%" not in self.directory or _normal_percent(self.directory) == self.directory
        )

    def __repr__(self) -> str:
        return f"Base({self.text!r})"


def base_of(url: str) -> Base | Reason:
    """The base for links of a document at `url` (an absolute http or https URL, canonical or not)."""
    parsed = _parse(url, None)
    if isinstance(parsed, Reason):
        return parsed
    if parsed.protocol not in ("http:", "https:"):
        return Reason.SCHEME_UNSUPPORTED
    if parsed.username or parsed.password:
        return Reason.HAS_USERINFO
    return Base(parsed)


def _directory_of(text: str) -> str:
    path = text.partition("#")[0].partition("?")[0]
    return path[: path.rindex("/") + 1]


def _is_canonical_origin(origin: str) -> bool:
    return _without_final_dot(origin) == origin and len(host_of(origin)) <= HOST_CHARS_MAX


class Canonicalizer:
    """Hrefs to canonical URLs under one query policy. Holds no state between calls."""

    __slots__ = ("_droppable", "_sites")

    def __init__(self, query_policy: QueryPolicy | None = None) -> None:
        policy = query_policy or QueryPolicy()
        self._droppable = _droppable_pattern(policy.drop, policy.drop_prefixes)
        self._sites = {
            name.lower().rstrip("."): (
                _droppable_pattern(policy.drop | rule.drop, policy.drop_prefixes),
                frozenset(map(str.lower, rule.keep)),
                frozenset(map(str.lower, rule.path_parameters)),
            )
            for name, rule in policy.sites.items()
        }

    def canon(self, href: str, base: Base | None, charset: str | None = None) -> str | Reason:
        """The canonical form of `href` as it stands in a document with `base`, or why it has none.

        `base` None: `href` must be absolute. `charset` is the document's encoding by its WHATWG name where it is not
        UTF-8: the query of a link is then encoded in it, as browsers do (URL Standard, query state). Test the result
        with `isinstance(result, Reason)` first: a Reason is a str too.
        """
        if charset is not None:
            href = encode_query(href, charset)
        if len(href) > CANONICAL_CHARS_MAX:
            return Reason.URL_TOO_LONG
        try:
            url = URL(href, base.whatwg) if base is not None else URL(href)
        except RuntimeError:
            return Reason.NOT_A_URL
        except TypeError:
            # The binding takes no lone surrogates; a browser would see U+FFFD in their place.
            return self.canon(_scalar(href), base)
        text: str = url.href
        if "#" in text:
            text = text[: text.index("#")]
        if base is None or not base.root or not text.startswith(base.root):
            checked = _with_canonical_origin(text, url)
            if isinstance(checked, Reason):
                return checked
            text = checked
        if "%" in text:
            text = _normal_percent(text)
        return self._by_policy(text)

    def canon_many(self, hrefs: list[str], base: Base, charset: str | None = None) -> list[str | Reason]:
        """`canon` of each of `hrefs`: the same answers, at a fraction of the time where the C module is there."""
        if resolve_plain is None or not base.is_plain:
            return [self.canon(href, base, charset) for href in hrefs]
        # What is plain has no character in its query that depends on `charset`, and no length to speak of.
        urls: list[str | Reason] = []
        for href, url in zip(hrefs, resolve_plain(hrefs, base.directory), strict=True):
            if url is None:
                urls.append(self.canon(href, base, charset))
            elif self._sites or "?" in url:
                urls.append(self._by_policy(url))
            else:
                urls.append(url)
        return urls

    def _by_policy(self, text: str) -> str | Reason:
        """The query policy over a URL that is canonical otherwise."""
        if "?" in text:
            text = self._clean_query(text)
        if self._sites:
            text = self._clean_by_site(text)
        return text if len(text) <= CANONICAL_CHARS_MAX else Reason.URL_TOO_LONG

    def _clean_query(self, text: str) -> str:
        mark = text.index("?")
        # A site's own rule must see the whole query, for it may keep what the general list drops.
        if self._sites and self._rule_of(text) is not None:
            return text
        if self._droppable.search(text.lower(), mark) is None:
            return text if len(text) > mark + 1 else text[:mark]
        return _with_query(text[:mark], _kept(text[mark:], self._droppable, frozenset()))

    def _rule_of(self, text: str) -> tuple[re.Pattern[str], frozenset[str], frozenset[str]] | None:
        name = host_of(text)
        while name:
            rule = self._sites.get(name)
            if rule is not None:
                return rule
            name = name.partition(".")[2]
        return None

    def _clean_by_site(self, text: str) -> str:
        rule = self._rule_of(text)
        if rule is None:
            return text
        droppable, keep, path_parameters = rule
        before, mark, query = text.partition("?")
        if path_parameters and ";" in before:
            slash = before.find("/", 8)
            segments = [
                _without_parameters(segment, path_parameters) for segment in before[slash:].split("/")
            ]
            before = before[:slash] + "/".join(segments)
        return _with_query(before, _kept(mark + query, droppable, keep)) if mark else before


def _with_canonical_origin(text: str, url: URL) -> str | Reason:
    """`text`, the serialization of `url`, with its origin as amble knows it."""
    if not text.startswith(("https://", "http://")):
        return Reason.SCHEME_UNSUPPORTED
    if "@" in text and (url.username or url.password):
        return Reason.HAS_USERINFO
    slash = text.find("/", 8)
    if text[slash - 1] == "." or ".:" in text or ".." in text or "//." in text:
        origin = _without_final_dot(text[:slash])
        if origin is None:
            return Reason.NOT_A_URL
        text = origin + text[slash:]
    if slash > HOST_CHARS_MAX and len(host_of(text)) > HOST_CHARS_MAX:
        return Reason.NOT_A_URL
    return text


def _parse(url: str, base: URL | None) -> URL | Reason:
    if len(url) > CANONICAL_CHARS_MAX:
        return Reason.URL_TOO_LONG
    try:
        return URL(url, base) if base is not None else URL(url)
    except RuntimeError:
        return Reason.NOT_A_URL
    except TypeError:
        return _parse(_scalar(url), base)


def _scalar(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced, as a browser's USVString conversion does."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _droppable_pattern(names: frozenset[str], prefixes: tuple[str, ...]) -> re.Pattern[str]:
    """Matches at the separator in front of a parameter whose name is in `names` or begins with one of `prefixes`.

    For lower-cased queries: twice as fast as a pattern that ignores case.
    """
    exact = "|".join(re.escape(name.lower()) for name in sorted(names))
    begins = "|".join(re.escape(prefix.lower()) for prefix in prefixes)
    arms = [f"(?:{exact})(?=[=&]|$)"] if exact else []
    arms += [f"(?:{begins})"] if begins else []
    return re.compile(f"[?&](?:{'|'.join(arms)})" if arms else "(?!)")


def _kept(query: str, droppable: re.Pattern[str], keep: frozenset[str]) -> str:
    """What stays of `query` (with its "?"), without the "?"."""
    pieces = query[1:].split("&")
    return "&".join(
        piece
        for piece in pieces
        if droppable.match("&" + piece.lower()) is None or (keep and piece.partition("=")[0].lower() in keep)
    )


def _with_query(before: str, query: str) -> str:
    return f"{before}?{query}" if query else before


def _without_parameters(segment: str, names: frozenset[str]) -> str:
    first, *parameters = segment.split(";")
    kept = [first, *(item for item in parameters if item.partition("=")[0].lower() not in names)]
    cleaned = ";".join(kept)
    # Never make a dot segment out of something that was none.
    return segment if cleaned in (".", "..") else cleaned


def _without_final_dot(origin: str) -> str | None:
    """`origin` (scheme, host and port) without the dot that ends its host; None where a label is empty."""
    scheme, _, authority = origin.partition("://")
    host, colon, port = authority.partition(":") if authority[:1] != "[" else (authority, "", "")
    host = host.removesuffix(".")
    if not host or ".." in host or host[0] == "." or host[-1] == ".":
        return None
    return f"{scheme}://{host}{colon}{port}"


def _normal_percent(text: str) -> str:
    return _ESCAPES.sub(_normal_escape, text)


def _normal_escape(match: re.Match[str]) -> str:
    # "%%34%31" would decode to "%41", and that in turn to "A": only the case of such digits is safe to touch.
    return _NORMAL_TRIPLET[match[1].lower()] if match[1] else match[2] + match[3].upper()


# --- the query of a document that is not UTF-8 -----------------------------------------------------------------

# WHATWG encoding names whose encoder Python knows under another name, or knows a wider relative of.
_CODECS = {
    "big5": "big5hkscs",
    "euc-kr": "cp949",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "iso-8859-1": "cp1252",
    "iso-8859-8-i": "iso-8859-8",
    "iso-8859-9": "cp1254",
    "iso-8859-11": "cp874",
    "macintosh": "mac_roman",
    "shift_jis": "cp932",
    "us-ascii": "cp1252",
    "windows-874": "cp874",
    "windows-949": "cp949",
    "x-mac-cyrillic": "mac_cyrillic",
}
# Encodings without an encoder of their own use UTF-8 (Encoding Standard 4.3, output encoding).
_UTF8_OUTPUT = frozenset({"utf-8", "utf8", "utf-16", "utf-16le", "utf-16be", "replacement", "x-user-defined"})
# URL Standard 1.3: the special-query percent-encode set, over the bytes below 0x7F.
_QUERY_ENCODED = frozenset(range(0x21)) | frozenset(b"\"#<>'")


# What these encoders write for a character that Python's encoder refuses or writes otherwise (Encoding Standard 12, 13).
_YEN_AND_OVERLINE = {0xA5: "\\", 0x203E: "~"}
_REPLACED = {
    "cp932": {0x2212: "\uff0d", **_YEN_AND_OVERLINE},
    "euc-jp": {0x2212: "\uff0d", **_YEN_AND_OVERLINE},
    "iso-2022-jp": {0x2212: "\uff0d", 0x0E: "\ufffd", 0x0F: "\ufffd", 0x1B: "\ufffd"},
}
_REFUSED = {"gb18030": "\ue5e5"}
# Its escape sequences are ASCII, so that ASCII input is not safe as it is.
_STATEFUL = "iso-2022-jp"
_NOT_ASCII_RUNS = re.compile("([^\x00-\x7f]+)")
_NOT_PLAIN_RUNS = re.compile("([^\x00-\x0d\x10-\x1a\x1c-\x7f]+)")


def encode_query(href: str, charset: str) -> str:
    """`href` with its query percent-encoded as a document in `charset` sends it; unknown encodings act as UTF-8.

    A character that the encoding lacks becomes its decimal reference "&#…;", escaped (URL Standard 1.3).
    """
    charset = charset.lower()
    if href.isascii() and charset != _STATEFUL:
        return href
    mark = href.find("?")
    end = href.find("#")
    if mark < 0 or 0 <= end < mark or charset in _UTF8_OUTPUT:
        return href
    query = href[mark + 1 :] if end < 0 else href[mark + 1 : end]
    codec = _CODECS.get(charset, charset)
    runs = (_NOT_PLAIN_RUNS if codec == _STATEFUL else _NOT_ASCII_RUNS).split(query)
    try:
        # Runs to be encoded stand at the odd places of the split.
        runs[1::2] = [_encode_run(_scalar(run), codec) for run in runs[1::2]]
    except (LookupError, ValueError):
        # No such encoding, or one that does not encode text ("\0" in its name, base64).
        return href
    return href[: mark + 1] + "".join(runs) + ("" if end < 0 else href[end:])


def _encode_run(run: str, codec: str) -> str:
    run = run.translate(_REPLACED.get(codec, {}))
    refused = _REFUSED.get(codec, "")
    if not refused or refused not in run:
        try:
            return _escaped(run.encode(codec))
        except UnicodeEncodeError:
            pass
    parts = []
    for char in run:
        try:
            parts.append(_reference(char) if char == refused else _escaped(char.encode(codec)))
        except UnicodeEncodeError:
            parts.append(_reference(char))
    return "".join(parts)


def _reference(char: str) -> str:
    return f"%26%23{ord(char)}%3B"


def _escaped(data: bytes) -> str:
    return "".join(f"%{byte:02X}" if byte >= 0x7F or byte in _QUERY_ENCODED else chr(byte) for byte in data)


# --- the parts of a canonical URL ------------------------------------------------------------------------------


class Origin(Struct, frozen=True):
    """Scheme, host and port: the unit of politeness. An IPv6 `host` has no brackets here; `authority` has them."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and, unless it is the scheme's default, port, as in a Host header (RFC 9110 7.2)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def key(self) -> str:
        """The origin key: what a canonical URL begins with, before its path."""
        return f"{self.scheme}://{self.authority}"


_DEFAULT_PORTS = {"http": 80, "https": 443}


_SHAPE = re.compile(r"https?://(?:[!\"$&-.0-9;=_`a-z{}~]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?/[!\"$-~]*")


def is_well_formed(url: str) -> bool:
    """Whether `url` has the form of a canonical URL, so that its parts can be read. For what a parser child says."""
    return _SHAPE.fullmatch(url) is not None


def split(url: str) -> tuple[str, str]:
    """(origin key, path with query) of a canonical URL; the two join to the URL again."""
    slash = url.find("/", 8)
    assert slash > 0, "a canonical URL has a path"
    return url[:slash], url[slash:]


def target_of(url: str) -> str:
    """The request target of a canonical URL in origin form (RFC 9112 3.2.1)."""
    return split(url)[1]


def origin_of(url: str) -> Origin:
    """The origin of a canonical URL, or of an origin key."""
    scheme, _, rest = url.partition("://")
    authority = rest.partition("/")[0]
    host, port = authority, ""
    if authority[:1] == "[":
        host, _, port = authority[1:].partition("]")
        port = port[1:]
    elif ":" in authority:
        host, _, port = authority.partition(":")
    return Origin(scheme, host, int(port) if port else _DEFAULT_PORTS[scheme])


def host_of(url: str) -> str:
    """The host of a canonical URL or an origin key; an IPv6 literal without its brackets."""
    authority = url[url.index("://") + 3 :].partition("/")[0]
    if authority[:1] == "[":
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


@lru_cache(maxsize=65_536)
def site_of(host: str) -> str:
    """The registrable domain of `host` by the public suffix list, private suffixes included.

    An IP literal, a public suffix itself, and a name of one label are each their own site.
    """
    if ":" in host or _is_ipv4(host):
        return host
    found: str | None = _suffixes().privatesuffix(host)
    return found or host


def _is_ipv4(host: str) -> bool:
    # The parser has rewritten every IPv4 spelling to four decimal numbers, so the last label decides.
    return host[host.rfind(".") + 1 :].isdigit()


@lru_cache(maxsize=1)
def _suffixes():  # type: ignore[no-untyped-def]
    # Imported where it is used: it reads its list from disk, which a sandboxed child may not and need not.
    from publicsuffixlist import PublicSuffixList

    return PublicSuffixList()


def partition_of(origin_key: str, partitions: int) -> int:
    """Which of `partitions` owns an origin: a hash of its site, so that a site has one owner."""
    return xxhash.xxh3_64_intdigest(site_of(host_of(origin_key)).encode()) % partitions
