"""What the tests of the whole share: the command line of a crawl, looks at its folder, and the verdict at its end."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.support.amble_process import AmbleProcess, run, wait_until
from tests.web.handle import TestWeb
from tests.whole import log

LEASED = 1
# Everything here shares few cores with others: generous where a bound only keeps a test from hanging.
SOON_S = 60.0


def arguments(web: TestWeb, out: Path, *more: str, seeds: list[str] | None = None) -> list[str]:
    """A crawl of the test web: one parser child, 1,000,000 pages, and what `more` says."""
    return [
        "crawl", *(web.seeds if seeds is None else seeds), "--out", str(out), "--resolver", web.dns,
        "--allow-net", web.net, "--set", "parse.children=1", "--pages", "1000000", *more,
    ]  # fmt: skip


def served(web: TestWeb) -> int:
    """How many requests the web has answered so far."""
    return int(web.control("stats")["requests"])


def wait_for_requests(web: TestWeb, count: int, amble: AmbleProcess) -> None:
    """Until the web has answered `count` requests in all."""

    def enough() -> bool:
        assert amble.process.poll() is None, f"ended too soon: {amble.text()[-2000:]}"
        return served(web) >= count

    wait_until(enough, SOON_S, f"{count} requests")


def told(out: Path, name: str) -> Any:
    """One field of run/status.json; 0 when there is no such file yet, or no whole one."""
    try:
        return json.loads((out / "run" / "status.json").read_bytes())[name]
    except (OSError, ValueError):
        return 0


def wait_for_trouble(out: Path, word: str, amble: AmbleProcess) -> str:
    """Until run/status.json names the trouble; what it says then."""

    def named() -> bool:
        assert amble.process.poll() is None, f"ended instead of waiting: {amble.text()[-2000:]}"
        return word in (told(out, "trouble") or "")

    wait_until(named, SOON_S, f"{word} in run/status.json")
    return told(out, "trouble") or ""


def events(out: Path, name: str) -> list[dict[str, Any]]:
    """The events of one name in the log of the crawl."""
    with (out / "run" / "events.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if f'"event":"{name}"' in line]


def in_state(out: Path, state: int) -> list[str]:
    """The URLs in one state, read from the frontier file of a crawl that is not running."""
    connection = apsw.Connection(str(out / "frontier.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows = connection.execute(
            "SELECT o.key || u.path FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE u.state = ?1",
            (state,),
        )
        return [url for (url,) in rows]
    finally:
        connection.close()


def locked(out: Path) -> apsw.Connection:
    """A connection that keeps everybody else from writing the frontier until it is closed."""
    connection = apsw.Connection(str(out / "frontier.db"))
    connection.set_busy_timeout(10_000)
    connection.execute("BEGIN EXCLUSIVE")
    return connection


def judge(
    web: TestWeb, out: Path, delay_s: float, *, again: Counter[str] | None = None, verify: bool = True
) -> None:
    """The closed set was crawled exactly: everything once (`again`: how often more a URL may be asked for), politely."""
    web.flush()
    truth = web.truth()
    entries = [entry for entry in log.load(web.log_path) if entry.host in truth["hosts"]]
    found = log.coverage(entries, truth)
    assert [*found.missed, *found.unknown, *found.forbidden] == [], str(found)
    # A robots.txt that redirects is asked for hop by hop under one lease: its hops are no URLs of their own.
    pages = [entry for entry in entries if truth["urls"][entry.url]["outcome"] != "robots"]
    allowed = {url: 1 + n for url, n in (again or {}).items()}
    assert log.duplicates(pages, allowed=allowed) == []
    too_soon = log.spacing(entries, delay_s, tolerance_s=0.003)
    assert not too_soon, "; ".join(too_soon)
    assert log.concurrency(entries, 1) == []
    assert log.robots_first(entries) == []
    if verify:
        verified = run(["verify", str(out)], timeout_s=SOON_S)
        assert verified.returncode == 0, verified.stdout + verified.stderr


@contextmanager
def mounted(where: Path, *options: str) -> Iterator[Path]:
    """A mount at `where` that is gone when the block ends. Skips the test where this process may not mount."""
    where.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", *options, str(where)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    try:
        yield where
    finally:
        unmount(where)


def small_disk(where: Path, size: str) -> Any:
    """A file system of its own in memory."""
    return mounted(where, "-t", "tmpfs", "-o", f"size={size}", "none")


def unmount(where: Path) -> None:
    """Take away what is mounted at `where`, also while files in it are open; harmless when nothing is."""
    subprocess.run(["umount", "--lazy", str(where)], capture_output=True, check=False)


def fill(path: Path, leave_bytes: int = 0) -> None:
    """Fill the disk under `path` with this file until only `leave_bytes` are free."""
    with path.open("wb") as file:
        state = os.statvfs(path.parent)
        most = state.f_bavail * state.f_frsize - leave_bytes
        if leave_bytes:
            os.posix_fallocate(file.fileno(), 0, most)
            return
        try:
            while True:
                os.write(file.fileno(), bytes(1 << 16))
        except OSError:
            pass
        try:
            while True:
                os.write(file.fileno(), bytes(512))
        except OSError:
            pass
