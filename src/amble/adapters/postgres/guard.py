"""The process between an embedded PostgreSQL server and its owner: the server ends when the owner does, however.

Run as a script by path, with nothing but the standard library. Standard input is the lifeline: its other end is held
by the owner and closes with it, also when the owner is killed. The guard adopts what the server leaves behind, so once
the guard is gone nothing of the server is alive.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# An immediate shutdown takes milliseconds; a server that has not ended by then is killed.
ENDING_S = 10.0


def main() -> int:
    """Run the server until it ends or the lifeline closes. Returns its exit code, 128 + n for a signal n."""
    options = _options()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    server = _server(options)
    owner_gone = False
    try:
        owner_gone = _watch(server)
    finally:
        code = _end(server)
        _end_adopted()
        if owner_gone and options.remove_with_owner:
            free_shared_memory(options.data)
            options.remove += options.remove_with_owner
        for path in options.remove:
            shutil.rmtree(path, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--remove", action="append", default=[])
    parser.add_argument("--remove-with-owner", action="append", default=[])
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def _server(options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """The server as its user. Should even the guard be killed, the kernel asks the server to quit."""
    libc = ctypes.CDLL(None)

    def quit_with_the_guard() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)

    return subprocess.Popen(
        options.command,
        stdin=subprocess.DEVNULL,
        cwd="/",
        user=options.uid,
        group=options.gid,
        extra_groups=[] if options.uid is not None else None,
        preexec_fn=quit_with_the_guard,  # one thread here
    )


def _watch(server: subprocess.Popen[bytes]) -> bool:
    """Wait for the end of the server or of its owner, and tell whether it is the owner's."""
    end = os.pidfd_open(server.pid)
    try:
        ready, _, _ = select.select([sys.stdin, end], [], [])  # nothing is ever written to the lifeline
    finally:
        os.close(end)
    return end not in ready


def _end(server: subprocess.Popen[bytes]) -> int:
    """Immediate shutdown: what was committed is in the log, and the next start recovers it."""
    if server.poll() is None:
        server.send_signal(signal.SIGCONT)
        server.send_signal(signal.SIGQUIT)
    try:
        return server.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()


def _end_adopted() -> None:
    """Kill and reap the processes of a server that died before them, stopped ones too."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in children:
            os.kill(int(child), signal.SIGKILL)
            os.waitpid(int(child), 0)


def free_shared_memory(data: Path) -> None:
    """A killed server leaves its System V segment to the next start, which will not come when the folder goes."""
    try:
        segment = int((data / "postmaster.pid").read_text().splitlines()[6].split()[1])
    except (OSError, ValueError, IndexError):
        return
    ctypes.CDLL(None).shmctl(segment, 0, None)


if __name__ == "__main__":
    sys.exit(main())
