"""Formulas: what is shown is what is computed."""

from __future__ import annotations

import math

import pytest

from amble.domain.formula import Formula

NAMES = {"a": 6.0, "b": 4.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", 6.0),
        ("86400", 86_400),
        ("a + b * 2", 14.0),
        ("(a + b) / 2 - 1", 4.0),
        ("-a + b ** 2", 10.0),
        ("max(a, b, 5)", 6.0),
        ("min(a, b)", 4.0),
        ("ceil(a / b)", 2),
        ("log(a) / log(b)", math.log(6) / math.log(4)),
    ],
)
def test_arithmetic(text: str, value: float) -> None:
    assert Formula(text).value(NAMES) == pytest.approx(value)


def test_a_name_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="c"):
        Formula("a + c").value(NAMES)


@pytest.mark.parametrize("text", ["a if b else 1", "a.real", "[a][0]", "a < b", "'x'"])
def test_only_arithmetic_is_a_formula(text: str) -> None:
    with pytest.raises(AssertionError, match="not arithmetic"):
        Formula(text).value(NAMES)


def test_only_the_named_functions_exist() -> None:
    with pytest.raises(KeyError):
        Formula("exec(a)").value(NAMES)
