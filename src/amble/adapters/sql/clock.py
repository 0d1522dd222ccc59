"""The store's clock: milliseconds that never go backwards and that no step of the wall clock can move.

It reads CLOCK_BOOTTIME, which runs on through suspend, and counts from an anchor: at the first open the wall clock,
later the mark that every commit writes beside its data. On the same boot the count continues from the mark by the
time that really passed, so a wall clock stepped by an hour changes nothing while the store runs nor over a restart.
After a reboot the anchor is the later of wall clock and mark. A wall clock that was wrong at the first open is
therefore followed only at the next reboot, and only forwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from amble.adapters.sql.connection import Database

_READ = "SELECT now_ms, boot_ms, boot_id FROM clock WHERE id = 1"
_WRITE = "UPDATE clock SET now_ms = ?1, boot_ms = ?2, boot_id = ?3 WHERE id = 1"
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def boot_ms() -> int:
    """Milliseconds since the machine started, suspend included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970 by the wall clock, which people and NTP may step."""
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    """Names this boot of the machine; "" where the kernel does not say."""
    try:
        return _BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class StoreClock:
    """Reads of `now()` never decrease, also over restarts of the store."""

    def __init__(
        self,
        database: Database,
        *,
        now_ms: Callable[[], int] | None = None,
        boot: Callable[[], int] = boot_ms,
        wall: Callable[[], int] = wall_ms,
        boot_name: str | None = None,
    ) -> None:
        """`now_ms` replaces the whole source (virtual time); it is still held to never go back."""
        self._execute = database.execute
        self._boot = boot
        self._boot_id = boot_id() if boot_name is None else boot_name
        mark, mark_boot, mark_boot_id = self._execute(_READ).fetchone()
        self._latest: int = mark
        self._source = now_ms or self._anchored(mark, mark_boot, mark_boot_id, wall)

    def _anchored(
        self, mark: int, mark_boot: int, mark_boot_id: str, wall: Callable[[], int]
    ) -> Callable[[], int]:
        boot, here = self._boot, self._boot()
        same_boot = mark > 0 and mark_boot_id != "" and mark_boot_id == self._boot_id and here >= mark_boot
        anchor = mark + here - mark_boot if same_boot else max(wall(), mark)
        offset = anchor - here
        return lambda: boot() + offset

    def now(self) -> int:
        """Milliseconds; never less than an earlier answer or the stored mark."""
        self._latest = max(self._latest, self._source())
        return self._latest

    def write_mark(self) -> None:
        """Store the mark in the open transaction."""
        self._execute(_WRITE, (self._latest, self._boot(), self._boot_id))
