"""Scores the headline study from its raw attempts: no model is needed, and keys are read here only.

What is accepted without a key, and what it is worth, is computed as the registration says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import headline_plan as plan
from headline_attempts import read_attempts
from kvgraft.library.verify.derivation import PROGRAM, Derivation, Derivations
from kvgraft.study.score import Scorer
from kvgraft.study.statistics import Interval, mcnemar, risk_coverage, upper_bound, wilson

Found = dict[str, Any]
NO_ANSWER = Derivation("text", None, None, "cut off")


@dataclass(frozen=True)
class Accepted:
    """What the attempts agree on, without a key: an answer, its votes, and which attempt to keep:
    a text that gives it, or else a program that prints it."""

    answer: str
    votes: int
    condition: str
    index: int


class Worked:
    """All batches of one problem by one model, and what they derive."""

    def __init__(self, batches: dict[str, Found], derivations: Derivations) -> None:
        self.batches = batches
        self._derivations = derivations

    def derived(self, condition: str) -> list[Derivation]:
        """What each attempt came to; one that was cut off came to nothing."""
        batch = self.batches[condition]
        return [
            self._derivations.of(text) if finished else NO_ANSWER
            for text, finished in zip(batch["texts"], batch["finished"], strict=True)
        ]

    @cached_property
    def sampled(self) -> list[tuple[str, int, Derivation]]:
        """The attempts that vote: condition, index, derivation."""
        return [
            (condition, index, one)
            for condition in (plan.TEXT, plan.PROGRAM)
            for index, one in enumerate(self.derived(condition))
        ]

    @cached_property
    def accepted(self) -> Accepted | None:
        """The answer with the most votes, if one has, and a program computes it."""
        winner = _most([one for _, _, one in self.sampled])
        if winner is None:
            return None
        behind = [vote for vote in self.sampled if vote[2].canonical == winner]
        if not any(one.kind == PROGRAM for _, _, one in behind):
            return None
        condition, index, one = behind[0]  # texts come first
        assert one.answer is not None
        return Accepted(one.answer, len(behind), condition, index)

    def answer_of(self, measure: str) -> str | None:
        """The answer that a baseline gives."""
        if measure == "bare":
            return self.derived(plan.CHAIN)[0].answer
        if measure == "corrected":
            return self.derived(plan.CHAIN)[-1].answer
        derived = self.derived(plan.TEXT if measure == "voted" else plan.PROGRAM)
        winner = _most(derived)
        return next((one.answer for one in derived if winner and one.canonical == winner), None)


def _most(derived: Sequence[Derivation]) -> str | None:
    """The canonical answer that more attempts have than any other; None without, or in a tie."""
    votes = Counter(one.canonical for one in derived if one.canonical is not None)
    leading = votes.most_common(2)
    if not leading or (len(leading) == 2 and leading[0][1] == leading[1][1]):
        return None
    return leading[0][0]


def worked(path: Path, derivations: Derivations) -> dict[str, Worked]:
    """The problems that a file of attempts has batches of, by id."""
    batches: dict[str, dict[str, Found]] = {}
    for batch in read_attempts(path):
        batches.setdefault(batch["id"], {})[batch["condition"]] = batch
    return {id: Worked(found, derivations) for id, found in batches.items()}


def threshold_of(calibration: dict[str, Worked], scorer: Scorer) -> Found:
    """The votes that a deposit needs, from the calibration problems alone, as registered."""
    rows = []
    for votes in plan.THRESHOLDS:
        kept = [
            (id, one.accepted)
            for id, one in calibration.items()
            if one.accepted is not None and one.accepted.votes >= votes
        ]
        wrong = sum(not scorer.right(id, accepted.answer) for id, accepted in kept)
        rows.append({"votes": votes, "accepted": len(kept), "wrong": wrong})
    fitting = [
        row["votes"]
        for row in rows
        if row["accepted"] and row["wrong"] <= plan.CALIBRATED_WRONG * row["accepted"]
    ]
    chosen = min(fitting) if fitting else max(plan.THRESHOLDS)
    return {"threshold": chosen, "problems": len(calibration), "rows": rows}


MEASURES = ("bare", "corrected", "voted", "programs")


def right_by(problems: dict[str, Worked], measure: str, scorer: Scorer) -> dict[str, bool]:
    """Whether a baseline is right, for each problem."""
    return {id: scorer.right(id, one.answer_of(measure)) for id, one in problems.items()}


def share(right: Sequence[bool]) -> Found:
    """A proportion with its 95 % interval."""
    interval = wilson(sum(right), len(right))
    return {"right": sum(right), "of": len(right), **_interval(interval)}


def _interval(interval: Interval) -> Found:
    return {
        "share": round(interval.estimate, 4),
        "low": round(interval.low, 4),
        "high": round(interval.high, 4),
    }


def compared(one: dict[str, bool], other: dict[str, bool]) -> Found:
    """Two ways on the same problems."""
    ids = sorted(one.keys() & other.keys())
    first, second = [one[id] for id in ids], [other[id] for id in ids]
    return {
        "only_first": sum(a and not b for a, b in zip(first, second, strict=True)),
        "only_second": sum(b and not a for a, b in zip(first, second, strict=True)),
        "p": mcnemar(first, second),
    }


def acceptance(problems: dict[str, Worked], threshold: int, scorer: Scorer) -> Found:
    """What was accepted without a key, what of it was wrong, and the same at other thresholds."""
    scores, wrong, listed = [], [], []
    for id, one in sorted(problems.items()):
        accepted = one.accepted
        bad = accepted is not None and not scorer.right(id, accepted.answer)
        scores.append(float("-inf") if accepted is None else float(accepted.votes))
        wrong.append(bad)
        if accepted is not None and accepted.votes >= threshold and bad:
            listed.append({"id": id, "answer": accepted.answer, "votes": accepted.votes})
    count = sum(score >= threshold for score in scores)
    return {
        "threshold": threshold,
        "accepted": count,
        "of": len(scores),
        "wrong": listed,
        "wrong_share": len(listed) / count if count else None,
        "wrong_upper": upper_bound(len(listed), count) if count else None,
        "curve": [
            {
                "votes": int(point.threshold),
                "accepted": point.accepted,
                "wrong": point.wrong,
                "risk": round(point.risk, 4),
                "risk_upper": round(point.risk_upper, 4),
            }
            for point in (risk_coverage(scores, wrong) if max(scores) > float("-inf") else [])
        ],
    }


def effort(one: Worked, conditions: Sequence[str] = (plan.TEXT, plan.PROGRAM)) -> Found:
    """Tokens and seconds that batches took."""
    names = ("prefill_tokens", "decode_tokens", "seconds", "cpu_seconds")
    return {name: sum(one.batches[condition][name] for condition in conditions) for name in names}
