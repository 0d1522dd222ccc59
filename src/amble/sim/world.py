"""A seeded web: sites, pages, robots rules, names. It answers requests, logs each one, and knows what is true of it.

The log and the truth are the judges' evidence: nothing in them comes from the code under test.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from amble.domain.decision import Category
from amble.domain.fetched import Timings
from amble.domain.policy import FetchLimits
from amble.ports import Ask, FetchFailure, Permit, Reply, Resolved, ResolveFailure
from amble.sim.clock import Dice, VirtualLoop, current_actor
from amble.sim.faults import Fault, Profile, Weather
from amble.sim.history import History, Request, RobotsAnswer

PAGES_PER_SITE_MAX = 24
# The paths under which a site never ends: a calendar of days and a chain of redirects.
DAY, HOP = "/day/", "/hop/"
POISON = b"<!-- poison -->"
FORBIDDEN = ("10.0.0.7", "127.0.0.1", "169.254.169.254", "192.168.1.1", "::1", "fd00::1")
_WORDS = ["river", "stone", "lamp", "window", "harvest", "copper", "letter", "garden", "bridge", "winter", "paper", "engine", "island", "morning", "basket", "silver", "valley", "thunder", "carpet", "orchard"]  # fmt: skip
# Words of a page, and of those that nearly repeat each other. Texts of under 30 words have no fingerprint.
_SHORT, _LONG = 36, 60


class Kind(StrEnum):
    """What a page is."""

    PLAIN = "plain"
    REDIRECT = "redirect"
    MISSING = "missing"
    GONE = "gone"
    BROKEN = "broken"
    NOINDEX = "noindex"
    NOFOLLOW = "nofollow"
    CANONICAL = "canonical"
    TWIN = "twin"
    NEAR_TWIN = "near_twin"
    CHANGING = "changing"
    POISONED = "poisoned"
    EMPTY = "empty"
    BINARY = "binary"
    SITEMAP = "sitemap"
    DAY = "day"
    HOP = "hop"


# Kinds whose links are there to be followed.
_LINKING = (
    Kind.PLAIN,
    Kind.PLAIN,
    Kind.PLAIN,
    Kind.PLAIN,
    Kind.NOINDEX,
    Kind.CHANGING,
    Kind.PLAIN,
    Kind.PLAIN,
)
_LEAVES = (
    Kind.REDIRECT, Kind.REDIRECT, Kind.MISSING, Kind.GONE, Kind.BROKEN, Kind.NOFOLLOW, Kind.CANONICAL, Kind.TWIN,
    Kind.TWIN, Kind.NEAR_TWIN, Kind.NEAR_TWIN, Kind.POISONED, Kind.EMPTY, Kind.BINARY, Kind.PLAIN, Kind.PLAIN,
)  # fmt: skip


class Nature(StrEnum):
    """How a site's server behaves all its life."""

    HEALTHY = "healthy"
    SLOW = "slow"
    DEAD = "dead"  # connections time out
    REFUSING = "refusing"  # connections are refused
    NAMELESS = "nameless"  # its name has never existed


class RobotsKind(StrEnum):
    """What asking for robots.txt brings."""

    RULES = "rules"
    EMPTY = "empty"
    MISSING = "missing"  # 404
    FORBIDDEN = "forbidden"  # 403
    ERROR = "error"  # 503
    THROTTLED = "throttled"  # 429
    HANGS = "hangs"
    GARBAGE = "garbage"  # an HTML page
    ELSEWHERE = "elsewhere"  # a redirect to another origin
    CIRCLE = "circle"  # a redirect to itself


_NEVER = (Nature.DEAD, Nature.REFUSING, Nature.NAMELESS)
_NO_RULES = (RobotsKind.ERROR, RobotsKind.THROTTLED, RobotsKind.HANGS, RobotsKind.CIRCLE)


