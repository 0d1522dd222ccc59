"""The crawl folder as people see it: which folder a command means, its amble.toml and its seeds.txt.

The frontier, the archive and the lock in it stand in `app/layout.py`. Files are replaced whole and synced, so that a
crash leaves the old or the new one.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amble.app import tomlfile
from amble.app.config import (
    CrawlConfig,
    Effective,
    Given,
    canonical_seed,
    complain,
    configure,
    from_assignments,
    from_env,
    from_toml,
    resolve,
)
from amble.app.settings import SETTINGS, SettingValue
from amble.domain.decision import Reason
from amble.domain.errors import ConfigErrors, CrawlFolderUnusable
from amble.domain.url import origin_of

CONFIG_NAME = "amble.toml"
SEEDS_NAME = "seeds.txt"
FRONTIER_NAME = "frontier.db"
# One or several files, each with its log and its shared memory.
_FRONTIER_FILE = re.compile(r"frontier(-\d+)?\.db")
# Left by `amble migrate` in the folder of a crawl that goes on elsewhere; people read it too.
MOVED_NAME = "moved.txt"
_STORE_URL, _ARCHIVE_URL = "store.url", "archive.url"
# Where `amble fleet` keeps the database server of a folder.
OWN_SERVER = "postgres"
# What amble itself makes in a folder: a first try that failed may have left some of it.
_OWN_NAMES = frozenset({CONFIG_NAME, SEEDS_NAME, "archive", "export", "run"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What one command line asks for. `flags` come from options of their own, `assignments` from --set."""

    seeds: tuple[str, ...] = ()
    out: Path | None = None
    config_file: Path | None = None
    assignments: tuple[str, ...] = ()
    flags: Mapping[str, Given] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a command will do: where, with which configuration, and what of it is new and has to be kept."""

    folder: Path
    resumes: bool
    config: CrawlConfig
    values: Mapping[str, Effective]
    new_values: Mapping[str, SettingValue]
    new_seeds: tuple[str, ...]


def is_crawl_folder(folder: Path) -> bool:
    """Whether a crawl has been begun there."""
    return (folder / CONFIG_NAME).is_file() or (folder / FRONTIER_NAME).is_file()


def default_folder(seed: str) -> Path:
    """`./crawl-HOST` for the first seed; with the port where it is not the scheme's own."""
    canonical = canonical_seed(seed)
    authority = "new" if isinstance(canonical, Reason) else origin_of(canonical).authority
    return Path("crawl-" + re.sub(r"[^A-Za-z0-9.-]+", "-", authority).strip("-"))


def plan(wishes: Wishes, env: Mapping[str, str]) -> Plan:
    """Everything a crawl needs to know, from its folder, its files, the environment and the command line.

    Raises ConfigErrors with every mistake, CrawlFolderUnusable when the folder cannot hold a crawl. Writes nothing.
    """
    problems: list[str] = []
    folder = _folder(wishes, problems)
    resumes = is_crawl_folder(folder)
    old_seeds = read_seeds(folder / SEEDS_NAME, problems) if (folder / SEEDS_NAME).exists() else []
    own = _toml_layer(folder / CONFIG_NAME, problems) if (folder / CONFIG_NAME).exists() else {}
    file = _toml_layer(wishes.config_file, problems) if wishes.config_file is not None else {}
    said = {**from_assignments(wishes.assignments, "--set", problems), **wishes.flags}
    values = resolve([own, file, from_env(env, problems), said], problems)
    config = configure(values, [*old_seeds, *wishes.seeds], problems)
    if not config.seeds and not problems:
        problems.append(f"{folder} names no seed: give a URL to begin with, or a list with --seeds FILE")
    if config.tls_ca_file and not Path(config.tls_ca_file).is_file():
        problems.append(f"tls.ca_file: {config.tls_ca_file} is no file; name a PEM file")
    complain(problems)
    kept = {canonical_seed(seed) for seed in old_seeds}
    return Plan(
        folder=folder,
        resumes=resumes,
        config=config,
        values=values,
        new_values={name: _checked(name, given) for name, given in {**file, **said}.items()},
        new_seeds=tuple(seed for seed in config.seeds if seed not in kept),
    )


