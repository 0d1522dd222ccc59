"""The test web from a test: start it as a process, know its ports, change it, read its log, and be sure that it ends.

    with TestWeb.start(tmp_path, sites=3, pages=60) as web:
        crawl(web.seeds, resolver=web.dns)
        assert not judge(load(web.log_path))

Ends with the block, and also when the test process is killed: the child watches a pipe that only we hold open.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.web.web import NEIGHBOURHOOD, Ready, Settings, truth

ROOT = Path(__file__).parents[2]
START_S_MAX = 30.0


class TestWeb:
    """A running test web. Use `start`; works in `with` and in `async with`."""

    __test__ = False  # the name is for people; pytest need not collect it

    #: What a crawl must be allowed to connect to.
    net = NEIGHBOURHOOD

    def __init__(
        self, process: subprocess.Popen[bytes], alive: int, settings: Settings, ready: Ready
    ) -> None:
        self._process, self._alive, self._settings = process, alive, settings
        self.ready = ready
        self.port = ready.port
        self.tls_port = ready.tls_port
        self.ca = ready.ca
        self.dns = f"127.0.0.1:{ready.dns_port}"
        self.seeds = list(ready.seeds)
        assert settings.log is not None
        self.log_path = settings.log

    @classmethod
    def start(cls, folder: Path, *, tls: bool = False, **settings: Any) -> TestWeb:
        """Start with the log in `folder`; `settings` are fields of web.Settings. Returns when it answers."""
        chosen = Settings(log=folder / "access.log", tls=folder if tls else None, **settings)
        ready_in, ready_out = os.pipe()
        alive_in, alive_out = os.pipe()
        command = [sys.executable, "-m", "tests.web", "serve", *_flags(chosen)]
        command += ["--ready-fd", str(ready_out), "--alive-fd", str(alive_in)]
        try:
            process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=(ready_out, alive_in), stdin=subprocess.DEVNULL
            )
        finally:
            os.close(ready_out)
            os.close(alive_in)
        line = _read_line(ready_in)
        if not line:
            os.close(alive_out)
            process.kill()
            process.wait()
            raise RuntimeError("the test web did not start")
        return cls(process, alive_out, chosen, Ready.from_json(line))

    def url(self, name: str, path: str = "/", *, scheme: str = "http") -> str:
        """The URL of a path at the site `name` (with or without .test)."""
        host = name if "." in name else f"{name}.test"
        return f"{scheme}://{host}:{self.port if scheme == 'http' else self.tls_port}{path}"

    def truth(self, *, digests: bool = False) -> dict[str, Any]:
        """What a polite crawl must do with each URL of the closed set (format: closed.py)."""
        return truth(self._settings, self.port, digests=digests)

    def control(self, do: str, **fields: Any) -> dict[str, Any]:
        """One control command (control.py); returns the answer. Raises ValueError when it is not understood."""
        with socket.create_connection(("127.0.0.1", self.ready.control_port), timeout=10) as connection:
            connection.sendall(json.dumps({"do": do, **fields}).encode() + b"\n")
            with connection.makefile() as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer

    def flush(self) -> None:
        """Everything that has been served so far is in the log when this returns."""
        self.control("flush")

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def stop(self) -> None:
        """End it; the log is whole when this returns. Harmless when it has ended."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> TestWeb:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> TestWeb:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()


def _flags(settings: Settings) -> list[str]:
    flags = []
    for name, value in asdict(settings).items():
        if value is not None:
            flags += [f"--{name.replace('_', '-')}", str(value)]
    return flags


def _read_line(fd: int) -> str:
    with os.fdopen(fd) as lines:
        ready, _, _ = select.select([lines], [], [], START_S_MAX)
        return lines.readline() if ready else ""
