"""The demo crawls for real: it is the first thing that a new user sees, so it must end cleanly and go on cleanly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.web.demo import FOLDER, Demo

ROOT = Path(__file__).parents[2]


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "tests.web", "demo", "--out", str(folder), "--json", *more]


def demo(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *more), cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


def events(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def test_a_demo_crawls_says_what_to_look_at_and_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "crawl"
    first = demo(folder, "--pages", "8")
    assert first.returncode == 0, first.stderr
    assert f"status {folder}" in first.stderr
    before = events(first.stdout)[-1]
    assert (before["reason"], before["event"]) == ("page_budget", "result")
    second = demo(folder, "--pages", "16")
    assert second.returncode == 0, second.stderr
    begun, *_, after = events(second.stdout)
    assert (begun["resumes"], begun["new_seeds"]) == (True, 0)
    assert int(str(after["pages"])) >= 16


def test_an_interrupt_ends_the_crawl_and_the_web_waits_for_it(tmp_path: Path) -> None:
    """A terminal interrupts both; the exit code is that of the crawl, which needs the web until its end."""
    running = subprocess.Popen(
        command(tmp_path / "crawl"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["event"] == "start"
        os.killpg(running.pid, signal.SIGINT)
        output, told = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 10, told
    assert events(output)[-1]["reason"] == "stopped"


def test_a_mistake_is_amble_s_own_to_tell(tmp_path: Path) -> None:
    done = demo(tmp_path / "crawl", "--pages", "many")
    assert done.returncode == 2
    assert "--pages" in done.stderr
    assert "Look at it" not in done.stderr


def test_another_crawl_s_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "seeds.txt").write_text("https://example.org/\n")
    done = demo(tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"tests.web demo: {tmp_path} holds another crawl; name a new folder with --out\n"


@pytest.mark.parametrize(
    ("more", "folder"),
    [
        ((), FOLDER),
        (("--out", "here"), Path("here")),
        (("--out=there", "-v"), Path("there")),
        (("--out", "here", "--out=there"), Path("there")),
        (("--pages", "3", "--out"), FOLDER),
    ],
)
def test_the_folder_is_the_one_that_amble_will_take(
    more: Sequence[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a demo may have been run where the tests are
    assert Demo.of(more) == Demo(more, folder, 0)
