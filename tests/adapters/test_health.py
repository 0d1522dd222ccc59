"""The health endpoint over real sockets: what probes get, and what everybody else does not get."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from amble.adapters import health
from amble.adapters.health import CONNECTIONS_MAX, HEAD_BYTES_MAX, HealthServer, parse_address

State = dict[str, str | None]
Exchange = Callable[[bytes], Awaitable[bytes]]


@pytest.fixture
def state() -> State:
    return {"live": None, "ready": None}


@pytest.fixture
async def address(state: State) -> AsyncIterator[tuple[str, int]]:
    server = HealthServer(live=lambda: state["live"], ready=lambda: state["ready"])
    yield await server.open("127.0.0.1", 0)
    await server.close()


@pytest.fixture
def exchange(address: tuple[str, int]) -> Exchange:
    async def send(request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request)
        try:
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()

    return send


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: probe\r\n\r\n".encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


async def ended_without_an_answer(reader: asyncio.StreamReader) -> bool:
    """Whether the server dropped the connection: an end or a reset, as the system's timing has it."""
    try:
        return await asyncio.wait_for(reader.read(), 10) == b""
    except ConnectionError:
        return True


async def test_a_client_library_reads_the_answer_of_a_process_that_is_well(address: tuple[str, int]) -> None:
    def ask() -> tuple[int, str | None, bytes]:
        connection = http.client.HTTPConnection(*address, timeout=10)
        try:
            connection.request("GET", "/live", headers={"User-Agent": "kube-probe/1.37", "Accept": "*/*"})
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type"), answer.read()
        finally:
            connection.close()

    assert await asyncio.to_thread(ask) == (200, "text/plain; charset=utf-8", b"ok\n")


async def test_the_two_answers_are_independent(exchange: Exchange, state: State) -> None:
    state["ready"] = "the store does not answer"
    live, ready = await exchange(get("/live")), await exchange(get("/ready"))
    assert status_of(live) == 200
    assert status_of(ready) == 503
    assert body_of(ready) == b"the store does not answer\n"


async def test_an_answer_follows_the_state_of_the_moment(exchange: Exchange, state: State) -> None:
    seen = []
    for reason in (None, "stopping", None):
        state["ready"] = reason
        seen.append(status_of(await exchange(get("/ready"))))
    assert seen == [200, 503, 200]


async def test_a_reason_is_one_bounded_line(exchange: Exchange, state: State) -> None:
    state["live"] = "two\r\nlines " + "x" * 10_000
    body = body_of(await exchange(get("/live")))
    assert body.startswith(b"two lines xxx")
    assert len(body) == health.REASON_CHARS_MAX + 1


async def test_a_check_that_raises_counts_as_not_well() -> None:
    def broken() -> str | None:
        raise ZeroDivisionError("a secret")

    server = HealthServer(live=broken, ready=lambda: None)
    address = await server.open("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(get("/live"))
    answer = await reader.read()
    writer.close()
    await server.close()
    assert status_of(answer) == 503
    assert body_of(answer) == b"the check failed: ZeroDivisionError\n"


async def test_head_gets_the_fields_of_get_and_no_body(exchange: Exchange) -> None:
    got, headed = await exchange(get("/live")), await exchange(get("/live", "HEAD"))
    assert headed == got.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/"), 404),
        (get("/live/"), 404),
        (get("/LIVE"), 404),
        (get("/live?probe=1"), 200),
        (b"GET /live HTTP/1.0\r\n\r\n", 200),
        (get("/live", "POST"), 405),
        (get("/live", "get"), 405),
        (b"GET /live HTTP/1.1\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: a\x00\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\nHost: a\r\n\r\n", 400),
        (b"GET  /live HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET http://probe/live HTTP/1.1\r\nHost: probe\r\n\r\n", 400),
        (b"GET /live HTTP/2.0\r\nHost: a\r\n\r\n", 400),
        (b"GET /live\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", 400),
        (b"GET /live HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: a\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n", 431),
        (b"x" * (HEAD_BYTES_MAX * 4), 431),
    ],
)
async def test_only_a_plain_request_for_a_known_path_is_answered(
    exchange: Exchange, request_bytes: bytes, status: int
) -> None:
    answer = await exchange(request_bytes)
    assert status_of(answer) == status
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"Connection: close" in head


async def test_a_refused_method_is_told_which_ones_there_are(exchange: Exchange) -> None:
    assert b"\r\nAllow: GET, HEAD\r\n" in await exchange(get("/ready", "DELETE"))


async def test_a_request_that_ends_in_its_middle_is_refused(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /live HT")
    writer.write_eof()
    assert status_of(await reader.read()) == 400
    writer.close()


async def test_one_connection_gets_one_answer(exchange: Exchange) -> None:
    assert (await exchange(get("/live") + get("/ready"))).count(b"HTTP/1.1") == 1


async def test_a_client_that_says_nothing_is_dropped_when_its_time_is_over(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "EXCHANGE_S_MAX", 0.05)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /live HTTP/1.1\r\n")
    assert await ended_without_an_answer(reader)
    writer.close()


async def test_a_client_that_does_not_close_is_dropped_after_its_answer(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LINGER_S_MAX", 0.05)
    server_side_gone = asyncio.Event()
    reader, writer = await asyncio.open_connection(*address)
    writer.write(get("/live"))
    assert status_of(await reader.read()) == 200
    for _ in range(1000):
        try:
            writer.write(b"x")
            await writer.drain()
        except ConnectionError:
            server_side_gone.set()
            break
        await asyncio.sleep(0.005)
    assert server_side_gone.is_set()
    writer.close()


async def test_more_connections_than_the_bound_are_dropped_and_room_returns(
    address: tuple[str, int], exchange: Exchange
) -> None:
    idle = [await asyncio.open_connection(*address) for _ in range(CONNECTIONS_MAX)]
    for _, writer in idle:
        writer.write(b"GET ")
    refused, refused_writer = await asyncio.open_connection(*address)
    assert await ended_without_an_answer(refused)
    refused_writer.close()
    for reader, writer in idle:
        writer.write_eof()
        assert status_of(await reader.read()) == 400
        writer.close()
    assert status_of(await exchange(get("/live"))) == 200


async def test_close_frees_the_port_and_drops_what_waits(state: State) -> None:
    server = HealthServer(live=lambda: None, ready=lambda: None)
    address = await server.open("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(get("/live"))
    assert await reader.read()
    waiting_reader, waiting_writer = await asyncio.open_connection(*address)
    waiting_writer.write(b"GET ")
    await server.close()
    await server.close()
    assert await ended_without_an_answer(waiting_reader)
    writer.close()
    waiting_writer.close()
    with socket.socket() as probe:
        assert probe.connect_ex(address) != 0


async def test_a_port_that_is_taken_is_an_error_of_the_system(address: tuple[str, int]) -> None:
    with pytest.raises(OSError):
        await HealthServer(live=lambda: None, ready=lambda: None).open(*address)


async def test_an_ipv6_address_is_served_as_well() -> None:
    server = HealthServer(live=lambda: None, ready=lambda: None)
    try:
        host, port = await server.open("::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(get("/live"))
    assert status_of(await reader.read()) == 200
    writer.close()
    await server.close()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8089", ("127.0.0.1", 8089)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:8089", ("::1", 8089)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "8089", ":8089", "host", "host:", "host:x", "host:-1", "host:65536", "host:٣", "::1:8089"]
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="8089"):
        parse_address(text)
