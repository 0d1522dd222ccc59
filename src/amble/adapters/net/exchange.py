"""One exchange as the engine sees it: where it goes, what is sent, what it waits for, and when what happened."""

from __future__ import annotations

import math
from enum import Enum

from msgspec import Struct

from amble.adapters.net.http1 import ResponseParser


class Endpoint(Struct, frozen=True):
    """Where a connection goes: the approved address, the port, and the name that it is opened for."""

    address: str
    port: int
    host: str
    tls: bool


class Exchange(Struct, eq=False):
    """One request, the parser of its answer, and when what happened (monotonic seconds, negative: not at all).

    `start_by_s`: from then on nothing of it may be sent any more.
    """

    request: bytes
    parser: ResponseParser
    deadline_s: float
    start_by_s: float = math.inf
    keep_alive: bool = True
    http09: bool = False
    started_s: float = -1.0
    connected_s: float = -1.0
    tls_s: float = -1.0
    first_byte_s: float = -1.0
    ended_s: float = -1.0


class Phase(Enum):
    """What a connection waits for. Each has a deadline of its own, save IDLE, whose expiry the pool keeps."""

    CONNECT = "connection"
    TLS = "TLS handshake"
    FIRST_BYTE = "first byte"
    BODY = "next byte"
    IDLE = "request"
