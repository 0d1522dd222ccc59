"""`amble plan`: figures with formulas, every mistake at once, and a crawl folder asked for its own origins."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from amble.adapters.sql.inline import InlineStore
from amble.adapters.sql.sqlite import SqliteStore
from amble.domain.attempt import Lease
from amble.domain.frontier import AdmitBatch, LeaseAsk, OriginEffect, OriginOrder
from amble.faces import estimates
from amble.faces.cli import main
from amble.faces.exits import ExitCode
from amble.faces.plan import flag_of, number_of
from tests.contract.frontier_rig import ALLOW_ALL, Rig, answer, page

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def facts(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Said]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def amble(*arguments: str) -> Said:
        return Said(main(["plan", *arguments]), *capfd.readouterr())

    return amble


# ---- origins all alike


def test_the_answer_names_each_figure_with_its_formula(run: Run) -> None:
    said = run("--pages", "15B", "--days", "28", "--spacing", "2", "--timeout-share", "0")
    assert said.code == ExitCode.OK
    for shown in (
        "15 billion pages in 28 days",
        "reachable politely if 12,401 origins are eligible all the time",
        "6,200/s   pages_per_s = pages / (days * 86400)",
        "620 MB/s   ingress_bytes_per_s = pages_per_s * page_bytes",
        "53.6 TB   ingress_bytes_per_day",
        "12,401   origins_needed = starts_per_s * interval_s",
        "62,004/s   candidates_per_s",
    ):
        assert shown in said.out


def test_too_few_origins_are_a_bad_answer_with_a_remedy(run: Run) -> None:
    said = run(
        "--pages", "15B", "--days", "28", "--origins", "1000", "--spacing", "2", "--timeout-share", "0"
    )
    assert said.code == ExitCode.FOUND
    assert "NOT reachable politely" in said.out
    assert "500/s   ceiling_starts_per_s = origins / interval_s" in said.out
    assert "origins: 12,401 instead of 1,000" in said.out
    assert "more machines cannot" in said.out


def test_json_has_every_figure_and_where_each_assumption_comes_from(run: Run) -> None:
    facts = run("--pages", "10M", "--days", "1", "--peak", "5", "--json").facts
    assert facts["figures"]["pages_per_s"]["value"] == pytest.approx(115.7, rel=0.001)
    assert facts["figures"]["peak_pages_per_s"]["formula"] == "peak * pages_per_s"
    assert facts["assumptions"]["peak"] == {"value": 5.0, "unit": "times", "source": "given"}
    assert facts["assumptions"]["page_bytes"]["source"] == "default"
    assert facts["verdict"]["outcome"] == "needs_origins"


def test_a_spacing_that_is_given_is_exact_and_the_default_is_adaptive(run: Run) -> None:
    def interval(*options: str) -> float:
        facts = run("--pages", "1M", "--days", "1", "--timeout-share", "0", "--json", *options).facts
        return float(facts["figures"]["interval_s"]["value"])

    assert interval() == 5.0
    assert interval("--spacing", "2") == 2.0
    assert interval("--spacing", "2", "--adaptive-factor", "3") == 3.0


def test_every_mistake_is_told_at_once(run: Run) -> None:
    said = run("--pages", "lots", "--timeout-share", "2", "--origins", "-1", "--compression", "0")
    assert said.code == ExitCode.USAGE
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 5
    for told in (
        "--days is missing",
        "--pages 'lots'",
        "--timeout-share '2'",
        "--origins '-1'",
        "--compression '0'",
    ):
        assert any(told in line for line in lines), told


def test_what_does_not_fit_together_is_told_by_the_names_of_options(run: Run) -> None:
    said = run(
        "--pages", "1M", "--days", "9", "--keep-days", "3", "--timeout-share", ".6", "--error-share", ".5"
    )
    assert said.code == ExitCode.USAGE
    assert "--timeout-share and --error-share leave no start" in said.err
    assert "--keep-days 3 is shorter than --days 9" in said.err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("15B", 15e9),
        ("15 b", 15e9),
        ("10M", 10e6),
        ("2.5k", 2_500),
        ("1T", 1e12),
        ("15,000,000", 15e6),
        ("1_000", 1_000),
        ("1e9", 1e9),
        (".5", 0.5),
        ("-1", None),
        ("nan", None),
        ("1e999", None),
        ("", None),
        ("1x", None),
    ],
)
def test_numbers_as_people_write_them(text: str, value: float | None) -> None:
    assert number_of(text) == value


def test_no_two_inputs_share_an_option() -> None:
    from amble.domain.assumptions import INPUTS

    flags = [flag_of(name) for name in INPUTS]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (6_200.4, "/s", "6,200/s"),
        (12_400, "", "12,400"),
        (1.2096e9, "", "1.21 billion"),
        (15e9, "", "15 billion"),
        (999.6e6, "", "1 billion"),
        (0.161, "s", "0.161 s"),
        (620e6, "B/s", "620 MB/s"),
        (4.96e9, "bit/s", "4.96 Gbit/s"),
        (12, "bit/s", "12 bit/s"),
        (200, "B", "200 B"),
        (0.05, "share", "5 %"),
        (28, "days", "28 days"),
    ],
)
def test_quantities_as_people_read_them(value: float, unit: str, shown: str) -> None:
    assert estimates.quantity(value, unit) == shown


# ---- a crawl folder


class Crawl(Rig):
    """A crawl folder with a frontier that tests fill."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "inline-apsw")
        (folder / "amble.toml").write_text("[origin]\nspacing_ms = 2000\ndelay_fixed = true\n")

    async def fetch_one_each(self, duration_ms: int) -> None:
        """A page of every origin, robots.txt first."""
        for _ in range(2):
            ask = LeaseAsk(self.epoch, 1, 1_000, 60_000)
            for lease in (await self.frontier.lease(ask)).leases:
                await self._carry(lease, duration_ms)
            self.now += DAY_MS // 24

    async def _carry(self, lease: Lease, duration_ms: int) -> None:
        await self.start(lease)
        await self.fetched(lease, answer(), OriginEffect(duration_ms, 2_000, 0, 0))
        await self.parsed(lease, 12)
        await self.complete(lease, robots=ALLOW_ALL if lease.kind == 1 else None, robots_ttl_ms=DAY_MS)


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """Twenty origins with eleven URLs each and a giant with 2,001; of each one page was fetched."""
    crawl = Crawl(tmp_path)
    await crawl.open()
    await crawl.take_over()
    small = [page(f"/{n}", f"https://s{o}.example") for o in range(20) for n in range(11)]
    giant = [page(f"/{n}", "https://giant.example") for n in range(2_001)]
    await crawl.frontier.admit(AdmitBatch([*small, *giant]))
    await crawl.fetch_one_each(500)
    order = OriginOrder("https://s7.example", "operator", "they asked", paused=True)
    assert isinstance(crawl.frontier, InlineStore)
    store: SqliteStore = crawl.frontier.store
    from amble.adapters.sql.messages import SetOrigin

    store.apply([SetOrigin(order)])
    await crawl.close()
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "one.warc.gz").write_bytes(b"x" * 10_500)
    return tmp_path


