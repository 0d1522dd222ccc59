"""Virtual time: an event loop whose clock jumps to the next deadline, and the clock and the chance of one seed.

The loop runs production coroutines unchanged, one callback after another in the order in which they became ready. It
has no sockets, no threads and no real waiting. Every callback belongs to an actor, found through its context: an actor
can be frozen, so that nothing of it runs until it is thawed, or killed, so that nothing of it ever runs again.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

# A seed that needs more steps than this goes round in circles.
STEPS_MAX = 3_000_000
# 2026-01-01 00:00 UTC, where the wall clock of every seed begins.
WALL_START_S = 1_767_225_600.0
# A coroutine that is closed may wait again in a `finally`; it is closed again this often.
_CLOSES_MAX = 8
# More tasks than can end within one turn of the loop.
_ENDED_MAX = 1_024


class OutOfSteps(Exception):
    """The loop ran longer than a seed may."""


class Deadlock(Exception):
    """Nothing is ready, nothing is timed, and what was asked for has not ended."""


class Actor:
    """Somebody whose callbacks live and die together: an agent, the store, the people around them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.steps = 0
        # The actor dies instead of taking its step of this number.
        self.dies_at: int | None = None
        self.held: deque[asyncio.Handle] = deque()
        self.tasks: dict[VirtualTask, None] = {}
        # Tasks that are done, and whose waiters may not have heard so yet.
        self.ended: deque[VirtualTask] = deque(maxlen=_ENDED_MAX)
        self.on_death: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<{self.name}>"


_NOBODY = Actor("world")
_ACTOR: contextvars.ContextVar[Actor] = contextvars.ContextVar("actor", default=_NOBODY)


def current_actor() -> Actor:
    """Whose code is running."""
    return _ACTOR.get()


