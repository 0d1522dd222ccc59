"""Agents and parse workers at once on one database, over connections that break, and then the books."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from amble.adapters.postgres.store import PostgresStore
from amble.domain.attempt import Lease, UrlKind
from amble.domain.fetched import BodyRef
from amble.domain.frontier import (
    AdmitBatch,
    AdoptAsk,
    Candidate,
    Complete,
    DrainAsk,
    DropParcels,
    Exclude,
    LeaseAsk,
    ParcelAsk,
    ParseStrike,
    PutBack,
    RecordFailed,
    RecordFetched,
    RecordParsed,
    ReserveAsk,
    ReserveOutcome,
    TakeoverAsk,
)
from amble.domain.lifecycle import UrlState
from amble.domain.manifest import CursorAdvance, ManifestKey
from tests.adapters.test_postgres_store import AWAY, HASTY, QUICK, Breaking, make_fleet
from tests.contract.frontier_rig import ALLOW_ALL, DAY, Rig, answer, page
from tests.contract.postgres_rig import SideReader
from tests.support.postgres import FreshDatabase

ROUNDS = 16
LINKS = 4
FETCHED, PARSED = int(UrlState.FETCHED), int(UrlState.PARSED)
PAGE = int(UrlKind.PAGE)
SHARED = "https://shared.example"


class Shaky(Breaking):
    """Every so manieth COMMIT breaks, one way or the other."""

    chance: random.Random

    def next_break(self) -> str:
        return self.chance.choice(["before", "after"]) if self.chance.random() < 0.06 else ""


class Owner:
    """The owner of one partition: everything that an owner does, in any order and mostly at once."""

    def __init__(self, store: PostgresStore, partition: int, chance: random.Random) -> None:
        self.frontier = store.frontier(partition)
        self.partition = partition
        self.chance = chance
        self.epoch = 0

    async def run(self) -> None:
        self.epoch = (await self.frontier.take_over(TakeoverAsk("o", self.partition, resume=False))).epoch
        for _ in range(ROUNDS):
            mine = self.partition
            await asyncio.gather(
                self.frontier.admit(AdmitBatch(self.found(), partition=mine)),
                self.frontier.drain(DrainAsk(mine, self.epoch, 7)),
                self.frontier.expire(10),
                self.adopt(),
                self.relay(),
            )
            reply = await self.frontier.lease(
                LeaseAsk(self.epoch, 1, 4, 50, robots_obey=False, partition=mine)
            )
            await asyncio.gather(*map(self.handle, reply.leases))

    def found(self) -> list[Candidate]:
        """Links to anywhere, a few of them again."""
        links = []
        for _ in range(LINKS):
            partition = self.chance.randrange(AWAY + 1)
            origin = f"https://p{partition}o{self.chance.randrange(3)}.example"
            links.append(page(f"/{self.chance.randrange(40)}", origin, partition=partition))
        return links

    async def handle(self, lease: Lease) -> None:
        hop = self.chance.random() < 0.2
        ask = ReserveAsk(lease.key, self.epoch, SHARED if hop else lease.origin, 0, 60_000, -1, 8)
        if (await self.frontier.reserve(ask)).outcome != ReserveOutcome.GRANTED:
            await self.frontier.put_back(PutBack(lease.key, "not_yet", "", 0))
            return
        key = lease.key
        match self.chance.randrange(8):
            case 0:
                await self.frontier.exclude(Exclude(key, "robots_disallowed", "", 1))
            case 1:
                await self.frontier.record_failed(RecordFailed(key, "dns_timeout", "", 0, None, QUICK))
            case 2:
                failed = RecordFailed(key, "connect_refused", "", None, answer(503), QUICK)
                await self.frontier.record_failed(failed)
            case 3:
                pass  # lost: the lease lapses
            case 4 | 5 if lease.kind == PAGE:
                await self.frontier.record_fetched(RecordFetched(key, answer(), QUICK, 0))
            case _:
                await self.all_of_it(lease)

    async def all_of_it(self, lease: Lease) -> None:
        """From the answer to its links in one go."""
        key = lease.key
        robots: dict[str, Any] = {} if lease.kind == PAGE else {"robots": ALLOW_ALL, "robots_ttl_ms": DAY}
        links = self.found()
        cursor = CursorAdvance(ManifestKey(key.url_id, key.attempt, 1, self.partition), 0, LINKS)
        await asyncio.gather(
            self.frontier.record_fetched(RecordFetched(key, answer(), QUICK, 60_000)),
            self.frontier.record_parsed(RecordParsed(key, 1, BodyRef(1, 2, 3), LINKS, "html")),
            self.frontier.complete(Complete(key, 1, publish=lease.kind == PAGE, revisit_ms=0, **robots)),
            self.frontier.admit(AdmitBatch(links, cursor, partition=self.partition)),
        )

    async def adopt(self) -> None:
        for found in await self.frontier.adopt(AdoptAsk(PARSED, 1, 5, 60_000, self.partition, self.epoch)):
            key = found.lease.key
            complete = Complete(key, found.extraction_generation, publish=True)
            cursor = CursorAdvance(ManifestKey(key.url_id, key.attempt, 1, self.partition), 0, 1)
            await asyncio.gather(
                self.frontier.complete(complete), self.frontier.admit(AdmitBatch(self.found(), cursor))
            )

    async def relay(self) -> None:
        """What goes to another database is taken there, and forgotten here."""
        parcels = await self.frontier.parcels(ParcelAsk(self.partition, self.epoch, 3))
        if parcels:
            taken = [(AWAY, parcels[-1].number)]
            await self.frontier.drop_parcels(DropParcels(self.partition, self.epoch, taken))


async def parse(store: PostgresStore, chance: random.Random, owners: asyncio.Future[Any]) -> None:
    """A parse worker: good parses, strikes, and pages that it lets lapse."""
    frontier = store.frontier(0)
    while not owners.done():
        for found in await frontier.adopt(AdoptAsk(FETCHED, 7, 4, 30, kinds=[PAGE])):
            key = found.lease.key
            match chance.randrange(6):
                case 0:
                    await frontier.parse_strike(ParseStrike(key, "cpu", final=found.strikes > 1))
                case 1:
                    pass
                case _:
                    parsed = RecordParsed(key, 1, BodyRef(4, 5, 6), 1, "html", hand_over=True)
                    await frontier.record_parsed(parsed)


class Fleet(Rig):
    """The audit of a rig over all partitions together."""

    def __init__(self, side: SideReader) -> None:
        self._rows = side.rows

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._rows(sql.replace("SELECT name, value FROM tally", TOTALS), *parameters)

    def counted_crossing(self) -> dict[str, int]:
        return {}


TOTALS = "SELECT name, sum(value)::bigint FROM tally GROUP BY name"
BY_PARTITION = """
SELECT o.partition, count(*) FILTER (WHERE u.state = 0), count(*) FILTER (WHERE u.state = 1),
  count(*) FILTER (WHERE u.state = 2), count(*) FILTER (WHERE u.state = 3), count(*) FILTER (WHERE u.state = 4)
