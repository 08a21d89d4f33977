"""Room for a context's state in host memory, keys and values token-major, allocated once.

Plain cache concatenation copies everything on every call and costs more than a restore. Here
each layer has its room from the start: a call writes behind what is there, attention sees a view,
and a restore reads from disk straight into place. Axes are `[lanes, tokens, heads, dim]`; the
strides a kernel sees do not depend on the capacity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from kvgraft.blob.payload import ChunkPlace
from kvgraft.errors import EngineError, InputError
from kvgraft.state import LayerSpec, Role, StateSpec

_STORAGE = {"F32": np.float32, "BF16": np.uint16, "F16": np.float16, "U32": np.uint32}
_PAGE_BYTES = 4096
_HUGE_PAGE_BYTES = 2 * 1024 * 1024


def storage_dtype(name: str) -> type:
    """The numpy dtype that holds a safetensors dtype's bits (bfloat16 as uint16)."""
    return _STORAGE[name]


class LayerBuffer:
    """One layer's state. Of its parts (keys, values, an index), row 0 holds position `first`;
    `length` positions were seen. Its recurrent `states` belong to position `length`.

    A windowed layer keeps the last `window - 1` positions at rows 0.. after every plan call
    (`settle`), so where its bytes lie depends on the length alone, for cold and grafted runs
    alike. `rooms` are the same arrays with `margin` rows in front of row 0: a chunk that a restored
    window begins in is read there without its older rows being in the way.
    """

    def __init__(
        self, spec: LayerSpec, rooms: list[np.ndarray], states: list[np.ndarray], margin: int
    ) -> None:
        self.spec = spec
        self.rooms = rooms
        self.states = states
        self.margin = margin
        self.parts = [room[:, margin:] for room in rooms]
        self.first = 0
        self.length = 0
        # Moves rows `[start, start + count)` to row 0; an engine whose live tensors are not this
        # memory puts its own in place.
        self.shift: Callable[[int, int], None] = self._shift_host

    @property
    def rows(self) -> int:
        """Rows in use."""
        return self.length - self.first

    @property
    def kept(self) -> int:
        """Positions a next token can attend to: all, or the last `window - 1`."""
        return self.kept_of(self.length)

    def kept_of(self, length: int) -> int:
        """The same at `length` positions."""
        return min(length, self.spec.window - 1) if self.spec.window else length

    def append(self, count: int) -> tuple[slice, slice]:
        """Rows for `count` new positions, and all rows that attention sees with them.

        Raises:
            EngineError: the room is used up.
        """
        room = self.parts[0].shape[1]
        if self.rows + count > room:
            self.settle()
        if self.rows + count > room:
            raise EngineError(f"{self.length} + {count} tokens do not fit the context's room")
        new = slice(self.rows, self.rows + count)
        seen = slice(self.rows - self.kept, self.rows + count)
        self.length += count
        return new, seen

    def settle(self) -> None:
        """Move the positions that can still be seen to row 0."""
        if (extra := self.rows - self.kept) > 0:
            self.shift(extra, self.kept)
            self.first += extra

    def detach(self) -> None:
        """Rows are moved in this memory again."""
        self.shift = self._shift_host

    def _shift_host(self, start: int, count: int) -> None:
        for part in self.parts:
            # numpy copies through a temporary where source and target overlap
            part[:, :count] = part[:, start : start + count]


Allocate = Callable[[int], np.ndarray]


def pageable(size_bytes: int) -> np.ndarray:
    """Plain memory: uint8 `[size_bytes]`."""
    return np.empty(size_bytes, dtype=np.uint8)


