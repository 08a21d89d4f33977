"""A live sequence of a transformers model, its cache in an arena with room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.arena import Arena, ArenaPool, LayerBuffer, storage_dtype
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

    def download(self) -> None:
        """Device to host mirror, the rows in use."""
        for half, host in zip((self.key, self.value), self.host, strict=True):
            host[:, : self.buffer.rows] = half[:, : self.buffer.rows].cpu()

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


class TransformersContext:
    """See `kvgraft.engines.base.Context`."""

    def __init__(self, engine: TransformersEngine, arena: Arena, pool: ArenaPool) -> None:
        self._engine = engine
        self._arena: Arena | None = arena
        self._pool = pool
        self._cache = open_cache(arena, engine)
        self.capacity = arena.capacity
        self._hidden: torch.Tensor | None = None
        self._end: np.ndarray = np.zeros(
            engine.spec.hidden_dim, storage_dtype(engine.spec.hidden_dtype)
        )

    @property
    def arena(self) -> Arena:
        """The live arena.

        Raises:
            EngineError: the context is closed.
        """
        if self._arena is None:
            raise EngineError("the context is closed")
        return self._arena

    @property
    def length(self) -> int:
        return self.arena.length

    @torch.inference_mode()
    def run(self, ids: np.ndarray, rows: int) -> None:
        padded = np.full(rows, self._engine.form.pad_id, np.int64)
        padded[: len(ids)] = ids
        hidden = self._engine.forward(padded[None], self._cache, self.length)
        self.arena.finish_call(rows - len(ids))
        self._remember(hidden[0, : len(ids)])

    @torch.inference_mode()
    def decode(self, token: int) -> None:
        hidden = self._engine.forward(np.array([[token]]), self._cache, self.length)
        self._remember(hidden[0])

    def _remember(self, hidden: torch.Tensor) -> None:
        self._hidden = hidden
        bits = hidden[-1].detach().cpu().contiguous()
        if bits.dtype == torch.bfloat16:
            bits = bits.view(torch.int16)
        self._end[:] = bits.numpy().view(self._end.dtype)

    @torch.inference_mode()
    def logits(self) -> np.ndarray:
        end = torch.from_numpy(self._end).view(TORCH_DTYPES[self._engine.spec.hidden_dtype])
        return self._engine.head(end[None, None].to(self._engine.device))[0, 0]

    @torch.inference_mode()
    def call_logits(self) -> np.ndarray:
        if self._hidden is None:
            raise EngineError("no call was made in this context")
        return self._engine.head(self._hidden[None])[0]

    def export_views(self, role: Role, place: ChunkPlace) -> list[np.ndarray]:
        if role is Role.END:
            return [self._end]
        self._download()
        return self.arena.export_views(role, place)

    def import_views(self, role: Role, place: ChunkPlace, length: int) -> list[np.ndarray]:
        if role is Role.END:
            return [self._end]
        return self.arena.import_views(role, place, length)

    def commit(self, length: int) -> None:
        self.arena.place(length)
        if self._engine.mirrored:
            for layer in self._cache.layers:
                layer.upload()
        self.arena.settle()

    def _download(self) -> None:
        if self._engine.mirrored:
            for layer in self._cache.layers:
                layer.download()

    def fork(self, lanes: int, new_tokens: int) -> TransformersLanes:
        self._download()
        engine = self._engine
        arena = Arena(engine.spec, self.length + new_tokens, engine.form.block, lanes)
        self.arena.copy_into(arena)
        return TransformersLanes(engine, arena, np.repeat(self.logits()[None], lanes, axis=0))

    def close(self) -> None:
        if self._arena is not None:
            self._pool.give(self._arena)
            self._arena = None


class TransformersLanes:
    """See `kvgraft.engines.base.Lanes`."""

    def __init__(self, engine: TransformersEngine, arena: Arena, logits: np.ndarray) -> None:
        self._engine = engine
        self._logits = logits
        self._adopt(arena)

    def _adopt(self, arena: Arena) -> None:
        self._arena = arena
        self._cache = open_cache(arena, self._engine)
        if self._engine.mirrored:
            for layer in self._cache.layers:
                layer.upload()

    @property
    def count(self) -> int:
        return self._arena.lanes

    def logits(self) -> np.ndarray:
        return self._logits

    @torch.inference_mode()
    def step(self, tokens: np.ndarray) -> None:
        ids = np.asarray(tokens, np.int64)[:, None]
        hidden = self._engine.forward(ids, self._cache, self._arena.length)
        self._logits = self._engine.head(hidden)[:, 0]

    def keep(self, lanes: Sequence[int]) -> None:
        if self._engine.mirrored:
            for layer in self._cache.layers:
                layer.download()
        arena = Arena(self._engine.spec, self._arena.capacity, self._engine.form.block, len(lanes))
        self._arena.copy_into(arena, lanes)
        self._logits = self._logits[list(lanes)]
        self._adopt(arena)

    def close(self) -> None:
        self._arena.reset()
