"""Canonical answers, and the verifiers that compare attempts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft.errors import UsageError
from kvgraft.library.verify.base import Case, Verdict, make_verifier
from kvgraft.library.verify.canonical import canonical_answer
from kvgraft.library.verify.derivation import Derivations, only_prints_a_constant
from kvgraft.library.verify.program import ProgramVerifier

DATA = Path(os.environ.get("KVGRAFT_CASES", Path(__file__).parents[4] / "shared" / "cases"))


def program(source: str) -> str:
    return f"Here it is.\n```python\n{source}\n```\n"


# --- canonical answers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("016", "16"),
        ("16.0", "16"),
        (r"\boxed{16}", "$16$"),
        ("1/2", "0.5"),
        (r"\frac12", ".50"),
        ("1,234", "1234"),
        ("\u22125", "-5"),
        ("Turn On", "turn on"),
        ("(1,2)", "(1, 2)"),
        ("$18", "18 dollars"),
        ("7.", "7"),
    ],
)
def test_ways_to_write_one_answer(one: str, other: str) -> None:
    assert canonical_answer(one) == canonical_answer(other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5", "-5"),
        ("1/2", "12"),
        ("3", "3.0001"),
        ("1/3", "0.333333"),  # near is not equal: being near is not transitive
        ("turn on", "turn off"),
        ("A", "a"),
        ("x^2", "x2"),
        ("10 km", "10 m"),
        ("50", "50%"),
        ("(1,2)", "(2,1)"),
        ("3:4:5", "3:5:4"),
    ],
)
def test_answers_that_differ(one: str, other: str) -> None:
    assert canonical_answer(one) != canonical_answer(other)


@pytest.mark.parametrize("text", ["", "  ", "$$", "x" * 5000])
def test_what_has_no_canonical_form(text: str) -> None:
    assert canonical_answer(text) is None


def test_a_number_of_9_999_digits_is_written() -> None:
    assert canonical_answer("1e9999") != canonical_answer("1e9998")


@given(st.integers(-(10**30), 10**30))
def test_a_number_is_itself_and_not_its_opposite(number: int) -> None:
    form = canonical_answer(str(number))
    assert form == str(number)
    assert canonical_answer(form) == form
    assert number == 0 or canonical_answer(str(-number)) != form


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared answer pairs are not beside this clone")
def test_no_unequal_pair_becomes_one() -> None:
    lines = (DATA / "answer_pairs.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [json.loads(line) for line in lines]
    unequal = [pair for pair in pairs if pair["match"] is False]
    assert unequal
    for pair in unequal:
        assert canonical_answer(str(pair["gold"])) != canonical_answer(str(pair["given"])), pair


# --- consensus --------------------------------------------------------------------------------


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
    ],
)
def test_what_is_no_consensus(spec: str, trace: str, peers: tuple[str, ...]) -> None:
    assert not consensus(spec, trace, *peers).passed


@pytest.mark.parametrize("spec", ["consensus:0.4,3", "program:2"])
def test_the_key_changes_nothing(spec: str) -> None:
    peers = ("Answer: 5", program("print(2 + 3)"))
    seen = [consensus(spec, "Answer: 5", *peers, expected=key) for key in (None, "5", "6")]
    for verdict in seen:
        assert (verdict.passed, verdict.evidence) == (seen[0].passed, seen[0].evidence)


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


# --- program ----------------------------------------------------------------------------------


def test_a_program_and_a_text_agree() -> None:
    verdict = consensus("program", program("print(sum(range(5)))"), "Answer: 10", "Answer: 11")
    assert (verdict.passed, verdict.grade, verdict.answer) == (True, "agreed", "10")
    assert verdict.evidence["computed_by_programs"] == 1


def test_a_text_passes_where_a_program_computes_its_answer() -> None:
    assert consensus("program", "Answer: 10", program("x = 4\nprint(x + 6)")).passed


@pytest.mark.parametrize(
    "peers",
    [
        (),
        ("Answer: 10",),  # two texts, and nothing computed
        (program("print(10)"),),  # says it, and computes nothing
        (program("x = 10\nprint(f'{x}')"),),
        (program("print(5 + 6)"),),
        (program("raise SystemExit"),),
        (program("while True: pass"),),
        (program("print('x' * 10**7)"),),
        (program("print(("),),
    ],
)
def test_what_no_program_computes_is_not_agreed(peers: tuple[str, ...]) -> None:
    from kvgraft.sandbox.run import Limits

    verifier = ProgramVerifier(2, Derivations(Limits(seconds=2.0, cpu_seconds=2.0)))
    assert not verifier.verify(Case("p", peers=peers), "Answer: 10").passed


def test_one_program_twice_is_one_derivation() -> None:
    same = program("# another comment\nprint( 4+6 )")
    assert not consensus("program", program("print(4 + 6)"), same).passed
    assert consensus("program", program("print(4 + 6)"), same, program("print(12 - 2)")).passed


def test_a_tie_is_not_agreed() -> None:
    peers = ("Answer: 10", program("print(5 + 6)"), "Answer: 11")
    assert not consensus("program", program("print(4 + 6)"), *peers).passed


def test_each_program_runs_once() -> None:
    derivations, ran = Derivations(), []
    inner = derivations.run

    def counted(source: str):  # type: ignore[no-untyped-def]
        ran.append(source)
        return inner(source)

    derivations.run = counted
    verifier = ProgramVerifier(2, derivations)
    traces = [program(f"print({n} + 1)") for n in range(3)]
    for trace in traces:
        verifier.verify(Case("p", peers=tuple(t for t in traces if t != trace)), trace)
    assert len(derivations._runs) == 3
    assert len(ran) == 9


@pytest.mark.parametrize(
    ("source", "constant"),
    [
        ("print(70)", True),
        ("x = 70\nprint(x)", True),
        ("print(int('70'))", True),
        ("print(-70)", True),
        ("print(7 * 10)", False),
        ("print(sum([70]))", False),
        ("for x in range(71): pass\nprint(x)", False),
        ("print((", True),
    ],
)
def test_programs_that_only_say_their_output(source: str, constant: bool) -> None:
    assert only_prints_a_constant(source) is constant