class VirtualTask(asyncio.Task[Any]):
    """A task whose place in a set depends on the order of creation and not on its address."""

    _number: int

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop:
    """One seed's event loop: as much of asyncio.AbstractEventLoop as coroutines, tasks, timers and locks ask for."""

    def __init__(self, *, steps_max: int = STEPS_MAX) -> None:
        self._now_s = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = 0
        # What tasks, futures and handles are told to be their loop.
        self._self = cast(asyncio.AbstractEventLoop, self)
        self._steps_max = steps_max
        self._running = False
        self._closed = False
        self.steps = 0
        self.mishaps: list[str] = []

    # -- what asyncio asks of a loop ------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds since the loop began."""
        return self._now_s

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """Whether `run` is on the stack."""
        return self._running

    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self._self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_: Any,
    ) -> asyncio.Task[Any]:
        """A task of the actor that creates it."""
        # The number must exist before the task registers itself in a set.
        task = VirtualTask.__new__(VirtualTask)
        task._number = self._number()
        task.__init__(coro, loop=self._self, name=name or f"task-{task._number}", context=context)  # type: ignore[misc]
        actor = context.get(_ACTOR, _NOBODY) if context is not None else _ACTOR.get()
        actor.tasks[task] = None
        task.add_done_callback(_Forget(actor))
        return task

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run after everything that is ready already."""
        handle = asyncio.Handle(callback, args, self._self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `delay` seconds from now."""
        return self.call_at(self._now_s + max(0.0, delay), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run at `when`; timers of one moment run in the order in which they were set."""
        timer = asyncio.TimerHandle(when, callback, args, self._self, context)
        heapq.heappush(self._timers, (when, self._number(), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What no one caught is a mishap of the run."""
        error = context.get("exception")
        self.mishaps.append(f"{context.get('message', '')}: {error!r}")

    def close(self) -> None:
        """Let go of everything that still waits."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run `main` to its end. Raises Deadlock, OutOfSteps, and what `main` raises."""
        asyncio.events._set_running_loop(self._self)
        self._running = True
        try:
            task = self.create_task(main, name="main")
            while not task.done():
                self._step()
            return task.result()
        finally:
            self._running = False
            asyncio.events._set_running_loop(None)

    def _step(self) -> None:
        if not self._ready:
            self._jump()
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        actor = handle._context.get(_ACTOR, _NOBODY)  # type: ignore[attr-defined]
        if not actor.alive:
            return
        if actor.frozen:
            actor.held.append(handle)
            return
        if actor.dies_at is not None and actor.steps >= actor.dies_at:
            self.kill(actor)
            return
        actor.steps += 1
        self.steps += 1
        if self.steps > self._steps_max:
            raise OutOfSteps(f"{self._steps_max} steps, {self._now_s:.0f} s")
        handle._run()

    def _jump(self) -> None:
        """To the next timer that still counts, and to all of the same moment."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Deadlock("nothing is ready and nothing is timed")
        self._now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= self._now_s:
            self._ready.append(heapq.heappop(timers)[2])

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- actors ---------------------------------------------------------------------------------------------------

    def start(self, actor: Actor, coro: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """The first task of `actor`; all that it creates is the actor's too."""
        context = contextvars.copy_context()
        context.run(_ACTOR.set, actor)
        return self.create_task(coro, name=name, context=context)

    def thaw(self, actor: Actor) -> None:
        """Let a frozen actor go on: what became ready meanwhile runs in its order."""
        actor.frozen = False
        self._ready.extend(actor.held)
        actor.held.clear()

    def kill(self, actor: Actor) -> None:
        """Nothing of `actor` runs any more; its coroutines are closed without being told why."""
        if not actor.alive:
            return
        actor.alive = False
        actor.held.clear()
        for task in list(actor.tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if task.done():
                # Nobody is left who could ask how it ended.
                task._log_traceback = False
            _close(task.get_coro())
        for task in actor.ended:
            # It failed, and whoever would have looked at that died first.
            task._log_traceback = False
        actor.tasks.clear()
        actor.ended.clear()
        token = _ACTOR.set(_NOBODY)
        try:
            actor.on_death()
        finally:
            _ACTOR.reset(token)


class _Forget:
    """Takes a task that is done off its actor's list."""

    __slots__ = ("_actor",)

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def __call__(self, task: Any) -> None:
        self._actor.tasks.pop(task, None)
        self._actor.ended.append(task)


def _close(coro: Any) -> None:
    for _ in range(_CLOSES_MAX):
        try:
            coro.close()
        except BaseException:
            # It waits again in a `finally`, or fails in one: the process it stands for is gone all the same.
            continue
        return


class VirtualClock:
    """ports.Clock on the loop's time. `step_s` is how far the wall clock has been moved by hand or by NTP."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.step_s = 0.0

    def monotonic_s(self) -> float:
        """Virtual seconds since the seed began."""
        return self._loop.time()

    def wall_s(self) -> float:
        """Seconds since 1970, as far as this machine believes."""
        return WALL_START_S + self._loop.time() + self.step_s

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(seconds)

    def now_ms(self) -> int:
        """The time of the store: no step of the wall clock moves it."""
        return int((WALL_START_S + self._loop.time()) * 1000)


class Dice:
    """Chance out of one seed and one name, the same on every Python: only `random()` of the generator is used."""

    def __init__(self, seed: int, name: str) -> None:
        self._next = random.Random(f"{seed}/{name}").random
        self.seed, self.name = seed, name

    def uniform(self) -> float:
        """A number in [0, 1)."""
        return self._next()

    def chance(self, probability: float) -> bool:
        """True that often. A probability of 0 does not roll."""
        return probability > 0 and self._next() < probability

    def between(self, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        return low + (high - low) * self._next()

    def whole(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int((high - low + 1) * self._next())

    def one_of(self, items: Any) -> Any:
        """One item of a sequence."""
        return items[int(len(items) * self._next())]

    def longtail(self, low: float, high: float) -> float:
        """A number from `low` to `high`, each order of magnitude as likely as the next."""
        return float(low * (high / low) ** self._next())

    def token(self, count: int) -> bytes:
        """`count` bytes."""
        return bytes(int(256 * self._next()) for _ in range(count))


class SeededEntropy:
    """ports.Entropy of one seed."""

    def __init__(self, dice: Dice) -> None:
        self.uniform = dice.uniform
        self.token = dice.token
