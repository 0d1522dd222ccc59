"""The promise of `ports.Transport`, held against real sockets: what comes back, what fails how, what is reused."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

import pytest
import uvloop

from amble.adapters.net.tls import lenient_provider
from amble.adapters.net.transport import Http1Transport
from amble.domain.decision import Category
from amble.domain.policy import FetchLimits
from amble.ports import Ask, FetchFailure, Permit, Reply, Transport
from tests.support.raw_server import RawServer, Session, needs_ipv6, permit, polite, respond
from tests.support.violations import CASES, Case

ROOT = Path(__file__).parents[2]
AGENT = "amble-test/1.0 (+https://example.org/bot)"
SHORT = FetchLimits(
    connect_s=0.3,
    tls_s=0.3,
    first_byte_s=0.3,
    idle_s=0.3,
    total_s=1.0,
    rate_grace_s=0.2,
    rate_min_bytes_s=1,
)

# Loading the public roots takes longer than most of these tests, which talk plain HTTP.
PROVIDERS = (lenient_provider(),)

Make = Callable[..., Http1Transport]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes transports that are closed at the end."""
    made: list[Http1Transport] = []

    def build(limits: FetchLimits | None = None, http09_ports: Collection[int] = (80,)) -> Http1Transport:
        transport = Http1Transport(
            limits or FetchLimits(),
            AGENT,
            tmp_path / "spool",
            providers=PROVIDERS,
            http09_ports=http09_ports,
            tick_s=0.02,
        )
        made.append(transport)
        return transport

    yield build
    for transport in made:
        await transport.close()
        assert transport.open_connections == 0


@pytest.fixture
def transport(make: Make) -> Transport:
    """One with the default limits."""
    return make()


async def fetched(transport: Transport, allowed: Permit, ask: Ask | None = None) -> Reply:
    reply = await transport.fetch(allowed, ask or Ask())
    assert isinstance(reply, Reply), reply
    return reply


async def failed(transport: Transport, allowed: Permit, ask: Ask | None = None) -> FetchFailure:
    failure = await transport.fetch(allowed, ask or Ask())
    assert isinstance(failure, FetchFailure), failure
    return failure


def content(reply: Reply) -> bytes:
    return b"".join(reply.body.pieces())


def once(data: bytes) -> Callable[[Session], Awaitable[None]]:
    """A script that answers one request with these bytes and closes."""

    async def script(session: Session) -> None:
        await session.request()
        await session.send(data)

    return script


# -- the answer --------------------------------------------------------------------------------------------------------


async def test_a_reply_tells_all_about_the_answer(transport: Transport) -> None:
    answer = respond(b"hello", b"X-Name: Va lue", b"x-name: second", b"Server: caf\xe9")
    async with RawServer(once(answer)) as server:
        reply = await fetched(transport, server.permit("/a?b=c"))
    assert reply.status == 200
    assert reply.head + b"hello" == answer
    assert reply.headers["x-name"] == "Va lue"
    assert reply.headers["server"] == "café"
    assert content(reply) == b"hello"
    assert reply.body.length == 5
    assert reply.body.digest == hashlib.sha256(b"hello").digest()
    assert reply.wire_bytes == len(answer)
    assert reply.address == "127.0.0.1"
    assert (reply.truncated, reply.quirks, reply.reused, reply.tls) == ("", (), False, "")
    assert 0 <= reply.timings.connect_ms <= reply.timings.first_byte_ms <= reply.timings.total_ms < 5_000
    assert reply.timings.tls_ms == -1


async def test_the_request_names_host_and_agent_and_is_reported_as_sent(transport: Transport) -> None:
    async with RawServer(polite) as server:
        reply = await fetched(transport, server.permit("/a?b=c"))
        assert server.requests == [reply.request]
        assert reply.request.decode() == (
            f"GET /a?b=c HTTP/1.1\r\nHost: h.test:{server.port}\r\nUser-Agent: {AGENT}\r\n"
            "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n"
            "Accept-Encoding: gzip, deflate, br, zstd\r\nConnection: keep-alive\r\n\r\n"
        )


async def test_headers_of_the_ask_are_added_or_replace_a_default(transport: Transport) -> None:
    ask = Ask(headers=(("If-None-Match", '"caf\xe9"'), ("accept", "text/plain")), keep_alive=False)
    async with RawServer(polite) as server:
        reply = await fetched(transport, server.permit(), ask)
    lines = reply.request.split(b"\r\n")
    assert b'If-None-Match: "caf\xe9"' in lines
    assert b"accept: text/plain" in lines
    assert b"Connection: close" in lines
    assert sum(line.lower().startswith(b"accept:") for line in lines) == 1


