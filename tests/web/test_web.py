"""The test web itself: its truth is what its bytes say, and its log, DNS and control do what they promise."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shlex
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import upa_url

from tests.web import dns
from tests.web.__main__ import README, _crawl_line, tables
from tests.web.bench import BenchSite
from tests.web.canary import Canary
from tests.web.closed import ClosedSet, sizes
from tests.web.handle import ROOT, TestWeb
from tests.web.hostile import HOSTILE, hostile_page
from tests.web.message import Request
from tests.web.sites import FRAMING, site_classes
from tests.web.web import Ready
from tests.whole import log as judge

ATTRIBUTE = re.compile(r'<a(?: rel="([^"]*)")? href="([^"]*)"')
TRACKING = re.compile(r"([?&])(?:utm_\w+|fbclid)=[^&]*(&|$)")


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestWeb]:
    with TestWeb.start(
        tmp_path_factory.mktemp("web"), sites=6, pages=150, bench_origins=3, bench_pages=50
    ) as running:
        yield running


def ask(web: TestWeb, url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """One GET over a fresh connection, by the address that the web's own DNS gives."""
    parts = upa_url.URL(url)
    connection = http.client.HTTPConnection(query(web, parts.hostname)[1][0], web.port, timeout=10)
    try:
        connection.request("GET", parts.pathname + parts.search, headers={"Host": parts.host, **headers})
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def query(
    web: TestWeb, name: str, kind: int = dns.A, *, tcp: bool = False, wait_s: float = 10.0
) -> tuple[int, list[str], bool]:
    """One DNS question: response code, addresses, truncation. Raises TimeoutError on silence."""
    packet = (
        struct.pack("!HHHHHH", 77, 0x0100, 1, 0, 0, 0) + dns.wire_name(name) + struct.pack("!HH", kind, 1)
    )
    where = ("127.0.0.1", web.ready.dns_port)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as sock:
        sock.settimeout(wait_s)
        sock.connect(where)
        sock.send(struct.pack("!H", len(packet)) + packet if tcp else packet)
        answer = sock.recv(65_535)[2 if tcp else 0 :]
    ident, flags, _, count, _, _ = struct.unpack_from("!HHHHHH", answer)
    assert ident == 77
    found, at = [], len(packet)
    for _ in range(count):
        at = answer.index(b"\0", at) + 1
        got, _, _, size = struct.unpack_from("!HHIH", answer, at)
        data, at = answer[at + 10 : at + 10 + size], at + 10 + size
        if got in (dns.A, dns.AAAA):
            found.append(socket.inet_ntop(socket.AF_INET if got == dns.A else socket.AF_INET6, data))
    return flags & 15, found, bool(flags & 0x0200)


# --- the closed set and its truth


def canonical(written: str, base: str) -> str | None:
    try:
        url = upa_url.URL(written, base)
    except ValueError:
        return None
    if url.protocol != "http:":
        return None
    url.hash = ""
    search = url.search
    while (shorter := TRACKING.sub(lambda m: m[1] if m[2] else "", search)) != search:
        search = shorter
    url.search = search if len(search) > 1 else ""
    return str(url.href)


def links(url: str, headers: dict[str, str], body: bytes) -> list[str]:
    """What may be followed from an answer, by a reader that shares no code with the generator."""
    if "location" in headers:
        return [found] if (found := canonical(headers["location"], url)) else []
    if not headers.get("content-type", "").startswith("text/html"):
        return []
    declared = re.search(r"charset=([\w-]+)", headers["content-type"]) or re.search(
        r'charset="?([\w-]+)', body[:200].decode("ascii", "replace")
    )
    html = body.decode(declared[1] if declared else "utf-8")
    html = re.sub(r"<!--.*?-->", "", html)
    directives = headers.get("x-robots-tag", "") + "".join(
        re.findall(r'name="robots" content="([^"]*)"', html)
    )
    if "nofollow" in directives:
        return []
    base = re.search(r'<base href="([^"]*)"', html)
    base_url = str(upa_url.URL(base[1], url).href) if base else url
    pairs = ATTRIBUTE.findall(html)
    return [u for rel, href in pairs if "nofollow" not in rel and (u := canonical(unescape(href), base_url))]


