"""Asking: the record's own state answers, or a fresh attempt does and says why.

Numbers in parentheses are rows of the fault list that these tests answer.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvgraft.engines.toy import ToyShape, ToyTokenizer
from kvgraft.errors import ContextTooLong, InputError
from kvgraft.library.ask import Answer, ask
from kvgraft.library.problem import Problem
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


@pytest.fixture
def workspace(tmp_path: Path, engine: ScriptedEngine) -> Iterator[Workspace]:
    """With `FOUR` solved and deposited."""
    with opened(tmp_path / "store", engine) as made:
        (outcome,) = run(made)
        assert outcome.replays
        yield made


def kinds(answer: Answer) -> list[str]:
    return [reason.partition(":")[0] for reason in answer.reasons]


def was_fresh(answer: Answer, *reasons: str) -> bool:
    return (answer.how, answer.exact, answer.deposit_id, kinds(answer)) == (
        "fresh",
        None,
        None,
        list(reasons),
    )


# --- from the record --------------------------------------------------------------------------


def test_the_exact_question_is_replayed_from_disk(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    (deposit,) = workspace.library.list()
    engine.forwards.clear()
    answer = ask(workspace, FOUR)
    assert (answer.how, answer.text, answer.answer) == ("replayed", "4", "4")
    assert (answer.grade, answer.exact, answer.finished) == ("proved", True, True)
    assert answer.logits_sha256 == deposit.replay_logits_sha256
    assert answer.deposit_id == deposit.id
    assert answer.reasons == ()
    assert engine.forwards == [1, 1]  # two tokens written, the third only chosen
    assert answer.cost.decode_tokens == 3
    assert (answer.cost.prefill_tokens, answer.cost.reused_tokens) == (0, len(deposit.token_ids))
    assert answer.provenance == {
        "model": "toy:0",
        "fingerprint": engine.fingerprint.hex,
        "verifier": "judge",
        "verifier_version": "1",
        "source": "solve",
        "created_at": deposit.created_at,
    }


def test_it_is_the_model_that_answers_and_not_the_record(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    # Were the record's text returned, it would still be "4".
    engine.on(SOLUTION + CUES[0], " 5\n")
    answer = ask(workspace, FOUR)
    assert was_fresh(answer, "not_reproduced")
    assert answer.reasons == ("not_reproduced: the replay says '5', the record '4'",)
    assert (answer.text, answer.grade) == ("Answer: 22", "none")
    # What the replay took is counted, though it was not returned: 3 tokens beside 11 own ones.
    assert answer.cost.decode_tokens == 3 + 11
    assert (answer.cost.attempts, answer.cost.reused_tokens) == (1, 58 + 16)
    assert answer.cost.prefill_tokens == 2
    assert answer.reuse is not None
    assert answer.reuse.tokens == 18


def test_logits_with_another_digest_are_not_returned(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.drift = np.float32(2**-10)  # the same tokens, other bits
    answer = ask(workspace, FOUR)
    assert was_fresh(answer, "not_reproduced")
    assert "another digest" in answer.reasons[0]


def test_asked_twice_it_is_the_same(workspace: Workspace) -> None:
    first, second = ask(workspace, FOUR), ask(workspace, FOUR)
    assert (first.text, first.logits_sha256) == (second.text, second.logits_sha256)
    assert sound(workspace)


@pytest.mark.parametrize("text", [QUESTION + " \n", QUESTION + "\r\n\r\n", QUESTION + "\t\n \r"])
def test_another_spelling_of_the_same_text_is_the_same_question(
    workspace: Workspace, text: str
) -> None:
    assert ask(workspace, Problem("", text)).how == "replayed"


# --- states that are gone or damaged ----------------------------------------------------------


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_a_damaged_artifact_is_computed_again_and_exact(
    workspace: Workspace, kind: str, which: int
) -> None:
    entries = sorted(workspace.chunks.index.all_entries(), key=lambda e: e.object.start)
    damage(workspace.chunks, entries[which], kind)
    answer = ask(workspace, FOUR)
    assert (answer.how, answer.text, answer.exact) == ("replayed", "4", True)
    assert any(reason.startswith("artifact_") for reason in answer.reasons)
    assert answer.cost.prefill_tokens > 0
    healed = ask(workspace, FOUR)
    assert (healed.exact, healed.reasons, healed.cost.prefill_tokens) == (True, (), 0)


def test_without_its_states_a_deposit_makes_them_again(workspace: Workspace) -> None:
    for entry in list(workspace.chunks.index.all_entries()):
        workspace.chunks.index.remove(entry)
    answer = ask(workspace, FOUR)
    assert (answer.how, answer.exact, answer.cost.reused_tokens) == ("replayed", True, 0)
    assert answer.reasons == ("not_stored: no chunk after 0 calls",)
    assert ask(workspace, FOUR).cost.prefill_tokens == 0


def test_under_another_fingerprint_the_state_is_computed_again(
    workspace: Workspace, tmp_path: Path
) -> None:
    other = solving_engine(threads="4")
    with opened(tmp_path / "store", other) as elsewhere:
        answer = ask(elsewhere, FOUR)
    assert (answer.how, answer.text, answer.answer, answer.exact) == ("replayed", "4", "4", None)
    assert answer.cost.reused_tokens == 0
    assert answer.reasons == (
        "fingerprint: made elsewhere, so the state is computed again",
        "fingerprint: threads differ",
    )
    assert answer.provenance["fingerprint"] == workspace.engine.fingerprint.hex
    assert answer.provenance["fingerprint"] != other.fingerprint.hex


def test_another_model_that_says_otherwise_is_not_believed(
    workspace: Workspace, tmp_path: Path
) -> None:
    other = solving_engine(seed=1)
    other.on(SOLUTION + CUES[0], " 44\n")
    with opened(tmp_path / "store", other) as elsewhere:
        answer = ask(elsewhere, FOUR)
    assert was_fresh(answer, "fingerprint", "not_reproduced")


def test_a_state_that_does_not_fit_is_not_replayed(workspace: Workspace, tmp_path: Path) -> None:
    small = ScriptedEngine(shape=ToyShape(context_tokens=100))
    small.on_problem(QUESTION, "Answer: 22")
    with opened(tmp_path / "store", small) as elsewhere:
        answer = ask(elsewhere, FOUR, max_new_tokens=40)
        assert was_fresh(answer, "fingerprint", "no_room")
        with pytest.raises(ContextTooLong):
            ask(elsewhere, FOUR, max_new_tokens=100)


# --- records that are gone, damaged or revoked -------------------------------------------------


def test_a_revoked_deposit_is_never_replayed(workspace: Workspace) -> None:
    answer = ask(workspace, FOUR)
    workspace.library.revoke(answer.deposit_id or "", "the key was wrong")
    assert was_fresh(ask(workspace, FOUR), "no_deposit")
    (again,) = run(workspace)
    assert again.state == "solved"
    assert ask(workspace, FOUR).deposit_id == again.deposit_id != answer.deposit_id


def test_a_revocation_by_another_process_counts_at_once(workspace: Workspace) -> None:
    answer = ask(workspace, FOUR)
    script = (
        "import sys\nfrom kvgraft.library.records import Library\n"
        "with Library.open(sys.argv[1]) as library: library.revoke(sys.argv[2], 'wrong')"
    )
    words = [sys.executable, "-c", script, str(workspace.library.path), answer.deposit_id or ""]
    subprocess.run(words, check=True)
    assert was_fresh(ask(workspace, FOUR), "no_deposit")


@pytest.mark.parametrize("column", ["answer", "prompt", "problem", "grade", "answer_ids"])
def test_a_damaged_record_is_a_miss_that_says_so(workspace: Workspace, column: str) -> None:
    with sqlite3.connect(workspace.library.path) as connection:
        connection.execute(f"UPDATE deposits SET {column} = '5'")
    connection.close()
    answer = ask(workspace, FOUR)
    assert was_fresh(answer, "damaged")
    assert "a record of the library is damaged" in answer.reasons[0]
    assert answer.text == "Answer: 22"


def test_text_alone_is_returned_as_that(tmp_path: Path, engine: ScriptedEngine) -> None:
    engine.script.pop()  # it does not restate its answer
    with opened(tmp_path, engine) as workspace:
        run(workspace)
        engine.forwards.clear()
        answer = ask(workspace, FOUR)
    assert (answer.how, answer.text, answer.grade, answer.exact) == (
        "recorded",
        "4",
        "proved",
        None,
    )
    assert kinds(answer) == ["text_only"]
    assert "the model says" in answer.reasons[0]
    assert engine.forwards == []
    assert answer.logits_sha256 is None


# --- fresh attempts ---------------------------------------------------------------------------


def test_a_fresh_attempt_has_no_grade_of_its_own(workspace: Workspace) -> None:
    answer = ask(workspace, Problem("", "What is 3 + 3?"), max_new_tokens=5)
    assert was_fresh(answer, "no_deposit")
    assert (answer.grade, answer.finished) == ("none", True)
    assert answer.provenance.keys() == {"model", "fingerprint"}
    assert workspace.library.count() == 1


def test_a_verifier_may_judge_a_fresh_attempt(workspace: Workspace, engine: ScriptedEngine) -> None:
    six = Problem("", "What is 3 + 3?", expected="6")
    engine.on_problem(six.text, "Answer: 6")
    passed = ask(workspace, six, verifier=Judge())
    assert (passed.how, passed.grade, passed.answer) == ("fresh", "proved", "6")
    assert passed.provenance["verifier"] == "judge"
    failed = ask(workspace, replace(six, expected="7"), verifier=Judge())
    assert (failed.grade, failed.answer) == ("none", "6")


def test_a_fresh_attempt_that_was_cut_off_is_not_judged(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    six = Problem("", "What is 3 + 3?", expected="6")
    engine.on_problem(six.text, "Answer: 6 of course")
    judge = Judge()
    answer = ask(workspace, six, verifier=judge, max_new_tokens=9)
    assert (answer.text, answer.finished, answer.grade) == ("Answer: 6", False, "none")
    assert judge.seen == []


def test_an_empty_question_is_refused(workspace: Workspace) -> None:
    with pytest.raises(InputError, match="empty"):
        ask(workspace, Problem("", " \n"))


# --- whose question it is (14, 19) -------------------------------------------------------------


def test_a_tenants_deposit_and_states_are_its_own(tmp_path: Path, engine: ScriptedEngine) -> None:
    with opened(tmp_path, engine, "A") as ours, opened(tmp_path, engine, "B") as theirs:
        run(ours)
        assert ask(ours, FOUR).how == "replayed"
        missed = ask(theirs, FOUR)
        assert was_fresh(missed, "no_deposit")
        assert missed.reuse is not None
        assert missed.reuse.reused_tokens == 0
        assert missed.reuse.misses == ["not_stored: no chunk after 0 calls"]
        assert ask(ours, FOUR).how == "replayed"
        (second,) = run(theirs)
        assert (second.state, second.cost.reused_tokens) == ("solved", 16)  # its own fresh attempt
        # With A's salt, were it to leak, B still has no deposit at A's address.
        ours.library.revoke(ask(theirs, FOUR).deposit_id or "", "test")
        assert was_fresh(ask(replace(theirs, salt=ours.salt), FOUR), "no_deposit")
        assert ask(ours, FOUR).exact


class OtherTemplate(ToyTokenizer):
    template_digest = "another template"


class OtherVocabulary(ToyTokenizer):
    digest = "another vocabulary"


def test_another_system_text_template_or_tokenizer_is_another_question(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    for system in ("", "Be brief.", " "):
        assert was_fresh(ask(workspace, replace(FOUR, system=system)), "no_deposit")
    for tokenizer in (OtherTemplate(), OtherVocabulary()):
        engine.tokenizer = tokenizer
        assert was_fresh(ask(workspace, FOUR), "no_deposit")
    engine.tokenizer = ToyTokenizer()
    assert was_fresh(ask(replace(workspace, tenant="B"), FOUR), "no_deposit")
    assert ask(workspace, FOUR).how == "replayed"


# --- nearly the same is not the same (20) ------------------------------------------------------

NEAR = [
    ("Turn on the light: is it on?", "Turn off the light: is it on?"),
    ("At least 3 of 7: how many?", "At most 3 of 7: how many?"),
    ("Solve x^2 = 16.", "Solve x2 = 16."),
    ("Solve x\u00b2 = 16.", "Solve x2 = 16."),
    ("What is 5 \u2212 1?", "What is 5 - 1?"),
    ("What is 5 - 1?", "What is 5 1?"),
    ("What is -4?", "What is 4?"),
    ("Is it well-known?", "Is it well known?"),
    ("What is 2 + 2?", "What is 2 + 2 ?"),
    ("What is 2 + 2?", "What is 2  + 2?"),
    ("What is 2 + 2?", " What is 2 + 2?"),
    ("What is 2 + 2?", "what is 2 + 2?"),
    ("What is 2 + 2?", "What is 2 + 2"),
    ("What is 12?", "What is 1\u00b2?"),
    ("What is 4?", "What is \uff14?"),
    ("What is 1,000?", "What is 1.000?"),
    ("a\nb", "a b"),
    ("a\n\nb", "a\nb"),
    ("\ufb01nd it", "find it"),
]


@pytest.mark.parametrize(("stored", "asked"), NEAR)
def test_a_near_miss_is_a_miss(tmp_path: Path, stored: str, asked: str) -> None:
    engine = ScriptedEngine()
    engine.on("<eos><assistant>", SOLUTION, alone="I have to think.")
    engine.on(SOLUTION + CUES[0], " 4\n")
    with opened(tmp_path, engine) as workspace:
        (outcome,) = run(workspace, Problem("", stored, expected="4"))
        assert outcome.replays
        for text in (stored, asked):
            answer = ask(workspace, Problem("", text))
            assert answer.how == ("replayed" if text == stored else "fresh")
        assert was_fresh(answer, "no_deposit")
        assert answer.text == "I have to think."
