"""The real clock, the real entropy, and the log of events."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter

import structlog


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
    """Named events to a JSON-lines file, and counters in memory. Never a body, never a secret."""

    def __init__(self, path: str | None) -> None:
        self.counters: Counter[str] = Counter()
        self._file = open(path, "a", encoding="utf-8", buffering=1) if path else None  # noqa: SIM115
        self._log = (
            structlog.wrap_logger(
                structlog.WriteLogger(self._file),
                processors=[
                    structlog.processors.TimeStamper(fmt="iso", utc=True),
                    structlog.processors.JSONRenderer(default=str),
                ],
                wrapper_class=structlog.BoundLogger,
            )
            if self._file
            else None
        )

    def event(self, name: str, **fields: object) -> None:
        """One line in the log."""
        if self._log is not None:
            self._log.msg(name, **fields)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] += amount

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
