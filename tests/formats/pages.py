"""Pages that tests of several files read."""

from __future__ import annotations

from amble.domain.policy import ParseLimits
from amble.formats.decode import Undecodable
from amble.formats.registry import Answer, ExtractionSettings, Reading, Registry

URL = "https://www.example.com/dir/page.html?x=1"

# One of everything that a crawler reads in HTML.
RICH = """<!DOCTYPE html><html lang="en-GB"><head><meta charset="utf-8">
<title> A  title
 &amp; more </title>
<link rel="canonical" href="/canonical?utm_source=feed">
<link rel="alternate" type="application/rss+xml" href="/feed.rss">
<link rel="alternate" hreflang="de" href="https://de.example.com/seite">
<link rel="next" href="page2.html"><link rel="stylesheet" href="/style.css">
<meta name="robots" content="noarchive">
<meta http-equiv="Refresh" content="30; URL='/refreshed'">
</head><body>
<nav><a href="/">Home</a> <a href="/about" rel="nofollow">About <b>us</b></a></nav>
<p>Some <a href="../up.html#part">text &mdash; up</a>, <a href="/about">again</a>.
<a href="mailto:a@example.com">mail</a> <a href="javascript:void(0)">js</a> <a href="#top">top</a>
<a href="">self</a> <a href="http://user:pw@example.com/">login</a> <a href="http://exa mple/">bad</a>
<a name="nowhere">no href</a> <img src="/img.png" alt="x">
<map><area href="/area" alt="a"></map><iframe src="/framed"></iframe>
<svg><title>tooltip</title></svg></p></body></html>"""


def answer(
    body: bytes | str,
    *headers: str,
    url: str = URL,
    kind: int = 0,
    status: int = 200,
    content_type: str | None = "text/html; charset=utf-8",
) -> Answer:
    lines = [f"HTTP/1.1 {status} X", *([f"Content-Type: {content_type}"] if content_type else []), *headers]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return Answer(url, kind, status, head, body.encode() if isinstance(body, str) else body)


def registry(limits: ParseLimits | None = None, **settings: object) -> Registry:
    return Registry(limits or ParseLimits(), ExtractionSettings(**settings))  # type: ignore[arg-type]


def read(question: Answer, limits: ParseLimits | None = None, **settings: object) -> Reading:
    reading = registry(limits, **settings).read(question)
    assert not isinstance(reading, Undecodable), reading
    return reading
