"""Parse workers at work: adopt what was fetched, parse it, hand it over; as many pages at once as children have work.

Knows ports and stages only; `app/parsing.py` chooses the adapters. Nothing is lost when this process dies: what it held
is adopted by others when the hold lapses. A page that ends its worker time and again is parsed with nothing else in hand,
and ends as parse_failed by itself.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from amble.domain.attempt import UrlKind
from amble.domain.decision import Reason
from amble.domain.errors import AmbleError, OperationRefused, StoreUnavailable
from amble.domain.frontier import STRIKES_APART, AdoptAsk, Applied, ParseStrike, RecordParsed, Resumable
from amble.domain.lifecycle import UrlState
from amble.ports import Clock, Telemetry
from amble.stages.health import Health
from amble.stages.journey import Handover

# robots.txt is parsed by the owner of its partition: pages wait for it.
PARSED_ELSEWHERE = frozenset({UrlKind.PAGE, UrlKind.SITEMAP, UrlKind.FEED})
# A page is parsed within milliseconds, but reading its body and storing its manifest take as long as the archive needs,
# which on object storage is a tenth of a second each: so many are under way for each child.
PAGES_PER_CHILD = 16
# Asking again when there was nothing to do: soon at first, then less and less often.
IDLE_S_FIRST = 0.05
IDLE_S_MAX = 2.0
# With nothing to do for so long, a worker that was told to end by itself does.
DONE_AFTER_S = 5.0
# How long pages under way may take after the operator said stop.
STOP_GRACE_S = 8.0
ADOPT_GRACE_S = 1.0
# A page is in hand for seconds; whoever holds one for so long has gone away.
HOLD_S = 120.0
STORE_RETRY_S = 0.5


def _is_suspect(work: Resumable) -> bool:
    """See AdoptAsk: it may be what ended those that held it before."""
    return work.strikes >= STRIKES_APART


class Rows(Protocol):
    """The frontier as a parse worker sees it."""

    async def adopt(self, ask: AdoptAsk) -> list[Resumable]:
        """See ports.Frontier."""
        ...

    async def record_parsed(self, item: RecordParsed) -> Applied:
        """See ports.Frontier."""
        ...

    async def parse_strike(self, item: ParseStrike) -> Applied:
        """See ports.Frontier."""
        ...


@dataclass(slots=True)
class ParseCount:
    """What came of the pages that were adopted. `lost`: ended as parse_failed, or somebody else has them now."""

    adopted: int = 0
    parsed: int = 0
    lost: int = 0
    stumbled: int = 0


@dataclass(slots=True, kw_only=True)
class ParseLines:
    """Run once, then throw away. `stop()` may be called at any time, also from a signal handler on the loop.

    `worker`: a number that no other worker has. `hold_s`: how long a page may be in hand before others may take it.
    """

    frontier: Rows
    handover: Handover
    health: Health
    clock: Clock
    telemetry: Telemetry
    children: int
    worker: int
    hold_s: float = HOLD_S
    until_done: bool = False
    stop_grace_s: float = STOP_GRACE_S
    done_after_s: float = DONE_AFTER_S
    pace: Callable[[int], None] = lambda _: None
    count: ParseCount = field(default_factory=ParseCount)
    _active: set[asyncio.Task[None]] = field(default_factory=set)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _worked_s: float = 0.0

    def stop(self) -> None:
        """Adopt nothing more, finish what is under way, and end."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Whether somebody has said stop."""
        return self._stop.is_set()

    async def run(self) -> ParseCount:
        """Until somebody says stop, or with `until_done` until there has been nothing to do for a while.

        Raises what ends a worker: a store that is broken, children that cannot be had.
        """
        self._worked_s = self.clock.monotonic_s()
        try:
            async with asyncio.TaskGroup() as crew:
                await self._work(crew)
                await self._finish()
        except* AmbleError as group:
            raise group.exceptions[0] from None
        return self.count

    async def _work(self, crew: asyncio.TaskGroup) -> None:
        idle_s = IDLE_S_FIRST
        while not self._stop.is_set():
            room = self.children * PAGES_PER_CHILD - len(self._active)
            found = await self._adopt(room) if room > 0 and not self.health.blocked else []
            for work in sorted(found, key=_is_suspect):
                if _is_suspect(work):
                    await self._empty_hands()
                self._start(crew, work)
                if _is_suspect(work):
                    await self._empty_hands()
            self.pace(len(self._active))
            if found or self._active:
                self._worked_s = self.clock.monotonic_s()
            elif self.until_done and self._is_done():
                return
            # A full batch says that there is more: come back as soon as there is room for it.
            more = 0 < room <= len(found) or room <= 0
            idle_s = IDLE_S_FIRST if found else min(IDLE_S_MAX, idle_s * 2)
            await self._rest(idle_s, until_room=more)

    def _start(self, crew: asyncio.TaskGroup, work: Resumable) -> None:
        task = crew.create_task(self._carry(work), name=work.lease.url)
        self._active.add(task)
        task.add_done_callback(self._active.discard)

    async def _empty_hands(self) -> None:
        """Until nothing is in hand, or somebody says stop: then what was adopted shares the time that is left."""
        while self._active and not self._stop.is_set():
            await self._rest(self.hold_s, until_room=True)

    def _is_done(self) -> bool:
        return not self.health.blocked and self.clock.monotonic_s() - self._worked_s >= self.done_after_s

    async def _adopt(self, count: int) -> list[Resumable]:
        ask = AdoptAsk(
            state=int(UrlState.FETCHED),
            worker=self.worker,
            count=count,
            hold_ms=int(self.hold_s * 1000),
            kinds=sorted(map(int, PARSED_ELSEWHERE)),
        )
        adopting = asyncio.ensure_future(self.frontier.adopt(ask))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({adopting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            # A store that is away answers when it is back; a stop does not wait for that.
            await asyncio.wait({adopting}, timeout=ADOPT_GRACE_S if stopping.done() else None)
            found = adopting.result() if adopting.done() else []
        except StoreUnavailable as trouble:
            self.telemetry.event("parse.unanswered", detail=str(trouble))
            return []
        finally:
            stopping.cancel()
            adopting.cancel()
        self.count.adopted += len(found)
        return found

    async def _rest(self, seconds: float, *, until_room: bool) -> None:
        """Until a page is over, when that is what makes room; else for a while. Ends at once when somebody says stop."""
        waits: list[asyncio.Future[object]] = [asyncio.ensure_future(self._stop.wait())]
        if until_room:
            waits += self._active  # type: ignore[arg-type]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits[0].cancel()

    async def _carry(self, work: Resumable) -> None:
        """One page. Where it stumbles over a mistake of ours, its hold lapses and the next one tries."""
        try:
            applied = await self.handover.run(work)
        except OperationRefused as mistake:
            self._stumble(work, mistake)
        except AmbleError:
            raise
        except Exception as mistake:
            self._stumble(work, mistake)
        else:
            if applied == Applied.APPLIED:
                self.count.parsed += 1
            else:
                self.count.lost += 1

    def _stumble(self, work: Resumable, mistake: Exception) -> None:
        self.count.stumbled += 1
        self.telemetry.event(
            "parse.stumbled",
            url=work.lease.url,
            error=repr(mistake)[:200],
            trace="".join(traceback.format_exception(mistake))[-2_000:],
        )

    async def _finish(self) -> None:
        """What is under way gets its time; what takes longer is left to others, who adopt it when its hold lapses."""
        if self._active:
            await asyncio.wait(self._active, timeout=self.stop_grace_s)
        for task in self._active:
            task.cancel()


@dataclass(frozen=True, slots=True)
class Patient:
    """The two writes of a parse, made again while the store cannot answer: the manifest is durable, only the row waits.

    The token makes repeats harmless. `wait_s_max`: by then the hold has lapsed, and somebody else has the page.
    """

    frontier: Rows
    health: Health
    clock: Clock
    wait_s_max: float = HOLD_S

    async def record_parsed(self, item: RecordParsed) -> Applied:
        """See ports.Frontier."""
        return await self._patiently(lambda: self.frontier.record_parsed(item))

    async def parse_strike(self, item: ParseStrike) -> Applied:
        """See ports.Frontier."""
        return await self._patiently(lambda: self.frontier.parse_strike(item))

    async def _patiently(self, call: Callable[[], Awaitable[Applied]]) -> Applied:
        until_s = self.clock.monotonic_s() + self.wait_s_max
        while True:
            try:
                applied = await call()
            except StoreUnavailable as trouble:
                if self.clock.monotonic_s() >= until_s:
                    return Applied.STALE
                self.health.report(Reason.STORE_UNAVAILABLE, str(trouble))
                await self.clock.sleep(STORE_RETRY_S)
            else:
                self.health.clear(Reason.STORE_UNAVAILABLE)
                return applied
