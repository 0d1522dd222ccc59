"""The process that owns the PostgreSQL server of a test run: it ends the server when the last user has gone.

Users hold a shared lock on `users.lock`, which the kernel lets go of however they end; the holder waits for the
exclusive one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from pathlib import Path

from amble.adapters.postgres.embedded import EmbeddedPostgres
from amble.domain.errors import StoreUnavailable

# Nothing here has to outlive the machine, and what is in memory needs no flushing.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "min_wal_size": "80MB",
    "autovacuum_naptime": "60s",
}


def main(folder: Path) -> None:
    """Start the server, say how to reach it in `ready.json`, and wait until nobody wants it."""
    users = os.open(folder / "users.lock", os.O_RDWR)
    try:
        server = EmbeddedPostgres.start(folder / "server", settings=SETTINGS, remove=True)
    except StoreUnavailable as error:
        tell(folder, {"error": str(error)})
        return
    tell(
        folder,
        {"dsn": server.dsn("{}"), "socket_dsn": server.socket_dsn("{}"), "version": server.binaries.major},
    )
    try:
        fcntl.flock(users, fcntl.LOCK_EX)
    finally:
        # The lock is held until the folder is gone: whoever comes now waits, and then starts anew.
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def tell(folder: Path, what: dict[str, object]) -> None:
    """All or nothing."""
    made = folder / "ready.json.new"
    made.write_text(json.dumps(what))
    made.rename(folder / "ready.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
