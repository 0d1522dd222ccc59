"""One bucket and prefix through obstore: the few operations the archive needs, bounded in time, with readable errors.

No message of the store is passed on whole: S3 repeats key ids and signed texts in its errors. Writes are never repeated
in here, since after an error nobody knows whether they were carried out; who writes decides. Reads and deletes are
repeated by obstore, a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any

from amble.domain.errors import ArchiveUnavailable, ConfigErrors

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PIECE_BYTES = 8 << 20  # of comparisons and of parts of uploads
_FETCH_BYTES = 16 << 20  # a segment in one request
_UPLOADS_AT_ONCE = 2

_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_KIND = re.compile(r"kind: (Timeout|Connect|Request|Interrupted|Decode)\b")
_OUT_OF_RANGE = re.compile(r"InvalidRange|StartTooLarge|status code: 416")
_OS_ERROR = re.compile(r"([A-Z][A-Za-z ,'-]{2,80}) \(os error \d+\)")

_METADATA_SERVICE = "169.254."

_REASONS = {
    "NoSuchBucket": "the bucket does not exist: create it, or correct its name in the URL",
    "AccessDenied": "access is denied: the credentials need s3:PutObject, s3:GetObject and s3:ListBucket here",
    "InvalidAccessKeyId": "the store does not know this access key: check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong: check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired: renew AWS_SESSION_TOKEN",
    "InvalidToken": "the session token is not valid: renew AWS_SESSION_TOKEN",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it by NTP",
    "PermanentRedirect": "the bucket is in another region: add ?region=… to the URL",
    "AuthorizationHeaderMalformed": "the region is wrong: add ?region=… to the URL",
    "IllegalLocationConstraintException": "the region is wrong: add ?region=… to the URL",
    "SlowDown": "the store asks to slow down",
    "EntityTooLarge": "the object is larger than the store takes",
    "QuotaExceeded": "the quota of the bucket is used up",
}
# The store said no, and will say no again until somebody changes something.
_REFUSALS = frozenset(_REASONS) - {"SlowDown"}


class ObjectTrouble(ArchiveUnavailable):
    """The store did not do it. `refused`: it said no, so nothing was changed and repeating it now is useless.

    Otherwise nobody knows whether it was carried out.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class ObjectSeen:
    """An object in a listing. `modified_s`: when it was completed, by the store's clock (s since 1970)."""

    key: str
    size: int
    modified_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTimes:
    """Bounds of one request: whole (with its body), for connecting, and the repeats of a read."""

    request_s: float = 30.0
    connect_s: float = 5.0
    read_repeats: int = 3
    read_total_s: float = 60.0

    def client(self) -> dict[str, Any]:
        """As obstore takes it."""
        return {
            "timeout": timedelta(seconds=self.request_s),
            "connect_timeout": timedelta(seconds=self.connect_s),
        }

    def repeats(self, count: int) -> dict[str, Any]:
        """As obstore takes it."""
        backoff = {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=2),
            "base": 2,
        }
        return {
            "max_retries": count,
            "retry_timeout": timedelta(seconds=self.read_total_s),
            "backoff": backoff,
        }


def library() -> Any:
    """The module obstore. Raises ConfigErrors when it is not installed: only archives on object storage need it."""
    try:
        import obstore
    except ImportError:
        fix = "an archive on object storage needs the package obstore: pip install 'amble[fleet]'"
        raise ConfigErrors([fix]) from None
    return obstore


