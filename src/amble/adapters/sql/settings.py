"""What the store itself must know to lease and to admit. Given at open; no setting is stored in the file."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

# A URL id has room for that many origins; several files of one crawl share them evenly.
ORIGIN_IDS: Final = 1 << 27
FILES_MAX: Final = 32
# Redirects of a robots.txt may name origins that nothing is admitted for.
ORIGIN_IDS_SPARE: Final = 1 << 16


class StoreSettings(Struct, frozen=True, kw_only=True):
    """Defaults of an origin without settings of its own, the discovery budget, and the bounds of the file's logs.

    An origin may hold `urls_per_origin_start` URLs plus `urls_per_fetched_page` for each page fetched there, and
    never more than `urls_per_origin_max`. A site may have `origins_per_site_max` origins. `partition` is the one that
    lives in this file.
    """

    partition: int = 0
    # Origins are numbered from the next id on, so that the ids of several files of one crawl differ.
    origin_ids_after: int = 0
    origins_max: int = ORIGIN_IDS - ORIGIN_IDS_SPARE
    default_active_max: int = 1
    default_spacing_ms: int = 2_000
    urls_per_origin_start: int = 20_000
    urls_per_origin_max: int = 1_000_000
    urls_per_fetched_page: int = 50
    origins_per_site_max: int = 1_000
    decisions_max: int = 50_000
    origins_cached_max: int = 50_000
    cache_bytes_max: int = 256 * 1024 * 1024
    # After the deadline of a slot, this much longer until the lease lapses: the result may be on its way.
    lease_grace_ms: int = 15_000
    # A robots.txt that ended without any decision counts as unreachable this long.
    robots_again_ms: int = 3_600_000
    # How long a parse taken over from an earlier life may hold its row.
    resume_hold_ms: int = 600_000
    # A page with so many strikes when its holder has gone away once more ends as parse_failed: see Ownership.adopt.
    strikes_adopted_max: int = 5
    # The digest index of a fleet is apart from its frontiers: where bodies were stored first is not written with FETCHED.
    digests_elsewhere: bool = False


def of_file(settings: StoreSettings, partition: int, files: int) -> StoreSettings:
    """The settings of one of `files` frontier files of a crawl, each of which holds one partition."""
    assert 0 <= partition < files <= FILES_MAX
    if files == 1:
        return settings
    ids = ORIGIN_IDS // FILES_MAX
    return replace(
        settings,
        partition=partition,
        origin_ids_after=partition * ids,
        origins_max=ids - ORIGIN_IDS_SPARE,
    )
