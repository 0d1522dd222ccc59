"""One frontier over several independent servers: each call goes to the server of its partition.

No transaction spans two of them. A server that does not answer takes its partitions out of service and leaves the
others running: what can be asked again later is refused at once, results wait until they can be written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from amble.adapters.postgres import servers_guest
from amble.adapters.postgres.books import Membership
from amble.adapters.postgres.digests import PostgresDigests
from amble.adapters.postgres.fingerprints import Fingerprints, index_link
from amble.adapters.postgres.placement import Placement, check_server, read_map
from amble.adapters.postgres.servers_guest import Guest
from amble.adapters.postgres.servers_link import Link
from amble.adapters.postgres.sharing import Troubles
from amble.adapters.postgres.store import PostgresStore
from amble.adapters.sql import messages as m
from amble.adapters.sql.client import FrontierCalls
from amble.adapters.sql.settings import StoreSettings
from amble.domain.errors import AmbleError, StoreBroken, StoreUnavailable
from amble.domain.frontier import (
    AdoptAsk,
    Applied,
    LeaseAsk,
    LeaseReply,
    Parcel,
    RecordFetched,
    ReserveAsk,
    ReserveOutcome,
    ReserveReply,
    Resumable,
)

OPEN_RETRY_S: Final = 1.0
# A call that may be made again waits so long for a server that has not yet been found out to be away.
PATIENCE_S: Final = 20.0
# What is asked again sooner or later by itself. Everything else waits for its server.
_ASKED_AGAIN: Final = (m.TakeLease, m.Expire, m.Drain, m.Parcels, m.DropParcels, m.Deliver, m.Adopt)
# A hop to where nobody answers waits for a turn, within the patience that hops have.
_NO_TURN: Final = ReserveReply(int(ReserveOutcome.NO_SLOT), 0, 0, 0)
_ENDS: Final = (m.KeepFetched, m.KeepFailed, m.GiveBack, m.Leave)


def budget_part(pages_max: int, number: int, servers: int) -> int:
    """How much of a page budget one of the servers of a fleet may spend."""
    part, more = divmod(pages_max, servers)
    return part + (number < more)


@dataclass(slots=True)
class Places:
    """Which server each partition lives on, as far as is known here."""

    _server: dict[int, int] = field(default_factory=dict)
    _mapped: dict[int, int] = field(default_factory=dict)

    def seen(self, partition: int, server: int) -> None:
        """The server itself says that the partition lives there."""
        self._server[partition] = server

    def map(self, places: Sequence[Placement]) -> None:
        """What the map says holds until a server says otherwise."""
        self._mapped = {place.partition: place.server for place in places}

    def of(self, partition: int) -> int | None:
        """The number of the server, None where nobody has said."""
        server = self._server.get(partition)
        return self._mapped.get(partition) if server is None else server

    @property
    def known(self) -> dict[int, int]:
        """Partition -> server of all that is known."""
        return {**self._mapped, **self._server}


class _Server:
    """One server: its store once it could be opened, and whether it answers."""

    def __init__(self, number: int, dsn: str, settings: StoreSettings, options: Mapping[str, Any]) -> None:
        self.number = number
        self.link = Link(dsn, "amble guest")
        self.store: PostgresStore | None = None
        self.trouble: str | None = None
        self.options = dict(options)
        self._dsn, self._settings = dsn, settings
        self._opened = asyncio.Event()
        self._away = asyncio.Event()
        self._broken: AmbleError | None = None
        self._membership: Membership | None = None
        self._opening: asyncio.Task[None] | None = None
        self.on_trouble: Callable[[], None] = lambda: None

    @property
    def place(self) -> str:
        """Where it is, without secrets."""
        return self.link.place

    async def open(self, path_key: bytes | None) -> bytes | None:
        """Open it, or go on trying behind. Raises StoreBroken: it is not what the configuration says."""
        try:
            key = await self.link.call(lambda connection: check_server(connection, self.number, path_key))
            self.store = await PostgresStore.open(self._dsn, self._settings, **self.options)
        except StoreUnavailable as error:
            self.hear(str(error))
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._go_on(path_key))
            return path_key
        self.store.on_trouble = self.hear
        self.store.use(self._membership)
        self._opened.set()
        self.hear(None)
        return key

    async def _go_on(self, path_key: bytes | None) -> None:
        while self.store is None:
            await asyncio.sleep(OPEN_RETRY_S)
            try:
                await self.open(path_key)
            except AmbleError as error:
                self._broken = error
                self._opened.set()
                return

    def use(self, membership: Membership | None) -> None:
        """See PostgresStore.use."""
        self._membership = membership
        if self.store is not None:
            self.store.use(membership)

    def hear(self, trouble: str | None) -> None:
        """The store tells how it is."""
        self.trouble = trouble
        if trouble is None:
            self._away.clear()
        else:
            self._away.set()
        self.on_trouble()

    async def call(self, partition: int, operation: m.AnyOperation) -> Any:
        """Carry it out there. What is asked again anyway raises StoreUnavailable while the server is away."""
        if not isinstance(operation, _ASKED_AGAIN):
            await self._opened.wait()
            return await self._open_store().call(partition, operation)
        if self.trouble is not None:
            raise self._is_away()
        call = asyncio.ensure_future(self._open_store().call(partition, operation))
        gone = asyncio.ensure_future(self._away.wait())
        try:
            await asyncio.wait({call, gone}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise self._is_away()
            return call.result()
        finally:
            gone.cancel()
            call.cancel()

    def _open_store(self) -> PostgresStore:
        if self._broken is not None:
            raise self._broken
        if self.store is None:
            raise self._is_away()
        return self.store

    def _is_away(self) -> StoreUnavailable:
        return StoreUnavailable(f"server {self.number} is away: {self.trouble or 'it does not answer'}")

    async def close(self) -> None:
        """Let go of it. Only of one that answers is it known that everything was written."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self.store is not None:
            if self.trouble is not None:
                self.store.abandon(self._is_away())
            await self.store.close()
        await self.link.close()

    def abandon(self, error: StoreUnavailable) -> None:
        """See PostgresStore.abandon."""
        self._broken = self._broken or error
        self._opened.set()
        if self.store is not None:
            self.store.abandon(error)


