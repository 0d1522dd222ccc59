"""`python -m tests.web demo [ARGS…]`: amble's own crawl of a small closed set and of every behaviour site.

All of it stays on loopback addresses. The crawl goes to ./crawl-demo (or where `--out` says) and resumes there: URLs
carry the port, so a second run serves on the port of the first.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.web.web import NEIGHBOURHOOD, Ready, Settings

FOLDER = Path("crawl-demo")
SITES, PAGES = 6, 240
# Everything that ends soon has ended by then; traps and sites that must be waited for go on at the next run.
MAX_TIME = "90s"
# The trap of endless host names has no end but the page budget, and would bury everything else.
WITHOUT = "*.trap-hosts.test"
_PORT = re.compile(r"^http://index\.test:(\d+)/$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Demo:
    """One run: what the user added, where the crawl goes, and the port of the run before (0: there was none)."""

    more: Sequence[str]
    folder: Path
    port: int

    @classmethod
    def of(cls, more: Sequence[str]) -> Demo:
        """From the words after `demo`. Raises ValueError when the folder holds another crawl than this one."""
        folder = _folder(more)
        seeds = folder / "seeds.txt"
        if not seeds.exists():
            return cls(more, folder, 0)
        found = _PORT.search(seeds.read_text(encoding="utf-8"))
        if found is None:
            raise ValueError(f"{folder} holds another crawl; name a new folder with --out")
        return cls(more, folder, int(found[1]))

    @property
    def settings(self) -> Settings:
        """What the web serves: the same at every run, or a resumed crawl would meet other pages."""
        return Settings(port=self.port, sites=SITES, pages=PAGES)

    def command(self, ready: Ready) -> list[str]:
        """The crawl; what the user added comes last and wins."""
        return [
            *(sys.executable, "-m", "amble", "crawl", *ready.seeds, f"http://index.test:{ready.port}/"),
            *("--out", str(self.folder), "--resolver", f"127.0.0.1:{ready.dns_port}", "--allow-net", NEIGHBOURHOOD),
            *("--scope", "any", "--contact", "https://amble.example/demo"),
            *("--delay", "0.2", "--max-time", MAX_TIME, "--exclude", WITHOUT, *self.more),
        ]  # fmt: skip

    def advice(self, ready: Ready, amble: str) -> str:
        """What to look at when the crawl is over."""
        folder = shlex.quote(str(self.folder))
        again = " ".join(
            [shortest(Path(sys.executable)), "-m", "tests.web", "demo", *map(shlex.quote, self.more)]
        )
        rows = [
            (again, "goes on: the sites live only as long as this command does"),
            (f"{amble} status {folder}", "what there is, and what waits for what"),
            (f"{amble} failed {folder}", "what failed, and why"),
            (
                f"{amble} why http://robots-500.test:{ready.port}/ --out {folder}",
                "a site whose robots.txt is broken: no page of it may be fetched",
            ),
            (
                f"{amble} why http://redirect-private.test:{ready.port}/to/0 --out {folder}",
                "a redirect to a private address, not followed",
            ),
            (f"{amble} export {folder} --to jsonl", "the documents, one a line"),
            (f"{amble} verify {folder}", "archive and frontier, checked from outside"),
            (f"ls {folder}/archive", "WARC files and their CDXJ index, for any reader of them"),
        ]
        return "\nLook at it:\n" + "\n".join(f"  {command}\n      {words}" for command, words in rows)


def _folder(more: Sequence[str]) -> Path:
    """The last --out, as the crawl itself will read it."""
    folder = FOLDER
    for word, after in pairwise([*more, ""]):
        if word == "--out" and after:
            folder = Path(after)
        elif word.startswith("--out="):
            folder = Path(word.removeprefix("--out="))
    return folder


def shortest(path: Path) -> str:
    """The path as a shell takes it, from here or from the root, whichever is shorter."""
    return shlex.quote(min((os.path.relpath(path), str(path)), key=len))


def amble_command() -> str:
    """How to call amble here: the command beside this Python."""
    beside = Path(sys.executable).with_name("amble")
    return shortest(beside) if beside.exists() else f"{shortest(Path(sys.executable))} -m amble"


def finish(demo: Demo, ready: Ready) -> Callable[[int], None]:
    """To call with the exit code of the crawl: says what to look at, where there is something."""

    def say(code: int) -> None:
        if (demo.folder / "frontier.db").exists() and code not in (2, 12):
            print(demo.advice(ready, amble_command()), file=sys.stderr, flush=True)

    return say
