"""Climbing: which rungs are tried, what each is asked, who judges, and what is told to whom."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kvgraft.decode import Sampling
from kvgraft.engines.toy import ToyEngine
from kvgraft.errors import EndpointError, InputError, UnknownModel, UsageError
from kvgraft.library import attempts
from kvgraft.library.ask import ask
from kvgraft.library.budget import Budget
from kvgraft.library.climb import Origin, Tried, answer_of, confidence
from kvgraft.library.feedback import CUT_OFF, DISAGREES, NOT_CHECKED, WRONG
from kvgraft.library.ladder import Effort, Rung
from kvgraft.library.problem import Problem
from kvgraft.library.solve import Outcome
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.workspace import Workspace
from kvgraft.prompt import CUES, Prompt, problem_prompt
from library.completions import completion, refusal, serving
from library.scripted import (
    FOUR,
    QUESTION,
    SOLUTION,
    Judge,
    ScriptedEngine,
    opened,
    run,
    sound,
    states,
)

TOKENS = 40


def effort(rungs: str, **options: Any) -> Effort:
    return Effort(3, TOKENS, rungs=rungs, **options)


@pytest.fixture
def engine() -> ScriptedEngine:
    """Wrong whatever it is asked, until a test says more."""
    engine = ScriptedEngine()
    engine.on_problem(QUESTION, "Answer: 5", "Answer: 6", "Answer: 5", alone="Answer: 7")
    engine.on(SOLUTION + CUES[0], " 4\n")
    return engine


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every prompt that attempts are made at, as text."""
    seen: list[str] = []
    real = attempts.messages_prompt

    def messages_prompt(tokenizer: Any, messages: Any) -> Prompt:
        prompt = real(tokenizer, messages)
        seen.append(prompt.text)
        return prompt

    monkeypatch.setattr(attempts, "messages_prompt", messages_prompt)
    return seen


def correction(attempt: str, said: str) -> str:
    return f"<bos><user>{QUESTION}<eos><assistant>{attempt}<eos><user>{said}<eos><assistant>"


def rungs(outcome: Outcome) -> list[tuple[str, bool, int]]:
    return [(one.rung, one.passed, one.cost.attempts) for one in outcome.rungs]


# --- rung by rung -----------------------------------------------------------------------------


def test_what_passes_ends_the_climb(workspace: Workspace, engine: ScriptedEngine) -> None:
    engine.on_problem(QUESTION, "Answer: 5", alone=SOLUTION)
    climbed: list[tuple[str, int, Rung]] = []
    (outcome,) = run(
        workspace,
        effort=effort("greedy + sample"),
        on_rung=lambda problem, number, rung: climbed.append((problem.id, number, rung)),
    )
    assert (outcome.state, rungs(outcome)) == ("solved", [("greedy", True, 1)])
    assert climbed == [("four", 0, Rung("greedy"))]
    assert outcome.cost.decode_tokens == len(SOLUTION) + 1
    assert outcome.rungs[0].confidence == 1.0


