"""The invariance map's cases on an engine in milliseconds, and how their results are told."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import invariance
import invariance_cases
from invariance_cases import CASES, Subject, seen_of
from kvgraft.engines.toy import RECURRENT, ToyEngine, ToyShape
from kvgraft.plan import PlanForm
from toys import memory_chunks, prompt

IDS = [int(token) for token in prompt(invariance_cases.TOKENS)]


def found_of(engine: ToyEngine, *, times: bool = False) -> dict[str, Any]:
    subject = Subject(engine, IDS, times=times)
    return {name: case(subject) for name, case in CASES.items()}


def test_the_toy() -> None:
    found = found_of(ToyEngine())
    assert set(found) == set(CASES)
    assert found["repeated"]["equal"]
    assert found["grafted at the block"]["equal"]
    assert found["grafted at the block"]["reused_tokens"] == 288  # 18 blocks of 16
    assert found["cut at multiples of 32"]["equal_at"] == [32, 64, 128]  # all on its grid
    for case in found.values():
        assert case["max_abs"] < 1e-4  # float32: rounding at most
        assert case["time_ratio"] is None


def test_a_wrong_context_is_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case must not be equal because it compares nothing."""
    engine = ToyEngine()
    subject = Subject(engine, IDS, times=False)
    rows = subject.rows(subject.ids[:16], 16, 16)
    assert rows.shape == (16, 32)
    assert not np.array_equal(rows, subject.rows(subject.ids[16:32], 16, 16))
    logits, last = subject.prompt()
    assert (logits.shape, last.shape) == ((260,), (invariance_cases.LAST_ROWS, 32))
    ids = subject.ids.copy()
    ids[3] += 1
    monkeypatch.setattr(subject, "ids", ids)
    other = subject.prompt()
    assert not np.array_equal(logits, other[0])
    assert not np.array_equal(last, other[1])


def test_what_an_engine_cannot_be_asked_is_none() -> None:
    engine = ToyEngine(shape=ToyShape(windows=(0, RECURRENT), rungs=()))
    assert engine.form == PlanForm(16, ())
    found = found_of(engine)
    assert found["padding"] is None
    assert found["grafted at the block"]["equal"]
    assert invariance.cell(found["padding"]) == "not asked"


def test_times_are_ratios() -> None:
    found = found_of(ToyEngine(), times=True)
    for name in ("padding", "cut at 17 and 100", "grafted at the block", "lanes", "one stock call"):
        assert found[name]["time_ratio"] > 0
    assert found["repeated"]["time_ratio"] is None


def test_what_a_process_sees() -> None:
    engine, store = ToyEngine(), memory_chunks()
    cold, first, again = (seen_of(engine, one, IDS) for one in (None, store, store))
    assert cold["prefill"] == first["prefill"] == again["prefill"]
    assert cold["decode"] == first["decode"] == again["decode"]
    assert (first["reused_tokens"], again["reused_tokens"]) == (0, 288)
    other = seen_of(ToyEngine(1), store, IDS)
    assert other["prefill"] != cold["prefill"]
    assert other["misses"] == ["fingerprint: weights differ"]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "not asked"),
        ({"equal": True, "time_ratio": None}, "equal"),
        ({"equal": True, "time_ratio": 1.5}, "equal x1.50"),
        ({"equal": False, "max_abs": 0.25, "equal_at": [], "time_ratio": None}, "2.5e-01"),
        ({"equal": False, "max_abs": 0.25, "equal_at": [32, 64]}, "at 32,64"),
        ({"equal": False, "prefill_equal": True, "decode_equal": False}, "prefill only"),
        ({"equal": False, "prefill_equal": False, "decode_equal": False}, "differs"),
    ],
)
def test_a_case_in_a_word(found: dict[str, Any] | None, text: str) -> None:
    assert invariance.cell(found) == text


def test_figures_are_shares_of_what_was_measured() -> None:
    names = invariance.RELIED_ON
    results = {
        "a": {name: {"equal": True} for name in names},
        "b": {**{name: {"equal": True} for name in names}, names[1]: {"equal": False}},
        "c": dict.fromkeys(names),  # could not be asked
    }
    found = invariance.figures(results)
    assert found[names[0].replace(" ", "_")] == 1.0
    assert found[names[1].replace(" ", "_")] == 0.5
    assert set(invariance.figures({}).values()) == {None}


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGRAFT_A", "1")
    monkeypatch.delenv("KVGRAFT_B", raising=False)
    with invariance.environment({"KVGRAFT_A": "2", "KVGRAFT_B": "3"}):
        assert (os.environ["KVGRAFT_A"], os.environ["KVGRAFT_B"]) == ("2", "3")
    assert os.environ["KVGRAFT_A"] == "1"
    assert "KVGRAFT_B" not in os.environ