async def test_a_header_that_could_break_the_request_is_left_out_and_recorded(transport: Transport) -> None:
    ask = Ask(headers=(("If-None-Match", "a\r\nHost: evil"), ("If-Modified-Since", "now")))
    async with RawServer(polite) as server:
        reply = await fetched(transport, server.permit(), ask)
    assert b"evil" not in reply.request
    assert b"If-Modified-Since: now" in reply.request
    assert "request-header-dropped" in reply.quirks


@pytest.mark.parametrize("name", ["Cookie", "authorization", "Proxy-Authorization", "HOST"])
async def test_credentials_are_never_sent(transport: Transport, name: str) -> None:
    with pytest.raises(AssertionError):
        await transport.fetch(permit(1), Ask(headers=((name, "x"),)))


@pytest.mark.parametrize("target", ["/a b", "a", "", "/\r\nX: 1", "/é"])
async def test_a_target_that_could_break_the_request_is_not_sent(transport: Transport, target: str) -> None:
    async with RawServer(polite) as server:
        assert (await failed(transport, server.permit(target))).category is Category.INTERNAL
        assert server.connections == 0


async def test_a_name_in_place_of_an_address_is_not_looked_up(transport: Transport) -> None:
    async with RawServer(polite) as server:
        assert (await failed(transport, server.permit(address="localhost"))).category is Category.INTERNAL
        assert server.connections == 0


async def test_redirects_are_answers_and_cookies_stay_where_they_came_from(transport: Transport) -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: /next\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"

    async def script(session: Session) -> None:
        while await session.request():
            await session.send(answer)

    async with RawServer(script) as server:
        for _ in range(2):
            reply = await fetched(transport, server.permit())
            assert (reply.status, reply.headers["location"]) == (302, "/next")
        assert len(server.requests) == 2
        assert not any(b"cookie" in request.lower() for request in server.requests)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_each_way_to_answer_survives_the_network(make: Make, case: Case) -> None:
    async def script(session: Session) -> None:
        await session.request()
        await session.send(case.data)
        if case.reset:
            # The client must have had time to read what was sent: a reset throws away what it has not.
            await asyncio.sleep(0.05)
            session.reset()

    async with RawServer(script) as server:
        transport = make(
            FetchLimits(head_bytes_max=256 * 1024, head_lines_max=2_000), http09_ports={server.port}
        )
        outcome = await transport.fetch(server.permit(), Ask())
    if case.refused is not None:
        assert isinstance(outcome, FetchFailure)
        assert outcome.category is case.refused
    else:
        assert isinstance(outcome, Reply), outcome
        assert (outcome.status, content(outcome), outcome.truncated) == (
            case.status,
            case.body,
            case.truncated,
        )
        # Whether surplus bytes are seen at all depends on when they arrive.
        assert set(outcome.quirks) | {"data-after-body"} == set(case.quirks) | {"data-after-body"}


async def test_http09_is_refused_on_ports_that_are_not_listed(transport: Transport) -> None:
    async with RawServer(once(b"220 mail.example ESMTP\r\n")) as server:
        assert (await failed(transport, server.permit())).category is Category.PROTOCOL_ERROR


async def test_a_server_that_speaks_first_is_heard(transport: Transport) -> None:
    async def script(session: Session) -> None:
        await session.send(respond())
        await session.gone()

    async with RawServer(script) as server:
        assert content(await fetched(transport, server.permit())) == b"hello"


async def test_the_content_coding_stays_on_the_body(transport: Transport) -> None:
    coded = gzip.compress(b"hello" * 1000)
    async with RawServer(once(respond(coded, b"Content-Encoding: gzip"))) as server:
        reply = await fetched(transport, server.permit())
    assert content(reply) == coded
    assert reply.headers["content-encoding"] == "gzip"


# -- bodies ------------------------------------------------------------------------------------------------------------


