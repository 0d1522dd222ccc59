"""Changing the test web while it runs: overrides per host, the state of the DNS, and counters.

One JSON object a line over TCP on 127.0.0.1, one JSON object a line back, `{"error": …}` when a command is not
understood. Commands (`do`):

- `site`   host, and any of: status, retry_after, stall, reset, delay_s, robots (text or null), robots_status,
           pages ({target: {body, status, kind, location}}); replaces the earlier override of that host.
           Host `*` is every host. Status, stall, reset and delay hold for robots.txt too.
- `clear`  host (or `*`: all overrides).
- `dns`    state: alive, dead (no answer to anything), servfail.
- `name`   name, addresses (list), ttl_s, rcode, silent, alias: replaces what the zone says. `turns` (lists of
           addresses) instead of addresses: one after the other, round and round.
- `stats`  requests served, DNS questions by name, connections.
- `flush`  the access log.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.web.dns import NOERROR, TTL_S, Name, Zone
from tests.web.message import HTML, Reply, Request, Wire, text
from tests.web.server import AccessLog, HttpConnection

FIELDS = {"status", "retry_after", "stall", "reset", "delay_s", "robots", "robots_status", "pages"}


@dataclass(slots=True)
class Override:
    """What a host does instead of what its site says."""

    status: int | None = None
    retry_after: int | None = None
    stall: bool = False
    reset: bool = False
    delay_s: float = 0.0
    robots: str | None = None
    robots_status: int | None = None
    pages: dict[str, dict[str, Any]] = field(default_factory=dict)

    def answer(self, request: Request) -> Reply | None:
        """The answer, or None to ask the site."""
        if self.stall or self.reset:
            return Reply(raw=_stall if self.stall else _reset)
        if self.status is not None:
            after = () if self.retry_after is None else (("Retry-After", str(self.retry_after)),)
            return Reply(
                status=self.status, body=b"as told\n", kind="text/plain", headers=after, delay_s=self.delay_s
            )
        if request.path == "/robots.txt" and (self.robots is not None or self.robots_status is not None):
            reply = text(self.robots or "", status=self.robots_status or 200)
            reply.delay_s = self.delay_s
            return reply
        change = self.pages.get(request.target)
        return None if change is None else _changed(change, self.delay_s)


def _changed(change: Mapping[str, Any], delay_s: float) -> Reply:
    where = (("Location", str(change["location"])),) if "location" in change else ()
    return Reply(
        status=int(change.get("status", 302 if where else 200)),
        body=str(change.get("body", "")).encode(),
        kind=str(change.get("kind", HTML)),
        headers=where,
        delay_s=delay_s,
    )


async def _stall(wire: Wire) -> None:
    del wire
    await asyncio.sleep(3600)


async def _reset(wire: Wire) -> None:
    wire.reset()


class Control:
    """The commands, and the overrides they make."""

    def __init__(self, zone: Zone, log: AccessLog) -> None:
        self._zone, self._log = zone, log
        self.overrides: dict[str, Override] = {}

    def override(self, host: str) -> Override | None:
        """What is to be done at a host instead."""
        return self.overrides.get(host) or self.overrides.get("*") if self.overrides else None

    def obey(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Do one command."""
        match command.get("do"):
            case "site":
                wanted = {key: value for key, value in command.items() if key not in ("do", "host")}
                if unknown := wanted.keys() - FIELDS:
                    return {"error": f"unknown fields: {', '.join(sorted(unknown))}"}
                self.overrides[command["host"]] = Override(**wanted)
            case "clear":
                if command["host"] == "*":
                    self.overrides.clear()
                self.overrides.pop(command["host"], None)
            case "dns":
                if command["state"] not in ("alive", "dead", "servfail"):
                    return {"error": "state is one of alive, dead, servfail"}
                self._zone.state = command["state"]
            case "name":
                self._zone.names[command["name"]] = Name(
                    [tuple(turn) for turn in command.get("turns", [command.get("addresses", ())])],
                    ttl_s=command.get("ttl_s", TTL_S),
                    rcode=command.get("rcode", NOERROR),
                    silent=command.get("silent", False),
                    alias=command.get("alias", ""),
                )
            case "stats":
                questions = dict(self._zone.asked)
                return {"requests": self._log.requests, "dns": questions, "connections": HttpConnection.count}
            case "flush":
                self._log.flush()
            case other:
                return {"error": f"unknown command: {other}"}
        return {"ok": True}

    async def listen(self, port: int = 0) -> tuple[asyncio.Server, int]:
        """Serve on a port of 127.0.0.1."""
        server = await asyncio.start_server(self._talk, "127.0.0.1", port)
        return server, int(server.sockets[0].getsockname()[1])

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                try:
                    answer = self.obey(json.loads(line))
                except (ValueError, KeyError, TypeError) as exc:
                    answer = {"error": f"{type(exc).__name__}: {exc}"}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
