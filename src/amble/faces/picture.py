"""The live picture of a crawl on a terminal: a panel that redraws itself in place."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from amble.app.progress import CrawlResult, Progress
from amble.faces import text
from amble.faces.display import Start, Summary, limit_words, waits_words
from amble.faces.exits import ExitCode

# One bar of the rate picture for each look, at most so many.
RATES_KEPT = 40
# Below this the numbers stand one after the other, above it under their names.
_WIDE_COLUMNS = 72
_BAR_COLUMNS = 24
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Panel:
    """The live picture itself: eight short lines, drawn anew from the last look."""

    start: Start
    progress: Progress = field(default_factory=Progress)
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=RATES_KEPT))
    is_stopping: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Group(*self._lines(options.max_width))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(40, options.max_width)

    def _lines(self, width: int) -> list[RenderableType]:
        look = self.progress
        return [self._head(width), self._counts(look, width), self._facts(look, width), self._foot()]

    def _head(self, width: int) -> RenderableType:
        head = Table.grid(expand=True)
        head.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        head.add_column(justify="right", no_wrap=True)
        verb = "stopping" if self.is_stopping else "resuming into" if self.start.resumes else "crawling into"
        name = Text.assemble(("amble ", "bold cyan"), f"{verb} ", (text.safe(str(self.start.folder)), "bold"))
        head.add_row(name, Text(text.clock(self.progress.elapsed_s), "dim"))
        return head

    def _counts(self, look: Progress, width: int) -> RenderableType:
        cells = [
            ("pages", Text(text.count(look.pages), "bold green")),
            ("rate", Text(text.rate(look.pages_per_s), "bold")),
            ("queued", Text(text.count(look.queued))),
            ("on the wire", Text(text.count(look.active))),
            ("failed", Text(text.count(look.failed), "bold red" if look.failed else "")),
            ("excluded", Text(text.count(look.excluded))),
        ]
        if width < _WIDE_COLUMNS:
            return Text("  ").join(Text.assemble((f"{name} ", "dim"), value) for name, value in cells)
        grid = Table.grid(padding=(0, 2))
        for name, _ in cells:
            # Wide enough for six digits, so that the columns stand still while the numbers grow.
            grid.add_column(no_wrap=True, min_width=max(9, len(name)))
        grid.add_row(*(Text(name, "dim") for name, _ in cells))
        grid.add_row(*(value for _, value in cells))
        return grid

    def _budgets(self, look: Progress, width: int) -> Iterator[RenderableType]:
        budget = self.start.budget
        if budget.pages_max is not None:
            words = f"{text.count(look.pages)} of {text.plural(budget.pages_max, 'page')}"
            yield _bar(budget.pages_max, look.pages, words, width)
        if budget.seconds_max is not None:
            words = f"{text.duration(look.elapsed_s)} of {text.duration(budget.seconds_max)}"
            yield _bar(budget.seconds_max, look.elapsed_s, words, width)

    def _facts(self, look: Progress, width: int) -> RenderableType:
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1, overflow="fold")
        for name, value in self._fact_rows(look, width):
            grid.add_row(Text(name, "dim"), value)
        return grid

    def _fact_rows(self, look: Progress, width: int) -> list[tuple[str, RenderableType]]:
        waits = waits_words(look)
        origins = f"{text.count(look.origins_ready)} ready" + (f"; waiting: {waits}" if waits else "")
        received = text.size(look.bytes)
        if look.parse_backlog:
            received += f"; {text.plural(look.parse_backlog, 'page')} at the parsers"
        rows: list[tuple[str, RenderableType]] = [
            ("received", received),
            ("origins", origins),
        ]
        if not self.is_stopping:
            rows.append(("limit", limit_words(look)))
        rows[:0] = [("budget" if not at else "", bar) for at, bar in enumerate(self._budgets(look, width))]
        if len(self.rates) > 1 and max(self.rates) > 0:
            rows.insert(0, ("pace", Text(spark(self.rates, min(RATES_KEPT, width - 12)), "cyan")))
        if look.trouble:
            rows.append(("trouble", Text(text.safe(look.trouble), "bold red")))
        return rows

    def _foot(self) -> RenderableType:
        if self.is_stopping:
            return Text("Finishing what is under way; Ctrl-C again stops at once.", "yellow")
        return Text("Ctrl-C stops cleanly; the same command goes on.", "dim")


def _bar(total: float, done: float, words: str, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, width=max(4, min(_BAR_COLUMNS, width - 40)))
    grid.add_column(no_wrap=True)
    bar = ProgressBar(total=total, completed=min(total, done), complete_style="cyan", finished_style="green")
    grid.add_row(bar, words)
    return grid


def spark(rates: deque[float], width: int) -> str:
    """A small picture of the last rates, the highest as a full bar."""
    shown = list(rates)[-max(1, width) :]
    top = max(shown) or 1.0
    return "".join(_BARS[round(rate / top * (len(_BARS) - 1))] for rate in shown)


class LiveDisplay:
    """A panel that redraws itself in place, then leaves only the summary."""

    def __init__(self, console: Console, summary: Summary) -> None:
        self._console = console
        self._summary = summary
        self._live: Live | None = None
        self._panel: Panel | None = None
        self._rate_at_s = -1.0

    def opening(self, folder: Path) -> None:
        """Begin to draw."""
        words = Text.assemble(("amble ", "bold cyan"), f"opening {text.safe(str(folder))}")
        # Drawn by our own calls and not by a thread: the picture and the crawl never race.
        self._live = Live(words, console=self._console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)

    def start(self, start: Start) -> None:
        """Draw the panel."""
        self._summary.start = start
        self._panel = Panel(start)
        if self._live is None:
            self.opening(start.folder)
        assert self._live is not None
        self._live.update(self._panel, refresh=True)

    def show(self, progress: Progress) -> None:
        """Draw one look."""
        if self._panel is None or self._live is None:
            return
        self._panel.progress = progress
        if progress.elapsed_s - self._rate_at_s >= 1.0:
            self._rate_at_s = progress.elapsed_s
            self._panel.rates.append(progress.pages_per_s)
        self._live.refresh()

    def stopping(self) -> None:
        """Say so at once."""
        if self._live is None:
            return
        if self._panel is None:
            self._live.update(Text("stopping as soon as the folder is open", "yellow"), refresh=True)
            return
        self._panel.is_stopping = True
        self._live.refresh()

    def end(self, result: CrawlResult, code: ExitCode) -> None:
        """Replace the panel by the summary."""
        self.close()
        self._summary.print(result, code)

    def close(self) -> None:
        """Take the panel away and give the cursor back."""
        if self._live is not None:
            self._live.stop()
            self._live = None
