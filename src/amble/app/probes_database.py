"""The composition root of `amble doctor` for databases: whether each server of `store.url` can carry a fleet.

Looks only; nothing is written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Final

import asyncpg

from amble.adapters.postgres.connection import connect, describe
from amble.adapters.postgres.migrations import check
from amble.adapters.postgres.placement import check_server, servers_of
from amble.app.findings import Finding, good, note, problem
from amble.domain.errors import StoreBroken, StoreUnavailable, StoreUnfit

VERSIONS: Final = (15, 18)
# Times of politeness are those of the database; logs and records of the archive bear those of the machine.
CLOCKS_APART_MAX_S: Final = 2.0
# An agent has one connection for pages, one for its leases, and some for a moment: the index, reports, the map.
CONNECTIONS_AN_AGENT: Final = 4
LOOK_S_MAX: Final = 30.0

_FACTS: Final = """
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS named,
  current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_pages,
  current_setting('synchronous_commit') AS commit, current_setting('synchronous_standby_names') AS standbys,
  current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS allowed,
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
  (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming') AS streaming,
  current_user::text AS who
"""
_LACKING: Final = """
SELECT count(*) FROM pg_tables WHERE schemaname = current_schema() AND NOT (
  has_table_privilege(quote_ident(schemaname) || '.' || quote_ident(tablename), 'SELECT')
  AND has_table_privilege(quote_ident(schemaname) || '.' || quote_ident(tablename), 'INSERT')
  AND has_table_privilege(quote_ident(schemaname) || '.' || quote_ident(tablename), 'UPDATE')
  AND has_table_privilege(quote_ident(schemaname) || '.' || quote_ident(tablename), 'DELETE'))
"""
_MAY_MAKE: Final = "SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"


def databases(url: str) -> list[Finding]:
    """What is to be said of every server, in their order."""
    return asyncio.run(_all(servers_of(url)))


async def _all(dsns: list[str]) -> list[Finding]:
    looks = await asyncio.gather(*(_one(number, dsn, len(dsns)) for number, dsn in enumerate(dsns)))
    return [finding for findings in looks for finding in findings]


async def _one(number: int, dsn: str, servers: int) -> list[Finding]:
    name = "database" if servers == 1 else f"database {number}"
    try:
        async with asyncio.timeout(LOOK_S_MAX):
            connection = await connect(dsn, name="amble doctor")
            try:
                return await _look(connection, name, number)
            finally:
                connection.terminate()
    except StoreUnavailable as error:
        return [problem(name, str(error), "start it, or mend host, port and network of store.url")]
    except StoreBroken as error:
        return [problem(name, str(error), "mend store.url or the user it names")]
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        return [
            problem(name, f"it ended in the middle: {describe(error)}", "look into the log of the server")
        ]


async def _look(connection: Any, name: str, number: int) -> list[Finding]:
    before_s = time.time()
    theirs_s = float(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())"))
    apart_s = theirs_s - (before_s + time.time()) / 2
    facts = await connection.fetchrow(_FACTS)
    return [
        _version(name, facts),
        await _schema(connection, name, number),
        await _rights(connection, name, facts["who"]),
        *_durability(name, facts),
        _connections(name, facts),
        _clock(name, apart_s),
    ]


def _version(name: str, facts: Any) -> Finding:
    major = facts["version"] // 10_000
    detail = f"it answers; PostgreSQL {facts['named']}"
    if major < VERSIONS[0]:
        return problem(name, detail, f"upgrade it: {VERSIONS[0]} to {VERSIONS[1]} are supported")
    if major > VERSIONS[1]:
        return note(name, f"{detail}, newer than amble was tried with", f"{VERSIONS[1]} is the newest known")
    return good(name, detail)


async def _schema(connection: Any, name: str, number: int) -> Finding:
    try:
        await check(connection)
        await check_server(connection, number, None)
    except StoreUnfit as error:
        return problem(f"{name}: schema", str(error), "amble store init")
    except StoreBroken as error:
        return problem(f"{name}: schema", str(error), "keep the servers of store.url in their order")
    except asyncpg.InsufficientPrivilegeError as error:
        return problem(f"{name}: schema", describe(error), "let the user of store.url own the tables")
    return good(f"{name}: schema", "it is the one of this version")


async def _rights(connection: Any, name: str, who: str) -> Finding:
    name = f"{name}: rights"
    lacking = await connection.fetchval(_LACKING)
    if lacking:
        fix = f"make {who} the owner of the tables, or GRANT ALL ON ALL TABLES IN SCHEMA public TO {who}"
        return problem(name, f"{who} may not read and write {lacking} of the tables", fix)
    if not await connection.fetchval(_MAY_MAKE):
        fix = f"for `amble store init`: GRANT CREATE ON SCHEMA public TO {who}"
        return note(name, f"{who} may work, and may not prepare or upgrade the database", fix)
    return good(name, f"{who} may prepare it and work with it")


def _durability(name: str, facts: Any) -> Iterator[Finding]:
    durable = f"{name}: commits"
    off = [
        word for word, key in (("fsync", "fsync"), ("full_page_writes", "full_pages")) if facts[key] == "off"
    ]
    if off:
        yield problem(
            durable, f"{' and '.join(off)} off: a power cut may ruin the database", f"set {off[0]} = on"
        )
    elif facts["commit"] == "off":
        yield problem(
            durable,
            "synchronous_commit is off: a crash loses what was acknowledged",
            "set synchronous_commit = on for this database or user",
        )
    else:
        yield good(
            durable, f"they are on disk when they are acknowledged (synchronous_commit {facts['commit']})"
        )
    standby, names = f"{name}: standby", facts["standbys"]
    if not names:
        told = "a standby follows, but no commit waits for it" if facts["streaming"] else "there is none"
        yield note(standby, f"{told}: the disk of this server is the only place", "see high-availability.md")
    elif facts["commit"] == "local":
        yield problem(
            standby, "synchronous_commit is local: no commit waits for it", "set synchronous_commit = on"
        )
    else:
        yield good(standby, f"commits wait for {names}")


def _connections(name: str, facts: Any) -> Finding:
    free = facts["allowed"] - facts["used"]
    detail = f"{free} of {facts['allowed']} are free, an agent takes up to {CONNECTIONS_AN_AGENT}"
    name = f"{name}: connections"
    if free < CONNECTIONS_AN_AGENT:
        return problem(name, detail, "raise max_connections, or end what holds them (pg_stat_activity)")
    return good(name, f"{detail}: room for {free // CONNECTIONS_AN_AGENT} more")


def _clock(name: str, apart_s: float) -> Finding:
    detail = f"{abs(apart_s):.1f} s {'ahead of' if apart_s > 0 else 'behind'} this machine"
    if abs(apart_s) > CLOCKS_APART_MAX_S:
        return note(f"{name}: clock", detail, "let both follow a time server (chrony, systemd-timesyncd)")
    return good(f"{name}: clock", detail)
