"""The form of a family's answers, and a program's value in that form.

What a program returns counts only where it becomes, character by character, the answer that was
verified; nothing is forgiven that another form of answer would need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from kvgraft.errors import StoreError
from kvgraft.limits import MAX_METHOD_DIGITS

INTEGER, DECIMAL, TEXT = "integer", "decimal", "text"
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_DECIMAL = re.compile(r"-?[0-9]+\.([0-9]+)")
_EXACT_FLOAT = 2**53  # integers beyond it are not all floats
_NOISE = Decimal("1e-9")  # relative: what doubles leave of a decimal


@dataclass(frozen=True)
class AnswerForm:
    """`places`: behind the point of a decimal. `signs` of the numbers that were seen; for text,
    `longest` of them in characters."""

    kind: str
    places: int
    signs: tuple[int, ...]
    longest: int

    def spell(self, value: Any) -> str | None:
        """The answer that a program's value is, or None where it is none of this form."""
        if self.kind == TEXT:
            text = str(value) if type(value) in (str, int) else ""
            return text if 0 < len(text) <= 2 * self.longest else None
        number = _number(value)
        if number is None:
            return None
        try:
            rounded = number.quantize(Decimal(1).scaleb(-self.places))
        except InvalidOperation:  # beyond the digits of the context
            if self.places or number != number.to_integral_value():
                return None
            rounded = number
        if not _near(number, rounded, exact=type(value) is not float):
            return None
        if _sign(rounded) not in self.signs:
            return None
        return f"{rounded if rounded else abs(rounded):f}"  # no minus before a zero


def form_of(answers: Sequence[str]) -> AnswerForm:
    """The form that all of `answers` have."""
    longest = max(map(len, answers))
    if all(_INTEGER.fullmatch(one) and len(one) <= MAX_METHOD_DIGITS for one in answers):
        return AnswerForm(INTEGER, 0, _signs(answers), longest)
    decimals = [_DECIMAL.fullmatch(one) for one in answers]
    places = {len(match[1]) for match in decimals if match}
    if all(decimals) and len(places) == 1 and longest <= MAX_METHOD_DIGITS:
        return AnswerForm(DECIMAL, places.pop(), _signs(answers), longest)
    return AnswerForm(TEXT, 0, (), longest)


def as_json(form: AnswerForm) -> dict[str, Any]:
    return {**asdict(form), "signs": list(form.signs)}


def from_json(data: Mapping[str, Any]) -> AnswerForm:
    """Inverse of `as_json`.

    Raises:
        StoreError: this is no form.
    """
    try:
        form = AnswerForm(
            str(data["kind"]), int(data["places"]), tuple(data["signs"]), int(data["longest"])
        )
        if form.kind not in (INTEGER, DECIMAL, TEXT) or not 0 <= form.places <= MAX_METHOD_DIGITS:
            raise ValueError("no such form")
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the form of an answer is damaged: {error}") from error
    return form


def _signs(answers: Sequence[str]) -> tuple[int, ...]:
    return tuple(sorted({_sign(Decimal(one)) for one in answers}))


def _sign(number: Decimal) -> int:
    return (number > 0) - (number < 0)


def _number(value: Any) -> Decimal | None:
    """The number that a value is: an int, a float, or a text that spells one as people do."""
    if type(value) is str and len(value) <= MAX_METHOD_DIGITS:
        plain = _INTEGER.fullmatch(value) or _DECIMAL.fullmatch(value)
        return Decimal(value) if plain else None
    if type(value) is int and abs(value) < 10**MAX_METHOD_DIGITS:
        return Decimal(value)
    if type(value) is float and abs(value) < _EXACT_FLOAT:
        return Decimal(repr(value))
    return None


def _near(number: Decimal, rounded: Decimal, *, exact: bool) -> bool:
    if exact:
        return number == rounded
    return abs(number - rounded) <= _NOISE * max(Decimal(1), abs(number))
