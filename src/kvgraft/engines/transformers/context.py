"""A live sequence of a transformers model, its cache in an arena with room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.arena import Arena, ArenaPool, check_vocabulary, lanes_capacity
from kvgraft.engines.arena_context import ArenaContext
from kvgraft.engines.transformers.layers import TORCH_DTYPES, ArenaCache
from kvgraft.errors import EngineError
from kvgraft.state import Role

if TYPE_CHECKING:
    from kvgraft.engines.transformers.engine import TransformersEngine


class TransformersContext(ArenaContext):
    """See `kvgraft.engines.base.Context`."""

    def __init__(
        self, engine: TransformersEngine, arena: Arena, pool: ArenaPool, capacity: int
    ) -> None:
        super().__init__(arena, pool, capacity, engine.vocabulary)
        self._engine = engine
        self._cache = ArenaCache(arena, engine.device, mirrored=engine.mirrored)
        self._hidden: torch.Tensor | None = None

    @torch.inference_mode()
    def run(self, ids: np.ndarray, rows: int) -> None:
        with self._appending(ids, rows, planned=True) as arena:
            padded = np.full(rows, self._engine.form.pad_id, np.int64)
            padded[: len(ids)] = ids
            hidden = self._engine.forward(padded[None], self._cache, arena.length)
            self._remember(hidden[0, : len(ids)])

    @torch.inference_mode()
    def decode(self, token: int) -> None:
        ids = np.array([token], np.int64)
        with self._appending(ids, 1, planned=False) as arena:
            self._remember(self._engine.forward(ids[None], self._cache, arena.length)[0])

    def _remember(self, hidden: torch.Tensor) -> None:
        self._hidden = hidden
        bits = hidden[-1].detach().cpu().contiguous()
        if bits.dtype == torch.bfloat16:
            bits = bits.view(torch.int16)
        self._end[:] = bits.numpy().view(self._end.dtype)

    @torch.inference_mode()
    def logits(self) -> np.ndarray:
        dtype = TORCH_DTYPES[self._engine.spec.hidden_dtype]
        end = torch.from_numpy(self._end_point()).view(dtype)
        return self._engine.head(end[None, None].to(self._engine.device))[0, 0]

    @torch.inference_mode()
    def call_logits(self) -> np.ndarray:
        if self._hidden is None:
            raise EngineError("no call was made in this context")
        return self._engine.head(self._hidden[None])[0]

    def export_views(self, role: Role, place: ChunkPlace) -> list[np.ndarray]:
        self._cache.bring_home(role, place.count)
        return self._export(role, place)

    def commit(self, length: int) -> None:
        self._commit(length)
        self._cache.adopt()

    def fork(self, lanes: int, new_tokens: int) -> TransformersLanes:
        engine = self._engine
        capacity = lanes_capacity(self.length, lanes, new_tokens, engine.context_tokens)
        logits = np.repeat(self.logits()[None], lanes, axis=0)
        self._cache.bring_home()
        arena = Arena(engine.spec, capacity, engine.form.block, lanes)
        self.arena.copy_into(arena)
        return TransformersLanes(engine, arena, logits)


class TransformersLanes:
    """See `kvgraft.engines.base.Lanes`."""

    def __init__(self, engine: TransformersEngine, arena: Arena, logits: np.ndarray) -> None:
        self._engine = engine
        self._logits = logits
        self._open: Arena | None = arena
        self._cache = self._cache_over(arena)

    def _cache_over(self, arena: Arena) -> ArenaCache:
        cache = ArenaCache(arena, self._engine.device, mirrored=self._engine.mirrored)
        cache.adopt()
        return cache

    def _live(self) -> Arena:
        if self._open is None:
            raise EngineError("the lanes are closed, or a step in them failed")
        return self._open

    @property
    def count(self) -> int:
        return self._live().lanes

    def logits(self) -> np.ndarray:
        self._live()
        return self._logits

    @torch.inference_mode()
    def step(self, tokens: np.ndarray) -> None:
        arena = self._live()
        if len(tokens) != arena.lanes:
            raise EngineError(f"{len(tokens)} tokens for {arena.lanes} lanes")
        if arena.length + 1 > arena.capacity:
            raise EngineError(f"the lanes have room for {arena.capacity} tokens, not for one more")
        ids = np.asarray(tokens, np.int64)[:, None]
        check_vocabulary(ids, self._engine.vocabulary)
        self._open = None  # a step that fails half-way leaves nothing to go on with
        length = arena.length
        hidden = self._engine.forward(ids, self._cache, length)
        arena.count(length + 1)
        self._logits = self._engine.head(hidden)[:, 0]
        self._open = arena

    def keep(self, lanes: Sequence[int]) -> None:
        old = self._live()
        self._cache.bring_home()
        arena = Arena(self._engine.spec, old.capacity, self._engine.form.block, len(lanes))
        old.copy_into(arena, lanes)
        self._logits = self._logits[list(lanes)]
        self._open, self._cache = arena, self._cache_over(arena)

    def close(self) -> None:
        self._open = None
