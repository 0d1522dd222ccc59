"""A robots.txt hop to an origin whose ledger is on another server: a guest there, for a bounded time.

The guest takes the whole origin: no start is granted there until the longest possible exchange and the delay after it
are over, or until the guest says that it has left. So nothing has to be swept when the guest dies, and no transaction spans two servers: the
holder's lease is checked and prolonged at home first, then the start is spent there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from amble.adapters.postgres.rows import Origin
from amble.adapters.postgres.servers_link import NOW, Link
from amble.adapters.postgres.statements import ORIGIN
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.tally import ORIGINS
from amble.domain.errors import StoreBroken
from amble.domain.frontier import ReserveAsk, ReserveOutcome, ReserveReply

# The lease goes on for the hop, under the epoch that it was made under.
_EPOCH: Final = (
    "SELECT 1 FROM partition WHERE partition = $1 AND epoch = $2 AND (lease_until IS NULL OR lease_until > $3)"
    " FOR KEY SHARE"
)
_PROLONG: Final = (
    "UPDATE url SET slot_until = greatest(slot_until, $4), expires_at = greatest(expires_at, $5)"
    " WHERE id = $1 AND token = $2 AND attempt = $3 AND state = 1 RETURNING 1"
)
_LIVES_HERE: Final = "SELECT 1 FROM partition WHERE partition = $1 AND NOT moving FOR KEY SHARE"
_COUNT: Final = (
    "INSERT INTO tally(partition, name, value) VALUES ($1, $2, 1)"
    " ON CONFLICT (partition, name) DO UPDATE SET value = tally.value + 1"
)
_BLOCK: Final = "UPDATE origin SET next_start = $2 WHERE id = $1"
# Only while the block still stands: otherwise its end has passed, or the origin waits for something later.
_LEAVE: Final = (
    "UPDATE origin SET next_start = $3, rest_until = greatest(rest_until, $4),"
    " wake_at = least(wake_at, greatest($3, rest_until, $4)) WHERE id = $1 AND next_start = $2"
)


@dataclass(frozen=True, slots=True)
class Guest:
    """A start that was granted elsewhere: until when it blocks the origin, and the delay that is due after its end."""

    server: int
    origin_id: int
    until: int
    delay_ms: int


async def prolong(link: Link, ask: ReserveAsk, settings: StoreSettings) -> ReserveReply | None:
    """Keep the lease of `ask` for the hop; a refusal when it is gone or its epoch is over."""

    async def work(connection: Any) -> ReserveReply | None:
        now = await connection.fetchval(NOW)
        if await connection.fetchval(_EPOCH, ask.key.partition, ask.epoch, now) is None:
            return ReserveReply(int(ReserveOutcome.FENCED), 0, now, 0)
        until = now + ask.hold_ms
        held = await connection.fetchval(
            _PROLONG, ask.key.url_id, ask.key.token, ask.key.attempt, until, until + settings.lease_grace_ms
        )
        return ReserveReply(int(ReserveOutcome.STALE), 0, now, 0) if held is None else None

    return await link.transaction(work)


async def come(
    link: Link, server: int, partition: int, ask: ReserveAsk, settings: StoreSettings
) -> tuple[ReserveReply, Guest | None]:
    """Ask the ledger of `partition` for a start at `ask.origin`. Refusal spends nothing."""

    async def work(connection: Any) -> tuple[ReserveReply, Guest | None]:
        now = await connection.fetchval(NOW)
        if await connection.fetchval(_LIVES_HERE, partition) is None:
            # On its way to another server: a moment later its new place is known.
            return ReserveReply(int(ReserveOutcome.NOT_YET), now + 1_000, now, 0), None
        origin = await _origin(connection, ask.origin, partition, now)
        spacing = settings.default_spacing_ms if origin.spacing_ms is None else origin.spacing_ms
        own_max = settings.default_active_max if origin.active_max is None else origin.active_max
        delay_ms = max(ask.delay_ms, spacing, min(origin.robots_delay_ms, ask.crawl_delay_cap_ms))
        refused = _refusal(origin, now, delay_ms, min(own_max, ask.active_max))
        if refused is not None:
            return refused, None
        until = now + ask.hold_ms
        await connection.execute(_BLOCK, origin.id, until + delay_ms)
        reply = ReserveReply(int(ReserveOutcome.GRANTED), until, now, origin.id)
        return reply, Guest(server, origin.id, until + delay_ms, delay_ms)

    return await link.transaction(work)


async def leave(link: Link, guest: Guest, rest_ms: int) -> None:
    """The request is over; `rest_ms`: the origin said that it is too much."""

    async def work(connection: Any) -> None:
        now = await connection.fetchval(NOW)
        await connection.execute(
            _LEAVE, guest.origin_id, guest.until, now + guest.delay_ms, now + rest_ms if rest_ms else 0
        )

    await link.transaction(work)


def _refusal(origin: Origin, now: int, delay_ms: int, active_max: int) -> ReserveReply | None:
    if origin.paused:
        return ReserveReply(int(ReserveOutcome.PAUSED), 0, now, origin.id)
    ready_at = origin.ready_at
    if origin.robots_delay_ms:
        # A Crawl-delay was not known yet when the robots.txt it stands in was asked for.
        ready_at = max(ready_at, origin.robots_fetched_at + min(origin.robots_delay_ms, delay_ms))
    if ready_at > now:
        return ReserveReply(int(ReserveOutcome.NOT_YET), ready_at, now, origin.id)
    if origin.active >= active_max:
        return ReserveReply(int(ReserveOutcome.NO_SLOT), 0, now, origin.id)
    return None


async def _origin(connection: Any, key: str, partition: int, now: int) -> Origin:
    """The ledger, which nobody else changes until the end of the transaction; opened where there is none."""
    for _ in range(2):
        known = await connection.fetchval("SELECT id FROM origin WHERE key = $1 FOR NO KEY UPDATE", key)
        if known is not None:
            row = (await connection.fetch(ORIGIN["by_id"], [known]))[0]
            return Origin(*row[1:])
        new = await connection.fetchval(ORIGIN["take_ids"], 1)
        if new is None:
            raise StoreBroken("no origin ids are left: run `amble store init` again")
        made = await connection.execute(ORIGIN["create"], [new], [key], [partition], now)
        if made.endswith(" 1"):
            await connection.execute(_COUNT, partition, ORIGINS)
    raise AssertionError("an origin that was just opened is there")
