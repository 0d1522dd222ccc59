"""A real PostgreSQL server in a folder, for tests and for trying out a fleet on one machine.

It listens on the loopback network, where every connection must know a password made at the first start, and on a Unix
socket that only its own user and root may open. It ends with the process that started it. Everything here blocks.

    folder/data         the cluster           folder/server.conf   what this module sets
    folder/password     of the superuser      folder/server.log    what the server says
"""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from amble.adapters.postgres.binaries import (
    Binaries,
    ServerUser,
    find_binaries,
    may_enter,
    server_user,
    within_reach,
)
from amble.adapters.postgres.guard import free_shared_memory
from amble.domain.errors import StoreUnavailable

SUPERUSER = "amble"
StopMode = Literal["smart", "fast", "immediate"]
_STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
START_S_MAX = 90.0
# How long a server whose owner has just died may need to end.
LOCK_S_MAX = 5.0
STOP_S_MAX = 60.0
# A port is kept over restarts, so it comes from below the range out of which the kernel serves everybody else.
PORTS = range(20_000, 32_000)
PORT_TRIES = 8
# A path of a Unix socket has at most 107 bytes, and the name in the folder takes 15.
SOCKET_FOLDER_BYTES_MAX = 90
_POLL_S = 0.005
LAST_WORDS = 3
_GUARD = Path(__file__).with_name("guard.py")


