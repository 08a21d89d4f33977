r"""Plain numbers, exactly: `016`, `10,080`, `1e3`, `-\frac{1}{2}`, `2 1/2`, `3 million`.

And when two of them are the same number, one of them perhaps rounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import gcd

# A decimal stands for a number that goes on when it has at least this many places and digits:
# 0.333333 for 1/3, but not 0.333. What was computed in doubles is a few 1e-16 off.
ROUNDED_PLACES = 6
ROUNDED_DIGITS = 6
DOUBLE_NOISE = Fraction(1, 10**14)
# What is left of the difference of two irrationals that are one, when both are cut to 60 digits.
CUT_NOISE = Fraction(1, 10**40)
MAX_EXPONENT = 10_000


@dataclass(frozen=True)
class Number:
    """A value, and what is known of its precision."""

    value: Fraction
    places: int | None = None  # decimal places as written, less trailing zeros; None if exact
    cut: bool = False  # the leading digits of an irrational


_UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_PLAIN = rf"[-+]?\s?(?:{_UNSIGNED})(?:[eE][-+]?[0-9]{{1,5}})?"
_BRACED = rf"(?:\{{\s*({_PLAIN})\s*\}}|([0-9]))"
_DECIMAL = re.compile(_PLAIN)
_POWER = re.compile(
    rf"({_PLAIN})\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{{\s*([-+]?[0-9]{{1,5}})\s*\}}|([-+]?[0-9]{{1,5}}))"
)
_SLASH = re.compile(rf"({_PLAIN})\s*[/:]\s*({_UNSIGNED})")
# A time of day, or a ratio: as ratios, 12:30 and 2:05 would be one number.
_TIME = re.compile(r"(?<![0-9:])[0-9]{1,2}\s*(?::|\\colon)\s*[0-5][0-9](?![0-9]|\s*:)")
_RATIO = re.compile(r"\s*([0-9]{1,2})\s*(?::|\\colon)\s*([1-5][0-9])\s*")
_FRACTION = re.compile(rf"([-+]?)\s*\\frac\s*{_BRACED}\s*{_BRACED}")
_MIXED = re.compile(rf"([-+]?)([0-9]+)\s*(\\frac\s*{_BRACED}\s*{_BRACED}|(?<=\s)[0-9]+/[0-9]+)")
_MILLIONS = re.compile(
    rf"({_PLAIN})\s*(?:\\text\s*\{{)?\s*(thousand|million|billion|trillion)\s*\}}?"
)
_SCALE = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def is_integer(text: str) -> bool:
    """Whether the text is a whole number in plain decimal digits."""
    number = _decimal(text.strip()) if _DECIMAL.fullmatch(text.strip()) else None
    return number is not None and number.value.denominator == 1


def is_evaluated(text: str) -> bool:
    """Whether the text is one number, not a calculation: `12`, `1.2e1`, `3 million`."""
    return any(form.fullmatch(text.strip()) for form in (_DECIMAL, _POWER, _MILLIONS))


def has_time(text: str) -> bool:
    """Whether there may be a time of day in a text. In a ratio's lowest terms there is none for
    sure, so `parse_ratio` reads it all the same."""
    return _TIME.search(text) is not None


def parse_ratio(text: str) -> Number | None:
    """The number of a ratio such as 3:10 that could be a time by its looks, but is in lowest terms;
    or None."""
    match = _RATIO.fullmatch(text)
    if match is None or gcd(int(match[1]), int(match[2])) != 1:
        return None
    return Number(Fraction(int(match[1]), int(match[2])))


def parse_number(text: str) -> Number | None:
    """The number that all of `text` is, or None. Raises nothing."""
    text = text.strip()
    if _DECIMAL.fullmatch(text):
        return _decimal(text)
    if match := _POWER.fullmatch(text):
        base = _decimal(match[1])
        exponent = int(match[2] or match[3])
        return None if base is None else _scaled(base, exponent)
    if (match := _SLASH.fullmatch(text)) and not has_time(text):
        return _ratio(match[1], match[2])
    if match := _FRACTION.fullmatch(text):
        return _signed(match[1], _ratio(match[2] or match[3], match[4] or match[5]))
    if match := _MIXED.fullmatch(text):
        whole, part = _decimal(match[2]), parse_number(match[3])
        if whole is None or part is None or part.value < 0:
            return None
        return _signed(match[1], Number(whole.value + part.value))
    if match := _MILLIONS.fullmatch(text):
        base = _decimal(match[1])
        return None if base is None else _scaled(base, _SCALE[match[2]])
    return None


def same_number(one: Number, other: Number) -> bool:
    """Whether two numbers are one: equal, or a decimal and what it is the start or rounding of."""
    difference = abs(one.value - other.value)
    if difference == 0:
        return True
    size = max(abs(one.value), abs(other.value))
    rounded = [number for number in (one, other) if number.places is not None]
    if not rounded:
        return (one.cut or other.cut) and difference <= size * CUT_NOISE
    coarse = min(rounded, key=lambda number: number.places or 0)
    fine = other if coarse is one else one
    unit = Fraction(1, 10 ** (coarse.places or 0))
    if unit > Fraction(1, 10**ROUNDED_PLACES) or abs(coarse.value) < unit * 10 ** (
        ROUNDED_DIGITS - 1
    ):
        return False
    is_start = difference < unit and abs(coarse.value) < abs(fine.value)
    return is_start or difference <= max(unit / 2, size * DOUBLE_NOISE)


def _decimal(text: str) -> Number | None:
    # Decimal and not int: Python refuses to read integers of more than 4,300 digits from text.
    number = Decimal(re.sub(r"[,\s]", "", text))
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or abs(exponent) > MAX_EXPONENT:
        return None
    value = Fraction(number)
    if value.denominator == 1:
        return Number(value)  # 5.00 is the integer 5
    zeros = next(count for count, digit in enumerate(reversed(digits)) if digit)
    return Number(value, -exponent - zeros)


def _scaled(base: Number, exponent: int) -> Number | None:
    if abs(exponent) > MAX_EXPONENT:
        return None
    value = base.value * Fraction(10) ** exponent
    return Number(value, None if value.denominator == 1 else (base.places or 0) - exponent)


def _ratio(above: str, below: str) -> Number | None:
    numerator, denominator = _decimal(above), _decimal(below)
    if numerator is None or denominator is None or denominator.value == 0:
        return None
    return Number(numerator.value / denominator.value)


def _signed(sign: str, number: Number | None) -> Number | None:
    if number is None or sign != "-":
        return number
    return Number(-number.value, number.places)
