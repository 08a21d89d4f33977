r"""Are two answers the same mathematics? Runs in a worker process only: see `worker_main`.

`math_verify` parses and proposes; its yes stands unless a check here refutes it, because it
forgives more than a key may: values that differ in the seventh place, a set for a point, an
equation for its right side. Cheap cases are decided before it: plain numbers exactly, equal texts,
words, constants that differ.
"""

from __future__ import annotations

import importlib
import re
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

from kvgraft import limits
from kvgraft.library.verify.normalise import Normal, normalise
from kvgraft.library.verify.number import (
    Number,
    has_time,
    is_evaluated,
    is_integer,
    parse_number,
    parse_ratio,
    same_number,
)

_WORDS = re.compile(r"[A-Za-z]{3,}(?: [A-Za-z]+)*")
# An operator behind an operand, or a function: what has still to be worked out.
_OPERATION = re.compile(
    r"[0-9)}]\s*(?:[-+*/^!:\u00d7\u00b7\u00f7\u2212]|\\(?:times|cdot|div|over)\b)|\\[dt]?frac|\\sqrt|\\binom"
)
# What sets a text and says nothing: white space, boxes of text, thin and other spaces.
_SETTING = re.compile(r"\\(?:text|quad|qquad)(?![A-Za-z])|\\[,;:! ]|[{}~\s]")
_OR = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])")
_NUMERIC_DIGITS = 60
# Parsed once at the start: the grammar's tables are built on first use, a tenth of a second each.
_WARM_UP = (r"\frac{1}{2}x", "(1,2)", r"[1,2)", r"\{1,2\}", r"x\le 3", "x=5", r"\sqrt{2}", "1,2")

# sympy and math_verify carry no types.
_sympy: Any = None
_math_verify: Any = None
_parse_config: Any = None


def load() -> Any:
    """Imports what is heavy, and returns the handler of the worker."""
    global _sympy, _math_verify, _parse_config
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(limits.MAX_MATH_CHARS)
    logging = importlib.import_module("logging")
    logging.disable(logging.CRITICAL)
    _sympy = importlib.import_module("sympy")
    _math_verify = importlib.import_module("math_verify")
    # Units and boxes are the business of `normalise`.
    normalisation = _math_verify.LatexNormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
    )
    _parse_config = [
        _math_verify.LatexExtractionConfig(
            boxed_match_priority=-1, normalization_config=normalisation
        )
    ]
    for text in _WARM_UP:
        _parse(text)
    return lambda request: compare(str(request["gold"]), str(request["given"]))


def compare(gold: str, given: str) -> dict[str, Any]:
    """Whether `given` says what `gold` says: {"equal": bool, "how": str}.

    `how` is what decided: "units", "unevaluated", "number", "text", "time", "word", "symbolic"
    (math_verify), or "refuted: ..." where math_verify said yes and a check here no.
    """
    one, other = normalise(gold), normalise(given)
    number, other_number = parse_number(one.text), parse_number(other.text)
    if not one.text or not other.text:
        return {"equal": False, "how": "text"}
    if has_time(one.text) or has_time(other.text):
        return {"equal": _same_times(one, other), "how": "time"}
    if _units_differ(one, other, number):
        return {"equal": False, "how": "units"}
    if number is not None and is_integer(one.text) and _unevaluated(other.text):
        return {"equal": False, "how": "unevaluated"}
    if number is not None and other_number is not None:
        return {"equal": same_number(number, other_number), "how": "number"}
    if one.text == other.text:
        return {"equal": True, "how": "text"}
    if _WORDS.fullmatch(one.text) and _WORDS.fullmatch(other.text):
        # To math_verify a word is a product of letters, and `seat` is `east`.
        return {"equal": one.text.lower() == other.text.lower(), "how": "word"}
    return _symbolic(one.text, other.text)


def _same_times(one: Normal, other: Normal) -> bool:
    """Whether two answers, one of them with a time of day by its looks, are one: in the same words,
    or as the ratio that it may be as well. To math_verify a colon divides."""
    if has_time(one.text) and has_time(other.text):
        return one.unit == other.unit and _as_written(one.text) == _as_written(other.text)
    time, plain = (one, other) if has_time(one.text) else (other, one)
    ratio, number = parse_ratio(time.text), parse_number(plain.text)
    return ratio is not None and number is not None and same_number(ratio, number)


def _as_written(text: str) -> str:
    """A text without what only sets it: white space, LaTeX's boxes and thin spaces, leading
    zeros."""
    plain = _SETTING.sub("", text.replace(r"\colon", ":")).replace(".", "").casefold()
    return re.sub(r"(?<![0-9])0(?=[0-9]:)", "", plain)


def _unevaluated(given: str) -> bool:
    """Whether an answer to a question with a whole number for a key is still a calculation.

    `17 + 25` restates "What is 17 + 25?"; as a value it would be right without being an answer.
    """
    result = given.rpartition("=")[2].strip()
    return not is_evaluated(result) and _OPERATION.search(result) is not None


def _units_differ(one: Normal, other: Normal, number: Number | None) -> bool:
    if one.unit and other.unit:
        return one.unit != other.unit
    if other.unit == "percent":
        # `28%` for the key 28: the question asked for the percentage. For 0.28 or 1/2 it is not
        # clear what was asked, and 0.5% for 0.5 is wrong: not equal.
        return number is None or number.value.denominator != 1
    return False


# --- math_verify ------------------------------------------------------------------------------


