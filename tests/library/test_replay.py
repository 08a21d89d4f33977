"""Replay: the state just before the answer, restored, says the answer again, or says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgraft.engines.toy import ToyShape, ToyTokenizer
from kvgraft.errors import ContextTooLong, InputError, LimitExceeded
from kvgraft.evidence.worker import raw_digests
from kvgraft.library import replay as replay_module
from kvgraft.library.deposit import Deposit, Grounds
from kvgraft.library.replay import (
    Replay,
    make_deposit,
    rendered_otherwise,
    replay,
    reproduces,
)
from kvgraft.library.restate import same_answer
from kvgraft.library.verify.base import Case
from kvgraft.library.verify.exact import ExactVerifier
from kvgraft.library.workspace import Workspace
from kvgraft.limits import MAX_ANSWER_TOKENS
from kvgraft.prompt import CUES, Prompt, problem_prompt
from kvgraft.reuse import Keep, compute_prompt
from library.scripted import (
    FOUR,
    QUESTION,
    SOLUTION,
    Judge,
    ScriptedEngine,
    opened,
    run,
    sound,
)
from toys import memory_chunks


def deposited(workspace: Workspace, judge: Judge | None = None) -> Deposit:
    (outcome,) = run(workspace, judge=judge)
    assert outcome.state == "solved"
    assert sound(workspace)
    return workspace.library.get(outcome.deposit_id or "")


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Replay]]:
    """All replays that making a deposit takes; `before(n)` runs ahead of the n-th, from 1."""

    def _watch(before: Callable[[int], None] = lambda number: None) -> list[Replay]:
        seen: list[Replay] = []

        def watched(*given: Any, **named: Any) -> Replay:
            before(len(seen) + 1)
            seen.append(replay(*given, **named))
            return seen[-1]

        monkeypatch.setattr(replay_module, "replay", watched)
        return seen

    return _watch


# --- one replay -------------------------------------------------------------------------------


def test_a_replay_is_restored_whole_and_says_one_line(workspace: Workspace) -> None:
    deposit = deposited(workspace)
    result = replay(workspace, deposit.token_ids)
    assert result.from_disk
    assert (result.report.calls_made, result.report.reused_tokens) == (0, len(deposit.token_ids))
    assert result.text == "4"
    assert result.decoded.finished
    assert tuple(result.decoded.ids) == deposit.answer_ids == tuple(b" 4\n")
    assert result.decoded.logits_sha256 == deposit.replay_logits_sha256
    assert result.key.hex() == deposit.artifact
    assert reproduces(deposit, deposit.fingerprint, result) is None


def test_what_was_decoded_is_never_stored(workspace: Workspace) -> None:
    # Whatever lies in the store is what computing the prompt in one go leaves, bit for bit.
    deposit = deposited(workspace)
    fresh = memory_chunks()
    for ids in (problem_prompt(workspace.engine.tokenizer, QUESTION, None).ids, deposit.token_ids):
        compute_prompt(workspace.engine, fresh, ids, keep=Keep.ALL).context.close()
    stored = raw_digests(workspace.chunks)
    assert stored
    assert stored.items() <= raw_digests(fresh).items()


def test_the_prefix_ends_before_the_answer(workspace: Workspace) -> None:
    deposit = deposited(workspace)
    text = deposit.prompt + deposit.trace + deposit.cue
    assert deposit.token_ids == tuple(ToyTokenizer().encode(text))
    assert text.endswith("Answer: 4\n\nFinal Answer:")


def test_a_replay_is_not_from_disk_when_anything_was_computed(workspace: Workspace) -> None:
    ids = deposited(workspace).token_ids
    assert not replay(workspace, ids[:-1], keep=Keep.NOTHING).from_disk
    assert not replay(replace(workspace, salt=b"s" * 32), ids).from_disk


def test_there_has_to_be_room_for_an_answer(workspace: Workspace) -> None:
    full = workspace.engine.context_tokens
    replay(workspace, [1] * (full - MAX_ANSWER_TOKENS), keep=Keep.NOTHING)
    with pytest.raises(ContextTooLong):
        replay(workspace, [1] * (full - MAX_ANSWER_TOKENS + 1), keep=Keep.NOTHING)


@pytest.mark.parametrize(
    ("said", "text"),
    [(" 4\nmore", "4"), ("\n\n  4\n", "4"), ("4", "4"), ("\n", ""), ("4 apples\n5", "4 apples")],
)
def test_the_line_is_the_first_that_holds_something(
    workspace: Workspace, engine: ScriptedEngine, said: str, text: str
) -> None:
    engine.on("cue", said)
    result = replay(workspace, ToyTokenizer().encode("a cue"))
    assert result.text == text
    assert result.decoded.finished


# --- the comparison with the record -----------------------------------------------------------


def test_other_tokens_or_other_logits_are_not_the_record(workspace: Workspace) -> None:
    deposit = deposited(workspace)
    good = replay(workspace, deposit.token_ids)
    other = replace(good, decoded=replace(good.decoded, ids=[*b" 5\n"]), text="5")
    assert reproduces(deposit, deposit.fingerprint, other) == "the replay says '5', the record '4'"
    # Equal text of other tokens is another answer too.
    longer = replace(good, decoded=replace(good.decoded, ids=[*b"  4\n"]))
    assert reproduces(deposit, deposit.fingerprint, longer) is not None
    moved = replace(good, decoded=replace(good.decoded, logits_sha256="0" * 64))
    why = "the replay's logits have another digest than the record's"
    assert reproduces(deposit, deposit.fingerprint, moved) == why
    # Under another fingerprint other bits are expected, other answers are not.
    assert reproduces(deposit, "another", moved) is None
    assert reproduces(deposit, "another", other) is not None


def test_a_prompt_is_the_records_or_it_is_not(workspace: Workspace) -> None:
    deposit = deposited(workspace)
    assert rendered_otherwise(deposit, Prompt(deposit.prompt, ())) is None
    assert rendered_otherwise(deposit, Prompt(deposit.prompt + " ", ())) is not None


# --- making a deposit -------------------------------------------------------------------------


def test_a_deposit_is_tried_captured_and_replayed_once_from_disk(
    workspace: Workspace, replays: Callable[..., list[Replay]]
) -> None:
    seen = replays()
    deposit = deposited(workspace)
    trial, made, again = seen
    assert not trial.from_disk
    assert not made.from_disk
    assert again.from_disk
    assert trial.decoded == made.decoded == again.decoded
    assert deposit.replay_logits_sha256 == again.decoded.logits_sha256
    assert (deposit.replay, deposit.replay_reason) == ("replays", "")


def test_cues_are_tried_in_order_until_one_works(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.script.pop()
    engine.on(SOLUTION + CUES[0], " a good question\n")
    engine.on(SOLUTION + CUES[1], " 5\n")
    engine.on(SOLUTION + CUES[2], " 4\n")
    engine.on(SOLUTION + CUES[3], " 4\n")
    judge = Judge()
    deposit = deposited(workspace, judge)
    assert deposit.cue == CUES[2]
    tried = [trace for trace in judge.seen if trace.startswith("Final Answer: ")]
    assert tried == [f"Final Answer: {said}" for said in ("a good question", "5", "4")]
    assert (deposit.replay, deposit.answer) == ("replays", "4")


def test_a_model_that_does_not_restate_its_answer_leaves_text(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.script.pop()
    engine.on(CUES[1], " five\n")
    deposit = deposited(workspace)
    assert (deposit.replay, deposit.artifact, deposit.answer) == ("text_only", None, "4")
    assert deposit.replay_reason == "asked for its answer, the model says ['', 'five', '', '']"
    assert deposit.token_ids == problem_prompt(engine.tokenizer, QUESTION, None).ids


def test_a_line_that_does_not_end_is_no_answer(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.on(SOLUTION + CUES[0], " 4" + " " * MAX_ANSWER_TOKENS)
    assert deposited(workspace).replay == "text_only"


def test_a_solution_without_room_for_a_replay_leaves_text(tmp_path: Path) -> None:
    engine = ScriptedEngine(shape=ToyShape(context_tokens=120))
    engine.on_problem(QUESTION, SOLUTION)
    engine.on(SOLUTION + CUES[0], " 4\n")
    with opened(tmp_path, engine) as workspace:
        deposit = deposited(workspace)
    assert deposit.replay == "text_only"
    assert re.search(r"58 .*64 .*120", deposit.replay_reason)


def test_replays_that_differ_in_their_logits_leave_text(
    workspace: Workspace, engine: ScriptedEngine, replays: Callable[..., list[Replay]]
) -> None:
    def drift(number: int) -> None:
        engine.drift = type(engine.drift)(0.5 * (number == 3))

    seen = replays(drift)
    deposit = deposited(workspace)
    assert seen[2].decoded.ids == seen[1].decoded.ids
    assert (deposit.replay, deposit.artifact) == ("text_only", None)
    assert deposit.replay_reason == "replays differ in their logits"


def test_a_state_that_did_not_last_leaves_text(
    workspace: Workspace, replays: Callable[..., list[Replay]]
) -> None:
    def lose(number: int) -> None:
        if number == 3:
            for name in workspace.chunks.blobs.names():
                workspace.chunks.blobs.delete(name)

    seen = replays(lose)
    (outcome,) = run(workspace)
    assert seen[2].decoded == seen[1].decoded  # computed again, so nobody would notice
    assert not outcome.replays
    assert outcome.detail.startswith("not replayed from disk: artifact_truncated: the pack is gone")


def test_white_space_behind_a_solution_is_not_part_of_it(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.on_problem(QUESTION, SOLUTION + " \n\n")
    deposit = deposited(workspace)
    assert (deposit.trace, deposit.replay) == (SOLUTION, "replays")


def test_cues_behind_which_the_answer_begins_a_token_come_first(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    class Merging(ToyTokenizer):
        def encode(self, text: str) -> list[int]:
            pieces = text.split(": ")  # one token, which no cue that ends in ":" ends with
            ids = super().encode(pieces[0])
            for piece in pieces[1:]:
                ids += [200, *super().encode(piece)]
            return ids

        def decode(self, ids: object) -> str:
            return super().decode(ids).replace("\ufffd", ": ")  # type: ignore[arg-type]

    engine.tokenizer = Merging()
    for cue in CUES:
        engine.on(cue, " 4\n")
    deposit = deposited(workspace)
    assert (deposit.cue, deposit.replay) == (CUES[1], "replays")


def test_the_record_holds_what_the_model_restates(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.on(SOLUTION + CUES[0], " 4 or so\n")
    deposit = deposited(workspace)
    assert deposit.verdict.evidence["given"] == "4"
    assert deposit.verdict.answer == deposit.answer == "4"
    assert bytes(deposit.answer_ids) == b" 4 or so\n"
    assert FOUR.expected == deposit.answer


# --- what is kept with it -------------------------------------------------------------------------


def test_what_was_judged_and_who_wrote_it_is_kept(workspace: Workspace) -> None:
    deposit = deposited(workspace)
    assert deposit.grounds == Grounds("judge", FOUR.case(), "", "4")
    made = deposit.provenance
    assert (made["model"], made["rung"], made["attempts"]) == ("toy:0", "sample:3", 3)
    assert isinstance(made["seed"], int)
    assert made["sampling"] == {"temperature": 0.8, "top_p": 0.95, "seed": 0}
    assert deposit.verified_at == deposit.created_at


def planted(workspace: Workspace, **options: Any) -> Deposit:
    """A deposit of `FOUR`, made directly."""
    case = options.pop("case", FOUR.case())
    verdict = options.pop("verdict", None) or ExactVerifier().verify(FOUR.case(), SOLUTION)
    judge = options.pop("judge", ExactVerifier())
    prompt = problem_prompt(workspace.engine.tokenizer, QUESTION, None)
    return make_deposit(
        workspace, FOUR, prompt, SOLUTION + " \n", verdict, judge, {}, case=case, **options
    )


def test_a_deposit_with_an_end_and_a_history(workspace: Workspace) -> None:
    deposit = planted(workspace, expires_at="2999-01-01", provenance={"seed": 5})
    assert deposit.expires_at == "2999-01-01T00:00:00.000000+00:00"
    assert deposit.provenance == {"seed": 5}
    assert deposit.grounds == Grounds("exact", FOUR.case(), " \n", "4")
    assert deposit.trace == SOLUTION


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"expires_at": "soon"}, InputError),
        ({"provenance": {"seed": float("nan")}}, InputError),
        ({"case": Case("another problem")}, InputError),
        ({"case": FOUR.case([str(n**20) for n in range(60_000)])}, LimitExceeded),
    ],
    ids=["end", "provenance", "case", "peers"],
)
def test_what_is_refused_costs_no_replay(
    workspace: Workspace,
    replays: Callable[..., list[Replay]],
    options: dict[str, Any],
    error: type[Exception],
) -> None:
    seen = replays()
    with pytest.raises(error):
        planted(workspace, **options)
    assert seen == []
    assert workspace.library.count(status=None) == 0


@pytest.mark.parametrize(
    ("restated", "outcome"),
    [(" 4\n", "replays"), (" 4.0\n", "replays"), (" 5\n", "text_only"), (" .\n", "text_only")],
)
def test_where_attempts_are_compared_a_restated_answer_has_no_vote(
    workspace: Workspace, engine: ScriptedEngine, restated: str, outcome: str
) -> None:
    engine.on(SOLUTION + CUES[0], restated)
    judge = Judge(needs=frozenset({"peers"}))
    case = FOUR.case(["Answer: 4", "Answer: 5"])
    agreed = replace(judge.verify(FOUR.case(), SOLUTION), grade="agreed")
    judge.seen.clear()
    deposit = planted(workspace, judge=judge, case=case, verdict=agreed)
    assert judge.seen == []
    assert deposit.replay == outcome
    assert deposit.verdict.grade == "agreed"
    assert deposit.grounds is not None
    assert deposit.grounds.case == case
    if outcome == "replays":
        assert deposit.grounds.restated == deposit.answer == restated.strip()
        assert deposit.verdict.evidence["solution"] == agreed.evidence
    else:
        assert (deposit.answer, deposit.grounds.restated) == ("4", None)
        assert deposit.verdict == agreed


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("4", "4", True),
        ("4", " 4 ", True),
        ("4", "4.0", True),
        ("1/2", "0.5", True),
        ("4", "-4", False),
        ("4", "44", False),
        ("x^2", "x2", False),
        ("", "", False),
        (" ", "", False),
        ("4", "", False),
        ("a" * 5_000, "a" * 5_000, True),
        ("a" * 5_000, "a" * 5_001, False),
    ],
)
def test_answers_that_are_one(one: str, other: str, same: bool) -> None:
    assert same_answer(one, other) is same
    assert same_answer(other, one) is same
