"""Expressions of untrusted origin as sympy's: a small grammar, and nothing evaluated as Python.

Numbers in decimal digits (exact, however many), named symbols, `+ - * / ** ^ %`, comparisons (`=`
is one), `and`, `or`, `not`, and the functions of `FUNCTIONS`. Sizes are bounded before anything is
computed. For a worker process only: it imports sympy.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

# It carries no types.
sympy: Any = importlib.import_module("sympy")

MAX_CHARS = 2_000
MAX_NODES = 400
MAX_EXPONENT = 1_000
MAX_DIGITS = 10_000  # of a power, and the exponent of a number such as 1e9
MAX_FACTORIAL = 1_000


class ExpressionError(ValueError):
    """An expression has no value here."""


class NotAnExpression(ExpressionError):
    """A text is none that this grammar has, whatever its symbols stand for."""


class Undefined(ExpressionError):
    """A division by zero, or the like."""


class TooLarge(ExpressionError):
    """Over a bound, so it was not computed."""


def _of_all(function: Any) -> Any:
    return lambda *values: functools.reduce(function, values)


# The function, and how many arguments it takes: at least, at most.
FUNCTIONS: Mapping[str, tuple[Any, int, int]] = {
    "abs": (sympy.Abs, 1, 1),
    "gcd": (_of_all(sympy.gcd), 2, 16),
    "lcm": (_of_all(sympy.lcm), 2, 16),
    "min": (sympy.Min, 1, 16),
    "max": (sympy.Max, 1, 16),
    "floor": (sympy.floor, 1, 1),
    "ceil": (sympy.ceiling, 1, 1),
    "sqrt": (sympy.sqrt, 1, 1),
    "factorial": (sympy.factorial, 1, 1),
    "sin": (sympy.sin, 1, 1),
    "cos": (sympy.cos, 1, 1),
    "tan": (sympy.tan, 1, 1),
    "log": (sympy.log, 1, 2),  # the natural one, or to a base
    "exp": (sympy.exp, 1, 1),
}
CONSTANTS = {"pi": sympy.pi, "E": sympy.E}
_OPERATORS: Mapping[type[ast.operator], Any] = {
    ast.Add: lambda one, other: one + other,
    ast.Sub: lambda one, other: one - other,
    ast.Mult: lambda one, other: one * other,
    ast.Div: lambda one, other: one / other,
    ast.Mod: lambda one, other: sympy.Mod(one, other),
    ast.Pow: lambda one, other: _power(one, other),
}
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
# A single `=`, neither part of another sign nor of a pair.
_EQUALS = re.compile(r"(?<![<>=!])=(?!=)")
_LEADING_ZEROS = re.compile(r"(?<![\w.])0+(?=[0-9])")
_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,6})?")


def parse(text: str, names: Collection[str], *, relation: bool = False) -> ast.expr:
    """The syntax tree of an expression in symbols of these names; with `relation`, of comparisons
    of such expressions, joined by `and`, `or`, `not`. Every number in it is a `Fraction`.

    Raises:
        NotAnExpression: no such expression, or too long.
        TooLarge: a number of too many digits.
    """
    if len(text) > MAX_CHARS:
        raise NotAnExpression(f"over {MAX_CHARS:,} characters")
    source = _EQUALS.sub("==", text.replace("^", "**")).strip()
    source = _LEADING_ZEROS.sub("", source)
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotAnExpression(f"{text[:60]!r} does not parse: {error}"[:200]) from None
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise NotAnExpression(f"over {MAX_NODES} parts")
    (_check_relation if relation else _check)(tree, names, source.encode())
    return tree


def value_of(tree: ast.expr, symbols: Mapping[str, Any]) -> Any:
    """A parsed tree as a sympy expression, `symbols` put in.

    Raises:
        Undefined, TooLarge.
    """
    value = _value(tree, symbols)
    if value.has(sympy.zoo, sympy.nan, sympy.oo, -sympy.oo):
        raise Undefined("a division by zero")
    return value


def is_zero(value: Any) -> bool | None:
    """Whether a value is zero; None where sympy cannot tell."""
    if value.is_Rational:
        return bool(value.p == 0)
    equal = value.equals(0)
    return None if equal is None else bool(equal)


# --- what is let in ---------------------------------------------------------------------------


def _check_relation(tree: ast.expr, names: Collection[str], source: bytes) -> None:
    if isinstance(tree, ast.BoolOp):
        for part in tree.values:
            _check_relation(part, names, source)
    elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        _check_relation(tree.operand, names, source)
    elif isinstance(tree, ast.Compare):
        for operator in tree.ops:
            if not isinstance(operator, _COMPARISONS):
                raise NotAnExpression(f"there is no comparison {type(operator).__name__}")
        for side in (tree.left, *tree.comparators):
            _check(side, names, source)
    else:
        raise NotAnExpression("it compares nothing")


def _check(tree: ast.expr, names: Collection[str], source: bytes) -> None:
    if isinstance(tree, ast.Constant):
        _read_number(tree, source)
    elif isinstance(tree, ast.Name):
        if tree.id not in names and tree.id not in CONSTANTS:
            raise NotAnExpression(f"there is no symbol {tree.id[:40]!r}")
    elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, (ast.UAdd, ast.USub)):
        _check(tree.operand, names, source)
    elif isinstance(tree, ast.BinOp):
        if type(tree.op) not in _OPERATORS:
            raise NotAnExpression(f"there is no operator {type(tree.op).__name__}")
        _check(tree.left, names, source)
        _check(tree.right, names, source)
    elif isinstance(tree, ast.Call):
        name = tree.func.id if isinstance(tree.func, ast.Name) else ""
        _, least, most = FUNCTIONS.get(name, (None, 1, 0))
        if tree.keywords or not least <= len(tree.args) <= most:
            raise NotAnExpression(f"there is no function {name[:40]!r} of these arguments")
        for argument in tree.args:
            _check(argument, names, source)
    else:
        raise NotAnExpression(f"{type(tree).__name__} is not part of an expression")


def _read_number(tree: ast.Constant, source: bytes) -> None:
    """Puts what is written in the place of what Python made of it, which may be a double."""
    written = source[tree.col_offset : tree.end_col_offset].decode()
    if not _NUMBER.fullmatch(written):
        raise NotAnExpression(f"{written[:40]!r} is no number in decimal digits")
    number = Decimal(written)
    if abs(number.adjusted()) > MAX_DIGITS:
        raise TooLarge(f"a number of over {MAX_DIGITS:,} digits")
    tree.value = Fraction(number)  # type: ignore[assignment]


# --- values -----------------------------------------------------------------------------------


def _value(tree: ast.expr, symbols: Mapping[str, Any]) -> Any:
    if isinstance(tree, ast.Constant):
        number: Any = tree.value
        return sympy.Rational(number.numerator, number.denominator)
    if isinstance(tree, ast.Name):
        return symbols[tree.id] if tree.id in symbols else CONSTANTS[tree.id]
    if isinstance(tree, ast.UnaryOp):
        value = _value(tree.operand, symbols)
        return -value if isinstance(tree.op, ast.USub) else value
    if isinstance(tree, ast.BinOp):
        left, right = _value(tree.left, symbols), _value(tree.right, symbols)
        if isinstance(tree.op, (ast.Div, ast.Mod)) and right.is_number:
            _need_other_than_zero(right)
        return _OPERATORS[type(tree.op)](left, right)
    assert isinstance(tree, ast.Call)
    assert isinstance(tree.func, ast.Name)
    return _call(tree.func.id, [_value(argument, symbols) for argument in tree.args])


def _need_other_than_zero(value: Any) -> None:
    zero = is_zero(value)
    if zero:
        raise Undefined("a division by zero")
    if zero is None:
        raise TooLarge("whether a divisor is zero cannot be told")


def _power(base: Any, exponent: Any) -> Any:
    if exponent.is_number:
        size = abs(exponent.evalf(15))
        if not size.is_comparable or size > MAX_EXPONENT:
            raise TooLarge(f"an exponent over {MAX_EXPONENT:,}")
        if base.is_Rational:
            bits = max(int(abs(base.p)), int(base.q)).bit_length()
            if bits * size > MAX_DIGITS * 3.33:
                raise TooLarge(f"a power of over {MAX_DIGITS:,} digits")
        if exponent.is_negative and base.is_number:
            _need_other_than_zero(base)
    return base**exponent


def _call(name: str, arguments: list[Any]) -> Any:
    if name == "factorial" and arguments[0].is_number:
        number = arguments[0]
        if not (number.is_Integer and number >= 0):
            raise Undefined("a factorial of something else than a whole number from 0")
        if number > MAX_FACTORIAL:
            raise TooLarge(f"a factorial of over {MAX_FACTORIAL:,}")
    try:
        return FUNCTIONS[name][0](*arguments)
    except (TypeError, ValueError) as error:
        raise Undefined(f"{name}: {error}"[:200]) from None
