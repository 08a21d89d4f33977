"""Specs, verdicts, and the two verifiers without a process: `exact` and `regex`."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft import limits
from kvgraft.errors import LimitExceeded, UsageError, VerifierError
from kvgraft.library.verify.base import Case, Verdict, beginning, summary
from kvgraft.library.verify.exact import ExactVerifier
from kvgraft.library.verify.regex import RegexVerifier
from kvgraft.library.verify.specs import make_verifier

# --- specs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "name"),
    [("math", "math"), ("exact", "exact"), ("regex:a:b", "regex"), ("command:true x", "command")],
)
def test_specs_make_verifiers(spec: str, name: str) -> None:
    verifier = make_verifier(spec)
    assert verifier.name == name
    assert verifier.version
    verifier.close()


@pytest.mark.parametrize(
    "spec",
    [
        *(
            "",
            "nope",
            "Math",
            " math",
            "math:x",
            "exact:x",
            "regex",
            "regex:",
            "regex:(",
            "command",
        ),
        *("command:", "command:  ", "command:no-such-program-anywhere", "command:'unclosed"),
    ],
)
def test_unusable_specs_are_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        make_verifier(spec)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="math, exact, regex, command"):
        make_verifier("nope")


# --- verdicts ---------------------------------------------------------------------------------


def test_a_verdict_is_checked_when_it_is_made() -> None:
    with pytest.raises(VerifierError):
        Verdict(True, "none", "5", "v", "1", {})
    with pytest.raises(VerifierError):
        Verdict(True, "certain", "5", "v", "1", {})
    with pytest.raises(VerifierError):
        Verdict(True, "proved", "5", "v", "1", {"x": object()})
    with pytest.raises(VerifierError):
        Verdict(True, "proved", "5", "v", "1", {"x": float("nan")})
    with pytest.raises(LimitExceeded):
        Verdict(True, "proved", "5", "v", "1", {"x": "x" * limits.MAX_EVIDENCE_CHARS})


@given(st.text())
def test_summaries_are_short(text: str) -> None:
    assert len(json.dumps(summary(text))) <= limits.MAX_EVIDENCE_TEXT_CHARS
    for repeated in (text, text * 500):
        start = beginning(repeated, 100)
        assert len(json.dumps(start)) <= 100
        assert repeated.startswith(start)
        assert len(json.dumps(summary(repeated))) <= limits.MAX_EVIDENCE_TEXT_CHARS


# --- exact ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gold", "trace", "passed"),
    [
        ("72", r"\boxed{72}", True),
        ("72", "The answer is 72.", True),
        (" 72\n", "The answer is 72.", True),
        ("72", "The answer is 072.", False),
        ("def f(): pass", "\ndef f(): pass\n", True),
        ("caf\u00e9", "cafe\u0301", True),
        ("cafe\u0301", "Answer: caf\u00e9", True),
        ("x\u00b2", "x2", False),
        ("x\u00b2", r"\boxed{x2}", False),
        ("-1", "\u22121", False),
        ("Yes", "yes", False),
        ("two words", "two  words", False),
        ("5", r"\boxed{5", False),
    ],
)
def test_exact(gold: str, trace: str, passed: bool) -> None:
    verdict = ExactVerifier().verify(Case("", gold), trace)
    assert verdict.passed is passed
    assert verdict.grade == "proved" if passed else verdict.grade in ("proved", "none")
    if passed:
        assert verdict.answer is not None
        assert verdict.answer in trace


@pytest.mark.parametrize("expected", [None, " "])
def test_exact_needs_a_gold_answer(expected: str | None) -> None:
    with pytest.raises(VerifierError, match="expected"):
        ExactVerifier().verify(Case("", expected), "5")


def test_exact_takes_no_time_over_a_run_of_combining_marks() -> None:
    started = time.monotonic()
    marks = "\u0301\u0316" * 1_000_000
    assert not ExactVerifier().verify(Case("", "5"), "a" + marks).passed
    assert not ExactVerifier().verify(Case("", "5"), f"\\boxed{{a{marks}}}").passed
    assert time.monotonic() - started < 20


# --- regex ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "trace", "passed"),
    [
        ("[0-9]+", "The answer is 72.", True),
        ("[0-9]", "The answer is 72.", False),
        ("7", "The answer is 72.", False),
        ("(?i)yes|no", "Answer: YES", True),
        (".*", "no idea", False),
    ],
)
def test_regex_matches_the_whole_answer(pattern: str, trace: str, passed: bool) -> None:
    verdict = RegexVerifier(pattern).verify(Case(""), trace)
    assert verdict.passed is passed
    assert verdict.evidence["pattern"] == pattern


def test_a_pattern_that_explodes_is_stopped() -> None:
    verifier = RegexVerifier("(a|aa)+$", seconds=0.3)
    started = time.monotonic()
    trace = f"\\boxed{{{'a' * 100}b}}"
    verdict = verifier.verify(Case(""), trace)
    assert time.monotonic() - started < 10
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert "TimeoutError" in verdict.evidence["failure"]
    assert RegexVerifier("a+").verify(Case(""), r"\boxed{aa}").passed


def test_an_answer_over_the_cap_is_not_matched() -> None:
    trace = f"\\boxed{{{'a' * (limits.MAX_ANSWER_CHARS + 1)}}}"
    verdict = RegexVerifier("a+").verify(Case(""), trace)
    assert not verdict.passed
