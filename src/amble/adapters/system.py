"""The real clock, the real entropy, and the log of events."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from datetime import UTC, datetime

import msgspec


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
