"""The whole command on a frontier with many known URLs: start, memory, `amble status` beside it, politeness, end.

    python -m bench.scale [--urls 1000000] [--origins 10000] [--seconds 20] [--kill] [--json]

The frontier is filled by the production store (tests/support/full_frontier.py), then `amble crawl --out DIR` runs on it
against the test web, which serves those origins. --kill adds a second life: kill -9 of everything with its requests
under way, and how long the next start takes until its first request.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.amble_process import AmbleProcess, cpu_s, rss_bytes, run, running
from tests.support.full_frontier import fill
from tests.web.handle import TestWeb
from tests.whole import log

from bench.crawl import role_of

STATUS_EVERY_S = 3.0
DELAY_S = 2.0
START_S_MAX = 60.0
ROLES = ("agent", "store", "parser")


@dataclass(slots=True)
class Watch:
    """What was seen of a run from outside, at most four times a second."""

    rss_mb: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: dict[int, tuple[str, float]] = field(default_factory=dict)
    status_s: list[float] = field(default_factory=list)

    def look(self, amble: AmbleProcess) -> None:
        """Memory by role (parsers together) and CPU by process."""
        now: dict[str, float] = {}
        for pid in amble.tree():
            role = role_of(pid)
            now[role] = now.get(role, 0.0) + rss_bytes(pid) / 1e6
            if (used := cpu_s(pid)) > 0:
                self.cpu_s[pid] = (role, used)
        for role, size in now.items():
            self.rss_mb.setdefault(role, []).append(size)

    def ask(self, crawl: Path) -> dict[str, Any]:
        """`amble status` as an operator would."""
        began = time.monotonic()
        done = run(["status", str(crawl), "--json"])
        self.status_s.append(time.monotonic() - began)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def cpu_of(self, role: str) -> float:
        """CPU seconds of a role, as last seen."""
        return sum(used for own, used in self.cpu_s.values() if own == role)

    def memory(self) -> dict[str, str]:
        """MB of each role: early, in the middle, at the end."""
        return {
            role: " ".join(f"{sizes[int(part * (len(sizes) - 1))]:.0f}" for part in (0.2, 0.5, 0.8, 1))
            for role, sizes in self.rss_mb.items()
        }


def crawl_arguments(crawl: Path, web: TestWeb) -> list[str]:
    return [
        "crawl", "--out", str(crawl), "--delay", str(DELAY_S), "--pages", "unlimited", "--resolver", web.dns,
        "--allow-net", web.net, "--quiet",
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Start:
    """From the command to its first request: seconds, and CPU seconds by role (which a busy machine stretches less)."""

    seconds: float
    cpu_s: dict[str, float]


def started(amble: AmbleProcess, web: TestWeb, began: float) -> Start:
    """Wait for the first request of a run that was started at `began` (monotonic)."""
    before, watch = web.control("stats")["requests"], Watch()
    while web.control("stats")["requests"] == before:
        assert amble.process.poll() is None, amble.text()[-2000:]
        assert time.monotonic() < began + START_S_MAX, "no request"
        watch.look(amble)
        time.sleep(0.02)
    seconds = time.monotonic() - began
    watch.look(amble)
    return Start(round(seconds, 2), {role: round(watch.cpu_of(role), 2) for role in ROLES})


def live(amble: AmbleProcess, crawl: Path, seconds: float, *, ask: bool) -> Watch:
    watch = Watch()
    end, next_ask = time.monotonic() + seconds, time.monotonic() + STATUS_EVERY_S
    while (now := time.monotonic()) < end:
        assert amble.process.poll() is None, amble.text()[-2000:]
        watch.look(amble)
        if ask and now >= next_ask:
            watch.ask(crawl)
            next_ask = time.monotonic() + STATUS_EVERY_S
        time.sleep(0.25)
    watch.look(amble)
    return watch


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    crawl, pages = folder / "crawl", max(1, options.urls // options.origins)
    crawl.mkdir()
    with TestWeb.start(
        folder,
        sites=0,
        pages=0,
        bench_origins=options.origins,
        bench_pages=10 * pages,
        page_bytes=90_000,
        links=100,
    ) as web:
        origins = [web.url(f"bench-{number}", "") for number in range(options.origins)]
        (crawl / "seeds.txt").write_text("".join(f"{origin}/\n" for origin in origins))
        (crawl / "amble.toml").write_text("")
        began = time.monotonic()
        fill(crawl / "frontier.db", origins, pages)
        figures: dict[str, Any] = {
            "urls": options.urls,
            "origins": options.origins,
            "fill_s": round(time.monotonic() - began, 1),
            "frontier_mb": round((crawl / "frontier.db").stat().st_size / 1e6),
        }
        figures |= first_life(options, crawl, web)
        if options.kill:
            figures |= second_life(crawl, web)
        web.flush()
        entries = log.load(web.log_path)
    figures["spacing_violations"] = len(log.spacing(entries, DELAY_S))
    figures["concurrency_violations"] = len(log.concurrency(entries, 1))
    return figures


def first_life(options: argparse.Namespace, crawl: Path, web: TestWeb) -> dict[str, Any]:
    began = time.monotonic()
    with running(crawl_arguments(crawl, web), crawl.parent / "first.out") as amble:
        start = started(amble, web, began)
        watch = live(amble, crawl, options.seconds, ask=True)
        facts = watch.ask(crawl)
        stopping = time.monotonic()
        amble.send(signal.SIGINT)
        code = amble.wait(60)
        stop_s = time.monotonic() - stopping
    cpu = {role: watch.cpu_of(role) for role in ROLES}
    return {
        "start_s": start.seconds,
        "start_cpu_s": start.cpu_s,
        "status_s": [round(seconds, 2) for seconds in watch.status_s],
        "rss_mb_early_to_late": watch.memory(),
        "peak_mb": {role: round(max(sizes)) for role, sizes in watch.rss_mb.items()},
        "pages": facts["pages"],
        "cpu_s": {role: round(used, 1) for role, used in cpu.items()},
        "pages_per_cpu_s": round(facts["pages"] / max(0.01, sum(cpu.values())), 1),
        "stop_s": round(stop_s, 2),
        "exit": code,
    }


def second_life(crawl: Path, web: TestWeb) -> dict[str, Any]:
    """kill -9 with leases in flight, then the time to the first request of the next run."""
    web.control("site", host="*", stall=True)
    with running(crawl_arguments(crawl, web), crawl.parent / "second.out") as amble:
        started(amble, web, time.monotonic())
        live(amble, crawl, 5.0, ask=False)
        amble.kill_tree()
    web.control("clear", host="*")
    facts = Watch().ask(crawl)
    began = time.monotonic()
    with running(crawl_arguments(crawl, web), crawl.parent / "third.out") as amble:
        start = started(amble, web, began)
        live(amble, crawl, 2.0, ask=False)
        amble.send(signal.SIGINT)
        code = amble.wait(60)
    return {
        "killed_with_in_flight": facts["in_flight"],
        "restart_s": start.seconds,
        "restart_cpu_s": start.cpu_s,
        "restart_exit": code,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--urls", type=int, default=1_000_000)
    parser.add_argument("--origins", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--keep", type=Path, help="make the crawl here and keep it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="amble-scale-") as temporary:
        folder = options.keep or Path(temporary)
        shutil.rmtree(folder / "crawl", ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        print(json.dumps(measure(options, folder), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
