"""Moving the state of a transformers model to other positions, where its keys allow it.

For rotary embeddings of the standard form alone: one module `rotary_emb` of the body that gives
cosines and sines for positions (for each layer type, where a model has several), dimensions turned
in pairs half a rotation apart, angles that do not depend on the length. Whether a model is of that
form is measured, once for each engine; every other model is refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from kvgraft.engines.arena_offset import OffsetContext, check_offset
from kvgraft.engines.transformers.context import TransformersContext
from kvgraft.engines.transformers.engine import TransformersEngine
from kvgraft.engines.transformers.layers import TORCH_DTYPES
from kvgraft.engines.transformers.probe import error_line
from kvgraft.errors import UnsupportedModel
from kvgraft.state import LayerKind

# Their angles are a position times a constant. Others change them with the length of the text.
_FIXED_ROPES = ("default", "linear", "llama3", "yarn", "proportional")
_CARRIED = (LayerKind.FULL, LayerKind.SLIDING, LayerKind.RECURRENT, LayerKind.NONE)
_HINT = "its states can be reused at their own place only"
# The trial of the self-check.
_CHECK_TOKENS, _CHECK_OFFSET, _CHECK_STRIDE = 8, 96, 997
# The first layer reads the embeddings, so its keys differ by their own rounding alone. Deeper ones
# read what the layers before them rounded otherwise, so there moved keys have to be much nearer to
# the fresh ones than keys that were left as they are: 0.08 times as far at most in three real
# models of the standard form, as far and farther in models that are not.
_ROUNDINGS, _DEEP_SHARE = 8, 0.5


class Relocator:
    """An engine's states at other positions than their own (`kvgraft.relocation.Relocating`)."""

    def __init__(self, engine: TransformersEngine) -> None:
        """
        Raises:
            UnsupportedModel: the model's keys cannot be moved.
        """
        self._engine = engine
        if engine not in _ROTATIONS:
            rotation = TorchRotation(engine)
            _check(engine, rotation)
            _ROTATIONS[engine] = rotation
        self._rotation = _ROTATIONS[engine]

    def open_context_at(
        self, capacity: int, offset: int, moved: Collection[LayerKind] | None = None
    ) -> TransformersOffsetContext:
        """An empty context for `capacity` tokens whose first one stands at position `offset`.
        States that are imported into it are moved there, in layers of the kinds `moved`.

        Raises:
            EngineError: it passes the model's context.
        """
        return _open(self._engine, self._rotation, capacity, offset, moved)


class TransformersOffsetContext(OffsetContext, TransformersContext):
    """A live sequence that begins at `offset`. Masks count its own tokens, as before; only the
    positions that the rotary embedding is given are others."""

    @torch.inference_mode()
    def run(self, ids: np.ndarray, rows: int) -> None:
        with self._appending(ids, rows, planned=True) as arena:
            padded = np.full(rows, self._engine.form.pad_id, np.int64)
            padded[: len(ids)] = ids
            start = self.offset + arena.length
            hidden = self._engine.forward(padded[None], self._cache, start)
            self._remember(hidden[0, : len(ids)])

    @torch.inference_mode()
    def decode(self, token: int) -> None:
        ids = np.array([token], np.int64)
        with self._appending(ids, 1, planned=False) as arena:
            start = self.offset + arena.length
            self._remember(self._engine.forward(ids[None], self._cache, start)[0])

    def _bring_home(self) -> None:
        self._cache.bring_home()

    def _adopt(self) -> None:
        self._cache.adopt()


