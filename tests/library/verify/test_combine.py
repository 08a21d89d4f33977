"""The combinators `all` and `any`, and what all verifiers have in common."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from kvgraft import limits
from kvgraft.errors import UsageError, VerifierError
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.verify.combine import AllVerifier, AnyVerifier, member_specs
from kvgraft.library.verify.regex import RegexVerifier
from kvgraft.library.verify.specs import _MAKERS, make_verifier
from library.verify.cases import ROOT

OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Fixed:
    """Says what it was told to say, and counts how often."""

    needs: frozenset[str] = frozenset()
    version = "1"

    def __init__(self, name: str, passed: bool, grade: str, answer: str | None, size: int = 0):
        self.name = self.spec = name
        self.said = (passed, grade, answer)
        self.evidence = {"note": "x" * size}
        self.asked = self.closed = 0

    def verify(self, case: Case, trace: str) -> Verdict:
        self.asked += 1
        passed, grade, answer = self.said
        return Verdict(passed, grade, answer, self.name, self.version, self.evidence)

    def close(self) -> None:
        self.closed += 1
        if self.name == "broken":
            raise OSError("oh")


@pytest.mark.parametrize(
    ("spec", "expected", "trace", "passed", "grade"),
    [
        ("all:[exact] [regex:[0-9]+]", "5", "Answer: 5", True, "proved"),
        ("all:[exact] [regex:[0-9]+]", "6", "Answer: 5", False, "proved"),
        ("all:[regex:[0-9]+] [exact]", "6", "Answer: 5", False, "proved"),
        ("any:[exact] [regex:[0-9]+]", "6", "Answer: 5", True, "proved"),
        ("any:[exact] [regex:[a-z]+]", "6", "Answer: 5", False, "proved"),
        ("all:[consensus:0.5,2] [regex:[0-9]+]", None, "Answer: 5", True, "proved"),
        ("all:[consensus:0.5,2]", None, "Answer: 5", True, "agreed"),
        ("any:[exact] [all:[regex:[0-9]] [regex:5]]", "6", "Answer: 5", True, "proved"),
    ],
)
def test_members_together(
    spec: str, expected: str | None, trace: str, passed: bool, grade: str
) -> None:
    verifier = make_verifier(spec)
    assert verifier.spec == spec
    verdict = verifier.verify(Case("p", expected, peers=("Answer: 5",)), trace)
    assert (verdict.passed, verdict.grade) == (passed, grade)
    assert make_verifier(verifier.spec).version == verifier.version


def test_later_members_are_not_asked_and_are_named() -> None:
    verifier = make_verifier("all:[regex:[a-z]+] [command:false]")
    verdict = verifier.verify(Case("p"), "Answer: 5")
    assert verdict.evidence["not_run"] == [make_verifier("command:false").spec]
    assert len(verdict.evidence["members"]) == 1


def test_all_is_about_one_answer() -> None:
    trace = '```json\n{"n": 1}\n```\nThe answer is 7.'
    verifier = make_verifier("all:[regex:[0-9]] [schema]")
    verdict = verifier.verify(Case("p", checks={"schema": OBJECT}), trace)
    verifier.close()
    assert not verdict.passed
    assert "another answer" in verdict.evidence["members"][1]["reason"]


def test_needs_are_those_of_all_members() -> None:
    for kind in ("all", "any"):
        verifier = make_verifier(f"{kind}:[exact] [consensus] [code]")
        assert verifier.needs == {"expected", "peers", "tests"}


@pytest.mark.parametrize(
    "argument",
    ["", "exact", "[exact", "exact]", "[exact] math", "[]", "[ ]", "[[exact]", "][", "[a]]"],
)
def test_brackets_that_do_not_match_are_refused(argument: str) -> None:
    with pytest.raises(UsageError):
        member_specs(argument)


def test_brackets_inside_a_spec_are_its_own() -> None:
    assert member_specs("[regex:[0-9]+]  [all:[a] [b]]") == ["regex:[0-9]+", "all:[a] [b]"]


def test_an_unknown_member_is_refused() -> None:
    with pytest.raises(UsageError, match="no verifier 'nope'"):
        make_verifier("all:[exact] [nope]")


@pytest.mark.parametrize(
    ("grades", "strongest"),
    [(("agreed", "proved"), "proved"), (("agreed", "agreed"), "agreed"), (("proved",), "proved")],
)
def test_what_all_prove_is_as_strong_as_the_strongest(
    grades: tuple[str, ...], strongest: str
) -> None:
    members = [Fixed(f"v{number}", True, grade, "5") for number, grade in enumerate(grades)]
    assert AllVerifier(members).verify(Case("p"), "5").grade == strongest


@pytest.mark.parametrize(
    ("answers", "passed", "answer"),
    [
        (("5", "5.0"), True, "5"),  # one answer, written in two ways
        (("5", "6"), False, "5"),
        ((None, "6"), True, "6"),  # one that looks at no answer contradicts none
        (("5", None), True, "5"),
        (("5", None, "6"), False, "5"),
        ((None, None), True, None),
    ],
)
def test_members_that_pass_other_answers_do_not_pass_together(
    answers: tuple[str | None, ...], passed: bool, answer: str | None
) -> None:
    members = [Fixed(f"v{number}", True, "proved", one) for number, one in enumerate(answers)]
    verdict = AllVerifier(members).verify(Case("p"), "5")
    assert (verdict.passed, verdict.answer) == (passed, answer)


def test_all_stops_at_the_first_that_fails() -> None:
    members = [
        Fixed("first", True, "agreed", "5"),
        Fixed("second", False, "none", None),
        Fixed("third", True, "proved", "5"),
    ]
    verdict = AllVerifier(members).verify(Case("p"), "5")
    assert (verdict.passed, verdict.grade, verdict.answer) == (False, "none", "5")
    assert [member.asked for member in members] == [1, 1, 0]
    assert verdict.evidence["not_run"] == ["third"]


def test_any_stops_at_the_first_that_passes() -> None:
    members = [
        Fixed("first", False, "proved", "4"),
        Fixed("second", True, "agreed", "5"),
        Fixed("third", True, "proved", "6"),
    ]
    verdict = AnyVerifier(members).verify(Case("p"), "5")
    assert (verdict.passed, verdict.grade, verdict.answer) == (True, "agreed", "5")
    assert [member.asked for member in members] == [1, 1, 0]
    assert verdict.evidence["not_run"] == ["third"]
    assert [one["passed"] for one in verdict.evidence["members"]] == [False, True]


def test_what_none_passes_is_as_weak_as_the_weakest() -> None:
    members = [Fixed("first", False, "proved", None), Fixed("second", False, "none", "5")]
    verdict = AnyVerifier(members).verify(Case("p"), "5")
    assert (verdict.passed, verdict.grade, verdict.answer) == (False, "none", "5")


@pytest.mark.parametrize(("count", "size"), [(3, 5_000), (40, 200), (400, 7_000)])
def test_evidence_of_many_members_keeps_its_cap(count: int, size: int) -> None:
    members = [Fixed(f"v{number}", True, "proved", "5", size) for number in range(count)]
    verdict = AllVerifier(members).verify(Case("p"), "5")
    assert verdict.passed
    assert len(json.dumps(verdict.evidence)) <= limits.MAX_EVIDENCE_CHARS
    nested = AllVerifier([AllVerifier(members), AllVerifier(members)])
    assert nested.verify(Case("p"), "5").passed


def test_all_are_closed_though_one_breaks() -> None:
    members = [Fixed("broken", True, "proved", "5"), Fixed("other", True, "proved", "5")]
    with pytest.raises(OSError, match="oh"):
        AllVerifier(members).close()
    assert [member.closed for member in members] == [1, 1]


def test_a_member_that_lacks_something_says_so() -> None:
    for kind in ("all", "any"):
        with pytest.raises(VerifierError, match="expected"):
            make_verifier(f"{kind}:[exact] [regex:[0-9]]").verify(Case("p"), "5")


def test_brackets_that_go_too_deep_are_refused() -> None:
    with pytest.raises(UsageError, match="deep"):
        make_verifier("all:[" * 2_000 + "exact" + "]" * 2_000)


def test_a_member_whose_spec_cannot_be_read_again_is_refused() -> None:
    for pattern in (r"\[", r"[]0-9]", r"a\]|\[b"):
        with pytest.raises(UsageError, match="brackets"):
            AnyVerifier([RegexVerifier(pattern)])


@pytest.mark.parametrize("kind", [AllVerifier, AnyVerifier])
def test_none_are_no_members(kind: type) -> None:
    with pytest.raises(UsageError, match="others"):
        kind([])


# --- all of them ------------------------------------------------------------------------------

CASE = Case(
    "p",
    "5",
    {
        "schema": {"type": "integer", "maximum": 5},
        "constraints": {"symbols": ["x"], "where": ["x + 1 = 6"]},
        "tests": [{"call": "f", "args": [2], "expect": 5}],
    },
    ("Answer: 5", "```python\nx = 2\nprint(x + 3)\n```", "Answer: 6", "", "#### 5"),
)
SPECS = (
    *("exact", "math", "regex:[0-9]+", "command:true", "consensus:0.4,3", "program"),
    *("schema", "substitute", "code", "all:[exact] [substitute]", "any:[exact] [consensus]"),
)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("spec", SPECS)
def test_a_verdict_can_be_had_again(spec: str, right: bool) -> None:
    trace = "5" if right else "6"
    if spec == "code":
        trace = f"def f(x):\n    return x + {3 if right else 4}\n"
    if not right:
        spec = spec.replace("command:true", "command:false").replace("[0-9]+", "[0-5]+")
    first = make_verifier(spec)
    second = make_verifier(first.spec)  # made from what the first says it is
    try:
        one, other, again = (verifier.verify(CASE, trace) for verifier in (first, second, first))
    finally:
        first.close()
        second.close()
    assert one.passed is right, one.evidence
    assert second.version == first.version == one.version
    assert first.needs <= {"expected", "peers", *CASE.checks}
    assert _repeatable(one) == _repeatable(other) == _repeatable(again)


def _repeatable(verdict: Verdict) -> Any:
    return _without_seconds(dataclasses.asdict(verdict))


def _without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_seconds(one) for name, one in value.items() if "seconds" not in name}
    if isinstance(value, list):
        return [_without_seconds(one) for one in value]
    return value


def test_the_page_on_verifiers_lists_all_that_are_built_in() -> None:
    page = (ROOT / "docs" / "VERIFIERS.md").read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if line.startswith("| `")]
    assert {line.split("`")[1].partition(":")[0] for line in table} == set(_MAKERS)
