"""The crawler's own reading of the closed set (parser, canonical URLs, robots rules) gives exactly its truth.

No sockets and no store: what fails here is a rule or a parser, not the line.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from amble.domain.attempt import UrlKind
from amble.domain.manifest import NOFOLLOW, NOINDEX, PAGE_NOFOLLOW, ParseManifest
from amble.domain.policy import ParseLimits, UrlLimits
from amble.domain.robots import RuleSet
from amble.domain.traps import judge_shape
from amble.domain.url import host_of, target_of
from amble.formats.registry import Answer, ExtractionSettings, Reading, Registry
from tests.web.closed import ClosedSet
from tests.web.message import Reply, Request

LIMITS = UrlLimits()


class Reader:
    """A crawl of a closed set in memory, with amble's rules and parser."""

    def __init__(self, closed: ClosedSet) -> None:
        self._closed = closed
        self._registry = Registry(ParseLimits(), ExtractionSettings())
        self._rules: dict[str, RuleSet | None] = {}
        self.outcomes: dict[str, str] = {}
        self.noindex: set[str] = set()
        self.digests: dict[str, str] = {}

    def crawl(self) -> None:
        waiting = list(self._closed.seeds)
        while waiting:
            url = waiting.pop()
            if url not in self.outcomes:
                waiting += self._visit(url)

    def _visit(self, url: str) -> list[str]:
        host = host_of(url)
        if host not in self._closed.hosts:
            self.outcomes[url] = "outside"
            return []
        assert judge_shape(url, LIMITS) is None, url
        rules = self._rules_of(host)
        if rules is not None and not rules.allows(target_of(url))[0]:
            self.outcomes[url] = "disallowed"
            return []
        reply = self._ask(host, target_of(url))
        manifest = self._read(url, UrlKind.PAGE, reply)
        self.outcomes[url] = {2: "page", 3: "redirect", 4: "missing"}[reply.status // 100]
        if reply.status == 200:
            self.digests[url] = hashlib.sha256(reply.body).hexdigest()
        if manifest.directives & NOINDEX:
            self.noindex.add(url)
        if manifest.directives & PAGE_NOFOLLOW:
            return []
        return [link.url for link in manifest.links if not link.rel & NOFOLLOW]

    def _ask(self, host: str, target: str) -> Reply:
        headers = {"host": f"{host}:{self._closed.port}"}
        return self._closed.answer(Request("GET", target, headers, "http", "", self._closed.port, 0))

    def _read(self, url: str, kind: UrlKind, reply: Reply) -> ParseManifest:
        answer = Answer(url, int(kind), reply.status, reply.head(keep_alive=True), reply.body)
        reading = self._registry.read(answer)
        assert isinstance(reading, Reading)
        return reading.manifest

    def _rules_of(self, host: str) -> RuleSet | None:
        if host not in self._rules:
            reply = self._ask(host, "/robots.txt")
            if reply.status == 301:
                reply = self._ask(host, "/robots-real.txt")
            url = f"http://{host}:{self._closed.port}/robots.txt"
            robots = self._read(url, UrlKind.ROBOTS, reply).robots if reply.status == 200 else None
            self._rules[host] = None if robots is None else RuleSet(robots)
        return self._rules[host]


@pytest.mark.parametrize("seed", [1, 2])
def test_what_amble_reads_from_the_closed_set_is_its_truth(seed: int) -> None:
    closed = ClosedSet(sites=8, pages=600, seed=seed, port=8080)
    reader = Reader(closed)
    reader.crawl()
    urls: dict[str, dict[str, Any]] = closed.truth(digests=True)["urls"]
    wanted = {u: f["outcome"] for u, f in urls.items() if f["outcome"] not in ("robots", "nofollow")}
    assert reader.outcomes == wanted
    assert reader.noindex == {u for u, f in urls.items() if f.get("index") is False}
    assert reader.digests == {u: f["sha256"] for u, f in urls.items() if f["outcome"] == "page"}
