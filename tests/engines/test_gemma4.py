"""Gemma 4 12B and 31B, the published subjects: their shapes, and exactness of reduced builds.

Reduced: one pattern of six layers (five sliding, one full, values taken from the key projection)
with the real heads and head sizes; only what no state is made of is narrower.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from kvgraft.engines.transformers.engine import PLAN, TransformersEngine
from kvgraft.plan import PlanForm
from kvgraft.state import LayerKind, Role
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore
from kvgraft.testing.grafting import expect_equal, prompt, run_digest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from subjects import SHAPES, build_model, engine_over, gemma4_config, spec_of

WINDOW = 24
WIDTH = 64
SMALL = PlanForm(block=16, rungs=(8, 16))
STEPS = 2


@cache
def engine(name: str, dtype: str, mirrored: bool = False) -> TransformersEngine:
    config = gemma4_config(name, 6, width=WIDTH, window=WINDOW)
    model = build_model(config, dtype=getattr(torch, dtype))
    return engine_over(model, form=SMALL, mirrored=mirrored)


def new_store() -> ChunkStore:
    return ChunkStore(MemoryStore(), Index(None))


def both(one: TransformersEngine, ids: np.ndarray) -> list[tuple[str, int]]:
    """Digest and calls made: captured, then restored whole."""
    store, seen = new_store(), []
    for _ in range(2):
        digest, report = run_digest(one, store, ids, steps=STEPS)
        seen.append((digest, report.calls_made))
    store.close()
    return seen


def behind(one: TransformersEngine, ids: np.ndarray, count: int) -> str:
    """Digest with the last `count` tokens computed behind a restored prefix."""
    store = new_store()
    run_digest(one, store, ids[:-count], steps=0)
    digest, report = run_digest(one, store, ids, steps=STEPS)
    store.close()
    block = one.form.block
    assert report.reused_tokens == (len(ids) - count) // block * block
    return digest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_cold_and_restored_are_equal_around_the_window(name: str, dtype: str) -> None:
    one = engine(name, dtype)
    cases: list[tuple[object, object, object]] = []
    for tokens in (WINDOW - 1, WINDOW, WINDOW + 1, 5 * WINDOW + 3):
        ids = prompt(one, tokens)
        cold, report = run_digest(one, None, ids, steps=STEPS)
        cases.append((tokens, both(one, ids), [(cold, report.calls_made), (cold, 0)]))
    cases.append(("behind", behind(one, ids, 7), cold))
    expect_equal(cases)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_path_of_other_devices_gives_the_same(name: str) -> None:
    plain, mirrored = (engine(name, "bfloat16", flag) for flag in (False, True))
    ids = prompt(plain, 3 * WINDOW + 5)
    cold, report = run_digest(plain, None, ids, steps=STEPS)
    expect_equal(
        [
            ("whole", both(mirrored, ids), [(cold, report.calls_made), (cold, 0)]),
            ("behind", behind(mirrored, ids, 7), cold),
        ]
    )


def test_the_real_window_and_plan() -> None:
    """1,024 tokens and blocks of 256, with small heads: at the window, beside it and past it."""
    config = gemma4_config("12b", 6, 32, window=1024)
    one = engine_over(build_model(config), form=PLAN)
    cases = []
    for tokens in (1023, 1024, 1025, 1290):
        ids = prompt(one, tokens)
        cold, report = run_digest(one, None, ids, steps=STEPS)
        cases.append((tokens, both(one, ids), [(cold, report.calls_made), (cold, 0)]))
    expect_equal(cases)


def test_a_neighbours_state_shows() -> None:
    """The equalities above would hold too if the state did not matter."""
    one = engine("12b", "bfloat16")
    ids = prompt(one, 5 * WINDOW)
    other = ids.copy()
    other[0] += 1  # out of every window by the end, and seen by the full layer alone
    assert run_digest(one, None, ids, steps=0)[0] != run_digest(one, None, other, steps=0)[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_layers_are_those_that_the_config_tells(name: str, dtype: str) -> None:
    one = engine(name, dtype)
    config = one._model.config
    assert one.spec == spec_of(config, {"float32": "F32", "bfloat16": "BF16"}[dtype])
    kinds = [layer.kind for layer in one.spec.layers]
    assert kinds == [LayerKind.SLIDING] * 5 + [LayerKind.FULL]
    assert [layer.key_dim for layer in one.spec.layers] == [256] * 5 + [512]
    assert [layer.window for layer in one.spec.layers] == [WINDOW] * 5 + [0]
    attention = one._model.model.layers[5].self_attn
    assert attention.v_proj is None  # values come out of the key projection


PUBLISHED = {
    # layers, full ones, bytes per token of the full ones, bytes of the windows, weights
    "12b": (48, 8, 16_384, 335_544_320, 24e9),
    "31b": (60, 10, 81_920, 838_860_800, 62e9),
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_published_sizes_follow_from_the_config(name: str) -> None:
    layers, full, per_token, windows, weights = PUBLISHED[name]
    config = gemma4_config(name)
    spec = spec_of(config)
    kinds = [layer.kind for layer in spec.layers]
    assert (len(kinds), kinds.count(LayerKind.FULL), kinds[-1]) == (layers, full, LayerKind.FULL)
    assert spec.largest_window == 1024
    assert spec.bytes_per_token(Role.KEEP) == per_token
    assert sum(layer.token_bytes * layer.window for layer in spec.layers if layer.window) == windows
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    assert 2 * sum(one.numel() for one in model.parameters()) == pytest.approx(weights, rel=0.02)


def test_the_type_of_each_is_its_own() -> None:
    assert {name: gemma4_config(name).model_type for name in SHAPES} == {
        "12b": "gemma4_unified_text",
        "31b": "gemma4_text",
    }
    for name in SHAPES:
        config = gemma4_config(name)
        assert config.final_logit_softcapping == 30.0
        assert config.rope_parameters["full_attention"] == {
            "rope_type": "proportional",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
        }
        assert config.rope_parameters["sliding_attention"]["rope_theta"] == 1e4
        assert not config.num_kv_shared_layers
        assert not getattr(config, "hidden_size_per_layer_input", 0)


def test_weights_are_a_function_of_the_seed() -> None:
    config = gemma4_config("12b", 6, 32)
    before = torch.random.get_rng_state()
    first, same, other = (
        build_model(config, seed=seed).model.layers[0].mlp.up_proj.weight for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_broken_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 6"):
        gemma4_config("12b", 7)
