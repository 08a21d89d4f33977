r"""What an answer says of each symbol: `x = 3`, `(6, 4)`, `y = 4, x = 6`, `\{-3, 3\}`, JSON.

Runs in a worker process only: it imports sympy.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from kvgraft.library.verify.expression import ExpressionError, parse, sympy, value_of
from kvgraft.library.verify.normalise import normalise
from kvgraft.library.verify.number import parse_number

SLOT = re.compile(r"\{([A-Za-z_]\w*)\}")
_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:_\s*(?:[0-9]|\{[0-9]+\})\s*)?=(.*)", re.DOTALL)
_TOKENS = re.compile(r"[()\[\]{}]|[,;]|\b(?:or|and)\b")
_NOTHING = re.compile(
    r"\\emptyset|(?:\\?\{\s*\\?\})|none|(?:there (?:is|are) )?no (?:real )?solutions?", re.I
)
_LATEX = (
    (re.compile(r"\\text\s*\{\s*(or|and)\s*\}"), r" \1 "),
    (re.compile(r"\\(?:times|cdot)(?![A-Za-z])"), "*"),
    (re.compile(r"\\div(?![A-Za-z])"), "/"),
    (re.compile(r"\\(pi|sin|cos|tan|log|exp)(?![A-Za-z])"), r" \1"),
    (re.compile(r"\\ln(?![A-Za-z])"), " log"),
    (re.compile(r"\\sqrt\s*\{([^{}]*)\}"), r" sqrt(\1)"),
    (re.compile(r"\\frac\s*([0-9])\s*([0-9])"), r"\\frac{\1}{\2}"),
    # A number before a fraction is a mixed number, or a factor: who can tell?
    (re.compile(r"(?<![0-9.])(\s*)\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1((\2)/(\3))"),
    (re.compile(r"\^\s*\{([^{}]*)\}"), r"^(\1)"),
)
# `2 pi`, `2(3)`, `(2)(3)`, but not the `e` of 2e5. Two numbers side by side are no product.
_SIDE_BY_SIDE = re.compile(r"(?<=[0-9)])\s*(?=[A-Za-z(])(?![eE][-+]?[0-9])(?!(?:or|and)\b)")
_MAX_BRACKETS = 8  # around the whole of an answer
Values = dict[str, Any]
Factor = tuple[Any, Any]


class Unreadable(ValueError):
    """Why an answer cannot be put anywhere."""


def values(form: str, symbols: Sequence[str], answer: str) -> Values:
    """What the answer says of each symbol. `form`: "json", a template with `{x}`, or the names in
    their order.

    Raises:
        Unreadable: it is not of that form, or not of numbers.
    """
    if form == "json":
        said = _json_object(answer)
    elif SLOT.search(form):
        said = _by_template(form, answer)
    else:
        said = _by_place([name.strip() for name in form.strip(" ()").split(",")], answer)
    if missing := sorted(set(symbols) - set(said)):
        raise Unreadable(f"it says nothing of {', '.join(missing)}")
    return {name: _number(said[name]) for name in symbols}


def listed(name: str, answer: str) -> list[Any]:
    """The values of a list, in which `2 \\pm 1` are two of them.

    Raises:
        Unreadable: a part is no number.
    """
    text = _normal(answer)
    if _NOTHING.fullmatch(text.strip()):
        return []
    found = []
    for part in _parts(text):
        part = _after_name(part, name)
        for sign in ("+", "-") if r"\pm" in part else ("",):
            found.append(_number(part.replace(r"\pm", sign, 1)))
    return found


def factors(answer: str) -> tuple[list[Factor], list[Any]]:
    """Bases and exponents of a product as it is written, not worked out; and the values of what it
    is said to be equal to.

    Raises:
        Unreadable: no product, or list, of numbers.
    """
    sides = [
        [factor for part in _parts(side) for factor in _split(_parsed(part))]
        for side in _normal(answer).split("=")
    ]
    products = [number for number, side in enumerate(sides) if len(side) > 1]
    chosen = products[-1] if products else len(sides) - 1
    others = [_product(side) for number, side in enumerate(sides) if number != chosen]
    return sides[chosen], others


# --- forms ------------------------------------------------------------------------------------


def _json_object(answer: str) -> dict[str, Any]:
    said = json.loads(answer, parse_int=str, parse_float=str)  # `json_in` found that it is JSON
    if not isinstance(said, dict):
        raise Unreadable("it is no JSON object")
    return said


def _by_template(form: str, answer: str) -> dict[str, Any]:
    pieces = SLOT.split(form)
    pattern = "".join(
        f"(?P<{piece}>[^,;]+?)" if number % 2 else r"\s*".join(map(re.escape, piece.split(" ")))
        for number, piece in enumerate(pieces)
    )
    for text in (answer, _normal(answer)):
        if match := re.fullmatch(rf"\s*{pattern}\s*", text):
            return match.groupdict()
    raise Unreadable(f"it is not of the form {form!r}")


def _by_place(names: list[str], answer: str) -> dict[str, Any]:
    text = _normal(answer)
    if len(names) == 1:
        return {names[0]: _after_name(text, names[0])}
    parts = _parts(text)
    if len(parts) != len(names):
        raise Unreadable(f"{len(parts)} values for {len(names)}")
    named = [_NAMED.fullmatch(part) for part in parts]
    if all(named):
        said = {match[1]: match[2] for match in named if match}
        if set(said) == set(names):
            return said
        raise Unreadable("it names other symbols")
    return dict(zip(names, parts, strict=True))


def _after_name(text: str, name: str) -> str:
    match = _NAMED.fullmatch(text)
    if match is None:
        return text
    if match[1] != name:
        raise Unreadable("it names other symbols")
    return match[2]


def _parts(text: str) -> list[str]:
    """A text at its commas, semicolons, `or` and `and`, those in brackets left; brackets around all
    of it are taken off first."""
    text = _plain(text).strip()
    for _ in range(_MAX_BRACKETS):
        if (inner := _inside(text)) is None:
            break
        text = inner.strip()
    parts, depth, start = [], 0, 0
    for token in _TOKENS.finditer(text):
        if token[0] in "([{":
            depth += 1
        elif token[0] in ")]}":
            depth -= 1
        elif depth == 0:
            parts.append(text[start : token.start()])
            start = token.end()
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _inside(text: str) -> str | None:
    """What is in the brackets around all of a text, None without."""
    opening = next((one for one in (r"\{", "(", "[", "{") if text.startswith(one)), None)
    if opening is None:
        return None
    closing = opening.translate(str.maketrans("({[", ")}]"))
    depth = 0
    for place, character in enumerate(text):
        depth += {opening[-1]: 1, closing[-1]: -1}.get(character, 0)
        if depth == 0 and place >= len(opening):
            whole = place == len(text) - 1 and text.endswith(closing)
            return text[len(opening) : len(text) - len(closing)] if whole else None
    return None


# --- numbers ----------------------------------------------------------------------------------


def _number(said: Any) -> Any:
    """A number as sympy's."""
    if not isinstance(said, str):
        raise Unreadable(f"{str(said)[:40]!r} is no number")
    normal = _normal(said)
    if (number := parse_number(normal)) is not None:
        return sympy.Rational(number.value.numerator, number.value.denominator)
    try:
        return value_of(_parsed(normal), {})
    except ExpressionError as error:
        raise Unreadable(str(error)) from None


