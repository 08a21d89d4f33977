"""What a model says when it is asked again for the answer of its verified solution."""

from __future__ import annotations

from typing import Any

from kvgraft.library.verify.base import Case, Verdict, Verifier, summary
from kvgraft.library.verify.canonical import canonical_answer
from kvgraft.library.verify.extract import extract


def said(text: str) -> str:
    """A restated answer as the text that is judged."""
    return f"Final Answer: {text}"


def restatement(verifier: Verifier, case: Case, solution: Verdict, text: str) -> Verdict:
    """The verdict on `text`, said from the state of a solution that has the verdict `solution`.

    The verifier judges it like the solution. One that compares attempts cannot: what was said from
    the solution's own state is no voice of its own, and would only be counted twice. There, the
    text passes if its answer is the verified one, and has the solution's grade.
    """
    if "peers" not in verifier.needs:
        return verifier.verify(case, said(text))
    found = extract(said(text))
    answer = found.answer if found is not None else None
    same = answer is not None and same_answer(answer, solution.answer or "")
    evidence: dict[str, Any] = {
        "method": "same answer as the solution",
        "gold": summary(solution.answer or ""),
        "given": answer if answer is None else summary(answer),
    }
    grade = solution.grade if same else "none"
    return Verdict(same, grade, answer, verifier.name, verifier.version, evidence)


def same_answer(one: str, other: str) -> bool:
    """Whether two answers are one: character by character, or in their canonical form."""
    if one.strip() == other.strip():
        return bool(one.strip())
    canonical = canonical_answer(one)
    return canonical is not None and canonical == canonical_answer(other)
