"""Payloads: one canonical spelling per place, compared and never interpreted."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import safetensors
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from kvgraft.blob.payload import (
    ChunkPlace,
    PayloadCheck,
    as_buffer,
    check_views,
    payload_head,
    payload_length,
    raw_digest,
)
from kvgraft.errors import EngineError, FormatError, WrongAddress
from kvgraft.plan import as_token_ids
from kvgraft.state import LayerKind, LayerSpec, Role, StateSpec

FULL = LayerSpec(LayerKind.FULL, 2, 4, 3, "BF16")
SLIDING = LayerSpec(LayerKind.SLIDING, 1, 2, 2, "F32", window=6)
SPEC = StateSpec((FULL, SLIDING, FULL), 5, "F32")
PLACE = ChunkPlace(16, 8, 16)

LAYERS = st.builds(
    lambda heads, key, value, dtype, window: LayerSpec(
        LayerKind.SLIDING if window else LayerKind.FULL, heads, key, value, dtype, window
    ),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from(["F32", "BF16", "F16"]),
    st.sampled_from([0, 2, 3, 7, 100]),
)
SPECS = st.builds(
    lambda layers, hidden: StateSpec(tuple(layers), hidden, "F32"),
    st.lists(LAYERS, min_size=1, max_size=5),
    st.integers(1, 9),
)
PLACES = st.builds(
    lambda start, count, more: ChunkPlace(start, count, count + more),
    st.integers(0, 10_000),
    st.integers(1, 40),
    st.integers(0, 20),
)


def header_of(payload: bytes) -> dict[str, Any]:
    length = int.from_bytes(payload[:8], "little")
    return dict(json.loads(payload[8 : 8 + length]))


def build(spec: StateSpec, role: Role, place: ChunkPlace, seed: int = 0) -> bytes:
    """A payload of noise in the canonical spelling."""
    rng = np.random.default_rng(seed)
    size = payload_length(spec, role, place) - len(payload_head(spec, role, place))
    ids = as_token_ids(list(range(place.count))).tobytes()
    return payload_head(spec, role, place) + ids + rng.bytes(size - len(ids))


@given(spec=SPECS, place=PLACES, role=st.sampled_from(Role))
def test_safetensors_reads_every_payload(spec: StateSpec, place: ChunkPlace, role: Role) -> None:
    payload = build(spec, role, place)
    assert len(payload) == payload_length(spec, role, place)
    found = dict(safetensors.deserialize(payload))
    wanted = spec.tensors(role, place.count)
    assert {name: (t["dtype"], tuple(t["shape"])) for name, t in found.items()} == {
        t.name: (t.dtype, t.shape) for t in wanted
    }
    assert b"".join(bytes(found[t.name]["data"]) for t in wanted) == payload[-len_data(wanted) :]


def len_data(tensors: Any) -> int:
    return sum(tensor.size_bytes for tensor in tensors)


@given(spec=SPECS, place=PLACES, role=st.sampled_from(Role))
def test_tensors_start_on_a_cache_line(spec: StateSpec, place: ChunkPlace, role: Role) -> None:
    head = payload_head(spec, role, place)
    assert (len(head) + 4 * place.count) % 64 == 0
    assert int.from_bytes(head[:8], "little") == len(head) - 8
    assert head[8:].rstrip(b" ").endswith(b"}")


@pytest.mark.parametrize(("rows", "align"), [(1023, 64), (1024, 32 * 1024), (1025, 32 * 1024)])
def test_large_tensors_start_where_hashing_is_fastest(rows: int, align: int) -> None:
    spec = StateSpec((LayerSpec(LayerKind.FULL, 2, 128, 128, "BF16"),), 8, "F32")  # 1 KiB a token
    place = ChunkPlace(0, rows, 2048)
    payload = build(spec, Role.KEEP, place)
    head = payload_head(spec, Role.KEEP, place)
    start = len(head) + 4 * rows
    assert start % align == 0
    assert len(head) - len(head.rstrip(b" ")) < align  # no more padding than that takes
    tensors = dict(safetensors.deserialize(payload))
    assert bytes(tensors["layer.0000.key"]["data"]) == payload[start : start + rows * 512]


def test_the_head_spelled_out() -> None:
    text = (
        '{"__metadata__":{"format":"kvgraft-1","role":"near","start":"16","count":"8",'
        '"rows":"16","length":"24","layer.0001.first":"19"},'
        '"ids":{"dtype":"U32","shape":[8],"data_offsets":[0,32]},'
        '"layer.0001.key":{"dtype":"F32","shape":[5,1,2],"data_offsets":[32,72]},'
        '"layer.0001.value":{"dtype":"F32","shape":[5,1,2],"data_offsets":[72,112]}}'
    )
    padded = text.encode() + b" " * (-(8 + len(text) + 4 * 8) % 64)
    assert payload_head(SPEC, Role.NEAR, PLACE) == len(padded).to_bytes(8, "little") + padded


def test_ids_come_first_in_every_object() -> None:
    for role in Role:
        header = header_of(payload_head(SPEC, role, PLACE))
        assert header["ids"] == {"dtype": "U32", "shape": [8], "data_offsets": [0, 32]}


@pytest.mark.parametrize("count", [1, 4, 5, 6, 8])
def test_sliding_layers_state_where_they_stand(count: int) -> None:
    place = ChunkPlace(32, count, 16)
    header = header_of(payload_head(SPEC, Role.NEAR, place))
    kept = header["layer.0001.key"]["shape"][0]
    assert kept == min(count, 6 - 1)
    assert header["__metadata__"]["layer.0001.first"] == str(32 + count - kept)
    assert header["__metadata__"]["length"] == str(32 + count)


def test_heads_differ_wherever_a_place_or_a_model_does() -> None:
    wider = StateSpec((FULL, SLIDING, FULL), 6, "F32")
    half = LayerSpec(LayerKind.FULL, 2, 4, 3, "F16")
    places = [PLACE, ChunkPlace(0, 8, 16), ChunkPlace(16, 7, 16), ChunkPlace(16, 8, 8)]
    heads = [payload_head(SPEC, role, place) for role in Role for place in places]
    heads.append(payload_head(wider, Role.END, PLACE))
    heads.append(payload_head(StateSpec((half, SLIDING, half), 5, "F32"), Role.KEEP, PLACE))
    assert len(set(heads)) == len(heads)


def check_of(spec: StateSpec, payload: bytes, ids: np.ndarray) -> PayloadCheck:
    check = PayloadCheck(spec, Role.KEEP, PLACE, ids)
    offset = 0
    for buffer in check.buffers():
        buffer[:] = payload[offset : offset + len(buffer)].ljust(len(buffer), b"\0")
        offset += len(buffer)
    return check


IDS = as_token_ids(list(range(8)))


def test_a_payload_is_its_own() -> None:
    check_of(SPEC, build(SPEC, Role.KEEP, PLACE), IDS).verify("here")


def test_another_layout_is_refused() -> None:
    for role, place in [(Role.NEAR, PLACE), (Role.KEEP, ChunkPlace(0, 8, 16))]:
        with pytest.raises(FormatError):
            check_of(SPEC, build(SPEC, role, place), IDS).verify("here")


def test_a_bfloat16_payload_is_not_a_float16_one() -> None:
    half = LayerSpec(LayerKind.FULL, 2, 4, 3, "F16")
    other = StateSpec((half, SLIDING, half), 5, "F32")
    payload = build(SPEC, Role.KEEP, PLACE)
    assert len(payload) == payload_length(other, Role.KEEP, PLACE)  # the size does not tell
    with pytest.raises(FormatError):
        check_of(other, payload, IDS).verify("here")


def test_other_token_ids_are_another_address() -> None:
    for position in range(8):
        ids = IDS.copy()
        ids[position] += 1
        with pytest.raises(WrongAddress):
            check_of(SPEC, build(SPEC, Role.KEEP, PLACE), ids).verify("here")


def test_a_pickle_is_only_wrong_bytes(tmp_path: Any) -> None:
    marker = tmp_path / "marker"
    script = (
        "import pathlib, pickle, sys\n"
        "class Trap:\n"
        "    def __reduce__(self):\n"
        "        return (pathlib.Path(sys.argv[1]).touch, ())\n"
        "sys.stdout.buffer.write(pickle.dumps(Trap()))"
    )
    trap = subprocess.run(
        [sys.executable, "-c", script, str(marker)], capture_output=True, check=True
    ).stdout
    with pytest.raises(FormatError):
        check_of(SPEC, trap, IDS).verify("here")
    assert not marker.exists()


def test_views_must_be_the_chunks_own() -> None:
    tensors = SPEC.tensors(Role.KEEP, 8)
    views = [np.zeros(tensor.shape, np.uint16) for tensor in tensors[1:]]
    assert [len(buffer) for buffer in check_views(tensors, views)] == [128, 96, 128, 96]
    with pytest.raises(EngineError, match="3 state buffers"):
        check_views(tensors, views[:-1])
    with pytest.raises(EngineError, match=r"layer\.0000\.key"):
        check_views(tensors, [views[0][:-1], *views[1:]])
    with pytest.raises(EngineError, match="not contiguous"):
        check_views(tensors, [np.zeros((8, 4, 2), np.uint16).transpose(0, 2, 1), *views[1:]])


def test_a_buffer_is_the_arrays_own_memory() -> None:
    array = np.zeros((2, 3), np.float32)
    as_buffer(array)[4:8] = np.float32(1.5).tobytes()
    assert array[0, 1] == 1.5


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_the_raw_digest_does_not_depend_on_the_pieces(pieces: list[bytes]) -> None:
    assert raw_digest(pieces) == blake3(b"".join(pieces)).digest()
