"""The optional C module: the same answers with it and without it, for every input, and no memory touched that is not its own."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amble.domain import digest
from amble.domain import url as url_rules
from amble.domain.decision import Reason
from amble.domain.policy import ParseLimits
from amble.domain.url import Canonicalizer, QueryPolicy, SiteQueryRule
from amble.formats import html, registry, simhash, space
from amble.formats.registry import Answer, ExtractionSettings, Reading, Registry
from tests.domain.test_url import BASE, POLICY, REFUSED
from tests.support import native as support
from tests.support.native import BASES, build, check_hrefs, known_base
from tests.support.pages import check_page, random_page

WPT = Path(__file__).parent.parent / "data" / "wpt-url" / "urltestdata.json"
WITHOUT = (None, simhash.fingerprint, space.collapse, None)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    built = build(tmp_path_factory.mktemp("native"))
    if built is None:
        pytest.skip("no C compiler with the headers of this Python")
    return built


def install(patch: pytest.MonkeyPatch, native: ModuleType | None) -> None:
    """Let amble use `native`, or do without."""
    resolve, fingerprint, collapse, read_plain = (
        WITHOUT
        if native is None
        else (native.resolve_plain, native.fingerprint, native.collapse, native.read_plain)
    )
    patch.setattr(url_rules, "resolve_plain", resolve)
    patch.setattr(registry, "fingerprint", fingerprint)
    patch.setattr(html, "collapse", collapse)
    patch.setattr(html, "read_plain", read_plain)


@pytest.fixture(params=["with", "without"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, request.getfixturevalue("native") if request.param == "with" else None)


# --- near-duplicates -------------------------------------------------------------------------------------------


@given(
    fingerprints=st.lists(st.integers(0, (1 << 64) - 1), max_size=50),
    flips=st.sets(st.integers(0, 63), max_size=5),
    bits_max=st.integers(0, 64),
)
def test_the_module_finds_the_same_near_document(
    native: ModuleType, fingerprints: list[int], flips: set[int], bits_max: int
) -> None:
    wanted = 0x0123_4567_89AB_CDEF
    fingerprints.append(wanted ^ sum(1 << bit for bit in flips))
    row = b"".join(
        digest.PAIR.pack(other, (1 << 64) - 1 - number) for number, other in enumerate(fingerprints)
    )
    for pairs in (row, row + b"half of a pair"[: len(flips)]):
        whole = pairs[: len(pairs) // 16 * 16]
        expected = digest.first_near_by_python(whole, wanted, bits_max)
        assert native.first_near(pairs, wanted, bits_max) == expected


@pytest.mark.parametrize(
    "wrong", [(b"", 1), ("", 1, 3), (b"", -1, 3), (b"", 1 << 64, 3), (b"", "1", 3), (b"", 1, None)]
)
def test_the_module_refuses_what_is_no_fingerprint(native: ModuleType, wrong: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        native.first_near(*wrong)


# --- links -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("either")
def test_many_hrefs_have_the_canonical_forms_of_each() -> None:
    cases = [(href, expected) for href, expected in POLICY]
    cases += [(href, reason) for href, base, reason in REFUSED if base == BASE]
    answers = Canonicalizer().canon_many([href for href, _ in cases], known_base(BASE))
    assert list(zip([href for href, _ in cases], answers, strict=True)) == cases


SITES = QueryPolicy(
    sites={"example.org": SiteQueryRule(drop=frozenset({"id"}), path_parameters=frozenset({"sid"}))}
)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(
    ("href", "expected"),
    [
        ("/a;sid=1/b?id=3&x=1", "http://example.org/a/b?x=1"),
        ("x;sid=1?id=3", "http://example.org/dir/x"),
        ("//other.example/a;sid=1?id=3", "http://other.example/a;sid=1?id=3"),
        ("/x?utm_source=1&id", "http://example.org/x"),
    ],
)
def test_the_rules_of_a_site_hold_for_plain_links(href: str, expected: str) -> None:
    assert Canonicalizer(SITES).canon_many([href], known_base("http://example.org/dir/page")) == [expected]


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("charset", [None, "shift_jis", "iso-2022-jp", "windows-1251"])
def test_the_charset_of_a_document_reaches_its_queries(charset: str | None) -> None:
    hrefs = ["/ä?q=ж", "/ä?q=a", "/x#ж", "?\x1b$", "/a?b c"]
    canonicalizer, base = Canonicalizer(), known_base(BASE)
    assert canonicalizer.canon_many(hrefs, base, charset) == [
        canonicalizer.canon(href, base, charset) for href in hrefs
    ]


def test_every_vector_of_the_url_standard_resolves_alike(native: ModuleType) -> None:
    cases = [case["input"] for case in json.loads(WPT.read_text("utf-8")) if not isinstance(case, str)]
    own = [
        case["base"]
        for case in json.loads(WPT.read_text("utf-8"))
        if not isinstance(case, str) and case.get("base")
    ]
    bases = {url for url in own if not isinstance(url_rules.base_of(url), Reason)} | set(BASES)
    assert sum(check_hrefs(native, cases, known_base(url)) for url in bases) > 100 * len(bases)


# Plain links of every shape, and how each resolves: what the module may not leave to the parser without being missed.
PLAIN = [
    ("/x", "https://www.example.org/x"),
    ("/", "https://www.example.org/"),
    ("x", "https://www.example.org/a/b/x"),
    ("x/y.html?id=1&b=%C3%BC#top", "https://www.example.org/a/b/x/y.html?id=1&b=%C3%BC"),
    ("./x", "https://www.example.org/a/b/x"),
    ("../x", "https://www.example.org/a/x"),
    ("../../../../x", "https://www.example.org/x"),
    ("..", "https://www.example.org/a/"),
    (".", "https://www.example.org/a/b/"),
    ("/a/./b/../c", "https://www.example.org/a/c"),
    ("/a//..", "https://www.example.org/a/"),
    ("  /x y \n", "https://www.example.org/x%20y"),
    ("/ü/%c3%bc", "https://www.example.org/%C3%BC/%C3%BC"),
    ("//other.example", "https://other.example/"),
    ("http://other.example?x", "http://other.example/?x"),
    ("http://other.example/x?", "http://other.example/x?"),
    ("https://a-b.c_d.example/x:y@z", "https://a-b.c_d.example/x:y@z"),
]


@pytest.mark.parametrize(("href", "expected"), PLAIN)
def test_plain_links_need_no_parser(native: ModuleType, href: str, expected: str) -> None:
    assert native.resolve_plain([href], "https://www.example.org/a/b/") == [expected]


@pytest.mark.parametrize(
    "href",
    [
        "", "#x", "?x", "/a\tb", "/a\\b", "HTTP://a.example/", "http://A.example/", "http://a.example:80/", "http://a@b.example/",
        "http://xn--a.example/", "http://a.xn--b/", "http://127.0.0.1/", "http://a.0x7f/", "http://a.example./", "http://.a/",
        "http://a..b/", "http:///a", "http:a", "https:/a", "mailto:a", "a:b", "/%7e", "/%2e/", "/%zz", "/%4", "/%", "/?%", "/?'",
        "/?ü", '/"', "/<", "/^", "/\x7f", "/\ud800", "x" * 3000, "http://ü.example/", "//", "http://",
    ],
)  # fmt: skip
def test_all_others_are_left_to_the_parser(native: ModuleType, href: str) -> None:
    assert native.resolve_plain([href], "https://www.example.org/a/b/") == [None]


@pytest.mark.parametrize(
    "directory",
    [
        "",
        "/",
        "https://",
        "https:///",
        "http://a",
        "ftp://a/",
        "https://a/b",
        "https://a/" + "b" * 3000 + "/",
    ],
)
def test_a_directory_that_is_none_resolves_nothing(native: ModuleType, directory: str) -> None:
    assert native.resolve_plain(["/x", "x", "http://b.example/"], directory) == [None] * 3


@given(href=st.text(max_size=60), base=st.sampled_from(BASES))
@settings(max_examples=200, deadline=None)
def test_any_text_resolves_alike(native: ModuleType, href: str, base: str) -> None:
    check_hrefs(
        native,
        [href, f"/{href}", f"//{href}", f"https://a.example/{href}", f"../{href}?{href}"],
        known_base(base),
    )


def test_what_is_no_text_is_refused(native: ModuleType) -> None:
    for call in (
        lambda: native.resolve_plain(("/x",), "http://a/"),
        lambda: native.resolve_plain([b"/x"], "http://a/"),
        lambda: native.resolve_plain(["/x"], None),
        lambda: native.fingerprint("text"),
        lambda: native.collapse(b"text", 3),
        lambda: native.read_plain("text", False),
        lambda: native.read_plain(b"text"),
    ):
        with pytest.raises((TypeError, SystemError)):
            call()


# --- texts -----------------------------------------------------------------------------------------------------


@given(st.binary(max_size=3000))
@settings(max_examples=150, deadline=None)
def test_any_bytes_have_one_fingerprint(native: ModuleType, text: bytes) -> None:
    assert native.fingerprint(text) == simhash.fingerprint(text)


@pytest.mark.parametrize("words", [29, 30, 31, 770, 771, 1538, 1539, 5000, 200_000])
def test_fingerprints_agree_at_every_bound(native: ModuleType, words: int) -> None:
    for unit in (b"a ", b"w%d ", "日".encode(), "日 ก1".encode()):
        text = b"".join(unit % number if b"%" in unit else unit for number in range(words))
        assert native.fingerprint(text) == simhash.fingerprint(text)


def test_white_space_is_what_the_interpreter_says_it_is(native: ModuleType) -> None:
    for code in (*range(0xD800), *range(0xE000, 0x10000), 0x1F600, sys.maxunicode):
        text = f" a{chr(code)}b{chr(code)}"
        assert native.collapse(text, 9) == space.collapse(text, 9), hex(code)


@given(text=st.text(max_size=80), bound=st.integers(-1, 90))
@settings(max_examples=200, deadline=None)
def test_any_text_collapses_alike(native: ModuleType, text: str, bound: int) -> None:
    assert native.collapse(text, bound) == space.collapse(text, max(bound, 0))


def test_random_input_finds_no_difference(native: ModuleType) -> None:
    assert support.fuzz(native, seconds=2, seed=1) > 0


# --- pages without a tree ----------------------------------------------------------------------------------------

PROSE = "Some prose, with commas, that is long enough to be scored as a paragraph of content. " * 3

# What has to be read without the full parser, or the speed is gone without anybody noticing.
ONE_PASS = {
    "a page of blocks": f"<!doctype html><html lang=en><head><title>T</title></head><body><main><h1>H</h1><p>{PROSE}</p></main>",
    "no html, head or body": f"<title>T</title><p>{PROSE}<p>second<div><p>third</div>",
    "menus and lists": f"<ul><li><a href=/a rel='ugc x'>A</a><li>b<ul><li>c</ul></ul><ol start=4><li>{PROSE}<li value=9>x</ol>",
    "a table": f"<table><caption>C</caption><tr><th>a<th>bb</tr><tr><td>{PROSE}</td><td>日本<table><tr><td>x</table></td></tr></table>",
    "definitions": "<dl><dt>a<dd><p>b<dt>c<dd>d</dl>",
    "lines": "<div><pre>\n a\n  b\n\n</pre> <textarea>\n x </textarea></div>",
    "quotes": f"<blockquote>a<blockquote><p>{PROSE}</blockquote></blockquote><p>x",
    "references": "<p title='&bogus'>&lt;&nbsp;&eacute;&#8212;&#x1F600; & &amp;&lang;</p><a href='?a=1&amp;b&copy;'>x</a>",
    "scripts and styles": "<head><style>p{}</style><script>if(a<b)'</p>'</script></head><body><script src=x></script><p>x",
    "comments": "<!-- a --><!doctype html><!-- b --><p>a<!-- c -- > d -->b</p><!-- e -->",
    "a form": "<form><label>l<input name=q value='7'></label><button>b</button></form>",
    "furniture": f"<div class=navbar><p>{PROSE}</div><div class='content nav'><p>{PROSE}</div><footer><p>{PROSE}</footer>",
    "landmarks only": f"<footer><p>{PROSE}</p></footer>",
    "an article without paragraphs": f"<article>{PROSE}</article><div>{PROSE}</div>",
    "nothing but links": f"<div><p><a href=x>{PROSE}</a></p></div>",
    "unknown elements": "<my-box><o:p>a</o:p><SPAN>b</span></my-box>",
    "what follows the end": "<p>a</p></body>\n</html>\n<!-- x -->\n",
    "an end that is missing": f"<div><p>{PROSE}<b>x",
    "images and frames": "<img src=/i><iframe src=/f><p>raw</iframe>",
    "drawings": "<p>a<svg class=x><g><path d='M0'/><text>&lt;b</text></g></svg>c</p><svg/>d",
    "a select": "<select name=a><option>x<option value=1>y</option><optgroup><option>z</select><select></select>",
    "line ends": "<pre>\r\na\r\nb\rc</pre><p title='a\r\n'>d\r\n<a href='x\r\ny'>e</a>",
    "a declaration of XML": "<?xml version='1.0' encoding='utf-8'?>\n<!DOCTYPE html><p>a",
    "an end without a start": "<div>a</p>b</div>",
    "a table that ends a paragraph": "<!DOCTYPE html><p>a<table><tr><td>b</table>",
    "a script in a comment": "<script><!--\nx('</p>')\n//--></script><p>a",
    "a second start": "<body><p>a</body><html></html>",
    "head without end": "<meta name=robots content=none><link rel=next href=n><base href=/b/>text",
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_PASS)
def test_most_pages_need_no_tree(native: ModuleType, name: str) -> None:
    assert check_page(native, ONE_PASS[name].encode())


@pytest.mark.parametrize(
    "page",
    [
        "<p><b>a</p>b</b>", "<a href=x><div><a href=y>z</a></div></a>", "<table><p>a</table>", "<table>a</table>", "<p>a<table></table>",
        "<td>a", "<ul><li><div>a<li>b</ul>", "<div></span></div>", "<table></p>", "<!doctype html public 'a'><p>a<table></table>", "<svg><title>a</title></svg>", "<svg><p>a</svg>", "<svg><a></a></svg>", "<svg><style></style></svg>", "<svg><desc>a</desc></svg>", "<math></math>",
        "<template><p>a</template>", "<select><option><b>a</b></select>", "<option>a", "<select><div></div></select>", "<p>&notit;", "<p>&amp", "<p>&#128;", "<p>&#10;", "<p>a\0b",
        "<p>\ud800", "<!--> <p>a", "<!-- a --!> b --><p>", "<?xml version='1.0'><p>a", "<p>a<?php x ?>", "<![CDATA[a]]><p>", "<p <b>a",
        "<p a='b>c", "<p a=b'c>d", "<h1>a<h2>b</h2></h1>", "<form><form></form>", "<button><button></button>", "<body><body class=x>",
        "<p><html lang=de>", "<script><!-- <script> </script> --></script><p>a", "<script>a", "<title>a", "<plaintext>a",
        "<frameset><frame src=x></frameset>", "<head></head><title>a</title>", "<head><noscript><p>a</noscript>", "<ruby>a<rt>b</ruby>",
        "<object></object>", "<image src=x>", "<div></body><p>a", "<p>a</html> b", "", " " * 40, "<div>" * 600, "<nobr><nobr>a",
    ],
)  # fmt: skip
def test_pages_with_more_than_one_possible_tree_are_left_to_the_parser(native: ModuleType, page: str) -> None:
    padded = page.encode("utf-8", "surrogatepass") + b"<!-- " + b"x" * 20 + b" -->"
    assert native.read_plain(padded, True) is None


@pytest.mark.parametrize(
    "page",
    [
        b"<p>x</p>" + b" " * (4 * 1024 * 1024),
        b"<i></i>" * 300_000,
        b"<table>" + b"<tr><td>" * 3000 + b"<tr>" + b"<td>" * 3000,
        b"<ol start=12345678901><li>aaaaaaaaaaaaaaaaaaaa</ol>",
        b"<table><tr><td>" + b"x" * 100_000 + b"<td>y" + b"<tr><td>z<td>w" * 30_000 + b"</table>",
    ],
    ids=["bytes", "elements", "cells", "digits", "padding"],
)
def test_pages_beyond_a_bound_are_left_to_the_parser(native: ModuleType, page: bytes) -> None:
    assert native.read_plain(page, True) is None


def test_random_pages_are_read_alike(native: ModuleType) -> None:
    chance = random.Random(5)
    assert sum(check_page(native, random_page(chance)) for _ in range(1500)) > 150


@pytest.mark.parametrize(
    ("start", "charset"),
    [
        ("<meta charset=utf-8>", None),
        ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="UTF-8" />', None),
        ('<html><head><meta http-equiv="Content-Type" content="text/html; charset=utf-8">', None),
        ("<title>x</title>", " UTF-8 "),
        ("<meta charset=latin1>", "utf8"),
    ],
)
def test_a_page_that_says_it_is_utf8_is_what_the_standard_takes_it_for(
    start: str, charset: str | None
) -> None:
    body = f"{start}<p>é".encode()
    assert html._is_utf8(body, charset)
    assert html._parsed(body, charset).encoding == "UTF-8"


@pytest.mark.parametrize(
    ("start", "charset"),
    [
        ("<title>x</title>", None),
        ("<!-- <meta charset=utf-8> --><meta charset=latin1>", None),
        (" " * 1100 + "<meta charset=utf-8>", None),
        ("<meta charset=utf-8>", "latin1"),
    ],
)
def test_any_other_page_is_not_taken_for_utf8(start: str, charset: str | None) -> None:
    assert not html._is_utf8(f"{start}<p>é".encode(), charset)


# --- whole pages -----------------------------------------------------------------------------------------------

PAGE = (
    """<!doctype html><html lang=de><title> A \n title </title><link rel=canonical href=/c><p>"""
    + "".join(
        f"<p>some words número {i} {i * i} 日本 <a href='{href}' rel=nofollow>  link\xa0{i}\n text </a>"
        for i, href in enumerate([href for href, _ in POLICY + PLAIN])
    )
)


@pytest.mark.parametrize("url", [url for url in BASES if url == Canonicalizer().canon(url, None)])
@pytest.mark.parametrize("charset", ["utf-8", "shift_jis"])
def test_a_page_has_one_reading(native: ModuleType, url: str, charset: str) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html; charset={charset}\r\n\r\n".encode()
    answer = Answer(url, 0, 200, head, PAGE.encode("utf-8", "replace"))
    readings = []
    for module in (native, None):
        with pytest.MonkeyPatch.context() as patch:
            install(patch, module)
            readings.append(Registry(ParseLimits(), ExtractionSettings()).read(answer))
    assert isinstance(readings[0], Reading)
    assert readings[0] == readings[1]
    assert len(readings[0].manifest.links) > 40
    assert readings[0].manifest.fingerprint != 0
