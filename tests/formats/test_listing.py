"""Sitemaps and feeds: every URL they list, and no way to hurt with XML."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.attempt import Edge, UrlKind
from amble.formats import listing, xml_stream
from amble.formats.extraction import LISTED_URLS_MAX
from amble.formats.registry import Reading
from tests.formats.pages import answer, read

XML = '<?xml version="1.0" encoding="UTF-8"?>'
URLSET = (
    f'{XML}<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:i="http://www.google.com/schemas/sitemap-image/1.1"'
    ' xmlns:xhtml="http://www.w3.org/1999/xhtml">'
    "<url><loc> https://www.example.com/a?x=1&amp;y=2 </loc><lastmod>2026-01-01</lastmod></url>"
    "<url><loc>https://www.example.com/b</loc><i:image><i:loc>https://www.example.com/i.png</i:loc></i:image>"
    '<xhtml:link rel="alternate" hreflang="de" href="https://www.example.com/de/b"/></url>'
    "<url><loc><![CDATA[https://www.example.com/c]]></loc></url><url><loc></loc></url></urlset>"
)
INDEX = f"{XML}<sitemapindex><sitemap><loc>https://www.example.com/s1.xml.gz</loc></sitemap></sitemapindex>"
RSS = (
    f'{XML}<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel><title>News &amp; more</title>'
    '<link>https://www.example.com/</link><atom:link rel="self" href="https://www.example.com/feed"/>'
    "<item><title>One</title><link>/one?utm_source=rss</link><guid>https://www.example.com/guid-of-one</guid></item>"
    "<item><guid>https://www.example.com/two</guid></item>"
    '<item><guid isPermaLink="false">https://www.example.com/no</guid></item><item><guid>tag:3</guid></item>'
    "</channel></rss>"
)
RDF = (
    f'{XML}<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">'
    "<channel><title>Old</title></channel><item><link>https://www.example.com/old</link></item></rdf:RDF>"
)
ATOM = (
    f'{XML}<feed xmlns="http://www.w3.org/2005/Atom"><title>Atom</title><link rel="self" href="/self"/>'
    '<link rel="next" href="/feed?page=2"/><entry><title>t</title><link href="/entry"/>'
    '<link rel="enclosure" href="/sound.mp3"/><link rel="edit" href="/edit"/></entry></feed>'
)


def found(reading: Reading) -> list[tuple[str, Edge]]:
    return [
        (link.url.removeprefix("https://www.example.com"), Edge(link.edge)) for link in reading.manifest.links
    ]


@pytest.mark.parametrize(
    ("body", "kind", "links"),
    [
        (
            URLSET,
            "sitemap",
            [
                ("/a?x=1&y=2", Edge.ANCHOR),
                ("/b", Edge.ANCHOR),
                ("/de/b", Edge.ALTERNATE),
                ("/c", Edge.ANCHOR),
            ],
        ),
        (INDEX, "sitemap", [("/s1.xml.gz", Edge.SITEMAP)]),
        (RSS, "feed", [("/", Edge.ANCHOR), ("/one", Edge.ANCHOR), ("/two", Edge.ANCHOR)]),
        (RDF, "feed", [("/old", Edge.ANCHOR)]),
        (ATOM, "feed", [("/feed?page=2", Edge.FEED), ("/entry", Edge.ANCHOR)]),
    ],
)
@pytest.mark.parametrize("url_kind", [UrlKind.PAGE, UrlKind.SITEMAP, UrlKind.FEED])
def test_lists_are_read_by_what_they_are(
    body: str, kind: str, links: list[tuple[str, Edge]], url_kind: UrlKind
) -> None:
    reading = read(answer(body, content_type="application/xml", kind=url_kind))
    assert reading.manifest.content_kind == kind
    assert found(reading) == links
    assert reading.manifest.notes == []
    assert reading.text == b""


def test_a_feed_has_a_title() -> None:
    assert read(answer(RSS, content_type="application/rss+xml")).manifest.title == "News & more"
    assert read(answer(ATOM, content_type="application/atom+xml")).manifest.title == "Atom"


@pytest.mark.parametrize("content_type", ["application/gzip", "application/octet-stream", "text/xml", None])
def test_a_sitemap_may_be_a_gzip_file(content_type: str | None) -> None:
    body = gzip.compress(URLSET.encode())
    reading = read(answer(body, kind=UrlKind.SITEMAP, content_type=content_type))
    assert reading.manifest.content_kind == "sitemap"
    assert len(reading.manifest.links) == 4


def test_a_sitemap_may_be_plain_text() -> None:
    body = "https://www.example.com/a\n\n# note\r\nhttp://www.example.com/b  \nftp://x/\n/relative\n"
    question = answer(body, kind=UrlKind.SITEMAP, content_type="text/plain; charset=utf-8")
    assert [link.url for link in read(question).manifest.links] == [
        "https://www.example.com/a",
        "http://www.example.com/b",
    ]
    assert read(question._replace(kind=UrlKind.PAGE)).manifest.links == []


def test_urls_beyond_the_standards_bound_are_left_out() -> None:
    body = "<urlset>" + "".join(
        f"<url><loc>http://a.example/{i}</loc></url>" for i in range(LISTED_URLS_MAX + 10)
    )
    manifest = read(answer(body, content_type="text/xml")).manifest
    assert len(manifest.links) == LISTED_URLS_MAX
    assert "links_truncated" in manifest.notes


def test_a_broken_list_keeps_what_came_before_the_break() -> None:
    reading = read(answer(URLSET[: URLSET.index("<url><loc><![CDATA")] + "<oops", content_type="text/xml"))
    assert [url for url, _ in found(reading)] == ["/a?x=1&y=2", "/b", "/de/b"]
    assert reading.manifest.notes == [xml_stream.NOTE_BROKEN]


def test_a_list_in_another_encoding_is_read() -> None:
    body = RSS.replace("UTF-8", "windows-1251").replace("News &amp; more", "Новости").encode("cp1251")
    assert read(answer(body, content_type="text/xml")).manifest.title == "Новости"


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE x SYSTEM "file:///etc/passwd">',
        '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>',
    ],
)
def test_a_doctype_ends_the_reading(doctype: str) -> None:
    found_list = listing.read_sitemap(f"{doctype}<urlset><url><loc>http://a/</loc></url></urlset>".encode())
    assert found_list.links.found == {}
    assert found_list.notes == (xml_stream.NOTE_DOCTYPE,)


def test_a_list_deeper_than_any_list_is_not_read() -> None:
    assert listing.read_feed(b"<rss>" + b"<a>" * 100_000).notes == (xml_stream.NOTE_DEEP,)


def test_a_text_without_end_is_read_up_to_a_bound() -> None:
    links = listing.read_sitemap(
        b"<urlset><url><loc>http://a/" + b"x" * 3_000_000 + b"</loc></url></urlset>"
    ).links
    assert [len(href) for href in links.found] == [xml_stream.TEXT_CHARS_MAX]


def test_sitemaps_of_a_robots_file_are_links() -> None:
    body = "Sitemap: https://www.example.com/s.xml\nSitemap: /relative.xml\nUser-agent: *\nDisallow:"
    reading = read(answer(body, kind=UrlKind.ROBOTS, content_type="text/plain"))
    assert ("/s.xml", Edge.SITEMAP) in found(reading)


@given(
    st.lists(
        st.sampled_from(
            [
                "<urlset>",
                "<url>",
                "<loc>",
                "</loc>",
                "http://a/",
                "<item>",
                "<link ",
                "href='",
                "'/>",
                "\0",
                "&amp;",
                "<![CDATA[",
                "]]>",
            ]
        ),
        max_size=30,
    ),
    st.binary(max_size=20),
)
def test_any_bytes_are_a_list(pieces: list[str], raw: bytes) -> None:
    body = "".join(pieces).encode() + raw
    listing.read_sitemap(body)
    listing.read_feed(body)
    listing.read_sitemap_text(body, None)
