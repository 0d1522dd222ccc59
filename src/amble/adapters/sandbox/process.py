"""One parser child as the pool sees it: a process, a socket, a piece of shared memory, at most one task.

The event loop is told of three things: bytes on the socket, the end of the process (by pidfd), a clock that ran out.
Each ends the task in hand with exactly one outcome.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import msgspec

from amble.adapters.sandbox.wire import (
    FRAME_BYTES_MAX,
    FRAME_LENGTH,
    Answers,
    Done,
    Failed,
    Ready,
    Setup,
    Task,
)
from amble.domain.attempt import Edge
from amble.domain.manifest import ParseManifest
from amble.domain.policy import ParseLimits
from amble.formats.extraction import LISTED_URLS_MAX
from amble.formats.head import HEAD_BYTES_MAX
from amble.ports import Parsed, ParseFailure, ParseTask

SOCKET_BUFFER_BYTES = 1024 * 1024
READ_BYTES = 128 * 1024
# Start messages of a dying interpreter are short; the last of them say why.
LAST_WORDS_BYTES_MAX = 2_000
# A timer that fires this much early has fired.
CLOCK_GRAIN_S = 0.001
# A body larger than this is copied in turns with the rest of the loop, and its pages are given back afterwards.
COPY_AT_ONCE_BYTES_MAX = 1024 * 1024

_ENVIRONMENT: Final = {
    "LANG": "C.UTF-8",
    # One thread per child: the numeric library would otherwise start one per core, each with its own arena.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    # What a page frees serves the next one: given back to the kernel, it would be faulted in and zeroed for each page.
    "MALLOC_TRIM_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_MMAP_THRESHOLD_": str(4 * 1024 * 1024),
    "MALLOC_TOP_PAD_": str(1024 * 1024),
}
_INHERITED_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONHOME")

_EDGES: Final = frozenset(map(int, Edge))

Outcome = Parsed | ParseFailure


class ParserProcess:
    """Starts on construction; `ready` resolves to its Ready message, or to None when it cannot start."""

    def __init__(
        self,
        setup: Setup,
        start_s_max: float,
        on_idle: Callable[[ParserProcess], None],
        on_end: Callable[[ParserProcess], None],
    ) -> None:
        """Raises OSError when the system refuses a process, a socket or memory.

        `on_idle` is called in the loop after each task that the child survived; `on_end` once, when the process is
        gone and its task has its outcome.
        """
        self._loop = asyncio.get_running_loop()
        self._limits: ParseLimits = setup.limits
        self._on_idle = on_idle
        self._on_end = on_end
        self._incoming = bytearray(READ_BYTES)
        self._filled = 0
        self._room = memoryview(self._incoming)
        self._decoder = msgspec.msgpack.Decoder(Answers)
        self._encoder = msgspec.msgpack.Encoder()
        self._number = 0
        self._task: asyncio.Future[Outcome] | None = None
        self._url = ""
        self._generation = 0
        self._body_bytes = 0
        self._verdict: ParseFailure | None = None
        self._killed = False
        self._clock: asyncio.TimerHandle | None = None
        self._wall_at = 0.0
        self.pages = 0
        self.peak_kb = 0
        self.ended = False
        self.last_words = ""
        self.ready: asyncio.Future[Ready | None] = self._loop.create_future()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._start(setup)
        self._start_clock = self._loop.call_later(start_s_max, self._not_started)

    def _start(self, setup: Setup) -> None:
        with ExitStack() as undo:
            self._shared_descriptor = _sealed_memory(setup.shared_bytes)
            undo.callback(os.close, self._shared_descriptor)
            self._errors = os.memfd_create("amble-parser-errors", os.MFD_CLOEXEC)
            undo.callback(os.close, self._errors)
            self._shared = undo.enter_context(mmap.mmap(self._shared_descriptor, setup.shared_bytes))
            ours, theirs = socket.socketpair()
            self._socket = undo.enter_context(ours)
            with theirs:
                for end in (ours, theirs):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
                self._process = _spawned((theirs.fileno(), self._shared_descriptor), self._errors)
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self._end_descriptor = os.pidfd_open(self._process.pid)
            undo.pop_all()
        self._socket.setblocking(False)
        self._loop.add_reader(self._end_descriptor, self._exited)
        self._loop.add_reader(self._socket, self._readable)
        self._send(setup)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def busy(self) -> bool:
        """Whether a task is in hand, wanted or not."""
        return self._task is not None

    @property
    def usable(self) -> bool:
        """Whether it lives and nobody is ending it."""
        return not (self.ended or self._killed)

    @property
    def was_never_used(self) -> bool:
        """Whether no task was ever begun."""
        return self._number == 0

    # --- a task -------------------------------------------------------------------------------------------------

    async def load(self, task: ParseTask) -> tuple[int, bool]:
        """Copy the body into the shared memory: (bytes copied, whether it was cut)."""
        room = len(self._shared)
        at = 0
        for piece in task.body.pieces():
            taken = min(len(piece), room - at)
            self._shared[at : at + taken] = piece[:taken] if taken < len(piece) else piece
            before = at
            at += taken
            if at // COPY_AT_ONCE_BYTES_MAX > before // COPY_AT_ONCE_BYTES_MAX:
                await asyncio.sleep(0)
            if at == room:
                break
        return at, task.body.length > at

    def begin(self, task: ParseTask, body_bytes: int, *, cut: bool) -> asyncio.Future[Outcome]:
        """Hand over a task whose body is loaded. The future has an outcome within the wall limit, whatever happens."""
        assert self._task is None
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._task = future
        self._url = task.url
        self._number += 1
        self._body_bytes = body_bytes
        self._set_wall(self._limits.wall_s)
        head = task.head[:HEAD_BYTES_MAX]
        self._send(Task(self._number, task.url, task.kind, task.status, head, body_bytes, cut))
        return future

    def _set_wall(self, seconds: float) -> None:
        # One timer per child, moved on when it fires early: cheaper than one made and cancelled for each page.
        self._wall_at = self._loop.time() + seconds
        if self._clock is None:
            self._clock = self._loop.call_later(seconds, self._wall_passed)

    def _wall_passed(self) -> None:
        self._clock = None
        if self._task is None:
            return
        left_s = self._wall_at - self._loop.time()
        if left_s > CLOCK_GRAIN_S:
            self._clock = self._loop.call_later(left_s, self._wall_passed)
        else:
            self.kill(ParseFailure("wall", f"no answer within {self._limits.wall_s:g} s"))

    def _not_started(self) -> None:
        if not self.ready.done():
            self.last_words = "it was not ready in time"
            self.kill()

    def _send(self, message: Setup | Task) -> None:
        payload = self._encoder.encode(message)
        frame = FRAME_LENGTH.pack(len(payload)) + payload
        try:
            sent = self._socket.send(frame)
        except OSError:
            return  # it is dying: its end will be reported
        if sent != len(frame):
            # A task fits the buffer of a child that reads; settings beyond it would be an operator's whole list of sites.
            self.last_words = "its settings do not fit the socket"
            self.kill(ParseFailure("crashed", "the child does not take its task"))

    # --- what the loop reports ----------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            count = self._socket.recv_into(self._room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            self._loop.remove_reader(self._socket)
            return
        self._filled += count
        if self._filled < FRAME_LENGTH.size:
            self._room = memoryview(self._incoming)[self._filled :]
            return
        end = FRAME_LENGTH.unpack_from(self._incoming)[0] + FRAME_LENGTH.size
        if end > FRAME_BYTES_MAX or self._filled > end:
            self._garbage("a frame of impossible length")
        elif self._filled == end:
            view = memoryview(self._incoming)[FRAME_LENGTH.size : end]
            self._await_frame()
            self._received(view)
        else:
            self._make_room(end)

    def _await_frame(self) -> None:
        """The next bytes begin a frame. What the last one needed beyond the usual is given back."""
        if len(self._incoming) > READ_BYTES:
            self._incoming = bytearray(READ_BYTES)
        self._filled = 0
        self._room = memoryview(self._incoming)

    def _make_room(self, end: int) -> None:
        """Room for a frame that ends at `end`, and one byte more by which a frame too long is noticed."""
        if end >= len(self._incoming):
            longer = bytearray(end + 1)
            longer[: self._filled] = self._incoming[: self._filled]
            self._incoming = longer
        self._room = memoryview(self._incoming)[self._filled :]

    def _received(self, frame: memoryview) -> None:
        try:
            message = self._decoder.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._garbage(str(error))
            return
        match message:
            case Ready():
                if self.ready.done():
                    self._garbage("ready twice")
                else:
                    self._start_clock.cancel()
                    self._generation = message.generation
                    self.ready.set_result(message)
            case Done():
                self._take_done(message)
            case Failed():
                if self._is_answer(message.number):
                    self._settle(ParseFailure(message.reason, message.detail[:300]), message.peak_kb)

    def _take_done(self, done: Done) -> None:
        if not self._is_answer(done.number):
            return
        main = done.text if done.main is None else done.main
        fault = self._fault(done.manifest, done.text, main)
        if fault:
            self._garbage(fault)
            return
        self._settle(Parsed(manifest=done.manifest, text=done.text, main=main), done.peak_kb)

    def _is_answer(self, number: int) -> bool:
        if self._task is not None and number == self._number:
            return True
        self._garbage("an answer to no question")
        return False

    def _fault(self, manifest: ParseManifest, text: bytes, main: bytes) -> str:
        """What is wrong with an answer that has the right types; "" if nothing is."""
        limits = self._limits
        if manifest.url != self._url or manifest.extraction_generation != self._generation:
            return "a manifest of something else"
        if len(text) > limits.text_bytes_max or len(main) > limits.text_bytes_max:
            return "more text than the limit"
        if manifest.text_bytes != len(text) or manifest.main_bytes != len(main):
            return "text of another length than the manifest says"
        if len(manifest.links) > max(limits.links_max, LISTED_URLS_MAX):
            return "more links than the limit"
        if not _EDGES.issuperset([link.edge for link in manifest.links]):
            return "a link of a kind that there is not"
        if len(manifest.title) > limits.title_chars_max:
            return "a longer title than the limit"
        # They go into columns of 64 bits, and the delay into a calculation of time.
        if not (0 <= manifest.directives < 1 << 31 and 0 <= manifest.fingerprint < 1 << 64):
            return "a number beyond its bounds"
        delay_s = manifest.robots.crawl_delay_s if manifest.robots is not None else None
        if delay_s is not None and not 0 <= delay_s < math.inf:
            return "a Crawl-delay that is no time"
        return ""

    def _garbage(self, detail: str) -> None:
        self.kill(ParseFailure("garbage", detail[:300]))

    def _settle(self, outcome: Outcome, peak_kb: int) -> None:
        future, self._task = self._task, None
        assert future is not None
        self.pages += 1
        self.peak_kb = peak_kb
        if self._body_bytes > COPY_AT_ONCE_BYTES_MAX:
            self._shared.madvise(mmap.MADV_REMOVE)
        if not future.done():
            future.set_result(outcome)
        self._on_idle(self)

    # --- the end ------------------------------------------------------------------------------------------------

    def kill(self, verdict: ParseFailure | None = None) -> None:
        """End it now. `verdict`: the outcome of the task in hand, else it is judged by how the process ended."""
        if self._killed or self.ended:
            return
        self._killed = True
        self._verdict = verdict
        # Whatever it still says comes too late.
        self._loop.remove_reader(self._socket)
        signal.pidfd_send_signal(self._end_descriptor, signal.SIGKILL)

    def _exited(self) -> None:
        code = self._process.wait()
        self.ended = True
        self._loop.remove_reader(self._end_descriptor)
        self._loop.remove_reader(self._socket)
        self._start_clock.cancel()
        if self._clock is not None:
            self._clock.cancel()
        if not self.ready.done():
            self.last_words = self.last_words or self._read_last_words(code)
            self.ready.set_result(None)
        self._release()
        if self._task is not None:
            verdict = self._verdict or _judged(code)
            if not self._task.done():
                self._task.set_result(verdict)
            self._task = None
        self.gone.set_result(None)
        self._on_end(self)

    def _read_last_words(self, code: int) -> str:
        size = os.fstat(self._errors).st_size
        words = os.pread(self._errors, LAST_WORDS_BYTES_MAX, max(0, size - LAST_WORDS_BYTES_MAX))
        lines = words.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with code {code}"

    def _release(self) -> None:
        self._socket.close()
        self._shared.close()
        for descriptor in (self._end_descriptor, self._shared_descriptor, self._errors):
            os.close(descriptor)


def _sealed_memory(length: int) -> int:
    """Shared memory that nobody can shrink: a child that could would make the agent's next write fatal."""
    descriptor = os.memfd_create("amble-body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, length)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def _spawned(inherited: tuple[int, int], errors: int) -> subprocess.Popen[bytes]:
    """A new interpreter without user site, environment or startup hooks that runs the child."""
    return subprocess.Popen(
        [sys.executable, "-I", "-B", "-m", "amble.adapters.sandbox.child", *map(str, inherited)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        pass_fds=inherited,
        env=_environment(),
        cwd="/",
    )


def _environment() -> dict[str, str]:
    inherited = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    return {**_ENVIRONMENT, **inherited}


def _judged(code: int) -> ParseFailure:
    """The failure that an exit code means (negative: the signal that ended it)."""
    if code in (-signal.SIGPROF, -signal.SIGXCPU):
        return ParseFailure("cpu", "over its CPU time")
    if code < 0:
        return ParseFailure("crashed", f"ended by {signal.Signals(-code).name}")
    return ParseFailure("crashed", f"ended with code {code}")
