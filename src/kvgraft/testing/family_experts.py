"""Rows of the catalog of tiny models: attention in every layer, experts in all or some of them."""

from __future__ import annotations

from typing import Any

from kvgraft.testing.family_rows import CHUNK, LATENT, WINDOW, Row, bare, typed, usual

EXPERTS_4: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL_4: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN: dict[str, Any] = {**EXPERTS_4, "moe_intermediate_size": 32}
# One dense layer, then layers of routed and shared experts.
ROUTED: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
INDEXED: dict[str, Any] = {"index_topk": 16, "index_head_dim": 16, "index_n_heads": 16}

EXPERTS: dict[str, Row] = {
    "mixtral": usual("full full", LOCAL_4),
    "mixtral_sliding": usual(
        "sliding sliding", {**LOCAL_4, "sliding_window": WINDOW}, model_type="mixtral"
    ),
    "qwen2_moe": typed(
        "sliding full",
        {
            **QWEN,
            "use_sliding_window": True,
            "shared_expert_intermediate_size": 32,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3_moe": usual("full full", {**QWEN, "mlp_only_layers": [1]}),
    "phimoe": usual("sliding sliding", {**LOCAL_4, "sliding_window": WINDOW}),
    "olmoe": usual("full full", {**EXPERTS_4, "clip_qkv": 8.0}),
    "flex_olmo": usual("full full", EXPERTS_4),
    "glm4_moe": usual("full full", {**ROUTED, "use_qk_norm": True}),
    "glm4_moe_lite": usual("full full", {**LATENT, **ROUTED}),
    "glm_moe_dsa": usual(
        "indexed indexed indexed indexed",
        {
            **LATENT,
            **ROUTED,
            **INDEXED,
            "indexer_types": ["full", "shared", "full", "shared"],
        },
    ),
    "deepseek_v2": usual(
        "full full",
        {
            **LATENT,
            **ROUTED,
            "topk_method": "group_limited_greedy",
            "n_group": 2,
            "topk_group": 1,
        },
    ),
    "deepseek_v3": usual("full full", {**LATENT, **ROUTED, "n_group": 2, "topk_group": 1}),
    "deepseek_v32": usual("indexed indexed", {**LATENT, **ROUTED, **INDEXED}),
    "deepseek_v4": typed(
        "sliding sparse heavy sparse",
        {
            "intermediate_size": None,
            "num_key_value_heads": 1,
            "q_lora_rank": 24,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "partial_rotary_factor": 0.5,
            "o_groups": 2,
            "o_lora_rank": 16,
            "hc_mult": 2,
            "compress_rates": {
                "compressed_sparse_attention": 4,
                "heavily_compressed_attention": 16,
            },
            "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
            **INDEXED,
            "index_topk": 4,
        },
        attention="eager",
    ),
    "gpt_oss": typed("sliding full", LOCAL_4, attention="eager"),
    "granitemoe": usual("full full", {**LOCAL_4, "attention_multiplier": 0.25}),
    "granitemoeshared": usual(
        "full full",
        {
            **LOCAL_4,
            "attention_multiplier": 0.25,
            "shared_intermediate_size": 32,
        },
    ),
    "jetmoe": usual("full full", {**LOCAL_4, "kv_channels": 16, "num_attention_heads": None}),
    "llama4_text": usual(
        "chunked full chunked full",
        {
            "layer_types": ["chunked_attention", "full_attention"] * 2,
            "no_rope_layers": [1, 0, 1, 0],
            "attention_chunk_size": CHUNK,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 96,
            "floor_scale": 16,
        },
    ),
    "minimax_m2": usual("full full", LOCAL_4),
    "hunyuan_v1_moe": usual("full full", {"num_experts": 4, "moe_topk": 2}),
    "ernie4_5_moe": usual(
        "full full",
        {
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
            "moe_intermediate_size": 32,
        },
    ),
    "exaone_moe": typed(
        "sliding full",
        {
            **EXPERTS_4,
            "num_shared_experts": 1,
            "moe_intermediate_size": 32,
        },
    ),
    "cohere2_moe": typed("sliding full", {**EXPERTS_4, "num_shared_experts": 1}),
    "dots1": typed("full sliding", ROUTED),
    "longcat_flash": usual(
        "full full full full",
        {
            **LATENT,
            "num_hidden_layers": None,
            "num_layers": 2,
            "ffn_hidden_size": 96,
            "expert_ffn_hidden_size": 32,
            "moe_topk": 2,
            "n_routed_experts": 4,
            "zero_expert_num": 2,
            "head_dim": 8,
        },
    ),
    "afmoe": typed(
        "sliding full",
        {
            **QWEN,
            "num_dense_layers": 1,
            "num_shared_experts": 1,
        },
    ),
    "mimo_v2_flash": typed("full sliding", {**ROUTED, "v_head_dim": 8}, attention="eager"),
    "laguna": typed("full sliding", {**QWEN, "shared_expert_intermediate_size": 32}),
    "dbrx": bare(
        "full full",
        {
            "vocab_size": 384,
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 512,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
}
