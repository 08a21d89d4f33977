"""Rows of the catalog of tiny models: attention in every layer, one feed-forward block in each."""

from __future__ import annotations

from typing import Any

from kvgraft.testing.family_rows import LATENT, OLD_SIZES, WINDOW, Row, bare, typed, usual

GEMMA: dict[str, Any] = {"query_pre_attn_scalar": 16}
MROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
MIXED = ["sliding_attention", "full_attention"]
VISION: dict[str, Any] = {
    "depth": 1,
    "embed_dim": 32,
    "hidden_size": 64,
    "num_heads": 2,
    "intermediate_size": 32,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [0],
}


def _with_vision(name: str, model_class: str, sections: list[int], vision: list[str]) -> Row:
    """The text model of a model that also sees, of rotations in three axes; given text only."""
    text = usual("full full").settings
    rope = {**MROPE, "mrope_section": sections}
    settings = {
        "text_config": {**text, "rope_parameters": rope, "use_sliding_window": False},
        "vision_config": {key: VISION[key] for key in vision},
        "image_token_id": 380,
        "video_token_id": 381,
        "vision_start_token_id": 382,
        "vision_end_token_id": 383,
    }
    return Row("full full", settings, name, model_class=model_class)


ATTENTION: dict[str, Row] = {
    "llama": usual("full full"),
    "llama_linear_rope": usual(
        "full full",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
        model_type="llama",
    ),
    "mistral": usual("sliding sliding", {"sliding_window": WINDOW}),
    "ministral": typed("sliding full"),
    "ministral3": usual(
        "full full",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 32,
                "llama_4_scaling_beta": 0.1,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            }
        },
    ),
    "qwen2": usual(
        "full sliding",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": typed("full sliding", {"use_sliding_window": True}),
    "gemma": usual("full full"),
    "gemma2": typed("sliding full", GEMMA, attention="eager"),
    "gemma3_text": typed("sliding sliding full", GEMMA),
    "gemma3n_text": usual(
        "sliding full sliding full shared shared",
        {
            "layer_types": MIXED * 3,
            "sliding_window": WINDOW,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 384,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 8,
            "altup_num_inputs": 3,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0, 0.0, 0.0],
        },
    ),
    "gemma4_text": usual(
        "sliding full sliding full shared shared",
        {
            "layer_types": MIXED * 3,
            "sliding_window": WINDOW,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 384,
            "hidden_size_per_layer_input": 8,
            "global_head_dim": 32,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4_text_k_eq_v": usual(
        "sliding full sliding full",
        {
            "layer_types": MIXED * 2,
            "sliding_window": WINDOW,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
        model_type="gemma4_text",
    ),
    "vaultgemma": typed("sliding full", GEMMA, attention="eager"),
    "phi": usual("full full"),
    "phi3": usual("sliding sliding", {"sliding_window": WINDOW}),
    "olmo": usual("full full", {"clip_qkv": 8.0}),
    "olmo2": usual("full full"),
    "olmo3": typed("sliding full"),
    "glm": usual("full full"),
    "glm4": usual("full full"),
    "granite": usual("full full", {"attention_multiplier": 0.25, "logits_scaling": 2.0}),
    "falcon": usual("full full", {"num_key_value_heads": None, "head_dim": None}),
    "falcon_grouped": usual(
        "full full",
        {
            "num_key_value_heads": None,
            "head_dim": None,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
        },
        model_type="falcon",
    ),
    "falcon_alibi": usual(
        "full full",
        {
            "num_key_value_heads": None,
            "head_dim": None,
            "alibi": True,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
        },
        model_type="falcon",
    ),
    "nemotron": usual("full full"),
    "smollm3": typed("full sliding", {"no_rope_layers": [1, 0], "use_sliding_window": True}),
    "cohere": usual("full full", {"logit_scale": 0.3, "use_qk_norm": True}),
    "cohere2": typed("sliding full"),
    "starcoder2": usual("sliding sliding", {"sliding_window": WINDOW}),
    "gpt2": bare("full full", OLD_SIZES),
    "gpt_bigcode": bare("full full", OLD_SIZES),
    "gpt_neo": bare(
        "full full",
        {
            "vocab_size": 384,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 512,
            "window_size": WINDOW,
            "attention_types": [[["global", "local"], 1]],
        },
        attention="eager",
    ),
    "gpt_neox": usual("full full", {"num_key_value_heads": None, "head_dim": None}),
    "gptj": bare("full full", {**OLD_SIZES, "rotary_dim": 8}),
    "codegen": bare("full full", {**OLD_SIZES, "rotary_dim": 8, "n_ctx": 512}),
    "opt": bare(
        "full full",
        {
            "vocab_size": 384,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "ffn_dim": 96,
            "max_position_embeddings": 512,
            "word_embed_proj_dim": 32,
            "num_attention_heads": 4,
        },
    ),
    "bloom": bare(
        "full full",
        {
            "vocab_size": 384,
            "hidden_size": 64,
            "n_layer": 2,
            "n_head": 4,
        },
        attention="eager",
    ),
    "mpt": bare(
        "full full",
        {
            "vocab_size": 384,
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "expansion_ratio": 2,
            "max_seq_len": 512,
        },
        attention="eager",
    ),
    "exaone4": typed("sliding full"),
    "hunyuan_v1_dense": usual("full full"),
    "ernie4_5": usual("full full"),
    "seed_oss": usual("full full"),
    "arcee": usual("full full"),
    "apertus": usual("full full"),
    "helium": usual("full full"),
    "stablelm": usual("full full", {"qk_layernorm": True, "use_qkv_bias": True}),
    "persimmon": usual("full full", {"num_key_value_heads": None}),
    "bitnet": usual("full full"),
    "doge": usual("full full"),
    "doge_sparse": usual("full full", {"keep_window_size": 16}, model_type="doge"),
    "diffllama": usual("full full"),
    "nanochat": usual("full full"),
    "cwm": typed("full sliding"),
    "hyperclovax": usual("full full"),
    "youtu": usual("full full", LATENT),
    "minicpm3": usual("full full", LATENT),
    "jais2": usual("full full"),
    "biogpt": bare(
        "full full",
        {
            "vocab_size": 384,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "max_position_embeddings": 512,
        },
    ),
    "xglm": bare(
        "full full",
        {
            "vocab_size": 384,
            "d_model": 64,
            "num_layers": 2,
            "attention_heads": 4,
            "ffn_dim": 96,
            "max_position_embeddings": 512,
        },
        attention="eager",
    ),
    "modernbert_decoder": typed(
        "full sliding",
        {
            "num_key_value_heads": None,
            "head_dim": None,
            "sliding_window": None,
            "local_attention": 2 * WINDOW,
        },
        model_type="modernbert-decoder",
    ),
    "qwen2_vl": _with_vision(
        "qwen2_vl",
        "Qwen2VLForConditionalGeneration",
        [2, 3, 3],
        ["depth", "embed_dim", "hidden_size", "num_heads"],
    ),
    "qwen2_5_vl": _with_vision(
        "qwen2_5_vl",
        "Qwen2_5_VLForConditionalGeneration",
        [2, 3, 3],
        [
            "depth",
            "hidden_size",
            "num_heads",
            "intermediate_size",
            "out_hidden_size",
            "fullatt_block_indexes",
        ],
    ),
    "qwen3_vl": _with_vision(
        "qwen3_vl",
        "Qwen3VLForConditionalGeneration",
        [3, 3, 2],
        [
            "depth",
            "hidden_size",
            "num_heads",
            "intermediate_size",
            "out_hidden_size",
            "num_position_embeddings",
            "deepstack_visual_indexes",
        ],
    ),
}
