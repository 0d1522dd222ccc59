"""What a confined child tries in vain: each thing a hijacked parser would want to do first."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable

_AF_INET, _AF_UNIX, _SOCK_STREAM = 2, 1, 1
_PTRACE_TRACEME = 0
_libc = ctypes.CDLL(None, use_errno=True)


def attempts() -> dict[str, str]:
    """Name of each attempt, and the error that stopped it; "" where nothing did."""
    tries: dict[str, Callable[[], object]] = {
        "read_file": lambda: os.open("/etc/passwd", os.O_RDONLY),
        "write_file": lambda: os.open("/tmp/amble-self-test", os.O_WRONLY | os.O_CREAT),
        "list_folder": lambda: os.listdir("/"),
        "socket": lambda: _call(_libc.socket(_AF_INET, _SOCK_STREAM, 0)),
        "unix_socket": lambda: _call(_libc.socket(_AF_UNIX, _SOCK_STREAM, 0)),
        "fork": _fork,
        "execute": lambda: os.execv("/bin/true", ["true"]),
        "kill_parent": lambda: os.kill(os.getppid(), 0),
        "ptrace": lambda: _call(_libc.ptrace(_PTRACE_TRACEME, 0, 0, 0)),
        "executable_memory": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC),
        "raise_limits": lambda: os.nice(-1),
        "truncate_shared": lambda: os.ftruncate(0, 0),
    }
    return {name: _tried(attempt) for name, attempt in tries.items()}


def _tried(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _call(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)
