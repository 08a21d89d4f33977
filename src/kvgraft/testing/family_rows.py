"""How a row of the catalog of tiny models is written (`kvgraft.testing.families`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# What a layer keeps between calls, and the word for it in `layer_types` of a config.
KINDS = {
    "full": "full_attention",
    "sliding": "sliding_attention",
    "chunked": "chunked_attention",
    "indexed": "indexed_attention",  # keys, values and the keys that choose among them
    "sparse": "compressed_sparse_attention",
    "heavy": "heavily_compressed_attention",
    "linear": "linear_attention",  # a state of constant size: recurrent, convolution or both
    "conv": "conv",
    "hybrid": "hybrid",  # a state of constant size, and keys and values
    "hybrid_sliding": "hybrid_sliding",
    "shared": "",  # reads what an earlier layer keeps
    "none": "",  # only experts or a feed-forward block
}

# What every parameter is moved by; more where a state would hardly show in the logits.
NOISE = 0.05
MORE_NOISE = {
    "deepseek_v4": 0.2,
    "falcon_h1": 0.1,
    "longcat_flash": 0.1,
    "nemotron_h": 0.1,
    "zamba": 0.12,
    "zamba2": 0.1,
    "zaya": 0.2,
}

WINDOW = 24
CHUNK = 32
SIZES: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# Keys and values come out of one vector of few numbers (multi-head latent attention).
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": None,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
# The old families have names of their own for everything.
OLD_SIZES: dict[str, Any] = {
    "vocab_size": 384,
    "n_positions": 512,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
}


@dataclass(frozen=True)
class Row:
    """One model: `settings` are the arguments of the config class of `model_type`."""

    kinds: str
    settings: dict[str, Any] = field(default_factory=dict)
    model_type: str = ""
    attention: str = "sdpa"
    model_class: str = ""


def bare(
    kinds: str,
    settings: dict[str, Any],
    *,
    model_type: str = "",
    attention: str = "sdpa",
    model_class: str = "",
) -> Row:
    """Nothing but these settings and the special tokens."""
    return Row(kinds, {**TOKENS, **settings}, model_type, attention, model_class)


def usual(
    kinds: str,
    settings: dict[str, Any] | None = None,
    *,
    model_type: str = "",
    attention: str = "sdpa",
) -> Row:
    """The usual sizes, changed by the settings; None leaves one out."""
    merged = {**SIZES, "num_hidden_layers": len(kinds.split()), **(settings or {})}
    kept = {name: value for name, value in merged.items() if value is not None}
    return bare(kinds, kept, model_type=model_type, attention=attention)


def typed(
    kinds: str,
    settings: dict[str, Any] | None = None,
    *,
    model_type: str = "",
    attention: str = "sdpa",
) -> Row:
    """As `usual`, of a config that is told the type of every layer, and has a window."""
    types = [KINDS[kind] for kind in kinds.split()]
    told = {"layer_types": types, "sliding_window": WINDOW, **(settings or {})}
    return usual(kinds, told, model_type=model_type, attention=attention)
