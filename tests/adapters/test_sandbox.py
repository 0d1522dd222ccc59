"""The pool under hostile pages, dying children and lying children."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from amble.adapters.sandbox import pool as pool_module
from amble.adapters.sandbox import process
from amble.adapters.sandbox.pool import SandboxPool
from amble.domain.errors import SandboxUnavailable
from amble.domain.policy import ParseLimits
from amble.formats.registry import EXTRACTION_GENERATION
from amble.ports import Parsed, ParseFailure
from tests.contract.test_parser_pool import parsed, task

# Work for a second or more, in a body of a few KB.
FORMATTING_BOMB = "".join(f"<p><font size={i}>" for i in range(6_000))


@asynccontextmanager
async def opened(
    limits: ParseLimits | None = None, size: int = 1, **options: object
) -> AsyncIterator[SandboxPool]:
    pool = await SandboxPool.open(limits=limits or ParseLimits(), size=size, **options)  # type: ignore[arg-type]
    try:
        yield pool
    finally:
        await pool.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


# Section by section what parsers are known to choke on, at a size that keeps the suite quick.
HOSTILE = {
    "unclosed blocks": "<div>" * 200_000,
    "attributes": "<a " + " ".join(f"a{i}=1" for i in range(20_000)) + " href=/x>x</a>",
    "formatting": FORMATTING_BOMB[:30_000],
    "options": "<select>" + "<option>x" * 50_000,
    "links": "".join(f"<a href=/{i}>x</a>" for i in range(100_000)),
    "cells": "<table>" + "<tr><td>x" * 50_000,
    "one attribute": "<a href='" + "x" * 5_000_000 + "'>x</a>",
    "one text": "<p>" + "word" * 1_500_000,
    "nulls": "\0" * 500_000,
    "angles": "<" * 500_000,
    "comments": "<!--" * 250_000,
    "end tags": "</p>" * 500_000,
    "entities": "&amp;" * 300_000 + "&notanentityatallbutlong;" * 50_000,
    "nested tables": "<table><tr><td>" * 10_000,
    "foster parents": "<table>" + "<b>x" * 50_000,
    "foreign depth": "<svg>" + "<g>" * 50_000,
    "nested anchors": "<a href=/1><table><tr><td>" * 20_000 + "text " * 100_000,
    "long words": "<p>" + " ".join(f"{i:0400d}" for i in range(5_000)),
    "refresh": "<meta http-equiv=refresh content='" + " " * 200_000 + "'>",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hostile_pool() -> AsyncIterator[SandboxPool]:
    async with opened(ParseLimits(cpu_s=3.0, memory_bytes_max=400 * 1024 * 1024), size=2) as pool:
        yield pool


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_page_has_an_outcome_and_spoils_no_other(
    name: str, hostile_pool: SandboxPool
) -> None:
    hostile = asyncio.create_task(hostile_pool.parse(task(HOSTILE[name])))
    normal = parsed(await hostile_pool.parse(task("<title>fine</title>")))
    assert normal.manifest.title == "fine"
    outcome = await hostile
    assert isinstance(outcome, Parsed) or outcome.reason in {"cpu", "memory", "crashed"}
    if isinstance(outcome, Parsed):
        assert len(outcome.manifest.links) <= ParseLimits().links_max


async def test_over_its_cpu_time_a_page_costs_itself_a_strike_and_the_child() -> None:
    async with opened(ParseLimits(cpu_s=0.05)) as pool:
        outcome = await pool.parse(task(FORMATTING_BOMB))
        assert isinstance(outcome, ParseFailure)
        assert outcome.reason == "cpu"
        assert parsed(await pool.parse(task("<p>next"))).text == b"next"
        assert pool.deaths == 1


async def test_over_its_memory_a_page_fails_and_the_next_is_read() -> None:
    async with opened(ParseLimits(memory_bytes_max=48 * 1024 * 1024)) as pool:
        outcome = await pool.parse(task("<table>" + "<tr><td>x" * 300_000))
        assert isinstance(outcome, ParseFailure)
        assert outcome.reason in {"memory", "crashed"}
        assert parsed(await pool.parse(task("<p>next"))).text == b"next"


async def test_a_child_that_does_not_answer_is_ended_by_the_wall_clock() -> None:
    async with opened(ParseLimits(wall_s=0.3)) as pool:
        for pid in pool.pids:
            os.kill(pid, signal.SIGSTOP)
        outcome = await pool.parse(task("<p>x"))
        assert isinstance(outcome, ParseFailure)
        assert outcome.reason == "wall"


async def test_the_wall_clock_of_one_page_does_not_run_on_into_the_next() -> None:
    async with opened(ParseLimits(wall_s=1.0)) as pool:
        for _ in range(6):
            assert isinstance(await pool.parse(task("<p>x")), Parsed)
            await asyncio.sleep(0.25)
        assert pool.deaths == 0


async def test_the_memory_of_the_agent_is_not_taken_for_that_of_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel's own figure for the peak of a process begins with that of the process which started it."""
    monkeypatch.setattr(pool_module, "PEAK_KB_MAX", 250 * 1024)
    ballast = b"x" * (300 << 20)
    async with opened() as pool:
        (pid,) = pool.pids
        for _ in range(3):
            parsed(await pool.parse(task("<p>x")))
        assert (pool.pids, pool.retirements) == ([pid], 0)
    assert ballast


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_to_all_processes_of_a_crawl_costs_no_page(number: signal.Signals) -> None:
    """Ctrl-C reaches the whole terminal, and a service manager that stops a crawl asks each of its processes."""
    async with opened() as pool:
        (pid,) = pool.pids
        os.kill(pid, number)
        parsed(await pool.parse(task("<p>x")))
        assert pool.pids == [pid]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
