"""What the pool and a parser child say to each other: frames of msgpack over a socket pair, bodies in shared memory.

A frame is its length (4 bytes, little-endian) and that many bytes of msgpack. The pool says Setup once, then one Task
at a time; the child answers Ready once, then one Done or Failed for each Task. The pool believes nothing a child says:
lengths are bounded and types are checked before anything is used.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from amble.domain.manifest import ParseManifest
from amble.domain.policy import ParseLimits
from amble.formats.extraction import ExtractionSettings

FRAME_LENGTH = struct.Struct("<I")
# Manifest, text and main text of the largest page that the limits allow stay well below this.
FRAME_BYTES_MAX = 64 * 1024 * 1024


class Setup(Struct, frozen=True, array_like=True):
    """First frame to a child. `shared_bytes`: size of the shared memory that bodies come in."""

    limits: ParseLimits
    settings: ExtractionSettings
    shared_bytes: int
    parent_pid: int
    self_test: bool = False


class Task(Struct, frozen=True, array_like=True):
    """One answer to read. The first `body_bytes` bytes of the shared memory are its body."""

    number: int
    url: str
    kind: int
    status: int
    head: bytes
    body_bytes: int
    cut: bool


class Ready(Struct, frozen=True, array_like=True, tag="ready"):
    """The child is warm and confined. `confinement`: what holds it; `missing`: what this kernel lacks, and why."""

    generation: int
    confinement: list[str]
    missing: list[str]
    modules: list[str] = []
    denied: dict[str, str] = {}


class Done(Struct, frozen=True, array_like=True, tag="done"):
    """A Task was read. `main` None: the main text is the text. `peak_kb`: most memory the child ever held."""

    number: int
    manifest: ParseManifest
    text: bytes
    main: bytes | None
    peak_kb: int


class Failed(Struct, frozen=True, array_like=True, tag="failed"):
    """A Task could not be read; the child is well. `reason` is one of ports.ParseFailure's."""

    number: int
    reason: str
    detail: str
    peak_kb: int


Answers = Ready | Done | Failed
