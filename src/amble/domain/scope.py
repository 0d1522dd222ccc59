"""Which URLs belong to a crawl: the hosts, sites or prefixes of its seeds, and the operator's include and exclude rules.

A rule is a pattern (`domain/glob.py`: "*" any text, "$" the end, else a prefix). It is held against

- the path and query, when it begins with "/": `/docs/*.html$`;
- the whole URL, when it names a scheme or begins with "*": `https://example.org/a`, `*?print=`;
- the URL from its host on otherwise: `example.org/a`, `example.org:8080/`.

A rule that excludes wins over all else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from amble.domain.decision import Reason, Rejected
from amble.domain.glob import Glob, compile_glob
from amble.domain.policy import ScopeKind
from amble.domain.url import host_of, site_of


@dataclass(frozen=True, slots=True)
class _Rule:
    """One pattern, and from where in a URL it is matched."""

    text: str
    glob: Glob
    start: int  # 0 the scheme, 1 the host, 2 the path

    def matches(self, url: str) -> bool:
        if self.start == 0:
            return self.glob.matches(url)
        host = url.index("://") + 3
        return self.glob.matches(url[host if self.start == 1 else url.index("/", host) :])


def _rule_of(text: str) -> _Rule:
    if text.startswith("/"):
        start = 2
    elif text.startswith("*") or "://" in text:
        start = 0
    else:
        start = 1
    return _Rule(text, compile_glob(text), start)


class Scope:
    """What belongs to one crawl. Immutable.

    `seeds` are canonical URLs. `hosts` belong too, whatever the kind; "*.example.org" stands for every host below
    example.org. HOST: the seeds' hosts with and without "www.", under any scheme and port, since most sites redirect from
    one to the other. SITE: their registrable domains. PREFIX: what lies
    below the folder of a seed, under either scheme. ANY: everything.
    """

    __slots__ = ("_domains", "_exclude", "_hosts", "_include", "_kind", "_prefixes", "_sites")

    def __init__(
        self,
        kind: ScopeKind,
        seeds: Iterable[str] = (),
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        hosts: Iterable[str] = (),
    ) -> None:
        seeds = list(seeds)
        extra = [host.lower().rstrip(".") for host in hosts]
        self._kind = kind
        self._hosts = {host for host in extra if not host.startswith("*.")}
        self._domains = tuple(host[1:] for host in extra if host.startswith("*."))
        self._sites: set[str] = set()
        self._prefixes: tuple[str, ...] = ()
        if kind is ScopeKind.HOST:
            for seed in seeds:
                self._hosts |= _twins(host_of(seed))
        elif kind is ScopeKind.SITE:
            self._sites = {site_of(host_of(seed)) for seed in seeds}
        elif kind is ScopeKind.PREFIX:
            self._prefixes = tuple({_folder_of(seed) for seed in seeds})
        self._include = tuple(_rule_of(pattern) for pattern in include)
        self._exclude = tuple(_rule_of(pattern) for pattern in exclude)

    def judge(self, url: str) -> Rejected | None:
        """None when the canonical `url` belongs to the crawl, else why not."""
        if not self._within(url):
            return Rejected(Reason.OUT_OF_SCOPE, f"{host_of(url)} is outside the scope ({self._kind.value})")
        for rule in self._exclude:
            if rule.matches(url):
                return Rejected(Reason.EXCLUDED_BY_RULE, rule.text)
        if self._include and not any(rule.matches(url) for rule in self._include):
            return Rejected(Reason.OUT_OF_SCOPE, "no include pattern matches")
        return None

    def judge_auxiliary(self, url: str) -> Rejected | None:
        """As `judge` for sitemaps and feeds: they lead to pages, so include patterns and folders do not bind them."""
        if self._prefixes:
            authority = url[url.index("://") + 3 :].partition("/")[0]
            within = any(prefix.startswith(f"{authority}/") for prefix in self._prefixes)
        else:
            within = False
        if not within and not self._within(url):
            return Rejected(Reason.OUT_OF_SCOPE, f"{host_of(url)} is outside the scope ({self._kind.value})")
        return self.judge_seed(url)

    def judge_seed(self, url: str) -> Rejected | None:
        """As `judge` for a URL that the operator gave: only a rule of his own that excludes it speaks against it."""
        for rule in self._exclude:
            if rule.matches(url):
                return Rejected(Reason.EXCLUDED_BY_RULE, rule.text)
        return None

    def _within(self, url: str) -> bool:
        if self._kind is ScopeKind.ANY:
            return True
        host = host_of(url)
        if host in self._hosts or (self._domains and host.endswith(self._domains)):
            return True
        if self._sites:
            return site_of(host) in self._sites
        return bool(self._prefixes) and url[url.index("://") + 3 :].startswith(self._prefixes)


def _twins(host: str) -> set[str]:
    """A host name and the same name with or without "www."; an address stands alone."""
    if host.startswith("[") or "." not in host or host.rpartition(".")[2].isdigit():
        return {host}
    return {host, host.removeprefix("www.") if host.startswith("www.") else f"www.{host}"}


def _folder_of(url: str) -> str:
    """Host, port and path of a canonical URL up to the last "/" of the path, without scheme and query."""
    rest = url[url.index("://") + 3 :].partition("?")[0]
    return rest[: rest.rindex("/") + 1]
