"""Pages per CPU-second of the whole process tree on the test web: 80-100 KB pages, about 100 links, plain HTTP.

    python -m bench.crawl [--pages 3000] [--origins 500] [--delay 1.0] [--concurrency 256] [--profile FILE]

The CPU is what the kernel charged amble's processes (start-up and shutdown included), by role as sampled while they
live; pages are counted in the server's log. The server is not part of the figure.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.amble_process import AmbleProcess, command_line, cpu_s, rss_bytes
from tests.web.handle import TestWeb
from tests.whole import log

ROLES = (("amble.adapters.sql.server", "store"), ("amble.adapters.sandbox.child", "parser"))
PR_SET_CHILD_SUBREAPER = 36


def role_of(pid: int) -> str:
    line = command_line(pid)
    return next((role for module, role in ROLES if module in line), "agent")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    with TestWeb.start(
        folder,
        sites=0,
        pages=0,
        bench_origins=options.origins,
        bench_pages=options.pages_per_origin,
        page_bytes=options.page_bytes,
        links=options.links,
    ) as web:
        seeds = folder / "seeds.txt"
        seeds.write_text("\n".join(web.url(f"bench-{n}") for n in range(options.origins)) + "\n")
        arguments = [
            "crawl", "--seeds", str(seeds), "--out", str(folder / "crawl"), "--pages", str(options.pages),
            "--delay", str(options.delay), "--concurrency", str(options.concurrency), "--resolver", web.dns,
            "--allow-net", web.net, "--quiet",
        ]  # fmt: skip
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started_s = time.monotonic()
        amble = AmbleProcess(
            arguments, folder / "amble.out", env=dict(item.split("=", 1) for item in options.env)
        )
        by_role: dict[int, tuple[str, float]] = {}
        peak = 0
        while amble.process.poll() is None:
            pids = amble.tree()
            for pid in pids:
                if (used := cpu_s(pid)) > 0:
                    # A process that has ended has no command line any more: what it was stays known.
                    known_as = by_role.get(pid, ("agent", 0.0))[0]
                    by_role[pid] = (role_of(pid) if known_as == "agent" else known_as, used)
            peak = max(peak, sum(map(rss_bytes, pids)))
            time.sleep(0.1)
        wall_s = time.monotonic() - started_s
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        web.flush()
        entries = log.load(web.log_path)
    pages = [entry for entry in entries if not entry.is_robots and entry.status == 200]
    roles: Counter[str] = Counter()
    for role, used in by_role.values():
        roles[role] += used  # type: ignore[assignment]
    total_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "exit": amble.process.returncode,
        "pages": len(pages),
        "requests": len(entries),
        "kb_per_page": round(sum(entry.bytes for entry in pages) / max(1, len(pages)) / 1000, 1),
        "cpu_s": round(total_s, 2),
        "pages_per_cpu_s": round(len(pages) / total_s, 1),
        "ms_per_page": round(1000 * total_s / max(1, len(pages)), 2),
        "ms_per_page_by_role": {
            role: round(1000 * used / max(1, len(pages)), 2) for role, used in roles.items()
        },
        "wall_s": round(wall_s, 1),
        "peak_rss_mb": round(peak / 1e6),
        "spacing_violations": len(log.spacing(entries, options.delay)),
        "concurrency_violations": len(log.concurrency(entries, 1)),
    }


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; None: of this process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=3000)
    parser.add_argument("--origins", type=int, default=500)
    parser.add_argument("--pages-per-origin", type=int, default=40)
    parser.add_argument("--page-bytes", type=int, default=90_000)
    parser.add_argument("--links", type=int, default=100)
    parser.add_argument("--delay", type=float, default=1.0)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE for amble")
    parser.add_argument("--keep", type=Path, help="keep the crawl folder here")
    return parser.parse_args(arguments)


def adopt_orphans() -> None:
    """Whatever amble leaves behind counts as a child of this process, so that its CPU is seen."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main() -> int:
    options = options_of(None)
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="amble-bench-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        figures = measure(options, folder)
        print(json.dumps(figures, indent=2))
        if figures["exit"] != 0:
            print((folder / "amble.out").read_text()[-2000:], file=sys.stderr)
    return 0 if figures["exit"] == 0 else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
