"""The CDXJ index of a segment: a journal while the segment grows, a sorted file once it is sealed.

The journal is never synced. It is only written after the records it names are durable, so what is in it is true, and
what is missing from it is found by walking the segment from where it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from amble.adapters.archive.member import Damage, Member, walk
from amble.adapters.archive.names import Segment, replace_file
from amble.domain.record import IndexFacts, StoredRecord
from amble.formats import cdxj, warc

INDEXED_TYPES = ("response", "revisit")


def line_of(stored: StoredRecord, member: Member, file_name: str) -> bytes | None:
    """The index line of a stored record, or None for a type that is not indexed."""
    if stored.warc_type not in INDEXED_TYPES:
        return None
    time = warc.timestamp_of(stored.headers.get("WARC-Date", ""))
    facts = warc.index_facts(stored.headers.get("WARC-Target-URI", ""), time, stored.http_head)
    if stored.warc_type == "revisit":
        facts = IndexFacts(url=facts.url, timestamp=time, mime="warc/revisit", status=facts.status)
    return cdxj.index_line(
        facts,
        digest=stored.headers.get("WARC-Payload-Digest", ""),
        filename=file_name,
        offset=member.offset,
        length=member.length,
    )


def lines_from(file: int, start: int, file_name: str) -> Iterator[bytes]:
    """Index lines of the whole records from `start` on. Damage is passed over: the checker reports it."""
    for found in walk(file, start):
        if isinstance(found, Damage):
            continue
        try:
            line = line_of(warc.read_record(found.data), found, file_name)
        except ValueError:
            continue
        if line is not None:
            yield line


def write_index(segment: Segment, lines: list[bytes]) -> None:
    """Sort and write the index of a segment, durable but for the folder's own sync. Raises OSError."""
    replace_file(segment.index_path, b"".join(sorted(lines)))


def read_journal(path: Path, size: int) -> tuple[list[bytes], int]:
    """The journal's lines that can be believed, and the offset in the segment up to which it accounts for everything.

    A journal that a power cut spoilt ends at the first line that is not whole, or that does not follow on the one
    before, or that points beyond the segment's `size`.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    lines: list[bytes] = []
    end = 0
    for line in data.splitlines(keepends=True):
        try:
            entry = cdxj.parse_line(line)[2]
            offset, length = int(entry.offset), int(entry.length)
        except ValueError:
            break
        if offset < end or length <= 0 or offset + length > size:
            break
        lines.append(line)
        end = offset + length
    return lines, end
