"""The index of near-duplicates in a frontier file: its rows, older files, and what verify says of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from amble.adapters.sql import near
from amble.adapters.sql.check import SqliteCheck
from amble.adapters.sql.connection import open_reader, open_writer
from amble.adapters.sql.inline import InlineStore
from amble.adapters.sql.near import PART_BITS, PART_BYTES_MAX, NearIndex, entries
from amble.adapters.sql.sqlite import SqliteStore
from amble.domain.digest import coarse_keys
from tests.contract.frontier_rig import DELAY, HOUR, Rig, memory_folder, page

folder = memory_folder
TEXT = 0xF123_4567_89AB_CDEF
OTHER = 0x0EDC_BA98_7654_3210


@pytest.fixture
def index() -> NearIndex:
    return NearIndex(SqliteStore(":memory:").database)


@pytest_asyncio.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    rig = Rig(folder, "inline")
    await rig.open()
    await rig.take_over()
    yield rig
    await rig.close()


async def publish(rig: Rig, texts: dict[str, int], **facts: object) -> None:
    """Pages of one origin, carried to COMPLETE one after the other."""
    if not rig.rows("SELECT id FROM url"):
        await rig.ready(page("/"))
        await rig.carry(await rig.lease_one(), near=True)
    for path, text in texts.items():
        await rig.admit(page(path))
        rig.now += DELAY
        await rig.carry(await rig.lease_one(), **{"fingerprint": text, "near": True, **facts})


def problems(rig: Rig) -> list[str]:
    assert isinstance(rig.frontier, InlineStore)
    return list(SqliteCheck(rig.path, database=rig.frontier.store.database).problems())


# --- rows


def test_a_text_on_many_pages_is_kept_in_rows_of_bounded_length(index: NearIndex) -> None:
    count = 5 * PART_BYTES_MAX // 16 // 2
    index.file((TEXT, number) for number in range(1, count + 1))
    rows = index._execute("SELECT key, documents FROM near").fetchall()
    assert max(len(documents) for _, documents in rows) == PART_BYTES_MAX
    assert len(rows) == 4 * 3
    for key in coarse_keys(TEXT):
        filed = [entry for at, documents in rows if at >> PART_BITS == key for entry in entries(documents)]
        assert filed == [(TEXT, number) for number in range(1, count + 1)]
    assert index.enter(count + 1, TEXT ^ 1) == 1
    for number in range(1, count + 1):
        assert index.twin(TEXT) is not None
        index.leave(number, TEXT)
    assert index.twin(TEXT) is None
    assert index._execute("SELECT count(*) FROM near").fetchone() == (0,)


def test_a_document_is_added_to_the_last_part_of_its_keys(index: NearIndex) -> None:
    full = PART_BYTES_MAX // 16
    others = [TEXT ^ (0xFF << 20) ^ (number << 40) for number in range(full + 3)]
    index.file((other, number) for number, other in enumerate(others, 1))
    index.leave(1, others[0])
    assert index.enter(10_000, TEXT) is None
    (key, documents) = index._execute(
        "SELECT key, documents FROM near WHERE key BETWEEN ?1 AND ?2 ORDER BY key DESC LIMIT 1",
        (coarse_keys(TEXT)[0] << PART_BITS, (coarse_keys(TEXT)[0] + 1 << PART_BITS) - 1),
    ).fetchone()
    assert key & (1 << PART_BITS) - 1 == 1
    assert list(entries(documents))[-1] == (TEXT, 10_000)
    assert index.twin(TEXT ^ 0b11) == 10_000


@pytest.mark.parametrize("text", [1, 1 << 63, (1 << 64) - 1, TEXT])
def test_a_document_that_leaves_leaves_nothing(index: NearIndex, text: int) -> None:
    assert index.enter(7, text) is None
    assert index.twin(text) == 7
    index.leave(7, text)
    assert index._execute("SELECT count(*) FROM near").fetchone() == (0,)


async def test_an_answer_is_read_through_a_connection_that_only_reads(rig: Rig) -> None:
    await publish(rig, {"/a": TEXT})
    reader = open_reader(rig.path)
    assert NearIndex(reader).twin_url(TEXT ^ 0b101) == "https://a.example/a"
    assert NearIndex(reader).twin_url(OTHER) is None
    reader.close()


# --- files of an older amble


def make_old(rig: Rig) -> None:
    """As the file was before there was an index."""
    database = open_writer(rig.path)
    for statement in (
        "DROP TABLE near",
        "ALTER TABLE url DROP COLUMN indexed",
        "DELETE FROM migration WHERE version = 2",
    ):
        database.execute(statement)
    database.close()


async def test_an_older_file_gets_an_index_of_what_it_has_published(rig: Rig) -> None:
    await publish(rig, {"/a": TEXT, "/b": TEXT ^ 1, "/c": OTHER}, near=False)
    await publish(rig, {"/hidden": 0xABCD << 48}, publish=False, withheld="noindex")
    await publish(rig, {"/short": 0})
    await rig.close()
    make_old(rig)
    with SqliteCheck(rig.path) as check:
        assert list(check.problems()) == [], "a file without an index is whole all the same"
    await rig.open()
    assert rig.rows("SELECT path FROM url WHERE indexed = 1 ORDER BY path") == [("/a",), ("/b",), ("/c",)]
    assert problems(rig) == []
    await rig.take_over()
    await publish(rig, {"/late": OTHER ^ 0b11, "/seen": 0xABCD << 48})
    assert rig.rows("SELECT path, reason FROM url WHERE path IN ('/late', '/seen') ORDER BY path") == [
        ("/late", "near_duplicate"),
        ("/seen", None),
    ]
    assert problems(rig) == []


async def test_an_index_that_was_made_halfway_is_made_to_its_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {f"/{number}": (number + 1) * 0x0101_0101_0101 for number in range(7)}
    await publish(rig, texts, near=False)
    await rig.close()
    make_old(rig)
    monkeypatch.setattr(near, "BUILD_AT_ONCE", 3)
    once = NearIndex._build_on
    done: list[int] = []

    def dies(index: NearIndex, position: int) -> int | None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(position)
        return once(index, position)

    monkeypatch.setattr(NearIndex, "_build_on", dies)
    with pytest.raises(KeyboardInterrupt):
        SqliteStore(rig.path)
    with SqliteCheck(rig.path) as check:
        assert list(check.problems()) == [], "it is not looked at before it is whole"
    monkeypatch.setattr(NearIndex, "_build_on", once)
    await rig.open()
    assert len(rig.rows("SELECT id FROM url WHERE indexed = 1")) == 7
    assert problems(rig) == []


# --- verify


async def test_a_sound_index_is_not_complained_about(rig: Rig) -> None:
    await publish(rig, {"/a": TEXT, "/b": TEXT ^ 1, "/c": OTHER})
    await publish(rig, {"/d": TEXT, "/e": 1 << 63}, near=False)
    assert problems(rig) == []


BROKEN: dict[str, tuple[str, str]] = {
    "no row": ("DELETE FROM near WHERE key >> 40 = 2", "/a is 0 times under a key of its text instead of once"),
    "twice": ("UPDATE near SET documents = documents || documents", "/a is 2 times under a key of its text"),
    "a stray": (
        "UPDATE url SET indexed = 0 WHERE path = '/a'",
        "/a is in the index of near-duplicates under a text that is not its own",
    ),
    "another text": (
        "UPDATE url SET fingerprint = fingerprint + 1 WHERE path = '/a'",
        "/a is in the index of near-duplicates under a text that is not its own",
    ),
    "unpublished": (
        "DELETE FROM publication",
        "/a is in the index of near-duplicates though it is not published",
    ),
    "not looked at": (
        "UPDATE url SET indexed = NULL WHERE path = '/a'",
        "/a is published, but nobody has looked whether it is a near-duplicate",
    ),
    "a lost twin": (
        "UPDATE url SET fingerprint = fingerprint + 64 WHERE path = '/b' OR path = '/a'",
        "/b is withheld as a near-duplicate, but no published document is near it "
        "(nearly the same text as https://a.example/a)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
async def test_what_is_wrong_with_an_index_is_named(rig: Rig, case: str) -> None:
    await publish(rig, {"/a": 0x0F0F_0000_0000_0000, "/b": 0x0F0F_0000_0000_0007})
    assert problems(rig) == []
    statement, complaint = BROKEN[case]
    statement = statement.replace("documents || documents", "CAST(documents || documents AS BLOB)")
    assert isinstance(rig.frontier, InlineStore)
    rig.frontier.store.database.execute(statement)
    assert any(complaint in problem for problem in problems(rig)), problems(rig)


async def test_a_twin_that_has_become_another_text_is_no_problem(rig: Rig) -> None:
    await publish(rig, {"/a": TEXT}, revisit_ms=HOUR)
    await publish(rig, {"/b": TEXT})
    rig.now += HOUR
    await rig.carry(await rig.lease_one(), fingerprint=OTHER, near=True)
    assert rig.rows("SELECT path, reason FROM url WHERE path IN ('/a', '/b') ORDER BY path") == [
        ("/a", None),
        ("/b", "near_duplicate"),
    ]
    assert problems(rig) == []


async def test_a_url_that_comes_to_be_published_whatever_it_repeats_leaves_the_index(rig: Rig) -> None:
    await publish(rig, {"/a": TEXT}, revisit_ms=HOUR)
    rig.now += HOUR
    await rig.carry(await rig.lease_one(), fingerprint=TEXT, near=False)
    assert rig.rows("SELECT indexed FROM url WHERE path = '/a'") == [(0,)]
    assert problems(rig) == []
    await publish(rig, {"/b": TEXT})
    assert rig.rows("SELECT indexed FROM url WHERE path = '/b'") == [(1,)]
