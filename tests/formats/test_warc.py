"""WARC records: what each kind says, the head that strict readers understand, and reading back."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io

import pytest
from fastwarc.warc import ArchiveIterator
from hypothesis import given
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from amble.domain.record import NewRecord, StoredRecord
from amble.formats import warc
from tests.support.exchanges import DATE_S, HEAD, Body, Ids, exchange, response

ORIGINAL = warc.Original(
    record_id="<urn:uuid:00000000-0000-4000-8000-000000000001>",
    url="http://example.com/first",
    date="2026-01-02T03:04:05.678Z",
    payload_digest="sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ",
    sha256="ab" * 32,
)


def written(record: NewRecord) -> bytes:
    body = b"" if record.body is None else b"".join(record.body.pieces())
    return warc.written_head(record).data + record.head + body + warc.RECORD_END


def stored(record: NewRecord) -> StoredRecord:
    return warc.read_record(written(record))


def sha1(data: bytes) -> str:
    return "sha1:" + base64.b32encode(hashlib.sha1(data).digest()).decode()


def every_kind(ids: Ids) -> dict[str, NewRecord]:
    about = {"record_id": ids(), "date_s": DATE_S, "url": "http://example.com/a"}
    return {
        "warcinfo": warc.warcinfo(
            record_id=ids(),
            date_s=DATE_S,
            filename="x.warc.gz",
            fields={"software": "amble/1", "robots": "obeyed"},
        ),
        "request": warc.request(
            exchange(), record_id=ids(), block=b"GET /a HTTP/1.1\r\nHost: example.com\r\n\r\n"
        ),
        "response": response(ids, b"<p>hello"),
        "identical": warc.revisit_identical(
            exchange(),
            record_id=ids(),
            head=HEAD,
            body=Body(b"<p>hello"),
            sha256=b"\x01" * 32,
            original=ORIGINAL,
        ),
        "not_modified": warc.revisit_not_modified(
            exchange(),
            record_id=ids(),
            head=b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n",
            original=ORIGINAL,
        ),
        "metadata": warc.metadata(**about, refers_to=ids(), block=b'{"links":[]}'),
        "conversion": warc.conversion(**about, refers_to=ids(), block="grüße".encode()),
        "resource": warc.resource(**about, block=b"\x00\x01", content_type="application/octet-stream"),
    }


@pytest.mark.parametrize("kind", list(every_kind(Ids())))
def test_every_kind_of_record_is_read_by_two_foreign_readers_and_by_ours(kind: str) -> None:
    record = every_kind(Ids())[kind]
    data = written(record)
    ours = warc.read_record(data)
    assert warc.digest_problem(ours) is None
    theirs = next(iter(ArchiveIterator(io.BytesIO(gzip.compress(data)), parse_http=kind == "response")))
    assert theirs.record_id == ours.record_id
    assert theirs.record_date.timestamp() == DATE_S
    assert theirs.verify_payload_digest() if kind == "response" else theirs.verify_block_digest()
    iterator = WarcioIterator(io.BytesIO(gzip.compress(data)), check_digests="raise")
    assert next(iterator).rec_headers.get_header("WARC-Record-ID") == ours.record_id
    assert next(iterator, None) is None


@pytest.mark.parametrize("kind", list(every_kind(Ids())))
def test_every_kind_of_record_has_the_four_mandatory_fields_once(kind: str) -> None:
    head = written(every_kind(Ids())[kind]).split(b"\r\n\r\n")[0]
    for field in (b"WARC-Type", b"WARC-Record-ID", b"WARC-Date", b"Content-Length"):
        assert head.count(b"\r\n" + field + b": ") == 1


def test_a_response_states_url_address_digests_and_sha256() -> None:
    record = stored(response(Ids(), b"<p>he", b"llo"))
    assert record.warc_type == "response"
    assert record.headers["WARC-Target-URI"] == "http://example.com/a"
    assert record.headers["WARC-IP-Address"] == "127.0.0.1"
    assert record.headers["WARC-Date"] == "2026-09-21T14:13:20.250Z"
    assert record.headers["Content-Type"] == "application/http;msgtype=response"
    assert record.headers["WARC-Payload-Digest"] == sha1(b"<p>hello")
    # The payload has two digests; one more of the block that holds it would cost a pass over each page.
    assert "WARC-Block-Digest" not in record.headers
    assert record.headers["X-Amble-Payload-SHA256"] == hashlib.sha256(b"<p>hello").hexdigest()
    assert record.http_head == HEAD
    assert record.payload == b"<p>hello"


@pytest.mark.parametrize("seed", range(20))
def test_a_sha1_is_written_in_base_32(seed: int) -> None:
    digest = hashlib.sha1(bytes([seed])).digest()
    assert warc.sha1_label(digest) == "sha1:" + base64.b32encode(digest).decode()


def test_a_response_with_a_block_digest_is_held_to_it() -> None:
    data = written(response(Ids(), b"<p>hello"))
    for digest, problem in ((sha1(HEAD + b"<p>hello"), False), (sha1(b"else"), True)):
        line = f"WARC-Block-Digest: {digest}\r\nContent-Length: ".encode()
        older = warc.read_record(data.replace(b"Content-Length: ", line, 1))
        assert (warc.digest_problem(older) is not None) is problem


def test_an_empty_payload_has_the_digest_of_nothing() -> None:
    record = stored(response(Ids(), head=b"HTTP/1.1 204 No Content\r\n\r\n"))
    assert record.payload == b""
    assert record.headers["WARC-Payload-Digest"] == sha1(b"") == warc.EMPTY_SHA1


def test_an_identical_revisit_has_the_digest_of_the_payload_it_does_not_hold() -> None:
    record = stored(every_kind(Ids())["identical"])
    assert record.block == HEAD
    assert record.headers["WARC-Profile"] == warc.IDENTICAL_PAYLOAD
    assert record.headers["WARC-Payload-Digest"] == sha1(b"<p>hello")
    assert record.headers["WARC-Truncated"] == "length"
    assert record.headers["WARC-Refers-To"] == ORIGINAL.record_id
    assert record.headers["WARC-Refers-To-Target-URI"] == ORIGINAL.url
    assert record.headers["WARC-Refers-To-Date"] == ORIGINAL.date


def test_a_not_modified_revisit_holds_the_304_head_and_refers_to_the_capture_that_is_still_valid() -> None:
    record = stored(every_kind(Ids())["not_modified"])
    assert record.block.startswith(b"HTTP/1.1 304 ")
    assert record.headers["WARC-Profile"] == warc.SERVER_NOT_MODIFIED
    assert record.headers["WARC-Refers-To"] == ORIGINAL.record_id
    assert record.headers["WARC-Payload-Digest"] == ORIGINAL.payload_digest
    assert record.headers["X-Amble-Payload-SHA256"] == ORIGINAL.sha256
    assert "WARC-Truncated" not in record.headers


def test_the_original_of_a_response_is_itself_and_that_of_a_revisit_is_the_first_capture() -> None:
    first = stored(response(Ids(1), b"<p>hello"))
    original = warc.original_of(first)
    assert original.record_id == first.record_id
    assert original.date == first.headers["WARC-Date"]
    assert original.payload_digest == sha1(b"<p>hello")
    again = stored(
        warc.revisit_not_modified(
            exchange(), record_id=Ids(2)(), head=b"HTTP/1.1 304 Not Modified\r\n\r\n", original=original
        )
    )
    assert warc.original_of(again) == original


def test_text_and_facts_refer_to_their_capture() -> None:
    kinds = every_kind(Ids())
    assert stored(kinds["conversion"]).headers["Content-Type"] == "text/plain; charset=utf-8"
    assert stored(kinds["metadata"]).headers["Content-Type"] == "application/json"
    for kind in ("conversion", "metadata"):
        assert warc.is_record_id(stored(kinds[kind]).headers["WARC-Refers-To"])


def test_a_request_names_the_response_it_led_to() -> None:
    answer = response(Ids(1), b"x")
    asked = warc.request(
        exchange(), record_id=Ids(2)(), block=b"GET / HTTP/1.1\r\n\r\n", concurrent_to=answer.record_id
    )
    assert stored(asked).headers["WARC-Concurrent-To"] == answer.record_id


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("", None),
        ("length", "length"),
        ("idle", "time"),
        ("total", "time"),
        ("slow", "time"),
        ("disconnect", "disconnect"),
        ("framing", "unspecified"),
        ("something new", "unspecified"),
    ],
)
def test_why_a_body_is_incomplete_is_told_in_the_words_of_the_standard(reason: str, word: str | None) -> None:
    assert stored(response(Ids(), b"x", truncated=reason)).headers.get("WARC-Truncated") == word


# -- the head ------------------------------------------------------------------------------------------------------

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

HEADS = {
    "plain": HEAD,
    "chunked": CHUNKED,
    "chunked, odd case and space": b"HTTP/1.1 200 OK\r\ntransfer-ENCODING : gzip, chunked\r\nA: b\r\n\r\n",
    "chunked beside a length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunked twice": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "already renamed by the server": b"HTTP/1.1 200 OK\r\nX-Crawl-Transfer-Encoding: x\r\nTransfer-Encoding: y\r\n\r\n",
    "only LF": b"HTTP/1.1 200 OK\nContent-Type: text/html\n\n",
    "LF here and there": b"HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\n",
    "LF at the end": b"HTTP/1.1 200 OK\r\nA: b\r\n\n",
    "LF and chunked": b"HTTP/1.0 200 OK\nTransfer-Encoding: chunked\n\r\n",
    "binary": b"HTTP/1.1 200 \xff\xfe\r\nX-Bin: \x80\x01\x00\xff\r\n\r\n",
    "no fields": b"HTTP/1.1 204 No Content\r\n\r\n",
    "lines that are no fields": b"HTTP/1.1 200 OK\r\nnot a field\r\n: empty name\r\n folded\r\n\r\n",
}
BODIES = {
    "html": b"<html>\r\n\r\n</html>",
    "hex digits first": b"abc\r\nhello world, this is text\r\n",
    "zero chunk first": b"0\r\n\r\nwhat follows",
    "a whole chunked body": b"5\r\nhello\r\n0\r\n\r\n",
    "none": b"",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_readers_that_remove_transfer_codings_find_the_payload_unharmed(head: bytes, body: bytes) -> None:
    data = gzip.compress(written(response(Ids(), body, head=head)))
    record = next(iter(ArchiveIterator(io.BytesIO(data), auto_decode="transfer")))
    assert record.reader.read() == body
    record = next(iter(ArchiveIterator(io.BytesIO(data))))
    assert record.verify_payload_digest()
    loaded = next(WarcioIterator(io.BytesIO(data), check_digests="raise"))
    assert loaded.content_stream().read() == body


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_the_head_as_received_can_be_had_back(head: bytes) -> None:
    record = stored(response(Ids(), b"\n\nbody\r\n\r\n", head=head))
    assert warc.wire_head(record) == head
    assert record.payload == b"\n\nbody\r\n\r\n"


@given(
    lines=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    b"A: b",
                    b"Transfer-Encoding: x",
                    b"content-length: 3",
                    b"X-Crawl-Content-Length: 9",
                    b" c",
                    b"\rq",
                ]
            ),
            st.sampled_from([b"\r\n", b"\n"]),
        ),
        max_size=8,
    ),
    end=st.sampled_from([b"\r\n", b"\n"]),
)
def test_any_head_can_be_had_back(lines: list[tuple[bytes, bytes]], end: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + b"".join(line + mark for line, mark in lines) + end
    record = stored(response(Ids(), b"body", head=head))
    assert warc.wire_head(record) == head
    assert record.payload == b"body"


def test_a_length_without_transfer_coding_stays_as_it_is() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
    assert warc.stored_head(head) == (head, ())


@pytest.mark.parametrize(
    "head",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\nA: b\r\n\r\n", b"HTTP/1.1 200 OK\n\nA: b\n\n"],
)
def test_a_head_that_is_not_one_header_block_is_refused(head: bytes) -> None:
    with pytest.raises(ValueError, match="blank line"):
        warc.stored_head(head)


# -- values --------------------------------------------------------------------------------------------------------


def test_a_record_id_is_a_version_4_uuid_of_the_random_bytes() -> None:
    assert warc.record_id(bytes(16)) == "<urn:uuid:00000000-0000-4000-8000-000000000000>"
    assert warc.record_id(b"\xff" * 16) == "<urn:uuid:ffffffff-ffff-4fff-bfff-ffffffffffff>"
    with pytest.raises(ValueError, match="16"):
        warc.record_id(b"short")


@given(st.binary(min_size=16, max_size=16))
def test_every_record_id_is_recognized(token: bytes) -> None:
    assert warc.is_record_id(warc.record_id(token))


@pytest.mark.parametrize(
    ("wall_s", "date", "timestamp"),
    [
        (0.0, "1970-01-01T00:00:00.000Z", "19700101000000"),
        (1_790_000_000.9996, "2026-09-21T14:13:20.999Z", "20260921141320"),
        (1_790_000_000, "2026-09-21T14:13:20.000Z", "20260921141320"),
    ],
)
def test_dates_are_utc_with_milliseconds(wall_s: float, date: str, timestamp: str) -> None:
    assert warc.date(wall_s) == date
    assert warc.timestamp(wall_s) == warc.timestamp_of(date) == timestamp


@pytest.mark.parametrize("url", ["http://example.com/\r\nWARC-Type: warcinfo", "http://example.com/\x00"])
def test_nothing_can_end_a_header_line_early(url: str) -> None:
    with pytest.raises(ValueError, match="control character"):
        response(Ids(), b"x", url=url)


@pytest.mark.parametrize(
    ("head", "mime", "status"),
    [
        (HEAD, "text/html", "200"),
        (b"HTTP/1.1 404 Not Found\r\nCONTENT-TYPE:Image/PNG;x\r\n\r\n", "image/png", "404"),
        (b"HTTP/1.1 301\r\n\r\n", "unk", "301"),
        (b"HTTP/1.1 9999 x\r\n\r\n", "unk", "-"),
        (b"nonsense\r\n\r\n", "unk", "-"),
    ],
)
def test_the_index_knows_media_type_and_status(head: bytes, mime: str, status: str) -> None:
    facts = warc.index_facts("http://example.com/", "20260101000000", head)
    assert (facts.mime, facts.status) == (mime, status)


# -- reading back --------------------------------------------------------------------------------------------------


def test_a_record_that_is_not_exactly_one_is_refused() -> None:
    whole = written(response(Ids(), b"<p>hello"))
    for wrong in (
        b"",
        whole[1:],
        whole[:-1],
        whole + b"x",
        whole + whole,
        whole.replace(b"WARC/1.1", b"WARC/9.9"),
        whole.replace(b"Content-Length: ", b"Content-Length: 1"),
        whole.replace(b"Content-Length: ", b"Content-Length: -"),
        whole.replace(b"Content-Length", b"Content-Longth"),
        whole.replace(b"urn:uuid:", b"urn:uuid-"),
        whole.replace(b"WARC-Type", b"WARC-Tape"),
        whole.replace(b"WARC-Type: ", b"WARC-Type  "),
        whole.replace(b"WARC-Type: ", b"WARC-Type: \xff"),
    ):
        with pytest.raises(ValueError, match=r".+"):
            warc.read_record(wrong)


def test_a_block_that_does_not_fit_its_digest_is_named() -> None:
    data = written(every_kind(Ids())["metadata"])
    problem = warc.digest_problem(warc.read_record(data.replace(b"links", b"lunks")))
    assert problem == "the block does not have the digest that its header states"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b"<p>hello", b"<p>hallo", "payload"),
        (b"WARC-Payload-Digest: sha1:", b"WARC-Payload-Digest: sha1:A", "payload"),
        (b"SHA256: ", b"SHA256: 0", "sha256"),
    ],
)
def test_a_digest_that_does_not_fit_is_named(old: bytes, new: bytes, what: str) -> None:
    record = warc.read_record(written(response(Ids(), b"<p>hello")).replace(old, new))
    problem = warc.digest_problem(record)
    assert problem is not None
    assert what in problem