def refuse_elsewhere(made: Plan) -> None:
    """One process must not crawl beside a fleet: both would ask the same sites, each at its own pace.

    Raises CrawlFolderUnusable for a folder that belongs to a fleet, and for one whose crawl was moved into a database.
    """
    moved = made.folder / MOVED_NAME
    if moved.exists():
        raise CrawlFolderUnusable(
            f"{made.folder}: this crawl was moved to {_first_line(moved) or 'a database'} and goes on there with "
            f"`amble agent`; to crawl it here all the same, asking the same sites twice, remove {moved}"
        )
    if (made.folder / OWN_SERVER).is_dir():
        raise CrawlFolderUnusable(
            f"{made.folder}: this is the crawl of a fleet; go on with `amble fleet --out {made.folder}`"
        )
    store = made.values[_STORE_URL]
    if store.value:
        raise CrawlFolderUnusable(
            f"store.url ({store.source}) names a database, and `amble crawl` keeps its frontier in its folder: "
            f"crawl over the database with `amble agent --out {made.folder}`, or take store.url away"
        )


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def mark_moved(folder: Path, database: str) -> None:
    """Leave word in a folder that its crawl goes on in `database`, so that none goes on here. Raises CrawlFolderUnusable."""
    try:
        _replace(
            folder / MOVED_NAME,
            f"{database}\n\nThis crawl was moved there, and agents go on with it. `amble crawl` refuses this folder while "
            "this file is in it;\nthe commands that look at a crawl still work on what was left here.\n",
        )
    except OSError as exc:
        raise CrawlFolderUnusable(
            f"{folder}: the crawl was moved, but {MOVED_NAME} cannot be written there ({exc.strerror}); "
            "mend its permissions and run the same command again, and do not crawl in it meanwhile"
        ) from exc


def _checked(name: str, given: Given) -> SettingValue:
    """The value of one layer alone: a variable of the environment may hide it for this run, and it is kept."""
    return resolve([{name: given}], [])[name].value


def _folder(wishes: Wishes, problems: list[str]) -> Path:
    if wishes.out is None and not wishes.seeds:
        problems.append(
            "nothing to crawl: give a URL (amble crawl https://example.org/), a list with --seeds FILE, "
            "or --out DIR of a crawl to go on with"
        )
    folder = wishes.out or default_folder(wishes.seeds[0] if wishes.seeds else "")
    if not wishes.seeds and not problems and not is_crawl_folder(folder):
        problems.append(f"--out {folder}: there is no crawl to go on with; give a URL to begin one there")
    if folder.exists() and not folder.is_dir():
        problems.append(f"--out {folder}: that is a file; name a folder")
    elif folder.is_dir() and not is_crawl_folder(folder) and not _may_hold(folder):
        problems.append(f"--out {folder}: that folder holds other things; name a new or an empty one")
    elif _has_lost_its_frontier(folder):
        problems.append(
            f"--out {folder}: its archive holds pages, but {FRONTIER_NAME} is gone: bring it back from a copy, "
            f"or begin anew in another folder with --config {folder / CONFIG_NAME} --seeds {folder / SEEDS_NAME}"
        )
    return folder


def _has_lost_its_frontier(folder: Path) -> bool:
    """Whether a crawl there would silently begin anew. The frontier is made before the first segment.

    Of several files the store itself names the one that is missing.
    """
    if any(_FRONTIER_FILE.fullmatch(path.name) for path in folder.glob("frontier*.db")):
        return False
    return any((folder / "archive").glob("*.warc*"))


def _may_hold(folder: Path) -> bool:
    try:
        return all(entry.name in _OWN_NAMES or _FRONTIER_FILE.match(entry.name) for entry in folder.iterdir())
    except OSError as exc:
        raise CrawlFolderUnusable(f"{folder}: {exc.strerror}; mend its permissions or name another") from exc


def _toml_layer(path: Path, problems: list[str]) -> dict[str, Given]:
    text = _read(path, problems)
    return from_toml(text, path.name, problems) if text is not None else {}


def _read(path: Path, problems: list[str]) -> str | None:
    try:
        return path.read_text(encoding="utf-8-sig")
    except PermissionError as exc:
        problems.append(f"{path}: cannot be read ({exc.strerror}); mend its permissions")
    except OSError as exc:
        problems.append(f"{path}: cannot be read ({exc.strerror}); name a file that can")
    except UnicodeDecodeError as exc:
        problems.append(f"{path}: byte {exc.start} is not UTF-8; save the file as UTF-8")
    return None


def read_seeds(path: Path, problems: list[str]) -> list[str]:
    """The URLs of a list: one a line; blank lines and lines that begin with # are skipped."""
    text = _read(path, problems)
    return seeds_of(text) if text is not None else []


