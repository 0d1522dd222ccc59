"""Writes docs/reference/: settings, commands, reasons and exit codes, from the code that decides them.

`python tools/reference_docs.py` writes the pages; with --check it only tells whether they are up to date (exit 1 if
not), which is what the tests and `make check` ask.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from amble.app.settings import SECTIONS, SETTINGS, shown
from amble.domain.decision import WITHHELD_STATUS, Category, Reason, Withheld
from amble.faces import cli
from amble.faces.exits import MEANINGS, ExitCode
from amble.faces.reasons import CATEGORIES, REASONS, WITHHELD, WITHHELD_BY_STATUS, Explanation

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
_NOTICE = "<!-- Written by tools/reference_docs.py (`make docs`). Change the code, not this page. -->\n"


def settings_page() -> str:
    """One heading per section, one row per setting."""
    lines = [
        "# Settings",
        "",
        "Every setting of a crawl: in `amble.toml` of its folder, as an environment variable, or with `--set`.",
        "Later ones win: defaults, `amble.toml`, a file given with `--config`, the environment, the command line.",
        "What a command line or `--config` says is kept in `amble.toml`; the environment counts for one run.",
        "`amble config show [DIR]` prints what is in force and where each value comes from.",
        "",
        "Durations may carry a unit (`500ms`, `90s`, `15m`, `2h`), sizes too (`64KiB`, `10MiB`).",
        "The environment variable of `fetch.total_s` is `AMBLE_FETCH_TOTAL_S`, and so on; lists take commas there.",
        "",
    ]
    for section, about in SECTIONS.items():
        lines += [
            f"## {section}",
            "",
            about,
            "",
            "| setting | default | unit | accepts | why |",
            "|---|---|---|---|---|",
        ]
        for setting in SETTINGS.values():
            if setting.section == section:
                default = shown(setting, setting.default) or '""'
                row = (f"`{setting.name}`", f"`{default}`", setting.unit, setting.kind.accepts, setting.why)
                lines.append("| " + " | ".join(_cell(item) for item in row) + " |")
        lines.append("")
    return _NOTICE + "\n".join(lines)


def reasons_page() -> str:
    """Every word that `why`, `failed`, the summary and the logs may show."""
    lines = [
        "# Reasons",
        "",
        "amble never skips a URL without a reason. These are all of them: stable words, stored, counted and shown by",
        "`amble why`, `amble failed`, `amble status` and the summary of a crawl.",
        "",
        "## Why a URL is refused, skipped or waits",
        "",
    ]
    lines += _explained([(reason.value, REASONS[reason]) for reason in Reason])
    lines += ["", "## What went wrong with an attempt", ""]
    lines += _explained([(category.value, CATEGORIES[category]) for category in Category])
    lines += ["", "## Why a complete document is not published", ""]
    lines += _explained(
        [(withheld.value, WITHHELD[withheld]) for withheld in Withheld]
        + [(f"{WITHHELD_STATUS}NNN", WITHHELD_BY_STATUS)]
    )
    return _NOTICE + "\n".join(lines) + "\n"


def _explained(rows: list[tuple[str, Explanation]]) -> list[str]:
    lines = ["| word | meaning | what changes it |", "|---|---|---|"]
    return lines + [f"| `{word}` | {_cell(item.meaning)} | {_cell(item.remedy)} |" for word, item in rows]


def exit_codes_page() -> str:
    """What the shell gets."""
    lines = [
        "# Exit codes",
        "",
        "| code | name | meaning | what to do |",
        "|---|---|---|---|",
    ]
    for code in ExitCode:
        meaning, remedy = MEANINGS[code]
        lines.append(f"| {int(code)} | {code.name.lower()} | {_cell(meaning)} | {_cell(remedy)} |")
    return _NOTICE + "\n".join(lines) + "\n"


def commands_page() -> str:
    """Every command with its arguments and options, as its own help tells them."""
    lines = [
        "# Commands",
        "",
        "Every command prints text for people and, with `--json`, JSON for programs. `amble COMMAND --help` says the",
        "same as this page. Exit codes: [exit-codes.md](exit-codes.md).",
        "",
    ]
    for name, command in _commands(_click_command()):
        lines += [f"## amble {name}", "", _prose(command.help), ""]
        rows = [_parameter(item) for item in command.params if item.name != "help"]
        if rows:
            lines += ["| argument or option | meaning |", "|---|---|", *rows, ""]
    return _NOTICE + "\n".join(lines)


def _click_command() -> Any:
    from typer.main import get_command

    return get_command(cli.app)


def _commands(root: Any, before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                found.append((before + name, command))
            found += _commands(command, f"{before}{name} ")
        else:
            found.append((before + name, command))
    return found


def _parameter(item: Any) -> str:
    if item.param_type_name == "argument":
        name = f"`{item.metavar or item.name.upper()}`"
    else:
        names = ", ".join(f"`{option}`" for option in item.opts)
        name = f"{names} `{item.metavar}`" if item.metavar else names
    return f"| {_cell(name)} | {_cell(item.help or '')} |"


def _prose(text: str) -> str:
    return re.sub(r"[ \t]*\n[ \t]*(?!\n)", " ", re.sub(r"\n\s*\n", "\n\n", text.strip())).replace(
        "\n ", "\n\n"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "commands.md": commands_page,
    "reasons.md": reasons_page,
    "exit-codes.md": exit_codes_page,
}


def stale() -> list[str]:
    """Names of pages that do not say what the code says."""
    return [name for name, page in PAGES.items() if not _is_written(FOLDER / name, page())]


def _is_written(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def main() -> int:
    """Write the pages, or check them."""
    if "--check" in sys.argv[1:]:
        for name in stale():
            print(f"docs/reference/{name} is out of date: run `make docs`")
        return 1 if stale() else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