@dataclass(frozen=True, slots=True)
class RobotsSpec:
    """The robots.txt of a site from some moment on."""

    kind: RobotsKind
    disallow: tuple[str, ...] = ()
    delay_s: int = 0
    max_age_s: int = 600


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `links` are canonical URLs in order; `target` is where a redirect or a canonical points."""

    kind: Kind
    links: tuple[str, ...] = ()
    target: str = ""


@dataclass(slots=True)
class Site:
    """One origin."""

    origin: str
    host: str
    address: str
    nature: Nature
    robots: RobotsSpec
    pages: dict[str, Page] = field(default_factory=dict)
    endless: bool = False
    rules_at: str = ""  # path at which the rules lie when robots.txt redirects to another site
    # Name server's answer for the host: "" as it should be, else "missing" or a forbidden address.
    dns: str = ""


class MemoryBody:
    """ports.ReplayableBody in memory."""

    __slots__ = ("_data", "_digest")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._digest = hashlib.sha256(data).digest()

    @property
    def length(self) -> int:
        """Bytes in all."""
        return len(self._data)

    @property
    def digest(self) -> bytes:
        """sha256."""
        return self._digest

    def pieces(self) -> Iterator[bytes]:
        """At once."""
        if self._data:
            yield self._data

    def close(self) -> None:
        """Nothing to let go of."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server sends."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    # What a robots.txt says, for the judges: the prefixes it forbids, the delay it asks for.
    disallow: tuple[str, ...] = ()
    delay_s: int = 0