FROM url u JOIN origin o ON o.id = u.id >> 36 GROUP BY 1 ORDER BY 1
"""
KEPT = """
SELECT partition, max(value) FILTER (WHERE name = 'state.pending'), coalesce(max(value) FILTER (WHERE name = 'state.leased'), 0),
  coalesce(max(value) FILTER (WHERE name = 'state.fetched'), 0), coalesce(max(value) FILTER (WHERE name = 'state.parsed'), 0),
  coalesce(max(value) FILTER (WHERE name = 'state.complete'), 0)
FROM tally GROUP BY 1 ORDER BY 1
"""


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_books_balance_after_traffic_of_agents_and_workers_over_breaking_connections(
    fresh_database: FreshDatabase, seed: int
) -> None:
    dsn = fresh_database(make_fleet)
    stores = []
    for number in range(AWAY + 1):
        store = await Shaky.open(dsn, HASTY, linger_s=0.0)
        assert isinstance(store, Shaky)
        store.chance = random.Random(f"{seed} {number}")
        stores.append(store)
    owners = asyncio.gather(
        *(
            Owner(stores[partition], partition, random.Random(f"{seed} owner {partition}")).run()
            for partition in range(AWAY)
        )
    )
    await asyncio.wait_for(asyncio.gather(owners, parse(stores[AWAY], random.Random(seed), owners)), 60)
    for store in stores:
        await store.close()
    side = SideReader(dsn)
    try:
        Fleet(side).audit()
        assert side.rows(BY_PARTITION) == side.rows(KEPT)
        gaps = "SELECT partition FROM publication GROUP BY 1 HAVING count(*) <> max(seq)"
        assert side.rows(gaps) == []
        assert side.rows("SELECT count(*) FROM publication")[0][0] > 10
        assert side.rows("SELECT count(*) FROM writer") == [(0,)]
    finally:
        side.close()
