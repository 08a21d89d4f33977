"""A live sequence of a transformers model, its cache in an arena with room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.arena import (
    Arena,
    ArenaContext,
    ArenaPool,
    LayerBuffer,
    check_vocabulary,
    lanes_capacity,
)
from kvgraft.errors import EngineError
from kvgraft.state import LayerKind, Role

if TYPE_CHECKING:
    from kvgraft.engines.transformers.engine import TransformersEngine

TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


class RoomLayer(CacheLayerMixin):
    """One cache layer over a `LayerBuffer`: writes behind what is there, returns views.

    Tensors are `[lanes, heads, tokens, dim]` views of token-major memory: the buffer's own on the
    CPU. A `mirrored` layer (any other device) has tensors of its own, and the buffer's arrays are
    a mirror in host memory, brought up to date only to export or import.
    """

    is_croppable = False

    def __init__(self, buffer: LayerBuffer, device: torch.device, mirrored: bool) -> None:
        super().__init__()
        self.buffer = buffer
        dtype = TORCH_DTYPES[buffer.spec.dtype]
        self.host = (
            torch.from_numpy(buffer.key).view(dtype),
            torch.from_numpy(buffer.value).view(dtype),
        )
        self.key, self.value = self.host
        if mirrored:
            self.key, self.value = (torch.empty_like(half, device=device) for half in self.host)
            buffer.shift = self._shift
        self.is_sliding = buffer.spec.kind is LayerKind.SLIDING
        self.is_initialized = True

    def _shift(self, start: int, count: int) -> None:
        for half in (self.key, self.value):
            half[:, :count] = half[:, start : start + count].clone()

    def upload(self) -> None:
        """Host mirror to device, the rows in use."""
        for half, host in zip((self.key, self.value), self.host, strict=True):
            half[:, : self.buffer.rows] = host[:, : self.buffer.rows].to(half.device)

    def download(self, count: int | None = None) -> None:
        """Device to host mirror: the last `count` rows in use, or all of them."""
        end = self.buffer.rows
        rows = slice(0 if count is None else max(0, end - count), end)
        for half, host in zip((self.key, self.value), self.host, strict=True):
            host[:, rows] = half[:, rows].cpu()

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        return

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if key_states.dtype != self.key.dtype:
            raise EngineError(
                f"the model gave {key_states.dtype} states, {self.key.dtype} declared"
            )
        new, seen = self.buffer.append(key_states.shape[2])
        self.key[:, new] = key_states.transpose(1, 2)
        self.value[:, new] = value_states.transpose(1, 2)
        return self.key[:, seen].transpose(1, 2), self.value[:, seen].transpose(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        kept = self.buffer.kept
        return kept + query_length, self.buffer.length - kept

    def get_seq_length(self) -> int:
        return self.buffer.length

    def get_max_length(self) -> int:
        return -1


def open_cache(arena: Arena, engine: TransformersEngine) -> Cache:
    """A transformers cache whose layers are the arena's."""
    return Cache(
        layers=[RoomLayer(layer, engine.device, engine.mirrored) for layer in arena.layers]
    )


class TransformersContext(ArenaContext):
    """See `kvgraft.engines.base.Context`."""

    def __init__(
        self, engine: TransformersEngine, arena: Arena, pool: ArenaPool, capacity: int
    ) -> None:
        super().__init__(arena, pool, capacity, engine.vocabulary)
        self._engine = engine
        self._cache = open_cache(arena, engine)
        self._hidden: torch.Tensor | None = None

    @torch.inference_mode()
    def run(self, ids: np.ndarray, rows: int) -> None:
        with self._appending(ids, rows) as arena:
            padded = np.full(rows, self._engine.form.pad_id, np.int64)
            padded[: len(ids)] = ids
            hidden = self._engine.forward(padded[None], self._cache, arena.length)
            arena.finish_call(rows - len(ids))
            self._remember(hidden[0, : len(ids)])

    @torch.inference_mode()
    def decode(self, token: int) -> None:
        ids = np.array([token], np.int64)
        with self._appending(ids, 1) as arena:
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
        self._download(role, place.count)
        return self._export(role, place)

    def commit(self, length: int) -> None:
        self._commit(length)
        if self._engine.mirrored:
            for layer in self._cache.layers:
                layer.upload()
        self.arena.settle()

    def _download(self, role: Role | None = None, count: int | None = None) -> None:
        """Bring the mirror up to date: of one role's layers, or all; the last rows, or all."""
        if self._engine.mirrored:
            for layer in self._cache.layers:
                if role in (None, layer.buffer.spec.role):
                    layer.download(count)

    def fork(self, lanes: int, new_tokens: int) -> TransformersLanes:
        engine = self._engine
        capacity = lanes_capacity(self.length, lanes, new_tokens, engine.context_tokens)
        logits = np.repeat(self.logits()[None], lanes, axis=0)
        self._download()
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

    def _cache_over(self, arena: Arena) -> Cache:
        cache = open_cache(arena, self._engine)
        if self._engine.mirrored:
            for layer in cache.layers:
                layer.upload()
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
        hidden = self._engine.forward(ids, self._cache, arena.length)
        self._logits = self._engine.head(hidden)[:, 0]
        self._open = arena

    def keep(self, lanes: Sequence[int]) -> None:
        old = self._live()
        if self._engine.mirrored:
            for layer in self._cache.layers:
                layer.download()
        arena = Arena(self._engine.spec, old.capacity, self._engine.form.block, len(lanes))
        old.copy_into(arena, lanes)
        self._logits = self._logits[list(lanes)]
        self._open, self._cache = arena, self._cache_over(arena)

    def close(self) -> None:
        self._open = None