def walk(closed: ClosedSet) -> tuple[dict[str, int], set[str], dict[str, bytes]]:
    """Crawl by the bytes alone: status of each URL fetched, what robots.txt forbade, bodies of the 200s."""
    hosts = set(closed.hosts)
    rules: dict[str, list[tuple[int, bool, re.Pattern[str]]]] = {}
    fetched: dict[str, int] = {}
    refused: set[str] = set()
    bodies: dict[str, bytes] = {}
    waiting = [*closed.seeds]
    while waiting:
        url = waiting.pop()
        parts = upa_url.URL(url)
        host, target = parts.hostname, parts.pathname + parts.search
        if url in fetched or url in refused or host not in hosts:
            continue
        if host not in rules:
            rules[host] = read_robots(closed, host)
        best = max(((n, allow) for n, allow, rule in rules[host] if rule.match(target)), default=(0, True))
        if not best[1]:
            refused.add(url)
            continue
        reply = serve(closed, host, target)
        fetched[url] = reply.status
        if reply.status == 200:
            bodies[url] = reply.body
        waiting += links(url, named(reply), reply.body)
    return fetched, refused, bodies


def serve(closed: ClosedSet, host: str, target: str) -> Any:
    return closed.answer(
        Request("GET", target, {"host": f"{host}:{closed.port}"}, "http", "", closed.port, 0)
    )


def named(reply: Any) -> dict[str, str]:
    return {"content-type": reply.kind, **{name.lower(): value for name, value in reply.headers}}


def read_robots(closed: ClosedSet, host: str) -> list[tuple[int, bool, re.Pattern[str]]]:
    reply = serve(closed, host, "/robots.txt")
    if reply.status == 301:
        reply = serve(closed, host, named(reply)["location"])
    if reply.status != 200:
        return []
    out = []
    for word, rule in re.findall(r"^(Allow|Disallow): *([^ #\n]+)", reply.body.decode(), re.MULTILINE):
        pattern = re.escape(rule).replace(r"\*", ".*").replace(r"\$", "$")
        out.append((len(rule), word == "Allow", re.compile(pattern)))
    return out


@pytest.mark.parametrize(
    ("sites", "pages", "seed"), [(1, 1, 1), (3, 3, 1), (8, 400, 1), (8, 400, 2), (4, 1500, 3)]
)
def test_walking_the_served_bytes_gives_exactly_the_truth(sites: int, pages: int, seed: int) -> None:
    closed = ClosedSet(sites=sites, pages=pages, seed=seed, port=8080)
    fetched, refused, bodies = walk(closed)
    truth = closed.truth()["urls"]
    wanted = {u: f["status"] for u, f in truth.items() if f["outcome"] in ("page", "missing", "redirect")}
    assert fetched == wanted
    assert refused == {u for u, f in truth.items() if f["outcome"] == "disallowed"}
    assert sum(f["outcome"] == "page" for f in truth.values()) == pages == len(bodies)


def test_twins_have_the_same_bytes_and_the_digests_are_those_of_the_bodies() -> None:
    closed = ClosedSet(sites=8, pages=400, seed=1, port=8080)
    _, _, bodies = walk(closed)
    truth = closed.truth(digests=True)["urls"]
    twins = {url: facts["same_as"] for url, facts in truth.items() if "same_as" in facts}
    assert twins
    assert all(bodies[url] == bodies[other] for url, other in twins.items())
    assert all(hashlib.sha256(body).hexdigest() == truth[url]["sha256"] for url, body in bodies.items())


def test_a_closed_set_has_every_kind_of_page_and_outcome() -> None:
    closed = ClosedSet(sites=20, pages=5000, seed=1, port=8080)
    truth = closed.truth()["urls"]
    assert {f["outcome"] for f in truth.values()} == {
        "page", "missing", "redirect", "disallowed", "nofollow", "outside", "robots",
    }  # fmt: skip
    assert {f["kind"] for f in truth.values() if f["outcome"] == "page"} == {"html", "text", "pdf", "png"}
    assert {f["status"] for f in truth.values() if "status" in f} == {200, 301, 302, 303, 307, 308, 404, 410}
    assert any(f.get("index") is False for f in truth.values())


def test_sizes_follow_a_power_law_and_add_up() -> None:
    assert sum(sizes(20, 5000)) == 5000
    assert sizes(20, 5000) == sorted(sizes(20, 5000), reverse=True)
    with pytest.raises(ValueError, match="at least one page"):
        sizes(20, 19)


# --- the running web


