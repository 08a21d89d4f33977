"""Verdicts given again: what passes, what fails, and what cannot be judged."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kvgraft.errors import MissingExtra, RecordNotFound, StoreFull, VerifierError
from kvgraft.library import reverify as module
from kvgraft.library.address import AddressSpace, RequestIdentity
from kvgraft.library.deposit import Deposit, Grounds, NewDeposit
from kvgraft.library.ladder import Effort
from kvgraft.library.problem import Problem
from kvgraft.library.records import Library
from kvgraft.library.reverify import Reverified, Verifiers, reverify
from kvgraft.library.verify import consensus
from kvgraft.library.verify.base import Case, Verdict, Verifier
from kvgraft.library.verify.exact import ExactVerifier
from kvgraft.library.workspace import Workspace
from kvgraft.prompt import CUES
from library.deposits import like
from library.scripted import FOUR, QUESTION, SOLUTION, ScriptedEngine, run

SPACE = AddressSpace(
    RequestIdentity(problem="", tenant="public", template_digest="t", tokenizer_digest="k")
)


@dataclass
class Says:
    """A verifier whose verdict is a function of what it sees."""

    judge: Callable[[Case, str], Verdict]
    name: str = "says"
    spec: str = "says"
    version: str = "2"
    needs: frozenset[str] = frozenset()
    closed: int = 0

    def verify(self, case: Case, trace: str) -> Verdict:
        return self.judge(case, trace)

    def close(self) -> None:
        self.closed += 1


def verdict(passed: bool = True, answer: str | None = "4", **changes: Any) -> Verdict:
    fields = {"grade": "proved", "verifier": "says", "version": "2", "evidence": {}}
    return Verdict(passed=passed, answer=answer, **{**fields, **changes})


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library.open(tmp_path / "library.sqlite3") as opened:
        yield opened


def deposited(library: Library, problem: str = QUESTION, **changes: Any) -> Deposit:
    fields: dict[str, Any] = {
        "identity": SPACE.identity(problem),
        "model": "toy",
        "fingerprint": "f",
        "prompt": problem,
        "trace": SOLUTION,
        "cue": "",
        "token_ids": (1, 2),
        "answer": "4",
        "answer_ids": (),
        "verdict": Verdict(True, "proved", "4", "says", "1", {}),
        "cost": {},
        "grounds": Grounds("says", Case(problem, "4", {"n": [1]}, ("a", "b")), " \n"),
        "finished": True,
    }
    return library.deposit(NewDeposit(**{**fields, **changes}))


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Case, str], Verdict]], Says]:
    """Makes the verifier of the spec `says`."""

    def _says(judge: Callable[[Case, str], Verdict], **fields: Any) -> Says:
        made = Says(judge, **fields)
        monkeypatch.setattr(module, "make_verifier", {"says": made}.__getitem__)
        return made

    return _says


def again(library: Library, *ids: str, **options: Any) -> list[Reverified]:
    with Verifiers() as verifiers:
        return list(reverify(library, ids, verifiers, **options))


# --- what passes ----------------------------------------------------------------------------------


def test_real_deposits_pass_again(workspace: Workspace, engine: ScriptedEngine) -> None:
    engine.on_problem("What is 3 + 3?", "Answer: 6 \n")  # text only, with white space behind it
    three = Problem("three", "What is 3 + 3?", expected="6")
    run(workspace, FOUR, three, judge=ExactVerifier())
    library = workspace.library
    ids = [deposit.id for deposit in library.list()]
    kept = [library.get(id).replay for id in ids]
    assert sorted(kept) == ["replays", "text_only"]
    before = engine.forwards.copy()
    seen = again(library, *ids)
    assert [(one.outcome, one.reason) for one in seen] == [("passed", "")] * 2
    assert engine.forwards == before  # no model was asked
    for id in ids:
        deposit = library.get(id)
        assert deposit.verified_at > deposit.created_at
        event = library.audit(id)[-1]
        assert (event.event, event.detail["outcome"]) == ("reverify", "passed")
    assert library.check() == []
    # What was judged is all there is to it.
    assert library.get(ids[0]).grounds == Grounds("exact", three.case(), " \n")
    assert library.get(ids[1]).grounds == Grounds("exact", FOUR.case(), "", "4")


def test_the_verifier_sees_what_it_saw(library: Library, says: Any) -> None:
    seen: list[tuple[Case, str]] = []

    def judge(case: Case, trace: str) -> Verdict:
        seen.append((case, trace))
        return verdict()

    made = says(judge)
    case = Case(QUESTION, "4", {"n": [1]}, ("a", "b"))
    plain = deposited(library)
    restated = deposited(
        library, "other", grounds=Grounds("says", replace(case, problem="other"), "", "4 or so")
    )
    assert [one.outcome for one in again(library, plain.id, restated.id)] == ["passed"] * 2
    other = replace(case, problem="other")
    assert seen == [(case, SOLUTION + " \n"), (other, SOLUTION), (other, "Final Answer: 4 or so")]
    assert made.closed == 1


def test_a_newer_version_judges_and_it_is_written_down(library: Library, says: Any) -> None:
    says(lambda case, trace: verdict())
    deposit = deposited(library)
    (one,) = again(library, deposit.id)
    assert (one.outcome, one.deposited_version, one.version) == ("passed", "1", "2")
    detail = library.audit(deposit.id)[-1].detail
    assert (detail["version"], detail["deposited_version"]) == ("2", "1")
    assert library.get(deposit.id).verdict == deposit.verdict  # content never changes


def test_consensus_is_reached_again_without_the_restated_voice(
    workspace: Workspace, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    five = "I think it is\nAnswer: 5"
    engine.on_problem(QUESTION, SOLUTION, "So\nAnswer: 4.0", five, "hm.\nAnswer: 4", "Answer: 04")
    engine.on(SOLUTION + CUES[0], " 4\n")
    monkeypatch.setattr(
        module, "make_verifier", lambda spec: consensus.make(spec.partition(":")[2])
    )
    judge = consensus.ConsensusVerifier(0.5, 5)
    (outcome,) = run(workspace, replace(FOUR, expected=None), judge=judge, effort=Effort(5, 100))
    deposit = workspace.library.get(outcome.deposit_id or "")
    assert (deposit.replay, deposit.verdict.grade) == ("replays", "agreed")
    assert deposit.grounds is not None
    assert len(deposit.grounds.case.peers) == 4
    assert deposit.grounds.restated == "4"
    (one,) = again(workspace.library, deposit.id)
    assert (one.outcome, one.reason) == ("passed", "")
    # With one vote less there is no majority, whatever the model restated.
    fewer = replace(deposit.grounds.case, peers=(five, *deposit.grounds.case.peers[:1], five, five))
    grounds = replace(deposit.grounds, case=fewer)
    disputed = workspace.library.deposit(like(deposit, grounds=grounds, fingerprint="other"))
    (one,) = again(workspace.library, disputed.id)
    assert one.outcome == "failed"


# --- what fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (verdict(False, evidence={"gold": "5"}), "does not pass: {'gold': '5'}"),
        (verdict(False, None, grade="none", evidence={"reason": "no answer"}), "no answer"),
        (verdict(answer="5"), "another answer: 5"),
        (verdict(answer=None), "another answer: None"),
        (verdict(grade="agreed"), "the grade is agreed only"),
    ],
)
def test_what_does_not_pass_is_told_and_stays(
    library: Library, says: Any, now: Verdict, words: str
) -> None:
    says(lambda case, trace: now)
    deposit = deposited(library)
    (one,) = again(library, deposit.id)
    assert (one.outcome, one.version, one.revoked) == ("failed", "2", ())
    assert words in one.reason
    assert library.get(deposit.id) == deposit
    assert library.is_active(deposit.id)
    assert library.audit(deposit.id)[-1].detail["reason"] == one.reason
    assert list(library.due(tenant="public")) == [deposit.id]


@pytest.mark.parametrize("bad", [verdict(False), verdict(answer="5"), verdict(grade="agreed")])
def test_the_restated_answer_has_to_pass_too(library: Library, says: Any, bad: Verdict) -> None:
    says(lambda case, trace: bad if trace.startswith("Final Answer: ") else verdict(answer="4.0"))
    deposit = deposited(library, grounds=Grounds("says", Case(QUESTION), "", "4"))
    (one,) = again(library, deposit.id)
    assert one.outcome == "failed"
    assert one.reason.startswith("the restated answer")
    says(lambda case, trace: verdict(grade="proved" if trace[:5] == "Final" else "agreed"))
    (one,) = again(library, deposit.id)
    assert "agreed only" in one.reason  # of the solution, whatever is thought of the answer
    says(lambda case, trace: verdict(answer="4" if trace.startswith("Final Answer: ") else "4.0"))
    (one,) = again(library, deposit.id)
    assert one.outcome == "passed"


def test_where_attempts_are_compared_the_restated_answer_is_the_solutions(
    library: Library, says: Any
) -> None:
    seen: list[str] = []

    def judge(case: Case, trace: str) -> Verdict:
        seen.append(trace)
        return verdict(answer="4.0")

    says(judge, needs=frozenset({"peers"}))
    same = deposited(library, grounds=Grounds("says", Case(QUESTION), "", "4"))
    case = Case("other")
    other = deposited(library, "other", grounds=Grounds("says", case, "", "5"))
    none = deposited(library, "none", grounds=Grounds("says", Case("none"), "", "."))
    outcomes = [one.outcome for one in again(library, same.id, other.id, none.id)]
    assert outcomes == ["passed", "failed", "failed"]
    assert seen == [SOLUTION] * 3


def test_what_fails_is_revoked_on_demand_with_what_rests_on_it(library: Library, says: Any) -> None:
    says(lambda case, trace: verdict(case.problem != QUESTION, evidence={"x": "y" * 5_000}))
    bad, good = deposited(library), deposited(library, "fine")
    follow_up = replace(SPACE.identity("why?"), parent=bad.id)
    child = deposited(library, "why?", identity=follow_up)
    seen = again(library, bad.id, good.id, child.id, revoke_failed=True)
    assert [one.outcome for one in seen] == ["failed", "passed", "not_judged"]
    assert seen[0].revoked == (bad.id, child.id)
    assert seen[2].reason == "it is revoked"
    assert (library.get(bad.id).revoke_reason or "").startswith("verified again with says 2: ")
    assert [one.id for one in library.list(status="active")] == [good.id]


# --- what cannot be judged ------------------------------------------------------------------------


def crash(case: Case, trace: str) -> Verdict:
    raise ZeroDivisionError("of a plug-in")


def lacking(case: Case, trace: str) -> Verdict:
    raise VerifierError("it needs `tests`")


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        (crash, "crashed: ZeroDivisionError: of a plug-in"),
        (lacking, "it needs `tests`"),
        (
            lambda case, trace: verdict(False, None, grade="none", evidence={"failure": "late"}),
            "the verifier failed: late",
        ),
    ],
)
def test_no_verdict_says_nothing(library: Library, says: Any, judge: Any, words: str) -> None:
    says(judge)
    deposit = deposited(library)
    for _ in range(3):
        (one,) = again(library, deposit.id, revoke_failed=True)
        assert one.outcome == "not_judged"
        assert words in one.reason
    assert library.get(deposit.id) == deposit
    assert [event.event for event in library.audit()] == ["deposit", "reverify"]  # once
    assert list(library.due(tenant="public")) == [deposit.id]


def test_a_verifier_that_is_not_there_says_nothing(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = deposited(library, "old", grounds=None)
    gone = deposited(library, "gone", grounds=Grounds("nowhere:x", Case("gone")))
    spec = f"command:{sys.executable} -c pass"
    command = deposited(library, "command", grounds=Grounds(spec, Case("command")))
    inside = deposited(library, "all", grounds=Grounds(f"all(exact, {spec})", Case("all")))
    seen = again(library, old.id, gone.id, command.id, inside.id)
    assert [one.outcome for one in seen] == ["not_judged"] * 4
    for one, words in zip(
        seen, ("not kept", "no verifier", "runs a program", "runs a program"), strict=True
    ):
        assert words in one.reason
        assert one.version is None

    def missing(spec: str) -> Verifier:
        raise MissingExtra("math-verify is not installed")

    monkeypatch.setattr(module, "make_verifier", missing)
    math = deposited(library, "math", grounds=Grounds("math", Case("math")))
    assert again(library, math.id)[0].outcome == "not_judged"
    assert library.count() == 5


def test_a_program_runs_only_where_it_is_named(library: Library, tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    script = tmp_path / "check.py"
    script.write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()")
    spec = f"command:{sys.executable} {script}"
    deposit = deposited(library, grounds=Grounds(spec, Case(QUESTION)))
    assert again(library, deposit.id)[0].outcome == "not_judged"
    assert not mark.exists()
    with Verifiers([spec]) as verifiers:
        (one,) = reverify(library, [deposit.id], verifiers)
    assert (one.outcome, one.reason) == ("passed", "")
    assert mark.exists()


def test_a_damaged_record_does_not_stop_the_others(library: Library, says: Any) -> None:
    says(lambda case, trace: verdict())
    bad, good = deposited(library), deposited(library, "fine")
    connection = sqlite3.connect(library.path, isolation_level=None)
    connection.execute("UPDATE deposits SET answer = '5' WHERE id = ?", (bad.id,))
    connection.close()
    seen = again(library, *library.due(tenant="public"), revoke_failed=True)
    assert [one.outcome for one in seen] == ["not_judged", "passed"]
    assert "damaged" in seen[0].reason
    assert library.count() == 2
    with pytest.raises(RecordNotFound):
        again(library, "nobody")
    assert good.id == seen[1].id


def test_it_goes_on_where_it_was_stopped(library: Library, says: Any) -> None:
    calls: list[str] = []

    def judge(case: Case, trace: str) -> Verdict:
        calls.append(case.problem)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return verdict()

    made = says(judge)
    with library.batch():
        ids = [deposited(library, str(n)).id for n in range(5)]
    library._connection.execute("UPDATE deposits SET verified_at = '2020-01-01'")
    with pytest.raises(KeyboardInterrupt):
        again(library, *library.due(30, tenant="public"))
    assert made.closed == 1
    assert list(library.due(30, tenant="public")) == ids[2:]
    again(library, *library.due(30, tenant="public"))
    assert calls == ["0", "1", "2", "2", "3", "4"]
    assert library.count_due(30, tenant="public") == 0


def test_a_full_disk_ends_it(library: Library, says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    says(lambda case, trace: verdict())
    deposit = deposited(library)

    def full(*given: object) -> None:
        raise StoreFull("no space left")

    monkeypatch.setattr(Library, "_log", full)
    with pytest.raises(StoreFull):
        again(library, deposit.id)
    assert library.get(deposit.id) == deposit  # not verified without a word about it
