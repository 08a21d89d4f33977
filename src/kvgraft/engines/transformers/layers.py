"""Cache layers of transformers over an arena: one for each kind of state.

Tensors are views of the arena's own memory on the CPU. On any other device (`mirrored`) they are
tensors of their own, and the arena is a mirror in host memory, brought up to date only to export
or import.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from kvgraft.engines.arena import Arena, LayerBuffer, pageable
from kvgraft.errors import EngineError
from kvgraft.state import Role

TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
DTYPE_NAMES = {torch_dtype: name for name, torch_dtype in TORCH_DTYPES.items()}
# Names of recurrent states are these and the number that transformers gives them.
CONV, RECURRENT = "conv", "recurrent"


def pinned(size_bytes: int) -> np.ndarray:
    """Page-locked memory, which a device copies from by itself; plain memory where the system does
    not allow so much."""
    try:
        memory: np.ndarray = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    except RuntimeError:
        return pageable(size_bytes)
    return memory


def _shift(live: list[torch.Tensor], start: int, count: int) -> None:
    for part in live:
        part[:, :count] = part[:, start : start + count].clone()


class RoomLayer(CacheLayerMixin):
    """Keys and values (and a sparse-attention index): writes behind what is there, returns views.

    Tensors are `[lanes, heads, tokens, dim]` views of token-major memory.
    """

    is_croppable = False

    def __init__(self, buffer: LayerBuffer, device: torch.device, mirrored: bool) -> None:
        super().__init__()
        self.buffer = buffer
        dtype = TORCH_DTYPES[buffer.spec.dtype]
        self.host = [torch.from_numpy(part).view(dtype) for part in buffer.parts]
        self.live = self.host
        if mirrored:
            self.live = [torch.empty_like(part, device=device) for part in self.host]
            # Of the tensors, not of this layer: a cycle would keep them until it is collected.
            buffer.shift = partial(_shift, self.live)
        self.is_sliding = bool(buffer.spec.window)
        self.is_initialized = True
        self._new = slice(0, 0)

    def upload(self) -> None:
        """Host mirror to device, the rows in use. Queued where the host's memory is pinned."""
        rows = slice(0, self.buffer.rows)
        for live, host in zip(self.live, self.host, strict=True):
            live[:, rows].copy_(host[:, rows], non_blocking=True)

    def download(self, count: int | None = None) -> None:
        """Device to host mirror: the last `count` rows in use, or all of them. Queued likewise."""
        end = self.buffer.rows
        rows = slice(0 if count is None else max(0, end - count), end)
        for live, host in zip(self.live, self.host, strict=True):
            host[:, rows].copy_(live[:, rows], non_blocking=True)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        return

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        new, seen = self.buffer.append(key_states.shape[2])
        for live, states in zip(self.live, (key_states, value_states), strict=False):
            if states.dtype != live.dtype:
                raise EngineError(f"the model gave {states.dtype} states, {live.dtype} declared")
            live[:, new] = states.transpose(1, 2)
        self._new = new
        key, value = (live[:, seen].transpose(1, 2) for live in self.live[:2])
        return key, value

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        kept = self.buffer.kept
        return kept + query_length, self.buffer.length - kept

    def get_seq_length(self) -> int:
        return self.buffer.length

    def get_max_length(self) -> int:
        return -1


