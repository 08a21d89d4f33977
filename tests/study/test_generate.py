"""Generated problems: their keys are right, and a seed makes the same ones."""

from __future__ import annotations

import re

import pytest

from kvgraft.errors import InputError
from kvgraft.library.problem import Problem
from kvgraft.study.generate import FAMILIES, family_of, generate

# The key worked out again, from the words of the problem.
_NUMBERS = re.compile(r"[0-9]+")
_RULES = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "double": lambda a: a + a,
    "larger": lambda one, other: max(one, other),
    "after": lambda before: before + 1,
    "percent": lambda share, whole: share * whole / 100,
    "weeks": lambda weeks, days: 7 * weeks + days,
    "gift": lambda had, more: had + more,
    "boxes": lambda boxes, each: boxes * each,
    "change": lambda price, bill: bill - price,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_are_right(family: str) -> None:
    problems = generate([family], 15, 1)
    assert len({problem.text for problem in problems}) == 15
    for problem in problems:
        numbers = [int(number) for number in _NUMBERS.findall(problem.text)]
        assert float(str(problem.expected)) == _RULES[family](*numbers), problem
        assert family_of(problem) == family


def test_a_seed_makes_the_same_problems_whatever_the_families_beside() -> None:
    one = generate(["add", "boxes"], 20, 7)
    assert one == generate(["add", "boxes"], 20, 7)
    assert [family_of(problem) for problem in one[:4]] == ["add", "boxes"] * 2
    assert one[::2] == generate(["add"], 10, 7)
    assert one != generate(["add", "boxes"], 20, 8)
    assert len({problem.id for problem in one}) == 20


def test_what_cannot_be_made_is_refused() -> None:
    for families in ([], ["adding"]):
        with pytest.raises(InputError, match="no family"):
            generate(families, 1, 0)
    with pytest.raises(InputError, match="no 500 problems"):
        generate(["change"], 500, 0)
    assert family_of(Problem("aime25-I-1", "?")) == ""
