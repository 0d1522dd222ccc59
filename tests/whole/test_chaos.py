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

from tests.support.fleet import contact
from tests.support.ha import Pair
from tests.support.postgres import OwnPostgres, SharedPostgres
from tests.whole.chaos import (
    Campaign,
    Replicated,
    Round,
    Servers,
    Single,
    Wires,
    deck,
    recovery_of,
    table,
)
from tests.whole.fleet_rig import FleetRig, Ledger, Tenure
from tests.whole.log import Entry

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
        tmp_path, servers, SEED, delay_s=0.15, lease_s=2.0, total_s=2.0, partitions=8, sites=12, pages=160
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


# -- the judges can fail ------------------------------------------------------------------------------------------

HOST = "http://a.test"


def asked(name: str, at_s: float, path: str = "/") -> Entry:
    at_us = int(at_s * 1e6)
    return Entry(
        start_us=at_us, end_us=at_us + 1000, mono_start_us=at_us, mono_end_us=at_us + 1000, scheme="http",
        host="a.test", port=80, address="127.0.0.1", connection=1, method="GET", target=path, status=200, bytes=1,
        user_agent=f"amble (+https://fleet.test/{name})", ending="done",
    )  # fmt: skip


def owned(name: str, at_s: float, until_s: float | None, epoch: int = 1) -> Tenure:
    until_us = None if until_s is None else int(until_s * 1e6)
    return Tenure(int(at_s * 1e6), 0, f"{name}~1f" if name else "", epoch, until_us)


LEASES = [owned("ada", 1, 4), owned("ada", 3, 6), owned("ben", 7, 10, 2), owned("", 9, None, 2)]


@pytest.mark.parametrize(
    ("name", "at_s", "offence"),
    [
        ("ada", 0.5, "nobody owned"),
        ("ada", 2, ""),
        ("ada", 5, ""),
        ("ada", 6.1, ""),
        ("ada", 6.5, "ada owned until -0.5"),
        ("ben", 5, "ada owned"),
        ("ada", 7.5, "ben owned"),
        ("ben", 7.5, ""),
        ("ben", 9.1, ""),
        ("ben", 9.5, "nobody owned"),
        ("", 5, "ada owned"),
    ],
)
def test_a_request_outside_the_lease_of_its_partition_is_found(name: str, at_s: float, offence: str) -> None:
    found = Ledger(LEASES, lambda origin: 0).offences([asked(name, at_s)])
    assert len(found) == bool(offence), found
    assert offence in "".join(found)


def test_changes_of_owners_are_counted() -> None:
    assert Ledger(LEASES, lambda origin: 0).changes() == 1


def test_recovery_is_measured_where_the_fault_had_struck() -> None:
    this = Round(
        number=1,
        kind="kill agent",
        victims=["ada"],
        affected=frozenset({1}),
        struck_us=0,
        healed_us=2_000_000,
    )
    places = {"http://a.test": 0}
    entries = [asked("ben", 3), asked("ben", 5)]
    assert recovery_of(this, entries, lambda origin: places[origin]) is None
    this.affected = None
    assert recovery_of(this, entries, lambda origin: places[origin]) == pytest.approx(1.0)


def test_the_verdict_of_a_fleet_tells_planted_losses_repeats_and_strangers(
    tmp_path: Path, database: str
) -> None:
    """An honest crawl has no offences; with its log forged here and there, each forgery is one."""
    with FleetRig.open(tmp_path, database, delay_s=0.02, sites=2, pages=8) as rig:
        rig.prepare(2)
        rig.start_agent("ada", "--until-done")
        rig.start_parser("pat")
        assert rig.fleet["ada"].wait() == 0
        rig.stop_all()
        assert rig.judge().offences == []
        lines = rig.web.log_path.read_text().splitlines(keepends=True)
        pages = [
            n for n, line in enumerate(lines) if "\tclosed-00.test" in line and "\t/robots.txt" not in line
        ]
        lost, doubled, foreign = pages[1:4]
        lines[foreign] = lines[foreign].replace(contact("ada"), contact("eve"))
        lines[doubled] *= 2
        del lines[lost]
        rig.web.log_path.write_text("".join(lines))
        # In the database one URL is forgotten as if its link had been lost.
        rig.rows("DELETE FROM url WHERE path LIKE '/lost/%' RETURNING id")
        told = rig.judge().offences
    for offence in (
        "was never fetched",
        "was asked for 2 times",
        "s after",
        "at once when",
        "eve asked for",
        "is lost",
    ):
        assert any(offence in line for line in told), (offence, told)
