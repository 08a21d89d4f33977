"""Groups of problems, and what of them is written for solvers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvgraft.errors import InputError
from kvgraft.study import items as study_items
from kvgraft.study.items import HELD_OUT, NEW, RECURRING, collect, read_items, write_items
from study.studied import plan


def write(path: Path, *rows: Any) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_sets_become_groups(tmp_path: Path) -> None:
    items = collect(plan(suffix=" Think."), tmp_path)
    groups = {name: [item for item in items if item.group == name] for name in study_items.GROUPS}
    assert {name: len(part) for name, part in groups.items()} == {
        RECURRING: 4,
        HELD_OUT: 4,
        NEW: 2,
    }
    for name in (RECURRING, HELD_OUT):  # every family is on both sides
        assert sorted(item.family for item in groups[name]) == ["add", "add", "double", "double"]
    assert {item.set for item in groups[NEW]} == {"others"}
    assert all(item.problem.text.endswith("? Think.") for item in items)
    assert all(item.id.startswith(f"{item.set}:{item.family}/") for item in items)


def test_the_share_is_that_of_the_deposits(tmp_path: Path) -> None:
    sets = [{"name": "sums", "families": ["add", "double"], "count": 8, "deposit_share": 0.25}]
    items = collect(plan(sets=sets), tmp_path)
    assert sorted(i.family for i in items if i.group == RECURRING) == ["add", "double"]
    assert sum(item.group == HELD_OUT for item in items) == 6


def test_a_file_is_named_from_the_protocol_or_lies_with_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": f"I-{n}", "problem": f"What is {n}?", "answer": str(n)} for n in range(6)]
    made = plan(sets=[{"name": "aime", "file": "aime.jsonl", "format": "aime", "count": 4}])
    near, far = tmp_path / "near", tmp_path / "far"
    for folder in (near, far):
        folder.mkdir()
    write(far / "aime.jsonl", *rows)
    monkeypatch.setenv("KVGRAFT_DATA", str(far))
    items = collect(made, near)
    assert len(items) == 4
    assert {item.family for item in items} == {"aime"}
    write(near / "aime.jsonl", *rows[:4])
    assert [item.id for item in collect(made, near)] == [f"aime:I-{n}" for n in range(4)]


@pytest.mark.parametrize(
    ("rows", "sets", "named"),
    [
        ([{"problem": "A?"}], [{"name": "a", "file": "f.jsonl"}], "no answer to be scored"),
        (
            [{"problem": "A?", "answer": "1"}],
            [{"name": "a", "file": "f.jsonl"}, {"name": "b", "file": "f.jsonl"}],
            "same problem",
        ),
        (
            [{"problem": "A?", "answer": "1"}],
            [{"name": "a", "file": "f.jsonl", "deposit_share": 0.1}],
            "nothing would be deposited",
        ),
        ([{"problem": "A?", "answer": "1"}], [{"name": "a", "file": "g.jsonl"}], "no such data"),
    ],
)
def test_sets_that_make_no_study_are_refused(
    tmp_path: Path, rows: list[Any], sets: list[Any], named: str
) -> None:
    write(tmp_path / "f.jsonl", *rows)
    with pytest.raises(InputError, match=named):
        collect(plan(sets=sets), tmp_path)


def test_solvers_read_everything_but_the_key(tmp_path: Path) -> None:
    items = collect(plan(), tmp_path)
    write_items(tmp_path, items, with_key=False)
    read = read_items(tmp_path)
    assert all(item.problem.expected is None for item in read)
    assert "expected" not in (tmp_path / study_items.NAME).read_text()
    write_items(tmp_path, items, with_key=True)
    assert read_items(tmp_path) == items
    for one, other in zip(read, items, strict=True):
        assert (one.id, one.family, one.group, one.problem.text) == (
            *(other.id, other.family, other.group),
            other.problem.text,
        )


@pytest.mark.parametrize("text", ["", "{}", '{"problems": [{}]}', '{"problems": 1}', "[1]"])
def test_something_else_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_items(tmp_path)
    (tmp_path / study_items.NAME).write_text(text)
    with pytest.raises(InputError, match="no study's problems"):
        read_items(tmp_path)
