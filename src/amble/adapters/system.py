"""The real clock, the real entropy, and the log of events."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import time
from collections import Counter
from datetime import UTC, datetime

import msgspec

# Frontier, archive, parser children, name server and log of one crawl, with room.
FILES_RESERVED = 160


def room_for(connections: int, concurrency: int) -> tuple[int, int]:
    """How many connections and how many requests at once the open files of this process allow, at most as many as asked.

    The soft limit is raised as far as the hard one lets it be: many systems start with 1,024. Of the files that are not
    spoken for, two thirds are for connections, and one for the large bodies of requests under way.
    """
    wanted = FILES_RESERVED + max(connections * 3 // 2 + 1, concurrency * 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < 0:
        return connections, concurrency
    room = max(24, soft - FILES_RESERVED)
    return min(connections, room * 2 // 3), min(concurrency, room // 3)


class SystemClock:
    """Time as the operating system tells it."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the loop."""
        await asyncio.sleep(seconds)


class SuspendedClock(SystemClock):
    """The same, but the monotonic count runs on while the machine is suspended, as the clock of a database does."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemEntropy:
    """Randomness from the operating system."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def uniform(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()

    def token(self, count: int) -> bytes:
        """`count` unpredictable bytes."""
        return os.urandom(count)


class EventLog:
    """Named events to a JSON-lines file, and counters in memory. Never a body, never a secret.

    A log that cannot be written (disk full) loses lines, never the crawl.
    """

    def __init__(self, path: str | None) -> None:
        self.counters: Counter[str] = Counter()
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self._file = open(path, "ab", buffering=0) if path else None  # noqa: SIM115

    def event(self, name: str, **fields: object) -> None:
        """One line in the log."""
        if self._file is None:
            return
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        try:
            self._file.write(self._encode({"at": moment, "event": name, **fields}) + b"\n")
        except OSError:
            self.counters["log.lost"] += 1

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] += amount

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
