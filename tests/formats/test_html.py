"""HTML: links, facts, text and charset of a page, read as browsers read them."""

from __future__ import annotations

import msgspec
import pytest
from bench.parse import made_up_page
from hypothesis import given, settings
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from amble.domain.attempt import Edge
from amble.domain.decision import Reason
from amble.domain.manifest import (
    MAIN_IS_TEXT,
    NOARCHIVE,
    NOFOLLOW,
    NOINDEX,
    PAGE_NOFOLLOW,
    SPONSORED,
    UGC,
    Link,
)
from amble.domain.policy import ParseLimits
from amble.domain.url import Canonicalizer, base_of
from amble.formats import html
from amble.formats.decode import Undecodable
from amble.formats.links import SAME_DOCUMENT
from tests.formats.pages import RICH, URL, answer, read, registry


def links_of(body: str | bytes, *headers: str, **options: object) -> dict[str, Link]:
    manifest = read(answer(body, *headers, **options)).manifest  # type: ignore[arg-type]
    return {link.url: link for link in manifest.links}


def test_every_kind_of_link_leaves_resolved_canonical_and_distinct() -> None:
    manifest = read(answer(RICH)).manifest
    assert [(link.url, Edge(link.edge), link.rel, link.anchor) for link in manifest.links] == [
        ("https://www.example.com/canonical", Edge.CANONICAL, 0, ""),
        ("https://www.example.com/feed.rss", Edge.FEED, 0, ""),
        ("https://de.example.com/seite", Edge.ALTERNATE, 0, ""),
        ("https://www.example.com/dir/page2.html", Edge.NEXT, 0, ""),
        ("https://www.example.com/refreshed", Edge.REFRESH, 0, ""),
        ("https://www.example.com/", Edge.ANCHOR, 0, "Home"),
        ("https://www.example.com/about", Edge.ANCHOR, 0, "About us"),
        ("https://www.example.com/up.html", Edge.ANCHOR, 0, "text — up"),
        ("https://www.example.com/area", Edge.ANCHOR, 0, ""),
        ("https://www.example.com/framed", Edge.FRAME, 0, ""),
    ]
    assert manifest.dropped == {
        Reason.SCHEME_UNSUPPORTED: 2,
        SAME_DOCUMENT: 2,
        Reason.HAS_USERINFO: 1,
        Reason.NOT_A_URL: 1,
    }


def test_facts_of_a_page() -> None:
    manifest = read(answer(RICH)).manifest
    assert manifest.title == "A title & more"
    assert manifest.language == "en-GB"
    assert manifest.canonical == "https://www.example.com/canonical"
    assert manifest.directives == NOARCHIVE
    assert manifest.charset == "UTF-8"
    assert manifest.content_kind == "html"
    assert manifest.media_type == "text/html"
    assert manifest.decoded_bytes == len(RICH.encode())


def test_text_holds_what_is_seen_and_nothing_else() -> None:
    body = "<title>t</title><style>no</style><script>no</script><h1>Head</h1><p>one<br>two</p><ul><li>a<li>b</ul>"
    reading = read(
        answer(body + "<table><tr><td>c<td>d</table><noscript>plain</noscript><template>no</template>")
    )
    assert reading.text.decode().split() == ["Head", "one", "two", "a", "b", "c", "d", "plain"]
    assert reading.manifest.text_bytes == len(reading.text)


def test_main_text_leaves_the_menus_out() -> None:
    reading = read(answer(made_up_page()))
    assert 0 < len(reading.main) < len(reading.text)
    assert reading.manifest.main_bytes == len(reading.main)
    assert MAIN_IS_TEXT not in reading.manifest.notes


def test_visible_text_serves_where_main_text_misses_the_page() -> None:
    reading = read(answer("<div>" + "<a href=/x>Only links here</a> " * 30))
    assert reading.main is reading.text
    assert MAIN_IS_TEXT in reading.manifest.notes


@pytest.mark.parametrize(
    ("rels", "bits"),
    [
        (["nofollow"], NOFOLLOW),
        (["NoFollow ugc", "nofollow"], NOFOLLOW),
        (["ugc sponsored"], UGC | SPONSORED),
        (["nofollow", ""], 0),
        (["noopener", "nofollow"], 0),
    ],
)
def test_a_link_is_nofollow_only_where_all_its_occurrences_are(rels: list[str], bits: int) -> None:
    body = "".join(f'<a href="/x?utm_source={i}" rel="{rel}">x</a>' for i, rel in enumerate(rels))
    assert links_of(body)["https://www.example.com/x"].rel == bits


def test_the_first_anchor_text_that_says_something_is_kept_within_its_bound() -> None:
    body = f"<a href=/x><img></a><a href=/x> the\n {'word ' * 100}</a>"
    anchor = links_of(body)["https://www.example.com/x"].anchor
    assert anchor.startswith("the word word")
    assert len(anchor) <= ParseLimits().anchor_chars_max