class IndexedRoomLayer(RoomLayer):
    """A layer of sparse attention: an index key `[lanes, tokens, index_dim]` for every token."""

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Append behind the index of the tokens before; all of it `[lanes, tokens, index_dim]`."""
        if self._new.stop - self._new.start != indexer_key_states.shape[1]:
            raise EngineError("a layer asked for its index before it gave its keys and values")
        new, self._new = self._new, slice(0, 0)
        index = self.live[2]
        if indexer_key_states.dtype != index.dtype:
            raise EngineError(f"the model gave {indexer_key_states.dtype} index keys")
        index[:, new, 0] = indexer_key_states
        return index[:, : new.stop, 0]


class StateLayer(LinearAttentionLayer):
    """Recurrent and convolution states, written in place."""

    def __init__(self, buffer: LayerBuffer, device: torch.device, mirrored: bool) -> None:
        names = [state.name for state in buffer.spec.states]
        super().__init__(number_of_states=1 + max(int(name.split(".")[1]) for name in names))
        self.names = names
        self.device = device
        self.host_states = [
            torch.from_numpy(array).view(TORCH_DTYPES[state.dtype])
            for array, state in zip(buffer.states, buffer.spec.states, strict=True)
        ]
        self.live_states = self.host_states
        if mirrored:
            self.live_states = [torch.empty_like(host, device=device) for host in self.host_states]
        for name, live in zip(names, self.live_states, strict=True):
            kind, number = name.split(".")
            if kind == CONV:
                self.conv_states[int(number)] = live
                self.conv_kernel_size[int(number)] = live.shape[-1]
            else:
                self.recurrent_states[int(number)] = live

    def lazy_initialization(self, *args: Any, state_idx: int = 0, **kwargs: Any) -> None:
        """Begin in the memory that is there instead of allocating some."""
        for states, ready in (
            (self.conv_states, self.is_conv_states_initialized),
            (self.recurrent_states, self.is_recurrent_states_initialized),
        ):
            if states[state_idx] is not None and not ready[state_idx]:
                states[state_idx].zero_()
                ready[state_idx] = True

    def adopt(self) -> None:
        """The states hold an imported point."""
        for number in range(self.number_of_states):
            self.is_conv_states_initialized[number] = self.conv_states[number] is not None
            self.is_recurrent_states_initialized[number] = self.recurrent_states[number] is not None
            # transformers says so after the first convolution, and only then
            self.has_previous_state[number] = self.conv_states[number] is not None

    def upload_states(self) -> None:
        """Host mirror to device."""
        for live, host in zip(self.live_states, self.host_states, strict=True):
            live.copy_(host, non_blocking=True)

    def download_states(self) -> None:
        """Device to host mirror."""
        for live, host in zip(self.live_states, self.host_states, strict=True):
            host.copy_(live, non_blocking=True)


class MixedLayer(StateLayer, RoomLayer):
    """Attention and a recurrent part in one layer."""

    is_croppable = False

    def __init__(self, buffer: LayerBuffer, device: torch.device, mirrored: bool) -> None:
        RoomLayer.__init__(self, buffer, device, mirrored)
        StateLayer.__init__(self, buffer, device, mirrored)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        StateLayer.lazy_initialization(self, *args, **kwargs)

    def get_max_length(self) -> int:
        return -1


class ArenaCache(Cache):
    """A transformers cache whose layers are an arena's."""

    def __init__(self, arena: Arena, device: torch.device, *, mirrored: bool) -> None:
        super().__init__(layers=[_layer(buffer, device, mirrored) for buffer in arena.layers])
        self.arena = arena
        self.device = device
        self.mirrored = mirrored

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens in a layer; where that one counts none, in the first that does."""
        layers = self.arena.layers
        counting = [layer for layer in (layers[layer_idx], *layers) if layer.parts]
        return counting[0].length if counting else self.arena.length

    def adopt(self) -> None:
        """Go on from what was written into the arena."""
        for layer in self.layers:
            if self.mirrored and isinstance(layer, RoomLayer):
                layer.upload()
            if isinstance(layer, StateLayer):
                layer.adopt()
                if self.mirrored:
                    layer.upload_states()
        self._finish_copies()

    def _finish_copies(self) -> None:
        # The arena's memory may be written to from here on, or read.
        if self.mirrored and self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def live_states(self) -> list[torch.Tensor]:
        """Every recurrent state, layer by layer."""
        stateful = [layer for layer in self.layers if isinstance(layer, StateLayer)]
        return [state for layer in stateful for state in layer.live_states]

    def clear(self, kind: str) -> None:
        """Set the recurrent states of one kind to zero."""
        for layer in self.layers:
            if isinstance(layer, StateLayer):
                for name, state in zip(layer.names, layer.live_states, strict=True):
                    if name.startswith(kind):
                        state.zero_()

    def bring_home(self, role: Role | None = None, count: int | None = None) -> None:
        """Bring the arena up to date: what belongs to one role, or all; the last rows, or all."""
        if not self.mirrored:
            return
        for layer in self.layers:
            if isinstance(layer, RoomLayer) and role in (None, layer.buffer.spec.role):
                layer.download(count)
            if isinstance(layer, StateLayer) and role in (None, Role.END):
                layer.download_states()
        self._finish_copies()


def _layer(
    buffer: LayerBuffer, device: torch.device, mirrored: bool
) -> CacheLayerMixin | LinearAttentionCacheLayerMixin | DummyLayer:
    spec = buffer.spec
    if spec.parts and spec.states:
        return MixedLayer(buffer, device, mirrored)
    if spec.states:
        return StateLayer(buffer, device, mirrored)
    if not spec.parts:
        return DummyLayer()
    return (IndexedRoomLayer if spec.index_dim else RoomLayer)(buffer, device, mirrored)
