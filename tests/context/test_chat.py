"""Conversations: live and restarted agree, history is reused, rewriting is named."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from kvgraft.context.chat import Chat
from kvgraft.engines.base import Message
from kvgraft.engines.toy import ToyEngine, ToyTokenizer
from kvgraft.plan import PUBLIC_SALT
from kvgraft.prompt import history_ids, turn_ends
from kvgraft.store.check import open_local
from kvgraft.store.chunks import ChunkStore
from toys import memory_chunks

TURNS = ("Tell me about chunks.", "And blocks?", "Why?", "Go on, please.", "Thanks; what is left?")


@pytest.fixture
def chunks(tmp_path: Path) -> ChunkStore:
    return open_local(tmp_path / "store")


def talk(engine: ToyEngine, chunks: ChunkStore, turns: Sequence[str], history=()) -> list:
    with Chat(engine, chunks, PUBLIC_SALT, system="Be brief.", history=history) as chat:
        replies = [chat.send(turn, max_new_tokens=20) for turn in turns]
        chat.settled()
    return [*replies, chat.messages]


def test_live_and_restarted_chats_have_the_same_logits(chunks: ChunkStore, tmp_path: Path) -> None:
    live = talk(ToyEngine(), chunks, TURNS)
    empty = open_local(tmp_path / "other")
    history: list[Message] = []
    for turn, expected in zip(TURNS, live[:-1], strict=True):
        # a new engine, a new store, a new chat for every turn: nothing carried over but text
        reply, messages = talk(ToyEngine(), empty, [turn], history)
        assert reply.decoded == expected.decoded
        history = messages[1:]


def test_a_growing_chat_reuses_its_history(chunks: ChunkStore) -> None:
    engine = ToyEngine()
    replies = talk(engine, chunks, TURNS)[:-1]
    block = engine.form.block
    for before, after in pairwise(replies):
        # all of the earlier request and of its reply; the toy spells a text byte by byte
        grown = before.reuse.tokens + len(before.text.encode())
        assert after.reuse.reused_tokens >= grown
        assert after.reuse.computed_tokens < 2 * block


def test_settling_is_what_makes_the_reply_reusable(chunks: ChunkStore) -> None:
    engine = ToyEngine()
    with Chat(engine, chunks, PUBLIC_SALT) as chat:
        first = chat.send("x" * 40, max_new_tokens=60)
        report = chat.settled()
        assert report is not None
        assert report.tokens % engine.form.block
        second = chat.send("y", max_new_tokens=1)
    assert second.reuse.reused_tokens == report.tokens > first.reuse.tokens


def test_a_chat_that_was_resumed_reads_nothing_again(chunks: ChunkStore) -> None:
    engine = ToyEngine()
    messages = talk(engine, chunks, TURNS[:3])[-1]
    with Chat(engine, chunks, PUBLIC_SALT, history=messages[1:], system="Be brief.") as chat:
        reply = chat.send("More?", max_new_tokens=1)
    assert reply.reuse.reused_tokens == finished_turns(engine, messages)


def finished_turns(engine: ToyEngine, messages: Sequence[Message]) -> int:
    """How many tokens they take, to the end of the last one."""
    ids = history_ids(engine.tokenizer, messages)
    return turn_ends(ids, engine.tokenizer.stop_ids, messages)[-1]


def test_one_beginning_two_branches(chunks: ChunkStore) -> None:
    engine = ToyEngine()
    messages = talk(engine, chunks, TURNS[:2])[-1]
    turns = finished_turns(engine, messages)
    for question in ("And this?", "Or that?", "And this?"):
        live, _ = talk(engine, chunks, [question], messages[1:])
        cold, _ = talk(ToyEngine(), memory_chunks(), [question], messages[1:])
        assert live.reuse.reused_tokens >= turns
        assert cold.reuse.reused_tokens == 0
        assert live.decoded == cold.decoded


class Forgetful(ToyTokenizer):
    """Drops what assistants said earlier, as templates that hide reasoning do."""

    def render(self, messages: Sequence[Message]) -> str:
        kept = [m if m.role != "assistant" else Message("assistant", "") for m in messages[:-1]]
        return super().render([*kept, messages[-1]])


class Dated(ToyTokenizer):
    """Begins with today's date, as some templates do."""

    day = 1

    def render(self, messages: Sequence[Message]) -> str:
        return f"day {self.day}. " + super().render(messages)


def test_a_template_that_drops_replies_is_reused_as_far_as_it_goes(chunks: ChunkStore) -> None:
    engine = ToyEngine()
    engine.tokenizer = Forgetful()
    with Chat(engine, chunks, PUBLIC_SALT) as chat:
        chat.send("x" * 40, max_new_tokens=40)
        second = chat.send("y" * 40, max_new_tokens=1)
    assert second.reuse.reused_tokens >= engine.form.block
    assert second.reasons == () or second.reasons[0].startswith("not_stored")


def test_a_new_day_is_a_miss_with_a_reason(chunks: ChunkStore) -> None:
    engine = ToyEngine()
    tokenizer = Dated()
    engine.tokenizer = tokenizer
    with Chat(engine, chunks, PUBLIC_SALT) as chat:
        chat.send("x" * 40, max_new_tokens=40)
        chat.settled()
        tokenizer.day = 2
        second = chat.send("y" * 40, max_new_tokens=1)
    assert second.reuse.reused_tokens == 0
    assert any(reason.startswith("rewritten:") for reason in second.reasons)


@pytest.mark.parametrize("tokenizer", [Forgetful, Dated], ids=lambda one: one.__name__)
def test_live_and_restarted_agree_though_the_template_does_not_sit_still(
    chunks: ChunkStore, tokenizer: type[ToyTokenizer]
) -> None:
    def engine(day: int) -> ToyEngine:
        made = ToyEngine()
        made.tokenizer = tokenizer()
        if isinstance(made.tokenizer, Dated):
            made.tokenizer.day = day
        return made

    live = engine(1)
    with Chat(live, chunks, PUBLIC_SALT) as chat:
        for day, turn in enumerate(TURNS, 1):
            if isinstance(live.tokenizer, Dated):
                live.tokenizer.day = day
            before = list(chat.messages)
            said = chat.send(turn, max_new_tokens=20)
            chat.settled()
            with Chat(engine(day), memory_chunks(), PUBLIC_SALT, history=before) as restarted:
                assert restarted.send(turn, max_new_tokens=20).decoded == said.decoded


def test_an_empty_chat_has_nothing_to_settle(chunks: ChunkStore) -> None:
    with Chat(ToyEngine(), chunks, PUBLIC_SALT) as chat:
        assert chat.settled() is None
