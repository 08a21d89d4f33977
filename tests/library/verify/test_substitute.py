"""The verifier `substitute`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvgraft.errors import VerifierError
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.verify.substitute import SubstituteVerifier

QUADRATIC = {"symbols": ["x"], "where": ["x**2 - 5*x + 6 = 0", "x > 2", "x integer"]}
LINEAR = {"symbols": ["x", "y"], "where": ["x + y = 10", "x - y = 2"], "answer": "(x, y)"}
SCHEDULE = {"symbols": ["a", "b"], "where": ["a + 2 <= b", "b <= 10 and a >= 0"], "answer": "json"}


@pytest.fixture(scope="module")
def verifier() -> Iterator[SubstituteVerifier]:
    made = SubstituteVerifier()
    yield made
    made.close()


def judge(verifier: SubstituteVerifier, constraints: Any, trace: str) -> Verdict:
    # A key that is wrong for all: it must not be looked at.
    return verifier.verify(Case("p", "1234567", {"constraints": constraints}), trace)


@pytest.mark.parametrize(
    ("constraints", "trace"),
    [
        (QUADRATIC, "Answer: 3"),
        (QUADRATIC, r"\boxed{x = 3}"),
        (QUADRATIC, "Answer: 3.0"),
        (QUADRATIC, r"\boxed{\frac{6}{2}}"),
        ({"symbols": ["x"], "where": ["x^2 = 2", "x > 0"]}, r"\boxed{\sqrt{2}}"),
        (LINEAR, "Final answer: (6, 4)"),
        ({**LINEAR, "answer": "{x}, {y}"}, "Answer: 6, 4"),
        (SCHEDULE, '```json\n{"a": 3, "b": 5}\n```'),
        ({"product": "12*35", "prime": True}, r"\boxed{2^{2} \cdot 3 \cdot 5 \cdot 7}"),
        ({"product": "420"}, "Answer: 20 * 21"),
        ({"symbols": ["x"], "where": ["x**2 = 9"], "all": True}, r"\boxed{\{-3, 3\}}"),
        ({"symbols": ["x"], "where": ["x**2 = 9", "x > 0"], "all": True}, "Answer: x = 3"),
        ({"symbols": ["p"], "where": ["p prime", "p % 4 = 1", "gcd(p, 10) = 1"]}, "Answer: 13"),
        ({"symbols": ["x"], "where": ["sin(x)**2 + cos(x)**2 = 1"]}, "Answer: 7"),
    ],
)
def test_what_fulfils_the_constraints(
    verifier: SubstituteVerifier, constraints: Any, trace: str
) -> None:
    verdict = judge(verifier, constraints, trace)
    assert (verdict.passed, verdict.grade) == (True, "proved"), verdict.evidence


@pytest.mark.parametrize(
    ("constraints", "trace", "why"),
    [
        (QUADRATIC, "Answer: 2", "x > 2"),
        (QUADRATIC, "Answer: -3", "x**2 - 5*x + 6 = 0"),
        ({"symbols": ["x"], "where": ["x^2 = 2"]}, "Answer: 1.41421356", "x^2 = 2"),
        (LINEAR, "Final answer: (4, 6)", "x - y = 2"),
        (LINEAR, "Final answer: 6", "1 values for 2"),
        (SCHEDULE, '{"a": 4, "b": 5}', "a + 2 <= b"),
        (SCHEDULE, '{"b": 5}', "it says nothing of a"),
        ({"product": "12*35", "prime": True}, "Answer: 4 * 3 * 5 * 7", "4 is no prime"),
        ({"product": "12*35", "prime": True}, "Answer: 2 * 3 * 5 * 7", "the product is 210"),
        ({"product": "12*35"}, "Answer: 420", "it has one factor"),
        ({"symbols": ["x"], "where": ["x**2 = 9"], "all": True}, "Answer: 3", "x = -3 is missing"),
        ({"symbols": ["x"], "where": ["1/(x - 7) = 2"]}, "Answer: 7", "1/(x - 7) = 2"),
    ],
)
def test_what_does_not(
    verifier: SubstituteVerifier, constraints: Any, trace: str, why: str
) -> None:
    verdict = judge(verifier, constraints, trace)
    assert (verdict.passed, verdict.grade) == (False, "proved")
    assert why in str(verdict.evidence["fails"])


@pytest.mark.parametrize(
    "answer",
    [
        "9**9**9**9",
        "(9**999)**999",
        "factorial(100000)",
        "(1).__class__",
        "open(2)",
        "lambda: 3",
        "[3 for x in (1,)]",
        "1/0",
        "1e999",
        "9" * 3000,
        "(" * 900 + "3" + ")" * 900,
    ],
)
def test_hostile_answers_fail_and_the_next_is_judged(
    verifier: SubstituteVerifier, answer: str
) -> None:
    assert not judge(verifier, QUADRATIC, f"\\boxed{{{answer}}}").passed
    assert judge(verifier, QUADRATIC, "Answer: 3").passed


def test_what_cannot_be_decided_is_not_passed(verifier: SubstituteVerifier) -> None:
    endless = {"symbols": ["x"], "where": ["sin(x) = 0"], "all": True}
    verdict = judge(verifier, endless, "Answer: 0")
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert "not decided" in verdict.evidence["failure"]


@pytest.mark.parametrize(
    "constraints",
    [
        None,
        [],
        {},
        {"symbols": ["x"]},
        {"symbols": "x", "where": ["x = 1"]},
        {"symbol": ["x"], "where": ["x = 1"]},
        {"symbols": ["x"], "where": ["y = 1"]},
        {"symbols": ["x"], "where": ["x +"]},
        {"symbols": ["x"], "where": ["x"]},
        {"symbols": ["x", "y"], "where": ["x = y"], "all": True},
        {"product": "12*"},
    ],
)
def test_constraints_that_cannot_be_used_are_said_to_be_so(
    verifier: SubstituteVerifier, constraints: Any
) -> None:
    with pytest.raises(VerifierError):
        judge(
            verifier, constraints, "Answer: 3 * 4" if "product" in str(constraints) else "Answer: 3"
        )
