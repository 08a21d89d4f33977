"""Transfer: related solutions as context. It helps, it is labelled, and it answers for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvgraft.engines.toy import RECURRENT, ToyShape
from kvgraft.errors import LimitExceeded, StoreError, UsageError, VerifierError
from kvgraft.library import transfer as module
from kvgraft.library.answer import Answer
from kvgraft.library.ask import ask
from kvgraft.library.problem import Problem
from kvgraft.library.related import related
from kvgraft.library.transfer import Transfer, context_of, made_with, worked
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.workspace import Workspace
from kvgraft.prompt import CUES, history_ids, problem_prompt
from library.scripted import (
    FOUR,
    QUESTION,
    SOLUTION,
    Judge,
    ScriptedEngine,
    opened,
    run,
    solving_engine,
    sound,
)

SEVEN = Problem("seven", "What is 3 + 4?", expected="7")
WORKED = "3 and 4 make 7.\nAnswer: 7"
COPIED = "2 and 2 make 4.\nAnswer: 4"
FIVE = Problem("five", "What is 4 + 1?", expected="5")
SOLVED_FIVE = "4 and 1 make 5.\nAnswer: 5"


def teach(engine: ScriptedEngine, *says: str, behind: str = "4", alone: str | None = None) -> None:
    """What is said to `SEVEN` when a solution that ends in `behind` stands before it."""
    cue = f"{CUES[0]} {behind}<eos><user>{SEVEN.text}<eos><assistant>"
    engine.on(cue, *says, alone=alone)


@pytest.fixture
def engine() -> ScriptedEngine:
    """Alone it does not know what 3 + 4 is; it does behind the solution of 2 + 2."""
    made = solving_engine()
    made.on_problem(SEVEN.text, "It is\nAnswer: 8")
    made.on_problem(FIVE.text, SOLVED_FIVE)
    made.on(SOLVED_FIVE + CUES[0], " 5\n")
    made.on(WORKED + CUES[0], " 7\n")
    teach(made, WORKED)
    return made


@pytest.fixture
def workspace(tmp_path: Path, engine: ScriptedEngine) -> Iterator[Workspace]:
    """With `FOUR` solved and deposited."""
    with opened(tmp_path / "store", engine) as made:
        (outcome,) = run(made)
        assert outcome.replays
        yield made


def kinds(answer: Answer) -> list[str]:
    return [reason.partition(":")[0] for reason in answer.reasons]


def four(workspace: Workspace) -> str:
    return workspace.library.list()[-1].id


# --- one solution per attempt ---------------------------------------------------------------------


def test_a_related_solution_makes_the_attempt_succeed(workspace: Workspace) -> None:
    alone = ask(workspace, SEVEN, verifier=Judge())
    assert (alone.how, alone.grade, alone.answer) == ("fresh", "none", "8")
    answer = ask(workspace, SEVEN, verifier=Judge(), transfer=Transfer())
    assert (answer.how, answer.grade, answer.answer) == ("transferred", "proved", "7")
    assert answer.context == (four(workspace),)
    assert (answer.deposit_id, answer.exact, answer.text) == (None, None, WORKED)
    assert kinds(answer) == ["no_deposit"]
    assert answer.provenance["verifier"] == "judge"
    assert answer.cost.attempts == 1
    assert answer.cost.seconds > 0
    assert workspace.library.count() == 1


def test_the_first_use_grafts_the_deposits_own_state_and_the_second_more(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    (deposit,) = workspace.library.list()
    first = ask(workspace, SEVEN, transfer=Transfer()).reuse
    assert first is not None
    assert first.reused_tokens == len(deposit.token_ids)
    assert first.reused_tokens % engine.form.block
    second = ask(workspace, FIVE, transfer=Transfer()).reuse
    assert second is not None
    # The answer and the turn's end as well: all but the problem and the beginning of an answer.
    own = len(problem_prompt(engine.tokenizer, FIVE.text, None).ids)
    assert second.tokens - second.reused_tokens <= own
    assert second.reused_tokens > first.reused_tokens


def test_the_second_use_begins_where_the_turns_before_it_end(tmp_path: Path) -> None:
    # A recurrent layer can go on only where its state was kept.
    engine = ScriptedEngine(shape=ToyShape(windows=(0, RECURRENT), rungs=()))
    for problem, solution, answer in ((FOUR, SOLUTION, "4"), (SEVEN, WORKED, "7")):
        engine.on_problem(problem.text, solution)
        engine.on(solution + CUES[0], f" {answer}\n")
    with opened(tmp_path, engine) as workspace:
        run(workspace)
        (deposit,) = workspace.library.list()
        turns = history_ids(engine.tokenizer, worked(engine.tokenizer, deposit))
        first, second = (
            ask(workspace, problem, transfer=Transfer()).reuse for problem in (SEVEN, FIVE)
        )
    assert first is not None
    assert second is not None
    reused = (first.reused_tokens, second.reused_tokens)
    assert reused == (len(deposit.token_ids), len(turns))


def test_the_context_changes_no_bit_of_the_attempt(workspace: Workspace, tmp_path: Path) -> None:
    grafted = ask(workspace, SEVEN, transfer=Transfer())
    again = ask(workspace, SEVEN, transfer=Transfer())
    for entry in list(workspace.chunks.index.all_entries()):
        workspace.chunks.index.remove(entry)
    cold = ask(workspace, SEVEN, transfer=Transfer())
    assert cold.reuse is not None
    assert cold.reuse.reused_tokens == 0
    assert grafted.logits_sha256 == again.logits_sha256 == cold.logits_sha256


def test_a_copied_answer_is_not_transferred(workspace: Workspace, engine: ScriptedEngine) -> None:
    """What readers of the published loop feared: a near miss in context, and its answer copied."""
    teach(engine, COPIED)
    answer = ask(workspace, SEVEN, verifier=Judge(), transfer=Transfer())
    assert (answer.how, answer.grade, answer.answer) == ("fresh", "none", "4")
    assert answer.context == (four(workspace),)
    kept = ask(workspace, SEVEN, verifier=Judge(), transfer=Transfer(), keep=True)
    assert (kept.how, kept.kept) == ("fresh", None)
    assert workspace.library.count() == 1


def test_without_a_verifier_it_is_fresh_and_says_what_was_in_context(workspace: Workspace) -> None:
    answer = ask(workspace, SEVEN, transfer=Transfer(solutions=3, attempts=5))
    assert (answer.how, answer.grade, answer.answer) == ("fresh", "none", "7")
    assert answer.context == (four(workspace),)
    assert answer.cost.attempts == 1


def test_an_attempt_that_was_cut_off_is_not_judged(workspace: Workspace) -> None:
    judge = Judge()
    answer = ask(
        workspace, SEVEN, verifier=judge, transfer=Transfer(), max_new_tokens=len(WORKED) - 1
    )
    assert (answer.how, answer.grade, answer.finished) == ("fresh", "none", False)
    assert judge.seen == []


def test_samples_follow_where_the_greedy_attempt_fails(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    teach(engine, "hm " * 30, WORKED, "no", alone="I copy.\nAnswer: 4")
    judge = Judge()
    answer = ask(workspace, SEVEN, verifier=judge, transfer=Transfer(attempts=4))
    assert (answer.how, answer.answer, answer.logits_sha256) == ("transferred", "7", None)
    assert judge.seen == ["I copy.\nAnswer: 4", "no", WORKED]
    assert answer.cost.attempts == 4
    # One plan for both, so the samples find all that the greedy attempt left, to the last cut.
    (deposit,) = workspace.library.list()
    turns = len(history_ids(engine.tokenizer, worked(engine.tokenizer, deposit)))
    assert answer.cost.reused_tokens >= len(deposit.token_ids) + turns
    # Nobody waited for lane 0, which would have gone on for 30 words.
    assert answer.cost.decode_tokens < 18 + 3 * (len(WORKED) + 1)
    assert sound(workspace)


def test_each_of_several_solutions_gets_an_attempt(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    run(workspace, FIVE)
    teach(engine, COPIED, behind="5")
    judge = Judge()
    answer = ask(workspace, SEVEN, verifier=judge, transfer=Transfer(solutions=2))
    assert judge.seen == [COPIED, WORKED]  # the newer solution was tried first
    assert (answer.how, answer.context) == ("transferred", (four(workspace),))
    assert answer.cost.attempts == 2
    one = ask(workspace, SEVEN, verifier=Judge(), transfer=Transfer(solutions=1))
    assert (one.how, len(one.context)) == ("fresh", 1)
    assert one.context != answer.context


# --- the library's page ---------------------------------------------------------------------------


def test_a_page_holds_all_solutions_in_the_order_of_their_ids(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    run(workspace, FIVE)
    five, old = workspace.library.list()
    page = Transfer("page", solutions=2)
    engine.on(
        f"{SOLUTION}{CUES[0]} 4<eos><user>{FIVE.text}<eos><assistant>{SOLVED_FIVE}{CUES[0]} 5<eos>"
        f"<user>{SEVEN.text}<eos><assistant>",
        WORKED,
    )
    answer = ask(workspace, SEVEN, verifier=Judge(), transfer=page)
    assert (answer.how, answer.context) == ("transferred", (old.id, five.id))
    again = ask(workspace, Problem("", "What is 8 + 8?"), transfer=page)
    assert again.context == answer.context
    # It begins with the same page, all of which is there now.
    assert answer.reuse is not None
    assert again.reuse is not None
    own = len(problem_prompt(engine.tokenizer, "What is 8 + 8?", None).ids)
    assert again.reuse.tokens - again.reuse.reused_tokens <= own
    assert again.reuse.reused_tokens > answer.reuse.reused_tokens


def test_a_page_that_does_not_fit_leaves_out_the_least_related(
    workspace: Workspace, tmp_path: Path
) -> None:
    run(workspace, FIVE)
    five, old = workspace.library.list()
    assert [one.deposit.id for one in related(workspace.library, "public", SEVEN.text)] == [
        five.id,
        old.id,
    ]
    small = ScriptedEngine(shape=ToyShape(context_tokens=200))
    page = Transfer("page", solutions=2)
    with opened(tmp_path / "store", small) as tight:
        answer = ask(tight, SEVEN, transfer=page, max_new_tokens=80)
        assert answer.context == (five.id,)
        assert kinds(answer) == ["no_deposit", "no_context"]
        bare = ask(tight, SEVEN, transfer=page, max_new_tokens=150)
        assert bare.context == ()
        assert kinds(bare) == ["no_deposit", "no_context", "no_context"]
        single = ask(tight, SEVEN, transfer=Transfer(), max_new_tokens=150)
        assert kinds(single) == ["no_deposit", "no_context", "no_context"]


# --- nothing to transfer --------------------------------------------------------------------------


def test_where_nothing_is_related_the_attempt_is_bare(workspace: Workspace) -> None:
    other = Problem("", "Name a green vegetable")
    answer = ask(workspace, other, transfer=Transfer())
    assert (answer.how, answer.context, kinds(answer)) == (
        "fresh",
        (),
        ["no_deposit", "no_related"],
    )


def test_a_revoked_solution_is_never_context(workspace: Workspace) -> None:
    ask(workspace, SEVEN, transfer=Transfer())
    workspace.library.revoke(four(workspace), "the key was wrong")
    answer = ask(workspace, SEVEN, verifier=Judge(), transfer=Transfer())
    assert (answer.how, answer.grade, answer.context) == ("fresh", "none", ())
    assert kinds(answer) == ["no_deposit", "no_related"]


def test_another_tenants_solution_is_never_context(
    workspace: Workspace, tmp_path: Path, engine: ScriptedEngine
) -> None:
    with opened(tmp_path / "store", engine, "B") as theirs:
        answer = ask(theirs, SEVEN, verifier=Judge(), transfer=Transfer())
    assert (answer.how, answer.context, kinds(answer)) == (
        "fresh",
        (),
        ["no_deposit", "no_related"],
    )


def test_an_index_that_cannot_be_used_is_a_reason_and_no_error(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise StoreError("no such module: fts5")

    monkeypatch.setattr(module, "related", broken)
    answer = ask(workspace, SEVEN, transfer=Transfer())
    assert answer.reasons[-1] == "no_related: no such module: fts5"


def test_the_exact_problem_is_replayed_and_not_transferred(workspace: Workspace) -> None:
    answer = ask(workspace, FOUR, verifier=Judge(), transfer=Transfer())
    assert (answer.how, answer.context) == ("replayed", ())


# --- keeping --------------------------------------------------------------------------------------


def test_a_kept_transfer_stands_alone_and_names_what_it_rested_on(workspace: Workspace) -> None:
    old = four(workspace)
    kept = ask(workspace, SEVEN, verifier=Judge(), transfer=Transfer(), keep=True)
    deposit = workspace.library.get(kept.kept or "")
    assert context_of(deposit) == (old,)
    assert context_of(workspace.library.get(old)) == ()
    assert (deposit.source, deposit.parent) == ("transfer", None)
    assert (deposit.replay, deposit.answer, deposit.trace) == ("replays", "7", WORKED)
    assert QUESTION not in deposit.prompt  # its state is that of the problem alone
    replayed = ask(workspace, SEVEN)
    assert (replayed.how, replayed.deposit_id, replayed.exact) == ("replayed", deposit.id, True)
    assert made_with(workspace.library, old) == (deposit.id,)
    assert made_with(workspace.library, deposit.id) == ()
    # Verified on its own, it outlives what was in context.
    workspace.library.revoke(old, "wrong")
    assert ask(workspace, SEVEN).how == "replayed"
    assert made_with(workspace.library, old) == (deposit.id,)
    assert sound(workspace)


def test_what_was_made_with_it_is_followed_through_other_transfers(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    old = four(workspace)
    second = ask(workspace, SEVEN, verifier=Judge(), transfer=Transfer(), keep=True).kept
    engine.on(f"7<eos><user>{FIVE.text}<eos><assistant>", SOLVED_FIVE)
    third = ask(workspace, FIVE, verifier=Judge(), transfer=Transfer(solutions=1), keep=True).kept
    (last,) = run(workspace, Problem("", "What is 1 + 0?", expected="1"), judge=Judge())
    assert last.state == "unsolved"
    assert context_of(workspace.library.get(third or "")) == (second,)
    assert made_with(workspace.library, old) == (second, third)
    assert made_with(workspace.library, "nowhere") == made_with(workspace.library) == ()


# --- verifiers that compare attempts --------------------------------------------------------------


class Agreement(Judge):
    """Passes what another attempt says too."""

    def __init__(self) -> None:
        super().__init__(name="agreement", needs=frozenset({"peers"}))
        self.peers: list[tuple[str, ...]] = []

    def verify(self, case: Case, trace: str) -> Verdict:
        if not case.peers:
            raise VerifierError("nothing to compare with")
        self.peers.append(case.peers)
        passed = trace in case.peers
        answer = trace.rpartition(" ")[2]
        return Verdict(passed, "agreed" if passed else "none", answer, "agreement", "1", {})


def test_attempts_are_compared_only_where_they_saw_different_solutions(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    teach(engine, COPIED, COPIED)
    # One solution copied three times is no agreement: there is nothing independent to ask.
    same = ask(workspace, SEVEN, verifier=Agreement(), transfer=Transfer(attempts=3))
    assert (same.how, same.grade, same.cost.attempts) == ("fresh", "none", 3)
    run(workspace, FIVE)
    teach(engine, WORKED, behind="5")
    judge = Agreement()
    differ = ask(workspace, SEVEN, verifier=judge, transfer=Transfer(solutions=2))
    assert (differ.how, judge.peers) == ("fresh", [(COPIED,), (WORKED,)])
    teach(engine, WORKED)
    agree = ask(workspace, SEVEN, verifier=Agreement(), transfer=Transfer(solutions=2))
    assert (agree.how, agree.grade, agree.answer) == ("transferred", "agreed", "7")
    made = ask(workspace, SEVEN, verifier=Agreement(), transfer=Transfer(solutions=2), keep=True)
    deposit = workspace.library.get(made.kept or "")
    assert (deposit.replay, deposit.verdict.grade) == ("replays", "agreed")
    assert deposit.grounds is not None
    assert deposit.grounds.case.peers == (WORKED,)  # what it was judged on is there to look at


def test_one_bare_attempt_cannot_be_compared(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="compares attempts"):
        ask(workspace, SEVEN, verifier=Agreement())
    assert ask(workspace, FOUR, verifier=Agreement()).how == "replayed"


# --- options and turns ----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [{"position": "middle"}, {"solutions": 0}, {"attempts": 0}])
def test_an_unusable_transfer_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        replace(Transfer(), **bad)  # type: ignore[arg-type]


def test_too_many_solutions_are_refused() -> None:
    with pytest.raises(LimitExceeded):
        Transfer(solutions=module.MAX_TRANSFERRED_SOLUTIONS + 1)


def test_a_deposit_as_turns_is_what_the_model_said(workspace: Workspace) -> None:
    (deposit,) = workspace.library.list()
    asked, told = worked(workspace.engine.tokenizer, deposit)
    assert (asked.role, asked.content) == ("user", QUESTION)
    assert (told.role, told.content) == ("assistant", f"{SOLUTION}{CUES[0]} 4")
    text_only = replace(deposit, cue="", answer_ids=())
    assert worked(workspace.engine.tokenizer, text_only)[1].content == SOLUTION
