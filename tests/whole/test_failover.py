"""What a synchronous pair of PostgreSQL servers promises, judged by plain clients: acknowledged rows survive a failover.

The same judge over an asynchronous pair finds losses, so it is able to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg
import pytest

from amble.adapters.postgres.barrier import BARRIER, wait_for_standby
from tests.support.fleet import wait_for_sql
from tests.support.ha import Pair
from tests.support.postgres import SharedPostgres

SOON_S = 30.0
WRITERS = 4
BATCH = 20
ENOUGH = 400


@contextmanager
def a_pair(postgres: SharedPostgres, *, synchronous: bool) -> Iterator[Pair]:
    with Pair.start(postgres.pristine(), synchronous=synchronous) as pair:
        pair.primary.server.execute("CREATE TABLE row (id bigint PRIMARY KEY)")
        yield pair


class Ledger:
    """What was sent and what was acknowledged, as the clients know it."""

    def __init__(self) -> None:
        self.sent: set[int] = set()
        self.acknowledged: set[int] = set()
        self._next = 0
        self._more = asyncio.Event()

    def batch(self) -> list[int]:
        ids = list(range(self._next, self._next + BATCH))
        self._next += BATCH
        self.sent.update(ids)
        return ids

    def acknowledge(self, ids: list[int]) -> None:
        self.acknowledged.update(ids)
        self._more.set()

    async def more(self, count: int) -> None:
        """Until so many more have been acknowledged."""
        goal = len(self.acknowledged) + count
        async with asyncio.timeout(SOON_S):
            while len(self.acknowledged) < goal:
                self._more.clear()
                await self._more.wait()


async def write(dsn: str, ledger: Ledger) -> None:
    """Insert batches until the connection breaks; what broke in flight is neither acknowledged nor lost."""
    connection = await asyncpg.connect(dsn, timeout=SOON_S)
    try:
        while True:
            ids = ledger.batch()
            await connection.execute("INSERT INTO row SELECT unnest($1::bigint[])", ids)
            ledger.acknowledge(ids)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        pass
    finally:
        connection.terminate()


@asynccontextmanager
async def writers(pair: Pair, ledger: Ledger) -> AsyncIterator[None]:
    """Clients at work in the block; they have all noticed the end of their server when it is over."""
    tasks = [asyncio.create_task(write(pair.dsn(), ledger)) for _ in range(WRITERS)]
    yield
    async with asyncio.timeout(SOON_S):
        await asyncio.gather(*tasks)


async def surviving(pair: Pair) -> set[int]:
    """The rows of whichever server takes writes."""
    connection = await asyncpg.connect(pair.dsn(), timeout=SOON_S)
    try:
        return {row["id"] for row in await connection.fetch("SELECT id FROM row")}
    finally:
        await connection.close()


async def lost_over_a_failover(pair: Pair, ledger: Ledger) -> set[int]:
    """Writers at work, the walsender frozen, the primary killed, the standby promoted: acknowledged rows that are gone."""
    async with writers(pair, ledger):
        await ledger.more(ENOUGH)
        await asyncio.to_thread(pair.freeze_walsender)
        if pair.synchronous:
            await asyncio.sleep(0.2)  # nothing to wait for: that nothing more is acknowledged is the point
        else:
            await ledger.more(BATCH * WRITERS * 2)
        await asyncio.to_thread(pair.kill_primary)
    await asyncio.to_thread(pair.promote)
    survivors = await surviving(pair)
    assert survivors <= ledger.sent
    return ledger.acknowledged - survivors


async def test_acknowledged_rows_of_a_synchronous_pair_survive_a_killed_primary(
    postgres: SharedPostgres,
) -> None:
    with a_pair(postgres, synchronous=True) as pair:
        ledger = Ledger()
        assert await lost_over_a_failover(pair, ledger) == set()
        assert len(ledger.acknowledged) >= ENOUGH


async def test_the_same_judge_notices_what_an_asynchronous_pair_loses(postgres: SharedPostgres) -> None:
    with a_pair(postgres, synchronous=False) as pair:
        ledger = Ledger()
        assert await lost_over_a_failover(pair, ledger) != set()


async def test_a_former_primary_comes_back_as_the_standby(postgres: SharedPostgres) -> None:
    """Even one that had committed what the new primary never got: that is undone."""
    with a_pair(postgres, synchronous=False) as pair:
        ledger = Ledger()
        lost = await lost_over_a_failover(pair, ledger)
        assert lost
        former = pair.standby
        pair.synchronous = True
        await asyncio.to_thread(pair.rejoin)
        connection = await asyncpg.connect(pair.dsn(), timeout=SOON_S)
        await connection.execute("INSERT INTO row VALUES (-1)")
        await connection.close()
        assert former.server.execute("SELECT count(*) FROM row WHERE id = -1 AND pg_is_in_recovery()") == "1"
        assert former.server.execute("SELECT count(*) FROM row") == str(len(await surviving(pair)))


async def test_without_its_standby_a_synchronous_primary_acknowledges_nothing(
    postgres: SharedPostgres,
) -> None:
    with a_pair(postgres, synchronous=True) as pair:
        await asyncio.to_thread(pair.standby.server.kill)
        connection = await asyncpg.connect(pair.dsn(), timeout=SOON_S)
        with pytest.raises(TimeoutError):
            await connection.execute("INSERT INTO row VALUES (1)", timeout=0.5)
        connection.terminate()
        await asyncio.to_thread(pair.standby.server.start_again)
        await asyncio.to_thread(pair.protect)
        connection = await asyncpg.connect(pair.dsn(), timeout=SOON_S)
        await connection.execute("INSERT INTO row VALUES (2)", timeout=SOON_S)
        await connection.close()


async def test_a_primary_that_slept_through_a_failover_still_takes_writes_but_acknowledges_none(
    postgres: SharedPostgres,
) -> None:
    """Two primaries: PostgreSQL refuses nothing, only the missing standby holds the commit back."""
    with a_pair(postgres, synchronous=True) as pair:
        asleep = pair.primary.server
        connection = await asyncpg.connect(asleep.dsn(), timeout=SOON_S)
        asleep.freeze()
        await asyncio.to_thread(pair.promote)
        asleep.thaw()
        assert await connection.fetchval("SELECT pg_is_in_recovery()") is False
        with pytest.raises(TimeoutError):
            await connection.execute("INSERT INTO row VALUES (1)", timeout=0.5)
        connection.terminate()
        assert await surviving(pair) == set()


async def test_a_cancelled_wait_for_the_standby_is_told_as_a_commit_with_a_warning(
    postgres: SharedPostgres,
) -> None:
    """The one way to lose what was acknowledged: `pg_cancel_backend`, which PostgreSQL does not take for a failure."""
    with a_pair(postgres, synchronous=True) as pair:
        connection = await asyncpg.connect(pair.dsn(), timeout=SOON_S)
        warnings: list[str] = []
        connection.add_log_listener(lambda _, message: warnings.append(message.message))
        backend = connection.get_server_pid()
        await asyncio.to_thread(pair.standby.server.kill)
        waiting = asyncio.create_task(connection.execute("INSERT INTO row VALUES (1)"))
        await wait_for_sql(
            pair.primary.server.dsn(),
            f"SELECT wait_event FROM pg_stat_activity WHERE pid = {backend}",
            lambda event: event == "SyncRep",
            "the commit waits for the standby",
        )
        await asyncio.to_thread(pair.primary.server.execute, f"SELECT pg_cancel_backend({backend})")
        assert await waiting == "INSERT 0 1"
        assert any("canceling wait for synchronous replication" in warning for warning in warnings)
        connection.terminate()


ADMIT = "INSERT INTO row VALUES (1) ON CONFLICT DO NOTHING"


async def test_a_barrier_shows_whether_what_a_restarted_primary_tells_is_on_its_standby(
    postgres: SharedPostgres,
) -> None:
    """After a crash the primary shows commits that were never acknowledged, and a repeated operation that finds its
    effect there writes nothing, so it waits for nobody. A written record waits, and with it all that stands before it.
    """
    with a_pair(postgres, synchronous=True) as pair:
        await asyncio.to_thread(pair.standby.server.kill)
        connection = await asyncpg.connect(pair.dsn(), timeout=SOON_S)
        with pytest.raises(TimeoutError):
            await connection.execute(ADMIT, timeout=0.5)
        connection.terminate()
        await asyncio.to_thread(pair.primary.server.kill)
        await asyncio.to_thread(pair.primary.server.start_again)

        again = await asyncpg.connect(pair.dsn(), timeout=SOON_S)
        assert await again.execute(ADMIT, timeout=SOON_S) == "INSERT 0 0", "known, yet only here"
        with pytest.raises(TimeoutError):
            await again.execute(BARRIER, timeout=0.5)
        again.terminate()

        await asyncio.to_thread(pair.standby.server.start_again)
        await asyncio.to_thread(pair.protect)
        safe = await asyncpg.connect(pair.dsn(), timeout=SOON_S)
        await asyncio.wait_for(wait_for_standby(safe), SOON_S)
        await safe.close()
        assert pair.standby.server.execute("SELECT id FROM row") == "1"


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["rewind", "copy"])
async def test_roles_swap_again_and_again_without_a_loss(postgres: SharedPostgres, how: str) -> None:
    with a_pair(postgres, synchronous=True) as pair:
        ledger = Ledger()
        for _ in range(10):
            assert await lost_over_a_failover(pair, ledger) == set()
            await asyncio.to_thread(pair.rejoin, how)
            told = {name: round(value, 2) for name, value in pair.seconds.items()}
            print(f"{how}: {len(ledger.acknowledged)} acknowledged, none lost, {told}")
