"""What holds a parser child: each layer, and what the child may still load and do."""

from __future__ import annotations

import errno
import platform
import struct
import subprocess
import sys

import pytest
import pytest_asyncio

from amble.adapters.sandbox import confine
from amble.adapters.sandbox.pool import SandboxPool
from amble.adapters.sandbox.wire import Ready
from amble.domain.policy import ParseLimits

FORBIDDEN_MODULES = {
    "_socket", "_ssl", "_sqlite3", "apsw", "asyncio", "http", "logging", "multiprocessing", "socket", "sqlite3", "ssl",
    "subprocess", "urllib.request", "uvloop",
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def report() -> Ready:
    """What a child said of itself that tried what it must not."""
    pool = await SandboxPool.open(limits=ParseLimits(), size=1, self_test=True)
    try:
        assert pool.confinement["missing"] == []
        assert pool.report is not None
        return pool.report
    finally:
        await pool.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_confined_child_is_denied_everything_it_tries(report: Ready) -> None:
    assert set(report.confinement) == {"rlimits", "no_new_privs", "not_dumpable", "landlock", "seccomp"}
    assert report.missing == []
    assert {name for name, error in report.denied.items() if not error} == set()
    assert len(report.denied) == 12


@pytest.mark.asyncio(loop_scope="module")
async def test_a_child_imports_formats_and_domain_only(report: Ready) -> None:
    modules = set(report.modules)
    assert modules & FORBIDDEN_MODULES == set()
    own = {name for name in modules if name.startswith("amble.")}
    assert all(
        name.startswith(("amble.domain", "amble.formats", "amble.adapters.sandbox"))
        or name in ("amble.adapters", "amble._native")
        for name in own
    )
    assert "amble.ports" not in modules


def run(program: str) -> str:
    """Output of `program` in an interpreter of its own, with confine imported."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import ctypes, os, sys\nfrom amble.adapters.sandbox import confine\n{program}",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.strip()


_TRY = """
def tried(call):
    try:
        call()
    except OSError as error:
        return error.errno
    return 0
"""


def test_landlock_alone_closes_the_file_system() -> None:
    program = f"{_TRY}\nconfine._prctl(38, 1); confine._landlock()\nprint(tried(lambda: os.open('/etc/passwd', 0)), tried(lambda: os.listdir('/')))"
    assert run(program) == f"{errno.EACCES} {errno.EACCES}"


def test_seccomp_alone_closes_files_and_sockets() -> None:
    program = f"{_TRY}\nimport _socket\nconfine._prctl(38, 1); confine._seccomp()\nprint(tried(lambda: os.open('/etc/passwd', 0)), tried(lambda: _socket.socket()), tried(os.fork))"
    assert run(program) == f"{errno.EPERM} {errno.EPERM} {errno.EPERM}"


def test_limits_alone_bound_memory() -> None:
    program = "confine._limit(64 << 20)\ntry:\n    bytearray(100 << 20)\nexcept MemoryError:\n    print('refused')\nprint(len(bytearray(8 << 20)))"
    assert run(program).split() == ["refused", str(8 << 20)]


def test_what_a_machine_lacks_is_reported_and_does_no_harm() -> None:
    program = "import platform\nplatform.machine = lambda: 'riscv64'\nholding, missing = confine.confine(1 << 30)\nprint(holding)\nprint(missing)"
    holding, missing = run(program).splitlines()
    assert "landlock" in holding
    assert "seccomp" not in holding
    assert "riscv64" in missing


def test_a_child_whose_parent_is_gone_ends() -> None:
    assert run("confine.die_with_parent(1 << 30)\nprint('alive')") == ""


# --- the system call filter, run here on every architecture that has one ------------------------------------------


def verdict(code: bytes, data: bytes) -> int:
    """What a classic BPF program of these few instructions answers for one struct seccomp_data."""
    program = [struct.unpack_from("<HBBI", code, at) for at in range(0, len(code), 8)]
    accumulator, counter = 0, 0
    while True:
        operation, if_true, if_false, value = program[counter]
        counter += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x15:
            counter += if_true if accumulator == value else if_false
        elif operation == 0x45:
            counter += if_true if accumulator & value else if_false
        else:
            assert operation == 0x06
            return value


def call(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<iIQ6Q", number, arch or confine._AUDIT_ARCH[machine], 0, *padded)
    return verdict(confine.filter_code(machine, 4242), data)


ALLOW, DENY = 0x7FFF0000, 0x00050000 | errno.EPERM
# open(at), socket, connect, fork/clone, execve, ptrace, kill, io_uring_setup, ftruncate, memfd_create, prctl, bpf
DENIED = {
    "x86_64": [
        2,
        257,
        437,
        41,
        42,
        56,
        57,
        58,
        435,
        59,
        101,
        62,
        425,
        77,
        319,
        157,
        321,
        302,
        16,
        72,
        310,
        9999,
    ],
    "aarch64": [56, 437, 198, 203, 220, 435, 221, 117, 129, 425, 46, 279, 167, 280, 261, 29, 25, 270, 9999],
}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_allows_its_list_and_denies_the_rest(machine: str) -> None:
    allowed = set(confine._ALLOWED[machine].values())
    assert all(call(machine, number) == ALLOW for number in allowed)
    assert all(call(machine, number) == DENY for number in DENIED[machine])
    others = set(range(600)) - allowed - set(confine._MAPPING[machine])
    assert {call(machine, number) for number in others} == {DENY}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_lets_nothing_be_made_executable(machine: str) -> None:
    for number in confine._MAPPING[machine]:
        assert call(machine, number, 0, 4096, 3) == ALLOW
        assert call(machine, number, 0, 4096, 7) == DENY
        assert call(machine, number, 0, 4096, 4) == DENY


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_lets_a_child_signal_only_itself(machine: str) -> None:
    assert call(machine, confine._TGKILL[machine], 4242) == ALLOW
    assert call(machine, confine._TGKILL[machine], 4243) == DENY


def test_a_call_of_another_architecture_kills() -> None:
    assert call("x86_64", 0, arch=0x40000003) == 0x80000000


def test_this_machine_is_one_of_them() -> None:
    if platform.machine() not in confine._ALLOWED:
        pytest.skip("no filter for this machine: the pool reports it")
    assert confine.filter_code(platform.machine(), 1)
