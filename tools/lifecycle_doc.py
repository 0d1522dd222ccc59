"""Writes docs/lifecycle.md: the life of a URL as a diagram and a table, from domain/lifecycle.TRANSITIONS.

`python tools/lifecycle_doc.py` writes the page; with --check it only tells whether it is up to date (exit 1 if not).
"""

from __future__ import annotations

import sys
from pathlib import Path

from amble.domain.lifecycle import FINAL, IN_FLIGHT, TRANSITIONS, UrlEvent, UrlState

PAGE = Path(__file__).parent.parent / "docs" / "lifecycle.md"
_NOTICE = "<!-- Written by tools/lifecycle_doc.py (`make docs`). Change the code, not this page. -->"

_STATES = {
    UrlState.PENDING: "known and queued; it waits for its due time and for its origin's turn",
    UrlState.LEASED: "promised to one worker until a deadline; left alone it lapses",
    UrlState.FETCHED: "the answer of the network is durable in the archive",
    UrlState.PARSED: "the links and facts of the answer are durable; nothing of it can get lost any more",
    UrlState.COMPLETE: "done for this crawl generation, and its links are on their way; perhaps due again",
    UrlState.FAILED: "out of tries, or the failure is one that trying again does not help",
    UrlState.EXCLUDED: "not to be fetched in this crawl generation, with a reason that `why` prints",
}
_EVENTS = {
    UrlEvent.LEASE: "the scheduler gives it to a worker; from a final state this begins the next crawl generation",
    UrlEvent.PUT_BACK: "the gate refused for now; no try is counted",
    UrlEvent.EXPIRE: "the deadline passed without a result",
    UrlEvent.RETRY: "a try failed and another one is worth it",
    UrlEvent.RECORD_FETCHED: "the body is durable",
    UrlEvent.RECORD_PARSED: "the manifest is durable",
    UrlEvent.COMPLETE: "directives, publication and the next due time are written",
    UrlEvent.GIVE_UP: "the last try failed, or the body could not be parsed",
    UrlEvent.EXCLUDE: "robots rules or the destination forbid it",
    UrlEvent.REQUEUE: "an operator or upkeep wants it again",
}


def page() -> str:
    """The whole page."""
    return "\n".join([_NOTICE, "", *_head(), *_diagram(), *_states(), *_transitions()])


def _head() -> list[str]:
    return [
        "# The life of a URL",
        "",
        "One table in `src/amble/domain/lifecycle.py` says which event is allowed in which state and where it leads.",
        "The guards of every SQL statement are expanded from it, the tests walk all of it, and this page is drawn from it.",
        "An event that the table does not list for a state is answered as stale and changes nothing.",
        "",
    ]


def _diagram() -> list[str]:
    arrows: dict[tuple[UrlState, UrlState], list[str]] = {}
    for event, moves in TRANSITIONS.items():
        for source, target in moves.items():
            arrows.setdefault((source, target), []).append(event.value)
    return [
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> PENDING: admitted",
        *(
            f"    {source.name} --> {target.name}: {', '.join(events)}"
            for (source, target), events in sorted(arrows.items())
        ),
        "```",
        "",
    ]


def _states() -> list[str]:
    rows = []
    for state in UrlState:
        sort = "in flight" if state in IN_FLIGHT else "final" if state in FINAL else "queued"
        rows.append(f"| {state.name} | {int(state)} | {sort} | {_STATES[state]} |")
    return ["## States", "", "| state | stored as | sort | meaning |", "|---|--:|---|---|", *rows, ""]


def _transitions() -> list[str]:
    header = "| event | " + " | ".join(state.name for state in UrlState) + " | when |"
    rule = "|---" * (len(UrlState) + 2) + "|"
    rows = []
    for event, moves in TRANSITIONS.items():
        cells = [moves[state].name if state in moves else "" for state in UrlState]
        rows.append(f"| {event.value} | " + " | ".join(cells) + f" | {_EVENTS[event]} |")
    return [
        "## Events",
        "",
        "Each column is the state before, each cell the state after.",
        "",
        header,
        rule,
        *rows,
        "",
    ]


def stale() -> bool:
    """Whether the page in docs/ differs from what the code says."""
    return not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()


def main() -> int:
    """Write the page, or check it."""
    if "--check" in sys.argv[1:]:
        if stale():
            print("docs/lifecycle.md is out of date: run `make docs`")
        return int(stale())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
