"""Expressions of untrusted origin, as sympy's: a small grammar, and nothing evaluated as Python.

Numbers, named symbols, `+ - * / ** ^ %`, comparisons (`=` is one), `and`, `or`, `not`, and the
functions of `FUNCTIONS`. Sizes are bounded before anything is computed. For a worker process only:
it imports sympy.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Mapping
from typing import Any

# It carries no types.
sympy: Any = importlib.import_module("sympy")

MAX_CHARS = 2_000
MAX_NODES = 400
MAX_EXPONENT = 1_000
MAX_DIGITS = 10_000  # of a power
MAX_FACTORIAL = 1_000

FUNCTIONS: Mapping[str, Any] = {
    "abs": sympy.Abs,
    "gcd": sympy.gcd,
    "lcm": sympy.lcm,
    "floor": sympy.floor,
    "ceil": sympy.ceiling,
    "sqrt": sympy.sqrt,
    "factorial": sympy.factorial,
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tan": sympy.tan,
    "log": sympy.log,
    "exp": sympy.exp,
    "min": sympy.Min,
    "max": sympy.Max,
}
CONSTANTS = {"pi": sympy.pi, "E": sympy.E}
_OPERATORS: Mapping[type[ast.operator], Any] = {
    ast.Add: lambda one, other: one + other,
    ast.Sub: lambda one, other: one - other,
    ast.Mult: lambda one, other: one * other,
    ast.Mod: lambda one, other: sympy.Mod(one, other),
}
# A single `=`, neither part of another sign nor of a pair.
_EQUALS = re.compile(r"(?<![<>=!])=(?!=)")
_LATEX = (
    (re.compile(r"\\(?:left|right|,|;|!)\s*"), ""),
    (re.compile(r"\\(?:times|cdot)\b"), "*"),
    (re.compile(r"\\div\b"), "/"),
    (re.compile(r"\\pi\b"), "pi"),
    (re.compile(r"\\le\b"), "<="),
    (re.compile(r"\\ge\b"), ">="),
    (re.compile(r"\\ne\b"), "!="),
    (re.compile(r"\\sqrt\s*\{([^{}]*)\}"), r"sqrt(\1)"),
    (re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"((\1)/(\2))"),
    (re.compile(r"\^\s*\{([^{}]*)\}"), r"**(\1)"),
)


class NotAnExpression(ValueError):
    """Why a text is none that this grammar has."""


def plain(text: str) -> str:
    """LaTeX as `normalise` writes it, in this grammar's signs; what it cannot say stays."""
    before = ""
    while text != before:  # from the innermost braces outwards
        before = text
        for pattern, sign in _LATEX:
            text = pattern.sub(sign, text)
    return text


def parse(text: str) -> ast.expr:
    """The syntax tree of an expression, checked for size.

    Raises:
        NotAnExpression: too long, or no expression.
    """
    if len(text) > MAX_CHARS:
        raise NotAnExpression(f"over {MAX_CHARS:,} characters")
    source = _EQUALS.sub("==", text.replace("^", "**")).strip()
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotAnExpression(f"{text[:60]!r} does not parse: {error}"[:200]) from None
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise NotAnExpression(f"over {MAX_NODES} parts")
    return tree


def value_of(tree: ast.expr, symbols: Mapping[str, Any]) -> Any:
    """The tree as a sympy expression, `symbols` put in.

    Raises:
        NotAnExpression: something outside the grammar or over its bounds.
    """
    if isinstance(tree, ast.Constant):
        return _number(tree)
    if isinstance(tree, ast.Name):
        if tree.id in symbols:
            return symbols[tree.id]
        if tree.id in CONSTANTS:
            return CONSTANTS[tree.id]
        raise NotAnExpression(f"there is no symbol {tree.id[:40]!r}")
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, (ast.UAdd, ast.USub)):
        value = value_of(tree.operand, symbols)
        return -value if isinstance(tree.op, ast.USub) else value
    if isinstance(tree, ast.BinOp):
        return _operation(tree, symbols)
    if isinstance(tree, ast.Call):
        return _call(tree, symbols)
    raise NotAnExpression(f"{type(tree).__name__} is not part of an expression")


def _number(tree: ast.Constant) -> Any:
    if type(tree.value) is int:
        return sympy.Integer(tree.value)
    if type(tree.value) is float:
        # The shortest decimal that reads as this double is what was written, up to 15 digits.
        text = repr(tree.value)
        if "inf" not in text and "nan" not in text and abs(tree.value) < 1e15:
            return sympy.Rational(text)
    raise NotAnExpression(f"{str(tree.value)[:40]!r} is no number that can be used")


def _operation(tree: ast.BinOp, symbols: Mapping[str, Any]) -> Any:
    left, right = value_of(tree.left, symbols), value_of(tree.right, symbols)
    if isinstance(tree.op, ast.Div):
        if right == 0:
            raise NotAnExpression("a division by zero")
        return left / right
    if isinstance(tree.op, ast.Pow):
        return _power(left, right)
    operator = _OPERATORS.get(type(tree.op))
    if operator is None:
        raise NotAnExpression(f"there is no operator {type(tree.op).__name__}")
    if isinstance(tree.op, ast.Mod) and right == 0:
        raise NotAnExpression("a remainder of a division by zero")
    return operator(left, right)


def _power(base: Any, exponent: Any) -> Any:
    if exponent.is_number:
        size = abs(exponent.evalf(15))
        if not size.is_number or size > MAX_EXPONENT:
            raise NotAnExpression(f"an exponent over {MAX_EXPONENT:,}")
        if base.is_Rational:
            digits = len(str(max(abs(base.p), base.q)))
            if digits * size > MAX_DIGITS:
                raise NotAnExpression(f"a power of over {MAX_DIGITS:,} digits")
    if base == 0 and exponent.is_negative:
        raise NotAnExpression("a division by zero")
    return base**exponent


def _call(tree: ast.Call, symbols: Mapping[str, Any]) -> Any:
    name = tree.func.id if isinstance(tree.func, ast.Name) else ""
    if name not in FUNCTIONS or tree.keywords or not 1 <= len(tree.args) <= 8:
        raise NotAnExpression(f"there is no function {name[:40]!r} of these arguments")
    arguments = [value_of(argument, symbols) for argument in tree.args]
    if name == "factorial" and not (arguments[0].is_integer and 0 <= arguments[0] <= MAX_FACTORIAL):
        raise NotAnExpression(f"a factorial of something else than 0 to {MAX_FACTORIAL:,}")
    try:
        return FUNCTIONS[name](*arguments)
    except (TypeError, ValueError) as error:
        raise NotAnExpression(f"{name}: {error}"[:200]) from None
