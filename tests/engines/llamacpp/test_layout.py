"""The layout of state bytes, without llama.cpp: only what is expected to the byte is taken."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kvgraft.engines.llamacpp.layout import CacheLayout, StateLayout, learn_caches
from kvgraft.errors import FormatError

FULL = CacheLayout((8, 8), (4, 6))  # bytes per row; values may differ from layer to layer
SLIDING = CacheLayout((12,), (12,))
LAYOUT = StateLayout((FULL, SLIDING), near=5)


def filled(layout: StateLayout, start: int, end: int, sequence: int = 0) -> np.ndarray:
    """State bytes with random tensors."""
    frame = layout.frame(start, end, sequence)
    data = np.random.default_rng(0).integers(0, 256, frame.size_bytes).astype(np.uint8)
    frame.write(data)
    return data


def by_hand(end: int, near: int) -> bytes:
    """What llama.cpp writes for `end` tokens, spelt out once, tensors zero."""
    out = struct.pack("<Ii", 0xAF143CD8, 0)
    for cache, first in ((FULL, 0), (SLIDING, max(0, end - near))):
        out += struct.pack("<II", 1, end - first)
        for position in range(first, end):
            out += struct.pack("<iIi", position, 1, 0)
        out += struct.pack("<II", 0, len(cache.keys))
        for size in (*cache.keys, *cache.values):
            out += struct.pack("<iQ", 1, size) + bytes(size * (end - first))
    return out


@pytest.mark.parametrize("end", [1, 4, 5, 6, 40])
def test_a_frame_is_what_llama_cpp_writes(end: int) -> None:
    data = np.zeros(LAYOUT.frame(0, end).size_bytes, np.uint8)
    LAYOUT.frame(0, end).write(data)
    assert data.tobytes() == by_hand(end, LAYOUT.near)


def test_a_chunk_holds_what_is_left_of_the_window() -> None:
    rows = LAYOUT.rows(10, 30)
    assert [(one.first, one.count) for one in rows] == [(10, 20), (25, 5)]
    rows = LAYOUT.rows(28, 30)
    assert [(one.first, one.count) for one in rows] == [(28, 2), (28, 2)]


def test_tensors_are_views_in_the_order_of_a_chunk() -> None:
    data = filled(LAYOUT, 0, 7)
    shapes = [view.shape for view in LAYOUT.frame(0, 7).tensors(data, 0)]
    assert shapes == [(7, 4), (7, 2), (7, 4), (7, 3)]
    views = LAYOUT.frame(0, 7).tensors(data, 1)
    assert [view.shape for view in views] == [(5, 6), (5, 6)]
    views[0][:] = 0
    LAYOUT.frame(0, 7).check(data)  # tensors are no part of what is compared
    assert all(np.shares_memory(view, data) and view.flags.c_contiguous for view in views)


@pytest.mark.parametrize("cut", [0, 1, 8, 100, -1, -7])
def test_another_length_is_refused(cut: int) -> None:
    data = filled(LAYOUT, 0, 7)
    with pytest.raises(FormatError):
        LAYOUT.frame(0, 7).check(data[:cut])
    with pytest.raises(FormatError):
        LAYOUT.frame(0, 7).check(np.append(data, np.uint8(0)))


def test_every_flipped_bit_outside_the_tensors_is_refused() -> None:
    frame, data = LAYOUT.frame(0, 7), filled(LAYOUT, 0, 7)
    inside = np.ones(len(data), bool)
    for cache in range(2):
        for view in frame.tensors(data, cache):
            offset = view.ctypes.data - data.ctypes.data
            inside[offset : offset + view.nbytes] = False
    assert inside.sum() > 100
    for offset in np.flatnonzero(inside):
        data[offset] ^= 1
        with pytest.raises(FormatError):
            frame.check(data)
        data[offset] ^= 1
    frame.check(data)


@pytest.mark.parametrize(("start", "end", "sequence"), [(1, 7, 0), (0, 8, 0), (0, 7, 1)])
def test_another_place_is_refused(start: int, end: int, sequence: int) -> None:
    with pytest.raises(FormatError):
        LAYOUT.frame(0, 7).check(filled(LAYOUT, start, end, sequence))


def test_row_sizes_are_learned_from_one_token() -> None:
    assert learn_caches(by_hand(1, 5), 2) == (FULL, SLIDING)
    one = StateLayout((FULL,), 0)
    assert learn_caches(filled(one, 0, 1).tobytes(), 1) == (FULL,)


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_caches_is_not_learned(count: int) -> None:
    with pytest.raises(FormatError):
        learn_caches(by_hand(1, 5), count)


def test_nothing_else_is_learned() -> None:
    whole = by_hand(1, 5)
    learned, refused = 0, 0
    for size in range(len(whole)):
        with pytest.raises(FormatError):
            learn_caches(whole[:size], 2)
    for offset in range(len(whole)):
        changed = bytearray(whole)
        changed[offset] ^= 4
        try:
            assert learn_caches(bytes(changed), 2) == (FULL, SLIDING)
            learned += 1  # inside a tensor
        except FormatError:
            refused += 1
    sizes = sum(sum(cache.keys) + sum(cache.values) for cache in (FULL, SLIDING))
    assert learned == sizes
    assert refused == len(whole) - sizes
    for data in (b"", bytes(64), b"\xff" * 4096):
        with pytest.raises(FormatError):
            learn_caches(data, 1)


def test_rows_of_sizes_that_cannot_be_are_not_learned() -> None:
    one = filled(StateLayout((FULL,), 0), 0, 1).tobytes()
    at = one.index(struct.pack("<iQ", 1, 8)) + 4
    for size in (0, 1, 7, 2**40, 2**64 - 2):
        changed = one[:at] + struct.pack("<Q", size) + one[at + 8 :]
        with pytest.raises(FormatError):
            learn_caches(changed, 1)
