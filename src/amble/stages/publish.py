"""The publisher: document versions in publication order to a sink, each exactly once by the sink's own position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from amble.domain.document import Document, WarcPlace
from amble.domain.errors import ArchiveBroken, SegmentMissing
from amble.domain.fetched import BodyRef
from amble.domain.manifest import MAIN_IS_TEXT
from amble.domain.record import StoredRecord
from amble.domain.report import PublicationLine
from amble.formats import manifest_json

BATCH = 100


class Publications(Protocol):
    """The documents of a crawl in order."""

    def publications(
        self, *, after: int = 0, limit: int = 100, partition: int | None = None
    ) -> Sequence[PublicationLine]:
        """The next ones of a partition after sequence number `after`."""
        ...


class Records(Protocol):
    """The archive, read by reference from a thread that may block."""

    def read(self, ref: BodyRef) -> StoredRecord:
        """The record at `ref`. Raises ArchiveBroken."""
        ...

    def file_name(self, serial: int) -> str:
        """The file of a segment."""
        ...


class DocumentSink(Protocol):
    """Where documents go. It knows by itself how far it has come."""

    def position(self, partition: int = 0) -> int:
        """The highest sequence number of a partition that it holds."""
        ...

    def write(self, documents: Iterable[tuple[int, Document]], partition: int = 0) -> int:
        """Take documents of a partition in ascending order; durable on return. Repeats are skipped."""
        ...


@dataclass(slots=True, kw_only=True)
class Publisher:
    """The documents of one partition to one sink. Several publishers may share a sink, one after the other.

    Blocking on purpose: an export is one thread, a running crawl calls it from a worker thread.
    """

    publications: Publications
    records: Records
    sink: DocumentSink
    partition: int = 0
    written: int = 0
    damaged: list[str] = field(default_factory=list)
    _missing: Counter[str] = field(default_factory=Counter)
    _seen: int = 0

    @property
    def skipped(self) -> list[str]:
        """What was left out and why: a line for each document, and one for each segment that is gone."""
        gone = [f"{number} documents: {what}" for what, number in sorted(self._missing.items())]
        return [*self.damaged, *gone]

    def once(self) -> int:
        """One batch; how many publications were looked at.

        A document whose records the archive has lost is left out and told in `skipped`: one damaged record must not
        keep all that follow from being published.
        """
        after = max(self._seen, self.sink.position(self.partition))
        lines = self.publications.publications(after=after, limit=BATCH, partition=self.partition)
        if lines:
            self.sink.write(self._documents(lines), self.partition)
            self._seen = lines[-1].seq
        return len(lines)

    def run(self) -> int:
        """Until there is nothing new. Returns how many documents were written."""
        while self.once():
            pass
        return self.written

    def _documents(self, lines: Sequence[PublicationLine]) -> Iterator[tuple[int, Document]]:
        for line in lines:
            try:
                document = self.document(line)
            except SegmentMissing as gone:
                self._missing[str(gone)] += 1
                continue
            except ArchiveBroken as broken:
                self.damaged.append(f"{line.url}: {broken}")
                continue
            self.written += 1
            yield line.seq, document

    def document(self, line: PublicationLine) -> Document:
        """One document from its records. Raises ArchiveBroken when one of them is gone."""
        stored = manifest_json.decode(self.records.read(line.manifest))
        text = ""
        if line.text is not None:
            record = self.records.read(line.text)
            if record.warc_type != "conversion":
                raise ArchiveBroken(f"{line.url}: record {line.text} is no text")
            text = record.block.decode("utf-8", "replace")
        fetched, manifest = line.fetched, stored.manifest
        place = None
        if fetched.ref is not None:
            name = self.records.file_name(fetched.ref.segment)
            place = WarcPlace(file=name, offset=fetched.ref.offset, length=fetched.ref.length)
        return Document(
            url=line.url,
            canonical=manifest.canonical or line.url,
            status=fetched.status,
            fetched_at=_rfc3339(line.fetched_ms),
            title=manifest.title,
            language=manifest.language,
            text=text,
            main_text=stored.main_text or (text if MAIN_IS_TEXT in manifest.notes else ""),
            content_type=fetched.content_type,
            digest=f"sha256:{fetched.digest.hex()}" if fetched.digest else "",
            fingerprint=f"{manifest.fingerprint:016x}",
            depth=line.depth,
            discovered_from=line.found_on or None,
            warc=place,
            crawl_generation=line.crawl_generation,
            extraction_generation=line.extraction_generation,
        )


def _rfc3339(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
