"""The commands on a real, small, finished crawl of the test web; and a crawl as a process: signals, codes, resuming."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from amble.faces.cli import main
from amble.faces.exits import ExitCode
from tests.web.handle import TestWeb


def amble(*arguments: str, cwd: Path, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "amble", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@dataclass(frozen=True)
class Crawled:
    """A finished crawl, and what its command said."""

    web: TestWeb
    here: Path
    done: subprocess.CompletedProcess[str]

    @property
    def folder(self) -> Path:
        return self.here / "mine"


@dataclass(frozen=True)
class Said:
    """What one command returned and printed."""

    code: int
    out: str
    err: str


Here = Callable[..., Said]


@pytest.fixture
def here(crawled: Crawled, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    """Runs a command in this process, in the folder above the finished crawl."""
    monkeypatch.chdir(crawled.here)

    def run(*arguments: str) -> Said:
        code = main(arguments)
        return Said(code, *capfd.readouterr())

    return run


def local(web: TestWeb) -> list[str]:
    return ["--resolver", web.dns, "--allow-net", web.net]


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crawled]:
    here = tmp_path_factory.mktemp("faces")
    with TestWeb.start(here, sites=1, pages=24) as web:
        seeds = [*web.seeds, web.url("always-500")]
        options = ["--out", "mine", "--delay", "0.01", "--set", "retry.tries_max=1", *local(web)]
        yield Crawled(web, here, amble("crawl", *seeds, *options, cwd=here))


def test_a_finished_crawl_ends_with_zero_and_a_summary(crawled: Crawled) -> None:
    assert crawled.done.returncode == ExitCode.OK, crawled.done.stderr
    assert crawled.done.stdout.startswith("Finished: nothing is left to fetch.")
    assert "mine/archive (WARC)" in crawled.done.stdout
    assert "crawling into mine: 2 seeds" in crawled.done.stderr


def test_what_was_said_on_the_command_line_is_kept(crawled: Crawled, here: Here) -> None:
    shown = json.loads(here("config", "show", "mine", "--json").out)
    assert shown["origin.spacing_ms"] == shown["origin.spacing_ms"] | {"value": 10, "source": "amble.toml"}
    assert shown["retry.tries_max"]["value"] == 1
    assert shown["network.resolver"]["value"] == crawled.web.dns
    assert len((crawled.folder / "seeds.txt").read_text().splitlines()) == 3


def test_status_for_people_and_programs(crawled: Crawled, here: Here) -> None:
    told = here("status", "mine")
    assert told.code == 0
    assert "mine (no process works in it)" in told.out
    facts = json.loads(here("status", "mine", "--json").out)
    assert facts["running"] is False
    assert facts["states"]["pending"] == 0
    assert facts["failed"] >= 1


def test_lists_filter_and_are_bounded(crawled: Crawled, here: Here) -> None:
    everything = here("urls", "mine", "--json", "--limit", "0").out.splitlines()
    rows = [json.loads(line) for line in everything]
    assert {row["state"] for row in rows} >= {"complete", "failed"}
    few = here("urls", "mine", "--limit", "2")
    assert len(few.out.splitlines()) == 3
    assert "there is more: --limit 20" in few.err
    key = crawled.web.url("always-500").removesuffix("/")
    own = here("urls", "mine", "--origin", key, "--json").out.splitlines()
    assert {json.loads(line)["url"].rpartition("/")[0] for line in own} == {key}
    done = here("urls", "mine", "--state", "complete", "--json", "--limit", "0").out
    assert len(done.splitlines()) == sum(row["state"] == "complete" for row in rows)


def test_failures_name_their_category(crawled: Crawled, here: Here) -> None:
    told = here("failed", "mine")
    assert "http_server_error" in told.out
    assert crawled.web.url("always-500", "/one") in told.out


def test_why_explains_a_failure_a_page_and_a_stranger(crawled: Crawled, here: Here) -> None:
    failed = here("why", crawled.web.url("always-500", "/one"), "--out", "mine")
    assert failed.code == 0
    assert "http_server_error" in failed.out
    assert "The server answered 5xx." in failed.out
    page = here("why", crawled.web.seeds[0], "--out", "mine")
    assert "on the command line (seed, depth 0)" in page.out
    assert "robots.txt    rules at hand" in page.out
    stranger = here("why", "http://elsewhere.test/", "--out", "mine")
    assert stranger.code == ExitCode.FOUND
    assert "not in the frontier" in stranger.out
    assert "out_of_scope" in stranger.out
    assert (
        json.loads(here("why", crawled.web.seeds[0], "--out", "mine", "--json").out)["line"]["state"]
        == "complete"
    )


def test_check_knows_the_robots_rules_of_the_crawl(crawled: Crawled, here: Here) -> None:
    url = crawled.web.seeds[0] + "private/1"
    told = here("check", url, "--out", "mine")
    assert told.code == ExitCode.FOUND
    assert "robots_disallowed (by the rule " in told.out


def test_export_writes_each_document_once(crawled: Crawled, here: Here) -> None:
    facts = json.loads(here("status", "mine", "--json").out)
    first = here("export", "mine", "--file", "documents.jsonl")
    again = here("export", "mine", "--file", "documents.jsonl", "--json")
    assert first.code == again.code == 0
    assert json.loads(again.out)["documents"] == 0
    lines = (crawled.here / "documents.jsonl").read_text().splitlines()
    assert len(lines) == facts["documents"] > 0
    piped = here("export", "mine", "--file", "-")
    assert [json.loads(line)["url"] for line in piped.out.splitlines()] == [
        json.loads(line)["url"] for line in lines
    ]


def test_documents_of_two_crawls_do_not_go_into_one_file(
    crawled: Crawled, here: Here, tmp_path: Path
) -> None:
    other, file = tmp_path / "other", str(tmp_path / "both.jsonl")
    shutil.copytree(crawled.folder, other)
    with closing(sqlite3.connect(other / "frontier.db")) as frontier, frontier:
        # What makes it another crawl: each frontier has a random key of its own.
        frontier.execute("UPDATE meta SET value = randomblob(32) WHERE name = 'path_key'")
    assert here("export", "mine", "--file", file).code == 0
    refused = here("export", str(other), "--file", file)
    assert refused.code == ExitCode.UNUSABLE
    assert "holds the documents of another crawl; name another file" in refused.err


def test_a_finished_crawl_verifies(crawled: Crawled, here: Here) -> None:
    done = here("verify", "mine")
    assert (done.code, done.out) == (0, "")


def test_a_segment_that_is_gone_is_one_line_with_the_number_of_those_that_refer_to_it(
    crawled: Crawled, here: Here, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(crawled.folder, copy)
    facts = json.loads(here("status", str(copy), "--json").out)
    for segment in (copy / "archive").glob("*.warc.gz*"):
        segment.unlink()
    told = here("verify", str(copy))
    assert told.code == ExitCode.FOUND
    assert len(told.out.splitlines()) == 1
    assert "fetches refer to it; bring the file back from a copy" in told.out
    exported = here("export", str(copy))
    assert exported.code == ExitCode.FOUND
    assert f"left out, damaged: {facts['documents']} documents: segment 1 is not in" in exported.err
    assert len(exported.err.splitlines()) == 3


@pytest.mark.parametrize("garbage_from", [0, 4096 * 3])
def test_a_damaged_frontier_is_told_with_the_way_on(
    crawled: Crawled, here: Here, tmp_path: Path, garbage_from: int
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(crawled.folder, copy)
    with (copy / "frontier.db").open("r+b") as file:
        file.seek(garbage_from)
        file.write(random.Random(1).randbytes(4096 * 20))
    crawled_on = here("crawl", "--out", str(copy), "--pages", "unlimited", "--quiet")
    assert crawled_on.code == ExitCode.UNUSABLE, crawled_on.err
    assert "bring the folder back from a copy" in crawled_on.out + crawled_on.err
    assert "go on" not in crawled_on.out
    told = here("verify", str(copy))
    assert told.code == ExitCode.FOUND
    assert "bring the folder back from a copy, or begin another" in told.out
    assert "`amble verify`" not in told.out
    assert "\\u000a" not in told.out


def test_a_second_export_says_that_there_was_nothing_new(
    crawled: Crawled, here: Here, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "documents.jsonl"
    first = here("export", "mine", "--file", str(file))
    assert f"in a new folder, {file.parent}" in first.err
    assert "nothing new: " in here("export", "mine", "--file", str(file)).err


def test_doctor_finds_this_machine_fit(crawled: Crawled, here: Here) -> None:
    done = here("doctor", "mine", "--json")
    findings = {item["name"]: item for item in json.loads(done.out)["findings"]}
    assert set(findings) >= {
        "python",
        "libraries",
        "sqlite",
        "loop",
        "files",
        "disk",
        "clock",
        "sandbox",
        "resolver",
    }
    assert findings["resolver"]["verdict"] == "good"


def test_a_reader_that_has_seen_enough_is_no_error(crawled: Crawled) -> None:
    command = f"{sys.executable} -m amble urls mine --limit 0 | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=crawled.here,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- a crawl as a process ----------------------------------------------------------------------------------------


class Running:
    """A crawl with JSON lines, read as they come."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "amble", "crawl", *arguments, "--json"],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def until(self, event: str) -> dict[str, object]:
        """The next event of that name."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            facts: dict[str, object] = json.loads(line)
            if facts["event"] == event:
                return facts
        raise AssertionError(f"ended without {event}: {self.process.communicate()[1]}")


def long_crawl(crawled: Crawled, out: str) -> list[str]:
    return [crawled.web.url("big-site"), "--out", out, "--delay", "0.2", *local(crawled.web)]


def test_one_signal_stops_cleanly_and_the_same_command_goes_on(crawled: Crawled) -> None:
    arguments = long_crawl(crawled, "stopped")
    with Running(*arguments, cwd=crawled.here) as crawl:
        assert crawl.until("start")["resumes"] is False
        crawl.until("progress")
        asked_s = time.monotonic()
        crawl.process.send_signal(signal.SIGINT)
        result = crawl.until("result")
        assert crawl.process.wait(timeout=20) == ExitCode.STOPPED
        assert time.monotonic() - asked_s < 10
    assert result["reason"] == "stopped"
    again = amble("crawl", *arguments, "--pages", "12", "--json", cwd=crawled.here)
    events = [json.loads(line) for line in again.stdout.splitlines()]
    assert events[0]["resumes"] is True
    assert events[-1]["reason"] == "page_budget"
    assert events[-1]["pages"] == 12
    assert again.returncode == ExitCode.OK


def test_a_second_signal_stops_at_once(crawled: Crawled) -> None:
    arguments = [crawled.web.url("never-answers"), "--out", "forced", *local(crawled.web)]
    with Running(*arguments, cwd=crawled.here) as crawl:
        crawl.until("start")
        crawl.process.send_signal(signal.SIGINT)
        crawl.until("stopping")
        crawl.process.send_signal(signal.SIGINT)
        assert crawl.process.wait(timeout=5) in (ExitCode.FORCED, ExitCode.STOPPED)
        # It may have been done stopping already: with nothing on the wire that takes no time.


def test_a_folder_is_crawled_by_one_process_at_a_time(crawled: Crawled) -> None:
    arguments = long_crawl(crawled, "busy")
    with Running(*arguments, cwd=crawled.here) as crawl:
        crawl.until("start")
        other = amble("crawl", *arguments, cwd=crawled.here)
        assert other.returncode == ExitCode.BUSY
        assert other.stderr.count("\n") == 1
        assert f"process {crawl.process.pid}" in other.stderr
        status = json.loads(amble("status", "busy", "--json", cwd=crawled.here).stdout)
        assert status["pid"] == crawl.process.pid
        crawl.process.send_signal(signal.SIGTERM)
        crawl.until("result")


def test_a_crawl_without_a_page_says_why(crawled: Crawled) -> None:
    done = amble(
        "crawl", "http://localhost:9/", "--out", "nothing", "--resolver", crawled.web.dns, cwd=crawled.here
    )
    assert done.returncode == ExitCode.NOTHING, done.stdout + done.stderr
    assert done.stdout.startswith("Not a single page was fetched.")
    assert "1 port refused" in done.stdout


def test_a_folder_that_cannot_be_used_is_one_line(crawled: Crawled) -> None:
    broken = crawled.here / "broken"
    broken.mkdir()
    (broken / "archive").write_text("this is no folder")
    done = amble("crawl", crawled.web.seeds[0], "--out", "broken", *local(crawled.web), cwd=crawled.here)
    assert done.returncode == ExitCode.UNUSABLE
    assert done.stderr.count("\n") == 1
    assert "name another folder with --out" in done.stderr


def test_a_database_that_is_none_is_one_line(crawled: Crawled) -> None:
    broken = crawled.here / "garbage"
    broken.mkdir()
    (broken / "frontier.db").write_bytes(b"no database at all" * 100)
    for command in (
        ["crawl", crawled.web.seeds[0], "--out", "garbage", *local(crawled.web)],
        ["status", "garbage"],
    ):
        done = amble(*command, cwd=crawled.here)
        assert done.returncode == ExitCode.UNUSABLE, done.stderr
        assert done.stderr.count("\n") == 1


def test_a_crawl_whose_reader_has_gone_stops_cleanly(crawled: Crawled) -> None:
    command = [sys.executable, "-m", "amble", "crawl", *long_crawl(crawled, "unread"), "--json"]
    line = f"{shlex.join(command)} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=crawled.here, capture_output=True, text=True, timeout=60, check=False
    )
    assert json.loads(done.stdout)["event"] == "start"
    assert (done.returncode, done.stderr) == (ExitCode.STOPPED, "")


def test_time_may_be_budgeted(crawled: Crawled) -> None:
    done = amble("crawl", *long_crawl(crawled, "timed"), "--max-time", "0.5s", "--json", cwd=crawled.here)
    assert json.loads(done.stdout.splitlines()[-1])["reason"] == "time_budget"


def test_seeds_may_come_from_standard_input(crawled: Crawled) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "amble",
            "crawl",
            "--seeds",
            "-",
            "--out",
            "piped",
            "--pages",
            "2",
            "--delay",
            "0.01",
            *local(crawled.web),
        ],
        cwd=crawled.here,
        input=f"# mine\n{crawled.web.url('plain')}\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitCode.OK, done.stderr
    assert (crawled.here / "piped" / "seeds.txt").read_text().splitlines()[-1] == crawled.web.url("plain")
