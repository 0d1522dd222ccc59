"""Every behaviour of the test web, each a small named site. A site's docstring says what it shows; README.md lists them.

A site named `x` answers at http://x.test:PORT/. Sites are built once, answer without waiting, and take the wire where
HTTP as such is what they break.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import ClassVar

from tests.web.hostile import HOSTILE, hostile_page
from tests.web.message import (
    Reply,
    Request,
    Wire,
    accepts,
    conditional,
    moved,
    not_found,
    page,
    text,
)
from tests.web.words import ENGLISH, sentences

ALLOW_ALL = "User-agent: *\nDisallow:\n"
LONG_S = 3600.0


class Site:
    """The base: a robots.txt that allows everything, a front page that links /one and /two."""

    name = ""
    also: tuple[str, ...] = ()
    #: Groups of documents with nearly the same text, each as host/path: one of each is worth publishing.
    alike: ClassVar[tuple[tuple[str, ...], ...]] = ()

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def answer(self, request: Request) -> Reply:
        """The answer to one request."""
        self.asked[request.target] += 1
        return self.robots(request) if request.path == "/robots.txt" else self.page(request)

    def robots(self, request: Request) -> Reply:
        """The answer for /robots.txt."""
        del request
        return text(ALLOW_ALL)

    def page(self, request: Request) -> Reply:
        """The answer for everything else."""
        if request.target == "/":
            return page(f"{self.name}", "Welcome.", links=("/one", "/two"))
        if request.target in ("/one", "/two"):
            return page(f"{self.name} {request.target}", "A page.", links=("/",))
        return not_found()


def raw(act: Callable[[Wire], Awaitable[None]]) -> Reply:
    """A hand-made exchange."""
    return Reply(raw=act)


async def _hold(wire: Wire) -> None:
    """Say nothing until the peer has gone (its hang-up cancels this) or an hour has passed."""
    del wire
    await asyncio.sleep(LONG_S)


async def _drip(wire: Wire, data: bytes, *, pause_s: float) -> None:
    """Send byte by byte."""
    for at in range(len(data)):
        if wire.gone:
            return
        wire.send(data[at : at + 1])
        await asyncio.sleep(pause_s)
    wire.finish()


async def _flood(wire: Wire, head: bytes, piece: bytes, *, bytes_max: int) -> None:
    """Send `piece` again and again, as fast as the peer takes it."""
    wire.send(head)
    sent = 0
    while sent < bytes_max and not wire.gone:
        wire.send(piece)
        sent += len(piece)
        await wire.drain()
        await asyncio.sleep(0)
    wire.finish()


# --- robots.txt


class Plain(Site):
    """Nothing odd: three pages that link to each other."""

    name = "plain"


class Index(Site):
    """Links the front page of every other site: one seed for a crawl of everything that can go wrong."""

    name = "index"

    def page(self, request: Request) -> Reply:
        others = [
            kind.name for kind in site_classes() if kind is not Index and not kind.name.startswith("tls-")
        ]
        links = [f"http://{name}.test:{request.port}/" for name in others]
        return page("All sites", links=links) if request.target == "/" else not_found()


class SharedIp(Site):
    """Three names on one address."""

    name = "shared-ip-1"
    also = ("shared-ip-2", "shared-ip-3")


class Robots404(Site):
    """No robots.txt: everything is allowed."""

    name = "robots-404"

    def robots(self, request: Request) -> Reply:
        return not_found()


class Robots401(Site):
    """robots.txt answers 401: RFC 9309 counts it as absent."""

    name = "robots-401"

    def robots(self, request: Request) -> Reply:
        return Reply(status=401, body=b"who are you\n", headers=(("WWW-Authenticate", 'Basic realm="x"'),))


class Robots403(Site):
    """robots.txt answers 403: RFC 9309 counts it as absent."""

    name = "robots-403"

    def robots(self, request: Request) -> Reply:
        return Reply(status=403, body=b"no\n")


class Robots429(Site):
    """robots.txt answers 429 with Retry-After 1 twice, then allows everything."""

    name = "robots-429"

    def robots(self, request: Request) -> Reply:
        if self.asked["/robots.txt"] <= 2:
            return Reply(status=429, body=b"slow down\n", headers=(("Retry-After", "1"),))
        return text(ALLOW_ALL)


class Robots500(Site):
    """robots.txt answers 500: no page may be fetched."""

    name = "robots-500"

    def robots(self, request: Request) -> Reply:
        return Reply(status=500, body=b"broken\n")


class Robots503(Site):
    """robots.txt answers 503: no page may be fetched."""

    name = "robots-503"

    def robots(self, request: Request) -> Reply:
        return Reply(status=503, body=b"busy\n")


class RobotsTimeout(Site):
    """robots.txt never answers: no page may be fetched."""

    name = "robots-timeout"

    def robots(self, request: Request) -> Reply:
        return raw(_hold)


class RobotsReset(Site):
    """The connection is reset when robots.txt is asked for: no page may be fetched."""

    name = "robots-reset"

    def robots(self, request: Request) -> Reply:
        async def act(wire: Wire) -> None:
            wire.reset()

        return raw(act)


class RobotsRedirect(Site):
    """robots.txt is behind N redirects (names robots-redirect-1 to -6); it disallows /two. Six hops are too many."""

    name = "robots-redirect-1"
    also = tuple(f"robots-redirect-{hops}" for hops in range(2, 7))

    def answer(self, request: Request) -> Reply:
        if request.path == "/robots.txt":
            return moved("/hop/1", 301)
        if request.path.startswith("/hop/"):
            hops = int(request.host.removesuffix(".test").rpartition("-")[2])
            step = int(request.path.removeprefix("/hop/"))
            return text("User-agent: *\nDisallow: /two\n") if step >= hops else moved(f"/hop/{step + 1}")
        return super().answer(request)


class RobotsRedirectCross(Site):
    """robots.txt redirects to another origin, whose answer (it disallows /two) belongs to the asking origin."""

    name = "robots-redirect-cross"

    def robots(self, request: Request) -> Reply:
        return moved(f"http://robots-elsewhere.test:{request.port}/robots.txt", 302)


class RobotsElsewhere(Site):
    """Where robots-redirect-cross gets its robots.txt; it disallows /two."""

    name = "robots-elsewhere"

    def robots(self, request: Request) -> Reply:
        return text("User-agent: *\nDisallow: /two\n")


class RobotsRedirectLoop(Site):
    """robots.txt redirects to itself: no page may be fetched."""

    name = "robots-redirect-loop"

    def robots(self, request: Request) -> Reply:
        return moved("/robots.txt")


class RobotsHtml(Site):
    """robots.txt is an HTML page with status 200: it has no rules, so everything is allowed."""

    name = "robots-html"

    def robots(self, request: Request) -> Reply:
        return page("Welcome", "Disallow is a word here.", links=("/one",))


class RobotsHuge(Site):
    """robots.txt of 600 KB: /two is disallowed within the first 500 KiB, /one only after it, so /one is allowed."""

    name = "robots-huge"

    def robots(self, request: Request) -> Reply:
        filler = "Disallow: /never-linked-filler\n"
        rules = "User-agent: *\nDisallow: /two\n" + filler * (600_000 // len(filler))
        return text(rules + "Disallow: /one\n")


class RobotsDisallowAll(Site):
    """Everything is disallowed: robots.txt is the only request."""

    name = "robots-disallow-all"

    def robots(self, request: Request) -> Reply:
        return text("User-agent: *\nDisallow: /\n")


class RobotsGroups(Site):
    """A group for amble (disallows /two) beside a group for everybody (disallows all)."""

    name = "robots-groups"

    def robots(self, request: Request) -> Reply:
        return text("User-agent: *\nDisallow: /\n\nUser-agent: Amble\nDisallow: /two\n")


class RobotsChanging(Site):
    """robots.txt allows everything for 60 s (Cache-Control) the first time, and disallows /two from then on."""

    name = "robots-changing"

    def robots(self, request: Request) -> Reply:
        reply = text(ALLOW_ALL if self.asked["/robots.txt"] == 1 else "User-agent: *\nDisallow: /two\n")
        reply.headers = (("Cache-Control", "max-age=60"),)
        return reply


class CrawlDelay(Site):
    """Crawl-delay: 1, and six pages: starts are at least one second apart."""

    name = "crawl-delay"

    def robots(self, request: Request) -> Reply:
        return text("User-agent: *\nCrawl-delay: 1\nDisallow:\n")

    def page(self, request: Request) -> Reply:
        if request.target == "/":
            return page("crawl-delay", links=[f"/{number}" for number in range(1, 6)])
        return page(request.target) if request.target[1:].isdigit() else not_found()


# --- slow and broken servers


class SlowFirstByte(Site):
    """Pages take two seconds to their first byte."""

    name = "slow-first-byte"

    def page(self, request: Request) -> Reply:
        reply = super().page(request)
        reply.delay_s = 2.0
        return reply


class SlowDrip(Site):
    """/drip-body sends a byte every 0.2 s for hours, /drip-head does so with its header block."""

    name = "slow-drip"

    def page(self, request: Request) -> Reply:
        if request.target == "/":
            return page("slow-drip", links=("/drip-body", "/drip-head"))
        if request.target == "/drip-body":

            async def act(wire: Wire) -> None:
                wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 100000\r\n\r\n")
                await _drip(wire, b"<p>x" * 25_000, pause_s=0.2)

            return raw(act)
        return raw(lambda wire: _drip(wire, b"HTTP/1.1 200 OK\r\nX: " + b"y" * 60_000, pause_s=0.2))


class NeverAnswers(Site):
    """Accepts the request for any page and says nothing."""

    name = "never-answers"

    def page(self, request: Request) -> Reply:
        return raw(_hold)


class StallsMidBody(Site):
    """Sends half of each page and then nothing."""

    name = "stalls-mid-body"

    def page(self, request: Request) -> Reply:
        async def act(wire: Wire) -> None:
            wire.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2000\r\n\r\n" + b"x" * 1000
            )
            await _hold(wire)

        return raw(act)


class Resets(Site):
    """/ answers; /before resets before an answer, /during in the middle of a body, /empty closes without a byte."""

    name = "resets"

    def page(self, request: Request) -> Reply:
        if request.target == "/":
            return page("resets", links=("/before", "/during", "/empty"))

        async def act(wire: Wire) -> None:
            if request.target == "/empty":
                wire.finish()
                return
            if request.target == "/during":
                wire.send(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2000\r\n\r\n<p>half"
                )
                await asyncio.sleep(0.05)
            wire.reset()

        return raw(act)


class Truncated(Site):
    """Closes cleanly before the announced length (/short) or before the last chunk (/chunk)."""

    name = "truncated-body"

    def page(self, request: Request) -> Reply:
        if request.target == "/":
            return page("truncated-body", links=("/short", "/chunk"))

        async def act(wire: Wire) -> None:
            if request.target == "/short":
                wire.send(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2000\r\n\r\n<p>half"
                )
            else:
                wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n")
                wire.send(b"7\r\n<p>half\r\n")
            wire.finish()

        return raw(act)


class Flaky(Site):
    """Every page resets the connection at the first ask and answers at the second."""

    name = "flaky"

    def page(self, request: Request) -> Reply:
        if self.asked[request.target] > 1:
            return super().page(request)

        async def act(wire: Wire) -> None:
            wire.reset()

        return raw(act)


class ClosesIdle(Site):
    """Closes each connection right after an answer that promised keep-alive."""

    name = "closes-idle"

    def page(self, request: Request) -> Reply:
        reply = super().page(request)

        async def act(wire: Wire) -> None:
            wire.send(reply.head(keep_alive=True) + reply.payload())
            await asyncio.sleep(0.02)
            wire.finish()

        return raw(act)


class Throttle429(Site):
    """The first page asked for answers 429 with Retry-After 2; all answer once two seconds have passed."""

    name = "throttle-429"
    _until_s: float | None = None

    def page(self, request: Request) -> Reply:
        now = time.monotonic()
        if self._until_s is None:
            self._until_s = now + 2.0
        if now < self._until_s:
            return Reply(status=429, body=b"slow down\n", headers=(("Retry-After", "2"),))
        return super().page(request)


class Busy503(Site):
    """Every page answers 503 twice (Retry-After 1), then 200."""

    name = "busy-503"

    def page(self, request: Request) -> Reply:
        if self.asked[request.target] <= 2:
            return Reply(status=503, body=b"busy\n", headers=(("Retry-After", "1"),))
        return super().page(request)


class Always500(Site):
    """The front page links /one and /two, which answer 500 for ever."""

    name = "always-500"

    def page(self, request: Request) -> Reply:
        return super().page(request) if request.target == "/" else Reply(status=500, body=b"broken\n")


class Statuses(Site):
    """/NNN answers with status NNN; the front page links the common and the odd ones."""

    name = "statuses"
    codes = (
        200,
        201,
        203,
        204,
        206,
        300,
        304,
        305,
        400,
        401,
        403,
        404,
        405,
        406,
        408,
        410,
        418,
        451,
        500,
        501,
        502,
    )

    def page(self, request: Request) -> Reply:
        if request.target == "/":
            return page("statuses", links=[f"/{code}" for code in self.codes])
        code = request.target[1:]
        if not (code.isdigit() and 200 <= int(code) <= 999):
            return not_found()
        return Reply(status=int(code), body=f"<title>{code}</title>".encode())


# --- traps


class TrapCalendar(Site):
    """Every day links the next and the one before, for ever."""

    name = "trap-calendar"

    def page(self, request: Request) -> Reply:
        day = (
            int(request.query.removeprefix("day="))
            if request.query.removeprefix("day=").lstrip("-").isdigit()
            else 0
        )
        return page(
            f"day {day}", "Nothing on this day.", links=(f"/?day={day + 1}", f"/?day={day - 1}", "/about")
        )


class TrapDeep(Site):
    """A relative link that goes one level deeper each time: /a/b/a/b/…"""

    name = "trap-deep"

    def page(self, request: Request) -> Reply:
        base = request.path.rstrip("/")
        return page("deeper", request.path, links=(f"{base}/a/", f"{base}/b/"))


class TrapQuery(Site):
    """Facets: each page adds one more parameter to the query."""

    name = "trap-query"

    def page(self, request: Request) -> Reply:
        count = len([part for part in request.query.split("&") if part])
        mark = request.target + ("&" if count else "?")
        return page(f"{count} facets", links=[f"{mark}f{count}={value}" for value in range(3)])


class TrapSession(Site):
    """Every answer hands out a new session id in all its links."""

    name = "trap-session"
    _number = 0

    def page(self, request: Request) -> Reply:
        self._number += 1
        return page(
            "shop", request.path, links=[f"/{word}?sid={self._number:08x}" for word in ("", "one", "two")]
        )


class TrapHosts(Site):
    """Wildcard DNS: every page links a new host below trap-hosts.test."""

    name = "trap-hosts"
    _number = 0

    def page(self, request: Request) -> Reply:
        self._number += 1
        return page(
            "hosts", links=[f"http://h{self._number * 2 + k}.trap-hosts.test:{request.port}/" for k in (0, 1)]
        )


class TrapSoft404(Site):
    """Every path answers 200 and links two more that do not exist."""

    name = "trap-soft-404"

    def page(self, request: Request) -> Reply:
        return page(
            "Not found, but 200", links=(f"/x{zlib.crc32(request.path.encode()):x}", f"/y{len(request.path)}")
        )


class TrapDownload(Site):
    """An endless body without a length."""

    name = "trap-stream"

    def page(self, request: Request) -> Reply:
        if request.target == "/":
            return page("trap-stream", links=("/radio",))
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
        return raw(lambda wire: _flood(wire, head, b"<p>on and on</p>" * 1000, bytes_max=1 << 36))


# --- bombs and floods


class BombGzip(Site):
    """/ is small; /bomb is 100 KB of gzip that unpacks to 100 MB; /bomb-twice is coded twice."""

    name = "bomb-gzip"
    _bomb = b""

    def page(self, request: Request) -> Reply:
        if request.target == "/":
            return page("bomb-gzip", links=("/bomb", "/bomb-twice"))
        if not self._bomb:
            self._bomb = (
                gzip.compress(b"\0" * 1_000_000, 9, mtime=0) * 100
            )  # members may follow each other (RFC 1952)
        if request.target == "/bomb":
            return Reply(body=self._bomb, headers=(("Content-Encoding", "gzip"),))
        return Reply(
            body=gzip.compress(self._bomb, 9, mtime=0), headers=(("Content-Encoding", "gzip, gzip"),)
        )


class BadCoding(Site):
    """/broken-gzip is cut, /not-gzip only says it is gzip, /unknown uses a coding that nobody has."""

    name = "bad-coding"

    def page(self, request: Request) -> Reply:
        body = page("coded", "text " * 200).body
        if request.target == "/broken-gzip":
            return Reply(body=gzip.compress(body, mtime=0)[:100], headers=(("Content-Encoding", "gzip"),))
        if request.target == "/not-gzip":
            return Reply(body=body, headers=(("Content-Encoding", "gzip"),))
        if request.target == "/unknown":
            return Reply(body=body, headers=(("Content-Encoding", "compress-o-matic"),))
        return page("bad-coding", links=("/broken-gzip", "/not-gzip", "/unknown"))


class HugeBody(Site):
    """/announced has a length of 50 MB, /chunked has no length and 50 MB, /edge is exactly 10 MiB."""

    name = "huge-body"

    def page(self, request: Request) -> Reply:
        if request.target == "/":
            return page("huge-body", links=("/announced", "/chunked", "/edge"))
        if request.target == "/edge":
            return Reply(body=b"<p>edge</p>".ljust(10 * 1024 * 1024), kind="text/html")
        if request.target == "/announced":
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 52428800\r\n\r\n"
            return raw(lambda wire: _flood(wire, head, b"x" * 65_536, bytes_max=52_428_800))
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n"
        piece = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        return raw(lambda wire: _flood(wire, head, piece, bytes_max=52_428_800))


class HugeHeaders(Site):
    """/one-line is a header of 200 KB, /many-lines is 2,000 headers, / is plain."""

    name = "huge-headers"

    def page(self, request: Request) -> Reply:
        if request.target == "/one-line":
            return Reply(body=b"x", headers=(("X-Large", "y" * 200_000),))
        if request.target == "/many-lines":
            return Reply(body=b"x", headers=[(f"X-{number}", "y") for number in range(2_000)])
        return page("huge-headers", links=("/one-line", "/many-lines"))


class EndlessHeaders(Site):
    """/lines sends header lines for ever, /continues sends 100 Continue for ever."""

    name = "endless-headers"

    def page(self, request: Request) -> Reply:
        if request.target == "/":
            return page("endless-headers", links=("/lines", "/continues"))
        if request.target == "/lines":
            return raw(
                lambda w: _flood(w, b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n" * 100, bytes_max=1 << 36)
            )
        return raw(lambda w: _flood(w, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, bytes_max=1 << 36))


FRAMING = {
    "both": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    "same-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "negative": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc",
    "plus": b"HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc",
    "bad-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "giant-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc",
    "bare-lf": b"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc",
    "no-reason": b"HTTP/1.1 200\r\nContent-Length: 3\r\n\r\nabc",
    "http-09": b"<html><p>no status line at all</html>",
    "http-10": b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n<p>until close",
    "http-3": b"HTTP/3.0 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "garbage": bytes(range(256)) * 4,
    "folded": b"HTTP/1.1 200 OK\r\nX-Folded: one\r\n two\r\nContent-Length: 3\r\n\r\nabc",
    "space-colon": b"HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\nabc",
    "nul-header": b"HTTP/1.1 200 OK\r\nX-Nul: a\0b\r\nContent-Length: 3\r\n\r\nabc",
    "extra-bytes": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "hints": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
}


class BadFraming(Site):
    """One path for each way to frame an answer wrongly or oddly; / links them all; each closes the connection."""

    name = "bad-framing"

    def page(self, request: Request) -> Reply:
        answer = FRAMING.get(request.target[1:])
        if answer is None:
            return page("bad-framing", links=[f"/{name}" for name in FRAMING])

        async def act(wire: Wire) -> None:
            wire.send(answer)
            wire.finish()

        return raw(act)


class HostileHtml(Site):
    """Pages made to hurt a parser: each case of hostile.py, as hostile-html-CASE.test/ and as hostile-html.test/CASE."""

    name = "hostile-html"
    also = tuple(f"hostile-html-{case}" for case in HOSTILE)

    def page(self, request: Request) -> Reply:
        case = request.host.removesuffix(".test").removeprefix("hostile-html").removeprefix("-")
        if case and request.target == "/":
            return Reply(body=hostile_page(case))
        if not case and request.target == "/":
            return page("hostile-html", links=[f"/{name}" for name in HOSTILE])
        return (
            Reply(body=hostile_page(request.target[1:]))
            if request.target[1:] in HOSTILE and not case
            else not_found()
        )


# --- redirects


class RedirectLoop(Site):
    """/a and /b redirect to each other, /self to itself, /grow to itself with a longer path each time."""

    name = "redirect-loop"

    def page(self, request: Request) -> Reply:
        if request.path.startswith("/grow"):
            return moved(request.path + "/x")
        to = {"/a": "/b", "/b": "/a", "/self": "/self"}.get(request.target)
        return moved(to) if to else page("redirect-loop", links=("/a", "/self", "/grow"))


class RedirectPrivate(Site):
    """Redirects to private and special destinations, by address in many spellings, by name, and to odd schemes."""

    name = "redirect-private"
    targets = (
        "http://10.0.0.1/secret",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "http://0.0.0.0/",
        "http://[::ffff:10.0.0.1]/",
        "http://0x0a.1/",
        "http://167772161/",
        "http://private.test/",
        "http://mixed.test/",
        "file:///etc/passwd",
        "gopher://private.test/",
        "http://user:secret@plain.test/",
        "javascript:alert(1)",
    )

    def page(self, request: Request) -> Reply:
        number = request.target.removeprefix("/to/")
        if number.isdigit() and int(number) < len(self.targets):
            return moved(self.targets[int(number)])
        return page("redirect-private", links=[f"/to/{number}" for number in range(len(self.targets))])


class Redirects(Site):
    """Good redirects: every status, relative, to a fragment, without a body, without Location, in a chain of eight."""

    name = "redirects"

    def page(self, request: Request) -> Reply:
        path = request.path
        if path.startswith("/chain/"):
            step = int(path.removeprefix("/chain/"))
            return page("end of the chain") if step >= 8 else moved(f"/chain/{step + 1}")
        table = {f"/{code}": moved(f"/target-{code}", code) for code in (301, 302, 303, 307, 308)}
        table |= {
            "/relative": moved("target-relative"),
            "/fragment": moved("/target-fragment#part"),
            "/nowhere": Reply(status=302, body=b"no location"),
            "/space": moved("/target space"),
            "/raw-utf8": moved("/target-caf\u00c3\u00a9"),
        }
        if path in table:
            return table[path]
        return page("redirects", path, links=() if path.startswith("/target") else [*table, "/chain/1"])


# --- content


class Changing(Site):
    """/ticks differs at every visit, /stable never does, /tagged answers 304 to its ETag; no-store on /ticks."""

    name = "changing"

    def page(self, request: Request) -> Reply:
        if request.target == "/ticks":
            reply = page("ticks", f"Visit number {self.asked[request.target]}.")
            reply.headers = (("Cache-Control", "no-store"),)
            return reply
        if request.target in ("/stable", "/tagged"):
            reply = page(request.target, "Always the same.")
            return conditional(request, reply) if request.target == "/tagged" else reply
        return page("changing", links=("/ticks", "/stable", "/tagged"))


class BadValidators(Site):
    """Odd validators: a weak tag, a tag without quotes, a date in the past century, 304 to a request without one."""

    name = "bad-validators"

    def page(self, request: Request) -> Reply:
        tags = {"/weak": 'W/"weak"', "/bare": "no-quotes", "/odd": '"with \\" quote"'}
        if request.target in tags:
            return conditional(request, page(request.target), etag=tags[request.target])
        if request.target == "/old":
            return conditional(request, page("old"), modified="Friday, 31-Dec-99 23:59:59 GMT", etag="")
        if request.target == "/unasked-304":
            return Reply(status=304)
        return page("bad-validators", links=(*tags, "/old", "/unasked-304"))


class SitemapSite(Site):
    """robots.txt names a sitemap index: one map in gzip, one plain, one broken, one on another host; feeds beside it."""

    name = "sitemap"

    def robots(self, request: Request) -> Reply:
        return text(
            f"{ALLOW_ALL}Sitemap: http://{request.netloc}/index.xml\nSitemap: /relative-is-wrong.xml\n"
        )

    def page(self, request: Request) -> Reply:
        own = f"http://{request.netloc}"
        if request.target == "/index.xml":
            maps = (
                f"{own}/map-1.xml.gz",
                f"{own}/map-2.xml",
                f"{own}/broken.xml",
                "http://plain.test/map.xml",
            )
            return _xml("sitemapindex", "".join(f"<sitemap><loc>{url}</loc></sitemap>" for url in maps))
        if request.target == "/map-1.xml.gz":
            reply = _xml("urlset", "".join(f"<url><loc>{own}/by-map/{n}</loc></url>" for n in range(50)))
            return Reply(body=gzip.compress(reply.body, mtime=0), kind="application/gzip")
        if request.target == "/map-2.xml":
            urls = [f"{own}/by-map/{n}?a=1&amp;b=2" for n in range(50, 60)] + ["http://plain.test/not-mine"]
            return _xml(
                "urlset", "".join(f"<url><loc> {u} </loc><lastmod>2025-01-01</lastmod></url>" for u in urls)
            )
        if request.target == "/broken.xml":
            return Reply(body=b"<?xml version='1.0'?><urlset><url><loc>http://", kind="application/xml")
        if request.target == "/feed.xml":
            items = "".join(f"<item><link>{own}/by-feed/{n}</link></item>" for n in range(5))
            return Reply(
                body=f"<rss version='2.0'><channel>{items}</channel></rss>".encode(),
                kind="application/rss+xml",
            )
        if request.path.startswith(("/by-map/", "/by-feed/")):
            return page(request.target, "Only a list knows this page.")
        feed = '<link rel="alternate" type="application/rss+xml" href="/feed.xml">'
        return page("sitemap", head=feed) if request.target == "/" else not_found()


def _xml(root: str, inside: str) -> Reply:
    space = "http://www.sitemaps.org/schemas/sitemap/0.9"
    body = f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="{space}">{inside}</{root}>'
    return Reply(body=body.encode(), kind="application/xml")


class SitemapBomb(Site):
    """Sitemaps that hurt: entity expansion, an external entity, a map that names itself, 200,000 URLs."""

    name = "sitemap-bomb"

    def robots(self, request: Request) -> Reply:
        names = ("laughs", "external", "self", "many")
        return text(ALLOW_ALL + "".join(f"Sitemap: http://{request.netloc}/{name}.xml\n" for name in names))

    def page(self, request: Request) -> Reply:
        own = f"http://{request.netloc}"
        if request.target == "/laughs.xml":
            rows = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
            body = f'<!DOCTYPE x [<!ENTITY l0 "ha">{rows}]><urlset><url><loc>&l9;</loc></url></urlset>'
            return Reply(body=body.encode(), kind="application/xml")
        if request.target == "/external.xml":
            body = '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><urlset><url><loc>&e;</loc></url></urlset>'
            return Reply(body=body.encode(), kind="application/xml")
        if request.target == "/self.xml":
            return _xml("sitemapindex", f"<sitemap><loc>{own}/self.xml</loc></sitemap>")
        if request.target == "/many.xml":
            return _xml("urlset", "".join(f"<url><loc>{own}/many/{n}</loc></url>" for n in range(200_000)))
        return super().page(request)


class MetaRobots(Site):
    """Pages with meta robots: noindex, nofollow, none, one for amble alone; /hidden-* are linked only from nofollow."""

    name = "meta-robots"
    cases: ClassVar = {
        "/noindex": ("robots", "noindex"),
        "/nofollow": ("robots", "nofollow"),
        "/none": ("ROBOTS", "NONE"),
        "/for-amble": ("amble", "noindex"),
        "/for-other": ("otherbot", "none"),
    }

    def page(self, request: Request) -> Reply:
        case = self.cases.get(request.target)
        if case is not None:
            meta = f'<meta name="{case[0]}" content="{case[1]}">'
            return page(request.target, links=(f"/behind{request.target.replace('/', '-')}",), head=meta)
        if request.target == "/":
            return page(
                "meta-robots", '<a rel="nofollow" href="/behind-rel">rel</a>', links=tuple(self.cases)
            )
        return page(request.target)


class XRobots(Site):
    """The same by header: X-Robots-Tag noindex, nofollow, none, for amble alone, twice, and unavailable_after."""

    name = "xrobots"
    cases: ClassVar = {
        "/noindex": ("noindex",),
        "/nofollow": ("nofollow",),
        "/none": ("none",),
        "/for-amble": ("amble: noindex",),
        "/for-other": ("otherbot: none",),
        "/twice": ("nosnippet", "noindex"),
        "/after": ("unavailable_after: 25 Jun 2010 15:00:00 PST",),
    }

    def page(self, request: Request) -> Reply:
        case = self.cases.get(request.target)
        if case is not None:
            reply = page(request.target, links=(f"/behind{request.target.replace('/', '-')}",))
            reply.headers = [("X-Robots-Tag", value) for value in case]
            return reply
        return page("xrobots", links=tuple(self.cases)) if request.target == "/" else page(request.target)


class BigSite(Site):
    """100,000 pages /1 to /100000, each linking ten more: page n links 10n+1 to 10n+10."""

    name = "big-site"
    pages = 100_000

    def page(self, request: Request) -> Reply:
        number = (
            0 if request.target == "/" else int(request.target[1:]) if request.target[1:].isdigit() else -1
        )
        if not 0 <= number <= self.pages:
            return not_found()
        links = [f"/{child}" for child in range(10 * number + 1, 10 * number + 11) if child <= self.pages]
        return page(
            f"page {number}", " ".join(ENGLISH[(number + k) % len(ENGLISH)] for k in range(40)), links=links
        )


class Dup(Site):
    """The same bytes at /a, /b and /c?x=1; /near differs from them in one word; /canonical names /a."""

    name = "dup"
    alike = (("dup.test/a", "dup.test/b", "dup.test/c?x=1", "dup.test/near"),)

    def page(self, request: Request) -> Reply:
        prose = " ".join(ENGLISH * 4)
        if request.target in ("/a", "/b", "/c?x=1"):
            return page("the same", prose, links=("/",))
        if request.target == "/near":
            return page("the same", prose + " nearly", links=("/",))
        if request.target == "/canonical":
            return page("copy", prose, head='<link rel="canonical" href="/a">')
        return page("dup", links=("/a", "/b", "/c?x=1", "/near", "/canonical"))


class Mirror(Site):
    """An article, its page for printers, and the same on mirror-2 between other links; /other is another article."""

    name = "mirror"
    also = ("mirror-2",)
    alike = (("mirror.test/article", "mirror.test/print", "mirror-2.test/article"),)

    def page(self, request: Request) -> Reply:
        article, other = (sentences(random.Random(seed), ENGLISH, 150) for seed in (1, 2))
        there = f"http://mirror-2.test:{request.port}/article"
        menu = ("/", "/article", "/print", "/other", there)
        match request.host, request.target:
            case _, "/":
                return page("mirror", "Two articles.", links=menu)
            case "mirror-2.test", "/article":
                return page("The article, elsewhere", "Read it here.", article, links=("/",))
            case "mirror.test", "/article":
                return page("The article", article, links=menu)
            case "mirror.test", "/print":
                return page("The article", article)
            case "mirror.test", "/other":
                return page("The article", other, links=menu)
        return not_found()


class Latin1(Site):
    """Charsets: Latin-1 by header, windows-1251 by meta, UTF-16 by BOM, a lie in the header, none at all."""

    name = "latin1"

    def page(self, request: Request) -> Reply:
        def said(word: str, before: str = "") -> str:
            return f"{before}<title>{word}</title><p>{word}</p>"

        table = {
            "/header": (said("café").encode("latin-1"), "text/html; charset=iso-8859-1"),
            "/meta": (said("мост", "<meta charset=windows-1251>").encode("cp1251"), "text/html"),
            "/bom": (said("water 水", "\ufeff").encode("utf-16-le"), "text/html"),
            "/lie": (said("naïve", "\ufeff").encode(), "text/html; charset=iso-8859-1"),
            "/none": (said("crème").encode("cp1252"), "text/html"),
            "/japanese": (said("東京", "<meta charset=shift_jis>").encode("shift_jis"), "text/html"),
        }
        if request.target in table:
            body, kind = table[request.target]
            return Reply(body=body, kind=kind)
        return page("latin1", links=tuple(table))


class Kinds(Site):
    """Media types: text, PDF, PNG, JSON, XML, a wrong type, no type, an empty body, an attachment."""

    name = "kinds"

    def page(self, request: Request) -> Reply:
        table = {
            "/text": text("plain http://plain.test/in-text\n"),
            "/pdf": Reply(body=b"%PDF-1.4\n%%EOF\n", kind="application/pdf"),
            "/png": Reply(body=b"\x89PNG\r\n\x1a\n" + b"\0" * 64, kind="image/png"),
            "/json": Reply(body=b'{"url": "/never"}', kind="application/json"),
            "/xml": Reply(body=b"<?xml version='1.0'?><x/>", kind="application/xml"),
            "/html-as-text": Reply(body=page("as text", links=("/never",)).body, kind="text/plain"),
            "/png-as-html": Reply(body=b"\x89PNG\r\n\x1a\n" + b"\0" * 64),
            "/no-type": Reply(body=page("no type", links=("/typeless",)).body, kind=""),
            "/empty": Reply(body=b""),
            "/attachment": Reply(
                body=b"a,b\n", kind="text/csv", headers=(("Content-Disposition", "attachment"),)
            ),
        }
        return table.get(request.target) or page("kinds", links=tuple(table))


class Cookies(Site):
    """Sets a cookie and shows what it was sent: a crawler must send none, nor credentials nor a referrer."""

    name = "cookies"

    def page(self, request: Request) -> Reply:
        sent = [name for name in ("cookie", "authorization", "referer") if name in request.headers]
        reply = page("cookies", f"Sent: {' '.join(sent) or 'nothing'}.", links=("/one",))
        reply.headers = (("Set-Cookie", "id=1; Path=/"),)
        return reply


class Echo(Site):
    """Shows the request headers as text."""

    name = "echo"

    def page(self, request: Request) -> Reply:
        lines = [
            f"{request.method} {request.target}",
            *(f"{k}: {v}" for k, v in sorted(request.headers.items())),
        ]
        return text("\n".join([*lines, f"accepts-gzip: {accepts(request, 'gzip')}", ""]))


class TlsGood(Site):
    """HTTPS with a certificate of the test authority (see --tls)."""

    name = "tls-good"


class TlsSelfSigned(Site):
    """HTTPS with a certificate that signed itself."""

    name = "tls-self-signed"


class TlsExpired(Site):
    """HTTPS with a certificate of the test authority that expired last year."""

    name = "tls-expired"


class TlsWrongName(Site):
    """HTTPS with a certificate for another name."""

    name = "tls-wrong-name"


def near_duplicates(port: int) -> list[list[str]]:
    """URLs of documents with nearly the same text, group by group: one of each group is worth publishing."""
    return [
        [f"http://{place.replace('/', f':{port}/', 1)}" for place in group]
        for kind in site_classes()
        for group in kind.alike
    ]


def site_classes() -> list[type[Site]]:
    """All behaviours, by name."""
    return sorted(Site.__subclasses__(), key=lambda kind: kind.name)


def build_sites() -> dict[str, Site]:
    """Every host with the site that serves it; names of one class share an instance only if the class says so."""
    hosts: dict[str, Site] = {}
    for kind in site_classes():
        for name in (kind.name, *kind.also):
            hosts[f"{name}.test"] = kind()
    return hosts


def table() -> str:
    """The table of README.md."""
    rows = ["| host | what it shows |", "|---|---|"]
    for kind in site_classes():
        more = f" (and {len(kind.also)} more)" if kind.also else ""
        rows.append(f"| `{kind.name}.test`{more} | {' '.join((kind.__doc__ or '').split())} |")
    return "\n".join(rows)
