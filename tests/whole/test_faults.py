"""Faults around a running crawl. Each: dispatch pauses and says why, it goes on by itself, and the result is the truth.

The wall clock is stepped for the agent and the store process by a preloaded library (tests/support/step_clock.c);
parser children start with a clean environment and keep the real time, which decides nothing there.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from apsw import Connection

from tests.support.amble_process import AmbleProcess, cpu_s, kill, run, running, wait_until
from tests.web.handle import TestWeb
from tests.whole import log
from tests.whole.rig import (
    SOON_S,
    arguments,
    events,
    fill,
    judge,
    locked,
    mounted,
    served,
    small_disk,
    told,
    unmount,
    wait_for_requests,
    wait_for_trouble,
)

DELAY_S = 0.1
CHILD = "amble.adapters.sandbox.child"


def small(folder: Path) -> TestWeb:
    return TestWeb.start(folder, sites=3, pages=30)


def assert_paused(web: TestWeb) -> None:
    """No request starts once those that were under way are answered."""
    time.sleep(0.3)
    before = served(web)
    time.sleep(5 * DELAY_S)
    assert served(web) == before, "requests were made while trouble stood"


def endure(
    web: TestWeb, out: Path, folder: Path, word: str, begin: Callable[[], object], end: Callable[[], object],
    *more: str,
) -> str:  # fmt: skip
    """One crawl with one fault in its middle; returns what was said of it, after judging everything else."""
    command = arguments(web, out, "--delay", str(DELAY_S), *more)
    with running(command, folder / "amble.out") as amble:
        wait_for_requests(web, 10, amble)
        begin()
        try:
            said = wait_for_trouble(out, word, amble)
            assert_paused(web)
            shown = run(["status", str(out)])
            assert word in shown.stdout, shown.stdout + shown.stderr
        finally:
            end()
        assert amble.wait(SOON_S) == 0, amble.text()
        assert f"trouble: {word}" in amble.text()
        assert "trouble is over" in amble.text()
    judge(web, out, DELAY_S, again=large_bodies(web))
    return said


def large_bodies(web: TestWeb) -> Counter[str]:
    """A large body passes through a file of its own, which the fault may have cut short as well: it is asked again."""
    web.flush()
    return Counter(entry.url for entry in log.load(web.log_path) if entry.bytes > 1 << 20)


def test_a_full_disk_under_the_archive_pauses_the_crawl_until_there_is_space(tmp_path: Path) -> None:
    out = tmp_path / "crawl"
    ballast = out / "archive" / "ballast"
    with small(tmp_path) as web, small_disk(out / "archive", "90m"):
        said = endure(
            web, out, tmp_path, "archive_unavailable", lambda: fill(ballast, 32 << 20), ballast.unlink
        )
        assert "disk almost full" in said


def test_a_full_disk_under_the_frontier_pauses_the_crawl_until_there_is_space(tmp_path: Path) -> None:
    """The very last byte is taken, so run/status.json can be written over in place only, and still tells why."""
    out = tmp_path / "crawl"
    ballast = out / "ballast"
    (tmp_path / "archive").mkdir()
    with small(tmp_path) as web, small_disk(out, "24m"):
        with mounted(out / "archive", "--bind", str(tmp_path / "archive")):
            said = endure(web, out, tmp_path, "store_unavailable", lambda: fill(ballast), ballast.unlink)
        assert "full" in said or "disk I/O" in said


def test_a_limit_on_file_sizes_under_the_archive_pauses_the_crawl_without_a_busy_loop(tmp_path: Path) -> None:
    """A probe fits below the limit where records do not: trouble must stand, and not come and go in a tight loop."""
    out = tmp_path / "crawl"

    def limit_agent() -> None:
        grown = max(path.stat().st_size for path in (out / "archive").iterdir())
        resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (max(grown, 8192), resource.RLIM_INFINITY))

    with small(tmp_path) as web:
        with running(arguments(web, out, "--delay", str(DELAY_S)), tmp_path / "amble.out") as agent:
            wait_for_requests(web, 10, agent)
            limit_agent()
            assert "may not grow" in wait_for_trouble(out, "archive_unavailable", agent)
            before_s = cpu_s(agent.pid)
            assert_paused(web)
            assert cpu_s(agent.pid) - before_s < 0.4
            resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            assert agent.wait(SOON_S) == 0, agent.text()
        assert len(events(out, "trouble.began")) < 20
        judge(web, out, DELAY_S, again=large_bodies(web))


def test_a_frontier_locked_by_another_process_pauses_the_crawl_until_it_lets_go(tmp_path: Path) -> None:
    out = tmp_path / "crawl"
    holder: list[Connection] = []

    def lock() -> None:
        holder.append(locked(out))

    with small(tmp_path) as web:
        said = endure(web, out, tmp_path, "store_unavailable", lock, lambda: holder[0].close())
        assert "locked" in said


def test_a_frontier_that_stays_locked_when_a_crawl_opens_is_named_instead_of_waited_for(
    tmp_path: Path,
) -> None:
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        command = arguments(web, out, "--delay", str(DELAY_S))
        first = run([*command, "--pages", "3"], timeout_s=SOON_S)
        assert first.returncode == 0, first.stderr
        other = locked(out)
        refused = run(command, timeout_s=SOON_S)
        assert refused.returncode == 14, refused.stdout + refused.stderr
        assert "locked" in refused.stderr
        assert "internal" not in refused.stderr
        other.close()
        done = run(command, timeout_s=SOON_S)
        assert done.returncode == 0, done.stderr
        judge(web, out, DELAY_S)


def test_an_archive_that_turned_read_only_pauses_the_crawl_until_it_can_be_written(tmp_path: Path) -> None:
    """Read-only from one run to the next: the second run finds it so at its first append."""
    out = tmp_path / "crawl"
    archive = out / "archive"
    with small(tmp_path) as web, ExitStack() as undo:
        command = arguments(web, out, "--delay", str(DELAY_S))
        first = run([*command, "--pages", "8"], timeout_s=SOON_S)
        assert first.returncode == 0, first.stderr
        undo.enter_context(mounted(archive, "--bind", str(archive)))
        subprocess.run(["mount", "-o", "remount,bind,ro", str(archive)], check=True)
        with running(command, tmp_path / "amble.out") as amble:
            said = wait_for_trouble(out, "archive_unavailable", amble)
            assert "ead-only" in said
            assert_paused(web)
            unmount(archive)
            assert amble.wait(SOON_S) == 0, amble.text()
        judge(web, out, DELAY_S)


def test_a_wall_clock_stepped_by_hours_changes_nothing(tmp_path: Path) -> None:
    """An hour ahead and two back in the middle of a run, and a next run that starts an hour in the past."""
    out, clock, library = tmp_path / "crawl", tmp_path / "clock", tmp_path / "step_clock.so"
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source = Path(__file__).parents[1] / "support" / "step_clock.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    env = {"LD_PRELOAD": str(library), "STEP_CLOCK": str(clock)}
    clock.write_bytes(bytes(8))

    def step_to(hours: int) -> None:
        with clock.open("r+b") as file:
            file.write(struct.pack("l", hours * 3600))

    with small(tmp_path) as web:
        command = arguments(web, out, "--delay", str(DELAY_S))
        with running(command, tmp_path / "amble.out", env) as amble:
            wait_for_requests(web, 8, amble)
            step_to(1)
            wait_for_requests(web, 16, amble)
            step_to(-1)
            wait_for_requests(web, 24, amble)
            amble.send(signal.SIGINT)
            assert amble.wait(SOON_S) == 10, amble.text()
        opened = events(out, "crawl.opened")
        done = run(command, timeout_s=SOON_S, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        again = events(out, "crawl.opened")[-1]
        assert again["at"] < opened[0]["at"], "the library stepped nothing"
        judge(web, out, DELAY_S)
        robots = [entry.url for entry in log.load(web.log_path) if entry.is_robots]
        assert len(robots) == len(set(robots)), "robots.txt was asked for again though it was fresh"


def test_a_dead_name_server_pauses_the_crawl_until_it_answers(tmp_path: Path) -> None:
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        web.control("dns", state="dead")
        with running(arguments(web, out, "--delay", str(DELAY_S)), tmp_path / "amble.out") as amble:
            said = wait_for_trouble(out, "dns_unavailable", amble)
            assert served(web) == 0
            web.control("dns", state="alive")
            assert amble.wait(SOON_S) == 0, amble.text()
            assert f"trouble: {said}" in amble.text()
            assert "trouble is over" in amble.text()
        judge(web, out, DELAY_S)


def test_a_name_that_nobody_answers_for_pauses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        seeds = [web.url("drop"), *web.seeds]
        done = run(
            arguments(web, out, "--delay", str(DELAY_S), "--set", "retry.tries_max=1", seeds=seeds),
            timeout_s=SOON_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert events(out, "trouble.began") == []
        judge(web, out, DELAY_S)


def children(amble: AmbleProcess) -> set[int]:
    return set(amble.descendants(CHILD))


def test_parser_children_killed_again_and_again_cost_no_page(tmp_path: Path) -> None:
    """All of them at once, three times, each time after new ones have parsed what waited.

    A page whose child dies twice counts as the culprit, so the next blow waits until the last victim is through.
    """
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        with running(arguments(web, out, "--delay", "0.25"), tmp_path / "amble.out") as amble:
            pages = 0
            for _ in range(3):
                wait_until(lambda least=pages + 6: told(out, "pages") >= least, SOON_S, "six pages more")
                pages = told(out, "pages")
                wait_until(lambda: told(out, "parse_backlog") == 0, SOON_S, "everything parsed")
                assert amble.process.poll() is None, amble.text()
                for pid in children(amble):
                    kill(pid)
            assert amble.wait(SOON_S) == 0, amble.text()
        assert not [event for event in events(out, "parse.failed") if event["final"]]
        judge(web, out, 0.25)


def test_a_stopped_parser_child_costs_no_page(tmp_path: Path) -> None:
    """It holds its page until the wall limit ends it; the page is parsed by another child."""
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        command = arguments(web, out, "--delay", "0.2", "--set", "parse.wall_s=1.5", "--set", "parse.cpu_s=1")
        with running(command, tmp_path / "amble.out") as amble:
            wait_for_requests(web, 8, amble)
            busiest = max(children(amble), key=cpu_s)
            os.kill(busiest, signal.SIGSTOP)
            assert amble.wait(SOON_S) == 0, amble.text()
        failed = events(out, "parse.failed")
        assert [event["reason"] for event in failed] == ["wall"], failed
        assert not failed[0]["final"]
        judge(web, out, 0.2)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("broken", ["archive", "frontier"])
def test_answers_in_hand_outlive_a_trouble_longer_than_their_leases(tmp_path: Path, broken: str) -> None:
    """A lease of three seconds' fetch holds for 33 seconds; after 45 of trouble nothing is asked for again."""
    out, limits = tmp_path / "crawl", ["connect_s", "tls_s", "first_byte_s", "idle_s", "total_s"]
    short = [word for name in limits for word in ("--set", f"fetch.{name}=3")]
    with small(tmp_path) as web, small_disk(out / "archive", "90m") as archive, ExitStack() as undo:
        command = arguments(web, out, "--delay", str(DELAY_S), *short)
        with running(command, tmp_path / "amble.out") as amble:
            wait_for_requests(web, 10, amble)
            if broken == "archive":
                fill(archive / "ballast", 32 << 20)
                undo.callback((archive / "ballast").unlink)
            else:
                undo.callback(locked(out).close)
            wait_for_trouble(out, f"{'store' if broken == 'frontier' else broken}_unavailable", amble)
            time.sleep(45)
            undo.close()
            assert amble.wait(SOON_S) == 0, amble.text()
        assert events(out, "lease.lapsed") == []
        judge(web, out, DELAY_S)
