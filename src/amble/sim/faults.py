"""Every fault the simulator knows, as a knob with a meaning, and the profiles that set the knobs.

A knob is a probability per occasion, or a number of times per seed. A seed draws its own values below the profile's, so
that one seed is nearly calm and another is all trouble. With `only` a run is repeated with fewer kinds of fault.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum

from amble.sim.clock import Dice


class Fault(StrEnum):
    """What can go wrong on purpose. The text says what is done."""

    AGENT_CRASH = (
        "agent_crash"  # the agent dies before a step drawn at random; what it had sent is still applied
    )
    CRASH_UNSENT = "crash_unsent"  # the agent dies as it makes a call of the store: the call is never sent
    CRASH_UNHEARD = (
        "crash_unheard"  # the agent dies after the store has applied its call and before it hears so
    )
    CRASH_ARCHIVED = "crash_archived"  # the agent dies after its records are durable and before it hears so
    STORE_DEATH_BEFORE = "store_death_before"  # the store dies with a batch that is not committed
    STORE_DEATH_AFTER = "store_death_after"  # the store dies with a batch that is committed and not answered
    STORE_BUSY = (
        "store_busy"  # the file is locked or full for a while: batches fail, are rolled back and repeated
    )
    STORE_COMMIT_ERROR = "store_commit_error"  # one commit fails as a failing fsync does, and is repeated
    STORE_LATE = (
        "store_late"  # one answer of the store is late by seconds or minutes: its worker is paused there
    )
    STORE_GONE = "store_gone"  # a call raises StoreUnavailable: nothing was changed
    ARCHIVE_FULL = "archive_full"  # the disk of the archive is full for a while
    ARCHIVE_LOST_ANSWER = "archive_lost_answer"  # records are durable, yet the append says it failed
    ARCHIVE_LATE = "archive_late"  # one append takes seconds or minutes: its worker is paused there
    ARCHIVE_READ_ERROR = "archive_read_error"  # one read fails with an I/O error
    ARCHIVE_TORN = "archive_torn"  # a crash leaves half of the last unacknowledged append behind
    PARSER_DEATH = "parser_death"  # a child dies over a page
    PARSER_HANG = "parser_hang"  # a child runs into its wall clock over a page
    PARSER_GARBAGE = "parser_garbage"  # a child answers nonsense
    PARSERS_GONE = "parsers_gone"  # no child can be had for a while
    WORKER_PAUSE = "worker_pause"  # a worker sleeps after its answer came, longer than its lease
    AGENT_PAUSE = "agent_pause"  # the whole agent is stopped for a while and goes on by itself
    TWO_OWNERS = "two_owners"  # the agent is stopped, a new owner claims, works, and then the old one goes on
    WALL_JUMP = "wall_jump"  # the wall clock is moved, forward or back
    OPERATOR_PAUSE = "operator_pause"  # an operator pauses an origin and lifts the pause later
    OPERATOR_SPACING = "operator_spacing"  # an operator sets the spacing and the limit of an origin
    OPERATOR_REQUEUE = "operator_requeue"  # an operator queues finished URLs again
    OPERATOR_STOP = "operator_stop"  # an operator stops the crawl in good order and starts it again
    DNS_SILENT = "dns_silent"  # the resolver does not answer for a while
    DNS_DIES = "dns_dies"  # a name does not exist for a while
    DNS_FLIPS = "dns_flips"  # a name moves to another address
    DNS_REBINDS = "dns_rebinds"  # a name points into a private network for a while
    SERVER_ERROR = "server_error"  # an answer is 500, 502 or 503, with or without Retry-After
    SERVER_THROTTLES = "server_throttles"  # an answer is 429, with or without Retry-After
    SERVER_HANGS = "server_hangs"  # no first byte comes
    SERVER_DRIPS = "server_drips"  # the body is cut by the total time
    SERVER_RESETS = "server_resets"  # the connection is reset or the body cut in the middle
    ROBOTS_CHANGE = "robots_change"  # the rules of an origin change while its URLs wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How large the world is, and how often what goes wrong.

    `rates` are probabilities per occasion (a call, an append, a request), `moments` how often per seed at most, at a
    moment drawn at random. `storm_s`: faults stop after so many virtual seconds.
    """

    name: str
    origins: tuple[int, int]
    pages: tuple[int, int]
    storm_s: float
    # Files that the frontier is divided into; links cross between them.
    partitions: int = 1
    rates: dict[Fault, float] = field(default_factory=dict)
    moments: dict[Fault, int] = field(default_factory=dict)
    must_reach: frozenset[Fault] = frozenset()


