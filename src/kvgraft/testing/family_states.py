"""Rows of the catalog of tiny models: states of constant size, alone or with attention."""

from __future__ import annotations

from typing import Any

from kvgraft.testing.family_experts import EXPERTS_4, LOCAL_4, QWEN, ROUTED
from kvgraft.testing.family_rows import LATENT, WINDOW, Row, bare, typed, usual

DELTA: dict[str, Any] = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
NO_HEADS: dict[str, Any] = {
    "num_attention_heads": None,
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": None,
    "intermediate_size": None,
}
MAMBA: dict[str, Any] = {**NO_HEADS, "state_size": 8, "conv_kernel": 4}
MAMBA_D: dict[str, Any] = {"mamba_d_state": 8, "mamba_d_conv": 4}
MAMBA2_D: dict[str, Any] = {
    **MAMBA_D,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
}
LINEAR_FULL = ["linear_attention", "full_attention"]

STATES: dict[str, Row] = {
    "qwen3_next": typed(
        "linear linear full linear",
        {
            **QWEN,
            **DELTA,
            "shared_expert_intermediate_size": 32,
            "mlp_only_layers": [1],
            "sliding_window": None,
        },
    ),
    "qwen3_5_text": typed("linear linear full linear", {**DELTA, "sliding_window": None}),
    "qwen3_5_moe_text": typed(
        "linear linear full linear",
        {
            **QWEN,
            **DELTA,
            "shared_expert_intermediate_size": 32,
            "sliding_window": None,
        },
    ),
    "olmo_hybrid": typed("linear linear full", {**DELTA, "sliding_window": None}),
    "kimi_linear": usual(
        "linear linear full linear",
        {
            **LATENT,
            "layer_types": [*LINEAR_FULL[:1], *LINEAR_FULL, "linear_attention"],
            "linear_head_dim": 16,
            "linear_num_heads": 4,
            "linear_conv_kernel_dim": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 32,
        },
    ),
    "bailing_hybrid": usual(
        "linear linear full linear",
        {
            **LATENT,
            **ROUTED,
            "layer_types": [*LINEAR_FULL[:1], *LINEAR_FULL, "linear_attention"],
            "head_dim": 16,
            "num_local_experts": 4,
            "short_conv_kernel_size": 4,
        },
    ),
    "minimax": typed(
        "full linear full linear",
        {
            **LOCAL_4,
            "block_size": 16,
            "sliding_window": None,
        },
    ),
    "mamba": usual("linear linear", MAMBA, attention="eager"),
    "falcon_mamba": usual("linear linear", MAMBA, attention="eager"),
    "mamba2": usual(
        "linear linear",
        {
            **MAMBA,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 2,
            "chunk_size": 16,
        },
        attention="eager",
    ),
    "jamba": usual(
        "linear full linear linear",
        {
            **EXPERTS_4,
            **MAMBA_D,
            "attn_layer_period": 4,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "use_mamba_kernels": False,
        },
    ),
    "bamba": usual("linear full linear", {**MAMBA2_D, "attn_layer_indices": [1]}),
    "granitemoehybrid": typed(
        "linear full linear",
        {
            **LOCAL_4,
            **MAMBA2_D,
            "shared_intermediate_size": 32,
            "attention_multiplier": 0.25,
            "sliding_window": None,
        },
    ),
    "falcon_h1": usual("hybrid hybrid", {**MAMBA2_D, "mamba_d_ssm": 128}),
    "zamba": usual(
        "linear hybrid linear hybrid",
        {
            **MAMBA_D,
            "layers_block_type": ["linear_attention", "hybrid"] * 2,
            "n_mamba_heads": 2,
            "num_key_value_heads": 4,
            "head_dim": None,
            "use_mamba_kernels": False,
        },
    ),
    "zamba2": usual(
        "linear hybrid linear hybrid linear hybrid",
        {
            **MAMBA_D,
            "layers_block_type": ["linear_attention", "hybrid"] * 3,
            "n_mamba_heads": 8,
            "mamba_ngroups": 2,
            "chunk_size": 16,
            "num_mem_blocks": 2,
            "num_key_value_heads": 4,
            "head_dim": None,
            "use_mem_rope": True,
            "use_shared_attention_adapter": True,
            "adapter_rank": 8,
            "use_mamba_kernels": False,
        },
    ),
    "nemotron_h": usual(
        "linear none full none",
        {
            "layer_types": ["linear_attention", "moe", "full_attention", "mlp"],
            "ssm_state_size": 8,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "conv_kernel": 4,
            "chunk_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 32,
            "use_mamba_kernels": False,
            "num_hidden_layers": None,
        },
    ),
    "recurrent_gemma": usual(
        "linear linear sliding",
        {
            "lru_width": 64,
            "attention_window_size": WINDOW,
            "head_dim": None,
            "block_types": ["recurrent", "recurrent", "attention"],
        },
    ),
    "lfm2": typed(
        "conv full conv",
        {
            "conv_L_cache": 4,
            "block_auto_adjust_ff_dim": False,
            "sliding_window": None,
        },
    ),
    "lfm2_moe": typed(
        "conv full conv",
        {
            **QWEN,
            "conv_L_cache": 4,
            "num_dense_layers": 1,
            "sliding_window": None,
        },
    ),
    "lfm3": typed("conv full sliding conv", {"conv_L_cache": 4}),
    "zaya": typed(
        "hybrid hybrid_sliding",
        {
            "intermediate_size": None,
            "num_experts": 4,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 32,
            "router_hidden_size": 16,
        },
    ),
    "xlstm": bare(
        "linear linear",
        {
            "vocab_size": 384,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_heads": 4,
            "qk_dim_factor": 1.0,
            "autocast_kernel_dtype": "float32",
            "chunk_size": 16,
        },
        attention="eager",
    ),
    "rwkv": bare(
        "linear linear",
        {
            "vocab_size": 384,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "context_length": 512,
            "intermediate_size": 96,
        },
        attention="eager",
    ),
}
