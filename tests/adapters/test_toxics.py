"""The toxic proxy: each toxic seen from both ends of real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.amble_process import wait_until
from tests.support.toxics import CutAfter, Delay, Drop, Hold, Pass, ToxicProxy

SOON_S = 20.0
A_WHILE_S = 0.15


class Server:
    """Accepts connections and hands them to the test; does nothing by itself."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(SOON_S)
        self.port = self.listener.getsockname()[1]
        self.opened: list[socket.socket] = []

    def next(self) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(SOON_S)
        self.opened.append(connection)
        return connection

    def close(self) -> None:
        for each in (self.listener, *self.opened):
            each.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[ToxicProxy]:
    with ToxicProxy.start("127.0.0.1", server.port) as made:
        yield made


@pytest.fixture
def pair(server: Server, proxy: ToxicProxy) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client and the server's end of its connection."""
    with connect(proxy) as client:
        yield client, server.next()


def connect(proxy: ToxicProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=SOON_S)


def silent(end: socket.socket) -> bool:
    """Whether nothing arrives for a while, neither bytes nor an end."""
    end.settimeout(A_WHILE_S)
    try:
        end.recv(1)
    except TimeoutError:
        return True
    finally:
        end.settimeout(SOON_S)
    return False


def heard(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = end.recv(count - len(data))
        assert more, f"ended after {data!r}"
        data += more
    return data


def was_reset(end: socket.socket) -> bool:
    try:
        while end.recv(1024):
            pass
    except ConnectionResetError:
        return True
    return False


Pair = tuple[socket.socket, socket.socket]


def test_without_a_toxic_bytes_pass_both_ways(pair: Pair, proxy: ToxicProxy) -> None:
    client, peer = pair
    sent = bytes(range(256)) * 4000
    sender = threading.Thread(target=client.sendall, args=(sent,))
    sender.start()
    assert heard(peer, len(sent)) == sent
    sender.join()
    peer.sendall(b"answer")
    assert heard(client, 6) == b"answer"
    assert (proxy.passed("up"), proxy.passed("down"), proxy.connections) == (len(sent), 6, 1)


def test_an_end_of_one_way_leaves_the_other_open(pair: Pair, proxy: ToxicProxy) -> None:
    client, peer = pair
    client.shutdown(socket.SHUT_WR)
    assert peer.recv(1) == b""
    peer.sendall(b"late answer")
    peer.close()
    assert heard(client, 11) == b"late answer"
    assert client.recv(1) == b""
    wait_until(lambda: proxy.connections == 0, SOON_S, "the connection is over")


def test_a_cut_resets_both_sides_now_and_new_connections_come_in(
    pair: Pair, proxy: ToxicProxy, server: Server
) -> None:
    assert proxy.cut() == 1
    assert [was_reset(end) for end in pair] == [True, True]
    with connect(proxy) as client:
        client.sendall(b"again")
        assert heard(server.next(), 5) == b"again"


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_connection_is_cut_after_so_many_bytes_one_way(way: str, pair: Pair, proxy: ToxicProxy) -> None:
    sender, receiver = pair if way == "up" else pair[::-1]
    proxy.set(**{way: CutAfter(10)})  # type: ignore[arg-type]
    receiver.sendall(b"the other way is free")
    assert heard(sender, 21) == b"the other way is free"
    sender.sendall(b"0123")
    assert heard(receiver, 4) == b"0123"
    sender.sendall(b"456789abcdef")
    assert was_reset(sender)
    assert was_reset(receiver)


def test_a_cut_after_bytes_counts_anew_for_each_connection(proxy: ToxicProxy, server: Server) -> None:
    proxy.set(up=CutAfter(4))
    for _ in range(2):
        with connect(proxy) as client:
            client.sendall(b"012")
            assert heard(server.next(), 3) == b"012"


def test_a_black_hole_takes_and_gives_nothing_until_healed_by_a_reset(
    pair: Pair, proxy: ToxicProxy, server: Server
) -> None:
    client, peer = pair
    proxy.set(up=Drop(), down=Drop())
    client.sendall(b"lost")
    assert silent(peer)
    with connect(proxy) as late:
        late.sendall(b"lost too")
        assert silent(server.next())
        proxy.heal()
        assert [was_reset(end) for end in (client, peer, late)] == [True, True, True]


def test_dropped_answers_leave_the_requests_arriving(pair: Pair, proxy: ToxicProxy) -> None:
    client, peer = pair
    proxy.set(down=Drop())
    client.sendall(b"commit")
    assert heard(peer, 6) == b"commit"
    peer.sendall(b"committed")
    assert silent(client)


def test_the_end_of_a_server_behind_a_black_hole_is_not_told(pair: Pair, proxy: ToxicProxy) -> None:
    client, peer = pair
    proxy.set(down=Drop())
    peer.close()
    assert silent(client)
    proxy.heal()
    assert client.recv(1) == b""


def test_held_bytes_arrive_when_the_network_comes_back(pair: Pair, proxy: ToxicProxy) -> None:
    client, peer = pair
    proxy.set(up=Hold())
    client.sendall(b"patience")
    assert silent(peer)
    proxy.set(up=Pass())
    assert heard(peer, 8) == b"patience"


def test_a_delay_holds_for_one_way_only(pair: Pair, proxy: ToxicProxy) -> None:
    client, peer = pair
    proxy.set(down=Delay(0.2))
    begun_s = time.monotonic()
    client.sendall(b"?")
    assert heard(peer, 1) == b"?"
    asked_s = time.monotonic() - begun_s
    peer.sendall(b"!")
    assert heard(client, 1) == b"!"
    assert time.monotonic() - begun_s - asked_s >= 0.2


def test_a_half_open_connection_is_gone_for_the_server_only(pair: Pair, proxy: ToxicProxy) -> None:
    client, peer = pair
    assert proxy.half_open() == 1
    assert was_reset(peer)
    assert silent(client)
    client.sendall(b"nobody hears this")
    assert proxy.connections == 1
    proxy.cut()
    assert was_reset(client)


def test_refused_clients_come_in_again_at_the_same_port(
    pair: Pair, proxy: ToxicProxy, server: Server
) -> None:
    client, peer = pair
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    client.sendall(b"still here")
    assert heard(peer, 10) == b"still here"
    proxy.heal()
    with connect(proxy) as other:
        other.sendall(b"back")
        assert heard(server.next(), 4) == b"back"


def test_a_server_that_is_not_there_resets_the_client(proxy: ToxicProxy, server: Server) -> None:
    server.listener.close()
    with pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)


def test_new_connections_go_to_another_server(pair: Pair, proxy: ToxicProxy) -> None:
    client, peer = pair
    other = Server()
    try:
        proxy.target("127.0.0.1", other.port)
        with connect(proxy) as late:
            late.sendall(b"other")
            assert heard(other.next(), 5) == b"other"
        client.sendall(b"first")
        assert heard(peer, 5) == b"first"
    finally:
        other.close()
