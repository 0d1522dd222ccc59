"""The closed set: sites that link only to each other, with a truth that says what a polite crawl must do with each URL.

Everything follows from (sites, pages, seed, port). A page is a URL that answers 200 and that a crawl must fetch exactly
once when it starts at every root, stays on the hosts of the set, obeys robots.txt and nofollow, drops fragments and
tracking parameters, and takes a redirect for a discovery. `pages` counts these and nothing else.

Outcomes in the truth:

- page        answers 200; fetched exactly once. `index` False: must not be published. `same_as`: identical bytes.
- missing     answers 404 or 410; fetched exactly once.
- redirect    answers 3xx; fetched exactly once. `location`: where it points.
- disallowed  linked or redirected to, forbidden by robots.txt; never requested.
- nofollow    only reachable over nofollow; never requested.
- outside     linked or redirected to, not a host of the set; never requested.
- robots      robots.txt and what it redirects to; at least once, before the first page of its host.
"""

from __future__ import annotations

import functools
import hashlib
import html
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.web.message import Reply, Request, accepts, conditional, encoded, moved, not_found, text
from tests.web.words import CHARSETS, ENGLISH, sentences

FORMAT = 1
FAN_OUT = 8
EXTRA_EVERY = 12
BASE = "/base/of/"
LARGE_BYTES = 1_300_000
ROBOTS = (
    "User-agent: *\nDisallow: /private/   # linked all over\nAllow: /private/open/\nDisallow: /*.secret$\n"
)
MODIFIED = "Tue, 04 Mar 2025 10:20:30 GMT"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


@dataclass(slots=True)
class Href:
    """One link as a page carries it: where it leads in canonical form, how it is written, its rel."""

    url: str
    written: str
    rel: str = ""


@dataclass(slots=True)
class Node:
    """One URL of the set."""

    site: int
    path: str
    outcome: str
    status: int = 200
    location: str = ""
    kind: str = "html"
    charset: str = "utf-8"
    charset_by: str = "header"
    wire: str = "identity"
    chunked: bool = False
    base: str = ""
    robots_by: str = ""
    robots: str = ""
    validators: str = "both"
    large: bool = False
    same_as: Node | None = None
    links: list[Href] = field(default_factory=list)

    @property
    def followed(self) -> bool:
        """Whether a crawl may follow the links of this page."""
        return self.kind == "html" and "nofollow" not in self.robots


def sizes(sites: int, pages: int) -> list[int]:
    """Pages of each site: a power law with exponent 1, at least one page each, exactly `pages` in all."""
    if not 1 <= sites <= pages:
        raise ValueError("a closed set needs at least one page for each site")
    weights = [1 / (rank + 1) for rank in range(sites)]
    spare = pages - sites
    out = [1 + int(spare * weight / sum(weights)) for weight in weights]
    out[0] += pages - sum(out)
    return out


