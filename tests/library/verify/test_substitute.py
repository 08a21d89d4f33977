"""The verifier `substitute`: what fulfils constraints, what does not, and what is neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgraft.errors import MissingExtra, VerifierError
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.verify.substitute import SubstituteVerifier
from library.verify.cases import ROOT

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
        (QUADRATIC, "Answer: 03"),
        (QUADRATIC, r"\boxed{2 \frac{2}{2}}"),
        ({"symbols": ["x"], "where": ["x = 16"]}, "The answer is 016."),
        ({"symbols": ["x"], "where": ["x = 1000000"]}, "Answer: 1,000,000"),
        ({"symbols": ["x"], "where": ["x = 5/2"]}, r"\boxed{2\frac12}"),
        ({"symbols": ["x"], "where": ["x = 6*pi/2"]}, r"\boxed{3\pi}"),
        ({"symbols": ["x"], "where": ["x**2 = 18", "x > 0"]}, r"\boxed{3\sqrt{2}}"),
        ({"symbols": ["x"], "where": ["x**2 - 2*x - 1 = 0"]}, r"\boxed{1 + \sqrt{2}}"),
        ({"symbols": ["x"], "where": ["x = 0.1 + 0.2"]}, "Answer: 0.3"),  # exactly
        ({"symbols": ["x"], "where": ["x = pi + 2e5"]}, r"\boxed{2e5 + \pi}"),
        (LINEAR, r"\boxed{(gcd(12, 18), 4)}"),
        (LINEAR, r"\boxed{x = 6, y = 4}"),
        (LINEAR, r"\boxed{y = 4 \text{ and } x = 6}"),
        (LINEAR, r"\boxed{\left(\frac{12}{2},\, 4\right)}"),
        ({"symbols": ["x", "y"], "where": ["x = (1+1)*2", "y = 3*(1+1)"]}, r"\boxed{((1+1)*2, 6)}"),
        ({**LINEAR, "answer": "{y} and {x}"}, "Answer: 4 and 6"),
        (SCHEDULE, '{"b": "15/2", "a": 0, "note": "b is late"}'),
        ({"product": "420"}, r"\boxed{20 * 21 = 420}"),
        ({"product": 420}, r"\boxed{420 = 20 \times 21}"),
        ({"product": "420"}, r"\boxed{(-20)(-21)}"),
        ({"product": "12*35", "prime": True}, "Answer: 2, 2, 3, 5, 7"),
        ({"product": "2**61 - 1", "prime": True}, "Answer: 2305843009213693951"),
        ({"symbols": ["x"], "where": ["x**2 = 9"], "all": True}, r"\boxed{\pm 3}"),
        (
            {"symbols": ["x"], "where": ["x**2 = 9"], "all": True},
            r"\boxed{x = 3 \text{ or } x = -3}",
        ),
        (
            {"symbols": ["x"], "where": ["x**2 - 2*x - 1 = 0"], "all": True},
            r"\boxed{1 \pm \sqrt{2}}",
        ),
        ({"symbols": ["x"], "where": ["x**2 = -1"], "all": True}, r"\boxed{\emptyset}"),
        ({"symbols": ["x"], "where": ["x**2 = -1"], "all": True}, "Final answer: none"),
        ({"symbols": ["x"], "where": ["x > 5", "3 > x"], "all": True}, "Final answer: none"),
        (
            {"symbols": ["n"], "where": ["0 <= n <= 3", "n < 10**9", "n integer"], "all": True},
            r"\boxed{0, 1, 2, 3}",
        ),
        (
            {"symbols": ["n"], "where": ["n**2 % 8 = 1", "0 < n < 8", "n integer"], "all": True},
            r"\boxed{\{1, 3, 5, 7\}}",
        ),
        (
            {"symbols": ["x"], "where": ["sin(x) = 0", "x >= 0 and x <= 7"], "all": True},
            r"\boxed{0, \pi, 2\pi}",
        ),
        ({"symbols": ["x"], "where": ["x = 3 or 1/(x - 3) = 2"]}, "Answer: 3"),
        ({"symbols": ["x"], "where": ["x**5000 > 1 or x = 3"]}, "Answer: 3"),
        ({"symbols": ["x"], "where": ["1/(x - 3) = 2 or x = 3"]}, "Answer: 3"),
        ({"symbols": ["x"], "where": ["not x = 4", "gcd(x, 12, 8) = 4"]}, "Answer: 20"),
        ({"symbols": ["x"], "where": ["not (1/x > 0 and x > 5)"]}, "Answer: 0"),  # one part decides
        ({"symbols": ["n"], "where": ["factorial(n) = 720", "n natural"]}, "Answer: 6"),
        (
            {"symbols": ["n"], "where": ["floor(n/2) + ceil(n/2) = n", "lcm(n, 4) = 28"]},
            "Answer: 7",
        ),
        ({"symbols": ["n"], "where": ["n positive", "n real", "log(n, 2) = 5"]}, "Answer: 32"),
        ({"symbols": ["min_cost"], "where": ["min_cost = min(3, 4, abs(-2))"]}, "Answer: 2"),
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
        (SCHEDULE, '{"a": 4, "b": 5}', "a + 2 <= b"),
        ({"product": "12*35", "prime": True}, "Answer: 4 * 3 * 5 * 7", "4 is no prime"),
        ({"product": "12*35", "prime": True}, "Answer: 2 * 3 * 5 * 7", "the product is 210"),
        ({"product": "12*35"}, "Answer: 420", "it has one factor"),
        ({"symbols": ["x"], "where": ["x**2 = 9"], "all": True}, "Answer: 3", "x = -3 is missing"),
        ({"symbols": ["x"], "where": ["1/(x - 7) = 2"]}, "Answer: 7", "1/(x - 7) = 2"),
        ({"symbols": ["x"], "where": ["not 1/(x - 7) = 2"]}, "Answer: 7", "not 1/(x - 7) = 2"),
        # What says nothing does not become true by a `not` around more of it.
        ({"symbols": ["x"], "where": ["not (1/x > 0 or x > 5)"]}, "Answer: 0", "1/x > 0"),
        ({"symbols": ["x"], "where": ["not (1/x > 0 and x < 5)"]}, "Answer: 0", "1/x > 0"),
        ({"symbols": ["x"], "where": ["not (x < 5 and 1/x > 0)"]}, "Answer: 0", "1/x > 0"),
        # Nearer than doubles can tell.
        (QUADRATIC, "Answer: 3.00000000000000000000001", "x**2 - 5*x + 6 = 0"),
        ({"symbols": ["x"], "where": ["x = 10**30"]}, f"Answer: {10**30 + 1}", "x = 10**30"),
        (
            {"symbols": ["x"], "where": ["x = 2**0.5"]},
            r"\boxed{1.4142135623730950488}",
            "x = 2**0.5",
        ),
        ({"symbols": ["x"], "where": ["x**2 = 9", "x positive"]}, "Answer: -3", "x positive"),
        ({"symbols": ["x"], "where": ["x integer"]}, "Answer: 7/2", "x integer"),
        ({"symbols": ["x"], "where": ["x natural"]}, "Answer: 0", "x natural"),
        ({"symbols": ["x"], "where": ["x**5000 > 1", "x = 4"]}, "Answer: 3", "x = 4"),
        ({"symbols": ["x"], "where": ["x**5000 > 1 and x = 4"]}, "Answer: 3", "x = 4"),
        ({"symbols": ["x"], "where": ["x prime"]}, "Answer: 561", "x prime"),
        ({"symbols": ["x"], "where": ["x prime"]}, "Answer: -7", "x prime"),
        ({"symbols": ["x"], "where": ["x real"]}, r"\boxed{\sqrt{-1}}", "x real"),
        ({"symbols": ["x"], "where": ["2 < x < 4", "x != 3"]}, "Answer: 3", "x != 3"),
        ({"symbols": ["x"], "where": ["2 < x < 3"]}, "Answer: 3", "2 < x < 3"),
        ({"product": "420"}, "Answer: 1 * 420", "1 is no factor"),
        ({"product": "420"}, "Answer: -1 * -420", "it has one factor"),
        ({"product": "420"}, "Answer: 840 * (1/2)", "1/2 is no factor"),
        ({"product": "420"}, "Answer: 120 * 3.5", "7/2 is no factor"),
        (
            {"symbols": ["n"], "where": ["0 <= n <= 3", "n < 9", "n integer"], "all": True},
            r"\boxed{0, 1, 2}",
            "n = 3 is missing",
        ),
        ({"product": "420"}, r"\boxed{20 * 21 = 421}", "the product is 420"),
        ({"product": "12*35", "prime": True}, "Answer: 2*2*3*5*7*1", "1 is no factor"),
        ({"product": "12", "prime": True}, r"\boxed{(-2) * (-2) * 3}", "-2 is no prime"),
        ({"symbols": ["x"], "where": ["x**2 = 9"], "all": True}, r"\boxed{3, -3, 5}", "x = 5"),
        ({"symbols": ["x"], "where": ["x**2 = 9"], "all": True}, r"\boxed{\{\}}", "is missing"),
        (
            {"symbols": ["x"], "where": ["x**2 = 9"], "all": True},
            "Final answer: none",
            "is missing",
        ),
        (
            {"symbols": ["n"], "where": ["n**2 % 8 = 1", "0 < n < 8", "n integer"], "all": True},
            r"\boxed{\{1, 3, 5\}}",
            "n = 7 is missing",
        ),
        (
            {"symbols": ["x"], "where": ["sin(x) = 0", "0 <= x", "7 >= x"], "all": True},
            r"\boxed{0, \pi}",
            "x = 2*pi is missing",
        ),
    ],
)
def test_what_does_not(
    verifier: SubstituteVerifier, constraints: Any, trace: str, why: str
) -> None:
    verdict = judge(verifier, constraints, trace)
    assert (verdict.passed, verdict.grade) == (False, "proved")
    assert why in str(verdict.evidence["fails"])


@pytest.mark.parametrize(
    ("constraints", "trace", "why"),
    [
        (QUADRATIC, r"\boxed{x > 2}", "Compare"),
        (QUADRATIC, r"\boxed{y = 3}", "other symbols"),
        (QUADRATIC, r"\boxed{3, 2}", "Tuple"),
        (QUADRATIC, r"\boxed{\text{three}}", "three"),
        (QUADRATIC, r"\boxed{0x3}", "x3"),
        (QUADRATIC, r"\boxed{3_000}", "3_000"),
        (QUADRATIC, r"\boxed{3_{5}}", "base 5"),
        (QUADRATIC, r"\boxed{x}", "'x'"),
        # A mixed number, or a product?
        ({"symbols": ["x"], "where": ["x = pi + 1"]}, r"\boxed{\pi + 2\frac{1}{2}}", "frac"),
        (LINEAR, "Final answer: 6", "1 values for 2"),
        (LINEAR, r"\boxed{(6, 4, 2)}", "3 values for 2"),
        (LINEAR, r"\boxed{x = 6, z = 4}", "other symbols"),
        ({**LINEAR, "answer": "{x} and {y}"}, r"\boxed{6, 4}", "not of the form"),
        (SCHEDULE, '{"b": 5}', "nothing of a"),
        (SCHEDULE, '{"a": true, "b": 5}', "True"),
        (SCHEDULE, '{"a": [1], "b": 5}', "no number"),
        (SCHEDULE, "[3, 5]", "no JSON object"),
        ({"product": "420"}, r"\boxed{20^{1/2} * 21}", "exponent"),
    ],
)
def test_an_answer_that_cannot_be_read_is_not_refuted(
    verifier: SubstituteVerifier, constraints: Any, trace: str, why: str
) -> None:
    verdict = judge(verifier, constraints, trace)
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert why in str(verdict.evidence["reason"])


@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os').system('touch /tmp/kvgraft-was-here')",
        "9**9**9**9",
        "(9**999)**999",
        "factorial(100000)",
        "factorial(factorial(1000))",
        "(1).__class__",
        "open(2)",
        "lambda: 3",
        "[3 for x in (1,)]",
        "1/0",
        "1e999",
        "1e999999999",
        "1.5**1e6",
        "0**(-1)",
        "log(0)",
        "tan(pi/2)",
        "sin(10**900)",
        "exp(exp(exp(exp(9))))",
        "9" * 3000,
        "9" * 5000,
        "(" * 900 + "3" + ")" * 900,
        "-" * 1500 + "3",
        "+".join(["1"] * 900),
        "3 if 1 else 4",
        "f'{3}'",
        "3 := 4",
        "*3",
        "\u0663\u0660",
        "\x00",
        "{" * 2000,
        r"\frac{" * 500,
    ],
)
def test_hostile_answers_fail_and_the_next_is_judged(
    verifier: SubstituteVerifier, answer: str
) -> None:
    for constraints in (QUADRATIC, {"product": "420"}, {**QUADRATIC, "all": True}, SCHEDULE):
        text = (
            json.dumps({"a": answer, "b": 5}) if constraints is SCHEDULE else rf"\boxed{{{answer}}}"
        )
        assert not judge(verifier, constraints, text).passed
    assert judge(verifier, QUADRATIC, "Answer: 3").passed


def test_an_answer_of_ten_megabytes_is_refused() -> None:
    verifier = SubstituteVerifier()
    noted = json.dumps({"a": 3, "b": 5, "note": "x" * 5_000})
    assert not judge(verifier, SCHEDULE, noted).passed
    for trace in ("\\boxed{" + "9" * 10_000_000 + "}", "9 " * 2_000_000, "9" * 4_000_000):
        assert not judge(verifier, QUADRATIC, trace).passed
    verifier.close()


def test_an_answer_over_the_limits_of_the_worker_is_no_verdict() -> None:
    verifier = SubstituteVerifier(seconds=1.0)
    assert judge(verifier, QUADRATIC, "Answer: 3").passed
    verdict = judge(verifier, QUADRATIC, r"\boxed{((sqrt(2) + sqrt(3))**999 - 1)**999}")
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert "limit" in verdict.evidence["failure"]
    assert judge(verifier, QUADRATIC, "Answer: 3").passed
    verifier.close()


@pytest.mark.parametrize(
    ("constraints", "trace"),
    [
        ({"symbols": ["x"], "where": ["sin(x) = 0"], "all": True}, "Answer: 0"),  # without end
        ({"symbols": ["x"], "where": ["x > 2"], "all": True}, "Answer: 3"),
        ({"symbols": ["x"], "where": ["x**2 < 10", "x integer"], "all": True}, "Answer: 3"),
        ({"symbols": ["x"], "where": ["cos(x) = x - 1.2 or x = 3"], "all": True}, "Answer: 3"),
        ({"symbols": ["x"], "where": ["floor(x) = 3"], "all": True}, "Answer: 3"),
        ({"symbols": ["x"], "where": ["x > 2"]}, r"\boxed{\sqrt{-9}}"),  # no order among these
        ({"symbols": ["x"], "where": ["2**(x**9) > 1"]}, "Answer: 3"),  # too large to compute
        ({"symbols": ["x"], "where": ["x**5000 > 1"]}, "Answer: 3"),
        ({"symbols": ["x"], "where": ["x**5000 > 1 or x = 4"]}, "Answer: 3"),
        ({"symbols": ["x"], "where": ["x**5000 > 1 and x = 3"]}, "Answer: 3"),
        ({"symbols": ["x"], "where": ["x**5000 > 1", "x = 3"]}, "Answer: 3"),
        ({"symbols": ["x"], "where": ["not (1/(x - 3) > 0 and x**5000 > 1)"]}, "Answer: 3"),
        ({"symbols": ["x"], "where": ["not (x**5000 > 1 and 1/(x - 3) > 0)"]}, "Answer: 3"),
    ],
)
def test_what_cannot_be_decided_is_not_passed(
    verifier: SubstituteVerifier, constraints: Any, trace: str
) -> None:
    verdict = judge(verifier, constraints, trace)
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
        {"product": "x + 1"},
        {"product": "7/2"},
        {"product": "1"},
        {"product": "0"},
        {"product": "-6", "prime": True},
        {"product": 1.5},
        {"product": True},
        {
            "product": "12",
            "where": ["x = 1"],
            "symbols": ["x"],
        },  # half of it would not be looked at
        {"product": "12", "prime": "yes"},
        {"symbols": ["x"], "where": ["x = 3"], "prime": True},
        {"symbols": ["x"], "where": []},
        {"symbols": [], "where": ["1 = 1"]},
        {"symbols": ["x", "x"], "where": ["x = 3"]},
        {"symbols": ["x", "y"], "where": ["x = 3"]},  # any y would do
        {"symbols": ["pi"], "where": ["pi = 3"]},
        {"symbols": ["x y"], "where": ["x = 3"]},
        {"symbols": ["lambda"], "where": ["x = 3"]},
        {"symbols": [3], "where": ["x = 3"]},
        {"symbols": ["x"], "where": ["x = 3"], "answer": 3},
        {"symbols": ["x"], "where": ["x = 3"], "answer": "y"},
        {"symbols": ["x"], "where": ["x = 3"], "answer": "{x} {x}"},
        {"symbols": ["x"], "where": ["x = 3"], "all": 1},
        {"symbols": ["x"], "where": ["x = 3", "x +"]},  # the second, though the first decides
        {"symbols": ["x"], "where": ["x = 4", "x +"]},
        {"symbols": ["x"], "where": ["x.real = 3"]},
        {"symbols": ["x"], "where": ["x in (3, 4)"]},
        {"symbols": ["x"], "where": ["open(x) = 3"]},
        {"symbols": ["x"], "where": ["gcd(x) = 3"]},
        {"symbols": ["x"], "where": ["y integer", "x = 3"]},
        {"symbols": ["x"], "where": ["x = 3" + " + 0" * 1_000]},
        {"symbols": ["x"], "where": ["(x = 3) + 1 = 2"]},
    ],
)
def test_constraints_that_cannot_be_used_are_said_to_be_so(
    verifier: SubstituteVerifier, constraints: Any
) -> None:
    with pytest.raises(VerifierError):
        judge(verifier, constraints, "Answer: 3")


def test_what_a_verdict_says(verifier: SubstituteVerifier) -> None:
    verdict = judge(verifier, QUADRATIC, "So x = 3, and the answer is 3.")
    assert verdict.answer == "3"
    assert verdict.evidence["holds"] == 3
    assert json.loads(str(verdict.evidence["constraints"])) == QUADRATIC
    assert "sympy-" in verdict.version
    empty = judge(verifier, QUADRATIC, "no idea")
    assert (empty.passed, empty.grade, empty.answer) == (False, "none", None)


def test_sympy_stays_out_of_this_process() -> None:
    script = (
        "import sys\n"
        "from kvgraft.library.verify.base import Case\n"
        "from kvgraft.library.verify.specs import make_verifier\n"
        "verifier = make_verifier('substitute')\n"
        "case = Case('', checks={'constraints': {'symbols': ['x'], 'where': ['x + 1 = 6']}})\n"
        "assert verifier.verify(case, '5').passed\n"
        "verifier.close()\n"
        "assert 'sympy' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="sympy"):
        SubstituteVerifier()


@settings(max_examples=60)
@given(st.integers(-(10**40), 10**40), st.fractions(max_denominator=10**9))
def test_the_root_of_a_line_passes_and_nothing_else(
    verifier: SubstituteVerifier, slope: int, root: Fraction
) -> None:
    line = {"symbols": ["x"], "where": [f"({slope})*(x - ({root})) = 0"]}
    assert judge(verifier, line, f"\\boxed{{{root}}}").passed
    near = root + Fraction(1, 10**30)
    assert judge(verifier, line, f"\\boxed{{{near}}}").passed is (slope == 0)


@settings(max_examples=60)
@given(st.text(max_size=40))
def test_any_answer_gets_a_verdict(verifier: SubstituteVerifier, text: str) -> None:
    verdict = judge(verifier, QUADRATIC, f"\\boxed{{{text}}}")
    assert not verdict.passed or verdict.grade == "proved"


def documented() -> list[dict[str, Any]]:
    page = (ROOT / "docs" / "VERIFIERS.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith('{"constraints"')]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("example", documented(), ids=lambda one: str(one["passes"]))
def test_the_documented_examples_do_what_is_said(
    verifier: SubstituteVerifier, example: dict[str, Any]
) -> None:
    for key, passed in (("passes", True), ("fails", False)):
        answer = example[key]
        trace = answer if answer.startswith("{") else rf"\boxed{{{answer}}}"
        verdict = judge(verifier, example["constraints"], trace)
        assert (verdict.passed, verdict.grade) == (passed, "proved"), verdict.evidence
