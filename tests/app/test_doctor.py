"""Doctor's checks see what is wrong with a machine and say what to do about it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from amble.app import doctor
from amble.app.findings import Finding, Verdict


def test_every_check_of_this_machine_gives_one_finding(tmp_path: Path) -> None:
    findings = doctor.examine(tmp_path)
    assert [item.name for item in findings] == [
        "python",
        "libraries",
        "sqlite",
        "loop",
        "files",
        "disk",
        "clock",
    ]
    assert all(item.detail for item in findings)


def test_every_problem_comes_with_a_fix(tmp_path: Path) -> None:
    for item in doctor.examine(tmp_path / "not" / "yet" / "made"):
        assert item.fix or item.verdict is not Verdict.PROBLEM


def test_a_check_that_cannot_look_is_a_finding_too(tmp_path: Path) -> None:
    def sandbox() -> Finding:
        raise OSError("no such thing")

    finding = doctor.examine(tmp_path, [sandbox])[-1]
    assert (finding.name, finding.verdict) == ("sandbox", Verdict.NOTE)
    assert "no such thing" in finding.detail


@pytest.mark.parametrize(("limit", "verdict"), [(256, "problem"), (1_024, "note"), (4_096, "good")])
def test_too_few_open_files_are_seen(limit: int, verdict: str) -> None:
    code = (
        "import json; from amble.app import doctor; f = doctor.files(); print(json.dumps([f.verdict, f.fix]))"
    )
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n {limit} && exec {sys.executable} -c '{code}'"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    said, fix = json.loads(done.stdout)
    assert said == verdict
    assert ("ulimit -n" in fix) == (verdict != "good")


@pytest.mark.parametrize(
    ("free", "verdict"),
    [(10**8, Verdict.PROBLEM), (10**9, Verdict.NOTE), (10**11, Verdict.GOOD)],
)
def test_a_disk_that_will_be_full_is_seen(
    tmp_path: Path, free: int, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert doctor.disk(tmp_path).verdict is verdict


def test_a_clock_that_was_never_set_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.time, "time", lambda: 0.0)
    assert doctor.clock().verdict is Verdict.PROBLEM


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("3.40.1", Verdict.NOTE), ("3.50.6", Verdict.NOTE), ("3.50.7", Verdict.GOOD), ("3.51.3", Verdict.GOOD)],
)
def test_a_sqlite_with_the_wal_reset_fault_is_seen(
    version: str, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apsw.sqlite_lib_version", lambda: version)
    assert doctor.sqlite().verdict is verdict