_RATES = {
    Fault.CRASH_UNSENT: 0.002,
    Fault.CRASH_UNHEARD: 0.002,
    Fault.CRASH_ARCHIVED: 0.004,
    Fault.STORE_DEATH_BEFORE: 0.0015,
    Fault.STORE_DEATH_AFTER: 0.0015,
    Fault.STORE_COMMIT_ERROR: 0.004,
    Fault.STORE_LATE: 0.006,
    Fault.STORE_GONE: 0.001,
    Fault.ARCHIVE_LOST_ANSWER: 0.02,
    Fault.ARCHIVE_LATE: 0.01,
    Fault.ARCHIVE_READ_ERROR: 0.02,
    Fault.ARCHIVE_TORN: 0.5,
    Fault.PARSER_DEATH: 0.02,
    Fault.PARSER_HANG: 0.01,
    Fault.PARSER_GARBAGE: 0.01,
    Fault.WORKER_PAUSE: 0.01,
    Fault.SERVER_ERROR: 0.05,
    Fault.SERVER_THROTTLES: 0.03,
    Fault.SERVER_HANGS: 0.02,
    Fault.SERVER_DRIPS: 0.02,
    Fault.SERVER_RESETS: 0.03,
}
_MOMENTS = {
    Fault.AGENT_CRASH: 3,
    Fault.STORE_BUSY: 2,
    Fault.ARCHIVE_FULL: 1,
    Fault.PARSERS_GONE: 1,
    Fault.AGENT_PAUSE: 1,
    Fault.TWO_OWNERS: 1,
    Fault.WALL_JUMP: 2,
    Fault.OPERATOR_PAUSE: 2,
    Fault.OPERATOR_SPACING: 2,
    Fault.OPERATOR_REQUEUE: 2,
    Fault.OPERATOR_STOP: 1,
    Fault.DNS_SILENT: 1,
    Fault.DNS_DIES: 1,
    Fault.DNS_FLIPS: 2,
    Fault.DNS_REBINDS: 1,
    Fault.ROBOTS_CHANGE: 2,
}

CALM = Profile(name="calm", origins=(3, 6), pages=(20, 60), storm_s=0.0)
DEFAULT = Profile(
    name="default", origins=(3, 7), pages=(15, 60), storm_s=300.0, rates=_RATES, moments=_MOMENTS,
    must_reach=frozenset(Fault),
)  # fmt: skip
HOSTILE = Profile(
    name="hostile",
    origins=(3, 8),
    pages=(15, 70),
    storm_s=900.0,
    rates={fault: min(0.5, 3 * rate) for fault, rate in _RATES.items()},
    moments={fault: 3 * times for fault, times in _MOMENTS.items()},
    must_reach=frozenset(Fault),
)
DIVIDED = replace(DEFAULT, name="divided", origins=(4, 8), partitions=3)
PROFILES = {profile.name: profile for profile in (CALM, DEFAULT, HOSTILE, DIVIDED)}


class Weather:
    """The faults of one seed: rolls for each occasion, and counts what happened. Nothing happens after the storm."""

    def __init__(self, seed: int, profile: Profile, *, off: frozenset[Fault] = frozenset()) -> None:
        dice = Dice(seed, "weather")
        # Each kind of fault is off, rare or as the profile says in this seed: the draw does not depend on `off`.
        strength = {fault: dice.one_of((0.0, 0.3, 1.0)) for fault in Fault}
        self._rates = {
            fault: rate * strength[fault] for fault, rate in profile.rates.items() if fault not in off
        }
        self._dice = {fault: Dice(seed, f"fault/{fault}") for fault in Fault}
        self.moments: list[tuple[float, Fault]] = []
        for fault in Fault:
            times = dice.whole(0, profile.moments.get(fault, 0))
            whens = [dice.between(0.0, profile.storm_s) for _ in range(times)]
            if fault not in off:
                self.moments += [(when, fault) for when in whens]
        self.moments.sort()
        self.storming = profile.storm_s > 0
        self.happened: Counter[Fault] = Counter()

    def strikes(self, fault: Fault) -> bool:
        """Whether `fault` happens on this occasion."""
        if not self.storming or not self._dice[fault].chance(self._rates.get(fault, 0.0)):
            return False
        self.happened[fault] += 1
        return True

    def dice(self, fault: Fault) -> Dice:
        """The chance that belongs to one kind of fault: another kind switched off does not disturb it."""
        return self._dice[fault]

    def note(self, fault: Fault) -> None:
        """A fault of a moment has happened."""
        self.happened[fault] += 1


def smaller(profile: Profile, *, origins: int | None = None, pages: int | None = None) -> Profile:
    """The profile with a smaller world, for shrinking."""
    return replace(
        profile,
        origins=(origins, origins) if origins else profile.origins,
        pages=(pages, pages) if pages else profile.pages,
    )
