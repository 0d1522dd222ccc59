"""Who owns which partition, over a real database: agents in one process, whose own clocks the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import asyncpg
import msgspec
import pytest

from amble.adapters.postgres.partitions import PostgresPartitions
from amble.adapters.postgres.placement import set_up_servers
from amble.domain.errors import StoreUnavailable
from amble.ports import Claimed, Partitions, Roster
from amble.stages.gate import Fence
from amble.upkeep.ownership import MARGIN_SHARE, Ownership
from tests.support.postgres import FreshDatabase

COUNT = 6
TTL_S, HOLD_S = 30.0, 40.0
WINDOW_S = TTL_S * (1 - MARGIN_SHARE)


@dataclass(slots=True)
class Time:
    """A monotonic clock that the test moves."""

    now_s: float = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(slots=True)
class Ground:
    """What an agent would do with its partitions, written down; starts are asked of a real fence."""

    time: Time
    fence: Fence = field(default_factory=Fence)
    working: set[int] = field(default_factory=set)
    resting: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)

    def begin(self, partition: int, epoch: int) -> None:
        assert partition not in self.working
        assert self.may_start(partition), "it begins within its window"
        self.working.add(partition)

    def trust(self, partition: int, epoch: int, until_s: float) -> None:
        self.fence.trust(partition, epoch, until_s)

    def rest(self, partition: int) -> None:
        self.resting.add(partition)

    def wake(self, partition: int) -> None:
        self.resting.discard(partition)

    def is_idle(self, partition: int) -> bool:
        return partition not in self.busy

    def lose(self, partition: int) -> None:
        self.fence.lose(partition)
        self.working.discard(partition)
        self.resting.discard(partition)

    def may_start(self, partition: int) -> bool:
        return self.fence.held(partition, self.time.now_s) is not None


class Cut:
    """Partitions over a line that can be cut, before the call arrives or before its answer does."""

    def __init__(self, there: Partitions, time: Time) -> None:
        self._there = there
        self._time = time
        self.cut = False
        self.lose_answers = False
        self.ahead_ms = 0

    async def _over(self, call: Callable[[], Awaitable[object]]) -> object:
        if self.cut:
            raise StoreUnavailable("cut")
        answer = await call()
        if self.lose_answers:
            raise StoreUnavailable("no answer")
        return answer

    async def renew(self, agent: str, holds: dict[int, int], ttl_ms: int, *, leaving: bool) -> Roster:
        answer = await self._over(lambda: self._there.renew(agent, holds, ttl_ms, leaving=leaving))
        assert isinstance(answer, Roster)
        # The clock of the database counts with that of the test.
        clocks_ms = {0: int(self._time.now_s * 1000) + self.ahead_ms}
        return msgspec.structs.replace(answer, clocks_ms=clocks_ms)

    async def claim(self, agent: str, wanted: list[int], ttl_ms: int, hold_ms: int) -> list[Claimed]:
        answer = await self._over(lambda: self._there.claim(agent, wanted, ttl_ms, hold_ms))
        assert isinstance(answer, list)
        return answer

    async def release(self, agent: str, holds: dict[int, int]) -> None:
        await self._over(lambda: self._there.release(agent, holds))

    async def leave(self, agent: str) -> None:
        await self._over(lambda: self._there.leave(agent))


class Quiet:
    """ports.Telemetry that only counts."""

    def event(self, name: str, **fields: object) -> None:
        pass

    def count(self, name: str, amount: int = 1) -> None:
        pass


@dataclass(slots=True)
class Owner:
    """One agent."""

    ownership: Ownership
    ground: Ground
    line: Cut
    time: Time

    async def round(self) -> None:
        """A third of a lease passes for it, and it does what is due."""
        self.time.now_s += TTL_S / 3
        await self.ownership.tick()

    @property
    def held(self) -> set[int]:
        return set(self.ownership.held)

    def starting(self) -> set[int]:
        return {p for p in range(COUNT) if self.ground.may_start(p)}


Make = Callable[[str], Owner]


async def six_partitions(dsn: str) -> None:
    await set_up_servers([dsn], partitions=COUNT)


@pytest.fixture
def dsn(fresh_database: FreshDatabase) -> str:
    return fresh_database(six_partitions)


@pytest.fixture
async def make(dsn: str) -> AsyncIterator[Make]:
    made: list[PostgresPartitions] = []

    def owner(name: str) -> Owner:
        made.append(PostgresPartitions(dsn))
        time = Time()
        line = Cut(made[-1], time)
        ground = Ground(time)
        ownership = Ownership(
            agent=name,
            partitions=line,  # type: ignore[arg-type]
            ground=ground,
            clock=time,
            telemetry=Quiet(),
            ttl_s=TTL_S,
            hold_s=HOLD_S,
        )
        return Owner(ownership, ground, line, time)

    yield owner
    for partitions in made:
        await partitions.close()


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def lapse(sql: asyncpg.Connection[asyncpg.Record], owner: str) -> None:
    """The time of this agent's leases passes in the database."""
    await sql.execute(
        "UPDATE partition SET lease_until = lease_until - $2 WHERE owner = $1", owner, int(TTL_S * 1000)
    )
    await sql.execute("UPDATE agent SET seen_at = seen_at - $2 WHERE name = $1", owner, int(TTL_S * 1000) + 1)


