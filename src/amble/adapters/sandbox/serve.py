"""The work of a parser child: answers in, one at a time, manifests out.

It imports formats and domain only, uses everything once so that no file is opened later, and then confines itself. It
ends when its socket closes.
"""

from __future__ import annotations

import codecs
import gc
import gzip
import mmap
import os
import re
import resource
import signal
import sys
import zlib
from collections.abc import Iterator

import brotli
import msgspec
import zstandard

from amble.adapters.sandbox import confine, self_test
from amble.adapters.sandbox.wire import FRAME_BYTES_MAX, FRAME_LENGTH, Done, Failed, Ready, Setup, Task
from amble.domain.attempt import UrlKind
from amble.formats.charset import QUERY_CODECS
from amble.formats.decode import Undecodable
from amble.formats.registry import Answer, Registry

# Trees are freed by reference counts; what cycles leave behind is collected every so many pages.
# Answers between two looks at the child's memory.
PEAK_EVERY = 16
PAGES_PER_COLLECTION = 256

_OWN_PEAK = re.compile(rb"\nVmHWM:\s*(\d+) kB")
_WARM_UP_URL = "http://warm.up/"


class Channel:
    """Frames over the inherited socket."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray(64 * 1024)

    def receive(self) -> bytes | None:
        """The next frame; None when the pool has closed the socket."""
        prefix = self._exactly(FRAME_LENGTH.size)
        if prefix is None:
            return None
        (length,) = FRAME_LENGTH.unpack(prefix)
        assert length <= FRAME_BYTES_MAX
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes | None:
        received = b""
        while len(received) < count:
            piece = os.read(self._descriptor, count - len(received))
            if not piece:
                return None
            received += piece
        return received

    def send(self, message: Ready | Done | Failed) -> None:
        """Write one frame."""
        frame = self._buffer
        self._encoder.encode_into(message, frame, FRAME_LENGTH.size)
        FRAME_LENGTH.pack_into(frame, 0, len(frame) - FRAME_LENGTH.size)
        with memoryview(frame) as view:
            sent = 0
            while sent < len(view):
                sent += os.write(self._descriptor, view[sent:])
        if len(frame) > 4 * 1024 * 1024:
            self._buffer = bytearray(64 * 1024)


class Held:
    """The most memory that this process has ever held. Made before the child is confined, for it opens a file.

    The kernel's own figure of that begins with what the parent held, so it counts only where it has grown since.
    """

    def __init__(self) -> None:
        self._asked, self._latest_kb = 0, 0
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        self._inherited_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def peak_kb(self) -> int:
        """So far (KB), looked at once in `PEAK_EVERY` answers: it serves to replace children that grew, not to bound."""
        if self._asked % PEAK_EVERY == 0:
            self._latest_kb = self._look()
        self._asked += 1
        return self._latest_kb

    def _look(self) -> int:
        peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if peak_kb > self._inherited_kb:
            return peak_kb
        own = _OWN_PEAK.search(os.pread(self._status, 4096, 0))
        return int(own[1]) if own is not None else peak_kb


class Reader:
    """The registry of readers under the clocks of one page."""

    def __init__(self, setup: Setup, memory_descriptor: int) -> None:
        self._cpu_s = setup.limits.cpu_s
        self._registry = Registry(setup.limits, setup.settings)
        self._memory = mmap.mmap(memory_descriptor, setup.shared_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        self._held = Held()

    @property
    def generation(self) -> int:
        """Extraction generation of everything this child returns."""
        return self._registry.generation

    def read(self, task: Task) -> Done | Failed:
        """Read one answer; over its CPU time the process dies by SIGPROF, which the pool understands."""
        signal.setitimer(signal.ITIMER_PROF, self._cpu_s)
        try:
            return self._read(task)
        except MemoryError:
            return Failed(task.number, "memory", "allocation refused", self._held.peak_kb())
        except Exception as error:
            # A fault in one reader is a fact about this page; the child itself is unharmed.
            return Failed(
                task.number, "internal", f"{type(error).__name__}: {error}"[:300], self._held.peak_kb()
            )
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _read(self, task: Task) -> Done | Failed:
        body = self._memory[: task.body_bytes]
        reading = self._registry.read(Answer(task.url, task.kind, task.status, task.head, body, task.cut))
        if isinstance(reading, Undecodable):
            return Failed(task.number, "decode", f"{reading.reason}: {reading.detail}", self._held.peak_kb())
        main = None if reading.main is reading.text else reading.main
        return Done(task.number, reading.manifest, reading.text, main, self._held.peak_kb())

    def warm_up(self) -> None:
        """Use every reader, decoder and codec once: what they open, they open now."""
        for name in QUERY_CODECS:
            "é".encode(name, "replace")
            codecs.getincrementaldecoder(name)
        for coding, media, body in _warm_up_bodies():
            head = b"HTTP/1.1 200 OK\r\ncontent-encoding: %s\r\ncontent-type: %s\r\n\r\n" % (coding, media)
            for kind in UrlKind:
                self._registry.read(Answer(_WARM_UP_URL, kind, 200, head, body))


def _warm_up_bodies() -> Iterator[tuple[bytes, bytes, bytes]]:
    """(content coding, media type, body) of answers that between them need all of the readers."""
    page = b"<!doctype html><title>w</title><a href=/w rel=nofollow>" + b"word " * 40 + b"\xe9"
    for media in (b"text/html", b"text/html; charset=shift_jis", b"text/plain", b""):
        yield b"identity", media, page
    for encoding in (b"utf-8", b"windows-1251", b"nonsense"):
        declaration = b'<?xml version="1.0" encoding="%s"?>' % encoding
        yield (
            b"identity",
            b"text/xml",
            declaration + b"<rss><channel><item><link>http://w/</link></item></channel></rss>",
        )
        yield b"identity", b"text/xml", declaration + b"<urlset><url><loc>http://w/</loc></url></urlset>"
    yield b"gzip", b"text/html", gzip.compress(page)
    yield b"gzip", b"text/html", gzip.compress(page)[:-9] + b"broken---"
    yield b"deflate", b"text/html", zlib.compress(page)
    yield b"br", b"text/html", brotli.compress(page)
    yield b"br", b"text/html", brotli.compress(page)[:-3]
    yield b"zstd", b"text/html", zstandard.compress(page)


def serve(socket_descriptor: int, memory_descriptor: int) -> None:
    """Set up, confine, then serve until the socket closes."""
    channel = Channel(socket_descriptor)
    frame = channel.receive()
    if frame is None:
        return
    setup = msgspec.msgpack.decode(frame, type=Setup)
    confine.die_with_parent(setup.parent_pid)
    # What a terminal or a service manager sends to all processes is for the agent, which ends its children itself.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    reader = Reader(setup, memory_descriptor)
    reader.warm_up()
    tasks = msgspec.msgpack.Decoder(Task)
    holding, missing = confine.confine(setup.limits.memory_bytes_max)
    gc.collect()
    gc.freeze()
    gc.disable()
    modules = sorted(sys.modules) if setup.self_test else []
    denied = self_test.attempts() if setup.self_test else {}
    channel.send(Ready(reader.generation, holding, missing, modules, denied))
    count = 0
    while (frame := channel.receive()) is not None:
        channel.send(reader.read(tasks.decode(frame)))
        count += 1
        if count % PAGES_PER_COLLECTION == 0:
            gc.collect()
