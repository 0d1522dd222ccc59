"""Where things lie in an archive on object storage: every key, and how serials are read back from keys.

    segments/2a/amble-0000000042.warc.gz             one segment, as an agent put it; the key follows from the serial
    large/amble-0000000077-5f3a….warc.gz, ….cdxj     many segments compacted into one, and its index
    maps/0000000003.json                             which segments the compaction number 3 moved, and where to
    checkpoints/0000000127.json                      all maps up to number 127 in one
    claims/00000005                                  a block of serials, where no database gives them out
    probe                                            an object that is put to see whether putting works

Segments are spread over 256 folders by the low bits of their serial: stores split their load by key, and the newest
segments, which are read most, would all be neighbours.
"""

from __future__ import annotations

import re

SERIAL_MAX = 0xFFFF_FFFF  # a BodyRef keeps serials, and lengths, in 32 bits
SEGMENTS, LARGE, MAPS, CHECKPOINTS, CLAIMS = "segments", "large", "maps", "checkpoints", "claims"
PROBE = "probe"

_SEGMENT = re.compile(r"segments/[0-9a-f]{2}/amble-(?P<serial>\d{10})\.warc\.gz\Z")
_NUMBER = re.compile(r"(?:maps|checkpoints|claims)/(?P<number>\d+)(?:\.json)?\Z")


def segment_key(serial: int) -> str:
    """The key of the segment as an agent put it."""
    return f"{SEGMENTS}/{serial & 0xFF:02x}/amble-{serial:010d}.warc.gz"


def serial_of(key: str) -> int | None:
    """The serial of a segment by its key; None for a key that is no segment's."""
    match = _SEGMENT.match(key)
    serial = int(match["serial"]) if match else 0
    return serial if 0 < serial <= SERIAL_MAX and segment_key(serial) == key else None


def large_key(serial: int, token: bytes) -> str:
    """The key of a compacted segment. The random part keeps two compactors from ever writing the same object."""
    return f"{LARGE}/amble-{serial:010d}-{token.hex()}.warc.gz"


def index_key(key: str) -> str:
    """The key of the index beside a compacted segment."""
    return key.removesuffix(".warc.gz") + ".cdxj"


def file_name(key: str) -> str:
    """The name that a segment states of itself, and under which index lines know it."""
    return key.rpartition("/")[2]


def map_key(number: int) -> str:
    """The key of a compaction map."""
    return f"{MAPS}/{number:010d}.json"


def checkpoint_key(number: int) -> str:
    """The key of all maps up to and including `number`."""
    return f"{CHECKPOINTS}/{number:010d}.json"


def claim_key(number: int) -> str:
    """The key by which a block of serials is claimed."""
    return f"{CLAIMS}/{number:08d}"


def number_of(key: str) -> int | None:
    """The number in the key of a map, checkpoint or claim."""
    match = _NUMBER.match(key)
    return int(match["number"]) if match else None