async def settle(*owners: Owner, rounds: int = 6) -> None:
    for _ in range(rounds):
        for owner in owners:
            await owner.round()


async def test_the_first_agent_takes_everything_at_once(make: Make) -> None:
    ada = make("ada")
    await ada.round()
    assert ada.held == ada.starting() == ada.ground.working == set(range(COUNT))


async def test_one_that_joins_gets_its_share_without_a_wait_and_nothing_is_owned_twice(make: Make) -> None:
    ada, ben = make("ada"), make("ben")
    await ada.round()
    for _ in range(4):
        await ben.round()
        await ada.round()
        assert not ada.starting() & ben.starting()
    assert len(ada.held) == len(ben.held) == COUNT // 2
    assert ben.ground.working == ben.held
    before = (ada.held, ben.held)
    await settle(ada, ben)
    assert (ada.held, ben.held) == before, "and then nothing moves"


async def test_a_partition_is_handed_over_only_when_nothing_of_it_is_under_way(make: Make) -> None:
    ada, ben = make("ada"), make("ben")
    await ada.round()
    ada.ground.busy = set(range(COUNT))
    await ben.round()
    await settle(ada, ben, rounds=2)
    giving = set(ada.ground.resting)
    assert len(giving) == COUNT // 2
    assert (ada.held, ben.held) == (set(range(COUNT)), set())
    assert giving <= ada.starting(), "what is under way there may finish"
    ada.ground.busy = set(range(COUNT)) - {min(giving)}
    await settle(ada, ben, rounds=2)
    assert ben.held == {min(giving)}


async def test_a_handover_is_called_off_when_the_one_it_was_for_is_gone(make: Make) -> None:
    ada, ben = make("ada"), make("ben")
    await ada.round()
    ada.ground.busy = set(range(COUNT))
    await ben.round()
    await ada.round()
    assert ada.ground.resting
    await ben.ownership.leave()
    await ada.round()
    assert ada.ground.resting == set()
    assert ada.held == set(range(COUNT))


async def test_an_agent_that_leaves_gives_back_everything_and_is_forgotten(make: Make) -> None:
    ada, ben = make("ada"), make("ben")
    await ada.round()
    ada.ownership.depart()
    assert ada.ground.resting == set(range(COUNT))
    await ben.round()
    assert ben.held == set(), "while requests may be under way nothing is free"
    await ada.ownership.leave()
    assert (ada.held, ada.starting()) == (set(), set())
    await ben.round()
    assert ben.ground.working == set(range(COUNT))
    assert ben.ownership.roster is not None
    await ben.round()
    assert [line.agent for line in ben.ownership.roster.agents] == ["ben"]


