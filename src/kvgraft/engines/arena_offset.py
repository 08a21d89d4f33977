"""A context whose first token stands at another position than 0, and states that are moved there.

Keys under a rotary embedding (RoFormer, Su et al., 2021) were turned by an angle that grows with
their position; a state that was captured at position 0 is moved by turning its keys once more, by
the angle of the offset. That is equal in exact arithmetic alone: the keys were rounded before.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn, Protocol

import numpy as np

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.arena_context import ArenaContext
from kvgraft.errors import EngineError
from kvgraft.state import LayerKind, Role


class Rotation(Protocol):
    """How a model turns its keys. `keys` are a layer's as its arena holds them, `[..., dim]` in
    the storage dtype."""

    def turn(self, layer: int, keys: np.ndarray, offset: int) -> None:
        """Turn keys by `offset` positions, in place."""

    def values(self, layer: int, keys: np.ndarray) -> np.ndarray:
        """The keys as float32."""


class OffsetContext(ArenaContext):
    """What a context at an offset does otherwise; stands before an engine's own context class.

    Tokens stand at positions `offset` and on. `commit` takes an imported state to be one that was
    computed at position 0, and turns the keys of layers whose kind is in `moved` (None: all). What
    it holds belongs to no plan, so it gives nothing out that could be stored.
    """

    offset = 0
    moved: Collection[LayerKind] | None = None
    rotation: Rotation

    def stand_at(
        self, offset: int, rotation: Rotation, moved: Collection[LayerKind] | None
    ) -> None:
        """Say where the first token stands; once, before anything is run or imported."""
        self.offset, self.rotation, self.moved = offset, rotation, moved

    def _bring_home(self) -> None:
        """Bring the arena up to date; for engines whose live tensors are elsewhere."""

    def _adopt(self) -> None:
        """Go on from what the arena holds; for engines that keep more than the arena."""

    def commit(self, length: int) -> None:
        self._commit(length)
        for number, layer in enumerate(self.arena.layers):
            if layer.parts and (self.moved is None or layer.spec.kind in self.moved):
                self.rotation.turn(number, layer.parts[0][0, : layer.rows], self.offset)
        self._adopt()

    def take_layers(self, other: OffsetContext, kinds: Collection[LayerKind]) -> None:
        """Take the layers of these kinds from a context that stands at the same place, has the
        same length, and has decoded nothing since its last planned call.

        Raises:
            EngineError: it does not.
        """
        mine, theirs = self.arena, other.arena
        if (self.offset, mine.length, mine.spec) != (other.offset, theirs.length, theirs.spec):
            raise EngineError("layers are taken from a context at the same place only")
        self._bring_home()
        other._bring_home()
        for target, source in zip(mine.layers, theirs.layers, strict=True):
            if target.spec.kind not in kinds:
                continue
            if (target.rows, source.rows) != (source.kept, source.kept):
                raise EngineError("layers are taken after a planned call only")
            pairs = zip(target.parts, source.parts, strict=True)
            for to_rows, from_rows in pairs:
                to_rows[:, : source.rows] = from_rows[:, : source.rows]
            for to_state, from_state in zip(target.states, source.states, strict=True):
                to_state[...] = from_state
        self._adopt()

    def keys(self, layer: int) -> np.ndarray:
        """The keys of a layer that a next token can attend to, float32 `[tokens, heads, dim]`."""
        self._bring_home()
        buffer = self.arena.layers[layer]
        if not buffer.parts:
            raise EngineError(f"layer {layer} has no keys")
        rows = slice(buffer.rows - buffer.kept, buffer.rows)
        return self.rotation.values(layer, buffer.parts[0][0, rows])

    def export_views(self, role: Role, place: ChunkPlace) -> NoReturn:
        raise EngineError(
            f"a state at offset {self.offset} is never stored",
            hint="capture a text at its own place, from position 0 on",
        )

    def fork(self, lanes: int, new_tokens: int) -> NoReturn:
        raise EngineError(
            "a context at an offset has no lanes", hint="decode it greedily, one token at a time"
        )


def check_offset(offset: int, capacity: int, context_tokens: int) -> None:
    """
    Raises:
        EngineError: no offset, or one at which the tokens pass the model's context.
    """
    if offset < 1 or capacity < 1 or offset + capacity > context_tokens:
        raise EngineError(
            f"{capacity} tokens from position {offset} on are not within 1..{context_tokens}"
        )
