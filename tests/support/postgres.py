"""PostgreSQL for tests: one server for a whole run, shared by its workers, and a database of its own for each test.

`database` and `fresh_database` are what most tests want; `own_postgres` starts servers that a test may hurt.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import inspect
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import asyncpg
import pytest

from amble.adapters.postgres.embedded import EmbeddedPostgres

T = TypeVar("T")
#: Makes what every copy of a template has. Gets the address of an empty database; a coroutine function runs to its end.
Make = Callable[[str], Awaitable[object] | None]
START_S_MAX = 120.0
IN_MEMORY = Path("/dev/shm")
IN_MEMORY_BYTES_MIN = 2 << 30
ROOT = Path(__file__).resolve().parents[2]


class FreshDatabase(Protocol):
    """Makes a database that is gone after the test and returns its address."""

    def __call__(self, make: Make | None = None) -> str: ...


class OwnPostgres(Protocol):
    """Starts a server that is gone after the test."""

    def __call__(self, **settings: str) -> EmbeddedPostgres: ...


def server_folder(name: str = "amble-pg") -> Path:
    """A new folder for a server: in memory where there is plenty, with a short path, open to the server's user."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_place()))


def _place() -> Path:
    try:
        state = os.statvfs(IN_MEMORY)
    except OSError:
        return Path(tempfile.gettempdir())
    enough = state.f_bavail * state.f_frsize >= IN_MEMORY_BYTES_MIN and os.access(IN_MEMORY, os.W_OK)
    return IN_MEMORY if enough else Path(tempfile.gettempdir())