async def test_a_large_body_goes_to_a_nameless_file_that_is_gone_after_close(
    make: Make, tmp_path: Path
) -> None:
    body = os.urandom(1 << 16) * 48
    transport = make(FetchLimits(memory_body_bytes_max=1 << 20))
    async with RawServer(once(respond(body))) as server:
        reply = await fetched(transport, server.permit())
    files = _open_files(tmp_path)
    assert len(files) == 1
    assert all("(deleted)" in name for name in files)
    assert list((tmp_path / "spool").iterdir()) == []
    pieces = list(reply.body.pieces())
    assert max(map(len, pieces)) <= 64 * 1024
    assert b"".join(pieces) == body
    assert content(reply) == body
    assert (reply.body.length, reply.body.digest) == (len(body), hashlib.sha256(body).digest())
    reply.body.close()
    reply.body.close()
    assert _open_files(tmp_path) == []
    with pytest.raises(ValueError):
        content(reply)


def _open_files(folder: Path) -> list[str]:
    """Files below a folder that this process has open."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except FileNotFoundError:  # the one that lists the folder
            continue
    return [link for link in links if link.startswith(str(folder))]


async def test_two_readers_of_a_spooled_body_do_not_disturb_each_other(make: Make) -> None:
    body = os.urandom(1 << 18)
    transport = make(FetchLimits(memory_body_bytes_max=1000))
    async with RawServer(once(respond(body))) as server:
        reply = await fetched(transport, server.permit())
    first, second = reply.body.pieces(), reply.body.pieces()
    one, two = b"", b""
    for a, b in zip(first, second, strict=True):
        one, two = one + a, two + b
    assert one == two == body
    reply.body.close()


async def test_a_small_body_is_one_piece_in_memory(transport: Transport, tmp_path: Path) -> None:
    async with RawServer(polite) as server:
        reply = await fetched(transport, server.permit())
    assert list(reply.body.pieces()) == [b"hello"]
    assert not (tmp_path / "spool").exists()


async def test_a_body_over_the_cap_is_cut_and_the_server_is_told(transport: Transport) -> None:
    told = asyncio.Event()

    async def script(session: Session) -> None:
        await session.request()
        session.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n")
        try:
            while True:
                await session.send(b"x" * 65536)
        except ConnectionError:
            told.set()

    async with RawServer(script) as server:
        reply = await fetched(transport, server.permit(), Ask(body_bytes_max=100_000))
        assert (reply.body.length, reply.truncated) == (100_000, "length")
        await asyncio.wait_for(told.wait(), 5)
    assert reply.wire_bytes < 1 << 20


async def test_a_disk_that_fills_up_at_the_end_of_a_body_is_a_failure_and_keeps_no_file_open(
    make: Make,
) -> None:
    """The last bytes are still in a buffer then, and letting go of the file tries to write them once more."""
    transport = make(FetchLimits(memory_body_bytes_max=1_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with RawServer(once(respond(bytes(90_000)))) as server:
        open_before = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (80_000, before[1]))
        try:
            failure = await failed(transport, server.permit(), Ask(keep_alive=False))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert failure.category is Category.INTERNAL
        assert "File too large" in failure.detail
        # The server's end of the connection may still be open.
        assert len(os.listdir("/proc/self/fd")) <= open_before + 1


async def test_a_body_that_cannot_be_kept_is_our_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    transport = Http1Transport(FetchLimits(memory_body_bytes_max=10), AGENT, tmp_path / "file" / "spool")
    async with RawServer(once(respond(b"x" * 1000))) as server:
        failure = await failed(transport, server.permit())
    assert failure.category is Category.LOCAL_LIMIT
    assert "kept" in failure.detail
    assert transport.open_connections == 0
    await transport.close()


# -- failures ----------------------------------------------------------------------------------------------------------


async def test_a_port_nobody_listens_on_is_refused(transport: Transport) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        failure = await failed(transport, permit(bound.getsockname()[1]))
    assert failure.category is Category.CONNECT_REFUSED
    assert "127.0.0.1" in failure.detail


async def test_an_address_without_a_route_is_unreachable(transport: Transport) -> None:
    # The kernel refuses to connect TCP to the broadcast address; nothing leaves the machine.
    failure = await failed(transport, permit(80, address="255.255.255.255"))
    assert failure.category is Category.CONNECT_UNREACHABLE


async def test_a_server_that_does_not_accept_times_out_the_connect(make: Make) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            failure = await failed(make(SHORT), permit(listener.getsockname()[1]))
        finally:
            for filler in fillers:
                filler.close()
    assert failure.category is Category.CONNECT_TIMEOUT
    assert failure.timings.total_ms >= 300


@pytest.mark.parametrize("address", ["0.0.0.0", pytest.param("::", marks=needs_ipv6)])
async def test_a_socket_that_ends_up_elsewhere_sends_nothing(transport: Transport, address: str) -> None:
    # The unspecified address connects to loopback: the peer is not what was approved.
    heard = bytearray()

    async def script(session: Session) -> None:
        heard.extend(await session.reader.read())

    async with RawServer(script, host="::1" if address == "::" else "127.0.0.1") as server:
        failure = await failed(transport, server.permit(address=address))
        assert failure.category is Category.PEER_MISMATCH
    assert heard == b""


async def _silent(session: Session) -> None:
    await session.request()
    await session.gone()


async def _closes(session: Session) -> None:
    await session.request()


async def _resets(session: Session) -> None:
    await session.request()
    session.reset()


async def _stalls_in_head(session: Session) -> None:
    await session.request()
    await session.send(b"HTTP/1.1 200 OK\r\nX: ")
    await session.gone()


async def _drips_head(session: Session) -> None:
    await session.request()
    await session.send(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        await session.send(b"a")
        await asyncio.sleep(0.02)


async def _closes_in_head(session: Session) -> None:
    await session.request()
    await session.send(b"HTTP/1.1 2")


@pytest.mark.parametrize(
    ("script", "limits", "category"),
    [
        (_silent, SHORT, Category.TIMEOUT_FIRST_BYTE),
        (_stalls_in_head, SHORT, Category.TIMEOUT_IDLE),
        (_drips_head, SHORT, Category.TIMEOUT_TOTAL),
        (_drips_head, FetchLimits(rate_grace_s=0.2, rate_min_bytes_s=10_000), Category.TOO_SLOW),
        (_closes, SHORT, Category.EMPTY_REPLY),
        (_resets, SHORT, Category.DISCONNECTED),
        (_closes_in_head, SHORT, Category.DISCONNECTED),
    ],
)
async def test_a_server_that_gives_no_answer_is_named_for_what_it_did(
    make: Make, script: Callable[[Session], Awaitable[None]], limits: FetchLimits, category: Category
) -> None:
    async with RawServer(script) as server:
        failure = await failed(make(limits), server.permit())
        assert failure.category is category
        assert failure.detail


async def _stalls_in_body(session: Session) -> None:
    await session.request()
    await session.send(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")
    await session.gone()


async def _drips_body(session: Session) -> None:
    await session.request()
    await session.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
    while True:
        await session.send(b"a")
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("script", "limits", "word"),
    [
        (_stalls_in_body, SHORT, "idle"),
        (_drips_body, SHORT, "total"),
        (_drips_body, FetchLimits(rate_grace_s=0.2, rate_min_bytes_s=10_000), "slow"),
    ],
)
async def test_a_body_that_does_not_end_in_time_is_kept_so_far_and_marked(
    make: Make, script: Callable[[Session], Awaitable[None]], limits: FetchLimits, word: str
) -> None:
    transport = make(limits)
    async with RawServer(script) as server:
        reply = await fetched(transport, server.permit())
        assert reply.truncated == word
        assert content(reply).startswith(b"hello")
        assert not transport.has_idle("h.test", server.port, "http")


async def test_the_deadline_of_the_permit_ends_the_exchange(transport: Transport) -> None:
    async with RawServer(_silent) as server:
        failure = await failed(transport, server.permit(within_s=0.2))
    assert failure.category is Category.TIMEOUT_TOTAL
    assert failure.timings.total_ms < 2_000


async def test_a_lapsed_permit_starts_nothing(transport: Transport) -> None:
    async with RawServer(polite) as server:
        failure = await failed(transport, server.permit(within_s=-0.1))
        assert failure.category is Category.TIMEOUT_TOTAL
        assert server.connections == 0


async def test_a_busy_loop_is_not_held_against_the_server(make: Make) -> None:
    transport = make(SHORT)

    async def script(session: Session) -> None:
        await session.request()
        await asyncio.sleep(0.1)
        await session.send(respond())

    async with RawServer(script) as server:
        task = asyncio.create_task(transport.fetch(server.permit(within_s=20), Ask()))
        while not server.requests:
            await asyncio.sleep(0.01)
        # Longer than the first-byte deadline, shorter than the total: the answer waits in a timer meanwhile.
        _block(0.5)
        reply = await task
    assert isinstance(reply, Reply), reply


def _block(seconds: float) -> None:
    time.sleep(seconds)


async def test_cancellation_closes_the_socket(transport: Transport) -> None:
    gone = asyncio.Event()

    async def script(session: Session) -> None:
        await session.request()
        await session.gone()
        gone.set()

    async with RawServer(script) as server:
        task = asyncio.create_task(transport.fetch(server.permit(), Ask()))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 5)
        assert isinstance(transport, Http1Transport)
        assert transport.open_connections == 0


async def test_closing_ends_exchanges_under_way_and_refuses_new_ones(make: Make) -> None:
    transport = make()
    async with RawServer(_silent) as server:
        task = asyncio.create_task(transport.fetch(server.permit(), Ask()))
        while not server.requests:
            await asyncio.sleep(0.01)
        await transport.close()
        assert isinstance(await task, FetchFailure)
        assert (await failed(transport, server.permit())).category is Category.DISCONNECTED


# -- the pool ----------------------------------------------------------------------------------------------------------


async def test_a_connection_is_used_again_for_the_same_origin(transport: Transport) -> None:
    async with RawServer(polite) as server:
        assert not transport.has_idle("h.test", server.port, "http")
        first = await fetched(transport, server.permit())
        assert transport.has_idle("h.test", server.port, "http")
        assert not transport.has_idle("h.test", server.port, "https")
        second = await fetched(transport, server.permit("/2"))
        assert server.connections == 1
    assert (first.reused, second.reused) == (False, True)
    assert (second.timings.connect_ms, second.timings.tls_ms) == (-1, -1)


async def test_a_connection_to_an_address_that_is_no_longer_approved_is_never_used(
    transport: Transport,
) -> None:
    reached: list[str] = []

    async def script(session: Session) -> None:
        while await session.request():
            reached.append(session.local_address)
            await session.send(respond())

    async with RawServer(script, host="0.0.0.0") as server:
        for address in ("127.0.0.1", "127.0.0.2", "127.0.0.1"):
            reply = await fetched(transport, server.permit(address=address))
            assert reply.address == address
        assert reached == ["127.0.0.1", "127.0.0.2", "127.0.0.1"]
        assert server.connections == 2


async def test_names_do_not_share_connections(transport: Transport) -> None:
    async with RawServer(polite) as server:
        await fetched(transport, server.permit(host="a.test"))
        await fetched(transport, server.permit(host="b.test"))
        assert server.connections == 2


async def test_a_connection_is_not_kept_when_nobody_wants_it(transport: Transport) -> None:
    async with RawServer(polite) as server:
        await fetched(transport, server.permit(), Ask(keep_alive=False))
        assert not transport.has_idle("h.test", server.port, "http")


async def test_an_idle_connection_is_closed_after_a_while(make: Make) -> None:
    transport = make(FetchLimits(idle_keepalive_s=0.1))
    gone = asyncio.Event()

    async def script(session: Session) -> None:
        await polite(session)
        gone.set()

    async with RawServer(script) as server:
        await fetched(transport, server.permit())
        await asyncio.wait_for(gone.wait(), 5)
        assert not transport.has_idle("h.test", server.port, "http")


async def test_a_stale_connection_is_told_and_not_replaced_within_its_permit(transport: Transport) -> None:
    """The server may have seen the request: another one is another start, and the gate's to grant."""

    async def script(session: Session) -> None:
        await session.request()
        await session.send(respond())
        if session.number == 1:
            await session.request()  # and closes without an answer

    async with RawServer(script) as server:
        await fetched(transport, server.permit())
        failure = await failed(transport, server.permit("/again"))
        assert (failure.category, failure.stale) == (Category.DISCONNECTED, True)
        assert [request.split()[1] for request in server.requests] == [b"/", b"/again"]
        reply = await fetched(transport, server.permit("/again"))
        assert server.connections == 2
    assert not reply.reused


