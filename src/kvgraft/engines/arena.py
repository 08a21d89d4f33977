"""Room for a context's keys and values in host memory, token-major, allocated once.

Plain cache concatenation copies everything on every call and costs more than a restore. Here
each layer has its room from the start: a call writes behind what is there, attention sees a view,
and a restore reads from disk straight into place. Axes are `[lanes, tokens, heads, dim]`; the
strides a kernel sees do not depend on the capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from kvgraft.blob.payload import ChunkPlace
from kvgraft.errors import EngineError, InputError
from kvgraft.state import LayerKind, LayerSpec, Role, StateSpec

_STORAGE = {"F32": np.float32, "BF16": np.uint16, "F16": np.float16, "U32": np.uint32}
_PAGE_BYTES = 4096
_HUGE_PAGE_BYTES = 2 * 1024 * 1024


def storage_dtype(name: str) -> type:
    """The numpy dtype that holds a safetensors dtype's bits (bfloat16 as uint16)."""
    return _STORAGE[name]


class LayerBuffer:
    """One layer's keys and values. Row 0 holds position `first`; `length` positions were seen.

    A sliding layer keeps the last `window - 1` positions at rows 0.. after every plan call
    (`settle`), so where its bytes lie depends on the length alone, for cold and grafted runs
    alike.
    """

    def __init__(self, spec: LayerSpec, key: np.ndarray, value: np.ndarray) -> None:
        self.spec = spec
        self.key = key
        self.value = value
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
        if self.spec.kind is LayerKind.FULL:
            return self.length
        return min(self.length, self.spec.window - 1)

    def append(self, count: int) -> tuple[slice, slice]:
        """Rows for `count` new positions, and all rows that attention sees with them.

        Raises:
            EngineError: the room is used up.
        """
        room = self.key.shape[1]
        if self.rows + count > room:
            self.settle()
        if self.rows + count > room:
            raise EngineError(f"{self.length} + {count} tokens do not fit the context's room")
        new = slice(self.rows, self.rows + count)
        seen = slice(self.rows - self.kept, self.rows + count)
        self.length += count
        return new, seen

    def drop(self, count: int) -> None:
        """Forget the last `count` positions: the padding behind a tail."""
        self.length -= count

    def settle(self) -> None:
        """Move the positions that can still be seen to row 0."""
        if (extra := self.rows - self.kept) > 0:
            self.shift(extra, self.kept)
            self.first += extra

    def _shift_host(self, start: int, count: int) -> None:
        for buffer in (self.key, self.value):
            # numpy copies through a temporary where source and target overlap
            buffer[:, :count] = buffer[:, start : start + count]


