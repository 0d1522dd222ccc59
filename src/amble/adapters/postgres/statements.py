"""The hand-written SQL of this store, one file per table. Each statement works on arrays: one call for a whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from amble.adapters.sql.statements import load

_FOLDER = Path(__file__).parent
ORIGIN: Final = load("origin", _FOLDER)
NEAR: Final = load("near", _FOLDER)
URL: Final = load("url", _FOLDER)
WORK: Final = load("work", _FOLDER)
