"""The benchmark of methods, on programs that are there: what it asks, and how it counts."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import methods as benchmark
from kvgraft.testing.problem_families import problem_families
from library.methods.references import REFERENCES
from library.methods.writer import Writer, fenced, instances, learned, methods_in

NAMES = ("choices", "weekday")


class Scripted:
    """In place of the models: the first one cannot write programs."""

    names = ("poor", "good")

    def __init__(self, family: str) -> None:
        self._family = family

    def open(self, name: str) -> Writer:
        return Writer("no") if name == "poor" else Writer(*map(fenced, REFERENCES[self._family]))


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[Any]]:
    for name in ("FRESH", "NEGATIVES"):
        monkeypatch.setattr(benchmark, name, 4)
    arguments = Namespace(folder=tmp_path, seed=3)
    families = problem_families()
    known = [
        benchmark._learn_family(families[name], Scripted(name), arguments)  # type: ignore[arg-type]
        for name in NAMES
    ]
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    for heavy in ("torch", "transformers", "llama_cpp"):
        sys.modules.pop(heavy, None)  # other tests of this process may have needed them
    job = {"folder": str(tmp_path), "families": list(NAMES), "seed": 3, "fresh_seed": 8}
    return known, benchmark.part_ask(job)["rows"]


def test_a_small_run(rows: tuple[list[Any], list[Any]]) -> None:
    known, asked = rows
    assert [row["learned"] for row in known] == [True, True]
    assert [tuple(row["programs"]) for row in known] == [REFERENCES[name] for name in NAMES]
    assert [one["state"] for one in known[0]["tries"]] == ["not_learned", "learned"]
    assert [row["took_up"] for row in asked] == [["extended", "extended"]] * 2
    for row in asked:
        assert row["fresh"]["asked"] == 8  # two phrasings
        assert row["held_out_before"]["right"] == 0
        assert row["held_out_before"]["asked"] == row["held_out_after"]["asked"] == 4
        assert not any(row[part]["wrong"] for part in ("fresh", "held_out_after", "negatives"))
    figures = benchmark.figures_of(known, asked)
    assert set(figures) == set(benchmark.TARGETS)
    assert figures["method_families"] == 2
    assert figures["method_right_share"] == 1
    assert figures["method_decode_tokens"] == 0
    assert 0 < (figures["method_coverage"] or 0) <= 1
    totals = benchmark.totals_of(asked)
    assert (totals["given"] > 0, totals["wrong"]) == (True, 0)
    assert 0 < totals["wrong_share_upper_bound"] < 1


def test_nothing_measured_is_none() -> None:
    figures = benchmark.figures_of([{"learned": False}], [])
    assert figures.pop("method_families") == 0
    assert set(figures.values()) == {None}
    assert benchmark.totals_of([])["wrong_share_upper_bound"] is None


def test_every_answer_that_is_not_right_is_wrong(tmp_path: Path) -> None:
    problem, *_ = instances()
    with methods_in(tmp_path) as methods:
        learned(methods)
        seen = benchmark._asked(
            methods, [(problem.text, problem.answer), (problem.text, "98"), (problem.text, None)]
        )
    assert (seen["asked"], seen["right"], len(seen["wrong"])) == (3, 1, 2)
    assert seen["tokens"] == 0
    assert seen["answer_ms"] > 0
    assert seen["abstain_ms"] is None


def test_what_is_asked_was_not_learned_from() -> None:
    job = {"seed": 3, "fresh_seed": 3}  # the same seed: every problem would be known
    family = problem_families()["choices"]
    known = {one.text for one in benchmark._instances(family, 0, 3, 16)}
    fresh = benchmark._fresh(family, 0, job, 20)
    assert len(fresh) == 20
    assert not known & {one.text for one in fresh}
