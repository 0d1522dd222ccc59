"""`python -m amble` is the `amble` command."""

from __future__ import annotations

import sys

from amble.faces.cli import main

if __name__ == "__main__":
    sys.exit(main())
