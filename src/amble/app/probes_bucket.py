"""The composition root of `amble doctor` for object storage: does the bucket of `archive.url` do what an archive needs?

Writes one small object under a name of its own, reads it, and deletes it.
"""

from __future__ import annotations

import time
import uuid

from amble.adapters.archive.objects_open import open_bucket
from amble.adapters.archive.objects_store import Bucket, ObjectTrouble, StoreTimes
from amble.app.findings import Finding, good, note, problem
from amble.domain.errors import ConfigErrors

FOLDER = "doctor"
FIRST, SECOND = b"amble doctor was here", b"and must not be here twice"
# Requests are refused by S3 when clocks are a quarter of an hour apart.
CLOCKS_APART_MAX_S = 60.0
_TIMES = StoreTimes(request_s=10.0, read_repeats=1, read_total_s=15.0)


def bucket(url: str) -> list[Finding]:
    """What is to be said of the storage, one finding for each thing it must be able to do."""
    try:
        opened = open_bucket(url, times=_TIMES)
    except ConfigErrors as error:
        return [problem("bucket", "; ".join(error.problems), "mend archive.url or the AWS_ variables")]
    key = f"{FOLDER}/{uuid.uuid4().hex}"
    began_s = time.time()
    try:
        opened.create_now(key, FIRST)
    except ObjectTrouble as trouble:
        fix = (
            "let these credentials get, put, list and delete in the bucket, or mend them"
            if trouble.refused
            else "mend the network, the endpoint or the clock of this machine"
        )
        return [problem("bucket", f"{opened.place}: nothing can be put there: {trouble}", fix)]
    findings = [good("bucket", f"{opened.place} answers and takes objects")]
    try:
        findings += [_condition(opened, key), _range(opened, key), _clock(opened, key, began_s)]
    except ObjectTrouble as trouble:
        findings.append(
            problem("bucket: reading", str(trouble), "let these credentials get and list objects")
        )
    return [*findings, _delete(opened, key)]


def _condition(opened: Bucket, key: str) -> Finding:
    name = "bucket: conditions"
    fix = "use a store that honours If-None-Match: *, or a newer version of it; two agents could overwrite each other"
    try:
        twice = opened.create_now(key, SECOND)
    except ObjectTrouble as trouble:
        return problem(name, f"a put with a condition fails: {trouble}", fix)
    if twice:
        return problem(name, "an object was put over another in spite of the condition", fix)
    return good(name, "an object that exists is not put again")


def _range(opened: Bucket, key: str) -> Finding:
    part = opened.range_now(key, 6, 6)
    # What a second put has done to it is told elsewhere.
    if part in (FIRST[6:12], SECOND[6:12]):
        return good("bucket: ranges", "a part of an object can be read")
    told = "nothing" if part is None else f"{len(part)} bytes, not those"
    return problem(
        "bucket: ranges", f"6 bytes were asked for, it gave {told}", "use a store that knows Range"
    )


def _clock(opened: Bucket, key: str, began_s: float) -> Finding:
    name = "bucket: clock"
    seen = next((item for item in opened.list_now(FOLDER) if item.key.endswith(key)), None)
    if seen is None:
        return problem(
            name, "an object that was put is not listed", "use a store whose listings are consistent"
        )
    now_s = time.time()
    # A second, because stores tell whole ones.
    apart_s = max(began_s - 1 - seen.modified_s, seen.modified_s - now_s - 1, 0.0)
    detail = f"{apart_s:.0f} s apart from this machine"
    if apart_s > CLOCKS_APART_MAX_S:
        return note(name, detail, "let both follow a time server: requests are refused when it is 15 minutes")
    return good(name, detail)


def _delete(opened: Bucket, key: str) -> Finding:
    name = "bucket: deleting"
    try:
        opened.delete_now(key)
        left = opened.size_now(key)
    except ObjectTrouble as trouble:
        return note(
            name, f"{key} could not be deleted: {trouble}", "only `amble gc` needs it: allow s3:DeleteObject"
        )
    if left is not None:
        return note(name, f"{key} is there after it was deleted", "`amble gc` would free no room")
    return good(name, "an object can be deleted")