async def test_a_fresh_connection_that_gives_no_answer_is_not_retried(transport: Transport) -> None:
    async def script(session: Session) -> None:
        await session.request()  # and closes without an answer

    async with RawServer(script) as server:
        failure = await failed(transport, server.permit())
        assert (failure.category, failure.stale) == (Category.EMPTY_REPLY, False)
        assert server.connections == 1


async def test_an_answer_that_began_is_not_asked_for_again(transport: Transport) -> None:
    async def script(session: Session) -> None:
        await session.request()
        await session.send(respond())
        await session.request()
        await session.send(b"HTTP/1.1 2")

    async with RawServer(script) as server:
        await fetched(transport, server.permit())
        assert (await failed(transport, server.permit())).category is Category.DISCONNECTED
        assert server.connections == 1


async def test_a_used_connection_never_takes_garbage_for_an_old_protocol(make: Make) -> None:
    async def script(session: Session) -> None:
        await session.request()
        await session.send(respond())
        await session.request()
        await session.send(b"tail of something else")

    async with RawServer(script) as server:
        transport = make(http09_ports={server.port})
        await fetched(transport, server.permit())
        assert (await failed(transport, server.permit())).category is Category.PROTOCOL_ERROR


async def test_bytes_on_an_idle_connection_close_it(transport: Transport) -> None:
    async def script(session: Session) -> None:
        await session.request()
        await session.send(respond())
        await asyncio.sleep(0.02)
        await session.send(respond(b"smuggled"))
        await session.gone()

    async with RawServer(script) as server:
        await fetched(transport, server.permit())
        async with asyncio.timeout(5):
            while transport.has_idle("h.test", server.port, "http"):
                await asyncio.sleep(0.01)
        assert content(await fetched(transport, server.permit())) == b"hello"


