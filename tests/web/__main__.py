"""The command line of the test web: serve it, run a command against it, show amble on it, print its truth or its table."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.web.demo import Demo, finish
from tests.web.dns import SPECIAL
from tests.web.sites import table
from tests.web.web import NEIGHBOURHOOD, Ready, Settings, serve, truth

README = Path(__file__).with_name("README.md")
CRAWL_SEEDS = 3
MARK = "<!-- the tables below are written by `python -m tests.web table --write` -->"


def _parser() -> argparse.ArgumentParser:
    what = argparse.ArgumentParser(add_help=False)
    what.add_argument("--port", type=int, default=0, help="HTTP port on every loopback address (0: any)")
    what.add_argument("--sites", type=int, default=20, help="sites of the closed set (0: none)")
    what.add_argument("--pages", type=int, default=5000, help="pages of the closed set, all sites together")
    what.add_argument("--seed", type=int, default=1, help="another number, another closed set")
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--dns-port", type=int, default=0)
    where.add_argument("--control-port", type=int, default=0)
    where.add_argument("--log", type=Path, help="access log, appended to")
    where.add_argument(
        "--tls", type=Path, metavar="FOLDER", help="serve TLS too; certificates go to this folder"
    )
    where.add_argument(
        "--bench-origins", type=int, default=0, help="heavy origins bench-0.test, bench-1.test …"
    )
    where.add_argument("--bench-pages", type=int, default=2000, help="pages of each bench origin")
    where.add_argument("--page-bytes", type=int, default=90_000)
    where.add_argument("--links", type=int, default=100, help="links on each bench page")
    parser = argparse.ArgumentParser(prog="python -m tests.web", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run_help = "serve, run a command with {seeds} {dns} {net} {port} filled in, and stop with it"
    serving = commands.add_parser("serve", parents=[what, where], help="serve until interrupted")
    serving.add_argument("--ready-fd", type=int, help="write the ports as one JSON line here when ready")
    serving.add_argument("--alive-fd", type=int, help="stop when this descriptor reaches its end")
    running = commands.add_parser("run", parents=[what, where], help=run_help)
    running.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND …")
    # Its words are amble's own and never come here (see main); this line is for --help.
    commands.add_parser(
        "demo", help="crawl a small closed set and every site into ./crawl-demo [amble's options …]"
    )
    truthful = commands.add_parser("truth", parents=[what], help="print the truth of the closed set as JSON")
    truthful.add_argument("--digests", action="store_true", help="with the sha256 of every body")
    tables = commands.add_parser("table", help="print the tables of README.md")
    tables.add_argument("--write", action="store_true", help="write them into README.md")
    return parser


def _settings(args: argparse.Namespace) -> Settings:
    known = Settings.__dataclass_fields__.keys() & vars(args).keys()
    return Settings(**{key: getattr(args, key) for key in known})


def tables() -> str:
    """What README.md says below its mark."""
    rows = "\n".join(f"| `{name}` | {what} |" for name, what in SPECIAL.items())
    return f"{MARK}\n\n## Sites\n\n{table()}\n\n## Names\n\n| name | what DNS says |\n|---|---|\n{rows}\n"


def _crawl_line(ready: Ready) -> str:
    """A command that can be pasted: it begins at the first few seeds."""
    seeds = " ".join(ready.seeds[:CRAWL_SEEDS])
    return f"amble crawl {seeds} --resolver 127.0.0.1:{ready.dns_port} --allow-net {NEIGHBOURHOOD}"


def _announce(ready: Ready, fd: int | None) -> None:
    if fd is not None:
        with os.fdopen(fd, "w") as out:
            out.write(ready.json() + "\n")
        return
    print(f"HTTP on port {ready.port} of 127.0.0.0/8, DNS on 127.0.0.1:{ready.dns_port}", flush=True)
    print(f"control on 127.0.0.1:{ready.control_port}", flush=True)
    if ready.tls_port:
        print(f"HTTPS on port {ready.tls_port}, authority {ready.ca}")
    print("\n".join(ready.seeds[:20]))
    some = f" (the first {CRAWL_SEEDS} of {len(ready.seeds)} sites)" if len(ready.seeds) > CRAWL_SEEDS else ""
    print(f"\nCrawl it{some}:\n\n  {_crawl_line(ready)}\n\nInterrupt to stop.", flush=True)


class Guest:
    """A command that runs beside the web, in a thread that waits for it; the web ends when the command does."""

    def __init__(self, argv: Sequence[str], after: Callable[[int], None] | None = None) -> None:
        self._argv, self._after = argv, after
        self._process: subprocess.Popen[bytes] | None = None
        self.code = 0

    def start(self, stop: asyncio.Event) -> None:
        """Run it; `stop` is set when it has ended, whatever became of it."""
        loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                self._process = subprocess.Popen(self._argv)
                code = self._process.wait()
                self.code = code if code >= 0 else 128 - code  # killed by a signal: as a shell says it
                if self._after is not None:
                    self._after(self.code)
            except OSError as exc:
                print(f"{self._argv[0]}: {exc.strerror}", file=sys.stderr)
                self.code = 127
            loop.call_soon_threadsafe(stop.set)

        threading.Thread(target=work, daemon=True).start()

    def signalled(self, number: signal.Signals) -> None:
        """A terminal interrupts the command itself, and the web must outlive it; other signals are passed on."""
        if number is not signal.SIGINT and self._process is not None:
            self._process.send_signal(number)


def _host(settings: Settings, act: Callable[[Ready], Guest | None], alive: int | None = None) -> int:
    return asyncio.run(_serve(settings, act, alive))


async def _serve(settings: Settings, act: Callable[[Ready], Guest | None], alive: int | None) -> int:
    """Serve until a signal comes or `alive` ends; with a guest, until it ends. The exit code."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is a descriptor
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if alive is not None:
        loop.add_reader(alive, stop.set)
    ready: asyncio.Future[Ready] = loop.create_future()
    work = asyncio.create_task(serve(settings, ready, stop))
    work.add_done_callback(lambda _: ready.cancel())  # whatever went wrong is raised by the task below
    try:
        where = await ready
    except asyncio.CancelledError:
        await work
        raise
    gc.freeze()  # the graph of the closed set lives as long as we do: keep the collector off it
    guest = act(where)
    if guest is not None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, guest.signalled, number)
        guest.start(stop)
    await work
    return 0 if guest is None else guest.code