async def test_a_child_that_dies_at_work_fails_its_page_and_is_replaced(number: signal.Signals) -> None:
    async with opened() as pool:
        before = set(pool.pids)
        working = asyncio.create_task(pool.parse(task(FORMATTING_BOMB)))
        await until(lambda: bool(pool._at_work) and next(iter(pool._at_work)).busy)
        os.kill(next(iter(pool._at_work)).pid, number)
        outcome = await working
        assert isinstance(outcome, ParseFailure)
        assert outcome.reason == "crashed"
        assert number.name in outcome.detail
        await until(lambda: len(pool._idle) == 2)
        assert not set(pool.pids) & before


async def test_idle_children_killed_from_outside_cost_no_page_anything() -> None:
    async with opened(size=2) as pool:
        await until(lambda: len(pool._idle) == 2)
        for pid in pool.pids:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: pool.deaths == 2)
        assert parsed(await pool.parse(task("<p>next"))).text == b"next"


async def test_children_are_replaced_after_enough_pages_without_a_stall() -> None:
    async with opened(ParseLimits(pages_per_child_max=5)) as pool:
        first = set(pool.pids)
        for _ in range(3):
            parsed(await pool.parse(task("<p>x")))
        await until(lambda: len(pool._idle) == 2)
        for _ in range(5):
            parsed(await pool.parse(task("<p>x")))
        await until(lambda: len(pool._idle) == 2)
        assert pool.retirements >= 1
        assert pool.deaths == 0
        assert set(pool.pids) != first


async def test_a_child_that_grew_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as pool:
        monkeypatch.setattr(pool_module, "PEAK_KB_MAX", 100 * 1024)
        parsed(await pool.parse(task("<table>" + "<tr><td>x" * 100_000)))
        await until(lambda: pool.retirements == 1)


async def test_a_short_crawl_starts_no_spare_child_and_a_longer_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "SPARE_AFTER_PAGES", 3)
    async with opened() as pool:
        for count in (1, 1, 2):
            parsed(await pool.parse(task("<p>x")))
            assert len(pool.pids) == count


async def test_a_body_beyond_the_shared_memory_is_read_up_to_there_with_a_note() -> None:
    async with opened(body_bytes_max=64 * 1024) as pool:
        outcome = parsed(await pool.parse(task("<title>big</title>" + "x " * 100_000)))
        assert outcome.manifest.title == "big"
        assert outcome.manifest.decoded_bytes == 64 * 1024
        assert "body_cut" in outcome.manifest.notes


async def test_closing_tells_those_who_wait_and_leaves_no_process() -> None:
    pool = await SandboxPool.open(limits=ParseLimits(), size=1)
    pids = pool.pids
    callers = [asyncio.create_task(pool.parse(task(FORMATTING_BOMB))) for _ in range(3)]
    await until(lambda: bool(pool._at_work) and next(iter(pool._at_work)).busy)
    await pool.close()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ParseFailure, SandboxUnavailable, SandboxUnavailable]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# --- children that lie: each program plays a hijacked child; `say` writes a frame, `hear` reads one ----------------

_LIAR = """
import os, struct, sys, time
sys.modules["typing_extensions"] = None
import msgspec
fd, generation = int(sys.argv[1]), int(sys.argv[3])
def hear():
    size = struct.unpack("<I", os.read(fd, 4))[0]
    return os.read(fd, size)
def frame(*message):
    data = msgspec.msgpack.encode(message)
    return struct.pack("<I", len(data)) + data
def say(*message):
    data = frame(*message)
    while data:
        data = data[os.write(fd, data):]
def manifest(**other):
    return {"extraction_generation": generation, "url": "https://www.example.com/dir/page.html?x=1",
            "content_kind": "html", **other}
hear()
say("ready", generation, [], [])
hear()
"""

