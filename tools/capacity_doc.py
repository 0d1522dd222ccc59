"""Writes the two tables of docs/capacity.md from the code: formulas and assumptions.

`python tools/capacity_doc.py` writes them; with --check it only tells whether they are up to date (exit 1 if not).
"""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path

from amble.domain.assumptions import INPUTS
from amble.domain.capacity import LINES
from amble.faces.plan import flag_of

PAGE = Path(__file__).parent.parent / "docs" / "capacity.md"


def formulas() -> str:
    """Every figure with its formula, by group."""
    lines = ["| figure | unit | meaning | formula |", "|---|---|---|---|"]
    for group, members in groupby(LINES, key=lambda line: line.group):
        lines.append(f"| **{group}** | | | |")
        lines += [
            f"| `{line.name}` | {line.unit or '1'} | {line.title} | `{line.formula.text}` |"
            for line in members
        ]
    return "\n".join(lines)


def inputs() -> str:
    """Every assumption with its option and default."""
    lines = ["| assumption | option | unit | default | meaning |", "|---|---|---|---|---|"]
    for name, item in INPUTS.items():
        default = "" if item.default is None else f"{item.default:g}"
        lines.append(f"| `{name}` | `{flag_of(name)}` | {item.unit} | {default} | {item.why} |")
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with both tables as the code has them."""
    for name, table in (("formulas", formulas()), ("inputs", inputs())):
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        page = pattern.sub(lambda _, new=f"{begin}\n{table}\n{end}": new, page)  # type: ignore[misc]
    return page


def main() -> int:
    """Write the page, or check it."""
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return int(written(page) != page)
    PAGE.write_text(written(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
