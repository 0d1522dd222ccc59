"""A whole fleet on one machine, from one command: a PostgreSQL server of its own, agents and parse workers as processes.

Everything lies in one folder. The settings that are written there name database and archive, so that every other
command works on the folder while the fleet runs; the password is in a file that only its owner reads.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from amble.adapters.postgres.embedded import SUPERUSER, EmbeddedPostgres
from amble.adapters.postgres.reports import PostgresReports
from amble.adapters.postgres.setup import partitions_of
from amble.app import fleet
from amble.app import folder as crawl_folder
from amble.app.config import Given
from amble.app.folder import CONFIG_NAME, FRONTIER_NAME, OWN_SERVER, Plan, Wishes
from amble.app.reading import OWN_DATABASE
from amble.domain.errors import ConfigErrors, CrawlFolderUnusable
from amble.domain.report import Status

PARTITIONS_PER_AGENT = 8
LOOK_EVERY_S = 5.0
_POLL_S = 0.1
# A member that died is started again after so long, each time; after the last of these it stays away.
RESTARTS_S = (1.0, 4.0, 16.0)
# Ends that another start would not change: done, a mistake in the settings, stopped, not a single page.
_ENDED = frozenset({0, 2, 10, 11, 13})
# A worker that was told to stop finishes its page within this.
STOP_WORKERS_S = 30.0
# Settings of the server that matter to this load and are safe on any machine.
_SERVER = {"max_wal_size": "2GB", "checkpoint_timeout": "15min", "idle_in_transaction_session_timeout": "30s"}
# The file with the server's password, in its folder.
_SECRET = "pgpass"
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSize:
    """How many processes of each kind."""

    agents: int
    parsers: int


@dataclass(slots=True)
class _Member:
    """One process of the fleet. `again_s`: when it is started again (monotonic), None while it runs or has ended for good.

    `asked`: how often the process was told to stop.
    """

    name: str
    words: Sequence[str]
    process: subprocess.Popen[bytes]
    starts: int = 1
    again_s: float | None = None
    told: bool = False
    asked: int = 0


@dataclass(slots=True)
class TryOut:
    """One run. `tell` gets the state of the crawl every few seconds, `note` a line for people."""

    plan: Plan
    size: FleetSize
    tell: Callable[[Status, int], None]
    note: Callable[[str], None]
    _agents: list[_Member] = field(default_factory=list)
    _workers: list[_Member] = field(default_factory=list)
    _stops: int = 0
    _begun_s: float = 0.0

    @property
    def stopped(self) -> bool:
        """Whether somebody has said stop."""
        return self._stops > 0

    @property
    def forced(self) -> bool:
        """Whether somebody has said stop twice."""
        return self._stops > 1

    def stop(self) -> None:
        """Ask the agents to end: what is under way is finished. Again: all end at once, and lose nothing either."""
        self._stops += 1
        self._pass_on()

    def _pass_on(self) -> None:
        """Tell each process of a stop once, since a second signal is a stop at once; also one begun meanwhile."""
        for member in [*self._agents, *(self._workers if self._stops > 1 else [])]:
            if member.asked < self._stops and member.process.poll() is None:
                member.asked = self._stops
                member.process.send_signal(signal.SIGTERM if self._stops == 1 else signal.SIGKILL)

    def run(self) -> int:
        """Until the crawl is done or somebody has said stop. Returns the exit status of the worst agent, as `Popen` tells it.

        Raises ConfigErrors, CrawlFolderUnusable, StoreUnavailable (no server can be had, with the fix), StoreBroken.
        """
        # For a server of somebody else; it would win over the password file of this one, here and in every member.
        os.environ.pop("PGPASSWORD", None)
        with ExitStack() as held:
            server = EmbeddedPostgres.start(self.plan.folder / OWN_SERVER, settings=_SERVER)
            held.callback(server.close)
            plan = self._with_places(server)
            dsn = plan.config.fleet.store_url
            self.note(f"PostgreSQL at {server.host}:{server.port}")
            asyncio.run(self._prepare(plan))
            held.callback(self._end_all)
            self._start(plan)
            reports = held.enter_context(PostgresReports(dsn))
            self._watch(reports)
            self._end_all()
            self.tell(reports.status(), 0)
            return max((member.process.returncode for member in self._agents), key=abs, default=0)

    # -- before ---------------------------------------------------------------------------------------------------

    def _with_places(self, server: EmbeddedPostgres) -> Plan:
        """The plan with database and archive in it, kept in the folder for the other commands."""
        folder = self.plan.folder.absolute()
        secret = folder / OWN_SERVER / _SECRET
        descriptor = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{server.host}:{server.port}:*:{SUPERUSER}:{server.password}\n")
        if OWN_DATABASE not in server.execute("SELECT datname FROM pg_database").split():
            server.create_database(OWN_DATABASE)
        dsn = f"postgresql://{SUPERUSER}@{server.host}:{server.port}/{OWN_DATABASE}?passfile={secret}"
        places = {
            "store.url": Given(dsn, "amble fleet"),
            "archive.url": Given(_archive_of(self.plan.config.fleet.archive_url, folder), "amble fleet"),
            "parse.where": Given("elsewhere" if self.size.parsers else "here", "amble fleet"),
        }
        wishes = Wishes(out=self.plan.folder, flags=places)
        plan = crawl_folder.plan(wishes, os.environ)
        crawl_folder.keep(plan)
        return plan

    async def _prepare(self, plan: Plan) -> None:
        known = await partitions_of(plan.config.fleet.store_url)
        await fleet.set_up(plan.config, known or PARTITIONS_PER_AGENT * self.size.agents, ())
        await fleet.seed(plan.config)

    def _start(self, plan: Plan) -> None:
        config = str(plan.folder / CONFIG_NAME)
        self._begun_s = time.monotonic()
        for number in range(1, self.size.parsers + 1):
            self._workers.append(
                self._member(f"parser-{number}", ["parse", "--config", config, "--children", "1"])
            )
        for number in range(1, self.size.agents + 1):
            name = f"agent-{number}"
            words = ["agent", "--config", config, "--name", name, "--until-done"]
            self._agents.append(self._member(name, words))
        self._pass_on()

    def _member(self, name: str, words: Sequence[str]) -> _Member:
        return _Member(name, words, self._process(name, words))

    def _process(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        run = self.plan.folder / "run"
        run.mkdir(exist_ok=True)
        with (run / f"{name}.out").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "amble", *words, "--log", str(run / f"{name}.jsonl")],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    # -- while it runs ----------------------------------------------------------------------------------------------

    def _watch(self, reports: PostgresReports) -> None:
        """Until every agent has ended for good. One that died is started again, a few times."""
        next_s = 0.0
        while True:
            for member in [*self._agents, *self._workers]:
                self._mend(member)
            alive = sum(member.process.poll() is None for member in self._agents)
            if not alive and all(member.again_s is None for member in self._agents):
                return
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + LOOK_EVERY_S
                self.tell(reports.status(), alive)
            time.sleep(_POLL_S)

    def _mend(self, member: _Member) -> None:
        """Tell of a member that died, and start it again when that is due."""
        code, now_s = member.process.poll(), time.monotonic()
        if self._stops:
            member.again_s = None
        elif code is None:
            return
        elif member.again_s is not None:
            if now_s >= member.again_s:
                member.again_s, member.told, member.starts = None, False, member.starts + 1
                member.process = self._process(member.name, [*member.words, *self._time_left(member)])
                member.asked = 0
                # A signal may have come while that began.
                self._pass_on()
        elif code and not member.told:
            member.told = True
            how = f"was killed by signal {-code}" if code < 0 else f"has ended with {code}"
            again = code not in _ENDED and member.starts <= len(RESTARTS_S)
            if again:
                member.again_s = now_s + RESTARTS_S[member.starts - 1]
            then = (
                f"is started again in {RESTARTS_S[member.starts - 1]:.0f} s"
                if again
                else "is not started again"
            )
            self.note(f"{member.name} {how} and {then}; see run/{member.name}.out")

    def _time_left(self, member: _Member) -> list[str]:
        """For an agent that begins anew: what is left of the time of the run."""
        most_s = self.plan.config.policy.budget.seconds_max
        if most_s is None or member in self._workers:
            return []
        return ["--set", f"budget.seconds_max={max(1, round(self._begun_s + most_s - time.monotonic()))}s"]

    def _end_all(self) -> None:
        """Nothing of the fleet is left when this returns."""
        members = [*self._agents, *self._workers]
        for member in members:
            if member.process.poll() is None:
                member.process.terminate()
        until_s = time.monotonic() + STOP_WORKERS_S
        for member in members:
            try:
                member.process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()


def _archive_of(url: str, folder: Path) -> str:
    """The archive that was asked for, or the one of the folder, which may have been moved since it was written down."""
    own = folder / "archive"
    moved = url.startswith("file://") and own.is_dir() and not Path(url.removeprefix("file://")).is_dir()
    return f"file://{own}" if not url or moved else url


def _die_with_parent() -> None:
    """In the child: without the server that ends with us there is nothing for it to do."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM, 0, 0, 0)


def prepared(wishes: Wishes, size: FleetSize) -> Plan:
    """What is to be crawled and where, checked and kept in the folder. Raises ConfigErrors, CrawlFolderUnusable."""
    if size.agents < 1 or size.parsers < 0:
        raise ConfigErrors(["--agents: give at least 1, and --parsers 0 or more"])
    plan = crawl_folder.plan(wishes, os.environ)
    if (plan.folder / FRONTIER_NAME).exists():
        raise CrawlFolderUnusable(
            f"{plan.folder} holds a crawl of one process; name another folder with --out, or move it with `amble migrate`"
        )
    # What an earlier run has kept names the server of the folder, whose password file lies beside it.
    store_url = plan.config.fleet.store_url
    if store_url and f"/{OWN_SERVER}/{_SECRET}" not in store_url:
        raise ConfigErrors(
            [
                "store.url: `amble fleet` brings a PostgreSQL server of its own; over a server of yours run "
                "`amble store init`, `amble seed` and `amble agent`"
            ]
        )
    crawl_folder.keep(plan)
    return plan
