"""An S3 server on loopback for tests: a real one in a process of its own, behind a proxy that checks and spoils.

The server (the package `localbucket`: objects are files, conditional create is atomic, ranges, listing, multipart) keeps
what it was given over a kill. It believes every caller, so the proxy before it verifies each signature (SigV4) as S3
does, counts requests, and makes the trouble that it is told to make.

    async with S3Server.start(tmp_path) as s3:
        archive = open_archive_url(s3.url("crawl"), ..., environment=s3.environment())
        s3.fail("lost", method="PUT", count=1)
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

ACCESS_KEY = "AKIATESTTESTTESTTEST"
SECRET_KEY = "a-secret-that-no-log-may-show"
REGION = "us-east-1"
BUCKET = "bucket"

_STREAM_LIMIT = 1 << 20
_CREDENTIAL = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>[^,]+), ?"
    r"SignedHeaders=(?P<signed>[^,]+), ?Signature=(?P<signature>[0-9a-f]{64})\Z"
)

# What can go wrong with a request, as words of `S3Server.fail`:
#   error  the proxy answers `status` and `code` by itself, the server hears nothing of it
#   cut    the connection ends before the server hears of the request
#   lost   the server carries the request out, then the connection ends without an answer
#   stall  the request is held until `heal`, then the connection ends; the server hears nothing of it
#   stored-error  the server carries the request out, the caller is told `status` and `code`
#   overwrite  a condition (If-None-Match) is not passed on, as by a store that does not know it
KINDS = ("error", "cut", "lost", "stall", "stored-error", "overwrite")


@dataclass(slots=True)
class Fault:
    """Trouble for the next `count` requests (-1: until healed) that fit; `happened` says how often it struck."""

    kind: str
    method: str = ""
    key: str = ""  # a part of the key
    count: int = 1
    status: int = 503
    code: str = "SlowDown"
    skip: int = 0  # so many fitting requests pass first
    happened: int = 0

    def strikes(self, request: _Request) -> bool:
        """Whether this request is hit; counts."""
        if self.count == 0 or self.method not in ("", request.method) or self.key not in request.path:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.count -= self.count > 0
        self.happened += 1
        return True


@dataclass(frozen=True, slots=True)
class Call:
    """One request as the proxy saw it; `status` 0: the caller got no answer."""

    method: str
    key: str
    query: str
    status: int
    sent_bytes: int


@dataclass(slots=True)
class _Request:
    method: str
    target: str
    headers: dict[str, str]
    head: bytes
    body: bytes

    @property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]


@dataclass(slots=True)
class S3Server:
    """A running server with its proxy. Methods may be called from any thread."""

    root: Path
    endpoint: str = ""
    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    delay_s: float = 0.0
    at_once_max: int = 0  # requests that were under way together
    _at_once: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _backend: int = 0
    _loop: asyncio.AbstractEventLoop | None = None
    _healed: asyncio.Event | None = None

    @classmethod
    @contextlib.contextmanager
    def running(cls, root: Path) -> Iterator[S3Server]:
        """Serve the folder `root`, with one bucket in it, until the block ends. Blocks while starting and ending."""
        server = cls(root)
        (root / BUCKET).mkdir(parents=True, exist_ok=True)
        server.start_process()
        ready = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(server._serve(ready)), daemon=True)
        thread.start()
        ready.wait()
        try:
            yield server
        finally:
            server._in_loop(server._stop)
            thread.join()
            server.kill()

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, root: Path) -> AsyncIterator[S3Server]:
        """As `running`, from an event loop."""
        held = cls.running(root)
        server = await asyncio.to_thread(held.__enter__)
        try:
            yield server
        finally:
            await asyncio.to_thread(held.__exit__, None, None, None)

    # -- what a test needs ---------------------------------------------------------------------------------------------

    def url(self, prefix: str = "crawl", bucket: str = BUCKET) -> str:
        """The URL of an archive in the bucket."""
        return f"s3://{bucket}/{prefix}?endpoint={quote(self.endpoint, safe='')}&region={REGION}"

    @staticmethod
    def environment() -> dict[str, str]:
        """Variables that let a process in."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}

    def fail(self, kind: str, **which: object) -> Fault:
        """Spoil the next requests that fit; see `Fault`."""
        if kind not in KINDS:
            raise ValueError(f"no such trouble: {kind}")
        fault = Fault(kind, **which)  # type: ignore[arg-type]
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """End all trouble; requests that are held end without an answer."""
        self.faults.clear()
        self._in_loop(self._release)

    def keys(self, prefix: str = "", bucket: str = BUCKET) -> list[str]:
        """The keys of all objects that begin so, from the folder itself."""
        base = self.root / bucket
        names = (path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file())
        return sorted(
            name for name in names if name.startswith(prefix) and not Path(name).name.startswith(".")
        )

    def path(self, key: str, bucket: str = BUCKET) -> Path:
        """The file of an object: to read it, or to damage it."""
        return self.root / bucket / key

    def count(self, method: str, part: str = "") -> int:
        """How many such requests there were."""
        return sum(call.method == method and part in call.key for call in self.calls)

    def start_process(self) -> None:
        """Start the server itself. Blocks until it listens."""
        process = subprocess.Popen(
            [sys.executable, __file__, str(self.root)],
            stdin=subprocess.PIPE,  # its end tells the server that the tests are gone, however they went
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        process.stdout.close()
        if not line:
            raise RuntimeError(f"the S3 server ended with {process.wait()}")
        self._process, self._backend = process, int(line)

    def kill(self) -> None:
        """kill -9 the server; the proxy then refuses. `start_process` brings it back with everything it had stored."""
        process, self._process, self._backend = self._process, None, 0
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    # -- the proxy -----------------------------------------------------------------------------------------------------

    def _in_loop(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(call)

    def _release(self) -> None:
        assert self._healed is not None
        self._healed.set()
        self._healed = asyncio.Event()

    def _stop(self) -> None:
        self._release()
        for task in asyncio.all_tasks():
            task.cancel()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._healed = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=_STREAM_LIMIT)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        with contextlib.suppress(asyncio.CancelledError):
            async with server:
                await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read_request(reader)) is not None:
                self._at_once += 1
                self.at_once_max = max(self.at_once_max, self._at_once)
                try:
                    answer = await self._answer(request)
                finally:
                    self._at_once -= 1
                status = int(answer[9:12]) if answer else 0
                key = request.path.lstrip("/").partition("/")[2]
                self.calls.append(Call(request.method, key, request.query, status, len(request.body)))
                if not answer:
                    writer.transport.abort()
                    return
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: _Request) -> bytes:
        """The bytes to answer with; none: the connection just ends."""
        refusal = _signature_problem(request)
        if refusal:
            return _error(403, *refusal)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        fault = next((fault for fault in self.faults if fault.strikes(request)), None)
        match fault:
            case None:
                return await self._forward(request)
            case Fault(kind="error"):
                return _error(fault.status, fault.code, "as it was told to")
            case Fault(kind="stall"):
                assert self._healed is not None
                await self._healed.wait()
                return b""
            case Fault(kind="cut"):
                return b""
            case Fault(kind="overwrite"):
                request.head = re.sub(rb"\r\nif-none-match:[^\r]*", b"", request.head, flags=re.IGNORECASE)
                return await self._forward(request)
            case _:
                await self._forward(request)
                return _error(fault.status, fault.code, "late") if fault.kind == "stored-error" else b""

    async def _forward(self, request: _Request) -> bytes:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._backend, limit=_STREAM_LIMIT)
        except OSError:
            return b""
        try:
            writer.write(request.head + request.body)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0 if request.method == "HEAD" else int(_headers(head).get("content-length", "0"))
            return head + await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            return b""
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> _Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    headers = _headers(head)
    method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return _Request(method, target, headers, head, body)


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:-2]
    pairs = (line.partition(":") for line in lines)
    return {name.lower(): value.strip() for name, _, value in pairs}


