"""The promise of `ports.Resolver`, held against a real DNS server on loopback: answers, refusals, memory, outages."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pycares
import pytest
import uvloop

from amble.adapters.net import resolver as module
from amble.adapters.net.resolver import DnsResolver, ResolverLimits
from amble.domain.decision import Category
from amble.domain.errors import ConfigErrors
from amble.ports import Resolved, ResolveFailure
from tests.support.dns import AAAA, REFUSED, SERVFAIL, A, DnsResponder, Name

# For servers that say nothing; the patient ones do not fail on a busy machine.
QUICK = ResolverLimits(query_s=0.3, tries=1, partner_s=0.3, probe_s=0.3)
PATIENT = ResolverLimits(query_s=5.0)


class Hands:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


Make = Callable[..., DnsResolver]


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
async def server() -> AsyncIterator[DnsResponder]:
    names = {
        "both.test": Name(("127.0.0.1", "127.0.0.2", "::1")),
        "four.test": Name(("127.0.0.1",)),
        "six.test": Name(("::1",)),
        "alias.test": Name(alias="other.test", ttl_s=60),
        "other.test": Name(("127.0.0.1",), ttl_s=500),
        "loop.test": Name(alias="loop.test"),
        "dangling.test": Name(alias="missing.test"),
        "empty.test": Name(),
        "broken.test": Name(rcode=SERVFAIL),
        "refused.test": Name(rcode=REFUSED),
        "silent.test": Name(silent=(A, AAAA)),
        "silent-six.test": Name(("127.0.0.1",), silent=(AAAA,)),
        "brief.test": Name(("127.0.0.1",), ttl_s=0),
        "long.test": Name(("127.0.0.1",), ttl_s=1_000_000),
        "many.test": Name(tuple(f"127.0.1.{number}" for number in range(1, 60))),
        **{f"h{number}.test": Name(("127.0.0.1",)) for number in range(100)},
    }
    async with DnsResponder(names) as responder:
        yield responder


@pytest.fixture
async def make(server: DnsResponder, clock: Hands) -> AsyncIterator[Make]:
    made: list[DnsResolver] = []

    def build(*nameservers: str, limits: ResolverLimits = PATIENT, **more: object) -> DnsResolver:
        resolver = DnsResolver(nameservers or (server.address,), clock, limits=limits, **more)  # type: ignore[arg-type]
        made.append(resolver)
        return resolver

    yield build
    for resolver in made:
        await resolver.close()


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("both.test", ("127.0.0.1", "127.0.0.2", "::1")),
        ("BOTH.test.", ("127.0.0.1", "127.0.0.2", "::1")),
        ("four.test", ("127.0.0.1",)),
        ("six.test", ("::1",)),
        ("alias.test", ("127.0.0.1",)),
        ("silent-six.test", ("127.0.0.1",)),
    ],
)
async def test_a_name_has_all_its_addresses(make: Make, host: str, addresses: tuple[str, ...]) -> None:
    answer = await make(limits=_limits(host)).resolve(host)
    assert isinstance(answer, Resolved)
    assert answer.addresses == addresses


def _limits(host: str) -> ResolverLimits:
    return QUICK if "silent" in host else PATIENT


@pytest.mark.parametrize(
    ("host", "category"),
    [
        ("missing.test", Category.DNS_NOT_FOUND),
        ("dangling.test", Category.DNS_NOT_FOUND),
        ("empty.test", Category.DNS_NOT_FOUND),
        ("loop.test", Category.DNS_NOT_FOUND),
        ("two..dots", Category.DNS_NOT_FOUND),
        ("a" * 70 + ".test", Category.DNS_NOT_FOUND),
        ("name with space", Category.DNS_NOT_FOUND),
        ("broken.test", Category.DNS_FAILED),
        ("refused.test", Category.DNS_FAILED),
        ("silent.test", Category.DNS_TIMEOUT),
    ],
)
async def test_a_name_without_an_answer_is_refused_by_kind(make: Make, host: str, category: Category) -> None:
    failure = await make(limits=_limits(host)).resolve(host)
    assert isinstance(failure, ResolveFailure)
    assert failure.category is category
    assert failure.detail
    assert not failure.unavailable, "the nameserver answers other names"


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
    ],
)
async def test_an_address_resolves_to_itself(
    make: Make, server: DnsResponder, host: str, address: str
) -> None:
    answer = await make().resolve(host)
    assert isinstance(answer, Resolved)
    assert [socket.inet_pton(_family(text), text) for text in answer.addresses] == [
        socket.inet_pton(_family(address), address)
    ]
    assert not server.queries


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "a.b.localhost"])
async def test_localhost_never_goes_to_dns(make: Make, server: DnsResponder, host: str) -> None:
    answer = await make().resolve(host)
    assert isinstance(answer, Resolved)
    assert answer.addresses == ("127.0.0.1", "::1")
    assert not server.queries


@pytest.mark.parametrize("address", ["127.0.0.1:9", "[::1]:9"])
async def test_a_nameserver_that_is_not_there_is_to_blame_itself(make: Make, address: str) -> None:
    failure = await make(address).resolve("four.test")
    assert isinstance(failure, ResolveFailure)
    assert failure.unavailable


async def test_a_nameserver_that_went_silent_is_to_blame_itself(
    make: Make, server: DnsResponder, clock: Hands
) -> None:
    resolver = make(limits=QUICK)
    assert isinstance(await resolver.resolve("four.test"), Resolved)
    server.alive = False
    failure = await resolver.resolve("six.test")
    assert isinstance(failure, ResolveFailure)
    assert failure.unavailable
    assert isinstance(await resolver.resolve("four.test"), Resolved), "what is remembered still serves"
    server.alive = True
    clock.now_s += 2
    assert isinstance(await resolver.resolve("six.test"), Resolved), "an outage is not remembered for long"


async def test_a_second_nameserver_serves_while_the_first_is_down(make: Make, server: DnsResponder) -> None:
    answer = await make("127.0.0.1:9", server.address).resolve("four.test")
    assert isinstance(answer, Resolved)


async def test_an_answer_is_kept_for_the_least_ttl_of_its_chain(
    make: Make, server: DnsResponder, clock: Hands
) -> None:
    resolver = make()
    first = await resolver.resolve("alias.test")
    assert isinstance(first, Resolved)
    assert first.ttl_s == 60
    clock.now_s += 59
    later = await resolver.resolve("alias.test")
    assert isinstance(later, Resolved)
    assert later.ttl_s == 1
    assert server.queries["alias.test", A] == 1


@pytest.mark.parametrize(("host", "ttl_s"), [("brief.test", 30), ("long.test", 3600), ("four.test", 300)])
async def test_the_time_an_answer_is_kept_has_bounds(make: Make, host: str, ttl_s: float) -> None:
    answer = await make().resolve(host)
    assert isinstance(answer, Resolved)
    assert answer.ttl_s == ttl_s


async def test_a_changed_answer_is_seen_once_the_old_one_lapsed(
    make: Make, server: DnsResponder, clock: Hands
) -> None:
    resolver = make()
    await resolver.resolve("brief.test")
    server.names["brief.test"] = Name(("10.0.0.1",), ttl_s=0)
    kept = await resolver.resolve("brief.test")
    assert isinstance(kept, Resolved)
    assert kept.addresses == ("127.0.0.1",)
    clock.now_s += 30
    fresh = await resolver.resolve("brief.test")
    assert isinstance(fresh, Resolved)
    assert fresh.addresses == ("10.0.0.1",)


@pytest.mark.parametrize(
    ("host", "kept_s"), [("missing.test", 60.0), ("broken.test", 15.0), ("silent.test", 5.0)]
)
async def test_a_refusal_is_remembered_but_not_for_ever(
    make: Make, server: DnsResponder, clock: Hands, host: str, kept_s: float
) -> None:
    resolver = make(limits=_limits(host))
    await resolver.resolve(host)
    server.names[host] = Name(("127.0.0.1",))
    clock.now_s += kept_s - 0.01
    assert isinstance(await resolver.resolve(host), ResolveFailure)
    # c-ares remembers that a name does not exist for as long as the zone said; this zone said nothing.
    clock.now_s += 0.02
    assert isinstance(await resolver.resolve(host), Resolved)


async def test_callers_for_one_name_share_one_lookup(make: Make, server: DnsResponder) -> None:
    resolver = make(limits=ResolverLimits())
    server.hold()
    callers = [asyncio.create_task(resolver.resolve("both.test")) for _ in range(20)]
    while not server.queries["both.test", AAAA]:
        await asyncio.sleep(0.01)
    callers[0].cancel()
    server.release()
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert all(isinstance(answer, Resolved) for answer in answers[1:])
    assert server.queries["both.test", A] == server.queries["both.test", AAAA] == 1


async def test_lookups_at_once_are_bounded(make: Make, server: DnsResponder) -> None:
    resolver = make(limits=ResolverLimits(concurrent_max=3))
    server.hold()
    callers = [asyncio.create_task(resolver.resolve(f"h{number}.test")) for number in range(10)]
    while server.queries.total() < 6:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert server.queries.total() == 6, "three names, both families each"
    server.release()
    assert all(isinstance(answer, Resolved) for answer in await asyncio.gather(*callers))


async def test_the_cache_is_bounded_and_drops_what_was_used_least_recently(
    make: Make, server: DnsResponder, clock: Hands
) -> None:
    resolver = make(limits=ResolverLimits(cache_entries_max=10))
    for number in range(10):
        await resolver.resolve(f"h{number}.test")
    await resolver.resolve("h0.test")
    await resolver.resolve("h50.test")
    server.alive = False
    assert isinstance(await resolver.resolve("h0.test"), Resolved)
    assert len(resolver._cache) == 10
    assert "h1.test" not in resolver._cache


async def test_a_name_with_very_many_addresses_gives_a_bounded_number(make: Make) -> None:
    answer = await make(limits=ResolverLimits(addresses_max=8)).resolve("many.test")
    assert isinstance(answer, Resolved)
    assert len(answer.addresses) == 8


async def test_the_hosts_file_counts_for_listed_names_only(
    make: Make, server: DnsResponder, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(
        "# comment\n127.0.0.9 Listed.internal other # tail\n::1 listed.internal\nnonsense listed.internal\n\n"
        "127.0.0.9 listed.internal\n127.0.0.8 four.test\n"
    )
    resolver = make(hosts_allowed=["listed.internal"], hosts_file=hosts)
    answer = await resolver.resolve("LISTED.internal")
    assert isinstance(answer, Resolved)
    assert answer.addresses == ("127.0.0.9", "::1")
    assert not server.queries
    by_dns = await resolver.resolve("four.test")
    assert isinstance(by_dns, Resolved)
    assert by_dns.addresses == ("127.0.0.1",)


async def test_a_missing_hosts_file_is_an_empty_one(make: Make, tmp_path: Path) -> None:
    resolver = make(hosts_allowed=["four.test"], hosts_file=tmp_path / "absent")
    assert isinstance(await resolver.resolve("four.test"), Resolved)


async def test_closing_ends_lookups_under_way(make: Make, server: DnsResponder) -> None:
    resolver = make(limits=ResolverLimits())
    server.hold()
    caller = asyncio.create_task(resolver.resolve("both.test"))
    while not server.queries:
        await asyncio.sleep(0.01)
    await resolver.close()
    failure = await caller
    assert isinstance(failure, ResolveFailure)
    assert failure.unavailable
    assert isinstance(await resolver.resolve("four.test"), ResolveFailure)


async def test_the_end_does_not_hide_what_was_wrong_with_the_nameserver(make: Make) -> None:
    resolver = make("127.0.0.1:9")
    before = await resolver.resolve("four.test")
    await resolver.close()
    after = await resolver.resolve("six.test")
    assert isinstance(before, ResolveFailure)
    assert isinstance(after, ResolveFailure)
    assert after.detail == before.detail == "no nameserver answers"


async def test_the_end_does_not_blame_a_nameserver_that_answered(make: Make, server: DnsResponder) -> None:
    resolver = make(server.address)
    assert isinstance(await resolver.resolve("four.test"), Resolved)
    await resolver.close()
    after = await resolver.resolve("silent.test")
    assert isinstance(after, ResolveFailure)
    assert after.detail == "the resolver is closed"


@pytest.mark.parametrize("good", [(), ("127.0.0.1",), ("127.0.0.1:5353", "[::1]:53", "::1")])
async def test_nameservers_are_addresses_with_or_without_port(make: Make, good: tuple[str, ...]) -> None:
    make(*good)


def test_all_bad_nameservers_are_reported_together(clock: Hands) -> None:
    with pytest.raises(ConfigErrors) as caught:
        DnsResolver(["dns.example", "127.0.0.1", "1.2.3.4:99999", "1.2.3.4:x", ""], clock)
    assert len(caught.value.problems) == 4


def test_it_works_the_same_on_uvloop_and_leaves_nothing_behind(clock: Hands) -> None:
    async def run() -> None:
        async with DnsResponder({f"h{number}.test": Name(("127.0.0.1",)) for number in range(50)}) as server:
            resolver = DnsResolver([server.address], clock)
            names = [f"h{number}.test" for number in range(60)]
            answers = await asyncio.gather(*(resolver.resolve(name) for name in names))
            assert sum(isinstance(answer, Resolved) for answer in answers) == 50
            await resolver.close()
        assert len(asyncio.all_tasks()) == 1

    uvloop.run(run())
    asyncio.run(run())


def test_the_codes_and_types_are_those_of_the_library() -> None:
    codes = pycares.errno
    assert (module._NO_DATA, module._BAD_NAME) == (codes.ARES_ENODATA, codes.ARES_EBADNAME)
    assert (module._TIMEOUT, module._UNREACHABLE) == (codes.ARES_ETIMEOUT, codes.ARES_ECONNREFUSED)
    assert {codes.ARES_ENOTFOUND, codes.ARES_EBADNAME} == module._NOT_FOUND
    assert (pycares.QUERY_TYPE_A, pycares.QUERY_TYPE_AAAA) == (module._A, module._AAAA)


async def test_a_nameserver_that_fails_for_every_site_is_to_blame_itself_until_it_serves_one(
    make: Make, server: DnsResponder, clock: Hands
) -> None:
    hosts = [f"www.site{number}.test" for number in range(4)]
    server.names |= {host: Name(rcode=(SERVFAIL, REFUSED)[number % 2]) for number, host in enumerate(hosts)}
    resolver = make()
    found = [await resolver.resolve(host) for host in hosts]
    assert [isinstance(one, ResolveFailure) and one.unavailable for one in found] == [
        False,
        False,
        True,
        True,
    ]

    server.names[hosts[1]] = Name(("127.0.0.1",))
    clock.now_s += 3
    last = await resolver.resolve(hosts[3])
    assert isinstance(last, ResolveFailure)
    assert not last.unavailable


async def test_names_that_were_served_before_tell_that_the_nameserver_fails_for_all(
    make: Make, server: DnsResponder
) -> None:
    hosts = [f"www.site{number}.test" for number in range(3)]
    server.names |= {host: Name(("127.0.0.1",)) for host in hosts[:2]}
    resolver = make()
    for host in hosts[:2]:
        await resolver.resolve(host)
    server.names |= {host: Name(rcode=SERVFAIL) for host in hosts}
    failed = await resolver.resolve(hosts[2])
    assert isinstance(failed, ResolveFailure)
    assert failed.unavailable


async def test_sites_with_broken_dns_do_not_blame_a_nameserver_that_serves_others(
    make: Make, server: DnsResponder, clock: Hands
) -> None:
    server.names |= {f"www.site{number}.test": Name(rcode=SERVFAIL) for number in range(8)}
    resolver = make()
    await resolver.resolve("four.test")
    for number in range(8):
        clock.now_s += 3
        failed = await resolver.resolve(f"www.site{number}.test")
        assert isinstance(failed, ResolveFailure)
        assert not failed.unavailable


async def test_many_names_of_one_broken_site_do_not_blame_the_nameserver(
    make: Make, server: DnsResponder, clock: Hands
) -> None:
    server.names |= {f"host{number}.broken.test": Name(rcode=SERVFAIL) for number in range(6)}
    resolver = make()
    for number in range(6):
        clock.now_s += 3
        failed = await resolver.resolve(f"host{number}.broken.test")
        assert isinstance(failed, ResolveFailure)
        assert not failed.unavailable
