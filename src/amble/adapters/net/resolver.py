"""Names to addresses by DNS, with a cache that also remembers refusals. Judges no address: the gate does.

Only DNS is asked. The hosts file counts for names that the operator listed, names under localhost are answered here
(RFC 6761 section 6.3), and an address is its own answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amble.domain.decision import Category
from amble.domain.errors import ConfigErrors
from amble.domain.url import site_of
from amble.ports import Clock, Resolved, ResolveFailure

if TYPE_CHECKING:
    # Loaded for the first query (25 ms): a crawl of addresses has none.
    import aiodns
    import pycares

# Types of records (RFC 1035, RFC 3596) and codes of c-ares.
_A: Final = 1
_AAAA: Final = 28
_LOOPBACK: Final = ("127.0.0.1", "::1")

_BAD_NAME: Final = 8
_NOT_FOUND: Final = frozenset({4, _BAD_NAME})
_TIMEOUT: Final = 12
_UNREACHABLE: Final = 11
# The nameserver answers, but says nothing of the name: SERVFAIL and REFUSED.
_NO_SERVICE: Final = frozenset({3, 6})
_NO_DATA: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolverLimits:
    """Bounds of resolving. An answer is kept for its TTL within `ttl_s_min` and `ttl_s_max`.

    `absent_ttl_s`: how long a name that does not exist stays refused; `failed_ttl_s`: one whose servers fail;
    `partner_s`: once there are IPv4 addresses, the longest wait for the other family, which some nameservers never
    answer for. `timeout_ttl_s`: a name nobody answered for; `unavailable_ttl_s`: while the nameserver itself is silent.
    `sites_failing_max`: with so many sites in a row that it has no answer for, the nameserver is to blame itself.
    """

    query_s: float = 2.0
    tries: int = 2
    partner_s: float = 1.0
    lookup_s: float = 10.0
    probe_s: float = 2.0
    ttl_s_min: float = 30.0
    ttl_s_max: float = 3600.0
    absent_ttl_s: float = 60.0
    failed_ttl_s: float = 15.0
    timeout_ttl_s: float = 5.0
    unavailable_ttl_s: float = 1.0
    addresses_max: int = 32
    cache_entries_max: int = 50_000
    concurrent_max: int = 100
    sites_failing_max: int = 3


@dataclass(frozen=True, slots=True)
class _Entry:
    """One remembered outcome and the monotonic time at which it lapses."""

    outcome: tuple[str, ...] | ResolveFailure
    expires_s: float


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one query brought: addresses with their TTL, or the error code of c-ares."""

    addresses: tuple[str, ...] = ()
    ttl_s: float = 0.0
    code: int = _NO_DATA


# The end of a lookup that no nameserver is to blame for.
_CLOSED = "the resolver is closed"


