"""`amble fleet`: a whole fleet from one command, which goes on where it was and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.amble_process import run, wait_until
from tests.support.postgres import server_folder
from tests.web.handle import TestWeb
from tests.whole import log
from tests.whole.rig import served

SITES, PAGES = 3, 24
DELAY_S = 0.05
# What an agent that was killed held is soon taken over.
SETTINGS = (
    "agent.lease_s=3",
    "fetch.total_s=4",
    "fetch.connect_s=4",
    "fetch.first_byte_s=4",
    "finish.wait_max_s=5",
)
QUICK = [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the database's own user may enter, also where that is not the user of the tests."""
    made = server_folder("amble-try")
    made.chmod(0o755)
    yield made / "crawl"
    shutil.rmtree(made, ignore_errors=True)


def arguments(web: TestWeb, folder: Path) -> list[str]:
    return [
        "fleet", *web.seeds, "--out", str(folder), "--agents", "2", "--parsers", "1", "--delay", str(DELAY_S),
        "--resolver", web.dns, "--allow-net", web.net,
    ]  # fmt: skip


def members_of(folder: Path) -> list[int]:
    """Processes that still work for the fleet in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if str(folder).encode() in command:
            found.append(int(entry.name))
    return found


def test_a_fleet_crawls_everything_once_and_leaves_no_process_behind(tmp_path: Path, folder: Path) -> None:
    with TestWeb.start(tmp_path, sites=SITES, pages=PAGES) as web:
        done = run(arguments(web, folder), timeout_s=110)
        assert done.returncode == 0, done.stdout + done.stderr
        web.flush()
        entries, truth = log.load(web.log_path), web.truth()
    coverage = log.coverage(entries, truth)
    assert coverage.exact, str(coverage)
    assert log.spacing(entries, DELAY_S, tolerance_s=0.002) == []
    assert log.concurrency(entries, 1) == []
    # The commands that look at it start its server for their own time.
    documents = tmp_path / "documents.jsonl"
    assert run(["export", str(folder), "--file", str(documents)]).returncode == 0
    status = run(["status", str(folder), "--json"])
    assert json.loads(status.stdout)["documents"] == len(documents.read_bytes().splitlines()) > 0
    verified = run(["verify", str(folder)])
    assert verified.returncode == 0, verified.stdout + verified.stderr
    alone = run(["crawl", "--out", str(folder)])
    assert alone.returncode == 14
    assert f"amble fleet --out {folder}" in alone.stderr
    assert not (folder / "frontier.db").exists()
    assert members_of(folder) == []


def test_a_fleet_that_was_stopped_goes_on_with_the_same_command(tmp_path: Path, folder: Path) -> None:
    with TestWeb.start(tmp_path, sites=SITES, pages=PAGES) as web:
        with subprocess.Popen(
            [sys.executable, "-m", "amble", *arguments(web, folder), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as first:
            assert first.stdout is not None
            for line in first.stdout:
                if json.loads(line).get("pages", 0):
                    break
            first.send_signal(signal.SIGINT)
            first.stdout.read()
        assert members_of(folder) == []
        done = run(["fleet", "--out", str(folder), "--agents", "1", "--parsers", "0"], timeout_s=110)
        assert done.returncode == 0, done.stdout + done.stderr
        web.flush()
        entries, truth = log.load(web.log_path), web.truth()
    assert log.coverage(entries, truth).exact
    assert log.spacing(entries, DELAY_S, tolerance_s=0.002) == []


def test_an_agent_that_is_killed_is_started_again(tmp_path: Path, folder: Path) -> None:
    told = tmp_path / "told.txt"
    with TestWeb.start(tmp_path, sites=SITES, pages=PAGES * 4) as web:
        with (
            told.open("wb") as err,
            subprocess.Popen(
                [sys.executable, "-m", "amble", *arguments(web, folder), *QUICK],
                stdout=subprocess.DEVNULL,
                stderr=err,
            ) as fleet,
        ):
            wait_until(lambda: served(web) >= PAGES // 2, 60, "a few requests")
            (number,) = [
                pid
                for pid in members_of(folder)
                if b"agent-1.jsonl" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            os.kill(number, signal.SIGKILL)
            assert fleet.wait(100) == 0, told.read_text()
        web.flush()
        entries, truth = log.load(web.log_path), web.truth()
    assert "agent-1 was killed by signal 9 and is started again in 1 s" in told.read_text()
    assert log.coverage(entries, truth).missed == []
    assert members_of(folder) == []


def test_a_fleet_begins_at_a_list_and_ends_when_its_time_is_over(tmp_path: Path, folder: Path) -> None:
    with TestWeb.start(tmp_path, sites=SITES, pages=400) as web:
        listed = tmp_path / "seeds.txt"
        listed.write_text("\n".join(web.seeds))
        words = [word for word in arguments(web, folder) if word not in web.seeds]
        begun_s = time.monotonic()
        done = run([*words, "--seeds", str(listed), "--max-time", "6s", "--delay", "0.5"], timeout_s=100)
        assert done.returncode == 0, done.stdout + done.stderr
        assert time.monotonic() - begun_s < 60
        web.flush()
        hosts = {entry.host for entry in log.load(web.log_path)}
    assert len(hosts) == SITES


def test_a_crawl_of_one_process_is_not_taken_for_a_fleet(folder: Path) -> None:
    folder.mkdir()
    (folder / "frontier.db").write_bytes(b"")
    done = run(
        ["fleet", "http://site.test/", "--out", str(folder), "--contact", "http://x.test/"], timeout_s=60
    )
    assert done.returncode == 14
    assert "amble migrate" in done.stderr


def test_a_fleet_keeps_its_pages_where_it_is_told_to(tmp_path: Path, folder: Path) -> None:
    elsewhere = folder.parent / "pages"
    with TestWeb.start(tmp_path, sites=1, pages=3) as web:
        words = [*arguments(web, folder), "--set", f"archive.url=file://{elsewhere}"]
        done = run(words, timeout_s=110)
        assert done.returncode == 0, done.stdout + done.stderr
        again = run(["fleet", "--out", str(folder)], timeout_s=110)
        assert again.returncode == 0, again.stdout + again.stderr
    assert list((elsewhere / "segments").rglob("*.warc.gz"))
    assert not (folder / "archive").exists()


def test_a_fleet_refuses_a_database_that_is_not_its_own(folder: Path) -> None:
    words = ["fleet", "http://site.test/", "--out", str(folder), "--contact", "http://x.test/"]
    done = run([*words, "--set", "store.url=postgresql://db.test/crawl"], timeout_s=60)
    assert done.returncode == 2, done.stderr
    assert "amble store init" in done.stderr
    assert not (folder / "amble.toml").exists()
