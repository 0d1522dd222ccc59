"""A primary and its standby on one machine, and what an operator does to them: kill, promote, take back.

    with Pair.start(pristine, synchronous=True) as pair:
        pair.kill_primary(freeze_s=0.2)
        pair.promote()
        pair.rejoin()

Roles swap at `promote`; `dsn` names both servers and finds the one that takes writes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal

from amble.adapters.postgres.embedded import SUPERUSER, EmbeddedPostgres
from tests.support.amble_process import wait_until
from tests.support.postgres import server_folder, start_copy

STREAMING_S_MAX = 60.0
COMMON = {
    # pg_rewind needs to know every page that a crashed primary touched, hint bits included.
    "wal_log_hints": "on",
    "wal_keep_size": "512MB",
    "max_wal_size": "1GB",
    "shared_buffers": "64MB",
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "200ms",
}


@dataclass
class Node:
    """One server and the name under which it asks to be a standby."""

    name: str
    server: EmbeddedPostgres


@dataclass
class Pair:
    """Two servers, one of them the primary. Made by `start`."""

    primary: Node
    standby: Node
    synchronous: bool
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each operation took, the last time."""

    @classmethod
    def start(
        cls, pristine: Path, *, synchronous: bool = True, settings: Mapping[str, str] | None = None
    ) -> Pair:
        """A primary from a copy of a cluster at rest, and a standby from a copy of the primary, streaming."""
        options = {**COMMON, **(settings or {})}
        primary = Node("alpha", start_copy(pristine, {**options, "cluster_name": "alpha"}))
        folder = server_folder()
        try:
            primary.server.clone_to(folder)
            standby = Node("beta", _start_standby(folder, "beta", primary.server, options))
        except BaseException:
            primary.server.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        pair = cls(primary, standby, synchronous)
        pair.protect()
        return pair

    # -- addresses --------------------------------------------------------------------------------------------

    def dsn(self, database: str = "postgres") -> str:
        """Both servers, always in the same order; clients take the one that takes writes."""
        nodes = sorted((self.primary, self.standby), key=lambda node: node.name)
        hosts = ",".join(f"{node.server.host}:{node.server.port}" for node in nodes)
        password = self.primary.server.password
        return f"postgresql://{SUPERUSER}:{password}@{hosts}/{database}?target_session_attrs=read-write"

    # -- what an operator does --------------------------------------------------------------------------------

    def freeze_walsender(self) -> None:
        """The standby gets nothing more, while the primary goes on as far as it may."""
        assert self.primary.server.freeze("walsender"), "the primary has no walsender"

    def kill_primary(self, *, freeze_s: float = 0.0) -> None:
        """SIGKILL to every process of the primary, after its walsender was frozen for a while."""
        if freeze_s:
            self.freeze_walsender()
            time.sleep(freeze_s)
        self.primary.server.kill()

    def promote(self) -> None:
        """Make the standby the primary, and let it commit without a standby of its own until one is back."""
        begun_s = time.monotonic()
        self.standby.server.reload({"synchronous_standby_names": ""})
        self.standby.server.execute("SELECT pg_promote(true, 60)")
        self.primary, self.standby = self.standby, self.primary
        self.seconds["promote"] = time.monotonic() - begun_s

    def rejoin(self, how: Literal["rewind", "copy"] = "rewind") -> None:
        """Take the former primary back as the standby, which must not be running, and protect commits again.

        `rewind` undoes what it has that the new primary has not; `copy` throws it away and copies the primary anew.
        """
        begun_s = time.monotonic()
        server = self.standby.server
        if how == "rewind":
            self._rewind(server)
        else:
            shutil.rmtree(server.data)
            self.primary.server.clone_to(server.folder)
        (server.data / "standby.signal").touch()
        server.start_again(settings=_follows(self.primary.server, self.standby.name))
        self.seconds["rejoin"] = time.monotonic() - begun_s
        self.protect()

    def protect(self) -> None:
        """Wait until the standby streams, then acknowledge only what it has, too."""
        wait_until(lambda: self._standby_is("state", "streaming"), STREAMING_S_MAX, "the standby streams")
        if self.synchronous:
            names = f"FIRST 1 ({self.standby.name})"
            self.primary.server.reload({"synchronous_standby_names": names})
            wait_until(lambda: self._standby_is("sync_state", "sync"), STREAMING_S_MAX, "the standby is sync")

    def _standby_is(self, column: str, value: str) -> bool:
        asked = f"SELECT {column} FROM pg_stat_replication WHERE application_name = '{self.standby.name}'"
        return self.primary.server.execute(asked) == value

    def _rewind(self, server: EmbeddedPostgres) -> None:
        """The target recovers from its crash first, in a single process that pg_rewind starts itself."""
        source = self.primary.server
        source.execute("CHECKPOINT")  # the new timeline has to stand in its control file
        (server.data / "postmaster.pid").unlink(missing_ok=True)
        source.run(
            [
                source.binaries.program("pg_rewind"),
                "-D",
                str(server.data),
                # For the recovery: with wal_keep_size it does not throw away the log that the rewind reads.
                f"--config-file={server.folder / 'server.conf'}",
                "--source-server",
                f"host={source.host} port={source.port} user={SUPERUSER} dbname=postgres",
                "--no-sync",
            ]
        )

    def close(self) -> None:
        """End both and remove their folders."""
        self.standby.server.close()
        self.primary.server.close()

    def __enter__(self) -> Pair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _follows(primary: EmbeddedPostgres, name: str) -> dict[str, str]:
    """The settings of a standby. It needs no standby of its own to commit, should it be promoted."""
    return {
        "primary_conninfo": f"host={primary.host} port={primary.port} user={SUPERUSER} "
        f"password={primary.password} application_name={name}",
        "synchronous_standby_names": "",
    }


def _start_standby(
    folder: Path, name: str, primary: EmbeddedPostgres, settings: Mapping[str, str]
) -> EmbeddedPostgres:
    (folder / "data" / "standby.signal").touch()
    own = {"fsync": "off", **settings, "cluster_name": name, **_follows(primary, name)}
    return EmbeddedPostgres.start(folder, settings=own, remove=True)
