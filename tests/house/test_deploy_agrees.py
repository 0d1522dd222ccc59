"""What is deployed is what the code understands: commands, options, settings, packages."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from amble.app.config import CrawlConfig, from_env
from amble.app.settings import SETTINGS
from amble.faces.cli import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCUMENT = ROOT / "docs" / "deploy.md"
CONFIGURATIONS = [DEPLOY / "amble.toml", DEPLOY / "kubernetes" / "amble.toml"]


def _containers(node: Any) -> Iterator[dict[str, Any]]:
    """Everything in a YAML document that has an image of amble."""
    if isinstance(node, dict):
        if str(node.get("image", "")).startswith("amble:"):
            yield node
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _containers(item)


def _started() -> Iterator[tuple[str, list[str]]]:
    """(where, words after `amble`) of every command that a file starts."""
    for path in [DEPLOY / "compose.yaml", *sorted((DEPLOY / "kubernetes").glob("*.yaml"))]:
        for document in yaml.safe_load_all(path.read_text()):
            for container in _containers(document):
                words = container.get("args") or container.get("command")
                if words:
                    yield path.name, words
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        for line in re.findall(r"^ExecStart=/opt/amble/bin/amble (.+)$", path.read_text(), re.MULTILINE):
            yield path.name, shlex.split(line)


def _told() -> Iterator[tuple[str, list[str]]]:
    """Every `amble ...` that the document tells people to type, in code blocks and between backquotes."""
    text = DOCUMENT.read_text()
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    lines = re.findall(r"(?<!-n )(?<![\w-])amble ([a-z][^\n#]*)", blocks)
    lines += re.findall(r"(?<!`)`amble ([a-z][^`]*)`", text)
    for line in lines:
        yield DOCUMENT.name, shlex.split(line)


COMMANDS = [*_started(), *_told()]


def test_every_file_and_the_document_show_commands() -> None:
    assert {where for where, _ in COMMANDS} == {
        "compose.yaml",
        "store-init.yaml",
        "agents.yaml",
        "parsers.yaml",
        "amble-agent@.service",
        "amble-parse@.service",
        "amble-crawl@.service",
        "deploy.md",
    }


@pytest.mark.parametrize(
    ("where", "words"), COMMANDS, ids=[f"{where}: {' '.join(words)}" for where, words in COMMANDS]
)
def test_a_command_exists_with_all_its_options(where: str, words: list[str]) -> None:
    command: Any = get_command(app)
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"{where}: there is no {rest[0]}"
        command = command.commands[rest.pop(0)]
    if hasattr(command, "default"):
        command = command.commands[command.default]
    alone = not hasattr(command, "commands") or command.invoke_without_command
    assert alone, f"{where}: {words} lacks a command"
    known = {option for item in command.params for option in (*item.opts, *item.secondary_opts)} | {"--help"}
    for word in rest:
        if word.startswith("-"):
            assert word.partition("=")[0] in known, f"{where}: there is no {word}"


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_configuration_is_accepted_as_it_stands(path: Path) -> None:
    CrawlConfig.parse(path.read_text(), source=str(path))


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_configuration_names_where_the_fleet_keeps_what_it_knows(path: Path) -> None:
    given = tomllib.loads(path.read_text())
    assert given["store"]["url"].startswith("postgresql://amble@"), "no password in a file"
    assert given["archive"]["url"].startswith("s3://")


def test_variables_of_the_files_are_settings() -> None:
    text = "\n".join(
        path.read_text() for path in [*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.env*"), DOCUMENT]
    )
    variables = set(re.findall(r"\b(AMBLE_[A-Z]+_[A-Z_]*[A-Z])\b", text)) - {"AMBLE_SECTION_KEY"}
    assert variables
    problems: list[str] = []
    assert set(from_env(dict.fromkeys(variables, "x"), problems)) <= set(SETTINGS)
    assert problems == []


def test_settings_named_in_comments_and_in_the_document_exist() -> None:
    sections = {name.partition(".")[0] for name in SETTINGS}
    texts = [path.read_text() for path in DEPLOY.rglob("*") if path.is_file()] + [DOCUMENT.read_text()]
    named = {
        f"{section}.{key}"
        for text in texts
        for section, key in re.findall(r"\b([a-z]+)\.([a-z]+(?:_[a-z0-9]+)+|url)\b", text)
        if section in sections
    }
    assert {"fetch.total_s", "parse.wall_s", "store.url", "archive.url"} <= named
    assert named <= set(SETTINGS), named - set(SETTINGS)


def test_the_lock_file_has_what_the_image_installs() -> None:
    """The image installs `amble[fleet]` from the wheels of the lock file and from nowhere else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["fleet"]]
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    names = {re.split(r"[<>=!;\[ ]", requirement, maxsplit=1)[0].lower() for requirement in wanted}
    assert names <= locked, names - locked
