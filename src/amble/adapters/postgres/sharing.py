"""Calls made together share a statement, and wait while their server is away: what indexes over servers are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from amble.adapters.postgres.servers_link import Link
from amble.domain.errors import StoreUnavailable

A = TypeVar("A")
R = TypeVar("R")

RETRY_S: Final = 0.5
# Calls in one statement.
ASKED_MAX: Final = 1_000


class Troubles:
    """Why calls wait, by whatever they wait for. `hear` is told of one that stands, and None when none does any more."""

    def __init__(self, hear: Callable[[str | None], None]) -> None:
        self._hear = hear
        self._standing: dict[object, str] = {}

    @property
    def standing(self) -> str | None:
        """One of them, None when nothing waits."""
        return next(iter(self._standing.values()), None)

    def tell(self, source: object, trouble: str | None) -> None:
        """`source` has a trouble now, or has it no more."""
        before = self.standing
        if trouble is None:
            self._standing.pop(source, None)
        else:
            self._standing[source] = trouble
        after = self.standing
        if after != before:
            self._hear(after)


class Share(Generic[A, R]):
    """What is asked of one server. `answer` carries a group out over a connection: one answer each, in order.

    It may be carried out again when it is not known whether it was.
    """

    def __init__(
        self,
        link: Link,
        answer: Callable[[Any, list[A]], Awaitable[list[R]]],
        troubles: Troubles,
        what: str,
    ) -> None:
        self._link = link
        self._answer = answer
        self._troubles = troubles
        self._what = what
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._worker: asyncio.Task[None] | None = None
        self._ended: StoreUnavailable | None = None

    async def ask(self, ask: A) -> R:
        """The answer once the server has given it. Raises StoreUnavailable when nobody waits for it any more."""
        if self._ended is not None:
            raise self._ended
        waiter: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((ask, waiter))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work(), name=self._what)
        return await waiter

    async def _work(self) -> None:
        group: list[tuple[A, asyncio.Future[R]]] = []
        try:
            while self._waiting:
                await asyncio.sleep(0)  # calls of this turn of the loop come along
                group, self._waiting = self._waiting[:ASKED_MAX], self._waiting[ASKED_MAX:]
                answers = await self._until_answered([ask for ask, _ in group])
                for (_, waiter), answer in zip(group, answers, strict=True):
                    if not waiter.done():
                        waiter.set_result(answer)
        except BaseException as error:
            for _, waiter in [*group, *self._waiting]:
                if not waiter.done():
                    ended = self._ended or StoreUnavailable(f"the {self._what} index is closed")
                    waiter.set_exception(ended if isinstance(error, asyncio.CancelledError) else error)
            self._waiting = []
            if not isinstance(error, Exception):
                raise

    async def _until_answered(self, asks: list[A]) -> list[R]:
        async def work(connection: Any) -> list[R]:
            return await self._answer(connection, asks)

        while True:
            try:
                answers = await self._link.call(work)
            except StoreUnavailable as trouble:
                self._troubles.tell(self._link, str(trouble))
                await asyncio.sleep(RETRY_S)
            else:
                self._troubles.tell(self._link, None)
                return answers

    def abandon(self, error: StoreUnavailable) -> None:
        """End what waits, and what is still to come, with `error`."""
        self._ended = error
        if self._worker is not None:
            self._worker.cancel()
        self._end_waiting(error)

    async def stop(self) -> None:
        """End what waits."""
        self.abandon(self._ended or StoreUnavailable(f"the {self._what} index is closed"))
        if self._worker is not None:
            await asyncio.gather(self._worker, return_exceptions=True)

    def _end_waiting(self, error: StoreUnavailable) -> None:
        """A worker that is cancelled before its first step never comes to that."""
        waiting, self._waiting = self._waiting, []
        for _, waiter in waiting:
            if not waiter.done():
                waiter.set_exception(error)
