"""Follow-ups: they go on from the deposit's state, and from nothing that was revoked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvgraft.engines.base import Message
from kvgraft.engines.toy import RECURRENT, ToyShape, ToyTokenizer
from kvgraft.errors import (
    BelowMinimum,
    ContextTooLong,
    DepositExpired,
    DepositRevoked,
    InputError,
    LimitExceeded,
    RecordNotFound,
    StoreError,
    UsageError,
)
from kvgraft.library import followup as module
from kvgraft.library.ask import ask
from kvgraft.library.followup import FollowUp, conversation, follow_up
from kvgraft.library.problem import Problem
from kvgraft.library.verify.base import Verifier
from kvgraft.library.workspace import Workspace
from kvgraft.prompt import CUES
from kvgraft.testing.grafting import DAMAGES, damage
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

WHY = Problem("why", "Explain step 1.")
BECAUSE = "Two pairs are four."
TWELVE = Problem("twelve", "And for 6 + 6?", expected="12")
WORKED = "6 and 6 make 12.\nAnswer: 12"
TURNS = f"{SOLUTION}{CUES[0]} 4"


@pytest.fixture
def engine() -> ScriptedEngine:
    made = solving_engine()
    made.on(f"{TURNS}<eos><user>{WHY.text}<eos><assistant>", BECAUSE)
    made.on(f"{TURNS}<eos><user>{TWELVE.text}<eos><assistant>", WORKED)
    made.on(WORKED + CUES[0], " 12\n")
    return made


@pytest.fixture
def workspace(tmp_path: Path, engine: ScriptedEngine) -> Iterator[Workspace]:
    """With `FOUR` solved and deposited."""
    with opened(tmp_path / "store", engine) as made:
        (outcome,) = run(made)
        assert outcome.replays
        yield made


@pytest.fixture
def parent(workspace: Workspace) -> str:
    return workspace.library.list()[0].id


def kinds(done: FollowUp) -> list[str]:
    return [reason.partition(":")[0] for reason in done.answer.reasons]


# --- going on from the state ----------------------------------------------------------------------


def test_a_follow_up_goes_on_from_the_grafted_state(
    workspace: Workspace, parent: str, engine: ScriptedEngine
) -> None:
    whole = len(workspace.library.get(parent).token_ids)
    assert whole % engine.form.block
    engine.forwards.clear()
    done = follow_up(workspace, parent, WHY)
    answer = done.answer
    assert (answer.how, answer.grade, answer.text) == ("fresh", "none", BECAUSE)
    assert (answer.deposit_id, answer.finished, done.parent) == (None, True, parent)
    assert answer.reuse is not None
    assert answer.reuse.reused_tokens == whole == answer.cost.reused_tokens
    assert 0 < answer.cost.prefill_tokens == answer.reuse.tokens - whole
    # By the engine's own count: what is behind the deposit, and the decoding.
    computed = sum(engine.forwards) - (answer.cost.decode_tokens - 1)
    assert answer.cost.prefill_tokens <= computed < answer.cost.prefill_tokens + engine.form.block
    assert kinds(done) == ["no_deposit"]
    assert done.compared is None
    assert workspace.library.count() == 1


@pytest.mark.parametrize("windows", [(0, RECURRENT), (0, 24, 7)], ids=str)
def test_every_follow_up_reuses_the_deposit_to_its_last_token(
    tmp_path: Path, windows: tuple[int, ...]
) -> None:
    # A recurrent layer can go on only where its state was kept.
    rungs = () if RECURRENT in windows else (4, 8, 16)
    engine = ScriptedEngine(shape=ToyShape(windows=windows, rungs=rungs))
    engine.on_problem(QUESTION, SOLUTION)
    engine.on(SOLUTION + CUES[0], " 4\n")
    engine.on_problem(TWELVE.text, WORKED)
    engine.on(WORKED + CUES[0], " 12\n")
    engine.on_problem(WHY.text, BECAUSE)
    with opened(tmp_path, engine) as workspace:
        (outcome,) = run(workspace)
        parent = workspace.library.get(outcome.deposit_id or "")
        first = follow_up(workspace, parent.id, WHY)
        second = follow_up(workspace, parent.id, TWELVE, verifier=Judge(), keep=True)
        child = workspace.library.get(second.answer.kept or "")
        third = follow_up(workspace, child.id, WHY, compare=True)
        replayed = follow_up(workspace, parent.id, TWELVE)
    whole = len(parent.token_ids)
    assert parent.cuts == ()
    assert child.cuts == (whole,)
    assert child.replay == "replays"
    assert [one.answer.cost.reused_tokens for one in (first, second)] == [whole, whole]
    assert third.answer.cost.reused_tokens == len(child.token_ids)
    assert third.compared is not None
    assert third.compared.same_logits
    assert (replayed.answer.how, replayed.answer.exact) == ("replayed", True)


@pytest.mark.parametrize("windows", [(0, 24, 0, 7), (0,), (0, 0, 30)], ids=str)
def test_sent_again_as_text_it_has_the_same_logits_and_costs_more(
    tmp_path: Path, windows: tuple[int, ...]
) -> None:
    engine = ScriptedEngine(shape=ToyShape(windows=windows))
    engine.on_problem(QUESTION, SOLUTION)
    engine.on(SOLUTION + CUES[0], " 4\n")
    engine.on_problem(WHY.text, BECAUSE)
    with opened(tmp_path, engine) as workspace:
        (outcome,) = run(workspace)
        done = follow_up(workspace, outcome.deposit_id or "", WHY, compare=True)
    assert done.compared is not None
    assert done.compared.same_logits
    assert done.compared.continued == done.answer.cost
    resent, continued = done.compared.resent, done.compared.continued
    assert resent.reused_tokens == 0
    assert resent.prefill_tokens == continued.prefill_tokens + continued.reused_tokens
    assert resent.decode_tokens == continued.decode_tokens
    assert resent.seconds > 0


def test_a_state_that_gives_other_logits_is_noticed(
    workspace: Workspace, parent: str, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    fresh_answer = module.fresh_answer

    def drifting(*arguments: object, **options: object) -> object:
        nonlocal calls
        engine.drift = np.float32(calls * 2**-10)
        calls += 1
        return fresh_answer(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "fresh_answer", drifting)
    done = follow_up(workspace, parent, WHY, compare=True)
    assert done.compared is not None
    assert not done.compared.same_logits


def test_comparing_leaves_nothing_behind(workspace: Workspace, parent: str) -> None:
    follow_up(workspace, parent, WHY)
    before = list(workspace.chunks.index.all_entries())
    follow_up(workspace, parent, WHY, compare=True)
    assert list(workspace.chunks.index.all_entries()) == before


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_state_is_computed_again(workspace: Workspace, parent: str, kind: str) -> None:
    good = follow_up(workspace, parent, WHY)
    for entry in list(workspace.chunks.index.all_entries())[:1]:
        damage(workspace.chunks, entry, kind)
    again = follow_up(workspace, parent, WHY)
    assert again.answer.logits_sha256 == good.answer.logits_sha256
    assert again.answer.cost.reused_tokens < good.answer.cost.reused_tokens
    assert any(miss.startswith("artifact_") for miss in again.answer.reuse.misses)  # type: ignore[union-attr]


def test_the_system_text_is_the_deposits(tmp_path: Path, engine: ScriptedEngine) -> None:
    with opened(tmp_path, engine) as workspace:
        (outcome,) = run(workspace, replace(FOUR, system="Be brief."))
        turns = conversation(workspace, outcome.deposit_id or "")
        assert [turn.role for turn in turns] == ["system", "user", "assistant"]
        done = follow_up(workspace, outcome.deposit_id or "", WHY)
        assert done.answer.cost.reused_tokens > 0
        with pytest.raises(UsageError, match="system"):
            follow_up(workspace, outcome.deposit_id or "", replace(WHY, system="Be brief."))


def test_a_deposit_of_text_alone_is_followed_up_from_its_text(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    del engine.script[1]  # it does not restate its answer
    engine.on(f"{SOLUTION}<eos><user>{WHY.text}<eos><assistant>", BECAUSE)
    with opened(tmp_path, engine) as workspace:
        (outcome,) = run(workspace)
        assert not outcome.replays
        done = follow_up(workspace, outcome.deposit_id or "", WHY, compare=True)
    assert done.answer.text == BECAUSE
    assert done.compared is not None
    assert done.compared.same_logits


def test_another_model_follows_up_the_text(
    workspace: Workspace, parent: str, tmp_path: Path
) -> None:
    other = solving_engine(seed=1)
    other.on_problem(WHY.text, BECAUSE)
    with opened(tmp_path / "store", other) as elsewhere:
        done = follow_up(elsewhere, parent, WHY)
    assert (done.answer.text, done.answer.cost.reused_tokens) == (BECAUSE, 0)


# --- templates ------------------------------------------------------------------------------------


class Trimming(ToyTokenizer):
    """Rewrites earlier answers, as templates that hide reasoning do."""

    def render(self, messages: Sequence[Message]) -> str:
        kept = [
            message if message.role != "assistant" else Message("assistant", "...")
            for message in messages
        ]
        return super().render(kept)


class Dated(ToyTokenizer):
    day = 1

    def render(self, messages: Sequence[Message]) -> str:
        return f"<bos>day {self.day}. " + super().render(messages)[5:]


def test_a_template_that_rewrites_the_solution_says_how_far_it_is_the_same(
    workspace: Workspace, parent: str, engine: ScriptedEngine
) -> None:
    engine.on_problem(WHY.text, BECAUSE)
    engine.tokenizer = Trimming()
    done = follow_up(workspace, parent, WHY, compare=True)
    tokens = len(workspace.library.get(parent).token_ids)
    asked = 4 + len(QUESTION)  # tokens are bytes, but for those between the turns
    assert done.answer.reasons[0] == (
        f"rewritten: the template renders the deposit anew after token {asked} of {tokens}"
    )
    assert done.compared is not None
    assert done.compared.same_logits


def test_tomorrows_date_is_another_beginning(tmp_path: Path, engine: ScriptedEngine) -> None:
    engine.on_problem(WHY.text, BECAUSE)
    tokenizer = Dated()
    engine.tokenizer = tokenizer
    with opened(tmp_path, engine) as workspace:
        (outcome,) = run(workspace)
        today = follow_up(workspace, outcome.deposit_id or "", WHY)
        assert kinds(today) == ["no_deposit"]
        tokenizer.day = 2
        tomorrow = follow_up(workspace, outcome.deposit_id or "", WHY)
    assert kinds(tomorrow) == ["rewritten", "no_deposit"]
    assert tomorrow.answer.cost.reused_tokens == 0


# --- what is kept ---------------------------------------------------------------------------------


def kept(workspace: Workspace, parent: str, judge: Verifier | None = None) -> FollowUp:
    return follow_up(workspace, parent, TWELVE, verifier=judge or Judge(), keep=True)


def test_a_verified_follow_up_is_kept_behind_its_parent_and_replayed(
    workspace: Workspace, parent: str
) -> None:
    made = kept(workspace, parent)
    assert (made.answer.how, made.answer.grade, made.answer.answer) == ("fresh", "proved", "12")
    deposit = workspace.library.get(made.answer.kept or "")
    assert (deposit.parent, deposit.problem, deposit.replay) == (parent, TWELVE.text, "replays")
    assert deposit.source == "ask"
    again = follow_up(workspace, parent, replace(TWELVE, expected=None), compare=True)
    assert (again.answer.how, again.answer.exact, again.answer.text) == ("replayed", True, "12")
    assert (again.answer.deposit_id, again.answer.cost.prefill_tokens) == (deposit.id, 0)
    assert again.compared is None  # nothing was continued
    assert sound(workspace)


def test_its_address_is_behind_its_parent_and_nowhere_else(
    workspace: Workspace, parent: str, engine: ScriptedEngine
) -> None:
    kept(workspace, parent)
    engine.on_problem(TWELVE.text, "What?", alone="What?")
    alone = ask(workspace, TWELVE)
    assert (alone.how, alone.text) == ("fresh", "What?")
    (other,) = run(workspace, replace(FOUR, system="Be brief."))
    elsewhere = follow_up(workspace, other.deposit_id or "", TWELVE)
    assert (elsewhere.answer.how, kinds(elsewhere)) == ("fresh", ["no_deposit"])


def test_what_no_verifier_passed_is_not_kept(workspace: Workspace, parent: str) -> None:
    wrong = replace(TWELVE, expected="13")
    done = follow_up(workspace, parent, wrong, verifier=Judge(), keep=True)
    assert (done.answer.grade, done.answer.kept) == ("none", None)
    cut = follow_up(workspace, parent, TWELVE, verifier=Judge(), keep=True, max_new_tokens=5)
    assert (cut.answer.finished, cut.answer.kept) == (False, None)
    with pytest.raises(UsageError):
        follow_up(workspace, parent, TWELVE, keep=True)
    assert workspace.library.count() == 1


def test_follow_ups_follow_each_other(
    workspace: Workspace, parent: str, engine: ScriptedEngine
) -> None:
    second = kept(workspace, parent).answer.kept or ""
    chain = f"{TURNS}<eos><user>{TWELVE.text}<eos><assistant>{WORKED}{CUES[0]} 12"
    engine.on(f"{chain}<eos><user>{WHY.text}<eos><assistant>", "As before.")
    done = follow_up(workspace, second, WHY, compare=True)
    assert done.answer.text == "As before."
    assert [turn.role for turn in conversation(workspace, second)] == ["user", "assistant"] * 2
    assert done.compared is not None
    assert done.compared.same_logits
    deposit = workspace.library.get(second)
    block = engine.form.block
    assert done.answer.cost.reused_tokens >= len(deposit.token_ids) // block * block


def test_a_chain_has_an_end(
    workspace: Workspace, parent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = kept(workspace, parent).answer.kept or ""
    monkeypatch.setattr(module, "MAX_FOLLOW_UPS", 1)
    follow_up(workspace, parent, WHY)
    with pytest.raises(LimitExceeded):
        follow_up(workspace, second, WHY)


# --- what is refused ------------------------------------------------------------------------------


def test_nothing_goes_on_from_a_revoked_deposit(workspace: Workspace, parent: str) -> None:
    second = kept(workspace, parent).answer.kept or ""
    workspace.library.revoke(parent, "the key was wrong")
    for id, question in ((parent, WHY), (parent, TWELVE), (second, WHY)):
        with pytest.raises(DepositRevoked) as refused:
            follow_up(workspace, id, question)
        assert "the key was wrong" in str(refused.value)
        assert refused.value.http_status == 410


def test_nothing_goes_on_from_an_expired_deposit(workspace: Workspace, parent: str) -> None:
    second = kept(workspace, parent).answer.kept or ""
    workspace.library.expire(parent, "2020-01-01")
    for id in (parent, second):
        with pytest.raises(DepositExpired):
            follow_up(workspace, id, TWELVE)


def test_a_revoked_follow_up_is_not_replayed_and_its_parent_goes_on(
    workspace: Workspace, parent: str
) -> None:
    second = kept(workspace, parent).answer.kept or ""
    workspace.library.revoke(second, "wrong")
    done = follow_up(workspace, parent, TWELVE)
    assert (done.answer.how, kinds(done)) == ("fresh", ["no_deposit"])


def test_another_tenants_deposit_is_not_there(
    workspace: Workspace, parent: str, tmp_path: Path, engine: ScriptedEngine
) -> None:
    with opened(tmp_path / "store", engine, "B") as theirs, pytest.raises(RecordNotFound):
        follow_up(theirs, parent, WHY)
    with pytest.raises(RecordNotFound):
        follow_up(workspace, "nowhere", WHY)


def test_a_damaged_parent_is_named(workspace: Workspace, parent: str) -> None:
    with sqlite3.connect(workspace.library.path) as connection:
        connection.execute("UPDATE deposits SET trace = 'Answer: 5'")
    connection.close()
    with pytest.raises(StoreError, match="damaged"):
        follow_up(workspace, parent, WHY)


def test_what_does_not_fit_or_says_nothing_is_refused(workspace: Workspace, parent: str) -> None:
    with pytest.raises(ContextTooLong):
        follow_up(workspace, parent, WHY, max_new_tokens=2048)
    with pytest.raises(InputError, match="empty"):
        follow_up(workspace, parent, Problem("", " \n"))


def test_a_minimum_is_demanded_of_follow_ups_too(
    workspace: Workspace, parent: str, engine: ScriptedEngine
) -> None:
    engine.forwards.clear()
    for minimum in ("replayed", "proved", "agreed"):
        with pytest.raises(BelowMinimum):
            follow_up(workspace, parent, TWELVE, minimum=minimum)
    assert engine.forwards == []  # no attempt could have been enough
    good = follow_up(workspace, parent, TWELVE, verifier=Judge(), minimum="proved", keep=True)
    assert good.answer.answer == "12"
    assert follow_up(workspace, parent, TWELVE, minimum="replayed").answer.how == "replayed"
    with pytest.raises(UsageError, match="minimum"):
        follow_up(workspace, parent, TWELVE, minimum="some")
