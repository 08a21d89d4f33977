"""What the engine suite works with: prompts, lengths that matter, digests, watched engines, damage.

Nothing here knows a particular engine: what it needs is in the `Engine` protocol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from kvgraft.engines.base import Context, Engine
from kvgraft.identity import Fingerprint
from kvgraft.limits import OBJECT_HEADER_BYTES
from kvgraft.plan import PUBLIC_SALT, chunk_keys, plan_calls, plan_root
from kvgraft.reuse import Computed, Keep, ReuseReport, compute_prompt
from kvgraft.state import Role
from kvgraft.store.base import BlobStore
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import IndexEntry

STEPS = 8
StoreFactory = Callable[[], ChunkStore]


_VOCABULARIES: WeakKeyDictionary[Engine, int] = WeakKeyDictionary()


def vocabulary(engine: Engine) -> int:
    """How many token ids the engine's model has."""
    if engine not in _VOCABULARIES:
        context = engine.open_context(1)
        context.decode(0)
        _VOCABULARIES[engine] = len(context.logits())
        context.close()
    return _VOCABULARIES[engine]


def prompt(engine: Engine, tokens: int, seed: int = 0) -> np.ndarray:
    """Random token ids uint32 `[tokens]`; a shorter prompt of a seed begins a longer one."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, vocabulary(engine), tokens).astype(np.uint32)


def telling_lengths(engine: Engine, room: int = STEPS) -> list[int]:
    """Prompt lengths at which an engine or a plan may go wrong, as far as the context goes."""
    block = engine.form.block
    lengths = {1, 2, *(n * block + d for n in (1, 2) for d in (-1, 0, 1))}
    for rung in engine.form.rungs:
        lengths |= {rung, rung + 1}
    for window in {layer.window for layer in engine.spec.layers if layer.window}:
        lengths |= {window - 1, window, window + 1, 3 * window + 5}
    return sorted(n for n in lengths if 1 <= n <= engine.context_tokens - room)


def logits_digest(context: Context, steps: int = STEPS) -> str:
    """SHA-256 over the next-token logits, and again after each of `steps` greedy tokens."""
    digest = hashlib.sha256()
    for _ in range(steps):
        logits = np.ascontiguousarray(context.logits(), np.float32)
        digest.update(logits.data)
        context.decode(int(np.argmax(logits)))
    digest.update(np.ascontiguousarray(context.logits(), np.float32).data)
    return digest.hexdigest()


def run_all(engine: Engine, context: Context, ids: np.ndarray) -> None:
    """The calls of a prompt's plan, without any store."""
    for call in plan_calls(len(ids), engine.form, engine.context_tokens):
        context.run(ids[call.start : call.end], call.rows)


@contextmanager
def computed(
    engine: Engine,
    store: ChunkStore | None,
    ids: Sequence[int] | np.ndarray,
    *,
    keep: Keep = Keep.ALL,
    room: int = STEPS,
    salt: bytes = PUBLIC_SALT,
    cuts: Sequence[int] = (),
) -> Iterator[Computed]:
    """A computed prompt whose context is closed at the end."""
    result = compute_prompt(engine, store, ids, keep=keep, room=room, salt=salt, cuts=cuts)
    try:
        yield result
    finally:
        result.context.close()


def run_digest(
    engine: Engine,
    store: ChunkStore | None,
    ids: Sequence[int] | np.ndarray,
    *,
    keep: Keep = Keep.ALL,
    steps: int = STEPS,
    cuts: Sequence[int] = (),
) -> tuple[str, ReuseReport]:
    """`logits_digest` of a computed prompt, and its report."""
    with computed(engine, store, ids, keep=keep, room=steps, cuts=cuts) as result:
        return logits_digest(result.context, steps), result.report


def entries_of(engine: Engine, store: ChunkStore, ids: np.ndarray) -> list[dict[Role, IndexEntry]]:
    """The stored objects of a prompt's calls, in order."""
    calls = plan_calls(len(ids), engine.form, engine.context_tokens)
    keys = chunk_keys(plan_root(engine.fingerprint.digest), ids, calls)
    return [store.find(key) for key in keys]


def raw_digests(store: ChunkStore) -> dict[tuple[bytes, Role], bytes]:
    """`(key, role)` -> raw digest of everything that is listed."""
    return {
        (entry.object.key, entry.object.role): entry.object.raw_digest
        for entry in store.index.all_entries()
    }


