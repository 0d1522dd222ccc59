"""The frontier in the caller's own process: every call is applied at once. For tests, the simulator, small tools."""

from __future__ import annotations

from typing import Any

from amble.adapters.sql.client import FrontierCalls
from amble.adapters.sql.messages import AnyOperation, Refused
from amble.adapters.sql.sqlite import SqliteStore
from amble.domain.errors import OperationRefused


class InlineStore(FrontierCalls):
    """ports.Frontier over a `SqliteStore`, one transaction for each call."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    async def _call(self, operation: AnyOperation) -> Any:
        (reply,) = self.store.apply([operation])
        if isinstance(reply, Refused):
            raise OperationRefused(reply.error)
        return reply

    async def close(self) -> None:
        """See ports.Frontier.close."""
        self.store.close()
