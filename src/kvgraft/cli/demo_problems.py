"""The problems of the demonstration, each with a near miss: one word or sign of it is another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kvgraft.library.problem import Problem

PROBLEMS = Path(__file__).with_suffix(".jsonl")


@dataclass(frozen=True)
class DemoProblem:
    """`near` reads almost like the problem and asks something else. It must not be answered from
    the problem's deposit."""

    problem: Problem
    near: str


def read_demo_problems(path: Path) -> list[DemoProblem]:
    """The problems of a file that we wrote ourselves: it is read without further checks."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        DemoProblem(Problem(line["id"], line["problem"], line["answer"]), line["near"])
        for line in map(json.loads, filter(str.strip, lines))
    ]
