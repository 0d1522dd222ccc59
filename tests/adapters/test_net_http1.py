"""The response parser: every kind of answer, cut every way, and hostile input that must cost little."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import pytest

from amble.adapters.net.heads import HARMLESS, QUIRKS, HeaderFields, head_end, read_head
from amble.adapters.net.http1 import Fault, ResponseParser
from amble.domain.decision import Category
from amble.domain.policy import FetchLimits
from tests.support.violations import CASES, CHUNKED, EARLY, LENIENT, OK, PROPER, TYPE, Case, answer

WIDE = FetchLimits(head_bytes_max=256 * 1024, head_lines_max=2_000)


@dataclass
class Outcome:
    """All that a parser tells."""

    status: int
    head: bytes
    body: bytes
    truncated: str
    quirks: frozenset[str]
    refused: Category | None
    reusable: bool


def parse(
    pieces: list[bytes],
    *,
    limits: FetchLimits = WIDE,
    body_bytes_max: int = 1 << 20,
    http09: bool = True,
    end: bool = True,
) -> Outcome:
    body = bytearray()
    parser = ResponseParser(limits, body_bytes_max, body.extend, http09=http09)
    for piece in pieces:
        parser.feed(piece)
    if end:
        parser.end()
    assert parser.wire_bytes == sum(map(len, pieces))
    assert parser.body_bytes == len(body)
    assert set(parser.quirks) <= set(QUIRKS)
    return Outcome(
        parser.status,
        parser.head,
        bytes(body),
        parser.truncated,
        frozenset(parser.quirks),
        parser.fault.category if parser.fault else None,
        parser.reusable,
    )


def test_there_are_ninety_four_cases_and_seven_are_refused() -> None:
    assert len({case.name for case in CASES}) == 94
    assert sum(case.refused is not None for case in CASES) == 7


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_way_to_answer_gives_what_a_lenient_client_makes_of_it(case: Case) -> None:
    outcome = parse([case.data])
    assert outcome.refused == case.refused
    if case.refused is None:
        assert outcome.status == case.status
        assert outcome.body == case.body
        assert outcome.truncated == case.truncated
        assert outcome.quirks == set(case.quirks)
        assert case.data.find(outcome.head) >= 0


@pytest.mark.parametrize(
    "case", [case for case in CASES if len(case.data) < 1_000], ids=lambda case: case.name
)
def test_the_answer_does_not_depend_on_where_it_is_cut(case: Case) -> None:
    whole = parse([case.data])
    for cut in range(1, len(case.data)):
        assert parse([case.data[:cut], case.data[cut:]]) == whole, cut


@pytest.mark.parametrize(
    "case", [case for case in CASES if len(case.data) < 10_000], ids=lambda case: case.name
)
def test_the_answer_may_come_byte_by_byte(case: Case) -> None:
    assert parse([case.data[i : i + 1] for i in range(len(case.data))]) == parse([case.data])


def test_random_cuts_of_large_answers_change_nothing() -> None:
    chance = random.Random(7)
    for case in CASES:
        cuts = sorted(chance.choices(range(len(case.data) + 1), k=5))
        pieces = [case.data[a:b] for a, b in zip([0, *cuts], [*cuts, len(case.data)], strict=True)]
        assert parse(pieces) == parse([case.data]), case.name


def test_mutated_answers_never_raise_and_always_end() -> None:
    chance = random.Random(20)
    until = time.monotonic() + 2.0
    small = [case.data for case in CASES if len(case.data) < 1_000]
    spice = [
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b":",
        b" ",
        b"0\r\n",
        b"ffffffff\r\n",
        b"HTTP/1.1 100 x\r\n\r\n",
        CHUNKED,
    ]
    runs = 0
    while time.monotonic() < until:
        data = bytearray(chance.choice(small))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(data) + 1)
            match chance.randrange(4):
                case 0:
                    data[at : at + chance.randint(1, 4)] = b""
                case 1:
                    data[at:at] = chance.choice(spice)
                case 2:
                    data[at:at] = chance.choice(small)[:30]
                case _:
                    data[at : at + 1] = bytes([chance.randrange(256)])
        cut = chance.randrange(len(data) + 1)
        whole = parse([bytes(data)])
        assert parse([bytes(data[:cut]), bytes(data[cut:])]) == whole, bytes(data)
        runs += 1
    assert runs > 300


@pytest.mark.parametrize("case", [c for c in PROPER if c.status != 304], ids=lambda case: case.name)
def test_a_proper_answer_with_a_length_keeps_the_connection(case: Case) -> None:
    outcome = parse([case.data], end=False)
    delimited = b"no_length" not in case.name.encode() and b"close" not in case.data.lower()
    assert outcome.reusable is delimited


TOUCHES_FRAMING = [
    case
    for case in LENIENT
    # These show only when the server closes, and a closed connection is not reused anyway.
    if not set(case.quirks) <= HARMLESS | {"no-final-crlf", "not-chunked"}
]


@pytest.mark.parametrize("case", TOUCHES_FRAMING, ids=lambda case: case.name)
def test_a_leniency_that_touches_framing_costs_the_connection(case: Case) -> None:
    assert not parse([case.data], end=False).reusable


def test_an_answer_without_status_line_is_garbage_where_http09_is_not_allowed() -> None:
    assert parse([b"SSH-2.0-OpenSSH_9.2\r\n"], http09=False).refused is Category.PROTOCOL_ERROR


def test_garbage_after_an_interim_response_is_never_http09() -> None:
    assert parse([EARLY + b"<html>"]).refused is Category.PROTOCOL_ERROR


def test_a_body_over_the_cap_is_cut_and_marked() -> None:
    outcome = parse([answer(OK, b"Content-Length: 100", body=b"x" * 100)], body_bytes_max=60)
    assert (len(outcome.body), outcome.truncated, outcome.reusable) == (60, "length", False)


def test_a_body_exactly_at_the_cap_is_whole() -> None:
    outcome = parse([answer(OK, b"Content-Length: 60", body=b"x" * 60)], body_bytes_max=60)
    assert (len(outcome.body), outcome.truncated) == (60, "")


def test_a_chunked_body_over_the_cap_is_cut_at_the_cap() -> None:
    outcome = parse([answer(OK, CHUNKED, body=b"40\r\n" + b"x" * 64 + b"\r\n0\r\n\r\n")], body_bytes_max=60)
    assert (len(outcome.body), outcome.truncated) == (60, "length")


def test_a_bad_chunk_after_good_ones_ends_the_body_there() -> None:
    outcome = parse([answer(OK, CHUNKED, body=b"5\r\nhello\r\nzz\r\nlost\r\n0\r\n\r\n")])
    assert outcome.body == b"hello"
    assert outcome.truncated == "framing"
    assert "bad-chunk" in outcome.quirks


def test_one_byte_chunks_are_given_up_when_framing_outweighs_content() -> None:
    body = bytearray()
    parser = ResponseParser(WIDE, 10 << 20, body.extend)
    parser.feed(answer(OK, CHUNKED, body=b""))
    flood = b"1\r\nx\r\n" * 10_000
    fed = 0
    while not parser.done:
        parser.feed(flood)
        fed += 1
        assert fed < 20
    assert parser.truncated == "framing"


def test_an_endless_trailer_does_not_spoil_the_body() -> None:
    tail = b"5\r\nhello\r\n0\r\n" + b"X-T: 1\r\n" * 50_000
    outcome = parse([answer(OK, CHUNKED, body=tail)])
    assert (outcome.body, outcome.truncated) == (b"hello", "")
    assert "trailer-too-long" in outcome.quirks
    assert not outcome.reusable


@pytest.mark.parametrize(
    ("data", "category"),
    [
        (OK + b"\r\nX: " + b"a" * 70_000, Category.HEADERS_TOO_LARGE),
        (answer(OK, *[b"X: 1"] * 300), Category.HEADERS_TOO_LARGE),
        (b"\r\n" * 5_000, Category.PROTOCOL_ERROR),
        (EARLY * 21, Category.PROTOCOL_ERROR),
        (b"HTTP/1.", Category.DISCONNECTED),
        (EARLY, Category.EMPTY_REPLY),
    ],
    ids=[
        "bytes",
        "lines",
        "blank lines",
        "interim responses",
        "half a status line",
        "only an interim response",
    ],
)
def test_a_header_block_has_bounds(data: bytes, category: Category) -> None:
    assert parse([data], limits=FetchLimits()).refused is category


def test_a_head_that_drips_is_read_in_reasonable_time() -> None:
    data = answer(OK, TYPE, b"X: " + b"a" * 60_000, b"Content-Length: 5")
    started_s = time.process_time()
    assert parse([data[i : i + 1] for i in range(len(data))], limits=FetchLimits()).body == b"hello"
    assert time.process_time() - started_s < 2.0


def test_a_deadline_keeps_the_body_so_far_and_marks_it() -> None:
    body = bytearray()
    parser = ResponseParser(WIDE, 1000, body.extend)
    parser.feed(answer(OK, b"Content-Length: 50"))
    parser.cut("idle", Fault(Category.TIMEOUT_IDLE, ""))
    assert (bytes(body), parser.truncated, parser.fault) == (b"hello", "idle", None)


def test_a_deadline_inside_the_header_block_is_a_fault() -> None:
    parser = ResponseParser(WIDE, 1000, bytearray().extend)
    parser.feed(OK)
    parser.cut("idle", Fault(Category.TIMEOUT_IDLE, "silent"))
    assert parser.fault == Fault(Category.TIMEOUT_IDLE, "silent")


def test_the_body_of_an_interim_response_is_not_mistaken_for_the_answer() -> None:
    outcome = parse([EARLY, EARLY, answer(OK, b"Content-Length: 5")], end=False)
    assert outcome.head == answer(OK, b"Content-Length: 5", body=b"")
    assert outcome.reusable


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"A\r\nB: 1\r\n\r\nrest", 11),
        (b"A\nB: 1\n\nrest", 8),
        (b"A\nB: 1\n\r\nrest\n\n", 9),
        (b"A\n\nB\r\n\r\n", 3),
        (b"A\r\nB: 1\r\n", -1),
        (b"", -1),
    ],
)
def test_a_header_block_ends_at_its_first_blank_line(block: bytes, expected: int) -> None:
    assert head_end(block) == expected


def test_fields_are_read_by_lower_case_name_and_the_first_value_wins() -> None:
    fields = HeaderFields(
        b"HTTP/1.1 200 OK\r\nX-A:  one \r\nx-a: two\r\nX-B: a\r\n  b\r\nbad line\r\n: x\r\nX-C : caf\xe9\r\n\r\n"
    )
    assert dict(fields) == {"x-a": "one", "x-b": "a b", "x-c": "café"}
    assert fields.get("x-missing") is None


def test_a_length_on_a_folded_line_is_still_the_length() -> None:
    head = read_head(b"HTTP/1.1 200 OK\r\nContent-Length:\r\n 5\r\n\r\n")
    assert not isinstance(head, str)
    assert head.length == 5
    assert head.quirks == ["obs-fold"]


def test_a_framing_header_hidden_in_a_folded_line_is_not_one() -> None:
    head = read_head(b"HTTP/1.1 200 OK\r\nX: a\r\n Content-Length: 9\r\nContent-Length: 5\r\n\r\n")
    assert not isinstance(head, str)
    assert head.length == 5


@pytest.mark.parametrize(
    ("lines", "persistent"),
    [
        ((b"HTTP/1.1 200 OK",), True),
        ((b"HTTP/1.1 200 OK", b"Connection: close"), False),
        ((b"HTTP/1.1 200 OK", b"CONNECTION: Upgrade, Close"), False),
        ((b"HTTP/1.0 200 OK",), False),
        ((b"HTTP/1.0 200 OK", b"Connection: Keep-Alive"), True),
        ((b"HTTP/1.0 200 OK", b"Connection: keep-alive, close"), False),
    ],
)
def test_persistence_follows_version_and_connection_header(
    lines: tuple[bytes, ...], persistent: bool
) -> None:
    head = read_head(answer(*lines, body=b""))
    assert not isinstance(head, str)
    assert head.persistent is persistent
