"""One crawl of every behaviour site of the test web, site by site against what each one is there to show.

The expected outcome of a URL is one line: its state, then its status (where the reason does not say it) and its reason.
Requests are counted by the server. Timeouts are short, so that slow sites cost seconds; traps meet small bounds.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.amble_process import run
from tests.web.handle import TestWeb
from tests.web.hostile import HOSTILE
from tests.web.sites import FRAMING, RedirectPrivate, site_classes
from tests.whole import log

URLS_PER_ORIGIN = 40
SETTINGS = {
    "urls.depth_max": "3",
    "urls.urls_per_origin_start": str(URLS_PER_ORIGIN),
    "urls.urls_per_origin_max": str(URLS_PER_ORIGIN),
    "retry.tries_max": "3",
    "retry.base_ms": "50",
    "retry.cap_ms": "200",
    "origin.backoff_base_ms": "50",
    "origin.backoff_cap_ms": "300",
    "fetch.connect_s": "2",
    "fetch.first_byte_s": "3",
    "fetch.idle_s": "1",
    "fetch.total_s": "6",
    "fetch.rate_grace_s": "2",
    "finish.wait_max_s": "5",
}
# Not linked from index.test: other names of one behaviour, names that DNS does not know or that lead elsewhere.
MORE = (
    *(f"robots-redirect-{hops}" for hops in range(2, 7)),
    *("shared-ip-2", "shared-ip-3", "nxdomain", "nodata", "servfail", "private", "metadata"),
)
TLS = ("tls-good", "tls-expired", "tls-self-signed", "tls-wrong-name")

OK = "complete 200"
FRONT = {"/": OK, "/one": OK, "/two": OK}
NO_TWO = FRONT | {"/two": "excluded robots_disallowed"}
WAITS = {"/": "pending"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What became of a site: each of its URLs but robots.txt, what robots.txt came to, and how often it was asked.

    `urls` None: too many to list, `urls_min` to `urls_max` of them, none failed or left over. `requests` counts all.
    """

    urls: Mapping[str, str] | None
    requests: int | tuple[int, int]
    robots: str = "complete 200"
    urls_min: int = 0
    urls_max: int = URLS_PER_ORIGIN
    also: Mapping[str, str] = field(default_factory=dict)


def site(
    urls: Mapping[str, str], requests: int | tuple[int, int] = 0, *, robots: str = "complete 200"
) -> Expected:
    """A site whose URLs are listed; without `requests`, each was asked for once, robots.txt too."""
    asked = sum(not outcome.startswith(("excluded", "pending")) for outcome in urls.values()) + 1
    return Expected(urls=urls, requests=requests or asked, robots=robots)


def many(urls_min: int, urls_max: int = URLS_PER_ORIGIN, **also: str) -> Expected:
    """A site of so many URLs; `also` are outcomes of some of them, by path without its slash."""
    return Expected(
        urls=None,
        requests=(urls_min, urls_max + 1),
        urls_min=urls_min,
        urls_max=urls_max,
        also={f"/{path}": outcome for path, outcome in also.items()},
    )


def unreachable(requests: int, robots: str) -> Expected:
    """robots.txt could not be had: the front page waits, nothing else was asked for."""
    return site(WAITS, requests, robots=robots)


