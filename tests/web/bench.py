"""Pages as heavy as real ones for measuring: about 90 KB of markup and about 100 links each, cheap to serve.

A page is joined from blocks made once at start: the head and navigation of its origin (the 70 % of links that a crawler
already knows), paragraphs, cards and scripts from a common pool, and links to other pages by arithmetic. Page n of an
origin links to the pages after it and to some far away, so the frontier keeps growing while the origin lasts. Nothing
is stored per page: a million pages cost no memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.web.message import Reply, Request, not_found, text
from tests.web.words import ENGLISH, sentences

BLOCKS = 256
NEW_LINKS_SHARE = 0.3
ACROSS = 3
ROBOTS = "User-agent: *\nDisallow: /cgi-bin/\nDisallow: /search\n"


class BenchSite:
    """All bench origins together: `bench-I.test`, pages /, /a/1.html to /a/N.html."""

    def __init__(
        self, *, origins: int, pages: int, page_bytes: int, links: int, port: int, seed: int = 1
    ) -> None:
        rng = random.Random(f"bench/{seed}")
        self.origins, self.pages, self.port = origins, pages, port
        self._new = max(1, round(links * NEW_LINKS_SHARE) - ACROSS)
        self._nav = _navigation(links - self._new - ACROSS, pages, rng)
        self._blocks = [_block(rng, number) for number in range(BLOCKS)]
        self._script = _script(rng)
        mean = sum(map(len, self._blocks)) / BLOCKS
        rest = page_bytes - len(self._nav) - len(self._script) - 120 * (self._new + ACROSS) - 600
        self._count = max(1, round(rest / mean))
        self._hosts = {f"bench-{number}.test": number for number in range(origins)}

    def hosts(self) -> list[str]:
        """Their names."""
        return list(self._hosts)

    @property
    def seeds(self) -> list[str]:
        """The front pages."""
        return [f"http://{host}:{self.port}/" for host in self._hosts]

    def answer(self, request: Request) -> Reply:
        """Serve one request."""
        target = request.target
        if target == "/robots.txt":
            return text(ROBOTS)
        number = 0 if target == "/" else _number(target)
        if not 0 <= number <= self.pages:
            return not_found()
        return Reply(body=self.page(self._hosts.get(request.host, 0), number))

    def page(self, origin: int, number: int) -> bytes:
        """Page `number` of an origin; the same bytes every time."""
        salt = (origin * 7919 + number) * 2654435761 % 4294967296
        parts = [
            b'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Page %d of site %d: %b</title>\n'
            % (number, origin, ENGLISH[salt % len(ENGLISH)].encode()),
            b'<meta name="description" content="Notes on page %d"><link rel="stylesheet" href="/style.css">'
            % number,
            self._script,
            b"</head><body>",
            self._nav,
            b'<main class="content"><h1>Page %d</h1>' % number,
        ]
        step = 1 + 2 * (salt % (BLOCKS // 2))  # odd: a full walk of the pool before it repeats
        at = salt >> 8
        fresh = self._fresh(origin, number, salt)
        for index in range(max(self._count, len(fresh))):
            if index < self._count:
                at = (at + step) % BLOCKS
                parts.append(self._blocks[at])
            if index < len(fresh):
                parts.append(fresh[index])
        parts.append(b"</main><footer><p>Page %d of %d</p></footer></body></html>\n" % (number, self.pages))
        return b"".join(parts)

    def _fresh(self, origin: int, number: int, salt: int) -> list[bytes]:
        """The links that may be new: half to pages soon after this one, half far away, a few to other origins."""
        near = self._new // 2
        targets = [number + 1 + k for k in range(near)]
        targets += [(salt + k * 40503) % self.pages + 1 for k in range(self._new - near)]
        out = [
            b'<p class="more"><a class="related" href="/a/%d.html" title="Read on">Read about number %d</a></p>\n'
            % (n, n)
            for n in targets
            if n <= self.pages
        ]
        for k in range(ACROSS):
            other = (origin + 1 + (salt >> k) % max(1, self.origins - 1)) % self.origins
            page = (number + k) % self.pages + 1
            out.append(
                b'<p><a href="http://bench-%d.test:%d/a/%d.html">A neighbour</a></p>\n'
                % (other, self.port, page)
            )
        return out


def _number(target: str) -> int:
    inside = target.removeprefix("/a/").removesuffix(".html")
    return int(inside) if target.startswith("/a/") and inside.isdigit() else -1


def _navigation(count: int, pages: int, rng: random.Random) -> bytes:
    numbers = [1 + rng.randrange(pages) for _ in range(max(0, count))]
    items = "".join(
        f'<li class="nav__item nav__item--level-{n % 3}"><a class="nav__link" href="/a/{n}.html" '
        f'data-track="nav-{n}" aria-label="{ENGLISH[n % len(ENGLISH)]}">{ENGLISH[n % len(ENGLISH)].title()} {n}</a></li>\n'
        for n in numbers
    )
    return f'<header class="site-header"><nav class="nav"><ul class="nav__list">\n{items}</ul></nav></header>\n'.encode()


def _paragraph(rng: random.Random, number: int) -> str:
    prose = (
        sentences(rng, ENGLISH, 3)
        .replace(" river ", " <em>river</em> ")
        .replace(" the ", ' <span class="w">the</span> ')
    )
    return f'<p class="content__paragraph content__paragraph--{number % 4}">{prose}</p>\n'


def _card(rng: random.Random, number: int) -> str:
    words = [rng.choice(ENGLISH) for _ in range(6)]
    cells = "".join(
        f'<div class="card__cell" data-key="{w}-{number}"><span class="card__value">{w}</span></div>'
        for w in words
    )
    return (
        f'<article class="card card--{words[0]}" id="card-{number}" data-id="{rng.randrange(10**8)}"><div class="card__body">'
        f'<h3 class="card__title">{words[1].title()} &amp; {words[2]}</h3>{cells}'
        f'<img class="card__image" src="/img/{number}.jpg" alt="{words[3]}" width="320" height="200" loading="lazy"></div></article>\n'
    )


def _list(rng: random.Random, number: int) -> str:
    items = "".join(f"<li>{sentences(rng, ENGLISH, 1)}</li>" for _ in range(4))
    return f'<ul class="list list--{number % 5}">{items}</ul>\n'


def _block(rng: random.Random, number: int) -> bytes:
    makers: tuple[Callable[[random.Random, int], str], ...] = (_paragraph, _card, _card, _list)
    return makers[number % 4](rng, number).encode()


def _script(rng: random.Random) -> bytes:
    pairs = ",".join(f'"{rng.choice(ENGLISH)}{number}":"{rng.randrange(10**9):x}"' for number in range(500))
    rules = "".join(
        f".card--{word}{{margin:0 {size}px;color:#{size:03x}}}" for size, word in enumerate(ENGLISH)
    )
    return f"<style>{rules}</style><script>window.__state={{{pairs}}};</script>\n".encode()
