"""Arithmetic that is shown as it is computed: a formula is its text, and that text is what is evaluated.

Names, numbers, + - * / **, parentheses, and max, min, ceil, log. Anything else in a formula is our own mistake.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"max": max, "min": min, "ceil": math.ceil, "log": math.log}


@dataclass(frozen=True, slots=True)
class Formula:
    """One formula over named values, parsed once."""

    text: str
    _tree: ast.expr = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tree", ast.parse(self.text, mode="eval").body)

    def value(self, names: Mapping[str, float]) -> float:
        """What it comes to. A name that is missing raises KeyError."""
        return _value(self._tree, names)


def _value(node: ast.expr, names: Mapping[str, float]) -> float:
    match node:
        case ast.Name(id=name):
            return names[name]
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _FUNCTIONS[name](*(_value(item, names) for item in arguments))
        case _:
            raise AssertionError(f"not arithmetic: {ast.dump(node)}")