def _answers_unasked(listener: socket.socket, now: threading.Event, sent: threading.Event) -> None:
    """One answer, then on `now` another that nobody asked for; proper answers on every later connection."""
    first, _ = listener.accept()
    first.recv(65536)
    first.sendall(respond(b"first"))
    now.wait(5)
    first.sendall(respond(b"stray"))
    sent.set()
    second, _ = listener.accept()
    second.recv(65536)
    second.sendall(respond(b"second"))
    first.close()
    second.close()


async def test_a_request_is_not_answered_by_what_came_while_the_loop_was_busy(transport: Transport) -> None:
    now, sent = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = threading.Thread(target=_answers_unasked, args=(listener, now, sent))
        server.start()
        assert content(await fetched(transport, permit(port))) == b"first"
        # The loop does not run from here to the next request.
        now.set()
        assert sent.wait(5)
        reply = await fetched(transport, permit(port))
        assert (content(reply), reply.reused) == (b"second", False)
        server.join()


async def test_the_total_of_connections_is_capped_and_idle_ones_make_room(make: Make) -> None:
    transport = make(FetchLimits(connections_max=3))

    async def script(session: Session) -> None:
        while await session.request():
            await asyncio.sleep(0.01)
            assert transport.open_connections <= 3
            await session.send(respond())

    async with RawServer(script) as server:
        permits = [server.permit(host=f"h{number}.test") for number in range(20)]
        replies = await asyncio.gather(*(transport.fetch(allowed, Ask()) for allowed in permits))
        assert all(isinstance(reply, Reply) for reply in replies)
        assert transport.open_connections <= 3