class DnsResolver:
    """Resolves over c-ares. Implements `ports.Resolver`. Use it from one event loop and `close` it there.

    `nameservers`: ADDR or ADDR:PORT, IPv6 in brackets when a port follows; empty: those of the system. Raises
    ConfigErrors if one of them is neither. `hosts_allowed`: names that the hosts file may answer for.
    """

    def __init__(
        self,
        nameservers: Sequence[str],
        clock: Clock,
        *,
        limits: ResolverLimits | None = None,
        hosts_allowed: Collection[str] = (),
        hosts_file: Path = Path("/etc/hosts"),
    ) -> None:
        self._limits = limits or ResolverLimits()
        self._nameservers = _checked(nameservers)
        self._clock = clock
        self._hosts = read_hosts(hosts_file, hosts_allowed) if hosts_allowed else {}
        self._cache: OrderedDict[str, _Entry] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[_Entry]] = {}
        self._slots = asyncio.Semaphore(self._limits.concurrent_max)
        self._channel: aiodns.DNSResolver | None = None
        self._probe: asyncio.Task[bool] | None = None
        self._probed_s = 0.0
        self._witnesses = _Witnesses(self._limits.sites_failing_max)
        self._hearing: asyncio.Task[bool] | None = None
        self._heard_s = -math.inf
        self._closed = False
        # What callers are told who are left without an answer at the end: the last word on the nameserver.
        self._silence = "no nameserver has answered yet"

    async def resolve(self, host: str) -> Resolved | ResolveFailure:
        """All addresses of `host`; an IP literal resolves to itself. Callers for one name share one lookup."""
        if self._closed:
            return ResolveFailure(Category.DNS_FAILED, self._silence, unavailable=True)
        name = host.lower().rstrip(".")
        known = self._without_dns(name)
        if known:
            return Resolved(known, self._limits.ttl_s_max)
        entry = self._cache.get(name)
        now_s = self._clock.monotonic_s()
        if entry is None or entry.expires_s <= now_s:
            entry = await self._shared_lookup(name)
            now_s = self._clock.monotonic_s()
        else:
            self._cache.move_to_end(name)
        if isinstance(entry.outcome, ResolveFailure):
            return entry.outcome
        return Resolved(entry.outcome, max(0.0, entry.expires_s - now_s))

    async def close(self) -> None:
        """Stop. Lookups under way are cancelled, their callers get a failure."""
        self._closed = True
        tasks: list[asyncio.Task[_Entry] | asyncio.Task[bool]] = [*self._under_way.values()]
        tasks += [task for task in (self._probe, self._hearing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
        # c-ares reports cancelled queries to the loop from its own thread; let them arrive while there is a loop.
        await asyncio.sleep(0)

    # -- what needs no query ---------------------------------------------------------------------------------------

    def _without_dns(self, name: str) -> tuple[str, ...]:
        if name == "localhost" or name.endswith(".localhost"):
            return _LOOPBACK
        listed = self._hosts.get(name)
        if listed is not None:
            return listed
        return _literal(name)

    # -- lookups ---------------------------------------------------------------------------------------------------

    async def _shared_lookup(self, name: str) -> _Entry:
        task = self._under_way.get(name)
        if task is None:
            task = asyncio.create_task(self._lookup(name), name=f"resolve {name}")
            self._under_way[name] = task
            task.add_done_callback(lambda _: self._under_way.pop(name, None))
        try:
            # A caller that gives up must not take the answer away from the others.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            failure = ResolveFailure(Category.DNS_FAILED, self._silence, unavailable=True)
            return _Entry(failure, 0.0)

    async def _lookup(self, name: str) -> _Entry:
        async with self._slots:
            answers = await self._ask_both(name)
        addresses = [address for answer in answers for address in answer.addresses]
        now_s = self._clock.monotonic_s()
        if addresses:
            shortest_s = min(answer.ttl_s for answer in answers if answer.addresses)
            ttl_s = min(max(shortest_s, self._limits.ttl_s_min), self._limits.ttl_s_max)
            entry = _Entry(tuple(addresses[: self._limits.addresses_max]), now_s + ttl_s)
            self._witnesses.served(name)
            self._silence = _CLOSED
        else:
            failure, ttl_s = await self._explain(name, answers)
            # A nameserver that answers again is not blamed for what ends with the resolver.
            self._silence = failure.detail if failure.unavailable else _CLOSED
            entry = _Entry(failure, self._clock.monotonic_s() + ttl_s)
        self._remember(name, entry)
        return entry

    def _remember(self, name: str, entry: _Entry) -> None:
        self._cache[name] = entry
        self._cache.move_to_end(name)
        while len(self._cache) > self._limits.cache_entries_max:
            self._cache.popitem(last=False)

    async def _ask_both(self, name: str) -> tuple[_Answer, _Answer]:
        channel = self._open_channel()
        try:
            futures = (channel.query_dns(name, "A"), channel.query_dns(name, "AAAA"))
        except ValueError:  # a name that cannot be put into a query, such as one that is not ASCII
            bad = _Answer(code=_BAD_NAME)
            return bad, bad
        try:
            async with asyncio.timeout(self._limits.lookup_s):
                first = await _settle(futures[0], _A)
                return first, await self._partner(first, futures[1])
        except TimeoutError:
            late = _Answer(code=_TIMEOUT)
            return late, late
        finally:
            for future in futures:
                future.cancel()

    async def _partner(self, first: _Answer, future: asyncio.Future[pycares.DNSResult]) -> _Answer:
        if not first.addresses:
            return await _settle(future, _AAAA)
        try:
            async with asyncio.timeout(self._limits.partner_s):
                return await _settle(future, _AAAA)
        except TimeoutError:
            return _Answer(code=_TIMEOUT)

    def _open_channel(self) -> aiodns.DNSResolver:
        if self._channel is None:
            self._channel = self._new_channel(self._limits.query_s, self._limits.tries)
        return self._channel

    def _new_channel(self, query_s: float, tries: int) -> aiodns.DNSResolver:
        import aiodns

        return aiodns.DNSResolver(self._nameservers or None, timeout=query_s, tries=tries, lookups="b")

    # -- failures --------------------------------------------------------------------------------------------------

    async def _explain(self, name: str, answers: Iterable[_Answer]) -> tuple[ResolveFailure, float]:
        """Why there is no address, and how long to remember that (seconds)."""
        codes = {answer.code for answer in answers}
        limits = self._limits
        if codes & _NOT_FOUND or codes == {_NO_DATA}:
            self._witnesses.served(None)
        if codes & _NOT_FOUND:
            return ResolveFailure(Category.DNS_NOT_FOUND, "the name does not exist"), limits.absent_ttl_s
        if codes == {_NO_DATA}:
            return ResolveFailure(Category.DNS_NOT_FOUND, "the name has no address"), limits.absent_ttl_s
        if codes & {_TIMEOUT, _UNREACHABLE}:
            if not await self._nameserver_answers():
                failure = ResolveFailure(Category.DNS_TIMEOUT, "no nameserver answers", unavailable=True)
                return failure, limits.unavailable_ttl_s
            return ResolveFailure(Category.DNS_TIMEOUT, "no answer for this name"), limits.timeout_ttl_s
        import pycares

        code = next(code for code in codes if code != _NO_DATA)
        said = str(pycares.errno.strerror(code))
        if codes <= _NO_SERVICE and await self._serves_nobody(name):
            failure = ResolveFailure(
                Category.DNS_FAILED, f"the nameserver has no answer for any name: {said}", unavailable=True
            )
            return failure, limits.unavailable_ttl_s
        return ResolveFailure(Category.DNS_FAILED, said), limits.failed_ttl_s

    async def _serves_nobody(self, name: str) -> bool:
        """Whether the nameserver fails for every site, and not only for that of `name`. Asks for others anew."""
        self._witnesses.failed(name)
        now_s = self._clock.monotonic_s()
        if self._hearing is None or (
            self._hearing.done() and now_s - self._heard_s > self._limits.unavailable_ttl_s
        ):
            self._heard_s = now_s
            self._hearing = asyncio.create_task(self._hear(name), name="probe names")
        return await asyncio.shield(self._hearing) and self._witnesses.damning

    async def _hear(self, name: str) -> bool:
        """Ask for names of other sites: those served last, and those that failed. False when one of them is served."""
        others = self._witnesses.others(name)
        codes = await asyncio.gather(*(self._code_of(other) for other in others))
        if any(code is None or code in _NOT_FOUND or code == _NO_DATA for code in codes):
            self._witnesses.served(None)
            return False
        for other, code in zip(others, codes, strict=True):
            if code in _NO_SERVICE:
                self._witnesses.failed(other)
        if self._witnesses.damning:
            # What was said of them before is no word about them.
            for failing in self._witnesses.failing:
                self._cache.pop(failing, None)
        return True

    async def _code_of(self, name: str) -> int | None:
        """What a query brings that no cache answers; None: an answer."""
        from aiodns.error import DNSError

        channel = self._new_channel(self._limits.probe_s, 1)
        try:
            await channel.query_dns(name, "A")
        except DNSError as error:
            return int(error.args[0])
        else:
            return None
        finally:
            await channel.close()

    async def _nameserver_answers(self) -> bool:
        """Whether the nameserver answers anything at all: the root, which every resolver knows."""
        now_s = self._clock.monotonic_s()
        if self._probe is None or (self._probe.done() and now_s - self._probed_s > self._limits.probe_s):
            self._probed_s = now_s
            self._probe = asyncio.create_task(self._ask_root(), name="probe nameserver")
        return await asyncio.shield(self._probe)

    async def _ask_root(self) -> bool:
        # A channel of its own: the other one would answer from its cache and prove nothing.
        from aiodns.error import DNSError

        channel = self._new_channel(self._limits.probe_s, 1)
        try:
            await channel.query_dns(".", "NS")
        except DNSError as error:
            return error.args[0] not in (_TIMEOUT, _UNREACHABLE)
        else:
            return True
        finally:
            await channel.close()


class _Witnesses:
    """Which names were served last, and which have failed since without a name being served; one for each site."""

    __slots__ = ("_count", "_failing", "_served")

    def __init__(self, count: int) -> None:
        self._count = count
        self._served: OrderedDict[str, str] = OrderedDict()
        self._failing: dict[str, str] = {}

    @property
    def damning(self) -> bool:
        """So many sites have failed that the nameserver is to blame."""
        return len(self._failing) >= self._count

    @property
    def failing(self) -> list[str]:
        """A name of each site that has failed."""
        return list(self._failing.values())

    def served(self, name: str | None) -> None:
        """A name was answered for; None: it does not exist, or is known already."""
        self._failing.clear()
        if name is not None:
            site = site_of(name)
            self._served[site] = name
            self._served.move_to_end(site)
            if len(self._served) > self._count:
                self._served.popitem(last=False)

    def failed(self, name: str) -> None:
        """There was no answer for `name`. More sites than damn the nameserver need not be known."""
        if not self.damning:
            self._failing.setdefault(site_of(name), name)

    def others(self, name: str) -> list[str]:
        """Names to ask for before a judgement over that of `name`."""
        known = {**self._failing, **self._served}
        return [other for site, other in known.items() if site != site_of(name)]


async def _settle(future: asyncio.Future[pycares.DNSResult], kind: int) -> _Answer:
    """The outcome of one query. The TTL is the least of the chain of aliases and the addresses."""
    import pycares
    from aiodns.error import DNSError

    try:
        result = await future
    except DNSError as error:
        return _Answer(code=error.args[0])
    addresses = []
    for record in result.answer:
        if record.type == kind:
            assert isinstance(record.data, pycares.ARecordData | pycares.AAAARecordData)
            addresses.append(record.data.addr)
    if not addresses:
        return _Answer()
    return _Answer(tuple(addresses), float(min(record.ttl for record in result.answer)))


@lru_cache(maxsize=16_384)
def _literal(name: str) -> tuple[str, ...]:
    """An address that is written as one; nothing for a name."""
    if ":" not in name and not name[-1:].isdigit():
        return ()
    try:
        return (str(ipaddress.ip_address(name.strip("[]"))),)
    except ValueError:
        return ()


def read_hosts(path: Path, allowed: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """The addresses that a hosts file gives for the allowed names. Empty when there is no such file."""
    wanted = {name.lower().rstrip(".") for name in allowed}
    found: dict[str, list[str]] = {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return {}
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        try:
            canonical = str(ipaddress.ip_address(address))
        except ValueError:
            continue
        for name in wanted.intersection(item.lower().rstrip(".") for item in names):
            addresses = found.setdefault(name, [])
            if canonical not in addresses:
                addresses.append(canonical)
    return {name: tuple(addresses) for name, addresses in found.items()}


def _checked(nameservers: Iterable[str]) -> list[str]:
    """The nameservers in the spelling of c-ares, all mistakes reported together."""
    good: list[str] = []
    problems: list[str] = []
    for text in nameservers:
        try:
            good.append(_nameserver(text))
        except ValueError:
            problems.append(f"nameserver {text!r} is not ADDR or ADDR:PORT")
    if problems:
        raise ConfigErrors(problems)
    return good


def _nameserver(text: str) -> str:
    try:
        address, port = ipaddress.ip_address(text), 53
    except ValueError:
        host, _, number = text.rpartition(":")
        address, port = ipaddress.ip_address(host.removeprefix("[").removesuffix("]")), int(number)
    if not 1 <= port <= 65535:
        raise ValueError(text)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
