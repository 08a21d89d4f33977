"""Puts an answer back into a problem's constraints. Runs in a worker process only."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvgraft.library.verify.expression import (
    ExpressionError,
    TooLarge,
    Undefined,
    is_zero,
    parse,
    sympy,
    value_of,
)
from kvgraft.library.verify.substitute_answer import Unreadable, Values, factors, listed, values

_KIND = re.compile(r"\s*([A-Za-z_]\w*)\s+(?:is\s+)?(integer|positive|natural|real|prime)\s*")
_WHOLE_KINDS = ("integer", "natural", "prime")
_SIGN_DIGITS = 50  # a difference is positive or negative if it is so with that many digits
_MAX_ENUMERATED = 2_000  # whole numbers between two bounds that are tried one by one
_RELATIONS: Mapping[type[ast.cmpop], Callable[[int], bool]] = {
    ast.Eq: lambda sign: sign == 0,
    ast.NotEq: lambda sign: sign != 0,
    ast.Lt: lambda sign: sign < 0,
    ast.LtE: lambda sign: sign <= 0,
    ast.Gt: lambda sign: sign > 0,
    ast.GtE: lambda sign: sign >= 0,
}
_MIRRORED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}


class _Undecided(Exception):
    """What could not be shown either way."""


class _BadConstraints(Exception):
    """The constraints, not the answer, are at fault."""


@dataclass(frozen=True)
class _Constraint:
    """`text` as it was given; `kind` says what sort of number `name` is, or `tree` compares."""

    text: str
    name: str = ""
    kind: str = ""
    tree: ast.expr | None = None

    @property
    def names(self) -> set[str]:
        if self.tree is None:
            return {self.name}
        return {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}


def load() -> Any:
    """The handler of the worker."""
    return check


def check(request: dict[str, Any]) -> dict[str, Any]:
    """One of: `bad` (the constraints cannot be used: why), `unreadable` (the answer: why),
    `undecided` (why), `fails` (what), or `holds`: the number of constraints."""
    constraints, answer = request["constraints"], request["answer"]
    try:
        if "product" in constraints:
            return _check_product(constraints, answer)
        symbols = constraints["symbols"]
        where = _read(symbols, constraints["where"])
        if constraints.get("all"):
            return _check_all(symbols[0], where, answer)
        said = values(constraints.get("answer", ", ".join(symbols)), symbols, answer)
        fails = _failing(where, said)
        return {"holds": len(where)} if fails is None else {"fails": fails}
    except _BadConstraints as error:
        return {"bad": str(error)[:300]}
    except Unreadable as error:
        return {"unreadable": str(error)[:300]}
    except _Undecided as error:
        return {"undecided": str(error)[:300]}


# --- constraints ------------------------------------------------------------------------------


def _read(symbols: Sequence[str], where: Sequence[str]) -> list[_Constraint]:
    """Raises _BadConstraints: one that is none, or a symbol that none speaks of."""
    out = []
    for text in where:
        if match := _KIND.fullmatch(text):
            if match[1] not in symbols:
                raise _BadConstraints(f"there is no symbol {match[1]!r}")
            out.append(_Constraint(text, match[1], match[2]))
            continue
        try:
            out.append(_Constraint(text, tree=parse(text, symbols, relation=True)))
        except ExpressionError as error:
            raise _BadConstraints(f"{text[:100]!r}: {error}") from None
    if free := sorted(set(symbols) - set().union(*(one.names for one in out))):
        raise _BadConstraints(f"nothing is said of {', '.join(free)}")
    return out


def _failing(where: Sequence[_Constraint], said: Values) -> str | None:
    """The text of the first constraint that does not hold, None where all do.

    Raises:
        _Undecided: none fails, and at least one could not be decided.
    """
    undecided: _Undecided | None = None
    for one in where:
        try:
            if not _holds(one, said):
                return one.text
        except _Undecided as error:
            undecided = undecided or error
    if undecided is not None:
        raise undecided
    return None


def _holds(one: _Constraint, said: Values) -> bool:
    if one.tree is None:
        return _is_of_kind(said[one.name], one.kind)
    try:
        return _true(one.tree, said)
    except Undefined:  # with these values it says nothing, so it is not fulfilled
        return False


def _is_of_kind(value: Any, kind: str) -> bool:
    if kind == "real":
        return _known(value.is_real, value)
    if kind == "positive":
        return _sign(value) > 0
    whole = value if value.is_Rational else sympy.simplify(value)
    if not _known(whole.is_integer, value):
        return False
    if kind == "prime":
        return bool(sympy.isprime(int(whole)))
    return kind == "integer" or int(whole) > 0


def _known(fact: bool | None, value: Any) -> bool:
    if fact is None:
        raise _Undecided(f"what sort of number {_shown(value)} is")
    return bool(fact)


def _true(tree: ast.expr, said: Values) -> bool:
    """Raises Undefined, _Undecided."""
    if isinstance(tree, ast.BoolOp):
        return _together(tree, said)
    if isinstance(tree, ast.UnaryOp):
        return not _true(tree.operand, said)
    assert isinstance(tree, ast.Compare)
    try:
        sides = [value_of(side, said) for side in (tree.left, *tree.comparators)]
    except TooLarge as error:
        raise _Undecided(str(error)) from None
    return all(
        _RELATIONS[type(operator)](_sign(left - right))
        for left, operator, right in zip(sides, tree.ops, sides[1:], strict=False)
    )


def _together(tree: ast.BoolOp, said: Values) -> bool:
    """`and`, `or`: one part may decide, whatever becomes of the others; else what says nothing
    makes the whole say nothing, which under a `not` is no more true than before it."""
    deciding = isinstance(tree.op, ast.Or)
    unknown: Undefined | _Undecided | None = None
    for part in tree.values:
        try:
            if _true(part, said) is deciding:
                return deciding
        except (Undefined, _Undecided) as error:
            # What is undecided outweighs what is undefined: it might have decided.
            if unknown is None or isinstance(error, _Undecided):
                unknown = error
    if unknown is not None:
        raise unknown
    return not deciding


def _sign(value: Any) -> int:
    """-1, 0 or 1.

    Raises:
        _Undecided: not shown to be zero, and too small to be told from it; or not real.
    """
    if value.is_Rational:
        return int(value.p > 0) - int(value.p < 0)
    if is_zero(value):
        return 0
    try:
        number = value.evalf(_SIGN_DIGITS, strict=True)
    except sympy.core.evalf.PrecisionExhausted:
        number = sympy.nan
    if number.is_comparable and abs(number) > sympy.Float(10) ** -(_SIGN_DIGITS // 2):
        return 1 if number > 0 else -1
    raise _Undecided(f"the sign of {_shown(value)}")


def _shown(value: Any) -> str:
    try:
        return str(value)[:60]
    except ValueError:  # an integer of thousands of digits is not written out
        return "a number of thousands of digits"


# --- factorisations ---------------------------------------------------------------------------


def _check_product(constraints: Mapping[str, Any], answer: str) -> dict[str, Any]:
    wanted = _wanted(str(constraints["product"]))
    prime = constraints.get("prime", False)
    if prime and wanted < 2:
        raise _BadConstraints("product: prime factors are those of a number from 2")
    found, others = factors(answer)
    product = sympy.Mul(*(base**exponent for base, exponent in found))
    if any(value != wanted for value in (product, *others)):
        return {"fails": f"the product is {_shown(product)}"}
    for base, _ in found:
        if not base.is_Integer or (abs(base) < 2 and (prime or base != -1)):
            return {"fails": f"{_shown(base)} is no factor"}
        if prime and not sympy.isprime(int(base)):
            return {"fails": f"{_shown(base)} is no prime"}
    count = sum(int(exponent) for base, exponent in found if abs(base) > 1)
    if count < 2 and not prime:
        return {"fails": "it has one factor"}
    return {"holds": 1}


def _wanted(text: str) -> Any:
    try:
        wanted = value_of(parse(text, ()), {})
    except ExpressionError as error:
        raise _BadConstraints(f"product: {error}") from None
    if not wanted.is_Integer or abs(wanted) < 2:
        raise _BadConstraints("product: not a whole number other than -1, 0 and 1")
    return wanted


# --- all solutions ----------------------------------------------------------------------------


def _check_all(name: str, where: Sequence[_Constraint], answer: str) -> dict[str, Any]:
    """The answer lists every real solution: each holds, and none is missing."""
    given = listed(name, answer)
    for value in given:
        fails = _failing(where, {name: value})
        if fails is not None:
            return {"fails": f"{fails} with {name} = {_shown(value)}"}
    for candidate in _candidates(name, where):
        if _failing(where, {name: candidate}) is None and not any(
            _sign(candidate - value) == 0 for value in given
        ):
            return {"fails": f"{name} = {_shown(candidate)} is missing"}
    return {"holds": len(where)}


def _candidates(name: str, where: Sequence[_Constraint]) -> list[Any]:
    """Finitely many real numbers that hold all solutions: whole numbers between bounds, or what
    solves one of the equations.

    Raises:
        _Undecided: sympy does not find finitely many.
    """
    symbol = sympy.Symbol(name, real=True)
    parts = [part for one in where if one.tree is not None for part in _conjuncts(one.tree)]
    low, high = _bounds(parts)
    if low > high:
        return []
    if any(one.kind in _WHOLE_KINDS for one in where) and (high - low) <= _MAX_ENUMERATED:
        return [
            sympy.Integer(number)
            for number in range(int(sympy.ceiling(low)), int(sympy.floor(high)) + 1)
        ]
    for part in parts:
        if [type(operator) for operator in part.ops] != [ast.Eq]:
            continue
        try:
            left, right = (
                value_of(side, {name: symbol}) for side in (part.left, part.comparators[0])
            )
            found = sympy.solveset(left - right, symbol, domain=sympy.Interval(low, high))
        except (ExpressionError, NotImplementedError, ValueError, TypeError):
            continue
        if isinstance(found, sympy.FiniteSet) or found is sympy.S.EmptySet:
            return list(found)
    raise _Undecided("no equation is known to have these solutions alone")


def _conjuncts(tree: ast.expr) -> Iterator[ast.Compare]:
    """The comparisons that must hold for the whole to hold."""
    if isinstance(tree, ast.Compare):
        yield tree
    elif isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        for part in tree.values:
            yield from _conjuncts(part)


def _bounds(parts: Sequence[ast.Compare]) -> tuple[Any, Any]:
    """Between what the symbol lies, both ends included, by comparisons such as `0 <= x < 7`."""
    low, high = -sympy.oo, sympy.oo
    for part in parts:
        sides = [part.left, *part.comparators]
        for left, operator, right in zip(sides, part.ops, sides[1:], strict=False):
            kind = type(operator)
            if isinstance(right, ast.Name) and not isinstance(left, ast.Name):
                left, right, kind = right, left, _MIRRORED.get(kind, kind)
            end = _end(right) if isinstance(left, ast.Name) else None
            if end is None:
                continue
            if kind in (ast.Lt, ast.LtE):
                high = sympy.Min(high, end)
            elif kind in (ast.Gt, ast.GtE):
                low = sympy.Max(low, end)
    return low, high


def _end(tree: ast.expr) -> Any:
    """A bound's value; None where it is no number."""
    try:
        value = value_of(tree, {})
    except (ExpressionError, KeyError):
        return None
    return value if value.is_comparable else None
