"""Rows of the frontier while a transaction works on them: read once, changed in memory, written once.

`seen` is the version of a row that was read (xmin). A write finds its row only while it still has that version; if one
does not, the whole transaction begins again. So nothing is locked while it is merely read.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from msgspec import Struct

from amble.adapters.sql import ledger

# What changed in a URL's row: each group has its columns and, with the first, its statement.
FLIGHT: Final = 1
ANSWER: Final = 2
END: Final = 4


class Origin(ledger.Origin, gc=False):
    """One row of `origin`; fields are the columns of `by_id`, in their order. `seen` None: it is new."""

    partition: int = 0
    seen: int | None = None


class UrlRow(Struct, gc=False):
    """One row of `url`; fields are the columns of `rows`, in their order. `changed` has the bits of the groups."""

    seen: int
    id: int
    path: str
    kind: int
    depth: int
    hops: int
    priority: int
    state: int
    rq: int | None
    due_at: int | None
    attempt: int
    generation: int
    tries: int
    strikes: int
    token: bytes | None
    worker: int | None
    started_at: int | None
    expires_at: int | None
    sweep_at: int | None
    slot_origin: int | None
    slot_until: int | None
    status: int | None
    fetched_at: int | None
    digest: bytes | None
    body_ref: bytes | None
    etag: str | None
    last_modified: str | None
    checks: int
    changes: int
    content_kind: str | None
    ended: int | None
    canonical: str | None
    directives: int | None
    fingerprint: int | None
    reason: str | None
    detail: str | None
    reason_at: int | None
    policy_version: int | None
    changed: int = 0

    def hold(self, token: bytes | None, worker: int | None, until: int) -> None:
        """Held under `token` until then; `worker` None: nobody will miss it when the hold lapses."""
        self.token, self.worker = token, worker
        self.hold_until(until)
        self.sweep_at = until

    def hold_until(self, until: int) -> None:
        """The hold ends then. Only an earlier end touches the index of what is to be looked at."""
        self.expires_at = until
        if self.sweep_at is None or until < self.sweep_at:
            self.sweep_at = until
        self.changed |= FLIGHT

    def leave_slot(self) -> None:
        """The request is over."""
        self.slot_origin = self.slot_until = None
        self.changed |= FLIGHT

    def let_go(self) -> None:
        """Nobody holds it any more. `started_at` tells when its last start was."""
        self.token = self.worker = self.expires_at = self.sweep_at = None
        self.leave_slot()

    def explain(self, reason: str | None, detail: str | None, at: int) -> None:
        """What `why` prints of it."""
        self.reason, self.detail, self.reason_at = reason, detail, at
        self.changed |= END


class ManifestRow(Struct, gc=False):
    """How far discovery has come with one manifest. `seen` None: its parse is written by this transaction."""

    seen: int | None
    url_id: int
    attempt: int
    generation: int
    partition: int
    cursor: int
    links: int
    opened: bool
    changed: bool = False


class Parse(Struct, gc=False):
    """What `add_manifests` writes beside the progress of a manifest."""

    ref: bytes
    content_kind: str
    title: str
    text_ref: bytes | None


class PartitionRow(Struct):
    """Who may act for a partition. `leaving`: nobody, because it is on its way to another server."""

    partition: int
    epoch: int
    lease_until: int | None
    leaving: bool = False


_FLIGHT = (
    "id", "seen", "state", "rq", "due_at", "attempt", "generation", "tries", "strikes", "token", "worker", "started_at",
    "expires_at", "sweep_at", "slot_origin", "slot_until",
)  # fmt: skip
_ANSWER = (
    "status", "fetched_at", "digest", "body_ref", "etag", "last_modified", "checks", "changes", "content_kind",
)  # fmt: skip
_END = (
    "ended", "canonical", "directives", "fingerprint", "reason", "detail", "reason_at", "policy_version",
)  # fmt: skip
_ORIGIN = (
    "id", "seen", *ledger.Origin.__struct_fields__[2:], "partition",
)  # fmt: skip

# The parameters of each statement that writes, by what changed.
FIELDS: Final[dict[int, tuple[str, Any]]] = {
    FLIGHT: ("write_flight", attrgetter(*_FLIGHT)),
    FLIGHT | ANSWER: ("write_answer", attrgetter(*_FLIGHT, *_ANSWER)),
    FLIGHT | END: ("write_end", attrgetter(*_FLIGHT, *_END)),
    FLIGHT | ANSWER | END: ("write_whole", attrgetter(*_FLIGHT, *_ANSWER, *_END)),
}
ORIGIN_FIELDS: Final = attrgetter(*_ORIGIN)


def columns(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows as one array per column, for unnest."""
    return [list(column) for column in zip(*rows, strict=True)]
