"""Random documents that are nearly well formed, and the check that one is read alike with the C module and without."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

from amble.domain.policy import ParseLimits
from amble.domain.url import Canonicalizer
from amble.formats import html
from amble.formats.html import HtmlReader

_LIMITS = ParseLimits()
_READER = HtmlReader(_LIMITS, Canonicalizer(), agent_tokens=("amble",), follow_images=True)

_TAGS = [
    "a",
    "a",
    "p",
    "p",
    "p",
    "div",
    "div",
    "ul",
    "ol",
    "li",
    "li",
    "dl",
    "dt",
    "dd",
    "table",
    "tr",
    "td",
    "th",
    "tbody",
    "thead",
    "tfoot",
    "caption",
    "colgroup",
    "span",
    "b",
    "i",
    "em",
    "strong",
    "code",
    "pre",
    "blockquote",
    "h1",
    "h2",
    "section",
    "article",
    "nav",
    "header",
    "footer",
    "aside",
    "main",
    "form",
    "button",
    "textarea",
    "title",
    "script",
    "style",
    "iframe",
    "noscript",
    "menu",
    "details",
    "summary",
    "figure",
    "label",
    "custom-x",
    "o:p",
    "address",
    "center",
    "dialog",
    "nobr",
    "select",
    "option",
    "svg",
    "hgroup",
    "fieldset",
]
_VOID = ("br", "hr", "img", "input", "meta", "link", "base", "wbr", "area", "col", "source")
_RAW = frozenset({"script", "style", "textarea", "title", "iframe"})
# What mostly stands directly within an element.
_WITHIN = {
    "table": ("tr", "tbody", "thead", "tfoot", "caption", "colgroup"),
    "tbody": ("tr",),
    "thead": ("tr",),
    "tr": ("td", "th"),
    "ul": ("li", "li", "ol"),
    "ol": ("li", "li", "ul"),
    "dl": ("dt", "dd"),
    "colgroup": ("col",),
    "select": ("option", "option", "optgroup"),
    "optgroup": ("option",),
    "svg": ("g", "path", "text", "G", "title"),
    "g": ("path", "text"),
}
_TEXTS = (
    "word ", " ", "\n", "\r\n", "a, b, c ", "&amp;", "&lt;", "&nbsp;", "&eacute;", "&#233;", "&#x1F600;", "& ", "é", "日本", "x < y",
    "longer text with some words in it, and commas, ", "and a second sentence of prose, which goes on for a while. ",
    "&bogus;", "&amp", "&#10;", "&#128;", "\t", "-", "--", "<!-- c -->", "<!---->", "<!-- a -- b -->", "]]>", "<!doctype html>",
)  # fmt: skip
_ATTRIBUTES = (
    'class="content main"', "class=nav", 'id="sidebar"', 'href="/x?a=1&amp;b=2"', "href='y'", "href=z", "href", "rel=nofollow",
    'rel="a b"', 'src="/i"', "start=3", 'start="7x"', "value=5", 'value="0"', "lang=de", "name=robots", 'content="a&copy;b"',
    "http-equiv=refresh", 'type="x/y"', 'title="a>b"', 'class="post-text AD-x"', 'CLASS="Menu"', 'href="1" href="2"', "data-x",
    "/", "width=1/", 'href = "sp"', "id=body", 'class="comment hidden"',
)  # fmt: skip
_HEAD = (
    "<meta charset=utf-8>", "<title>T &amp; é</title>", "<link rel=canonical href=/c>", "<base href=/b/>", "<!-- h -->", "\n",
    '<script>var a="<b>";</script>', "<style>a{}</style>", "<noscript><link href=x rel=next></noscript>",
    "<script><!-- a<b //--></script>", "<?xml version='1.0'?>", "<meta name=robots content=noindex>", "<meta http-equiv=refresh content='3;url=/r'>",
)  # fmt: skip


def random_page(chance: random.Random) -> bytes:
    """A document that often closes what it opens."""
    parts = []
    if chance.random() < 0.7:
        parts.append(
            chance.choice(("<!DOCTYPE html>", "<!doctype html>\n", '\n<!-- x --><!doctype html public "x">'))
        )
    if chance.random() < 0.6:
        parts.append("<html" + _attributes(chance) + ">" + chance.choice(("", "\n", "<head>", "<head>\n")))
        parts += chance.choices(_HEAD, k=chance.randrange(4))
        parts.append(chance.choice(("</head>", "</head>\n", "", "</head> \n<body class=page>", "<body>")))
    open_tags: list[str] = []
    for _ in range(chance.randint(1, chance.choice((8, 30, 80)))):
        parts.append(_random_part(chance, open_tags))
    if chance.random() < 0.8:
        parts += [f"</{tag}>" for tag in reversed(open_tags)]
    if chance.random() < 0.5:
        parts.append(
            chance.choice(
                ("</body></html>\n", "</body>\n</html>", "</body>", "</html>\n<!-- e -->", "</body> x")
            )
        )
    return "".join(parts).encode()


def _attributes(chance: random.Random) -> str:
    return "".join(" " + chance.choice(_ATTRIBUTES) for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 3))))


def _random_part(chance: random.Random, open_tags: list[str]) -> str:
    kind = chance.random()
    if kind < 0.33:
        return _random_start(chance, open_tags)
    if kind < 0.43:
        return f"<{chance.choice(_VOID)}{_attributes(chance)}>"
    if kind < 0.7 and open_tags:
        tag = open_tags.pop()
        if chance.random() < 0.12:
            return ""
        tag = chance.choice(_TAGS) if chance.random() < 0.03 else tag
        return f"</{tag}{chance.choice(('', '', '', ' ', chr(10)))}>"
    return "".join(chance.choices(_TEXTS, k=chance.randint(1, 4)))


def _random_start(chance: random.Random, open_tags: list[str]) -> str:
    tag = chance.choice(_TAGS)
    if open_tags and chance.random() < 0.7:
        tag = chance.choice(_WITHIN.get(open_tags[-1], (tag,)))
    start = f"<{tag.upper() if chance.random() < 0.05 else tag}{_attributes(chance)}{chance.choice(('>', '>', ' >', '/>'))}"
    if tag in _RAW:
        return start + chance.choice(("", "x", "a<b", "&lt;", "\n\ny", "<!-- z -->")) + f"</{tag}>"
    if tag not in _VOID:
        open_tags.append(tag)
    return start


def found_in(body: bytes, native: ModuleType | None) -> tuple[Any, ...]:
    """Everything that a reader with `native`, or without, takes from a document in UTF-8."""
    installed = html.read_plain
    html.read_plain = native.read_plain if native is not None else None  # type: ignore[assignment]
    try:
        walk = html._Walk(_LIMITS, frozenset({"robots", "amble"}))
        found = _READER._find(walk, body, "utf-8")
    finally:
        html.read_plain = installed
    told = (walk.title, walk.base_href, walk.canonical, walk.language, walk.directives, walk._in_head)
    return found, *told, walk.links.found


def check_page(native: ModuleType, body: bytes) -> bool:
    """Whether `read_plain` has an answer for a document; one that is not the full parser's fails."""
    if native.read_plain(body, True) is None:
        return False
    assert found_in(body, native) == found_in(body, None), body
    return True
