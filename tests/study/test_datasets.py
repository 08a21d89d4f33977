"""Problem sets: three formats, keys as they are meant, samples and splits that stay put."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kvgraft.errors import (
    DownloadFailed,
    InputError,
    KvgraftError,
    LimitExceeded,
    MissingExtra,
    UsageError,
)
from kvgraft.library.problem import Problem
from kvgraft.limits import MAX_PROBLEM_LINE_BYTES
from kvgraft.study import datasets
from kvgraft.study.datasets import data_path, read_dataset, read_hub, sample, split

ROOT = Path(__file__).resolve().parents[2]


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def keys(problems: list[Problem]) -> list[str | None]:
    return [problem.expected for problem in problems]


def numbered(count: int, family: str = "") -> list[Problem]:
    return [Problem(f"{family}{n}", f"What is {family} {n} + 1?", str(n + 1)) for n in range(count)]


def test_aime_rows_keep_their_ids_and_their_zeros(tmp_path: Path) -> None:
    file = write(
        tmp_path / "aime.jsonl",
        {"id": "I-1", "problem": "A?", "answer": "016"},
        {"id": "I-2", "problem": "B?", "answer": 70, "solution": "other columns are left alone"},
        {"problem": "C?", "answer": "0"},
    )
    problems = read_dataset(file, "aime")
    assert keys(problems) == ["016", "70", "0"]
    assert [problem.id for problem in problems[:2]] == ["I-1", "I-2"]
    assert problems[2].id == datasets.text_id("aime", "C?")


@pytest.mark.parametrize("answer", ["1000", "-3", "7.5", "x", "", None, True, ["1"]])
def test_what_no_aime_answer_can_be_is_refused(tmp_path: Path, answer: Any) -> None:
    file = write(
        tmp_path / "aime.jsonl",
        {"problem": "A?", "answer": "1"},
        {"problem": "B?", "answer": answer},
    )
    with pytest.raises(InputError, match="0 to 999") as caught:
        read_dataset(file, "aime")
    assert caught.value.where == f"{file}:2"


def test_the_key_of_gsm8k_stands_behind_the_last_hashes(tmp_path: Path) -> None:
    file = write(
        tmp_path / "gsm8k.jsonl",
        {"question": "A?", "answer": "#### 3 is not it\nHe has <<1+1=2>>2.\n#### 2"},
        {"question": "B?", "answer": "So it is\n#### 1,450,000\n"},
        {"question": "C?", "answer": "####-5"},
    )
    problems = read_dataset(file, "gsm8k")
    assert keys(problems) == ["2", "1,450,000", "-5"]
    for text in ("no key", "#### 4\nand more", "####", "#### \n"):
        file = write(tmp_path / "bad.jsonl", {"question": "A?", "answer": text})
        with pytest.raises(InputError, match="####"):
            read_dataset(file, "gsm8k")


def test_our_own_format_has_ids_that_outlive_a_reordering(tmp_path: Path) -> None:
    rows = [
        {"problem": "A?", "answer": "1"},
        {"question": "B?", "answer": 2.50, "id": 0, "checks": {"tests": []}},
        {"problem": "C?"},
    ]
    one = read_dataset(write(tmp_path / "one.jsonl", *rows), "kvgraft")
    other = read_dataset(write(tmp_path / "other.jsonl", *reversed(rows)), "kvgraft")
    assert other == one[::-1]
    assert [problem.id for problem in one][1] == "0"
    assert keys(one) == ["1", "2.5", None]
    assert one[1].checks == {"tests": []}


@pytest.mark.parametrize(
    ("text", "format", "error"),
    [
        ("[1]\n", "aime", InputError),
        ("{\n", "gsm8k", InputError),
        ("\xff", "gsm8k", InputError),
        ("", "aime", InputError),
        ("\n\n", "kvgraft", InputError),
        ('{"problem": 5, "answer": "1"}', "aime", InputError),
        ('{"problem": "A?", "answer": "1", "misspelt": 1}', "kvgraft", InputError),
        ('{"problem": "A?"}', "guess", UsageError),
        ('{"problem": "' + "x" * MAX_PROBLEM_LINE_BYTES + '"}', "aime", LimitExceeded),
        ("[" * 100_000, "aime", InputError),
    ],
)
def test_bad_files_are_refused(
    tmp_path: Path, text: str, format: str, error: type[KvgraftError]
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(error):
        read_dataset(file, format)
    with pytest.raises(InputError):
        read_dataset(tmp_path / "absent.jsonl", "aime")


def test_one_problem_twice_would_be_on_both_sides_of_a_split(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.jsonl",
        {"id": "1", "problem": "A b?", "answer": "1"},
        {"id": "2", "problem": "A b? ", "answer": "1"},  # the same in canonical form
    )
    with pytest.raises(InputError, match="same problem"):
        read_dataset(file, "aime")
    with pytest.raises(InputError, match="twice"):
        split([Problem("1", "A?"), Problem("1", "B?")], 0.5, 0)


def test_samples_and_splits_depend_on_seed_and_ids_alone() -> None:
    problems = numbered(100)
    taken = sample(problems, 30, 7)
    assert len(taken) == 30
    assert taken == sorted(taken, key=lambda one: int(one.id))  # the order of the set
    assert {one.id for one in sample(problems[::-1], 30, 7)} == {one.id for one in taken}
    assert sample(problems, 30, 8) != taken
    assert all(one in taken for one in sample(problems, 20, 7))
    parts = split(problems, 0.25, 7)
    assert len(parts.deposit) == 25
    assert sorted([*parts.deposit, *parts.held_out], key=lambda one: int(one.id)) == problems
    again = split(problems[::-1], 0.25, 7)
    assert again.deposit == parts.deposit[::-1]
    # A problem's side does not come from its rank in the sample.
    assert {one.id for one in split(taken, 0.5, 7).deposit} != {
        one.id for one in sample(taken, 15, 7)
    }
    assert split(problems, 0, 7).deposit == ()
    assert split(problems, 1, 7).held_out == ()


def test_which_problems_a_seed_takes_is_fixed_for_ever() -> None:
    assert [one.id for one in sample(numbered(20), 4, 2025)] == ["3", "10", "11", "16"]
    assert [one.id for one in split(numbered(10), 0.5, 2025).deposit] == ["2", "3", "7", "8", "9"]


def test_every_family_is_on_both_sides() -> None:
    problems = [*numbered(10, "a"), *numbered(4, "b"), *numbered(3, "c")]
    parts = split(problems, 0.5, 1, lambda problem: problem.id[0])
    counts = {
        name: sum(problem.id[0] == name for problem in parts.deposit) for name in ("a", "b", "c")
    }
    assert counts == {"a": 5, "b": 2, "c": 2}


@pytest.mark.parametrize("count", [0, 4, -1])
def test_a_sample_larger_than_its_set_is_refused(count: int) -> None:
    with pytest.raises(InputError):
        sample(numbered(3), count, 0)
    with pytest.raises(UsageError):
        split(numbered(3), 1.5, 0)


def test_data_lies_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "some.jsonl", {})
    monkeypatch.setenv("KVGRAFT_DATA", str(tmp_path))
    assert data_path("some.jsonl") == file
    assert data_path(file) == file
    with pytest.raises(InputError, match="no such data file"):
        data_path("other.jsonl")
    (tmp_path / "x" / "here").mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    monkeypatch.delenv("KVGRAFT_DATA")
    monkeypatch.chdir(tmp_path / "x")
    (tmp_path / "shared" / "data").mkdir()
    write(tmp_path / "shared" / "data" / "near.jsonl", {})
    assert data_path("near.jsonl").resolve() == tmp_path / "shared" / "data" / "near.jsonl"


def test_a_hub_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="datasets"):
        read_hub("someone/something", "aime")
    with pytest.raises(UsageError, match="no format"):
        read_hub("someone/something", "guess")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A stand-in for the package `datasets`: no hub is asked in a test."""
    calls: list[tuple[Any, ...]] = []

    def load_dataset(id: str, config: str | None, *, split: str) -> Any:
        calls.append((id, config, split))
        if id == "away":
            raise ConnectionError("no route to the hub")
        return iter([{"question": "A?", "answer": "#### 5"}])

    package = types.ModuleType("datasets")
    package.__spec__ = types.SimpleNamespace(name="datasets")  # type: ignore[assignment]
    package.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)
    return calls


def test_a_hub_gives_rows_like_a_file(hub: list[tuple[Any, ...]]) -> None:
    assert keys(read_hub("some/gsm8k", "gsm8k", config="main")) == ["5"]
    assert hub == [("some/gsm8k", "main", "test")]
    with pytest.raises(InputError) as caught:
        read_hub("some/gsm8k", "aime")
    assert caught.value.where == "some/gsm8k[test] row 1"


def test_no_hub_is_a_typed_error(hub: list[tuple[Any, ...]]) -> None:
    with pytest.raises(DownloadFailed, match="no route") as caught:
        read_hub("away", "gsm8k")
    assert "JSONL" in caught.value.hint


def test_the_shared_sets_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for name, format, count in (("aime25.jsonl", "aime", 30), ("gsm8k_test.jsonl", "gsm8k", 1319)):
        try:
            path = data_path(name)
        except InputError:
            pytest.skip(f"shared data absent: {name}")
        problems = read_dataset(path, format)
        assert len(problems) == count
        assert all(problem.expected for problem in problems)