def test_the_process_serves_the_truth_that_the_handle_tells(web: TestWeb) -> None:
    truth = web.truth(digests=True)
    assert truth["seeds"]
    assert set(web.truth()["hosts"]) == {f"closed-{n:02d}.test" for n in range(6)}
    page = next(u for u, f in truth["urls"].items() if f["outcome"] == "page" and f["kind"] == "html")
    assert ask(web, page)[0] == 200
    missing = next(u for u, f in truth["urls"].items() if f["outcome"] == "missing")
    assert ask(web, missing)[0] in (404, 410)


def test_a_validator_sent_back_gets_304(web: TestWeb) -> None:
    status, headers, _ = ask(web, web.url("changing", "/tagged"))
    assert status == 200
    assert ask(web, web.url("changing", "/tagged"), **{"If-None-Match": headers["etag"]})[0] == 304


def test_content_codings_are_sent_only_to_those_who_accept_them(web: TestWeb) -> None:
    codings = set()
    for url in [u for u, f in web.truth()["urls"].items() if f.get("kind") == "html"]:
        assert "content-encoding" not in ask(web, url)[1]
        codings.add(ask(web, url, **{"Accept-Encoding": "gzip, br"})[1].get("content-encoding"))
        if codings >= {None, "gzip", "br"}:
            return
    pytest.fail(f"only {codings}")


def test_the_log_tells_who_asked_what_when_and_how_it_ended(web: TestWeb) -> None:
    ask(web, web.url("echo", "/once?x=1"), **{"User-Agent": "probe/1"})
    web.flush()
    [entry] = [e for e in judge.load(web.log_path) if e.target == "/once?x=1"]
    assert (entry.target, entry.status, entry.user_agent, entry.ending) == (
        "/once?x=1",
        200,
        "probe/1",
        "done",
    )
    assert entry.start_us <= entry.end_us
    assert entry.mono_start_us <= entry.mono_end_us
    assert entry.origin == f"http://echo.test:{web.port}"
    assert entry.address == query(web, "echo.test")[1][0]


def test_a_forbidden_redirect_can_be_set_up_and_watched_by_a_canary(web: TestWeb) -> None:
    with Canary("127.66.0.9") as canary:
        web.control("name", name="inside.test", addresses=["127.66.0.9"], ttl_s=0)
        target = f"http://inside.test:{canary.port}/secret"
        web.control("site", host="plain.test", pages={"/out": {"location": target}})
        status, headers, _ = ask(web, web.url("plain", "/out"))
        assert (status, headers["location"]) == (302, target)
        assert query(web, "inside.test")[1] == ["127.66.0.9"]
        assert canary.silent
    web.control("clear", host="plain.test")


def test_a_request_is_timed_by_its_arrival_even_while_the_server_is_held_up(web: TestWeb) -> None:
    address = query(web, "echo.test")[1][0]
    with socket.create_connection((address, web.port), timeout=10) as sock:
        request = b"GET /held-up HTTP/1.1\r\nHost: echo.test\r\n\r\n"
        sock.sendall(request)
        sock.recv(65_536)
        os.kill(web.pid, signal.SIGSTOP)
        try:
            sent_us = time.monotonic_ns() // 1000
            sock.sendall(request)
            time.sleep(0.15)  # what is tested is that this does not show
        finally:
            os.kill(web.pid, signal.SIGCONT)
        sock.recv(65_536)
    web.flush()
    entry = [e for e in judge.load(web.log_path) if e.target == "/held-up"][-1]
    assert -1_000 < entry.mono_start_us - sent_us < 50_000


def test_a_host_is_served_by_its_address_when_the_name_is_unknown(web: TestWeb) -> None:
    address = query(web, "plain.test")[1][0]
    connection = http.client.HTTPConnection(address, web.port, timeout=10)
    connection.request("GET", "/")
    assert b"plain" in connection.getresponse().read()
    connection.close()


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("nxdomain.test", dns.A, (dns.NXDOMAIN, [], False)),
        ("never-heard-of.test", dns.A, (dns.NXDOMAIN, [], False)),
        ("servfail.test", dns.A, (dns.SERVFAIL, [], False)),
        ("refused.test", dns.A, (dns.REFUSED, [], False)),
        ("nodata.test", dns.A, (dns.NOERROR, [], False)),
        ("private.test", dns.A, (dns.NOERROR, ["10.0.0.1"], False)),
        ("cname-private.test", dns.A, (dns.NOERROR, ["10.0.0.1"], False)),
        ("metadata.test", dns.A, (dns.NOERROR, ["169.254.169.254"], False)),
        ("mapped.test", dns.AAAA, (dns.NOERROR, ["::ffff:10.0.0.1"], False)),
        ("private.test", dns.AAAA, (dns.NOERROR, [], False)),
        ("cname-loop.test", dns.A, (dns.NOERROR, [], False)),
        ("truncated.test", dns.A, (dns.NOERROR, [], True)),
    ],
)
def test_a_special_name_is_answered_as_the_readme_says(
    web: TestWeb, name: str, kind: int, expected: tuple[int, list[str], bool]
) -> None:
    assert query(web, name, kind) == expected


