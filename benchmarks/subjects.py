"""The published subjects, Gemma 4 12B and 31B: their shapes, and models of random weights.

The shapes are facts of public configuration files. Weights are drawn on the device itself, from a
seed, so that no file of 62 GB is needed and every process draws the same ones; what grafting costs
and whether it is exact depend on shapes and arithmetic, not on what the weights have learned.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from kvgraft.engines.base import Message
from kvgraft.engines.transformers.engine import PLAN, TransformersEngine
from kvgraft.identity import digest_json
from kvgraft.plan import PlanForm
from kvgraft.state import LayerKind, LayerSpec, StateSpec

PATTERN = 6  # five sliding layers, then a full one
WINDOW = 1024
HEAD, FULL_HEAD = 256, 512
TINY_SCALE = 32
TINY_FORM = PlanForm(block=16, rungs=(4, 8, 16))
_PIECE_CHARS = 3
# Scaled to unit length, random queries and keys have products of 16 and more: attention would see
# one token alone. This factor (a query norm's weight, over the root of the head size) spreads it.
_QUERY_SCALE = 2.0


@dataclass(frozen=True)
class Shape:
    """What differs between the two."""

    model_type: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    sliding_kv_heads: int
    full_kv_heads: int
    context_tokens: int


SHAPES = {
    "12b": Shape("gemma4_unified_text", 3840, 15_360, 48, 16, 8, 1, 262_144),
    "31b": Shape("gemma4_text", 5376, 21_504, 60, 32, 16, 4, 262_144),
}


def gemma4_config(
    name: str,
    layers: int | None = None,
    scale: int = 1,
    *,
    width: int = 1,
    window: int | None = None,
) -> Any:
    """The config of `12b` or `31b`, of transformers' own class.

    `layers`: how many, a multiple of six; all by default. `scale` divides every size but the
    numbers of heads. `width` divides only what no state is made of (hidden and feed-forward size,
    vocabulary): layers then keep the real heads, head sizes and window. `window`: another one.
    """
    shape = SHAPES[name]
    count = shape.layers if layers is None else layers
    if count % PATTERN:
        raise ValueError(f"{count} layers: the pattern takes a multiple of {PATTERN}")
    narrow = scale * width
    return transformers.CONFIG_MAPPING[shape.model_type](
        vocab_size=262_144 // narrow,
        vocab_size_per_layer_input=262_144 // narrow,
        hidden_size=shape.hidden // narrow,
        intermediate_size=shape.intermediate // narrow,
        num_hidden_layers=count,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.sliding_kv_heads,
        num_global_key_value_heads=shape.full_kv_heads,
        head_dim=HEAD // scale,
        global_head_dim=FULL_HEAD // scale,
        attention_k_eq_v=True,
        sliding_window=window or WINDOW // scale,
        layer_types=_layer_types(count),
        max_position_embeddings=shape.context_tokens,
        final_logit_softcapping=30.0,
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        use_bidirectional_attention=None,
    )


def _layer_types(count: int) -> list[str]:
    return [
        "full_attention" if number % PATTERN == PATTERN - 1 else "sliding_attention"
        for number in range(count)
    ]


def spec_of(config: Any, dtype: str = "BF16") -> StateSpec:
    """What a model of this config carries, by its layers' configs alone: no model is built."""
    layers = []
    for number, kind in enumerate(config.layer_types):
        layer = config.per_layer_config[number]
        sliding = kind == "sliding_attention"
        layers.append(
            LayerSpec(
                LayerKind.SLIDING if sliding else LayerKind.FULL,
                heads=layer.num_key_value_heads,
                key_dim=layer.head_dim,
                value_dim=layer.head_dim,
                dtype=dtype,
                window=config.sliding_window if sliding else 0,
            )
        )
    return StateSpec(tuple(layers), config.hidden_size, dtype)


def build_model(config: Any, *, seed: int = 0, device: str = "cpu", dtype: Any = None) -> Any:
    """A model of random weights, made on the device; bfloat16 unless told."""
    dtype = torch.bfloat16 if dtype is None else dtype
    devices = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices), torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # each once, tied or not
            if parameter.ndim > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
            else:
                mean = _QUERY_SCALE * len(parameter) ** -0.5 if "q_norm" in name else 1.0
                parameter.normal_(mean, mean / 10, generator=generator)
    return model.eval()


def open_subject(
    name: str,
    *,
    tiny: bool = False,
    device: str = "cpu",
    mirrored: bool | None = None,
    seed: int = 0,
) -> TransformersEngine:
    """The engine over a subject at its full size, or its tiny form with a plan as small."""
    config = gemma4_config(name, PATTERN, TINY_SCALE) if tiny else gemma4_config(name)
    return engine_over(
        build_model(config, seed=seed, device=device),
        source=f"gemma4-{name}-random{'-tiny' * tiny}",
        seed=seed,
        form=TINY_FORM if tiny else PLAN,
        mirrored=mirrored,
    )


def engine_over(
    model: Any,
    *,
    source: str = "gemma4-random",
    seed: int = 0,
    form: PlanForm = PLAN,
    mirrored: bool | None = None,
) -> TransformersEngine:
    """The engine over a model of `build_model`. Its weights' digest stands for what they were drawn
    from: seed, shapes and kind of device (the fingerprint has torch's version and the rest)."""
    shapes = [[name, list(parameter.shape)] for name, parameter in model.named_parameters()]
    kind = next(model.parameters()).device.type
    return TransformersEngine(
        model,
        PieceTokenizer(int(model.config.vocab_size)),
        source=source,
        weights_digest="drawn:" + digest_json([seed, kind, shapes]),
        form=form,
        mirrored=mirrored,
    )


class PieceTokenizer:
    """Real text as ids of a vocabulary that nobody trained: pieces of three letters, hashed."""

    template_digest = "none"
    bos_id = None
    stop_ids: frozenset[int] = frozenset()

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self.digest = f"pieces-{_PIECE_CHARS}-of-{vocabulary}"

    def encode(self, text: str) -> list[int]:
        return [
            zlib.crc32(text[first : first + _PIECE_CHARS].encode()) % self._vocabulary
            for first in range(0, len(text), _PIECE_CHARS)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def render(self, messages: Sequence[Message]) -> str:
        return "\n\n".join(message.content for message in messages)
