"""Where a stored state is read to: one run of bytes that llama.cpp then takes whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvgraft.errors import EngineError
from kvgraft.state import LayerSpec, Role

if TYPE_CHECKING:
    from kvgraft.engines.llamacpp.engine import LlamaEngine


class Incoming:
    """The state of a sequence of `length` tokens in the making.

    Rows that the state has are read to where they will stand in it. A chunk that begins before a
    layer's window gets an array of its own, whose visible rows are copied in the end.
    """

    def __init__(self, engine: LlamaEngine, length: int) -> None:
        self.length = length
        self._layers = engine.spec.layers
        self._frame = engine.layout.frame(0, length)
        self._first = {
            role: rows.first
            for role, rows in zip(engine.cache_roles, engine.layout.rows(0, length), strict=True)
        }
        self._data = np.empty(self._frame.size_bytes, np.uint8)
        self._tensors = engine.by_role(self._frame, self._data)
        self._straddling: list[tuple[np.ndarray, np.ndarray]] = []  # source, target
        self._given: dict[Role, set[tuple[int, int]]] = {role: set() for role in self._first}

    def views(self, role: Role, start: int, count: int) -> list[np.ndarray]:
        """Buffers for the chunk `[start, start + count)`, float16 `[rows, heads, dim]`, key and
        value of each layer that has this role."""
        if role not in self._first:
            return []
        end, first = start + count, self._first[role]
        self._given[role].add((start, end))
        layers = [layer for layer in self._layers if layer.role is role]
        shapes = [shape for layer in layers for shape in _shapes(layer, count)]
        views = []
        for tensor, shape in zip(self._tensors[role], shapes, strict=True):
            low = end - shape[0]
            if low >= first:
                views.append(tensor[low - first : end - first])
                continue
            views.append(np.empty(shape, np.float16))
            if end > first:
                self._straddling.append((views[-1][first - low :], tensor[: end - first]))
        return views

    def finish(self) -> np.ndarray:
        """The whole state, uint8 `[size]`.

        Raises:
            EngineError: a position of it was never asked for.
        """
        for role, chunks in self._given.items():
            reached = self._first[role]
            for start, end in sorted(chunks):
                reached = max(reached, end) if start <= reached else reached
            if reached != self.length:
                raise EngineError(f"the {role.name} state of position {reached} was not imported")
        for source, target in self._straddling:
            target[:] = source
        self._frame.write(self._data)
        return self._data


def _shapes(layer: LayerSpec, count: int) -> list[tuple[int, int, int]]:
    rows = layer.rows_kept(count)
    return [(rows, layer.heads, layer.key_dim), (rows, layer.heads, layer.value_dim)]
