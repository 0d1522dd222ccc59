"""CDXJ index lines: the SURT key of a URL, one line per capture, and back.

The key follows the convention that replay tools search by: host parts reversed, `www` and default port dropped, path
and query in lower case, query arguments sorted, session ids dropped. It finds captures; it is not an identity.
"""

from __future__ import annotations

import re

import msgspec

from amble.domain.record import IndexFacts

_WWW = re.compile(r"www\d*\.")
_SPLIT = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?"
)
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_SLASHES = re.compile(r"//+")
_PATH_SESSION = re.compile(r"(.*/)\((?:[0-9a-z]{24}|(?:[a-z]\([0-9a-z]{24}\))+)\)/([^?]+\.aspx.*)")
_QUERY_SESSION = re.compile(
    r"(?:jsessionid|phpsessid|sid)=[0-9a-z]{32}(?=&|$)&?"
    r"|aspsessionid[a-z]{8}=[a-z]{24}(?=&|$)&?"
    r"|cfid=[^&]+&cftoken=[^&]+&?"
)


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON part of a line. Numbers are strings, as replay tools write and expect them."""

    url: str
    mime: str
    status: str
    digest: str
    length: str
    offset: str
    filename: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(IndexEntry).decode


def surt_key(url: str) -> str:
    """The sort key of `url`. Total: what is no hierarchical URL is its own key, in lower case."""
    parts = _SPLIT.match(url.lower())
    if parts is None:
        return url.lower().replace(" ", "%20")
    host, port = _host_and_port(parts["authority"].rpartition("@")[2])
    labels = (host[match.end() :] if (match := _WWW.match(host)) else host).rstrip(".").split(".")
    key = ",".join(reversed(labels))
    if port and port != _DEFAULT_PORTS.get(parts["scheme"]):
        key += f":{port}"
    return f"{key}){_path(parts['path'])}{_query(parts['query'] or '')}".replace(" ", "%20")


def index_line(facts: IndexFacts, *, digest: str, filename: str, offset: int, length: int) -> bytes:
    """One CDXJ line, with its line feed."""
    entry = IndexEntry(
        url=facts.url,
        mime=facts.mime,
        status=facts.status,
        digest=digest,
        length=str(length),
        offset=str(offset),
        filename=filename,
    )
    return f"{surt_key(facts.url)} {facts.timestamp} ".encode() + _encode(entry) + b"\n"


def parse_line(line: bytes) -> tuple[str, str, IndexEntry]:
    """Key, 14-digit time and entry of a line. Raises ValueError when it is not a whole line of ours."""
    key, _, rest = line.partition(b" ")
    time, _, body = rest.partition(b" ")
    if not line.endswith(b"\n") or len(time) != 14 or not time.isdigit():
        raise ValueError("not a CDXJ line")
    try:
        return key.decode(), time.decode(), _decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a CDXJ line: {error}") from None


def _host_and_port(authority: str) -> tuple[str, str]:
    if authority.startswith("["):
        host, _, port = authority[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = authority.partition(":")
    return host, port


def _path(path: str) -> str:
    if session := _PATH_SESSION.match(path):
        path = session[1] + session[2]
    return _SLASHES.sub("/", path).removesuffix("/") or "/"


def _query(query: str) -> str:
    if "id=" in query or "sessionid" in query:
        query = _QUERY_SESSION.sub("", query)
    if not query:
        return ""
    return "?" + "&".join(sorted(query.split("&"), key=lambda argument: tuple(argument.split("=", 1))))