def test_a_folder_is_asked_for_its_own_origins(folder: Path, run: Run) -> None:
    facts = run(str(folder), "--pages", "300", "--days", "1", "--json").facts
    assert (facts["origins"], facts["origins_eligible"]) == (21, 20)
    assert (facts["queued"], facts["queued_paused"]) == (19 * 10 + 2_000, 10)
    assert facts["starts_known"] == pytest.approx(19 * 10 + 2_000)
    assert facts["verdict"]["outcome"] == "reachable"
    assert facts["pages_done"] == 21
    assumed = facts["assumptions"]
    assert assumed["service_s"] == {"value": 0.5, "unit": "s", "source": "measured here"}
    assert assumed["page_bytes"]["value"] == 1_000
    assert assumed["links_per_page"]["value"] == 12
    assert assumed["compression"]["value"] == pytest.approx(42 * 1_000 / 10_500)
    assert (assumed["spacing_s"]["value"], assumed["adaptive_factor"]["value"]) == (2.0, 0.0)
    assert assumed["concurrency"] == {"value": 256.0, "unit": "requests", "source": "setting"}


def test_the_origin_that_holds_a_crawl_up_is_named(folder: Path, run: Run) -> None:
    said = run(str(folder), "--pages", "9000", "--days", "0.01")
    assert said.code == ExitCode.FOUND
    assert "NOT reachable politely" in said.out
    assert "1 origin with" in said.out
    assert "https://giant.example" in said.out
    assert "2,000 queued, one in 2 s" in said.out
    assert "queued at paused origins, not counted" in said.out


def test_what_if_the_spacing_were_another(folder: Path, run: Run) -> None:
    """A supposed spacing counts instead of the folder's own, in the verdict as well."""
    target = ("--pages", "1500", "--days", "0.01", "--json")
    assert run(str(folder), *target).facts["verdict"]["outcome"] == "needs_discovery"
    supposed = run(str(folder), *target, "--spacing", "0.5")
    assert supposed.facts["verdict"]["outcome"] == "reachable"
    assert supposed.facts["assumptions"]["spacing_s"]["source"] == "given"


def test_more_pages_than_are_known_is_a_question_of_discovery(folder: Path, run: Run) -> None:
    said = run(str(folder), "--pages", "3000", "--days", "1", "--error-share", "0")
    assert said.code == ExitCode.OK
    assert "open:" in said.out
    assert "discovery has to find them" in said.out


def test_asking_changes_nothing(folder: Path, run: Run) -> None:
    def content() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    before = content()
    run(str(folder), "--pages", "3000", "--days", "1")
    assert {name: content()[name] for name in before} == before


def test_a_folder_and_a_number_of_origins_exclude_each_other(folder: Path, run: Run) -> None:
    said = run(str(folder), "--pages", "1", "--days", "1", "--origins", "5")
    assert said.code == ExitCode.USAGE
    assert "exclude each other" in said.err


def test_a_folder_without_a_crawl_is_said_so(tmp_path: Path, run: Run) -> None:
    said = run(str(tmp_path), "--pages", "1", "--days", "1")
    assert said.code == ExitCode.USAGE
    assert "there is no crawl there" in said.err
