"""What every context over an arena keeps watch over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.arena import Arena, ArenaPool, check_vocabulary, storage_dtype
from kvgraft.errors import EngineError
from kvgraft.state import Role


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
        self._unclean = False  # an import may have left something in the recurrent states
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
    def _appending(self, ids: np.ndarray, rows: int, *, planned: bool) -> Iterator[Arena]:
        """Around a call that appends `ids` in a shape of `rows` rows and sets `_end`. Its padding
        is dropped afterwards; after a `planned` one the windows are settled."""
        arena = self.arena
        start, count = arena.length, len(ids)
        if not 1 <= count <= rows <= arena.block:
            raise EngineError(f"a call of {count} tokens in {rows} rows, blocks of {arena.block}")
        if start + count > self.capacity:
            raise EngineError(f"{start} + {count} tokens do not fit the room of {self.capacity}")
        check_vocabulary(ids, self._vocabulary)
        end_length, self._end_length = self._end_length, 0
        self._failed = True
        if not start and self._unclean:
            arena.clear_states()
            self._unclean = False
        try:
            yield arena
            arena.count(start + count, rows - count)
            if planned:
                arena.settle()
        except BaseException:
            if arena.untouched(start):
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
        if role is Role.END:
            return [self._end_point(), *self.arena.states()]
        return self.arena.export_views(role, place)

    def import_views(self, role: Role, place: ChunkPlace, length: int) -> list[np.ndarray]:
        if self.length:
            raise EngineError("only an empty context takes a stored state")
        if not 0 < place.start + place.count <= length <= self.capacity:
            raise EngineError(f"{place} does not belong into {length} of {self.capacity} tokens")
        if role is not Role.END:
            return self.arena.import_views(role, place, length)
        if place.start + place.count != length:
            raise EngineError(f"{place} is not the end of {length} tokens")
        self._end_length = length
        self._unclean = True
        return [self._end, *self.arena.states()]

    def _commit(self, length: int) -> None:
        if self.length or not 0 < length <= self.capacity:
            raise EngineError(f"cannot make an import of {length} tokens the context's own")
        if self.arena.states() and self._end_length != length:
            raise EngineError(f"no recurrent states were imported for {length} tokens")
        self.arena.place(length)

    def close(self) -> None:
        if self._open is not None and self._pool is not None:
            self._pool.give(self._open)
        self._open = None
