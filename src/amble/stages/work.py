"""What the legs of the journey hand to each other: a fetched body, and a durable manifest."""

from __future__ import annotations

from msgspec import Struct

from amble.domain.attempt import Lease
from amble.domain.fetched import BodyRef, Fetched
from amble.ports import Parsed, ReplayableBody


class Source(Struct, frozen=True, kw_only=True):
    """A fetched page as the parser wants it: from the fetch just made, or read back from the archive."""

    lease: Lease
    fetched: Fetched
    head: bytes
    body: ReplayableBody
    record_id: str  # of the record that holds the body

    @property
    def status(self) -> int:
        """The status the body came with: after a 304 that is the 200 of the visit that brought it."""
        return 200 if self.fetched.not_modified else self.fetched.status


class Extracted(Struct, frozen=True, kw_only=True):
    """A durable manifest: what the child found, and where manifest and text lie."""

    parsed: Parsed
    generation: int  # extraction generation of the parse
    manifest_ref: BodyRef
    text_ref: BodyRef | None
