"""The scale model: production scheduling over weeks of virtual time keeps its promises and meets the formulas."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import cache

import pytest

from amble.adapters.sql.ledger import Origin, OriginLedger
from amble.domain.errors import ConfigErrors
from amble.domain.supply import SupplyCurve
from amble.faces.cli import main
from amble.faces.exits import ExitCode
from amble.faces.scale import run_scale, scale_ask, scale_lines
from amble.sim.scale import ScaleAsk, ScaleModel, ScaleReport

SMALL = ScaleAsk(origins=40, days=14, largest=40, seconds_max=60)


@cache
def played(ask: ScaleAsk) -> ScaleReport:
    return asyncio.run(ScaleModel(ask).run())


def test_two_weeks_of_many_origins_end_with_everything_done_and_nobody_starved() -> None:
    report = played(SMALL)
    assert report.ended == "days"
    assert report.virtual_days == pytest.approx(14)
    assert report.urls == sum(max(1, round(40 / rank)) for rank in range(1, 41))
    assert report.pages >= report.urls
    assert report.revisits >= report.urls - report.timeouts
    assert report.starts == report.pages + report.robots + report.timeouts
    assert report.starved == 0
    assert not any(ages.waiting for ages in report.ages)
    assert not report.refused


def test_no_start_comes_before_the_delay_of_its_origin_is_over() -> None:
    assert played(SMALL).spacing_broken == 0


def test_what_the_origins_permit_is_used() -> None:
    report = played(SMALL)
    assert report.ceiling_share > 0.99
    assert report.late_mean_s < 0.05


def test_one_seed_is_one_trace() -> None:
    again = asyncio.run(ScaleModel(SMALL).run())
    other = asyncio.run(ScaleModel(replace(SMALL, seed=2)).run())
    assert again.trace == played(SMALL).trace
    assert other.trace != again.trace


def test_pages_per_time_are_those_of_the_formula() -> None:
    """Origins whose delay is fixed, while none has run dry: starts are the sum over origins of time over interval."""
    ask = ScaleAsk(
        origins=20,
        days=300 / 86_400,
        largest=1_000,
        power=0.0,
        spacing_s=5.0,
        adaptive_factor=0.0,
        service_max_s=1.0,
        timeout_share=0.0,
        revisit_days=0.0,
    )
    report = played(ask)
    assert report.starts == pytest.approx(SupplyCurve([(5.0, 1_000)] * 20).within(300), rel=0.02)
    assert report.starts_per_s == pytest.approx(20 / 5.0, rel=0.02)


def test_too_few_requests_at_once_show_as_late_starts_below_the_ceiling() -> None:
    """With one slot for twenty origins, Little's law bounds the rate, and the loss is told."""
    ask = ScaleAsk(
        origins=20,
        days=300 / 86_400,
        largest=1_000,
        power=0.0,
        adaptive_factor=0.0,
        service_min_s=1.0,
        service_max_s=1.0,
        timeout_share=0.0,
        revisit_days=0.0,
        concurrency=1,
    )
    report = played(ask)
    assert report.in_flight_max == 1
    assert report.in_flight_mean == pytest.approx(1, rel=0.02)
    assert report.ceiling_share < 0.3
    assert report.starved > 0
    assert report.late_max_s < 40


def test_a_world_that_is_visited_once_comes_to_an_end() -> None:
    report = played(replace(SMALL, revisit_days=0.0, timeout_share=0.0, days=30))
    assert report.ended == "idle"
    assert report.pages == report.urls
    assert report.virtual_days < 1


def test_the_real_time_is_bounded() -> None:
    report = played(replace(SMALL, origins=2_000, largest=2_000, seconds_max=0.3))
    assert report.ended == "seconds"
    assert report.real_s < 5


def test_the_report_reads_like_one() -> None:
    told = "\n".join(scale_lines(played(SMALL)))
    for shown in ("40 origins", "of the polite ceiling", "0 waits of more than 10 delays", "7 revisits"):
        assert shown in told


def test_every_mistake_of_a_command_line_is_told_at_once() -> None:
    with pytest.raises(ConfigErrors) as told:
        scale_ask({"--origins": "0", "--days": "soon", "--seed": "1.5", "--largest": "2k"})
    assert len(told.value.problems) == 3


def test_a_command_line_becomes_a_model() -> None:
    ask = scale_ask({"--origins": "2k", "--days": "0.5", "--spacing": "1", "--seconds": None})
    assert (ask.origins, ask.days, ask.spacing_s) == (2_000, 0.5, 1.0)
    assert ask.seconds_max == ScaleAsk().seconds_max


@pytest.mark.parametrize(("concurrency", "code"), [("100", ExitCode.OK), ("1", ExitCode.FOUND)])
def test_starvation_is_a_bad_answer(
    concurrency: str, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"--origins": "40", "--days": "0.002", "--largest": "20", "--concurrency": concurrency}
    assert run_scale(given, as_json=True) == code
    facts = json.loads(capsys.readouterr().out)
    assert (facts["starved"] > 0) == (code is ExitCode.FOUND)


def test_a_ledger_that_forgets_the_delay_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Origin, "ready_at", property(lambda origin: 0))
    assert asyncio.run(ScaleModel(replace(SMALL, days=0.01)).run()).spacing_broken > 0


def test_an_origin_that_is_woken_too_late_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = OriginLedger.changed

    def late(ledger: OriginLedger, origin: Origin) -> None:
        changed(ledger, origin)
        if origin.wake_at is not None and origin.key == "https://o1.example":
            origin.wake_at += 300_000

    monkeypatch.setattr(OriginLedger, "changed", late)
    report = asyncio.run(ScaleModel(replace(SMALL, days=0.05)).run())
    assert report.starved > 0
    assert report.late_max_s > 200


def test_the_command_plays_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--origins", "20", "--largest", "5", "--days", "1", "--seed", "3")
    assert main(["simulate", "--scale", *options]) == ExitCode.OK
    assert "20 origins" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--origins", "20"], "--origins needs --scale"),
        (["--scale", "--trace"], "leave out --seeds and --trace"),
    ],
)
def test_options_of_the_other_mode_are_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == ExitCode.USAGE
    assert told in capsys.readouterr().err
