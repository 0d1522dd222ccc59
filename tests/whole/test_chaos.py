"""A fleet under fire: processes killed and frozen, the database crashed and failed over, the network cut, objects refused.

After the last fault the crawl completes, and the judges look: every reachable page is complete, no link is lost, nothing
is published twice, every site was asked as politely as by one crawler, and each request was made by the owner of its
partition, within its lease. A URL was asked for again only if its lease was in flight when a fault struck.

`AMBLE_CHAOS_ROUNDS` and `AMBLE_CHAOS_SEED` say how long the soak is and what it draws.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.ha import Pair
from tests.support.postgres import OwnPostgres, SharedPostgres
from tests.whole.chaos import (
    Campaign,
    Replicated,
    Servers,
    Single,
    Wires,
    deck,
    table,
)
from tests.whole.fleet_rig import FleetRig

ROUNDS = int(os.environ.get("AMBLE_CHAOS_ROUNDS", "50"))
SEED = int(os.environ.get("AMBLE_CHAOS_SEED", "1"))
# Each answer takes this long, so that there are always requests in flight.
ANSWER_S = 0.2
PER_CRAWL = 10


@contextmanager
def campaign(
    folder: Path,
    servers: Servers,
    luck: int,
    *,
    delay_s: float,
    lease_s: float,
    total_s: float,
    partitions: int,
    **web: int,
) -> Iterator[Campaign]:
    """A fleet at work over these servers."""
    with (
        FleetRig.open(folder, servers.dsn(), delay_s=delay_s, lease_s=lease_s, total_s=total_s, **web) as rig,
        ExitStack() as held,
    ):
        rig.web.control("site", host="*", delay_s=ANSWER_S)
        rig.prepare(partitions)
        made = Campaign(rig=rig, servers=servers, wires=Wires(servers, held), rng=random.Random(luck))
        made.refill()
        yield made


def judge(made: Campaign) -> None:
    """The end of a campaign: the crawl completes, and there is nothing to complain of."""
    made.finish()
    verdict = made.rig.judge(made.again())
    print(table(made.rounds))
    print(verdict)
    assert verdict.offences == [], str(verdict)


@pytest.mark.timeout(240)
def test_a_fleet_survives_the_loss_of_processes_objects_network_and_database(
    tmp_path: Path, own_postgres: OwnPostgres
) -> None:
    """The small campaign of every test run, with faults that are soon over."""
    faults = ["kill agent", "objects lose", "network cut", "database crash"]
    servers = Single(own_postgres())
    with campaign(
        tmp_path, servers, SEED, delay_s=0.15, lease_s=2.0, total_s=2.0, partitions=8, sites=12, pages=120
    ) as made:
        made.run(faults, patient=False)
        assert len(made.rounds) >= 3, "the crawl was over too soon"
        judge(made)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_rounds_of_chaos_lose_nothing_and_double_nothing(
    tmp_path: Path, postgres: SharedPostgres
) -> None:
    rng = random.Random(SEED)
    faults, rounds = deck(ROUNDS, rng), []
    number = 0
    while faults:
        number += 1
        folder = tmp_path / f"crawl-{number}"
        folder.mkdir()
        now, faults = faults[:PER_CRAWL], faults[PER_CRAWL:]
        with (
            Pair.start(postgres.pristine()) as pair,
            campaign(
                folder, Replicated(pair), rng.randrange(1 << 32), delay_s=0.25, lease_s=3.0, total_s=3.0,
                partitions=16, sites=24, pages=1300, seed=SEED + number,
            ) as made,
        ):  # fmt: skip
            made.run(now)
            faults = now + faults
            judge(made)
        rounds += made.rounds
    print(f"{len(rounds)} rounds over {number} crawls")
    print(table(rounds))
