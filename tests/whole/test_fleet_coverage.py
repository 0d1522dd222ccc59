"""Three agents and two parse workers crawl the test web together: everything once, and as politely as one crawler would.

`AMBLE_FLEET_PAGES=20000 make soak` is the whole thing, which tells its figures as well.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.amble_process import children_of, command_line, cpu_s
from tests.support.fleet import handovers, sender
from tests.support.postgres import OwnPostgres
from tests.whole import log
from tests.whole.fleet_rig import FleetRig
from tests.whole.log import Entry

AGENTS = ("ada", "ben", "cyd")
PARSERS = ("pat", "pia")
PAGES = int(os.environ.get("AMBLE_FLEET_PAGES", "20000"))


class Meter:
    """CPU seconds by kind of process. Looked at often, since what ends takes its figures with it."""

    def __init__(self, roots: dict[str, Iterable[int]]) -> None:
        self._roots = {kind: list(pids) for kind, pids in roots.items()}
        self._spent: dict[tuple[str, int], float] = {}

    def look(self) -> None:
        """Take in what every process has spent by now."""
        for kind, roots in self._roots.items():
            queue = list(roots)
            while queue:
                pid = queue.pop()
                queue += children_of(pid)
                child = "amble.adapters.sandbox.child" in command_line(pid)
                key = (f"{kind}'s parser children" if child else kind, pid)
                self._spent[key] = max(self._spent.get(key, 0.0), cpu_s(pid))

    def by_kind(self) -> dict[str, float]:
        """The sums."""
        sums: Counter[str] = Counter()
        for (kind, _), spent in self._spent.items():
            sums[kind] += spent
        return dict(sums)


def crawl(rig: FleetRig, partitions: int, database_pid: int, timeout_s: float) -> Meter:
    """The whole crawl, from an empty database until every agent has ended by itself."""
    rig.prepare(partitions)
    agents = [rig.start_agent(name, "--until-done") for name in AGENTS]
    parsers = [rig.start_parser(name) for name in PARSERS]
    meter = Meter(
        {
            "agents": [member.process.pid for member in agents],
            "parse workers": [member.process.pid for member in parsers],
            "PostgreSQL": [database_pid],
            "test web": [rig.web.pid],
        }
    )
    end_s = time.monotonic() + timeout_s
    while any(member.alive for member in agents):
        rig.fleet.check()
        meter.look()
        assert time.monotonic() < end_s, "the crawl has not ended: " + "\n".join(m.tail() for m in agents)
        time.sleep(0.5)
    assert [member.wait() for member in agents] == [0, 0, 0], [member.tail() for member in agents]
    rig.stop_all()
    return meter


def least_gap_s(entries: Iterable[Entry]) -> float:
    """The shortest time between two starts at one origin, whoever made them."""
    gaps = [
        (two.mono_start_us - one.mono_start_us) / 1e6
        for requests in log.by_origin(entries).values()
        for one, two in pairwise(requests)
    ]
    return min(gaps, default=0.0)


def check(rig: FleetRig) -> None:
    """Nothing to complain of, and everybody has had a share."""
    verdict = rig.judge()
    print(verdict)
    assert verdict.offences == [], str(verdict)
    assert verdict.coverage.exact, str(verdict.coverage)
    assert all(verdict.requests[name] > 0 for name in AGENTS), str(verdict)


@pytest.mark.timeout(180)
def test_three_agents_and_two_parse_workers_fetch_everything_once(
    tmp_path: Path, own_postgres: OwnPostgres
) -> None:
    server = own_postgres()
    with FleetRig.open(tmp_path, server.dsn(), delay_s=0.1, sites=14, pages=120) as rig:
        crawl(rig, 12, server.pid, 120.0)
        check(rig)
        entries = rig.entries()
        owners = {rig.place_of(entry.origin) for entry in entries}
        assert len(owners) > 5, "sites should be spread over most partitions"


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_fleet_crawls_many_pages_exactly_and_politely(tmp_path: Path, own_postgres: OwnPostgres) -> None:
    server = own_postgres(shared_buffers="256MB")
    delay_s = 0.05
    with FleetRig.open(
        tmp_path, server.dsn(), delay_s=delay_s, lease_s=15.0, sites=max(30, PAGES // 20), pages=PAGES
    ) as rig:
        began_s = time.monotonic()
        meter = crawl(rig, 48, server.pid, 3600.0)
        took_s = time.monotonic() - began_s
        entries = rig.entries()
        pages = sum(not entry.is_robots for entry in entries)
        print(
            f"{pages} requests for pages, {len(entries)} in all, in {took_s:.0f} s: {pages / took_s:.0f} a second"
        )
        print("requests: " + ", ".join(f"{n} {c}" for n, c in sorted(Counter(map(sender, entries)).items())))
        print(
            "CPU ms a page: "
            + ", ".join(f"{kind} {s * 1000 / pages:.2f}" for kind, s in meter.by_kind().items())
        )
        print(
            f"least gap between two starts at one origin: {least_gap_s(entries) * 1000:.1f} ms of {delay_s * 1000:.0f}"
        )
        changes = handovers(entries)
        print(
            f"{len(changes)} origins went to another agent, the closest after {min((c.gap_s for c in changes), default=0):.2f} s"
        )
        began_s = time.monotonic()
        check(rig)
        print(f"judged in {time.monotonic() - began_s:.0f} s")
