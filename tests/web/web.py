"""The whole test web in one value: which host is served by what, at which address, and the servers around it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.web.bench import BenchSite
from tests.web.closed import ClosedSet, closed_set
from tests.web.control import Control
from tests.web.dns import DnsServer, Zone, special_names
from tests.web.message import Reply, Request, not_found
from tests.web.server import AccessLog, Answers, listen
from tests.web.sites import build_sites, near_duplicates

#: Every site lives in here; a canary outside of it, say at 127.66.0.1, stands for what no crawl may touch.
NEIGHBOURHOOD = "127.10.0.0/15"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to serve and where. Ports: 0 is any; `tls` None is no TLS, otherwise the folder for certificates."""

    port: int = 0
    dns_port: int = 0
    control_port: int = 0
    sites: int = 20
    pages: int = 5000
    seed: int = 1
    log: Path | None = None
    tls: Path | None = None
    bench_origins: int = 0
    bench_pages: int = 2000
    page_bytes: int = 90_000
    links: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Where everything is, once it runs."""

    port: int
    dns_port: int
    control_port: int
    tls_port: int = 0
    ca: str = ""
    seeds: Sequence[str] = field(default_factory=tuple)

    def json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Ready:
        """The reverse."""
        return cls(**json.loads(line))


def address(index: int) -> str:
    """The loopback address of site `index`."""
    return f"127.{10 + index // 62_500}.{index // 250 % 250}.{index % 250 + 1}"


class Web:
    """Hosts, addresses and overrides: answers every request on every port."""

    def __init__(self, settings: Settings, zone: Zone, control: Control, port: int) -> None:
        self._control = control
        self.closed: ClosedSet | None = None
        self.bench: BenchSite | None = None
        self._by_host: dict[str, Answers] = {}
        self._by_address: dict[str, str] = {}
        for host, site in build_sites().items():
            self._place(host, site, zone)
        if settings.sites:
            self.closed = closed_set(settings.sites, settings.pages, settings.seed, port)
            for host in self.closed.hosts:
                self._place(host, self.closed, zone)
        for shared in (2, 3):
            zone.names[f"shared-ip-{shared}.test"] = zone.names["shared-ip-1.test"]
        zone.wildcards["trap-hosts.test"] = zone.names["trap-hosts.test"]
        self._by_address["::1"] = "plain.test"
        special_names(zone, zone.names["plain.test"].turns[0][0])
        if settings.bench_origins:
            self.bench = BenchSite(
                origins=settings.bench_origins,
                pages=settings.bench_pages,
                page_bytes=settings.page_bytes,
                links=settings.links,
                port=port,
            )
            for host in self.bench.hosts():
                self._place(host, self.bench, zone)

    def _place(self, host: str, site: Answers, zone: Zone) -> None:
        where = address(len(self._by_host))
        self._by_host[host] = site
        self._by_address[where] = host
        zone.add(host, where)

    @property
    def seeds(self) -> list[str]:
        """What to crawl: the bench origins if there are any, else the closed set."""
        if self.bench is not None:
            return self.bench.seeds
        return self.closed.seeds if self.closed is not None else []

    def answer(self, request: Request) -> Reply:
        """By Host header; for an unknown one by address; for a special DNS name like plain.test."""
        host = request.host
        override = self._control.override(host)
        if override is not None and (told := override.answer(request)) is not None:
            return told
        reply = self._ask(host, request)
        if override is not None and override.delay_s:
            reply.delay_s = override.delay_s
        return reply

    def _ask(self, host: str, request: Request) -> Reply:
        site = self._by_host.get(host) or self._by_host.get(host.partition(".")[2])
        if site is not None:
            return site.answer(request)
        known = self._by_address.get(host) or self._by_address.get(request.address)
        if known is None:
            return not_found()
        as_sent = request.headers.get("host", "")
        request.headers["host"] = f"{known}:{request.port}"
        reply = self._by_host[known].answer(request)
        request.headers["host"] = as_sent  # the log tells what the crawler said
        return reply


class _Late:
    """Answers that are known only after the port is."""

    web: Answers

    def answer(self, request: Request) -> Reply:
        return self.web.answer(request)


async def serve(settings: Settings, ready: asyncio.Future[Ready], stop: asyncio.Event) -> None:
    """Run until `stop`; `ready` gets the ports as soon as everything answers."""
    zone, log, late = Zone(), AccessLog(settings.log), _Late()
    control = Control(zone, log)
    server, port = await listen(late, log, port=settings.port)
    web = late.web = Web(settings, zone, control, port)
    servers = [server, *await _listen6(late, log, port)]
    dns = DnsServer(zone)
    dns_port = await dns.start(port=settings.dns_port)
    control_server, control_port = await control.listen(settings.control_port)
    servers.append(control_server)
    tls_port, ca = 0, ""
    if settings.tls is not None:
        context, ca = _tls(settings.tls)
        tls_server, tls_port = await listen(late, log, tls=context)
        servers.append(tls_server)
    ready.set_result(
        Ready(
            port=port, dns_port=dns_port, control_port=control_port, tls_port=tls_port, ca=ca, seeds=web.seeds
        )
    )
    try:
        await stop.wait()
    finally:
        for each in servers:
            each.close()
        dns.close()
        log.close()


async def _listen6(answers: Answers, log: AccessLog, port: int) -> list[asyncio.Server]:
    """The same port of ::1, where this machine has IPv6 and the port is free there."""
    try:
        return [(await listen(answers, log, port=port, host="::1"))[0]]
    except OSError:
        return []


def _tls(folder: Path) -> tuple[ssl.SSLContext, str]:
    from tests.web.tls import server_context

    context, ca = server_context(folder)
    return context, str(ca)


def truth(settings: Settings, port: int, *, digests: bool = False) -> dict[str, Any]:
    """The truth of the closed set that these settings serve on `port`, and which pages of the other sites are alike."""
    alike = {"near_duplicates": near_duplicates(port)}
    if not settings.sites:
        return alike
    return closed_set(settings.sites, settings.pages, settings.seed, port).truth(digests=digests) | alike
