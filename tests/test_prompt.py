"""From text to ids: one BOS, clean joints, canonical text, and templates that do not sit still.

Numbers in parentheses are rows of the fault list that these tests answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import kvgraft
from kvgraft.cli.main import make_app
from kvgraft.engines.base import Message
from kvgraft.engines.toy import ToyEngine, ToyShape, ToyTokenizer
from kvgraft.errors import InputError, UsageError
from kvgraft.library import answer as answer_module
from kvgraft.library.ask import ask
from kvgraft.library.problem import Problem
from kvgraft.library.solve import Effort, solve_all
from kvgraft.prompt import (
    CUES,
    answer_prefixes,
    encode,
    join,
    problem_prompt,
    render_messages,
    shared_prefix,
    turn_ends,
)
from library.scripted import FOUR, QUESTION, Judge, ScriptedEngine, opened, solving_engine
from toys import cold, memory_chunks, run

BOS = 256


class AddsBos(ToyTokenizer):
    """Adds BOS by itself, although its template spells it."""

    def encode(self, text: str) -> list[int]:
        return [BOS, *super().encode(text)]


class WithoutBos(ToyTokenizer):
    bos_id = None


class Plain(ToyTokenizer):
    """A base model's: no chat template."""

    template_digest = "none"

    def render(self, messages: Sequence[Message]) -> str:
        raise UsageError("the model has no chat template")


class Merging(ToyTokenizer):
    """Joins some pairs of characters into one token, as real vocabularies do."""

    def __init__(self, **merges: int) -> None:
        # Ids that no ASCII text has, so that the toy engine can run them.
        self.merges = merges or {": ": 200, "r ": 201, "ab": 202}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        pattern = "|".join(map(re.escape, self.merges))
        for piece in re.split(f"({pattern})", text):
            ids += [self.merges[piece]] if piece in self.merges else super().encode(piece)
        return ids


class Clock(ToyTokenizer):
    """Its template tells the date. The template is the same every day, and so is its digest."""

    today = "Monday"

    def render(self, messages: Sequence[Message]) -> str:
        told = Message("system", f"You are a careful assistant. Today is {self.today}.")
        return super().render([told, *messages])


class DropsReasoning(ToyTokenizer):
    """Its template leaves the reasoning of earlier turns out."""

    def render(self, messages: Sequence[Message]) -> str:
        kept = [Message(m.role, re.sub("(?s)<think>.*</think>", "", m.content)) for m in messages]
        return super().render(kept)


# --- one BOS (4) ------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [ToyTokenizer(), AddsBos()], ids=["spelled", "both"])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_prompt_has_one_bos(tokenizer: ToyTokenizer, system: str | None) -> None:
    made = problem_prompt(tokenizer, "What?", system)
    assert made.text.startswith("<bos>")
    assert made.ids[0] == BOS
    assert made.ids.count(BOS) == 1
    assert made.ids == problem_prompt(ToyTokenizer(), "What?", system).ids


def test_a_model_that_begins_with_bos_gets_it_where_nothing_spells_it() -> None:
    assert encode(ToyTokenizer(), "ab") == (BOS, 97, 98)
    assert encode(AddsBos(), "ab") == (BOS, 97, 98)


def test_a_model_without_bos_gets_none() -> None:
    assert encode(WithoutBos(), "ab") == (97, 98)
    with pytest.raises(InputError, match="empty"):
        encode(WithoutBos(), "")


