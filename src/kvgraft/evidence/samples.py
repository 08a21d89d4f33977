"""Real text, and the prompts and splits that exactness is tested on."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import numpy as np

from kvgraft.engines.base import Engine
from kvgraft.errors import InputError
from kvgraft.prompt import encode

SHORTEST, LONGEST = 64, 4096
DECODE_STEPS = 8
_TEXT_CHARS_PER_TOKEN = 12  # more than any tokenizer here needs; texts are cut to tokens


@dataclass(frozen=True)
class Sample:
    """`ids` are the whole prompt; its first `stored` tokens are captured by another process.

    `reused` tokens, never none, are expected to be grafted, and `calls` calls to be made.
    """

    ids: tuple[int, ...]
    stored: int
    reused: int
    calls: int


def corpus() -> str:
    """English prose that every Python carries: the language reference's topics."""
    from pydoc_data.topics import topics

    return inspect.cleandoc("\n\n".join(topics[name] for name in sorted(topics)))


def cut_kind(stored: int, tokens: int, block: int) -> str:
    """Where the stored part of a prompt ends: `whole` (the prompt is stored to its end), `boundary`
    (at the end of a block), `beside` (one token from there), or `tail` (further inside a block)."""
    if stored == tokens:
        return "whole"
    return {0: "boundary", 1: "beside", block - 1: "beside"}.get(stored % block, "tail")


def make_samples(engine: Engine, count: int, seed: int = 0, longest: int = LONGEST) -> list[Sample]:
    """`count` prompts of 64 to `longest` tokens (or what the context holds), spread by ratio, each
    with a split; block boundaries and their neighbours are always among them.

    Raises:
        InputError: `longest` or the context is too short for any sample.
    """
    longest = min(longest, engine.context_tokens - DECODE_STEPS - 1)
    if longest < SHORTEST:
        raise InputError(
            f"samples have {SHORTEST} tokens or more, here at most {longest} are possible",
            where=engine.model,
        )
    block = engine.form.block
    rng = np.random.default_rng(seed)
    lengths = np.rint(np.geomspace(SHORTEST, longest, count)).astype(int)
    text = corpus()
    samples = []
    for number, length in enumerate(int(length) for length in lengths):
        if number % 5 == 1:  # on a block boundary, or one token beside it
            length = max(1, length // block) * block + (number // 5) % 3 - 1
            length = min(max(length, SHORTEST), longest)
        start = int(rng.integers(0, len(text) - length * _TEXT_CHARS_PER_TOKEN))
        ids = encode(engine.tokenizer, text[start : start + length * _TEXT_CHARS_PER_TOKEN])
        samples.append(_split(engine, ids[:length], number, rng))
    return samples


def _split(engine: Engine, ids: tuple[int, ...], number: int, rng: np.random.Generator) -> Sample:
    block, length = engine.form.block, len(ids)
    # Every seventh sample is stored whole; so are those too short to have a block to graft.
    whole = number % 7 == 3 or length <= block
    suffix = int(rng.integers(1, block + block // 2))
    stored = length if whole else max(block, length - suffix)
    reused = length if whole else stored // block * block
    calls = 0 if whole else -(-length // block) - reused // block
    return Sample(ids, stored, reused, calls)
