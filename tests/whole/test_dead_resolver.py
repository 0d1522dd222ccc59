"""A crawl whose name server is not there: no site is blamed, nothing is lost, and the end says what was missing."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

from tests.support.amble_process import run
from tests.support.dns import SERVFAIL, DnsResponder, Name


def test_the_end_names_the_trouble_that_was_there(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))  # ours, and silent
        resolver = f"127.0.0.1:{taken.getsockname()[1]}"
        out = tmp_path / "crawl"
        done = run(
            [
                *("crawl", "http://lost.test/", "--out", str(out), "--contact", "https://amble.example/bot"),
                *("--resolver", resolver, "--max-time", "8s", "--json"),
            ]
        )  # fmt: skip
    assert done.returncode == 13, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["queued"], result["failed"]) == (2, 0)
    assert result["trouble"].startswith("dns_unavailable")


async def test_a_name_server_that_fails_for_every_site_costs_no_page(tmp_path: Path) -> None:
    hosts = [f"lost{number}.test" for number in range(6)]
    async with DnsResponder({host: Name(rcode=SERVFAIL) for host in hosts}) as server:
        done = await asyncio.to_thread(
            run,
            [
                *("crawl", *(f"http://{host}/" for host in hosts), "--out", str(tmp_path / "crawl")),
                *("--contact", "https://amble.example/bot", "--resolver", server.address),
                *("--max-time", "5s", "--json"),
            ],
        )  # fmt: skip
    assert done.returncode == 13, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["queued"], result["failed"]) == (2 * len(hosts), 0)
    assert result["trouble"].startswith("dns_unavailable")