class World:
    """All sites of a seed."""

    def __init__(
        self, seed: int, profile: Profile, weather: Weather, history: History, loop: VirtualLoop
    ) -> None:
        self.history, self.weather, self._loop = history, weather, loop
        self._dice = Dice(seed, "world")
        self._latency = Dice(seed, "latency")
        # The world's own timers belong to nobody who can be killed.
        self._context = contextvars.copy_context()
        self.sites: dict[str, Site] = {}
        self.by_host: dict[str, Site] = {}
        self.seeds: tuple[str, ...] = ()
        self.resolver_silent = False
        self.active: dict[str, int] = {}
        self.on_start: Callable[[Request], None] = lambda _: None
        self._build(profile)

    # -- making it --------------------------------------------------------------------------------------------------

    def _build(self, profile: Profile) -> None:
        dice = self._dice
        count, total = dice.whole(*profile.origins), dice.whole(*profile.pages)
        weights = [1.0 / (rank + 1) for rank in range(count)]
        for number in range(count):
            self._add_site(number, alone=number == 0)
        sites = list(self.sites.values())
        for site, weight in zip(sites, weights, strict=True):
            share = round(total * weight / sum(weights))
            self._add_pages(site, max(2, min(PAGES_PER_SITE_MAX, share)))
        for site in sites:
            self._redirect_rules(site, sites)
        self._link_sites(sites)
        self.seeds = tuple(
            f"{site.origin}/" for number, site in enumerate(sites) if number == 0 or dice.chance(0.2)
        )

    def _add_site(self, number: int, *, alone: bool) -> None:
        dice = self._dice
        host = f"h{number}.example"
        origin = f"{'https' if dice.chance(0.3) else 'http'}://{host}"
        nature = Nature.HEALTHY
        if not alone and dice.chance(0.3):
            nature = dice.one_of((Nature.SLOW, Nature.SLOW, Nature.DEAD, Nature.REFUSING, Nature.NAMELESS))
        robots = self._robots_spec(RobotsKind.RULES if alone else None)
        address = f"45.{dice.whole(1, 250)}.{dice.whole(0, 250)}.{number + 1}"
        site = Site(origin, host, address, nature, robots, endless=dice.chance(0.25))
        if nature is Nature.NAMELESS:
            site.dns = "missing"
        self.sites[origin] = self.by_host[host] = site

    def _robots_spec(self, kind: RobotsKind | None = None) -> RobotsSpec:
        dice = self._dice
        if kind is None:
            kind = RobotsKind.RULES if dice.chance(0.5) else dice.one_of(tuple(RobotsKind))
        disallow = dice.one_of(((), ("/private",), ("/private", "/p1"), ("/private",)))
        return RobotsSpec(kind, disallow, dice.one_of((0, 0, 0, 3, 5)), dice.one_of((60, 120, 300, 600)))

    def _add_pages(self, site: Site, count: int) -> None:
        dice = self._dice
        paths = ["/", *(f"/{'private/' if dice.chance(0.15) else ''}p{number}" for number in range(1, count))]
        kinds = [
            Kind.PLAIN if number == 0 else dice.one_of(_LINKING if dice.chance(0.55) else _LEAVES)
            for number in range(count)
        ]
        links: list[list[str]] = [[] for _ in paths]
        linking = [0]
        for number in range(1, count):
            links[dice.one_of(linking)].append(site.origin + paths[number])
            if kinds[number] in _LINKING:
                linking.append(number)
        for number in linking:
            links[number] += [site.origin + dice.one_of(paths) for _ in range(dice.whole(0, 4))]
        if site.endless:
            links[0] += [f"{site.origin}{DAY}1", f"{site.origin}{HOP}1"]
        for number, path in enumerate(paths):
            target = ""
            if kinds[number] in (Kind.REDIRECT, Kind.CANONICAL):
                target = site.origin + dice.one_of(paths)
            site.pages[path] = Page(kinds[number], tuple(dict.fromkeys(links[number])), target)
        if dice.chance(0.3):
            site.pages["/sitemap.xml"] = Page(Kind.SITEMAP, tuple(site.origin + path for path in paths[:6]))

    def _redirect_rules(self, site: Site, sites: list[Site]) -> None:
        if site.robots.kind is not RobotsKind.ELSEWHERE:
            return
        others = [other for other in sites if other is not site]
        host = self._dice.one_of(others)
        site.rules_at = f"{host.origin}/rules-of-{site.host}"

    def _link_sites(self, sites: list[Site]) -> None:
        dice = self._dice
        for site in sites[1:]:
            home = sites[0].pages["/"]
            sites[0].pages["/"] = Page(home.kind, (*home.links, f"{site.origin}/"))
        for site in sites:
            for path, page in list(site.pages.items()):
                if page.kind in (Kind.PLAIN, Kind.CHANGING) and dice.chance(0.3):
                    other = dice.one_of(sites)
                    there = other.origin + dice.one_of(tuple(other.pages))
                    site.pages[path] = Page(
                        page.kind, tuple(dict.fromkeys((*page.links, there))), page.target
                    )
                elif page.kind is Kind.REDIRECT and dice.chance(0.4):
                    other = dice.one_of(sites)
                    site.pages[path] = Page(
                        page.kind, page.links, other.origin + dice.one_of(tuple(other.pages))
                    )

    # -- the truth --------------------------------------------------------------------------------------------------

    def page_at(self, url: str) -> Page | None:
        """The page at a canonical URL, as long as it is no robots.txt."""
        origin, path = _split(url)
        site = self.sites.get(origin)
        if site is None:
            return None
        if path.startswith(DAY) and site.endless:
            number = int(path[len(DAY) :])
            return Page(Kind.DAY, (f"{origin}{DAY}{number + 1}", f"{origin}{DAY}{2 * number}"))
        if path.startswith(HOP) and site.endless:
            return Page(Kind.HOP, (), f"{origin}{HOP}{int(path[len(HOP) :]) + 1}")
        return site.pages.get(path)

    def is_endless(self, url: str) -> bool:
        """Whether the URL belongs to what never ends."""
        path = _split(url)[1]
        return path.startswith((DAY, HOP))

    def is_lost(self, origin: str) -> bool:
        """Whether the pages of an origin can never be had: no server, no name, or no robots.txt."""
        site = self.sites.get(origin)
        if site is None or site.nature in _NEVER:
            return True
        if site.robots.kind is RobotsKind.ELSEWHERE:
            return self.sites[_split(site.rules_at)[0]].nature in _NEVER
        return site.robots.kind in _NO_RULES

    # -- serving ----------------------------------------------------------------------------------------------------

    def begin(self, permit: Permit, agent: str) -> Request:
        """A connection is made: it counts from here."""
        origin, path = _split(permit.url)
        request = Request(
            number=len(self.history.requests), started_s=self._loop.time(), url=permit.url, origin=origin, path=path,
            address=permit.address, agent=agent, epoch=permit.epoch,
        )  # fmt: skip
        self.history.requests.append(request)
        self.active[origin] = self.active.get(origin, 0) + 1
        self.history.tell(agent, "request", f"{permit.url} at {permit.address} epoch {permit.epoch}")
        self.on_start(request)
        return request

    def end(self, request: Request, outcome: str = "") -> None:
        """The server has nothing more to do with it."""
        if request.ended_s is not None:
            return
        request.ended_s = self._loop.time()
        request.outcome = outcome
        self.active[request.origin] -= 1
        self.history.tell(request.agent, "request over", f"{request.url} {request.status or outcome}")

    def end_later(self, request: Request, seconds: float) -> None:
        """The server's side of it ends by itself, whether or not the client still lives."""
        self._loop.call_later(seconds, self.end, request, context=self._context)

    def service_s(self, site: Site) -> float:
        """How long this answer takes."""
        low, high = (0.4, 2.5) if site.nature is Nature.SLOW else (0.02, 0.3)
        return self._latency.between(low, high)

    def answer(self, url: str, headers: dict[str, str]) -> Answer:
        """What the site says to a request that gets through."""
        origin, path = _split(url)
        site = self.sites[origin]
        if path == "/robots.txt":
            return self._robots_answer(site)
        if path.startswith("/rules-of-"):
            owner = self.by_host[path[len("/rules-of-") :]]
            return self._rules_text(owner)
        page = self.page_at(url)
        if page is None:
            return Answer(404, b"<p>nothing here</p>", (("Content-Type", "text/html"),))
        return self._page_answer(url, page, headers)

    def _robots_answer(self, site: Site) -> Answer:
        match site.robots.kind:
            case RobotsKind.RULES:
                return self._rules_text(site)
            case RobotsKind.EMPTY:
                return Answer(200, b"", (("Content-Type", "text/plain"),))
            case RobotsKind.MISSING:
                return Answer(404, b"no", (("Content-Type", "text/plain"),))
            case RobotsKind.FORBIDDEN:
                return Answer(403, b"no", (("Content-Type", "text/plain"),))
            case RobotsKind.ERROR | RobotsKind.HANGS:
                return Answer(503, b"later")
            case RobotsKind.THROTTLED:
                return Answer(429, b"slow down", (("Retry-After", "30"),))
            case RobotsKind.GARBAGE:
                return Answer(200, b"<html><p>Disallow nothing</p></html>", (("Content-Type", "text/html"),))
            case RobotsKind.ELSEWHERE:
                return Answer(302, b"", (("Location", site.rules_at),))
            case RobotsKind.CIRCLE:
                return Answer(301, b"", (("Location", f"{site.origin}/robots.txt"),))

    def _rules_text(self, site: Site) -> Answer:
        spec = site.robots
        lines = ["User-agent: *", *(f"Disallow: {prefix}" for prefix in spec.disallow)]
        if spec.delay_s:
            lines.append(f"Crawl-delay: {spec.delay_s}")
        if "/sitemap.xml" in site.pages:
            lines.append(f"Sitemap: {site.origin}/sitemap.xml")
        headers = (("Content-Type", "text/plain"), ("Cache-Control", f"max-age={spec.max_age_s}"))
        return Answer(200, "\n".join(lines).encode() + b"\n", headers, spec.disallow, spec.delay_s)

    def _page_answer(self, url: str, page: Page, headers: dict[str, str]) -> Answer:
        html = (("Content-Type", "text/html; charset=utf-8"),)
        match page.kind:
            case Kind.REDIRECT | Kind.HOP:
                return Answer(302, b"", (("Location", page.target),))
            case Kind.MISSING:
                return Answer(404, b"<p>not here</p>", html)
            case Kind.GONE:
                return Answer(410, b"<p>gone</p>", html)
            case Kind.BROKEN:
                return Answer(500, b"<p>broken</p>", html)
            case Kind.EMPTY:
                return Answer(200, b"", html)
            case Kind.BINARY:
                return Answer(200, b"\x89PNG\r\n\x1a\n" + bytes(64), (("Content-Type", "image/png"),))
            case Kind.SITEMAP:
                return Answer(200, _sitemap(page), (("Content-Type", "application/xml"),))
        body = self._html(url, page)
        etag = f'"{hashlib.sha256(body).hexdigest()[:12]}"'
        if headers.get("if-none-match") == etag:
            return Answer(304, b"", (("ETag", etag),))
        return Answer(200, body, (*html, ("ETag", etag)))

    def _html(self, url: str, page: Page) -> bytes:
        head = ""
        if page.kind is Kind.NOINDEX:
            head = '<meta name="robots" content="noindex">'
        elif page.kind is Kind.NOFOLLOW:
            head = '<meta name="robots" content="nofollow">'
        elif page.kind is Kind.CANONICAL:
            head = f'<link rel="canonical" href="{page.target}">'
        if page.kind is Kind.TWIN:
            text, title = _words("every twin", _LONG), "twin"
        elif page.kind is Kind.NEAR_TWIN:
            text, title = f"{_words('every near twin', _LONG)} {url}", "near twin"
        else:
            text, title = _words(url), url
        if page.kind is Kind.CHANGING:
            text += f" as of {int(self._loop.time() // 40)}"
        anchors = "".join(f'<a href="{link}">go</a>' for link in page.links)
        poison = POISON.decode() if page.kind is Kind.POISONED else ""
        return f"<html><title>{title}</title>{head}<p>{text}</p>{anchors}{poison}</html>".encode()

    # -- robots as the web knows it ----------------------------------------------------------------------------------

    def note_robots(self, request: Request, answer: Answer | None) -> None:
        """An attempt at some origin's rules has ended; a redirect is followed before anything is known."""
        owner = request.origin
        if request.path.startswith("/rules-of-"):
            owner = self.by_host[request.path[len("/rules-of-") :]].origin
        elif request.path != "/robots.txt":
            return
        circle = self.sites[owner].robots.kind is RobotsKind.CIRCLE
        if answer is not None and answer.status in (301, 302) and not circle:
            return
        disallow: tuple[str, ...] | None = None
        delay_s, ruled = 0.0, False
        if answer is not None and 200 <= answer.status < 300:
            disallow, delay_s, ruled = answer.disallow, answer.delay_s, True
        elif answer is not None and 400 <= answer.status < 500 and answer.status not in (408, 425, 429):
            disallow = ()
        self.history.robots[owner].append(RobotsAnswer(self._loop.time(), disallow, delay_s, ruled))

    def change_robots(self, site: Site, dice: Dice) -> None:
        """The rules of a site are others from now on."""
        spec = site.robots
        disallow = dice.one_of(((), ("/private",), ("/",), ("/p2", "/private")))
        kind = dice.one_of((RobotsKind.RULES, RobotsKind.RULES, RobotsKind.ERROR, RobotsKind.MISSING))
        site.robots = RobotsSpec(kind, disallow, dice.one_of((0, 4)), spec.max_age_s)

    def calm(self) -> None:
        """The storm is over: what was only troubled works again; what is dead stays dead."""
        self.resolver_silent = False
        for site in self.sites.values():
            site.dns = "missing" if site.nature is Nature.NAMELESS else ""


