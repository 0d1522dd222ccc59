"""What happened in one seed, as told by witnesses outside of the code under test, and the hash of the whole story."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from amble.sim.clock import VirtualLoop


@dataclass(slots=True, kw_only=True)
class Request:
    """One request as the web saw it. `ended_s` is None while the server still answers."""

    number: int
    started_s: float
    url: str
    origin: str
    path: str
    address: str
    agent: str
    epoch: int
    ended_s: float | None = None
    status: int = 0
    outcome: str = ""
    retry_after_s: float = 0.0
    cut: bool = False


@dataclass(frozen=True, slots=True)
class RobotsAnswer:
    """What an origin's robots.txt amounted to at the end of one attempt, by the web's own knowledge.

    `disallow` None: the answer says nothing usable (5xx, 429, a failure); () means everything is allowed. `ruled`: a file
    was read, which may serve on while no other can be had; a 4xx may not.
    """

    at_s: float
    disallow: tuple[str, ...] | None
    delay_s: float
    ruled: bool


@dataclass(frozen=True, slots=True)
class Violation:
    """A judge's complaint."""

    judge: str
    at_s: float
    detail: str

    def __str__(self) -> str:
        return f"{self.judge} at {self.at_s:.3f} s: {self.detail}"


@dataclass(slots=True)
class History:
    """The story of a seed."""

    loop: VirtualLoop
    keep_trace: bool = False
    trace: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    robots: dict[str, list[RobotsAnswer]] = field(default_factory=lambda: defaultdict(list))
    violations: list[Violation] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    def tell(self, actor: str, what: str, detail: str = "") -> None:
        """One line of the trace."""
        line = f"{self.loop.time():12.6f} {actor:<10} {what:<18} {detail}"
        self._hash.update(line.encode("utf-8", "backslashreplace") + b"\n")
        if self.keep_trace:
            self.trace.append(line)

    def violate(self, judge: str, detail: str) -> None:
        """A judge has seen a broken promise."""
        self.tell("judge", judge, detail)
        if len(self.violations) < 50:
            self.violations.append(Violation(judge, self.loop.time(), detail))

    @property
    def hash(self) -> str:
        """sha256 over the trace so far."""
        return self._hash.hexdigest()