def test_a_long_chain_of_names_ends_at_an_address(web: TestWeb) -> None:
    assert query(web, "chain.test") == query(web, "plain.test")


def test_what_is_truncated_over_udp_is_whole_over_tcp(web: TestWeb) -> None:
    assert query(web, "truncated.test", tcp=True) == query(web, "plain.test")


def test_a_rebinding_name_takes_turns(web: TestWeb) -> None:
    seen = [query(web, "rebind.test")[1][0] for _ in range(4)]
    assert seen[0] == seen[2] != seen[1] == seen[3]


def test_a_name_that_is_dropped_gets_no_answer(web: TestWeb) -> None:
    with pytest.raises(TimeoutError):
        query(web, "drop.test", wait_s=0.2)


def test_dns_can_be_killed_and_brought_back(web: TestWeb) -> None:
    web.control("dns", state="dead")
    try:
        with pytest.raises(TimeoutError):
            query(web, "plain.test", wait_s=0.2)
    finally:
        web.control("dns", state="alive")
    assert query(web, "plain.test")[0] == dns.NOERROR


def test_a_site_can_be_told_to_fail_to_change_and_to_recover(web: TestWeb) -> None:
    url = web.url("plain", "/one")
    web.control("site", host="plain.test", status=503, retry_after=7)
    assert (ask(web, url)[0], ask(web, url)[1]["retry-after"]) == (503, "7")
    web.control(
        "site", host="plain.test", robots="User-agent: *\nDisallow: /\n", pages={"/one": {"body": "new"}}
    )
    assert ask(web, url)[2] == b"new"
    assert b"Disallow: /" in ask(web, web.url("plain", "/robots.txt"))[2]
    web.control("clear", host="plain.test")
    assert ask(web, url)[0] == 200
    assert ask(web, url)[2] != b"new"


def test_a_command_that_is_not_understood_is_refused(web: TestWeb) -> None:
    for wrong in (
        {"do": "dance"},
        {"do": "site", "host": "plain.test", "colour": "red"},
        {"do": "dns", "state": "?"},
    ):
        with pytest.raises(ValueError, match=r"unknown|state"):
            web.control(**wrong)


def test_a_request_that_gets_no_answer_is_logged_when_the_peer_gives_up(web: TestWeb) -> None:
    address = query(web, "never-answers.test")[1][0]
    with socket.create_connection((address, web.port), timeout=5) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: never-answers.test\r\n\r\n")
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    entry = until_logged(web, "never-answers.test")
    assert (entry.status, entry.bytes, entry.ending) == (0, 0, "cut")


def until_logged(web: TestWeb, host: str) -> judge.Entry:
    for _ in range(100):
        web.flush()
        if found := [entry for entry in judge.load(web.log_path) if entry.host == host]:
            return found[-1]
    pytest.fail(f"nothing logged for {host}")


def test_resets_are_resets_on_the_socket(web: TestWeb) -> None:
    with pytest.raises(ConnectionResetError):
        ask(web, web.url("resets", "/before"))
    assert until_logged(web, "resets.test").ending == "reset"


@pytest.mark.parametrize("name", sorted(FRAMING))
def test_bad_framing_arrives_byte_for_byte(web: TestWeb, name: str) -> None:
    with socket.create_connection((query(web, "bad-framing.test")[1][0], web.port), timeout=5) as sock:
        sock.sendall(f"GET /{name} HTTP/1.1\r\nHost: bad-framing.test\r\n\r\n".encode())
        got = b""
        while piece := sock.recv(65_536):
            got += piece
    assert got == FRAMING[name]


def test_pipelined_requests_are_answered_in_order(web: TestWeb) -> None:
    with socket.create_connection((query(web, "plain.test")[1][0], web.port), timeout=5) as sock:
        sock.sendall(
            b"GET /one HTTP/1.1\r\nHost: plain.test\r\n\r\nGET /none HTTP/1.1\r\nHost: plain.test\r\nConnection: close\r\n\r\n"
        )
        got = b""
        while piece := sock.recv(65_536):
            got += piece
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"200", b"404"]


