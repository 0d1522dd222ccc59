"""Exchanges to store: bodies in memory or made on the fly, and the records of a page as the line appends them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

from amble.domain.record import NewRecord
from amble.formats import warc

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nServer: test\r\n\r\n"
DATE_S = 1_790_000_000.25


class Body:
    """A payload that can be read again and again."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    def pieces(self) -> Iterator[bytes]:
        return iter(self._pieces)

    @property
    def length(self) -> int:
        return sum(map(len, self._pieces))

    @property
    def sha256(self) -> bytes:
        return hashlib.sha256(b"".join(self._pieces)).digest()


class Ids:
    """Record ids that are the same in every run."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def __call__(self) -> str:
        return warc.record_id(self._random.randbytes(16))


def exchange(
    url: str = "http://example.com/a", address: str = "127.0.0.1", date_s: float = DATE_S
) -> warc.Exchange:
    return warc.Exchange(url=url, address=address, date_s=date_s)


def response(
    ids: Ids,
    *pieces: bytes,
    url: str = "http://example.com/a",
    head: bytes = HEAD,
    truncated: str = "",
    packed: bool = False,
) -> NewRecord:
    body = Body(*pieces)
    return warc.response(
        exchange(url),
        record_id=ids(),
        head=head,
        body=body,
        body_bytes=body.length,
        sha256=body.sha256,
        truncated=truncated,
        packed=packed,
    )


def page(ids: Ids, number: int, body: bytes = b"") -> Sequence[NewRecord]:
    """Request and response of a page of its own."""
    url = f"http://example.com/page/{number}"
    answer = response(ids, body or b"<p>page %d</p>" % number * 50, url=url)
    asked = warc.request(
        exchange(url),
        record_id=ids(),
        block=b"GET /page/%d HTTP/1.1\r\nHost: example.com\r\n\r\n" % number,
        concurrent_to=answer.record_id,
    )
    return [asked, answer]
