"""What a model carries from call to call, found by running it once with its own cache."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from kvgraft.engines.arena import Arena
from kvgraft.engines.transformers.head import Head
from kvgraft.engines.transformers.layers import CONV, DTYPE_NAMES, RECURRENT, ArenaCache
from kvgraft.errors import KvgraftError, UnsupportedModel
from kvgraft.state import LayerKind, LayerSpec, PointState, StateSpec

# Exactly these: a subclass may keep more.
_ATTENTION = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    DynamicIndexedLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)
_KNOWN = (*_ATTENTION, LinearAttentionLayer, DummyLayer)
_CACHE_NAMES = ("cache", "past_key_values", "cache_params")
_HINT = "docs/MODELS.md lists what was tested"
# The tokens of the trial: two calls of unequal length.
_FIRST, _SECOND = 7, 6


class Body:
    """A model without its head."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        """
        Raises:
            UnsupportedModel: no body apart from the head, or one that takes no cache.
        """
        self.module = _body_of(model)
        self.device = device
        parameters = inspect.signature(self.module.forward).parameters
        names = [name for name in _CACHE_NAMES if name in parameters]
        if not names:
            raise UnsupportedModel(
                f"{type(self.module).__name__} takes no cache, so its state cannot be carried",
                hint=_HINT,
            )
        self._cache_name = names[0]
        self._positions = "position_ids" in parameters

    def run(self, ids: np.ndarray, cache: Any, start: int) -> Any:
        """The body's output for `ids` int64 `[lanes, rows]` at positions `start` and on."""
        arguments = {self._cache_name: cache}
        if self._positions:
            positions = torch.arange(start, start + ids.shape[1], device=self.device)
            arguments["position_ids"] = positions[None].expand(ids.shape[0], -1)
        tokens = torch.from_numpy(np.ascontiguousarray(ids)).to(self.device)
        return self.module(input_ids=tokens, use_cache=True, **arguments)


@torch.inference_mode()
def probe(model: nn.Module, body: Body) -> tuple[StateSpec, Head]:
    """Layer kinds from the cache that transformers itself would use, sizes from one short call.

    The same tokens then run in two calls over an arena's cache, which must come to the same: some
    models forget what a call before left behind, some keep more than their cache shows.

    Raises:
        UnsupportedModel: a kind of layer, a cache or a head that this version does not carry.
    """
    ids = np.arange(1, 1 + _FIRST + _SECOND, dtype=np.int64)[None] % _vocabulary(model)
    config = model.config.get_text_config()
    try:
        cache = DynamicCache(config=config)
        output = body.run(ids, cache, 0)
        hidden = output.last_hidden_state
        head = Head(model, body.module, output)
        head.check(hidden, model(torch.from_numpy(ids).to(hidden.device)).logits)
        layers = tuple(
            _layer_spec(config, number, layer) for number, layer in enumerate(cache.layers)
        )
        spec = StateSpec(layers, hidden.shape[-1], DTYPE_NAMES[hidden.dtype])
        _check_continuation(body, spec, ids, hidden)
    except KvgraftError:
        raise
    except Exception as error:  # whatever a model of another kind makes of these arguments
        raise UnsupportedModel(
            f"{type(model).__name__} does not run with a cache as this version gives it:"
            f" {error_line(error)}",
            hint=_HINT,
        ) from error
    return spec, head