@pytest.mark.parametrize(
    ("base", "resolved"),
    [
        ('<base href="/other/">', "https://www.example.com/other/x"),
        ('<base href="https://cdn.example/a/b">', "https://cdn.example/a/x"),
        ('<base target="_top"><base href="/second/">', "https://www.example.com/second/x"),
        ('<base href="/first/"><base href="/second/">', "https://www.example.com/first/x"),
        ('<base href="data:,x">', "https://www.example.com/dir/x"),
        ('<base href="http://">', "https://www.example.com/dir/x"),
        ('<base href="">', "https://www.example.com/dir/x"),
        ("", "https://www.example.com/dir/x"),
    ],
)
def test_base(base: str, resolved: str) -> None:
    # The link stands before the base: a base holds for the whole document.
    assert [*links_of(f"<a href=x>x</a>{base}")] == [resolved]


@pytest.mark.parametrize(
    ("content", "target"),
    [
        ("0;url=/r", "/r"),
        ("5 , URL = '/r'", "/r"),
        ('1.5; "/r" trailing', "/r"),
        ("0 /r", "/r"),
        (" .5;/r", "/r"),
        ("0", None),
        ("0;", None),
        ("url=/r", None),
        ("0x/r", None),
    ],
)
def test_refresh(content: str, target: str | None) -> None:
    quoted = content.replace('"', "&quot;")
    found = links_of(f'<meta http-equiv="refresh" content="{quoted}">')
    assert [(link.url, link.edge) for link in found.values()] == (
        [("https://www.example.com" + target, Edge.REFRESH)] if target else []
    )


def test_canonical_in_the_body_is_a_visitors_word() -> None:
    manifest = read(answer("<body><p>x<link rel=canonical href=https://evil.example/>")).manifest
    assert manifest.canonical == ""
    assert manifest.links == []


def test_canonical_of_the_http_header_serves_where_the_page_names_none() -> None:
    header = "Link: </from-header>; rel=canonical"
    assert read(answer("<p>x", header)).manifest.canonical == "https://www.example.com/from-header"
    both = read(answer("<link rel=canonical href=/from-page><p>x", header)).manifest
    assert both.canonical == "https://www.example.com/from-page"


def test_header_links_are_links() -> None:
    found = links_of("<p>x", 'Link: </f>; rel=alternate; type="application/atom+xml", </n>; rel="next"')
    assert {url: Edge(link.edge) for url, link in found.items()} == {
        "https://www.example.com/f": Edge.FEED,
        "https://www.example.com/n": Edge.NEXT,
    }


def test_directives_come_from_elements_and_headers_and_only_those_for_us() -> None:
    body = '<meta name="ROBOTS" content="nofollow"><meta name="otherbot" content="noarchive"><meta name=amble content=noindex>'
    assert read(answer(body)).manifest.directives == PAGE_NOFOLLOW | NOINDEX
    assert read(answer(body), agent_tokens=("mybot",)).manifest.directives == PAGE_NOFOLLOW
    assert (
        read(answer("<p>", "X-Robots-Tag: otherbot: none", "X-Robots-Tag: noindex")).manifest.directives
        == NOINDEX
    )


@pytest.mark.parametrize(
    ("body", "headers", "language"),
    [
        ('<html lang="pt-BR">', ("Content-Language: en",), "pt-BR"),
        ("<p>", ("Content-Language: de, fr",), "de"),
        ('<html lang=""><meta http-equiv="content-language" content="fr">', ("Content-Language: en",), "fr"),
        ('<html lang="not a language">', (), ""),
    ],
)
def test_language(body: str, headers: tuple[str, ...], language: str) -> None:
    assert read(answer(body, *headers)).manifest.language == language


def test_title_is_bounded_and_a_tooltip_is_no_title() -> None:
    assert len(read(answer(f"<title>{'ab ' * 9000}")).manifest.title) <= ParseLimits().title_chars_max
    assert read(answer("<body><svg><title>tip</title></svg>")).manifest.title == ""


