"""amble as its users run it: a process of its own, whose tree can be watched, stopped and killed from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class AmbleProcess:
    """One run of the command. Standard output and error go to a file beside the crawl folder."""

    def __init__(self, arguments: Sequence[str], output: Path, env: dict[str, str] | None = None) -> None:
        self.output = output
        with output.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "amble.faces.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def tree(self) -> list[int]:
        """The process and all its descendants, parents first."""
        found, queue = [], [self.pid]
        while queue:
            pid = queue.pop(0)
            found.append(pid)
            queue += children_of(pid)
        return found

    def descendants(self, module: str) -> list[int]:
        """Descendants whose command line names `module`."""
        return [pid for pid in self.tree() if module in command_line(pid)]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill_tree(self) -> None:
        """kill -9 of everything at once, the parent first so that it can clean up nothing."""
        for pid in self.tree():
            kill(pid)
        self.process.wait()

    def wait(self, timeout_s: float) -> int:
        return self.process.wait(timeout=timeout_s)

    def text(self) -> str:
        return self.output.read_text(errors="replace")


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        except OSError:
            continue
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def cpu_s(pid: int) -> float:
    """User and system seconds that a live process has used, children not counted."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@contextmanager
def running(
    arguments: Sequence[str], output: Path, env: dict[str, str] | None = None
) -> Iterator[AmbleProcess]:
    """A run that is certainly over when the block ends."""
    amble = AmbleProcess(arguments, output, env)
    try:
        yield amble
    finally:
        if amble.process.poll() is None:
            amble.kill_tree()


def run(
    arguments: Sequence[str], *, timeout_s: float = 60, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a short command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "amble.faces.cli", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **(env or {})},
        check=False,
    )


def run_json(arguments: Sequence[str], **options: object) -> object:
    """Run a command with --json and parse what it prints."""
    done = run([*arguments, "--json"], **options)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr or done.stdout
    return json.loads(done.stdout)


def wait_until(condition, timeout_s: float, what: str) -> None:  # type: ignore[no-untyped-def]
    """Poll something outside this process that gives no signal of its own."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"within {timeout_s} s: {what}")
        time.sleep(0.02)
