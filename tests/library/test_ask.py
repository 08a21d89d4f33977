"""Asking: the record's own state answers, or a fresh attempt does and says why.

Numbers in parentheses are rows of the fault list that these tests answer.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvgraft.engines.base import Message
from kvgraft.engines.toy import ToyShape, ToyTokenizer
from kvgraft.errors import (
    BelowMinimum,
    ContextTooLong,
    InputError,
    UnsupportedContent,
    UsageError,
)
from kvgraft.library.address import RequestIdentity
from kvgraft.library.answer import MINIMUMS
from kvgraft.library.ask import Answer, Terms, ask
from kvgraft.library.deposit import Deposit, NewDeposit
from kvgraft.library.problem import Problem, read_problems
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


def test_text_alone_with_another_answer_than_its_solution_gives_is_a_miss(
    tmp_path: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.script.pop()  # it does not restate its answer
    with opened(tmp_path, engine) as workspace:
        run(workspace)
        (kept,) = workspace.library.list()
        # As by hands that know how to sign a record.
        verdict = replace(kept.verdict, verifier="math")
        swapped = replace(kept, answer="5", verdict=verdict)
        monkeypatch.setattr(workspace.library, "find", lambda *_: swapped)
        answer = ask(workspace, FOUR)
    assert was_fresh(answer, "not_reproduced")
    assert "gives another answer" in answer.reasons[0]


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


# --- everything that can change an answer is part of the question (19) --------------------------

TERMS = [
    Terms(max_tokens=64),
    Terms(max_tokens=3),
    Terms(stop=("\n",)),
    Terms(stop=("\n", "END")),
    Terms(tool_choice="none"),
    Terms(tool_choice="auto"),
    Terms(max_tokens=64, stop=("END",), tool_choice="none"),
]


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_other_terms_never_get_the_earlier_answer(workspace: Workspace, terms: Terms) -> None:
    answer = ask(workspace, FOUR, terms=terms)
    assert was_fresh(answer, "no_deposit")
    assert answer.text != "4"
    assert ask(workspace, FOUR, terms=Terms()).how == "replayed"


def test_a_deposit_of_other_terms_is_found_by_those_alone(workspace: Workspace) -> None:
    plain = workspace.space(None).identity(QUESTION)
    (deposit,) = workspace.library.list()
    for terms in TERMS:
        workspace.library.deposit(_as_new(deposit, terms.identity(plain)))
    addresses = {one.address for one in workspace.library.list()}
    assert len(addresses) == len(TERMS) + 1
    for terms in TERMS:
        found = ask(workspace, FOUR, terms=terms)
        assert found.how == "replayed"
        stored = workspace.library.get(found.deposit_id or "").identity
        assert (stored.max_tokens, stored.stop, stored.tool_choice) == (
            terms.max_tokens,
            terms.stop,
            terms.tool_choice,
        )
    assert ask(workspace, FOUR).deposit_id == deposit.id


def _as_new(deposit: Deposit, identity: RequestIdentity) -> NewDeposit:
    names = {field.name for field in fields(NewDeposit)} - {"finished", "identity"}
    values = {name: getattr(deposit, name) for name in names}
    return NewDeposit(**values, identity=identity, finished=True)


@pytest.mark.parametrize(
    "content", [{"tools": (b"{}",)}, {"images": (b"\x89PNG",)}, {"images": (b"",)}], ids=str
)
def test_content_that_the_model_cannot_take_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedContent, match="text alone") as refused:
        Terms(**content)
    assert (refused.value.http_status, refused.value.exit_status) == (400, 3)


@pytest.mark.parametrize("name", ["images", "tools", "image_url", "tool_choice", "stop"])
def test_a_problem_file_with_such_content_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps({"problem": QUESTION, name: ["x"]}))
    with pytest.raises(InputError, match=name) as refused:
        read_problems(file)
    assert refused.value.http_status == 400


def test_terms_bound_the_attempt_too(workspace: Workspace, engine: ScriptedEngine) -> None:
    engine.on_problem("Count.", "one two three four")
    count = Problem("", "Count.")
    assert ask(workspace, count).text == "one two three four"
    stopped = ask(workspace, count, terms=Terms(stop=("zero", " thr", "two t")))
    assert (stopped.text, stopped.finished) == ("one ", True)
    short = ask(workspace, count, terms=Terms(max_tokens=7))
    assert (short.text, short.finished) == ("one two", False)
    assert ask(workspace, count, terms=Terms(max_tokens=7), max_new_tokens=3).text == "one"
    with pytest.raises(InputError, match="stop"):
        Terms(stop=("a", ""))
    with pytest.raises(InputError, match="max_tokens"):
        ask(workspace, count, terms=Terms(max_tokens=0))


# --- the least that will do ---------------------------------------------------------------------


def test_below_the_minimum_there_is_no_answer(workspace: Workspace, engine: ScriptedEngine) -> None:
    other = Problem("", "What is 3 + 3?", expected="6")
    engine.on_problem(other.text, "Answer: 7")
    engine.forwards.clear()
    for minimum in ("agreed", "proved", "replayed"):
        with pytest.raises(BelowMinimum) as refused:
            ask(workspace, other, minimum=minimum)
    assert engine.forwards == []  # without a verifier no attempt could be enough
    with pytest.raises(BelowMinimum) as refused:
        ask(workspace, other, minimum="proved", verifier=Judge())
    error = refused.value
    assert "7" not in str(error)
    assert (error.exit_status, error.http_status) == (1, 409)
    assert (error.details["how"], error.details["grade"]) == ("fresh", "none")
    assert error.details["reasons"] == ["no_deposit: nothing at this exact address"]
    assert error.details["cost"]["decode_tokens"] == len("Answer: 7") + 1
    assert error.details["cost"]["seconds"] > 0
    with pytest.raises(BelowMinimum):  # and a pass would not be a replay
        ask(workspace, replace(other, expected="7"), minimum="replayed", verifier=Judge())
    assert ask(workspace, other, minimum="any").answer == "7"


def test_at_the_minimum_there_is(workspace: Workspace, engine: ScriptedEngine) -> None:
    for minimum in MINIMUMS:
        assert ask(workspace, FOUR, minimum=minimum).how == "replayed"
    six = Problem("", "What is 3 + 3?", expected="6")
    engine.on_problem(six.text, "Answer: 6")
    for minimum in ("any", "agreed", "proved"):
        answer = ask(workspace, six, minimum=minimum, verifier=Judge())
        assert (answer.how, answer.grade) == ("fresh", "proved")
    with pytest.raises(UsageError, match="minimum"):
        ask(workspace, FOUR, minimum="good")


def test_the_grade_of_a_replay_counts_as_well(workspace: Workspace) -> None:
    (deposit,) = workspace.library.list()
    agreed = replace(deposit, verdict=replace(deposit.verdict, grade="agreed"))
    workspace.library.deposit(_as_new(agreed, deposit.identity), supersede=True)
    for minimum in ("any", "agreed", "replayed"):
        assert ask(workspace, FOUR, minimum=minimum).grade == "agreed"
    with pytest.raises(BelowMinimum, match="replayed with grade agreed"):
        ask(workspace, FOUR, minimum="proved")


def test_text_alone_is_no_replay(tmp_path: Path, engine: ScriptedEngine) -> None:
    engine.script.pop()  # it does not restate its answer
    with opened(tmp_path, engine) as workspace:
        run(workspace)
        assert ask(workspace, FOUR, minimum="proved").how == "recorded"
        with pytest.raises(BelowMinimum, match="recorded"):
            ask(workspace, FOUR, minimum="replayed")


def test_a_replay_that_differs_is_refused_with_what_it_took(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.on(SOLUTION + CUES[0], " 5\n")
    with pytest.raises(BelowMinimum) as refused:
        ask(workspace, FOUR, minimum="replayed")
    assert refused.value.details["cost"]["decode_tokens"] == 3
    assert "not_reproduced" in refused.value.details["reasons"][0]


# --- keeping a fresh answer ---------------------------------------------------------------------


def test_a_verified_attempt_can_be_kept(workspace: Workspace, engine: ScriptedEngine) -> None:
    six = Problem("", "What is 3 + 3?", expected="6")
    engine.on_problem(six.text, "Answer: 6")
    engine.on("Answer: 6" + CUES[0], " 6\n")
    made = ask(workspace, six, verifier=Judge(), keep=True)
    assert (made.how, made.grade, made.deposit_id) == ("fresh", "proved", None)
    deposit = workspace.library.get(made.kept or "")
    assert (deposit.source, deposit.answer) == ("ask", "6")
    assert deposit.cost["decode_tokens"] == made.cost.decode_tokens
    again = ask(workspace, replace(six, expected=None), keep=True, verifier=Judge())
    assert (again.how, again.deposit_id, again.kept) == ("replayed", deposit.id, None)
    failed = ask(workspace, Problem("", QUESTION + "!", "9"), verifier=Judge(), keep=True)
    assert failed.kept is None
    assert workspace.library.count() == 2
    assert sound(workspace)


@pytest.mark.parametrize("stale", ["another day", "damaged", "not reproduced"])
def test_what_is_kept_takes_the_place_of_what_does_not_serve(
    tmp_path: Path, engine: ScriptedEngine, stale: str
) -> None:
    engine.tokenizer = Dated()
    with opened(tmp_path, engine) as workspace:
        (outcome,) = run(workspace)
        engine.on_problem(QUESTION, "Again:\nAnswer: 4")
        engine.on("Again:\nAnswer: 4" + CUES[0], " 4\n")
        if stale == "another day":
            engine.tokenizer.day = "2 May"
        elif stale == "damaged":
            with sqlite3.connect(workspace.library.path) as connection:
                connection.execute("UPDATE deposits SET trace = '5'")
            connection.close()
        else:
            engine.on(SOLUTION + CUES[0], " 5\n")
        made = ask(workspace, FOUR, verifier=Judge(), keep=True)
        assert made.how == "fresh"
        assert made.kept not in (None, outcome.deposit_id)
        again = ask(workspace, FOUR)
        assert (again.how, again.deposit_id) == ("replayed", made.kept)


def test_what_cannot_be_kept_is_refused(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="kept"):
        ask(workspace, FOUR, keep=True)
    with pytest.raises(UsageError, match="kept"):
        ask(workspace, FOUR, keep=True, verifier=Judge(), terms=Terms(max_tokens=9))


# --- a template that changes between runs -------------------------------------------------------


class Dated(ToyTokenizer):
    """Renders today's date, which its digest does not know."""

    day = "1 May"

    def render(self, messages: Sequence[Message]) -> str:
        return super().render(messages).replace("<bos>", f"<bos>Today is {self.day}. ")