LIES = {
    "a frame without end": "os.write(fd, b'\\xff\\xff\\xff\\xff' + b'x' * 100)",
    "two answers at once": "os.write(fd, frame('done', 1, manifest(), b'', None, 1) + b'more')",
    "no msgpack": "os.write(fd, struct.pack('<I', 3) + b'\\xc1\\xc1\\xc1')",
    "wrong types": "say('done', 1, 'manifest', b'', None, 1)",
    "no such message": "say('pwned')",
    "another answer": "say('done', 7, manifest(), b'', None, 1)",
    "another failure": "say('failed', 7, 'internal', '', 1)",
    "ready twice": "say('ready', 1, [], [])",
    "another page": "say('done', 1, manifest(url='https://other.example/'), b'', None, 1)",
    "another generation": "say('done', 1, manifest(extraction_generation=1), b'', None, 1)",
    "text it does not own up to": "say('done', 1, manifest(), b'text', None, 1)",
    "too much text": "say('done', 1, manifest(text_bytes=5000000, main_bytes=5000000), b'x' * 5000000, None, 1)",
    "a link of no kind": "say('done', 1, manifest(links=[['http://a/', 999]]), b'', None, 1)",
    "too long a title": "say('done', 1, manifest(title='x' * 5000), b'', None, 1)",
    "too large a number": "say('done', 1, manifest(directives=1 << 62), b'', None, 1)",
    "a number below zero": "say('done', 1, manifest(fingerprint=-1), b'', None, 1)",
    "a delay that is no time": "say('done', 1, manifest(robots=[[], float('nan')]), b'', None, 1)",
    "a delay without end": "say('done', 1, manifest(robots=[[], float('inf')]), b'', None, 1)",
    "too many links": "say('done', 1, manifest(links=[['http://a/', 1]] * 50001), b'', None, 1)",
}


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def install(lie: str) -> None:
        def spawned(inherited: tuple[int, int], errors: int) -> subprocess.Popen[bytes]:
            program = [sys.executable, "-I", "-c", f"{_LIAR}\n{lie}\ntime.sleep(60)"]
            program += [str(number) for number in (*inherited, EXTRACTION_GENERATION)]
            return subprocess.Popen(program, stderr=errors, pass_fds=inherited)

        monkeypatch.setattr(process, "_spawned", spawned)

    return install


@pytest.mark.parametrize("lie", LIES)
async def test_a_child_that_lies_is_not_believed_and_ended(lie: str, liar: Callable[[str], None]) -> None:
    liar(LIES[lie])
    async with opened() as pool:
        outcome = await pool.parse(task("<p>x"))
        assert isinstance(outcome, ParseFailure)
        assert outcome.reason == "garbage"


async def test_a_child_that_leaves_quietly_has_crashed(liar: Callable[[str], None]) -> None:
    liar("sys.exit(0)")
    async with opened() as pool:
        outcome = await pool.parse(task("<p>x"))
        assert isinstance(outcome, ParseFailure)
        assert outcome.reason == "crashed"


# --- children that do not start ---------------------------------------------------------------------------------


@pytest.fixture
def broken_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawned(inherited: tuple[int, int], errors: int) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-I", "-S", "-c", "raise SystemExit('no such library')"]
        return subprocess.Popen(program, stderr=errors, pass_fds=inherited)

    monkeypatch.setattr(process, "_spawned", spawned)
    monkeypatch.setattr(pool_module, "PAUSE_S_FIRST", 0.01)


async def opening_fails() -> None:
    with pytest.raises(SandboxUnavailable, match="no such library"):
        await SandboxPool.open(limits=ParseLimits(), size=1)


@pytest.mark.usefixtures("broken_start")
async def test_a_pool_without_any_child_says_why() -> None:
    await opening_fails()


async def test_a_system_that_refuses_processes_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(inherited: tuple[int, int], errors: int) -> subprocess.Popen[bytes]:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(process, "_spawned", refused)
    monkeypatch.setattr(pool_module, "PAUSE_S_FIRST", 0.01)
    with pytest.raises(SandboxUnavailable, match="temporarily unavailable"):
        await SandboxPool.open(limits=ParseLimits(), size=1)


async def test_a_pool_whose_children_cannot_be_replaced_recovers_when_they_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "PAUSE_S_FIRST", 0.01)
    real = process._spawned
    async with opened() as pool:
        monkeypatch.setattr(process, "_spawned", lambda *_: real(_no_descriptors(), _[1]))
        for pid in pool.pids:
            os.kill(pid, signal.SIGKILL)
        await _refused(lambda: pool.parse(task("<p>x")))
        monkeypatch.setattr(process, "_spawned", real)
        await until(lambda: bool(pool._idle))
        assert parsed(await pool.parse(task("<p>back"))).text == b"back"


def _no_descriptors() -> tuple[int, int]:
    # Standard output in place of the socket: the child cannot say that it is ready.
    return (1, 1)


async def _refused(call: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(SandboxUnavailable):
            while True:
                await call()


async def test_children_end_when_the_agent_is_killed() -> None:
    program = (
        "import asyncio\n"
        "from amble.adapters.sandbox.pool import SandboxPool\n"
        "from amble.domain.policy import ParseLimits\n"
        "async def main():\n"
        "    pool = await SandboxPool.open(limits=ParseLimits(), size=1)\n"
        "    print(*pool.pids, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        children = [os.pidfd_open(int(pid)) for pid in agent.stdout.readline().split()]
        agent.kill()
    for child in children:
        ended, _, _ = select.select([child], [], [], 10)
        os.close(child)
        assert ended
