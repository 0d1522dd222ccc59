"""Means over a sample of page fetches, from the rows that `reports` reads. No statement of its own."""

from __future__ import annotations

from typing import Any

from msgspec.msgpack import Decoder

from amble.domain.fetched import Fetched
from amble.domain.report import FetchSample

_decode_answer = Decoder(Fetched).decode


class Means:
    """The sums behind a FetchSample. An origin's attempts together weigh as much as it has pages."""

    def __init__(self) -> None:
        self.origins = self.fetches = 0
        self._sums: dict[str, float] = {}

    def add_origin(self, pages: int, rows: list[Any]) -> None:
        """Attempts of one origin: (duration_ms, status, answer, links)."""
        if not rows:
            return
        self.origins += 1
        self.fetches += len(rows)
        weight = pages / len(rows)
        for duration_ms, status, answer, links in rows:
            self._add(weight, duration_ms, status, answer, links)

    def _add(
        self, weight: float, duration_ms: int, status: int | None, answer: bytes | None, links: int | None
    ) -> None:
        sums = self._sums

        def count(name: str, amount: float) -> None:
            sums[name] = sums.get(name, 0.0) + weight * amount

        count("all", 1)
        if answer is None:
            count("unanswered_ms", duration_ms)
            return
        fetched = _decode_answer(answer)
        count("answered", 1)
        count("errors", status is not None and status >= 400)
        count("answered_ms", duration_ms)
        count("body_bytes", fetched.body_bytes)
        count("wire_bytes", fetched.wire_bytes)
        if links is not None:
            count("parsed", 1)
            count("links", links)

    def sample(self) -> FetchSample:
        """The means."""
        value = self._sums.get
        every, answered = value("all", 0.0), value("answered", 0.0)

        def mean(name: str, over: float) -> float:
            return value(name, 0.0) / over if over else 0.0

        return FetchSample(
            origins=self.origins,
            fetches=self.fetches,
            answered_share=mean("answered", every),
            error_share=mean("errors", every),
            answered_ms=mean("answered_ms", answered),
            unanswered_ms=mean("unanswered_ms", every - answered),
            body_bytes=mean("body_bytes", answered),
            wire_bytes=mean("wire_bytes", answered),
            links=mean("links", value("parsed", 0.0)),
        )
