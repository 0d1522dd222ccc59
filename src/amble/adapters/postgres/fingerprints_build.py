"""Entering in the index of near-duplicates what was published before there was one, or moved here; resumable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from amble.adapters.postgres.connection import connect
from amble.adapters.postgres.fingerprints import keys_by_server
from amble.adapters.postgres.rows import columns
from amble.adapters.postgres.statements import NEAR
from amble.domain.errors import StoreBroken

# Documents entered at once.
PIECE: Final = 2_000
Row = tuple[int, int, int, int]


async def build_index(dsns: Sequence[str], index_at: Sequence[str]) -> int:
    """Enter the documents of the servers `dsns` that are not entered yet; how many. Agents may run meanwhile."""
    total = 0
    async with AsyncExitStack() as stack:
        index: dict[int, Any] = {}
        for dsn in dsns:
            source = await connect(dsn, name="amble store init")
            stack.push_async_callback(source.close)
            # Long stretches of URLs may hold nothing that was published.
            await source.execute("SET statement_timeout = 0")
            if await source.fetchval(NEAR["built_to"]) is None:
                continue
            for number, place in enumerate(index_at):
                if number not in index:
                    index[number] = await connect(place, name="amble store init")
                    stack.push_async_callback(index[number].close)
            total += await fill(source, index)
    return total


async def fill(source: Any, index: Mapping[int, Any]) -> int:
    """Enter what the database `source` has published at the servers `index`; goes on where it was stopped."""
    entered = 0
    while (mark := await source.fetchval(NEAR["built_to"])) is not None:
        rows = [tuple(row) for row in await source.fetch(NEAR["unentered"], int(mark), PIECE)]
        for server, entries in _entries(rows, sorted(index)).items():
            await index[server].execute(NEAR["fill"], *columns(entries))
        # Entered before it is marked: what is repeated changes nothing.
        if rows:
            await source.execute(NEAR["mark"], [row[0] for row in rows])
            await source.execute(NEAR["build_on"], str(rows[-1][0]).encode())
        else:
            await source.execute(NEAR["built"])
        entered += len(rows)
    return entered


async def compare(source: Any) -> int:
    """Hold the index of a database that has all of it against what it has published; how many documents that is.

    Raises StoreBroken.
    """
    last, count = 0, 0
    while rows := [tuple(row) for row in await source.fetch(NEAR["unentered"], last, PIECE)]:
        found = {
            row[0]: (row[1], row[2]) for row in await source.fetch(NEAR["entered"], [row[0] for row in rows])
        }
        for url_id, fingerprint, _, _ in rows:
            keys = keys_by_server(fingerprint, [0])[0]
            if found.get(url_id) != (fingerprint, keys):
                raise StoreBroken(f"table near: document {url_id} is not in it as it was published")
        last, count = rows[-1][0], count + len(rows)
    return count


def _entries(rows: Sequence[Any], servers: list[int]) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    for url_id, fingerprint, attempt, partition in rows:
        for server, keys in keys_by_server(fingerprint, servers).items():
            found.setdefault(server, []).append((url_id, fingerprint, attempt, partition, keys))
    return found
