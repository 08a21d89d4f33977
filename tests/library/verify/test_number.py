"""Plain numbers, units and the normal form of an answer."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft.library.verify.normalise import normalise
from kvgraft.library.verify.number import Number, parse_number, same_number
from kvgraft.library.verify.units import without_unit


@pytest.mark.parametrize(
    ("text", "value", "places"),
    [
        ("016", 16, None),
        ("-18", -18, None),
        ("- 18", -18, None),
        ("10,080", 10080, None),
        ("10 080", 10080, None),
        ("0.50", Fraction(1, 2), 1),
        ("5.00", 5, None),
        ("5.", 5, None),
        (".5", Fraction(1, 2), 1),
        ("1e3", 1000, None),
        ("1.5e-3", Fraction(3, 2000), 4),
        (r"1.5 \times 10^{3}", 1500, None),
        (r"2 \cdot 10^{-3}", Fraction(1, 500), 3),
        ("1/3", Fraction(1, 3), None),
        (r"-\frac{1}{2}", Fraction(-1, 2), None),
        (r"\frac{-1}{2}", Fraction(-1, 2), None),
        (r"\frac12", Fraction(1, 2), None),
        (r"2\frac{1}{2}", Fraction(5, 2), None),
        (r"-2\frac{1}{2}", Fraction(-5, 2), None),
        ("2 1/2", Fraction(5, 2), None),
        ("3 million", 3_000_000, None),
        ("1.5 million", 1_500_000, None),
    ],
)
def test_numbers_are_read(text: str, value: Fraction, places: int | None) -> None:
    assert parse_number(text) == Number(Fraction(value), places)


@pytest.mark.parametrize(
    "text", ["", "-", "x", "12x", "1,23", "1,2345", "1/0", "1e99999", "1e", "--5", "5 6", "\u0661"]
)
def test_other_texts_are_no_numbers(text: str) -> None:
    assert parse_number(text) is None


@given(st.integers())
def test_integers_are_exact(value: int) -> None:
    number = parse_number(str(value))
    assert number == Number(Fraction(value))
    assert parse_number(f"{value:,}") == number
    assert not same_number(number, Number(Fraction(value + 1)))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=7))
def test_decimals_of_equal_places_are_equal_or_not(value: object) -> None:
    number = parse_number(f"{value:f}")
    assert number is not None
    assert number.value == Fraction(str(value))
    if abs(number.value) < 10**6:
        other = Number(number.value + Fraction(1, 10**7), 7)
        assert not same_number(Number(number.value, 7), other)


@given(st.text())
def test_any_text_is_safe(text: str) -> None:
    parse_number(text)
    normal = normalise(text)
    # A second look finds nothing more to do to what plain letters and digits say.
    if text.isascii() and text.isalnum():
        assert normalise(normal.text).text == normal.text
    without_unit(text)


@pytest.mark.parametrize(
    ("text", "normal", "unit"),
    [
        (r"864 \mbox{ inches}^2", "864", "inch^2"),
        ("12 square feet", "12", "foot^2"),
        (r"90^\circ", "90", "degree"),
        ("90\u00b0", "90", "degree"),
        (r"\sin 30^\circ", r"\sin 30^\circ", None),
        (r"28\%", "28", "percent"),
        ("28 percent", "28", "percent"),
        (r"\$1,234.50", "1234.50", "dollar"),
        ("-$5", "-5", "dollar"),
        ("5 million dollars", "5 million", "dollar"),
        ("5 apples", "5", None),
        (r"60\text{ km/h}", "60", "kilometre/hour"),
        ("60 km/h", "60", "kilometre/hour"),
        (r"60\text{ miles per hour}", "60", "mile/hour"),
        (r"60\text{ MW}", "60", "Mw"),
        (r"60\text{ kWh}", "60", None),
        (r"60\text{ K}", r"60\text{ K}", None),
        (r"9:30\text{ PM}", r"9:30\text{ PM}", None),
        ("35_8", "35", "base 8"),
        ("x_8", "x_8", None),
        (r"12^{\text{th}}", "12", None),
        ("21st", "21", None),
        ("5m", "5m", None),
        ("5 m", "5", "metre"),
        ("2 ab", "2 ab", None),
        ("2 pi", r"2 \pi", None),
        ("5 at most", "5 at most", None),
        (r"\text{(C)}", "C", None),
        (r"\boxed{\text{ East }}", "East", None),
        (r"\(x \in [-2, 7]\)", "[-2, 7]", None),
        (r"\left( 1, 2 \right)", "( 1, 2 )", None),
        ("{1, 2}", r"\{1, 2\}", None),
        ("{}", r"\emptyset", None),
        ("10,\\!080", "10080", None),
        ("(1,234)", "(1,234)", None),
        ("3:4:5", "(3,4,5)", None),
        ("\u221217", "-17", None),
        ("x\u00b2", "x^{2}", None),
        ("\u221a17", r"\sqrt{17}", None),
    ],
)
def test_normal_forms(text: str, normal: str, unit: str | None) -> None:
    assert (normalise(text).text, normalise(text).unit) == (normal, unit)
