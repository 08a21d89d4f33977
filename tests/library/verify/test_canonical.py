"""Canonical answers: ways to write one, and that unequal ones stay apart."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft.library.verify.canonical import canonical_answer
from kvgraft.library.verify.consensus import vote
from library.verify.cases import own_pairs, shared_pairs


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("016", "16"),
        ("16.0", "16"),
        ("1.6e1", "16"),
        (r"\boxed{16}", "$16$"),
        ("1/2", "0.5"),
        ("2/4", "0.5"),
        (r"\frac12", ".50"),
        ("2 1/2", "2.5"),
        ("1,234", "1234"),
        ("\u22125", "-5"),
        ("- 5", "-5"),
        ("Turn On", "turn on"),
        ("No", "no"),
        ("(1,2)", "(1, 2)"),
        ("2 x", "2x"),
        ("x - y", "x-y"),
        ("$18", "18 dollars"),
        ("7.", "7"),
    ],
)
def test_ways_to_write_one_answer(one: str, other: str) -> None:
    assert canonical_answer(one) == canonical_answer(other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5", "-5"),
        ("1/2", "12"),
        ("1 2", "12"),
        ("3 4", "34"),
        ("x 2", "x2"),
        ("144/12", "12"),  # still to be worked out
        (r"\frac{4}{2}", "2"),
        ("3", "3.0001"),
        ("1/3", "0.333333"),  # near is not equal: being near is not transitive
        ("turn on", "turn off"),
        ("A", "a"),
        ("AB", "ab"),
        ("x^2", "x2"),
        ("10 km", "10 m"),
        ("50", "50%"),
        ("(1,2)", "(2,1)"),
        ("(1,234)", "1,234"),
        ("3:4:5", "3:5:4"),
        ("12:30", "2:05"),  # times of day, and one ratio
        ("10:15", "2/3"),
        ("12:30", "0.4"),
        ("at least 3", "at most 3"),
    ],
)
def test_answers_that_differ(one: str, other: str) -> None:
    assert canonical_answer(one) != canonical_answer(other)


@pytest.mark.parametrize("text", ["", "  ", "$$", "x" * 5000])
def test_what_has_no_canonical_form(text: str) -> None:
    assert canonical_answer(text) is None


def test_a_number_of_9_999_digits_is_written() -> None:
    assert canonical_answer("1e9999") != canonical_answer("1e9998")
    assert canonical_answer("1e4999") != canonical_answer("1e5000") != canonical_answer("-1e5000")


def unequal(pairs: list[dict]) -> list[dict]:
    return [pair for pair in pairs if pair["match"] is False]


def check_stays_apart(pair: dict) -> None:
    gold = canonical_answer(str(pair["gold"]))
    assert gold is not None
    assert gold != canonical_answer(str(pair["given"])), pair
    assert gold != vote(str(pair["given"])), pair


def test_no_unequal_pair_becomes_one() -> None:
    pairs = unequal(own_pairs())
    assert len(pairs) > 90
    for pair in pairs:
        check_stays_apart(pair)


def test_no_unequal_shared_pair_becomes_one() -> None:
    pairs = shared_pairs()
    if pairs is None:
        pytest.skip("shared data absent: answer_pairs.jsonl")
    assert unequal(pairs)
    for pair in unequal(pairs):
        check_stays_apart(pair)


NUMBERS = st.integers(-(10**120), 10**120) | st.fractions(max_denominator=10**6)


@given(NUMBERS)
def test_a_number_is_itself_and_not_its_opposite(number: Fraction) -> None:
    form = canonical_answer(str(number))
    assert form is not None
    assert canonical_answer(form) == form
    assert number == 0 or canonical_answer(str(-number)) != form


@given(NUMBERS, NUMBERS)
def test_numbers_are_one_when_they_are_equal(one: Fraction, other: Fraction) -> None:
    assert (canonical_answer(str(one)) == canonical_answer(str(other))) is (one == other)


@given(st.text(max_size=40))
def test_any_text_is_taken_and_a_plain_form_stays_as_it_is(text: str) -> None:
    form = canonical_answer(text)
    if form is not None and form.isascii() and form.isalnum():
        assert canonical_answer(form) == form