class SimResolver:
    """ports.Resolver of one agent, with a cache by TTL."""

    def __init__(self, world: World, loop: VirtualLoop, dice: Dice) -> None:
        self._world, self._loop, self._dice = world, loop, dice
        self._cache: dict[str, tuple[float, Resolved | ResolveFailure]] = {}

    async def resolve(self, host: str) -> Resolved | ResolveFailure:
        """See ports.Resolver."""
        known = self._cache.get(host)
        if known is not None and known[0] > self._loop.time():
            return known[1]
        await asyncio.sleep(self._dice.between(0.002, 0.05))
        answer, ttl_s = self._ask(host)
        if ttl_s:
            self._cache[host] = (self._loop.time() + ttl_s, answer)
        return answer

    def _ask(self, host: str) -> tuple[Resolved | ResolveFailure, float]:
        world = self._world
        if world.resolver_silent:
            world.weather.note(Fault.DNS_SILENT)
            return ResolveFailure(Category.DNS_TIMEOUT, "the resolver is silent", unavailable=True), 0.0
        site = world.by_host.get(host)
        if site is None or site.dns == "missing":
            return ResolveFailure(Category.DNS_NOT_FOUND, f"{host} does not exist"), 5.0
        address = site.dns or site.address
        return Resolved((address,), 20.0), 20.0

    async def close(self) -> None:
        """See ports.Resolver."""


