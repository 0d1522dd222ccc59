"""Many amble processes over one test web: start them, hurt them, wait for what they do, and judge them all together.

    with Fleet(tmp_path) as fleet:
        for name in ("ada", "ben", "cyd"):
            fleet.start(name, ["agent", "--contact", contact(name), ...])
        watch.wait(lambda entries: len(entries) > 500, "500 requests")
        fleet["ada"].freeze()

A member that says its name in its contact is known by it in the access log of the web: see `sender`. The judges find
offences across all members, since the log is one; those of one member alone are left to `tests.whole.log`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import asyncpg

from tests.support.amble_process import AmbleProcess, wait_until
from tests.web.handle import TestWeb
from tests.whole import log
from tests.whole.log import Entry

SOON_S = 60.0
POLL_S = 0.05
TAIL_CHARACTERS = 4000
_CONTACT = "https://fleet.test/"
_SENDER = re.compile(re.escape(_CONTACT) + r"([\w.-]+)")


def contact(name: str) -> str:
    """The contact of the member of this name, for its command line."""
    return _CONTACT + name


def sender(entry: Entry) -> str:
    """Which member made this request; empty when it does not say."""
    found = _SENDER.search(entry.user_agent)
    return found[1] if found else ""


# -- processes ------------------------------------------------------------------------------------------------


class Member:
    """One process of the fleet under one name, over its restarts. Its output stays in one file."""

    def __init__(self, name: str, arguments: Sequence[str], output: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.output = output
        self.env = dict(env)
        self.starts = 0
        self.frozen = False
        self.start()

    def start(self) -> None:
        """Start it, or start it again with the same command line once it has ended."""
        assert self.starts == 0 or not self.alive, f"{self.name} is still running"
        self.process = AmbleProcess(self.arguments, self.output, self.env)
        self.starts += 1
        self.frozen = False

    @property
    def alive(self) -> bool:
        """Whether its main process is there, frozen or not."""
        return self.process.process.poll() is None

    def freeze(self) -> int:
        """SIGSTOP to all its processes, and the moment of it in microseconds of the monotonic clock."""
        self._signal(signal.SIGSTOP)
        self.frozen = True
        return now_us()

    def thaw(self) -> int:
        """SIGCONT to all its processes, and the moment just before it."""
        moment = now_us()
        self._signal(signal.SIGCONT)
        self.frozen = False
        return moment

    def kill(self) -> int:
        """SIGKILL to all its processes, and the moment at which all were dead."""
        self.process.kill_tree()
        return now_us()

    def stop(self, timeout_s: float = SOON_S) -> int:
        """Ask it to stop as an operator does, and wait. Returns its exit code."""
        if self.frozen:
            self.thaw()
        self.process.send(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def wait(self, timeout_s: float = SOON_S) -> int:
        """Wait until it ends by itself. Returns its exit code."""
        return self.process.wait(timeout_s)

    def tail(self) -> str:
        """The end of what it printed."""
        return self.process.text()[-TAIL_CHARACTERS:]

    def _signal(self, number: signal.Signals) -> None:
        """Parents first: a frozen parent starts nothing more while its children are looked up again."""
        done: set[int] = set()
        while new := [pid for pid in self.process.tree() if pid not in done]:
            for pid in new:
                send(pid, number)
            done.update(new)


class Fleet:
    """Members by name. All of them are certainly over when the block ends."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.env = dict(env or {})
        self.members: dict[str, Member] = {}

    def start(self, name: str, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Member:
        """Start a new member. Its output goes to NAME.log in the folder of the fleet."""
        assert name not in self.members, f"there is a {name} already"
        output = self.folder / f"{name}.log"
        self.members[name] = Member(name, arguments, output, {**self.env, **(env or {})})
        return self.members[name]

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    def living(self) -> list[Member]:
        """Members whose process is there, frozen or not."""
        return [member for member in self if member.alive]

    def check(self) -> None:
        """Fail with the output of a member that ended with an error."""
        for member in self:
            code = member.process.process.poll()
            assert code in (None, 0, -signal.SIGKILL), f"{member.name} ended with {code}: {member.tail()}"

    def close(self) -> None:
        """Kill what lives. A frozen process dies of SIGKILL like any other."""
        for member in self.living():
            member.kill()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def now_us() -> int:
    """The monotonic clock that the access log uses, too."""
    return time.monotonic_ns() // 1000


# -- waiting --------------------------------------------------------------------------------------------------


class Watch:
    """The access log of a test web while it grows. Reads every line once."""

    def __init__(self, path: Path, fleet: Fleet | None = None) -> None:
        self.entries: list[Entry] = []
        self._path = path
        self._fleet = fleet
        self._read_bytes = 0

    def read(self) -> list[Entry]:
        """Everything that has been logged so far, in the order in which it ended."""
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        self.entries += [log.parse(line) for line in whole.decode("utf-8").splitlines()]
        return self.entries

    def wait(
        self, condition: Callable[[list[Entry]], bool], what: str, timeout_s: float = SOON_S
    ) -> list[Entry]:
        """Until the entries fulfil a condition. Fails at once when a member of the fleet ended with an error."""

        def fulfilled() -> bool:
            if self._fleet is not None:
                self._fleet.check()
            return condition(self.read())

        wait_until(fulfilled, timeout_s, what)
        return self.entries

    def wait_for_more(self, count: int, *, by: str | None = None, timeout_s: float = SOON_S) -> list[Entry]:
        """Until so many more requests have been answered, of one member if `by` names it. Returns the new ones."""
        before = len(self.read())

        def new(entries: list[Entry]) -> list[Entry]:
            return [entry for entry in entries[before:] if by is None or sender(entry) == by]

        self.wait(lambda entries: len(new(entries)) >= count, f"{count} more requests", timeout_s)
        return new(self.entries)

    def wait_for_silence(self, seconds: float, timeout_s: float = SOON_S) -> None:
        """Until no request has ended for so long."""
        since = [len(self.read()), now_us()]

        def silent(entries: list[Entry]) -> bool:
            if len(entries) != since[0]:
                since[:] = [len(entries), now_us()]
            return now_us() - since[1] >= seconds * 1e6

        self.wait(silent, f"{seconds} s of silence", timeout_s)


async def wait_for_sql(
    dsn: str, sql: str, fulfilled: Callable[[object], bool], what: str, timeout_s: float = SOON_S
) -> object:
    """Until the one value that `sql` asks for fulfils a condition; a server that is away is asked again."""
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            told = await _ask(dsn, sql)
            if fulfilled(told):
                return told
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            told = error
        if time.monotonic() > end_s:
            raise AssertionError(f"within {timeout_s} s: {what}; last was {told!r}")
        await asyncio.sleep(POLL_S)


async def _ask(dsn: str, sql: str) -> object:
    """One value over a connection of its own: the server may be another one by now."""
    connection = await asyncpg.connect(dsn, timeout=5)
    try:
        return await connection.fetchval(sql, timeout=5)
    finally:
        connection.terminate()


# -- judges ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A whole run. `offences` are sentences for people; an empty list is a clean bill."""

    coverage: log.Coverage
    offences: Sequence[str]
    requests: Mapping[str, int]
    """How many requests each member made."""
    handovers: int
    longest_silence_s: float

    def __str__(self) -> str:
        shares = ", ".join(f"{name or '?'} {count}" for name, count in sorted(self.requests.items()))
        return (
            f"{self.coverage}; requests: {shares}; {self.handovers} handovers; "
            f"longest silence {self.longest_silence_s:.2f} s; {len(self.offences)} offences"
            + "".join(f"\n  {offence}" for offence in self.offences[:20])
        )


def judge(
    web: TestWeb,
    delay_s: float,
    *,
    limit: int = 1,
    again: Mapping[str, int] | None = None,
    tolerance_s: float = 0.003,
) -> Verdict:
    """The closed set against the log: everything fetched, nothing too often, politely as one crawler would be.

    `again` says how often more a URL may have been asked for, as with leases that were in flight at a kill.
    """
    web.flush()
    truth = web.truth()
    entries = [entry for entry in log.load(web.log_path) if entry.host in truth["hosts"]]
    coverage = log.coverage(entries, truth)
    # A robots.txt that redirects is asked for hop by hop under one lease, and by each new owner of an origin.
    pages = [entry for entry in entries if truth["urls"].get(entry.url, {}).get("outcome") != "robots"]
    allowed = {url: 1 + count for url, count in (again or {}).items()}
    offences = [
        *(f"{url} was never fetched" for url in coverage.missed),
        *(f"{url} is not of the closed set" for url in coverage.unknown),
        *(f"{url} must not be requested" for url in coverage.forbidden),
        *log.duplicates(pages, allowed=allowed),
        *log.spacing(entries, delay_s, tolerance_s=tolerance_s),
        *log.concurrency(entries, limit),
        *log.robots_first(entries),
    ]
    return Verdict(
        coverage=coverage,
        offences=offences,
        requests=Counter(map(sender, entries)),
        handovers=len(handovers(entries)),
        longest_silence_s=longest_silence_s(entries),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Two successive requests at one origin by different members. A gap below zero: both were there at once."""

    origin: str
    before: str
    after: str
    at_us: int
    gap_s: float


def handovers(entries: Iterable[Entry]) -> list[Handover]:
    """Every change of the member that an origin hears from, in order of time."""
    found = []
    for origin, requests in log.by_origin(entries).items():
        for one, two in pairwise(requests):
            if sender(one) != sender(two):
                gap_s = (two.mono_start_us - one.mono_end_us) / 1e6
                found.append(
                    Handover(
                        origin=origin,
                        before=sender(one),
                        after=sender(two),
                        at_us=two.mono_start_us,
                        gap_s=gap_s,
                    )
                )
    return sorted(found, key=lambda handover: handover.at_us)


def double_authority(entries: Iterable[Entry], *, quiet_s: float = 0.0) -> list[str]:
    """Origins that one member was at while another still was, or less than `quiet_s` after it."""
    return [
        f"{change.origin}: {change.after} came {change.gap_s:.3f} s after the end of {change.before}'s request"
        for change in handovers(entries)
        if change.gap_s < quiet_s
    ]


def returns(entries: Iterable[Entry]) -> list[str]:
    """Origins that went from one member to another and back: smooth rebalancing has few of them."""
    found = []
    for origin, requests in log.by_origin(entries).items():
        runs = [name for name, _ in _runs(map(sender, requests))]
        back = [name for name, count in Counter(runs).items() if count > 1]
        found += [f"{origin} came back to {name}" for name in back]
    return found


def _runs(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    last, count = None, 0
    for name in names:
        if name != last and last is not None:
            yield last, count
            count = 0
        last, count = name, count + 1
    if last is not None:
        yield last, count


def started_between(
    entries: Iterable[Entry], after_us: int, until_us: int | None = None, *, by: str | None = None
) -> list[str]:
    """Requests that began in a span of time in which none should have, of one member if `by` names it."""
    return [
        f"{sender(entry) or 'somebody'} asked for {entry.url} {(entry.mono_start_us - after_us) / 1e6:.3f} s into it"
        for entry in entries
        if after_us <= entry.mono_start_us
        and (until_us is None or entry.mono_start_us < until_us)
        and (by is None or sender(entry) == by)
    ]


def longest_silence_s(entries: Iterable[Entry]) -> float:
    """The longest time between two successive starts anywhere."""
    starts = sorted(entry.mono_start_us for entry in entries)
    return max(((two - one) / 1e6 for one, two in pairwise(starts)), default=0.0)


def recovery_s(entries: Iterable[Entry], event_us: int, *, by: str | None = None) -> float | None:
    """How long after an event the next request began, of one member if `by` names it; None when none did."""
    starts = [
        entry.mono_start_us
        for entry in entries
        if entry.mono_start_us >= event_us and (by is None or sender(entry) == by)
    ]
    return (min(starts) - event_us) / 1e6 if starts else None
