"""The JSON lines sink: every document exactly once, in order, over crashes, repeats and full disks."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from amble.adapters.sinks.jsonl import JsonlSink
from amble.domain.document import Document, WarcPlace
from amble.domain.errors import SinkBroken, SinkUnavailable


def document(number: int) -> Document:
    return Document(
        url=f"http://example.com/{number}",
        canonical=f"http://example.com/{number}",
        status=200,
        fetched_at="2026-01-02T03:04:05.678Z",
        title="Grüße\nund \u2028 mehr",
        language="de",
        text="Text " * 20,
        main_text="Text",
        content_type="text/html",
        digest="sha256:00",
        fingerprint="00000000000000ff",
        depth=1,
        discovered_from=None,
        warc=WarcPlace(file="x.warc.gz", offset=1, length=2),
        crawl_generation=1,
        extraction_generation=1,
    )


def pairs(*numbers: int) -> list[tuple[int, Document]]:
    return [(number, document(number)) for number in numbers]


def numbers_in(path: Path) -> list[int]:
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    return [int(msgspec.json.decode(line, type=Document).url.rpartition("/")[2]) for line in lines]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "export" / "documents.jsonl"


def test_documents_come_out_as_they_went_in_one_a_line(path: Path) -> None:
    sink = JsonlSink(path)
    assert sink.position() == 0
    assert sink.write(pairs(1, 2, 5)) == 5
    sink.close()
    lines = path.read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=Document) for line in lines] == [document(n) for n in (1, 2, 5)]


def test_the_position_and_the_lines_survive_closing(path: Path) -> None:
    first = JsonlSink(path)
    first.write(pairs(1, 2))
    first.close()
    again = JsonlSink(path)
    assert again.position() == 2
    again.write(pairs(3))
    again.close()
    assert numbers_in(path) == [1, 2, 3]


def test_a_repeat_is_skipped(path: Path) -> None:
    sink = JsonlSink(path)
    sink.write(pairs(1, 2, 3))
    assert sink.write(pairs(2, 3)) == 3
    assert sink.write(pairs(1, 2, 3, 4)) == 4
    assert sink.write([]) == 4
    sink.close()
    assert numbers_in(path) == [1, 2, 3, 4]


@pytest.mark.parametrize("order", [(2, 1), (1, 1), (1, 3, 2)])
def test_documents_out_of_order_are_refused(path: Path, order: tuple[int, ...]) -> None:
    sink = JsonlSink(path)
    with pytest.raises(SinkBroken, match="came after"):
        sink.write(pairs(*order))
    assert sink.position() == 0
    sink.close()
    assert numbers_in(path) == []


def test_a_crash_between_lines_and_mark_leaves_no_document_twice(path: Path) -> None:
    sink = JsonlSink(path)
    sink.write(pairs(1, 2))
    mark = path.with_name("documents.jsonl.position").read_bytes()
    sink.write(pairs(3, 4))
    sink.close()
    path.with_name("documents.jsonl.position").write_bytes(mark)
    again = JsonlSink(path)
    assert again.position() == 2
    again.write(pairs(3))
    again.close()
    assert numbers_in(path) == [1, 2, 3]


def test_a_tail_torn_anywhere_is_cut(path: Path, tmp_path: Path) -> None:
    sink = JsonlSink(path)
    sink.write(pairs(1, 2))
    sink.close()
    line = msgspec.json.encode(document(3)) + b"\n"
    for size in range(0, len(line) + 1, 37):
        copy = tmp_path / f"{size}"
        shutil.copytree(path.parent, copy)
        with (copy / path.name).open("ab") as file:
            file.write(line[:size])
        torn = JsonlSink(copy / path.name)
        assert torn.position() == 2
        assert numbers_in(copy / path.name) == [1, 2]
        torn.write(pairs(3))
        torn.close()
        assert numbers_in(copy / path.name) == [1, 2, 3]


def test_lines_that_are_gone_are_noticed(path: Path) -> None:
    sink = JsonlSink(path)
    sink.write(pairs(1, 2))
    sink.close()
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(SinkBroken, match="1 bytes that were written are gone"):
        JsonlSink(path)


@pytest.mark.parametrize("mark", [b"", b"{}", b"[1,2]", b'{"sequence":1,"by'])
def test_a_damaged_mark_is_noticed(path: Path, mark: bytes) -> None:
    sink = JsonlSink(path)
    sink.write(pairs(1))
    sink.close()
    path.with_name("documents.jsonl.position").write_bytes(mark)
    with pytest.raises(SinkBroken, match="damaged"):
        JsonlSink(path)


def test_a_file_of_somebody_else_is_not_overwritten(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("precious\n")
    with pytest.raises(SinkBroken, match="not empty"):
        JsonlSink(path)
    assert path.read_text() == "precious\n"


def test_a_file_with_documents_of_another_crawl_is_not_continued(path: Path) -> None:
    """Both number their publications from 1: what the second one holds would pass for repeats."""
    sink = JsonlSink(path, crawl="one")
    sink.write(pairs(1, 2, 3))
    sink.close()
    with pytest.raises(SinkBroken, match="documents of another crawl"):
        JsonlSink(path, crawl="two")
    sink = JsonlSink(path, crawl="one")
    assert sink.write(pairs(3, 4)) == 4
    sink.close()
    assert numbers_in(path) == [1, 2, 3, 4]


def test_an_empty_file_belongs_to_the_first_crawl_that_writes_to_it(path: Path) -> None:
    JsonlSink(path, crawl="one").close()
    sink = JsonlSink(path, crawl="two")
    sink.write(pairs(1))
    sink.close()
    with pytest.raises(SinkBroken):
        JsonlSink(path, crawl="one")


def test_a_second_sink_on_the_same_file_is_refused(path: Path) -> None:
    sink = JsonlSink(path)
    with pytest.raises(SinkUnavailable, match="another process"):
        JsonlSink(path)
    sink.close()
    JsonlSink(path).close()


def test_a_closed_sink_says_so(path: Path) -> None:
    sink = JsonlSink(path)
    sink.close()
    sink.close()
    with pytest.raises(SinkUnavailable, match="closed"):
        sink.write(pairs(1))


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SinkUnavailable):
        JsonlSink(tmp_path / "file" / "documents.jsonl")


@pytest.fixture
def no_growth() -> Iterator[None]:
    """From here to the end of the test, files may not grow beyond what one document needs."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("no_growth")