class Arena:
    """Every layer's room in one allocation, so that it can be backed by huge pages."""

    def __init__(self, spec: StateSpec, capacity: int, block: int, lanes: int = 1) -> None:
        self.spec = spec
        self.capacity = capacity
        self.lanes = lanes
        self.block = block
        sizes = [self._sizes(layer) for layer in spec.layers]
        total = sum(key + value for key, value in sizes) + _HUGE_PAGE_BYTES
        self._memory = np.empty(total, dtype=np.uint8)
        offset = -self._memory.ctypes.data % _HUGE_PAGE_BYTES
        self.layers: list[LayerBuffer] = []
        for layer, (key_bytes, value_bytes) in zip(spec.layers, sizes, strict=True):
            key = self._carve(offset, layer, layer.key_dim)
            value = self._carve(offset + key_bytes, layer, layer.value_dim)
            self.layers.append(LayerBuffer(layer, key, value))
            offset += key_bytes + value_bytes

    def _room(self, layer: LayerSpec) -> int:
        if layer.kind is LayerKind.FULL:
            return self.capacity
        # the window, one plan call behind it, and as much again before rows must move
        return min(self.capacity, layer.window - 1 + 2 * self.block)

    def _sizes(self, layer: LayerSpec) -> tuple[int, int]:
        rows = self.lanes * self._room(layer) * layer.heads
        element = np.dtype(storage_dtype(layer.dtype)).itemsize
        key, value = (rows * dim * element for dim in (layer.key_dim, layer.value_dim))
        return key + (-key % _PAGE_BYTES), value + (-value % _PAGE_BYTES)

    def _carve(self, offset: int, layer: LayerSpec, dim: int) -> np.ndarray:
        shape = (self.lanes, self._room(layer), layer.heads, dim)
        dtype = np.dtype(storage_dtype(layer.dtype))
        size = int(np.prod(shape)) * dtype.itemsize
        return self._memory[offset : offset + size].view(dtype).reshape(shape)

    @property
    def length(self) -> int:
        """Tokens in every layer.

        Raises:
            EngineError: layers disagree.
        """
        lengths = {layer.length for layer in self.layers}
        if len(lengths) != 1:
            raise EngineError(f"layers disagree about the length: {sorted(lengths)}")
        return lengths.pop()

    def finish_call(self, padding: int) -> None:
        """After a plan call: drop its padding rows and settle the windows."""
        for layer in self.layers:
            layer.drop(padding)
        self.settle()

    def reset(self) -> None:
        """An empty context again; old bytes stay, out of sight."""
        for layer in self.layers:
            layer.first = layer.length = 0

    def export_views(self, role: Role, place: ChunkPlace) -> list[np.ndarray]:
        """The rows of a chunk, layer by layer, key then value: `[rows, heads, dim]` views."""
        end = place.start + place.count
        views = []
        for layer in self._of_role(role):
            start = end - layer.spec.rows_kept(place.count) - layer.first
            if start < 0 or end > layer.length:
                raise EngineError(f"positions up to {end} are not in the layer any more")
            rows = slice(start, end - layer.first)
            views += [layer.key[0, rows], layer.value[0, rows]]
        return views

    def import_views(self, role: Role, place: ChunkPlace, length: int) -> list[np.ndarray]:
        """Buffers for a chunk of a context that will have `length` tokens.

        Rows that no later token can attend to go to scratch memory.
        """
        end = place.start + place.count
        views = []
        for layer in self._of_role(role):
            kept = layer.spec.rows_kept(place.count)
            first = self._import_first(layer.spec, length)
            if end - kept >= first:
                rows = slice(end - kept - first, end - first)
                views += [layer.key[0, rows], layer.value[0, rows]]
            else:
                shape = (kept, layer.spec.heads)
                dtype = storage_dtype(layer.spec.dtype)
                views.append(np.empty((*shape, layer.spec.key_dim), dtype))
                views.append(np.empty((*shape, layer.spec.value_dim), dtype))
        return views

    def _import_first(self, layer: LayerSpec, length: int) -> int:
        # Chunks that reach into the window begin less than one block before it.
        if layer.kind is LayerKind.FULL:
            return 0
        return max(0, length - (layer.window - 1) - self.block)

    def place(self, length: int) -> None:
        """Declare the imported bytes to be a context of `length` tokens. `settle` comes next."""
        for layer in self.layers:
            layer.first = self._import_first(layer.spec, length)
            layer.length = length

    def settle(self) -> None:
        """Settle the windows of every layer."""
        for layer in self.layers:
            layer.settle()

    def _of_role(self, role: Role) -> list[LayerBuffer]:
        return [layer for layer in self.layers if layer.spec.role is role]

    def copy_into(self, other: Arena, lanes: Sequence[int] | None = None) -> None:
        """Copy what can be seen into another arena: lane 0 to all of its lanes, or `lanes`."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            source = slice(mine.rows - mine.kept, mine.rows)
            picked = [0] if lanes is None else list(lanes)
            theirs.key[:, : mine.kept] = mine.key[picked, source]
            theirs.value[:, : mine.kept] = mine.value[picked, source]
            theirs.first, theirs.length = mine.length - mine.kept, mine.length


class ArenaPool:
    """Arenas that were used before: their pages are there already, which saves a restore about
    half its time. Keeps at most `keep` of them."""

    _STEP_TOKENS = 256  # capacities are rounded up, so that arenas fit again

    def __init__(self, spec: StateSpec, block: int, keep: int = 2) -> None:
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
        return Arena(self._spec, wanted, self._block)

    def give(self, arena: Arena) -> None:
        """Return an arena."""
        self._free.append(arena)
        del self._free[: -self._keep]


class ArenaContext:
    """What every context over an arena keeps watch over: its bounds, and what may still be read.

    An end point belongs to one length; it is gone with the next call, and an imported one counts
    from `commit` on. After a call that failed half-way the layers may disagree or hold padding, so
    the context refuses everything but `close`.
    """

    def __init__(
        self, arena: Arena, pool: ArenaPool | None, capacity: int, vocabulary: int
    ) -> None:
        self.capacity = capacity
        self._vocabulary = vocabulary
        self._open: Arena | None = arena
        self._pool = pool
        self._failed = False
        self._end_length = 0  # the length whose end point `_end` is; 0 where there is none
        self._end: np.ndarray = np.zeros(
            arena.spec.hidden_dim, storage_dtype(arena.spec.hidden_dtype)
        )

    @property
    def arena(self) -> Arena:
        """The live arena.

        Raises:
            EngineError: the context is closed, or a call in it failed half-way.
        """
        if self._open is None:
            raise EngineError("the context is closed")
        if self._failed:
            raise EngineError("a call failed in this context", hint="close it and open another")
        return self._open

    @property
    def length(self) -> int:
        return self.arena.length

    @contextmanager
    def _appending(self, ids: np.ndarray, rows: int) -> Iterator[Arena]:
        """Around a call that appends `ids` in a shape of `rows` rows and sets `_end`."""
        arena = self.arena
        start, count = arena.length, len(ids)
        if not 1 <= count <= rows <= arena.block:
            raise EngineError(f"a call of {count} tokens in {rows} rows, blocks of {arena.block}")
        if start + count > self.capacity:
            raise EngineError(f"{start} + {count} tokens do not fit the room of {self.capacity}")
        check_vocabulary(ids, self._vocabulary)
        end_length, self._end_length = self._end_length, 0
        self._failed = True
        try:
            yield arena
        except BaseException:
            if all(layer.length == start for layer in arena.layers):  # refused, nothing appended
                self._failed, self._end_length = False, end_length
            raise
        if arena.length != start + count:
            raise EngineError(f"a call of {count} tokens left {arena.length} after {start}")
        self._end_length = start + count
        self._failed = False

    def _end_point(self) -> np.ndarray:
        """The final hidden state of the last token.

        Raises:
            EngineError: there is none for this length.
        """
        if not self._end_length or self._end_length != self.length:
            raise EngineError(f"there is no end point at {self.length} tokens")
        return self._end

    def _export(self, role: Role, place: ChunkPlace) -> list[np.ndarray]:
        if place.start + place.count != self.length:
            raise EngineError(f"the last call ended at {self.length} tokens, not at {place}")
        return [self._end_point()] if role is Role.END else self.arena.export_views(role, place)

    def import_views(self, role: Role, place: ChunkPlace, length: int) -> list[np.ndarray]:
        if self.length:
            raise EngineError("only an empty context takes a stored state")
        if not 0 < place.start + place.count <= length <= self.capacity:
            raise EngineError(f"{place} does not belong into {length} of {self.capacity} tokens")
        if role is not Role.END:
            return self.arena.import_views(role, place, length)
        self._end_length = length
        return [self._end]

    def _commit(self, length: int) -> None:
        if self.length or not 0 < length <= self.capacity:
            raise EngineError(f"cannot make an import of {length} tokens the context's own")
        self.arena.place(length)

    def close(self) -> None:
        if self._open is not None and self._pool is not None:
            self._pool.give(self._open)
        self._open = None


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
