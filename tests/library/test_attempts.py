"""Attempts from one prompt state: what they say, what they cost, and what ends them."""

from __future__ import annotations

import pytest

from kvgraft import limits
from kvgraft.decode import Sampling, greedy, sample_lanes
from kvgraft.engines.base import Message
from kvgraft.engines.toy import ToyEngine
from kvgraft.errors import ContextTooLong, UsageError
from kvgraft.flops import request_flops
from kvgraft.library.attempts import Attempt, Batch, LocalModel, attempt, messages_prompt
from kvgraft.library.budget import Allowance, Budget
from kvgraft.prompt import problem_prompt
from kvgraft.reuse import Keep, compute_prompt
from library.scripted import QUESTION, ScriptedEngine
from toys import memory_chunks

ASKED = [Message("user", QUESTION)]
DRAW = Sampling(seed=3)
PROMPT_TOKENS = 18
SAID = ("4", "12345", "no end " * 40)  # with the end token 2 and 6 steps; the last one is cut off


@pytest.fixture
def engine() -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.on_problem(QUESTION, *SAID, alone="alone")
    return engine


def tried(
    engine: ToyEngine, count: int, sampling: Sampling | None = DRAW, **options: object
) -> Batch:
    prompt = problem_prompt(engine.tokenizer, QUESTION, None)
    assert len(prompt.ids) == PROMPT_TOKENS
    return attempt(engine, None, prompt, count, sampling, 30, **options)  # type: ignore[arg-type]


def test_every_lane_is_an_attempt(engine: ScriptedEngine) -> None:
    batch = tried(engine, 3)
    assert batch.attempts == (
        Attempt("4", True, 2),
        Attempt("12345", True, 6),
        Attempt(SAID[2][:30], False, 31),
    )
    cost = batch.cost
    assert (cost.attempts, cost.prefill_tokens, cost.reused_tokens) == (3, PROMPT_TOKENS, 0)
    assert cost.decode_tokens == 2 + 6 + 31
    assert cost.model_flops == request_flops(
        engine.model_size,
        engine.spec,
        reused_tokens=0,
        computed_tokens=PROMPT_TOKENS,
        steps=[2, 6, 31],
    )


def test_without_sampling_it_is_the_greedy_text_at_batch_1(engine: ScriptedEngine) -> None:
    seen: list[object] = []
    batch = tried(
        engine,
        1,
        None,
        on_finish=lambda lane, one: bool(seen.append((lane, one))),
        on_step=lambda step, running: seen.append((step, running)),
    )
    assert batch.attempts == (Attempt("alone", True, 6),)
    assert seen == [*((step, 1) for step in range(5)), (0, batch.attempts[0])]


def test_they_are_what_the_functions_below_give() -> None:
    engine = ToyEngine(4)
    ids = problem_prompt(engine.tokenizer, QUESTION, None).ids
    for sampling in (None, DRAW):
        computed = compute_prompt(engine, None, ids, room=30)
        if sampling is None:
            expected = [greedy(computed.context, 30, engine.tokenizer.stop_ids)]
        else:
            lanes = computed.context.fork(5, 30)
            expected = sample_lanes(lanes, 30, engine.tokenizer.stop_ids, sampling)
        batch = tried(engine, len(expected), sampling)
        assert [one.text for one in batch.attempts] == [
            engine.tokenizer.decode(one.ids) for one in expected
        ]
        assert batch == tried(engine, len(expected), sampling)
    assert tried(engine, 5) != tried(engine, 5, Sampling(seed=4))


def test_a_pass_gives_the_others_up(engine: ScriptedEngine) -> None:
    batch = tried(engine, 3, on_finish=lambda lane, one: one.text == "12345")
    assert batch.attempts == (
        Attempt("4", True, 2),
        Attempt("12345", True, 6),
        Attempt("no en", False, 6, given_up=True),
    )


def test_one_prompt_state_serves_all_and_is_reused(engine: ScriptedEngine) -> None:
    model = LocalModel(engine, memory_chunks())
    first = model.attempt(ASKED, 3, DRAW, 30, keep=Keep.ALL)
    engine.forwards.clear()
    second = model.attempt(ASKED, 3, DRAW, 30)
    assert first.attempts == second.attempts
    assert (second.cost.prefill_tokens, second.cost.reused_tokens) == (0, PROMPT_TOKENS)
    assert set(engine.forwards) == {1}  # the lanes' own rows
    assert model.name == "toy:0"


