"""Answers against a key: the shared pairs, leading zeros, boxes, and what is no answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgraft.errors import InputError
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.study.score import Scorer

ROOT = Path(__file__).resolve().parents[2]
KEY = {"zeros": "016", "plain": "16", "half": r"\frac{1}{2}", "comma": "1,450,000"}


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    with Scorer(KEY) as made:
        yield made


@pytest.mark.parametrize(
    ("id", "answer", "right"),
    [
        ("zeros", "16", True),
        ("zeros", "016", True),
        ("plain", "016", True),
        ("plain", "16.0", True),
        ("plain", "160", False),
        ("plain", "-16", False),
        ("plain", "", False),
        ("plain", None, False),
        ("plain", "8 + 8", False),
        ("half", "0.5", True),
        ("half", r"\frac12", True),
        ("half", "0.55", False),
        ("comma", "1450000", True),
        ("comma", r"1{,}450{,}000", True),
    ],
)
def test_answers(scorer: Scorer, id: str, answer: str | None, right: bool) -> None:
    assert scorer.right(id, answer) is right


@pytest.mark.parametrize(
    ("text", "finished", "right"),
    [
        (r"So it is $\boxed{016}$.", True, True),
        (r"So it is $\boxed{016}$.", False, False),  # cut off: no answer, whatever it holds
        ("First 16, then 17.\n#### 16", True, True),
        ("I do not know.", True, False),
        ("The answer is 16 or 17, I think 17.", True, False),
    ],
)
def test_texts(scorer: Scorer, text: str, finished: bool, right: bool) -> None:
    assert scorer.right_text("plain", text, finished=finished) is right


def test_the_shared_pairs() -> None:
    folder = Path(os.environ.get("KVGRAFT_CASES", ROOT.parent / "shared" / "cases"))
    path = folder / "answer_pairs.jsonl"
    if not path.is_file():
        pytest.skip("shared data absent: answer_pairs.jsonl")
    pairs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with Scorer({str(n): pair["gold"] for n, pair in enumerate(pairs)}) as made:
        seen = [
            made.right_text(str(n), pair["given"], finished=True) for n, pair in enumerate(pairs)
        ]
    assert seen == [pair["match"] for pair in pairs]


def test_a_problem_without_a_key_is_an_error(scorer: Scorer) -> None:
    with pytest.raises(InputError, match="no such problem"):
        scorer.right("other", "1")


def test_a_comparison_that_failed_is_neither_right_nor_wrong() -> None:
    class Broken:
        name = spec = "broken"
        version = "1"
        needs = frozenset({"expected"})

        def verify(self, case: Case, trace: str) -> Verdict:
            return Verdict(False, "none", "16", "broken", "1", {"failure": "out of memory"})

        def close(self) -> None:
            return

    with Scorer(KEY, Broken()) as made, pytest.raises(InputError, match="out of memory"):
        made.right("plain", "17")
