"""No page, redirect, name or robots.txt leads a crawl to an address that it may not contact.

One allowed site offers a forbidden listener in every spelling and by every way; a canary listens there. The same crawl
with those addresses allowed does reach it, so silence proves something.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.amble_process import run
from tests.web.canary import Canary
from tests.web.handle import TestWeb
from tests.whole.rig import SOON_S, arguments

FORBIDDEN = ("127.66.0.1", "127.0.0.1", "::1")
NUMBER = 0x7F42_0001
# An allowed address without a site of its own: what it answers is told over the control port.
OURS = "127.10.0.240"

#: Hosts that mean one of the forbidden addresses, or might to somebody.
HOSTS = (
    "127.66.0.1", "127.66.0.1.", "127.66.1", "127.4325377", str(NUMBER), hex(NUMBER), f"0{NUMBER:o}",
    "0x7f.0x42.0x0.0x1", "0X7F.66.0.1", "0177.0102.0.1", "0177.66.0.1", "00000177.66.0.01", "127.0x42.01",
    "127.66.0.0x1", "0x7f.4325377", "127.0102.1", "%31%32%37.66.0.1", "127%2E66%2E0%2E1", "127.66.0.%31",
    "１２７.66.0.1", "127。66。0。1", "127．66．0．1", "127.66.0.1｡", "①②⑦.66.0.1", "127.66.0.1%2e", "0x7F420001.",
    "[::ffff:127.66.0.1]", "[::ffff:7f42:1]", "[0:0:0:0:0:FFFF:7F42:0001]", "[::127.66.0.1]", "[::7f42:1]",
    "[64:ff9b::127.66.0.1]", "[64:ff9b::7f42:1]", "[2002:7f42:1::]", "[::ffff:0:127.66.0.1]", "[fe80::5efe:7f42:1]",
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "017700000001", "0x7f.1", "127.000.000.001",
    "localhost", "LOCALHOST", "localhost.", "sub.localhost", "ｌocalhost", "%6cocalhost",
    "0.0.0.0", "0", "0x0", "0.0", "[::]", "[::1]", "[0:0:0:0:0:0:0:1]", "[0000::0001]",
    "[::ffff:127.0.0.1]", "[::ffff:0.0.0.0]", "user@127.66.0.1", "plain.test@127.66.0.1", "user:pass@[::1]",
    "inside.test", "INSIDE.test", "inside.test.", "inside6.test", "alias.test", "mapped-inside.test",
    "mixed-first.test", "mixed-last.test", "mixed6.test", "turns-bad-first.test", "turns-good-first.test",
    "10.0.0.1", "192.168.0.1", "169.254.169.254", "[fd00::1]", "metadata.test", "zero.test", "nat64.test",
    "cname-private.test",
)  # fmt: skip


def names(web: TestWeb) -> None:
    """Names that mean a forbidden address: alone, behind an alias, beside a good one, in turns with a good one."""
    inside = FORBIDDEN[0]
    web.control("name", name="ours.test", addresses=[OURS])
    web.control("name", name="inside.test", addresses=[inside])
    web.control("name", name="inside6.test", addresses=["::1"])
    web.control("name", name="alias.test", alias="inside.test")
    web.control("name", name="mapped-inside.test", addresses=["::ffff:127.66.0.1"])
    web.control("name", name="mixed-first.test", addresses=[inside, OURS])
    web.control("name", name="mixed-last.test", addresses=[OURS, inside])
    web.control("name", name="mixed6.test", addresses=[OURS, "::1"])
    web.control("name", name="turns-bad-first.test", turns=[[inside], [OURS]], ttl_s=0)
    web.control("name", name="turns-good-first.test", turns=[[OURS], [inside]], ttl_s=0)


def references(port: int) -> Iterator[str]:
    """Everything that a link or a redirect might say."""
    for number, host in enumerate(HOSTS):
        yield f"http://{host}:{port}/secret-{number}"
    inside = f"127.66.0.1:{port}"
    yield from (
        f"//{inside}/relative-1", f"///{inside}/relative-2", f"\\\\{inside}/relative-3", f"/\\{inside}/relative-4",
        f"https://{inside}/tls", f"http:\\\\{inside}\\back", f"http:/{inside}/one-slash", f"HtTp://{inside}/case",
        f"http://127.66\n.0.1:{port}/line", f"ht\ttp://{inside}/tab", f" http://{inside}/space ",
        f"http://{inside}#@plain.test/", f"http://{inside}?@plain.test/", f"http://plain.test\\@{inside}/",
        f"http://{inside}/../../up", f"ftp://{inside}/", f"gopher://{inside}/", "file:///etc/passwd",
        f"view-source:http://{inside}/", f"jar:http://{inside}!/", f"data:text/html,<a href=//{inside}/>",
    )  # fmt: skip


@dataclass(slots=True)
class Bait:
    """What the allowed site serves: pages with every reference, and a redirect for each."""

    port: int
    pages: dict[str, dict[str, object]] = field(default_factory=dict)

    def lay(self) -> None:
        said = list(references(self.port))
        self.page("/links", "".join(f'<a href="{html.escape(url)}">x</a>\n' for url in said))
        sent = [url for url in said if url.isascii() and url.isprintable() and url == url.strip()]
        for number, url in enumerate(sent):
            status = (301, 302, 303, 307, 308)[number % 5]
            self.pages[f"/r/{number}"] = {"location": url.replace("secret", "moved"), "status": status}
        self.page("/redirects", "".join(f'<a href="/r/{number}">x</a>' for number in range(len(sent))))
        self.others()
        self.page("/", "".join(f'<a href="{path}">x</a>' for path in list(self.pages) if path != "/"))

    def page(self, path: str, body: str, head: str = "") -> None:
        self.pages[path] = {"body": f"<!doctype html><html><head>{head}</head><body>{body}</body></html>"}

    def others(self) -> None:
        """Ways beside links and redirects."""
        inside = f"http://127.66.0.1:{self.port}"
        self.page("/refresh", "", f'<meta http-equiv="refresh" content="0; url={inside}/refresh">')
        self.page("/base", '<a href="below-base">x</a>', f'<base href="{inside}/">')
        self.page("/base-6", '<a href="/below-base">x</a>', f'<base href="//[::1]:{self.port}/">')
        self.page("/canonical", "x", f'<link rel="canonical" href="{inside}/canonical">')
        self.page("/alternate", "x", f'<link rel="alternate" hreflang="en" href="{inside}/alternate">')
        self.page("/next", "x", f'<link rel="next" href="{inside}/next">')
        embeds = ("img", "iframe", "frame", "embed", "script", "video", "audio", "source", "track")
        self.page(
            "/embeds",
            "".join(f'<{tag} src="{inside}/embed-{tag}"></{tag}>' for tag in embeds)
            + f'<img srcset="{inside}/srcset 2x"><object data="{inside}/object"></object>'
            + f'<form action="{inside}/form"><input></form><area href="{inside}/area">'
            + f'<svg><a xlink:href="{inside}/svg">x</a></svg><blockquote cite="{inside}/cite"></blockquote>',
        )
        self.pages["/hop/1"] = {"location": "/hop/2"}
        self.pages["/hop/2"] = {"location": f"{inside}/after-hops"}


def robots_bait(web: TestWeb, port: int) -> list[str]:
    """Sites whose robots.txt redirects to a forbidden place, each in its own way; their front pages."""
    targets = (
        f"http://127.66.0.1:{port}/robots.txt", f"http://inside.test:{port}/robots.txt", f"//[::1]:{port}/robots.txt",
        f"http://{NUMBER}:{port}/robots.txt", f"http://0x7f.66.0.1:{port}/r", f"http://[::ffff:7f42:1]:{port}/r",
        f"http://localhost:{port}/robots.txt", f"https://127.66.0.1:{port}/robots.txt",
        f"http://mixed-last.test:{port}/robots.txt", "/robots-hop",
    )  # fmt: skip
    seeds = []
    for number, target in enumerate(targets):
        host = f"robots-bait-{number}.test"
        web.control("name", name=host, addresses=[OURS])
        pages = {"/robots.txt": {"location": target}, "/robots-hop": {"location": targets[0]}}
        web.control("site", host=host, pages=pages)
        seeds.append(web.url(host))
    return seeds


def crawl(folder: Path, canary: Canary, *more: str) -> tuple[set[str], dict[str, str]]:
    """Crawl the bait: (hosts known, state of each URL)."""
    out = folder / "crawl"
    with TestWeb.start(folder, sites=0) as web:
        names(web)
        bait = Bait(canary.port)
        bait.lay()
        web.control("site", host="ours.test", pages=bait.pages, robots="User-agent: *\nDisallow:\n")
        seeds = [web.url("ours.test"), *robots_bait(web, canary.port)]
        done = run(
            arguments(
                web, out, "--scope", "any", "--contact", "https://amble.test/bot", "--delay", "0.01", "--set", "retry.tries_max=1",
                "--set", "finish.wait_max_s=1", *more, seeds=seeds,
            ),
            timeout_s=SOON_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    listed = run(["urls", str(out), "--json", "--limit", "0"], timeout_s=SOON_S)
    lines = [json.loads(line) for line in listed.stdout.splitlines()]
    states = {line["url"]: line["state"] for line in lines}
    return {urlsplit(url).hostname or "" for url in states}, states


def test_no_spelling_and_no_detour_leads_to_a_forbidden_address(tmp_path: Path) -> None:
    assert len(HOSTS) >= 60
    with Canary(*FORBIDDEN) as canary:
        hosts, states = crawl(tmp_path, canary)
        assert canary.silent, f"touched: {canary.touches}"
    ours = {"ours.test", *(host for host in hosts if host.startswith("robots-bait-"))}
    fetched = {url for url, state in states.items() if state == "complete"}
    assert {urlsplit(url).hostname for url in fetched} <= ours
    # The bait was taken: the crawl knew these places and was kept from them by the gate.
    assert {"127.66.0.1", "127.0.0.1", "::1", "localhost", "inside.test", "mixed-last.test"} <= hosts
    assert sum("/r/" in url for url in fetched) > 60
    assert sum("/moved-" in url for url in states) > 30


def test_the_same_crawl_reaches_the_canary_where_its_addresses_are_allowed(tmp_path: Path) -> None:
    with Canary(*FORBIDDEN) as canary:
        crawl(tmp_path, canary, "--allow-net", "127.0.0.0/8", "--allow-net", "::1/128")
        touched = {touch.address for touch in canary.touches}
    assert touched == set(FORBIDDEN)
    assert len(canary.touches) > 10
