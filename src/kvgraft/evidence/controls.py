"""Negative controls: states that are wrong in one known way, and signed so that they are served.

A proof by equal digests is worth something only if a wrong state changes the digest. Each control
copies a stored prefix with one object altered and every digest made anew, so that nothing below
the logits can notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgraft.blob.payload import ChunkPlace, payload_head
from kvgraft.engines.base import Engine
from kvgraft.errors import ArtifactError
from kvgraft.limits import OBJECT_HEADER_BYTES
from kvgraft.plan import as_token_ids, chunk_keys, plan_calls, plan_root
from kvgraft.state import Role
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index, IndexEntry
from kvgraft.store.memory import MemoryStore

FLIPPED_BIT = "one flipped bit"
WRONG_CHUNK = "another prompt's chunk"
NEIGHBOUR = "the neighbour's window"  # every row holds what belongs one token before it
CONTROLS = (FLIPPED_BIT, WRONG_CHUNK, NEIGHBOUR)


@dataclass(frozen=True)
class Prefix:
    """A stored prefix of full blocks: its chunks' keys and places."""

    keys: tuple[bytes, ...]
    places: tuple[ChunkPlace, ...]


def full_blocks(engine: Engine, ids: Sequence[int], stored: int) -> Prefix:
    """The full blocks among the first `stored` tokens of a prompt in the public namespace."""
    tokens = as_token_ids(ids)[:stored]
    calls = plan_calls(len(tokens), engine.form, engine.context_tokens)
    keys = chunk_keys(plan_root(engine.fingerprint.digest), tokens, calls)
    full = [number for number, call in enumerate(calls) if call.count == engine.form.block]
    places = [ChunkPlace(calls[n].start, calls[n].count, calls[n].rows) for n in full]
    return Prefix(tuple(keys[n] for n in full), tuple(places))


def altered_store(
    engine: Engine, chunks: ChunkStore, prefix: Prefix, donor: Prefix, control: str
) -> ChunkStore:
    """A copy of `prefix` in memory, its last block altered as `control` says.

    Raises:
        ArtifactError: an object of the prefix or the donor's is not in the store.
    """
    copy = ChunkStore(MemoryStore(), Index(None))
    capture = copy.capture(engine.fingerprint)
    target = _target(engine, control)
    last = prefix.keys[-1]
    for key, place in zip(prefix.keys, prefix.places, strict=True):
        found = chunks.find(key)
        for role in found if key != last else {*found, target}:
            payload = _payload(chunks, key, role)
            if key == last and role is target:
                payload = _altered(engine, payload, role, place, control, chunks, donor)
            parts = [memoryview(payload)]
            capture.add(role, key, (place.start, place.count, place.rows), parts)
    capture.commit()
    if not copy.find(last):
        raise ArtifactError("a stored object that a control needs is gone", where=last.hex())
    return copy


def _target(engine: Engine, control: str) -> Role:
    """The object to alter: the first that carries state; for a neighbour's window, the windows."""
    carrying = [role for role in engine.spec.roles if engine.spec.bytes_per_token(role)]
    if control == NEIGHBOUR and Role.NEAR in carrying:
        return Role.NEAR
    return carrying[0] if carrying else Role.END


def _altered(
    engine: Engine,
    payload: bytearray,
    role: Role,
    place: ChunkPlace,
    control: str,
    chunks: ChunkStore,
    donor: Prefix,
) -> bytearray:
    start = len(payload_head(engine.spec, role, place)) + 4 * place.count
    if control == FLIPPED_BIT:
        payload[-1] ^= 0x20  # the last value's top exponent bit but one: plausible, and wrong
    elif control == WRONG_CHUNK:
        payload[start:] = _payload(chunks, donor.keys[-1], role)[start:]
    else:
        for tensor in engine.spec.tensors(role, place.count)[1:]:
            step = tensor.size_bytes // tensor.shape[0]
            rows = payload[start : start + tensor.size_bytes]
            payload[start : start + tensor.size_bytes] = rows[:step] + rows[:-step]
            start += tensor.size_bytes
    return payload


def _payload(chunks: ChunkStore, key: bytes, role: Role) -> bytearray:
    entry: IndexEntry | None = chunks.find(key).get(role)
    if entry is None:
        raise ArtifactError("a stored object that a control needs is gone", where=key.hex())
    payload = bytearray(entry.object.stored_length)
    reader = chunks.blobs.open(entry.pack)
    try:
        reader.read_into(entry.object.offset + OBJECT_HEADER_BYTES, [memoryview(payload)])
    finally:
        reader.close()
    return payload