def blob_digests(blobs: BlobStore) -> dict[str, str]:
    """Name -> SHA-256 of every stored blob."""
    return {name: hashlib.sha256(read_blob(blobs, name)).hexdigest() for name in blobs.names()}


def read_blob(blobs: BlobStore, name: str) -> bytes:
    """A whole blob."""
    reader = blobs.open(name)
    try:
        data = bytearray(reader.size_bytes)
        reader.read_into(0, [memoryview(data)])
        return bytes(data)
    finally:
        reader.close()


# --- damage -----------------------------------------------------------------------------------


def _flipped(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


def _payload(data: bytes, entry: IndexEntry) -> bytes:
    return _flipped(data, entry.object.offset + entry.object.size_bytes - 1)


def _header(data: bytes, entry: IndexEntry) -> bytes:
    return _flipped(data, entry.object.offset + OBJECT_HEADER_BYTES // 2)


def _cut(data: bytes, entry: IndexEntry) -> bytes:
    return data[: entry.object.offset + entry.object.size_bytes - 1]


def _longer(data: bytes, entry: IndexEntry) -> bytes:
    return data + b"\0"


DAMAGES: dict[str, Callable[[bytes, IndexEntry], bytes]] = {
    "payload": _payload,
    "header": _header,
    "cut": _cut,
    "longer": _longer,
}


def damage(store: ChunkStore, entry: IndexEntry, kind: str) -> None:
    """Replace the blob that holds an object by a damaged one, behind the index's back."""
    data = DAMAGES[kind](read_blob(store.blobs, entry.pack), entry)
    store.blobs.delete(entry.pack)
    writer = store.blobs.writer()
    writer.write(data)
    writer.publish(entry.pack)


# --- watched engines --------------------------------------------------------------------------


class Watched:
    """An engine behind a counter: every token that is run, every import that is committed.

    `fields` replace fields of its fingerprint.
    """

    def __init__(self, engine: Engine, /, **fields: str) -> None:
        self._engine = engine
        self.fingerprint = Fingerprint.of({**dict(engine.fingerprint.fields), **fields})
        self.tokens_run = 0
        self.committed: list[int] = []

    def open_context(self, capacity: int) -> Any:
        """A watched context."""
        return _WatchedContext(self, self._engine.open_context(capacity))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class _WatchedContext:
    def __init__(self, watched: Watched, context: Context) -> None:
        self._watched = watched
        self._context = context

    def run(self, ids: np.ndarray, rows: int) -> None:
        self._watched.tokens_run += len(ids)
        self._context.run(ids, rows)

    def commit(self, length: int) -> None:
        self._watched.committed.append(length)
        self._context.commit(length)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def expect_equal(cases: Iterable[tuple[object, object, object]]) -> None:
    """Of many `(case, got, wanted)`, show all that differ. Fails where there are no cases."""
    cases = list(cases)
    wrong = {case: (got, wanted) for case, got, wanted in cases if got != wanted}
    assert cases, "no case was made"
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, (got, wanted): {wrong}"


# --- the fixtures of the suite ----------------------------------------------------------------


class EngineCases:
    """What the cases ask for; a subclass gives the first two."""

    @pytest.fixture
    def engine(self) -> Engine:
        """The engine under test."""
        raise NotImplementedError("a subclass gives the fixture engine")

    @pytest.fixture
    def store_factory(self) -> StoreFactory:
        """A factory of empty stores."""
        raise NotImplementedError("a subclass gives the fixture store_factory")

    @pytest.fixture
    def new_store(self, store_factory: StoreFactory) -> Iterator[StoreFactory]:
        """The factory, its stores closed in the end."""
        made: list[ChunkStore] = []

        def make() -> ChunkStore:
            made.append(store_factory())
            return made[-1]

        yield make
        for store in made:
            store.close()

    @pytest.fixture
    def set_threads(self) -> Callable[[int], None] | None:
        """Changes the thread count that the engine declares; None where it declares none."""
        return None

    @pytest.fixture
    def long(self, engine: Engine) -> np.ndarray:
        """A prompt past every window and several blocks, with a tail."""
        tokens = max(3 * engine.form.block + 5, 3 * engine.spec.largest_window + 5)
        return prompt(engine, min(tokens, engine.context_tokens - STEPS), seed=1)