class SimTransport:
    """ports.Transport of one agent into the seeded web."""

    def __init__(self, world: World, loop: VirtualLoop, limits: FetchLimits) -> None:
        self._world, self._loop, self._limits = world, loop, limits

    async def fetch(self, permit: Permit, ask: Ask) -> Reply | FetchFailure:
        """See ports.Transport. The request is in the world's log from its start to its end, whoever ends it."""
        if self._loop.time() >= permit.deadline_s:
            return FetchFailure(Category.TIMEOUT_TOTAL, "the permit's deadline has passed")
        if self._loop.time() >= permit.start_by_s:
            return FetchFailure(Category.STALE_EPOCH, "the right to start it had ended")
        world = self._world
        request = world.begin(permit, current_actor().name)
        # A server lets go of a silent client in the end.
        world.end_later(request, self._limits.total_s)
        try:
            outcome = await self._exchange(request, permit, ask)
        finally:
            world.end(request, "left")
        if world.weather.strikes(Fault.WORKER_PAUSE):
            pause_s = world.weather.dice(Fault.WORKER_PAUSE).longtail(5.0, 200.0)
            world.history.tell(request.agent, "worker pauses", f"{permit.url} for {pause_s:.1f} s")
            await asyncio.sleep(pause_s)
        return outcome

    async def _exchange(self, request: Request, permit: Permit, ask: Ask) -> Reply | FetchFailure:
        world, limits = self._world, self._limits
        site = world.by_host[permit.host]
        if permit.address != site.address and not site.dns:
            # The name has moved; the old address still answers for a while.
            world.history.reached["address.old"] += 1
        if site.nature is Nature.DEAD:
            return await self._fails(request, limits.connect_s, Category.CONNECT_TIMEOUT)
        if site.nature is Nature.REFUSING:
            return await self._fails(request, 0.05, Category.CONNECT_REFUSED)
        hangs = request.path == "/robots.txt" and site.robots.kind is RobotsKind.HANGS
        if hangs or world.weather.strikes(Fault.SERVER_HANGS):
            return await self._fails(request, limits.first_byte_s, Category.TIMEOUT_FIRST_BYTE)
        service_s = world.service_s(site)
        if world.weather.strikes(Fault.SERVER_RESETS):
            return await self._fails(request, service_s, Category.CONNECT_RESET)
        if service_s >= permit.deadline_s - self._loop.time():
            return await self._fails(request, permit.deadline_s - self._loop.time(), Category.TIMEOUT_TOTAL)
        answer = self._troubled() or world.answer(permit.url, {n.lower(): v for n, v in ask.headers})
        truncated = ""
        if answer.status == 200 and len(answer.body) > 40 and world.weather.strikes(Fault.SERVER_DRIPS):
            truncated, service_s = "total", permit.deadline_s - self._loop.time()
        await asyncio.sleep(service_s)
        return self._reply(request, permit, answer, service_s, truncated)

    def _troubled(self) -> Answer | None:
        weather = self._world.weather
        if weather.strikes(Fault.SERVER_THROTTLES):
            return Answer(429, b"too many", self._retry_after(Fault.SERVER_THROTTLES))
        if weather.strikes(Fault.SERVER_ERROR):
            status = weather.dice(Fault.SERVER_ERROR).one_of((500, 502, 503))
            return Answer(status, b"trouble", self._retry_after(Fault.SERVER_ERROR))
        return None

    def _retry_after(self, fault: Fault) -> tuple[tuple[str, str], ...]:
        dice = self._world.weather.dice(fault)
        return (("Retry-After", str(dice.whole(1, 60))),) if dice.chance(0.5) else ()

    async def _fails(self, request: Request, seconds: float, category: Category) -> FetchFailure:
        started_s = self._loop.time()
        await asyncio.sleep(seconds)
        request.outcome = category.value
        self._world.end(request, category.value)
        self._world.note_robots(request, None)
        total_ms = int((self._loop.time() - started_s) * 1000)
        return FetchFailure(category, "simulated", Timings(total_ms=total_ms))

    def _reply(
        self, request: Request, permit: Permit, answer: Answer, service_s: float, truncated: str
    ) -> Reply:
        body = answer.body[: len(answer.body) // 2] if truncated else answer.body
        request.status, request.cut = answer.status, bool(truncated)
        request.retry_after_s = float(dict(answer.headers).get("Retry-After", "0"))
        self._world.end(request)
        self._world.note_robots(request, None if truncated else answer)
        lines = [f"HTTP/1.1 {answer.status} Said", *(f"{name}: {value}" for name, value in answer.headers)]
        lines.append(f"Content-Length: {len(answer.body)}")
        return Reply(
            status=answer.status,
            head="\r\n".join(lines).encode() + b"\r\n\r\n",
            headers={name.lower(): value for name, value in reversed(answer.headers)},
            body=MemoryBody(body),
            request=f"GET {permit.target} HTTP/1.1\r\nHost: {permit.host}\r\n\r\n".encode(),
            address=permit.address,
            timings=Timings(connect_ms=5, first_byte_ms=int(service_s * 500), total_ms=int(service_s * 1000)),
            wire_bytes=len(body) + 200,
            truncated=truncated,
        )

    def has_idle(self, permit_host: str, port: int, scheme: str) -> bool:
        """See ports.Transport."""
        return False

    async def close(self) -> None:
        """See ports.Transport."""


def _split(url: str) -> tuple[str, str]:
    slash = url.index("/", url.index("://") + 3)
    return url[:slash], url[slash:]


def _words(name: str, count: int = _SHORT) -> str:
    """A text that differs with its name, long enough for a fingerprint."""
    number = int.from_bytes(hashlib.shake_128(name.encode()).digest(count), "big")
    words = []
    for _ in range(count):
        number, place = divmod(number, len(_WORDS))
        words.append(_WORDS[place])
    return " ".join(words)


def _sitemap(page: Page) -> bytes:
    places = "".join(f"<url><loc>{link}</loc></url>" for link in page.links)
    return f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{places}</urlset>'.encode()