def error_line(error: Exception) -> str:
    """The first line of an error of whatever kind."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _vocabulary(model: nn.Module) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def _body_of(model: nn.Module) -> nn.Module:
    # Some classes name another body than the one they have, so the name is not relied on.
    bodies = [child for child in model.children() if isinstance(child, PreTrainedModel)]
    if len(bodies) != 1:
        raise UnsupportedModel("the model has no body apart from its head", hint=_HINT)
    return bodies[0]


def _check_continuation(body: Body, spec: StateSpec, ids: np.ndarray, whole: torch.Tensor) -> None:
    """Whether a second call goes on where the first one ended.

    Not a matter of bits, which another split changes: a run that remembers is far nearer to the
    whole than one that begins anew. And every kind of recurrent state has to matter: some models
    look at theirs in calls of one token alone.

    Raises:
        UnsupportedModel: it does not.
    """
    first, second = ids[:, :_FIRST], ids[:, _FIRST:]
    split, states = _continued(body, spec, [first, second])
    for kind in sorted({s.name.split(".")[0] for layer in spec.layers for s in layer.states}):
        # The states behind the call too: in few bits a small state may not reach the output.
        hidden, after = _continued(body, spec, [first, second], forget=kind)
        if torch.equal(split, hidden) and all(map(torch.equal, states, after)):
            raise UnsupportedModel(
                f"a call of several tokens does not use the {kind} states that the call before it"
                " left, so a prompt cannot be computed in parts",
                hint=_HINT,
            )
    off, anew = (
        (hidden - whole[:, _FIRST:]).norm().item()
        for hidden in (split, _continued(body, spec, [second])[0])
    )
    if not off <= 0.5 * anew:
        raise UnsupportedModel(
            "a second call does not go on where the first one ended: the model keeps state outside"
            " its cache",
            hint=_HINT,
        )


def _continued(
    body: Body, spec: StateSpec, calls: list[np.ndarray], *, forget: str = ""
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Final hidden states of the last of these calls, float64, and the recurrent states behind it.
    Before it, states of the kind `forget` are set to zero."""
    arena = Arena(spec, _FIRST + _SECOND, _FIRST + _SECOND)
    cache = ArenaCache(arena, body.device, mirrored=body.device.type != "cpu")
    start = 0
    for ids in calls:
        if start and forget:
            cache.clear(forget)
        output = body.run(ids, cache, start)
        start += ids.shape[1]
        arena.count(start)
    return output.last_hidden_state.double(), cache.live_states()


def _layer_spec(config: Any, number: int, layer: Any) -> LayerSpec:
    if type(layer) not in _KNOWN:
        raise UnsupportedModel(
            f"layer {number} is a {type(layer).__name__}, which this version does not carry",
            hint=_HINT,
        )
    states = _states(layer)
    if not isinstance(layer, _ATTENTION) or not (states or layer.is_initialized):
        if not states and not isinstance(layer, DummyLayer):
            raise UnsupportedModel(f"layer {number} puts nothing into the cache", hint=_HINT)
        return LayerSpec(LayerKind.RECURRENT if states else LayerKind.NONE, states=states)
    key, value = layer.keys, layer.values
    if key.shape[1] != value.shape[1] or key.dtype != value.dtype:
        raise UnsupportedModel(f"layer {number} has unlike keys and values", hint=_HINT)
    index = getattr(layer, "indexer_keys", None)
    if getattr(layer, "indexer_position_ids", None) is not None:
        raise UnsupportedModel(f"layer {number} indexes positions of its own", hint=_HINT)
    if index is not None and index.dtype != key.dtype:
        raise UnsupportedModel(f"layer {number} has an index of another dtype", hint=_HINT)
    return LayerSpec(
        _attention_kind(config, number, layer),
        heads=key.shape[1],
        key_dim=key.shape[3],
        value_dim=value.shape[3],
        dtype=DTYPE_NAMES[key.dtype],
        window=layer.sliding_window if layer.is_sliding else 0,
        index_dim=0 if index is None else index.shape[-1],
        states=states,
    )


def _attention_kind(config: Any, number: int, layer: Any) -> LayerKind:
    if layer.is_sliding:
        # transformers has one cache for both; the mask tells them apart
        kinds = getattr(config, "layer_types", None)
        chunked = kinds[number] == "chunked_attention" if kinds else config.sliding_window is None
        return LayerKind.CHUNKED if chunked else LayerKind.SLIDING
    latent = getattr(config, "kv_lora_rank", None)
    if latent is not None and latent == layer.keys.shape[3] and layer.keys.shape[1] == 1:
        return LayerKind.LATENT
    return LayerKind.FULL


def _states(layer: Any) -> tuple[PointState, ...]:
    found = []
    if isinstance(layer, LinearAttentionLayer):
        for kind, states in ((CONV, layer.conv_states), (RECURRENT, layer.recurrent_states)):
            for number, state in states.items():
                if state is not None:
                    dtype = DTYPE_NAMES[state.dtype]
                    found.append(PointState(f"{kind}.{number}", dtype, tuple(state.shape[1:])))
    return tuple(found)
