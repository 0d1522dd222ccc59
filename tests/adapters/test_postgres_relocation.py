"""Moving a partition between servers: one place owns it at every moment, nothing is lost and nothing is there twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from amble.adapters.postgres import relocation
from amble.adapters.postgres.relocation import Relocated, Relocation, moves_under_way
from amble.adapters.postgres.servers import PostgresServers
from amble.adapters.postgres.servers_partitions import ServersPartitions
from amble.domain.attempt import Edge, Lease, UrlKind
from amble.domain.errors import OperationRefused, StoreUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.frontier import (
    AdmitBatch,
    AdoptAsk,
    Applied,
    DrainAsk,
    OriginOrder,
    Parcel,
    ParcelAsk,
    RecordParsed,
    ReserveOutcome,
    TakeoverAsk,
    Verdict,
)
from amble.domain.lifecycle import UrlState
from amble.domain.manifest import CursorAdvance, ManifestKey
from tests.support import servers as s
from tests.support.postgres import FreshDatabase

MOVED = 0
ORIGINS = 6


class Killed(Exception):
    """The mover dies here."""


@dataclass
class Fleet:
    """Two servers, an owner of everything, and a partition with something of every kind."""

    dsns: list[str]
    servers: PostgresServers
    partitions: ServersPartitions
    held: dict[int, int]
    leases: dict[str, Lease] = field(default_factory=dict)
    urls: set[str] = field(default_factory=set)

    def frontier(self, partition: int = MOVED) -> Any:
        return self.servers.frontier(partition)

    def move(
        self, *, target: int = 1, on_step: Callable[[str], None] = lambda _: None, patience_s: float = 5.0
    ) -> Relocation:
        return Relocation(
            dsns=self.dsns,
            partition=MOVED,
            target=target,
            hold_ms=s.HOLD,
            on_step=on_step,
            patience_s=patience_s,
        )

    async def hand_over(self) -> None:
        await self.partitions.release("a", {MOVED: self.held[MOVED]})

    async def places(self) -> list[list[tuple[object, ...]]]:
        """Where the partition could be claimed."""
        sql = "SELECT partition FROM partition WHERE partition = $1 AND NOT moving"
        return [await s.rows(dsn, sql, MOVED) for dsn in self.dsns]

    async def known(self) -> Counter[str]:
        """Every URL of the partition, on whichever servers it is."""
        sql = (
            "SELECT o.key || u.path FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE o.partition = $1"
            " AND u.kind = 0"
        )
        found = [row for dsn in self.dsns for row in await s.rows(dsn, sql, MOVED)]
        return Counter(str(row[0]) for row in found)


@pytest_asyncio.fixture
async def fleet(fresh_database: FreshDatabase) -> AsyncIterator[Fleet]:
    dsns = await s.two_servers(fresh_database)
    servers = await PostgresServers.open(dsns, partition_of=s.MAP.of, linger_s=0.0)
    partitions = ServersPartitions(dsns, servers.places)
    await partitions.renew("a", {}, s.TTL, leaving=False)
    claimed = await partitions.claim("a", range(s.PARTITIONS), s.TTL, s.HOLD)
    made = Fleet(dsns, servers, partitions, {c.partition: c.epoch for c in claimed})
    await fill(made)
    yield made
    await partitions.close()
    await servers.close()


async def fill(fleet: Fleet) -> None:
    """Queued, LEASED, FETCHED, PARSED and COMPLETE, an open cursor, what crosses in both directions, logs, an order."""
    frontier, epoch = fleet.frontier(), fleet.held[MOVED]
    origins = [s.site_in(MOVED, number) for number in range(ORIGINS)]
    seeds = [s.page(origin, f"/{n}") for origin in origins for n in range(3)]
    await frontier.admit(
        AdmitBatch(seeds, samples=[("https://no.example/", "out_of_scope", "")], rejected={"out_of_scope": 1})
    )
    fleet.urls = {one.origin + one.path for one in seeds}
    for robots in await s.lease(frontier, MOVED, epoch):
        await s.reserve(frontier, robots, epoch)
        await s.record(frontier, robots)
        await s.finish(frontier, robots)
    await s.rows(fleet.dsns[0], "UPDATE origin SET next_start = 0, wake_at = 0")
    pages = {lease.origin: lease for lease in await s.lease(frontier, MOVED, epoch)}
    done, parsed, fetched, leased = (pages[origin] for origin in origins[:4])
    for page in (done, parsed, fetched, leased):
        await s.reserve(frontier, page, epoch)
    for number, page in enumerate((done, parsed, fetched)):
        await s.record(frontier, page, s.answer(bytes([number]) * 32, 100 * number))
    await s.finish(frontier, done, links=4)
    await frontier.record_parsed(RecordParsed(parsed.key, 1, BodyRef(1, 7, 7), 2, "html"))
    fleet.leases = {"done": done, "parsed": parsed, "fetched": fetched, "leased": leased}
    # Two of four links are consumed: one of them known here, one of another partition on the other server.
    move = CursorAdvance(ManifestKey(done.key.url_id, done.key.attempt, 1, MOVED), 0, 2)
    links = [s.page(origins[0], "/0", Edge.ANCHOR), s.page(s.site_in(1), "/found", Edge.ANCHOR)]
    assert (await frontier.admit(AdmitBatch(links, move))).applied == Applied.APPLIED
    # From the same server and from the other one.
    await s.admit(fleet.frontier(2), s.page(origins[0], "/from-2"), partition=2)
    await fleet.frontier(MOVED).deliver([Parcel(3, MOVED, 4, [s.page(origins[1], "/from-3")], 1)])
    await frontier.set_origin(OriginOrder(origins[5], "me", "because", spacing_ms=7_000))


# ---- the way it goes


async def test_a_moved_partition_goes_on_where_it_was(fleet: Fleet) -> None:
    before = await fleet.known()
    await fleet.hand_over()
    moved = await fleet.move().run()
    assert (moved.source, moved.target, moved.moved, moved.resumed) == (0, 1, True, False)
    assert moved.rows["url"] == 3 * ORIGINS + ORIGINS
    assert moved.rows["publication"] == 1
    assert moved.rows["audit"] == 1
    assert await fleet.places() == [[], [(MOVED,)]]
    assert await fleet.known() == before
    assert await s.rows(
        fleet.dsns[0], "SELECT partition, server, epoch FROM placement WHERE partition = 0"
    ) == [(0, 1, 1)]
    await go_on(fleet)


async def go_on(fleet: Fleet) -> None:
    """The next owner claims it at its new server under the next epoch, without a wait, and loses nothing."""
    await fleet.partitions.renew("b", {}, s.TTL, leaving=False)
    (claimed,) = await fleet.partitions.claim("b", [MOVED], s.TTL, s.HOLD)
    assert (claimed.epoch, claimed.wait_ms) == (fleet.held[MOVED] + 1, 0)
    frontier, epoch = fleet.frontier(), claimed.epoch
    found = await frontier.take_over(TakeoverAsk("b", MOVED, epoch))
    assert found.lapsed == 1 + 2, "the one under way, and two that were only leased"
    states = {work.lease.path: work.manifest is not None for work in found.resumables}
    assert states == {fleet.leases["parsed"].path: True, fleet.leases["fetched"].path: False}
    (manifest,) = found.open_manifests
    assert (manifest.cursor, manifest.total) == (2, 4)
    reply = await frontier.drain(DrainAsk(MOVED, epoch, 100))
    assert (reply.taken, reply.admitted, reply.left) == (2, 2, 0)
    again = [s.page(url.rpartition("/")[0], "/" + url.rpartition("/")[2]) for url in sorted(fleet.urls)]
    assert set(await s.admit(frontier, *again)) == {Verdict.ALREADY_KNOWN}
    parcels = await frontier.parcels(ParcelAsk(MOVED, epoch, 10))
    assert [(p.destination, [c.path for c in p.candidates]) for p in parcels] == [(1, ["/found"])]
    ids = await s.rows(fleet.dsns[1], "SELECT id, spacing_ms FROM origin WHERE spacing_ms IS NOT NULL")
    assert [row[1] for row in ids] == [7_000]


async def test_whoever_still_holds_something_of_it_finds_it_stale(fleet: Fleet) -> None:
    await fleet.hand_over()
    await s.rows(fleet.dsns[0], "UPDATE origin SET next_start = 0")

    def die(step: str) -> None:
        if step == "flip":
            raise Killed

    with pytest.raises(Killed):
        await fleet.move(on_step=die).run()
    frontier, held = fleet.frontier(), fleet.leases
    assert await s.record(frontier, held["leased"]) == Applied.STALE
    parsed = RecordParsed(held["fetched"].key, 1, BodyRef(1, 8, 8), 1, "html", hand_over=True)
    assert await frontier.record_parsed(parsed) == Applied.STALE
    move = CursorAdvance(ManifestKey(held["done"].key.url_id, held["done"].key.attempt, 1, MOVED), 2, 4)
    links = AdmitBatch([s.page(s.site_in(MOVED), "/late")], move)
    assert (await frontier.admit(links)).applied == Applied.STALE
    assert await fleet.servers.everywhere().adopt(AdoptAsk(int(UrlState.FETCHED), 3, 9, 1_000)) == []
    assert await frontier.expire(100) == 0
    assert await frontier.deliver([Parcel(3, MOVED, 5, [s.page(s.site_in(MOVED), "/x")], 1)]) == Applied.STALE
    with pytest.raises(OperationRefused, match="on its way"):
        await frontier.set_origin(OriginOrder(s.site_in(MOVED), "me", "now", paused=True))
    # A hop from a partition that stays would have its ledger in two places: it is told to wait.
    await s.admit(fleet.frontier(2), s.page(s.site_in(2)))
    (robots,) = await s.lease(fleet.frontier(2), 2, fleet.held[2])
    await s.reserve(fleet.frontier(2), robots, fleet.held[2])
    hop = await s.reserve(fleet.frontier(2), robots, fleet.held[2], s.site_in(MOVED))
    assert hop.outcome == ReserveOutcome.NO_SLOT
    moved = await fleet.move().run()
    assert moved.resumed
    await go_on(fleet)


async def test_parcels_that_were_taken_before_the_move_are_not_taken_again_after_it(fleet: Fleet) -> None:
    await fleet.hand_over()
    await fleet.move().run()
    await fleet.partitions.renew("a", {}, s.TTL, leaving=False)
    reach = fleet.servers.reach(MOVED)
    assert reach is not None
    old = Parcel(3, MOVED, 4, [s.page(s.site_in(MOVED, 1), "/from-3")], 1)
    new = Parcel(3, MOVED, 5, [s.page(s.site_in(MOVED, 1), "/from-3-later")], 1)
    assert await reach.deliver([old, new]) == Applied.APPLIED
    waiting = await s.rows(
        fleet.dsns[1], "SELECT source, amount FROM inbox WHERE partition = 0 ORDER BY number"
    )
    assert sorted(waiting) == [(2, 1), (3, 1), (3, 1)]  # type: ignore[type-var]


async def test_what_is_found_for_it_meanwhile_waits_in_outboxes_and_finds_the_new_place(fleet: Fleet) -> None:
    await fleet.hand_over()

    def die(step: str) -> None:
        if step == "compare url":
            raise Killed

    with pytest.raises(Killed):
        await fleet.move(on_step=die).run()
    found = s.page(s.site_in(MOVED, 2), "/meanwhile")
    assert await s.admit(fleet.frontier(2), found, partition=2) == bytes([Verdict.FORWARDED])
    parcels = await fleet.frontier(2).parcels(ParcelAsk(2, fleet.held[2], 10))
    assert [p.destination for p in parcels] == [MOVED]
    await fleet.move().run()
    await fleet.partitions.renew("a", {}, s.TTL, leaving=False)
    reach = fleet.servers.reach(MOVED)
    assert reach is not None
    assert await reach.deliver(parcels) == Applied.APPLIED
    assert await s.rows(fleet.dsns[1], "SELECT count(*) FROM inbox WHERE partition = 0") == [(3,)]


async def test_there_and_back_again(fleet: Fleet) -> None:
    before = await fleet.known()
    await fleet.hand_over()
    await fleet.move().run()
    assert (await fleet.move(target=0).run()).source == 1
    assert await fleet.places() == [[(MOVED,)], []]
    assert await fleet.known() == before
    await go_on_at_home(fleet)


async def go_on_at_home(fleet: Fleet) -> None:
    await fleet.partitions.renew("b", {}, s.TTL, leaving=False)
    (claimed,) = await fleet.partitions.claim("b", [MOVED], s.TTL, s.HOLD)
    found = await fleet.frontier().take_over(TakeoverAsk("b", MOVED, claimed.epoch))
    assert (found.lapsed, len(found.resumables), len(found.open_manifests)) == (3, 2, 1)


# ---- it is stopped


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relocation, "PIECE", 5)
    monkeypatch.setattr(relocation, "REMOVED_AT_ONCE", 2)


async def test_stopped_before_every_step_and_begun_again_it_arrives_once(
    fleet: Fleet, small_pieces: None
) -> None:
    before = await fleet.known()
    await fleet.hand_over()
    seen: Counter[str] = Counter()
    tries = 0
    result: Relocated | None = None
    while result is None:
        tries += 1
        now: Counter[str] = Counter()

        def die(step: str, now: Counter[str] = now) -> None:
            """At the first step of this try that no try before has come to."""
            now[step] += 1
            if now[step] > seen[step]:
                seen[step] = now[step]
                raise Killed

        try:
            result = await fleet.move(on_step=die).run()
        except Killed:
            await exactly_one_place(fleet, before)
    assert tries > 40
    assert {"plan", "close", "freeze", "land", "copy url", "compare fetch", "flip", "retire", "open", "remove",
            "remove more", "finish"} <= seen.keys()  # fmt: skip
    assert seen["copy url"] > 2
    assert await fleet.known() == before
    assert await moves_under_way(fleet.dsns[0]) == []
    assert await s.rows(fleet.dsns[1], "SELECT * FROM landing") == []
    await go_on(fleet)


async def exactly_one_place(fleet: Fleet, before: Counter[str]) -> None:
    """By the map and the two tables there is never more than one; its rows are whole where the map says."""
    open_at = [number for number, found in enumerate(await fleet.places()) if found]
    assert len(open_at) <= 1
    ((server,),) = await s.rows(fleet.dsns[0], "SELECT server FROM placement WHERE partition = $1", MOVED)
    assert all(number == server for number in open_at)
    sql = "SELECT o.key || u.path FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE o.partition = $1 AND u.kind = 0"
    whole = {str(row[0]) for row in await s.rows(fleet.dsns[int(str(server))], sql, MOVED)}
    assert whole == set(before)


async def test_a_lost_connection_in_the_middle_is_told_and_the_move_goes_on(
    fleet: Fleet, small_pieces: None
) -> None:
    await fleet.hand_over()
    cut: list[str] = []

    def cut_once(step: str) -> None:
        if step == "copy fetch" and not cut:
            cut.append(step)
            moving._to.terminate()

    moving = fleet.move(on_step=cut_once)
    with pytest.raises(StoreUnavailable):
        await moving.run()
    assert (await fleet.move().run()).resumed
    await go_on(fleet)


async def test_a_copy_that_differs_is_thrown_away_and_made_again(fleet: Fleet) -> None:
    await fleet.hand_over()

    def die(step: str) -> None:
        if step == "compare origin":
            raise Killed

    with pytest.raises(Killed):
        await fleet.move(on_step=die).run()
    await s.rows(
        fleet.dsns[1],
        "UPDATE url SET path = path || 'x' WHERE id IN (SELECT max(id) FROM url WHERE kind = 0)",
    )
    with pytest.raises(StoreUnavailable, match="url"):
        await fleet.move().run()
    await fleet.move().run()
    await go_on(fleet)


# ---- the owner


async def test_it_waits_for_the_owner_to_hand_over(fleet: Fleet) -> None:
    moving = asyncio.ensure_future(fleet.move(patience_s=30).run())
    while True:
        roster = await fleet.partitions.renew("a", fleet.held, s.TTL, leaving=False)
        if any(line.moving for line in roster.partitions):
            break
        await asyncio.sleep(0.02)
    assert [(line.partition, line.owner) for line in roster.partitions if line.moving] == [(MOVED, "a")]
    order = OriginOrder(s.site_in(MOVED, 1), "me", "now", paused=True)
    assert await fleet.frontier().set_origin(order) == Applied.APPLIED, "as long as it is there"
    # What the owner has under way ends as ever.
    assert await s.record(fleet.frontier(), fleet.leases["leased"]) == Applied.APPLIED
    assert not moving.done()
    await fleet.hand_over()
    assert (await moving).moved
    assert await fleet.places() == [[], [(MOVED,)]]


async def test_a_dead_owner_is_waited_for_until_its_last_request_must_be_over(fleet: Fleet) -> None:
    sql = "UPDATE partition SET lease_until = (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1::bigint WHERE partition = 0"
    await s.rows(fleet.dsns[0], sql, s.HOLD - 20_000)
    with pytest.raises(StoreUnavailable, match="still owned"):
        await fleet.move(patience_s=0.1).run()
    await s.rows(fleet.dsns[0], sql, s.HOLD + 1_000)
    await fleet.move().run()
    await go_on(fleet)


# ---- spacing


async def test_the_new_server_starts_nothing_sooner_than_the_old_one_would_have(fleet: Fleet) -> None:
    """Its clock is a minute ahead: what was to start in a minute does not start now."""
    await fleet.hand_over()
    ahead = 60_000
    ((now,),) = await s.rows(fleet.dsns[1], "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    await s.rows(fleet.dsns[1], "UPDATE clock SET now_ms = $1", now + ahead)  # type: ignore[operator]
    sql = "SELECT key, next_start FROM origin WHERE partition = 0 AND next_start > 0 ORDER BY key"
    before = dict(await s.rows(fleet.dsns[0], sql))  # type: ignore[arg-type]
    await fleet.move().run()
    after = dict(await s.rows(fleet.dsns[1], sql))  # type: ignore[arg-type]
    assert before.keys() == after.keys()
    assert all(after[key] - before[key] >= ahead - 5_000 for key in before)  # type: ignore[operator]


async def test_slots_held_across_the_border_are_freed_or_become_a_wait(fleet: Fleet) -> None:
    """A robots.txt of the moved partition was hopping to another one, and one of another to it."""
    other, epoch = fleet.frontier(2), fleet.held[2]
    await s.admit(other, s.page(s.site_in(2)))
    (theirs,) = await s.lease(other, 2, epoch)
    await s.reserve(other, theirs, epoch)
    await s.rows(fleet.dsns[0], "UPDATE origin SET next_start = 0")
    fresh = s.site_in(MOVED, 40)
    assert (await s.reserve(other, theirs, epoch, fresh)).outcome == ReserveOutcome.GRANTED
    mine = fleet.leases["leased"]
    assert (await s.reserve(fleet.frontier(), mine, fleet.held[MOVED], s.site_in(2, 40))).outcome == 0
    await fleet.hand_over()
    await fleet.move().run()
    away = await s.rows(fleet.dsns[0], "SELECT active FROM origin WHERE key = $1", s.site_in(2, 40))
    assert away == [(0,)]
    ((partition, active, until),) = await s.rows(
        fleet.dsns[1], "SELECT partition, active, next_start FROM origin WHERE key = $1", fresh
    )
    ((now,),) = await s.rows(fleet.dsns[1], "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    assert (partition, active) == (MOVED, 0)
    assert until > now + s.HOLD - 20_000  # type: ignore[operator]
    assert await s.record(other, theirs) == Applied.APPLIED, "and its answer is kept at its own server"
    assert theirs.kind == UrlKind.ROBOTS


# ---- refusals


async def test_moves_that_make_no_sense_are_refused(fleet: Fleet) -> None:
    assert not (await fleet.move(target=0).run()).moved
    with pytest.raises(OperationRefused, match="no server 7"):
        await fleet.move(target=7).run()
    missing = Relocation(dsns=fleet.dsns, partition=99, target=1, hold_ms=s.HOLD)
    with pytest.raises(OperationRefused, match="no partition 99"):
        await missing.run()


async def test_two_at_once_do_not_meet(fleet: Fleet) -> None:
    first = asyncio.ensure_future(fleet.move(patience_s=30).run())
    while not await moves_under_way(fleet.dsns[0]):
        await asyncio.sleep(0.02)
    with pytest.raises(OperationRefused, match="another process"):
        await fleet.move().run()
    assert await moves_under_way(fleet.dsns[0]) == [(MOVED, 0, 1)]
    await fleet.hand_over()
    await first
