"""CPU per stored page: request, response, parse facts (15 KB) and text (10 KB), appended and synced in a folder.

Prints a line per kind of body: CPU of the whole process (both threads) and wall time per page, bytes on disk per page,
and the cost of reading the response back. Run: python bench/archive.py [pages]
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from isal import isal_zlib

from amble.adapters.archive.directory import DirectoryArchive
from amble.adapters.system import SystemClock, SystemEntropy
from amble.domain.fetched import BodyRef
from amble.domain.record import NewRecord
from amble.formats import warc

PAGE_BYTES = 98_000
FACTS_BYTES = 15_000
TEXT_BYTES = 10_000
TOGETHER = 16  # pages that are in the line at the same time
DISTINCT = 24  # different bodies, so that no cache flatters


class Body:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sha256 = hashlib.sha256(data).digest()

    def pieces(self) -> Iterator[bytes]:
        return iter((self.data,))


def html_like(chance: random.Random, size: int) -> bytes:
    """Markup that compresses about as real pages do (four to one)."""
    words = ["".join(chance.choices("etaoinshrdlucmfw", k=chance.randint(2, 9))) for _ in range(700)]
    classes = [f"c-{chance.choice(words)}" for _ in range(40)]
    parts: list[str] = []
    have = 0
    while have < size:
        part = (
            f'<div class="{chance.choice(classes)} col"><a href="/{chance.choice(words)}/{chance.choice(words)}.html">'
            f"{' '.join(chance.choices(words, k=6))}</a><p>{' '.join(chance.choices(words, k=5))}</p></div>\n"
        )
        parts.append(part)
        have += len(part)
    return "".join(parts).encode()[:size]


def page(
    entropy: SystemEntropy, number: int, head: bytes, body: Body, facts: bytes, text: bytes
) -> Sequence[NewRecord]:
    url = f"http://site{number % 97}.example.com/section/page-{number}.html"
    now = time.time()
    exchange = warc.Exchange(url=url, address="192.0.2.7", date_s=now)
    response_id = warc.record_id(entropy.token(16))
    request = f"GET /section/page-{number}.html HTTP/1.1\r\nHost: site.example.com\r\nUser-Agent: amble/0.1\r\n\r\n".encode()
    about = {"date_s": now, "url": url, "refers_to": response_id}
    return [
        warc.request(
            exchange, record_id=warc.record_id(entropy.token(16)), block=request, concurrent_to=response_id
        ),
        warc.response(
            exchange,
            record_id=response_id,
            head=head,
            body=body,
            body_bytes=len(body.data),
            sha256=body.sha256,
        ),
        warc.metadata(record_id=warc.record_id(entropy.token(16)), block=facts, **about),
        warc.conversion(record_id=warc.record_id(entropy.token(16)), block=text, **about),
    ]


async def measure(name: str, bodies: list[Body], facts: bytes, text: bytes, head: bytes, pages: int) -> None:
    entropy = SystemEntropy()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        archive = DirectoryArchive(Path(folder), SystemClock(), entropy)
        await archive.append(page(entropy, 0, head, bodies[0], facts, text))
        refs: list[BodyRef] = []

        async def line(start: int) -> None:
            for number in range(start, pages, TOGETHER):
                records = page(entropy, number, head, bodies[number % len(bodies)], facts, text)
                # As in the crawl: the exchange when it is fetched, facts and text when it is parsed.
                stored = await archive.append(records[:2])
                await archive.append(records[2:])
                refs.append(stored[1])

        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.gather(*(line(start) for start in range(TOGETHER)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        sample = refs[:: max(1, len(refs) // 200)]
        reading = time.process_time()
        for ref in sample:
            await archive.read(ref)
        reading = time.process_time() - reading
        sealing = time.process_time()
        await archive.close()
        sealing = time.process_time() - sealing
        size = sum(path.stat().st_size for path in Path(folder).glob("*.warc.gz"))
    print(
        f"{name:10s} {cpu / pages * 1e6:6.0f} us CPU/page  {wall / pages * 1e6:6.0f} us wall/page  "
        f"{size / pages / 1000:6.1f} KB/page  read {reading / len(sample) * 1e6:5.0f} us  "
        f"seal {sealing / pages * 1e6:4.1f} us/page"
    )


def reference(pages: list[bytes]) -> float:
    """Tells how busy the machine was: CPU of the one step that needs nothing else, in us."""
    start = time.process_time()
    for data in pages * 10:
        isal_zlib.compress(data, 1, 31)
    return (time.process_time() - start) / len(pages) / 10 * 1e6


async def main(pages: int) -> None:
    chance = random.Random(7)
    plain = [html_like(chance, PAGE_BYTES) for _ in range(DISTINCT)]
    facts, text = html_like(chance, FACTS_BYTES), html_like(chance, TEXT_BYTES)
    fields = (
        b"Date: Mon, 30 Nov 2026 12:00:00 GMT\r\nServer: test\r\nContent-Type: text/html; charset=utf-8\r\n"
    )
    await measure(
        "identity",
        [Body(data) for data in plain],
        facts,
        text,
        b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n",
        pages,
    )
    await measure(
        "gzip",
        [Body(isal_zlib.compress(data, 2, 31)) for data in plain],
        facts,
        text,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n" + fields + b"\r\n",
        pages,
    )
    print(
        f"reference  {reference(plain):6.0f} us for the gzip of one such page alone (300 on a quiet machine)"
    )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
