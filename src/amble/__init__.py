"""amble: a polite, durable, distributed web crawler.

This face is lazy on purpose: importing `amble` loads nothing else, so a sandboxed parser child that starts from
`amble.adapters.sandbox` never pulls in ssl or sqlite3.
"""

from __future__ import annotations

__version__ = "0.1.0"