@pytest.mark.parametrize(
    ("body", "content_type", "charset", "title"),
    [
        ("<title>\u043f\u0440\u0438\u0432\u0435\u0442".encode("cp1251"), "text/html; charset=windows-1251", "windows-1251", "\u043f\u0440\u0438\u0432\u0435\u0442"),
        ("<meta charset=koi8-r><title>\u043f\u0440\u0438\u0432\u0435\u0442".encode("koi8-r"), "text/html", "KOI8-R", "\u043f\u0440\u0438\u0432\u0435\u0442"),
        ("<meta charset=koi8-r><title>caf\u00e9".encode(), "text/html; charset=utf-8", "UTF-8", "caf\u00e9"),
        ("\ufeff<meta charset=koi8-r><title>caf\u00e9".encode(), "text/html; charset=latin1", "UTF-8", "caf\u00e9"),
        ("\ufeff<title>caf\u00e9".encode("utf-16-le"), "text/html", "UTF-16LE", "caf\u00e9"),
        ("<meta charset=sjis><title>\u65e5\u672c".encode("cp932"), "text/html; charset=nonsense", "Shift_JIS", "\u65e5\u672c"),
        ("<title>caf\u00e9".encode("latin-1"), "text/html; charset=iso-8859-1", "windows-1252", "caf\u00e9"),
        ("<title>caf\u00e9".encode(), "text/html", "UTF-8", "caf\u00e9"),
    ],
)  # fmt: skip
def test_charset_is_found_in_the_order_of_the_standard(
    body: bytes, content_type: str, charset: str, title: str
) -> None:
    manifest = read(answer(body, content_type=content_type)).manifest
    assert (manifest.charset, manifest.title) == (charset, title)


def test_an_encoding_that_browsers_refuse_gives_no_text() -> None:
    manifest = read(answer(b"<title>x</title>", content_type="text/html; charset=iso-2022-kr")).manifest
    assert manifest.title == ""
    assert html.NOTE_UNDECODABLE in manifest.notes


def test_the_query_of_a_link_is_sent_in_the_encoding_of_its_page() -> None:
    body = "<a href='/\u044f?q=\u044f'>x</a>".encode("cp1251")
    assert [*links_of(body, content_type="text/html; charset=windows-1251")] == [
        "https://www.example.com/%D1%8F?q=%FF"
    ]


def test_links_beyond_the_bound_are_left_out_with_a_note() -> None:
    body = "".join(f"<a href=/{i}>x</a>" for i in range(50))
    manifest = read(answer(body), ParseLimits(links_max=20)).manifest
    assert len(manifest.links) == 20
    assert "links_truncated" in manifest.notes


def test_text_beyond_the_bound_is_cut_at_a_character() -> None:
    reading = read(answer("<p>" + "\u00e9" * 500), ParseLimits(text_bytes_max=101))
    assert reading.text.decode() == "\u00e9" * 50
    assert "text_truncated" in reading.manifest.notes


def test_images_are_links_only_where_asked_for() -> None:
    body = "<img src=/i.png>"
    assert read(answer(body)).manifest.links == []
    assert read(answer(body), follow_images=True).manifest.links == [
        Link("https://www.example.com/i.png", int(Edge.IMAGE))
    ]


@pytest.mark.parametrize("body", [RICH.encode(), made_up_page(), made_up_page(2, links=300)])
def test_a_second_engine_finds_the_same_links(body: bytes) -> None:
    document = LexborHTMLParser(body.decode())
    base = document.css_first("base[href]")
    canon, own = Canonicalizer(), base_of(URL)
    assert base is None
    assert not isinstance(own, Reason)
    sources = [("a[href], area[href]", "href"), ("iframe[src], frame[src]", "src")]
    theirs = {
        canon.canon(node.attributes[name] or "", own)
        for selector, name in sources
        for node in document.css(selector)
        if node.attributes[name] and not node.attributes[name].startswith("#")
    }
    ours = {link.url for link in read(answer(body)).manifest.links if link.edge in (Edge.ANCHOR, Edge.FRAME)}
    assert ours == {url for url in theirs if not isinstance(url, Reason)}


_MARKUP = st.sampled_from(
    ["<a href=", "'", '"', ">", "</a>", "<base href=", "http://", "//", "?", "#", "\x00", "&#xD800;", "\ud83d\ude00", "<svg>",
     "<template>", "<title>", "<table>", "<meta http-equiv=refresh content=", "0;url=", "rel=canonical", "<link ", " ", "\u65e5",
     "<!--", "<script>", "</script>", "<plaintext>", "<frameset>", "%", "é", "[::1]", "<select>", "<math>", "]]>", "\n"]
)  # fmt: skip


@settings(max_examples=150)
@given(
    pieces=st.lists(_MARKUP, max_size=40),
    raw=st.binary(max_size=30),
    label=st.sampled_from(["", "utf-8", "gbk", "x"]),
)
def test_any_page_has_a_manifest_that_travels(pieces: list[str], raw: bytes, label: str) -> None:
    body = "".join(pieces).encode("utf-8", "surrogatepass") + raw
    reading = registry().read(answer(body, content_type=f"text/html; charset={label}"))
    assert not isinstance(reading, Undecodable)
    manifest = msgspec.msgpack.decode(msgspec.msgpack.encode(reading.manifest), type=type(reading.manifest))
    assert manifest == reading.manifest
    reading.text.decode()
    canon = Canonicalizer()
    assert all(canon.canon(link.url, None) == link.url for link in manifest.links)