class PostgresServers:
    """The stores of all servers. `frontier` gives the handle of a partition, `everywhere` one for all of them.

    `trouble` is why nothing can be written anywhere, else None; `on_trouble` hears of each new value. `away` tells of
    each server that does not answer; `on_away` hears when that changes.
    """

    def __init__(
        self,
        servers: Sequence[_Server],
        settings: StoreSettings,
        partition_of: Callable[[str], int] | None,
        digests: PostgresDigests | None,
        index_at: Sequence[str],
    ) -> None:
        """Use `open`."""
        self.servers = servers
        self.fingerprints = Fingerprints(
            {number: index_link(dsn) for number, dsn in enumerate(index_at)}, self.link_of, self.look
        )
        self.settings = settings
        self.places = Places()
        self.digests = digests
        self.partition_of = partition_of
        self.trouble: str | None = None
        self.on_trouble: Callable[[str | None], None] = lambda _: None
        self.on_away: Callable[[int, str | None], None] = lambda _number, _trouble: None
        self._told: dict[int, str] = {}
        self._guests: dict[bytes, Guest] = {}
        self._turn = 0

    @classmethod
    async def open(
        cls,
        dsns: Sequence[str],
        settings: StoreSettings | None = None,
        *,
        partition_of: Callable[[str], int] | None = None,
        digests_at: Sequence[str] | None = None,
        **options: Any,
    ) -> PostgresServers:
        """Connect to the servers of a fleet in the order of their numbers; those that are away are tried again behind.

        `partition_of`: origins to partitions, None where all origins lie in one. `digests_at`: servers that hold the
        indexes of digests and of near-duplicates, prepared by `set_up_servers` as well (None: all). With one server
        digests are part of its transactions. `options` are those of PostgresStore. Raises StoreUnavailable when none answers, StoreBroken.
        """
        base = settings or StoreSettings()
        several = len(dsns) > 1 or digests_at is not None
        given = replace(base, digests_elsewhere=several)
        digests = None
        where = digests_at or dsns
        if several:
            digests = PostgresDigests({n: Link(dsn, "amble digests") for n, dsn in enumerate(where)})
        servers = [_Server(number, dsn, given, options) for number, dsn in enumerate(dsns)]
        self = cls(servers, given, partition_of, digests, where)
        for server in servers:
            server.on_trouble = self._hear
            server.options["fingerprints"] = self.fingerprints
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def _open(self) -> None:
        key: bytes | None = None
        for server in self.servers:
            key = await server.open(key)
        if all(server.store is None for server in self.servers):
            raise StoreUnavailable("; ".join(str(server.trouble) for server in self.servers))
        await self.look()

    async def look(self) -> None:
        """Learn anew where partitions live, from every server that answers."""
        for server in self.servers:
            if server.trouble is not None:
                continue
            try:
                rows = await server.link.call(
                    lambda link: link.fetch("SELECT partition FROM partition WHERE NOT arriving")
                )
                if server.number == 0:
                    self.places.map(await server.link.call(read_map))
            except StoreUnavailable:
                continue
            for (partition,) in rows:
                self.places.seen(partition, server.number)

    @property
    def away(self) -> dict[int, str]:
        """Servers that do not answer, and why."""
        return {server.number: server.trouble for server in self.servers if server.trouble is not None}

    def frontier(self, partition: int) -> ServersFrontier:
        """The handle of one partition, wherever it lives."""
        return ServersFrontier(self, partition)

    def everywhere(self) -> ServersFrontier:
        """A handle for calls that name their partition: what a parse worker needs."""
        return ServersFrontier(self, None)

    def reach(self, partition: int) -> ServersFrontier | None:
        """Where parcels for a partition are delivered; None when nobody knows where it lives."""
        return None if self.places.of(partition) is None else self.frontier(partition)

    def use(self, membership: Membership | None) -> None:
        """See PostgresStore.use; also for servers that are opened later."""
        for server in self.servers:
            server.use(membership)

    def link_of(self, partition: int) -> Link:
        """The small connection to the server of a partition."""
        return self.server_of(partition).link

    def hear_indexes(self, listener: Callable[[str | None], None]) -> None:
        """Let `listener` hear why pages wait for the indexes of the fleet, and None when they do not."""
        troubles = Troubles(listener)
        self.fingerprints.on_trouble = lambda trouble: troubles.tell("near-duplicates", trouble)
        if self.digests is not None:
            self.digests.on_trouble = lambda trouble: troubles.tell("digests", trouble)

    def pace(self, in_flight: int) -> None:
        """See PostgresStore.pace."""
        for server in self.servers:
            if server.store is not None:
                server.store.pace(in_flight)

    def abandon(self, error: StoreUnavailable) -> None:
        """See PostgresStore.abandon."""
        for server in self.servers:
            server.abandon(error)
        self.fingerprints.abandon(error)
        if self.digests is not None:
            self.digests.abandon(error)

    async def close(self) -> None:
        """Every call made is answered, where there is somebody to answer; then all connections end."""
        if self.fingerprints.trouble is not None:
            self.fingerprints.abandon(StoreUnavailable(self.fingerprints.trouble))
        for server in self.servers:
            await server.close()
        await self.fingerprints.close()
        if self.digests is not None:
            await self.digests.close()

    def _hear(self) -> None:
        away = self.away
        for number in away.keys() | self._told.keys():
            if away.get(number) != self._told.get(number):
                self.on_away(number, away.get(number))
        self._told = away
        trouble = next(iter(away.values())) if len(away) == len(self.servers) else None
        if trouble != self.trouble:
            self.trouble = trouble
            self.on_trouble(trouble)

    # ---- calls, for the handles

    def server_of(self, partition: int) -> _Server:
        """Raises StoreUnavailable when nobody knows where the partition lives."""
        number = self.places.of(partition)
        if number is None or number >= len(self.servers):
            raise StoreUnavailable(f"no server of this fleet is known to hold partition {partition}")
        return self.servers[number]

    async def call(self, partition: int, operation: m.AnyOperation) -> Any:
        """Carry out an operation of one partition."""
        server = self.server_of(partition)
        match operation:
            case m.Reserve():
                return await self._reserve(server, partition, operation)
            case m.KeepFetched():
                await self._keep_digest(operation.value)
            case m.TakeLease() if operation.value.pages_max is not None:
                operation = m.TakeLease(self._share(server.number, operation.value))
            case m.Expire() if server.trouble is not None:
                return 0
            case m.Adopt() if server.trouble is not None:
                return []
            case _:
                pass
        reply = await server.call(partition, operation)
        if isinstance(operation, _ENDS):
            await self._guest_leaves(operation)
        return reply

    def _share(self, number: int, ask: LeaseAsk) -> LeaseAsk:
        """A server counts the pages of its own partitions only: each has an even part of the budget."""
        assert ask.pages_max is not None
        return replace(ask, pages_max=budget_part(ask.pages_max, number, len(self.servers)))

    async def find_body(self, digest: bytes, partition: int) -> Any:
        """Where the bytes are, by the index of the fleet."""
        if self.digests is not None:
            return await self.digests.find(digest)
        return await self.server_of(partition).call(partition, m.FindBody(digest))

    async def _keep_digest(self, item: RecordFetched) -> None:
        """The digest is in its index before FETCHED is: by the time the record is committed others can find the bytes."""
        fetched = item.fetched
        if self.digests is None or fetched.not_modified:
            return
        if fetched.digest is not None and fetched.body_ref is not None:
            await self.digests.add(fetched.digest, fetched.body_ref, fetched.body_bytes)

    async def adopt(self, ask: AdoptAsk) -> list[Resumable]:
        """Rows of any partition on any server that answers; each time another server is asked first."""
        found: list[Resumable] = []
        well = [server for server in self.servers if server.trouble is None]
        self._turn += 1
        for step in range(len(well)):
            server = well[(self._turn + step) % len(well)]
            if len(found) >= ask.count:
                break
            try:
                rows = await server.call(0, m.Adopt(replace(ask, count=ask.count - len(found))))
            except StoreUnavailable:
                continue
            for row in rows:
                self.places.seen(row.lease.key.partition, server.number)
            found += rows
        if not well:
            raise StoreUnavailable(self.trouble or "no server answers")
        return found

    async def deliver(self, parcels: list[Parcel]) -> Applied:
        """One commit for each server that has destinations among them."""
        groups: dict[int, list[Parcel]] = {}
        for parcel in parcels:
            groups.setdefault(self.server_of(parcel.destination).number, []).append(parcel)
        for number, group in groups.items():
            applied = await self.servers[number].call(group[0].destination, m.Deliver(group))
            if applied != Applied.APPLIED:
                return Applied.STALE
        return Applied.APPLIED

    # ---- robots.txt hops

    async def _reserve(self, server: _Server, partition: int, operation: m.Reserve) -> ReserveReply:
        ask = operation.value
        if ask.key.token in self._guests:
            await self._leave(self._guests.pop(ask.key.token), 0)
        there = partition if self.partition_of is None else self.partition_of(ask.origin)
        host = server if there == partition else self._host_of(there)
        if host is None:
            return _NO_TURN
        if host is server:
            reply: ReserveReply = await server.call(partition, operation)
            return reply
        return await self._be_guest(server, host, there, ask)

    def _host_of(self, partition: int) -> _Server | None:
        try:
            return self.server_of(partition)
        except StoreUnavailable:
            return None

    async def _be_guest(
        self, server: _Server, host: _Server, partition: int, ask: ReserveAsk
    ) -> ReserveReply:
        """A start at an origin of another server. While that one is away there is no turn, which `why` tells."""
        try:
            refused = await servers_guest.prolong(server.link, ask, self.settings)
            if refused is not None:
                return refused
            reply, guest = await servers_guest.come(host.link, host.number, partition, ask, self.settings)
        except StoreUnavailable:
            return _NO_TURN
        if guest is not None:
            self._guests[ask.key.token] = guest
        return reply

    async def _guest_leaves(self, operation: Any) -> None:
        item = operation.value
        guest = self._guests.pop(item.key.token, None)
        if guest is not None:
            effect = getattr(item, "effect", None)
            await self._leave(guest, effect.rest_ms if effect else 0)

    async def _leave(self, guest: Guest, rest_ms: int) -> None:
        try:
            await servers_guest.leave(self.servers[guest.server].link, guest, rest_ms)
        except (StoreUnavailable, StoreBroken):
            pass  # it ends by itself


