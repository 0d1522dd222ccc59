"""A campaign of faults against a whole fleet: what can be done to it, round by round, and what it took to recover.

A fault is a generator: what stands before its first `yield` is done to the fleet, what stands behind it ends the fault,
and what stands behind a second one tidies up once the fleet has recovered. What it yields first says whom it hit and how
long it is to last. Everything is drawn from one seed.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

import asyncpg

from amble.adapters.postgres.embedded import SUPERUSER, EmbeddedPostgres
from tests.support.amble_process import AmbleProcess, wait_until
from tests.support.fleet import Member, now_us
from tests.support.ha import Pair
from tests.support.s3 import S3Server
from tests.support.toxics import Delay, Drop, ToxicProxy
from tests.whole.fleet_rig import FleetRig, by_kind
from tests.whole.log import Entry

POLL_S = 0.1
LOOK_EVERY_S = 2.0
RECOVERED_S_MAX = 90.0
OPENED_S_MAX = 60.0
COMPACTED_S_MAX = 120.0
# Longer than any request can last after its start was granted (stages/gate.py).
HOLD_MARGIN_S = 15.0


# -- the database and the ways to it ----------------------------------------------------------------------------


class Servers(Protocol):
    """The database: one server, or a primary and its standby."""

    def dsn(self) -> str:
        """Where it is, without anything in between."""
        ...

    def nodes(self) -> Sequence[EmbeddedPostgres]:
        """All servers, always in the same order."""
        ...

    def primary(self) -> EmbeddedPostgres:
        """The server that takes writes."""
        ...


@dataclass(frozen=True, slots=True)
class Single:
    """One server."""

    server: EmbeddedPostgres

    def dsn(self) -> str:
        """See Servers."""
        return self.server.dsn()

    def nodes(self) -> Sequence[EmbeddedPostgres]:
        """See Servers."""
        return [self.server]

    def primary(self) -> EmbeddedPostgres:
        """See Servers."""
        return self.server


@dataclass(frozen=True, slots=True)
class Replicated:
    """A synchronous pair."""

    pair: Pair

    def dsn(self) -> str:
        """See Servers."""
        return self.pair.dsn()

    def nodes(self) -> Sequence[EmbeddedPostgres]:
        """See Servers."""
        return [node.server for node in sorted((self.pair.primary, self.pair.standby), key=lambda n: n.name)]

    def primary(self) -> EmbeddedPostgres:
        """See Servers."""
        return self.pair.primary.server


@dataclass(slots=True)
class Wires:
    """A proxy between each member and each server, so that one member alone can lose its database."""

    servers: Servers
    held: ExitStack
    _by_member: dict[str, list[ToxicProxy]] = field(default_factory=dict)

    def dsn(self, member: str) -> str:
        """The address of the database for this member alone."""
        nodes = self.servers.nodes()
        proxies = [self.held.enter_context(ToxicProxy.start(node.host, node.port)) for node in nodes]
        self._by_member[member] = proxies
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        return (
            f"postgresql://{SUPERUSER}:{nodes[0].password}@{hosts}/postgres?target_session_attrs=read-write"
        )

    def of(self, members: Sequence[str]) -> list[ToxicProxy]:
        """All proxies of these members."""
        return [proxy for member in members for proxy in self._by_member[member]]

    def release(self, member: str) -> None:
        """The member is gone for good."""
        for proxy in self._by_member.pop(member, []):
            proxy.close()


# -- rounds -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """What a fault did: to whom (empty: everybody), and how long it is to last."""

    lasts_s: float = 0.0
    victims: Sequence[str] = ()


@dataclass(slots=True, kw_only=True)
class Round:
    """One fault. `affected`: partitions that lost their owner's service; None: all. Times: monotonic microseconds."""

    number: int
    kind: str
    victims: Sequence[str]
    affected: frozenset[int] | None
    struck_us: int
    healed_us: int = 0
    in_flight: set[str] = field(default_factory=set)
    recovered_s: float | None = None


Fault = Callable[["Campaign"], Iterator[Strike | None]]