class TorchRotation:
    """`kvgraft.engines.arena_offset.Rotation` of a model's own rotary embedding.

    Cosines and sines are the model's, in float32. A factor that it multiplies both with (attention
    scaling) is in the keys already, and is taken off.
    """

    def __init__(self, engine: TransformersEngine) -> None:
        """
        Raises:
            UnsupportedModel: no rotary embedding of the standard form.
        """
        body: Any = engine._body.module
        self._layers = engine.spec.layers
        self._device = engine.device
        for number, layer in enumerate(self._layers):
            if layer.kind not in _CARRIED or layer.index_dim:
                kind = "an index" if layer.index_dim else f"{layer.kind.value} attention"
                raise UnsupportedModel(f"layer {number} has {kind}: it cannot be moved", hint=_HINT)
        if "position_ids" not in inspect.signature(body.forward).parameters:
            raise UnsupportedModel(f"{type(body).__name__} takes no positions", hint=_HINT)
        self._rotary = _rotary_of(body)
        self._types = self._layer_types(body.config)
        self._turns: dict[tuple[str, int], tuple[torch.Tensor, torch.Tensor]] = {}
        for kind in sorted(set(self._types)):
            self._turn_of(kind, 1)

    def _layer_types(self, config: Any) -> list[str]:
        """One of the rotary embedding's layer types per layer; empty names where it has none."""
        if "layer_type" not in inspect.signature(self._rotary.forward).parameters:
            _check_rope(self._rotary.rope_type)
            return [""] * len(self._layers)
        types = list(config.layer_types[: len(self._layers)])
        for kind in types:
            if kind not in self._rotary.rope_type:
                raise UnsupportedModel(f"{kind} layers have no rotary embedding", hint=_HINT)
            _check_rope(self._rotary.rope_type[kind])
        return types

    def turn(self, layer: int, keys: np.ndarray, offset: int) -> None:
        dtype = TORCH_DTYPES[self._layers[layer].dtype]
        raw = torch.from_numpy(keys).view(dtype)
        cos, sin = self._turn_of(self._types[layer], offset)
        half = len(cos)
        turned = raw.float()
        low, high = turned[..., :half].clone(), turned[..., half : 2 * half].clone()
        turned[..., :half] = low * cos - high * sin
        turned[..., half : 2 * half] = high * cos + low * sin
        raw.copy_(turned)  # rounds to nearest, ties to even

    def values(self, layer: int, keys: np.ndarray) -> np.ndarray:
        raw = torch.from_numpy(keys).view(TORCH_DTYPES[self._layers[layer].dtype])
        out: np.ndarray = raw.float().numpy()
        return out

    @torch.inference_mode()
    def _turn_of(self, kind: str, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines float32 `[pairs]` of the angles of `offset` positions.

        Raises:
            UnsupportedModel: the module gives something else than the standard form does.
        """
        if (kind, offset) in self._turns:
            return self._turns[kind, offset]
        positions = torch.tensor([[0, offset]], device=self._device)
        probe = torch.zeros(1, 1, 1, dtype=torch.float32, device=self._device)
        try:
            given = self._rotary(probe, positions, **({"layer_type": kind} if kind else {}))
            cos, sin = (one.cpu()[0] for one in given)
            standard = _is_standard(cos, sin, max(layer.key_dim for layer in self._layers))
        except Exception as error:  # whatever a module of another kind makes of these arguments
            raise UnsupportedModel(
                f"{type(self._rotary).__name__} gives no cosines and sines: {error_line(error)}",
                hint=_HINT,
            ) from error
        if not standard:
            name = type(self._rotary).__name__
            raise UnsupportedModel(f"{name} is not the standard rotary embedding", hint=_HINT)
        half = cos.shape[-1] // 2
        turn = (cos[1, :half] / cos[0, 0], sin[1, :half] / cos[0, 0])
        self._turns[kind, offset] = turn
        return turn


_ROTATIONS: WeakKeyDictionary[TransformersEngine, TorchRotation] = WeakKeyDictionary()


def _rotary_of(body: Any) -> Any:
    found = {id(m): m for name, m in body.named_modules() if name.split(".")[-1] == "rotary_emb"}
    if len(found) != 1:
        many = f"{len(found)} rotary embeddings" if found else "no rotary embedding"
        raise UnsupportedModel(f"{type(body).__name__} has {many}", hint=_HINT)
    (rotary,) = found.values()
    if not hasattr(rotary, "rope_type"):
        name = type(rotary).__name__
        raise UnsupportedModel(f"{name} does not say of which kind it is", hint=_HINT)
    return rotary


def _check_rope(kind: object) -> None:
    if kind not in _FIXED_ROPES:
        raise UnsupportedModel(f"rotary embeddings of kind {kind} cannot be moved", hint=_HINT)


def _is_standard(cos: torch.Tensor, sin: torch.Tensor, key_dim: int) -> bool:
    """Of positions 0 and some other, `[2, dims]`: no angle at 0, both halves alike, and no more
    dimensions than a key has."""
    dims = cos.shape[-1]
    if cos.shape != (2, dims) or sin.shape != cos.shape or dims % 2 or not 0 < dims <= key_dim:
        return False
    halves = all(torch.equal(x[:, : dims // 2], x[:, dims // 2 :]) for x in (cos, sin))
    at_zero = bool((sin[0] == 0).all() and (cos[0] == cos[0, 0]).all() and cos[0, 0] > 0)
    return halves and at_zero


def _open(
    engine: TransformersEngine,
    rotation: TorchRotation,
    capacity: int,
    offset: int,
    moved: Collection[LayerKind] | None = None,
) -> TransformersOffsetContext:
    check_offset(offset, capacity, engine.context_tokens)
    context = TransformersOffsetContext(engine, engine._pool.take(capacity), engine._pool, capacity)
    context.stand_at(offset, rotation, moved)
    return context


def _check(engine: TransformersEngine, rotation: TorchRotation) -> None:
    """Compare keys that were computed at an offset with keys that were moved there.

    Raises:
        UnsupportedModel: they are not the same within rounding.
    """
    tokens = min(_CHECK_TOKENS, engine.form.block)
    offset = min(_CHECK_OFFSET, engine.context_tokens // 2)
    ids = (_CHECK_STRIDE * np.arange(1, 1 + tokens) % engine.vocabulary).astype(np.uint32)
    here = engine.open_context(tokens)
    there = _open(engine, rotation, tokens, offset)
    try:
        for context in (here, there):
            context.run(ids, tokens)
        here._cache.bring_home()
        positions = offset + tokens
        for number, layer in enumerate(here.arena.layers):
            if not layer.parts:
                continue
            left = layer.parts[0][0, layer.rows - layer.kept : layer.rows]
            moved = left.copy()
            rotation.turn(number, moved, offset)
            three = there.keys(number), *(rotation.values(number, keys) for keys in (moved, left))
            if not _alike(three, _dtype_of(engine, number), positions):
                raise UnsupportedModel(
                    f"keys of layer {number} that were moved are not those computed there",
                    where=engine.model,
                    hint=_HINT,
                )
            positions = 0
    finally:
        here.close()
        there.close()


def _dtype_of(engine: TransformersEngine, number: int) -> torch.dtype:
    dtype: torch.dtype = TORCH_DTYPES[engine.spec.layers[number].dtype]
    return dtype


def _alike(keys: tuple[np.ndarray, ...], dtype: torch.dtype, positions: int) -> bool:
    """Of keys computed there, moved there, and left as they are. `positions`: the largest
    position, for the first layer with keys; 0 for a deeper one."""
    fresh, moved, left = keys
    if positions:
        # The dtype's rounding of cosines, products and sums, and float32's of the angle itself.
        share = _ROUNDINGS * torch.finfo(dtype).eps + positions * torch.finfo(torch.float32).eps
        return bool(np.abs(fresh - moved).max() <= share * np.abs(fresh).max())
    off, unmoved = (np.linalg.norm(fresh - other, axis=(1, 2)) for other in (moved, left))
    # The median token: a single one may take another way through a deep model altogether.
    return bool(np.median(off) <= _DEEP_SHARE * np.median(unmoved))
