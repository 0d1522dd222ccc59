"""The rig of the fleet tests: it starts and hurts real processes, knows them apart, and its judges find what is wrong."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support import fleet as rig
from tests.support.fleet import Fleet, Watch, contact, now_us, wait_for_sql
from tests.support.postgres import OwnPostgres
from tests.web.handle import TestWeb
from tests.whole import log

DELAY_S = 0.08


def entry(by: str, at_s: float, *, took_s: float = 0.01, host: str = "a.test") -> log.Entry:
    start, end = int(at_s * 1e6), int((at_s + took_s) * 1e6)
    return log.Entry(
        start_us=start, end_us=end, mono_start_us=start, mono_end_us=end, scheme="http", host=host, port=80,
        address="127.10.0.1", connection=1, method="GET", target=f"/{at_s}", status=200, bytes=9,
        user_agent=f"amble/0.1 (+{contact(by)})", ending="done",
    )  # fmt: skip


# -- judges ---------------------------------------------------------------------------------------------------


def test_a_member_is_known_by_its_contact() -> None:
    assert rig.sender(entry("ada", 0)) == "ada"
    assert rig.sender(entry("worker-2.b", 0)) == "worker-2.b"


def test_handovers_are_changes_of_the_member_at_one_origin() -> None:
    entries = [entry("ada", 0), entry("ada", 1), entry("ben", 3), entry("ben", 0.5, host="b.test")]
    (found,) = rig.handovers(entries)
    assert (found.origin, found.before, found.after) == ("http://a.test", "ada", "ben")
    assert found.gap_s == pytest.approx(1.99)


@pytest.mark.parametrize(
    ("second_at_s", "quiet_s", "offences"),
    [(0.5, 0.0, 1), (1.5, 0.0, 0), (1.5, 1.0, 1), (2.5, 1.0, 0)],
)
def test_two_members_at_one_origin_at_once_or_too_soon_are_found(
    second_at_s: float, quiet_s: float, offences: int
) -> None:
    entries = [entry("ada", 0, took_s=1.0), entry("ben", second_at_s)]
    assert len(rig.double_authority(entries, quiet_s=quiet_s)) == offences


@pytest.mark.parametrize(("order", "back"), [("aabb", 0), ("aba", 1), ("abcb", 1), ("abab", 2)])
def test_origins_that_wander_back_are_found(order: str, back: int) -> None:
    assert len(rig.returns(entry(name, at) for at, name in enumerate(order))) == back


def test_requests_in_a_span_that_should_be_silent_are_found() -> None:
    entries = [entry("ada", 1), entry("ben", 2), entry("ada", 3)]
    assert len(rig.started_between(entries, 1_500_000)) == 2
    assert len(rig.started_between(entries, 1_500_000, by="ada")) == 1
    assert rig.started_between(entries, 1_500_000, 2_500_000, by="ada") == []


def test_silences_and_recoveries_are_measured_from_start_to_start() -> None:
    entries = [entry("ada", 1), entry("ben", 2), entry("ada", 5)]
    assert rig.longest_silence_s(entries) == pytest.approx(3.0)
    assert rig.recovery_s(entries, 1_500_000) == pytest.approx(0.5)
    assert rig.recovery_s(entries, 1_500_000, by="ada") == pytest.approx(3.5)
    assert rig.recovery_s(entries, 6_000_000) is None


# -- processes ------------------------------------------------------------------------------------------------


def crawl(web: TestWeb, out: Path, name: str, seeds: list[str]) -> list[str]:
    return [
        "crawl", *seeds, "--out", str(out), "--resolver", web.dns, "--allow-net", web.net, "--contact", contact(name),
        "--set", "parse.children=1", "--delay", str(DELAY_S), "--pages", "1000000", "--quiet",
    ]  # fmt: skip


def test_members_are_started_frozen_killed_started_again_and_judged_together(tmp_path: Path) -> None:
    with TestWeb.start(tmp_path, sites=2, pages=30) as web, Fleet(tmp_path) as fleet:
        watch = Watch(web.log_path, fleet)
        for name, seed in zip(("ada", "ben"), web.seeds, strict=True):
            fleet.start(name, crawl(web, tmp_path / name, name, [seed]))
        for name in ("ada", "ben"):
            watch.wait_for_more(1, by=name)
        fleet["ada"].freeze()
        frozen_us = now_us()
        watch.wait_for_more(4, by="ben")
        thawed_us = fleet["ada"].thaw()
        watch.wait_for_more(1, by="ada")
        killed_us = fleet["ben"].kill()
        assert [member.name for member in fleet.living()] == ["ada"]
        fleet["ben"].start()
        watch.wait_for_more(1, by="ben")
        assert [member.wait() for member in fleet] == [0, 0]
        verdict = rig.judge(web, DELAY_S, again=dict.fromkeys(web.truth()["urls"], 1))
        entries = log.load(web.log_path)
    assert rig.started_between(entries, frozen_us, thawed_us, by="ada") == []
    assert (rig.recovery_s(entries, killed_us, by="ben") or 0) > 0
    assert verdict.offences == [], str(verdict)
    assert set(verdict.requests) == {"ada", "ben"}
    assert verdict.handovers == 0


def test_a_member_that_fails_ends_the_waiting_with_its_own_words(tmp_path: Path) -> None:
    with TestWeb.start(tmp_path, sites=1, pages=5) as web, Fleet(tmp_path) as fleet:
        fleet.start("ada", ["no-such-command"])
        with pytest.raises(AssertionError, match=r"(?s)ada ended with.*no-such-command"):
            Watch(web.log_path, fleet).wait_for_more(1)


def test_frozen_members_die_with_the_fleet(tmp_path: Path) -> None:
    with TestWeb.start(tmp_path, sites=1, pages=60) as web:
        with Fleet(tmp_path) as fleet:
            member = fleet.start("ada", crawl(web, tmp_path / "ada", "ada", web.seeds))
            Watch(web.log_path, fleet).wait_for_more(1)
            member.freeze()
        assert member.process.process.returncode == -signal.SIGKILL
        Watch(web.log_path).wait_for_silence(0.3)


async def test_a_query_is_asked_again_until_the_server_is_back(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    server.execute("CREATE TABLE page AS SELECT 7 AS id")
    server.kill()
    asked: list[object] = []

    def seven(told: object) -> bool:
        asked.append(told)
        return told == 7

    with pytest.raises(AssertionError, match="an answer"):
        await wait_for_sql(server.dsn(), "SELECT id FROM page", seven, "an answer", timeout_s=0.2)
    server.start_again()
    assert await wait_for_sql(server.dsn(), "SELECT id FROM page", seven, "an answer") == 7
    assert asked == [7]
