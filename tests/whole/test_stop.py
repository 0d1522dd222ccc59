"""Stopping and going on: signals, locks, a lost store, a closed pipe, budgets. The same command always completes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.amble_process import kill, run, running, wait_until
from tests.web.handle import TestWeb
from tests.whole.rig import (
    LEASED,
    SOON_S,
    arguments,
    fill,
    in_state,
    judge,
    locked,
    served,
    small_disk,
    wait_for_requests,
    wait_for_trouble,
)

DELAY_S = 0.05
STOPPED, FORCED, BUSY, UNUSABLE = 10, 11, 12, 14
# What a first Ctrl-C may take: three seconds for requests, five for parsing, and the end itself.
STOP_S = 15.0


def small(folder: Path) -> TestWeb:
    return TestWeb.start(folder, sites=3, pages=24)


def again(web: TestWeb, out: Path) -> None:
    done = run(arguments(web, out, "--delay", str(DELAY_S)), timeout_s=SOON_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_first_signal_stops_soon_with_nothing_in_flight_and_the_same_command_completes(
    tmp_path: Path,
) -> None:
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        with running(arguments(web, out, "--delay", str(DELAY_S)), tmp_path / "amble.out") as amble:
            wait_for_requests(web, 12, amble)
            amble.send(signal.SIGINT)
            assert amble.wait(STOP_S) == STOPPED, amble.text()
        assert "Stopped cleanly" in amble.text()
        assert in_state(out, LEASED) == []
        again(web, out)
        judge(web, out, DELAY_S)


def test_a_second_signal_ends_at_once_and_the_same_command_completes(tmp_path: Path) -> None:
    """A request that will never be answered keeps the orderly stop waiting, so that the second one finds it."""
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        with running(arguments(web, out, "--delay", str(DELAY_S)), tmp_path / "amble.out") as amble:
            wait_for_requests(web, 8, amble)
            web.control("site", host="*", stall=True)
            wait_for_requests(web, 9, amble)
            time.sleep(0.2)
            amble.send(signal.SIGINT)
            amble.send(signal.SIGTERM)
            asked_s = time.monotonic()
            assert amble.wait(STOP_S) == FORCED, amble.text()
            assert time.monotonic() - asked_s < 2.5
        assert "stopped at once; the same command goes on" in amble.text()
        web.control("clear", host="*")
        in_flight = Counter(in_state(out, LEASED))
        again(web, out)
        judge(web, out, DELAY_S, again=in_flight)


def test_a_first_sigterm_ends_requests_that_are_never_answered(tmp_path: Path) -> None:
    """They are put back within the grace and asked for again by the next run."""
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        with running(arguments(web, out, "--delay", str(DELAY_S)), tmp_path / "amble.out") as amble:
            wait_for_requests(web, 8, amble)
            web.control("site", host="*", stall=True)
            wait_for_requests(web, 9, amble)
            amble.send(signal.SIGTERM)
            assert amble.wait(STOP_S) == STOPPED, amble.text()
        assert in_state(out, LEASED) == []
        web.control("clear", host="*")
        again(web, out)


def test_a_signal_stops_soon_also_while_the_frontier_cannot_be_written(tmp_path: Path) -> None:
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        with running(arguments(web, out, "--delay", str(DELAY_S)), tmp_path / "amble.out") as amble:
            wait_for_requests(web, 8, amble)
            other = locked(out)
            wait_for_trouble(out, "store_unavailable", amble)
            amble.send(signal.SIGINT)
            assert amble.wait(STOP_S) in (STOPPED, UNUSABLE), amble.text()
        assert "store" in amble.text() or "frontier" in amble.text()
        other.close()
        in_flight = Counter(in_state(out, LEASED))
        again(web, out)
        judge(web, out, DELAY_S, again=in_flight)


def test_a_terminal_that_goes_away_stops_the_crawl_cleanly(tmp_path: Path) -> None:
    """SIGHUP comes when the terminal can no longer be written: the crawl must stop all the same."""
    out = tmp_path / "crawl"
    ours, theirs = os.openpty()
    with small(tmp_path) as web:
        process = subprocess.Popen(
            [sys.executable, "-m", "amble.faces.cli", *arguments(web, out, "--delay", "0.3")],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            # Tests that were started with nohup would hand down that a hang-up is to be ignored.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        os.close(theirs)
        try:
            shown = b""
            while b"pages" not in shown:
                shown += os.read(ours, 4096)
            os.close(ours)
            process.send_signal(signal.SIGHUP)
            process.wait(STOP_S)
            assert process.returncode == STOPPED, (
                "neither the signal nor the lost terminal is what it died of"
            )
        finally:
            process.kill()
            process.wait()
        assert in_state(out, LEASED) == []
        again(web, out)
        judge(web, out, DELAY_S, verify=False)


def test_a_crawl_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        command = [sys.executable, "-m", "amble.faces.cli", *arguments(web, out, "--delay", "0.02")]
        with (tmp_path / "nohup.out").open("wb") as log:
            process = subprocess.Popen(["nohup", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(lambda: served(web) >= 8, SOON_S, "8 requests")
            process.send_signal(signal.SIGHUP)
            assert process.wait(SOON_S) == 0, (tmp_path / "nohup.out").read_text()
        finally:
            process.kill()
            process.wait()
        judge(web, out, 0.02)


@pytest.mark.parametrize("form", [["--json"], pytest.param([], marks=pytest.mark.soak)])
def test_a_reader_that_has_seen_enough_stops_the_crawl_cleanly(tmp_path: Path, form: list[str]) -> None:
    """`amble crawl … 2>&1 | head -1`"""
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        crawl = subprocess.Popen(
            [sys.executable, "-m", "amble.faces.cli", *arguments(web, out, "--delay", "0.3", *form)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            head = subprocess.run(
                ["head", "-1"], stdin=crawl.stdout, capture_output=True, text=True, check=True
            )
            assert crawl.stdout is not None
            crawl.stdout.close()
            assert "Traceback" not in head.stdout
            assert crawl.wait(30) in (0, STOPPED)
        finally:
            crawl.kill()
            crawl.wait()
        assert in_state(out, LEASED) == []
        again(web, out)
        judge(web, out, DELAY_S, verify=False)


def test_a_second_amble_on_the_folder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        command = arguments(web, out, "--delay", "0.4")
        with running(command, tmp_path / "amble.out") as amble:
            wait_for_requests(web, 4, amble)
            second = run(command, timeout_s=SOON_S)
            assert second.returncode == BUSY
            assert f"process {amble.pid}" in second.stderr
            assert amble.process.poll() is None, "the first one was disturbed"
            amble.send(signal.SIGINT)
            assert amble.wait(STOP_S) == STOPPED


def test_the_lock_file_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        (out / "run").mkdir(parents=True)
        (out / "run" / "lock").write_text(f"{gone.pid}\n")
        again(web, out)
        judge(web, out, DELAY_S, verify=False)


def test_a_killed_store_process_ends_the_run_with_a_clear_error_and_the_same_command_goes_on(
    tmp_path: Path,
) -> None:
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        with running(arguments(web, out, "--delay", str(DELAY_S)), tmp_path / "amble.out") as amble:
            wait_for_requests(web, 12, amble)
            (store,) = amble.descendants("amble.adapters.sql.server")
            kill(store)
            assert amble.wait(STOP_S) == UNUSABLE, amble.text()
        assert "the store process ended" in amble.text()
        assert "Traceback" not in amble.text()
        in_flight = Counter(in_state(out, LEASED))
        again(web, out)
        judge(web, out, DELAY_S, again=in_flight)


def test_a_spent_page_budget_ends_cleanly_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        few = run(arguments(web, out, "--delay", str(DELAY_S), "--json", "--pages", "10"), timeout_s=SOON_S)
        result = json.loads(few.stdout.splitlines()[-1])
        assert (few.returncode, result["reason"]) == (0, "page_budget"), few.stdout
        assert result["pages"] == 10
        assert in_state(out, LEASED) == []
        again(web, out)
        judge(web, out, DELAY_S, verify=False)


def test_a_spent_time_budget_ends_cleanly_and_the_next_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "crawl"
    with small(tmp_path) as web:
        command = arguments(web, out, "--delay", str(DELAY_S), "--json")
        short = run([*command, "--max-time", "1s"], timeout_s=SOON_S)
        result = json.loads(short.stdout.splitlines()[-1])
        assert (short.returncode, result["reason"]) == (0, "time_budget"), short.stdout
        assert result["queued"] > 0
        assert in_state(out, LEASED) == []
        done = run([*command, "--max-time", "unlimited"], timeout_s=SOON_S)
        assert done.returncode == 0, done.stdout + done.stderr
        judge(web, out, DELAY_S, verify=False)


def test_a_signal_stops_soon_also_while_the_archive_cannot_be_written(tmp_path: Path) -> None:
    """What was fetched and could not be kept goes back to the queue, and is asked for again."""
    out = tmp_path / "crawl"
    with small(tmp_path) as web, small_disk(out / "archive", "90m") as archive:
        with running(arguments(web, out, "--delay", str(DELAY_S)), tmp_path / "amble.out") as amble:
            wait_for_requests(web, 8, amble)
            fill(archive / "ballast")
            wait_for_trouble(out, "archive_unavailable", amble)
            amble.send(signal.SIGINT)
            assert amble.wait(STOP_S) == UNUSABLE, amble.text()
        assert "disk is full" in amble.text()
        assert in_state(out, LEASED) == []
        (archive / "ballast").unlink()
        again(web, out)


@pytest.mark.parametrize("broken", [pytest.param("archive", marks=pytest.mark.soak), "frontier"])
def test_a_time_budget_ends_a_run_also_in_trouble(tmp_path: Path, broken: str) -> None:
    out = tmp_path / "crawl"
    with small(tmp_path) as web, small_disk(out / "archive", "90m") as archive:
        command = arguments(web, out, "--delay", str(DELAY_S), "--max-time", "4s")
        with running(command, tmp_path / "amble.out") as amble:
            wait_for_requests(web, 6, amble)
            if broken == "archive":
                fill(archive / "ballast")
            else:
                other = locked(out)
            assert amble.wait(STOP_S) == UNUSABLE, amble.text()
        if broken == "frontier":
            other.close()
