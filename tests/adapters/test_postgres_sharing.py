"""Calls that share a statement: how those end that wait when nobody wants to wait any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from amble.adapters.postgres.servers_link import Link
from amble.adapters.postgres.sharing import Share, Troubles
from amble.domain.errors import StoreUnavailable


async def nothing(_connection: Any, asks: list[int]) -> list[int]:
    return asks


def share() -> Share[int, int]:
    # Nobody listens there; no test comes so far as to connect.
    return Share(Link("postgresql://127.0.0.1:1/none"), nothing, Troubles(lambda _: None), "test")


async def test_a_call_made_in_the_turn_in_which_it_is_abandoned_ends_with_the_reason() -> None:
    calls = share()
    call = asyncio.ensure_future(calls.ask(1))
    await asyncio.sleep(0)  # it waits now, and whoever answers has not begun
    calls.abandon(StoreUnavailable("ended"))
    with pytest.raises(StoreUnavailable, match="ended"):
        async with asyncio.timeout(5):
            await call


async def test_a_call_made_in_the_turn_in_which_it_is_stopped_ends_as_well() -> None:
    calls = share()
    call = asyncio.ensure_future(calls.ask(1))
    await asyncio.sleep(0)
    await calls.stop()
    with pytest.raises(StoreUnavailable, match="closed"):
        async with asyncio.timeout(5):
            await call
