"""How fast a crawl goes now: pages per second over the last few seconds, which falls to nothing when nothing comes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 5.0
STEP_S = 0.5


@dataclass(slots=True)
class Pace:
    """Fed with the count of pages so far; times are monotonic seconds."""

    _noted: deque[tuple[float, int]] = field(default_factory=deque)
    _last: int = 0
    _of: tuple[int, ...] = ()

    def note(self, now_s: float, pages: int, of: tuple[int, ...] = ()) -> None:
        """`pages` have been fetched by now in the partitions `of`. May be called at any rate; one note each STEP_S is kept.

        Pages of a partition that was taken or given away were not fetched just now, so the count begins anew.
        """
        if of != self._of or pages < self._last:
            self._of = of
            self._noted.clear()
        self._last = pages
        if self._noted and now_s - self._noted[-1][0] < STEP_S:
            return
        self._noted.append((now_s, pages))
        # The one before the window stays: it says how many there were when the window began.
        while len(self._noted) > 1 and now_s - self._noted[1][0] >= WINDOW_S:
            self._noted.popleft()

    def per_s(self, now_s: float) -> float:
        """Pages per second from the beginning of the window until now; 0 before anything is known."""
        began = next((item for item in reversed(self._noted) if now_s - item[0] >= WINDOW_S), None)
        if began is None and self._noted:
            began = self._noted[0]
        if began is None or now_s <= began[0]:
            return 0.0
        # Notes stop while nothing is leased: what came after such a gap did not come slowly during it.
        return (self._last - began[1]) / min(now_s - began[0], WINDOW_S + STEP_S)
