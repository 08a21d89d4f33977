"""Skeletons: induced from problems, matched to the letter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft.errors import StoreError
from kvgraft.library.methods import skeleton as module
from kvgraft.library.methods.skeleton import Skeleton, induce, phrasings, shape_of
from kvgraft.testing.problem_families import problem_families, solved_problems

ASKED = 'On {}, "{}" and {} were at {}: what is {} of {}?'
ROW = st.tuples(
    st.dates().map(lambda day: day.isoformat()),
    st.text(st.characters(exclude_characters='"\n', codec="utf-8"), max_size=8),
    st.integers(-999, 999).map(str),
    st.times().map(lambda time: f"{time:%H:%M}"),
    st.sampled_from(["half", "all", "none"]),
    st.lists(st.integers(0, 99).map(str), min_size=3, max_size=6).map(", ".join),
)


@given(st.lists(ROW, min_size=2, max_size=8, unique=True), ROW)
def test_what_was_put_in_is_read_out(rows: list[tuple[str, ...]], new: tuple[str, ...]) -> None:
    found = induce([ASKED.format(*row) for row in rows])
    assert found is not None
    for row in rows:
        texts = found.match(ASKED.format(*row))
        assert texts is not None
        assert found.spell(texts) == ASKED.format(*row)
        quoted = f'"{row[1]}"'
        assert set(texts) <= {*row, quoted}
    # A new row matches just where it agrees in what never varied, and with itself in what was
    # always twice the same; then it reads back whole.
    text = ASKED.format(*new)
    texts = found.match(text)
    columns = list(zip(*rows, strict=True))
    pairs = zip(columns, new, strict=True)
    fits = all(len(set(seen)) > 1 or value == seen[0] for seen, value in pairs)
    if texts is not None:
        assert fits
        assert found.spell(texts) == text
    elif shape_of(text) == found.shape and len(set(columns)) == len(columns):
        assert not fits


def powers() -> Skeleton:
    found = induce([f"What is the remainder when {a}^{b} is divided by {c}?" for a, b, c in ROWS])
    assert found is not None
    return found


ROWS = [(17, 20, 5), (3, 9, 11), (5, 4, 7)]


def test_a_skeleton_of_numbers() -> None:
    found = powers()
    assert found.named("abc") == "What is the remainder when {a}^{b} is divided by {c}?"
    assert found.types == ("integer", "integer", "integer")
    texts = found.match("What is the remainder when 2^10 is divided by 99?")
    assert texts == ("2", "10", "99")
    assert found.arguments(texts) == (2, 10, 99)


@pytest.mark.parametrize(
    "text",
    [
        "What is the quotient when 2^10 is divided by 99?",
        "What is not the remainder when 2^10 is divided by 99?",
        "What is the remainder when 2*10 is divided by 99?",
        "What is the remainder when 2^10 is divided by 99",
        "What is the remainder when 2^10 is divided by 99.",
        "What is the remainder when 2^10 is divided by 99? ",
        " What is the remainder when 2^10 is divided by 99?",
        "What is the remainder  when 2^10 is divided by 99?",
        "what is the remainder when 2^10 is divided by 99?",
        "What is the remainder when 2^10 is divided by 99? 5",
        "What is the remainder when 2^10 is divided by 99 or 5?",
        "What is the remainder when 2^10^2 is divided by 99?",
        "What is the remainder when 2^1.0 is divided by 99?",
        "What is the remainder when 2^010 is divided by 99?",
        "What is the remainder when 2^10 is divided by 1,000?",
        "What is the remainder when two^10 is divided by 99?",
        "What is the remainder when 2^10 is divided by nine?",
        "What is the remainder when 2\u00b9\u2070 is divided by 99?",
        "What is the remainder when \u0662^10 is divided by 99?",
        "What is the rema\u0456nder when 2^10 is divided by 99?",
        "What is the remainder when 2^10 is divided by 99?\nWhat is 5?",
        "",
    ],
)
def test_anything_else_does_not_match(text: str) -> None:
    assert powers().match(text) is None


def test_a_value_in_two_places_has_to_be_the_same() -> None:
    texts = [f"{name} has 5 nuts. How many has {name} now?" for name in ("Ann", "Ben", "Cid")]
    found = induce(texts)
    assert found is not None
    assert found.named("abc") == "{a} has 5 nuts. How many has {a} now?"
    assert found.match("Dot has 5 nuts. How many has Dot now?") == ("Dot",)
    assert found.match("Dot has 5 nuts. How many has Ann now?") is None
    assert found.match("Dot has 6 nuts. How many has Dot now?") is None


@pytest.mark.parametrize(
    "texts",
    [
        ["Only one text 5."],
        ["The same 5.", "The same 5."],
        ["Is it 5?", "Is it 6."],  # a question and a statement
        ["a 5", "b 6"],  # nothing in common but a number
        ["one two three four five 7", "six eight nine ten eleven 7"],
        [" ".join(str(n + k) for n in range(9)) for k in (1, 2)],  # too many slots
        ["count 007 of it", "count 008 of it"],  # what is odd is no value
    ],
)
def test_no_skeleton(texts: list[str]) -> None:
    assert induce(texts) is None


def test_texts_with_the_same_words_belong_together() -> None:
    medians = [f"What is the median of {n}, 2, 3?" for n in range(6)]
    largest = [f"What is the largest of {n}, 2, 3?" for n in range(6)]
    assert len(phrasings([*medians, *largest], enough=6)) == 2
    # With too few of each they are one phrasing, whose word is a value.
    (mixed,) = phrasings([*medians, *largest], enough=7)
    assert mixed.types == ("word", "integers")
    assert phrasings(["What is 5?", "Hello there."], enough=6) == {}


@pytest.mark.parametrize("name", problem_families())
def test_every_family_has_one_skeleton_a_phrasing(name: str) -> None:
    family = problem_families()[name]
    for number in range(len(family.phrasings)):
        texts = [one.text for one in solved_problems(family, 1, 24, phrasing=number)]
        (found,) = phrasings(texts[:12], enough=12)
        matched = [text for text in texts if found.match(text)]
        assert matched == texts
        assert all(shape_of(text) == found.shape for text in texts)


def test_json() -> None:
    rows = powers().as_json()
    assert module.from_json(rows) == powers()
    for bad in (
        [],
        [["integer", None, 1]],
        [["integer", "5", 0]],
        [["odd", None, 0]],
        [["nothing", None, 0]],
        [["integer", None, "0"]],
        [["integer", None]],
        5,
        [[None, None, None]],
    ):
        with pytest.raises(StoreError):
            module.from_json(bad)  # type: ignore[arg-type]
