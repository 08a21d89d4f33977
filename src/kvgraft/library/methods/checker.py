"""A checker of a family: a verifier that can refute an answer, and what it needs for each problem.

With one, what a method answers has the verifier's grade, such as proved; without one, it is the
agreement of independent programs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvgraft.library.methods.trial import Instance
from kvgraft.library.verify.base import Case, Verdict, Verifier
from kvgraft.library.verify.specs import make_verifier

_NAME = re.compile(r"\{([a-z])\}")


@dataclass(frozen=True)
class Checker:
    """`spec` names the verifier. `checks` is what it takes, with `{a}` for the text in the first
    slot, `{b}` for that in the second, and so on, in the order of a method's parameters."""

    spec: str
    checks: Mapping[str, Any]

    def open(self) -> Verifier:
        """The verifier, to be closed.

        Raises:
            UsageError, MissingExtra: it cannot be made.
        """
        return make_verifier(self.spec)

    def judge(
        self, verifier: Verifier, text: str, named: Mapping[str, str], answer: str
    ) -> Verdict:
        """The verdict on `answer` to the problem `text`, in whose slots `named` stands."""
        case = Case(text, checks=_filled(self.checks, named))
        return verifier.verify(case, f"\\boxed{{{answer}}}")

    def as_json(self) -> dict[str, Any]:
        return {"spec": self.spec, "checks": dict(self.checks)}


def passes(verdict: Verdict, answer: str) -> bool:
    """Whether a verdict is a pass of just this answer."""
    return verdict.passed and verdict.answer == answer


def blind_spot(checker: Checker, cases: Sequence[tuple[Instance, Mapping[str, str]]]) -> str | None:
    """Why the checker must not be believed, or None: it has to pass every verified answer, and to
    refute another problem's answer in the place of each. The answers are not all the same."""
    verifier = checker.open()
    try:
        for number, (instance, named) in enumerate(cases):
            if not passes(
                checker.judge(verifier, instance.text, named, instance.answer), instance.answer
            ):
                return f"it refutes the verified answer {instance.answer:.60}"
            others = (one.answer for one, _ in (*cases[number + 1 :], *cases[:number]))
            wrong = next(answer for answer in others if answer != instance.answer)
            if checker.judge(verifier, instance.text, named, wrong).passed:
                return f"it passes {wrong:.60} in the place of {instance.answer:.60}"
    finally:
        verifier.close()
    return None


def _filled(value: Any, named: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        # In one pass: what a problem says must not be read as a name.
        return _NAME.sub(lambda match: named.get(match[1], match[0]), value)
    if isinstance(value, Mapping):
        return {key: _filled(inner, named) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(inner, named) for inner in value]
    return value