def test_a_rung_that_fails_is_followed_by_the_next(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.on_problem(QUESTION, "Answer: 5", SOLUTION, "hm " * 60, alone="Answer: 7")
    judge = Judge()
    (outcome,) = run(workspace, judge=judge, effort=effort("greedy + sample"))
    assert (outcome.state, outcome.answer) == ("solved", "4")
    assert rungs(outcome) == [("greedy", False, 1), ("sample:3", True, 3)]
    assert judge.seen[:3] == ["Answer: 7", "Answer: 5", SOLUTION]
    # The prompt was computed once, and grafted after that.
    tokens = len(problem_prompt(engine.tokenizer, QUESTION, None).ids)
    spent = [(one.cost.prefill_tokens, one.cost.reused_tokens) for one in outcome.rungs]
    assert spent == [(tokens, 0), (0, tokens)]
    # All that was tried, and what it took, goes with the deposit.
    deposit = workspace.library.get(outcome.deposit_id or "")
    assert deposit.cost["rungs"] == [one.as_dict() for one in outcome.rungs]
    assert outcome.cost == outcome.rungs[0].cost + outcome.rungs[1].cost
    assert sound(workspace)


def test_where_all_fail_it_stays_unsolved(workspace: Workspace) -> None:
    (outcome,) = run(workspace, effort=effort("greedy + sample + correct:2 + sample:2"))
    assert (outcome.state, outcome.detail, outcome.deposit_id) == ("unsolved", "", None)
    assert rungs(outcome) == [
        ("greedy", False, 1),
        ("sample:3", False, 3),
        ("correct:2", False, 2),
        ("sample:2", False, 2),
    ]
    assert [one.confidence for one in outcome.rungs] == [1.0, 2 / 3, None, 1 / 2]
    assert outcome.cost.attempts == 8
    assert workspace.library.count(status=None) == 0


def test_rungs_rounds_and_problems_draw_otherwise_and_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    seeds: list[int] = []
    real = attempts.attempt

    def attempt(*words: Any, **options: Any) -> attempts.Batch:
        batch = real(*words, **options)
        seeds.append(words[4].seed)
        said.extend(one.text for one in batch.attempts)
        return batch

    monkeypatch.setattr(attempts, "attempt", attempt)

    def texts(folder: str, *problems: Problem, seed: int = 0) -> list[str]:
        said.clear()
        with opened(tmp_path / folder, ToyEngine(4)) as workspace:
            hard = Effort(4, 20, Sampling(2.0, 1.0, seed), "sample + sample + correct:2x4")
            run(workspace, *problems, effort=hard)
        return list(said)

    other = replace(FOUR, id="other", text="What is 3 + 1?")
    first = texts("a", FOUR, other)
    assert len(set(first)) == len(first) == 2 * 16
    assert len(set(seeds)) == len(seeds) == 2 * 4
    assert texts("b", FOUR, other) == first
    # Neither other problems nor their order change anything.
    assert texts("c", other, FOUR) == first[16:] + first[:16]
    assert not set(texts("d", FOUR, other, seed=1)) & set(first)


# --- correction -------------------------------------------------------------------------------


def test_a_failed_attempt_goes_back_with_what_was_wrong(
    workspace: Workspace, engine: ScriptedEngine, asked: list[str]
) -> None:
    engine.on(f"{WRONG}<eos><assistant>", SOLUTION)
    (outcome,) = run(workspace, effort=effort("sample + correct:3"))
    assert rungs(outcome) == [("sample:3", False, 3), ("correct:3", True, 1)]
    # Of the answers 5, 6 and 5 it is the 5, and of those the last.
    assert asked == [f"<bos><user>{QUESTION}<eos><assistant>", correction("Answer: 5", WRONG)]
    # What is kept is a solution of the problem as it was posed, and replays from there.
    deposit = workspace.library.get(outcome.deposit_id or "")
    assert (deposit.trace, deposit.prompt) == (SOLUTION, asked[0])
    assert ask(workspace, FOUR).how == "replayed"


def test_every_round_corrects_what_the_round_before_said(
    workspace: Workspace, engine: ScriptedEngine, asked: list[str]
) -> None:
    engine.on(f"Answer: 7<eos><user>{WRONG}<eos><assistant>", "Answer: 8", "Answer: 9", "Answer: 9")
    engine.on(f"Answer: 9<eos><user>{WRONG}<eos><assistant>", "Answer: 10", SOLUTION)
    (outcome,) = run(workspace, effort=effort("greedy + correct:4x3"))
    assert rungs(outcome) == [("greedy", False, 1), ("correct:4x3", True, 6)]
    assert asked[1:] == [correction("Answer: 7", WRONG), correction("Answer: 9", WRONG)]


def test_only_the_last_rungs_attempts_are_chosen_from(
    workspace: Workspace, engine: ScriptedEngine, asked: list[str]
) -> None:
    engine.on_problem(QUESTION, "Answer: 6", "Answer: 8", "Answer: 7", alone="Answer: 6")
    run(workspace, effort=effort("greedy + sample + correct"))
    assert asked[2] == correction("Answer: 7", WRONG)


def test_an_attempt_that_was_cut_off_is_told_so(
    workspace: Workspace, engine: ScriptedEngine, asked: list[str]
) -> None:
    engine.on_problem(QUESTION, "Answer: 4 " * 20)
    engine.on(f"{CUT_OFF}<eos><assistant>", SOLUTION)
    (outcome,) = run(workspace, effort=effort("greedy + correct"))
    assert outcome.state == "solved"
    assert asked[1] == correction(("Answer: 4 " * 20)[:TOKENS], CUT_OFF)


def test_one_that_ended_is_corrected_before_one_that_was_cut_off(
    workspace: Workspace, engine: ScriptedEngine, asked: list[str]
) -> None:
    engine.on_problem(QUESTION, "no answer", "Answer: 7 " * 20, "Answer: 7 " * 20)
    run(workspace, effort=effort("sample + correct"))
    assert [text.count("no answer") for text in asked] == [0, 1]


def test_the_key_never_enters_a_prompt(
    workspace: Workspace, engine: ScriptedEngine, asked: list[str]
) -> None:
    problem = replace(
        FOUR,
        expected="8128",
        checks={"tests": [{"input": "1", "output": "1729"}], "hint": "perfectly"},
    )

    class Talks(Judge):
        """Says all it knows."""

        def verify(self, case: Case, trace: str) -> Verdict:
            verdict = super().verify(case, trace)
            words = f"The answer is {case.expected}, perfectly 1729."
            return replace(verdict, evidence={**verdict.evidence, "feedback": words})

    for judge in (Judge(), Talks(version="2")):
        run(workspace, problem, judge=judge, effort=effort("greedy + sample + correct:3x2"))
    assert len(asked) == 2 * 5
    assert not any(secret in text for text in asked for secret in ("8128", "1729", "perfectly"))


def test_there_may_be_nothing_to_correct(workspace: Workspace, engine: ScriptedEngine) -> None:
    """The first rung had no room; what it did not say cannot be corrected."""
    long = replace(FOUR, text="x" * 1980)
    (outcome,) = run(workspace, long, effort=Effort(3, 100, rungs="sample + correct:2"))
    assert outcome.state == "no_room"
    assert "nothing to correct" in outcome.detail


def test_a_correction_without_room_is_left_out(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    long = replace(FOUR, text="x" * 1980)
    engine.on_problem(long.text, "Answer: 5")
    (outcome,) = run(workspace, long, effort=effort("greedy + correct:2 + sample:2"))
    assert outcome.state == "unsolved"
    assert rungs(outcome) == [
        ("greedy", False, 1),
        ("correct:2", False, 0),
        ("sample:2", False, 2),
    ]
    assert outcome.rungs[1].detail.startswith("context_too_long: ")
    assert outcome.detail == f"correct:2: {outcome.rungs[1].detail}"


def test_a_template_that_takes_no_second_turn_leaves_corrections_out(
    workspace: Workspace, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine.tokenizer.render

    def render(messages: Any) -> str:
        if len(messages) > 1:
            raise InputError("the model's chat template refuses these messages")
        return real(messages)

    monkeypatch.setattr(engine.tokenizer, "render", render)
    (outcome,) = run(workspace, effort=effort("greedy + correct:2 + sample"))
    assert [one.cost.attempts for one in outcome.rungs] == [1, 0, 3]
    assert outcome.rungs[1].detail.startswith("bad_input: ")


def test_a_failed_attempts_state_is_not_kept(workspace: Workspace, engine: ScriptedEngine) -> None:
    run(workspace, effort=effort("greedy"))
    before = workspace.chunks.index.totals()
    (outcome,) = run(workspace, effort=effort("greedy + correct:3"))
    assert outcome.cost.attempts == 4
    assert workspace.chunks.index.totals() == before


# --- larger models ----------------------------------------------------------------------------


@dataclass
class Opener:
    """Opens larger models; `events` says when, and when they were closed."""

    says: str = SOLUTION
    events: list[str] = field(default_factory=list)

    def __call__(self, name: str) -> ScriptedEngine:
        self.events.append(f"open {name}")
        engine = ScriptedEngine(9)
        engine.on_problem(QUESTION, self.says)
        engine.on_problem("What is 3 + 1?", self.says)
        engine.close = lambda: self.events.append(f"close {name}")  # type: ignore[method-assign]
        return engine


def test_a_larger_models_solution_becomes_the_own_models(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    opener = Opener()
    (outcome,) = run(workspace, effort=effort("greedy + larger:big + sample"), open_larger=opener)
    assert rungs(outcome) == [("greedy", False, 1), ("larger:big", True, 1)]
    deposit = workspace.library.get(outcome.deposit_id or "")
    assert (deposit.trace, deposit.model) == (SOLUTION, engine.model)
    assert ask(workspace, FOUR).how == "replayed"
    assert opener.events == ["open big", "close big"]


def test_it_is_opened_once_and_only_where_it_is_needed(workspace: Workspace) -> None:
    opener, second = Opener("Answer: 9"), replace(FOUR, id="b", text="What is 3 + 1?")
    hard = effort("sample + larger:2:big")
    outcomes = run(workspace, FOUR, second, effort=hard, open_larger=opener)
    assert [rungs(one)[1] for one in outcomes] == [("larger:2:big", False, 2)] * 2
    assert opener.events == ["open big", "close big"]
    opener.events.clear()
    run(workspace, FOUR, second, effort=effort("greedy"), open_larger=opener)
    assert opener.events == []


def test_its_own_attempt_is_corrected_by_itself(workspace: Workspace) -> None:
    opener = Opener("Answer: 9")
    real = opener.__call__

    def open_larger(name: str) -> ScriptedEngine:
        engine = real(name)
        engine.on(f"Answer: 9<eos><user>{WRONG}<eos><assistant>", SOLUTION)
        return engine

    hard = effort("greedy + larger:big + correct")
    (outcome,) = run(workspace, effort=hard, open_larger=open_larger)
    assert rungs(outcome)[1:] == [("larger:big", False, 1), ("correct:1", True, 1)]


def test_one_that_cannot_be_opened_ends_the_run_and_what_was_climbed_stays(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    def fails(name: str) -> ToyEngine:
        raise UnknownModel("no such model", where=name)

    hard = effort("greedy + larger:big")
    with pytest.raises(UnknownModel):
        run(workspace, effort=hard, open_larger=fails)
    engine.forwards.clear()
    (outcome,) = run(workspace, effort=hard, open_larger=Opener())
    assert rungs(outcome) == [("greedy", False, 1), ("larger:big", True, 1)]
    assert outcome.cost.decode_tokens == len("Answer: 7") + 1 + len(SOLUTION) + 1


def test_a_model_behind_a_server_is_a_rung(workspace: Workspace) -> None:
    usage = {"prompt_tokens": 20, "completion_tokens": 50}
    with serving(completion("Answer: 9", SOLUTION, "Answer: 9", usage=usage)) as server:
        hard = effort(f"greedy + larger:3:{server.name}")
        (outcome,) = run(workspace, replace(FOUR, system="Be brief."), effort=hard)
        (body,) = server.bodies
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
    ]
    assert (outcome.state, outcome.answer) == ("solved", "4")
    last = outcome.rungs[-1]
    assert (last.cost.attempts, last.cost.decode_tokens, last.passed) == (3, 50, True)
    assert last.cost.prefill_tokens == 20
    # What it used there is not what was metered here.
    assert (last.cost.joules, last.cost.cpu_seconds, last.cost.model_flops) == (None, None, None)
    assert workspace.library.get(outcome.deposit_id or "").trace == SOLUTION


def test_a_servers_text_that_was_cut_off_is_never_kept(workspace: Workspace) -> None:
    cut = {"choices": [{"message": {"content": SOLUTION}, "finish_reason": "length"}]}
    from library.completions import reply

    with serving(reply(cut)) as server:
        judge = Judge()
        (outcome,) = run(workspace, judge=judge, effort=effort(f"greedy + larger:{server.name}"))
    assert (outcome.state, judge.seen) == ("unsolved", ["Answer: 7"])


def test_a_server_that_fails_ends_the_run_and_the_next_goes_on(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    with serving(refusal(401), completion(SOLUTION)) as server:
        hard = effort(f"sample + larger:{server.name}")
        with pytest.raises(EndpointError) as failed:
            run(workspace, effort=hard)
        assert failed.value.status == 401
        engine.forwards.clear()
        judge = Judge()
        (outcome,) = run(workspace, effort=hard, judge=judge)
    assert (outcome.state, len(outcome.rungs)) == ("solved", 2)
    assert judge.seen[0] == SOLUTION  # the samples were judged by the run before


# --- verifiers that compare attempts ----------------------------------------------------------


@dataclass
class Majority:
    """Passes an answer that over half of all attempts have; remembers what it was given."""

    seen: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    name: str = "majority"
    spec: str = "majority"
    version: str = "1"
    needs: frozenset[str] = frozenset({"peers"})

    def verify(self, case: Case, trace: str) -> Verdict:
        assert case.peers
        assert case.expected is None
        self.seen.append((trace, case.peers))
        texts = Counter(answer_of(heard(text)) for text in case.peers)
        own = answer_of(heard(trace))
        passed = own is not None and 2 * (texts[own] + 1) > len(case.peers) + 1
        return Verdict(passed, "agreed", own, self.name, self.version, {"agree": texts[own] + 1})

    def close(self) -> None:
        return


def heard(text: str) -> Tried:
    return Tried(text, True, False, Origin("", "sample:9", 0), 0, 0, True)


KEYLESS = replace(FOUR, expected=None)


def test_attempts_are_judged_together_once_all_are_made(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.on_problem(QUESTION, SOLUTION, "Answer: 5", "Answer: 4 " * 20, "2 + 2 is 4")
    engine.on(SOLUTION + CUES[0], " 4\n")
    judge = Majority()
    (outcome,) = run(workspace, KEYLESS, judge=judge, effort=effort("sample:4"))
    # Two of four are no majority: the one that was cut off counts, and has no answer.
    assert outcome.state == "unsolved"
    assert judge.seen == [
        (SOLUTION, ("Answer: 5", "", "2 + 2 is 4")),
        ("Answer: 5", (SOLUTION, "", "2 + 2 is 4")),
        ("2 + 2 is 4", (SOLUTION, "Answer: 5", "")),
    ]
    assert outcome.rungs[0].confidence == 2 / 4

    engine.on_problem(QUESTION, "Answer: 5", SOLUTION, "2 + 2 is 4", alone="Answer: 5")
    (outcome,) = run(workspace, KEYLESS, judge=Majority(), effort=effort("sample:3"))
    assert (outcome.state, outcome.answer) == ("solved", "4")
    assert outcome.rungs[0].confidence == 2 / 3
    deposit = workspace.library.get(outcome.deposit_id or "")
    assert (deposit.verdict.grade, deposit.trace) == ("agreed", SOLUTION)
    # Another verifier can be asked the same again, of the same attempts.
    assert deposit.grounds is not None
    assert deposit.grounds.case.peers == ("Answer: 5", "2 + 2 is 4")
    assert deposit.provenance["rung"] == "sample:3"


def test_where_there_is_nothing_to_compare_the_run_does_not_begin(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.forwards.clear()
    with pytest.raises(UsageError, match="compares attempts"):
        run(workspace, KEYLESS, judge=Majority(), effort=effort("greedy + correct:3x4"))
    assert engine.forwards == []


def test_a_lone_attempt_waits_for_company(workspace: Workspace, engine: ScriptedEngine) -> None:
    engine.on_problem(QUESTION, "Answer: 5", "Answer: 6", SOLUTION, alone="so it is 4")
    judge = Majority()
    (outcome,) = run(workspace, KEYLESS, judge=judge, effort=effort("greedy + sample:3"))
    assert outcome.state == "unsolved"
    assert judge.seen[0] == ("so it is 4", ("Answer: 5", "Answer: 6", SOLUTION))
    assert [trace for trace, _ in judge.seen[1:]] == ["Answer: 5", "Answer: 6", SOLUTION]
    assert all("so it is 4" in peers for _, peers in judge.seen[1:])
    # It may be the one that passes, and is then what the first rung said.
    engine.on_problem(QUESTION, "Answer: 5", SOLUTION, "2 + 2 is 4", alone="so it is 4")
    hard = effort("greedy + sample:3", sampling=Sampling(seed=1))
    (outcome,) = run(workspace, KEYLESS, judge=Majority(), effort=hard)
    deposit = workspace.library.get(outcome.deposit_id or "")
    assert (deposit.trace, deposit.provenance["rung"]) == ("so it is 4", "greedy")
    assert deposit.provenance["seed"] is None


def test_a_correction_has_its_first_attempts_place_and_no_voice(
    workspace: Workspace, engine: ScriptedEngine, asked: list[str]
) -> None:
    engine.on_problem(QUESTION, *(f"Answer: {n}" for n in (4, 5, 5, 6)), alone="Answer: 7")
    engine.on(f"{DISAGREES}<eos><assistant>", "now it is 4", "now it is 6")
    judge = Majority()
    (outcome,) = run(workspace, KEYLESS, judge=judge, effort=effort("sample:4 + correct:1x2"))
    assert asked[1] == correction("Answer: 5", DISAGREES)
    # Of the four, one was corrected; it was the third. The two corrections do not see each other.
    assert judge.seen[4:] == [
        ("now it is 4", ("Answer: 4", "Answer: 5", "Answer: 6")),
        ("now it is 6", ("Answer: 4", "Answer: 5", "Answer: 6")),
    ]
    assert outcome.state == "unsolved"  # two of four
    # Nor does another attempt see them.
    judge.seen.clear()
    run(workspace, KEYLESS, judge=judge, effort=effort("sample:4 + correct:1 + greedy"))
    assert judge.seen[-1] == ("Answer: 7", ("Answer: 4", "Answer: 5", "Answer: 5", "Answer: 6"))


def test_one_that_nobody_has_judged_is_told_so(workspace: Workspace, asked: list[str]) -> None:
    run(workspace, KEYLESS, judge=Majority(), effort=effort("greedy + correct + sample:4"))
    assert asked[1] == correction("Answer: 7", NOT_CHECKED)


def test_a_larger_models_attempts_are_compared_among_themselves(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.on_problem(QUESTION, "Answer: 5", "Answer: 6", "Answer: 7")
    judge, opener = Majority(), Opener()
    (outcome,) = run(
        workspace, KEYLESS, judge=judge, effort=effort("sample + larger:2:big"), open_larger=opener
    )
    assert judge.seen[3:4] == [(SOLUTION, (SOLUTION,))]
    # The own model's three wrong ones do not outvote it.
    assert (outcome.state, outcome.answer) == ("solved", "4")


def test_confidence_is_the_share_of_those_that_were_heard_out() -> None:
    def tried(*texts: str) -> list[Tried]:
        return [replace(heard(text), finished=bool(text), given_up=text == "?") for text in texts]

    assert confidence(tried("Answer: 4", "it is $4$", "Answer: 5", ""), "4") == 2 / 4
    assert confidence(tried("Answer: 4", "?", "Answer: 5"), "4.") == 1 / 2
    assert confidence(tried("Answer: 1", "Answer: 1", "well"), None) == 2 / 3
    assert confidence(tried("well", ""), None) is None
    assert confidence([], None) is None
    assert confidence(tried("?"), "4") is None


# --- budgets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ladder", ["greedy + sample:3 + correct:2", "sample:3 + sample:3"])
@pytest.mark.parametrize("tokens", [1, 20, 30, 45, 60, 100])
def test_a_budget_in_tokens_is_kept(workspace: Workspace, ladder: str, tokens: int) -> None:
    (outcome,) = run(workspace, effort=effort(ladder, budget=Budget(tokens=tokens)))
    cost = outcome.cost
    spent = (cost.prefill_tokens or 0) + (cost.decode_tokens or 0)
    # A prompt is computed in one piece, before anything can be said of it.
    longest = max(18, *(one.cost.prefill_tokens or 0 for one in outcome.rungs))
    assert spent < tokens + longest
    if outcome.detail:
        assert outcome.detail == outcome.rungs[-1].detail == "budget: tokens"
    else:
        assert spent > 60
    assert outcome.state == "unsolved"


def test_a_pass_within_the_budget_counts(workspace: Workspace, engine: ScriptedEngine) -> None:
    engine.on_problem(QUESTION, SOLUTION)
    budget = Budget(tokens=18 + len(SOLUTION) + 1)
    (outcome,) = run(workspace, effort=effort("greedy + sample", budget=budget))
    assert (outcome.state, outcome.rungs[0].detail) == ("solved", "")


def test_what_agrees_when_the_budget_ends_counts_and_the_rest_has_no_answer(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    for says, state in (
        (["so: 4", "it is 4", "5 " * 20], "solved"),
        (["so: 4", "5 " * 20], "unsolved"),
    ):
        engine.on_problem(QUESTION, *says)
        budget = Budget(tokens=18 + 8 * len(says) + 5)
        hard = effort(f"sample:{len(says)}", budget=budget)
        (outcome,) = run(workspace, KEYLESS, judge=Majority(), effort=hard)
        assert (outcome.state, outcome.rungs[0].detail) == (state, "budget: tokens")
        for deposit in workspace.library.list():
            workspace.library.revoke(deposit.id, "to try again")


def test_when_the_budget_ends_no_further_prompt_is_computed(
    workspace: Workspace, engine: ScriptedEngine, asked: list[str]
) -> None:
    (free,) = run(workspace, effort=effort("greedy + correct"))
    spent = (free.cost.prefill_tokens or 0) + len("Answer: 7") + 1
    asked.clear()
    written: list[str] = []
    real = workspace.library.run_put

    def run_put(*keys: str, **fields: Any) -> Any:
        written.append(fields["state"])
        return real(*keys, **fields)

    workspace.library.run_put = run_put  # type: ignore[method-assign]
    engine.on(f"{WRONG}<eos><assistant>", "no end " * 20)
    for more, rounds in ((0, 1), (3, 1), (200, 3)):
        hard = effort("greedy + correct:3 + sample", budget=Budget(tokens=spent + more))
        (outcome,) = run(workspace, effort=hard)
        assert len(asked) == 1 + rounds
        assert [one.detail for one in outcome.rungs] == ["", "budget: tokens"]
        # Of a rung that the budget ended nothing is written down that could be gone on from.
        assert written == ["climbing", "unsolved"]
        asked.clear()
        written.clear()


def test_seconds_end_a_climb_between_two_steps(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    class Clock:
        @property
        def seconds(self) -> float:
            return now[0]

    def step(problem: Problem, step: int, running: int) -> None:
        now[0] += 1.0

    monkeypatch.setattr("kvgraft.library.budget.Stopwatch", Clock)
    hard = effort("greedy + sample", budget=Budget(seconds=4.5))
    (outcome,) = run(workspace, effort=hard, on_step=step)
    assert (outcome.state, outcome.detail) == ("unsolved", "budget: seconds")
    assert rungs(outcome) == [("greedy", False, 1)]
    assert outcome.cost.decode_tokens == 5
    # The same effort is not spent on it again; more is.
    (again,) = run(workspace, effort=hard)
    assert again.detail == "an earlier run with the same effort ended so"
    more = replace(hard, budget=Budget(seconds=4000))
    assert len(run(workspace, effort=more)[0].rungs) == 2


def test_joules_without_a_meter_are_refused(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="needs a meter"):
        run(workspace, effort=effort("greedy", budget=Budget(joules=5)))


# --- going on ---------------------------------------------------------------------------------


def interrupted(workspace: Workspace, judge: Any, at: str, hard: Effort, problem: Problem) -> None:
    def stop(asked: Problem, number: int, rung: Rung) -> None:
        if rung.spec == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(workspace, problem, judge=judge, effort=hard, on_rung=stop)


def test_finished_rungs_are_not_done_again(workspace: Workspace, engine: ScriptedEngine) -> None:
    hard = effort("greedy + sample + correct:2")
    (whole,) = run(workspace, effort=replace(hard, max_new_tokens=TOKENS + 1))
    interrupted(workspace, Judge(), "correct:2", hard, FOUR)
    assert sound(workspace)
    engine.on(f"{WRONG}<eos><assistant>", SOLUTION)
    judge, climbed = Judge(), list[int]()
    (outcome,) = run(
        workspace,
        judge=judge,
        effort=hard,
        on_rung=lambda problem, number, rung: climbed.append(number),
    )
    assert climbed == [2]
    assert judge.seen[0] == SOLUTION
    assert rungs(outcome) == [*rungs(whole)[:2], ("correct:2", True, 1)]
    assert outcome.cost.attempts == 5
    deposit = workspace.library.get(outcome.deposit_id or "")
    assert [one["rung"] for one in deposit.cost["rungs"]] == ["greedy", "sample:3", "correct:2"]
    assert deposit.cost["attempts"] == 5


def test_attempts_of_a_run_that_was_interrupted_still_have_a_voice(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.on_problem(QUESTION, SOLUTION, "Answer: 5", "Answer: 4 " * 20, alone="so it is 4")
    hard = effort("sample + greedy")
    interrupted(workspace, Majority(), "greedy", hard, KEYLESS)
    judge = Majority()
    run(workspace, KEYLESS, judge=judge, effort=hard)
    assert judge.seen == [("so it is 4", (SOLUTION, "Answer: 5", ""))]


def test_what_was_spent_before_counts(workspace: Workspace) -> None:
    hard = effort("greedy + sample + sample:2", budget=Budget(tokens=18 + 10 + 30 + 3))
    interrupted(workspace, Judge(), "sample:2", hard, FOUR)
    (outcome,) = run(workspace, effort=hard)
    assert outcome.detail == "budget: tokens"
    assert [one.cost.decode_tokens for one in outcome.rungs] == [10, 30, 2]


def test_an_account_that_cannot_be_read_is_begun_anew(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    hard = effort("greedy + sample")
    real, written = workspace.library.run_put, list[tuple[tuple[str, str], dict[str, Any]]]()

    def run_put(*keys: str, **fields: Any) -> Any:
        written.append(((keys[0], keys[1]), fields))
        return real(*keys, **fields)

    workspace.library.run_put = run_put  # type: ignore[method-assign]
    interrupted(workspace, Judge(), "sample:3", hard, FOUR)
    ((keys, fields),) = written
    assert fields["state"] == "climbing"
    whole = fields["detail"]
    for broken in ({}, {"rungs": []}, {**whole, "tried": [{}]}, {**whole, "rungs": [1]}):
        real(*keys, **{**fields, "detail": broken})
        judge = Judge()
        (outcome,) = run(workspace, judge=judge, effort=hard)
        assert judge.seen[0] == "Answer: 7"
        assert len(outcome.rungs) == 2
    real(*keys, **fields)
    judge = Judge()
    run(workspace, judge=judge, effort=hard)
    assert judge.seen[0] == "Answer: 5"


def test_an_account_over_the_limit_is_not_kept_and_the_climb_goes_on(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    hard = effort("greedy + sample")
    monkeypatch.setattr("kvgraft.limits.MAX_LIBRARY_JSON_CHARS", 100)
    interrupted(workspace, Judge(), "sample:3", hard, FOUR)
    judge = Judge()
    monkeypatch.undo()
    assert states(run(workspace, judge=judge, effort=hard)) == ["unsolved"]
    assert judge.seen[0] in ("Answer: 7", "Answer: 5")