async def test_while_renewals_fail_the_window_ends_by_itself_and_opens_again_under_the_same_epoch(
    make: Make,
) -> None:
    ada = make("ada")
    await ada.round()
    epochs = dict(ada.ownership.held)
    ada.line.cut = True
    began_s = ada.time.now_s
    while ada.time.now_s < began_s + WINDOW_S - 1:
        assert ada.starting() == set(range(COUNT))
        ada.time.now_s += 1.0
        await ada.ownership.tick()
    ada.time.now_s = began_s + WINDOW_S
    assert ada.starting() == set()
    ada.line.cut = False
    await ada.round()
    assert ada.starting() == set(range(COUNT))
    assert dict(ada.ownership.held) == epochs


async def test_the_window_is_counted_from_when_the_renewal_was_sent(make: Make) -> None:
    ada = make("ada")
    await ada.round()
    there = ada.line._over

    async def slow(call: Callable[[], Awaitable[object]]) -> object:
        answer = await there(call)
        ada.time.now_s += 7.0
        return answer

    ada.line._over = slow  # type: ignore[method-assign]
    sent_s = ada.time.now_s = ada.time.now_s + TTL_S / 3
    await ada.ownership.tick()
    ada.time.now_s = sent_s + WINDOW_S - 0.1
    assert ada.starting() == set(range(COUNT))
    ada.time.now_s = sent_s + WINDOW_S
    assert ada.starting() == set()


