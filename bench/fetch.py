"""CPU of the transport: microseconds per request, keep-alive and new connections, against a raw server elsewhere.

    python bench/fetch.py [--requests 4000] [--concurrency 50] [--body 10240] [--loop uvloop|asyncio]

The server runs in a process of its own; the figure is user and system time of this process over the requests.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from amble.adapters.net.transport import Http1Transport
from amble.domain.policy import FetchLimits
from amble.ports import Ask, Permit, Reply

FIELDS = b"".join(
    b"%s: %s\r\n" % pair
    for pair in (
        (b"Server", b"bench"),
        (b"Date", b"Sun, 01 Nov 2026 10:00:00 GMT"),
        (b"Content-Type", b"text/html; charset=utf-8"),
        (b"Last-Modified", b"Sat, 31 Oct 2026 10:00:00 GMT"),
        (b"ETag", b'"5f3c-6a1b2c3d4e5f"'),
        (b"Cache-Control", b"max-age=600, public"),
        (b"Vary", b"Accept-Encoding"),
        (b"Strict-Transport-Security", b"max-age=31536000; includeSubDomains"),
        (b"X-Content-Type-Options", b"nosniff"),
        (
            b"Content-Security-Policy",
            b"default-src 'self'; img-src * data:; script-src 'self' 'unsafe-inline'",
        ),
        (b"Set-Cookie", b"session=0123456789abcdef0123456789abcdef; Path=/; HttpOnly; SameSite=Lax"),
        (b"Accept-Ranges", b"bytes"),
    )
)


class _Server(asyncio.Protocol):
    answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\r\n\r\n")):
            self._transport.write(self.answer)  # type: ignore[attr-defined]


def _serve(pipe: Connection, body_bytes: int) -> None:
    async def run() -> None:
        body = b"<p>Some text that is neither short nor long.</p>\n" * (body_bytes // 48 + 1)
        head = b"HTTP/1.1 200 OK\r\n" + FIELDS + b"Content-Length: %d\r\n\r\n" % body_bytes
        _Server.answer = head + body[:body_bytes]
        server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    uvloop.run(run())


async def _measure(port: int, requests: int, concurrency: int, *, keep_alive: bool) -> float:
    with tempfile.TemporaryDirectory() as spool:
        transport = Http1Transport(FetchLimits(), "bench/1 (+https://example.org)", Path(spool))
        ask = Ask(keep_alive=keep_alive)
        left = requests

        async def worker(number: int) -> None:
            nonlocal left
            host = f"h{number}.bench.test"
            while left > 0:
                left -= 1
                reply = await transport.fetch(_permit(port, host), ask)
                assert isinstance(reply, Reply), reply

        async def round_of(count: int) -> None:
            nonlocal left
            left = count
            async with asyncio.TaskGroup() as group:
                for number in range(concurrency):
                    group.create_task(worker(number))

        await round_of(concurrency * 4)
        before = resource.getrusage(resource.RUSAGE_SELF)
        await round_of(requests)
        after = resource.getrusage(resource.RUSAGE_SELF)
        await transport.close()
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used_s / requests * 1e6


def _permit(port: int, host: str) -> Permit:
    return Permit(
        url=f"http://{host}:{port}/page",
        scheme="http",
        host=host,
        port=port,
        target="/page",
        address="127.0.0.1",
        epoch=1,
        deadline_s=time.monotonic() + 60,
        origin_id=1,
    )


def main() -> None:
    """Measure and print one line per way of connecting."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=4000)
    options.add_argument("--concurrency", type=int, default=50)
    options.add_argument("--body", type=int, default=10_240)
    options.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    chosen = options.parse_args()
    run: Callable[[Coroutine[Any, Any, float]], float] = (
        uvloop.run if chosen.loop == "uvloop" else asyncio.run
    )
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=_serve, args=(theirs, chosen.body), daemon=True)
    server.start()
    try:
        port = ours.recv()
        for keep_alive, words in ((True, "keep-alive"), (False, "new connection")):
            cost_us = run(_measure(port, chosen.requests, chosen.concurrency, keep_alive=keep_alive))
            print(f"{words}: {cost_us:.1f} µs CPU per request of {chosen.body} bytes on {chosen.loop}")
    finally:
        ours.send(None)
        server.join(5)


if __name__ == "__main__":
    main()
