"""From a URL to a bucket: `s3://bucket/prefix?endpoint=…&region=…`, `file:///folder`, `memory:///name`.

Credentials come from the environment (AWS_*), or from the machine's role; never from the URL, which ends up in
configuration files and messages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from amble.adapters.archive.objects import ObjectArchive, ObjectLimits, Serials
from amble.adapters.archive.objects_store import Bucket, StoreTimes, library
from amble.domain.errors import ConfigErrors
from amble.ports import Clock, Entropy

SCHEMES = ("s3", "file", "memory")

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]\Z")
_PREFIX = re.compile(r"[A-Za-z0-9._~/=+-]*\Z")
_OPTIONS = ("endpoint", "region", "virtual-hosted", "anonymous", "unsigned-payload")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
# Any of these means that obstore finds credentials by itself: web identity, or the agent beside a container.
_OTHER_CREDENTIALS = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)

_memory: dict[str, Any] = {}  # what is in memory lives as long as the process, for all who name it


def is_object_url(text: str) -> bool:
    """Whether an archive setting names object storage (and not a folder)."""
    return text.partition("://")[0] in SCHEMES and "://" in text


def open_archive_url(
    url: str,
    clock: Clock,
    entropy: Entropy,
    *,
    serials: Serials | None = None,
    limits: ObjectLimits | None = None,
    info: Mapping[str, str] | None = None,
    times: StoreTimes | None = None,
    environment: Mapping[str, str] | None = None,
) -> ObjectArchive:
    """The archive at `url`. Connects to nothing yet. Raises ConfigErrors with every mistake and its fix."""
    bucket = open_bucket(url, times=times, environment=environment)
    return ObjectArchive(bucket, clock, entropy, serials=serials, limits=limits, info=info)


def open_bucket(
    url: str, *, times: StoreTimes | None = None, environment: Mapping[str, str] | None = None
) -> Bucket:
    """The bucket and prefix at `url`, for reading, checking and compaction. Raises ConfigErrors."""
    library()
    scheme = url.partition("://")[0]
    if "://" not in url or scheme not in SCHEMES:
        raise ConfigErrors(
            [f"archive: {scheme!r} is no scheme of an archive: use s3://, file:/// or memory:///"]
        )
    if scheme == "s3":
        return _s3(url, times or StoreTimes(), os.environ if environment is None else environment)
    path = unquote(urlsplit(url).path)
    if urlsplit(url).netloc or not path.strip("/"):
        raise ConfigErrors([f"archive: write {scheme}:/// and a path, with three slashes"])
    return _file(path) if scheme == "file" else _in_memory(path)


def _file(path: str) -> Bucket:
    from obstore.store import LocalStore

    try:
        store = LocalStore(path, mkdir=True)
    except Exception as error:
        raise ConfigErrors(
            [f"archive: the folder {path} cannot be used: {str(error).splitlines()[0]}"]
        ) from None
    return Bucket(store, store, f"file://{path}")


def _in_memory(path: str) -> Bucket:
    from obstore.store import MemoryStore

    if path not in _memory:
        _memory[path] = MemoryStore()
    return Bucket(_memory[path], _memory[path], f"memory://{path}")


def _s3(url: str, times: StoreTimes, environment: Mapping[str, str]) -> Bucket:
    from obstore.store import S3Store

    problems: list[str] = []
    bucket, prefix, options = _parts(url, problems)
    config = _config(options, environment, problems)
    if problems:
        raise ConfigErrors(problems)
    client = times.client()
    if str(config.get("endpoint", "")).startswith("http://"):
        client["allow_http"] = True

    def store(repeats: int) -> S3Store:
        return S3Store(
            bucket,
            prefix=prefix or None,
            config=config,  # type: ignore[arg-type]
            client_options=client,  # type: ignore[arg-type]
            retry_config=times.repeats(repeats),  # type: ignore[arg-type]
        )

    return Bucket(store(0), store(times.read_repeats), f"s3://{bucket}/{prefix}".rstrip("/"))


def _parts(url: str, problems: list[str]) -> tuple[str, str, dict[str, str]]:
    """Bucket, prefix and options of the URL."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        problems.append(
            "archive: credentials do not belong into the URL: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
        return "", "", {}
    bucket, prefix = parts.netloc, unquote(parts.path).strip("/")
    if not _BUCKET_NAME.match(bucket):
        problems.append(f"archive: {bucket!r} is no name of a bucket: write s3://bucket/prefix")
    if not _PREFIX.match(prefix) or any(part in ("", ".", "..") for part in prefix.split("/") if prefix):
        problems.append("archive: the prefix may have letters, digits and . _ ~ / = + - only")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    problems += [
        f"archive: {name!r} is no option of the URL: there are {', '.join(_OPTIONS)}"
        for name in options.keys() - set(_OPTIONS)
    ]
    return bucket, prefix, options


def _config(
    options: Mapping[str, str], environment: Mapping[str, str], problems: list[str]
) -> dict[str, Any]:
    """Everything for obstore, said outright, so that nothing depends on what it reads by itself."""
    config: dict[str, Any] = {
        "region": options.get("region") or _first(environment, _REGIONS) or "us-east-1",
        # One request for one object: few stores beside S3 know the call for many.
        "disable_bulk_delete": True,
        "virtual_hosted_style_request": _flag(options, "virtual-hosted", problems),
        "unsigned_payload": _flag(options, "unsigned-payload", problems),
    }
    endpoint = options.get("endpoint") or _first(environment, _ENDPOINTS)
    if endpoint:
        if not re.match(r"https?://[^/@\s]+(/|\Z)", endpoint):
            problems.append(
                "archive: the endpoint must be a URL without credentials: http://host:port or https://host"
            )
        config["endpoint"] = endpoint.rstrip("/")
    if _flag(options, "anonymous", problems):
        config["skip_signature"] = True
        return config
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if bool(key) != bool(secret):
        problems.append("archive: set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither")
    elif key:
        config["access_key_id"], config["secret_access_key"] = key, secret
        if token := environment.get("AWS_SESSION_TOKEN"):
            config["session_token"] = token
    elif endpoint and not _first(environment, _OTHER_CREDENTIALS):
        problems.append(
            f"archive: no credentials for {endpoint}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "(the files of the AWS command line are not read)"
        )
    return config


def _flag(options: Mapping[str, str], name: str, problems: list[str]) -> bool:
    value = options.get(name, "false")
    if value not in ("true", "false"):
        problems.append(f"archive: {name} is true or false, not {value!r}")
    return value == "true"


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")
