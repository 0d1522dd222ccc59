"""Reading robots.txt: any bytes, every clause of the grammar, and bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.manifest import RobotsRules
from amble.domain.robots import RuleSet
from amble.formats.robots_txt import BODY_BYTES_MAX, SITEMAP_CHARS_MAX, SITEMAPS_MAX, parse


def rules(body: bytes | str, *agents: str) -> RobotsRules:
    return parse(body.encode() if isinstance(body, str) else body, agents or ("amble",))


def patterns(body: bytes | str, *agents: str) -> list[str]:
    return [("+" if allow else "-") + pattern for allow, pattern in rules(body, *agents).rules]


# --- groups ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected", "group"),
    [
        ("", [], ""),
        ("Disallow: /before-any-group", [], ""),
        ("User-agent: *\nDisallow: /a", ["-/a"], "*"),
        ("User-agent: amble\nDisallow: /a", ["-/a"], "amble"),
        ("User-agent: AMBLE\nDisallow: /a", ["-/a"], "amble"),
        ("User-agent: amble/1.0 (+https://a.example)\nDisallow: /a", ["-/a"], "amble"),
        ("User-agent: other\nDisallow: /a", [], ""),
        # whole tokens only
        ("User-agent: amb\nDisallow: /a\nUser-agent: ambler\nDisallow: /b", [], ""),
        ("User-agent: *\nDisallow: /a\nUser-agent: amble\nDisallow: /b", ["-/b"], "amble"),
        # a group for us without rules still keeps the general ones away
        ("User-agent: *\nDisallow: /\nUser-agent: amble\nDisallow:", [], "amble"),
        # several agents, one group
        ("User-agent: x\nUser-agent: amble\n\n\nDisallow: /a", ["-/a"], "amble"),
        # several groups, one agent (RFC 9309 2.2.1)
        ("User-agent: amble\nDisallow: /a\nUser-agent: x\nDisallow: /x\nUser-agent: amble\nAllow: /b", ["-/a", "+/b"], "amble"),
        # only a rule ends the run of agents (2.2.4)
        ("User-agent: amble\nSitemap: http://a.example/s\nUser-agent: x\nDisallow: /a", ["-/a"], "amble"),
        ("User-agent: amble\nCrawl-delay: 3\nUser-agent: x\nDisallow: /a", ["-/a"], "amble"),
        ("User-agent: amble\nNoindex: /\nUser-agent: x\nDisallow: /a", ["-/a"], "amble"),
        ("User-agent: amble\nDisallow:\nUser-agent: x\nDisallow: /a", [], "amble"),
        # an agent line that names nobody ends the group before it
        ("User-agent: amble\nDisallow: /a\nUser-agent: 123\nDisallow: /b", ["-/a"], "amble"),
        ("User-agent: *x\nDisallow: /a", [], ""),
        ("User-agent: * # all\nDisallow: /a", ["-/a"], "*"),
    ],
)  # fmt: skip
def test_the_group_that_applies(body: str, expected: list[str], group: str) -> None:
    assert patterns(body) == expected
    assert rules(body).matched_group == group


def test_the_first_of_our_names_that_the_file_knows_decides() -> None:
    body = "User-agent: amble\nDisallow: /a\nUser-agent: archive-amble\nDisallow: /b\nUser-agent: *\nDisallow: /c"
    assert patterns(body, "archive-amble", "amble") == ["-/b"]
    assert patterns(body, "Unknown", "Amble") == ["-/a"]
    assert patterns(body, "unknown") == ["-/c"]


# --- lines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\r\n"])
def test_any_line_ending_ends_a_line(end: str) -> None:
    assert patterns(end.join(["User-agent: amble", "Disallow: /a", "Allow: /b"])) == ["-/a", "+/b"]


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x85", "\u2028"])
def test_no_other_character_ends_a_line(separator: str) -> None:
    assert len(rules(f"User-agent: amble\nDisallow: /a{separator}Disallow: /b").rules) == 1


@pytest.mark.parametrize("bom", [b"\xef\xbb\xbf", b"\xef\xbb", b"\xef", b""])
def test_a_byte_order_mark_or_its_beginning_is_not_part_of_the_first_line(bom: bytes) -> None:
    assert patterns(bom + b"User-agent: amble\nDisallow: /a") == ["-/a"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Disallow: /a # comment", "-/a"),
        ("Disallow: /a#comment", "-/a"),
        ("  DISALLOW\t:\t/a  ", "-/a"),
        ("disallow:/a:b", "-/a:b"),
        ("Disallow /a", "-/a"),
        ("Dissallow: /a", "-/a"),
        ("Disallow: a", "-/a"),
        ("Disallow: *.pdf$", "-*.pdf$"),
        ("Disallow: /a b", "-/a%20b"),
        ("Disallow: /ä", "-/%C3%A4"),
        ("Allow: /%7Ea%c3", "+/%7Ea%c3"),
    ],
)
def test_a_rule_line(line: str, expected: str) -> None:
    assert patterns(f"User-agent: amble\n{line}") == [expected]


def test_octets_that_are_no_text_are_escaped_as_they_are() -> None:
    assert patterns(b"User-agent: amble\nDisallow: /\xe4\x00\xff") == ["-/%E4%00%FF"]


@pytest.mark.parametrize(
    "line", ["Disallow: /a b c d".replace(":", ""), "Disallow", ": /a", "Disallow /a /b"]
)
def test_a_line_that_says_nothing_clear_is_no_rule(line: str) -> None:
    assert patterns(f"User-agent: amble\n{line}") == []


@pytest.mark.parametrize("line", ["User-agent amble", "Useragent: amble", "User agent: amble"])
def test_a_misspelt_agent_line_still_starts_a_group(line: str) -> None:
    assert patterns(f"{line}\nDisallow: /a") == ["-/a"]


# --- crawl-delay and sitemaps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "delay_s"),
    [
        ("User-agent: amble\nCrawl-delay: 2.5", 2.5),
        ("User-agent: amble\nCrawl-delay: 0", 0.0),
        ("User-agent: amble\nCrawl-delay: 2\nDisallow: /\nUser-agent: amble\nCrawl-delay: 5", 5.0),
        ("User-agent: *\nCrawl-delay: 9\nDisallow: /x\nUser-agent: amble\nDisallow: /", None),
        ("User-agent: bot\nCrawl-delay: 9\nUser-agent: amble\nDisallow: /", None),
        ("User-agent: amble\nCrawl-delay: -1", None),
        ("User-agent: amble\nCrawl-delay: nan", None),
        ("User-agent: amble\nCrawl-delay: inf", None),
        ("User-agent: amble\nCrawl-delay: soon", None),
        ("User-agent: amble\nCrawl-delay:", None),
    ],
)
def test_the_crawl_delay_of_our_group(body: str, delay_s: float | None) -> None:
    assert rules(body).crawl_delay_s == delay_s


def test_sitemaps_belong_to_the_whole_file() -> None:
    body = "Sitemap: https://a.example/1.xml\nUser-agent: x\nDisallow: /\nSITEMAP: /2.xml\nSite-map: /ü.xml"
    assert rules(body).sitemaps == ("https://a.example/1.xml", "/2.xml", "/ü.xml")


def test_sitemaps_are_bounded_in_number_and_length() -> None:
    body = f"Sitemap: /{'x' * SITEMAP_CHARS_MAX}\n" + "Sitemap: /s\n" * (SITEMAPS_MAX + 1)
    assert rules(body).sitemaps == ("/s",) * SITEMAPS_MAX


# --- size ------------------------------------------------------------------------------------------------------


def test_a_file_over_the_bound_ends_with_its_last_whole_line() -> None:
    head = b"User-agent: amble\nDisallow: /first\n"
    filler = b"#" * (BODY_BYTES_MAX - len(head) - len(b"\nDisallow: /ab")) + b"\n"
    found = rules(head + filler + b"Disallow: /about\nDisallow: /late\n")
    assert found.rules == ((False, "/first"),)
    assert found.truncated


def test_a_file_at_the_bound_is_read_whole() -> None:
    head = b"User-agent: amble\nDisallow: /first\n"
    found = rules(head + b"#" * (BODY_BYTES_MAX - len(head)))
    assert found.rules == ((False, "/first"),)
    assert not found.truncated


def test_a_single_line_longer_than_the_bound_says_nothing() -> None:
    assert rules(b"User-agent: amble" + b" " * BODY_BYTES_MAX + b"\nDisallow: /").rules == ()


def test_a_line_of_any_length_below_the_bound_counts() -> None:
    path = "/" + "a" * 300_000
    assert patterns(f"User-agent: amble\nDisallow: {path}") == [f"-{path}"]


# --- anything --------------------------------------------------------------------------------------------------

LINES = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from(
            [b"User-agent: amble", b"User-agent: *", b"Disallow: /a*b$", b"Allow: ", b"Disallow: \xff%", b"\xef\xbb", b"#", b":"]
        ),
    ),
    max_size=12,
)  # fmt: skip


@given(lines=LINES, end=st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_bytes_are_read_and_any_rules_can_be_matched(lines: list[bytes], end: bytes) -> None:
    found = rules(end.join(lines))
    assert all(pattern.isascii() and pattern[0] in "/*" for _, pattern in found.rules)
    allowed, pattern = RuleSet(found).allows("/a%FFb")
    assert allowed or (False, pattern) in found.rules


@pytest.mark.parametrize("agents", [["*"], ["amble", "*"], []], ids=["one", "two", "thousands"])
def test_agents_named_over_and_over_above_a_list_of_rules_have_each_rule_once(agents: list[str]) -> None:
    named = agents or [
        f"bot-{chr(97 + i // 676)}{chr(97 + i // 26 % 26)}{chr(97 + i % 26)}" for i in range(15_000)
    ]
    repeated = (named * 15_000)[:15_000]
    body = "".join(f"User-agent: {agent}\n" for agent in repeated) + "Disallow: /a\n" * 10_000
    assert len(rules(body).rules) == (10_000 if agents else 0)
