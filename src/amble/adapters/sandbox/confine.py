"""Confinement of a parser child: after `confine` it can compute, use the memory it may have, talk on its open socket.

Layers, each independent of the others: rlimits, death with the parent, no new privileges, Landlock with no path and no
port allowed, a seccomp allow-list of system calls. What a kernel lacks is reported, never fatal. No privileges needed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from collections.abc import Callable
from functools import partial

FILES_MAX = 16
# A child lives for thousands of pages; this only ends one that has escaped every other clock (seconds of CPU).
LIFE_CPU_S_MAX = 86_400

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2

# include/uapi/linux/landlock.h; the numbers are the same on all architectures that amble knows.
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_RESTRICT_SELF = 446
_LANDLOCK_VERSION = 1
# How many file access rights each ABI version knows.
_LANDLOCK_FS_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# What computing needs. Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_ALLOWED = {
    "x86_64": {
        "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "munmap": 11, "brk": 12, "rt_sigaction": 13,
        "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "sched_yield": 24, "mremap": 25, "madvise": 28,
        "nanosleep": 35, "getitimer": 36, "setitimer": 38, "getpid": 39, "exit": 60, "gettimeofday": 96,
        "getrusage": 98, "sigaltstack": 131, "gettid": 186, "futex": 202, "restart_syscall": 219,
        "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231,
        "set_robust_list": 273, "getrandom": 318, "membarrier": 324, "rseq": 334,
    },
    "aarch64": {
        "close": 57, "lseek": 62, "read": 63, "write": 64, "pread64": 67, "fstat": 80, "exit": 93, "exit_group": 94,
        "futex": 98, "set_robust_list": 99, "nanosleep": 101, "getitimer": 102, "setitimer": 103,
        "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "sched_yield": 124,
        "restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139,
        "getrusage": 165, "gettimeofday": 169, "getpid": 172, "gettid": 178, "brk": 214, "munmap": 215,
        "mremap": 216, "madvise": 233, "getrandom": 278, "membarrier": 283, "rseq": 293,
    },
}  # fmt: skip
# Memory may be mapped and protected, but never made executable. Both take the protection as their third argument.
_MAPPING = {"x86_64": (9, 10), "aarch64": (222, 226)}
# abort() must end the process, so it may send a signal, but only to itself.
_TGKILL = {"x86_64": 234, "aarch64": 131}
_PROT_EXEC = 4

# include/uapi/linux/bpf_common.h and seccomp.h
_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT, _THIRD_ARGUMENT_AT = 0, 4, 16, 32

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """End when the parent ends, now if it already has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(0)


def confine(memory_bytes_max: int) -> tuple[list[str], list[str]]:
    """Give up everything that parsing does not need; irrevocable.

    `memory_bytes_max`: address space beyond what is mapped now. Returns (layers that hold, layers that are missing).
    """
    layers: tuple[tuple[str, Callable[[], None]], ...] = (
        ("rlimits", partial(_limit, memory_bytes_max)),
        ("no_new_privs", partial(_prctl, _PR_SET_NO_NEW_PRIVS, 1)),
        ("not_dumpable", partial(_prctl, _PR_SET_DUMPABLE, 0)),
        ("landlock", _landlock),
        ("seccomp", _seccomp),
    )
    holding: list[str] = []
    missing: list[str] = []
    for name, apply in layers:
        try:
            apply()
        except OSError as error:
            missing.append(f"{name}: {error.strerror or error}")
        else:
            holding.append(name)
    return holding, missing


def mapped_bytes() -> int:
    """Address space of this process."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def _limit(memory_bytes_max: int) -> None:
    space = mapped_bytes() + memory_bytes_max
    for kind, bound in (
        (resource.RLIMIT_AS, space),
        (resource.RLIMIT_NOFILE, FILES_MAX),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, LIFE_CPU_S_MAX),
    ):
        hard = resource.getrlimit(kind)[1]
        value = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (value, value))


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise _last_error()


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _landlock() -> None:
    """A rule set that handles every right its kernel knows and allows none of them anywhere."""
    abi = _libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    if abi < 1:
        raise _last_error()
    files = (1 << _LANDLOCK_FS_RIGHTS.get(abi, 16)) - 1
    ports = 0b11 if abi >= 4 else 0
    scopes = 0b11 if abi >= 6 else 0
    fields = 3 if abi >= 6 else 2 if abi >= 4 else 1
    attributes = struct.pack("<QQQ", files, ports, scopes)[: 8 * fields]
    rules = _libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        raise _last_error()
    try:
        if _libc.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0) != 0:
            raise _last_error()
    finally:
        os.close(rules)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _seccomp() -> None:
    machine = platform.machine()
    if machine not in _ALLOWED:
        raise OSError(errno.ENOSYS, f"no system call list for {machine}")
    code = filter_code(machine, os.getpid())
    program = _FilterProgram(len(code) // 8, code)
    if _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program), 0, 0) != 0:
        raise _last_error()


def filter_code(machine: str, pid: int) -> bytes:
    """The BPF program: allowed calls pass, all others fail with EPERM; a call of another architecture kills."""
    deny = _instruction(_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allow = _instruction(_RETURN, 0, 0, _ALLOW)
    code = [
        _instruction(_LOAD, 0, 0, _ARCH_AT),
        _instruction(_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        _instruction(_RETURN, 0, 0, _KILL_PROCESS),
        _instruction(_LOAD, 0, 0, _NUMBER_AT),
    ]
    for number in _ALLOWED[machine].values():
        code += [_instruction(_JUMP_EQUAL, 0, 1, number), allow]
    for number in _MAPPING[machine]:
        code += [
            _instruction(_JUMP_EQUAL, 0, 4, number),
            _instruction(_LOAD, 0, 0, _THIRD_ARGUMENT_AT),
            _instruction(_JUMP_SET, 0, 1, _PROT_EXEC),
            deny,
            allow,
        ]
    code += [
        _instruction(_JUMP_EQUAL, 0, 3, _TGKILL[machine]),
        _instruction(_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        _instruction(_JUMP_EQUAL, 0, 1, pid),
        allow,
        deny,
    ]
    return b"".join(code)


def _instruction(operation: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("<HBBI", operation, if_true, if_false, value)
