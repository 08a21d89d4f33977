"""A method answers inside of what was verified."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft.errors import StoreError
from kvgraft.library.methods.domain import from_json, join, observe

PATH = [("A", "B"), ("B", "C"), ("C", "D")]
OTHER = [("A", "C"), ("C", "B"), ("B", "D")]
APART = [("A", "B"), ("C", "D"), ("C", "B")]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "integer": st.integers(-(10**30), 10**30),
    "decimal": st.floats(-1e9, 1e9),
    "date": st.dates().map(lambda day: day.isoformat()),
    "clock": st.tuples(st.integers(0, 23), st.integers(0, 59)).map(lambda t: f"{t[0]}:{t[1]:02d}"),
    "text": st.text(max_size=9),
    "word": st.sampled_from(["feet", "miles"]),
    "label": st.sampled_from("ABCD"),
    "integers": st.lists(st.integers(-9, 99), min_size=2, max_size=5),
    "edges": st.lists(st.tuples(*[st.sampled_from("ABCDE")] * 2), min_size=2, max_size=5),
}


@st.composite
def _seen(draw: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    return types, draw(
        st.lists(st.tuples(*[VALUES[kind] for kind in types]), min_size=1, max_size=6)
    )


@given(_seen())
def test_what_was_seen_is_inside(seen: tuple[list[str], list[tuple[Any, ...]]]) -> None:
    types, rows = seen
    domain = observe(types, rows)
    assert from_json(json.loads(json.dumps(domain.as_json()))) == domain
    for row in rows:
        assert domain.refusal(row) is None
    half = join(
        [observe(types, rows[: len(rows) // 2 + 1]), observe(types, rows[len(rows) // 2 :])]
    )
    assert half == domain


@pytest.mark.parametrize(
    ("types", "rows", "inside", "outside"),
    [
        (["integer"], [(3,), (9,)], [(5,)], [(2,), (10,), (-5,), (0,), (10**40,)]),
        (["integer"], [(-3,), (9,)], [(-1,), (5,)], [(0,), (-4,)]),
        (["decimal"], [(0.5,), (2.5,)], [(1.25,)], [(2.51,), (-0.5,)]),
        (["date"], [("2001-01-01",), ("2003-01-01",)], [("2002-02-28",)], [("2000-12-31",)]),
        (["clock"], [("9:05",), ("14:00",)], [("10:00",), ("09:30",)], [("9:00",), ("15:00",)]),
        (["text"], [("abc",), ("defgh",)], [("xyz",), ("abcde",)], [("abcd",), ("",), ("ABC",)]),
        (["text"], [("abc",), ("abd",)], [("xyz",)], [("a1c",), ("a c",), ("aßc",), ("aéc",)]),
        (["text"], [("aßc",), ("abc",)], [("ßab",)], [("aéc",)]),
        (["integers"], [([3, 5, 1],), ([2, 9, 4],)], [([1, 9, 2],)], [([3, 3, 1],), ([1, 2],)]),
        (["integers"], [([3, 5, 1],), ([2, 9, 4, 7, 8],)], [([5, 3, 2],)], [([1, 2, 3, 4],)]),
        (["integers"], [([3, 5, 1],), ([2, 9, 4],)], [], [([0, 5, 3],), ([3, 4, 10],)]),
        (["label"], [("A",), ("C",)], [("A",)], [("B",)]),
        (["edges"], [(PATH,), (OTHER,)], [([("D", "B"), ("B", "A"), ("A", "C")],)], [(PATH[:2],)]),
        (["edges"], [(PATH,)], [(APART,)], [([("A", "B"), ("A", "B"), ("C", "D")],)]),
        (
            ["edges"],
            [(PATH,)],
            [],
            [([("A", "B"), ("B", "A"), ("A", "C")],), ([*PATH[:2], ("D", "D")],)],
        ),
    ],
)
def test_ranges(types: list[str], rows: list[Any], inside: list[Any], outside: list[Any]) -> None:
    domain = observe(types, rows)
    assert [domain.refusal(row) for row in inside] == [None] * len(inside)
    assert all(domain.refusal(row) for row in outside)


def test_words_that_stood_together() -> None:
    domain = observe(["word", "integer", "word"], [("feet", 3, "yards"), ("inches", 3, "miles")])
    assert domain.refusal(("feet", 3, "yards")) is None
    assert "together" in (domain.refusal(("feet", 3, "miles")) or "")
    assert domain.refusal(("metres", 3, "yards")) is not None


def test_relations_that_always_held() -> None:
    choices = observe(["integer", "integer"], [(2, 8), (5, 20), (6, 9)])
    assert choices.refusal((5, 8)) is None
    assert "not below" in (observe(["integer"] * 2, [(2, 8), (9, 20)]).refusal((8, 8)) or "")
    # Once it did not hold, it is no relation.
    both = join([choices, observe(["integer", "integer"], [(20, 2)])])
    assert both.refusal((8, 5)) is None
    assert "other than" in (both.refusal((8, 8)) or "")
    assert join([both, observe(["integer"] * 2, [(4, 4)])]).refusal((8, 8)) is None


def test_dates_and_times_in_their_order() -> None:
    days = observe(["date", "date"], [("2001-01-01", "2002-01-01"), ("2003-01-01", "2004-01-01")])
    assert days.refusal(("2002-01-01", "2003-05-05")) is None
    assert "below" in (days.refusal(("2003-01-01", "2002-06-01")) or "")
    clocks = observe(["clock", "clock"], [("9:00", "10:00"), ("11:00", "13:00")])
    assert clocks.refusal(("9:30", "10:30")) is None
    assert clocks.refusal(("10:30", "10:15")) is not None


def test_digits_of_a_base_and_nodes_of_a_graph() -> None:
    base = observe(["integer", "integer"], [(110, 2), (21, 3), (777, 8)])
    assert base.refusal((111, 5)) is None
    assert "digit" in (base.refusal((192, 8)) or "")
    graph = observe(["edges", "label", "label"], [(PATH, "A", "D"), (OTHER, "D", "A")])
    assert graph.refusal((PATH, "D", "A")) is None
    assert graph.refusal((PATH, "A", "A")) is not None
    seen = observe(["edges", "label"], [(PATH, "A"), (OTHER, "D"), ([("X", "A"), *PATH[:2]], "X")])
    assert seen.refusal((PATH, "D")) is None
    assert "in value" in (seen.refusal((PATH, "X")) or "")
    # As many edges and nodes, none twice, but in two pieces.
    tree = observe(["edges"], [([*PATH, ("D", "E")],)])
    assert "pieces" in (tree.refusal(([("A", "B"), ("B", "C"), ("A", "C"), ("D", "E")],)) or "")


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"types": ["integer"], "ranges": [], "together": [], "relations": []},
        {"types": ["integer"], "ranges": [5], "together": [], "relations": []},
        {"types": ["integer"], "ranges": [{}], "together": [], "relations": [["below", 0]]},
    ],
)
def test_damaged(data: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        from_json(data)
