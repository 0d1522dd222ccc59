"""The canonical URL: public vectors for the parser underneath, tables for our policy, properties for everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ada_url
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from upa_url import URL

from amble.domain.decision import Reason
from amble.domain.url import (
    CANONICAL_CHARS_MAX,
    Base,
    Canonicalizer,
    Origin,
    QueryPolicy,
    SiteQueryRule,
    base_of,
    encode_query,
    host_of,
    is_well_formed,
    origin_of,
    partition_of,
    site_of,
    split,
    target_of,
)

DATA = Path(__file__).parent.parent / "data" / "wpt-url"
CANON = Canonicalizer()


def _cases(name: str) -> list[Any]:
    return [case for case in json.loads((DATA / name).read_text("utf-8")) if not isinstance(case, str)]


def canonical(url: str, base: str | None = None) -> str:
    found = None if base is None else base_of(base)
    assert not isinstance(found, Reason)
    return CANON.canon(url, found)


# --- the parser underneath -------------------------------------------------------------------------------------


def _usv(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@pytest.mark.parametrize("case", _cases("urltestdata.json"), ids=lambda case: repr(case["input"])[:60])
def test_the_parser_follows_the_url_standard(case: dict[str, Any]) -> None:
    arguments = [_usv(case["input"])]
    if case.get("base") is not None:
        arguments.append(case["base"])
    if case.get("failure"):
        with pytest.raises(RuntimeError):
            URL(*arguments)
        return
    url = URL(*arguments)
    assert url.href == case["href"]
    for part in (
        "protocol",
        "username",
        "password",
        "host",
        "hostname",
        "port",
        "pathname",
        "search",
        "hash",
    ):
        if part in case:
            assert getattr(url, part) == case[part], part


def test_all_cases_of_the_url_standard_are_there() -> None:
    assert len(_cases("urltestdata.json")) == 891


@pytest.mark.parametrize("case", _cases("toascii.json"), ids=lambda case: repr(case["input"])[:60])
def test_hosts_become_ascii_as_the_url_standard_says(case: dict[str, Any]) -> None:
    parsed = URL.parse(f"https://{_usv(case['input'])}/x")
    assert (None if parsed is None else parsed.hostname) == case["output"]


@pytest.mark.parametrize(
    ("text", "charset", "expected"),
    [
        (case["input"], name, out)
        for case in _cases("percent-encoding.json")
        for name, out in case["output"].items()
    ],
)
def test_a_query_is_encoded_in_the_charset_of_its_document(text: str, charset: str, expected: str) -> None:
    encoded = encode_query(f"https://example.org/?{text}", charset)
    assert URL(encoded).search == f"?{expected}"


# --- our policy ------------------------------------------------------------------------------------------------

BASE = "http://example.org/dir/page.html?q=1#top"

POLICY = [
    # what the parser does, and we keep
    ("HTTP://Example.ORG", "http://example.org/"),
    ("http://example.org:80/", "http://example.org/"),
    ("https://example.org:443/", "https://example.org/"),
    ("https://example.org:80/", "https://example.org:80/"),
    ("http://example.org/a/../b/./c", "http://example.org/b/c"),
    ("http://example.org/a/%2e%2e/b", "http://example.org/b"),
    ("http://example.org\\a\\b", "http://example.org/a/b"),
    ("  http://example.org/a\tb\n ", "http://example.org/ab"),
    ("http://bücher.example/", "http://xn--bcher-kva.example/"),
    ("http://example.org/ü?ü", "http://example.org/%C3%BC?%C3%BC"),
    ("http:example.org", "http://example.org/dir/example.org"),
    ("https:example.org", "https://example.org/"),
    ("//other.example/x", "http://other.example/x"),
    ("/x", "http://example.org/x"),
    ("x", "http://example.org/dir/x"),
    ("../x", "http://example.org/x"),
    ("?x", "http://example.org/dir/page.html?x"),
    # fragment, empty query
    ("#other", "http://example.org/dir/page.html?q=1"),
    ("", "http://example.org/dir/page.html?q=1"),
    ("/x#", "http://example.org/x"),
    ("/x?#a?b", "http://example.org/x"),
    ("/x?", "http://example.org/x"),
    ("/x?&", "http://example.org/x?&"),
    # case and encoding
    ("/Path/Case", "http://example.org/Path/Case"),
    ("/%7euser/%2d%5F%2E%41", "http://example.org/~user/-_.A"),
    ("/a%2fb%c3%bc", "http://example.org/a%2Fb%C3%BC"),
    ("/?a=%7e&b=%2f&c=+%20", "http://example.org/?a=~&b=%2F&c=+%20"),
    ("/100%", "http://example.org/100%"),
    ("/%%34%31", "http://example.org/%%34%31"),
    ("/%4%31%32%33", "http://example.org/%4%31%323"),
    ("/%zz%7e%c3", "http://example.org/%zz~%C3"),
    ("/%2d?utm_%", "http://example.org/-"),
    ("/a%2e%2e", "http://example.org/a.."),
    ("/%252e%252e/", "http://example.org/%252e%252e/"),
    # host
    ("http://example.org./x", "http://example.org/x"),
    ("http://example.org.:8080/x", "http://example.org:8080/x"),
    ("http://example.org:080/x", "http://example.org/x"),
    ("http://0x7f.1/", "http://127.0.0.1/"),
    ("http://127.0.0.1./", "http://127.0.0.1/"),
    ("http://[::FFFF:127.0.0.1]/", "http://[::ffff:7f00:1]/"),
    ("http://[2001:DB8::0:1]:8080/", "http://[2001:db8::1]:8080/"),
    ("http://example.org/a..b/.../x.:y", "http://example.org/a..b/.../x.:y"),
    ("http://@example.org/", "http://example.org/"),
    ("http://example.org/@user", "http://example.org/@user"),
    # query
    ("/?b=2&a=1&b=3", "http://example.org/?b=2&a=1&b=3"),
    ("/?utm_source=x", "http://example.org/"),
    ("/?a=1&utm_source=x&b=2", "http://example.org/?a=1&b=2"),
    ("/?UTM_Campaign=x&a=1", "http://example.org/?a=1"),
    ("/?fbclid=x&a=1&gclid", "http://example.org/?a=1"),
    ("/?a=1&&b=2", "http://example.org/?a=1&&b=2"),
    ("/?utm_source=x&&a=1", "http://example.org/?&a=1"),
    ("/?%75tm_source=x&a=1", "http://example.org/?a=1"),
    ("/?fbclids=1&xfbclid=2", "http://example.org/?fbclids=1&xfbclid=2"),
    ("/?a=utm_source=1", "http://example.org/?a=utm_source=1"),
    ("/utm_source=1?a", "http://example.org/utm_source=1?a"),
    ("/?sid=1&PHPSESSID=2&ref=3", "http://example.org/?sid=1&PHPSESSID=2&ref=3"),
    ("/a;jsessionid=1", "http://example.org/a;jsessionid=1"),
    # what is no text for a URL
    ("/\ud800", "http://example.org/%EF%BF%BD"),
    ("/\ud83d\ude00", "http://example.org/%F0%9F%98%80"),
    ("/a\0b", "http://example.org/a%00b"),
]


@pytest.mark.parametrize(("href", "expected"), POLICY)
def test_policy_of_the_canonical_form(href: str, expected: str) -> None:
    assert canonical(href, BASE) == expected


REFUSED = [
    ("", None, Reason.NOT_A_URL),
    ("/relative", None, Reason.NOT_A_URL),
    ("http://", BASE, Reason.NOT_A_URL),
    ("http://[::1", BASE, Reason.NOT_A_URL),
    ("http://[::1%25eth0]/", BASE, Reason.NOT_A_URL),
    ("http://a b/", BASE, Reason.NOT_A_URL),
    ("http://a.b:99999/", BASE, Reason.NOT_A_URL),
    ("http://256.256.256.256/", BASE, Reason.NOT_A_URL),
    ("http://1.2.3.4.5/", BASE, Reason.NOT_A_URL),
    ("http://./", BASE, Reason.NOT_A_URL),
    ("http://../", BASE, Reason.NOT_A_URL),
    ("http://a..b/", BASE, Reason.NOT_A_URL),
    ("http://a../", BASE, Reason.NOT_A_URL),
    ("http://.a/", BASE, Reason.NOT_A_URL),
    ("http://\0/", BASE, Reason.NOT_A_URL),
    ("http://" + "a." * 127 + "a/", BASE, Reason.NOT_A_URL),
    ("javascript:void(0)", BASE, Reason.SCHEME_UNSUPPORTED),
    ("mailto:someone@example.org", BASE, Reason.SCHEME_UNSUPPORTED),
    ("data:text/html,x", BASE, Reason.SCHEME_UNSUPPORTED),
    ("ftp://example.org/", BASE, Reason.SCHEME_UNSUPPORTED),
    ("ws://example.org/", BASE, Reason.SCHEME_UNSUPPORTED),
    ("file:///etc/passwd", BASE, Reason.SCHEME_UNSUPPORTED),
    ("blob:http://example.org/1", BASE, Reason.SCHEME_UNSUPPORTED),
    ("http://user@example.org/", BASE, Reason.HAS_USERINFO),
    ("http://user:secret@example.org/", BASE, Reason.HAS_USERINFO),
    ("http://:secret@example.org/", BASE, Reason.HAS_USERINFO),
    ("//user@example.org/", BASE, Reason.HAS_USERINFO),
    ("/" + "a" * CANONICAL_CHARS_MAX, BASE, Reason.URL_TOO_LONG),
    ("/" + "ü" * (CANONICAL_CHARS_MAX // 6), BASE, Reason.URL_TOO_LONG),
]


@pytest.mark.parametrize(("href", "base", "reason"), REFUSED, ids=lambda value: repr(value)[:40])
def test_what_has_no_canonical_form_says_why(href: str, base: str | None, reason: Reason) -> None:
    assert canonical(href, base) is reason


def test_a_final_dot_of_the_host_counts_once_whatever_the_path_holds() -> None:
    assert canonical("http://a.example./b..c/x.:1?y=..") == "http://a.example/b..c/x.:1?y=.."


def test_a_document_in_a_legacy_charset_has_its_query_encoded_and_its_path_in_utf8() -> None:
    base = base_of("http://example.org/")
    assert isinstance(base, Base)
    assert CANON.canon("/ü?q=ü#ü", base, "windows-1252") == "http://example.org/%C3%BC?q=%FC"
    assert CANON.canon("/ü?q=ü", base, "utf-8") == "http://example.org/%C3%BC?q=%C3%BC"
    assert CANON.canon("/?q=ü", base, "no-such-charset") == "http://example.org/?q=%C3%BC"
    assert CANON.canon("/?q=ü", base, "base64") == "http://example.org/?q=%C3%BC"
    assert CANON.canon("/?q=\ud800", base, "koi8-r") == "http://example.org/?q=%26%2365533%3B"
    assert CANON.canon("/?q=дa&utm_source=д", base, "KOI8-R") == "http://example.org/?q=%C4a"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nonsense", Reason.NOT_A_URL),
        ("http://[", Reason.NOT_A_URL),
        ("mailto:a@b", Reason.SCHEME_UNSUPPORTED),
        ("http://u@example.org/", Reason.HAS_USERINFO),
        ("http://example.org/" + "a" * CANONICAL_CHARS_MAX, Reason.URL_TOO_LONG),
    ],
)
def test_what_is_no_base_says_why(url: str, reason: Reason) -> None:
    assert base_of(url) is reason


def test_a_base_shows_its_url() -> None:
    assert repr(base_of("HTTP://example.org")) == "Base('http://example.org/')"


# --- per-site rules --------------------------------------------------------------------------------------------

SITES = Canonicalizer(
    QueryPolicy(
        sites={
            "shop.example": SiteQueryRule(
                keep=frozenset({"utm_source"}),
                drop=frozenset({"sid"}),
                path_parameters=frozenset({"jsessionid"}),
            ),
            "deep.shop.example": SiteQueryRule(),
        }
    )
)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://shop.example/?utm_source=1&sid=2&a=3&fbclid=4", "http://shop.example/?utm_source=1&a=3"),
        ("http://www.shop.example/?SID=2", "http://www.shop.example/"),
        ("http://shop.example/?", "http://shop.example/"),
        ("http://deep.shop.example/?utm_source=1&sid=2", "http://deep.shop.example/?sid=2"),
        ("http://other.example/?utm_source=1&sid=2", "http://other.example/?sid=2"),
        ("http://notshop.example/?sid=2", "http://notshop.example/?sid=2"),
        ("http://shop.example/a;jsessionid=1;x=2/b;JSESSIONID=3?q", "http://shop.example/a;x=2/b?q"),
        ("http://shop.example/..;jsessionid=1/b", "http://shop.example/..;jsessionid=1/b"),
        ("http://shop.example/;jsessionid=1", "http://shop.example/"),
    ],
)
def test_a_rule_of_the_site_goes_before_the_general_list(url: str, expected: str) -> None:
    result = SITES.canon(url, None)
    assert result == expected
    assert SITES.canon(result, None) == result


def test_an_empty_policy_drops_nothing() -> None:
    keeps_all = Canonicalizer(QueryPolicy(drop=frozenset(), drop_prefixes=()))
    assert keeps_all.canon("http://a.example/?utm_source=1", None) == "http://a.example/?utm_source=1"


# --- properties ------------------------------------------------------------------------------------------------

# Pieces that matter to URL parsers, so that random joins of them reach the odd corners.
PIECES = st.sampled_from(
    [
        "http:", "https:", "//", "/", "\\", "?", "#", "@", ":", ".", "..", "%", "%2e", "%2E", "%41", "%7e", "%zz",
        "%25", "&", "=", ";", "utm_source=1", "fbclid", "sid=2", "jsessionid=1", "a", "B", "1", "0x7f", "[::1]",
        "example.org", "shop.example", "xn--", "ü", "。", "\0", "\t", " ", "\ud800", "\udc00", "😀", "|", "^", "'",
        "{", "\u00ad", "localhost", "8080", "80",
    ]
)  # fmt: skip
HREFS = st.one_of(
    st.text(),
    st.lists(PIECES, max_size=14).map("".join),
    st.text(st.characters(categories=["Cs", "Nd", "Po"])),
)
BASES = st.sampled_from([None, BASE, "https://shop.example:8443/a;b/c?d", "http://[::1]/x"])
CHARSETS = st.sampled_from([None, "windows-1252", "shift_jis", "gbk", "iso-2022-jp", "utf-8", "x\0", "big5"])


def _base(url: str | None) -> Base | None:
    found = None if url is None else base_of(url)
    assert not isinstance(found, Reason)
    return found


@settings(max_examples=200, deadline=None)
@given(href=HREFS, base=BASES, charset=CHARSETS)
@example(href="http://a/%%34%31", base=None, charset=None)
@example(href="http://a.example/..;jsessionid=1/", base=None, charset=None)
@example(href="http://a./", base=None, charset=None)
def test_any_text_has_an_answer_and_a_canonical_url_is_its_own_canonical_form(
    href: str, base: str | None, charset: str | None
) -> None:
    for canonicalizer in (CANON, SITES):
        result = canonicalizer.canon(href, _base(base), charset)
        if isinstance(result, Reason):
            continue
        assert result.isascii()
        assert canonicalizer.canon(result, None) == result
        assert canonicalizer.canon(result, _base(BASE), "shift_jis") == result
        assert is_well_formed(result)


@settings(max_examples=120, deadline=None)
@given(href=HREFS, base=BASES)
def test_origin_and_path_join_to_the_url_again(href: str, base: str | None) -> None:
    url = CANON.canon(href, _base(base))
    assume(not isinstance(url, Reason))
    origin, path = split(url)
    assert origin + path == url
    assert path.startswith("/")
    assert target_of(url) == path
    assert origin_of(origin) == origin_of(url)
    assert origin_of(url).key == origin
    assert host_of(url) == host_of(origin) == origin_of(url).host
    assert host_of(url) == URL(url).hostname.strip("[]")


@settings(max_examples=120, deadline=None)
@given(href=HREFS, base=BASES)
def test_a_second_parser_agrees_on_the_canonical_url(href: str, base: str | None) -> None:
    ours = CANON.canon(href, _base(base))
    assume(not isinstance(ours, Reason))
    assert ada_url.URL(ours).href == ours
    theirs = ada_url.URL(_usv(href), base) if base else ada_url.URL(_usv(href))
    assert CANON.canon(theirs.href, None) == ours


# --- parts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "origin", "authority"),
    [
        ("http://example.org/x", Origin("http", "example.org", 80), "example.org"),
        ("https://example.org/x", Origin("https", "example.org", 443), "example.org"),
        ("https://example.org:80/", Origin("https", "example.org", 80), "example.org:80"),
        ("http://[::1]/x:y", Origin("http", "::1", 80), "[::1]"),
        ("http://[::1]:81/", Origin("http", "::1", 81), "[::1]:81"),
        ("http://127.0.0.1:8000", Origin("http", "127.0.0.1", 8000), "127.0.0.1:8000"),
    ],
)
def test_the_origin_of_a_url(url: str, origin: Origin, authority: str) -> None:
    assert origin_of(url) == origin
    assert origin.authority == authority
    assert origin.key == f"{origin.scheme}://{authority}"


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("example.org", "example.org"),
        ("a.b.example.org", "example.org"),
        ("www.example.co.uk", "example.co.uk"),
        ("co.uk", "co.uk"),
        ("alice.github.io", "alice.github.io"),
        ("x.alice.github.io", "alice.github.io"),
        ("github.io", "github.io"),
        ("a.b.c.kobe.jp", "b.c.kobe.jp"),
        ("www.city.kobe.jp", "city.kobe.jp"),
        ("a.xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("localhost", "localhost"),
        ("a.b.no-such-suffix", "b.no-such-suffix"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
    ],
)
def test_the_site_of_a_host(host: str, site: str) -> None:
    assert site_of(host) == site


def test_a_site_has_one_partition_whatever_scheme_port_and_subdomain() -> None:
    keys = ["http://example.org", "https://example.org", "http://a.example.org:81", "https://b.c.example.org"]
    assert len({partition_of(key, 64) for key in keys}) == 1
    assert all(0 <= partition_of(f"http://site{number}.example", 7) < 7 for number in range(100))
    assert {partition_of(f"http://site{number}.example", 4) for number in range(200)} == {0, 1, 2, 3}


def test_a_partition_never_changes_for_a_name() -> None:
    # Stored partition maps rely on it.
    assert partition_of("https://example.org", 1024) == 837


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "http://", "http://a", "http:///x", "ftp://a/", "HTTP://a/", "http://A/", "http://a/ b", "http://a/\r\nX: y",
     "http://a/\n", "http://a\r\n/", "http://a/#f", "http://u@a/", "http://a:/", "http://a:x/", "http://a:123456/", "http://a/ü",
     "http://[::1/", "http://a%62/", "http://a?b", "http://a\\b/"],
)  # fmt: skip
def test_what_has_not_the_form_of_a_canonical_url_is_told(text: str) -> None:
    assert not is_well_formed(text)


@pytest.mark.parametrize(
    "url",
    ["http://a/", "https://a-b_c.example:8080/x?y={z}|", "http://[2001:db8::1]:81/", "http://1.2.3.4/%41"],
)
def test_what_has_the_form_of_a_canonical_url_is_told(url: str) -> None:
    assert is_well_formed(url)
