"""Controls for equal digests: an engine that restores one bit wrong, behind every check.

A proof by equal digests is worth something only if a wrong state changes the digest. Here the bit
is turned in the engine's own buffers, after everything was verified and before it is committed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgraft.blob.payload import ChunkPlace, as_buffer
from kvgraft.engines.base import Context, Engine
from kvgraft.state import Role, StateSpec

PLACES = 12  # of a tensor, tried one after another: attention may choose not to look at some
_BIT = 0x20  # of a value's exponent: plausible, and wrong


def restored_tensors(spec: StateSpec, *, whole: bool) -> list[str]:
    """Names of the tensors that a run takes from the point where it resumes. Behind a prompt that
    was restored `whole` the next-token logits come from the end point."""
    roles = [Role.KEEP, *spec.resumes_with]
    names = [tensor.name for role in roles for tensor in spec.tensors(role, 1) if tensor.layer >= 0]
    return [*names, spec.end_name] if whole else names


class WrongBit:
    """An engine whose contexts take a restored state with one bit of one tensor turned, in one of
    `PLACES`: the last value of the last chunk that has the tensor first, which is of the nearest
    token, or the newest of a convolution; then of the chunks before it; then other values."""

    def __init__(self, engine: Engine, tensor: str, place: int) -> None:
        self._engine = engine
        self._tensor = tensor
        self._place = place
        self.turned = 0

    def open_context(self, capacity: int) -> Any:
        """A context that turns the bit when it commits."""
        return _WrongContext(self, self._engine.open_context(capacity))

    def turn(self, restored: dict[str, list[np.ndarray]]) -> None:
        """Turn the bit in what was read: the tensor's chunks, first to last."""
        chunks = restored[self._tensor][::-1]
        turn, chunk = divmod(self._place, len(chunks))
        view = chunks[chunk]
        last = view.size - 1
        value = (last, last // 2, 0)[turn % 3]
        as_buffer(view)[(value + 1) * view.itemsize - 1] ^= _BIT
        self.turned += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class _WrongContext:
    def __init__(self, wrong: WrongBit, context: Context) -> None:
        self._wrong = wrong
        self._context = context
        self._restored: dict[str, list[np.ndarray]] = {}

    def import_views(self, role: Role, place: ChunkPlace, length: int) -> list[np.ndarray]:
        views = self._context.import_views(role, place, length)
        tensors = self._wrong.spec.tensors(role, place.count)[1:]
        for tensor, view in zip(tensors, views, strict=True):
            self._restored.setdefault(tensor.name, []).append(view)
        return views

    def commit(self, length: int) -> None:
        self._wrong.turn(self._restored)
        self._context.commit(length)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
