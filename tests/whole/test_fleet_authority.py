"""Two agents that both believe they own the same partitions: only one of them asks anything there, says the web's log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.amble_process import wait_until
from tests.support.fleet import contact, double_authority, now_us, sender, started_between
from tests.support.postgres import OwnPostgres
from tests.support.toxics import Drop
from tests.whole import log
from tests.whole.chaos import HOLD_MARGIN_S, Single, Wires
from tests.whole.fleet_rig import FleetRig

DELAY_S = 0.3
TOTAL_S = 2.0
PARTITIONS = 8
# A permit that was given before the partition changed hands may be used a moment after it.
PERMITTED_S = 0.25
# Shorter than the time between two renewals of the longest lease here.
SILENT_S = 4.5
HERE = ("--set", "parse.where=here")

# The lease of everything is given to somebody who does not exist, under the next epoch.
TO_A_STRANGER = """
UPDATE partition SET owner = 'eve~000000', epoch = epoch + 1, released = false,
  lease_until = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + 60000
"""
# The lease of everything ended so long ago that whoever claims it waits a moment only.
LONG_OVER = f"""
UPDATE partition SET lease_until = (extract(epoch FROM clock_timestamp()) * 1000)::bigint - {int(HOLD_MARGIN_S * 1000)}
"""


@contextmanager
def rig(folder: Path, own_postgres: OwnPostgres, lease_s: float) -> Iterator[tuple[FleetRig, Wires]]:
    servers = Single(own_postgres())
    with (
        FleetRig.open(
            folder, servers.dsn(), delay_s=DELAY_S, lease_s=lease_s, total_s=TOTAL_S, sites=16, pages=600
        ) as made,
        ExitStack() as held,
    ):
        # Every answer takes a while, so that requests are in flight whenever something happens.
        made.web.control("site", host="*", delay_s=0.1)
        made.prepare(PARTITIONS)
        yield made, Wires(servers, held)


def judge(made: FleetRig) -> None:
    """Every request by the owner of its partition, one at a time, well spaced, whoever made them."""
    entries = made.entries()
    assert made.ledger().offences(entries) == []
    assert double_authority(entries) == []
    assert log.spacing(entries, DELAY_S, tolerance_s=0.003) == []
    assert log.concurrency(entries, 1) == []


def owners(made: FleetRig) -> set[str]:
    """By the names under which they were started."""
    return {owner.partition("~")[0] for (owner,) in made.rows("SELECT owner FROM partition")}


def events(made: FleetRig, member: str, name: str) -> list[str]:
    """The lines of one name in the log of a member."""
    return [
        line for line in (made.folder / f"{member}.jsonl").read_text().splitlines() if f'"{name}"' in line
    ]


def renewed(made: FleetRig) -> None:
    """Until the agents have just renewed: for the next six seconds nobody tells them who owns what."""
    before = made.rows("SELECT max(lease_until) FROM partition")
    wait_until(
        lambda: made.rows("SELECT max(lease_until) FROM partition") != before, 30.0, "a renewal of the leases"
    )


@pytest.mark.timeout(120)
def test_an_agent_whose_partitions_were_given_to_another_starts_nothing_though_it_trusts_its_lease(
    tmp_path: Path, own_postgres: OwnPostgres
) -> None:
    """Its window is open for many seconds more, and nobody has told it: the database grants no start under its epoch."""
    with rig(tmp_path, own_postgres, lease_s=18.0) as (made, wires):
        made.start_agent("ada", *HERE, dsn=wires.dsn("ada"))
        made.watch.wait_for_more(30, by="ada")
        renewed(made)
        made.rows(TO_A_STRANGER + " RETURNING 1")
        forged_us = now_us()
        time.sleep(SILENT_S)
        made.web.flush()
        late_us = forged_us + int(PERMITTED_S * 1e6)
        assert started_between(made.watch.read(), late_us) == []
        lost = events(made, "ada", "partition.lost")
        assert lost == [], "it still believes that they are its own"
        made.fleet["ada"].kill()


@pytest.mark.timeout(120)
def test_of_two_agents_that_trust_their_leases_of_the_same_partitions_only_the_newer_one_starts_anything(
    tmp_path: Path, own_postgres: OwnPostgres
) -> None:
    with rig(tmp_path, own_postgres, lease_s=18.0) as (made, wires):
        made.start_agent("ada", *HERE, dsn=wires.dsn("ada"))
        made.watch.wait_for_more(30, by="ada")
        renewed(made)
        # Nobody knows of ada any more, and her leases are long over: ben takes all at once.
        made.rows("DELETE FROM agent RETURNING 1")
        made.rows(LONG_OVER + " RETURNING 1")
        forged_s = time.time()
        made.start_agent("ben", *HERE, dsn=wires.dsn("ben"))
        made.watch.wait_for_more(20, by="ben")
        made.stop_all()
        entries = made.entries()
        permitted = [e for e in entries if forged_s <= e.start_us / 1e6 < forged_s + PERMITTED_S]
        assert made.ledger().offences(e for e in entries if e not in permitted) == []
        assert double_authority(entries) == []
        assert log.spacing(entries, DELAY_S, tolerance_s=0.003) == []
        assert log.concurrency(entries, 1) == []


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["cut off", "frozen"])
def test_an_agent_that_missed_being_replaced_starts_nothing_when_it_is_back(
    tmp_path: Path, own_postgres: OwnPostgres, how: str
) -> None:
    with rig(tmp_path, own_postgres, lease_s=2.0) as (made, wires):
        ada = made.start_agent("ada", *HERE, dsn=wires.dsn("ada"))
        made.start_agent("ben", *HERE, dsn=wires.dsn("ben"))
        for name in ("ada", "ben"):
            made.watch.wait_for_more(10, by=name)
        lost = {
            p for p, owner in made.rows("SELECT partition, owner FROM partition") if owner.startswith("ada~")
        }
        (proxy,) = wires.of(["ada"])
        if how == "frozen":
            ada.freeze()
        else:
            proxy.set(up=Drop(), down=Drop())

        def taken() -> bool:
            return any(
                sender(entry) == "ben" and made.place_of(entry.origin) in lost for entry in made.watch.read()
            )

        wait_until(taken, 60.0, "ben's first request in what was ada's")
        back_us = ada.thaw() if how == "frozen" else now_us()
        proxy.heal()
        made.watch.wait_for_more(20)
        wait_until(lambda: owners(made) == {"ada", "ben"}, 60.0, "a share for each again")
        made.watch.wait_for_more(5, by="ada")
        made.stop_all()
        judge(made)
        ledger = made.ledger()
        claimed = [t.at_us for t in ledger.tenures if t.member == "ada" and t.epoch > 2]
        assert claimed, "it has claimed its share anew"
        first = next(e for e in made.entries() if sender(e) == "ada" and e.mono_start_us >= back_us)
        assert first.start_us >= min(claimed), (
            f"{contact('ada')} asked for {first.url} before it had claimed anew"
        )
