"""Families of problems: the answers are right, the phrasings apart, the negatives no problems."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvgraft.errors import UsageError
from kvgraft.library.address import canonical_text
from kvgraft.library.methods.skeleton import phrasings
from kvgraft.testing.problem_families import (
    hard_negatives,
    problem_families,
    solved_problems,
    spoiled,
)
from library.methods.references import REFERENCES

FAMILIES = problem_families()


def test_there_are_at_least_nine() -> None:
    assert len(FAMILIES) >= 9
    assert set(REFERENCES) == set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_those_of_two_other_programs(name: str) -> None:
    problems = solved_problems(FAMILIES[name], 3, 40)
    ((skeleton, _),) = phrasings([one.text for one in problems], enough=12).items()
    for source in REFERENCES[name]:
        names: dict[str, Any] = {}
        exec(source, names)
        for one in problems:
            texts = skeleton.match(one.text)
            assert texts is not None
            value = names["solve"](*skeleton.arguments(texts))
            assert value == one.answer or float(value) == float(one.answer), one.text


@pytest.mark.parametrize("name", FAMILIES)
def test_problems_follow_from_the_seed(name: str) -> None:
    family = FAMILIES[name]
    assert len(family.phrasings) >= 3
    for phrasing in range(len(family.phrasings)):
        made = solved_problems(family, 5, 24, phrasing=phrasing)
        assert made == solved_problems(family, 5, 24, phrasing=phrasing)
        assert made[:6] == solved_problems(family, 5, 6, phrasing=phrasing)
        assert made != solved_problems(family, 6, 24, phrasing=phrasing)
        texts = {one.text for one in made}
        assert len(texts) == 24
        assert all(canonical_text(text) == text for text in texts)
        assert len({one.answer for one in made}) >= 3
    first, *others = (
        {one.text for one in solved_problems(family, 5, 24, phrasing=phrasing)}
        for phrasing in range(len(family.phrasings))
    )
    assert not any(first & other for other in others)


@pytest.mark.parametrize("name", FAMILIES)
def test_negatives(name: str) -> None:
    family = FAMILIES[name]
    made = hard_negatives(family, 5, 30)
    assert made == hard_negatives(family, 5, 30)
    assert made[:10] == hard_negatives(family, 5, 10)
    assert len({one.text for one in made}) == 30
    assert len({one.kind for one in made}) >= 10
    own = {negative.kind for negative in family.negatives}
    assert own <= {one.kind for one in made}
    problems = {
        one.text
        for phrasing in range(len(family.phrasings))
        for one in solved_problems(family, 5, 30, phrasing=phrasing)
    }
    assert not problems & {one.text for one in made}


@pytest.mark.parametrize(
    ("family", "kind", "pattern", "answer"),
    [
        ("weekday", "long ago", "1492-10-12", "Wednesday"),  # proleptic Gregorian
        ("median", "as it stands", "Take the numbers", None),
        ("number base", "base sixteen", "base 16", None),
        ("graph distance", "no path", "X-Y", "None"),
    ],
)
def test_some_negatives_by_hand(family: str, kind: str, pattern: str, answer: str | None) -> None:
    found = [one for one in hard_negatives(FAMILIES[family], 1, 60) if one.kind == kind]
    assert found
    assert all(pattern in one.text for one in found)
    if answer == "None":
        assert {one.answer for one in found} == {None}
    elif answer is not None:
        assert {one.answer for one in found} == {answer}


def test_one_edit() -> None:
    text = "What is 12 plus 3?"
    edits = {kind: (edit, keeps) for kind, edit, keeps in spoiled(text, random.Random(0))}
    assert edits["negation"] == ("What is not 12 plus 3?", False)
    assert edits["two at once"][0] == f"{text} {text}"
    assert edits["a number beside it"][1] is True
    words = [
        {kind: edit for kind, edit, _ in spoiled(text, random.Random(seed))} for seed in range(20)
    ]
    assert {one.get("number in words") for one in words} == {
        "What is twelve plus 3?",
        "What is 12 plus three?",
    }
    assert all(edit != text for edit, _ in edits.values())


def test_what_cannot_be_made() -> None:
    family = FAMILIES["choices"]
    with pytest.raises(UsageError):
        solved_problems(family, 0, 5, phrasing=3)
    with pytest.raises(UsageError):
        solved_problems(family, 0, 5, phrasing=-1)
    with pytest.raises(UsageError, match="only about"):
        solved_problems(family, 0, 500)
    assert solved_problems(family, 0, 0) == ()
