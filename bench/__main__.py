"""`make bench`: what a page costs, and how that grows with the number of URLs that are known. About three minutes.

    python -m bench [--pages 3000] [--urls 3000000] [--seconds 5]

The first figure is bench.crawl (the whole command on the test web), the second bench.frontier (the store, which is the
only part whose work depends on what is known). Measured on a machine that does something else, both are too high.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import crawl, frontier

FEW_URLS = 100_000
ORIGINS = 2_000
# One-minute load above which figures say more about the neighbours than about amble.
LOAD_MAX = 1.5


def row(label: str, value: str, note: str = "") -> str:
    return f"  {label:<24}{value:>12}  {note}".rstrip()


def page_lines(figures: dict[str, Any]) -> list[str]:
    """CPU of a page by process."""
    roles: dict[str, float] = figures["ms_per_page_by_role"]
    rows = [row(role, f"{roles.get(role, 0):.2f} ms") for role in ("agent", "store", "parser")]
    return [
        f"What a page costs: {figures['pages']:,} pages of {figures['kb_per_page']} KB, CPU of all processes of amble",
        *rows,
        row("all", f"{figures['ms_per_page']:.2f} ms", "start and end included"),
        row("pages per CPU-second", f"{figures['pages_per_cpu_s']:.0f}"),
        row("memory at most", f"{figures['peak_rss_mb']} MB", "all processes together"),
        row(
            "politeness", f"{figures['spacing_violations'] + figures['concurrency_violations']}", "violations"
        ),
    ]


def growth_lines(few: frontier.Figures, many: frontier.Figures, page_ms: float) -> list[str]:
    """CPU of the store's page cycle (lease to admission of 30 links) on a small and on a large frontier."""
    more_us = many.store_us - few.store_us
    return [
        "How it grows: CPU of the store for one page, lease to the admission of 30 links",
        *(row(f"{item.urls:,} URLs known", f"{item.store_us:.0f} us") for item in (few, many)),
        row(
            "growth of a page",
            f"{100 * more_us / 1000 / page_ms:+.1f} %",
            f"{more_us:+.0f} us of {page_ms:.2f} ms",
        ),
        row("on disk", f"{many.bytes_per_url:.0f} B", "for each URL"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=3000)
    parser.add_argument("--urls", type=int, default=3_000_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    if load > LOAD_MAX:
        print(f"This machine is busy (load {load:.1f}): the figures will be too high.", file=sys.stderr)
    crawl.adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="amble-bench-") as folder:
        figures = crawl.measure(crawl.options_of(["--pages", str(options.pages)]), Path(folder))
        if figures["exit"] != 0:
            print((Path(folder) / "amble.out").read_text()[-2000:], file=sys.stderr)
            return 1
    print("\n".join(page_lines(figures)), flush=True)
    few, many = (frontier.measure(urls, ORIGINS, options.seconds) for urls in (FEW_URLS, options.urls))
    print("\n".join(["", *growth_lines(few, many, float(figures["ms_per_page"]))]))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
