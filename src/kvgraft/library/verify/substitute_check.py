"""Puts an answer back into a problem's constraints. Runs in a worker process only."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kvgraft.library.verify.expression import NotAnExpression, parse, plain, value_of
from kvgraft.library.verify.normalise import normalise

# It carries no types.
sympy: Any = importlib.import_module("sympy")

_KIND = re.compile(r"\s*([A-Za-z_]\w*)\s+(?:is\s+)?(integer|positive|natural|real|prime)\s*")
_SLOT = re.compile(r"\{([A-Za-z_]\w*)\}")
_SEPARATOR = re.compile(r",|;|\bor\b|\band\b")
_SIGN_DIGITS = 50  # a difference is positive or negative if it is so with that many digits
_RELATIONS: Mapping[type[ast.cmpop], Callable[[int], bool]] = {
    ast.Eq: lambda sign: sign == 0,
    ast.NotEq: lambda sign: sign != 0,
    ast.Lt: lambda sign: sign < 0,
    ast.LtE: lambda sign: sign <= 0,
    ast.Gt: lambda sign: sign > 0,
    ast.GtE: lambda sign: sign >= 0,
}
Values = dict[str, Any]


class _Undecided(Exception):
    """What could not be shown either way."""


class _BadConstraints(Exception):
    """The constraints, not the answer, are at fault."""


def load() -> Any:
    """The handler of the worker."""
    return check


def check(request: dict[str, Any]) -> dict[str, Any]:
    """One of: `bad` (the constraints cannot be used: why), `undecided` (why), `fails` (what), or
    `holds`: the number of constraints."""
    constraints, answer = request["constraints"], request["answer"]
    try:
        return _check(constraints, answer)
    except _BadConstraints as error:
        return {"bad": str(error)[:300]}
    except _Undecided as error:
        return {"undecided": str(error)[:300]}
    except NotAnExpression as error:
        return {"fails": f"the answer: {error}"[:300]}


def _check(constraints: Mapping[str, Any], answer: str) -> dict[str, Any]:
    where = list(constraints.get("where", ()))
    if "product" in constraints:
        return _check_product(constraints, answer)
    symbols = list(constraints["symbols"])
    if constraints.get("all"):
        return _check_all(symbols[0], where, answer)
    values = _values(str(constraints.get("answer", symbols[0])), symbols, answer)
    for text in where:
        if not _holds(text, values):
            return {"fails": text}
    return {"holds": len(where)}


# --- the answer's values ----------------------------------------------------------------------


def _values(form: str, symbols: Sequence[str], answer: str) -> Values:
    """What the answer says of each symbol.

    Raises:
        NotAnExpression: it is not of the form.
    """
    if form == "json":
        said = _json_object(answer)
    elif _SLOT.search(form):
        said = _by_template(form, answer)
    else:
        names = [name.strip() for name in form.strip(" ()").split(",")]
        text = plain(normalise(answer).text).strip()
        parts = [text] if len(names) == 1 else _top_level(text.strip("()[]{} \\"))
        if len(parts) != len(names):
            raise NotAnExpression(f"{len(parts)} values for {len(names)}")
        said = dict(zip(names, parts, strict=True))
    if missing := set(symbols) - set(said):
        raise NotAnExpression(f"it says nothing of {', '.join(sorted(missing))}")
    return {name: _value(name, str(said[name])) for name in symbols}


def _json_object(answer: str) -> dict[str, Any]:
    try:
        said = json.loads(answer, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise NotAnExpression("it is no JSON object")
    return said


def _by_template(form: str, answer: str) -> dict[str, Any]:
    pieces = _SLOT.split(form)
    pattern = "".join(
        f"(?P<{piece}>[^,;]+?)" if number % 2 else r"\s*".join(map(re.escape, piece.split(" ")))
        for number, piece in enumerate(pieces)
    )
    match = re.fullmatch(rf"\s*{pattern}\s*", normalise(answer).text)
    if match is None:
        raise NotAnExpression(f"it is not of the form {form!r}")
    return {name: plain(text) for name, text in match.groupdict().items()}


def _value(name: str, text: str) -> Any:
    left, equals, right = text.partition("=")
    if equals and left.strip() == name:
        text = right
    value = value_of(parse(text), {})
    if not value.is_number or value.has(sympy.zoo, sympy.nan, sympy.oo):
        raise NotAnExpression(f"{name} is no number")
    return value


def _top_level(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


# --- constraints ------------------------------------------------------------------------------


def _holds(text: str, values: Values) -> bool:
    """Whether a constraint holds.

    Raises:
        _Undecided, _BadConstraints.
    """
    if kind := _KIND.fullmatch(text):
        if kind[1] not in values:
            raise _BadConstraints(f"there is no symbol {kind[1]!r}")
        return _is_of_kind(values[kind[1]], kind[2])
    try:
        return _true(parse(text), values)
    except NotAnExpression as error:
        # With other values it may be one: a division by zero is the answer's fault.
        if "by zero" in str(error) or "over" in str(error):
            return False
        raise _BadConstraints(f"{text[:100]!r}: {error}") from None


def _is_of_kind(value: Any, kind: str) -> bool:
    if kind == "real":
        return bool(value.is_real)
    if kind == "positive":
        return bool(value.is_real) and _sign(value) > 0
    whole = value if value.is_Rational else sympy.simplify(value)
    if not whole.is_integer:
        return False
    if kind == "prime":
        return bool(sympy.isprime(int(whole)))
    return kind == "integer" or int(whole) > 0


def _true(tree: ast.expr, values: Values) -> bool:
    if isinstance(tree, ast.BoolOp):
        parts = (_true(part, values) for part in tree.values)
        return all(parts) if isinstance(tree.op, ast.And) else any(parts)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        return not _true(tree.operand, values)
    if not isinstance(tree, ast.Compare):
        raise NotAnExpression("it compares nothing")
    sides = [value_of(side, values) for side in (tree.left, *tree.comparators)]
    for left, operator, right in zip(sides, tree.ops, sides[1:], strict=False):
        relation = _RELATIONS.get(type(operator))
        if relation is None:
            raise NotAnExpression(f"there is no comparison {type(operator).__name__}")
        if not relation(_sign(left - right)):
            return False
    return True


def _sign(value: Any) -> int:
    """-1, 0 or 1.

    Raises:
        _Undecided: not shown to be zero, and too small to be told from it; or not real.
    """
    if value.is_Rational:
        return int(value.p > 0) - int(value.p < 0)
    if value.equals(0):
        return 0
    number = value.evalf(_SIGN_DIGITS)
    if number.is_real and abs(number) > sympy.Float(10) ** -(_SIGN_DIGITS // 2):
        return 1 if number > 0 else -1
    raise _Undecided(f"the sign of {str(value)[:100]}")


# --- factorisations, and all solutions --------------------------------------------------------


def _check_product(constraints: Mapping[str, Any], answer: str) -> dict[str, Any]:
    try:
        wanted = value_of(parse(str(constraints["product"])), {})
    except NotAnExpression as error:
        raise _BadConstraints(f"product: {error}") from None
    factors = list(_factors(parse(plain(normalise(answer).text))))
    product = sympy.Integer(1)
    for base, exponent in factors:
        product *= base**exponent
    if _sign(product - wanted) != 0:
        return {"fails": f"the product is {str(product)[:60]}"}
    if constraints.get("prime"):
        for base, _ in factors:
            if not (base.is_integer and sympy.isprime(int(base))):
                return {"fails": f"{str(base)[:60]} is no prime"}
    elif len(factors) < 2:
        return {"fails": "it has one factor"}
    return {"holds": 1}


def _factors(tree: ast.expr) -> Iterator[tuple[Any, Any]]:
    """Bases and exponents of a product as it is written, not worked out."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult):
        yield from _factors(tree.left)
        yield from _factors(tree.right)
    elif isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow):
        value_of(tree, {})  # for its bounds
        exponent = value_of(tree.right, {})
        if not (exponent.is_integer and exponent > 0):
            raise NotAnExpression("an exponent that is no whole number from 1")
        yield value_of(tree.left, {}), exponent
    else:
        yield value_of(tree, {}), sympy.Integer(1)


