"""A crawl folder that may only be read, such as one on a read-only disk, can still be looked at."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from amble.adapters.sql import connection
from amble.adapters.sql.connection import Driver, open_reader
from amble.adapters.sql.settings import StoreSettings
from amble.adapters.sql.sqlite import SqliteStore


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("driver", get_args(Driver))
def test_a_reader_leaves_nothing_in_a_folder_that_may_not_be_written(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "frontier.db"
    SqliteStore(path, StoreSettings(), driver=driver).close()
    assert files(tmp_path) == {"frontier.db"}
    # Whoever runs the tests may be allowed to write everywhere, so the answer to the question is put in their mouth.
    monkeypatch.setattr(connection.os, "access", lambda *_: False)
    reader = open_reader(path, driver=driver)
    assert reader.execute("SELECT count(*) FROM url").fetchall()[0][0] == 0
    assert files(tmp_path) == {"frontier.db"}
    reader.close()


@pytest.mark.parametrize("driver", get_args(Driver))
def test_a_name_with_odd_characters_is_a_file_all_the_same(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "is this?a&mode=ro#100%.db"
    SqliteStore(path, StoreSettings(), driver=driver).close()
    assert files(tmp_path) == {path.name}
    open_reader(path, driver=driver).close()
