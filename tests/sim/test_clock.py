"""The virtual loop: what dies with an actor, and what is still a mishap."""

from __future__ import annotations

import asyncio
import gc

from amble.sim.clock import Actor, VirtualLoop


async def _fail() -> None:
    raise ValueError("told to nobody")


async def _start_and_wait_for(loop: VirtualLoop) -> None:
    await loop.create_task(_fail(), name="fails")


def _run(loop: VirtualLoop, *, dies: bool, waits: bool) -> list[str]:
    actor = Actor("agent")

    async def scene() -> None:
        task = loop.start(actor, _start_and_wait_for(loop) if waits else _fail(), "work")
        while not (actor.ended or task.done()):
            await asyncio.sleep(0)
        if dies:
            loop.kill(actor)
        await asyncio.sleep(1)

    loop.run(scene())
    loop.close()
    actor.ended.clear()
    gc.collect()
    return loop.mishaps


def test_a_task_that_failed_just_before_its_actor_died_is_no_mishap() -> None:
    assert _run(VirtualLoop(), dies=True, waits=True) == []


def test_a_task_that_failed_and_was_never_looked_at_is_a_mishap() -> None:
    mishaps = _run(VirtualLoop(), dies=False, waits=False)
    assert len(mishaps) == 1
    assert "told to nobody" in mishaps[0]
