"""Typed layer states: which tensors a chunk has, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft import limits
from kvgraft.errors import UnsupportedModel, UsageError
from kvgraft.state import DTYPE_BYTES, LayerKind, LayerSpec, PointState, Role, StateSpec

FULL = LayerSpec(LayerKind.FULL, 2, 8, 4, "BF16")
SLIDING = LayerSpec(LayerKind.SLIDING, 1, 4, 4, "F32", window=6)
MIXED = StateSpec((FULL, SLIDING, FULL), 32, "F32")

LAYERS = st.builds(
    lambda heads, key, value, dtype, window: LayerSpec(
        LayerKind.SLIDING if window else LayerKind.FULL, heads, key, value, dtype, window
    ),
    st.integers(1, 4),
    st.integers(1, 64),
    st.integers(1, 64),
    st.sampled_from(["F32", "BF16", "F16"]),
    st.sampled_from([0, 2, 7, 512]),
)
SPECS = st.builds(
    lambda layers: StateSpec(tuple(layers), 8, "F32"), st.lists(LAYERS, min_size=1, max_size=6)
)


STATES = (PointState("conv.0", "BF16", (6, 4)), PointState("recurrent.0", "F32", (2, 3, 5)))


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (LayerKind.RECURRENT, {"states": ()}),
        (LayerKind.RECURRENT, {"states": STATES, "heads": 1, "key_dim": 8, "value_dim": 8}),
        (LayerKind.NONE, {"states": STATES}),
        (LayerKind.NONE, {"heads": 1}),
        (LayerKind.LATENT, {"heads": 1}),
        (LayerKind.FULL, {"heads": 1, "key_dim": 8, "value_dim": 8, "index_dim": -1}),
        (LayerKind.CHUNKED, {"heads": 1, "key_dim": 8, "value_dim": 8}),
    ],
)
def test_sizes_that_do_not_fit_the_kind(kind: LayerKind, sizes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel):
        LayerSpec(kind, **sizes)


@pytest.mark.parametrize(("dtype", "shape"), [("F64", (2,)), ("F32", ()), ("F32", (2, 0))])
def test_states_that_are_not_carried(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedModel):
        PointState("recurrent.0", dtype, shape)


def test_the_tensors_of_every_other_kind_spelled_out() -> None:
    layers = (
        LayerSpec(LayerKind.RECURRENT, states=STATES),
        LayerSpec(LayerKind.LATENT, 1, 16, 4, "BF16", index_dim=8),
        LayerSpec(LayerKind.NONE),
        LayerSpec(LayerKind.CHUNKED, 2, 4, 4, "F16", window=3, states=STATES[1:]),
    )
    spec = StateSpec(layers, 32, "F32", end_name="logits")
    assert spec.resumes_with == (Role.NEAR, Role.END)
    assert spec.dtypes == ("BF16", "F16", "F32")
    assert [(t.name, t.dtype, t.shape) for t in spec.tensors(Role.KEEP, 10)] == [
        ("ids", "U32", (10,)),
        ("layer.0001.latent", "BF16", (10, 1, 16)),
        ("layer.0001.rope", "BF16", (10, 1, 4)),
        ("layer.0001.index", "BF16", (10, 1, 8)),
    ]
    assert [(t.name, t.shape) for t in spec.tensors(Role.NEAR, 10)][1:] == [
        ("layer.0003.key", (2, 2, 4)),
        ("layer.0003.value", (2, 2, 4)),
    ]
    assert [(t.name, t.dtype, t.shape) for t in spec.tensors(Role.END, 10)][1:] == [
        ("logits", "F32", (32,)),
        ("layer.0000.conv.0", "BF16", (6, 4)),
        ("layer.0000.recurrent.0", "F32", (2, 3, 5)),
        ("layer.0003.recurrent.0", "F32", (2, 3, 5)),
    ]
    assert spec.bytes_by_kind(Role.KEEP, 10) == {"ids": 40, "latent": 10 * 28 * 2}
    assert spec.bytes_by_kind(Role.NEAR, 10) == {"ids": 40, "chunked": 2 * 2 * 2 * 4 * 2}
    assert spec.bytes_by_kind(Role.END, 10) == {"ids": 40, "end": 128, "recurrent": 48 + 2 * 120}


@pytest.mark.parametrize("dtype", ["F64", "I8", "bfloat16", "", "F8_E4M3"])
def test_dtypes_that_are_not_carried_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"'{dtype}'"):
        LayerSpec(LayerKind.FULL, 1, 8, 8, dtype)


@pytest.mark.parametrize("sizes", [(0, 8, 8), (1, 0, 8), (1, 8, 0), (-1, 8, 8)])
def test_sizes_are_positive(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(UnsupportedModel):
        LayerSpec(LayerKind.FULL, *sizes, "F32")


@pytest.mark.parametrize(
    ("kind", "window"),
    [
        (LayerKind.FULL, 2),
        (LayerKind.FULL, 4096),
        (LayerKind.SLIDING, 0),
        (LayerKind.SLIDING, 1),
        (LayerKind.SLIDING, -5),
    ],
)
def test_a_window_belongs_to_sliding_layers_alone(kind: LayerKind, window: int) -> None:
    with pytest.raises(UnsupportedModel, match="window"):
        LayerSpec(kind, 1, 8, 8, "F32", window)


def test_models_have_layers_and_not_too_many() -> None:
    for count in (0, limits.MAX_LAYERS + 1):
        with pytest.raises(UnsupportedModel, match=f"{count} layers"):
            StateSpec((FULL,) * count, 8, "F32")
    StateSpec((FULL,) * limits.MAX_LAYERS, 8, "F32")


def test_the_tensors_spelled_out() -> None:
    assert [(t.name, t.dtype, t.shape, t.layer) for t in MIXED.tensors(Role.KEEP, 10)] == [
        ("ids", "U32", (10,), -1),
        ("layer.0000.key", "BF16", (10, 2, 8), 0),
        ("layer.0000.value", "BF16", (10, 2, 4), 0),
        ("layer.0002.key", "BF16", (10, 2, 8), 2),
        ("layer.0002.value", "BF16", (10, 2, 4), 2),
    ]
    assert [(t.name, t.shape) for t in MIXED.tensors(Role.NEAR, 10)] == [
        ("ids", (10,)),
        ("layer.0001.key", (5, 1, 4)),  # window - 1 of them: the next token sees itself too
        ("layer.0001.value", (5, 1, 4)),
    ]
    assert [(t.name, t.shape) for t in MIXED.tensors(Role.NEAR, 3)][1:] == [
        ("layer.0001.key", (3, 1, 4)),
        ("layer.0001.value", (3, 1, 4)),
    ]
    assert [(t.name, t.dtype, t.shape) for t in MIXED.tensors(Role.END, 10)] == [
        ("ids", "U32", (10,)),
        ("hidden", "F32", (32,)),
    ]


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("count", [0, -1])
def test_a_chunk_has_tokens(role: Role, count: int) -> None:
    with pytest.raises(UsageError):
        MIXED.tensors(role, count)


@given(spec=SPECS, count=st.integers(1, 1000))
def test_every_layer_is_in_exactly_one_object(spec: StateSpec, count: int) -> None:
    keep, near = (spec.tensors(role, count)[1:] for role in (Role.KEEP, Role.NEAR))
    layers = [tensor.layer for tensor in (*keep, *near)]
    assert sorted(layers) == sorted([*range(len(spec.layers))] * 2)
    assert spec.roles == ((Role.KEEP, Role.NEAR) if near else (Role.KEEP,))
    assert spec.resumes_with == spec.roles[1:]


@given(spec=SPECS, count=st.integers(1, 1000))
def test_sizes_agree(spec: StateSpec, count: int) -> None:
    for role in (Role.KEEP, Role.NEAR):
        for tensor in spec.tensors(role, count):
            size = DTYPE_BYTES[tensor.dtype]
            for axis in tensor.shape:
                size *= axis
            assert tensor.size_bytes == size
    keep = sum(tensor.size_bytes for tensor in spec.tensors(Role.KEEP, count)[1:])
    assert keep == count * spec.bytes_per_token(Role.KEEP)
    near = sum(tensor.size_bytes for tensor in spec.tensors(Role.NEAR, 1)[1:])
    assert near == spec.bytes_per_token(Role.NEAR)


@given(spec=SPECS, length=st.integers(0, 2000))
def test_near_objects_from_near_start_on_hold_every_visible_position(
    spec: StateSpec, length: int
) -> None:
    start = spec.near_start(length)
    for layer in spec.layers:
        if layer.kind is LayerKind.SLIDING:
            # The next token, at `length`, sees positions > length - window.
            assert start <= max(0, length - layer.window + 1)
    if spec.largest_window:
        assert start == max(0, length - spec.largest_window + 1)
    else:
        assert start == length


def test_roles_have_the_bytes_of_the_format() -> None:
    assert {role.name: role.value for role in Role} == {"KEEP": 1, "NEAR": 2, "END": 3}
