"""The verifier `math`: the pairs, the limits, and that nothing but an equal answer passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgraft.errors import MissingExtra, VerifierError
from kvgraft.library.verify.base import Case
from kvgraft.library.verify.math import MathVerifier
from library.verify.cases import own_pairs, shared_pairs


@pytest.fixture(scope="module")
def math() -> Iterator[MathVerifier]:
    verifier = MathVerifier()
    yield verifier
    verifier.close()


def judge(verifier: MathVerifier, gold: str, given: str):
    return verifier.verify(Case("", gold), given)


@pytest.mark.parametrize("pair", own_pairs(), ids=lambda pair: f"{pair['gold']} | {pair['given']}")
def test_pairs(math: MathVerifier, pair: dict) -> None:
    verdict = judge(math, pair["gold"], pair["given"])
    assert verdict.passed is pair["match"], verdict
    assert "failure" not in verdict.evidence


def test_shared_pairs(math: MathVerifier) -> None:
    pairs = shared_pairs()
    if pairs is None:
        pytest.skip("shared data absent: answer_pairs.jsonl")
    assert pairs
    for pair in pairs:
        verdict = judge(math, pair["gold"], pair["given"])
        assert verdict.passed is pair["match"], (pair, verdict)


def test_what_a_verdict_says(math: MathVerifier) -> None:
    verdict = judge(math, r"\frac12", r"Half of it: \boxed{0.5}.")
    assert (verdict.passed, verdict.grade, verdict.answer) == (True, "proved", "0.5")
    assert verdict.verifier == "math"
    assert "math-verify-" in verdict.version
    assert verdict.evidence["method"] == "key"
    assert verdict.evidence["gold"] == r"\frac12"
    assert verdict.evidence["given"] == "0.5"
    assert verdict.evidence["seconds"] >= 0
    refuted = judge(math, "5", r"\boxed{6}")
    assert (refuted.passed, refuted.grade, refuted.answer) == (False, "proved", "6")
    empty = judge(math, "5", "no idea")
    assert (empty.passed, empty.grade, empty.answer) == (False, "none", None)
    assert "no answer" in empty.evidence["reason"]


@pytest.mark.parametrize("expected", [None, "", "  \n"])
def test_it_needs_a_gold_answer(math: MathVerifier, expected: str | None) -> None:
    with pytest.raises(VerifierError, match="expected"):
        math.verify(Case("", expected), "5")


def test_integers_of_5000_digits(math: MathVerifier) -> None:
    one = "1" + "0" * 4_998 + "1"
    other = "1" + "0" * 4_998 + "2"
    grouped = f"1,{','.join(['000'] * 1_666)}"
    assert judge(math, one, f"\\boxed{{{one}}}").passed
    assert judge(math, one, f"\\boxed{{x = {one}}}").passed
    assert not judge(math, one, f"\\boxed{{{other}}}").passed
    assert not judge(math, one, f"\\boxed{{x = {other}}}").passed
    assert judge(math, "1" + "0" * 4_998, f"\\boxed{{{grouped}}}").passed
    evidence = judge(math, one, one).evidence
    assert evidence["gold"]["chars"] == 5_000
    assert len(json.dumps(evidence)) < 4_096


def test_answers_over_the_cap_are_no_pass(math: MathVerifier) -> None:
    digits = "7" * 20_000
    verdict = judge(math, digits, f"\\boxed{{{digits}}}")
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert "16,384" in verdict.evidence["failure"]


@pytest.mark.parametrize(
    "given",
    [
        "9**9**9",
        r"9^{9^{9}}",
        r"10^{10^{10}}",
        "100000000!",
        "1e999999999",
        "(" * 3_000 + "1" + ")" * 3_000,
        r"\int_0^1 x^{x^{x^{x}}} dx + 9^{9^{9}}",
    ],
)
def test_what_cannot_be_computed_is_no_pass_and_costs_the_limit(given: str) -> None:
    verifier = MathVerifier(seconds=0.7)
    assert judge(verifier, "5", "5").passed  # the worker is up
    started = time.monotonic()
    verdict = judge(verifier, "1", f"\\boxed{{{given}}}")
    assert time.monotonic() - started < 15
    assert not verdict.passed
    if "failure" in verdict.evidence:
        assert verdict.grade == "none"
    assert judge(verifier, "5", "5").passed  # the next trace is judged as if nothing had happened
    verifier.close()


def test_a_worker_that_is_killed_costs_nothing(math: MathVerifier) -> None:
    assert judge(math, "5", "5").passed
    pid = math._worker.pid
    assert pid is not None
    psutil.Process(pid).kill()
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert judge(math, "5", "5").passed
    assert not psutil.pid_exists(pid)  # nor a zombie


def test_a_worker_without_room_is_a_failure_and_no_exception() -> None:
    verifier = MathVerifier(memory_bytes=16 * 1024 * 1024)
    verdict = judge(verifier, "5", "5")
    assert (verdict.passed, verdict.grade, verdict.answer) == (False, "none", "5")
    assert "worker" in verdict.evidence["failure"]
    verifier.close()


def test_threads_share_a_verifier(math: MathVerifier) -> None:
    wrong: list[int] = []

    def work(start: int) -> None:
        wrong.extend(
            number
            for number in range(start, start + 20)
            if not judge(math, str(number), f"\\boxed{{{number}}}").passed
            or judge(math, str(number), f"\\boxed{{{number + 1}}}").passed
        )

    threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 80, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_close_ends_the_worker_and_a_later_call_starts_one() -> None:
    verifier = MathVerifier()
    assert verifier._worker.pid is None  # nothing starts before it is needed
    assert judge(verifier, "5", "5").passed
    pid = verifier._worker.pid
    verifier.close()
    verifier.close()
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert judge(verifier, "5", "5").passed
    verifier.close()


def test_a_program_that_forgets_to_close_leaves_nothing() -> None:
    script = (
        "from kvgraft.library.verify.math import MathVerifier\n"
        "verifier = MathVerifier()\n"
        "from kvgraft.library.verify.base import Case\n"
        "assert verifier.verify(Case('', '5'), '5').passed\n"
        "print(verifier._worker.pid, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert not psutil.pid_exists(int(done.stdout))


def test_sympy_stays_out_of_this_process(math: MathVerifier) -> None:
    script = (
        "import sys\n"
        "from kvgraft.library.verify.base import Case\n"
        "from kvgraft.library.verify.specs import make_verifier\n"
        "verifier = make_verifier('math')\n"
        "assert verifier.verify(Case('', '5'), '5').passed\n"
        "verifier.close()\n"
        "assert not {'sympy', 'math_verify'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="math-verify"):
        MathVerifier()


NUMBERS = st.integers() | st.fractions(max_denominator=10**6)


@settings(max_examples=50)
@given(NUMBERS, NUMBERS)
def test_numbers_are_equal_when_they_are(math: MathVerifier, one: object, other: object) -> None:
    assert judge(math, str(one), f"\\boxed{{{other}}}").passed is (one == other)
    assert judge(math, str(one), f"\\boxed{{{one}}}").passed


@settings(max_examples=50)
@given(st.text(max_size=60), st.text(min_size=1, max_size=60).filter(str.strip))
def test_any_text_gets_a_verdict(math: MathVerifier, text: str, gold: str) -> None:
    verdict = judge(math, gold, f"\\boxed{{{text}}}")
    assert not verdict.passed or verdict.grade == "proved"
