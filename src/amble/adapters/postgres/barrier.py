"""A new connection is not believed before what it shows is as safe as what was acknowledged.

With a synchronous standby a commit is acknowledged when the standby has it. But a commit whose wait was broken off, by a
crash of the primary or by a time limit of ours (the driver then cancels, and the server gives up waiting, not the commit),
is seen by everybody from then on. An operation that is repeated and finds its effect there writes nothing, so it would wait
for nobody, and be acknowledged for what only the primary has. The log is one sequence: a record written now is confirmed
only with all that stands before it.
"""

from __future__ import annotations

from typing import Any

#: Writes a record that means nothing and changes nothing. Any role may.
BARRIER = "SELECT pg_logical_emit_message(true, 'amble', '')"


async def wait_for_standby(connection: Any) -> None:
    """Wait until all that `connection` can see is where acknowledged commits are. One round trip and one commit.

    To be called on every new connection before anything is asked or repeated on it; fits `init` of an asyncpg pool.
    Raises what the driver raises, the caller's time limit included.
    """
    await connection.execute(BARRIER)
