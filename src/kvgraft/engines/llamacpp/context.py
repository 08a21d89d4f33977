"""A live sequence of a llama.cpp model, and lanes that go on from one.

Whatever passes the end of a plan call passes through llama.cpp's own state bytes: its sliding
windows are captured and restored there, cold or not. A restored run finds its window in the first
cells; a run that was never restored would have it anywhere in a ring, and sum in another order.
Full-attention cells lie in the order of their positions either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.arena import check_vocabulary, lanes_capacity
from kvgraft.engines.llamacpp.incoming import Incoming
from kvgraft.engines.llamacpp.session import Session
from kvgraft.errors import EngineError
from kvgraft.state import Role

if TYPE_CHECKING:
    from kvgraft.engines.llamacpp.engine import LlamaEngine

_WHOLE, _CHUNK = 0, 1  # sequences: the context's own, and one that holds a chunk to export
SEQUENCES = 2


class LlamaContext:
    """See `kvgraft.engines.base.Context`."""

    def __init__(self, engine: LlamaEngine, session: Session, capacity: int) -> None:
        self.capacity = capacity
        self._engine = engine
        self._open: Session | None = session
        self._failed = False
        self._length = 0
        self._end = np.zeros(engine.vocabulary, np.float32)
        self._end_length = 0  # the length whose next-token logits `_end` is; 0 where there is none
        self._ran = False
        # tensors that end at `length`, by the position that they start from
        self._fetched: dict[int, dict[Role, list[np.ndarray]]] = {}
        self._incoming: Incoming | None = None

    def _session(self) -> Session:
        if self._open is None:
            raise EngineError("the context is closed")
        if self._failed:
            raise EngineError("a call failed in this context", hint="close it and open another")
        return self._open

    @property
    def length(self) -> int:
        self._session()
        return self._length

    def run(self, ids: np.ndarray, rows: int) -> None:
        count = len(ids)
        if not 1 <= count == rows <= self._engine.form.block:
            raise EngineError(
                f"a call of {count} tokens in {rows} rows; this engine runs 1 to"
                f" {self._engine.form.block} tokens in as many rows"
            )
        self._append(np.asarray(ids), settle=True)
        self._ran = True

    def decode(self, token: int) -> None:
        self._append(np.array([token], np.int64), settle=False)

    def _append(self, ids: np.ndarray, *, settle: bool) -> None:
        session, start, end = self._session(), self._length, self._length + len(ids)
        if end > self.capacity:
            raise EngineError(f"{start} + {len(ids)} tokens do not fit the room of {self.capacity}")
        check_vocabulary(ids, self._engine.vocabulary)
        session.check_threads()
        self._fetched, self._incoming, self._end_length = {}, None, 0
        self._failed = True
        session.decode(ids, start)
        session.logits(-1, self._end)
        if settle and self._engine.layout.near:
            session.restore(session.state(windows_only=True), windows_only=True)
            self._engine.check_positions(session, end)
        self._length = self._end_length = end
        self._failed = False

    def logits(self) -> np.ndarray:
        self._session().check_threads()
        return self._end_point().copy()

    def call_logits(self) -> np.ndarray:
        if not self._ran:
            raise EngineError("no call was made in this context")
        return self.logits()[None]

    def _end_point(self) -> np.ndarray:
        if not self._end_length or self._end_length != self.length:
            raise EngineError(f"there is no end point at {self.length} tokens")
        return self._end

    def export_views(self, role: Role, place: ChunkPlace) -> list[np.ndarray]:
        session = self._session()
        if place.start + place.count != self._length:
            raise EngineError(f"the last call ended at {self._length} tokens, not at {place}")
        if role is Role.END:
            return [self._end_point()]
        if place.start not in self._fetched:
            self._fetched[place.start] = self._fetch(session, place.start, self._length)
        return self._fetched[place.start].get(role, [])

    def _fetch(self, session: Session, start: int, end: int) -> dict[Role, list[np.ndarray]]:
        """The tensors of positions `[start, end)`: a second sequence holds just these cells for a
        moment, so that no more than them is copied."""
        try:
            session.share(_WHOLE, _CHUNK, start, end)
            data = session.state(_CHUNK)
        finally:
            session.drop(_CHUNK)
        frame = self._engine.layout.frame(start, end, _CHUNK)
        frame.check(data)
        return self._engine.by_role(frame, data)

    def import_views(self, role: Role, place: ChunkPlace, length: int) -> list[np.ndarray]:
        self._session()
        end = place.start + place.count
        if self._length:
            raise EngineError("only an empty context takes a stored state")
        if not (0 <= place.start < end <= length <= self.capacity):
            raise EngineError(f"{place} does not belong into {length} of {self.capacity} tokens")
        if role is Role.END:
            if end != length:
                raise EngineError(f"{place} is not the end of {length} tokens")
            self._end_length = length
            return [self._end]
        if self._incoming is None or self._incoming.length != length:
            self._incoming = Incoming(self._engine, length)
        return self._incoming.views(role, place.start, place.count)

    def commit(self, length: int) -> None:
        session, incoming = self._session(), self._incoming
        if self._length or not 0 < length <= self.capacity:
            raise EngineError(f"cannot make an import of {length} tokens the context's own")
        if incoming is None or incoming.length != length:
            raise EngineError(f"nothing was imported for {length} tokens")
        data = incoming.finish()
        self._incoming = None
        session.restore(data)
        try:
            self._engine.check_positions(session, length)
        except EngineError:
            session.clear()
            raise
        self._length = length

    def fork(self, lanes: int, new_tokens: int) -> LlamaLanes:
        capacity = lanes_capacity(self.length, lanes, new_tokens, self._engine.context_tokens)
        logits = np.repeat(self.logits()[None], lanes, axis=0)
        session = self._engine.lanes_session(self._length + lanes * new_tokens, lanes)
        try:
            session.restore(self._session().state())
            for lane in range(1, lanes):
                session.share(0, lane)
        except BaseException:
            session.close()
            raise
        return LlamaLanes(self._engine, session, logits, self._length, capacity)

    def close(self) -> None:
        if self._open is not None:
            # Numbers that are none would show through masks in the next context.
            sound = not self._failed and bool(np.isfinite(self._end).all())
            self._engine.give_back(self._open, sound)
            self._open = None


class LlamaLanes:
    """See `kvgraft.engines.base.Lanes`. Every lane is a sequence; what they have in common is
    there once."""

    def __init__(
        self,
        engine: LlamaEngine,
        session: Session,
        logits: np.ndarray,
        length: int,
        capacity: int,
    ) -> None:
        self._engine = engine
        self._open: Session | None = session
        self._broken = False
        self._logits = logits
        self._length = length
        self._capacity = capacity
        self._most = len(logits)
        self._sequences = list(range(len(logits)))  # the sequence of each lane

    def _session(self) -> Session:
        if self._open is None or self._broken:
            raise EngineError("the lanes are closed, or a step in them failed")
        return self._open

    @property
    def count(self) -> int:
        self._session()
        return len(self._sequences)

    def logits(self) -> np.ndarray:
        self._session()
        return self._logits

    def step(self, tokens: np.ndarray) -> None:
        session = self._session()
        if len(tokens) != self.count:
            raise EngineError(f"{len(tokens)} tokens for {self.count} lanes")
        if self._length + 1 > self._capacity:
            raise EngineError(f"the lanes have room for {self._capacity} tokens, not for one more")
        ids = np.asarray(tokens, np.int64)
        check_vocabulary(ids, self._engine.vocabulary)
        session.check_threads()
        self._broken = True  # a step that fails half-way leaves nothing to go on with
        session.decode(ids, self._length, self._sequences)
        self._logits = np.empty((len(ids), self._engine.vocabulary), np.float32)
        for row in range(len(ids)):
            session.logits(row, self._logits[row])
        self._length += 1
        self._broken = False

    def keep(self, lanes: Sequence[int]) -> None:
        session = self._session()
        if not 1 <= len(lanes) <= self._most:
            raise EngineError(f"{len(lanes)} lanes to keep of {self._most}")
        wanted = [self._sequences[lane] for lane in lanes]
        free = [number for number in range(self._most) if number not in wanted]
        for number in free:
            session.drop(number)
        kept: list[int] = []
        for number in wanted:
            if number in kept:  # a lane that is named twice goes on twice
                copy = free.pop()
                session.share(number, copy)
                number = copy
            kept.append(number)
        self._logits = self._logits[list(lanes)]
        self._sequences = kept

    def close(self) -> None:
        if self._open is not None:
            self._engine.forget(self._open)
            self._open = None