def test_a_conversation_is_rendered_as_the_template_has_it(engine: ScriptedEngine) -> None:
    turns = [Message("system", "S"), *ASKED, Message("assistant", "5"), Message("user", "No.")]
    prompt = messages_prompt(engine.tokenizer, turns)
    assert (
        prompt.text
        == f"<bos><user>S<eos><user>{QUESTION}<eos><assistant>5<eos><user>No.<eos><assistant>"
    )
    alone = messages_prompt(engine.tokenizer, ASKED)
    assert alone == problem_prompt(engine.tokenizer, QUESTION, None)


def test_without_a_template_turns_are_paragraphs(engine: ScriptedEngine) -> None:
    engine.tokenizer.template_digest = "none"
    turns = [*ASKED, Message("assistant", "5"), Message("user", "No.")]
    assert messages_prompt(engine.tokenizer, turns).text == f"{QUESTION}\n\n5\n\nNo.\n\n"


# --- what ends them ---------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [None, DRAW])
@pytest.mark.parametrize("tokens", [1, PROMPT_TOKENS, PROMPT_TOKENS + 1, PROMPT_TOKENS + 7, 200])
def test_an_allowance_in_tokens_is_never_passed(
    engine: ScriptedEngine, sampling: Sampling | None, tokens: int
) -> None:
    engine.on_problem(QUESTION, "no end " * 40)
    allowance = Allowance(Budget(tokens=tokens))
    count = 1 if sampling is None else 3
    batch = tried(engine, count, sampling, allowance=allowance)
    cost = batch.cost
    spent = (cost.prefill_tokens or 0) + (cost.decode_tokens or 0)
    # The prompt is one call, and computed before anything can be said of it.
    most = max(tokens, PROMPT_TOKENS)
    # Lanes draw once more behind their last token, to see whether it is the end.
    whole = PROMPT_TOKENS + (30 if sampling is None else 3 * 31)
    assert spent == min(whole, most - (most - PROMPT_TOKENS) % count)
    assert bool(allowance.ran_out) == (whole > tokens)
    assert all(one.given_up for one in batch.attempts) == bool(allowance.ran_out)
    if not batch.attempts:
        assert (cost.attempts, cost.decode_tokens) == (0, 0)


def test_an_allowance_that_is_just_enough_is_enough(engine: ScriptedEngine) -> None:
    for count, sampling, steps in ((2, DRAW, 2 + 6), (1, None, 6)):
        allowance = Allowance(Budget(tokens=PROMPT_TOKENS + steps))
        batch = tried(engine, count, sampling, allowance=allowance)
        assert all(one.finished for one in batch.attempts)
        assert (allowance.ran_out, allowance.tokens_left) == ("", 0)


def test_what_was_cut_off_was_not_given_up(engine: ScriptedEngine) -> None:
    engine.on_problem(QUESTION, "x" * 40)
    assert tried(engine, 1, None).attempts == (Attempt("x" * 30, False, 30),)
    assert tried(engine, 1, DRAW).attempts == (Attempt("x" * 30, False, 31),)


@pytest.mark.parametrize(
    ("count", "sampling", "tokens"),
    [
        (0, DRAW, 1),
        (limits.MAX_ATTEMPTS + 1, DRAW, 1),
        (1, DRAW, 0),
        (1, DRAW, limits.MAX_NEW_TOKENS + 1),
        (2, None, 1),
    ],
)
def test_what_is_no_batch_is_refused(
    engine: ScriptedEngine, count: int, sampling: Sampling | None, tokens: int
) -> None:
    engine.forwards.clear()
    with pytest.raises(UsageError):
        LocalModel(engine, None).attempt(ASKED, count, sampling, tokens)
    assert engine.forwards == []


def test_a_prompt_without_room_is_refused(engine: ScriptedEngine) -> None:
    with pytest.raises(ContextTooLong):
        LocalModel(engine, None).attempt([Message("user", "x" * 2030)], 1, None, 30)


def test_an_interruption_leaves_no_context_open(engine: ScriptedEngine) -> None:
    engine.on_problem(QUESTION, "four")
    opened: list[object] = []
    closed: list[object] = []
    real = engine.open_context

    def open_context(capacity: int) -> object:
        context = real(capacity)
        opened.append(context)
        close = context.close
        context.close = lambda: (closed.append(context), close())  # type: ignore[method-assign]
        return context

    engine.open_context = open_context  # type: ignore[method-assign, assignment]

    def interrupt(step: int, running: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    for sampling in (None, DRAW):
        with pytest.raises(KeyboardInterrupt):
            tried(engine, 1, sampling, on_step=interrupt)
    assert len(opened) == 2
    assert set(map(id, opened)) == set(map(id, closed))
