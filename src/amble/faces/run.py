"""Driving one crawl from a command: opens it, feeds its display, answers signals, and says how it ended.

The first Ctrl-C, SIGTERM or SIGHUP stops cleanly; the second one ends the process where it stands, which the frontier
is built to survive.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import select
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from amble.app import folder as crawl_folder
from amble.app.folder import Plan
from amble.app.progress import CrawlResult
from amble.faces.display import REFRESH_PER_S, Display, Start
from amble.faces.exits import ExitCode, exit_code_of

if TYPE_CHECKING:
    from amble.app.crawl import Crawl

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NOBODY_READS = frozenset({errno.EPIPE, errno.EIO})


def run_crawl(plan: Plan, display: Display) -> ExitCode:
    """Crawl until it ends, and show it. Raises what opening the folder raises; the display is always closed."""
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            # Our own handlers stand from the first moment, so a Ctrl-C while the folder opens is a clean stop too.
            return runner.run(_crawl(plan, display))
    finally:
        try:
            display.close()
        except OSError:
            pass  # a terminal that is gone needs no tidying


def loop_factory() -> Any:
    """uvloop where it is installed: 10 to 23 % less CPU per page."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class _Stopper:
    """Counts the operator's requests to stop: the first is an orderly one, the second is final."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._crawl: Crawl | None = None
        self.asked = 0

    def attach(self, crawl: Crawl) -> None:
        """From here on a request reaches the crawl; one that came earlier is passed on now."""
        self._crawl = crawl
        if self.asked:
            crawl.stop()

    def ask(self) -> None:
        """Stop cleanly; on the second call, at once."""
        self.asked += 1
        if self.asked > 1:
            try:
                self._display.close()
                # Only where it is taken at once: a reader that does not read must not hold up the end.
                if select.select([], [2], [], 0)[1]:
                    os.write(2, b"stopped at once; the same command goes on\n")
            finally:
                # No orderly end: children see their pipes close, the frontier takes up what was in flight.
                os._exit(ExitCode.FORCED)
        if self._crawl is not None:
            self._crawl.stop()
        try:
            self._display.stopping()
        except OSError:
            pass  # nobody reads; the stop itself is under way


async def _crawl(plan: Plan, display: Display) -> ExitCode:
    stopper = _Stopper(display)
    loop = asyncio.get_running_loop()
    heeded = [number for number in _SIGNALS if number != signal.SIGHUP or not _hangup_is_ignored()]
    for number in heeded:
        loop.add_signal_handler(number, stopper.ask)
    display.opening(plan.folder)
    try:
        crawl = await _open(plan)
        stopper.attach(crawl)
        settle_memory()
        result = await _shown(crawl, display, _start(plan))
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)
    code = exit_code_of(result)
    try:
        display.end(result, code)
    except OSError:
        pass  # nobody is left to read how it ended, or the disk of the log is full; the exit code still tells
    return code


def settle_memory() -> None:
    """What was loaded stays: the collector need not look at it again, and it comes less often to what pages leave."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _hangup_is_ignored() -> bool:
    """Whether whoever started us asked for a crawl that outlives its terminal: `nohup amble crawl ...`."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


async def _open(plan: Plan) -> Crawl:
    """Open the folder, then keep what is new in the plan: only the owner of a folder may write its files."""
    from amble.app import build

    crawl = await build.open_crawl(plan.config, plan.folder)
    try:
        crawl_folder.keep(plan)
    except BaseException:
        crawl.stop()
        await crawl.run()
        raise
    return crawl


def _start(plan: Plan) -> Start:
    return Start(
        folder=plan.folder,
        resumes=plan.resumes,
        seeds=len(plan.config.seeds),
        new_seeds=len(plan.new_seeds),
        budget=plan.config.policy.budget,
    )


async def _shown(crawl: Crawl, display: Display, start: Start) -> CrawlResult:
    """Run to the end with a look several times a second."""
    running = asyncio.ensure_future(_as_coroutine(crawl))
    reads = _told(crawl, lambda: display.start(start))
    while reads and not running.done():
        await asyncio.wait({running}, timeout=1 / REFRESH_PER_S)
        reads = _told(crawl, lambda: display.show(crawl.progress()))
    return await running


def _told(crawl: Crawl, tell: Callable[[], None]) -> bool:
    """Whether anybody can be told anything any more."""
    try:
        tell()
    except OSError as error:
        if error.errno in _NOBODY_READS:
            # `amble crawl --json | head`, or a terminal that was closed: a request to stop, not a crash.
            crawl.stop()
            return False
        # A log on a full disk: this line is lost, the crawl is not.
    return True


def _as_coroutine(crawl: Crawl) -> Coroutine[Any, Any, CrawlResult]:
    return crawl.run()
