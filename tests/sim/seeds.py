"""Seeds that once broke a promise: kept, so that what they found stays found. One line says what it was."""

from __future__ import annotations

REGRESSIONS: tuple[tuple[int, str, str], ...] = (
    (
        10,
        "calm",
        "a hop of a redirected robots.txt started a few ms closer to the last one than the spacing allows",
    ),
    (8, "default", "the same under faults: the answer to a reservation may be late by much more than ms"),
    (25, "hostile", "the same with an operator's settings at work"),
    (
        19,
        "hostile",
        "an owner died just after a request that began long after its grant; the next one started at once",
    ),
    (
        1810,
        "default",
        "three sites whose robots.txt could never be had kept a crawl waiting for one or another of them without end",
    ),
)
