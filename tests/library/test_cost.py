"""What solving and asking took: CPU seconds, joules and model FLOPs, or that they are unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgraft.energy import EnergyMeter
from kvgraft.flops import forward_flops
from kvgraft.library.ask import ask
from kvgraft.library.problem import Problem
from kvgraft.library.workspace import Workspace
from kvgraft.meter import Cost
from kvgraft.prompt import CUES, problem_prompt
from library.scripted import FOUR, QUESTION, SOLUTION, Judge, ScriptedEngine, run
from powercap import Powercap, hide_zeus


class Draw(Powercap):
    """A machine that uses a joule whenever the model's answer is judged or chosen."""

    joules = 0

    def one(self, *_: Any) -> None:
        self.joules += 1
        self.write(self.joules * 1_000_000)


@pytest.fixture
def draw(tmp_path: Path) -> Draw:
    return Draw(tmp_path / "powercap")


@pytest.fixture
def metered(workspace: Workspace, draw: Draw, monkeypatch) -> Workspace:
    hide_zeus(monkeypatch)
    return replace(workspace, meter=EnergyMeter(root=draw.root))


def flops(engine: ScriptedEngine, start: int, tokens: int, rows: int) -> int:
    found = forward_flops(
        engine.model_size, engine.spec, tokens=tokens, context_tokens=start, logit_rows=rows
    )
    assert found is not None
    return found


def test_solving_is_metered_until_the_answer_is_judged(
    metered: Workspace, draw: Draw, engine: ScriptedEngine
) -> None:
    judge = Judge(before=draw.one)
    (outcome,) = run(metered, judge=judge)
    cost = outcome.cost
    # Two lanes were judged; judging goes on while the deposit is made, after that.
    assert (cost.joules, cost.joules_from) == (2.0, "rapl")
    assert draw.joules >= 2
    assert cost.cpu_seconds is not None
    assert cost.cpu_seconds > 0
    prompt = len(problem_prompt(engine.tokenizer, QUESTION, None).ids)
    first, second = (len(text) + 1 for text in judge.seen[:2])
    assert cost.model_flops == flops(engine, 0, prompt, 0) + sum(
        flops(engine, prompt, rows - 1, rows) for rows in (first, second, second)
    )
    (deposit,) = metered.library.list()
    assert {name: deposit.cost[name] for name in cost.as_dict()} == cost.as_dict()


def test_a_replay_is_metered_and_took_less(
    metered: Workspace, draw: Draw, engine: ScriptedEngine, monkeypatch
) -> None:
    (solved,) = run(metered)
    step = ScriptedEngine.next_token

    def next_token(self: ScriptedEngine, *words: Any) -> int:
        draw.one()
        return step(self, *words)

    monkeypatch.setattr(ScriptedEngine, "next_token", next_token)
    answer = ask(metered, FOUR)
    assert (answer.how, answer.cost.decode_tokens) == ("replayed", 3)
    assert (answer.cost.joules, answer.cost.joules_from) == (3.0, "rapl")
    start = answer.cost.reused_tokens
    assert answer.cost.model_flops == flops(engine, start, 2, 3)
    assert solved.cost.model_flops is not None
    assert answer.cost.model_flops < solved.cost.model_flops / 10


def test_a_replay_that_was_not_returned_counts_as_well(
    metered: Workspace, engine: ScriptedEngine
) -> None:
    run(metered)
    engine.on(SOLUTION + CUES[0], " 5\n")
    answer = ask(metered, FOUR)
    assert answer.how == "fresh"
    (deposit,) = metered.library.list()
    prompt = len(problem_prompt(engine.tokenizer, QUESTION, None).ids)
    replayed = flops(engine, len(deposit.token_ids), 2, 3)
    reused = 16  # its full block
    own = flops(engine, reused, prompt - reused, 0) + flops(engine, prompt, 10, 11)
    assert answer.cost.model_flops == replayed + own


def test_a_fresh_attempt_is_counted(metered: Workspace, engine: ScriptedEngine) -> None:
    question = "Something else?"
    engine.on_problem(question, "Answer: 22")
    cost = ask(metered, Problem("", question)).cost
    prompt = len(problem_prompt(engine.tokenizer, question, None).ids)
    assert (cost.prefill_tokens, cost.decode_tokens) == (prompt, 11)
    assert cost.model_flops == flops(engine, 0, prompt, 0) + flops(engine, prompt, 10, 11)


def test_what_was_known_computed_nothing(metered: Workspace, draw: Draw) -> None:
    run(metered)
    draw.one()
    (known,) = run(metered)
    assert known.state == "known"
    assert known.cost.model_flops == 0
    assert known.cost.joules is None  # the counter did not move: shorter than it can tell
    assert known.cost.cpu_seconds is not None


def test_what_an_earlier_run_ended_took_nothing_now(metered: Workspace) -> None:
    hard = Problem("hard", "What?", expected="no")
    (first,) = run(metered, hard)
    (second,) = run(metered, hard)
    assert first.state == second.state == "unsolved"
    assert first.cost.attempts > 0
    assert second.cost == Cost.nothing()


def test_without_a_meter_and_a_size_both_stay_unknown(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.model_size = None  # type: ignore[assignment]
    (outcome,) = run(workspace)
    answer = ask(workspace, FOUR)
    fresh = ask(workspace, Problem("", "Something else?"))
    for cost in (outcome.cost, answer.cost, fresh.cost):
        assert (cost.model_flops, cost.joules, cost.joules_from) == (None, None, None)
        assert cost.cpu_seconds is not None
    assert (answer.how, fresh.how) == ("replayed", "fresh")
