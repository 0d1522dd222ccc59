"""What a running crawl shows: a live panel on a terminal, a plain line now and then elsewhere, JSON lines for programs.

Each of the three is a Display; `faces/run.py` feeds it. The panel has a module of its own (`faces/picture.py`). Drawing reads `Progress` and changes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from amble.app.progress import CrawlResult, Progress, ReasonCount
from amble.domain.decision import Withheld
from amble.domain.policy import Budget
from amble.faces import text
from amble.faces.exits import MEND_UNUSABLE, ExitCode

if TYPE_CHECKING:
    from rich.console import Console

REFRESH_PER_S = 4
LINE_EVERY_S = 5.0

_LIMITS = {
    "": "nothing: as fast as the sites and this machine allow",
    "politeness": "politeness: every origin with work has had its turn and rests",
    "concurrency": "requests at once (--concurrency)",
    "page budget": "the page budget is spent (--pages)",
    "parse_backlog": "the parsers: enough fetched pages wait for them (parse.children)",
    "trouble": "trouble, see below",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is known when a crawl starts."""

    folder: Path
    resumes: bool
    seeds: int
    new_seeds: int
    budget: Budget


class Display(Protocol):
    """Shows one run from its start to its end."""

    def opening(self, folder: Path) -> None:
        """The folder is being opened: locking, recovering and starting parsers takes a moment."""
        ...

    def start(self, start: Start) -> None:
        """The crawl is open."""
        ...

    def show(self, progress: Progress) -> None:
        """One look; called several times a second."""
        ...

    def stopping(self) -> None:
        """The operator asked for a stop."""
        ...

    def end(self, result: CrawlResult, code: ExitCode) -> None:
        """The crawl is over. Called once, also when it ended in trouble."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was. May be called at any time, and twice."""
        ...


def limit_words(progress: Progress) -> str:
    """What holds the rate down now, in words."""
    return _LIMITS.get(progress.binding_limit, text.words(progress.binding_limit))


