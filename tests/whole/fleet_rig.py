"""A whole fleet for tests: command lines of agents and parse workers over one database, one bucket and one test web.

    with FleetRig.open(tmp_path, dsn, sites=30, pages=300) as rig:
        rig.prepare(partitions=12)
        rig.start_agent("ada")
        rig.start_parser("pat")
        rig.finish()
        rig.judge()

The ledger of leases is kept by the database itself: a trigger writes down every change of a partition's row, so that
each request in the log of the web can be held against who owned its partition at that moment.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from amble.domain.partition import PartitionMap
from tests.support.amble_process import run
from tests.support.fleet import Fleet, Member, Verdict, Watch, contact, judge, sender
from tests.support.s3 import S3Server
from tests.web.handle import TestWeb
from tests.whole.log import Entry, load

T = TypeVar("T")
VERIFIED_S_MAX = 3600.0
# A request that was granted in time reaches the web's log this much later at the most: starved processes, not clocks.
LOGGED_LATE_S = 0.25

WITNESS = """
CREATE SCHEMA witness;
CREATE TABLE witness.lease(
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at_us bigint NOT NULL, partition integer NOT NULL,
  owner text NOT NULL, epoch bigint NOT NULL, until_us bigint, released boolean NOT NULL);
CREATE FUNCTION witness.write_down() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO witness.lease(at_us, partition, owner, epoch, until_us, released)
  VALUES ((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, NEW.partition, NEW.owner, NEW.epoch,
          NEW.lease_until * 1000, NEW.released);
  RETURN NULL;
END $$;
CREATE TRIGGER witness AFTER UPDATE OF owner, epoch, lease_until ON partition
  FOR EACH ROW EXECUTE FUNCTION witness.write_down();
"""
LEASES = "SELECT at_us, partition, owner, epoch, until_us, released FROM witness.lease ORDER BY number"
IN_FLIGHT = "SELECT o.key || u.path FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE u.state = 1"
LOST_STATES = "SELECT o.key || u.path, u.state FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE u.state NOT IN (4, 5, 6)"
TWICE = (
    "SELECT url_id, count(*) FROM publication GROUP BY url_id, crawl_generation, extraction_generation"
    " HAVING count(*) > 1"
)


@dataclass(frozen=True, slots=True)
class Tenure:
    """A partition's row after one change. Times are microseconds of the wall clock, that of the database and of the web."""

    at_us: int
    partition: int
    owner: str
    epoch: int
    until_us: int | None
    released: bool = False

    @property
    def member(self) -> str:
        """The name under which the owner was started."""
        return self.owner.partition("~")[0]


@dataclass(slots=True)
class Ledger:
    """Every change of the partitions' rows, in order, and the judgement of requests by it."""

    tenures: Sequence[Tenure]
    place_of: Callable[[str], int]
    _by_partition: dict[int, list[Tenure]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tenure in self.tenures:
            self._by_partition.setdefault(tenure.partition, []).append(tenure)

    def at(self, partition: int, moment_us: int) -> Tenure | None:
        """The row as it was at a moment."""
        tenures = self._by_partition.get(partition, [])
        place = bisect_right(tenures, moment_us, key=lambda tenure: tenure.at_us)
        return tenures[place - 1] if place else None

    def offences(self, entries: Iterable[Entry], *, late_s: float = LOGGED_LATE_S) -> list[str]:
        """Requests that began while their sender did not own the partition, or when its lease had ended."""
        found = []
        for entry in entries:
            partition, name = self.place_of(entry.origin), sender(entry)
            row = self.at(partition, entry.start_us)
            if row is not None and row.member == name and not self._over(row, entry, late_s):
                continue
            # Logged late: it was right when it left.
            before = self.at(partition, entry.start_us - int(late_s * 1e6))
            if row is not None and not row.owner and before is not None and before.member == name:
                continue
            found.append(
                f"{name} asked for {entry.url} of partition {partition}, "
                f"which {row.member if row and row.member else 'nobody'} owned"
                + (f" until {(row.until_us - entry.start_us) / 1e6:+.3f} s" if row and row.until_us else "")
            )
        return found

    @staticmethod
    def _over(row: Tenure, entry: Entry, late_s: float) -> bool:
        return row.until_us is not None and entry.start_us > row.until_us + late_s * 1e6

    def changes(self) -> int:
        """How often a partition went from one member to another."""
        owners: dict[int, str] = {}
        count = 0
        for tenure in self.tenures:
            if tenure.owner:
                before = owners.get(tenure.partition, tenure.owner)
                count += before != tenure.owner
                owners[tenure.partition] = tenure.owner
        return count


@dataclass(slots=True, kw_only=True)
class FleetRig:
    """What all members share, and what an operator asks. Made by `open`."""

    folder: Path
    web: TestWeb
    s3: S3Server
    fleet: Fleet
    watch: Watch
    dsn: str
    delay_s: float
    lease_s: float
    total_s: float
    partitions: int = 0

    @classmethod
    @contextmanager
    def open(
        cls,
        folder: Path,
        dsn: str,
        *,
        delay_s: float,
        lease_s: float = 3.0,
        total_s: float = 3.0,
        **web: Any,
    ) -> Iterator[FleetRig]:
        """A test web, a bucket, and nobody yet. Everything has ended when the block does."""
        with ExitStack() as held:
            server = held.enter_context(TestWeb.start(folder, **web))
            s3 = held.enter_context(S3Server.running(folder / "s3"))
            fleet = held.enter_context(Fleet(folder, S3Server.environment()))
            yield cls(
                folder=folder,
                web=server,
                s3=s3,
                fleet=fleet,
                watch=Watch(server.log_path, fleet),
                dsn=dsn,
                delay_s=delay_s,
                lease_s=lease_s,
                total_s=total_s,
            )

    # -- members ----------------------------------------------------------------------------------------------

    @property
    def archive(self) -> str:
        """Where the bytes are."""
        return self.s3.url("crawl")

    def start_agent(self, name: str, *more: str, dsn: str | None = None) -> Member:
        """An agent that leaves parsing to others. Retries soon, so that a test sees them."""
        line = [
            "agent", "--store", dsn or self.dsn, "--archive", self.archive, "--name", name,
            "--contact", contact(name), "--resolver", self.web.dns, "--allow-net", self.web.net, "--quiet",
            "--log", str(self.folder / f"{name}.jsonl"),
        ]  # fmt: skip
        for setting in (
            f"origin.spacing_ms={round(self.delay_s * 1000)}", "origin.delay_fixed=true",
            "budget.pages_max=unlimited", "parse.where=elsewhere", "parse.children=1",
            f"agent.lease_s={self.lease_s}", f"fetch.total_s={self.total_s}", f"fetch.connect_s={self.total_s}",
            f"fetch.first_byte_s={self.total_s}", "retry.base_ms=500", "retry.cap_ms=4000", "retry.tries_max=20",
            "origin.backoff_base_ms=500", "origin.backoff_cap_ms=2000", "robots.unreachable_retry_ms=1000",
            "finish.wait_max_s=60",
        ):  # fmt: skip
            line += ["--set", setting]
        return self.fleet.start(name, [*line, *more])

    def start_parser(self, name: str, *more: str, dsn: str | None = None, hold_s: float = 5.0) -> Member:
        """A parse worker with one child."""
        line = [
            "parse", "--store", dsn or self.dsn, "--archive", self.archive, "--children", "1",
            "--hold", str(hold_s), "--log", str(self.folder / f"{name}.jsonl"), *more,
        ]  # fmt: skip
        return self.fleet.start(name, line)

    def is_open(self, name: str) -> bool:
        """Whether a member has reached database and archive."""
        try:
            return '.opened"' in (self.folder / f"{name}.jsonl").read_text()
        except FileNotFoundError:
            return False

    # -- what an operator does --------------------------------------------------------------------------------

    def command(self, *arguments: str, timeout_s: float = 900.0, **env: str) -> str:
        """A command that ends at once and well, told by the environment which crawl is meant; its output."""
        own = {
            "AMBLE_STORE_URL": self.dsn,
            "AMBLE_ARCHIVE_URL": self.archive,
            **S3Server.environment(),
            **env,
        }
        done = run(arguments, timeout_s=timeout_s, env=own)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    def prepare(self, partitions: int) -> None:
        """A database with partitions and their witness, and the seeds of the web."""
        self.partitions = partitions
        self.command("store", "init", "--store", self.dsn, "--partitions", str(partitions))
        self.sql(lambda connection: connection.execute(WITNESS))
        self.command("seed", *self.web.seeds, "--store", self.dsn, "--contact", contact("operator"))

    def sql(self, ask: Callable[[Any], Any]) -> Any:
        """What `ask` gets of a connection of its own."""

        async def work() -> Any:
            connection = await asyncpg.connect(self.dsn, timeout=20)
            try:
                return await ask(connection)
            finally:
                connection.terminate()

        return asyncio.run(work())

    def rows(self, statement: str, *arguments: Any) -> list[Any]:
        """The rows of one statement."""
        return [tuple(row) for row in self.sql(lambda connection: connection.fetch(statement, *arguments))]

    def in_flight(self) -> list[str]:
        """URLs that are leased now."""
        return [url for (url,) in self.rows(IN_FLIGHT)]

    def is_done(self) -> bool:
        """Whether every URL that is known has ended, and none is on its way between partitions."""
        ((left,),) = self.rows(
            "SELECT (SELECT count(*) FROM url WHERE state < 4 AND kind <> 1 OR state IN (1, 2, 3))"
            " + (SELECT count(*) FROM inbox) + (SELECT count(*) FROM outbox)"
            " + (SELECT count(*) FROM manifest WHERE opened AND cursor < links)"
        )
        return int(left) == 0

    def place_of(self, origin: str) -> int:
        """The partition of an origin."""
        return PartitionMap(self.partitions).of(origin)

    # -- the end ----------------------------------------------------------------------------------------------

    def stop_all(self) -> None:
        """SIGTERM to everybody, and everybody ends as it should."""
        living = self.fleet.living()
        for member in living:
            assert member.stop() in (0, 10), f"{member.name}: {member.tail()}"

    def ledger(self) -> Ledger:
        """The changes of all partitions' rows so far."""
        return Ledger([Tenure(*row) for row in self.rows(LEASES)], PartitionMap(self.partitions).of)

    def entries(self) -> list[Entry]:
        """The whole log of the closed set."""
        self.web.flush()
        hosts = set(self.web.truth()["hosts"])
        return [entry for entry in load(self.web.log_path) if entry.host in hosts]

    def judge(self, again: Mapping[str, int] | None = None) -> Verdict:
        """All judges; the offences of all are in the verdict."""
        entries = self.entries()
        verdict = judge(self.web, self.delay_s, again=again)
        offences = [*verdict.offences, *self.ledger().offences(entries), *self.store_offences()]
        return Verdict(
            coverage=verdict.coverage,
            offences=offences,
            requests=verdict.requests,
            handovers=verdict.handovers,
            longest_silence_s=verdict.longest_silence_s,
        )

    def store_offences(self) -> Iterator[str]:
        """What the database and the commands that look at it hold against the crawl."""
        yield from (f"{url} has stayed in state {state}" for url, state in self.rows(LOST_STATES))
        yield from (f"URL {url_id} was published {count} times" for url_id, count in self.rows(TWICE))
        yield from self._export_offences()
        told = run(
            ["verify", "--json"],
            timeout_s=VERIFIED_S_MAX,
            env={
                "AMBLE_STORE_URL": self.dsn,
                "AMBLE_ARCHIVE_URL": self.archive,
                **S3Server.environment(),
            },
        )
        lines = told.stdout.splitlines()
        yield from (f"verify: {line}" for line in lines if '"problem"' in line)
        if not lines or told.returncode not in (0, 3) or '"problems"' not in lines[-1]:
            yield f"verify did not end well: {told.stdout[-500:]}{told.stderr[-1000:]}"

    def _export_offences(self) -> Iterator[str]:
        exported = Counter(
            json.loads(line)["url"] for line in self.command("export", "--file", "-").splitlines()
        )
        urls = self.web.truth()["urls"]
        for url, facts in urls.items():
            wanted = int(facts["outcome"] == "page" and facts.get("index", True))
            if exported[url] != wanted and (exported[url] > 1 or not wanted):
                yield f"{url} was exported {exported[url]} times"
        yield from (f"{url} was exported, and nobody knows it" for url in exported if url not in urls)


def by_kind(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Values collected under their names."""
    found: defaultdict[str, list[T]] = defaultdict(list)
    for name, value in pairs:
        found[name].append(value)
    return dict(found)