def _check_all(name: str, where: Sequence[str], answer: str) -> dict[str, Any]:
    """The answer lists every solution: each holds, and none is missing."""
    text = plain(normalise(answer).text).strip().strip("{}[] \\")
    given = {_value(name, part) for part in _SEPARATOR.split(text) if part.strip()}
    for value in given:
        for constraint in where:
            if not _holds(constraint, {name: value}):
                return {"fails": f"{constraint} with {name} = {str(value)[:40]}"}
    for solution in _solutions(name, where):
        fits = all(_holds(constraint, {name: solution}) for constraint in where)
        if fits and not any(_sign(solution - value) == 0 for value in given):
            return {"fails": f"{name} = {str(solution)[:40]} is missing"}
    return {"holds": len(where)}


def _solutions(name: str, where: Sequence[str]) -> list[Any]:
    """All real solutions of the first equation among the constraints.

    Raises:
        _Undecided: there is no equation, or sympy does not find finitely many.
    """
    symbol = sympy.Symbol(name, real=True)
    for text in where:
        if _KIND.fullmatch(text):
            continue
        tree = parse(text)
        if isinstance(tree, ast.Compare) and [type(one) for one in tree.ops] == [ast.Eq]:
            left, right = (
                value_of(side, {name: symbol}) for side in (tree.left, *tree.comparators)
            )
            found = sympy.solveset(left - right, symbol, domain=sympy.S.Reals)
            if isinstance(found, sympy.FiniteSet):
                return list(found)
            if found is sympy.S.EmptySet:
                return []
            raise _Undecided(f"the solutions of {text[:100]}")
    raise _Undecided("no equation, so nothing says which solutions there are")
