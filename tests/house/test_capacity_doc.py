"""The page on capacity shows the formulas that are computed."""

from __future__ import annotations

from tools import capacity_doc


def test_the_tables_of_the_page_are_up_to_date() -> None:
    page = capacity_doc.PAGE.read_text()
    assert capacity_doc.written(page) == page, "run `make docs`"
