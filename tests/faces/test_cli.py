"""The command line itself: help, versions, and every wrong input as one clear line each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amble.app import build
from amble.faces import cli
from amble.faces.exits import ExitCode


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["crawl", "--help"], ["config", "show", "-h"]])
def test_help_is_given_and_is_no_failure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    said = capsys.readouterr()
    assert "Usage: amble" in said.out
    assert said.err == ""


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("amble 0.")


PUBLIC = "https://example.org/"

WRONG: list[tuple[list[str], str]] = [
    (["crawl"], "nothing to crawl: give a URL"),
    (["crawl", "example.org"], "did you mean https://example.org/"),
    (["crawl", "ftp://example.org/"], "http and https only"),
    (["crawl", PUBLIC], "--contact https://you.example/bot"),
    (
        ["crawl", PUBLIC, "--contact", "me"],
        "--contact 'me' is not accepted: give a web address or a mail address",
    ),
    (["crawl", "http://127.0.0.1/"], "if it is yours, add --allow-net 127.0.0.0/8"),
    (
        ["crawl", "http://a.test/", "--pages", "0"],
        "--pages '0' is not accepted: give a whole number, 1 or more",
    ),
    (["crawl", "http://a.test/", "--pages", "lots"], "--pages 'lots' is not accepted"),
    (["crawl", "http://a.test/", "--max-time", "soon"], "a duration such as 90s, 15m, 2h"),
    (["crawl", "http://a.test/", "--delay", "-1"], "--delay '-1' is not accepted: give seconds"),
    (["crawl", "http://a.test/", "--delay", "fast"], "--delay 'fast' is not accepted: give seconds"),
    (["crawl", "http://a.test/", "--per-origin", "0"], "--per-origin '0' is not accepted"),
    (["crawl", "http://a.test/", "--concurrency", "1e9"], "--concurrency '1e9' is not accepted"),
    (["crawl", "http://a.test/", "--scope", "world"], "give one of host, site, prefix, any"),
    (["crawl", "http://a.test/", "--allow-net", "10.0.0.1/8"], "--allow-net '10.0.0.1/8' is not accepted"),
    (["crawl", "http://a.test/", "--resolver", "dns"], "--resolver 'dns' is not accepted: give ADDRESS:PORT"),
    (["crawl", "http://a.test/", "--user-agent", "a\nb"], "--user-agent 'a\\nb' is not accepted"),
    (["crawl", "http://a.test/", "--seeds", "none.txt"], "--seeds none.txt: cannot be read"),
    (["crawl", "http://a.test/", "--seeds", "."], "--seeds .: cannot be read"),
    (["crawl", "--seeds", "empty.txt"], "no URL in it; write one a line"),
    (["crawl", "http://a.test/", "--config", "none.toml"], "none.toml: cannot be read"),
    (["crawl", "http://a.test/", "--config", "bad.toml"], "bad.toml: not valid TOML"),
    (["crawl", "http://a.test/", "--set", "fetch.totals=3"], "did you mean fetch.total_s?"),
    (["crawl", "http://a.test/", "--set", "fetch.total_s"], "write section.key=value"),
    (["crawl", "http://a.test/", "--out", "bad.toml"], "that is a file; name a folder"),
    (["crawl", "http://a.test/", "--nope"], "No such option: --nope"),
    (["crawl", "http://a.test/", "--pages"], "`amble crawl --help` shows what there is"),
    (["frobnicate"], "No such command 'frobnicate'"),
    (["store", "init", "--partitions", "0"], "`amble store init --help` shows what there is"),
    (["config"], "`amble config --help` shows what there is"),
    (["config", "show", "nowhere"], "there is no crawl there"),
    (["status"], "there is no crawl here: name its folder"),
    (["status", "nowhere"], "nowhere: there is no crawl there"),
    (["urls"], "there is no crawl here"),
    (["urls", "--state", "lost"], "--state 'lost' is not accepted: give one of pending"),
    (["urls", "--origin", "example.org"], "did you mean https://example.org/"),
    (["urls", "--limit", "-1"], "--limit"),
    (["failed"], "there is no crawl here"),
    (["why", "example.org"], "did you mean https://example.org/"),
    (["why", PUBLIC], "there is no crawl here"),
    (["why"], "Missing argument"),
    (["check", PUBLIC, "--out", "nowhere"], "there is no crawl there"),
    (["export"], "there is no crawl here"),
    (["export", "--to", "parquet"], "--to 'parquet' is not accepted: give one of jsonl"),
    (["verify"], "there is no crawl here"),
    (
        ["status", "--store", "postgresql://db/x"],
        "say AMBLE_STORE_URL=URL AMBLE_ARCHIVE_URL=URL before `amble status`",
    ),
    (["fleet", "--seeds", "none.txt"], "--seeds none.txt: cannot be read"),
    (["fleet", "http://a.test/", "--max-time", "soon"], "--max-time 'soon' is not accepted"),
]


@pytest.mark.parametrize(
    ("arguments", "told"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_wrong_input_is_one_line_with_the_fix(
    here: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "empty.txt").write_text("# nothing\n")
    (here / "bad.toml").write_text("[fetch\n")
    before = sorted(here.iterdir())
    assert cli.main(arguments) == ExitCode.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("amble: ")
    assert said.err.count("\n") == 1, said.err
    assert told in said.err
    assert sorted(here.iterdir()) == before


def test_what_may_not_be_read_is_a_matter_of_permissions() -> None:
    assert cli._hint("Invalid value for '--out': Path 'u1' is not readable", "crawl ") == (
        "mend its permissions, or name another"
    )


@pytest.mark.parametrize("command", ["crawl", "fleet", "agent", "parse"])
def test_the_shell_completes_the_names_of_settings(command: str) -> None:
    asked = {
        "_AMBLE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"amble {command} --set fetch.total",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", "from amble.faces.cli import app; app(prog_name='amble')"],
        env={**os.environ, **asked}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["fetch.total_s="], done.stderr


def test_all_mistakes_of_a_command_line_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [
        "crawl",
        "example.org",
        "ftp://a/",
        "--pages",
        "x",
        "--scope",
        "y",
        "--set",
        "a.b=c",
        "--config",
        "no",
    ]
    assert cli.main(wrong) == ExitCode.USAGE
    assert capsys.readouterr().err.count("\n") == 6


def test_programs_get_mistakes_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["crawl", "example.org", "--pages", "x", "--json"]) == ExitCode.USAGE
    answer = json.loads(capsys.readouterr().out)
    assert answer["event"] == "error"
    assert answer["exit_code"] == 2
    assert len(answer["problems"]) == 2


def test_an_unforeseen_error_is_one_line_and_a_log(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("deep inside")

    monkeypatch.setattr(build, "open_crawl", broken)
    monkeypatch.setattr("tempfile.tempdir", str(here))
    assert cli.main(["crawl", "http://a.test/"]) == ExitCode.INTERNAL
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "internal error: ZeroDivisionError" in said
    log = next(here.glob("amble-crash-*.log"))
    assert str(log) in said
    assert "deep inside" in log.read_text()


def test_an_interrupted_question_ends_like_an_interrupted_crawl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("amble.app.folder.find", interrupted)
    assert cli.main(["status"]) == ExitCode.STOPPED
    assert "Traceback" not in capsys.readouterr().err


def test_several_crawls_here_are_named_to_choose_from(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("crawl-a", "crawl-b"):
        (here / name).mkdir()
        (here / name / "amble.toml").touch()
    assert cli.main(["status"]) == ExitCode.USAGE
    assert "several crawls here (crawl-a, crawl-b): name one" in capsys.readouterr().err


def test_assertions_may_not_be_switched_off() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "amble", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitCode.USAGE
    assert "run Python without -O" in done.stderr


# --- config show, check: no crawl needed -------------------------------------------------------------------------


def test_config_show_tells_each_value_and_its_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMBLE_FETCH_TOTAL_S", "30")
    assert cli.main(["config", "show", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["fetch.total_s"]["value"] == 30.0
    assert values["fetch.total_s"]["source"] == "AMBLE_FETCH_TOTAL_S"
    assert values["fetch.tls_s"]["source"] == "default"
    assert cli.main(["config", "show"]) == 0
    assert "AMBLE_FETCH_TOTAL_S; default 60" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "code", "told"),
    [
        ("HTTPS://Example.org:443/a/../b?utm_source=x#y", 0, "yes: https://example.org/b"),
        ("http://10.1.2.3/", 3, "destination_refused (10.1.2.3 is in 10.0.0.0/8"),
        ("http://example.org:25/", 3, "port_refused"),
        ("mailto:a@b.example", 3, "scheme_unsupported"),
        ("http://u:p@example.org/", 3, "has_userinfo"),
        ("http://example.org/" + "a/" * 60, 3, "path_"),
        ("nonsense", 3, "not_a_url"),
    ],
)
def test_a_dry_run_needs_no_crawl(url: str, code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", url]) == code
    said = capsys.readouterr().out
    assert told in said
    assert ("would not be fetched" in said) == (code != 0)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_names_that_a_terminal_cannot_show_are_shown_as_escapes(encoding: str, form: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "amble", "status", "schöne\N{SNOWMAN}\udcff", *form],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"},
        check=False,
    )
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert done.stderr.count(b"\n") == 1
    assert b"there is no crawl there" in done.stderr
