"""CPU time of one page in a parser child, by step, and of the hop through the pool.

The steps from parse to main text are those of the full parser; a well-formed page is read in one pass instead.

Run: `python -m bench.parse [FILE …]`; without files a page of about 85 KB with about 110 links is made up. Each figure
is the lowest CPU time per page of several rounds, in microseconds: others use the machine too.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import turbohtml

from amble.adapters.sandbox.pool import SandboxPool
from amble.domain.policy import ParseLimits
from amble.domain.url import Canonicalizer, base_of
from amble.formats import html
from amble.formats.fingerprint import fingerprint
from amble.formats.head import Head
from amble.formats.registry import Answer, ExtractionSettings, Registry
from amble.ports import ParseTask

URL = "https://www.example.com/blog/2026/page.html"
HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Mon, 30 Nov 2026 19:00:00 GMT\r\nContent-Type: text/html; charset=utf-8\r\n"
    b"Cache-Control: max-age=60\r\nVary: Accept-Encoding\r\nX-Frame-Options: SAMEORIGIN\r\nConnection: keep-alive\r\n\r\n"
)


def made_up_page(seed: int = 1, links: int = 110, bytes_wanted: int = 85_000) -> bytes:
    """A page with the shape of a news site: menus, an article, cards, styles and scripts."""
    chance = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(chance.choices(letters, k=chance.randint(2, 10))) for _ in range(3000)]

    def words(count: int) -> str:
        pool = (vocabulary[:300], vocabulary)
        return " ".join(chance.choice(pool[chance.random() > 0.6]) for _ in range(count))

    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A page</title>',
        '<link rel="canonical" href="/blog/2026/page.html"><link rel="alternate" type="application/rss+xml" href="/feed">',
        *(f'<meta property="og:p{i}" content="{words(6)}">' for i in range(20)),
        f"<style>{'.a{color:red;margin:0 auto}' * 300}</style>",
        f"<script>{'var a=function(b){return b+1;};' * 300}</script></head><body><nav><ul>",
    ]
    for i in range(links // 2):
        parts.append(
            f'<li class="menu-item menu-item-{i}"><a class="nav-link" href="/section/{chance.choice(vocabulary)}/" '
            f'title="{words(2)}"><span class="icon"></span>{words(2)}</a></li>'
        )
    parts.append(f"</ul></nav><main><article><h1>{words(6)}</h1>")
    for i in range(links // 2):
        query = "?utm_source=x" if i % 10 == 0 else f"?id={i}" if i % 3 == 0 else ""
        parts.append(
            f'<p class="para text-body" data-id="{i}">{words(8)} <b>{words(2)}</b> {words(8)} '
            f'<a href="../art/{chance.choice(vocabulary)}-{i}.html{query}">{words(3)}</a> {words(5)}</p>'
        )
    parts.append("</article></main><footer>")
    while sum(map(len, parts)) < bytes_wanted:
        parts.append(
            f'<div class="card shadow-sm"><div class="card-body col-md-4"><img src="/img/{len(parts)}.png" '
            f'alt="{words(2)}" class="img-fluid" width="300" height="200" loading="lazy"><i>x</i></div></div>'
        )
    parts.append("</footer></body></html>")
    return "".join(parts).encode()


def cpu_us(work: Callable[[], object], runs: int = 30, rounds: int = 7) -> float:
    """Lowest CPU time of one call, in microseconds."""
    lowest = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(runs):
            work()
        lowest = min(lowest, (time.process_time() - started) / runs)
    return lowest * 1e6


def steps(body: bytes) -> Iterator[tuple[str, float]]:
    """Each step of reading one page alone, then all of it."""
    limits, canonicalizer = ParseLimits(), Canonicalizer()
    document = turbohtml.parse(body, encoding="utf-8", positions=False)
    walked = html._walked(follow_images=False)

    def walk() -> html._Walk:
        walk = html._Walk(limits, frozenset({"robots"}))
        walk.run(document, walked)
        return walk

    links, base = walk().links, base_of(URL)
    text = document.to_text(html._PLAIN)
    utf8 = text.encode()
    registry = Registry(limits, ExtractionSettings())
    answer = Answer(URL, 0, 200, HEAD, body)
    reading = registry.read(answer)
    encoder = msgspec.msgpack.Encoder()
    yield "head", cpu_us(lambda: Head(HEAD))
    yield "parse", cpu_us(lambda: turbohtml.parse(body, encoding="utf-8", positions=False))
    yield "walk, anchors", cpu_us(walk)
    yield "resolve links", cpu_us(lambda: links.resolve(canonicalizer, base, None))
    yield "visible text", cpu_us(lambda: document.to_text(html._PLAIN))
    yield "main text", cpu_us(document.main_text)
    if (read_plain := html.read_plain) is not None:
        answered = "" if read_plain(body, False) else ", no answer"
        yield f"in one pass{answered}", cpu_us(lambda: read_plain(body, False))
    yield "fingerprint", cpu_us(lambda: fingerprint(utf8))
    yield "reply encoded", cpu_us(lambda: encoder.encode(reading))
    yield "all of it", cpu_us(lambda: encoder.encode(registry.read(answer)))


class _Body:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.length = len(data)
        self.digest = b""

    def pieces(self) -> Iterator[bytes]:
        yield self._data

    def close(self) -> None:
        pass


async def pool_hop(body: bytes, pages: int = 300) -> tuple[float, float]:
    """(CPU of the parent, CPU of the children) per page through the pool, in microseconds."""
    pool = await SandboxPool.open(limits=ParseLimits(), size=1)
    task = ParseTask(url=URL, kind=0, status=200, head=HEAD, body=_Body(body))

    def children_s() -> float:
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9 for pid in pool.pids)

    try:
        for _ in range(20):
            await pool.parse(task)
        parent_s, child_s = time.process_time(), children_s()
        for _ in range(pages):
            await pool.parse(task)
        return (time.process_time() - parent_s) / pages * 1e6, (children_s() - child_s) / pages * 1e6
    finally:
        await pool.close()


def main(paths: list[str]) -> None:
    """Print a table per page."""
    pages = {path: Path(path).read_bytes() for path in paths} or {"made up": made_up_page()}
    for name, body in pages.items():
        print(f"{name}: {len(body):,} bytes")
        for step, us in steps(body):
            print(f"  {step:22s} {us:8.0f} us")
        parent_us, child_us = asyncio.run(pool_hop(body))
        print(f"  pool, parent           {parent_us:8.0f} us\n  pool, child            {child_us:8.0f} us")


if __name__ == "__main__":
    main(sys.argv[1:])
