"""What is broken around the crawl right now, in words an operator can read, and the waiting for it to pass.

Dispatch asks nothing of the network while a trouble stands. A trouble is not an error: what was accepted is kept, and
the probe of the part in question ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from amble.domain.decision import Reason
from amble.domain.errors import ArchiveUnavailable
from amble.domain.fetched import BodyRef
from amble.domain.record import NewRecord, StoredRecord
from amble.domain.url import host_of
from amble.ports import Archive, Clock, ResolveFailure, Resolver, Telemetry

PROBE_EVERY_S = 0.5

Probe = Callable[[], Awaitable[str | None]]


@dataclass(slots=True)
class Health:
    """Standing troubles by reason. `blocked` is what dispatch looks at."""

    clock: Clock
    telemetry: Telemetry
    troubles: dict[Reason, str] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def blocked(self) -> bool:
        """Whether any trouble stands."""
        return bool(self.troubles)

    def report(self, reason: Reason, detail: str) -> None:
        """A part does not work. Repeating it is harmless."""
        if self.troubles.get(reason) != detail:
            self.telemetry.event("trouble.began", reason=reason.value, detail=detail)
        self.troubles[reason] = detail
        self._changed.set()

    def clear(self, reason: Reason) -> None:
        """The part works again."""
        if self.troubles.pop(reason, None) is not None:
            self.telemetry.event("trouble.ended", reason=reason.value)
            self._changed.set()

    def listener(self, reason: Reason) -> Callable[[str | None], None]:
        """For a part that tells by itself: a detail begins the trouble, None ends it."""

        def hear(detail: str | None) -> None:
            if detail is None:
                self.clear(reason)
            else:
                self.report(reason, detail)

        return hear

    def describe(self) -> str | None:
        """One line for people, None when all is well."""
        if not self.troubles:
            return None
        return "; ".join(f"{reason.value}: {detail}" for reason, detail in sorted(self.troubles.items()))

    async def probe_until_well(self, reason: Reason, probe: Probe) -> None:
        """Ask `probe` until it answers None; the trouble stands meanwhile. Returns when the part works."""
        while (detail := await probe()) is not None:
            self.report(reason, detail)
            await self.clock.sleep(PROBE_EVERY_S)
        self.clear(reason)


class ResolverWatch:
    """While the resolver is silent, asks it again until it answers; one watch at a time."""

    def __init__(self, health: Health, resolver: Resolver) -> None:
        self._health, self._resolver = health, resolver
        self._watching: asyncio.Task[None] | None = None

    def report(self, origin: str, detail: str) -> None:
        """The resolver did not answer for the host of `origin`."""
        self._health.report(Reason.DNS_UNAVAILABLE, detail)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(
                self._watch(origin), name="resolver watch"
            )

    async def _watch(self, origin: str) -> None:
        async def probe() -> str | None:
            answer = await self._resolver.resolve(host_of(origin + "/"))
            return answer.detail if isinstance(answer, ResolveFailure) and answer.unavailable else None

        await self._health.probe_until_well(Reason.DNS_UNAVAILABLE, probe)


async def append_when_well(archive: Archive, records: Sequence[NewRecord], health: Health) -> list[BodyRef]:
    """Append, however long the archive is unwell. The trouble ends with an append that worked.

    A probe alone proves little: a small file may fit where these records do not (a quota, a limit on file sizes).
    """
    while True:
        try:
            refs = await archive.append(records)
        except ArchiveUnavailable as trouble:
            detail: str | None = str(trouble)
        else:
            health.clear(Reason.ARCHIVE_UNAVAILABLE)
            return refs
        while detail is not None:
            health.report(Reason.ARCHIVE_UNAVAILABLE, detail)
            await health.clock.sleep(PROBE_EVERY_S)
            detail = await archive.probe()


async def read_when_well(archive: Archive, ref: BodyRef, health: Health) -> StoredRecord:
    """Read, however long the archive is unwell. Raises ArchiveBroken: the record is not there, and waiting is no help."""
    troubled = False
    while True:
        try:
            record = await archive.read(ref)
        except ArchiveUnavailable as trouble:
            troubled = True
            health.report(Reason.ARCHIVE_UNAVAILABLE, str(trouble))
            await health.clock.sleep(PROBE_EVERY_S)
        else:
            if troubled:
                health.clear(Reason.ARCHIVE_UNAVAILABLE)
            return record