def test_yesterdays_deposit_is_not_replayed_under_todays_prompt(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    tokenizer = Dated()
    engine.tokenizer = tokenizer
    with opened(tmp_path, engine) as workspace:
        (first,) = run(workspace)
        assert ask(workspace, FOUR).how == "replayed"
        tokenizer.day = "2 May"
        answer = ask(workspace, FOUR)
        assert was_fresh(answer, "rendering")
        assert answer.reuse is not None
        assert answer.reuse.reused_tokens == 0
        with pytest.raises(BelowMinimum, match="replayed"):
            ask(workspace, FOUR, minimum="replayed")
        (second,) = run(workspace)  # it takes the stale one's place
        assert ask(workspace, FOUR).deposit_id == second.deposit_id != first.deposit_id
        tokenizer.day = "1 May"  # and a clock set back does not bring that back
        assert was_fresh(ask(workspace, FOUR), "rendering")


def test_a_template_with_another_digest_and_the_same_text_is_another_question(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    engine.tokenizer = OtherTemplate()
    assert was_fresh(ask(workspace, FOUR), "no_deposit")
    (outcome,) = run(workspace)
    assert outcome.state == "solved"  # each template has its own deposit from now on
    assert ask(workspace, FOUR).deposit_id == outcome.deposit_id
    engine.tokenizer = ToyTokenizer()
    before = ask(workspace, FOUR)
    assert (before.how, before.deposit_id != outcome.deposit_id) == ("replayed", True)


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
