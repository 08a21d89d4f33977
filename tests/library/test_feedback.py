"""What the model is told after a failed attempt, and what it never is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft import limits
from kvgraft.library.feedback import CUT_OFF, DISAGREES, NO_ANSWER, NOT_CHECKED, WRONG, feedback
from kvgraft.library.problem import Problem
from kvgraft.library.verify.base import Verdict
from kvgraft.library.verify.exact import ExactVerifier

PROBLEM = Problem("1", "What is the capital of France?", expected="Paris")
TRACE = "I think it is Lyon.\nAnswer: Lyon"


def failed(
    grade: str = "proved", answer: str | None = "Lyon", evidence: dict[str, Any] | None = None
) -> Verdict:
    return Verdict(False, grade, answer, "v", "1", evidence or {})


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (None, CUT_OFF),
        (failed("none", None), NO_ANSWER),
        (failed("proved"), WRONG),
        (failed("agreed"), DISAGREES),
        (failed("none"), NOT_CHECKED),
        (Verdict(True, "proved", None, "v", "1", {}), NO_ANSWER),
    ],
)
def test_it_is_told_what_kind_of_failure_it_was(verdict: Verdict | None, said: str) -> None:
    assert feedback(PROBLEM, TRACE, verdict) == said
    assert said.endswith(".")


def test_a_verifiers_own_words_are_passed_on() -> None:
    said = feedback(PROBLEM, TRACE, failed(evidence={"feedback": " The check\nraised NameError. "}))
    assert said.startswith("The check raised NameError. Solve the problem again")


def told(problem: Problem, words: object, trace: str = TRACE) -> str:
    return feedback(problem, trace, failed(evidence={"feedback": words}))


@pytest.mark.parametrize("words", [None, 5, ["x"], "", "  ", "x" * (limits.MAX_FEEDBACK_CHARS + 1)])
def test_words_that_are_none_are_left_out(words: object) -> None:
    assert told(PROBLEM, words) == WRONG


@pytest.mark.parametrize(
    ("expected", "checks", "words"),
    [
        ("Paris", {}, "It is Paris, of course."),
        ("Paris", {}, "It is not PARIS"),
        ("the Paris of the South", {}, "One word of it is South."),
        ("yes", {}, "It should be yes."),
        ("no", {}, "It should be no."),
        ("42", {}, "It should be 42."),
        ("42", {}, "It should be 42.0!"),
        ("-42.50", {}, "It should be -42.5"),
        (r"\frac{1}{7}", {}, "There is a 7 in it."),
        ("≤", {}, "It is ≤ instead."),
        (None, {"tests": [{"input": "3", "output": "1729"}]}, "Expected 1729."),
        (None, {"tests": ["assert solve('abc') == 'zyx'"]}, "For abc it must give zyx."),
        (None, {"schema": {"enum": [1729, 2.5]}}, "One of 1729"),
        (None, {"schema": {"properties": {"velocity": {}}}}, "There is no velocity."),
        (None, {"constraints": ("x > 17",)}, "It must be over 17."),
    ],
)
def test_words_that_tell_the_key_or_a_check_are_left_out(
    expected: str | None, checks: dict[str, Any], words: str
) -> None:
    problem = Problem("1", PROBLEM.text, expected, checks=checks)
    assert told(problem, words) == WRONG


def test_which_check_failed_may_be_said() -> None:
    problem = Problem("1", "Write f.", checks={"tests": ["assert f(2) == 5"]})
    words = "The program fails test 2 of 5: NameError."
    assert told(problem, words).startswith(words)
    assert told(problem, "The program fails test 2 of 5: it gives 4, not 5.") == WRONG


def test_what_the_model_has_seen_may_be_said() -> None:
    problem = Problem("1", "Is 17 prime?", "17 is", system="Think.", checks={"tests": ["17"]})
    assert told(problem, "Look at 17 again.").startswith("Look at 17 again.")
    assert told(problem, "Lyon is no number.").startswith("Lyon is no number.")
    assert told(problem, "Some of the tests fail.").startswith("Some of the tests fail.")


@given(st.integers(0, 20), st.lists(st.integers(0, 20), max_size=6), st.sampled_from(["", ".0"]))
def test_a_key_that_is_a_number_is_never_told(key: int, numbers: list[int], end: str) -> None:
    problem = Problem("1", "How many?", str(key))
    words = "not " + ", ".join(f"{number}{end}" for number in numbers)
    said = told(problem, words, trace="many")
    if key in numbers or not end:  # of 1.0 the 0 is suspicious, too
        assert (said == WRONG) == (key in numbers)


def test_evidence_with_the_key_in_it_is_not_told() -> None:
    verdict = ExactVerifier().verify(PROBLEM.case(), TRACE)
    assert "Paris" in str(verdict.evidence)
    assert "Paris" not in feedback(PROBLEM, TRACE, verdict)
