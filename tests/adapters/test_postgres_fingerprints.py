"""Near-duplicates in a fleet: of two that come at once one is published, whatever connections and servers they come over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from amble.adapters.postgres import fingerprints, fingerprints_build
from amble.adapters.postgres.check import PostgresCheck
from amble.adapters.postgres.connection import connect
from amble.adapters.postgres.fingerprints import Document, home_of, keys_by_server
from amble.adapters.postgres.fingerprints_build import build_index
from amble.adapters.postgres.migrations import available, migrate
from amble.adapters.postgres.placement import set_up_servers
from amble.adapters.postgres.relocation import Relocation
from amble.adapters.postgres.servers import PostgresServers
from amble.adapters.postgres.setup import init
from amble.adapters.postgres.statements import NEAR
from amble.adapters.postgres.store import PostgresStore
from amble.adapters.system import SystemClock
from amble.domain.attempt import LeaseKey
from amble.domain.decision import Reason
from amble.domain.digest import fine_keys, signed
from amble.domain.errors import StoreBroken, StoreUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.frontier import Applied, Complete
from amble.stages.health import Health
from tests.adapters.test_postgres_digests import Silent
from tests.adapters.test_postgres_plans import plan_of
from tests.support import servers as s
from tests.support.postgres import FreshDatabase, OwnPostgres

TEXT = 0x9E37_79B9_7F4A_7C15
TOKEN = b"t" * 16
REF = BodyRef(1, 900, 40)


def near(text: int, chance: random.Random, bits: int = 3) -> int:
    for bit in chance.sample(range(64), bits):
        text ^= 1 << bit
    return text


class Fleet:
    """Pages that are parsed and wait for their completion, by owners with connections of their own."""

    def __init__(
        self,
        dsns: list[str],
        stores: list[PostgresServers] | list[PostgresStore],
        index: list[str] | None = None,
    ) -> None:
        self.dsns = dsns
        self.stores = stores
        self.index = index or dsns

    async def parsed(self, partition: int, count: int) -> list[LeaseKey]:
        """New pages of a site of that partition, held by whoever has the keys."""
        dsn = self.dsns[partition % len(self.dsns)]
        (((origin,),),) = [await s.rows(dsn, "SELECT max(id) FROM origin WHERE partition = $1", partition)]
        if origin is None:
            origin = partition + 1
            await s.rows(
                dsn,
                "INSERT INTO origin(id, key, partition, created_at) VALUES ($1, $2, $3, 0)",
                origin,
                s.site_in(partition),
                partition,
            )
        ((last,),) = await s.rows(
            dsn, "SELECT coalesce(max(id), $1) FROM url WHERE id >> 36 = $2", origin << 36, origin
        )
        ids = [last + number for number in range(1, count + 1)]
        await s.rows(
            dsn,
            "INSERT INTO url(id, path, state, kind, priority, depth, hops, edge, parent, admitted_at, attempt, generation,"
            " tries, strikes, checks, changes, token, worker, expires_at, sweep_at)"
            " SELECT n, '/' || (n & 65535), 3, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, $2, 1, $3, $3 FROM unnest($1::bigint[]) AS n",
            ids,
            TOKEN,
            1 << 52,
        )
        await s.rows(
            dsn,
            "INSERT INTO manifest(url_id, at, attempt, generation, partition, links, cursor, opened, content_kind, title, ref)"
            " SELECT n, 0, 1, 1, $2, 0, 0, false, 'html', '', $3 FROM unnest($1::bigint[]) AS n",
            ids,
            partition,
            REF.pack(),
        )
        return [LeaseKey(url_id, 1, TOKEN, partition) for url_id in ids]

    async def again(self, key: LeaseKey) -> LeaseKey:
        """The same page, fetched and parsed once more."""
        later = LeaseKey(key.url_id, key.attempt + 1, key.token, key.partition)
        dsn = self.dsns[key.partition % len(self.dsns)]
        await s.rows(
            dsn,
            "UPDATE url SET state = 3, token = $2, attempt = $3, generation = $3, expires_at = $4, sweep_at = $4"
            " WHERE id = $1",
            key.url_id,
            TOKEN,
            later.attempt,
            1 << 52,
        )
        await s.rows(
            dsn,
            "INSERT INTO manifest SELECT url_id, at, $2, generation, partition, links, cursor, false, content_kind, title,"
            " ref FROM manifest WHERE url_id = $1 AND attempt = $3",
            key.url_id,
            later.attempt,
            key.attempt,
        )
        return later

    async def complete(self, key: LeaseKey, text: int, store: int = 0, **facts: Any) -> Applied:
        item = Complete(key, 1, **{"publish": True, "near": True, "fingerprint": text, **facts})
        return await self.stores[store].frontier(key.partition).complete(item)

    async def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        places = dict.fromkeys([*self.dsns, *self.index])
        return [row for dsn in places for row in await s.rows(dsn, sql, *parameters)]

    async def published(self) -> set[int]:
        return {row[0] for row in await self.rows("SELECT url_id FROM publication")}

    async def entered(self) -> set[int]:
        return {row[0] for row in await self.rows("SELECT url_id FROM near")}

    async def reason(self, key: LeaseKey) -> tuple[str | None, str | None]:
        (row,) = await self.rows("SELECT reason, detail FROM url WHERE id = $1", key.url_id)
        return row[0], row[1]

    async def url(self, key: LeaseKey) -> str:
        return f"{s.site_in(key.partition)}/{key.url_id & 65535}"

    def document(self, key: LeaseKey, text: int) -> Document:
        return Document(key.url_id, key.partition, key.attempt, signed(text))


async def make_one(dsn: str) -> None:
    await init(dsn, partitions=s.PARTITIONS)


@pytest_asyncio.fixture(params=["one server", "an index of three"])
async def fleet(request: pytest.FixtureRequest, fresh_database: FreshDatabase) -> AsyncIterator[Fleet]:
    """Two owners, over one server with all, or with an index on three others."""
    dsn = fresh_database(make_one)
    if request.param == "one server":
        made = Fleet([dsn], [await PostgresStore.open(dsn, linger_s=0.0) for _ in range(2)])
    else:
        index = [fresh_database(make_one) for _ in range(3)]
        stores = [
            await PostgresServers.open([dsn], digests_at=index, partition_of=s.MAP.of, linger_s=0.0)
            for _ in range(2)
        ]
        made = Fleet([dsn], stores, index)
    yield made
    for store in made.stores:
        await store.close()


@pytest_asyncio.fixture
async def one(fresh_database: FreshDatabase) -> AsyncIterator[Fleet]:
    """One owner on one server."""
    dsn = fresh_database(make_one)
    made = Fleet([dsn], [await PostgresStore.open(dsn, linger_s=0.0)])
    yield made
    for store in made.stores:
        await store.close()


# ---- keys and their servers


def test_a_server_more_takes_only_its_own_share_of_the_keys() -> None:
    chance = random.Random(5)
    keys = [key for _ in range(200) for key in fine_keys(chance.getrandbits(64))]
    before = [home_of(key, [0, 1, 2]) for key in keys]
    after = [home_of(key, [0, 1, 2, 3]) for key in keys]
    moved = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert {b for _, b in moved} == {3}
    assert 0.2 < len(moved) / len(keys) < 0.3


@pytest.mark.parametrize("bits", [0, 1, 2, 3])
def test_near_texts_share_a_key_on_one_and_the_same_server(bits: int) -> None:
    chance = random.Random(bits)
    for _ in range(200):
        text = chance.getrandbits(64)
        ours = keys_by_server(signed(text), [0, 1, 2])
        theirs = keys_by_server(signed(near(text, chance, bits)), [0, 1, 2])
        shared = [
            set(keys.strip("{}").split(",")) & set(theirs.get(server, "{}").strip("{}").split(","))
            for server, keys in ours.items()
        ]
        assert any(shared)


# ---- one after the other


async def test_a_document_is_entered_where_its_keys_are_at_home(fleet: Fleet) -> None:
    (key,) = await fleet.parsed(1, 1)
    await fleet.complete(key, TEXT)
    homes = keys_by_server(signed(TEXT), list(range(len(fleet.index))))
    for number, dsn in enumerate(fleet.index):
        stored = [row[0] for row in await s.rows(dsn, "SELECT keys FROM near")]
        wanted = homes.get(number)
        assert stored == ([] if wanted is None else [[int(k) for k in wanted.strip("{}").split(",")]])


async def test_a_twin_of_another_partition_is_withheld_and_leaves_no_entry(fleet: Fleet) -> None:
    (first,), (late,) = await fleet.parsed(0, 1), await fleet.parsed(1, 1)
    assert await fleet.complete(first, TEXT) == Applied.APPLIED
    assert await fleet.complete(late, near(TEXT, random.Random(1)), store=1) == Applied.APPLIED
    assert await fleet.published() == await fleet.entered() == {first.url_id}
    assert await fleet.reason(late) == ("near_duplicate", f"nearly the same text as {await fleet.url(first)}")


async def test_a_changed_text_leaves_every_server_that_knew_it(fleet: Fleet) -> None:
    chance = random.Random(3)
    (first,) = await fleet.parsed(0, 1)
    await fleet.complete(first, TEXT)
    changed = chance.getrandbits(64)
    await fleet.complete(await fleet.again(first), changed)
    assert set(await fleet.rows("SELECT fingerprint FROM near")) == {(signed(changed),)}
    (heir,) = await fleet.parsed(1, 1)
    await fleet.complete(heir, TEXT, store=1)
    assert await fleet.published() == {first.url_id, heir.url_id}


@pytest.mark.parametrize(
    "end", [{"publish": False, "withheld": "noindex"}, {"fingerprint": 0}, {"near": False}], ids=str
)
async def test_what_is_not_to_be_found_any_more_leaves_the_index(fleet: Fleet, end: dict[str, Any]) -> None:
    (key,) = await fleet.parsed(0, 1)
    await fleet.complete(key, TEXT)
    facts = {"text": TEXT, **end}
    text = facts.pop("fingerprint", facts.pop("text"))
    facts.pop("text", None)
    await fleet.complete(await fleet.again(key), text, **facts)
    assert await fleet.entered() == set()


async def test_the_same_text_again_is_never_withheld_though_a_twin_came_in_between(fleet: Fleet) -> None:
    first, second = await fleet.parsed(0, 2)
    await fleet.complete(first, TEXT)
    await fleet.complete(second, TEXT ^ 1, near=False)
    await fleet.complete(await fleet.again(second), TEXT ^ 1, store=1)
    assert (await fleet.reason(second))[0] == "near_duplicate"
    await fleet.complete(await fleet.again(first), TEXT)
    assert await fleet.reason(first) == (None, None)


# ---- at once


async def test_of_two_that_come_at_once_exactly_one_is_published(fleet: Fleet) -> None:
    chance = random.Random(11)
    rounds = 60
    ours, theirs = await fleet.parsed(0, rounds), await fleet.parsed(1, rounds)
    pairs = list(zip(ours, theirs, strict=True))
    texts = [chance.getrandbits(64) for _ in pairs]

    async def round_of(number: int) -> None:
        one, other = pairs[number]
        text, alike = texts[number], near(texts[number], chance, number % 4)
        calls = [fleet.complete(one, text, store=0), fleet.complete(other, alike, store=1)]
        chance.shuffle(calls)
        assert await asyncio.gather(*calls) == [Applied.APPLIED] * 2

    for number in range(rounds // 2):
        await round_of(number)
    await asyncio.gather(*(round_of(number) for number in range(rounds // 2, rounds)))
    published = await fleet.published()
    for one, other in pairs:
        assert len({one.url_id, other.url_id} & published) == 1
    assert await fleet.entered() == published


async def test_of_many_that_come_at_once_exactly_one_is_published(fleet: Fleet) -> None:
    ours, theirs = await fleet.parsed(0, 8), await fleet.parsed(1, 8)
    calls = [fleet.complete(key, TEXT, store=key.partition) for key in [*ours, *theirs]]
    random.Random(2).shuffle(calls)
    await asyncio.gather(*calls)
    assert len(await fleet.published()) == 1
    assert await fleet.entered() == await fleet.published()
    reasons = await fleet.rows("SELECT DISTINCT detail FROM url WHERE reason = 'near_duplicate'")
    assert len(set(reasons)) == 1, "all of them name the one that is published"


async def test_whatever_is_alike_what_is_withheld_has_a_published_neighbour_and_no_two_are_published(
    fleet: Fleet,
) -> None:
    chance = random.Random(23)
    keys = [key for partition in range(4) for key in await fleet.parsed(partition, 10)]
    chance.shuffle(keys)
    texts: dict[int, int] = {}
    for key in keys:
        alike = texts and chance.random() < 0.75
        text = near(chance.choice([*texts.values()]), chance, chance.randrange(4)) if alike else None
        texts[key.url_id] = chance.getrandbits(64) if text is None else text

    async def complete(key: LeaseKey) -> None:
        await asyncio.sleep(chance.random() * chance.choice([0.0, 0.01, 0.1]))
        document = fleet.document(key, texts[key.url_id])
        if chance.random() < 0.1:  # somebody else had begun, and is gone
            lost = asyncio.ensure_future(fleet.stores[chance.randrange(2)].fingerprints.claim(document))
            await asyncio.wait([lost], timeout=chance.random() * 0.02)
            lost.cancel()
        await fleet.complete(key, texts[key.url_id], store=chance.randrange(2))

    await asyncio.gather(*(complete(key) for key in keys))
    published = await fleet.published()
    for one, text in texts.items():
        alike = {other for other in published - {one} if (texts[other] ^ text).bit_count() <= 3}
        assert bool(alike) == (one not in published)
    assert await fleet.entered() >= published


async def test_in_a_chain_of_near_texts_nothing_is_withheld_for_one_that_is_withheld(fleet: Fleet) -> None:
    """Each is near to the next and to no other: whatever the order, what is withheld has a published neighbour."""
    for number in range(3):
        keys = [(await fleet.parsed(partition, 1))[0] for partition in (0, 1, 2, 3)]
        start = random.Random(number).getrandbits(64)
        texts = [start ^ (1 << 2 * place) - 1 for place in range(4)]
        calls = [
            fleet.complete(key, text, store=key.partition % 2) for key, text in zip(keys, texts, strict=True)
        ]
        random.Random(number).shuffle(calls)
        await asyncio.gather(*calls)
        published = await fleet.published()
        for place, key in enumerate(keys):
            neighbours = {k.url_id for k in keys[max(0, place - 1) : place + 2]} - {key.url_id}
            if key.url_id in published:
                assert not neighbours & published
            else:
                assert neighbours & published


# ---- what a crash leaves


async def test_a_claim_that_nothing_came_of_is_its_urls_own_when_it_comes_again(fleet: Fleet) -> None:
    (key,) = await fleet.parsed(0, 1)
    assert await fleet.stores[0].fingerprints.claim(fleet.document(key, TEXT)) is None
    assert await fleet.entered() == {key.url_id}
    assert await fleet.complete(key, TEXT, store=1) == Applied.APPLIED
    assert await fleet.published() == {key.url_id}


@pytest.mark.parametrize("state", [0, 1, 5, 6])
async def test_a_claim_whose_url_ended_or_begins_anew_withholds_nobody(fleet: Fleet, state: int) -> None:
    (lost,), (heir,) = await fleet.parsed(0, 1), await fleet.parsed(1, 1)
    assert await fleet.stores[0].fingerprints.claim(fleet.document(lost, TEXT)) is None
    await fleet.rows("UPDATE url SET state = $2 WHERE id = $1", lost.url_id, state)
    await fleet.complete(heir, TEXT, store=1)
    assert await fleet.published() == await fleet.entered() == {heir.url_id}


@pytest.mark.parametrize("order", [0, 1])
async def test_a_claim_under_way_is_waited_for_until_it_is_known_to_be_lost(fleet: Fleet, order: int) -> None:
    pair = [(await fleet.parsed(0, 1))[0], (await fleet.parsed(1, 1))[0]]
    lost, heir = pair[order], pair[1 - order]
    assert await fleet.stores[0].fingerprints.claim(fleet.document(lost, TEXT)) is None
    waits = asyncio.ensure_future(fleet.complete(heir, TEXT, store=1))
    done, _ = await asyncio.wait([waits], timeout=0.3)
    assert not done
    await fleet.rows("UPDATE near SET at = at - $2 WHERE url_id = $1", lost.url_id, fingerprints.ABANDONED_MS)
    assert await waits == Applied.APPLIED
    assert await fleet.published() == {heir.url_id}
    # Whoever takes the lost one up comes second now.
    await fleet.complete(lost, TEXT)
    assert (await fleet.reason(lost))[0] == "near_duplicate"
    assert await fleet.entered() == {heir.url_id}


@pytest.mark.parametrize("order", [0, 1])
async def test_one_that_waits_is_withheld_once_the_other_is_published(fleet: Fleet, order: int) -> None:
    pair = [(await fleet.parsed(0, 1))[0], (await fleet.parsed(1, 1))[0]]
    first, late = pair[order], pair[1 - order]
    assert await fleet.stores[0].fingerprints.claim(fleet.document(first, TEXT)) is None
    waits = asyncio.ensure_future(fleet.complete(late, TEXT, store=1))
    await asyncio.wait([waits], timeout=0.1)
    # The claim is followed by its completion, as if the same caller had gone on.
    await fleet.complete(first, TEXT, near=False)
    await waits
    assert await fleet.published() == await fleet.entered() == {first.url_id}
    assert (await fleet.reason(late))[0] == "near_duplicate"


async def test_a_late_caller_of_an_older_attempt_undoes_nothing(fleet: Fleet) -> None:
    (old,) = await fleet.parsed(0, 1)
    new = await fleet.again(old)
    await fleet.complete(new, TEXT)
    assert await fleet.complete(old, 12345, store=1) == Applied.STALE
    assert await fleet.complete(old, TEXT, store=1, publish=False, withheld="noindex") == Applied.STALE
    (late,) = await fleet.parsed(1, 1)
    await fleet.complete(late, TEXT)
    assert (await fleet.reason(late))[0] == "near_duplicate"


async def test_a_repeated_call_under_the_same_key_changes_nothing(fleet: Fleet) -> None:
    (key,) = await fleet.parsed(0, 1)
    assert await fleet.complete(key, TEXT) == Applied.APPLIED
    assert await fleet.complete(key, TEXT, store=1) == Applied.STALE
    assert await fleet.entered() == await fleet.published() == {key.url_id}


async def test_a_repeated_call_does_not_step_back_for_one_under_way(fleet: Fleet) -> None:
    (low,), (first,) = await fleet.parsed(0, 1), await fleet.parsed(1, 1)
    await fleet.complete(first, TEXT)
    index = fleet.stores[0].fingerprints
    homes = keys_by_server(signed(TEXT), list(range(len(fleet.index))))
    await index._ask_homes("enter", fleet.document(low, TEXT), 5, homes)
    assert await fleet.complete(first, TEXT, store=1) == Applied.STALE
    assert first.url_id in await fleet.entered()
    await fleet.complete(low, TEXT)
    assert await fleet.published() == await fleet.entered() == {first.url_id}


# ---- what was published before, and what moves


async def test_what_was_published_before_the_index_came_is_entered_by_store_init(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints_build, "PIECE", 3)
    chance = random.Random(4)
    texts = [chance.getrandbits(64) for _ in range(10)]
    keys = await fleet.parsed(0, 5) + await fleet.parsed(1, 5)
    for key, text in zip(keys, texts, strict=True):
        await fleet.complete(key, text)
    indexed = await fleet.rows("SELECT url_id FROM publication WHERE indexed ORDER BY 1")
    (hidden,) = await fleet.parsed(0, 1)
    await fleet.complete(hidden, 4711, publish=False, withheld="noindex")
    wanted = sorted(await fleet.rows("SELECT url_id, fingerprint, attempt, partition, keys FROM near"))
    await fleet.rows("TRUNCATE near")
    await fleet.rows("UPDATE publication SET indexed = false")
    assert await build_index(fleet.dsns, fleet.index) == 0
    await s.rows(fleet.dsns[0], NEAR["begin_build"])
    await set_up_servers(fleet.dsns, partitions=s.PARTITIONS, index_at=fleet.index)
    assert (
        sorted(await fleet.rows("SELECT url_id, fingerprint, attempt, partition, keys FROM near")) == wanted
    )
    assert await fleet.rows(NEAR["built_to"]) == []
    assert await fleet.rows("SELECT url_id FROM publication WHERE indexed ORDER BY 1") == indexed
    (late,) = await fleet.parsed(0, 1)
    await fleet.complete(late, texts[7] ^ 1)
    assert (await fleet.reason(late))[1] == f"nearly the same text as {await fleet.url(keys[7])}"


async def test_a_build_that_was_stopped_goes_on_and_leaves_newer_entries_alone(
    one: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints_build, "PIECE", 2)
    keys = await one.parsed(0, 5)
    for key in keys:
        await one.complete(key, random.getrandbits(64))
    wanted = sorted(await one.rows("SELECT url_id, fingerprint, keys FROM near"))
    await one.rows("DELETE FROM near WHERE url_id <> $1", keys[0].url_id)
    await one.rows(NEAR["begin_build"])

    class Broken(Exception):
        pass

    class Stopped:
        """A connection that ends after the second piece was entered, and before that is noted."""

        def __init__(self, connection: Any) -> None:
            self.fetch, self.fetchval = connection.fetch, connection.fetchval
            self.connection, self.calls = connection, 0

        async def execute(self, *asked: Any) -> Any:
            self.calls += 1
            if self.calls == 4:
                raise Broken
            return await self.connection.execute(*asked)

    source = await connect(one.dsns[0])
    stopped = Stopped(source)
    with pytest.raises(Broken):
        await fingerprints_build.fill(stopped, {0: stopped})
    assert await fingerprints_build.fill(source, {0: source}) == 3
    assert sorted(await one.rows("SELECT url_id, fingerprint, keys FROM near")) == wanted
    assert await fingerprints_build.compare(source) == 5
    await one.rows("DELETE FROM near WHERE url_id = $1", keys[4].url_id)
    with pytest.raises(StoreBroken, match=f"document {keys[4].url_id} is not in it"):
        await fingerprints_build.compare(source)
    await source.close()


async def test_a_database_of_before_is_told_to_build_when_it_has_published(database: str) -> None:
    steps = available()
    connection = await asyncpg.connect(database)
    await migrate(connection, steps[:2])
    await connection.execute("INSERT INTO publication VALUES (0, 1, 1, 0, 1, 1, 1)")
    await migrate(connection)
    assert await connection.fetchval(NEAR["built_to"]) == b"0"
    await connection.close()


async def test_a_partition_that_moves_keeps_its_place_in_the_index(fresh_database: FreshDatabase) -> None:
    dsns = await s.two_servers(fresh_database)
    store = await PostgresServers.open(dsns, partition_of=s.MAP.of, linger_s=0.0)
    fleet = Fleet(dsns, [store])
    (first,) = await fleet.parsed(0, 1)
    await fleet.complete(first, TEXT)
    entered = await fleet.rows("SELECT * FROM near")
    await Relocation(dsns=dsns, partition=0, target=1, hold_ms=0).run()
    assert await fleet.rows("SELECT * FROM near") == entered
    # This store still believes that the partition is where it was.
    (late,) = await fleet.parsed(1, 1)
    await fleet.complete(late, TEXT)
    assert await fleet.reason(late) == ("near_duplicate", f"nearly the same text as {await fleet.url(first)}")
    await store.close()


# ---- what verify says


async def problems(dsn: str) -> list[str]:
    def look() -> list[str]:
        with PostgresCheck(dsn) as check:
            # The pages of these tests were not counted.
            return [line for line in check.problems() if "near-duplicate" in line]

    return await asyncio.to_thread(look)


@pytest.mark.parametrize("servers", [1, 2])
async def test_verify_finds_an_index_that_keeps_its_promises(
    fresh_database: FreshDatabase, servers: int
) -> None:
    dsns = await s.two_servers(fresh_database, servers)
    stores = [await PostgresServers.open(dsns, partition_of=s.MAP.of, linger_s=0.0) for _ in range(2)]
    fleet = Fleet(dsns, stores)
    ours, theirs = await fleet.parsed(0, 4), await fleet.parsed(1, 4)
    chance = random.Random(8)
    for one, other in zip(ours, theirs, strict=True):
        text = chance.getrandbits(64)
        await fleet.complete(one, text)
        await fleet.complete(other, near(text, chance), store=1)
    turncoat = await fleet.again(ours[0])
    await fleet.complete(turncoat, 99)
    # One is under way, one was claimed and then failed, one is found anew and not looked at yet.
    (claimed, failed) = await fleet.parsed(0, 2)
    await fleet.stores[0].fingerprints.claim(fleet.document(claimed, 1234))
    await fleet.stores[0].fingerprints.claim(fleet.document(failed, 0xFFFF_0000))
    await fleet.rows("UPDATE url SET state = 5, ended = 5 WHERE id = $1", failed.url_id)
    await fleet.again(ours[1])
    for dsn in dsns:
        assert await problems(dsn) == []
    for store in stores:
        await store.close()


async def test_verify_tells_what_is_wrong_with_the_index(one: Fleet) -> None:
    shown, copy, other = await one.parsed(0, 3)
    await one.complete(shown, TEXT)
    await one.complete(copy, TEXT ^ 1)
    await one.complete(other, 7)
    await one.rows("DELETE FROM near WHERE url_id = $1", shown.url_id)
    missing, told = await problems(one.dsns[0])
    assert missing == f"{await one.url(shown)} is published and not in the index of near-duplicates"
    assert told.startswith(
        f"{await one.url(copy)} is withheld as a near-duplicate, but no published document"
    )
    await one.rows("UPDATE near SET keys[3] = 1 WHERE url_id = $1", other.url_id)
    await one.rows("INSERT INTO near SELECT $1, $2, 0, 0, 1, 0, '{}'", copy.url_id, signed(TEXT ^ 1))
    assert sorted(await problems(one.dsns[0])) == sorted(
        [
            f"{await one.url(copy)} is in the index of near-duplicates, but not published with this text",
            missing,
            told,
            f"{await one.url(other)} is in the index of near-duplicates under keys of another text",
        ]
    )


# ---- a server that is away


async def test_while_the_index_is_away_completions_wait_with_a_typed_trouble(
    fresh_database: FreshDatabase, own_postgres: OwnPostgres
) -> None:
    fragile, dsn = own_postgres(), fresh_database()
    await set_up_servers([dsn], partitions=s.PARTITIONS)
    await set_up_servers([fragile.dsn()], partitions=s.PARTITIONS)
    store = await PostgresServers.open([dsn], digests_at=[fragile.dsn()], partition_of=s.MAP.of, linger_s=0.0)
    health = Health(SystemClock(), Silent())
    store.hear_indexes(health.listener(Reason.DIGESTS_UNAVAILABLE))
    fleet = Fleet([dsn], [store])
    first, late, hidden = await fleet.parsed(0, 3)
    await fleet.complete(first, TEXT)
    fragile.kill()
    waiting = asyncio.ensure_future(fleet.complete(late, TEXT))
    assert await fleet.complete(hidden, 0, publish=False, withheld="no_text") == Applied.APPLIED
    while not health.blocked:
        await asyncio.sleep(0.01)
    assert list(health.troubles) == [Reason.DIGESTS_UNAVAILABLE]
    assert not waiting.done()
    fragile.start_again()
    assert await waiting == Applied.APPLIED
    assert not health.blocked
    assert (await fleet.reason(late))[0] == "near_duplicate"
    await store.close()


async def test_a_twin_whose_server_is_away_is_waited_for_and_stops_nobody_else(
    fresh_database: FreshDatabase, own_postgres: OwnPostgres
) -> None:
    fragile, dsn, index = own_postgres(), fresh_database(), fresh_database()
    dsns = [dsn, fragile.dsn()]
    await set_up_servers(dsns, partitions=s.PARTITIONS)
    await set_up_servers([index], partitions=s.PARTITIONS)
    store = await PostgresServers.open(dsns, digests_at=[index], partition_of=s.MAP.of, linger_s=0.0)
    heard: list[str | None] = []
    store.hear_indexes(heard.append)
    fleet = Fleet(dsns, [store])
    (first,), (late, other) = await fleet.parsed(1, 1), await fleet.parsed(0, 2)
    await fleet.complete(first, TEXT)
    fragile.kill()
    waiting = asyncio.ensure_future(fleet.complete(late, TEXT))
    assert await fleet.complete(other, 777) == Applied.APPLIED
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done
    assert heard == []
    fragile.start_again()
    assert await waiting == Applied.APPLIED
    assert (await fleet.reason(late))[0] == "near_duplicate"
    await store.close()


async def test_who_gives_up_waiting_is_told_so_and_the_store_closes(
    fresh_database: FreshDatabase, own_postgres: OwnPostgres
) -> None:
    fragile, dsn = own_postgres(), fresh_database()
    await set_up_servers([dsn], partitions=s.PARTITIONS)
    await set_up_servers([fragile.dsn()], partitions=s.PARTITIONS)
    store = await PostgresServers.open([dsn], digests_at=[fragile.dsn()], partition_of=s.MAP.of, linger_s=0.0)
    fleet = Fleet([dsn], [store])
    first, second = await fleet.parsed(0, 2)
    fragile.kill()
    waiting = asyncio.ensure_future(fleet.complete(first, TEXT))
    await asyncio.wait([waiting], timeout=0.2)
    store.abandon(StoreUnavailable("the operator has said stop twice"))
    with pytest.raises(StoreUnavailable, match="said stop"):
        await waiting
    with pytest.raises(StoreUnavailable, match="said stop"):
        await fleet.complete(second, TEXT)
    await store.close()


async def test_a_store_closes_after_the_claims_under_way_were_committed(one: Fleet) -> None:
    keys = await one.parsed(0, 20)
    calls = [asyncio.ensure_future(one.complete(key, random.getrandbits(64))) for key in keys]
    await asyncio.sleep(0)
    await one.stores[0].close()
    assert await asyncio.gather(*calls) == [Applied.APPLIED] * 20


# ---- what it costs


async def test_completions_together_share_statements(one: Fleet) -> None:
    keys = await one.parsed(0, 200)
    index = one.stores[0].fingerprints
    share = index._shares[0]
    groups: list[int] = []
    answer = share._answer

    async def counted(connection: Any, asks: list[Any]) -> list[Any]:
        groups.append(len(asks))
        return await answer(connection, asks)

    share._answer = counted
    await asyncio.gather(*(one.complete(key, random.getrandbits(64)) for key in keys))
    assert sum(groups) == 200
    assert len(groups) <= 3


async def test_what_has_no_text_and_was_never_entered_asks_the_index_nothing(one: Fleet) -> None:
    index = one.stores[0].fingerprints
    keys = await one.parsed(0, 2)
    await one.complete(keys[0], 0)
    await one.complete(keys[1], 0, publish=False, withheld="no_text")
    assert index._links[0]._connection is None


async def make_full_index(dsn: str) -> None:
    await init(dsn, partitions=s.PARTITIONS)
    await s.rows(
        dsn,
        "INSERT INTO near SELECT n, n, 0, 0, 1, 0, array(SELECT hashint8(n * 16 + k) FROM generate_series(1, 16) AS k)"
        " FROM generate_series(1, 5000) AS n",
    )
    connection = await asyncpg.connect(dsn)
    await connection.execute("VACUUM ANALYZE near")
    await connection.close()


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("look", "near_keys"),
        ("withdraw", "near_pkey"),
        ("forget", "near_pkey"),
        ("standing", "publication_url_id"),
    ],
)
async def test_a_statement_of_the_index_finds_its_rows_by_index(
    fresh_database: FreshDatabase, name: str, index: str
) -> None:
    connection = await connect(fresh_database(make_full_index), more=fingerprints.LINK_SETTINGS)
    plan = await plan_of(connection, NEAR[name])
    await connection.close()
    assert index in plan, plan
    for table in ("near", "url", "origin", "publication", "manifest"):
        assert f"Seq Scan on {table}" not in plan, plan


async def test_the_index_has_no_list_of_what_is_still_to_be_sorted_in(one: Fleet) -> None:
    options = await one.rows("SELECT reloptions FROM pg_class WHERE relname = 'near_keys'")
    assert options == [(["fastupdate=off"],)]
