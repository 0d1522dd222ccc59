"""Index lines: the keys that replay tools search by, and lines that come back as they went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.record import IndexFacts
from amble.formats import cdxj

KEYS = [
    ("http://example.com/", "com,example)/"),
    ("http://example.com", "com,example)/"),
    ("https://www.example.com/A/B?b=2&a=1", "com,example)/a/b?a=1&b=2"),
    ("http://www3.example.com:8080/x/", "com,example:8080)/x"),
    ("https://example.com:443/x", "com,example)/x"),
    ("http://example.com:443/x", "com,example:443)/x"),
    ("http://example.com/x/?", "com,example)/x"),
    ("http://example.com/x?&", "com,example)/x?&"),
    ("http://192.168.1.2/x", "2,1,168,192)/x"),
    ("http://[2001:db8::1]:8080/x", "2001:db8::1:8080)/x"),
    ("http://example.com/p?PHPSESSID=0123456789abcdef0123456789abcdef&x=1", "com,example)/p?x=1"),
    ("http://example.com/p?sid=0123456789abcdef0123456789abcdef", "com,example)/p"),
    ("http://example.com/p?sid=short&x", "com,example)/p?sid=short&x"),
    ("http://example.com/?cfid=12345678&cftoken=12345678&x=1", "com,example)/?x=1"),
    ("http://example.com/(S(abcdefghijklmnopqrstuvwx))/p.aspx", "com,example)/p.aspx"),
    ("http://xn--bcher-kva.example/p", "example,xn--bcher-kva)/p"),
    ("http://example.com//a//b", "com,example)/a/b"),
    ("http://example.com/?z=1&Z=0&a", "com,example)/?a&z=0&z=1"),
    ("http://example.com/?b&a=", "com,example)/?a=&b"),
    ("http://example.com./x", "com,example)/x"),
    ("http://www.com/", "com)/"),
    ("http://example.com/a)b,c", "com,example)/a)b,c"),
    ("http://user:word@example.com/", "com,example)/"),
    ("http://example.com/#part", "com,example)/"),
    ("dns:example.com", "dns:example.com"),
]


@pytest.mark.parametrize(("url", "key"), KEYS)
def test_the_key_is_the_one_that_replay_tools_search_by(url: str, key: str) -> None:
    assert cdxj.surt_key(url) == key


@given(st.text())
def test_every_text_has_a_key_without_spaces(url: str) -> None:
    assert " " not in cdxj.surt_key(url)
    assert " " not in cdxj.surt_key("http://" + url)


def test_a_line_comes_back_as_it_went_in() -> None:
    facts = IndexFacts(
        url='http://example.com/"ü', timestamp="20260102030405", mime="text/html", status="200"
    )
    line = cdxj.index_line(facts, digest="sha1:ABC", filename="x.warc.gz", offset=10, length=20)
    key, time, entry = cdxj.parse_line(line)
    assert (key, time) == ('com,example)/"ü', "20260102030405")
    assert entry == cdxj.IndexEntry(
        url=facts.url,
        mime="text/html",
        status="200",
        digest="sha1:ABC",
        length="20",
        offset="10",
        filename="x.warc.gz",
    )


@pytest.mark.parametrize("cut", [1, 2, 20, 60, 150])
def test_a_torn_line_is_refused(cut: int) -> None:
    facts = IndexFacts(url="http://example.com/", timestamp="20260102030405", mime="text/html", status="200")
    line = cdxj.index_line(facts, digest="sha1:ABC", filename="x.warc.gz", offset=10, length=20)
    with pytest.raises(ValueError, match="CDXJ"):
        cdxj.parse_line(line[:-cut])
    with pytest.raises(ValueError, match="CDXJ"):
        cdxj.parse_line(line[:-cut] + b"\x00" * cut)
