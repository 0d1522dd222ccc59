"""The first moments of the command, before any of its own code can answer."""

from __future__ import annotations

import subprocess
import sys

from amble.__main__ import main
from amble.faces.exits import ExitCode

INTERRUPTED_IMPORT = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from amble.__main__ import main
sys.exit(main())
"""


def test_an_interrupt_while_modules_load_ends_without_a_word() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.STOPPED, "", "")


def test_the_door_leads_to_the_command(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "argv", ["amble", "--version"])
    assert main() == ExitCode.OK
    assert capsys.readouterr().out.startswith("amble ")