async def test_the_oldest_idle_connection_makes_room_for_another_origin(make: Make) -> None:
    transport = make(FetchLimits(connections_max=2))
    async with RawServer(polite) as server:
        for host in ("a.test", "b.test", "c.test"):
            await fetched(transport, server.permit(host=host))
        idle = [transport.has_idle(host, server.port, "http") for host in ("a.test", "b.test", "c.test")]
    assert idle == [False, True, True]


async def test_who_waits_too_long_for_a_connection_is_told_so(make: Make) -> None:
    transport = make(FetchLimits(connections_max=1))
    async with RawServer(_silent) as server:
        first = asyncio.create_task(transport.fetch(server.permit(within_s=1.0), Ask()))
        while not server.requests:
            await asyncio.sleep(0.01)
        failure = await failed(transport, server.permit(host="other.test", within_s=0.2))
        assert failure.category is Category.TIMEOUT_TOTAL
        assert "free connection" in failure.detail
        assert isinstance(await first, FetchFailure)
        assert transport.open_connections == 0


async def test_two_hundred_requests_at_once_all_get_their_answer(make: Make) -> None:
    transport = make(FetchLimits(connections_max=40))
    async with RawServer(polite) as server:
        permits = [server.permit(f"/{number}", host=f"h{number % 50}.test") for number in range(200)]
        replies = await asyncio.gather(*(transport.fetch(allowed, Ask()) for allowed in permits))
        assert all(isinstance(reply, Reply) and content(reply) == b"hello" for reply in replies)
        assert len(server.requests) == 200