def _symbolic(gold: str, given: str) -> dict[str, Any]:
    one, other = _as_union(gold, _parse(gold)), _as_union(given, _parse(given))
    if _values_differ(one[0], other[0]):
        # Asked first: to find that two constants differ can take sympy very long.
        return {"equal": False, "how": "number"}
    # No time-outs of its own: they are signals, and the worker has its limit from outside.
    equal = _math_verify.verify(
        one, other, strict=True, allow_set_relation_comp=True, timeout_seconds=None
    )
    refuted = equal and _refuted(gold, one[0], given, other[0])
    return {"equal": bool(equal and not refuted), "how": refuted or "symbolic"}


def _parse(text: str) -> list[Any]:
    parsed = _math_verify.parse(f"${text}$", _parse_config, parsing_timeout=None)
    return list(parsed) or [text]


def _as_union(text: str, parsed: list[Any]) -> list[Any]:
    """`x < -2 or x > 2` as the set that it describes; anything else as it is."""
    value = parsed[0]
    if not isinstance(value, _sympy.FiniteSet) or not _OR.search(text):
        return parsed
    parts = value.args
    ordered = all(part.is_Relational and part.rel_op not in ("==", "!=") for part in parts)
    if not ordered or len(value.free_symbols) != 1:
        return parsed
    try:
        return [_sympy.Union(*(part.as_set() for part in parts))]
    except NotImplementedError:  # an inequality that sympy cannot solve
        return parsed


def _values_differ(gold: Any, given: Any) -> bool:
    """Whether two constants, or two of their members or places, are different numbers."""
    if isinstance(gold, _sympy.Eq) and isinstance(given, _sympy.Eq):
        return False  # 2x = 10 and x = 5
    gold, given = _right_side(gold), _right_side(given)
    pairs = list(zip(_elements(gold), _elements(given), strict=False)) or [(gold, given)]
    numbers = [(_number(one), _number(other)) for one, other in pairs]
    return any(one and other and not same_number(one, other) for one, other in numbers)


def _refuted(gold_text: str, gold: Any, given_text: str, given: Any) -> str:
    """Why two parsed answers differ although math_verify takes them for one; "" if they do not."""
    if isinstance(gold, str) or isinstance(given, str):
        return ""
    if _is_set(gold_text, gold) != _is_set(given_text, given) and (
        _is_point(gold) or _is_point(given)
    ):
        return "refuted: a set is not a point"
    if _is_false_equation(given):
        return "refuted: the equation is false"
    if isinstance(given, _sympy.Eq):
        if isinstance(gold, _sympy.Eq):
            return "" if _same_equation(gold, given) else "refuted: equations without solutions"
        if not _names_something(given.lhs):
            return "refuted: an equation is not its right side"
    return ""


def _is_set(text: str, value: Any) -> bool:
    return isinstance(value, _sympy.FiniteSet) and text.startswith(r"\{")


def _is_point(value: Any) -> bool:
    return isinstance(value, (_sympy.Tuple, _sympy.Interval))


def _is_false_equation(value: Any) -> bool:
    parts = getattr(value, "_unsorted_args", [value])  # math_verify's own And keeps the order
    return any(
        isinstance(part, _sympy.Eq) and not part.free_symbols and part.doit() is _sympy.false
        for part in parts
    )


def _names_something(left: Any) -> bool:
    """Whether `left = 7` states a value: `x`, `f(x)`, `AB`, `(x, y)`, `3 + 4`; not `2x`, `x^2`."""
    if not left.free_symbols or isinstance(left, _sympy.core.function.AppliedUndef):
        return True
    if parts := _elements(left):
        return all(map(_names_something, parts))
    return left.is_Symbol or (left.is_Mul and all(part.is_Symbol for part in left.args))


def _same_equation(gold: Any, given: Any) -> bool:
    """Whether both have a solution, or are multiples of each other: math_verify takes any two
    equations without solutions for one."""
    ratio = _sympy.simplify((gold.lhs - gold.rhs) / (given.lhs - given.rhs))
    if ratio.is_number and ratio.is_finite and not ratio.is_zero:
        return True
    return bool(_sympy.solve(gold, *gold.free_symbols))


def _right_side(value: Any) -> Any:
    parts = getattr(value, "_unsorted_args", [value])
    return parts[-1].rhs if parts and isinstance(parts[-1], _sympy.Eq) else value


def _elements(value: Any) -> list[Any]:
    """What is compared one by one: members of a finite set by size, places of a point, ends."""
    if isinstance(value, _sympy.Interval):
        return [value.start, value.end]
    if isinstance(value, _sympy.Tuple):
        return list(value.args)
    if isinstance(value, _sympy.FiniteSet):
        members = [_right_side(member) for member in value.args]
        sizes = [_number(member) for member in members]
        if all(size is not None for size in sizes):
            return [
                member
                for _, member in sorted(
                    zip((size.value for size in sizes if size), members, strict=True),
                    key=lambda pair: pair[0],
                )
            ]
    return []


def _number(value: Any) -> Number | None:
    """The real number that an expression is, or None."""
    if not isinstance(value, _sympy.Expr) or not value.is_number or not value.is_finite:
        return None
    if value.is_Rational:
        return Number(Fraction(int(value.p), int(value.q)))
    digits = value.evalf(_NUMERIC_DIGITS)
    if not digits.is_Float:
        return None
    number = Fraction(Decimal(str(digits)))
    if value.is_Float:
        written = Decimal(str(value)).normalize()
        exponent = written.as_tuple().exponent
        return Number(number, max(0, -exponent) if isinstance(exponent, int) else 0)
    if value.has(_sympy.Float):
        return Number(number, 15)  # computed from a decimal: what doubles hold
    return Number(number, cut=True)
