"""TLS of the transport: whose certificate counts, what fails how, what the second policy allows, what is resumed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from amble.adapters.net.tls import PublicRoots, TlsProvider, lenient_provider, strict_provider
from amble.adapters.net.transport import Http1Transport
from amble.domain.decision import Category
from amble.domain.policy import FetchLimits
from amble.ports import Ask, FetchFailure, Reply
from tests.support.certificates import Authority
from tests.support.raw_server import RawServer, Session, needs_ipv6, permit, polite, respond

LIMITS = FetchLimits(connect_s=2.0, tls_s=1.0, first_byte_s=5.0, idle_s=5.0, total_s=20.0)

Make = Callable[..., Http1Transport]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One authority for all tests here: making keys takes time."""
    return Authority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def make(tmp_path: Path, authority: Authority) -> AsyncIterator[Make]:
    """Makes transports that trust the test authority and nobody else."""
    made: list[Http1Transport] = []

    def build(**more: object) -> Http1Transport:
        transport = Http1Transport(
            LIMITS,
            "test/1",
            tmp_path,
            ca_file=authority.ca_file,
            tick_s=0.02,
            **more,  # type: ignore[arg-type]
        )
        made.append(transport)
        return transport

    yield build
    for transport in made:
        await transport.close()


async def test_a_certificate_for_the_name_is_good_whatever_the_address(
    make: Make, authority: Authority
) -> None:
    transport = make()
    async with RawServer(polite, tls=authority.server_context("h.test")) as server:
        replies = [await transport.fetch(server.permit(), Ask()) for _ in range(2)]
        assert transport.has_idle("h.test", server.port, "https")
        assert server.connections == 1
    first, second = replies
    assert isinstance(first, Reply)
    assert isinstance(second, Reply)
    assert first.tls == second.tls == "TLSv1.3"
    assert first.timings.connect_ms <= first.timings.tls_ms <= first.timings.first_byte_ms
    assert (first.quirks, first.reused, second.reused) == ((), False, True)


@pytest.mark.parametrize(
    ("names", "days", "self_signed"),
    [
        (("other.test",), (-1, 30), False),
        (("h.test",), (-1, 30), True),
        (("h.test",), (-30, -1), False),
        (("127.0.0.1",), (-1, 30), False),
    ],
    ids=["another name", "self-signed", "expired", "the address instead of the name"],
)
async def test_a_bad_certificate_is_refused_before_the_request(
    make: Make, authority: Authority, names: tuple[str, ...], days: tuple[int, int], self_signed: bool
) -> None:
    context = authority.server_context(*names, days=days, self_signed=self_signed)
    async with RawServer(polite, tls=context) as server:
        failure = await make().fetch(server.permit(), Ask())
        assert isinstance(failure, FetchFailure)
        assert failure.category is Category.TLS_CERTIFICATE
        assert failure.detail
        assert failure.timings.connect_ms >= 0
        assert server.requests == []


async def test_the_fallback_policy_accepts_a_bad_certificate_and_says_so(
    make: Make, authority: Authority
) -> None:
    transport = make(tls_verify="fallback")
    async with RawServer(polite, tls=authority.server_context("h.test", self_signed=True)) as server:
        for reused in (False, True):
            reply = await transport.fetch(server.permit(), Ask())
            assert isinstance(reply, Reply)
            assert reply.quirks == ("tls-unverified",)
            assert reply.reused is reused


async def test_the_fallback_policy_verifies_first(make: Make, authority: Authority) -> None:
    async with RawServer(polite, tls=authority.server_context("h.test")) as server:
        reply = await make(tls_verify="fallback").fetch(server.permit(), Ask())
        assert isinstance(reply, Reply)
        assert reply.quirks == ()
        assert server.connections == 1


@pytest.mark.skipif(not ssl.HAS_TLSv1_1, reason="this OpenSSL has no TLS below 1.2")
@pytest.mark.filterwarnings("ignore:ssl.OP_NO:DeprecationWarning")
async def test_an_obsolete_protocol_is_for_the_fallback_only(make: Make, authority: Authority) -> None:
    context = authority.server_context("h.test")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.options |= ssl.OP_NO_TLSv1_2 | ssl.OP_NO_TLSv1_3
    context.set_ciphers("ALL:@SECLEVEL=0")
    async with RawServer(polite, tls=context) as server:
        failure = await make().fetch(server.permit(), Ask())
        assert isinstance(failure, FetchFailure)
        assert failure.category is Category.TLS_FAILED
        reply = await make(tls_verify="fallback").fetch(server.permit(), Ask())
        assert isinstance(reply, Reply)
        assert reply.tls in ("TLSv1", "TLSv1.1")


async def test_a_server_that_stalls_the_handshake_times_out(make: Make) -> None:
    async def script(session: Session) -> None:
        await session.gone()

    async with RawServer(script) as server:
        failure = await make().fetch(permit(server.port, scheme="https"), Ask())
    assert isinstance(failure, FetchFailure)
    assert failure.category is Category.TLS_TIMEOUT


@pytest.mark.parametrize(
    "data", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["closes", "speaks plain HTTP"]
)
async def test_a_server_that_does_not_speak_tls_fails_the_handshake(make: Make, data: bytes) -> None:
    async def script(session: Session) -> None:
        await session.reader.read(1)
        await session.send(data)

    async with RawServer(script) as server:
        failure = await make().fetch(permit(server.port, scheme="https"), Ask())
    assert isinstance(failure, FetchFailure)
    assert failure.category is Category.TLS_FAILED


