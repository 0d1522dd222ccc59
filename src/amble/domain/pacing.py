"""How long a commit waits for others, from the number of pages under way. Shared by the store's wire and the archive.

A page passes each of them a few times, so what it waits in all is bounded; many pages under way repay the wait by the
commits that they share.
"""

from __future__ import annotations

from typing import Final

LINGER_S_MAX: Final = 0.040
# The rate of all pages together at which the waits would begin to hold a crawl back.
PAGES_PER_S: Final = 200
PASSES: Final = 4


def linger_s(in_flight: int, *, at_least_s: float) -> float:
    """Seconds to gather for one commit, from `at_least_s` to `LINGER_S_MAX`."""
    return min(LINGER_S_MAX, max(at_least_s, in_flight / (PASSES * PAGES_PER_S)))
