"""A small random-weight transformer in numpy: deterministic, no torch; full, sliding and
recurrent layers.

It computes real attention over a real cache, so everything above the engines can be tested in
milliseconds; what it says is noise. `toy` names it; `toy:SEED` gives other weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.arena import (
    Arena,
    ArenaPool,
    LayerBuffer,
    check_vocabulary,
    lanes_capacity,
)
from kvgraft.engines.arena_context import ArenaContext
from kvgraft.engines.arena_offset import OffsetContext, check_offset
from kvgraft.engines.base import Capabilities, Message
from kvgraft.errors import EngineError, UnknownModel, UsageError
from kvgraft.flops import ModelSize
from kvgraft.identity import Fingerprint, cpu_class, digest_json
from kvgraft.plan import PlanForm
from kvgraft.state import LayerKind, LayerSpec, PointState, Role, StateSpec

VERSION = "1"
RECURRENT = -1
_HEADS, _DIM, _HIDDEN, _VOCAB, _CONV = 2, 16, 32, 260, 3
_BOS, _EOS, _USER, _ASSISTANT = 256, 257, 258, 259
_SPECIAL = {"<bos>": _BOS, "<eos>": _EOS, "<user>": _USER, "<assistant>": _ASSISTANT}
_TEMPLATE = "<bos>{turns: <role>content<eos>}<assistant>"


@dataclass(frozen=True)
class ToyShape:
    """`windows`: one entry per layer, 0 for full attention, `RECURRENT` for a recurrent layer, else
    the sliding window in tokens. Without `rungs` tails are bare, as recurrent layers need."""

    windows: tuple[int, ...] = (0, 24, 0, 7)
    block: int = 16
    rungs: tuple[int, ...] = (4, 8, 16)
    context_tokens: int = 2048


class ToyTokenizer:
    """Bytes, and four special tokens that text can spell."""

    digest = "toy-bytes-1"
    template_digest = digest_json(_TEMPLATE)
    bos_id: int | None = _BOS
    stop_ids = frozenset({_EOS})

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in re.split("(<bos>|<eos>|<user>|<assistant>)", text):
            ids += [_SPECIAL[piece]] if piece in _SPECIAL else piece.encode()
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(id for id in ids if id < 256).decode("utf-8", errors="replace")

    def render(self, messages: Sequence[Message]) -> str:
        turns = "".join(
            f"<{'user' if m.role != 'assistant' else m.role}>{m.content}<eos>" for m in messages
        )
        return f"<bos>{turns}<assistant>"


class ToyEngine:
    """See the module. `threads` is declared in the fingerprint as any engine's is."""

    name = "toy"
    capabilities = Capabilities(monolithic=True, lanes=True, row_logits=True)

    def __init__(self, seed: int = 0, shape: ToyShape | None = None) -> None:
        self.shape = shape or ToyShape()
        self.model = f"toy:{seed}"
        self.context_tokens = self.shape.context_tokens
        self.form = PlanForm(self.shape.block, self.shape.rungs)
        self.tokenizer = ToyTokenizer()
        if RECURRENT in self.shape.windows and self.shape.rungs:
            raise UsageError("recurrent layers need bare tails: padding would enter their states")
        layers = tuple(_layer_spec(window) for window in self.shape.windows)
        self.spec = StateSpec(layers, _HIDDEN, "F32")
        rng = np.random.default_rng(seed)

        def matrix(rows: int, columns: int) -> np.ndarray:
            return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

        inner = _HEADS * _DIM
        self.embedding = matrix(_VOCAB, _HIDDEN) * np.float32(np.sqrt(_VOCAB))
        self.layers = [
            [
                *(matrix(_HIDDEN, inner) for _ in range(3)),
                matrix(inner, _HIDDEN),
                matrix(_HIDDEN, 64),
                matrix(64, _HIDDEN),
            ]
            for _ in layers
        ]
        self.head = matrix(_HIDDEN, _VOCAB)
        body = sum(weights.size for layer in self.layers for weights in layer)
        self.model_size = ModelSize(body, self.head.size, _HEADS)
        self.fingerprint = self._fingerprint()
        self._pool = ArenaPool(self.spec, self.form.block)

    def _fingerprint(self) -> Fingerprint:
        everything = [self.embedding, self.head] + [m for layer in self.layers for m in layer]
        weights = digest_json([matrix.tobytes().hex() for matrix in everything])
        return Fingerprint.of(
            {
                "engine": self.name,
                "engine_version": f"{VERSION}/numpy-{np.__version__}",
                "weights": weights,
                "config": digest_json([self.shape.windows, self.shape.context_tokens]),
                "adapters": "none",
                "dtype": "F32",
                "kv_dtype": "F32",
                "attention": "numpy",
                "device": cpu_class(("OPENBLAS_CORETYPE",)),
                "threads": "any",
                "plan": self.form.name,
            }
        )

    def open_context(self, capacity: int) -> ToyContext:
        if not 0 < capacity <= self.context_tokens:
            raise EngineError(f"capacity {capacity} is not within 1..{self.context_tokens}")
        return ToyContext(self, self._pool.take(capacity), self._pool, capacity)

    def open_context_at(
        self, capacity: int, offset: int, moved: Collection[LayerKind] | None = None
    ) -> ToyOffsetContext:
        """An empty context whose first token stands at `offset`; see `kvgraft.relocation`."""
        check_offset(offset, capacity, self.context_tokens)
        context = ToyOffsetContext(self, self._pool.take(capacity), self._pool, capacity)
        context.stand_at(offset, ToyRotation(), moved)
        return context

    def monolithic_logits(self, ids: np.ndarray) -> np.ndarray:
        arena = Arena(self.spec, len(ids), len(ids))
        hidden = self.forward(arena.layers, np.asarray(ids, np.int64))
        return np.asarray(hidden[-1:] @ self.head)[0]

    def close(self) -> None:
        return

    def forward(
        self, layers: Sequence[LayerBuffer], tokens: np.ndarray, offset: int = 0
    ) -> np.ndarray:
        """Final hidden states float32 `[rows, hidden]` of `tokens` appended; the first token of
        the layers stands at position `offset`."""
        hidden = self.embedding[tokens]
        start = layers[0].length
        positions = np.arange(start, start + len(tokens))
        for weights, layer in zip(self.layers, layers, strict=True):
            if layer.states:
                mixed = self._recur(_normed(hidden), weights, layer)
            else:
                mixed = self._attend(_normed(hidden), weights, layer, positions, offset)
            hidden = hidden + mixed
            hidden = hidden + np.maximum(_normed(hidden) @ weights[4], 0) @ weights[5]
        return _normed(hidden)

    def _attend(
        self,
        hidden: np.ndarray,
        weights: list[np.ndarray],
        layer: LayerBuffer,
        positions: np.ndarray,
        offset: int,
    ) -> np.ndarray:
        rows = len(positions)
        query, key, value = (
            (hidden @ matrix).reshape(rows, _HEADS, _DIM) for matrix in weights[:3]
        )
        new, seen = layer.append(rows)
        keys, values = layer.parts
        keys[0, new] = _rotated(key, positions + offset)
        values[0, new] = value
        at = np.arange(seen.start, seen.stop) + layer.first
        visible = at[None, :] <= positions[:, None]
        if layer.spec.window:
            visible &= at[None, :] > positions[:, None] - layer.spec.window
        seen_keys = np.ascontiguousarray(keys[0, seen].transpose(1, 2, 0))
        seen_values = np.ascontiguousarray(values[0, seen].transpose(1, 0, 2))
        scores = _rotated(query, positions + offset).transpose(1, 0, 2) @ seen_keys
        scores = scores / np.float32(np.sqrt(_DIM))
        scores = np.where(visible[None], scores, np.float32(-np.inf))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ seen_values
        return mixed.transpose(1, 0, 2).reshape(rows, -1) @ weights[3]

    def _recur(
        self,
        hidden: np.ndarray,
        weights: list[np.ndarray],
        layer: LayerBuffer,
    ) -> np.ndarray:
        """Linear attention with a decay, behind a short convolution."""
        conv, memory = (state[0] for state in layer.states)
        mixed = np.empty((len(hidden), _HEADS, _DIM), np.float32)
        for number, row in enumerate(hidden):
            conv[:-1] = conv[1:]
            conv[-1] = row
            query, key, value = ((conv.mean(axis=0) @ m).reshape(_HEADS, _DIM) for m in weights[:3])
            memory *= np.float32(0.9)
            memory += key[:, :, None] * value[:, None, :] / np.float32(_DIM)
            mixed[number] = (query[:, None, :] @ memory)[:, 0]
        return mixed.reshape(len(hidden), -1) @ weights[3]


