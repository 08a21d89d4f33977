"""What the tests of plan, format, store and reuse share: toy runs, and stores to run them with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvgraft.engines.base import Context
from kvgraft.engines.toy import ToyEngine, ToyShape
from kvgraft.reuse import Keep, ReuseReport, compute_prompt
from kvgraft.state import Role
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore

DECODE_STEPS = 4  # enough for a wrong window or position to show


class CountingToy(ToyEngine):
    """Counts its forward passes and the rows in them, whatever a report claims."""

    def __init__(self, seed: int = 0, shape: ToyShape | None = None) -> None:
        super().__init__(seed, shape)
        self.forwards: list[int] = []  # rows of each

    def forward(self, layers: Any, tokens: np.ndarray) -> np.ndarray:
        self.forwards.append(len(tokens))
        return super().forward(layers, tokens)


def prompt(tokens: int, seed: int = 0) -> np.ndarray:
    """Token ids that repeat nothing."""
    return np.random.default_rng(seed).integers(0, 256, tokens, dtype=np.uint32)


def memory_chunks() -> ChunkStore:
    return ChunkStore(MemoryStore(), Index(None))


def logits_bits(context: Context) -> bytes:
    """The bits of the next-token logits, and of a few greedy steps after them."""
    seen = [context.logits().tobytes()]
    for _ in range(DECODE_STEPS):
        context.decode(int(np.argmax(context.logits())))
        seen.append(context.logits().tobytes())
    return b"".join(seen)


def run(
    engine: ToyEngine,
    store: ChunkStore | None,
    ids: Sequence[int] | np.ndarray,
    *,
    keep: Keep = Keep.ALL,
    **options: Any,
) -> tuple[bytes, ReuseReport]:
    """Compute a prompt and decode a few tokens: the bits of all logits, and the report."""
    done = compute_prompt(engine, store, ids, keep=keep, room=DECODE_STEPS, **options)
    try:
        assert done.context.length == len(ids)
        return logits_bits(done.context), done.report
    finally:
        done.context.close()


def cold(engine: ToyEngine, ids: Sequence[int] | np.ndarray) -> bytes:
    """What a run without any store gives."""
    return run(engine, None, ids)[0]


def listed(store: ChunkStore) -> set[tuple[bytes, Role]]:
    return {(entry.object.key, entry.object.role) for entry in store.index.all_entries()}
