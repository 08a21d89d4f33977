"""The verifier `consensus`: a majority of attempts, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft.errors import UsageError
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.verify.specs import make_verifier


def consensus(spec: str, trace: str, *peers: str, expected: str | None = None) -> Verdict:
    return make_verifier(spec).verify(Case("How much?", expected, peers=peers), trace)


def test_a_majority_is_agreed() -> None:
    verdict = consensus("consensus", "so it is 5", "Answer: 5.0", "#### 5", "Answer: 6", "no idea")
    assert (verdict.passed, verdict.grade, verdict.answer) == (True, "agreed", "5")
    assert verdict.evidence["share"] == 0.6
    assert verdict.evidence["votes"] == [["5", 3], ["6", 1]]


@pytest.mark.parametrize(
    ("spec", "trace", "peers"),
    [
        ("consensus", "Answer: 6", ("Answer: 5",) * 3 + ("Answer: 6",)),  # the minority
        ("consensus", "Answer: 5", ("Answer: 5",) * 2 + ("",) * 3),  # half, with those cut off
        ("consensus", "Answer: 5", ("Answer: 5",) * 3),  # no quorum
        ("consensus:0.1,4", "Answer: 5", ("Answer: 5", "Answer: 6", "Answer: 6")),  # a tie
        ("consensus:0,2", "no idea", ("no idea",)),  # nothing that agrees
        ("consensus:0.5,3", "Answer: 12:30", ("Answer: 2:05",) * 2),  # one ratio, two times
    ],
)
def test_what_is_no_consensus(spec: str, trace: str, peers: tuple[str, ...]) -> None:
    assert not consensus(spec, trace, *peers).passed


@pytest.mark.parametrize("trace", ["Answer: 5", "Answer: 6", "no idea"])
def test_the_key_changes_nothing(trace: str) -> None:
    peers = ("Answer: 5", "#### 5.0", "Answer: 6")
    seen = [
        consensus("consensus:0.4,3", trace, *peers, expected=key) for key in (None, "5", "6", "")
    ]
    assert all(verdict == seen[0] for verdict in seen)


@pytest.mark.parametrize(
    "spec", ["consensus:1", "consensus:-0.1", "consensus:nan", "consensus:x", "consensus:0.5,1"]
)
def test_bad_thresholds_are_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        make_verifier(spec)


def test_other_thresholds_are_other_versions() -> None:
    versions = {make_verifier(f"consensus:{share},5").version for share in ("0.5", "0.6")}
    assert len(versions) == 2
    assert make_verifier("consensus").spec == "consensus:0.5,5"


def test_a_threshold_is_kept_to_its_last_digit() -> None:
    one, other = (make_verifier(f"consensus:{share},3") for share in ("0.1234567", "0.1234568"))
    assert one.version != other.version
    assert make_verifier(one.spec).version == one.version


def test_an_answer_too_long_to_compare_has_no_vote() -> None:
    long = f"\\boxed{{{'7' * 5000}}}"
    verdict = consensus("consensus:0.4,2", long, long)
    assert (verdict.passed, verdict.grade, verdict.answer) == (False, "none", None)
    assert "too long" in verdict.evidence["reason"]


@given(st.lists(st.sampled_from(["Answer: 5", "Answer: 6", "no idea"]), min_size=2, max_size=12))
def test_one_answer_at_most_passes_and_it_has_more_than_half(traces: list[str]) -> None:
    passed = set()
    for number, trace in enumerate(traces):
        verdict = consensus("consensus:0.5,2", trace, *traces[:number], *traces[number + 1 :])
        assert verdict.passed is (trace != "no idea" and 2 * traces.count(trace) > len(traces))
        passed |= {trace} if verdict.passed else set()
    assert len(passed) <= 1


def test_evidence_of_many_long_answers_keeps_its_cap() -> None:
    traces = [f"\\boxed{{{'x' * 1000} + {number}}}" for number in range(200)]
    verdict = consensus("consensus:0,2", traces[0], *traces[1:])
    assert not verdict.passed
    assert verdict.evidence["other_answers"] == 192
