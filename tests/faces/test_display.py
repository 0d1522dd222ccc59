"""What a running crawl shows, on terminals wide and narrow, in pipes, and to programs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from amble.app.progress import CrawlResult, EndReason, Progress, ReasonCount
from amble.domain.policy import Budget
from amble.faces import text
from amble.faces.display import (
    JsonDisplay,
    PlainDisplay,
    Start,
    Summary,
    limit_words,
    plain_line,
    waits_words,
)
from amble.faces.exits import ExitCode
from amble.faces.picture import LiveDisplay, Panel, spark
from amble.faces.tables import counts

START = Start(
    folder=Path("crawl-example.org"), resumes=False, seeds=2, new_seeds=2, budget=Budget(seconds_max=60)
)
BUSY = Progress(
    pages=1_234_567,
    pages_per_s=1_234.5,
    queued=98_765_432,
    in_flight=300,
    active=256,
    failed=12,
    excluded=3,
    bytes=123_456_789_012,
    origins_ready=3,
    origins_waiting={
        "not_yet": 120,
        "origin_backing_off": 3,
        "robots_unreachable": 2,
        "no_slot": 1,
        "retry_later": 5,
    },
    binding_limit="politeness",
    trouble="archive: no space left on device",
    elapsed_s=37.5,
    parse_backlog=7,
)


def screen(width: int) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=True, color_system=None, legacy_windows=False), out


@pytest.mark.parametrize("width", [40, 60, 72, 80, 120, 200])
@pytest.mark.parametrize("progress", [Progress(), BUSY])
def test_the_panel_fits_its_terminal(width: int, progress: Progress) -> None:
    console, out = screen(width)
    panel = Panel(START, progress)
    panel.rates.extend([1.0, 5.0, 3.0])
    console.print(panel)
    lines = out.getvalue().splitlines()
    assert all(len(line.rstrip()) <= width for line in lines)
    assert len(lines) <= (24 if width < 72 else 14)


def test_the_panel_tells_what_an_operator_asks() -> None:
    console, out = screen(100)
    console.print(Panel(START, BUSY))
    shown = out.getvalue()
    for fact in (
        "crawl-example.org",
        "1,234,567 of 10,000 pages",
        "98,765,432",
        "256",
        "1,234/s",
        "123 GB",
        "7 pages at the parsers",
        "3 ready; waiting: 120 for their delay, 5 to try again, 3 backing off",
        "politeness",
        "no space left on device",
        "Ctrl-C stops cleanly",
    ):
        assert fact in shown


def test_a_stopping_panel_does_not_tell_what_would_hold_the_crawl_back() -> None:
    console, out = screen(100)
    panel = Panel(START, BUSY)
    panel.is_stopping = True
    console.print(panel)
    assert "politeness" not in out.getvalue()


def test_status_and_the_live_picture_name_waits_alike() -> None:
    waiting = {"not_yet": 2, "origin_backing_off": 1}
    assert counts(waiting, words=text.waits) == "2 for their delay, 1 backing off"


def test_the_panel_answers_a_stop_at_once() -> None:
    console, out = screen(80)
    display = LiveDisplay(console, Summary(out, console))
    display.start(START)
    display.show(BUSY)
    display.stopping()
    assert "Ctrl-C again stops at once" in out.getvalue()
    display.close()
    display.close()


def test_a_stop_while_the_folder_opens_is_answered_too() -> None:
    console, out = screen(80)
    display = LiveDisplay(console, Summary(out, console))
    display.opening(Path("crawl-example.org"))
    assert "opening crawl-example.org" in out.getvalue()
    display.stopping()
    assert "stopping as soon as the folder is open" in out.getvalue()
    display.close()


def test_a_hostile_folder_name_or_trouble_cannot_steer_the_terminal() -> None:
    console, out = screen(100)
    start = Start(folder=Path("a\x1b[2Jb"), resumes=True, seeds=1, new_seeds=0, budget=Budget())
    console.print(Panel(start, Progress(trouble="x\x1b[31my")))
    assert "\x1b[2J" not in out.getvalue()
    assert "\x1b[31m" not in out.getvalue()


def test_waits_are_the_most_frequent_first_and_the_rest_is_counted() -> None:
    assert waits_words(BUSY, 2) == "120 for their delay, 5 to try again, 6 for other reasons"
    assert waits_words(Progress()) == ""


def test_an_unknown_limit_is_still_words() -> None:
    assert limit_words(Progress(binding_limit="some_new_limit")) == "some new limit"
    assert "as fast as" in limit_words(Progress())


def test_the_pace_shows_the_highest_rate_as_a_full_bar() -> None:
    assert spark(Panel(START).rates.__class__([0.0, 4.0, 8.0]), 10) == "▁▅█"
    assert spark(Panel(START).rates.__class__([0.0, 0.0]), 10) == "▁▁"
    assert len(spark(Panel(START).rates.__class__([1.0] * 40), 5)) == 5


# --- pipes -------------------------------------------------------------------------------------------------------


def plain(*, quiet: bool = False) -> tuple[PlainDisplay, io.StringIO, io.StringIO]:
    err, out = io.StringIO(), io.StringIO()
    return PlainDisplay(err, Summary(out), quiet=quiet), err, out


def test_a_pipe_gets_one_line_every_five_seconds() -> None:
    display, err, _ = plain()
    display.start(START)
    for tenth in range(121):
        display.show(Progress(pages=tenth, elapsed_s=tenth / 10))
    lines = err.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("00:00:05  pages 50")


def test_a_pipe_is_told_of_trouble_and_of_its_end_at_once() -> None:
    display, err, _ = plain()
    for trouble in (None, "disk full", "disk full", None):
        display.show(Progress(trouble=trouble))
    assert err.getvalue().splitlines() == ["trouble: disk full", "trouble is over"]


def test_quiet_prints_the_summary_only() -> None:
    display, err, out = plain(quiet=True)
    display.start(START)
    display.show(Progress(elapsed_s=60))
    display.stopping()
    display.end(CrawlResult(reason=EndReason.FINISHED, pages=3, pages_run=3), ExitCode.OK)
    assert err.getvalue() == ""
    assert "Finished" in out.getvalue()


def test_a_line_has_no_line_break_whatever_happens() -> None:
    assert "\n" not in plain_line(BUSY, 100)


# --- programs ----------------------------------------------------------------------------------------------------


def test_programs_get_one_json_object_a_line() -> None:
    out = io.StringIO()
    display = JsonDisplay(out)
    display.start(START)
    for second in range(12):
        display.show(Progress(pages=second, elapsed_s=float(second), origins_waiting={"not_yet": 1}))
    display.stopping()
    display.end(
        CrawlResult(reason=EndReason.STOPPED, failures=(ReasonCount(reason="dns_timeout", count=2),)),
        ExitCode.STOPPED,
    )
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [event["event"] for event in events] == [
        "start",
        "progress",
        "progress",
        "progress",
        "stopping",
        "result",
    ]
    assert events[0]["folder"] == "crawl-example.org"
    assert events[1]["origins_waiting"] == {"not_yet": 1}
    assert events[-1]["reason"] == "stopped"
    assert events[-1]["exit_code"] == 10
    assert events[-1]["failures"] == [{"reason": "dns_timeout", "count": 2}]


# --- summary -----------------------------------------------------------------------------------------------------


def summary(result: CrawlResult, code: ExitCode = ExitCode.OK, *, verbose: bool = False) -> str:
    out = io.StringIO()
    printer = Summary(out, verbose=verbose)
    printer.start = Start(
        folder=Path("my crawl"), resumes=False, seeds=1, new_seeds=1, budget=Budget(pages_max=50)
    )
    printer.print(result, code)
    return out.getvalue()


def test_the_summary_says_how_it_ended_what_there_is_and_how_to_go_on() -> None:
    said = summary(
        CrawlResult(
            reason=EndReason.PAGE_BUDGET,
            pages=50,
            pages_run=20,
            documents=40,
            queued=7,
            failed=3,
            next_due_s=90,
            bytes=5_000_000,
            elapsed_s=10,
            failures=(ReasonCount(reason="dns_timeout", count=2), ReasonCount(reason="tls_failed", count=1)),
        )
    )
    for fact in (
        "The page budget is spent.",
        "50 (20 in this run), 5.0 MB in 10s (2.0/s)",
        "7, the next one is due in 1m 30s",
        "3: 2 dns timeout, 1 tls failed",
        "my crawl/archive (WARC)",
        "amble export 'my crawl' --to jsonl --file documents.jsonl",
        "amble failed 'my crawl'",
        "amble crawl --out 'my crawl' --pages 100",
    ):
        assert fact in said


def test_one_reason_needs_no_total_before_it() -> None:
    result = CrawlResult(
        reason=EndReason.FINISHED,
        pages=1,
        excluded=2,
        exclusions=(ReasonCount(reason="robots_disallowed", count=2),),
    )
    assert "2: 2" not in summary(result)
    assert "2 robots disallowed" in summary(result)


def test_the_summary_tells_of_near_duplicates_and_how_to_have_them() -> None:
    withheld = (ReasonCount(reason="status_404", count=9), ReasonCount(reason="near_duplicate", count=1_200))
    said = summary(CrawlResult(reason=EndReason.FINISHED, pages=5_000, documents=3_700, withheld=withheld))
    assert "3,700, without 1,200 near-duplicates of them" in said
    assert "--set publish.near_duplicates=publish" in said
    assert "near-duplicate" not in summary(CrawlResult(reason=EndReason.FINISHED, withheld=withheld[:1]))


def test_only_verbose_names_every_reason() -> None:
    refused = tuple(ReasonCount(reason=f"reason_{number}", count=9 - number) for number in range(8))
    result = CrawlResult(reason=EndReason.FINISHED, pages=1, refused=refused)
    assert "reason 7" not in summary(result)
    assert "and 14 more" in summary(result)
    assert "reason 7" in summary(result, verbose=True)


@pytest.mark.parametrize(
    ("trouble", "told", "goes_on"),
    [
        ({"damaged": True}, "bring the folder back from a copy", False),
        ({"unusable": True}, "free some space or mend the permissions", True),
    ],
)
def test_the_summary_names_the_fix_of_a_trouble(trouble: dict[str, bool], told: str, goes_on: bool) -> None:
    said = summary(CrawlResult(reason=EndReason.TROUBLE, queued=5, trouble="it broke", **trouble))
    assert told in said
    assert ("go on" in said) is goes_on


def test_a_run_too_short_for_any_answer_says_so() -> None:
    early = CrawlResult(reason=EndReason.TIME_BUDGET, queued=4)
    assert "no answer came in this time: give it longer" in summary(early, ExitCode.NOTHING)
    known = CrawlResult(
        reason=EndReason.TIME_BUDGET, queued=4, trouble="dns_unavailable: no nameserver answers"
    )
    assert "no answer came" not in summary(known, ExitCode.NOTHING)


def test_a_crawl_without_a_page_is_not_called_finished() -> None:
    result = CrawlResult(
        reason=EndReason.FINISHED, failed=1, failures=(ReasonCount(reason="dns_not_found", count=1),)
    )
    said = summary(result, ExitCode.NOTHING)
    assert "Not a single page was fetched." in said
    assert "1 dns not found" in said


def test_the_summary_of_a_pipe_has_no_blanks_at_the_ends_of_its_lines() -> None:
    said = summary(CrawlResult(reason=EndReason.FINISHED, pages=5, pages_run=5, documents=5, elapsed_s=1))
    assert said.splitlines()
    assert [line for line in said.splitlines() if line != line.rstrip()] == []


def test_a_summary_on_a_terminal_says_the_same_as_one_in_a_pipe() -> None:
    console, out = screen(200)
    result = CrawlResult(reason=EndReason.FINISHED, pages=3, documents=2, elapsed_s=1)
    Summary(out, console).print(result, ExitCode.OK)
    drawn = [line.rstrip() for line in out.getvalue().splitlines()]
    plainly = io.StringIO()
    Summary(plainly).print(result, ExitCode.OK)
    assert drawn == plainly.getvalue().splitlines()