class Bucket:
    """A bucket with a prefix. `writes` repeats nothing, `reads` a little; `place` is its name in messages.

    Methods whose name ends in `_now` block and may be called from any thread, also beside others.
    """

    def __init__(self, writes: ObjectStore, reads: ObjectStore, place: str) -> None:
        self._obs = library()
        self._writes = writes
        self._reads = reads
        self.place = place

    # -- from the event loop -------------------------------------------------------------------------------------------

    async def create(self, key: str, data: bytes) -> bool:
        """Put a new object; False if there is one already, which stays as it is. Raises ObjectTrouble."""
        try:
            await self._obs.put_async(self._writes, key, data, mode="create", use_multipart=False)
        except Exception as error:
            return self._created(error)
        return True

    async def replace(self, key: str, data: bytes) -> None:
        """Put an object over whatever is there. Raises ObjectTrouble."""
        try:
            await self._obs.put_async(self._writes, key, data, use_multipart=False)
        except Exception as error:
            raise self._trouble(error) from None

    async def range(self, key: str, offset: int, length: int) -> bytes | None:
        """Up to `length` bytes from `offset`, fewer at the end; None: no such object. Raises ObjectTrouble."""
        try:
            return bytes(await self._obs.get_range_async(self._reads, key, start=offset, length=length))
        except Exception as error:
            return self._absent(error)

    # -- from a thread -------------------------------------------------------------------------------------------------

    def create_now(self, key: str, data: bytes) -> bool:
        """As `create`."""
        try:
            self._obs.put(self._writes, key, data, mode="create", use_multipart=False)
        except Exception as error:
            return self._created(error)
        return True

    def upload_now(self, key: str, file: IO[bytes]) -> None:
        """Put a large object, in parts. Its key must be one that nobody else can use. Raises ObjectTrouble."""
        try:
            self._obs.put(
                self._reads,  # parts may be repeated: the same bytes at the same place
                key,
                file,
                use_multipart=True,
                chunk_size=PIECE_BYTES,
                max_concurrency=_UPLOADS_AT_ONCE,
            )
        except Exception as error:
            raise self._trouble(error) from None

    def range_now(self, key: str, offset: int, length: int) -> bytes | None:
        """As `range`."""
        try:
            return bytes(self._obs.get_range(self._reads, key, start=offset, length=length))
        except Exception as error:
            return self._absent(error)

    def get_now(self, key: str) -> bytes | None:
        """A whole small object; None: no such object. Raises ObjectTrouble."""
        try:
            return bytes(self._obs.get(self._reads, key).bytes())
        except Exception as error:
            return self._absent(error)

    def fetch_now(self, key: str, file: IO[bytes]) -> bool:
        """Write a whole object to `file`, piece by piece; False: no such object. Raises ObjectTrouble, OSError."""
        at = 0
        while True:
            piece = self.range_now(key, at, _FETCH_BYTES)
            if piece is None:
                return False
            file.write(piece)
            at += len(piece)
            if len(piece) < _FETCH_BYTES:
                return True

    def same_now(self, key: str, data: bytes) -> bool | None:
        """Whether the object is exactly `data`; None: no such object. Raises ObjectTrouble."""
        if (size := self.size_now(key)) is None:
            return None
        if size != len(data):
            return False
        for at in range(0, len(data), PIECE_BYTES):
            piece = self.range_now(key, at, PIECE_BYTES)
            if piece is None or piece != data[at : at + PIECE_BYTES]:
                return False
        return True

    def size_now(self, key: str) -> int | None:
        """Bytes of an object; None: no such object. Raises ObjectTrouble."""
        try:
            return int(self._obs.head(self._reads, key)["size"])
        except Exception as error:
            self._absent(error)
            return None

    def list_now(self, folder: str, after: str = "") -> Iterator[ObjectSeen]:
        """All objects of a folder, in order of their keys where the store keeps one. Raises ObjectTrouble."""
        try:
            pages = self._obs.list(self._reads, folder, offset=after or None)
            for page in pages:
                for seen in page:
                    yield ObjectSeen(seen["path"], seen["size"], seen["last_modified"].timestamp())
        except FileNotFoundError as error:
            self._absent(error)
        except Exception as error:
            raise self._trouble(error) from None

    def delete_now(self, key: str) -> None:
        """Delete an object; one that is not there is no trouble. Raises ObjectTrouble."""
        try:
            self._obs.delete(self._reads, key)
        except Exception as error:
            self._absent(error)

    # -- errors --------------------------------------------------------------------------------------------------------

    def _created(self, error: Exception) -> bool:
        """False when the object exists, else the trouble is raised."""
        if isinstance(error, self._obs.exceptions.AlreadyExistsError):
            return False
        raise self._trouble(error) from None

    def _absent(self, error: Exception) -> bytes | None:
        """None for no object, nothing for a range behind its end, else the trouble is raised."""
        text = str(error)
        if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
            return None
        if _OUT_OF_RANGE.search(text):
            return b""
        raise self._trouble(error) from None

    def _trouble(self, error: Exception) -> ObjectTrouble:
        """The error in our words. A foreign exception that is none of the store's is passed on."""
        if not isinstance(error, (self._obs.exceptions.BaseError, OSError, ValueError)):
            raise error
        reason, refused = explain(str(error))
        if not reason and isinstance(error, self._obs.exceptions.PermissionDeniedError):
            reason, refused = _REASONS["AccessDenied"], True
        return ObjectTrouble(f"archive {self.place}: {reason or 'the request failed'}", refused=refused)


def explain(text: str) -> tuple[str, bool]:
    """What an error of obstore means to an operator ("" if it cannot be told), and whether the store said no."""
    if _METADATA_SERVICE in text:
        return "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", True
    code = _CODE.search(text)
    if code is not None and code[1] in _REASONS:
        return _REASONS[code[1]], code[1] in _REFUSALS
    status = _STATUS.search(text)
    if status is not None:
        return _explain_status(int(status[1]), code[1] if code else "")
    kind = _KIND.search(text)
    if kind is not None:
        words = {
            "Timeout": "no answer in time",
            "Connect": "no connection: is the endpoint right, is it running?",
        }
        return words.get(kind[1], "the connection broke"), False
    system = _OS_ERROR.search(text)
    return (system[1].strip(), False) if system else ("", False)


def _explain_status(status: int, code: str) -> tuple[str, bool]:
    said = f"{status} {code}".strip()
    if status in (401, 403):
        return (
            f"access is denied ({said}): check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the policy",
            True,
        )
    if 300 <= status < 400:
        return f"the store points elsewhere ({said}): check endpoint and region in the URL", True
    if status in (400, 404, 405, 411, 501):
        return f"the store refuses the request ({said})", True
    return f"the store reports an error ({said})", False
