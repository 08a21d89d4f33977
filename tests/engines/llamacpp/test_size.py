"""What a GGUF model says of its size, for model FLOPs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("llama_cpp") is None:
    pytest.skip("llama.cpp engine not installed", allow_module_level=True)

from kvgraft.engines.gguf_check import check_gguf
from kvgraft.engines.llamacpp.model import Model
from kvgraft.flops import ModelSize, forward_flops

WORDS, HIDDEN, HEADS, LAYERS = 261, 64, 4, 3
# Query and output, key and value of half the heads, three matrices of the middle, two norms.
LAYER = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * 64
BODY = LAYERS * LAYER + HIDDEN  # and the last norm


def test_embeddings_are_looked_up_and_the_head_is_apart(tiny_engine: Callable[[str], Any]) -> None:
    engine = tiny_engine("llama")
    assert engine.model_size == ModelSize(BODY, WORDS * HIDDEN, HEADS)
    flops = forward_flops(engine.model_size, engine.spec, tokens=1, context_tokens=0, logit_rows=1)
    assert flops == 2 * (BODY + WORDS * HIDDEN) + LAYERS * 2 * HEADS * (16 + 16)


def test_a_tied_head_is_the_table(tiny_engine: Callable[[str], Any]) -> None:
    size = tiny_engine("gemma3").model_size  # two more norms, and those of queries and keys
    assert size == ModelSize(BODY + LAYERS * (2 * 64 + 2 * 16), WORDS * HIDDEN, HEADS)


def test_a_model_with_experts_has_no_size(write_tiny: Callable[..., Path], tmp_path: Path) -> None:
    shapes = {"token_embd.weight": (3, 8), "blk.0.ffn_up_exps.weight": (2, 8, 8)}
    summary = check_gguf(write_tiny(tmp_path / "x.gguf", "llama", tensors=shapes))
    assert summary.experts
    assert (summary.parameters, summary.body, summary.head) == (3 * 8 + 128, 128, 3 * 8)


def test_layers_of_several_head_counts_have_no_size(
    write_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    def several(writer: Any) -> None:
        writer.add_array("llama.attention.head_count", [HEADS] * LAYERS)

    model = Model(write_tiny(tmp_path / "several.gguf", "llama", several))
    try:
        assert model.size is None
    finally:
        model.close()
