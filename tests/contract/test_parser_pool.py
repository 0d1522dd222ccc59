"""What every ParserPool promises: one outcome per task, in order, and one bad page costs nobody else anything."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256

import pytest
import pytest_asyncio

from amble.adapters.sandbox.pool import SandboxPool
from amble.domain.attempt import UrlKind
from amble.domain.errors import SandboxUnavailable
from amble.domain.policy import ParseLimits
from amble.formats.registry import EXTRACTION_GENERATION, ExtractionSettings, Registry
from amble.ports import Parsed, ParseFailure, ParserPool, ParseTask
from tests.formats.pages import RICH, answer

URL = "https://www.example.com/dir/page.html?x=1"


class Body:
    """A body in memory, given out in pieces."""

    def __init__(self, data: bytes, piece_bytes: int = 64 * 1024) -> None:
        self._data = data
        self._piece_bytes = piece_bytes

    @property
    def length(self) -> int:
        return len(self._data)

    @property
    def digest(self) -> bytes:
        return sha256(self._data).digest()

    def pieces(self) -> Iterator[bytes]:
        for start in range(0, len(self._data), self._piece_bytes):
            yield self._data[start : start + self._piece_bytes]

    def close(self) -> None:
        pass


def task(
    body: bytes | str,
    *headers: str,
    kind: int = 0,
    status: int = 200,
    content_type: str = "text/html; charset=utf-8",
) -> ParseTask:
    question = answer(body, *headers, status=status, content_type=content_type)
    return ParseTask(url=URL, kind=kind, status=status, head=question.head, body=Body(question.body))


def parsed(outcome: Parsed | ParseFailure) -> Parsed:
    assert isinstance(outcome, Parsed), outcome
    return outcome


class ParserPoolContract:
    """The fixture `pool` differs per adapter, the promise does not."""

    async def test_a_page_comes_back_as_its_manifest_and_texts(self, pool: ParserPool) -> None:
        outcome = parsed(await pool.parse(task(RICH)))
        expected = Registry(ParseLimits(), ExtractionSettings()).read(answer(RICH))
        assert (outcome.manifest, outcome.text, outcome.main) == tuple(expected)

    async def test_the_pool_names_the_generation_of_its_manifests(self, pool: ParserPool) -> None:
        outcome = parsed(await pool.parse(task("<p>x")))
        assert outcome.manifest.extraction_generation == pool.generation == EXTRACTION_GENERATION

    async def test_an_empty_body_and_a_redirect_have_manifests(self, pool: ParserPool) -> None:
        assert parsed(await pool.parse(task(""))).manifest.content_kind == "empty"
        moved = parsed(await pool.parse(task("", "Location: /to", status=301)))
        assert [link.url for link in moved.manifest.links] == ["https://www.example.com/to"]

    async def test_robots_rules_come_back(self, pool: ParserPool) -> None:
        rules = parsed(
            await pool.parse(task("User-agent: *\nDisallow: /x", kind=UrlKind.ROBOTS))
        ).manifest.robots
        assert rules is not None
        assert rules.rules == ((False, "/x"),)

    async def test_a_body_of_many_pieces_arrives_whole(self, pool: ParserPool) -> None:
        text = "word " * 1_000_000
        outcome = parsed(await pool.parse(task(text, content_type="text/plain")))
        assert outcome.manifest.decoded_bytes == len(text)

    async def test_nothing_of_one_body_shows_in_the_next(self, pool: ParserPool) -> None:
        await pool.parse(task("<p>" + "secret " * 10_000))
        outcome = parsed(await pool.parse(task("<p>short")))
        assert outcome.text == b"short"

    async def test_more_tasks_than_children_all_have_their_own_outcome(self, pool: ParserPool) -> None:
        outcomes = await asyncio.gather(*(pool.parse(task(f"<title>{i}</title>")) for i in range(40)))
        assert [parsed(outcome).manifest.title for outcome in outcomes] == [str(i) for i in range(40)]

    async def test_an_undecodable_body_is_a_failure_with_its_reason(self, pool: ParserPool) -> None:
        outcome = await pool.parse(task("not gzip at all", "Content-Encoding: gzip"))
        assert isinstance(outcome, ParseFailure)
        assert outcome.reason == "decode"

    async def test_a_caller_that_goes_away_spoils_nothing(self, pool: ParserPool) -> None:
        going = [asyncio.create_task(pool.parse(task("<p>gone " * 20_000))) for _ in range(6)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for caller in going:
            caller.cancel()
        results = await asyncio.gather(*going, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert parsed(await pool.parse(task("<p>here"))).text == b"here"

    async def test_a_bomb_costs_its_cap_and_is_read(self, pool: ParserPool) -> None:
        outcome = parsed(
            await pool.parse(task(gzip.compress(b"<p>" + b"0" * 20_000_000), "Content-Encoding: gzip"))
        )
        assert outcome.manifest.decoded_bytes == ParseLimits().decoded_bytes_max


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox_pool() -> AsyncIterator[SandboxPool]:
    pool = await SandboxPool.open(limits=ParseLimits(), size=2)
    yield pool
    await pool.close()


@pytest.mark.asyncio(loop_scope="module")
class TestSandboxPool(ParserPoolContract):
    @pytest.fixture
    def pool(self, sandbox_pool: SandboxPool) -> SandboxPool:
        return sandbox_pool


async def test_a_closed_pool_says_so() -> None:
    pool = await SandboxPool.open(limits=ParseLimits(), size=1)
    await pool.close()
    with pytest.raises(SandboxUnavailable):
        await pool.parse(task("<p>x"))
