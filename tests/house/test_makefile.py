"""The commands of the Makefile on machines and with words that are not as one might wish."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://a.test/", ["http://a.test/"]),
        ("http://a.test/?a=1&b=2;c|y>z", ["http://a.test/?a=1&b=2;c|y>z"]),
        ("http://a.test/it's(`x`)", ["http://a.test/it's(`x`)"]),
        ("http://a.test/?q=* http://b.test/", ["http://a.test/?q=*", "http://b.test/"]),
    ],
)
def test_a_url_reaches_the_crawl_as_it_was_given(tmp_path: Path, url: str, words: list[str]) -> None:
    script(tmp_path / "bin" / "amble", "printf '%s\\n' \"$@\"")
    (tmp_path / ".installed").touch()
    done = make("crawl", f"VENV={tmp_path}", f"URL={url}", "ARGS=--pages 3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["crawl", *words, "--pages", "3"]


def test_a_python_without_pip_for_new_environments_is_named_each_time(tmp_path: Path) -> None:
    """The first try leaves an environment that lacks pip behind: the second must not stumble over it."""
    python = script(
        tmp_path / "python",
        f'[ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"\n{sys.executable} -m venv --without-pip "$3"; exit 1',
    )
    for _ in range(2):
        done = make("install", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}")
        assert done.returncode != 0
        assert "install the venv module" in done.stdout + done.stderr
    assert (tmp_path / "venv" / "bin" / "python").exists()