def waits_words(progress: Progress, most: int = 4) -> str:
    """For what the origins with queued work wait: `12 not yet, 3 backing off`, the most frequent first."""
    ordered = sorted(progress.origins_waiting.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{text.count(number)} {text.waits(reason)}" for reason, number in ordered[:most] if number]
    rest = sum(number for _, number in ordered[most:])
    return ", ".join([*shown, *([f"{text.count(rest)} for other reasons"] if rest else [])])


# --- no terminal -------------------------------------------------------------------------------------------------


class PlainDisplay:
    """One line every five seconds, then the summary: for pipes, logs and --quiet (no lines at all)."""

    def __init__(self, out: IO[str], summary: Summary, *, quiet: bool = False, verbose: bool = False) -> None:
        self._out = out
        self._summary = summary
        self._quiet = quiet
        self._waits_most = 100 if verbose else 3
        self._next_s = LINE_EVERY_S
        self._trouble: str | None = None

    def opening(self, folder: Path) -> None:
        """Told with the start."""

    def start(self, start: Start) -> None:
        """Say where."""
        self._summary.start = start
        verb = "resuming" if start.resumes else "crawling into"
        seeds = text.plural(start.seeds, "seed") + (
            f", {start.new_seeds} new" if start.resumes and start.new_seeds else ""
        )
        self._line(f"amble {verb} {text.safe(str(start.folder))}: {seeds}; Ctrl-C stops cleanly")

    def show(self, progress: Progress) -> None:
        """A line when one is due; trouble and its end are told at once."""
        if progress.trouble != self._trouble:
            self._trouble = progress.trouble
            self._line(f"trouble: {text.safe(progress.trouble)}" if progress.trouble else "trouble is over")
        if progress.elapsed_s < self._next_s:
            return
        self._next_s = progress.elapsed_s + LINE_EVERY_S
        self._line(plain_line(progress, self._waits_most))

    def stopping(self) -> None:
        """Say so."""
        self._line("stopping: finishing what is under way; Ctrl-C again stops at once")

    def end(self, result: CrawlResult, code: ExitCode) -> None:
        """The summary."""
        self._summary.print(result, code)

    def close(self) -> None:
        """Nothing is held."""

    def _line(self, line: str) -> None:
        if not self._quiet:
            print(line, file=self._out, flush=True)


def plain_line(progress: Progress, waits_most: int = 3) -> str:
    """One look as one line."""
    parts = [
        text.clock(progress.elapsed_s),
        f"pages {text.count(progress.pages)} ({text.rate(progress.pages_per_s)})",
        f"queued {text.count(progress.queued)}",
        f"on the wire {text.count(progress.active)}",
        f"failed {text.count(progress.failed)}",
        f"excluded {text.count(progress.excluded)}",
        f"received {text.size(progress.bytes)}",
        f"origins {text.count(progress.origins_ready)} ready",
    ]
    if waits := waits_words(progress, waits_most):
        parts.append(f"waiting {waits}")
    if progress.binding_limit:
        parts.append(f"limit {text.words(progress.binding_limit)}")
    return "  ".join(parts)


# --- programs ----------------------------------------------------------------------------------------------------


class JsonDisplay:
    """JSON lines: `start`, `progress` every five seconds, `stopping`, `result`."""

    def __init__(self, out: IO[str], *, quiet: bool = False) -> None:
        self._out = out
        self._quiet = quiet
        self._next_s = 0.0

    def opening(self, folder: Path) -> None:
        """Told with the start."""

    def start(self, start: Start) -> None:
        """The first line."""
        self._write(
            "start",
            folder=str(start.folder),
            resumes=start.resumes,
            seeds=start.seeds,
            new_seeds=start.new_seeds,
            pages_max=start.budget.pages_max,
            seconds_max=start.budget.seconds_max,
        )

    def show(self, progress: Progress) -> None:
        """A line when one is due."""
        if progress.elapsed_s >= self._next_s and not self._quiet:
            self._next_s = progress.elapsed_s + LINE_EVERY_S
            self._write("progress", **asdict(progress))

    def stopping(self) -> None:
        """One line."""
        self._write("stopping")

    def end(self, result: CrawlResult, code: ExitCode) -> None:
        """The last line."""
        self._write("result", **asdict(result), exit_code=int(code))

    def close(self) -> None:
        """Nothing is held."""

    def _write(self, event: str, **facts: Any) -> None:
        line = text.json_line({"event": event, **facts}, getattr(self._out, "encoding", None))
        print(line, file=self._out, flush=True)


# --- the end -----------------------------------------------------------------------------------------------------

_HEADLINES = {
    "finished": "Finished: nothing is left to fetch.",
    "page_budget": "The page budget is spent.",
    "time_budget": "The time budget is spent.",
    "stopped": "Stopped cleanly.",
    "waiting": "Nothing more is due soon.",
    "trouble": "Ended in trouble.",
}
REASONS_SHOWN = 4


class Summary:
    """What is printed when a crawl is over: how it ended, what there is, why things failed, and what to do next."""

    def __init__(self, out: IO[str], console: Console | None = None, *, verbose: bool = False) -> None:
        """`console` is for a terminal; without one the summary is plain lines on `out`."""
        self._out = out
        self._console = console
        self._most = 1_000 if verbose else REASONS_SHOWN
        self.start: Start | None = None

    def print(self, result: CrawlResult, code: ExitCode) -> None:
        """Print it."""
        words, style = self._headline(result, code)
        rows = self._rows(result)
        if self._console is not None:
            self._draw(self._console, words, style, rows)
            return
        width = max(len(name) for name, _ in rows)
        for line in (words, *(f"{name:<{width}}  {value}" for name, value in rows)):
            print(line.rstrip(), file=self._out)

    @staticmethod
    def _draw(console: Console, words: str, style: str, rows: Sequence[tuple[str, str]]) -> None:
        # A crawl in a pipe loads nothing that draws.
        from rich.table import Table
        from rich.text import Text

        console.print(Text(words, style))
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in rows:
            grid.add_row(Text(name, "dim"), value)
        console.print(grid)

    def _headline(self, result: CrawlResult, code: ExitCode) -> tuple[str, str]:
        """The words and their style."""
        words = _HEADLINES[result.reason.value]
        if code is ExitCode.NOTHING:
            words = f"Not a single page was fetched. {words}"
        style = (
            "bold green" if code is ExitCode.OK else "bold yellow" if code is ExitCode.STOPPED else "bold red"
        )
        return words, style

    def _rows(self, result: CrawlResult) -> list[tuple[str, str]]:
        rows = [
            ("pages", self._pages(result)),
            ("documents", text.count(result.documents) + _near_duplicates(result)),
            ("queued", self._queued(result)),
        ]
        for name, number, counts in (
            ("failed", result.failed, result.failures),
            ("excluded", result.excluded, result.exclusions),
            ("links left out", sum(item.count for item in result.refused), result.refused),
        ):
            if number:
                rows.append((name, _because(number, counts, self._most)))
        if result.trouble:
            rows.append(("trouble", text.safe(result.trouble)))
        elif result.reason.value == "time_budget" and not (result.pages or result.failed or result.excluded):
            rows.append(
                ("waited", "no answer came in this time: give it longer; `amble doctor` asks the name server")
            )
        return rows + self._places(result)

    def _pages(self, result: CrawlResult) -> str:
        run = f" ({text.count(result.pages_run)} in this run)" if result.pages_run != result.pages else ""
        speed = result.pages_run / result.elapsed_s if result.elapsed_s > 0 else 0.0
        return (
            f"{text.count(result.pages)}{run}, {text.size(result.bytes)} "
            f"in {text.duration(result.elapsed_s)} ({text.rate(speed)})"
        )

    def _queued(self, result: CrawlResult) -> str:
        if result.next_due_s is None or not result.queued:
            return text.count(result.queued)
        due = (
            "due now"
            if result.next_due_s < 1
            else f"the next one is due in {text.duration(result.next_due_s)}"
        )
        return f"{text.count(result.queued)}, {due}"

    def _places(self, result: CrawlResult) -> list[tuple[str, str]]:
        if self.start is None:
            return []
        folder = text.safe(shlex.quote(str(self.start.folder)))
        rows = [("results", f"{text.safe(str(self.start.folder / 'archive'))} (WARC)")]
        if result.documents:
            rows.append(("export", f"amble export {folder} --to jsonl --file documents.jsonl"))
        if result.failed:
            rows.append(("look into", f"amble failed {folder}"))
        if result.damaged:
            return [*rows, ("mend", _after_damage(folder))]
        # What is away over the network needs no mending here.
        if result.unusable and "://" not in result.trouble:
            rows.append(("mend", f"{MEND_UNUSABLE}, or see what `amble doctor {folder}` finds"))
        if result.queued:
            rows.append(("go on", self._go_on(result, folder)))
        return rows

    def _go_on(self, result: CrawlResult, folder: str) -> str:
        pages_max = self.start.budget.pages_max if self.start is not None else None
        if result.reason.value == "page_budget" and pages_max is not None:
            return f"amble crawl --out {folder} --pages {pages_max * 2}"
        return f"amble crawl --out {folder}"


def _after_damage(folder: str) -> str:
    return (
        f"amble verify {folder} tells what is damaged; bring the folder back from a copy, or begin another: "
        f"amble crawl --out NEW --config {folder}/amble.toml --seeds {folder}/seeds.txt"
    )


def _near_duplicates(result: CrawlResult) -> str:
    """How many more there would be, and how."""
    number = sum(item.count for item in result.withheld if item.reason == Withheld.NEAR_DUPLICATE)
    if not number:
        return ""
    return (
        f", without {text.plural(number, 'near-duplicate')} of them"
        " (--set publish.near_duplicates=publish publishes all)"
    )


def _because(number: int, counts: tuple[ReasonCount, ...], most: int) -> str:
    """`20: 12 out of scope, 3 too deep, and 5 more`; one reason alone needs no total before it."""
    shown = ", ".join(f"{text.count(item.count)} {text.words(item.reason)}" for item in counts[:most])
    rest = sum(item.count for item in counts[most:])
    if len(counts) == 1 and counts[0].count == number:
        return shown
    return (
        text.count(number)
        + (f": {shown}" if shown else "")
        + (f", and {text.count(rest)} more" if rest else "")
    )
