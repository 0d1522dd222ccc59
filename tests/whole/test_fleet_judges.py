"""The judges of a fleet can fail: what is forged into the log or the database of an honest crawl is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fleet import contact
from tests.whole.chaos import Round, recovery_of
from tests.whole.fleet_rig import FleetRig, Ledger, Tenure
from tests.whole.log import Entry


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
    """A crawl without offences (see test_fleet_coverage.py), with its log and its database forged here and there."""
    with FleetRig.open(tmp_path, database, delay_s=0.02, sites=2, pages=8) as rig:
        rig.prepare(2)
        rig.start_agent("ada", "--until-done")
        rig.start_parser("pat")
        assert rig.fleet["ada"].wait() == 0
        rig.stop_all()
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