class ServersFrontier(FrontierCalls):
    """ports.Frontier of one partition (None: of all, where calls name theirs) over several servers."""

    def __init__(self, servers: PostgresServers, partition: int | None) -> None:
        self.servers = servers
        self.partition = partition
        self._last = LeaseReply([], 0, None, 0, 0, 0, 0)
        self._heard_s = 0.0

    async def lease(self, ask: LeaseAsk) -> LeaseReply:
        """See ports.Frontier. While the server is away nothing is leased, and the totals are those of before."""
        loop = asyncio.get_running_loop()
        try:
            self._last = await super().lease(ask)
        except StoreUnavailable:
            silent_ms = round((loop.time() - self._heard_s) * 1000) if self._last.now_ms else 0
            return replace(self._last, leases=[], next_wake_ms=None, now_ms=self._last.now_ms + silent_ms)
        self._heard_s = loop.time()
        return self._last

    async def _call(self, operation: m.AnyOperation) -> Any:
        match operation:
            case m.FindBody():
                return await self.servers.find_body(operation.value, self.partition or 0)
            case m.Deliver():
                return await self.servers.deliver(operation.value)
            case m.Adopt() if operation.value.partition is None:
                return await self.servers.adopt(operation.value)
            case _:
                return await self.servers.call(self._partition_of(operation), operation)

    def _partition_of(self, operation: Any) -> int:
        if self.partition is not None:
            return self.partition
        key = getattr(operation.value, "key", None)
        partition = getattr(operation.value if key is None else key, "partition", None)
        if partition is None:
            raise StoreBroken(f"{type(operation).__doc__} is asked of a partition")
        return int(partition)

    async def close(self) -> None:
        """The servers go on for others; see PostgresServers.close."""