def _error(status: int, code: str, message: str, more: str = "") -> bytes:
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"
    ).encode()
    head = f"HTTP/1.1 {status} Error\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _signature_problem(request: _Request) -> tuple[str, str, str] | None:
    """Code, message and further elements of the refusal, as S3 words them; None: the signature is right."""
    found = _CREDENTIAL.match(request.headers.get("authorization", ""))
    if found is None:
        return "AccessDenied", "Access Denied", ""
    if found["key"] != ACCESS_KEY:
        more = f"<AWSAccessKeyId>{found['key']}</AWSAccessKeyId>"
        return "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.", more
    stated = request.headers.get("x-amz-content-sha256", "")
    if stated != "UNSIGNED-PAYLOAD" and stated != hashlib.sha256(request.body).hexdigest():
        return "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match.", ""
    signed = found["signed"].split(";")
    canonical = "\n".join(
        [
            request.method,
            request.target.partition("?")[0],
            "&".join(
                sorted(part if "=" in part else f"{part}=" for part in request.query.split("&") if part)
            ),
            *(f"{name}:{request.headers.get(name, '')}" for name in signed),
            "",
            found["signed"],
            stated,
        ]
    )
    text = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            request.headers.get("x-amz-date", ""),
            found["scope"],
            hashlib.sha256(canonical.encode()).hexdigest(),
        ]
    )
    key = b"AWS4" + SECRET_KEY.encode()
    for part in (*found["scope"].split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    if not hmac.compare_digest(key.hex(), found["signature"]):
        more = f"<AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId><StringToSign>{text}</StringToSign>"
        return "SignatureDoesNotMatch", "The request signature we calculated does not match.", more
    return None


def main(root: str) -> None:
    """The server process: says its port, then serves until it is killed."""
    from localbucket import S3Handler

    class Handler(S3Handler):  # type: ignore[misc]
        disable_nagle_algorithm = True  # headers and body are written apart
        data_root = Path(root)

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    def end_with_the_tests() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=end_with_the_tests, daemon=True).start()
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
