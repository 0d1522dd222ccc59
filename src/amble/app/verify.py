"""Checks a crawl as a whole: frontier against archive, links against the frontier (DESIGN section 3).

Each table and each file is checked by its own adapter; here is what only both together can tell: that every reference
leads to the record it names, that bodies have the digest that was committed, and that no link was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Protocol

from amble.domain.attempt import Edge, UrlKind
from amble.domain.decision import Rejected
from amble.domain.errors import ArchiveBroken, ArchiveUnavailable, SegmentMissing
from amble.domain.fetched import BodyRef
from amble.domain.manifest import NOFOLLOW, PAGE_NOFOLLOW, Link, ParseManifest
from amble.domain.record import StoredRecord
from amble.domain.report import Capture
from amble.formats import manifest_json

BATCH = 500
# Pages of a site link to the same few pages again and again: those are looked up once.
REMEMBERED_MAX = 200_000


class Captures(Protocol):
    """What a frontier file says about its fetches."""

    def captures(self, *, after: tuple[int, int], limit: int) -> Sequence[Capture]:
        """Fetches with an answer, by (url_id, attempt), after that key."""
        ...

    def is_known(self, url: str) -> bool:
        """Whether a canonical URL is in the frontier."""
        ...

    def was_over_budget(self) -> bool:
        """Whether any origin ever used up its discovery budget."""
        ...


Read = Callable[[BodyRef], StoredRecord]
Known = Callable[[str], bool]
Judge = Callable[[str, Link, Capture], Rejected | None]


def check_captures(captures: Captures, read: Read, judge: Judge) -> Iterator[str]:
    """Every problem between frontier and archive, readable."""
    after, is_known = (-1, -1), lru_cache(REMEMBERED_MAX)(captures.is_known)
    missing: Counter[str] = Counter()
    while batch := captures.captures(after=after, limit=BATCH):
        for capture in batch:
            try:
                yield from _check(capture, captures, is_known, read, judge)
            except SegmentMissing as gone:
                missing[str(gone)] += 1
        after = (batch[-1].url_id, batch[-1].attempt)
    for gone_, number in sorted(missing.items()):
        yield f"{gone_}, and {number} fetches refer to it; bring the file back from a copy"


def _check(capture: Capture, captures: Captures, is_known: Known, read: Read, judge: Judge) -> Iterator[str]:
    try:
        yield from _check_records(capture, read)
        if capture.manifest is not None:
            yield from _check_manifest(capture, captures, is_known, read, judge)
    except SegmentMissing:
        raise  # one word for all that refer to it
    except (ArchiveBroken, ArchiveUnavailable) as broken:
        yield f"{capture.url}: {broken}"


def _check_records(capture: Capture, read: Read) -> Iterator[str]:
    fetched = capture.fetched
    if fetched.ref is not None:
        record = read(fetched.ref)
        if record.warc_type not in ("response", "revisit"):
            yield f"{capture.url}: its fetch refers to a {record.warc_type} record at {fetched.ref}"
        if capture.kind != UrlKind.ROBOTS and record.headers.get("WARC-Target-URI") != capture.url:
            yield f"{capture.url}: the record at {fetched.ref} is of {record.headers.get('WARC-Target-URI')}"
    if fetched.body_ref is not None and fetched.digest is not None:
        body = read(fetched.body_ref)
        if body.warc_type == "response" and sha256(body.payload).digest() != fetched.digest:
            yield f"{capture.url}: the bytes at {fetched.body_ref} do not have the digest that was recorded"
    if capture.text is not None and read(capture.text).warc_type != "conversion":
        yield f"{capture.url}: the record at {capture.text} is not its text"


def _check_manifest(
    capture: Capture, captures: Captures, is_known: Known, read: Read, judge: Judge
) -> Iterator[str]:
    assert capture.manifest is not None
    manifest = manifest_json.decode(read(capture.manifest)).manifest
    if manifest.url != capture.url:
        yield f"{capture.url}: the manifest at {capture.manifest} is of {manifest.url}"
    if len(manifest.links) != capture.links:
        yield f"{capture.url}: its manifest has {len(manifest.links)} links, its row says {capture.links}"
    for link in manifest.links[: capture.cursor]:
        if is_known(link.url) or _is_shut(link, manifest):
            continue
        if judge(link.url, link, capture) is None and not captures.was_over_budget():
            yield f"{capture.url}: its link {link.url} is lost: not admitted, not refused, behind the cursor"


def _is_shut(link: Link, manifest: ParseManifest) -> bool:
    if link.edge == Edge.REDIRECT:
        return False
    return bool(link.rel & NOFOLLOW or manifest.directives & PAGE_NOFOLLOW)