@dataclass(slots=True, kw_only=True)
class Campaign:
    """A fleet under fire. `run` deals the faults; `finish` lets the fleet complete the crawl in peace."""

    rig: FleetRig
    servers: Servers
    wires: Wires
    rng: random.Random
    agents_wanted: int = 3
    parsers_wanted: int = 2
    rounds: list[Round] = field(default_factory=list)
    _names: Counter[str] = field(default_factory=Counter)

    # -- members ----------------------------------------------------------------------------------------------

    def agents(self) -> list[Member]:
        """Agents that live."""
        return [member for member in self.rig.fleet.living() if member.name.startswith("agent-")]

    def busy_agent(self) -> Member:
        """One of the agents that own partitions with something to do, if there are any."""
        rows = self.rig.rows(
            "SELECT DISTINCT p.owner FROM partition p JOIN origin o ON o.partition = p.partition WHERE o.queued > 0"
        )
        owners = {owner.partition("~")[0] for (owner,) in rows}
        agents = self.agents()
        return self.rng.choice([member for member in agents if member.name in owners] or agents)

    def parsers(self) -> list[Member]:
        """Parse workers that live."""
        return [member for member in self.rig.fleet.living() if member.name.startswith("parser-")]

    def add_agent(self) -> Member:
        """One agent more, under a name that nobody has had."""
        self._names["agent"] += 1
        name = f"agent-{self._names['agent']}"
        return self.rig.start_agent(name, dsn=self.wires.dsn(name))

    def add_parser(self) -> Member:
        """One parse worker more."""
        self._names["parser"] += 1
        name = f"parser-{self._names['parser']}"
        return self.rig.start_parser(name, dsn=self.wires.dsn(name))

    def refill(self) -> None:
        """As many of each as there should be, all of them open: one that finds no database when it starts ends at once."""
        while len(self.agents()) < self.agents_wanted:
            self.add_agent()
        while len(self.parsers()) < self.parsers_wanted:
            self.add_parser()
        self._await_opening()

    def _await_opening(self) -> None:
        def all_open() -> bool:
            self.rig.fleet.check()
            return all(self.rig.is_open(member.name) for member in self.rig.fleet.living())

        wait_until(all_open, OPENED_S_MAX, "everybody has opened")

    def forget(self, member: Member) -> None:
        """A member that has ended as it should."""
        del self.rig.fleet.members[member.name]
        self.wires.release(member.name)

    # -- a round ----------------------------------------------------------------------------------------------

    def run(self, deck: list[str], *, patient: bool = True) -> None:
        """Deal the faults of the deck, each taken off it, until it is empty or the crawl is done.

        `patient`: the fleet has recovered from each before the next one.
        """
        while deck:
            self.rig.watch.wait_for_more(3 + self.rng.randrange(8))
            if self.rig.is_done():
                return
            self._round(deck.pop(0), patient=patient)
            self.refill()

    def _round(self, kind: str, *, patient: bool) -> None:
        owners = self._owners()
        before = set(self.rig.in_flight())
        fault = FAULTS[kind](self)
        strike = next(fault)
        assert strike is not None
        affected = None
        if strike.victims and any(victim.startswith("agent-") for victim in strike.victims):
            affected = frozenset(p for p, owner in owners.items() if owner in strike.victims)
        this = Round(
            number=len(self.rounds) + 1,
            kind=kind,
            victims=strike.victims,
            affected=affected,
            struck_us=now_us(),
            in_flight=before,
        )
        self.rounds.append(this)
        self._look(this)
        self._last(strike.lasts_s)
        next(fault, None)
        this.healed_us = now_us()
        self._look(this)
        if patient:
            self._await_recovery(this)
            self._look(this)
        next(fault, None)

    def _owners(self) -> dict[int, str]:
        rows = self.rig.rows("SELECT partition, owner FROM partition")
        return {partition: owner.partition("~")[0] for partition, owner in rows}

    def _look(self, this: Round) -> None:
        """Which URLs are leased now, where that can be asked."""
        try:
            this.in_flight.update(self.rig.in_flight())
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            pass  # the fault is that the database is away

    def _last(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self.rig.fleet.check()
            time.sleep(min(POLL_S, left_s))

    def _await_recovery(self, this: Round) -> None:
        """Until a request begins where the fault had struck, or nothing is left to be asked for there."""
        end_s, look_s = time.monotonic() + RECOVERED_S_MAX, 0.0
        while recovery_of(this, self.rig.watch.read(), self.rig.place_of) is None:
            self.rig.fleet.check()
            assert time.monotonic() < end_s, f"round {this.number}, {this.kind}: no recovery: {self.tails()}"
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + LOOK_EVERY_S
                if not self._work_left(this):
                    return
            time.sleep(POLL_S)

    def _work_left(self, this: Round) -> bool:
        places = sorted(range(self.rig.partitions) if this.affected is None else this.affected)
        rows = self.rig.rows(
            "SELECT 1 FROM origin o WHERE o.partition = ANY($1::int[]) AND o.queued > 0"
            " UNION ALL SELECT 1 FROM inbox WHERE partition = ANY($1::int[]) LIMIT 1",
            places,
        )
        return bool(rows)

    def tails(self) -> str:
        """The last words of everybody."""
        return "\n".join(f"{member.name}: {member.tail()[-600:]}" for member in self.rig.fleet)

    # -- the end ----------------------------------------------------------------------------------------------

    def finish(self, timeout_s: float = 900.0) -> None:
        """No more faults: one agent more, which ends when the whole crawl is done, and then everybody stops."""
        self.refill()
        closer = self.rig.start_agent("closer", "--until-done", dsn=self.wires.dsn("closer"))
        code = closer.wait(timeout_s)
        assert code == 0, f"closer ended with {code}: {self.tails()}"
        self.rig.stop_all()
        entries = self.rig.entries()
        for each in self.rounds:
            each.recovered_s = recovery_of(each, entries, self.rig.place_of)

    def again(self) -> Counter[str]:
        """How often more than once a URL may have been asked for: once for each fault that found it in flight."""
        return Counter(url for each in self.rounds for url in each.in_flight)


def recovery_of(this: Round, entries: Sequence[Entry], place_of: Callable[[str], int]) -> float | None:
    """Seconds from the end of the fault to the next request where it had struck; None when there was none."""
    starts = (
        entry.mono_start_us
        for entry in entries
        if entry.mono_start_us >= this.healed_us
        and (this.affected is None or place_of(entry.origin) in this.affected)
    )
    first = min(starts, default=None)
    return None if first is None else (first - this.healed_us) / 1e6


def table(rounds: Sequence[Round]) -> str:
    """Rounds and recovery by kind of fault, for people."""
    lines = [f"{'fault':<16} {'rounds':>6} {'in flight':>9} {'median s':>9} {'worst s':>8} {'no work':>7}"]
    for kind, group in sorted(by_kind((each.kind, each) for each in rounds).items()):
        times = [each.recovered_s for each in group if each.recovered_s is not None]
        flying = sum(len(each.in_flight) for each in group)
        middle, worst = (f"{median(times):.2f}", f"{max(times):.2f}") if times else ("-", "-")
        lines.append(
            f"{kind:<16} {len(group):>6} {flying:>9} {middle:>9} {worst:>8} {len(group) - len(times):>7}"
        )
    return "\n".join(lines)


# -- faults -----------------------------------------------------------------------------------------------------


def kill_agent(campaign: Campaign) -> Iterator[Strike | None]:
    """SIGKILL to an agent and its children."""
    victim = campaign.busy_agent()
    victim.kill()
    yield Strike(victims=[victim.name])
    campaign.wires.release(victim.name)


def kill_parser(campaign: Campaign) -> Iterator[Strike | None]:
    """SIGKILL to a parse worker and its children."""
    victim = campaign.rng.choice(campaign.parsers())
    victim.kill()
    yield Strike(victims=[victim.name])
    campaign.wires.release(victim.name)


def _freeze(victim: Member, lasts_s: float) -> Iterator[Strike | None]:
    victim.freeze()
    yield Strike(lasts_s=lasts_s, victims=[victim.name])
    victim.thaw()


def freeze_agent(campaign: Campaign) -> Iterator[Strike | None]:
    """SIGSTOP until its lease has ended: others may have claimed its partitions, and wait to begin."""
    lasts_s = campaign.rig.lease_s + campaign.rng.uniform(0.5, 3.0)
    yield from _freeze(campaign.busy_agent(), lasts_s)


def freeze_long(campaign: Campaign) -> Iterator[Strike | None]:
    """SIGSTOP until others have begun to crawl its partitions."""
    rig = campaign.rig
    lasts_s = rig.lease_s + rig.total_s + HOLD_MARGIN_S + campaign.rng.uniform(1.5, 3.0)
    yield from _freeze(campaign.busy_agent(), lasts_s)


def freeze_parser(campaign: Campaign) -> Iterator[Strike | None]:
    """SIGSTOP of a parse worker until others have parsed what it held."""
    yield from _freeze(campaign.rng.choice(campaign.parsers()), campaign.rng.uniform(5.5, 8.0))


def database_crash(campaign: Campaign) -> Iterator[Strike | None]:
    """SIGKILL to every process of the database, which starts again a moment later and recovers."""
    server = campaign.servers.primary()
    server.kill()
    yield Strike(lasts_s=campaign.rng.uniform(0.0, 2.0))
    server.start_again()


def failover(campaign: Campaign) -> Iterator[Strike | None]:
    """The primary is killed, its standby promoted; the former primary comes back as the standby."""
    assert isinstance(campaign.servers, Replicated)
    pair = campaign.servers.pair
    # Sometimes its last commits did not reach the standby, and nobody was told that they had happened.
    pair.kill_primary(freeze_s=campaign.rng.choice((0.0, 0.3)))
    yield Strike(lasts_s=campaign.rng.uniform(0.0, 2.0))
    pair.promote()
    yield None
    pair.rejoin(campaign.rng.choice(("rewind", "copy")))


def _objects(campaign: Campaign, kind: str, **which: object) -> Iterator[Strike | None]:
    campaign.rig.s3.fail(kind, count=-1, **which)
    yield Strike(lasts_s=campaign.rng.uniform(2.0, 5.0))
    campaign.rig.s3.heal()


def objects_refuse(campaign: Campaign) -> Iterator[Strike | None]:
    """The object store answers everything with an error."""
    status, code = campaign.rng.choice(((503, "SlowDown"), (500, "InternalError")))
    yield from _objects(campaign, "error", status=status, code=code)


def objects_lose(campaign: Campaign) -> Iterator[Strike | None]:
    """The object store does what it is asked, and its answers are lost or say that it did not."""
    yield from _objects(campaign, campaign.rng.choice(("lost", "stored-error")), method="PUT")


def objects_stall(campaign: Campaign) -> Iterator[Strike | None]:
    """The object store takes requests and never answers."""
    yield from _objects(campaign, "stall")


def objects_crash(campaign: Campaign) -> Iterator[Strike | None]:
    """The object store is killed and started again."""
    campaign.rig.s3.kill()
    yield Strike(lasts_s=campaign.rng.uniform(1.0, 4.0))
    campaign.rig.s3.start_process()


def compaction(campaign: Campaign) -> Iterator[Strike | None]:
    """The archive is compacted while everybody writes and reads it; sometimes the compactor is killed half way."""
    rig = campaign.rig
    line = ["gc", "--archive", rig.archive, "--everything"]
    compactor = AmbleProcess(line, rig.folder / "gc.log", S3Server.environment())
    yield Strike(lasts_s=campaign.rng.uniform(0.5, 3.0))
    if campaign.rng.random() < 0.5:
        compactor.kill_tree()
    else:
        assert compactor.wait(COMPACTED_S_MAX) == 0, compactor.text()


def _cut_off(campaign: Campaign) -> list[str]:
    """One agent, or every member."""
    if campaign.rng.random() < 0.3:
        return [member.name for member in (*campaign.agents(), *campaign.parsers())]
    return [campaign.busy_agent().name]


def network_cut(campaign: Campaign) -> Iterator[Strike | None]:
    """Connections to the database are reset and new ones refused, for longer than a lease."""
    names = _cut_off(campaign)
    for proxy in campaign.wires.of(names):
        proxy.refuse()
        proxy.cut()
    yield Strike(lasts_s=campaign.rig.lease_s + campaign.rng.uniform(-2.0, 2.0), victims=names)
    for proxy in campaign.wires.of(names):
        proxy.heal()


def network_hole(campaign: Campaign) -> Iterator[Strike | None]:
    """Nothing passes between them and the database, in both ways or only in one, and nobody is told."""
    names = _cut_off(campaign)
    up, down = campaign.rng.choice(((Drop(), Drop()), (None, Drop()), (Drop(), None)))
    for proxy in campaign.wires.of(names):
        proxy.set(up=up, down=down)
    yield Strike(lasts_s=campaign.rig.lease_s + campaign.rng.uniform(0.5, 4.0), victims=names)
    for proxy in campaign.wires.of(names):
        proxy.heal()


def network_slow(campaign: Campaign) -> Iterator[Strike | None]:
    """Every packet between them and the database is late."""
    names = _cut_off(campaign)
    late = Delay(campaign.rng.uniform(0.1, 0.5))
    for proxy in campaign.wires.of(names):
        proxy.set(up=late, down=late)
    yield Strike(lasts_s=campaign.rng.uniform(3.0, 6.0), victims=names)
    for proxy in campaign.wires.of(names):
        proxy.heal()


def stop_and_join(campaign: Campaign) -> Iterator[Strike | None]:
    """One agent is asked to stop, hands its partitions over and ends; another joins."""
    victim = campaign.busy_agent()
    code = victim.stop()
    assert code in (0, 10), f"{victim.name} ended with {code}: {victim.tail()}"
    campaign.forget(victim)
    yield Strike(victims=[victim.name])


FAULTS: dict[str, Fault] = {
    "kill agent": kill_agent,
    "kill parser": kill_parser,
    "freeze agent": freeze_agent,
    "freeze long": freeze_long,
    "freeze parser": freeze_parser,
    "database crash": database_crash,
    "failover": failover,
    "objects refuse": objects_refuse,
    "objects lose": objects_lose,
    "objects stall": objects_stall,
    "objects crash": objects_crash,
    "compaction": compaction,
    "network cut": network_cut,
    "network hole": network_hole,
    "network slow": network_slow,
    "stop and join": stop_and_join,
}
# The faults that matter the most are dealt more often.
DECK = [*FAULTS, "kill agent", "freeze agent", "network hole", "failover", "database crash"]


def deck(rounds: int, rng: random.Random) -> list[str]:
    """So many faults: whole decks, shuffled one by one, so that every kind has its turn."""
    dealt: list[str] = []
    while len(dealt) < rounds:
        dealt += rng.sample(DECK, len(DECK))
    return dealt[:rounds]