def _filled(word: str, values: dict[str, str]) -> str:
    for mark, value in values.items():
        word = word.replace(mark, value)
    return word


def _run(argv: list[str], ready: Ready) -> Guest:
    """The command with its marks filled in."""
    values = {"{dns}": f"127.0.0.1:{ready.dns_port}", "{net}": NEIGHBOURHOOD, "{port}": str(ready.port)}
    words: list[str] = []
    for word in argv[1:] if argv[:1] == ["--"] else argv:
        words.extend(ready.seeds if word == "{seeds}" else [_filled(word, values)])
    return Guest(words)


def _demo(more: Sequence[str]) -> int:
    try:
        demo = Demo.of(more)
        return _host(demo.settings, lambda ready: Guest(demo.command(ready), finish(demo, ready)))
    except (OSError, ValueError) as exc:
        print(f"tests.web demo: {exc}", file=sys.stderr)
        return 2


def main() -> int:
    """Do what the command line says; the exit code."""
    if sys.argv[1:2] == ["demo"]:
        return _demo(sys.argv[2:])
    args = _parser().parse_args()
    match args.command:
        case "serve":
            return _host(
                _settings(args),
                lambda ready: _announce(ready, args.ready_fd),
                getattr(args, "alive_fd", None),
            )
        case "run":
            if not args.argv[args.argv[:1] == ["--"] :]:
                print("run needs a command after --", file=sys.stderr)
                return 2
            return _host(_settings(args), lambda ready: _run(args.argv, ready))
        case "truth":
            print(json.dumps(truth(_settings(args), args.port, digests=args.digests), indent=1))
        case _:
            if args.write:
                README.write_text(README.read_text().partition(MARK)[0] + tables())
            else:
                print(tables(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
