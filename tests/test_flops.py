"""Model FLOPs: against sums made token by token, and unknown where the products are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvgraft.engines.toy import ToyEngine, ToyShape
from kvgraft.flops import ModelSize, forward_flops, request_flops
from kvgraft.state import LayerKind, LayerSpec, PointState, StateSpec

SIZE = ModelSize(body_parameters=1_000, head_parameters=300, query_heads=4)
FULL = LayerSpec(LayerKind.FULL, heads=2, key_dim=16, value_dim=8)
SLIDING = replace(FULL, kind=LayerKind.SLIDING, window=5)
CHUNKED = replace(FULL, kind=LayerKind.CHUNKED, window=4)
STATES = (PointState("recurrent", "F32", (2, 2)),)


def spec(*layers: LayerSpec) -> StateSpec:
    return StateSpec(layers, 32, "F32")


def seen(layer: LayerSpec, position: int) -> int:
    """Positions that the token at `position` sees, one by one."""
    visible = {
        LayerKind.FULL: lambda other: True,
        LayerKind.SLIDING: lambda other: other > position - layer.window,
        LayerKind.CHUNKED: lambda other: other // layer.window == position // layer.window,
    }[layer.kind]
    return sum(visible(other) for other in range(position + 1))


@pytest.mark.parametrize("layers", [(FULL,), (SLIDING,), (CHUNKED,), (FULL, SLIDING, CHUNKED)])
@pytest.mark.parametrize("start", [0, 1, 3, 4, 5, 6, 40])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 9, 33])
def test_every_token_is_counted_with_what_it_sees(layers, start: int, count: int) -> None:
    positions = range(start, start + count)
    # A product of a row with a matrix takes a multiplication and an addition per element.
    expected = sum(2 * 1_000 for _ in positions) + 2 * 300 * 3
    for layer in layers:
        # The scores of 4 query heads over keys of 16, and the sum of values of 8.
        expected += sum(2 * 4 * (16 + 8) * seen(layer, position) for position in positions)
    flops = forward_flops(SIZE, spec(*layers), tokens=count, context_tokens=start, logit_rows=3)
    assert flops == expected


def test_calls_add_up_to_the_whole() -> None:
    layers = spec(FULL, SLIDING, CHUNKED)
    whole = forward_flops(SIZE, layers, tokens=100, context_tokens=0, logit_rows=0)
    parts = [
        forward_flops(SIZE, layers, tokens=end - start, context_tokens=start, logit_rows=0)
        for start, end in ((0, 16), (16, 32), (32, 33), (33, 100))
    ]
    assert sum(part or 0 for part in parts) == whole


@pytest.mark.parametrize(
    "layer",
    [
        LayerSpec(LayerKind.LATENT, heads=1, key_dim=16, value_dim=4),
        LayerSpec(LayerKind.RECURRENT, states=STATES),
        LayerSpec(LayerKind.NONE),
        replace(FULL, index_dim=4),
        replace(FULL, states=STATES),
    ],
)
def test_a_layer_whose_products_are_not_known_makes_all_unknown(layer: LayerSpec) -> None:
    assert forward_flops(SIZE, spec(FULL, layer), tokens=1, context_tokens=0, logit_rows=1) is None
    options = {"reused_tokens": 0, "computed_tokens": 5, "steps": [3]}
    assert request_flops(SIZE, spec(FULL, layer), **options) is None


def test_a_size_that_is_not_known_makes_all_unknown() -> None:
    assert forward_flops(None, spec(FULL), tokens=1, context_tokens=0, logit_rows=1) is None
    options = {"reused_tokens": 0, "computed_tokens": 5, "steps": [3]}
    assert request_flops(None, spec(FULL), **options) is None


def test_a_request_is_its_prompt_and_its_continuations() -> None:
    layers = spec(FULL, SLIDING)
    found = request_flops(SIZE, layers, reused_tokens=32, computed_tokens=9, steps=[1, 4])
    prompt = forward_flops(SIZE, layers, tokens=9, context_tokens=32, logit_rows=0)
    one = 2 * 300  # its one token is chosen from the prompt's logits, and not computed any more
    four = forward_flops(SIZE, layers, tokens=3, context_tokens=41, logit_rows=4)
    assert found == (prompt or 0) + one + (four or 0)


def test_what_was_reused_costs_nothing() -> None:
    layers = spec(FULL)
    cold = request_flops(SIZE, layers, reused_tokens=0, computed_tokens=64, steps=[2])
    warm = request_flops(SIZE, layers, reused_tokens=64, computed_tokens=0, steps=[2])
    decoding = forward_flops(SIZE, layers, tokens=1, context_tokens=64, logit_rows=2)
    prompt = forward_flops(SIZE, layers, tokens=64, context_tokens=0, logit_rows=0)
    assert warm == decoding
    assert cold == (prompt or 0) + (decoding or 0)


def test_the_toy_knows_its_size() -> None:
    engine = ToyEngine(shape=ToyShape(windows=(0, 24)))
    layer = 4 * 32 * 32 + 2 * 32 * 64  # query, key, value, output, and two of the middle
    assert engine.model_size == ModelSize(2 * layer, 32 * 260, 2)
    flops = forward_flops(engine.model_size, engine.spec, tokens=1, context_tokens=0, logit_rows=0)
    assert flops == 2 * 2 * layer + 2 * (2 * 2 * 32)
