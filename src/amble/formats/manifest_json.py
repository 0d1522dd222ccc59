"""A parse manifest as the JSON block of a `metadata` record, and back. The main text travels with it."""

from __future__ import annotations

import msgspec

from amble.domain.errors import ArchiveBroken
from amble.domain.manifest import MANIFEST_FORMAT, ParseManifest
from amble.domain.record import StoredRecord

CONTENT_TYPE = "application/vnd.amble.manifest+json"


class StoredManifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the block holds."""

    manifest: ParseManifest
    main_text: str = ""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(StoredManifest)


def encode(manifest: ParseManifest, main: bytes) -> bytes:
    """The block of the `metadata` record; `main` is UTF-8."""
    return _encoder.encode(StoredManifest(manifest=manifest, main_text=main.decode("utf-8", "replace")))


def decode(record: StoredRecord) -> StoredManifest:
    """The manifest of a record read back. Raises ArchiveBroken for anything else."""
    if record.headers.get("Content-Type") != CONTENT_TYPE:
        raise ArchiveBroken(f"record {record.record_id} is no parse manifest")
    try:
        stored = _decoder.decode(record.block)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArchiveBroken(f"manifest {record.record_id} cannot be read: {error}") from error
    if stored.manifest.format > MANIFEST_FORMAT:
        raise ArchiveBroken(f"manifest {record.record_id} was written by a newer amble")
    return stored
