"""Ninety-four ways to answer a GET, most of them against the rules, with what a lenient client should make of each.

`data` is all that the server sends before it closes (with a reset where `reset` says so).
"""

from __future__ import annotations

from dataclasses import dataclass

from amble.domain.decision import Category

OK = b"HTTP/1.1 200 OK"
TYPE = b"Content-Type: text/html"
FIVE = b"Content-Length: 5"
CHUNKED = b"Transfer-Encoding: chunked"
HELLO_CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Case:
    """One answer. `refused` set: no usable answer, in that category; else status, body, truncated and quirks."""

    name: str
    data: bytes
    status: int = 200
    body: bytes = b"hello"
    truncated: str = ""
    quirks: tuple[str, ...] = ()
    refused: Category | None = None
    reset: bool = False


def answer(*lines: bytes, body: bytes = b"hello", eol: bytes = b"\r\n") -> bytes:
    """A header block of these lines, and a body."""
    return eol.join(lines) + eol + eol + body


def _with(*lines: bytes) -> bytes:
    """An otherwise proper answer of five bytes with these header lines in addition."""
    return answer(OK, TYPE, *lines, FIVE)


def _status(line: bytes) -> bytes:
    return answer(line, TYPE, FIVE)


def _chunks(body: bytes) -> bytes:
    return answer(OK, TYPE, CHUNKED, body=body)


def _length(value: bytes) -> bytes:
    return answer(OK, TYPE, b"Content-Length:" + value)


PROPER = [
    Case("ok", _with()),
    Case("reason_absent_after_space", _status(b"HTTP/1.1 200 ")),
    Case("reason_latin1", _status(b"HTTP/1.1 200 D\xe9j\xe0")),
    Case("reason_utf8", _status("HTTP/1.1 200 é中".encode())),
    Case("value_latin1", _with(b"X-A: caf\xe9")),
    Case("value_utf8", _with("X-A: 中文".encode())),
    Case("status_999", _status(b"HTTP/1.1 999 No"), status=999),
    Case("status_600", _status(b"HTTP/1.1 600 No"), status=600),
    Case("interim_100", answer(b"HTTP/1.1 100 Continue", body=b"") + _with()),
    Case("interim_103", EARLY + _with()),
    Case("interim_102_thrice", answer(b"HTTP/1.1 102 Processing", body=b"") * 3 + _with()),
    Case("no_length_http10", answer(b"HTTP/1.0 200 OK", TYPE)),
    Case("no_length_http11", answer(OK, TYPE)),
    Case("length_then_space", _length(b" 5 ")),
    Case("chunked_odd_case", answer(OK, TYPE, b"Transfer-Encoding: Chunked", body=HELLO_CHUNKS)),
    Case("chunk_extension", _chunks(b"5;a=b\r\nhello\r\n0\r\n\r\n")),
    Case("chunk_size_spaces", _chunks(b"5  \r\nhello\r\n0\r\n\r\n")),
    Case("chunk_size_zeros", _chunks(b"00000005\r\nhello\r\n0\r\n\r\n")),
    Case("chunk_size_20_digits", _chunks(b"0" * 19 + b"5\r\nhello\r\n0\r\n\r\n")),
    Case("chunk_trailer", _chunks(b"5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n"), quirks=("trailer",)),
    Case(
        "304_with_length",
        answer(b"HTTP/1.1 304 Not Modified", TYPE, FIVE, body=b""),
        status=304,
        body=b"",
    ),
    Case("fields_100", _with(*[b"X-H%d: v" % i for i in range(100)])),
    Case("fields_200", _with(*[b"X-H%d: v" % i for i in range(200)])),
    Case("fields_1000", _with(*[b"X-H%d: v" % i for i in range(1000)])),
    Case("field_8k", _with(b"X-A: " + b"a" * 8_200)),
    Case("field_20k", _with(b"X-A: " + b"a" * 20_000)),
    Case("field_90k", _with(b"X-A: " + b"a" * 90_000)),
    Case("location_utf8", answer(b"HTTP/1.1 301 Moved", TYPE, FIVE, "Location: /中 文".encode()), status=301),
    Case(
        "location_twice",
        answer(b"HTTP/1.1 301 Moved", TYPE, FIVE, b"Location: /a", b"Location: /b"),
        status=301,
    ),
    Case("coding_bogus", _with(b"Content-Encoding: gzip")),
    Case("type_twice", answer(OK, TYPE, b"Content-Type: text/plain", FIVE)),
    Case("connection_contradicts_itself", _with(b"Connection: Keep-Alive, Close, foo")),
    Case(
        "field_case_and_space",
        answer(
            OK,
            b"X-zEbRa: 1",
            b"SERVER: x",
            b"content-TYPE: text/html",
            b"Content-length:5",
            b"X-Zebra:   2  ",
            b"x-empty:",
        ),
    ),
]

