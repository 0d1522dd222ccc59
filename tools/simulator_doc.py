"""Writes the table of planted mistakes into docs/simulator.md, with the seed that shows each and the judge that sees it.

`python tools/simulator_doc.py` plays the seeds, so it takes a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.sim.planted import MISTAKES, Mistake  # noqa: E402

from amble.sim.campaign import Job  # noqa: E402

PAGE = ROOT / "docs" / "simulator.md"
BEGIN, END = "<!-- planted: begin -->\n", "<!-- planted: end -->\n"
OTHERS = 80


def _shown_by(mistake: Mistake) -> tuple[int, str]:
    """The first seed that shows it, its known one first, and the judge that sees it."""
    with mistake.planted():
        for seed in (mistake.seed, *range(OTHERS)):
            for violation in Job(seed, mistake.profile).play().violations:
                if violation.judge in mistake.judges:
                    return seed, violation.judge
    raise SystemExit(f"no seed shows: {mistake.name}")


def table() -> Iterator[str]:
    """One row for each mistake."""
    yield "| planted mistake | profile | seed | judge |\n"
    yield "|---|---|---|---|\n"
    for mistake in MISTAKES:
        seed, judge = _shown_by(mistake)
        yield f"| {mistake.name} | {mistake.profile} | {seed} | {judge} |\n"


def main() -> None:
    """Replace what lies between the marks."""
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + "\n" + "".join(table()) + "\n" + END + after)


if __name__ == "__main__":
    main()
