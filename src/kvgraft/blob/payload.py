"""An object's payload: safetensors layout, in one canonical spelling.

Any safetensors reader opens a raw payload. kvgraft itself never parses one on the hot path: from
the `StateSpec` and the place of the chunk follows exactly one valid header, so reading compares
bytes instead of interpreting them. Pickles, reordered tensors, other dtypes or lengths are all
the same to it: not the expected bytes, refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from blake3 import blake3

from kvgraft.errors import EngineError, FormatError, WrongAddress
from kvgraft.limits import MAX_PAYLOAD_HEADER_BYTES
from kvgraft.state import Role, StateSpec, TensorSpec

# Where tensor data starts, counted from the payload's beginning. BLAKE3 hashes a large update
# fastest when it starts at a power-of-two multiple of its 1,024-byte chunks: with 32 KiB, 94 MB are
# read and hashed in 9 ms instead of 12. Small objects are not worth the padding.
_ALIGN_BYTES, _LARGE_ALIGN_BYTES, _LARGE_BYTES = 64, 32 * 1024, 1024 * 1024
Buffer = memoryview


@dataclass(frozen=True)
class ChunkPlace:
    """Where a chunk lies: tokens `[start, start + count)`, computed in `rows` rows."""

    start: int
    count: int
    rows: int


@lru_cache(maxsize=4096)
def payload_head(spec: StateSpec, role: Role, place: ChunkPlace) -> bytes:
    """The 8-byte length and the JSON header that a payload of this place begins with.

    Sliding layers state their first position and the cumulative length explicitly (metadata
    `layer.N.first`, `length`): a window's tensors alone do not tell where it stands.
    """
    metadata = {
        "format": "kvgraft-1",
        "role": role.name.lower(),
        "start": str(place.start),
        "count": str(place.count),
        "rows": str(place.rows),
        "length": str(place.start + place.count),
    }
    entries: dict[str, object] = {}
    offset = 0
    for tensor in spec.tensors(role, place.count):
        end = offset + tensor.size_bytes
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        if role is Role.NEAR and tensor.name.endswith(".key"):
            first = place.start + place.count - tensor.shape[0]
            metadata[f"layer.{tensor.layer:04d}.first"] = str(first)
        offset = end
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    if len(text) > MAX_PAYLOAD_HEADER_BYTES:
        raise FormatError(f"a payload header of {len(text)} bytes is over the limit")
    ids_bytes = 4 * place.count
    align = _LARGE_ALIGN_BYTES if offset - ids_bytes >= _LARGE_BYTES else _ALIGN_BYTES
    text += b" " * (-(8 + len(text) + ids_bytes) % align)
    return len(text).to_bytes(8, "little") + text


def payload_length(spec: StateSpec, role: Role, place: ChunkPlace) -> int:
    """Bytes of the whole payload."""
    data = sum(tensor.size_bytes for tensor in spec.tensors(role, place.count))
    return len(payload_head(spec, role, place)) + data


def as_buffer(array: np.ndarray) -> Buffer:
    """The bytes of a C-contiguous array, not copied.

    Raises:
        EngineError: the array is not contiguous (its bytes would not be its tensor's).
    """
    if not array.flags.c_contiguous:
        raise EngineError(f"a state tensor of shape {array.shape} is not contiguous")
    return array.data.cast("B")


def check_views(tensors: Sequence[TensorSpec], views: Sequence[np.ndarray]) -> list[Buffer]:
    """An engine's buffers for `tensors` (ids apart), as bytes.

    Raises:
        EngineError: another number of buffers, or one of another size.
    """
    if len(views) != len(tensors) - 1:
        raise EngineError(f"{len(views)} state buffers for {len(tensors) - 1} tensors")
    buffers = []
    for tensor, view in zip(tensors[1:], views, strict=True):
        if view.nbytes != tensor.size_bytes:
            raise EngineError(f"{tensor.name}: {view.nbytes} bytes, expected {tensor.size_bytes}")
        buffers.append(as_buffer(view))
    return buffers


class PayloadCheck:
    """What one payload must begin with: the canonical head, then these token ids."""

    def __init__(self, spec: StateSpec, role: Role, place: ChunkPlace, ids: np.ndarray) -> None:
        self.expected_head = payload_head(spec, role, place)
        self.expected_ids = ids.tobytes()
        self.length = payload_length(spec, role, place)
        self.head = bytearray(len(self.expected_head))
        self.ids = bytearray(len(self.expected_ids))

    def buffers(self) -> list[Buffer]:
        """Where to read the beginning of the payload into."""
        return [memoryview(self.head), memoryview(self.ids)]

    def verify(self, where: str) -> None:
        """Compare what was read.

        Raises:
            FormatError: another layout.
            WrongAddress: the same layout with other token ids.
        """
        if self.head != self.expected_head:
            raise FormatError("the payload's layout is not the one this chunk has", where=where)
        if self.ids != self.expected_ids:
            raise WrongAddress("the object's token ids are not the requested ones", where=where)


def raw_digest(parts: Sequence[Buffer | bytes]) -> bytes:
    """BLAKE3 of a payload given in pieces (32 bytes): the subject of invariant I4."""
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.digest()