class EmbeddedPostgres:
    """One server. Made by `start`; the methods of a value belong to one thread at a time."""

    def __init__(self, folder: Path, binaries: Binaries, user: ServerUser, host: str, port: int) -> None:
        self.folder = folder
        self.binaries = binaries
        self.user = user
        self.host = host
        self.port = port
        self.password = ""
        self._settings: dict[str, str] = {}
        self._remove = False
        self._socket_folder = folder
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        remove: bool = False,
    ) -> EmbeddedPostgres:
        """Start the server of `folder`, which is made when there is none, and wait until it takes connections.

        `settings` are lines of postgresql.conf, kept for later starts of this value. Port 0 is any free one. With
        `remove` the folder goes when the server ends for good: at `close`, or with this process.
        Raises StoreUnavailable with the fix: no programs, a folder the server may not enter, a start that failed.
        """
        user = server_user()
        server = cls(folder.absolute(), within_reach(find_binaries(), user), user, host, port)
        server._settings = dict(settings or {})
        server._remove = remove
        server._prepare_folder()
        server.start_again()
        return server

    # -- what it is -------------------------------------------------------------------------------------------

    @property
    def data(self) -> Path:
        """The folder of the cluster."""
        return self.folder / "data"

    @property
    def log_path(self) -> Path:
        """What the server says, appended over restarts."""
        return self.folder / "server.log"

    @property
    def log(self) -> str:
        """The text of the server's log so far."""
        try:
            return self.log_path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    @property
    def running(self) -> bool:
        """Whether the server's processes are there, frozen or not."""
        return self._guard is not None and self._guard.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the postmaster. Raises StoreUnavailable when the server is not running."""
        told = self._postmaster()
        if not self.running or told is None:
            raise StoreUnavailable(f"the PostgreSQL server in {self.folder} is not running")
        return told[0]

    def dsn(self, database: str = "postgres", *, host: str | None = None, port: int | None = None) -> str:
        """The address of a database over TCP, for any client; `host` and `port` of a proxy in between."""
        at = f"{host or self.host}:{port or self.port}"
        return f"postgresql://{SUPERUSER}:{self.password}@{at}/{quote(database)}"

    def socket_dsn(self, database: str = "postgres") -> str:
        """The address of a database over the Unix socket."""
        return f"postgresql://{SUPERUSER}@/{quote(database)}?host={self._socket_folder}&port={self.port}"

    # -- databases --------------------------------------------------------------------------------------------

    def create_database(self, name: str, template: str | None = None) -> str:
        """Make a database, as a copy of `template` if given, and return its address. Nobody may use the template."""
        copied = f' TEMPLATE "{template}"' if template else ""
        self.execute(f'CREATE DATABASE "{name}"{copied}')
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Remove a database if it is there, and throw its clients out."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def execute(self, sql: str, database: str = "postgres") -> str:
        """Run statements, each in a transaction of its own, and return their rows: tabs between columns.

        Raises StoreUnavailable with what the server said.
        """
        command = [
            self.binaries.program("psql"), "-XqAt", "-F", "\t", "-v", "ON_ERROR_STOP=1",
            "-h", str(self._socket_folder), "-p", str(self.port), "-U", SUPERUSER, "-d", database, "-f", "-",
        ]  # fmt: skip
        return self.run(command, input_text=sql)

    def run(self, command: Sequence[str], *, input_text: str = "", timeout_s: float = 120.0) -> str:
        """Run one of the programs as the server's user, with its password at hand, and return its output.

        Raises StoreUnavailable with the program's own words.
        """
        try:
            done = subprocess.run(
                command,
                input=input_text,
                capture_output=True,
                text=True,
                cwd="/",
                env={**_environment(), "PGPASSWORD": self.password},
                user=self.user.uid,
                group=self.user.gid,
                extra_groups=[] if self.user.uid is not None else None,
                timeout=timeout_s,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise StoreUnavailable(f"{Path(command[0]).name} failed: {error}") from error
        if done.returncode:
            raise StoreUnavailable(f"{Path(command[0]).name} failed: {done.stderr.strip() or done.stdout}")
        return done.stdout.rstrip("\n")

    # -- start and end ----------------------------------------------------------------------------------------

    def start_again(self, *, settings: Mapping[str, str] | None = None) -> None:
        """Start after `stop` or `kill`, at the same port, with `settings` changed. Does nothing while it runs."""
        self._settings.update(settings or {})
        if self.running:
            return
        try:
            self._locked_start()
        except OSError as error:
            raise StoreUnavailable(
                f"the PostgreSQL server in {self.folder} did not start: {error}"
            ) from error

    def _locked_start(self) -> None:
        """Start as the only one in this folder. The guard takes the lock over and lets go of it when all has ended."""
        lock = self._lock()
        try:
            if not (self.data / "PG_VERSION").exists():
                self._make_cluster()
            self.password = self._password_file.read_text().strip()
            self._start_at_a_port(lock)
        finally:
            os.close(lock)

    def _lock(self) -> int:
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        end_s = time.monotonic() + LOCK_S_MAX
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                if time.monotonic() > end_s:
                    os.close(lock)
                    raise StoreUnavailable(
                        f"the PostgreSQL server in {self.folder} belongs to another process; stop that one"
                    ) from None
                time.sleep(_POLL_S)

    def _start_at_a_port(self, lock: int) -> None:
        fixed = self.port != 0
        for _ in range(1 if fixed else PORT_TRIES):
            if not fixed:
                self.port = _free_port(self.host)
            before = len(self.log)
            if self._launch(lock):
                return
            said = self.log[before:]
            if "could not bind" not in said:
                break
        raise StoreUnavailable(f"the PostgreSQL server in {self.folder} did not start: {_complaint(said)}")

    def reload(self, settings: Mapping[str, str]) -> None:
        """Change settings that need no restart, now and for later starts. Takes effect within moments."""
        self._settings.update(settings)
        self._configure()
        _signal(self.pid, signal.SIGHUP)

    def clone_to(self, folder: Path) -> None:
        """Copy the running cluster into a new folder, to `start` it there: the beginning of a standby.

        Raises StoreUnavailable with the words of pg_basebackup.
        """
        copy = EmbeddedPostgres(folder.absolute(), self.binaries, self.user, self.host, 0)
        copy._prepare_folder()
        copy.data.mkdir(mode=0o700)
        self._give(copy.data)
        self._write(copy._password_file, self.password + "\n", mode=0o600)
        self.run(
            [
                self.binaries.program("pg_basebackup"), "-h", str(self._socket_folder), "-p", str(self.port),
                "-U", SUPERUSER, "-D", str(copy.data), "-X", "stream", "-c", "fast", "--no-sync",
            ]
        )  # fmt: skip

    def stop(self, mode: StopMode = "fast") -> None:
        """Shut down: `smart` waits for clients to leave, `fast` throws them out, `immediate` recovers at the next start."""
        told = self._postmaster()
        if told is not None and self.running:
            self.thaw()
            _signal(told[0], _STOP_SIGNALS[mode])
        self._wait_for_the_end(STOP_S_MAX if told else 0.0)

    def kill(self) -> None:
        """SIGKILL to every process of the server: a crash. The files stay as they are, and so does the port."""
        if self.running:
            postmaster = self.pid
            _signal(postmaster, signal.SIGSTOP)  # so that it starts nothing new while its children die
            for pid in (*children_of(postmaster), postmaster):
                _signal(pid, signal.SIGKILL)
            self._wait_for_the_end(STOP_S_MAX)
            free_shared_memory(self.data)  # it may never be started again

    def close(self) -> None:
        """Stop for good and, if it was started so, remove the folder. Harmless when done before."""
        self.stop("immediate" if self._remove else "fast")
        if self._remove:
            shutil.rmtree(self.folder, ignore_errors=True)

    def freeze(self, kind: str = "") -> list[int]:
        """SIGSTOP to all processes, or only to those whose title has `kind`, e.g. `walsender`. Returns their ids."""
        postmaster = self.pid
        if not kind:
            _signal(postmaster, signal.SIGSTOP)
        stopped = [pid for pid in children_of(postmaster) if kind in title_of(pid)]
        for pid in stopped:
            _signal(pid, signal.SIGSTOP)
        return stopped if kind else [postmaster, *stopped]

    def thaw(self) -> None:
        """SIGCONT to all processes."""
        postmaster = self.pid
        for pid in (*children_of(postmaster), postmaster):
            _signal(pid, signal.SIGCONT)

    # -- inside -----------------------------------------------------------------------------------------------

    @property
    def _password_file(self) -> Path:
        return self.folder / "password"

    def _prepare_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.user.uid is not None:
                self.folder.chmod(self.folder.stat().st_mode | 0o011)
        except OSError as error:
            raise StoreUnavailable(f"no place for a PostgreSQL server: {error}") from error
        if self.user.uid is not None and not may_enter(self.folder, self.user):
            raise StoreUnavailable(
                f"the PostgreSQL server runs as user {self.user.name}, who may not enter {self.folder}; "
                "choose a folder open to all, or do not run as root"
            )

    def _give(self, path: Path) -> None:
        if self.user.uid is not None:
            os.chown(path, self.user.uid, self.user.gid or 0)

    def _make_cluster(self) -> None:
        """initdb, with a password that is nowhere but in the folder. The cluster is there when it is complete."""
        making, handed = self.folder / "data.making", self.folder / "password.initdb"
        if making.exists():
            shutil.rmtree(making)
        making.mkdir(mode=0o700)
        handed.unlink(missing_ok=True)
        self._write(self._password_file, secrets.token_urlsafe(24) + "\n", mode=0o600)
        self._write(handed, self._password_file.read_text(), mode=0o600)
        self._give(making)
        self._give(handed)
        try:
            self.run(
                [
                    self.binaries.program("initdb"), "-D", str(making), "-U", SUPERUSER, "--encoding=UTF8",
                    "--locale=C", "--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={handed}",
                    "--data-checksums", "--no-instructions",
                    *(["--no-sync"] if self._settings.get("fsync") == "off" else []),
                ]
            )  # fmt: skip
        finally:
            handed.unlink()
        making.rename(self.data)

    def _write(self, path: Path, text: str, *, mode: int) -> None:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
            file.write(text)

    def _configure(self) -> None:
        """The server's own file of settings; what ALTER SYSTEM says afterwards still wins."""
        settings = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": str(self._socket_folder),
            "unix_socket_permissions": "0700",
            # Files in the cluster's own folder, so that a crash leaves nothing behind in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_line_prefix": "%m [%p] ",
            **self._settings,
        }
        lines = [f"{name} = '{_quoted(value)}'\n" for name, value in settings.items()]
        self._write(self.folder / "server.conf", "".join(lines), mode=0o644)

    def _launch(self, lock: int) -> bool:
        """Start the guard and through it the server. False when it ended without becoming ready."""
        self._socket_folder = self._make_socket_folder()
        self._configure()
        command = [
            sys.executable, "-I", "-S", str(_GUARD), "--data", str(self.data),
            *(() if self._socket_folder.parent == self.folder else ("--remove", str(self._socket_folder))),
            *(("--remove-with-owner", str(self.folder)) if self._remove else ()),
            *(() if self.user.uid is None else ("--uid", str(self.user.uid), "--gid", str(self.user.gid))),
            "--", self.binaries.program("postgres"), "-D", str(self.data),
            "-c", f"config_file={self.folder / 'server.conf'}",
        ]  # fmt: skip
        with self.log_path.open("ab") as log:
            self._guard = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,
                pass_fds=(lock,),
            )
        return self._wait_until_ready()

    def _wait_until_ready(self) -> bool:
        end_s = time.monotonic() + START_S_MAX
        while self.running:
            told = self._postmaster()
            if told is not None and told[1] == "ready":
                return True
            if time.monotonic() > end_s:
                break
            time.sleep(_POLL_S)
        self._wait_for_the_end(0.0)
        return False

    def _make_socket_folder(self) -> Path:
        """In the folder of the server, or where its path would be too long, one of its own for temporary files."""
        inside = self.folder / "s"
        if len(os.fsencode(inside)) <= SOCKET_FOLDER_BYTES_MAX:
            inside.mkdir(mode=0o700, exist_ok=True)
            self._give(inside)
            return inside
        outside = Path(tempfile.mkdtemp(prefix="amble-pg-"))
        self._give(outside)
        return outside

    def _postmaster(self) -> tuple[int, str] | None:
        """Process id and state out of the server's own file; None while there is none, or only that of a former one."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            pid, state = int(lines[0]), lines[7].strip()
        except (OSError, ValueError, IndexError):
            return None
        ours = self._guard is not None and pid in children_of(self._guard.pid)
        return (pid, state) if ours else None

    def _wait_for_the_end(self, patience_s: float) -> None:
        """Until the guard has gone, and with it everything. Letting go of the lifeline ends what is left."""
        if self._guard is None:
            return
        try:
            self._guard.wait(patience_s)
        except subprocess.TimeoutExpired:
            pass
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait()
        self._guard = None


def children_of(pid: int) -> list[int]:
    """The children of a process and theirs, parents first."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except OSError:
        pass  # it has ended meanwhile
    return found + [deeper for child in found for deeper in children_of(child)]


def title_of(pid: int) -> str:
    """What a server process says it is, e.g. `postgres: walsender …`; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _environment() -> dict[str, str]:
    """Of ours only what finds programs and libraries: PGHOST, PGPASSWORD, LC_ALL and their like must not mix in."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def _free_port(host: str) -> int:
    """A port that nobody listens at now. Another may take it first: the caller tries again."""
    for port in random.sample(PORTS, PORT_TRIES):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise StoreUnavailable(f"no free port for a PostgreSQL server at {host}")


def _quoted(value: str) -> str:
    return value.replace("'", "''")


def _complaint(log: str) -> str:
    """Its last words as one line, without times and process ids."""
    said = [line.rpartition("] ")[2].strip() for line in log.splitlines() if line.strip()]
    return "; ".join(said[-LAST_WORDS:]) or "it said nothing"