@pytest.mark.parametrize("tokenizer", [ToyTokenizer, AddsBos], ids=["spelled", "both"])
def test_one_bos_and_the_same_ids_through_every_edge(
    tokenizer: type[ToyTokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []

    def watched(engine: Any, store: Any, ids: Sequence[int], **options: Any) -> Any:
        seen.append(tuple(ids))
        return compute(engine, store, ids, **options)

    compute = answer_module.compute_prompt
    monkeypatch.setattr(answer_module, "compute_prompt", watched)
    monkeypatch.setattr("kvgraft.engines.toy.ToyTokenizer", tokenizer)
    text = "Cafe\u0301: what is 2 + 2? \r\n"  # not canonical, so that every edge has to act alike
    words = ["ask", text, "--model", "toy", "--store", str(tmp_path), "--max-tokens", "2"]
    done = CliRunner().invoke(make_app(), words)
    assert done.exit_code == 0, done.output
    with kvgraft.open("toy", store=tmp_path) as memory:
        memory.ask(text, max_new_tokens=2)
        memory.ask(kvgraft.Problem("", text), max_new_tokens=2)
    wanted = problem_prompt(ToyTokenizer(), "Caf\u00e9: what is 2 + 2?", None).ids
    assert seen == [wanted] * 3
    assert wanted.count(BOS) == 1


def test_a_fast_tokenizer_that_adds_bos_to_a_template_that_spells_it() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    from kvgraft.engines.transformers.tokenizer import TransformersTokenizer

    words = {"<s>": 0, "</s>": 1, "<unk>": 2, "what": 3, "?": 4, "user": 5, "assistant": 6}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.chat_template = (
        "{{ bos_token }}{% for m in messages %} {{ m.role }} {{ m.content }}{% endfor %} assistant"
    )
    text = "<s> user what? assistant"
    assert fast.encode(text).count(0) == 2  # the trap
    tokenizer = TransformersTokenizer(fast, frozenset({1}), begins_with_bos=True)
    made = problem_prompt(tokenizer, "what?", None)
    assert made.text == text
    assert made.ids == (0, 5, 3, 4, 6)


# --- chats and plain models -------------------------------------------------------------------


def test_a_chat_ends_where_the_answer_begins() -> None:
    made = problem_prompt(ToyTokenizer(), "What?", "Be brief.")
    assert made.text == "<bos><user>Be brief.<eos><user>What?<eos><assistant>"
    assert made.ids == tuple(ToyTokenizer().encode(made.text))
    assert problem_prompt(ToyTokenizer(), "What?", None).text == "<bos><user>What?<eos><assistant>"


def test_a_system_text_that_is_empty_is_not_one_that_is_absent() -> None:
    texts = {problem_prompt(ToyTokenizer(), "What?", system).text for system in (None, "", "x")}
    assert len(texts) == 3


def test_a_model_without_a_template_gets_the_text_itself() -> None:
    made = problem_prompt(Plain(), "What?", "Be brief.")
    assert made.text == "Be brief.\n\nWhat?\n\n"
    assert made.ids == (BOS, *b"Be brief.\n\nWhat?\n\n")
    turns = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    assert render_messages(Plain(), turns) == "a\n\nb\n\nc\n\n"


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_an_empty_problem_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="the problem is empty"):
        problem_prompt(ToyTokenizer(), text, "a system text does not make it one")


# --- canonical text ---------------------------------------------------------------------------


def test_what_is_addressed_is_what_is_tokenised(tmp_path: Path) -> None:
    engine = solving_engine()
    engine.on_problem("caf\u00e9 \nx", "Answer: 4")
    given = Problem("1", "cafe\u0301 \r\nx \t\n", expected="4", system="be\r\nbrief  ")
    assert (given.text, given.system) == ("caf\u00e9\nx", "be\nbrief")
    with opened(tmp_path, engine) as workspace:
        wanted = workspace.space("be\nbrief").address("caf\u00e9\nx")
        assert workspace.space(given.system).address(given.text) == wanted
        made = problem_prompt(engine.tokenizer, given.text, given.system)
        assert made.text == "<bos><user>be\nbrief<eos><user>caf\u00e9\nx<eos><assistant>"


# --- joints -----------------------------------------------------------------------------------


def test_a_clean_joint_keeps_the_whole_left_side() -> None:
    joint = join(Merging(), "the answer:", "42")
    assert joint.clean
    assert joint.backed_off == 0
    assert joint.ids == encode(Merging(), "the answer:")


def test_a_token_across_the_joint_is_left_to_what_follows() -> None:
    joint = join(Merging(), "the answer:", " 42")
    assert not joint.clean
    assert joint.backed_off == 1
    assert joint.ids == encode(Merging(), "the answer")


@given(left=st.text("ab:r ", max_size=8), right=st.text("ab:r ", max_size=8))
def test_a_joint_is_a_prefix_with_and_without_what_follows(left: str, right: str) -> None:
    tokenizer = Merging()
    joint = join(tokenizer, left, right)
    alone, together = encode(tokenizer, left), encode(tokenizer, left + right)
    assert alone[: len(joint.ids)] == joint.ids == together[: len(joint.ids)]
    assert len(joint.ids) + joint.backed_off == len(alone)
    assert len(joint.ids) == shared_prefix(alone, together)
    assert joint.clean == (together[: len(alone)] == alone)


def test_no_cue_ends_in_white_space() -> None:
    assert CUES
    assert [cue for cue in CUES if cue != cue.rstrip()] == []
    assert len(set(CUES)) == len(CUES)


def test_cues_with_a_clean_joint_come_first() -> None:
    # Every cue that ends in a colon merges with the space behind it.
    found = list(answer_prefixes(Merging(), "<bos>q", "trace", "42"))
    clean = [cue for cue in CUES if not cue.endswith(":")]
    assert clean
    assert len(clean) < len(CUES)
    assert [cue for cue, _ in found] == [*clean, *(cue for cue in CUES if cue not in clean)]
    assert [joint.clean for _, joint in found] == sorted((c in clean for c in CUES), reverse=True)
    for cue, joint in found:
        whole = encode(Merging(), f"<bos>qtrace{cue} 42")
        assert joint.ids == whole[: len(joint.ids)]


def test_without_merges_all_cues_are_clean_and_in_order() -> None:
    found = list(answer_prefixes(ToyTokenizer(), "<bos>q", "trace", "42"))
    assert [cue for cue, _ in found] == list(CUES)
    assert all(joint.ids == encode(ToyTokenizer(), f"qtrace{cue}") for cue, joint in found)


def full_attention() -> ToyEngine:
    """A prompt is resumed wherever two part: no window has to be there."""
    return ToyEngine(shape=ToyShape(windows=(0, 0)))


def test_ids_that_split_a_text_otherwise_share_only_what_is_equal() -> None:  # (5)
    engine, store = full_attention(), memory_chunks()
    text = "x" * 15 + "bc: " * 12
    unusual, usual = encode(ToyTokenizer(), text), encode(Merging(), text)
    run(engine, store, unusual)
    bits, report = run(engine, store, usual)
    assert report.reused_tokens == shared_prefix(unusual, usual) // 16 * 16 == 16
    assert bits == cold(engine, usual)


# --- templates that rewrite, or tell the time (6) ---------------------------------------------


def test_a_template_that_rewrites_earlier_turns_reuses_what_stayed() -> None:
    engine, store = full_attention(), memory_chunks()
    tokenizer = DropsReasoning()
    question = Message("user", "How many legs do three spiders have? Think first.")
    live = encode(tokenizer, tokenizer.render([question]) + "<think>8 each.</think>24<eos>")
    run(engine, store, live)
    turns = [question, Message("assistant", "<think>8 each.</think>24"), Message("user", "Sure?")]
    ids = encode(tokenizer, tokenizer.render(turns))
    shared = shared_prefix(live, ids)
    assert shared < len(live) - 2  # the reasoning is gone from the history
    bits, report = run(engine, store, ids)
    assert 0 < report.reused_tokens == shared // 16 * 16 < len(ids)
    assert report.misses == [f"not_stored: no chunk after {shared // 16} calls"]
    assert bits == cold(engine, ids)


def test_a_template_that_tells_the_date_reuses_what_stands_before_it() -> None:
    engine, store, tokenizer = full_attention(), memory_chunks(), Clock()
    monday = problem_prompt(tokenizer, QUESTION, None).ids
    run(engine, store, monday)
    tokenizer.today = "Tuesday"
    tuesday = problem_prompt(tokenizer, QUESTION, None).ids
    shared = shared_prefix(monday, tuesday)
    bits, report = run(engine, store, tuesday)
    assert 0 < report.reused_tokens == shared // 16 * 16 < len(tuesday)
    assert report.misses == [f"not_stored: no chunk after {shared // 16} calls"]
    assert bits == cold(engine, tuesday)


def clocked() -> tuple[ScriptedEngine, Clock]:
    engine, clock = solving_engine(), Clock()
    engine.tokenizer = clock
    return engine, clock


def test_a_deposit_of_yesterday_is_not_replayed_today(tmp_path: Path) -> None:
    engine, clock = clocked()
    effort = Effort(3, 100)
    with opened(tmp_path, engine) as workspace:
        assert [o.state for o in solve_all(workspace, [FOUR], Judge(), effort)] == ["solved"]
        assert ask(workspace, FOUR).how == "replayed"
        clock.today = "Tuesday"
        missed = ask(workspace, FOUR)
        assert (missed.how, missed.text, missed.grade) == ("fresh", "Answer: 22", "none")
        assert [reason.partition(":")[0] for reason in missed.reasons] == ["rendering"]
        # It is solved anew, in the place of yesterday's.
        assert [o.state for o in solve_all(workspace, [FOUR], Judge(), effort)] == ["solved"]
        assert ask(workspace, FOUR).how == "replayed"
        assert workspace.library.count() == 1
        clock.today = "Monday"
        assert ask(workspace, FOUR).how == "fresh"


def test_nor_is_a_deposit_of_text_alone_returned_under_another_date(tmp_path: Path) -> None:
    engine, clock = clocked()
    engine.script.pop()  # it does not restate its answer
    with opened(tmp_path, engine) as workspace:
        list(solve_all(workspace, [FOUR], Judge(), Effort(3, 100)))
        assert ask(workspace, FOUR).how == "recorded"
        clock.today = "Tuesday"
        assert ask(workspace, FOUR).how == "fresh"


# --- where turns end ------------------------------------------------------------------------------

END = 9


@pytest.mark.parametrize(
    ("roles", "ids", "ends"),
    [
        ("", [], []),
        ("u", [1, END, 2], []),
        ("ua", [1, END, 2, 3, END, 4], [5]),
        ("uau", [1, END, 2, 3, END, 4, END, 5], [5]),
        ("uaua", [1, END, 2, END, 3, END, 4, END], [4, 8]),
        ("suau", [1, END, 1, END, 2, 3, END, 4, END, 5], [7]),
        ("uau", [7, END, 1, END, 2, 3, END, 4, END, 5], [7]),  # the template's own system turn
        ("suau", [1, END, 2, 3, END, 4, END, 5], [5]),  # the system text in the user's turn
        ("uau", [1, 2, 3], []),  # a template that ends no turn
        ("uaua", [2, END], [2]),  # one that drops turns
    ],
)
def test_where_the_assistants_turns_end(roles: str, ids: list[int], ends: list[int]) -> None:
    names = {"s": "system", "u": "user", "a": "assistant"}
    messages = [Message(names[role], "x") for role in roles]
    assert turn_ends(ids, {END}, messages) == ends


def test_turns_of_a_longer_conversation_end_where_they_did() -> None:
    tokenizer = ToyTokenizer()
    messages: list[Message] = []
    before: list[int] = []
    for turn in range(5):
        messages += [Message("user", f"question {turn}"), Message("assistant", "word " * turn)]
        ids = encode(tokenizer, render_messages(tokenizer, [*messages, Message("user", "?")]))
        ends = turn_ends(ids, tokenizer.stop_ids, [*messages, Message("user", "?")])
        assert ends[:-1] == before
        assert len(ends) == turn + 1
        before = ends
