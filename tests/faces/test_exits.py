"""How a command ends: codes for results, lines for broken promises, a log for what nobody foresaw."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

import pytest

from amble.app.progress import CrawlResult, EndReason
from amble.domain import errors
from amble.faces.exits import ExitCode, exit_code_of, lines_for, write_crash_log


@pytest.mark.parametrize(
    ("reason", "pages", "code"),
    [
        (EndReason.FINISHED, 5, ExitCode.OK),
        (EndReason.PAGE_BUDGET, 5, ExitCode.OK),
        (EndReason.TIME_BUDGET, 5, ExitCode.OK),
        (EndReason.WAITING, 5, ExitCode.OK),
        (EndReason.FINISHED, 0, ExitCode.NOTHING),
        (EndReason.WAITING, 0, ExitCode.NOTHING),
        (EndReason.TIME_BUDGET, 0, ExitCode.NOTHING),
        (EndReason.STOPPED, 0, ExitCode.STOPPED),
        (EndReason.STOPPED, 5, ExitCode.STOPPED),
        (EndReason.TROUBLE, 5, ExitCode.UNUSABLE),
        (EndReason.TROUBLE, 0, ExitCode.UNUSABLE),
    ],
)
def test_every_end_of_a_crawl_has_its_code(reason: EndReason, pages: int, code: ExitCode) -> None:
    assert exit_code_of(CrawlResult(reason=reason, pages=pages)) is code


@pytest.mark.parametrize("pages", [0, 5])
@pytest.mark.parametrize("reason", [EndReason.TIME_BUDGET, EndReason.WAITING])
def test_a_full_disk_has_its_code_however_the_run_ended(reason: EndReason, pages: int) -> None:
    assert exit_code_of(CrawlResult(reason=reason, pages=pages, unusable=True)) is ExitCode.UNUSABLE


def test_every_broken_promise_has_a_code_and_one_line() -> None:
    for kind in errors.AmbleError.__subclasses__():
        exc = errors.ConfigErrors(["x: is wrong"]) if kind is errors.ConfigErrors else kind("it broke")
        known = lines_for(exc)
        assert known is not None, kind
        code, lines = known
        assert code is not ExitCode.INTERNAL
        assert len(lines) == 1
        assert "\n" not in lines[0]


@pytest.mark.parametrize(
    ("said", "mend"),
    [
        ("frontier.db: the disk is full", "free some space"),
        ("postgresql://amble@db/amble does not answer", "once it answers, run"),
    ],
)
def test_what_is_away_needs_no_mending_here(said: str, mend: str) -> None:
    known = lines_for(errors.StoreUnavailable(said))
    assert known is not None
    assert mend in known[1][0]


def test_what_is_damaged_is_told_with_a_way_on_that_does_not_need_it() -> None:
    known = lines_for(errors.StoreBroken("the frontier file is damaged"))
    assert known is not None
    assert "seeds.txt (--seeds)" in known[1][0]


@pytest.mark.parametrize("kind", [errors.StoreUnfit, errors.OperationRefused])
def test_a_store_that_is_whole_is_not_called_damaged(kind: type[errors.StoreBroken]) -> None:
    known = lines_for(kind("prepare it with `amble store init`"))
    assert known == (ExitCode.UNUSABLE, ["prepare it with `amble store init`"])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_full_or_closed_disk_is_told_with_its_path(number: int) -> None:
    known = lines_for(OSError(number, "it broke", "/somewhere"))
    assert known is not None
    assert known[0] is ExitCode.UNUSABLE
    assert known[1][0].startswith("/somewhere: it broke")


def test_a_group_of_known_errors_is_known() -> None:
    group = ExceptionGroup(
        "", [errors.StoreUnavailable("a"), ExceptionGroup("", [errors.ArchiveBroken("b")])]
    )
    known = lines_for(group)
    assert known is not None
    assert known[0] is ExitCode.UNUSABLE
    assert len(known[1]) == 2


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("x"),
        ExceptionGroup("", [errors.StoreUnavailable("a"), KeyError("b")]),
        OSError(errno.EIO, "x"),
    ],
)
def test_what_nobody_foresaw_is_not_explained_away(exc: Exception) -> None:
    assert lines_for(exc) is None


def _raised() -> ValueError:
    try:
        raise ValueError("secret in here")
    except ValueError as exc:
        return exc


def test_a_crash_log_lies_in_the_crawl_folder_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    path = write_crash_log(_raised(), tmp_path)
    assert path is not None
    assert path.parent == tmp_path / "run"
    assert "secret in here" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_a_crawl_folder_a_crash_log_is_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = write_crash_log(_raised(), None)
    assert path is not None
    assert path.parent == tmp_path


def test_a_fleet_without_its_drivers_names_the_extra() -> None:
    told = lines_for(ModuleNotFoundError("No module named 'asyncpg'", name="asyncpg"))
    assert told is not None
    code, (line,) = told
    assert code == ExitCode.USAGE
    assert "amble[fleet]" in line
    assert lines_for(ModuleNotFoundError(name="amble.nothing")) is None
