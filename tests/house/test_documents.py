"""What the documents say is what the code does."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import reference_docs

import amble
from amble.domain.decision import Category, Reason, Withheld
from amble.domain.lifecycle import UrlState
from amble.faces.cli import app
from amble.faces.exits import MEANINGS, ExitCode
from amble.faces.reasons import CATEGORIES, REASONS, WITHHELD

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+) \| `(.+)` \|$", re.MULTILINE)


def words() -> list[tuple[str, str, str]]:
    return _ROW.findall((ROOT / "docs" / "words.md").read_text())


def test_the_reference_pages_are_up_to_date() -> None:
    assert reference_docs.stale() == [], "run `make docs`"


def test_every_word_has_one_meaning_and_a_home_that_exists() -> None:
    names = [word for word, _, _ in words()]
    assert len(names) > 50
    assert len(names) == len(set(names))
    for word, meaning, home in words():
        assert (ROOT / "src" / "amble" / home).is_file(), f"{word}: there is no {home}"
        assert meaning.endswith("."), word


def test_the_word_for_state_names_all_states() -> None:
    meaning = next(meaning for word, meaning, _ in words() if word == "state")
    assert {state.name for state in UrlState} <= set(re.findall("[A-Z]+", meaning))


def test_every_reason_and_category_is_explained() -> None:
    assert set(REASONS) == set(Reason)
    assert set(CATEGORIES) == set(Category)
    assert set(WITHHELD) == set(Withheld)


def test_every_exit_code_is_explained() -> None:
    assert set(MEANINGS) == set(ExitCode)


def test_the_version_is_told_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == amble.__version__


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def _shown_commands() -> Iterator[str]:
    """Every `amble …` line of the README, in code blocks and between backquotes, and the ARGS given to make."""
    text = (ROOT / "README.md").read_text()
    yield from re.findall(r"(?:^|`|\$ )amble ([a-z][^`\n]*)", text, re.MULTILINE)
    yield from (f"crawl {arguments}" for arguments in re.findall(r'ARGS="([^"]*)"', text))


def test_the_readme_shows_only_commands_and_options_that_exist() -> None:
    from typer.main import get_command

    commands = get_command(app).commands  # type: ignore[attr-defined]
    shown = list(_shown_commands())
    assert len(shown) > 5
    for line in shown:
        name, *rest = line.split()
        assert name in commands, line
        command = commands[name]
        if hasattr(command, "commands"):
            default = getattr(command, "default", "")
            command = command.commands.get(rest[0] if rest else default) or command.commands[default]
        known = {option for item in command.params for option in item.opts} | {"--help"}
        for option in re.findall(r"(?<![\w-])--[a-z-]+", line):
            assert option in known, f"{line}: there is no {option}"


def test_the_readme_names_every_command() -> None:
    from typer.main import get_command

    text = (ROOT / "README.md").read_text()
    for name in get_command(app).commands:  # type: ignore[attr-defined]
        assert f"`amble {name}" in text, name


def test_changelog_fragments_have_a_kind() -> None:
    for path in (ROOT / "changelog.d").iterdir():
        if path.name.startswith("."):
            continue
        assert re.fullmatch(r"[a-z0-9-]+\.(added|changed|fixed|removed)\.md", path.name), path.name
        assert path.read_text().strip()