LENIENT = [
    Case("reason_and_space_absent", _status(b"HTTP/1.1 200"), quirks=("no-reason",)),
    Case("lf_alone", answer(OK, TYPE, FIVE, eol=b"\n"), quirks=("bare-lf",)),
    Case("lf_sometimes", OK + b"\n" + TYPE + b"\r\n" + FIVE + b"\n\r\nhello", quirks=("bare-lf",)),
    Case("fold", _with(b"X-A: one", b"  two"), quirks=("obs-fold",)),
    Case("fold_on_first_line", answer(OK, b"  X-A: one", TYPE, FIVE), quirks=("obs-fold",)),
    Case("length_twice_equal", _with(FIVE), quirks=("content-length-repeated",)),
    Case("length_list_equal", _length(b" 5, 5"), quirks=("content-length-repeated",)),
    Case("length_twice_different", _with(b"Content-Length: 7"), quirks=("content-length-conflict",)),
    Case(
        "te_and_length",
        answer(OK, TYPE, b"Content-Length: 15", CHUNKED, body=HELLO_CHUNKS),
        quirks=("te-and-content-length",),
    ),
    Case("te_in_http10", answer(b"HTTP/1.0 200 OK", TYPE, CHUNKED, body=HELLO_CHUNKS), quirks=("te-http10",)),
    Case("te_identity", _with(b"Transfer-Encoding: identity"), quirks=("te-identity",)),
    Case(
        "te_gzip_chunked",
        answer(OK, TYPE, b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
        body=b"",
        quirks=("te-list",),
    ),
    Case("te_chunked_twice", answer(OK, TYPE, CHUNKED, CHUNKED, body=HELLO_CHUNKS), quirks=("te-list",)),
    Case(
        "te_unknown",
        answer(OK, TYPE, b"Transfer-Encoding: foo", b"Connection: close"),
        quirks=("te-unknown",),
    ),
    Case("value_control", _with(b"X-A: a\x01b"), quirks=("control-character",)),
    Case("value_nul", _with(b"X-A: a\x00b"), quirks=("control-character",)),
    Case("value_cr", _with(b"X-A: a\rb"), quirks=("control-character",)),
    Case("name_tab", _with(b"X\tA: b"), quirks=("bad-name",)),
    Case("name_space", _with(b"My Header: x"), quirks=("bad-name",)),
    Case("name_latin1", _with(b"X-\xe9: x"), quirks=("bad-name",)),
    Case("name_empty", _with(b": x"), quirks=("bad-name",)),
    Case("space_before_colon", answer(OK, b"Content-Type : text/html", FIVE), quirks=("space-before-colon",)),
    Case(
        "space_before_colon_of_length",
        answer(OK, TYPE, b"Content-Length : 5"),
        quirks=("space-before-colon",),
    ),
    Case("colon_absent", _with(b"garbage line here"), quirks=("no-colon",)),
    Case("markup_in_head", _with(b"<br>oops: x"), quirks=("bad-name",)),
    Case("http09", b"<html>hello</html>", body=b"<html>hello</html>", quirks=("http09",)),
    Case("protocol_lower_case", _status(b"http/1.1 200 OK"), quirks=("status-line",)),
    Case("version_1_2", _status(b"HTTP/1.2 200 OK"), quirks=("version",)),
    Case("version_2_0", _status(b"HTTP/2.0 200 OK"), quirks=("version",)),
    Case("version_1", _status(b"HTTP/1 200 OK"), quirks=("version",)),
    Case("icy", _status(b"ICY 200 OK"), quirks=("icy",)),
    Case("status_two_spaces", _status(b"HTTP/1.1  200 OK"), quirks=("status-line",)),
    Case("blank_line_first", b"\r\n" + _with(), quirks=("leading-crlf",)),
    Case("two_blank_lines_first", b"\r\n\r\n" + _with(), quirks=("leading-crlf",)),
    Case("junk_first", b"xx" + _with(), body=b"xx" + _with(), quirks=("http09",)),
    Case(
        "switching_unasked",
        answer(b"HTTP/1.1 101 Switching Protocols", b"Upgrade: h2c", b"Connection: Upgrade", body=b"")
        + _with(),
        status=101,
        body=_with(),
        quirks=("101",),
    ),
    Case("length_too_small", _with()[:-5] + b"hello and more", quirks=("data-after-body",)),
    Case("length_negative", _length(b" -5"), quirks=("bad-content-length",)),
    Case("length_plus", _length(b" +5"), quirks=("bad-content-length",)),
    Case("length_text", _length(b" abc"), quirks=("bad-content-length",)),
    Case("length_empty", _length(b""), quirks=("bad-content-length",)),
    Case("length_huge", _length(b" " + b"9" * 26), quirks=("bad-content-length",)),
    Case("chunk_lf", _chunks(b"5\nhello\n0\n\n"), quirks=("chunk-line-end",)),
    Case("chunk_final_line_absent", _chunks(b"5\r\nhello\r\n0\r\n"), quirks=("no-final-crlf",)),
    Case(
        "chunk_size_letters",
        _chunks(b"zz\r\nhello\r\n0\r\n\r\n"),
        body=b"zz\r\nhello\r\n0\r\n\r\n",
        quirks=("not-chunked",),
    ),
    Case(
        "chunk_size_0x",
        _chunks(b"0x5\r\nhello\r\n0\r\n\r\n"),
        body=b"0x5\r\nhello\r\n0\r\n\r\n",
        quirks=("not-chunked",),
    ),
    Case("chunk_line_end_absent", _chunks(b"5\r\nhello0\r\n\r\n"), quirks=("chunk-no-crlf",)),
    Case(
        "chunks_absent", _chunks(b"<html>plain</html>"), body=b"<html>plain</html>", quirks=("not-chunked",)
    ),
    Case(
        "204_with_body",
        answer(b"HTTP/1.1 204 No Content", TYPE, FIVE),
        status=204,
        body=b"",
        quirks=("body-forbidden", "data-after-body"),
    ),
]

PARTIAL = [
    Case("length_too_large", _length(b" 50"), truncated="disconnect"),
    Case("chunk_last_absent", _chunks(b"5\r\nhello\r\n"), truncated="disconnect"),
    Case(
        "closed_in_head",
        OK + b"\r\n" + TYPE + b"\r\n",
        body=b"",
        truncated="disconnect",
        quirks=("head-eof",),
    ),
    Case("closed_after_status", OK + b"\r\n", body=b"", truncated="disconnect", quirks=("head-eof",)),
    Case(
        "reset_in_body",
        answer(OK, TYPE, b"Content-Length: 5000", body=b"x" * 1000),
        body=b"x" * 1000,
        truncated="disconnect",
        reset=True,
    ),
]

REFUSED = [
    Case("status_without_space", _status(b"HTTP/1.1 200OK"), refused=Category.PROTOCOL_ERROR),
    Case("status_99", _status(b"HTTP/1.1 99 No"), refused=Category.PROTOCOL_ERROR),
    Case("status_000", _status(b"HTTP/1.1 000 No"), refused=Category.PROTOCOL_ERROR),
    Case("status_2000", _status(b"HTTP/1.1 2000 No"), refused=Category.PROTOCOL_ERROR),
    Case("interim_30_times", EARLY * 30 + _with(), refused=Category.PROTOCOL_ERROR),
    Case("field_500k", _with(b"X-A: " + b"a" * 500_000), refused=Category.HEADERS_TOO_LARGE),
    Case("nothing", b"", refused=Category.EMPTY_REPLY),
]

CASES = [*PROPER, *LENIENT, *PARTIAL, *REFUSED]