class Arena:
    """Every layer's room in one allocation, so that it can be backed by huge pages, or be memory
    that a device reads by itself (`allocate`)."""

    def __init__(
        self,
        spec: StateSpec,
        capacity: int,
        block: int,
        lanes: int = 1,
        allocate: Allocate = pageable,
    ) -> None:
        self.spec = spec
        self.capacity = capacity
        self.lanes = lanes
        self.block = block
        shapes = [self._shapes(layer) for layer in spec.layers]
        total = sum(_padded_bytes(*shape) for layer in shapes for shape in layer)
        self._memory = allocate(total + _HUGE_PAGE_BYTES)
        self._offset = -self._memory.ctypes.data % _HUGE_PAGE_BYTES
        self.layers: list[LayerBuffer] = []
        for layer, layer_shapes in zip(spec.layers, shapes, strict=True):
            arrays = [self._carve(*shape) for shape in layer_shapes]
            parts = len(layer.parts)
            buffer = LayerBuffer(layer, arrays[:parts], arrays[parts:], self._margin(layer))
            self.layers.append(buffer)
        # Layers that take tokens; where there is none, the recurrent ones stand for them.
        self._counting = [layer for layer in self.layers if layer.parts] or self.layers
        self.clear_states()

    def _margin(self, layer: LayerSpec) -> int:
        # A chunk that reaches into the window begins less than one block before it.
        return self.block if layer.window else 0

    def _shapes(self, layer: LayerSpec) -> list[tuple[str, tuple[int, ...]]]:
        rows = self.capacity
        if layer.window:
            # the window, one plan call behind it, and as much again before rows must move
            rows = min(self.capacity, layer.window - 1 + 2 * self.block) + self._margin(layer)
        parts = [(layer.dtype, (self.lanes, rows, heads, dim)) for _, heads, dim in layer.parts]
        return parts + [(state.dtype, (self.lanes, *state.shape)) for state in layer.states]

    def _carve(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        start = self._offset
        self._offset += _padded_bytes(dtype, shape)
        storage = np.dtype(storage_dtype(dtype))
        size = math.prod(shape) * storage.itemsize
        return self._memory[start : start + size].view(storage).reshape(shape)

    @property
    def length(self) -> int:
        """Tokens in every layer.

        Raises:
            EngineError: layers disagree.
        """
        lengths = {layer.length for layer in self._counting}
        if len(lengths) != 1:
            raise EngineError(f"layers disagree about the length: {sorted(lengths)}")
        return lengths.pop()

    def untouched(self, length: int) -> bool:
        """Whether a call that failed at `length` tokens certainly left no trace in any layer."""
        if any(layer.states for layer in self.layers):
            return False  # a recurrent state does not show that it has moved on
        return all(layer.length == length for layer in self.layers if layer.parts)

    def count(self, length: int, padding: int = 0) -> None:
        """After a call: forget its padding rows in layers that took them, and let the layers that
        count no tokens stand at `length` tokens."""
        for layer in self.layers:
            if layer.parts:
                layer.length -= padding
            else:
                layer.length = length

    def detach(self) -> None:
        """Let go of an engine's live tensors, which would be held for as long as the arena is."""
        for layer in self.layers:
            layer.detach()

    def reset(self) -> None:
        """An empty context again; old bytes of keys and values stay, out of sight."""
        for layer in self.layers:
            layer.first = layer.length = 0
        self.clear_states()

    def clear_states(self) -> None:
        """Recurrent states as before the first token."""
        for layer in self.layers:
            for state in layer.states:
                state[...] = 0

    def states(self) -> list[np.ndarray]:
        """Lane 0 of every recurrent and convolution state, layer by layer."""
        return [state[0] for layer in self.layers for state in layer.states]

    def export_views(self, role: Role, place: ChunkPlace) -> list[np.ndarray]:
        """The rows of a chunk, layer by layer, part by part: `[rows, heads, dim]` views."""
        end = place.start + place.count
        views = []
        for layer in self._of_role(role):
            start = end - layer.spec.rows_kept(place.count) - layer.first
            if start < 0 or end > layer.length:
                raise EngineError(f"positions up to {end} are not in the layer any more")
            views += [part[0, start : end - layer.first] for part in layer.parts]
        return views

    def import_views(self, role: Role, place: ChunkPlace, length: int) -> list[np.ndarray]:
        """Buffers for a chunk of a context that will have `length` tokens: each row where it will
        be seen, or in front of that; chunks that no later token can attend to go to scratch
        memory."""
        end = place.start + place.count
        views = []
        for layer in self._of_role(role):
            kept = layer.spec.rows_kept(place.count)
            row = end - kept - (length - layer.kept_of(length)) + layer.margin
            for room in layer.rooms:
                if row >= 0:
                    views.append(room[0, row : row + kept])
                else:
                    views.append(np.empty((kept, *room.shape[2:]), room.dtype))
        return views

    def place(self, length: int) -> None:
        """Declare the imported bytes to be a context of `length` tokens, windows settled."""
        for layer in self.layers:
            layer.first = length - layer.kept_of(length)
            layer.length = length

    def settle(self) -> None:
        """Settle the windows of every layer."""
        for layer in self.layers:
            layer.settle()

    def _of_role(self, role: Role) -> list[LayerBuffer]:
        return [layer for layer in self.layers if layer.spec.role is role]

    def copy_into(self, other: Arena, lanes: Sequence[int] | None = None) -> None:
        """Copy what can be seen into another arena: lane 0 to all of its lanes, or `lanes`."""
        picked = [0] if lanes is None else list(lanes)
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            source = slice(mine.rows - mine.kept, mine.rows)
            for part, target in zip(mine.parts, theirs.parts, strict=True):
                target[:, : mine.kept] = part[picked, source]
            for state, target in zip(mine.states, theirs.states, strict=True):
                target[...] = state[picked]
            theirs.first, theirs.length = mine.length - mine.kept, mine.length


def _padded_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    size = math.prod(shape) * np.dtype(storage_dtype(dtype)).itemsize
    return size + (-size % _PAGE_BYTES)


class ArenaPool:
    """Arenas that were used before: their pages are there already, which saves a restore about
    half its time. Keeps at most `keep` of them."""

    _STEP_TOKENS = 256  # capacities are rounded up, so that arenas fit again

    def __init__(
        self, spec: StateSpec, block: int, keep: int = 2, allocate: Allocate = pageable
    ) -> None:
        self._allocate = allocate
        self._spec = spec
        self._block = block
        self._keep = keep
        self._free: list[Arena] = []

    def take(self, capacity: int) -> Arena:
        """An empty arena with room for at least `capacity` tokens and a padded call."""
        wanted = capacity + self._block
        wanted += -wanted % self._STEP_TOKENS
        for arena in self._free:
            if wanted <= arena.capacity <= 2 * wanted:
                self._free.remove(arena)
                arena.reset()
                return arena
        return Arena(self._spec, wanted, self._block, allocate=self._allocate)

    def give(self, arena: Arena) -> None:
        """Return an arena."""
        arena.detach()
        self._free.append(arena)
        del self._free[: -self._keep]


def check_vocabulary(ids: np.ndarray, vocabulary: int) -> None:
    """Refuse token ids that a model does not have: on some devices they end the process.

    Raises:
        InputError: an id outside `[0, vocabulary)`.
    """
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        raise InputError(
            f"token ids between {int(ids.min())} and {int(ids.max())}, the model has {vocabulary}",
            hint="tokenise with this model's own tokenizer",
        )


def lanes_capacity(length: int, lanes: int, new_tokens: int, context_tokens: int) -> int:
    """Tokens that each of `lanes` continuations must have room for.

    Raises:
        EngineError: no lanes, no new tokens, or more than the model's context.
    """
    if lanes < 1 or new_tokens < 0 or length + new_tokens > context_tokens:
        raise EngineError(
            f"cannot fork {lanes} lanes of {length} + {new_tokens} tokens"
            f" in a context of {context_tokens}"
        )
    return length + new_tokens
