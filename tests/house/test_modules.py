"""The house itself: what every module must have, and what importing one may bring along."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "amble"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_says_what_it_owns(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert said, f"{path.name} has no docstring"
    assert len(said.split()) >= 4


def test_no_room_is_called_by_an_empty_word() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "base", "core", "manager"}
    assert not {path.stem for path in MODULES} & empty


def test_packages_are_empty_but_for_the_lazy_face() -> None:
    for path in SOURCE.rglob("__init__.py"):
        if path.parent != SOURCE:
            tree = ast.parse(path.read_text())
            assert all(isinstance(node, ast.Expr | ast.ImportFrom) for node in tree.body), path
            assert not any(
                isinstance(node, ast.ImportFrom) and node.module != "__future__" for node in tree.body
            ), path


def test_importing_amble_loads_nothing_of_it() -> None:
    loaded = loaded_by("import amble")
    assert {name for name in loaded if name.startswith("amble")} == {"amble"}
    assert not loaded & {"ssl", "sqlite3", "apsw", "asyncio", "msgspec"}


def test_a_parser_child_loads_neither_tls_nor_a_database_nor_the_rest_of_amble() -> None:
    loaded = loaded_by("import amble.adapters.sandbox.serve")
    assert not loaded & {"ssl", "_ssl", "sqlite3", "apsw", "asyncio", "aiodns"}
    floors = {name.split(".")[1] for name in loaded if name.startswith("amble.")}
    assert floors <= {"domain", "formats", "adapters", "_native"}
    rooms = {name for name in loaded if name.startswith("amble.adapters.")}
    assert all(room.startswith("amble.adapters.sandbox") for room in rooms), rooms


def test_help_and_version_load_no_engine() -> None:
    loaded = loaded_by(
        "from amble.faces.cli import main\ntry:\n    main(['--version'])\nexcept SystemExit:\n    pass"
    )
    heavy = ("amble.adapters", "amble.stages", "amble.formats", "amble.app.")
    assert {name for name in loaded if name.startswith(heavy)} <= {"amble.app.progress"}
    assert not loaded & {"pydantic", "ssl", "apsw"}


def test_looking_at_a_crawl_loads_nothing_that_crawls() -> None:
    loaded = loaded_by(
        "import amble.faces.cli, amble.faces.output, amble.faces.tables, amble.app.reading, amble.adapters.sql.reports"
    )
    rooms = {".".join(name.split(".")[:3]) for name in loaded if name.startswith("amble.adapters.")}
    assert rooms == {"amble.adapters.sql"}
    assert not {name for name in loaded if name.startswith(("amble.stages", "amble.upkeep"))}
    assert not loaded & {
        "ssl",
        "asyncio",
        "pydantic",
        "rich.console",
        "turbohtml",
        "numpy",
        "importlib.metadata",
    }


def test_the_agent_loads_no_reader_of_pages() -> None:
    loaded = loaded_by("import amble.app.build")
    assert "amble.formats.registry" not in loaded
    # A name is looked up first, and the public roots are read, when a site needs it.
    assert not loaded & {"turbohtml", "numpy", "brotli", "zstandard", "aiodns", "pycares"}


def test_a_crawl_in_a_pipe_loads_nothing_that_draws() -> None:
    loaded = loaded_by("import amble.faces.cli, amble.faces.run, amble.faces.display, amble.app.build")
    assert "rich.console" not in loaded


# A comment that promises work is work that is not done.
_PROMISES = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_is_left_for_later(path: Path) -> None:
    assert not _PROMISES.findall(path.read_text())
