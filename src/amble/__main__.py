"""`amble` and `python -m amble`: the command, behind a door that stays quiet when it is shut in the first moment."""

from __future__ import annotations

import sys

# faces.exits.ExitCode.STOPPED, which cannot be asked before it is imported.
_STOPPED = 10


def main() -> int:
    """The exit code of one command line. A Ctrl-C while modules load ends it as one later on would: without a word."""
    try:
        from amble.faces.cli import main as command

        return command()
    except KeyboardInterrupt:
        return _STOPPED


if __name__ == "__main__":
    sys.exit(main())
