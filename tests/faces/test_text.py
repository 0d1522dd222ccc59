"""Numbers, sizes and durations as people read them; text from the web made harmless."""

from __future__ import annotations

import json

import pytest

from amble.faces import text


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 KB"),
        (12_345, "12.3 KB"),
        (99_940, "99.9 KB"),
        (99_960, "100 KB"),
        (999_499, "999 KB"),
        (999_600, "1.0 MB"),
        (123_456_789, "123 MB"),
        (5 * 10**12, "5.0 TB"),
        (7 * 10**18, "7000 PB"),
    ],
)
def test_sizes(amount: int, said: str) -> None:
    assert text.size(amount) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-1, "0s"),
        (0.4, "0s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (200, "3m 20s"),
        (3_600, "1h 00m"),
        (90_000, "1d 1h"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert text.duration(seconds) == said


@pytest.mark.parametrize(
    ("per_s", "said"),
    [(0, "0.0/s"), (0.05, "0.05/s"), (0.96, "1.0/s"), (12.34, "12.3/s"), (1_234.5, "1,234/s")],
)
def test_rates(per_s: float, said: str) -> None:
    assert text.rate(per_s) == said


def test_a_moment_is_utc() -> None:
    assert text.moment(1_700_000_000_500) == "2023-11-14 22:13:20Z"


@pytest.mark.parametrize(("number", "said"), [(0, "0 pages"), (1, "1 page"), (1_000, "1,000 pages")])
def test_plurals(number: int, said: str) -> None:
    assert text.plural(number, "page") == said


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2Jboo", "\\u001b[2Jboo"),
        ("a\nb\r", "a\\u000ab\\u000d"),
        ("abc\u202edef", "abc\\u202edef"),
        ("\x9b31m", "\\u009b31m"),
        ("a\u061cb\ufff9c", "a\\u061cb\\ufff9c"),
        ("\udcff", "\\udcff"),
        ("grüße 漢字", "grüße 漢字"),
    ],
)
def test_text_from_the_web_cannot_steer_a_terminal(hostile: str, shown: str) -> None:
    assert text.safe(hostile) == shown


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "latin-1", "ascii", None])
@pytest.mark.parametrize("value", ["grüße 漢字 😀", "\\\u202e\x9b\x1b", "\udcff", 'a"b\n'])
def test_json_for_any_stream_reads_back_and_cannot_steer_a_terminal(encoding: str | None, value: str) -> None:
    line = text.json_line({"title": value}, encoding)
    line.encode(encoding or "utf-8")
    assert json.loads(line) == {"title": value}
    assert text.safe(line) == line


def test_json_stays_readable_where_the_stream_can_show_it() -> None:
    assert text.json_line("grüße", "utf-8") == '"grüße"'


@pytest.mark.parametrize("width", range(8, 40))
def test_shortened_text_keeps_both_ends_and_its_width(width: int) -> None:
    long = "https://example.org/a/very/long/path/index.html"
    short = text.shortened(long, width)
    assert len(short) == width
    assert short[:3] == "htt"
    assert short[-1] == "l"


def test_short_text_stays() -> None:
    assert text.shortened("abc", 8) == "abc"
