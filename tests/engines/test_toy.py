"""The toy engine passes the engine suite in every arrangement of windows and blocks."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from kvgraft.engines.base import Capabilities, Engine
from kvgraft.engines.toy import (
    RECURRENT,
    ToyContext,
    ToyEngine,
    ToyLanes,
    ToyShape,
    open_toy,
)
from kvgraft.errors import EngineError, UnknownModel
from kvgraft.reuse import Keep
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore
from kvgraft.testing.engines import EngineConformance
from kvgraft.testing.grafting import StoreFactory, expect_equal, prompt, run_digest, telling_lengths

SHAPES = {
    "full": ToyShape(windows=(0, 0), context_tokens=200),
    "sliding": ToyShape(windows=(9, 21), context_tokens=200),
    "window of 2": ToyShape(windows=(2, 0), context_tokens=150),
    "window of the block": ToyShape(windows=(0, 16, 17), context_tokens=200),
    "window below the block": ToyShape(windows=(0, 7), context_tokens=200),
    "window of many blocks": ToyShape(windows=(70, 0, 24, 7), context_tokens=260),
    "window over the context": ToyShape(windows=(0, 90), context_tokens=80),
    "block of 1": ToyShape(windows=(5, 0), block=1, rungs=(1,), context_tokens=60),
    "odd block": ToyShape(windows=(11, 0), block=7, rungs=(2, 7), context_tokens=101),
    "bare tail": ToyShape(windows=(11, 0), rungs=(), context_tokens=150),
    "recurrent": ToyShape(windows=(RECURRENT, RECURRENT), rungs=(), context_tokens=150),
    "recurrent and all": ToyShape(windows=(0, RECURRENT, 21), rungs=(), context_tokens=150),
}


@cache
def shaped(name: str) -> ToyEngine:
    return ToyEngine(shape=SHAPES[name])


class TestToy(EngineConformance):
    @pytest.fixture(params=SHAPES)
    def engine(self, request: pytest.FixtureRequest) -> Engine:
        return shaped(request.param)

    @pytest.fixture
    def store_factory(self) -> StoreFactory:
        return lambda: ChunkStore(MemoryStore(), Index(None))


class LimitedContext(ToyContext):
    """Of an engine that declares no ability, and has none."""

    def call_logits(self) -> np.ndarray:
        return super().call_logits()[-1:]

    def fork(self, lanes: int, new_tokens: int) -> ToyLanes:
        raise EngineError("this engine decodes no lanes")


class LimitedToy(ToyEngine):
    capabilities = Capabilities(monolithic=False, lanes=False, row_logits=False)

    def open_context(self, capacity: int) -> LimitedContext:
        context = super().open_context(capacity)
        context.__class__ = LimitedContext
        return context  # type: ignore[return-value]

    def monolithic_logits(self, ids: np.ndarray) -> np.ndarray:
        raise EngineError("this engine runs planned calls alone")


@cache
def limited() -> LimitedToy:
    return LimitedToy(shape=SHAPES["window of many blocks"])


class TestLimitedToy(EngineConformance):
    """Abilities that are not declared are not there, and nothing else is missing."""

    @pytest.fixture
    def engine(self) -> Engine:
        return limited()

    @pytest.fixture
    def store_factory(self) -> StoreFactory:
        return lambda: ChunkStore(MemoryStore(), Index(None))


def test_reuse_ends_where_sharing_ends_in_long_prompts() -> None:
    engine = ToyEngine(shape=ToyShape(windows=(0, 24), context_tokens=2200))
    block = engine.form.block
    for stored in (2 * block + 5, 64 * block + 5, 128 * block + 5):
        ids = prompt(engine, stored)
        store = ChunkStore(MemoryStore(), Index(None))
        run_digest(engine, store, ids, steps=0)
        seen = []
        for shared in (*(stored - 5 + d for d in (-1, 0, 1, 4)), stored):
            other = np.concatenate([ids[:shared], prompt(engine, 40, seed=7)]).astype(np.uint32)
            cold, _ = run_digest(engine, None, other, steps=2)
            run_digest(engine, store, other[: shared // block * block], steps=0)  # a point
            warm, report = run_digest(engine, store, other, keep=Keep.NOTHING, steps=2)
            same = int(np.argmin(np.append(ids == other[:stored], False)))
            seen += [
                ((shared, "digest"), warm, cold),
                ((shared, "reused"), report.reused_tokens, min(same, stored) // block * block),
            ]
        expect_equal(seen)
        store.close()


def test_memory_that_was_never_written_is_never_seen() -> None:
    engine = ToyEngine(shape=ToyShape(windows=(0, 24, 2), context_tokens=200))
    lengths = telling_lengths(engine)
    clean = [run_digest(engine, None, prompt(engine, tokens))[0] for tokens in lengths]
    seen = []
    for tokens, expected in zip(lengths, clean, strict=True):
        store = ChunkStore(MemoryStore(), Index(None))
        for case in ("cold", "restored"):
            arena = engine._pool.take(1)
            arena._memory[:] = 0xFF  # not a number, whichever row is read
            engine._pool.give(arena)
            digest, _ = run_digest(engine, store, prompt(engine, tokens))
            seen.append(((tokens, case), digest, expected))
        store.close()
    expect_equal(seen)


def test_names_choose_the_weights() -> None:
    assert open_toy("toy").fingerprint == open_toy("toy:0").fingerprint
    assert open_toy("toy:0").fingerprint.differing(open_toy("toy:1").fingerprint) == ("weights",)
    for name in ("toy:x", "toy:-1", "toy:1:2"):
        with pytest.raises(UnknownModel):
            open_toy(name)


def test_another_seed_reuses_nothing_and_says_why() -> None:
    store = ChunkStore(MemoryStore(), Index(None))
    ids = prompt(open_toy("toy"), 40)
    run_digest(open_toy("toy"), store, ids, steps=0)
    _, report = run_digest(open_toy("toy:1"), store, ids)
    assert report.reused_tokens == 0
    assert report.misses == ["fingerprint: weights differ"]
    _, report = run_digest(ToyEngine(1, ToyShape(windows=(0,))), store, ids)
    assert report.misses == ["not_stored: nothing from this model"]
    store.close()
