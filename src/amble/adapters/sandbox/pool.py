"""A pool of sandboxed parser children: tasks wait in line, children are replaced when they die or have worked enough.

Once a crawl is under way there is one warm child more than may work at once, so that neither a death nor a retirement
stalls the line; a short crawl does not pay for it.
Starts that fail are repeated with growing pauses; when no child is left and starts keep failing, parse says so.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from functools import partial

from amble.adapters.sandbox.process import ParserProcess
from amble.adapters.sandbox.wire import Ready, Setup
from amble.domain.errors import SandboxUnavailable
from amble.domain.policy import ParseLimits
from amble.formats.extraction import ExtractionSettings
from amble.ports import Parsed, ParseFailure, ParseTask

SPARES = 1
# The spare is started when so many answers were parsed, when a child is half worn, or when one has died.
SPARE_AFTER_PAGES = 10_000
START_S_MAX = 60.0
STARTS_FAILED_MAX = 3
PAUSE_S_FIRST = 0.2
PAUSE_S_MAX = 30.0
# The largest body that may be parsed: a sitemap (sitemaps.org: 50 MB), with room. Memory is used only when written.
SHARED_BYTES = 64 * 1024 * 1024
# A child that ever held this much more than its limits expect of a page is replaced: allocators do not give back.
PEAK_KB_MAX = 512 * 1024


class SandboxPool:
    """ports.ParserPool over child processes. Make it with `open`; end it with `close`."""

    def __init__(
        self,
        *,
        limits: ParseLimits,
        settings: ExtractionSettings | None = None,
        size: int | None = None,
        body_bytes_max: int = SHARED_BYTES,
        self_test: bool = False,
    ) -> None:
        """`size`: children that may work at once; None: one per core but one, at least one.

        `body_bytes_max`: bodies longer than this are parsed up to there, with a note in the manifest.
        """
        self._limits = limits
        settings = settings or ExtractionSettings()
        self._size = size if size is not None else default_size()
        assert self._size >= 1
        self._setup = Setup(limits, settings, body_bytes_max, os.getpid(), self_test)
        # Children are starting, warm (idle or at work), or retiring. The last one idle is the first to work again:
        # its caches are warm, and the spare stays a spare.
        self._children: set[ParserProcess] = set()
        self._warm: set[ParserProcess] = set()
        self._idle: list[ParserProcess] = []
        self._at_work: set[ParserProcess] = set()
        self._waiting: deque[asyncio.Future[ParserProcess]] = deque()
        self._spares = 0
        self._pages = 0
        self._starts_failed = 0
        self._early_deaths = 0
        self._last_words = ""
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False
        self._first_ready: Ready | None = None
        self.deaths = 0
        self.retirements = 0

    @classmethod
    async def open(
        cls,
        *,
        limits: ParseLimits,
        settings: ExtractionSettings | None = None,
        size: int | None = None,
        body_bytes_max: int = SHARED_BYTES,
        self_test: bool = False,
    ) -> SandboxPool:
        """A pool with at least one warm child. Raises SandboxUnavailable when none can be started."""
        pool = cls(
            limits=limits, settings=settings, size=size, body_bytes_max=body_bytes_max, self_test=self_test
        )
        pool._refill()
        try:
            pool._put_back(await pool._take())
        except BaseException:
            await pool.close()
            raise
        return pool

    @property
    def generation(self) -> int:
        """Extraction generation of these children: what the first of them said before it saw any page."""
        assert self._first_ready is not None
        return self._first_ready.generation

    @property
    def size(self) -> int:
        """Children that may work at once."""
        return self._size

    @property
    def confinement(self) -> dict[str, list[str]]:
        """Layers that hold the children ("holding") and layers that this kernel lacks, with the reason ("missing")."""
        ready = self._first_ready
        return {"holding": ready.confinement if ready else [], "missing": ready.missing if ready else []}

    @property
    def report(self) -> Ready | None:
        """What the first child said when it was ready; with `self_test`, what it tried and was denied."""
        return self._first_ready

    @property
    def pids(self) -> list[int]:
        """Process ids of all children alive."""
        return [child.pid for child in self._children]

    async def parse(self, task: ParseTask) -> Parsed | ParseFailure:
        """Parse one body. Raises SandboxUnavailable when no child can be had at all."""
        while True:
            child = await self._take()
            try:
                body_bytes, cut = await child.load(task)
            except BaseException:
                self._put_back(child)
                raise
            if child.usable:
                break
            # It ended, or is being ended, through no fault of this page: another one gets it.
        # A caller that goes away does not free the child: it comes back by itself when it has answered.
        return await child.begin(task, body_bytes, cut=cut)

    async def close(self) -> None:
        """End the children and wait until they are gone; whoever waits for one is told."""
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._refuse_waiting("the parser pool is closed")
        children = list(self._children)
        for child in children:
            child.kill(ParseFailure("crashed", "the parser pool was closed"))
        for child in children:
            await child.gone

    # --- children taken and given back ----------------------------------------------------------------------------

    async def _take(self) -> ParserProcess:
        """A warm child, in the order of asking."""
        self._refuse_if_unavailable()
        if self._idle and not self._waiting and len(self._at_work) < self._size:
            child = self._idle.pop()
            self._at_work.add(child)
            return child
        waiter: asyncio.Future[ParserProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._serve()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._put_back(waiter.result())
            raise

    def _serve(self) -> None:
        while self._waiting and self._idle and len(self._at_work) < self._size:
            waiter = self._waiting.popleft()
            if waiter.done():
                continue
            child = self._idle.pop()
            self._at_work.add(child)
            waiter.set_result(child)

    def _put_back(self, child: ParserProcess) -> None:
        """A child has nothing to do."""
        self._at_work.discard(child)
        if child.ended or self._closed:
            return
        if child.pages:
            self._starts_failed = self._early_deaths = 0
            self._count_page(child)
        self._idle.append(child)
        self._retire_worn()
        self._serve()

    def _retire_worn(self) -> None:
        """End the idle children that have worked enough, but never the last one that could take the next page."""
        for child in [child for child in self._idle if self._is_worn(child)]:
            if len(self._idle) > 1:
                self.retirements += 1
                self._idle.remove(child)
                self._warm.discard(child)
                child.kill()

    def _is_worn(self, child: ParserProcess) -> bool:
        return child.pages >= self._limits.pages_per_child_max or child.peak_kb > PEAK_KB_MAX

    def _count_page(self, child: ParserProcess) -> None:
        self._pages += 1
        half_worn = 2 * child.pages >= self._limits.pages_per_child_max or self._is_worn(child)
        if not self._spares and (half_worn or self._pages >= SPARE_AFTER_PAGES):
            self._want_spare()

    # --- children started and ended -------------------------------------------------------------------------------

    def _want_spare(self) -> None:
        self._spares = SPARES
        self._refill()

    def _refill(self) -> None:
        """Start what is missing, unless a pause after failed starts is on."""
        while not self._closed and self._pause is None and len(self._children) < self._size + self._spares:
            try:
                child = ParserProcess(self._setup, START_S_MAX, self._put_back, self._ended)
            except OSError as error:
                self._start_failed(f"no process: {error.strerror or error}")
                return
            self._children.add(child)
            child.ready.add_done_callback(partial(self._answered, child))

    def _answered(self, child: ParserProcess, answered: asyncio.Future[Ready | None]) -> None:
        ready = answered.result()
        if ready is None or child.ended or self._closed:
            return
        self._first_ready = self._first_ready or ready
        if ready.generation != self._first_ready.generation:
            # The files on disk are others than at the start: its manifests would not be comparable.
            child.last_words = "amble was changed while it runs; restart the crawl"
            child.kill()
            return
        self._warm.add(child)
        self._idle.append(child)
        self._retire_worn()
        self._serve()

    def _ended(self, child: ParserProcess) -> None:
        self._children.discard(child)
        self._at_work.discard(child)
        was_warm = child in self._warm
        self._warm.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        if self._closed:
            return
        if was_warm:
            self.deaths += 1
            self._spares = SPARES
        if child.last_words:
            self._start_failed(child.last_words)
        elif was_warm and child.was_never_used:
            # Something ends children that do nothing: replacing them at once would only keep it busy.
            self._early_deaths += 1
            self._pause_starts(self._early_deaths)
        self._refill()
        self._serve()

    def _start_failed(self, reason: str) -> None:
        self._starts_failed += 1
        self._last_words = reason
        if self._starts_failed >= STARTS_FAILED_MAX and not self._warm:
            self._refuse_waiting(self._reason())
        self._pause_starts(self._starts_failed)

    def _pause_starts(self, setbacks: int) -> None:
        if self._pause is None:
            pause_s = min(PAUSE_S_MAX, PAUSE_S_FIRST * 2 ** min(setbacks, 10))
            self._pause = asyncio.get_running_loop().call_later(pause_s, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._refill()

    def _refuse_if_unavailable(self) -> None:
        if self._closed:
            raise SandboxUnavailable("the parser pool is closed")
        if self._starts_failed >= STARTS_FAILED_MAX and not self._warm:
            raise SandboxUnavailable(self._reason())

    def _refuse_waiting(self, reason: str) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(SandboxUnavailable(reason))

    def _reason(self) -> str:
        return f"no parser child can be started: {self._last_words}"


def default_size() -> int:
    """Children that may work at once on this machine: one per core that this process may use but one, at least one."""
    return max(1, len(os.sched_getaffinity(0)) - 1)