def _layer_spec(window: int) -> LayerSpec:
    if window == RECURRENT:
        states = (
            PointState("conv", "F32", (_CONV, _HIDDEN)),
            PointState("recurrent", "F32", (_HEADS, _DIM, _DIM)),
        )
        return LayerSpec(LayerKind.RECURRENT, states=states)
    kind = LayerKind.SLIDING if window else LayerKind.FULL
    return LayerSpec(kind, _HEADS, _DIM, _DIM, "F32", window)


def _normed(hidden: np.ndarray) -> np.ndarray:
    scale = np.sqrt((hidden * hidden).mean(axis=-1, keepdims=True) + np.float32(1e-6))
    return (hidden / scale).astype(np.float32)


def _rotated(vectors: np.ndarray, positions: np.ndarray) -> np.ndarray:
    half = _DIM // 2
    angles = positions[:, None] * (1000.0 ** (-np.arange(half) / half))[None, :]
    cos, sin = (f(angles).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))
    low, high = vectors[..., :half], vectors[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


class ToyContext(ArenaContext):
    """A live sequence of the toy engine."""

    def __init__(
        self, engine: ToyEngine, arena: Arena, pool: ArenaPool | None, capacity: int
    ) -> None:
        super().__init__(arena, pool, capacity, _VOCAB)
        self._engine = engine
        self._hidden: np.ndarray | None = None

    def run(self, ids: np.ndarray, rows: int) -> None:
        with self._appending(ids, rows, planned=True) as arena:
            padded = np.full(rows, self._engine.form.pad_id, np.int64)
            padded[: len(ids)] = ids
            self._hidden = self._forward(arena, padded)[: len(ids)]
            self._end[:] = self._hidden[-1]

    def decode(self, token: int) -> None:
        ids = np.array([token])
        with self._appending(ids, 1, planned=False) as arena:
            self._hidden = self._forward(arena, ids)
            self._end[:] = self._hidden[-1]

    def _forward(self, arena: Arena, ids: np.ndarray) -> np.ndarray:
        return self._engine.forward(arena.layers, ids)

    def logits(self) -> np.ndarray:
        return np.asarray(self._end_point()[None] @ self._engine.head)[0]

    def call_logits(self) -> np.ndarray:
        if self._hidden is None:
            raise EngineError("no call was made in this context")
        return np.asarray(self._hidden @ self._engine.head)

    def export_views(self, role: Role, place: ChunkPlace) -> list[np.ndarray]:
        return self._export(role, place)

    def commit(self, length: int) -> None:
        self._commit(length)

    def copy(self, capacity: int) -> ToyContext:
        """Another context of the same content."""
        arena = Arena(self._engine.spec, capacity, self._engine.form.block)
        self.arena.copy_into(arena)
        other = ToyContext(self._engine, arena, None, capacity)
        other._end[:] = self._end_point()
        other._end_length = self.length
        return other

    def fork(self, lanes: int, new_tokens: int) -> ToyLanes:
        capacity = lanes_capacity(self.length, lanes, new_tokens, self._engine.context_tokens)
        return ToyLanes([self.copy(capacity) for _ in range(lanes)])


class ToyOffsetContext(OffsetContext, ToyContext):
    """A live sequence that begins at `offset`."""

    def _forward(self, arena: Arena, ids: np.ndarray) -> np.ndarray:
        return self._engine.forward(arena.layers, ids, self.offset)


class ToyRotation:
    """`kvgraft.engines.arena_offset.Rotation`; the toy's keys are float32 anyway."""

    def turn(self, layer: int, keys: np.ndarray, offset: int) -> None:
        keys[...] = _rotated(keys, np.full(len(keys), offset))

    def values(self, layer: int, keys: np.ndarray) -> np.ndarray:
        return keys.copy()


class ToyLanes:
    """Continuations, decoded one after the other: speed is not the toy's business."""

    def __init__(self, contexts: list[ToyContext]) -> None:
        self._contexts: list[ToyContext] | None = contexts

    @property
    def _open(self) -> list[ToyContext]:
        if self._contexts is None:
            raise EngineError("the lanes are closed")
        return self._contexts

    @property
    def count(self) -> int:
        return len(self._open)

    def logits(self) -> np.ndarray:
        return np.stack([context.logits() for context in self._open])

    def step(self, tokens: np.ndarray) -> None:
        if len(tokens) != self.count:
            raise EngineError(f"{len(tokens)} tokens for {self.count} lanes")
        check_vocabulary(tokens, _VOCAB)
        for context, token in zip(self._open, tokens, strict=True):
            context.decode(int(token))

    def keep(self, lanes: Sequence[int]) -> None:
        # Copies: a lane that is named twice goes on twice.
        self._contexts = [self._open[lane].copy(self._open[lane].capacity) for lane in lanes]

    def close(self) -> None:
        self._contexts = None


def open_toy(name: str) -> ToyEngine:
    """The engine behind `toy` or `toy:SEED`.

    Raises:
        UnknownModel: the seed is not a number.
    """
    _, _, seed = name.partition(":")
    if seed and not seed.isdigit():
        raise UnknownModel("a toy model is named toy or toy:SEED", where=name)
    return ToyEngine(int(seed or 0))