class ClosedSet:
    """The graph, its pages and its truth."""

    def __init__(self, *, sites: int = 20, pages: int = 5000, seed: int = 1, port: int) -> None:
        self.seed, self.port, self.pages = seed, port, pages
        self.hosts = [f"closed-{site:02d}.test" for site in range(sites)]
        self._site_of = {host: site for site, host in enumerate(self.hosts)}
        self._nodes: dict[tuple[int, str], Node] = {}
        self._pages: list[list[Node]] = []
        self._outside: list[str] = []
        for site, size in enumerate(sizes(sites, pages)):
            self._pages.append([self._make_page(site, index, size) for index in range(size)])
        for site in range(sites):
            self._link(site)

    # --- what others ask

    def url(self, site: int, path: str) -> str:
        """The canonical URL of a path at a site."""
        return f"http://{self.hosts[site]}:{self.port}{path}"

    @property
    def seeds(self) -> list[str]:
        """The roots: start here."""
        return [self.url(site, "/") for site in range(len(self.hosts))]

    def answer(self, request: Request) -> Reply:
        """Serve one request to a host of the set."""
        site = self._site_of[request.host]
        if request.target in ("/robots.txt", "/robots-real.txt"):
            return self._robots(site, request.target)
        node = self._nodes.get((site, request.target))
        if node is None:
            return not_found()
        if node.outcome == "missing":
            return Reply(status=node.status, body=b"<!doctype html><title>Gone</title><p>Not here.\n")
        if node.outcome == "redirect":
            own = self.url(site, "/")
            short = node.status in (303, 308) and node.location.startswith(own)
            return moved(node.location[len(own) - 1 :] if short else node.location, node.status)
        return self._page(node, request)

    def truth(self, *, digests: bool = False) -> dict[str, Any]:
        """The truth as a JSON-ready value; `digests` adds the sha256 of every page's decoded body."""
        urls: dict[str, dict[str, Any]] = {}
        for (site, path), node in self._nodes.items():
            urls[self.url(site, path)] = self._facts(node, digests=digests)
        for url in self._outside:
            urls[url] = {"outcome": "outside"}
        for site in range(len(self.hosts)):
            urls[self.url(site, "/robots.txt")] = {"outcome": "robots"}
            if self._robots_way(site) == "redirect":
                urls[self.url(site, "/robots-real.txt")] = {"outcome": "robots"}
        return {
            "format": FORMAT,
            "seed": self.seed,
            "port": self.port,
            "hosts": self.hosts,
            "seeds": self.seeds,
            "pages": self.pages,
            "urls": urls,
        }

    def _facts(self, node: Node, *, digests: bool) -> dict[str, Any]:
        facts: dict[str, Any] = {"outcome": node.outcome, "status": node.status}
        if node.location:
            facts["location"] = node.location
        if node.outcome == "page":
            facts |= {"kind": node.kind, "index": "noindex" not in node.robots}
            if node.same_as is not None:
                facts["same_as"] = self.url(node.same_as.site, node.same_as.path)
            if digests:
                facts["sha256"] = hashlib.sha256(self.body(node)).hexdigest()
        return facts

    # --- building

    def _make_page(self, site: int, index: int, size: int) -> Node:
        rng = random.Random(f"{self.seed}/{site}/{index}")
        node = Node(site, _path(index), "page")
        leaf = FAN_OUT * index + 1 >= size
        _dress(node, rng, leaf=leaf and index > 0)
        if leaf and index == size - 1 and site < 3 and index > 0:
            node.kind, node.large, node.wire = "html", True, "identity"
        self._nodes[(site, node.path)] = node
        return node

    def _link(self, site: int) -> None:
        rng = random.Random(f"{self.seed}/{site}/links")
        pages = self._pages[site]
        for index, node in enumerate(pages[1:], start=1):
            parent = pages[(index - 1) // FAN_OUT]
            target = self.url(site, node.path)
            if index % 37 == 0:  # some pages are first met behind a redirect
                target = self._redirect(site, f"/go/{index}", target, rng)
            self._add_link(parent, target, rng)
        sources = [node for node in pages if node.kind == "html"]
        for node in sources:
            self._add_wandering_links(node, rng)
        based = [node for node in sources if node.base and node.followed]
        if based:
            # "#top" on such a page leads to its base by the letter of the standard and nowhere for many readers: the
            # base is linked in plain words too, so that both readings find the same URLs
            self._nodes[(site, BASE)] = Node(site, BASE, "missing", status=404)
            self._add_link(based[0], self.url(site, BASE), rng)
        twins = self._pair_twins(site)
        sources = [node for node in sources if node.followed and id(node) not in twins]
        for number in range(max(len(EXTRAS), len(pages) // EXTRA_EVERY)):
            extra = EXTRAS[number % len(EXTRAS)]
            extra(self, site, number, sources, rng)

    def _add_wandering_links(self, node: Node, rng: random.Random) -> None:
        if not node.followed:  # only this page knows them, so nobody may get there
            self._add_hidden(node, f"/hidden/by-page{_slug(node.path)}", rng)
            return
        for _ in range(rng.randint(2, 6)):
            self._add_link(node, self.url(node.site, rng.choice(self._pages[node.site]).path), rng)
        other = rng.randrange(len(self.hosts))
        self._add_link(node, self.url(other, rng.choice(self._pages[other]).path), rng)

    def _pair_twins(self, site: int) -> set[int]:
        """Every 40th plain leaf gets the bytes of the plain leaf before it; the ids of both kinds of nodes."""
        twins: set[int] = set()
        plain = [
            node
            for index, node in enumerate(self._pages[site])
            if index
            and FAN_OUT * index + 1 >= len(self._pages[site])
            and node.kind == "html"
            and node.followed
            and not node.large
            and not node.base
        ]
        for at in range(1, len(plain), 40):
            first, second = plain[at - 1], plain[at]
            # the same bytes must mean the same links at both places: only links that do not depend on the place
            first.links = [link for link in first.links if _stands_alone(link.written)]
            second.links, second.same_as = first.links, first
            second.charset, second.charset_by = first.charset, first.charset_by
            second.robots, second.robots_by = first.robots, first.robots_by
            twins |= {id(first), id(second)}
        return twins

    def _add_link(self, node: Node, url: str, rng: random.Random, rel: str = "") -> None:
        node.links.append(Href(url, self._write(node, url, rng), rel))

    def _add_hidden(self, node: Node, path: str, rng: random.Random, rel: str = "") -> None:
        self._nodes[(node.site, path)] = Node(node.site, path, "nofollow")
        self._add_link(node, self.url(node.site, path), rng, rel)

    def _redirect(self, site: int, path: str, target: str, rng: random.Random) -> str:
        status = rng.choice((301, 302, 303, 307, 308))
        self._nodes[(site, path)] = Node(site, path, "redirect", status=status, location=target)
        return self.url(site, path)

    def _disallowed(self, site: int, number: int) -> str:
        """A URL that robots.txt forbids; on a site without robots.txt, one that is merely missing."""
        path = f"/private/{number}" if number % 2 else f"/vault/{number}.secret"
        if self._robots_way(site) == "missing":
            self._nodes[(site, path)] = Node(site, path, "missing", status=404)
        else:
            self._nodes[(site, path)] = Node(site, path, "disallowed")
        return self.url(site, path)

    def _write(self, node: Node, url: str, rng: random.Random) -> str:
        """One of the many ways to write a link to `url` in `node`."""
        own = f"http://{self.hosts[node.site]}:{self.port}"
        if not url.startswith(own + "/"):
            style = rng.randrange(4)
            scheme, _, rest = url.partition("://")
            netloc, slash, path = rest.partition("/")
            if style == 0:
                return f"{scheme.upper()}://{netloc.upper()}{slash}{path}"
            if style == 1 and scheme == "http":
                return f"//{netloc}{slash}{path}#there"
            return url
        path = url[len(own) :]
        mark = "&" if "?" in path else "?"
        climb = "../" * ((node.base or node.path).partition("?")[0].count("/") - 1)
        ways = (
            path,
            path,
            url,
            f"{own.upper()}{path}",
            climb + path[1:] if path != "/" else climb or "./",
            f"/somewhere/..{path}",
            f"/.{path}",
            f"{path}#part-{rng.randrange(9)}",
            f"{path}{mark}utm_source=news&utm_medium=mail",
            f"{path}{mark}fbclid=IwAR{rng.randrange(10**6)}",
            f" \n {path}\t",
            f"{path[:2]}\n{path[2:]}",
            path.replace("%20", " ").replace("%C3%A9", "é"),
        )
        return rng.choice(ways)

    # --- serving

    def _robots_way(self, site: int) -> str:
        return {3: "missing", 5: "redirect"}.get(site, "plain")

    def _robots(self, site: int, target: str) -> Reply:
        way = self._robots_way(site)
        if way == "missing" or (way == "plain" and target != "/robots.txt"):
            return not_found()
        if way == "redirect" and target == "/robots.txt":
            return moved("/robots-real.txt", 301)
        return text(ROBOTS)

    def body(self, node: Node) -> bytes:
        """The decoded body of a page."""
        source = node.same_as or node
        if source.kind == "html":
            return _render(source, random.Random(f"{self.seed}/{source.site}{source.path}/body"))
        prose = sentences(random.Random(f"{self.seed}/{source.site}{source.path}/body"), ENGLISH, 12)
        if source.kind == "text":
            return f"{prose}\nhttp://not-a-link.test/in-plain-text\n".encode()
        if source.kind == "pdf":
            return b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\n% " + prose.encode() + b"\n%%EOF\n"
        return PNG + source.path.encode()

    def _page(self, node: Node, request: Request) -> Reply:
        source = node.same_as or node
        headers: list[tuple[str, str]] = []
        if source.robots and source.robots_by == "header":
            headers.append(("X-Robots-Tag", source.robots))
        media = {"html": "text/html", "text": "text/plain", "pdf": "application/pdf", "png": "image/png"}
        kind = media[source.kind]
        if source.kind == "html" and source.charset_by == "header":
            kind += f"; charset={source.charset}"
        reply = Reply(body=self.body(node), kind=kind, headers=headers)
        if node.wire != "identity" and accepts(request, node.wire):
            reply = encoded(reply, node.wire)
        reply.chunked = node.chunked
        if node.validators == "none":
            return reply
        modified = MODIFIED if node.validators in ("both", "date") else ""
        return conditional(request, reply, modified=modified, etag="" if node.validators == "date" else None)


def _path(index: int) -> str:
    """The canonical path of page `index` of a site: many shapes, all distinct."""
    if index == 0:
        return "/"
    shapes = (
        "/p/{}.html",
        "/docs/chapter-{}/",
        "/item?id={}",
        "/a/b/c/{}",
        "/news/2025/03/{}-story.html",
        "/with%20space/{}",
        "/caf%C3%A9/{}",
        "/private/open/{}",
        "/Case/{}.HTM",
        "/list?page={}&sort=up",
        "/~user/{}.html",
        "/x;v=1/{}",
    )
    return shapes[index % len(shapes)].format(index)


def _slug(path: str) -> str:
    return "-" + "".join(char if char.isalnum() else "-" for char in path)


def _stands_alone(written: str) -> bool:
    return written.strip().startswith(("/", "http", "HTTP"))


def _dress(node: Node, rng: random.Random, *, leaf: bool) -> None:
    """Give a page its charset, coding, validators and, for a leaf, perhaps a kind that has no links."""
    if leaf and rng.random() < 0.12:
        node.kind = rng.choice(("text", "pdf", "png"))
    if node.kind == "html":
        if rng.random() < 0.15:
            node.charset = rng.choice([name for name in CHARSETS if name != "utf-8"])
        node.charset_by = rng.choice(("header", "meta"))
        if rng.random() < 0.1:
            node.base = BASE
        if rng.random() < 0.05:
            node.robots, node.robots_by = "noindex", rng.choice(("header", "meta"))
        elif leaf and rng.random() < 0.04:
            node.robots, node.robots_by = (
                rng.choice(("nofollow", "noindex, nofollow")),
                rng.choice(("header", "meta")),
            )
    if node.kind != "png":
        node.wire = rng.choice(("identity", "gzip", "gzip", "br", "deflate"))
    node.chunked = rng.random() < 0.2
    node.validators = rng.choice(("both", "tag", "date", "none"))


def _render(node: Node, rng: random.Random) -> bytes:
    language, words = CHARSETS[node.charset]
    head = f"<title>{words[0]} {html.escape(node.path)} {node.site}</title>"
    if node.charset_by == "meta":
        head = f'<meta charset="{node.charset}">' + head
    if node.base:
        head += f'<base href="{node.base}">'
    if node.robots and node.robots_by == "meta":
        head += f'<meta name="robots" content="{node.robots}">'
    parts = [f'<!doctype html>\n<html lang="{language}"><head>{head}</head>\n<body><h1>{words[1]}</h1>\n']
    for link in node.links:
        rel = f' rel="{link.rel}"' if link.rel else ""
        parts.append(f"<p>{sentences(rng, words, 2)}</p>\n")
        parts.append(f'<a{rel} href="{html.escape(link.written)}">{" ".join(rng.choices(words, k=3))}</a>\n')
    parts.append(f"<p>{sentences(rng, words, 6)}</p>\n")
    parts.append('<a href="#top">up</a> <a name="here">no link</a> <a href="mailto:a@closed.test">mail</a>\n')
    parts.append('<a href="javascript:void(0)">script</a> <!-- <a href="/in-a-comment">no</a> -->\n')
    if node.large:
        parts.append("<pre>" + (sentences(rng, ENGLISH, 400) * (LARGE_BYTES // 20_000 + 1)) + "</pre>\n")
    parts.append("</body></html>\n")
    return "".join(parts).encode(node.charset, "xmlcharrefreplace")


# --- what is linked besides pages: each adds its URLs to one site, and links from some page that is followed

Extra = Callable[[ClosedSet, int, int, list[Node], random.Random], None]


def _missing(web: ClosedSet, site: int, number: int, sources: list[Node], rng: random.Random) -> None:
    path = f"/lost/{number}.html"
    web._nodes[(site, path)] = Node(site, path, "missing", status=rng.choice((404, 410)))
    web._add_link(rng.choice(sources), web.url(site, path), rng)


def _forbidden(web: ClosedSet, site: int, number: int, sources: list[Node], rng: random.Random) -> None:
    web._add_link(rng.choice(sources), web._disallowed(site, number), rng)


def _hidden(web: ClosedSet, site: int, number: int, sources: list[Node], rng: random.Random) -> None:
    web._add_hidden(
        rng.choice(sources), f"/hidden/{number}", rng, rel=rng.choice(("nofollow", "external nofollow"))
    )


def _across(web: ClosedSet, site: int, number: int, sources: list[Node], rng: random.Random) -> None:
    other = rng.randrange(len(web.hosts))
    target = web.url(other, rng.choice(web._pages[other]).path)
    web._add_link(rng.choice(sources), web._redirect(site, f"/r/across/{number}", target, rng), rng)


def _chain(web: ClosedSet, site: int, number: int, sources: list[Node], rng: random.Random) -> None:
    target = web.url(site, rng.choice(web._pages[site]).path)
    for step in range(rng.randint(2, 4), 0, -1):
        target = web._redirect(site, f"/r/chain/{number}/{step}", target, rng)
    web._add_link(rng.choice(sources), target, rng)


def _loop(web: ClosedSet, site: int, number: int, sources: list[Node], rng: random.Random) -> None:
    first = web.url(site, f"/r/loop/{number}/a")
    second = web._redirect(site, f"/r/loop/{number}/b", first, rng)
    web._redirect(site, f"/r/loop/{number}/a", second, rng)
    web._add_link(rng.choice(sources), first, rng)


def _to_forbidden(web: ClosedSet, site: int, number: int, sources: list[Node], rng: random.Random) -> None:
    target = web._disallowed(site, number)
    web._add_link(rng.choice(sources), web._redirect(site, f"/r/private/{number}", target, rng), rng)


def _to_missing(web: ClosedSet, site: int, number: int, sources: list[Node], rng: random.Random) -> None:
    path = f"/lost/behind/{number}"
    web._nodes[(site, path)] = Node(site, path, "missing", status=404)
    web._add_link(
        rng.choice(sources), web._redirect(site, f"/r/lost/{number}", web.url(site, path), rng), rng
    )


def _to_outside(web: ClosedSet, site: int, number: int, sources: list[Node], rng: random.Random) -> None:
    target = rng.choice(
        ("http://10.0.0.1/secret/{}", "http://169.254.169.254/latest/{}", "http://outside.test/{}")
    )
    target = target.format(f"{site}-{number}")
    web._outside.append(target)
    web._add_link(rng.choice(sources), web._redirect(site, f"/r/outside/{number}", target, rng), rng)


def _outside(web: ClosedSet, site: int, number: int, sources: list[Node], rng: random.Random) -> None:
    target = f"http://outside.test/from/{site}-{number}"
    web._outside.append(target)
    web._add_link(rng.choice(sources), target, rng)


EXTRAS: tuple[Extra, ...] = (
    _missing,
    _forbidden,
    _hidden,
    _across,
    _chain,
    _loop,
    _to_forbidden,
    _to_missing,
    _to_outside,
    _outside,
)


@functools.lru_cache(maxsize=4)
def closed_set(sites: int, pages: int, seed: int, port: int) -> ClosedSet:
    """The set of these parameters; building 5,000 pages takes a fraction of a second."""
    return ClosedSet(sites=sites, pages=pages, seed=seed, port=port)