def test_a_write_that_fails_counts_nothing_and_may_be_repeated(path: Path) -> None:
    sink = JsonlSink(path)
    sink.write(pairs(1))
    with pytest.raises(SinkUnavailable):
        sink.write(pairs(2, 3, 4))
    assert sink.position() == 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert sink.write(pairs(2, 3, 4)) == 4
    sink.close()
    assert numbers_in(path) == [1, 2, 3, 4]


def test_a_mark_that_became_durable_although_the_write_failed_is_believed(path: Path) -> None:
    sink = JsonlSink(path)
    sink.write(pairs(1))
    state = sink.__dict__
    before = state["_mark"]
    sink.write(pairs(2, 3))
    # As after a failed sync of the folder: the mark was replaced, and the caller was told of a failure.
    state["_mark"], state["_doubtful"] = before, True
    assert sink.write(pairs(2)) == 3
    assert sink.write(pairs(4)) == 4
    sink.close()
    assert numbers_in(path) == [1, 2, 3, 4]


def test_each_partition_counts_by_itself_over_restarts(path: Path) -> None:
    sink = JsonlSink(path, crawl="fleet")
    sink.write(pairs(1, 2), partition=3)
    sink.write(pairs(1))
    sink.close()
    again = JsonlSink(path, crawl="fleet")
    assert [again.position(number) for number in (0, 3, 5)] == [1, 2, 0]
    again.write(pairs(1, 2, 7), partition=3)
    again.write(pairs(1, 4), partition=5)
    again.close()
    assert numbers_in(path) == [1, 2, 1, 7, 1, 4]


def test_a_file_with_documents_of_a_partition_is_not_continued_by_another_crawl(path: Path) -> None:
    sink = JsonlSink(path, crawl="one")
    sink.write(pairs(1), partition=2)
    sink.close()
    with pytest.raises(SinkBroken, match="another crawl"):
        JsonlSink(path, crawl="two")