class _Admin:
    """One connection to the database `postgres`, used from any thread through a loop of its own."""

    def __init__(self, dsn: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="postgres-admin", daemon=True)
        self._thread.start()
        self._lock = asyncio.Lock()
        self._later: set[asyncio.Task[object]] = set()
        self._connection = self.run(asyncpg.connect(dsn))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the loop of this thread and wait for the result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def execute(self, sql: str) -> None:
        """Run one statement, after those that were begun before."""
        self.run(self._execute(sql))

    def execute_later(self, sql: str) -> None:
        """Begin a statement and do not wait for it."""
        self._loop.call_soon_threadsafe(self._begin, sql)

    def _begin(self, sql: str) -> None:
        task = self._loop.create_task(self._execute(sql))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _execute(self, sql: str) -> None:
        async with self._lock:
            await self._connection.execute(sql)

    def close(self) -> None:
        """Finish what was begun and leave nothing open."""

        async def finish() -> None:
            await asyncio.gather(*self._later, return_exceptions=True)
            await self._connection.close()

        self.run(finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SharedPostgres:
    """The server of this test run, seen from one of its processes."""

    def __init__(self, folder: Path, ready: Mapping[str, Any]) -> None:
        self.folder = folder
        self.version = int(ready["version"])
        self._dsn = str(ready["dsn"])
        self._socket_dsn = str(ready["socket_dsn"])
        self._admin = _Admin(self.socket_dsn("postgres"))
        self._numbers = itertools.count(1)

    def dsn(self, database: str) -> str:
        """The address of a database over TCP."""
        return self._dsn.replace("%7B%7D", database)

    def socket_dsn(self, database: str) -> str:
        """The address of a database over the Unix socket, which needs less time to connect."""
        return self._socket_dsn.replace("%7B%7D", database)

    def create(self, make: Make | None = None) -> str:
        """A new database, empty or as `make` leaves it, and its address. The work of `make` is done once in a run."""
        template = "template0" if make is None else self.template(make)
        name = f"t{os.getpid()}_{next(self._numbers)}"
        self._admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
        return self.dsn(name)

    def drop(self, dsn: str) -> None:
        """Remove a database, with whoever is still connected. Does not wait."""
        name = dsn.rpartition("/")[2]
        self._admin.execute_later(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def template(self, make: Make) -> str:
        """The name of the template that `make` has made or now makes, once for all the processes of the run."""
        key = f"{make.__module__}.{make.__qualname__}"
        name = "template_" + hashlib.sha256(key.encode()).hexdigest()[:16]
        with _locked(self.folder / f"{name}.lock"):
            done = self.folder / f"{name}.done"
            if not done.exists():
                self._admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
                self._admin.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
                self._admin.run(_made(make, self.dsn(name)))
                done.touch()
        return name

    def pristine(self) -> Path:
        """A cluster that no server uses, to start others from a copy of it: made once in a run."""
        place = self.folder / "pristine"
        with _locked(self.folder / "pristine.lock"):
            if not place.exists():
                making = self.folder / "pristine.new"
                EmbeddedPostgres.start(making, settings={"fsync": "off"}).stop()
                making.rename(place)
        return place

    def close(self) -> None:
        """Leave the server to the others."""
        self._admin.close()


async def _made(make: Make, dsn: str) -> None:
    result = make(dsn)
    if inspect.isawaitable(result):
        await result


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


@contextmanager
def shared_postgres(run: str) -> Iterator[SharedPostgres]:
    """The server of the run of that name, started by the first who asks and ended when the last has left or died."""
    folder = _place() / f"amble-pg-{os.geteuid()}-{run}"
    users = _join(folder)
    try:
        with _locked(folder / "start.lock"):
            ready = _ready(folder) or _start(folder)
        if "error" in ready:
            raise RuntimeError(ready["error"])
        server = SharedPostgres(folder, ready)
        try:
            yield server
        finally:
            server.close()
    finally:
        os.close(users)


def _join(folder: Path) -> int:
    """A shared lock on the users' file that exists: one that is just being removed does not count."""
    while True:
        folder.mkdir(mode=0o711, exist_ok=True)
        try:
            file = os.open(folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            if os.fstat(file).st_ino == (folder / "users.lock").stat().st_ino:
                return file
        except FileNotFoundError:
            pass
        os.close(file)


def _ready(folder: Path) -> dict[str, Any] | None:
    try:
        told: dict[str, Any] = json.loads((folder / "ready.json").read_text())
    except FileNotFoundError:
        return None
    return told


def _start(folder: Path) -> dict[str, Any]:
    with (folder / "holder.log").open("ab") as log:
        holder = subprocess.Popen(
            [sys.executable, "-m", "tests.support.postgres_holder", str(folder)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    end_s = time.monotonic() + START_S_MAX
    while (told := _ready(folder)) is None:
        if holder.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError(f"no PostgreSQL for tests: {(folder / 'holder.log').read_text()}")
        time.sleep(0.01)
    holder.returncode = 0  # it outlives us on purpose, so nobody here waits for it
    return told


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[SharedPostgres]:
    """The server that all tests of this run share."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()}-{time.monotonic_ns():x}"
    with shared_postgres(run) as server:
        yield server


@pytest.fixture
def fresh_database(postgres: SharedPostgres) -> Iterator[FreshDatabase]:
    """A maker of databases, each empty or a copy of what a function has made once."""
    made: list[str] = []

    def fresh(make: Make | None = None) -> str:
        made.append(postgres.create(make))
        return made[-1]

    yield fresh
    for dsn in made:
        postgres.drop(dsn)


@pytest.fixture
def database(fresh_database: FreshDatabase) -> str:
    """The address of an empty database of this test's own."""
    return fresh_database()


@pytest.fixture
def own_postgres(postgres: SharedPostgres) -> Iterator[OwnPostgres]:
    """A maker of servers that may be killed, frozen and reconfigured."""
    servers: list[EmbeddedPostgres] = []

    def start(**settings: str) -> EmbeddedPostgres:
        servers.append(start_copy(postgres.pristine(), settings))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def start_copy(pristine: Path, settings: Mapping[str, str]) -> EmbeddedPostgres:
    """A server of its own from a copy of a cluster at rest, which saves making one."""
    folder = server_folder()
    for name in ("data", "password"):
        subprocess.run(["cp", "-a", str(pristine / name), str(folder / name)], check=True)
    try:
        return EmbeddedPostgres.start(folder, settings={"fsync": "off", **settings}, remove=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