SITES: dict[str, Expected] = {
    # robots.txt
    "plain": Expected(urls=None, requests=4, urls_min=3, urls_max=3, also=FRONT),
    "robots-404": site(FRONT, robots="complete 404"),
    "robots-401": site(FRONT, robots="complete 401"),
    "robots-403": site(FRONT, robots="complete 403"),
    "robots-429": site(FRONT, 6),
    "robots-500": unreachable(3, "failed http_server_error"),
    "robots-503": unreachable(3, "failed http_server_error"),
    "robots-timeout": unreachable(3, "failed timeout_first_byte"),
    "robots-reset": unreachable(3, "failed disconnected"),
    "robots-redirect-1": site(NO_TWO, 4),
    "robots-redirect-2": site(NO_TWO, 5),
    "robots-redirect-3": site(NO_TWO, 6),
    "robots-redirect-4": site(NO_TWO, 7),
    "robots-redirect-5": site(NO_TWO, 8),
    "robots-redirect-6": unreachable(6, "failed robots_hops"),
    "robots-redirect-cross": site(NO_TWO),
    "robots-elsewhere": site(NO_TWO, 4),  # once more for robots-redirect-cross
    "robots-redirect-loop": unreachable(6, "failed robots_hops"),
    "robots-html": site(FRONT),
    "robots-huge": site(NO_TWO),
    "robots-disallow-all": site({"/": "excluded robots_disallowed"}),
    "robots-groups": site(NO_TWO),
    "robots-changing": site(FRONT),
    "crawl-delay": site({"/": OK, **{f"/{number}": OK for number in range(1, 6)}}),
    # slow and broken servers
    "slow-first-byte": site(FRONT),
    "slow-drip": site({"/": OK, "/drip-body": OK, "/drip-head": "failed too_slow"}, 8),
    "never-answers": site({"/": "failed timeout_first_byte"}, 4),
    "stalls-mid-body": site({"/": OK}, 4),
    # One more when the bare close met a connection in use before, which is sent again on a new one
    "resets": site(
        {"/": OK, "/before": "failed disconnected", "/during": OK, "/empty": "failed empty_reply"}, (11, 12)
    ),
    "truncated-body": site({"/": OK, "/short": OK, "/chunk": OK}, 8),
    "flaky": site(FRONT, 7),
    "closes-idle": site(FRONT),
    "throttle-429": site(FRONT, 5),
    "busy-503": site(FRONT, 10),
    "always-500": site({"/": OK, "/one": "failed http_server_error", "/two": "failed http_server_error"}, 8),
    "statuses": site(
        {
            "/": OK,
            "/200": "complete 200 no_text",
            "/201": "complete 201 no_text",
            "/203": "complete 203 no_text",
            "/204": "complete 204 no_text",
            "/206": "complete 206 no_text",
            **{f"/{status}": f"complete status_{status}" for status in (300, 304, 305, 400, 401, 403, 404)},
            **{f"/{status}": f"complete status_{status}" for status in (405, 406, 410, 418, 451)},
            "/408": "failed http_request_timeout",
            **{f"/{status}": "failed http_server_error" for status in (500, 501, 502)},
        },
        31,
    ),
    # traps: few pages at depth three, and never more than the origin's budget
    "trap-calendar": many(6, 8),
    "trap-deep": many(7),
    "trap-query": many(13),
    "trap-session": many(10),
    "trap-hosts": site({"/": OK}),
    "trap-soft-404": many(4),
    "trap-stream": site({"/": OK, "/radio": OK}),
    "big-site": many(URLS_PER_ORIGIN - 1),
    # bombs and floods
    "bomb-gzip": site({"/": OK, "/bomb": "complete 200 no_text", "/bomb-twice": "complete 200 no_text"}),
    "bad-coding": site(
        {
            "/": OK,
            "/broken-gzip": "complete 200 no_text",
            "/not-gzip": "failed parse_failed",
            "/unknown": "failed parse_failed",
        }
    ),
    "huge-body": site({"/": OK, "/announced": OK, "/chunked": OK, "/edge": OK}),
    "huge-headers": site(
        {"/": OK, "/one-line": "failed headers_too_large", "/many-lines": "failed headers_too_large"}, 6
    ),
    "endless-headers": site(
        {"/": OK, "/lines": "failed headers_too_large", "/continues": "failed protocol_error"}, 6
    ),
    "bad-framing": site(
        {
            "/": OK,
            **{f"/{case}": OK for case in FRAMING},
            "/garbage": "failed protocol_error",
            "/http-09": "failed protocol_error",
            "/switching": "complete status_101",
        },
        23,
    ),
    "hostile-html": many(URLS_PER_ORIGIN - 1, **dict.fromkeys(HOSTILE, OK)),
    # redirects
    "redirect-loop": site(
        {
            "/": OK,
            **dict.fromkeys(
                ("/a", "/b", "/self", "/grow", "/grow/x", "/grow/x/x", "/grow/x/x/x"), "complete status_302"
            ),
        }
    ),
    "redirect-private": site(
        {
            "/": OK,
            **{f"/to/{number}": "complete status_302" for number in range(len(RedirectPrivate.targets))},
        }
    ),
    "redirects": site(
        {
            "/": OK,
            **{f"/{status}": f"complete status_{status}" for status in (301, 302, 303, 307, 308)},
            **{f"/target-{status}": OK for status in (301, 302, 303, 307, 308)},
            **{f"/chain/{step}": "complete status_302" for step in range(1, 8)},
            "/chain/8": OK,
            "/relative": "complete status_302",
            "/target-relative": OK,
            "/fragment": "complete status_302",
            "/target-fragment": OK,
            "/nowhere": "complete status_302",
            "/space": "complete status_302",
            "/target%20space": OK,
            "/raw-utf8": "complete status_302",
            "/target-caf%C3%A9": OK,
        }
    ),
    # content
    "changing": site({"/": OK, "/ticks": OK, "/stable": OK, "/tagged": OK}),
    "bad-validators": site(
        {
            "/": OK,
            "/weak": OK,
            "/bare": OK,
            "/odd": OK,
            "/old": OK,
            "/unasked-304": "complete status_304",
        }
    ),
    "meta-robots": site(
        {
            "/": OK,
            "/noindex": "complete 200 noindex",
            "/nofollow": OK,
            "/none": "complete 200 noindex",
            "/for-amble": "complete 200 noindex",
            "/for-other": OK,
            "/behind-noindex": OK,
            "/behind-for-amble": OK,
            "/behind-for-other": OK,
        }
    ),
    "xrobots": site(
        {
            "/": OK,
            "/noindex": "complete 200 noindex",
            "/nofollow": OK,
            "/none": "complete 200 noindex",
            "/for-amble": "complete 200 noindex",
            "/for-other": OK,
            "/twice": "complete 200 noindex",
            "/after": OK,
            **{f"/behind-{case}": OK for case in ("noindex", "for-amble", "for-other", "twice", "after")},
        }
    ),
    "dup": site(
        {
            "/": OK,
            "/a": OK,
            "/b": OK,
            "/c?x=1": OK,
            "/near": OK,
            "/canonical": "complete 200 canonical_elsewhere",
        }
    ),
    "mirror": site({"/": OK, "/article": OK, "/print": OK, "/other": OK}),
    "latin1": site(
        {"/": OK, **{f"/{case}": OK for case in ("header", "meta", "bom", "lie", "none", "japanese")}}
    ),
    "kinds": site(
        {
            "/": OK,
            **{f"/{kind}": OK for kind in ("text", "html-as-text", "no-type", "typeless", "png-as-html")},
            **{
                f"/{kind}": "complete 200 no_text"
                for kind in ("pdf", "png", "json", "xml", "empty", "attachment")
            },
        }
    ),
    "cookies": site({"/": OK, "/one": OK}),
    "echo": site({"/": OK}),
    "index": site({"/": OK}),
    # Lists of links: pages that only they know, at most so many
    "sitemap": many(URLS_PER_ORIGIN - 1),
    "sitemap-bomb": many(URLS_PER_ORIGIN - 1),
    "shared-ip-1": site(FRONT),
    "shared-ip-2": site(FRONT),
    "shared-ip-3": site(FRONT),
    # names and certificates
    "nxdomain": Expected(urls=WAITS, requests=0, robots="failed dns_not_found"),
    "nodata": Expected(urls=WAITS, requests=0, robots="failed dns_not_found"),
    "servfail": Expected(urls=WAITS, requests=0, robots="failed dns_failed"),
    "metadata": Expected(urls=WAITS, requests=0, robots="failed refused_destination"),
    "private": Expected(urls=WAITS, requests=0, robots="failed refused_destination"),
    "tls-good": site(FRONT),
    "tls-expired": Expected(urls=WAITS, requests=0, robots="failed tls_certificate"),
    "tls-self-signed": Expected(urls=WAITS, requests=0, robots="failed tls_certificate"),
    "tls-wrong-name": Expected(urls=WAITS, requests=0, robots="failed tls_certificate"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Crawled:
    """The crawl from both sides."""

    folder: Path
    port: int
    urls: Mapping[str, Mapping[str, str]]  # host → path and query → outcome
    requests: Mapping[str, int]  # host → how many
    entries: list[log.Entry]
    near_duplicates: list[list[str]]  # groups of URLs

    @property
    def alike(self) -> dict[str, list[str]]:
        """Paths of documents that others nearly repeat, by host."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for url in (url for group in self.near_duplicates for url in group):
            found[urlsplit(url).hostname or ""].append(url.split("/", 3)[3].join(("/", "")))
        return found

    def outcome(self, url: str) -> str:
        """What became of a URL."""
        return self.urls[urlsplit(url).hostname or ""][url.split("/", 3)[3].join(("/", ""))]


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Crawled:
    base = tmp_path_factory.mktemp("behaviours")
    out = base / "crawl"
    with TestWeb.start(base, sites=0, tls=True) as web:
        seeds = [web.url(name) for name in ("index", *MORE)] + [web.url(name, scheme="https") for name in TLS]
        done = run(
            [
                *("crawl", *seeds, "--out", str(out), "--scope", "any", "--quiet", "--delay", "0.02"),
                *("--resolver", web.dns, "--allow-net", web.net, "--contact", "https://amble.example/bot"),
                *("--set", f"tls.ca_file={web.ca}"),
                *(word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")),
            ],
            timeout_s=280,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        web.flush()
        entries = log.load(web.log_path)
        near_duplicates = web.truth()["near_duplicates"]
        ports = {web.port, web.tls_port}
    listed = run(["urls", str(out), "--json", "--limit", "0"])
    assert listed.returncode == 0, listed.stderr
    return Crawled(
        folder=out,
        port=web.port,
        urls=_outcomes(listed.stdout, ports),
        requests=Counter(entry.host for entry in entries),
        entries=entries,
        near_duplicates=near_duplicates,
    )


def _outcomes(lines: str, ports: set[int]) -> dict[str, dict[str, str]]:
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for line in lines.splitlines():
        facts = json.loads(line)
        where = urlsplit(facts["url"])
        if where.port in ports and where.hostname:
            found[where.hostname][facts["url"].split("/", 3)[3].join(("/", ""))] = _outcome(facts)
    return found


def _outcome(facts: Mapping[str, Any]) -> str:
    reason = "" if facts["reason"] == "not_a_page" else facts["reason"] or ""
    status = "" if facts["state"] != "complete" or reason.startswith("status_") else str(facts["status"])
    return " ".join(word for word in (facts["state"], status, reason) if word)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SITES)
def test_a_site_comes_to_what_it_shows(name: str, crawled: Crawled) -> None:
    expected = SITES[name]
    urls = dict(crawled.urls[f"{name}.test"])
    for path in crawled.alike[f"{name}.test"]:
        # Which one of several is published depends on which comes first.
        urls[path] = urls[path].removesuffix(" near_duplicate")
    assert urls.pop("/robots.txt") == expected.robots
    if expected.urls is not None:
        assert urls == dict(expected.urls)
    else:
        assert expected.urls_min <= len(urls) <= expected.urls_max
        assert not [url for url, outcome in urls.items() if not outcome.startswith("complete")]
    for path, outcome in expected.also.items():
        assert urls[path].startswith(outcome)
    asked = crawled.requests[f"{name}.test"]
    least, most = expected.requests if isinstance(expected.requests, tuple) else (expected.requests,) * 2
    assert least <= asked <= most


def test_every_behaviour_has_its_row() -> None:
    assert {kind.name for kind in site_classes()} <= SITES.keys()


@pytest.mark.timeout(300)
def test_a_web_of_trouble_is_asked_politely(crawled: Crawled) -> None:
    entries = crawled.entries
    assert log.spacing(entries, 0.02, tolerance_s=0.002, delays={"crawl-delay.test": 1.0}) == []
    assert log.concurrency([entry for entry in entries if entry.ending == "done"], 1) == []
    assert log.robots_first(entries) == []
    agents = {entry.user_agent for entry in entries}
    assert len(agents) == 1
    assert "https://amble.example/bot" in agents.pop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("private", "because of refused_destination (10.0.0.1 is in 10.0.0.0/8"),
        ("nxdomain", "because of dns_not_found"),
        ("robots-500", "because of http_server_error (HTTP 500)"),
    ],
)
def test_why_names_what_kept_the_robots_txt_away(name: str, cause: str, crawled: Crawled) -> None:
    told = run(["why", f"http://{name}.test:{crawled.port}/", "--out", str(crawled.folder)])
    assert told.returncode == 0, told.stderr
    assert cause in next(line for line in told.stdout.splitlines() if line.startswith("robots.txt"))


@pytest.mark.timeout(300)
def test_a_crawl_of_trouble_verifies(crawled: Crawled) -> None:
    verified = run(["verify", str(crawled.folder)], timeout_s=120)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.timeout(300)
def test_one_of_each_group_of_near_duplicates_is_published(crawled: Crawled, tmp_path: Path) -> None:
    file = tmp_path / "documents.jsonl"
    exported = run(["export", str(crawled.folder), "--to", "jsonl", "--file", str(file)], timeout_s=120)
    assert exported.returncode == 0, exported.stderr
    documents = [json.loads(line)["url"] for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(crawled.near_duplicates) >= 2
    for group in crawled.near_duplicates:
        (first,) = (url for url in group if url in documents)
        late = [url for url in group if url != first]
        assert [crawled.outcome(url) for url in late] == ["complete 200 near_duplicate"] * len(late)
        told = run(["why", late[0], "--out", str(crawled.folder)]).stdout
        assert f"near_duplicate (nearly the same text as {first})" in told
        assert "publish.near_duplicates" in told
    assert f"http://mirror.test:{crawled.port}/other" in documents, "the same links around another text"
    withheld = sum(len(group) - 1 for group in crawled.near_duplicates)
    status = json.loads(run(["status", str(crawled.folder), "--json"]).stdout)
    assert status["withheld"]["near_duplicate"] >= withheld
    assert (
        f"{status['withheld']['near_duplicate']} near-duplicates"
        in run(["status", str(crawled.folder)]).stdout
    )


#: Path at latin1.test → its title, which its text repeats.
TITLES = {
    "/header": "café",
    "/meta": "мост",
    "/bom": "water 水",
    "/lie": "naïve",
    "/none": "crème",
    "/japanese": "東京",
}


@pytest.mark.timeout(300)
def test_every_charset_reads_right(crawled: Crawled, tmp_path: Path) -> None:
    file = tmp_path / "documents.jsonl"
    exported = run(["export", str(crawled.folder), "--to", "jsonl", "--file", str(file)], timeout_s=120)
    assert exported.returncode == 0, exported.stderr
    documents = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    titles, texts = {}, {}
    for document in documents:
        where = urlsplit(document["url"])
        if where.hostname == "latin1.test" and where.path != "/":
            titles[where.path], texts[where.path] = document["title"], document["text"]
    assert titles == TITLES
    assert texts == TITLES
