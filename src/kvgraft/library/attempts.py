"""Attempts: texts that a model writes to one prompt, all from one prompt state.

The prompt is computed, or grafted, once, whatever the count of attempts. Nothing is deposited or
judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvgraft.breakeven import Load
from kvgraft.decode import Decoded, Sampling, greedy, sample_lanes
from kvgraft.engines.base import Engine, Message, Tokenizer
from kvgraft.errors import UsageError
from kvgraft.flops import request_flops
from kvgraft.library.budget import Allowance
from kvgraft.limits import MAX_ATTEMPTS, MAX_NEW_TOKENS
from kvgraft.meter import Cost
from kvgraft.plan import PUBLIC_SALT
from kvgraft.prompt import Prompt, encode, render_messages
from kvgraft.reuse import Computed, Keep, compute_prompt
from kvgraft.store.chunks import ChunkStore


@dataclass(frozen=True)
class Attempt:
    """One text. `finished`: the model came to its end by itself; else it was cut off, or, where
    `given_up`, nobody wanted to hear the rest. `decode_tokens` is None where they are not told."""

    text: str
    finished: bool
    decode_tokens: int | None
    given_up: bool = False


@dataclass(frozen=True)
class Batch:
    """Attempts at one prompt, in the order of their lanes, and what they took: attempts, tokens and
    FLOPs (times are for the caller to measure). None where the allowance had no room for any."""

    attempts: tuple[Attempt, ...]
    cost: Cost


OnFinish = Callable[[int, Attempt], bool]
OnStep = Callable[[int, int], None]


def go_on(number: int, attempt: Attempt) -> bool:
    """The `OnFinish` that ends no batch."""
    return False


def no_word(step: int, running: int) -> None:
    """The `OnStep` that says nothing."""


class Model(Protocol):
    """Whatever writes attempts: an engine here, or a server elsewhere."""

    @property
    def name(self) -> str:
        """As it was named."""

    def attempt(
        self,
        messages: Sequence[Message],
        count: int,
        sampling: Sampling | None,
        max_new_tokens: int,
        *,
        keep: Keep = Keep.BLOCKS,
        allowance: Allowance | None = None,
        on_finish: OnFinish = go_on,
        on_step: OnStep = no_word,
    ) -> Batch:
        """As the function `attempt`."""

    def close(self) -> None:
        """Give everything back. Idempotent."""


def check_attempts(count: int, sampling: Sampling | None, max_new_tokens: int) -> None:
    """Refuse what is no batch.

    Raises:
        UsageError: a count or a length out of its limits, or several greedy attempts.
    """
    if not 1 <= count <= MAX_ATTEMPTS:
        raise UsageError(f"attempts must be 1 to {MAX_ATTEMPTS}, not {count}")
    if not 1 <= max_new_tokens <= MAX_NEW_TOKENS:
        raise UsageError(f"max tokens must be 1 to {MAX_NEW_TOKENS}, not {max_new_tokens}")
    if sampling is None and count != 1:
        raise UsageError("greedy attempts are all the same one", hint="ask for 1, or sample")


def messages_prompt(tokenizer: Tokenizer, messages: Sequence[Message]) -> Prompt:
    """The prompt that a conversation is, up to where the next answer begins.

    Raises:
        InputError: the chat template refuses the turns.
    """
    text = render_messages(tokenizer, messages)
    return Prompt(text, encode(tokenizer, text))


def attempt(
    engine: Engine,
    chunks: ChunkStore | None,
    prompt: Prompt,
    count: int,
    sampling: Sampling | None,
    max_new_tokens: int,
    *,
    salt: bytes = PUBLIC_SALT,
    load: Load = Load.ALWAYS,
    keep: Keep = Keep.BLOCKS,
    allowance: Allowance | None = None,
    on_finish: OnFinish = go_on,
    on_step: OnStep = no_word,
) -> Batch:
    """`count` texts of at most `max_new_tokens` tokens behind `prompt`, sampled in one batch; or,
    without `sampling`, the one greedy text, decoded at batch 1 as `ask` does.

    `keep` says what of the prompt's state is stored. `on_finish(number, attempt)` is called as an
    attempt comes to its end; when it returns True the others are given up. So are they when the
    `allowance` has no room for one more token of each. `on_step(step, running)` follows progress.

    Raises:
        UsageError: as `check_attempts`.
        ContextTooLong: prompt and new tokens do not fit the model's context.
        EngineError: the engine gave logits that are not finite.
    """
    check_attempts(count, sampling, max_new_tokens)
    allowance = allowance or Allowance()
    computed = compute_prompt(
        engine,
        chunks,
        prompt.ids,
        salt=salt,
        keep=keep,
        cuts=prompt.cuts,
        load=load,
        room=max_new_tokens,
    )
    try:
        allowance.spend(computed.report.computed_tokens)
        writing = _Writing(engine.tokenizer, max_new_tokens, allowance, on_finish, on_step)
        decoded = writing.write(computed, count, sampling)
    finally:
        computed.context.close()
    steps = [one.steps for one in decoded]
    reused, fresh = computed.report.reused_tokens, computed.report.computed_tokens
    cost = Cost(
        attempts=len(decoded),
        prefill_tokens=fresh,
        reused_tokens=reused,
        decode_tokens=sum(steps),
        model_flops=request_flops(
            engine.model_size,
            engine.spec,
            reused_tokens=reused,
            computed_tokens=fresh,
            steps=steps,
        ),
    )
    return Batch(tuple(map(writing.attempt, decoded)), cost)


class _Writing:
    """One batch being decoded."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_new_tokens: int,
        allowance: Allowance,
        on_finish: OnFinish,
        on_step: OnStep,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_new_tokens = max_new_tokens
        self._allowance = allowance
        self._on_finish = on_finish
        self._on_step = on_step

    def write(self, computed: Computed, count: int, sampling: Sampling | None) -> list[Decoded]:
        if not self._may_go_on(count):
            return []
        if sampling is None:
            return [self._greedy(computed)]
        return self._sampled(computed, count, sampling)

    def _greedy(self, computed: Computed) -> Decoded:
        stop_ids = self._tokenizer.stop_ids
        decoded = greedy(computed.context, self._max_new_tokens, stop_ids, on_step=self._stepped)
        if decoded.finished:
            self._finished(0, decoded)
        return decoded

    def _sampled(self, computed: Computed, count: int, sampling: Sampling) -> list[Decoded]:
        lanes = computed.context.fork(count, self._max_new_tokens)
        computed.context.close()  # the lanes hold what they need
        try:
            return sample_lanes(
                lanes,
                self._max_new_tokens,
                self._tokenizer.stop_ids,
                sampling,
                self._finished,
                self._stepped,
            )
        finally:
            lanes.close()

    def _may_go_on(self, rows: int) -> bool:
        """Whether `rows` more may be computed; they are counted then."""
        if not self._allowance.allows(rows):
            return False
        self._allowance.spend(rows)
        return True

    def attempt(self, decoded: Decoded) -> Attempt:
        cut_off = len(decoded.ids) >= self._max_new_tokens
        text = self._tokenizer.decode(decoded.ids)
        given_up = not decoded.finished and not cut_off
        return Attempt(text, decoded.finished, decoded.steps, given_up)

    def _finished(self, lane: int, decoded: Decoded) -> bool:
        return self._on_finish(lane, self.attempt(decoded))

    def _stepped(self, step: int, running: int) -> bool:
        self._on_step(step, running)
        return bool(running) and not self._may_go_on(running)


@dataclass(frozen=True)
class LocalModel:
    """A `Model` that is an engine here, over a store of states."""

    engine: Engine
    chunks: ChunkStore | None
    salt: bytes = PUBLIC_SALT
    load: Load = Load.ALWAYS

    @property
    def name(self) -> str:
        return self.engine.model

    def attempt(
        self,
        messages: Sequence[Message],
        count: int,
        sampling: Sampling | None,
        max_new_tokens: int,
        *,
        keep: Keep = Keep.BLOCKS,
        allowance: Allowance | None = None,
        on_finish: OnFinish = go_on,
        on_step: OnStep = no_word,
    ) -> Batch:
        """As the function `attempt`.

        Raises:
            InputError: the chat template refuses the turns.
        """
        return attempt(
            self.engine,
            self.chunks,
            messages_prompt(self.engine.tokenizer, messages),
            count,
            sampling,
            max_new_tokens,
            salt=self.salt,
            load=self.load,
            keep=keep,
            allowance=allowance,
            on_finish=on_finish,
            on_step=on_step,
        )

    def close(self) -> None:
        self.engine.close()
