"""One crawl, running: the legs and the upkeep in one task group, back-pressure between them, an orderly end.

Every task has a parent. A page that meets an unexpected error ends as `internal` for itself; a lost store or a lost
epoch ends the run. Nothing here knows the order of the line (stages/journey.py) or an adapter (app/build.py).
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec import Struct

from amble.app.pace import Pace
from amble.app.progress import CrawlResult, EndReason, Progress, ReasonCount
from amble.domain.attempt import Lease, UrlKind
from amble.domain.decision import Category, Reason
from amble.domain.errors import (
    AmbleError,
    ArchiveBroken,
    ArchiveUnavailable,
    OperationRefused,
    StoreBroken,
    StoreUnavailable,
    StoreUnfit,
)
from amble.domain.frontier import LeaseReply, Resumable, Takeover
from amble.domain.policy import Budget
from amble.domain.report import Status
from amble.ports import Clock, FetchFailure, Frontier, Telemetry
from amble.stages.discover import Discovery
from amble.stages.gate import Fence
from amble.stages.health import Health
from amble.stages.journey import Dispatch, Extract
from amble.stages.lease import Scheduler
from amble.stages.store import Recorder
from amble.upkeep.expire import Expiry

# One ask for leases; more would only sit in memory while their deadlines run.
LEASE_BATCH_MAX = 256
# How long requests that are under way may still take after the operator said stop, and parsing after that.
STOP_FETCH_GRACE_S = 3.0
STOP_PARSE_GRACE_S = 5.0
# The same when the crawl ends by itself: nothing presses.
END_GRACE_S = 70.0
# How long a stop waits for a frontier that cannot be written before the run ends without its last writes.
STOP_STORE_GRACE_S = 4.0
# Troubles of what the crawl itself is made of; others pass without an operator, or are none of this machine's.
_UNUSABLE = frozenset({Reason.STORE_UNAVAILABLE, Reason.ARCHIVE_UNAVAILABLE, Reason.PARSERS_UNAVAILABLE})
# No lease lapses while trouble stands and so long after: its answer is in hand and waits for what was broken.
TROUBLE_SETTLES_S = 5.0
TICK_S = 0.5
STATUS_EVERY_S = 1.0


class Chore(Struct, frozen=True, kw_only=True):
    """Something that time makes due: `work` runs at once, and again `every_s` after it has ended."""

    name: str
    every_s: float
    work: Callable[[], Awaitable[object]]


class Tenancy(Struct, frozen=True, kw_only=True):
    """What is different for an agent of a fleet, whose partitions come and go, and which runs until it is stopped.

    `chores` go on until everything under way has ended. `ended` is asked while there is nothing to do; None: never
    done. `depart`: start nothing more; `leave`: nothing is under way any more. `unparsed_max`: FETCHED pages of its
    partitions that may wait for parse workers before dispatch slows down.
    """

    chores: Sequence[Chore]
    depart: Callable[[], None]
    leave: Callable[[], Awaitable[None]]
    ended: Callable[[], Awaitable[EndReason | None]] | None = None
    unparsed_max: int | None = None


class Parts(Struct, frozen=True, kw_only=True):
    """Everything a running crawl is made of, wired by the composition root."""

    frontier: Frontier
    scheduler: Scheduler
    dispatch: Dispatch
    extract: Extract
    discovery: Discovery
    recorder: Recorder
    expiry: Expiry
    fence: Fence
    health: Health
    clock: Clock
    telemetry: Telemetry
    # What an earlier life left; an agent of a fleet takes over partition by partition instead.
    takeover: Takeover | None
    seed: Callable[[], Awaitable[int]]
    read_status: Callable[[], Awaitable[Status | None]]
    publish: Callable[[], Awaitable[int]] | None
    on_status: Callable[[Progress], None]
    abandon_store: Callable[[StoreUnavailable], None]
    close: Callable[[], Awaitable[None]]
    budget: Budget
    concurrency: int
    backlog_max: int
    wait_s_max: float
    # Told how many pages are under way, so that store and archive can share their commits among them.
    pace: Callable[[int], None] = lambda _: None
    # How long requests of an earlier owner may still be under way; 0: it is known to be stopped.
    fence_wait_s: float = 0.0
    expire_every_s: float = TICK_S
    status_every_s: float = STATUS_EVERY_S
    tenancy: Tenancy | None = None
    # What time makes due besides, such as links that cross between the files of one frontier.
    chores: Sequence[Chore] = ()


@dataclass(slots=True)
class Crawl:
    """Run once, then throw away. `stop()` may be called at any time, also from a signal handler on the loop."""

    parts: Parts
    _active: dict[asyncio.Task[None], None] = field(default_factory=dict)
    _extracting: dict[asyncio.Task[None], None] = field(default_factory=dict)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _started_s: float = 0.0
    # When something other than a robots.txt was last leased, or trouble last stood.
    _page_s: float = 0.0
    _troubled_s: float = float("-inf")
    _status: Status | None = None
    _binding: str = ""
    _pace: Pace = field(default_factory=Pace)
    _pages_before: int | None = None
    # Pages that stumbled after they were fetched: they stay as they are until the next run.
    _stranded: int = 0
    # Pages under way by partition: requests, and what they fetched until its links are on their way.
    _busy: Counter[int] = field(default_factory=Counter)
    _crew: asyncio.TaskGroup | None = None

    # -- faces ------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Start nothing more, record what is under way, and end."""
        self._stop.set()
        self._room.set()
        self.parts.scheduler.kick()

    def is_busy(self, partition: int) -> bool:
        """Whether a request or a page of that partition is under way."""
        return self._busy[partition] > 0

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something beside the line; the crawl does not end before it has."""
        assert self._crew is not None
        self._crew.create_task(work, name=name)

    async def run(self) -> CrawlResult:
        """Until nothing is left to do, a budget is spent, or somebody says stop. Closes everything it was given."""
        self._started_s = self.parts.clock.monotonic_s()
        self.parts.on_status(self.progress())
        reason, trouble = EndReason.TROUBLE, ""
        errors: list[BaseException] = []
        try:
            reason = await self._work()
        except* (AmbleError, OSError) as group:
            trouble, errors = _told(group), [*_leaves(group)]
            self.parts.telemetry.event("crawl.trouble", detail=trouble)
        finally:
            await self._look()
            try:
                await self.parts.close()
            except (AmbleError, OSError) as error:
                reason, trouble = EndReason.TROUBLE, trouble or str(error)
                errors.append(error)
        return self._result(reason, trouble, errors)

    def progress(self) -> Progress:
        """One look at the crawl; cheap, from memory."""
        last, status = self.parts.scheduler.last, self._status
        return Progress(
            pages=last.pages if last else 0,
            pages_per_s=self._rate(),
            queued=last.queued if last else 0,
            in_flight=last.in_flight if last else 0,
            active=len(self._active),
            failed=status.failed if status else 0,
            excluded=status.excluded if status else 0,
            bytes=status.bytes if status else 0,
            origins_ready=status.origins_ready if status else 0,
            origins_waiting=dict(status.origins_waiting) if status else {},
            binding_limit=self._binding,
            trouble=self.parts.health.describe(),
            elapsed_s=self.parts.clock.monotonic_s() - self._started_s,
            parse_backlog=len(self._extracting),
        )

    # -- the run ----------------------------------------------------------------------------------------------

    async def _work(self) -> EndReason:
        async with asyncio.TaskGroup() as crew:
            self._crew = crew
            upkeep = [
                crew.create_task(self._every(self.parts.expire_every_s, self._expire), name="expire"),
                crew.create_task(self._every(self.parts.status_every_s, self._look), name="status"),
                crew.create_task(self._stop_without_store(), name="stop without the store"),
            ]
            if self.parts.publish is not None:
                upkeep.append(crew.create_task(self._every(TICK_S, self._publish), name="publish"))
            tenancy = self.parts.tenancy
            upkeep += [
                crew.create_task(self._chore(chore), name=chore.name)
                for chore in (*self.parts.chores, *(tenancy.chores if tenancy is not None else ()))
            ]
            if self.parts.takeover is not None:
                await self.take_up(self.parts.takeover)
            await self.parts.seed()
            await self._wait_out_earlier_owner()
            self._page_s = self.parts.clock.monotonic_s()
            reason = await self._dispatch()
            if self.parts.tenancy is not None:
                self.parts.tenancy.depart()
            await self._drain(reason)
            for task in upkeep:
                task.cancel()
        if self.parts.tenancy is not None:
            await self.parts.tenancy.leave()
        if self.parts.publish is not None:
            await self._publish()
        return reason

    async def _wait_out_earlier_owner(self) -> None:
        """Start nothing while a request that an earlier owner has started may still be under way."""
        if self.parts.fence_wait_s > 0:
            until_s = self._started_s + self.parts.fence_wait_s
            while (left_s := until_s - self.parts.clock.monotonic_s()) > 0 and not self._stop.is_set():
                await self.parts.clock.sleep(min(left_s, TICK_S))

    async def take_up(self, takeover: Takeover) -> None:
        """Go on with what an earlier life left: half-consumed manifests and fetched bodies, before anything new."""
        if takeover.resumables or takeover.open_manifests or takeover.lapsed:
            self.parts.telemetry.event(
                "crawl.resumed",
                lapsed=takeover.lapsed,
                fetched=len(takeover.resumables),
                manifests=len(takeover.open_manifests),
            )
        for work in takeover.resumables:
            await self.resume(work)
        for open_manifest in takeover.open_manifests:
            await self._room_for_extract()
            url, partition = open_manifest.origin + open_manifest.path, open_manifest.manifest.partition
            consume = partial(self.parts.discovery.resume, open_manifest)
            self._spawn(self._extracting, self._carry(consume, url), url, partition)

    async def resume(self, work: Resumable) -> None:
        """Carry on a page past LEASED, as soon as there is room."""
        await self._room_for_extract()
        url, partition = work.lease.url, work.lease.key.partition
        carry = self._carry(partial(self.parts.extract.resume, work), url)
        self._spawn(self._extracting, carry, url, partition)

    async def _dispatch(self) -> EndReason:
        """Lease and start, as fast as limits allow, until there is a reason to end."""
        parts = self.parts
        while True:
            if self._stop.is_set():
                return EndReason.STOPPED
            if parts.fence.lost and parts.tenancy is None:
                raise StoreBroken("another owner has taken over this crawl; this agent starts nothing more")
            if self._out_of_time():
                return EndReason.TIME_BUDGET
            free = self._free()
            if free <= 0:
                await self._wait_for_room()
                continue
            parts.pace(len(self._active) + len(self._extracting))
            asked = min(free, LEASE_BATCH_MAX)
            reply = await parts.scheduler.lease(asked, pages=not self._is_flooded())
            if reply.fenced:
                parts.fence.lose_all()
                continue
            self._count(reply)
            if any(lease.kind != UrlKind.ROBOTS for lease in reply.leases):
                self._page_s = self.parts.clock.monotonic_s()
            for lease in reply.leases:
                self._spawn(self._active, self._page(lease), lease.url, lease.key.partition)
            if len(reply.leases) == asked:
                continue
            if not reply.leases and (end := await self._end_of(reply)) is not None:
                return end
            self._binding = self._why_waiting(reply)
            await parts.scheduler.wait()

    def _free(self) -> int:
        """How many more requests may start now; 0 or less when a limit binds, which is then named."""
        if self.parts.health.blocked:
            self._binding = "trouble"
            self._page_s = self.parts.clock.monotonic_s()
            return 0
        if len(self._extracting) >= self.parts.backlog_max:
            self._binding = Reason.PARSE_BACKLOG.value
            return 0
        free = self.parts.concurrency - len(self._active)
        if free <= 0:
            self._binding = "concurrency"
        return free

    async def _wait_for_room(self) -> None:
        self._room.clear()
        try:
            async with asyncio.timeout(TICK_S):
                await self._room.wait()
        except TimeoutError:
            pass

    async def _room_for_extract(self) -> None:
        while len(self._extracting) >= self.parts.backlog_max and not self._stop.is_set():
            await self._wait_for_room()

    async def _page(self, lease: Lease) -> None:
        """One attempt, and extraction of what it fetched, which takes its place among those that extract."""
        try:
            source = await self.parts.dispatch.run(lease)
        except Exception as bug:
            if _ends_the_run(bug):
                raise
            self._report_bug(lease.url, bug)
            await self.parts.recorder.fail(lease, FetchFailure(Category.INTERNAL, repr(bug)[:200]))
            return
        if source is not None:
            self._turn_to_extraction()
            await self._carry(partial(self.parts.extract.run, source), lease.url)

    def _turn_to_extraction(self) -> None:
        """The request of this task is over: another one may start."""
        task = asyncio.current_task()
        assert task is not None
        del self._active[task]
        self._extracting[task] = None
        self._room.set()
        self.parts.scheduler.kick()

    async def _carry(self, work: Callable[[], Awaitable[object]], url: str) -> None:
        """Extraction or discovery of one page. Where it stumbles the page stays as it is, for the next run."""
        try:
            await work()
        except Exception as bug:
            if _ends_the_run(bug):
                raise
            self._stranded += 1
            self._report_bug(url, bug)

    def _told_stranded(self) -> str:
        if not self._stranded:
            return ""
        pages = "1 page" if self._stranded == 1 else f"{self._stranded} pages"
        return f"{pages} could not be carried on after the fetch; the log names them, `amble verify` what is lost"

    def _report_bug(self, url: str, bug: Exception) -> None:
        self.parts.telemetry.event(
            "internal", url=url, error=repr(bug), trace="".join(traceback.format_exception(bug))[-4000:]
        )

    def _spawn(
        self,
        group: dict[asyncio.Task[None], None],
        work: Coroutine[Any, Any, None],
        name: str,
        partition: int,
    ) -> None:
        assert self._crew is not None
        task = self._crew.create_task(work, name=name)
        group[task] = None
        self._busy[partition] += 1

        def done(finished: asyncio.Task[None]) -> None:
            self._active.pop(finished, None)
            self._extracting.pop(finished, None)
            self._busy[partition] -= 1
            self._room.set()
            self.parts.scheduler.kick()

        task.add_done_callback(done)

    # -- the end ----------------------------------------------------------------------------------------------

    async def _end_of(self, reply: LeaseReply) -> EndReason | None:
        """Whether the run is over, now that nothing is due."""
        tenancy = self.parts.tenancy
        if tenancy is None:
            return self._ended(reply)
        if self._active or self._extracting or tenancy.ended is None:
            return None
        return await tenancy.ended()

    def _is_flooded(self) -> bool:
        """Whether enough pages wait for parse workers."""
        tenancy, last = self.parts.tenancy, self.parts.scheduler.last
        if tenancy is None or tenancy.unparsed_max is None or last is None:
            return False
        return last.unparsed >= tenancy.unparsed_max

    def _ended(self, reply: LeaseReply) -> EndReason | None:
        if self._active or self._extracting:
            return None
        # What stumbled is left to the next run and must not keep this one waiting.
        if max(reply.in_flight, reply.open_manifests) > self._stranded:
            return None
        if reply.budget_spent:
            return EndReason.PAGE_BUDGET
        if reply.forwarded:
            return None  # what crosses between partitions is about to be queued
        if not reply.queued:
            return EndReason.TROUBLE if self._stranded else EndReason.FINISHED
        if reply.next_wake_ms is None:
            return EndReason.WAITING
        if (reply.next_wake_ms - reply.now_ms) / 1000 > self.parts.wait_s_max:
            return EndReason.WAITING
        # Among many dead hosts some robots.txt is always about to be tried again. That alone is no reason to go on.
        if self.parts.clock.monotonic_s() - self._page_s > self.parts.wait_s_max:
            return EndReason.WAITING
        return None

    def _why_waiting(self, reply: LeaseReply) -> str:
        if self._is_flooded():
            return Reason.PARSE_BACKLOG.value
        if reply.budget_spent:
            return "page budget"
        return "politeness" if reply.queued else ""

    async def _drain(self, reason: EndReason) -> None:
        """Let what is under way finish within its grace; cancel the rest, which puts its URLs back."""
        # While trouble stands, more patience would only be more waiting.
        stopped = reason in (EndReason.STOPPED, EndReason.TIME_BUDGET) or self.parts.health.blocked
        await self._settle(self._active, STOP_FETCH_GRACE_S if stopped else END_GRACE_S)
        await self._settle(self._extracting, STOP_PARSE_GRACE_S if stopped else END_GRACE_S)

    async def _settle(self, group: dict[asyncio.Task[None], None], grace_s: float) -> None:
        until_s = self.parts.clock.monotonic_s() + grace_s
        hurried = self._stop.is_set()
        while group and (left_s := until_s - self.parts.clock.monotonic_s()) > 0:
            await asyncio.wait(list(group), timeout=min(left_s, TICK_S))
            if self._stop.is_set() and not hurried:
                hurried, until_s = True, self.parts.clock.monotonic_s() + STOP_FETCH_GRACE_S
        rest = list(group)
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)

    async def _stop_without_store(self) -> None:
        """Everybody who waits for a frontier that cannot be written would keep a stop or a time budget waiting too."""
        if self.parts.budget.seconds_max is None:
            await self._stop.wait()
        was_over = False
        while True:
            await self.parts.clock.sleep(STOP_STORE_GRACE_S / 2)
            is_over = self._stop.is_set() or self._out_of_time()
            detail = self.parts.health.troubles.get(Reason.STORE_UNAVAILABLE)
            if is_over and was_over and detail is not None:
                self.parts.abandon_store(StoreUnavailable(f"ended while {detail}"))
            was_over = is_over

    # -- upkeep and reporting ---------------------------------------------------------------------------------

    async def _chore(self, chore: Chore) -> None:
        while True:
            try:
                await chore.work()
            except StoreUnavailable as trouble:
                # It is made again, and whoever waits for the store tells of the trouble.
                self.parts.telemetry.event("chore.unanswered", chore=chore.name, detail=str(trouble))
            await self.parts.clock.sleep(chore.every_s)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self.parts.clock.sleep(seconds)
            await work()

    async def _expire(self) -> None:
        now_s = self.parts.clock.monotonic_s()
        if self.parts.health.blocked:
            self._troubled_s = now_s
        if now_s - self._troubled_s < TROUBLE_SETTLES_S:
            return
        if await self.parts.expiry.once():
            self.parts.scheduler.kick()

    async def _publish(self) -> None:
        assert self.parts.publish is not None
        while await self.parts.publish():
            pass

    async def _look(self) -> None:
        try:
            self._status = await self.parts.read_status() or self._status
        except AmbleError as trouble:
            self.parts.telemetry.event("status.unreadable", detail=str(trouble))
        self.parts.on_status(self.progress())

    def _count(self, reply: LeaseReply) -> None:
        if self._pages_before is None:
            self._pages_before = reply.pages
        self._pace.note(
            self.parts.clock.monotonic_s(), reply.pages, tuple(sorted(self.parts.fence.partitions))
        )

    def _rate(self) -> float:
        return self._pace.per_s(self.parts.clock.monotonic_s())

    def _out_of_time(self) -> bool:
        most_s = self.parts.budget.seconds_max
        return most_s is not None and self._elapsed_s() >= most_s

    def _elapsed_s(self) -> float:
        return self.parts.clock.monotonic_s() - self._started_s

    def _result(self, reason: EndReason, trouble: str, errors: Sequence[BaseException]) -> CrawlResult:
        status, last = self._status, self.parts.scheduler.last
        pages = status.pages if status else 0
        pages_before = pages if self._pages_before is None else self._pages_before
        next_due_s = None
        if last is not None and last.next_wake_ms is not None:
            next_due_s = max(0.0, (last.next_wake_ms - last.now_ms) / 1000)
        return CrawlResult(
            reason=reason,
            pages=pages,
            pages_run=pages - pages_before,
            documents=status.documents if status else 0,
            queued=status.queued if status else 0,
            failed=status.failed if status else 0,
            excluded=status.excluded if status else 0,
            bytes=status.bytes if status else 0,
            elapsed_s=self._elapsed_s(),
            next_due_s=next_due_s,
            failures=_counts(status.failures if status else {}),
            exclusions=_counts(status.exclusions if status else {}),
            refused=_counts(status.refused if status else {}),
            withheld=_counts(status.withheld if status else {}),
            trouble=trouble or self.parts.health.describe() or self._told_stranded(),
            unusable=not _UNUSABLE.isdisjoint(self.parts.health.troubles)
            or any(isinstance(error, StoreUnavailable | ArchiveUnavailable) for error in errors),
            damaged=any(_is_damage(error) for error in errors),
        )


def _is_damage(error: BaseException) -> bool:
    return isinstance(error, StoreBroken | ArchiveBroken) and not isinstance(
        error, StoreUnfit | OperationRefused
    )


def _ends_the_run(error: Exception) -> bool:
    """A lost store or archive is everybody's; a record that is gone or a mistake of ours concerns one page."""
    return isinstance(error, AmbleError) and not isinstance(error, ArchiveBroken | OperationRefused)


def _counts(counts: dict[str, int]) -> tuple[ReasonCount, ...]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(ReasonCount(reason=reason, count=count) for reason, count in ordered)


def _told(group: BaseExceptionGroup[BaseException]) -> str:
    """What happened, once, however many tasks it happened to."""
    return "; ".join(dict.fromkeys(str(error) for error in _leaves(group)))


def _leaves(group: BaseExceptionGroup[BaseException]) -> Sequence[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
