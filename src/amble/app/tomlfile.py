"""amble.toml as text: the commented template, and changing a setting in it without touching anything else.

Only text in and text out; `app/folder.py` reads and writes the file.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping

from amble.app.settings import SECTIONS, SETTINGS, Setting, SettingValue, shown

_HEADER = """\
# The settings of this crawl. A line that begins with "# name =" shows a default; take the "#" away to change it.
# What the command line says (--set section.name=value, --pages, ...) is written here and kept.
# Environment variables AMBLE_SECTION_NAME win over this file for one run. `amble config show` tells what is in force.
"""
_TABLE = re.compile(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]")


def toml_value(setting: Setting, value: SettingValue) -> str:
    """A value in TOML."""
    if isinstance(value, tuple):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if isinstance(value, str):
        return _text(value)
    plain = shown(setting, value)
    return _text(plain) if value is None or (not isinstance(value, bool) and not _is_number(plain)) else plain


def _text(value: str) -> str:
    # JSON escapes are TOML escapes, but for DEL, which TOML wants escaped too.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text[:1] == "-"


def template(values: Mapping[str, SettingValue]) -> str:
    """A whole amble.toml: every setting with its reason, defaults as comments, `values` in force."""
    lines = [_HEADER]
    for section, about in SECTIONS.items():
        lines += [f"# {about}", f"[{section}]"]
        for setting in SETTINGS.values():
            if setting.section == section:
                lines += _entry(setting, values)
        lines.append("")
    return "\n".join(lines)


def _entry(setting: Setting, values: Mapping[str, SettingValue]) -> list[str]:
    unit = f" [{setting.unit}]" if setting.unit else ""
    default = f"# {setting.key} = {toml_value(setting, setting.default)}"
    if setting.name not in values:
        return [f"# {setting.why}{unit}", default]
    return [f"# {setting.why}{unit}", f"{setting.key} = {toml_value(setting, values[setting.name])}"]


def changed(text: str, values: Mapping[str, SettingValue]) -> str:
    """`text` with each of `values` set, every other line as it was.

    A setting that stands there is replaced where it stands, a commented default is replaced by the value, anything
    else is added to its table, or in a new table at the end.
    """
    # Only what TOML takes for the end of a line: str.splitlines also breaks at characters that a string may hold.
    lines = text.removesuffix("\n").split("\n") if text else []
    for name, value in values.items():
        setting = SETTINGS[name]
        _change(lines, setting, f"{setting.key} = {toml_value(setting, value)}")
    result = "\n".join(lines) + "\n"
    assert _holds(result, values), "what was written reads back"
    return result


def _change(lines: list[str], setting: Setting, statement: str) -> None:
    start, end = _table(lines, setting.section)
    if start < 0:
        lines += ["", f"[{setting.section}]", statement]
        return
    for pattern in (rf"\s*[\"']?{setting.key}[\"']?\s*=", rf"#\s*{setting.key}\s*="):
        for index in range(start + 1, end):
            if re.match(pattern, lines[index]):
                lines[index : _statement_end(lines, index, end)] = [statement]
                return
    lines.insert(start + 1, statement)


def _table(lines: list[str], section: str) -> tuple[int, int]:
    """(line of the table's header, line after its last); (-1, -1) where there is no such table."""
    start = -1
    for index, line in enumerate(lines):
        if match := _TABLE.match(line):
            if start >= 0:
                return start, index
            if match[1] == section:
                start = index
    return (start, len(lines)) if start >= 0 else (-1, -1)


def _statement_end(lines: list[str], index: int, end: int) -> int:
    """The line after a statement: the first at which what was read so far is whole."""
    for stop in range(index + 1, end + 1):
        try:
            tomllib.loads("\n".join(lines[index:stop]))
        except tomllib.TOMLDecodeError:
            continue
        return stop
    return index + 1


def _holds(text: str, values: Mapping[str, SettingValue]) -> bool:
    document = tomllib.loads(text)
    return all(SETTINGS[name].key in document.get(SETTINGS[name].section, {}) for name in values)