@needs_ipv6
@pytest.mark.parametrize("host", ["[::1]", "::1"])
async def test_an_ipv6_literal_is_bracketed_in_the_host_header(transport: Transport, host: str) -> None:
    async with RawServer(polite, host="::1") as server:
        reply = await fetched(transport, server.permit(host=host))
    assert reply.address == "::1"
    assert f"Host: [::1]:{server.port}\r\n".encode() in reply.request


def test_the_default_port_is_left_out_of_the_host_header(tmp_path: Path) -> None:
    async def run() -> bytes:
        transport = Http1Transport(FetchLimits(), AGENT, tmp_path, providers=PROVIDERS)
        try:
            return transport._request(permit(80), Ask())[0]
        finally:
            await transport.close()

    assert b"\r\nHost: h.test\r\n" in asyncio.run(run())


def test_it_works_the_same_on_uvloop(tmp_path: Path) -> None:
    async def run() -> None:
        transport = Http1Transport(SHORT, AGENT, tmp_path, providers=PROVIDERS, tick_s=0.02)
        async with RawServer(polite) as server:
            permits = [server.permit(host=f"h{number % 10}.test") for number in range(50)]
            for _ in range(2):
                replies = await asyncio.gather(*(transport.fetch(allowed, Ask()) for allowed in permits))
                assert all(isinstance(reply, Reply) for reply in replies)
        async with RawServer(_stalls_in_body) as server:
            assert (await fetched(transport, server.permit())).truncated == "idle"
        async with RawServer(_silent) as server:
            assert (await failed(transport, server.permit())).category is Category.TIMEOUT_FIRST_BYTE
            assert (await failed(transport, permit(server.port, address="127.0.0.9"))).category in (
                Category.CONNECT_REFUSED,
                Category.CONNECT_TIMEOUT,
            )
        await transport.close()

    uvloop.run(run())


# -- the right to begin ------------------------------------------------------------------------------------------------


async def test_a_request_whose_right_to_begin_has_ended_does_not_even_connect(transport: Transport) -> None:
    async with RawServer(polite) as server:
        failure = await failed(transport, server.permit(begin_within_s=-0.001))
        assert (failure.category, failure.stale) == (Category.STALE_EPOCH, False)
        assert await fetched(transport, server.permit("/ok", begin_within_s=10.0))
        assert (server.connections, [r.split(b" ")[1] for r in server.requests]) == (1, [b"/ok"])


async def test_the_right_to_begin_is_asked_again_when_the_connection_has_come_about(make: Make) -> None:
    transport = make()
    async with RawServer(polite) as server:
        # The loop hears of the connection only after the right has ended, as after a long pause of this process.
        begun = asyncio.ensure_future(transport.fetch(server.permit(begin_within_s=0.05), Ask()))
        await asyncio.sleep(0)
        time.sleep(0.1)
        failure = await begun
        assert isinstance(failure, FetchFailure)
        assert failure.category is Category.STALE_EPOCH
        await fetched(transport, server.permit(begin_within_s=10.0))
        assert len(server.requests) == 1


async def test_a_kept_connection_carries_no_request_whose_right_to_begin_has_ended(
    transport: Transport,
) -> None:
    async with RawServer(polite) as server:
        await fetched(transport, server.permit("/1"))
        failure = await failed(transport, server.permit("/2", begin_within_s=-0.001))
        assert (failure.category, failure.stale) == (Category.STALE_EPOCH, False)
        assert [request.split(b" ")[1] for request in server.requests] == [b"/1"]


async def test_a_process_that_was_stopped_for_longer_than_its_window_sends_nothing_when_it_wakes() -> None:
    window_s, count = 1.0, 300
    async with RawServer(polite) as server:
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.paused_client", str(server.port), str(window_s), str(count),
            stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        assert client.stdout is not None
        assert await client.stdout.readline() == b"ready\n"
        began_s = time.monotonic()
        while len(server.requests) < 20:
            await asyncio.sleep(0.005)
        client.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.1)  # what had left is here now
        before = len(server.requests)
        await asyncio.sleep(max(0.0, began_s + window_s - time.monotonic()) + 0.2)
        assert len(server.requests) == before
        client.send_signal(signal.SIGCONT)
        told = json.loads(await client.stdout.readline())
        await client.wait()
        assert len(server.requests) == before, "not one request left after it woke"
        assert told == {"fetched": before, "stale_epoch": count - before}
