"""The frontier contract, run by every way to reach the SQLite store and by the PostgreSQL store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.frontier_contract import (
    AdmissionContract,
    AdoptContract,
    BodyContract,
    CrossingContract,
    CursorContract,
    ExpiryContract,
    LeaseContract,
    NearDuplicateContract,
    OrderContract,
    ReserveContract,
    ResultContract,
    TakeoverContract,
)
from tests.contract.frontier_rig import MakeRig, Rig, memory_folder
from tests.contract.postgres_rig import PostgresRig, make_frontier
from tests.support.postgres import FreshDatabase

folder = memory_folder


@pytest.fixture(params=["inline-apsw", "inline-stdlib", "wire-apsw", "postgres"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def make_rig(way: str, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[MakeRig]:
    rigs: list[Rig] = []
    fresh: FreshDatabase | None = None
    if way == "postgres":
        fresh = request.getfixturevalue("fresh_database")

    async def make(**options: object) -> Rig:
        rig = Rig(folder, way, **options) if fresh is None else PostgresRig(fresh(make_frontier), **options)
        await rig.open()
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        rig.audit()
        await rig.close()


@pytest_asyncio.fixture
async def rig(make_rig: MakeRig) -> Rig:
    made: Rig = await make_rig()
    return made


class TestAdmission(AdmissionContract):
    pass


class TestCursor(CursorContract):
    pass


class TestLease(LeaseContract):
    pass


class TestReserve(ReserveContract):
    pass


class TestResult(ResultContract):
    pass


class TestBody(BodyContract):
    pass


class TestNearDuplicates(NearDuplicateContract):
    pass


class TestExpiry(ExpiryContract):
    pass


class TestTakeover(TakeoverContract):
    pass


class TestAdopt(AdoptContract):
    pass


class TestCrossing(CrossingContract):
    pass


class TestOrders(OrderContract):
    pass