def seeds_of(text: str) -> list[str]:
    """The URLs in the text of a list."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def keep(made: Plan) -> None:
    """Write what is new in a plan into its folder: amble.toml and seeds.txt. Raises CrawlFolderUnusable."""
    try:
        made.folder.mkdir(parents=True, exist_ok=True)
        path = made.folder / CONFIG_NAME
        if not path.exists():
            _replace(path, tomlfile.template(made.new_values))
        elif made.new_values:
            old = path.read_text(encoding="utf-8-sig")
            new = tomlfile.changed(old, made.new_values)
            if new != old:
                _replace(path, new)
        if made.new_seeds:
            path = made.folder / SEEDS_NAME
            old = (
                path.read_text(encoding="utf-8-sig")
                if path.exists()
                else "# Where this crawl begins, one URL a line.\n"
            )
            _replace(path, _with_lines(old, made.new_seeds))
    except OSError as exc:
        raise CrawlFolderUnusable(
            f"{made.folder}: {exc.strerror}; mend its permissions, free some space, or name another with --out"
        ) from exc


def _with_lines(text: str, lines: Sequence[str]) -> str:
    return text.rstrip("\n") + "\n" + "".join(line + "\n" for line in lines)


def _replace(path: Path, text: str) -> None:
    """The whole file or the old one, also after a crash."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    parent = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def store_url_of(folder: Path | None, env: Mapping[str, str]) -> str:
    """The database that a folder or the environment names for its crawl, "" where it has none. Raises ConfigErrors."""
    return _one_of(_STORE_URL, folder, env)


def archive_url_of(folder: Path | None, env: Mapping[str, str]) -> str:
    """The object storage of a crawl, "" where its segments lie in its folder. Raises ConfigErrors."""
    return _one_of(_ARCHIVE_URL, folder, env)


def _one_of(name: str, folder: Path | None, env: Mapping[str, str]) -> str:
    """One setting without the work of all of them: it is asked before every short command."""
    given = env.get(SETTINGS[name].env)
    path = None if folder is None else folder / CONFIG_NAME
    if given is None and (path is None or not path.exists()):
        return ""
    problems: list[str] = []
    layers = [] if path is None or not path.exists() else [_toml_layer(path, problems)]
    if given is not None:
        layers.append({name: Given(given, SETTINGS[name].env)})
    value = resolve([{name: layer[name]} for layer in layers if name in layer], problems)[name].value
    complain(problems)
    return str(value or "")


def find(given: Path | None, env: Mapping[str, str] | None = None) -> Path:
    """The crawl folder that a command means: the given one, this one, or the only one here.

    Where `env` (the process's own) names the database of a crawl, no folder is needed: this one stands for it. Raises ConfigErrors when there is none, or more than one to choose from.
    """
    if given is not None:
        if is_crawl_folder(given):
            return given
        raise ConfigErrors([f"{given}: there is no crawl there; name a folder that `amble crawl` has made"])
    here = Path()
    if is_crawl_folder(here) or SETTINGS[_STORE_URL].env in (os.environ if env is None else env):
        return here
    found = sorted(path for path in here.glob("crawl-*") if is_crawl_folder(path))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(path) for path in found[:5]) + (" and more" if len(found) > 5 else "")
        raise ConfigErrors([f"there are several crawls here ({names}): name one"])
    raise ConfigErrors(["there is no crawl here: name its folder"])


def settings_of(folder: Path | None, env: Mapping[str, str]) -> tuple[dict[str, Effective], CrawlConfig]:
    """What is in force for a folder, or for none: each setting with its source, and the tree.

    Raises ConfigErrors with every mistake.
    """
    problems: list[str] = []
    own: dict[str, Given] = {}
    seeds: list[str] = []
    if folder is not None and (folder / CONFIG_NAME).exists():
        own = _toml_layer(folder / CONFIG_NAME, problems)
    if folder is not None and (folder / SEEDS_NAME).exists():
        seeds = read_seeds(folder / SEEDS_NAME, problems)
    values = resolve([own, from_env(env, problems)], problems)
    config = configure(values, seeds, problems)
    complain(problems)
    return values, config


def settings_in(
    file: Path | None,
    assignments: Sequence[str],
    flags: Mapping[str, Given],
    env: Mapping[str, str],
    *,
    seeds: Sequence[str] = (),
) -> CrawlConfig:
    """The configuration of a command that has a file of settings and no folder. Raises ConfigErrors with every mistake."""
    problems: list[str] = []
    text = ""
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigErrors([f"--config {file}: it cannot be read ({error})"]) from error
    given = {**from_assignments(assignments, "--set", problems), **flags}
    if problems:
        raise ConfigErrors(problems)
    return CrawlConfig.parse(
        text, env=env, given=given, seeds=seeds, source=file.name if file else CONFIG_NAME
    )


def running_trouble(folder: Path) -> str | None:
    """What is broken around the process that crawls in a folder, and what it waits for; None when all is well."""
    pid = running_pid(folder)
    try:
        told = json.loads((folder / "run" / "status.json").read_bytes())
        return str(told["trouble"]) if pid and told["pid"] == pid and told["trouble"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def running_pid(folder: Path) -> int | None:
    """The process that crawls in a folder now (0 where its number is unknown), None when nobody does.

    The lock is tried, shared and for an instant: whoever wants it meanwhile tries again (`adapters/sql/lock.py`).
    """
    try:
        descriptor = os.open(folder / "run" / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)
    return None
