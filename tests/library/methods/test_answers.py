"""A program's value counts only where it is the answer, in the family's form."""

from __future__ import annotations

from typing import Any

import pytest

from kvgraft.errors import StoreError
from kvgraft.library.methods.answers import as_json, form_of, from_json

BIG = str(7**200)


@pytest.mark.parametrize(
    ("answers", "value", "spelled"),
    [
        (["3", "12"], 7, "7"),
        (["3", "12"], 7.0, "7"),
        (["3", "12"], "7", "7"),
        (["3", "12"], 7.5, None),
        (["3", "12"], 7.0000001, None),
        (["3", "12"], "07", None),
        (["3", "12"], "seven", None),
        (["3", "12"], "0b111", None),
        (["3", "12"], True, None),
        (["3", "12"], None, None),
        (["3", "12"], [7], None),
        (["3", "12"], float("nan"), None),
        (["3", "12"], float("inf"), None),
        (["3", "12"], 2.0**60, None),  # not every integer of that size is a float
        (["3", "12"], 7**200, BIG),
        (["3", "12"], 10**500, None),
        (["3", BIG], 7**200, BIG),
        (["3", "12"], -7, None),  # no negative answer was ever right
        (["3", "12"], 0, None),
        (["3", "-12"], -7, "-7"),
        (["0", "12"], 0, "0"),
        (["0", "12"], -0.0, "0"),
        (["1.50", "2.25"], 3.1, "3.10"),
        (["1.50", "2.25"], 3, "3.00"),
        (["1.50", "2.25"], "3.1", "3.10"),
        (["1.50", "2.25"], 3.125, None),  # it was not rounded
        (["1.50", "2.25"], 0.1 + 0.2, "0.30"),
        (["1.50", "2.25"], -0.001, None),
        (["1.50", "2.5"], "3.10", "3.10"),  # several forms: text
        (["1.50", "2.5"], 3.1, None),
        (["Monday", "Friday"], "Sunday", "Sunday"),
        (["Monday", "Friday"], 3, "3"),
        (["Monday", "Friday"], "", None),
        (["Monday", "Friday"], "x" * 13, None),
        (["Monday", "Friday"], ["Sunday"], None),
        (["016", "204"], "007", "007"),
        (["016", "204"], 7, "7"),
        (["yes", "no"], True, None),
    ],
)
def test_spelling(answers: list[str], value: Any, spelled: str | None) -> None:
    form = form_of(answers)
    assert form.spell(value) == spelled
    assert from_json(as_json(form)) == form


def test_every_answer_is_of_its_own_form() -> None:
    for answers in (["3", "-12", "0"], ["1.50", "-2.25"], ["Monday", "x"], ["016", "7"]):
        assert [form_of(answers).spell(answer) for answer in answers] == answers


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "number", "places": 0, "signs": [], "longest": 1},
        {"kind": "decimal", "places": -1, "signs": [], "longest": 1},
        {"kind": "decimal", "places": 2, "signs": None, "longest": 1},
    ],
)
def test_damaged(data: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        from_json(data)
