"""The access log of the test web, and judges over it: what a crawl did, seen from the other side.

A judge returns the offences it found, as sentences for people; an empty list is a clean bill.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

TOLERANCE_S = 0.005
ROBOTS = "/robots.txt"
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request. Wall times for people and across restarts of the machine, monotonic ones for judging."""

    start_us: int
    end_us: int
    mono_start_us: int
    mono_end_us: int
    scheme: str
    host: str
    port: int
    address: str
    connection: int
    method: str
    target: str
    status: int
    bytes: int
    user_agent: str
    ending: str

    @property
    def origin(self) -> str:
        """Scheme, host and port as one word."""
        port = "" if DEFAULT_PORTS.get(self.scheme) == self.port else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"

    @property
    def url(self) -> str:
        """The URL that was asked for."""
        return self.origin + self.target

    @property
    def is_robots(self) -> bool:
        """Whether it asked for robots.txt."""
        return self.target == ROBOTS


def parse(line: str) -> Entry:
    """One line of the log. Raises ValueError when it is not one."""
    f = line.rstrip("\n").split("\t")
    if len(f) != 15:
        raise ValueError(f"an access log line has 15 fields, this one {len(f)}")
    return Entry(
        start_us=int(f[0]),
        end_us=int(f[1]),
        mono_start_us=int(f[2]),
        mono_end_us=int(f[3]),
        scheme=f[4],
        host=f[5],
        port=int(f[6]),
        address=f[7],
        connection=int(f[8]),
        method=f[9],
        target=f[10],
        status=int(f[11]),
        bytes=int(f[12]),
        user_agent=f[13],
        ending=f[14],
    )


def load(path: Path) -> list[Entry]:
    """All whole lines, in order of their start."""
    with path.open(encoding="utf-8") as lines:
        entries = [parse(line) for line in lines if line.endswith("\n")]
    return sorted(entries, key=lambda entry: entry.mono_start_us)


def by_origin(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The requests of each origin, in order of their start."""
    groups: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.mono_start_us):
        groups[entry.origin].append(entry)
    return dict(groups)


def spacing(
    entries: Iterable[Entry],
    delay_s: float,
    *,
    tolerance_s: float = TOLERANCE_S,
    delays: Mapping[str, float] | None = None,
) -> list[str]:
    """Starts at one origin closer than its delay. `delays` has origins or hosts whose delay is another one."""
    found = []
    for origin, requests in by_origin(entries).items():
        own = (delays or {}).get(origin, (delays or {}).get(requests[0].host, delay_s))
        for before, after in pairwise(requests):
            gap_s = (after.mono_start_us - before.mono_start_us) / 1e6
            if gap_s < own - tolerance_s:
                found.append(
                    f"{origin}: {after.target} started {gap_s:.3f} s after {before.target}, not {own} s"
                )
    return found


def concurrency(
    entries: Iterable[Entry],
    limit: int = 1,
    *,
    tolerance_s: float = 0.0,
    limits: Mapping[str, int] | None = None,
) -> list[str]:
    """Moments at which an origin served more requests at once than its limit."""
    found = []
    for origin, requests in by_origin(entries).items():
        own = (limits or {}).get(origin, (limits or {}).get(requests[0].host, limit))
        active: list[int] = []
        for request in requests:
            still = request.mono_start_us + int(tolerance_s * 1e6)
            active = [end for end in active if end > still] + [request.mono_end_us]
            if len(active) > own:
                found.append(f"{origin}: {len(active)} at once when {request.target} started, limit {own}")
    return found


def duplicates(entries: Iterable[Entry], *, allowed: Mapping[str, int] | None = None) -> list[str]:
    """URLs asked for more than once (or more than `allowed` says); robots.txt is judged elsewhere."""
    counts = Counter(entry.url for entry in entries if not entry.is_robots)
    return [f"{url} was asked for {n} times" for url, n in counts.items() if n > (allowed or {}).get(url, 1)]


def robots_first(entries: Iterable[Entry]) -> list[str]:
    """Origins whose first request was not for robots.txt, or whose first page started before robots.txt was served."""
    found = []
    for origin, requests in by_origin(entries).items():
        first_page = next((entry for entry in requests if not entry.is_robots), None)
        if not requests[0].is_robots:
            found.append(f"{origin}: {requests[0].target} was asked for before robots.txt")
        elif first_page is not None and first_page.mono_start_us < requests[0].mono_end_us:
            found.append(f"{origin}: {first_page.target} started before robots.txt was answered")
    return found


def forbidden(entries: Iterable[Entry], truth: Mapping[str, Any]) -> list[str]:
    """Requests for URLs that the truth says must never be requested."""
    never = {"disallowed", "nofollow", "outside"}
    urls = truth["urls"]
    return [
        f"{entry.url} was requested though {urls[entry.url]['outcome']}"
        for entry in entries
        if entry.url in urls and urls[entry.url]["outcome"] in never
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """A crawl against the truth: what it missed, what it asked for that the truth does not know, what it repeated."""

    pages: int
    pages_expected: int
    missed: Sequence[str]
    unknown: Sequence[str]
    repeated: Sequence[str]
    forbidden: Sequence[str]

    @property
    def exact(self) -> bool:
        """Everything once, nothing else."""
        return not (self.missed or self.unknown or self.repeated or self.forbidden)

    def __str__(self) -> str:
        parts = [f"{self.pages} of {self.pages_expected} pages"]
        for name in ("missed", "unknown", "repeated", "forbidden"):
            some = getattr(self, name)
            if some:
                parts.append(f"{len(some)} {name}, e.g. {', '.join(some[:3])}")
        return "; ".join(parts)


def coverage(entries: Iterable[Entry], truth: Mapping[str, Any]) -> Coverage:
    """Judge a finished crawl of the closed set. Requests to hosts outside the set are left to other judges.

    A URL counts as fetched when it was answered in full with the status that the truth expects (304 counts as 200).
    """
    entries = list(entries)
    hosts, urls = set(truth["hosts"]), truth["urls"]
    asked = Counter(e.url for e in entries if e.host in hosts and not e.is_robots)
    whole = {
        e.url
        for e in entries
        if e.ending == "done" and e.url in urls and e.status in (urls[e.url].get("status", 200), 304)
    }
    wanted = {
        url: facts
        for url, facts in urls.items()
        if facts["outcome"] in ("page", "missing", "redirect", "robots")
    }
    never = {url for url, facts in urls.items() if facts["outcome"] in ("disallowed", "nofollow", "outside")}
    robots = {url for url, facts in urls.items() if facts["outcome"] == "robots"}
    pages = {url for url, facts in urls.items() if facts["outcome"] == "page"}
    return Coverage(
        pages=len(pages & whole),
        pages_expected=len(pages),
        missed=sorted(url for url in wanted if url not in whole and url not in robots),
        unknown=sorted(url for url in asked if url not in urls),
        repeated=sorted(url for url, n in asked.items() if n > 1 and url not in robots),
        forbidden=sorted(url for url in asked if url in never),
    )


def starts_per_second(entries: Sequence[Entry]) -> float:
    """Requests per second from the first start to the last end; 0 for fewer than two requests."""
    if len(entries) < 2:
        return 0.0
    first = min(entry.mono_start_us for entry in entries)
    last = max(entry.mono_end_us for entry in entries)
    return len(entries) / max(1e-6, (last - first) / 1e6)