def _normal(text: str) -> str:
    """The answer's normal form, its unit left out: constraints have none."""
    normal = normalise(text)
    if normal.unit is not None and normal.unit.startswith("base "):
        raise Unreadable(f"a number in {normal.unit}")
    return normal.text


def _parsed(text: str) -> ast.expr:
    try:
        return parse(_SIDE_BY_SIDE.sub("*", _plain(text)), ())
    except ExpressionError as error:
        raise Unreadable(str(error)) from None


def _plain(text: str) -> str:
    """LaTeX as `normalise` writes it, in the signs of `expression`; what it cannot say stays."""
    before = ""
    while text != before:  # from the innermost braces outwards
        before = text
        for pattern, sign in _LATEX:
            text = pattern.sub(sign, text)
    return text


def _split(tree: ast.expr) -> Iterator[Factor]:
    try:
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult):
            yield from _split(tree.left)
            yield from _split(tree.right)
        elif isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow):
            value_of(tree, {})  # for its bounds
            exponent = value_of(tree.right, {})
            if not (exponent.is_Integer and exponent > 0):
                raise Unreadable("an exponent that is no whole number from 1")
            yield value_of(tree.left, {}), exponent
        else:
            yield value_of(tree, {}), sympy.Integer(1)
    except ExpressionError as error:
        raise Unreadable(str(error)) from None


def _product(side: list[Factor]) -> Any:
    return sympy.Mul(*(base**exponent for base, exponent in side))