async def test_a_silent_agent_is_replaced_after_its_lease_and_its_last_request(
    make: Make, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    ada, ben = make("ada"), make("ben")
    await ada.round()
    await lapse(sql, "ada")
    await ben.round()
    assert ben.held == set(range(COUNT)), "claimed at once"
    assert (ben.starting(), ben.ground.working) == (set(), set()), "but nothing starts"
    claimed_s = ben.time.now_s
    while ben.time.now_s + TTL_S / 3 < claimed_s + HOLD_S - 1:
        await ben.round()
        assert ben.ground.working == set()
    ben.time.now_s = claimed_s + HOLD_S + 1
    await ben.ownership.tick()
    assert ben.ground.working == set(range(COUNT))


async def set_ahead(sql: asyncpg.Connection[asyncpg.Record], *owners: Owner) -> None:
    """The database goes on with a clock that is an hour ahead."""
    await sql.execute("UPDATE partition SET lease_until = lease_until - 3600000")
    await sql.execute("UPDATE agent SET seen_at = seen_at - 3600000")
    for owner in owners:
        owner.line.ahead_ms = 3_600_000


async def test_a_database_clock_that_jumps_ahead_takes_no_partition_from_agents_that_live(
    make: Make, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    ada, ben = make("ada"), make("ben")
    await settle(ada, ben)
    before = [dict(ada.ownership.held), dict(ben.ownership.held)]
    await set_ahead(sql, ada, ben)
    for _ in range(4):
        await ben.round()
        await ada.round()
    assert [dict(ada.ownership.held), dict(ben.ownership.held)] == before, "the same epochs"


async def test_after_such_a_jump_the_owner_that_stays_silent_is_waited_for_by_our_own_clock(
    make: Make, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    ada, ben = make("ada"), make("ben")
    await settle(ada, ben)
    own = ben.held
    await set_ahead(sql, ada, ben)
    await ben.round()
    noticed_s = ben.time.now_s
    while ben.time.now_s + TTL_S / 3 < noticed_s + TTL_S + HOLD_S:
        await ben.round()
        assert ben.ground.working == own
    assert ben.held == set(range(COUNT)), "claimed meanwhile"
    await ben.round()
    assert ben.ground.working == set(range(COUNT))


async def test_after_such_a_jump_a_silent_owner_with_longer_leases_and_requests_is_waited_for_by_its_own_settings(
    make: Make, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    ada, ben = make("ada"), make("ben")
    ada.ownership.ttl_s, ada.ownership.hold_s = TTL_S * 3, HOLD_S * 2
    await settle(ada, ben)
    own = ben.held
    await set_ahead(sql, ada, ben)
    await ben.round()
    noticed_s = ben.time.now_s
    while ben.time.now_s + TTL_S / 3 < noticed_s + TTL_S * 3 + HOLD_S * 2:
        await ben.round()
        assert ben.ground.working == own
    assert ben.held == set(range(COUNT)), "claimed meanwhile"


async def test_after_an_outage_for_all_each_goes_on_with_its_own_whoever_is_back_first(
    make: Make, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    ada, ben = make("ada"), make("ben")
    await settle(ada, ben)
    before = [dict(ada.ownership.held), dict(ben.ownership.held)]
    for owner in (ada, ben):
        owner.line.cut = True
        owner.time.now_s += TTL_S + 1
        await owner.ownership.tick()
        await lapse(sql, owner.ownership.agent)
        owner.line.cut = False
    assert ada.starting() | ben.starting() == set()
    await ada.round()
    await ben.round()
    assert [dict(ada.ownership.held), dict(ben.ownership.held)] == before, "under the same epochs"
    assert ada.starting() | ben.starting() == set(range(COUNT)), "without waiting for each other's requests"
    await settle(ada, ben)
    assert [dict(ada.ownership.held), dict(ben.ownership.held)] == before


async def test_after_an_outage_what_nobody_came_back_for_is_claimed_all_the_same(
    make: Make, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    ada, ben = make("ada"), make("ben")
    await settle(ada, ben)
    ada.time.now_s += TTL_S + 1
    await lapse(sql, "ada")
    await lapse(sql, "ben")
    await ada.ownership.tick()
    assert len(ada.held) == COUNT // 2
    await settle(ada, rounds=2)
    assert ada.held == set(range(COUNT))


async def test_one_that_was_replaced_loses_everything_at_its_next_renewal(
    make: Make, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    ada, ben = make("ada"), make("ben")
    await ada.round()
    await lapse(sql, "ada")
    await ben.round()
    ada.time.now_s += WINDOW_S  # it was stopped for so long
    assert ada.starting() == set()
    await ada.ownership.tick()
    assert (ada.held, ada.ground.working) == (set(), set())


async def test_what_is_given_up_before_the_last_owners_requests_were_over_is_not_called_free(
    make: Make, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    ada, ben, cyd = make("ada"), make("ben"), make("cyd")
    await ada.round()
    await lapse(sql, "ada")
    await ben.round()
    await ben.ownership.leave()  # at once, though ada's requests may be under way
    await cyd.round()
    assert cyd.held == set()
    await lapse(sql, "ben")
    await cyd.round()
    assert cyd.ownership.waiting == sorted(cyd.held) or set(cyd.ownership.waiting) == cyd.held
    assert cyd.ground.working == set()


async def test_what_could_not_be_given_back_while_the_line_was_cut_is_given_back_later(make: Make) -> None:
    ada, ben = make("ada"), make("ben")
    await ada.round()
    ada.ownership.depart()
    ada.line.cut = True
    await ada.round()
    ada.line.cut = False
    await ada.round()
    assert ada.held == set()
    await ben.round()
    assert ben.ground.working == set(range(COUNT))


async def test_a_claim_whose_answer_was_lost_starts_nothing_and_lapses(
    make: Make, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    ada, ben = make("ada"), make("ben")
    await ada.ownership.once()  # knows the fleet; holds everything
    await ada.ownership.leave()
    await ben.ownership.partitions.renew("ben", {}, int(TTL_S * 1000), leaving=False)
    ben.line.lose_answers = True
    await PostgresClaim.of(ben)
    ben.line.lose_answers = False
    await ben.round()
    assert (ben.held, ben.starting()) == (set(), set()), (
        "the database says it is ben's, but ben does not know since when"
    )
    await lapse(sql, "ben")
    await ben.round()
    assert ben.held == set(range(COUNT))
    assert ben.ground.working == set(), "as after any owner that did not say goodbye"


class PostgresClaim:
    """A claim that arrives and is not answered."""

    @staticmethod
    async def of(owner: Owner) -> None:
        with pytest.raises(StoreUnavailable):
            await owner.line.claim(
                owner.ownership.agent, list(range(COUNT)), int(TTL_S * 1000), int(HOLD_S * 1000)
            )
