"""How single answers look to people."""

from __future__ import annotations

import pytest

from amble.domain.lifecycle import UrlState
from amble.domain.report import UrlLine
from amble.faces.tables import failed_line


def failed(*, tries: int, strikes: int, attempt: int) -> UrlLine:
    return UrlLine(
        url_id=1, url="http://a.test/", state=int(UrlState.FAILED), kind=0, depth=0, hops=0, edge=0, parent=0,
        crawl_generation=1, attempt=attempt, tries=tries, queue_class=None, due_ms=None, admitted_ms=0, fetched_ms=None,
        status=None, reason="parse_failed", detail="", reason_ms=None, policy_version=1, lease_expires_ms=None,
        started_ms=None, content_kind="", canonical="", directives=0, strikes=strikes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tries", "strikes", "attempt", "told"),
    [(3, 0, 3, "3"), (0, 0, 1, "1"), (0, 2, 1, "2"), (0, 0, 0, "0")],
    ids=["never answered", "answered, and not to be parsed", "has ended its parsers", "never asked"],
)
def test_the_tries_of_a_failure_count_also_when_there_was_an_answer(
    tries: int, strikes: int, attempt: int, told: str
) -> None:
    line = failed_line(failed(tries=tries, strikes=strikes, attempt=attempt))
    assert line.split()[:2] == ["parse_failed", told]
