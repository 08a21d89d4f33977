"""What a transformers model says of its size, against torch's own count of its products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from kvgraft.engines.transformers.probe import Body, probe
from kvgraft.engines.transformers.size import model_size
from kvgraft.flops import ModelSize, forward_flops
from kvgraft.state import StateSpec
from kvgraft.testing.families import build_model

TOKENS = 13
# Products of a matrix with rows; attention's own are `bmm`, or hidden inside of one operation.
MATRICES, ATTENTION = ("aten.mm", "aten.addmm"), ("aten.bmm",)


def opened(family: str) -> tuple[Any, Body, StateSpec, ModelSize | None]:
    model = build_model(family)
    body = Body(model, torch.device("cpu"))
    spec, _ = probe(model, body)
    return model, body, spec, model_size(model, body.module, len(spec.layers))


def counted(model: Any, body: Body) -> dict[str, int]:
    """FLOPs of a prompt by torch's name of the operation."""
    ids = np.arange(1, 1 + TOKENS)[None]
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        body.run(ids, DynamicCache(config=model.config.get_text_config()), 0)
    return {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}


# Tied and untied heads, tables of positions, biases, windows, and keys shared by query heads.
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_text", "gpt2", "opt", "falcon"])
def test_parameters_are_those_that_rows_are_multiplied_with(family: str) -> None:
    model, body, _, size = opened(family)
    assert size is not None
    products = sum(flops for name, flops in counted(model, body).items() if name in MATRICES)
    # Norms and biases are parameters and no products: in a model this small, up to 3 %.
    assert products <= 2 * size.body_parameters * TOKENS < 1.03 * products
    head = model.get_output_embeddings().weight
    assert size.head_parameters == head.shape[0] * head.shape[1]


def test_attention_is_what_torch_counts_without_the_masked_half() -> None:
    model, body, spec, size = opened("gpt_neo")  # one that multiplies in the open
    assert size is not None
    whole = forward_flops(size, spec, tokens=TOKENS, context_tokens=0, logit_rows=0)
    assert whole is not None
    ours = whole - 2 * size.body_parameters * TOKENS
    products = sum(flops for name, flops in counted(model, body).items() if name in ATTENTION)
    seen, square = TOKENS * (TOKENS + 1) // 2, TOKENS**2
    assert ours * square == products * seen


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3", "llama4_text", "qwen2_vl"])
def test_experts_and_parts_of_larger_models_have_no_size(family: str) -> None:
    *_, size = opened(family)
    assert size is None


def test_layers_that_are_used_twice_have_no_size() -> None:
    model, body, spec, size = opened("llama")
    assert size is not None
    model.model.layers[1] = model.model.layers[0]
    assert model_size(model, body.module, len(spec.layers)) is None


def test_a_model_with_more_layers_than_its_cache_has_no_size() -> None:
    model, body, spec, _ = opened("llama")
    assert model_size(model, body.module, len(spec.layers) - 1) is None
