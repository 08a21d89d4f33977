"""Solving: what is tried, judged, kept, said, and taken up again, with a scripted model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvgraft import limits
from kvgraft.decode import Sampling
from kvgraft.errors import InputError, UsageError, VerifierError
from kvgraft.library.ask import ask
from kvgraft.library.budget import Budget
from kvgraft.library.problem import Problem
from kvgraft.library.solve import Effort, Outcome, run_key, solve_all
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.verify.command import CommandVerifier
from kvgraft.library.verify.exact import ExactVerifier
from kvgraft.library.workspace import Workspace
from kvgraft.prompt import CUES, problem_prompt
from library.scripted import (
    EFFORT,
    FOUR,
    QUESTION,
    SOLUTION,
    Judge,
    ScriptedEngine,
    opened,
    run,
    solving_engine,
    sound,
    states,
)

# --- a batch ----------------------------------------------------------------------------------


def test_the_first_pass_ends_the_batch(workspace: Workspace) -> None:
    judge = Judge()
    steps: list[tuple[str, int, int]] = []
    (outcome,) = run(
        workspace, judge=judge, on_step=lambda p, step, going: steps.append((p.id, step, going))
    )
    assert (outcome.state, outcome.answer, outcome.replays) == ("solved", "4", True)
    assert outcome.problem == FOUR
    # Lane 0 ended first and failed, lane 1 passed; lane 2 would have talked for 180 tokens.
    assert judge.seen[:2] == ["I think it is\nAnswer: 5", SOLUTION]
    first, second = (len(text) + 1 for text in judge.seen[:2])
    assert outcome.cost.decode_tokens == first + 2 * second
    assert outcome.cost.attempts == 3
    assert outcome.cost.joules is None
    assert steps[0] == ("four", 0, 3)
    assert steps[-1] == ("four", second - 2, 2)


def test_one_prompt_state_serves_all_lanes(workspace: Workspace, engine: ScriptedEngine) -> None:
    tokens = len(problem_prompt(engine.tokenizer, QUESTION, None).ids)
    engine.forwards.clear()
    (outcome,) = run(workspace)
    assert outcome.cost.prefill_tokens == tokens
    assert engine.forwards[:3] == [16, 4, 1]  # a block and a padded tail, then the lanes' rows


def test_the_state_of_an_earlier_prompt_is_reused(workspace: Workspace) -> None:
    run(workspace)
    (second,) = run(workspace, Problem("longer", f"{QUESTION} And 3 + 3?", expected="6"))
    assert (second.state, second.cost.reused_tokens) == ("unsolved", 16)


def test_what_was_kept_says_what_it_took(workspace: Workspace) -> None:
    (outcome,) = run(workspace)
    deposit = workspace.library.get(outcome.deposit_id or "")
    assert (deposit.problem, deposit.trace, deposit.cue) == (QUESTION, SOLUTION, CUES[0])
    rungs = [rung.as_dict() for rung in outcome.rungs]
    assert deposit.cost == {**outcome.cost.as_dict(), "rungs": rungs}
    assert [rung["rung"] for rung in rungs] == ["sample:3"]
    assert (deposit.model, deposit.fingerprint) == (
        workspace.engine.model,
        workspace.engine.fingerprint.hex,
    )
    assert (deposit.verdict.verifier, deposit.verdict.grade) == ("judge", "proved")
    assert deposit.verdict.evidence["solution"]["gold"] == "4"
    assert sound(workspace)


def test_an_effort_that_is_none_is_refused() -> None:
    for attempts, tokens in ((0, 10), (limits.MAX_ATTEMPTS + 1, 10), (1, 0)):
        with pytest.raises(UsageError):
            Effort(attempts, tokens)
    with pytest.raises(UsageError):
        Effort(1, limits.MAX_NEW_TOKENS + 1)


# --- what is never kept -----------------------------------------------------------------------


def test_a_generation_that_was_cut_off_is_never_kept(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    right_but_endless = "Answer: 4" + "\n" * 200
    engine.on_problem(QUESTION, right_but_endless)
    judge = Judge()
    (outcome,) = run(workspace, judge=judge)
    assert (outcome.state, outcome.deposit_id, outcome.answer) == ("unsolved", None, None)
    assert judge.seen == []  # it is not even looked at, whatever it says
    assert ExactVerifier().verify(Case("", "4"), right_but_endless[:100]).passed
    assert workspace.library.count(status=None) == 0
    assert outcome.cost.decode_tokens == 3 * 101


def test_nothing_is_kept_that_the_verifier_did_not_pass(workspace: Workspace) -> None:
    (outcome,) = run(workspace, replace(FOUR, expected="5000"))
    assert outcome.state == "unsolved"
    assert workspace.library.count(status=None) == 0


def test_a_pass_without_an_answer_is_not_kept(workspace: Workspace) -> None:
    class Blind(Judge):
        def verify(self, case: Case, trace: str) -> Verdict:
            return Verdict(True, "proved", None, "blind", "1", {})

    assert states(run(workspace, judge=Blind())) == ["unsolved"]


def test_a_verifier_that_crashes_fails_the_trace_and_not_the_batch(
    workspace: Workspace, tmp_path: Path
) -> None:
    script = tmp_path / "judge.sh"
    # Killed on the first trace; afterwards it judges.
    script.write_text('#!/bin/sh\ngrep -q "Answer: 5" && kill -9 $$\nexit 0\n')
    script.chmod(0o755)
    (outcome,) = run(workspace, judge=CommandVerifier([str(script)]))
    assert (outcome.state, outcome.answer) == ("solved", "4")
    assert workspace.library.get(outcome.deposit_id or "").trace == SOLUTION


def test_a_verifier_that_always_crashes_passes_nothing(workspace: Workspace) -> None:
    judge = CommandVerifier(["sh", "-c", "kill -9 $$"])
    assert states(run(workspace, judge=judge)) == ["unsolved"]
    assert workspace.library.count(status=None) == 0


def test_a_verifier_that_needs_an_answer_ends_the_run(workspace: Workspace) -> None:
    with pytest.raises(VerifierError, match="needs `expected`"):
        run(workspace, replace(FOUR, expected=None))
    assert workspace.library.count(status=None) == 0


def test_an_empty_problem_is_refused(workspace: Workspace) -> None:
    with pytest.raises(InputError, match="empty"):
        run(workspace, Problem("1", ""))


def test_a_problem_that_has_no_room_is_set_aside(workspace: Workspace) -> None:
    long = Problem("long", "x" * 1990, expected="4")
    outcomes = run(workspace, long, FOUR)
    assert states(outcomes) == ["no_room", "solved"]
    assert "2048" in outcomes[0].detail
    assert outcomes[0].cost.attempts == 0
    again = run(workspace, long)
    assert (states(again), again[0].detail) == (
        ["no_room"],
        "an earlier run with the same effort ended so",
    )
    # With fewer tokens to say it in there is room.
    assert states(run(workspace, long, effort=Effort(1, 8))) == ["unsolved"]


# --- going on ---------------------------------------------------------------------------------


def test_what_is_known_is_not_solved_again(workspace: Workspace, engine: ScriptedEngine) -> None:
    (solved,) = run(workspace)
    engine.forwards.clear()
    (known,) = run(workspace)
    assert (known.state, known.deposit_id, known.answer, known.replays) == (
        "known",
        solved.deposit_id,
        "4",
        True,
    )
    assert engine.forwards == []
    assert known.cost.decode_tokens == 0


def test_the_unsolved_is_not_tried_again_with_the_same_effort(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.on_problem(QUESTION, "no idea")
    assert states(run(workspace)) == ["unsolved"]
    engine.forwards.clear()
    (again,) = run(workspace)
    assert (again.state, again.detail) == (
        "unsolved",
        "an earlier run with the same effort ended so",
    )
    assert engine.forwards == []
    for effort in (Effort(4, 100), Effort(3, 101), Effort(3, 100, Sampling(seed=1))):
        assert states(run(workspace, effort=effort)) == ["unsolved"]
        assert engine.forwards != []
        engine.forwards.clear()


def test_what_another_effort_solved_is_known_to_the_one_that_failed(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    short = Effort(3, 5)
    assert states(run(workspace, effort=short)) == ["unsolved"]
    assert states(run(workspace)) == ["solved"]
    assert states(run(workspace, effort=short)) == ["known"]


def test_with_another_key_or_verifier_it_is_tried_again(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    misprint = replace(FOUR, expected="44")
    assert states(run(workspace, misprint)) == ["unsolved"]
    engine.forwards.clear()
    assert states(run(workspace, misprint, judge=Judge(version="2"))) == ["unsolved"]
    assert engine.forwards != []
    assert states(run(workspace, FOUR)) == ["solved"]


def test_a_run_is_named_by_all_that_changes_its_end(workspace: Workspace) -> None:
    names = {
        run_key(workspace, Judge(), EFFORT),
        run_key(replace(workspace, tenant="other"), Judge(), EFFORT),
        run_key(replace(workspace, engine=solving_engine(1)), Judge(), EFFORT),
        run_key(workspace, Judge(name="other"), EFFORT),
        run_key(workspace, Judge(version="2"), EFFORT),
        run_key(workspace, Judge(), Effort(3, 101)),
        run_key(workspace, Judge(), Effort(4, 100)),
        run_key(workspace, Judge(), Effort(3, 100, Sampling(seed=1))),
        run_key(workspace, Judge(), Effort(3, 100, rungs="greedy + sample")),
        run_key(workspace, Judge(), Effort(3, 100, rungs="larger:a + sample")),
        run_key(workspace, Judge(), Effort(3, 100, rungs="larger:b + sample")),
        run_key(workspace, Judge(), Effort(3, 100, budget=Budget(tokens=1))),
        run_key(workspace, Judge(), Effort(3, 100, budget=Budget(seconds=1))),
    }
    assert len(names) == 13
    # However it is written, it is the same effort.
    same = Effort(8, 100, rungs="sample:3")
    assert run_key(workspace, Judge(), same) == run_key(workspace, Judge(), EFFORT)


def test_ctrl_c_leaves_no_trace_and_the_next_run_goes_on(tmp_path: Path) -> None:
    engine = solving_engine()
    other = Problem("six", "What is 3 + 3?", expected="6")
    engine.on_problem(other.text, "Answer: 6")
    engine.on("Answer: 6" + CUES[0], " 6\n")

    def interrupt(trace: str) -> None:
        if trace == SOLUTION:
            raise KeyboardInterrupt

    with opened(tmp_path, engine) as workspace:
        outcomes: list[Outcome] = []
        with pytest.raises(KeyboardInterrupt):
            outcomes.extend(solve_all(workspace, [other, FOUR], Judge(before=interrupt), EFFORT))
        assert states(outcomes) == ["solved"]
        assert workspace.library.count(status=None) == 1
        assert sound(workspace)
    assert not list((tmp_path / "tmp").iterdir())
    with opened(tmp_path, engine) as workspace:
        judge = Judge()
        assert states(run(workspace, other, FOUR, judge=judge)) == ["known", "solved"]
        assert not any("6" in trace for trace in judge.seen)
        assert ask(workspace, FOUR).how == "replayed"
        assert sound(workspace)


def test_ctrl_c_while_a_deposit_is_made_leaves_none(workspace: Workspace) -> None:
    def interrupt(trace: str) -> None:
        if trace == "Final Answer: 4":  # the model has restated it; nothing is written yet
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(workspace, judge=Judge(before=interrupt))
    assert workspace.library.count(status=None) == 0
    assert sound(workspace)
    assert states(run(workspace)) == ["solved"]
