"""The bytes of a llama.cpp sequence state, and where its keys and values lie in them.

llama.cpp gives the state of a sequence as one run of bytes: a magic number, the sequence's id,
then one section per cache (full attention; sliding windows, where a model has them). A section is
the cell count, one `(position, sequences, sequence id)` per cell, and per layer all keys, then per
layer all values, each with its type and row size in front. Little-endian, nothing aligned.

From the row sizes, the first position and the row counts follows exactly one such run of bytes,
up to the keys and values themselves. So nothing here interprets a state while it works: a `Frame`
writes what stands between the tensors, or compares it. Read from the sources of llama.cpp as
llama-cpp-python 0.3.36 carries them; another layout is refused when a model is opened.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvgraft.errors import FormatError

MAGIC = 0xAF143CD8
STREAMS = 1  # a unified cache has one stream, whatever its sequences
F16 = 1  # ggml's number of the type
_HEAD = struct.Struct("<Ii")  # magic, sequence id
_SECTION = struct.Struct("<II")  # streams, cells
_TENSORS = struct.Struct("<II")  # values transposed?, layers
_ROWS = struct.Struct("<iQ")  # type, bytes per row
_CELL_BYTES = 12
MAX_LAYERS = 4096


@dataclass(frozen=True)
class CacheLayout:
    """Bytes per token of each layer's keys and values, in the cache's order."""

    keys: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """Cells of one cache: positions `[first, first + count)`."""

    first: int
    count: int


class Frame:
    """The one run of bytes that a state of these caches and rows is, its tensors left open."""

    def __init__(
        self, caches: tuple[CacheLayout, ...], rows: tuple[Rows, ...], sequence: int = 0
    ) -> None:
        self._pieces: list[tuple[int, bytes]] = []  # offset, what stands there
        self._tensors: list[list[tuple[int, int, int]]] = []  # per cache: offset, rows, row bytes
        self._at = 0
        self._fixed(_HEAD.pack(MAGIC, sequence))
        for cache, cells in zip(caches, rows, strict=True):
            self._section(cache, cells, sequence)
        self.size_bytes = self._at

    def _fixed(self, data: bytes) -> None:
        self._pieces.append((self._at, data))
        self._at += len(data)

    def _section(self, cache: CacheLayout, cells: Rows, sequence: int) -> None:
        table = np.empty((cells.count, 3), "<i4")
        table[:, 0] = np.arange(cells.first, cells.first + cells.count)
        table[:, 1], table[:, 2] = 1, sequence
        self._fixed(_SECTION.pack(STREAMS, cells.count) + table.tobytes())
        self._fixed(_TENSORS.pack(0, len(cache.keys)))
        tensors = []
        for row_bytes in (*cache.keys, *cache.values):
            self._fixed(_ROWS.pack(F16, row_bytes))
            tensors.append((self._at, cells.count, row_bytes))
            self._at += cells.count * row_bytes
        self._tensors.append(tensors)

    def write(self, data: np.ndarray) -> None:
        """Write everything but the tensors into `data`, uint8 `[size_bytes]`."""
        for offset, piece in self._pieces:
            data[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)

    def check(self, data: np.ndarray) -> None:
        """Compare everything but the tensors.

        Raises:
            FormatError: another length, or other bytes: not the state that is expected.
        """
        if len(data) != self.size_bytes:
            raise FormatError(f"a sequence state of {len(data)} bytes, expected {self.size_bytes}")
        for offset, piece in self._pieces:
            if data[offset : offset + len(piece)].tobytes() != piece:
                raise FormatError(f"the sequence state differs from its layout at byte {offset}")

    def tensors(self, data: np.ndarray, cache: int) -> list[np.ndarray]:
        """Views of one cache's tensors, float16 `[rows, elements]`: key and value of its first
        layer, of its second, and so on."""
        views = [
            data[offset : offset + rows * row_bytes].view(np.float16).reshape(rows, row_bytes // 2)
            for offset, rows, row_bytes in self._tensors[cache]
        ]
        half = len(views) // 2
        return [view for pair in zip(views[:half], views[half:], strict=True) for view in pair]


@dataclass(frozen=True)
class StateLayout:
    """The caches of a model, full attention first. `near` is how many positions a state holds of
    the second one, if there is one: the last `near`, the newest included."""

    caches: tuple[CacheLayout, ...]
    near: int

    @cached_property
    def token_bytes(self) -> int:
        """Bytes that a token inside the windows takes, its cell entries included."""
        rows = sum(sum(cache.keys) + sum(cache.values) for cache in self.caches)
        return rows + _CELL_BYTES * len(self.caches)

    def rows(self, start: int, end: int) -> tuple[Rows, ...]:
        """Which positions of `[start, end)` each cache holds once `end` is the length."""
        rows = [Rows(start, end - start)]
        if len(self.caches) > 1:
            first = max(start, end - self.near)
            rows.append(Rows(first, end - first))
        return tuple(rows)

    def frame(self, start: int, end: int, sequence: int = 0) -> Frame:
        """The state of positions `[start, end)` of a sequence of `end` tokens."""
        return Frame(self.caches, self.rows(start, end), sequence)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        if self.at + layout.size > len(self._data):
            raise FormatError(f"the sequence state ends after {len(self._data)} bytes")
        values = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        return values


def learn_caches(data: bytes, count: int) -> tuple[CacheLayout, ...]:
    """Row sizes from the state of a sequence of one token, which has `count` caches.

    Raises:
        FormatError: this is not the layout above, to the last byte.
    """
    reader = _Reader(data)
    reader.take(_HEAD)
    caches = []
    for _ in range(count):
        reader.take(_SECTION)
        reader.at += _CELL_BYTES
        _, layers = reader.take(_TENSORS)
        if layers > MAX_LAYERS:
            raise FormatError(f"a sequence state of {layers} layers")
        sizes = []
        for _ in range(2 * layers):
            _, row_bytes = reader.take(_ROWS)
            if not 2 <= row_bytes <= len(data) or row_bytes % 2:
                raise FormatError(f"rows of {row_bytes} bytes in a sequence state")
            sizes.append(row_bytes)
            reader.at += row_bytes
        caches.append(CacheLayout(tuple(sizes[:layers]), tuple(sizes[layers:])))
    # Sizes are all that was taken from it; the rest must be what follows from them.
    layout = StateLayout(tuple(caches), 1)
    layout.frame(0, 1).check(np.frombuffer(data, np.uint8))
    return layout.caches