async def test_the_peer_is_checked_before_the_first_tls_byte(make: Make) -> None:
    heard = bytearray()

    async def script(session: Session) -> None:
        heard.extend(await session.reader.read())

    async with RawServer(script) as server:
        failure = await make().fetch(permit(server.port, scheme="https", address="0.0.0.0"), Ask())
    assert isinstance(failure, FetchFailure)
    assert failure.category is Category.PEER_MISMATCH
    assert heard == b""


@pytest.mark.parametrize(
    ("host", "sni"),
    [
        ("h.test", "h.test"),
        ("h.test.", "h.test"),
        ("127.0.0.1", None),
        pytest.param("[::1]", None, marks=needs_ipv6),
    ],
)
async def test_the_name_is_sent_as_sni_and_an_address_is_not(
    make: Make, authority: Authority, host: str, sni: str | None
) -> None:
    asked: list[str | None] = []
    context = authority.server_context("h.test", "127.0.0.1", "::1")
    context.sni_callback = lambda _, name, __: asked.append(name)
    async with RawServer(polite, host="::1" if host == "[::1]" else "127.0.0.1", tls=context) as server:
        reply = await make().fetch(server.permit(host=host), Ask())
        assert isinstance(reply, Reply), reply
        assert f"Host: {host}:{server.port}".encode() in reply.request
    assert asked == [sni]


async def test_a_name_that_cannot_be_sent_fails_as_tls(make: Make, authority: Authority) -> None:
    async with RawServer(polite, tls=authority.server_context("h.test")) as server:
        failure = await make().fetch(server.permit(host="a" * 70 + ".test"), Ask())
    assert isinstance(failure, FetchFailure)
    assert failure.category in (Category.TLS_FAILED, Category.TLS_CERTIFICATE)


async def test_a_second_connection_resumes_the_session(make: Make, authority: Authority) -> None:
    resumed: list[bool] = []

    async def script(session: Session) -> None:
        resumed.append(session.writer.get_extra_info("ssl_object").session_reused)
        await polite(session)

    transport = make()
    async with RawServer(script, tls=authority.server_context("h.test")) as server:
        for _ in range(3):
            reply = await transport.fetch(server.permit(), Ask(keep_alive=False))
            assert isinstance(reply, Reply)
    assert resumed == [False, True, True]


async def test_sessions_are_not_shared_between_policies() -> None:
    strict, lenient = lenient_provider(), lenient_provider()
    strict.remember("h.test", 443, object())
    assert not lenient.sessions


def test_remembered_sessions_are_bounded() -> None:
    provider = lenient_provider()
    for number in range(1_100):
        provider.remember(f"h{number}.test", 443, object())
    assert len(provider.sessions) == 1_000
    assert ("h1099.test", 443) in provider.sessions
    assert ("h0.test", 443) not in provider.sessions


async def test_a_body_to_the_close_without_close_notify_is_whole_with_a_quirk(
    make: Make, authority: Authority
) -> None:
    async def script(session: Session) -> None:
        await session.request()
        await session.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        # The script's end aborts the TCP connection below TLS; an abort right away could overtake the data.
        await asyncio.sleep(0.05)
        transport = session.writer.transport.get_extra_info("socket")
        transport.shutdown(1)
        await asyncio.sleep(0.1)

    async with RawServer(script, tls=authority.server_context("h.test")) as server:
        reply = await make().fetch(server.permit(), Ask())
    assert isinstance(reply, Reply)
    assert b"".join(reply.body.pieces()) == b"hello"
    assert reply.truncated == ""
    assert reply.quirks == ("no-close-notify",)


async def test_a_large_body_over_tls_arrives_whole(make: Make, authority: Authority) -> None:
    body = bytes(range(256)) * 4_000

    async def script(session: Session) -> None:
        await session.request()
        await session.send(respond(body))

    async with RawServer(script, tls=authority.server_context("h.test")) as server:
        reply = await make().fetch(server.permit(), Ask())
    assert isinstance(reply, Reply)
    assert b"".join(reply.body.pieces()) == body


async def test_the_provider_is_replaceable(tmp_path: Path, authority: Authority) -> None:
    class Counting:
        """Any object with `wrap_bio` will do."""

        def __init__(self) -> None:
            self.wrapped: list[str] = []
            self.context = ssl.create_default_context(cafile=str(authority.ca_file))

        def wrap_bio(
            self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *, server_hostname: str
        ) -> ssl.SSLObject:
            self.wrapped.append(server_hostname)
            return self.context.wrap_bio(incoming, outgoing, server_hostname=server_hostname)

    counting = Counting()
    transport = Http1Transport(LIMITS, "test/1", tmp_path, providers=(TlsProvider(counting),))  # type: ignore[arg-type]
    async with RawServer(polite, tls=authority.server_context("h.test")) as server:
        assert isinstance(await transport.fetch(server.permit(), Ask()), Reply)
        await transport.close()
    assert counting.wrapped == ["h.test"]


def test_public_roots_are_trusted_by_default() -> None:
    provider = strict_provider()
    assert isinstance(provider.context, PublicRoots)
    context = provider.context.context
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) > 50


def test_many_handshakes_on_uvloop_all_succeed(tmp_path: Path, authority: Authority) -> None:
    async def run() -> None:
        limits = FetchLimits(handshakes_max=4)
        transport = Http1Transport(limits, "test/1", tmp_path, ca_file=authority.ca_file, tick_s=0.02)
        async with RawServer(polite, tls=authority.server_context("h.test")) as server:
            replies = await asyncio.gather(*(transport.fetch(server.permit(), Ask()) for _ in range(40)))
            assert all(isinstance(reply, Reply) for reply in replies), replies
            await transport.close()

    uvloop.run(run())
