"""What a site sees and says: a request, a reply, and the bytes between them. No sockets, no clock."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

HTML = "text/html; charset=utf-8"
REASONS = {status.value: status.phrase for status in HTTPStatus}


class Wire(Protocol):
    """Raw access to one connection, for sites that misbehave below HTTP."""

    def send(self, data: bytes) -> None:
        """Queue bytes; remembers the first status line it sees for the log."""
        ...

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was queued."""
        ...

    def finish(self) -> None:
        """Close after what was queued has gone out."""
        ...

    def reset(self) -> None:
        """Drop the connection with a TCP reset."""
        ...

    @property
    def gone(self) -> bool:
        """Whether the peer has hung up."""
        ...


@dataclass(slots=True)
class Request:
    """One request as received. `headers` has lower-case names, the last value wins."""

    method: str
    target: str
    headers: dict[str, str]
    scheme: str
    address: str
    port: int
    connection: int
    ordinal: int = 0

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        """What follows the first question mark."""
        return self.target.partition("?")[2]

    @property
    def host(self) -> str:
        """The Host header without port, lower-case."""
        value = self.headers.get("host", "").lower()
        if value.startswith("["):
            return value.partition("]")[0][1:]
        return value.partition(":")[0].rstrip(".")

    @property
    def netloc(self) -> str:
        """The Host header, lower-case, or the address where there is none."""
        return self.headers.get("host", "").lower() or f"{self.address}:{self.port}"


Raw = Callable[[Wire], Awaitable[None]]


@dataclass(slots=True)
class Reply:
    """One well-formed answer. `raw` replaces everything by a hand-made exchange."""

    status: int = 200
    body: bytes = b""
    kind: str = HTML
    headers: Sequence[tuple[str, str]] = ()
    chunked: bool = False
    close: bool = False
    delay_s: float = 0.0
    raw: Raw | None = field(default=None, repr=False)

    def head(self, *, keep_alive: bool) -> bytes:
        """Status line and header block, with the blank line."""
        lines = [f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Odd')}"]
        if self.status != 304 and self.kind:
            lines.append(f"Content-Type: {self.kind}")
        if self.chunked:
            lines.append("Transfer-Encoding: chunked")
        elif self.status not in (204, 304):
            lines.append(f"Content-Length: {len(self.body)}")
        lines.extend(f"{name}: {value}" for name, value in self.headers)
        lines.append("Connection: keep-alive" if keep_alive else "Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def payload(self) -> bytes:
        """The body as it goes over the wire."""
        if self.status in (204, 304):
            return b""
        if not self.chunked:
            return self.body
        size = max(1, len(self.body) // 3)
        pieces = [self.body[at : at + size] for at in range(0, len(self.body), size)]
        return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def text(body: str, **more: object) -> Reply:
    """A text/plain answer."""
    return Reply(body=body.encode(), kind="text/plain; charset=utf-8", **more)  # type: ignore[arg-type]


def page(title: str, *parts: str, links: Sequence[str] = (), head: str = "") -> Reply:
    """A small valid HTML page with a list of links."""
    items = "".join(f'<li><a href="{link}">{link}</a></li>\n' for link in links)
    body = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>{head}</head>\n'
        f"<body><h1>{title}</h1>\n" + "".join(f"<p>{part}</p>\n" for part in parts)
    )
    return Reply(body=f"{body}<ul>\n{items}</ul></body></html>\n".encode())


def moved(location: str, status: int = 302) -> Reply:
    """A redirect."""
    return Reply(status=status, body=b"moved\n", kind="text/plain", headers=(("Location", location),))


def not_found() -> Reply:
    """A plain 404."""
    return Reply(status=404, body=b"<!doctype html><title>Not found</title><h1>Not found</h1>\n")


def accepts(request: Request, coding: str) -> bool:
    """Whether the request lists the content coding (q=0 is not looked for)."""
    return coding in {
        part.partition(";")[0].strip() for part in request.headers.get("accept-encoding", "").split(",")
    }


def encoded(reply: Reply, coding: str) -> Reply:
    """The same answer under a content coding: gzip, deflate or br."""
    if coding == "gzip":
        data = gzip.compress(reply.body, 6, mtime=0)
    elif coding == "deflate":
        data = zlib.compress(reply.body)
    else:
        import brotli

        data = brotli.compress(reply.body, quality=4)
    more = (*reply.headers, ("Content-Encoding", coding), ("Vary", "Accept-Encoding"))
    return Reply(status=reply.status, body=data, kind=reply.kind, headers=more, chunked=reply.chunked)


def conditional(request: Request, reply: Reply, *, modified: str = "", etag: str | None = None) -> Reply:
    """Add validators, and answer 304 when the request shows that it holds this version."""
    tag = etag if etag is not None else '"' + hashlib.sha256(reply.body).hexdigest()[:16] + '"'
    validators: list[tuple[str, str]] = []
    if tag:
        validators.append(("ETag", tag))
    if modified:
        validators.append(("Last-Modified", modified))
    asked = request.headers.get("if-none-match")
    same = asked == tag if asked else bool(modified) and request.headers.get("if-modified-since") == modified
    if same:
        return Reply(status=304, headers=tuple(validators))
    reply.headers = (*reply.headers, *validators)
    return reply