@pytest.mark.parametrize("kind", site_classes(), ids=lambda kind: kind.name)
def test_every_site_answers_its_front_page_or_takes_the_wire(kind: Any) -> None:
    site = kind()
    request = Request("GET", "/", {"host": f"{kind.name}.test:80"}, "http", "127.0.0.1", 80, 1)
    reply = site.answer(request)
    assert reply.raw is not None or 200 <= reply.status < 600
    request.target = "/robots.txt"
    assert site.answer(request) is not None


def test_hostile_pages_are_of_the_announced_weight() -> None:
    assert {name for name in HOSTILE if not 50_000 < len(hostile_page(name)) < 10_485_760} == set()


def test_tls_sites_are_good_and_bad_as_named(tmp_path: Path) -> None:
    with TestWeb.start(tmp_path, tls=True, sites=0) as web:
        context = ssl.create_default_context(cafile=web.ca)
        assert greet(web, "tls-good.test", context) == "HTTP/1.1 200 OK"
        for name, reason in (
            ("self-signed", "self-signed"),
            ("expired", "expired"),
            ("wrong-name", "mismatch"),
        ):
            with pytest.raises(ssl.SSLCertVerificationError, match=reason):
                greet(web, f"tls-{name}.test", context)


def greet(web: TestWeb, name: str, context: ssl.SSLContext) -> str:
    raw = socket.create_connection((query(web, name)[1][0], web.tls_port), timeout=5)
    with raw, context.wrap_socket(raw, server_hostname=name) as sock:
        sock.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
        return sock.recv(15).decode()


def test_a_canary_remembers_who_touched_it() -> None:
    with Canary("127.66.0.1", "127.66.0.2") as canary:
        assert canary.silent
        socket.create_connection(("127.66.0.2", canary.port), timeout=5).close()
        assert canary.wait(5)
        assert [touch.address for touch in canary.touches] == ["127.66.0.2"]


def test_bench_pages_are_heavy_distinct_and_stay_the_same() -> None:
    bench = BenchSite(origins=3, pages=5000, page_bytes=90_000, links=100, port=80)
    pages = [bench.page(1, number) for number in range(1, 40)]
    assert all(80_000 < len(page) < 100_000 for page in pages)
    assert all(80 <= page.count(b"<a ") <= 120 for page in pages)
    assert len(set(pages)) == len(pages)
    assert bench.page(1, 1) == pages[0]
    known: set[bytes] = set()
    grown = []
    for page in pages:
        found = set(re.findall(rb'href="([^"]+)"', page))
        grown.append(len(found - known))
        known |= found
    assert 5 <= sum(grown[1:]) / len(grown[1:]) <= 40


def test_bench_origins_are_named_and_served(web: TestWeb) -> None:
    assert web.seeds == [web.url(f"bench-{number}") for number in range(3)]
    assert ask(web, web.seeds[2])[0] == 200


def test_the_web_ends_when_its_handle_does(tmp_path: Path) -> None:
    with TestWeb.start(tmp_path, sites=0) as web:
        assert web.running
    assert not web.running


def test_run_fills_in_where_the_web_is_and_returns_the_exit_code() -> None:
    script = "import sys; print(len(sys.argv), sys.argv[1].startswith('127.0.0.1:')); sys.exit(7)"
    command = [sys.executable, "-m", "tests.web", "run", "--sites", "2", "--pages", "9", "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", script, "{dns}", "{seeds}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (7, "4 True")


def test_truth_on_the_command_line_is_json() -> None:
    command = [sys.executable, "-m", "tests.web", "truth", "--sites", "2", "--pages", "9", "--port", "99"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert [
        "http://mirror.test:99/article",
        "http://mirror.test:99/print",
        "http://mirror-2.test:99/article",
    ] in (told.pop("near_duplicates"))
    assert told == ClosedSet(sites=2, pages=9, seed=1, port=99).truth()


def test_the_readme_lists_every_site_and_name() -> None:
    assert README.read_text().endswith(tables())


def test_the_command_that_is_printed_can_be_pasted() -> None:
    seeds = [f"http://closed-{number:02}.test:1/" for number in range(9)]
    words = shlex.split(_crawl_line(Ready(port=1, dns_port=2, control_port=3, seeds=seeds)))
    assert words[:5] == ["amble", "crawl", *seeds[:3]]
    assert words[5].startswith("--")
