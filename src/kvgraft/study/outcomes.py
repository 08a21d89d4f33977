"""Rows and a key become outcomes: was each problem answered right, by what, at what cost?

Also the two baselines that need no model: an answer cache by exact text, and one by similarity.
Where they hold nothing, the bare model answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvgraft.errors import CheckFailed
from kvgraft.library.answer import RECORDED, REPLAYED, TRANSFERRED
from kvgraft.library.verify.base import GRADES
from kvgraft.meter import Cost
from kvgraft.study.bench import open_journal
from kvgraft.study.items import Item
from kvgraft.study.journal import Row
from kvgraft.study.protocol import Protocol
from kvgraft.study.registration import Registration
from kvgraft.study.run import phases
from kvgraft.study.score import Scorer
from kvgraft.testing.near_misses import edit_distance

CACHED = "cached"
_STORED = (REPLAYED, RECORDED, CACHED)


@dataclass(frozen=True)
class Outcome:
    """One problem under one condition. `how` and `grade` are the answer's; `cached` is a cache's
    word. `row` is what was kept, for whoever wants to look."""

    item: Item
    right: bool
    answer: str | None
    how: str
    grade: str
    cost: Cost
    row: Row

    @property
    def stored(self) -> bool:
        """Whether the answer came out of a store."""
        return self.how in _STORED

    @property
    def vouched_for(self) -> bool:
        """Whether the answer is said to be more than a guess."""
        return self.how in (REPLAYED, RECORDED, TRANSFERRED) or self.grade != GRADES[0]


Outcomes = dict[str, Outcome]  # by problem id, in the order of the study


def read_rows(
    folder: Path, plan: Protocol, registration: Registration
) -> dict[str, dict[str, Row]]:
    """The rows of every step of every model, as `LABEL.STEP` -> problem id -> row.

    Raises:
        CheckFailed: a step is not finished, or its rows are of another study.
        InputError: rows are damaged.
    """
    found: dict[str, dict[str, Row]] = {}
    for model in plan.models:
        for step in (step for steps in phases(plan, model) for step in steps):
            names = [step, f"{step}.deposit"] if step.startswith("always_") else [step]
            for name in names:
                journal = open_journal(folder, model.label, name, registration)
                if not journal.finished:
                    raise CheckFailed(
                        f"the study is not finished: {model.label}, {name}",
                        where=str(folder),
                        hint="run it again with --resume",
                    )
                found[f"{model.label}.{name}"] = {row["id"]: row for row in journal.rows}
    return found


def outcomes(rows: Mapping[str, Row], items: Sequence[Item], scorer: Scorer) -> Outcomes:
    """The outcomes of those items that have a row."""
    return {
        item.id: Outcome(
            item,
            scorer.right(item.id, row["answer"]),
            row["answer"],
            row["how"],
            row["grade"],
            cost_of(row),
            row,
        )
        for item in items
        if (row := rows.get(item.id)) is not None
    }


def cost_of(row: Row, name: str = "cost") -> Cost:
    """The cost in a row."""
    return Cost(**row[name])


def answer_cache(
    bare: Outcomes, deposits: Mapping[str, Row], scorer: Scorer, least_ratio: float = 1.0
) -> Outcomes:
    """What a cache of the deposited answers would have said: from the most alike problem, if that
    is at least `least_ratio` like the one asked, by edit distance over the longer text's length.
    At 1 it is a plain cache of exact texts."""
    stored = [
        (bare[id].item.problem.text, row["answer"], row["grade"])
        for id, row in deposits.items()
        if row["answer"] is not None
    ]
    exact = {text: (answer, grade) for text, answer, grade in stored}
    made = {}
    for id, outcome in bare.items():
        text = outcome.item.problem.text
        hit = exact.get(text)
        if hit is None and least_ratio < 1 and stored:
            alike = max(stored, key=lambda one: edit_ratio(text, one[0]))
            hit = alike[1:] if edit_ratio(text, alike[0]) >= least_ratio else None
        if hit is not None:
            answer, grade = hit
            right = scorer.right(id, answer)
            outcome = replace(
                outcome, right=right, answer=answer, how=CACHED, grade=grade, cost=Cost.nothing()
            )
        made[id] = outcome
    return made


def edit_ratio(one: str, other: str) -> float:
    """1 for equal texts, less the more has to be edited."""
    return 1 - edit_distance(one, other) / max(len(one), len(other), 1)
